//! Probes of this machine's capabilities. Each returns a reason on failure, for the `SKIP:` line of a test.

use crate::namespace::Namespace;
use rustix::process::geteuid;
use std::collections::HashMap;
use std::fmt;
use std::io::Write;
use std::sync::{LazyLock, Mutex, OnceLock, PoisonError};

/// Reason why a test cannot run on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reason(String);

impl Reason {
    /// Creates a reason from text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// Result of a probe.
pub type Probe = Result<(), Reason>;

/// Requires effective user ID 0.
pub fn require_root() -> Probe {
    if geteuid().is_root() { Ok(()) } else { Err(Reason::new("root needed")) }
}

/// Requires everything a topology needs: root, `ip`, network namespaces (a container may forbid them) and veth.
pub fn require_lab() -> Probe {
    static ONCE: OnceLock<Probe> = OnceLock::new();
    let probe = || {
        require_root()?;
        has_tool("ip")?;
        Namespace::new("probe").map(drop).map_err(|error| Reason::new(format!("no network namespaces: {error}")))?;
        kernel_has("veth")
    };
    ONCE.get_or_init(probe).clone()
}

/// Requires a program on PATH, or in the sbin directories that a user's PATH lacks.
pub fn has_tool(name: &str) -> Probe {
    let path = std::env::var("PATH").unwrap_or_default();
    let found = path
        .split(':')
        .chain(["/usr/sbin", "/sbin"])
        .any(|directory| !directory.is_empty() && std::path::Path::new(directory).join(name).is_file());
    if found { Ok(()) } else { Err(Reason::new(format!("no `{name}` on this machine"))) }
}

/// Requires a feature of the running kernel, tested by using it in a namespace of its own: `veth`, `8021q`, `vrf`,
/// `dummy`, `bonding`, `team`, `bridge`, `macvlan`, `ipvlan`, `ifb`, `gre`, `ipip`, `sit`, `vxlan`, `netem`, `tbf`,
/// `tun`, `live-rename` (of an interface that is up: since 6.2); or, by its version, `tcx` (programs of traffic control
/// that are attached by links: since 6.6). Requires root. The result is cached.
pub fn kernel_has(feature: &str) -> Probe {
    static CACHE: LazyLock<Mutex<HashMap<String, Probe>>> = LazyLock::new(Mutex::default);
    let mut cache = CACHE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = cache.get(feature) {
        return known.clone();
    }
    let probe = try_feature(feature);
    cache.insert(feature.to_owned(), probe.clone());
    probe
}

/// Returns whether the running kernel is of this version or a later one.
fn is_since(version: [u32; 2]) -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    release.split('.').map_while(|number| number.parse::<u32>().ok()).take(2).ge(version)
}

fn try_feature(feature: &str) -> Probe {
    if feature == "tcx" {
        return if is_since([6, 6]) { Ok(()) } else { Err(Reason::new("kernel without tcx (6.6)")) };
    }
    let pair = "link add v0 type veth peer name v1\n";
    let lines = match feature {
        "veth" => pair.to_owned(),
        "8021q" => format!("{pair}link add link v0 name v0.5 type vlan id 5\n"),
        "live-rename" => format!("{pair}link set v0 up\nlink set v0 name v2\n"),
        "vrf" => "link add x0 type vrf table 10\n".to_owned(),
        "dummy" => "link add x0 type dummy\n".to_owned(),
        "bonding" => "link add x0 type bond\n".to_owned(),
        "team" => "link add x0 type team\n".to_owned(),
        "bridge" => "link add x0 type bridge\n".to_owned(),
        "bridge-vlans" => "link add x0 type bridge vlan_filtering 1\n".to_owned(),
        "macvlan" => format!("{pair}link add link v0 name x0 type macvlan\n"),
        "ipvlan" => format!("{pair}link add link v0 name x0 type ipvlan\n"),
        "ifb" => "link add x0 type ifb\n".to_owned(),
        "ip6gre" | "ip6gretap" | "ip6tnl" => format!("link add x0 type {feature} local fd00::1 remote fd00::2\n"),
        "gre" | "gretap" | "ipip" | "sit" => format!("link add x0 type {feature} local 10.0.0.1 remote 10.0.0.2\n"),
        "vxlan" => "link add x0 type vxlan id 5 dstport 4789\n".to_owned(),
        "tun" => "tuntap add dev x0 mode tap\n".to_owned(),
        "netem" | "tbf" => pair.to_owned(),
        other => return Err(Reason::new(format!("no probe for kernel feature `{other}`"))),
    };
    require_root()?;
    let missing = |error: crate::Error| Reason::new(format!("kernel without {feature}: {error}"));
    let namespace = Namespace::new("probe").map_err(missing)?;
    namespace.ip_batch(&lines).map_err(missing)?;
    let qdisc: &[&str] = match feature {
        "netem" => &["netem", "delay", "1ms"],
        "tbf" => &["tbf", "rate", "1mbit", "burst", "4k", "latency", "10ms"],
        _ => return Ok(()),
    };
    let command = [&["tc", "qdisc", "add", "dev", "v0", "root"], qdisc].concat();
    namespace.run(&command).map(drop).map_err(missing)
}

/// Prints `SKIP: reason` directly to standard error: the test runner captures the print macros of a passing test, and a
/// skipped test passes.
pub fn report_skip(reason: &dyn fmt::Display) {
    let test = std::thread::current().name().unwrap_or("?").to_owned();
    let line = format!("SKIP: {reason} ({test})").replace('\n', " ");
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}

/// Prints `SKIP: reason` and returns from the test, which must return `()`.
#[macro_export]
macro_rules! skip {
    ($($reason:tt)+) => {{
        $crate::report_skip(&format_args!($($reason)+));
        return;
    }};
}

/// Runs probes and, at the first that fails, prints a `SKIP:` line and returns from the test.
///
/// ```no_run
/// # fn some_test() {
/// bywash_lab::require!(bywash_lab::require_lab(), bywash_lab::has_tool("iperf3"));
/// # }
/// ```
#[macro_export]
macro_rules! require {
    ($($probe:expr),+ $(,)?) => {
        $(if let Err(reason) = $probe {
            $crate::skip!("{reason}");
        })+
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tools_are_found_or_named() {
        assert_eq!(has_tool("sh"), Ok(()));
        assert!(has_tool("bywash-no-such-tool").unwrap_err().to_string().contains("bywash-no-such-tool"));
        assert!(kernel_has("no-such-feature").is_err());
    }

    #[test]
    fn skip_leaves_the_test() {
        fn body(probe: Probe, reached: &mut u32) {
            *reached += 1;
            require!(Ok::<(), Reason>(()), probe);
            *reached += 1;
        }
        let mut reached = 0;
        body(has_tool("sh"), &mut reached);
        assert_eq!(reached, 2);
        body(has_tool("bywash-no-such-tool"), &mut reached);
        assert_eq!(reached, 3);
    }
}
