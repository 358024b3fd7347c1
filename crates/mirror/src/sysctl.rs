//! The kernel's forwarding switches, as the calling thread's network namespace has them.

use std::fs;
use std::io;
use std::path::PathBuf;

/// Whether the kernel forwards IPv4 at all (net.ipv4.ip_forward).
pub fn ipv4_forwarding() -> io::Result<bool> {
    switch("ipv4/ip_forward".into())
}

/// Whether it forwards IPv4 packets that arrive on `interface` (net.ipv4.conf.*.forwarding).
pub fn ipv4_forwarding_of(interface: &str) -> io::Result<bool> {
    switch(of("ipv4", interface, "forwarding")?)
}

/// Whether it forwards IPv6 by default (net.ipv6.conf.all.forwarding). Not found where IPv6 is off.
pub fn ipv6_forwarding() -> io::Result<bool> {
    ipv6_forwarding_of("all")
}

/// Whether it forwards IPv6 packets that arrive on `interface` (net.ipv6.conf.*.forwarding).
pub fn ipv6_forwarding_of(interface: &str) -> io::Result<bool> {
    switch(of("ipv6", interface, "forwarding")?)
}

fn of(family: &str, interface: &str, key: &str) -> io::Result<PathBuf> {
    // Interface names hold neither; a path made of anything else would lead elsewhere.
    if interface.is_empty() || interface.contains('/') || interface == ".." || interface == "." {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{interface:?} is no interface name")));
    }
    Ok(PathBuf::from(family).join("conf").join(interface).join(key))
}

fn switch(key: PathBuf) -> io::Result<bool> {
    let path = PathBuf::from("/proc/sys/net").join(key);
    let value = fs::read_to_string(&path)?;
    value.trim().parse::<i32>().map(|value| value != 0).map_err(|_| {
        io::Error::new(io::ErrorKind::InvalidData, format!("{} holds {:?}, no number", path.display(), value.trim()))
    })
}
