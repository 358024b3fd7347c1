//! Settings that a journal may name, and values that it may give them.
//!
//! `bywash restore` obeys a journal with all of root's privileges, and a sandboxed instance asks its broker for the
//! changes that are recorded. So a journal can name nothing but the settings that Bywash itself changes.

use super::super::below::TAKE_TAGS_OFF;
use super::super::napi;
use super::{Change, Value};

/// Features that ports need otherwise, or that `bywash doctor --fix` fixes.
const FEATURES: [&str; 8] = [
    "rx-gro",
    "rx-gro-hw",
    "rx-gro-list",
    "rx-lro",
    "rx-udp-gro-forwarding",
    TAKE_TAGS_OFF[0],
    TAKE_TAGS_OFF[1],
    "tx-vlan-hw-insert",
];
/// Settings of [`napi`] that ports need otherwise.
const NUMBERS: [&str; 2] = [napi::DEFER, napi::FLUSH];
/// Largest of [`NUMBERS`]: the kernel's own limit of polls, and two seconds as a time.
const MOST: u64 = i32::MAX as u64;
/// Longest name of an interface, in bytes (IFNAMSIZ without the zero).
const LONGEST: usize = 15;

/// Returns whether an interface can have this name (`dev_valid_name` of the kernel). Such a name is one component of a
/// path, and neither the directory nor the one above.
pub fn is_interface_name(name: &str) -> bool {
    let wrong = |c: char| c == '/' || c == ':' || c.is_whitespace() || c.is_control();
    (1..=LONGEST).contains(&name.len()) && name != "." && name != ".." && !name.contains(wrong)
}

/// Checks that a journal may have this change. Errors with the reason if not.
pub fn check(change: &Change) -> Result<(), String> {
    let Change { interface, feature, was, .. } = change;
    if !is_interface_name(interface) {
        return Err(format!("{interface:?} is not an interface name"));
    }
    match was {
        Value::On(_) if FEATURES.contains(&feature.as_str()) => Ok(()),
        Value::Number(..=MOST) if NUMBERS.contains(&feature.as_str()) => Ok(()),
        Value::Number(n) if NUMBERS.contains(&feature.as_str()) => {
            Err(format!("{n} is too much for {feature} of {interface}: at most {MOST}"))
        }
        Value::On(_) => Err(format!("Bywash does not change feature {feature:?} of {interface}")),
        Value::Number(_) => Err(format!("Bywash does not change setting {feature:?} of {interface}")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Journal;
    use super::*;

    fn text(interface: &str, feature: &str, was: &str) -> Vec<u8> {
        format!("[{{\"interface\": {interface:?}, \"feature\": {feature:?}, \"was\": {was}}}]").into_bytes()
    }

    #[test]
    fn what_bywash_changes_is_accepted() {
        for feature in FEATURES {
            assert_eq!(Journal::parse(&text("eth0.100", feature, "true")).map(|all| all.len()), Ok(1), "{feature}");
        }
        for setting in NUMBERS {
            assert_eq!(Journal::parse(&text("br-lan", setting, "2147483647")).map(|all| all.len()), Ok(1), "{setting}");
        }
        assert_eq!(Journal::parse(b"[]"), Ok(vec![]));
    }

    #[test]
    fn everything_else_is_refused() {
        for (interface, feature, was) in [
            // A number was written to the file of this name below the interface's directory.
            ("eth0", "../../../../../etc/passwd", "0"),
            ("eth0", "/etc/passwd", "0"),
            ("eth0", "mtu", "68"),
            ("eth0", "rx-gro", "1"),
            ("eth0", "napi_defer_hard_irqs", "true"),
            ("eth0", "napi_defer_hard_irqs", "2147483648"),
            ("eth0", "gro_flush_timeout", "-1"),
            ("eth0", "gro_flush_timeout", "\"0\""),
            ("eth0", "tx-tcp-segmentation", "false"),
            ("eth0", "", "true"),
            ("", "rx-gro", "true"),
            (".", "rx-gro", "true"),
            ("..", "gro_flush_timeout", "0"),
            ("../net/eth0", "gro_flush_timeout", "0"),
            ("sixteen_bytes_on", "rx-gro", "true"),
            ("eth 0", "rx-gro", "true"),
        ] {
            let parsed = Journal::parse(&text(interface, feature, was));
            assert!(parsed.is_err_and(|why| !why.is_empty()), "{interface} {feature} {was}");
        }
        let both = [text("eth0", "rx-gro", "true"), text("eth0", "mtu", "68")].concat();
        let both = String::from_utf8(both).unwrap().replace("][", ", ");
        let why = Journal::parse(both.as_bytes()).unwrap_err();
        assert_eq!(why, "Bywash does not change setting \"mtu\" of eth0", "one bad change refuses all");
    }
}
