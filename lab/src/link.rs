//! veth pairs between namespaces, created with names, MAC addresses, IP addresses, MTU, queues and offloads.

use crate::error::Result;
use crate::namespace::Namespace;
use crate::wait_until;
use std::fmt::Write;
use std::time::Duration;

/// `IFA_F_TENTATIVE` (linux/if_addr.h).
const TENTATIVE: u32 = 0x40;

/// One end of a [`Veth`]: its namespace and settings.
#[derive(Debug, Clone)]
pub struct End<'a> {
    namespace: &'a Namespace,
    name: String,
    mac: Option<String>,
    addresses: Vec<String>,
    offloads: Vec<(String, bool)>,
}

impl<'a> End<'a> {
    /// Creates an end named `name` (at most 15 bytes, the kernel's limit) in `namespace`.
    pub fn new(namespace: &'a Namespace, name: impl Into<String>) -> Self {
        Self { namespace, name: name.into(), mac: None, addresses: Vec::new(), offloads: Vec::new() }
    }

    /// Sets the MAC address, such as `02:00:00:00:00:01`; without it the kernel chooses one.
    #[must_use]
    pub fn mac(mut self, mac: impl Into<String>) -> Self {
        self.mac = Some(mac.into());
        self
    }

    /// Adds an IPv4 or IPv6 address with prefix length.
    #[must_use]
    pub fn address(mut self, address: impl Into<String>) -> Self {
        self.addresses.push(address.into());
        self
    }

    /// Turns an `ethtool -K` feature on or off once the pair is up.
    #[must_use]
    pub fn offload(mut self, feature: impl Into<String>, on: bool) -> Self {
        self.offloads.push((feature.into(), on));
        self
    }
}

/// Time after which [`settle`] gives up: some interfaces never get a link-local address.
const SETTLED: Duration = Duration::from_secs(10);

/// Waits until those interfaces of a namespace that have carrier can solicit neighbours of IPv6. The kernel adds their
/// link-local addresses from a work queue, after everything else, and solicits without one only for its own packets: a
/// packet to forward is dropped three seconds after the first attempt.
pub fn settle(namespace: &Namespace) -> Result<()> {
    let links = namespace.ip(&["-d", "-j", "link", "show", "up"])?.stdout;
    let links: Vec<serde_json::Value> = serde_json::from_str(&links).unwrap_or_default();
    for link in links {
        let name = link["ifname"].as_str().unwrap_or_default();
        let has = |flag: &str| link["flags"].as_array().is_some_and(|flags| flags.iter().any(|f| f == flag));
        let solicits = has("LOWER_UP") && !["LOOPBACK", "SLAVE", "NOARP"].into_iter().any(has);
        let member =
            link["linkinfo"]["info_slave_kind"].as_str().is_some_and(|kind| ["bridge", "bond"].contains(&kind));
        let disabled = namespace.read_sysctl(&format!("net/ipv6/conf/{name}/disable_ipv6"));
        if solicits && !member && link["inet6_addr_gen_mode"] == "eui64" && disabled.is_ok_and(|value| value == "0") {
            let found = wait_until("a link-local address", SETTLED, || is_ready(namespace, name));
            if found.is_err() {
                eprintln!("no link-local address of {name} in {}", namespace.name());
            }
        }
    }
    Ok(())
}

/// Returns whether the link-local address of an interface is usable.
fn is_ready(namespace: &Namespace, name: &str) -> bool {
    let table = namespace.enter(|| std::fs::read_to_string("/proc/thread-self/net/if_inet6"));
    match table {
        Ok(Ok(table)) => has_link_local(&table, name),
        // A kernel without IPv6.
        _ => true,
    }
}

/// Searches a table in the format of if_inet6: address, interface index, prefix length, scope, flags (all hexadecimal),
/// name.
fn has_link_local(table: &str, name: &str) -> bool {
    table.lines().any(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [address, _, _, _, flags, interface] = fields[..] else { return false };
        let flags = u32::from_str_radix(flags, 16).unwrap_or(TENTATIVE);
        interface == name && address.starts_with("fe80") && flags & TENTATIVE == 0
    })
}

/// Parameters of a veth pair. The pair is deleted with either end's namespace.
#[derive(Debug, Clone)]
pub struct Veth<'a> {
    ends: [End<'a>; 2],
    mtu: u32,
    queues: u32,
}

impl<'a> Veth<'a> {
    /// Returns parameters with MTU 1500 and one queue per end; [`Self::create`] creates the pair.
    pub fn new(one: End<'a>, other: End<'a>) -> Self {
        Self { ends: [one, other], mtu: 1500, queues: 1 }
    }

    /// Sets the MTU of both ends, in bytes. With a native XDP program without multi-buffer support, veth accepts at
    /// most about 3,506 (page size less headroom and `skb_shared_info`).
    #[must_use]
    pub fn mtu(mut self, mtu: u32) -> Self {
        self.mtu = mtu;
        self
    }

    /// Sets the number of receive and transmit queues of both ends. Native XDP redirect requires the peer to have at
    /// least as many receive queues as this end has transmit queues, hence one number for both.
    #[must_use]
    pub fn queues(mut self, queues: u32) -> Self {
        self.queues = queues;
        self
    }

    /// Creates the pair, sets addresses and brings both ends up. Both ends are created in their namespaces, so the
    /// names need to be free only there. Returns when carrier is up and IPv6 link-local addresses are usable.
    pub fn create(self) -> Result<()> {
        let [one, other] = &self.ends;
        let (mtu, queues) = (self.mtu, self.queues);
        let line = |end: &End<'_>, namespace: &str| {
            let address = end.mac.as_ref().map(|mac| format!(" address {mac}")).unwrap_or_default();
            let place = if namespace.is_empty() { String::new() } else { format!(" netns {namespace}") };
            format!("{}{place}{address} mtu {mtu} numtxqueues {queues} numrxqueues {queues}", end.name)
        };
        let mut lines =
            format!("link add {} type veth peer name {}\n", line(one, ""), line(other, other.namespace.name()));
        lines.push_str(&settings(one));
        one.namespace.ip_batch(&lines)?;
        other.namespace.ip_batch(&settings(other))?;
        for end in &self.ends {
            for (feature, on) in &end.offloads {
                end.namespace.offload(&end.name, feature, *on)?;
            }
        }
        for end in &self.ends {
            let what = format!("{} to have a usable link-local address", end.name);
            wait_until(&what, Duration::from_secs(60), || is_ready(end.namespace, &end.name))?;
        }
        Ok(())
    }
}

fn settings(end: &End<'_>) -> String {
    let mut lines = String::new();
    let name = &end.name;
    for address in &end.addresses {
        // `nodad` is not accepted for IPv4.
        let nodad = if address.contains(':') { " nodad" } else { "" };
        let _ = writeln!(lines, "address add {address} dev {name}{nodad}");
    }
    let _ = writeln!(lines, "link set {name} up");
    lines
}

#[cfg(test)]
mod tests {
    use super::has_link_local;

    #[test]
    fn tentative_and_foreign_addresses_do_not_count() {
        let line = |address: &str, flags: &str, name: &str| format!("{address} 02 40 20 {flags} {name}\n");
        let local = "fe8000000000000000000000000000aa";
        assert!(has_link_local(&line(local, "80", "v0"), "v0"));
        assert!(!has_link_local(&line(local, "c0", "v0"), "v0"));
        assert!(!has_link_local(&line(local, "80", "v1"), "v0"));
        assert!(!has_link_local(&line("fd000000000000000000000000000001", "80", "v0"), "v0"));
    }
}
