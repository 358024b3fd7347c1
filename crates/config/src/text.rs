//! Formats of strings, and what they are parsed into.

use bywash_fib::model::{NotAPrefix, Prefix};
use bywash_port::memif;
use bywash_wire::ethernet::MacAddr;
use std::net::{Ipv4Addr, SocketAddr};

/// Text that stands for a secret wherever one would be printed.
pub const HIDDEN: &str = "(secret)";

/// Format of a string.
pub struct Format {
    /// Words for it in docs/config.md.
    pub words: &'static str,
    /// Errors with what was expected if a string is not in the format.
    pub check: fn(&str) -> Result<(), String>,
}

const fn format(words: &'static str, check: fn(&str) -> Result<(), String>) -> Format {
    Format { words, check }
}

pub static BLOCK: Format = format("32 hex digits", |text| block(text).map(drop));
pub static DEVICE: Format = format("a DPDK device name, with its arguments after commas", not_empty);
pub static EAL: Format = format("options of DPDK's EAL", |_| Ok(()));
pub static GROUP: Format = format("a group name", not_empty);
pub static USER: Format = format("a user name", not_empty);
pub static INTERFACE: Format = format("an interface name", |text| interface_name(text).map(drop));
pub static IPV4: Format = format("an IPv4 address", |text| ipv4(text).map(drop));
pub static INTERFACE_AND_PORT: Format = format("1 to 15 characters of `a-z A-Z 0-9 . _ -`", both);
pub static LISTEN: Format = format("an address and a port", listen);
pub static MAC: Format = format("a MAC address", |text| mac(text).map(drop));
pub static NAME: Format = format("1 to 32 characters of `a-z A-Z 0-9 . _ -`", name);
pub static OTHER_PORT: Format = format("the name of another port", name);
pub static PATH: Format = format("a path", not_empty);
pub static PORT: Format = format("a port name", not_empty);
pub static PORTS: Format = format("a port number, or a range `a-b`", |text| ports(text).map(drop));
pub static PREFIX: Format = format("an address or prefix", |text| prefix(text).map(drop));
pub static SECRET: Format = format("a string of at most 24 bytes", secret);
pub static SYMBOL: Format = format("a name", not_empty);
pub static TOKEN: Format = format("a string of 16 to 128 printable characters", token);
pub static SOCKET: Format = format("a path, or `@` and a name", not_empty);

fn not_empty(text: &str) -> Result<(), String> {
    if text.is_empty() { Err("expected a non-empty string".into()) } else { Ok(()) }
}

fn name(text: &str) -> Result<(), String> {
    if (1..=32).contains(&text.len()) && text.chars().all(of_name) {
        Ok(())
    } else {
        Err("expected 1 to 32 characters of a-z A-Z 0-9 . _ -".into())
    }
}

/// Returns whether names may have a character.
fn of_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || "._-".contains(c)
}

/// Returns the name of a port on an interface: the interface's, with `_` for each character that only interfaces may
/// have. Others are separators in the text of flows.
pub fn port_name(interface: &str) -> String {
    interface.chars().map(|c| if of_name(c) { c } else { '_' }).collect()
}

/// Validates the name of an interface that is also the name of its port.
fn both(text: &str) -> Result<(), String> {
    interface_name(text)
        .and_then(|text| name(&text).map_err(|_| "expected 1 to 15 characters of a-z A-Z 0-9 . _ -".into()))
}

fn token(text: &str) -> Result<(), String> {
    match (16..=128).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic()) {
        true => Ok(()),
        false => Err("expected 16 to 128 printable characters of ASCII without spaces".into()),
    }
}

fn secret(text: &str) -> Result<(), String> {
    let fits = text.len() <= memif::SECRET && !text.contains('\0');
    match (fits, text == HIDDEN) {
        (true, false) => Ok(()),
        (true, true) => Err("expected the secret itself, or the place that it comes from: it is hidden here".into()),
        (false, _) => Err(format!("expected at most {} bytes", memif::SECRET)),
    }
}

/// Validates an address and port to listen on.
fn listen(text: &str) -> Result<(), String> {
    let parsed = text.parse::<SocketAddr>();
    parsed.map(drop).map_err(|_| "expected an address and a port, such as \"127.0.0.1:9469\"".into())
}

fn ipv4(text: &str) -> Result<Ipv4Addr, String> {
    let address = text.parse().ok().filter(|address: &Ipv4Addr| !address.is_unspecified());
    address.ok_or_else(|| "expected an IPv4 address".into())
}

/// Maximum length of an interface name in bytes: `IFNAMSIZ` (linux/if.h) minus the NUL.
const INTERFACE_NAME: usize = 15;

/// Validates an interface name by the kernel's rules (`dev_valid_name`).
pub fn interface_name(name: &str) -> Result<String, String> {
    if name.is_empty() || name.len() > INTERFACE_NAME {
        return Err(format!("an interface name must have 1 to {INTERFACE_NAME} characters"));
    }
    if name == "." || name == ".." || name.contains(|c: char| c == '/' || c == ':' || c.is_whitespace()) {
        return Err("an interface name must not contain `/`, `:` or white space, nor be `.` or `..`".into());
    }
    Ok(name.into())
}

/// Parses the MAC address of one station.
pub fn mac(text: &str) -> Result<MacAddr, String> {
    let mac: MacAddr = text.parse().map_err(|_| "expected a MAC address such as 02:00:00:00:00:01")?;
    match mac {
        MacAddr::ZERO => Err("expected the address of a station".into()),
        _ if mac.0[0] & 1 != 0 => Err("expected a unicast address, not a group address".into()),
        _ => Ok(mac),
    }
}

/// Parses an AES block.
pub fn block(text: &str) -> Result<[u8; 16], String> {
    let bytes = bywash_wire::hex::decode(text)?;
    bytes.try_into().map_err(|_| format!("expected 32 hex digits, found {}", text.trim().len()))
}

/// Parses a prefix, or an address as a prefix of full length.
pub fn prefix(text: &str) -> Result<Prefix, String> {
    text.parse().map_err(|why: NotAPrefix| why.to_string())
}

/// Parses a port, or a range of ports: the first and the last.
pub fn ports(text: &str) -> Result<(u16, u16), String> {
    let wrong = || "expected a port number, or a range such as 1024-65535".to_string();
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let range = (first.parse().map_err(|_| wrong())?, last.parse().map_err(|_| wrong())?);
    if range.0 <= range.1 { Ok(range) } else { Err(wrong()) }
}

/// Formats a number of things, of which one has this name: `1 port`, `2 ports`.
pub fn count(number: impl std::fmt::Display, thing: &str) -> String {
    let number = number.to_string();
    let s = if number == "1" { "" } else { "s" };
    format!("{number} {thing}{s}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thing_is_in_the_singular() {
        let counts = [0, 1, 2, 11].map(|number| count(number, "port"));
        assert_eq!(counts, ["0 ports", "1 port", "2 ports", "11 ports"]);
    }

    #[test]
    fn interface_names() {
        assert!(interface_name("eth0.100").is_ok());
        for bad in ["", "0123456789abcdef", "a b", "..", "a/b", "a:b"] {
            assert!(interface_name(bad).is_err(), "{bad}");
        }
        for (interface, port) in [("eth0.100", "eth0.100"), ("e,h0", "e_h0"), ("ü\u{7f}(1)", "___1_")] {
            assert!(interface_name(interface).is_ok() && name(&port_name(interface)).is_ok());
            assert_eq!(port_name(interface), port);
        }
        assert!(both("br-0").is_ok() && both("b,r").is_err() && both("..").is_err());
    }
}
