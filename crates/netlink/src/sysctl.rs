//! The kernel's forwarding switches in the calling thread's network namespace.

use std::fs;
use std::io;
use std::path::PathBuf;

/// Returns whether the kernel forwards IPv4 at all (net.ipv4.ip_forward).
pub fn ipv4_forwarding() -> io::Result<bool> {
    switch("ipv4/ip_forward".into())
}

/// Returns whether the kernel forwards IPv4 packets that arrive on `interface` (net.ipv4.conf.*.forwarding).
pub fn ipv4_forwarding_of(interface: &str) -> io::Result<bool> {
    switch(of("ipv4", interface, "forwarding")?)
}

/// Returns whether the kernel forwards IPv6 by default (net.ipv6.conf.all.forwarding). Errors with `NotFound` if IPv6
/// is off.
pub fn ipv6_forwarding() -> io::Result<bool> {
    ipv6_forwarding_of("all")
}

/// Returns whether the kernel forwards IPv6 packets that arrive on `interface` (net.ipv6.conf.*.forwarding).
pub fn ipv6_forwarding_of(interface: &str) -> io::Result<bool> {
    switch(of("ipv6", interface, "forwarding")?)
}

fn of(family: &str, interface: &str, key: &str) -> io::Result<PathBuf> {
    // Interface names contain neither a slash nor are they "." or ".."; any other name could lead out of the directory.
    if interface.is_empty() || interface.contains('/') || interface == ".." || interface == "." {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("invalid interface name {interface:?}")));
    }
    Ok(PathBuf::from(family).join("conf").join(interface).join(key))
}

fn switch(key: PathBuf) -> io::Result<bool> {
    let path = PathBuf::from("/proc/sys/net").join(key);
    let value = fs::read_to_string(&path)?;
    value.trim().parse::<i32>().map(|value| value != 0).map_err(|_| {
        io::Error::new(io::ErrorKind::InvalidData, format!("{} holds {:?}, not a number", path.display(), value.trim()))
    })
}
