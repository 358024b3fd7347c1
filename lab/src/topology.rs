//! The lab everyone uses: hosts around one router.
//!
//! ```text
//!   namespace a            namespace r            namespace b
//!   10.0.1.2 a0 ───── r0 10.0.1.1   10.0.2.1 r1 ───── b0 10.0.2.2
//!   fd00:1::2             fd00:1::1 fd00:2::1             fd00:2::2
//! ```

use crate::error::{Error, Result};
use crate::link::{End, Veth};
use crate::namespace::Namespace;
use std::cell::Cell;
use std::fmt::Write;
use std::net::{Ipv4Addr, Ipv6Addr};

thread_local! {
    static DETACHED: Cell<usize> = const { Cell::new(0) };
}

/// While `work` runs, topologies made by this thread have, on their first `ports` ports, what a router has whose NICs are
/// not the kernel's: the host's link ends at `w0`, `w1`, ..., where the kernel takes nothing, and `r0`, `r1`, ... are
/// persistent TAP interfaces with the router's addresses, whose other ends are whoever opens them. Hosts do not leave
/// segmentation to their links.
pub fn detached<T>(ports: usize, work: impl FnOnce() -> T) -> T {
    /// Also when it panics: the thread may be another test's next.
    struct Back(usize);
    impl Drop for Back {
        fn drop(&mut self) {
            DETACHED.set(self.0);
        }
    }
    let _back = Back(DETACHED.replace(ports));
    work()
}

/// How many ports [`detached`] has detached for this thread now.
pub fn detached_ports() -> usize {
    DETACHED.get()
}

/// A host and the router port it hangs on.
#[derive(Debug)]
pub struct Host {
    /// Its namespace.
    pub ns: Namespace,
    /// Its interface: `a0`, `b0`, ...
    pub interface: String,
    /// Its MAC address: `02:00:00:00:<port>:02`, ports from 1.
    pub mac: String,
    /// Its address, 10.0.`port`.2/24.
    pub v4: Ipv4Addr,
    /// Its address, fd00:`port`::2/64.
    pub v6: Ipv6Addr,
    /// The router's interface on this link: `r0`, `r1`, ...
    pub router_interface: String,
    /// The router's MAC address there: `02:00:00:00:<port>:01`.
    pub router_mac: String,
    /// The router's address there, this host's default gateway: 10.0.`port`.1.
    pub router_v4: Ipv4Addr,
    /// The router's address there, this host's default gateway: fd00:`port`::1.
    pub router_v6: Ipv6Addr,
}

/// A router with two or more hosts, each on a link of its own. Gone when dropped.
#[derive(Debug)]
pub struct Topology {
    hosts: Vec<Host>,
    router: Namespace,
}

impl Topology {
    /// Host a - router r - host b, all at their defaults.
    pub fn router() -> Result<Self> {
        Self::builder().build()
    }

    /// A router with `ports` hosts: a, b, c, ...; at most 17, so that no host is called r.
    pub fn router_n(ports: usize) -> Result<Self> {
        Self::builder().ports(ports).build()
    }

    /// For other settings.
    pub fn builder() -> TopologyBuilder {
        TopologyBuilder::default()
    }

    /// All hosts in port order.
    pub fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    /// The host on port 0.
    pub fn a(&self) -> &Host {
        &self.hosts[0]
    }

    /// The host on port 1.
    pub fn b(&self) -> &Host {
        &self.hosts[1]
    }

    /// The router's namespace.
    pub fn r(&self) -> &Namespace {
        &self.router
    }

    /// The router's interfaces in port order, as arguments for `bywash run`.
    pub fn router_interfaces(&self) -> Vec<&str> {
        self.hosts.iter().map(|host| host.router_interface.as_str()).collect()
    }
}

/// Settings of a [`Topology`]; the defaults are two ports, one queue, MTU 1500, neighbours found by ARP and ND,
/// forwarding on, offloads as the kernel sets them.
#[derive(Debug, Clone)]
pub struct TopologyBuilder {
    ports: usize,
    queues: u32,
    mtu: u32,
    static_neighbours: bool,
    forwarding: bool,
    host_offloads: Vec<(String, bool)>,
    router_offloads: Vec<(String, bool)>,
}

impl Default for TopologyBuilder {
    fn default() -> Self {
        Self {
            ports: 2,
            queues: 1,
            mtu: 1500,
            static_neighbours: false,
            forwarding: true,
            host_offloads: Vec::new(),
            router_offloads: Vec::new(),
        }
    }
}

impl TopologyBuilder {
    /// Router ports, each with a host: 2 to 17.
    #[must_use]
    pub fn ports(mut self, ports: usize) -> Self {
        self.ports = ports;
        self
    }

    /// Receive and transmit queues of every veth.
    #[must_use]
    pub fn queues(mut self, queues: u32) -> Self {
        self.queues = queues;
        self
    }

    /// MTU of every veth, in bytes.
    #[must_use]
    pub fn mtu(mut self, mtu: u32) -> Self {
        self.mtu = mtu;
        self
    }

    /// Permanent neighbour entries on both sides of every link, so that no ARP or ND is needed.
    #[must_use]
    pub fn static_neighbours(mut self, on: bool) -> Self {
        self.static_neighbours = on;
        self
    }

    /// Whether the router's kernel forwards.
    #[must_use]
    pub fn forwarding(mut self, on: bool) -> Self {
        self.forwarding = on;
        self
    }

    /// An `ethtool -K` feature of every host's end.
    #[must_use]
    pub fn host_offload(mut self, feature: impl Into<String>, on: bool) -> Self {
        self.host_offloads.push((feature.into(), on));
        self
    }

    /// An `ethtool -K` feature of every router's end.
    #[must_use]
    pub fn router_offload(mut self, feature: impl Into<String>, on: bool) -> Self {
        self.router_offloads.push((feature.into(), on));
        self
    }

    /// Makes it: namespaces, links, addresses, default routes, forwarding.
    pub fn build(self) -> Result<Topology> {
        if !(2..=17).contains(&self.ports) {
            let why = std::io::Error::new(std::io::ErrorKind::InvalidInput, "2 to 17 ports");
            return Err(Error::io(format!("a topology with {} ports", self.ports), why));
        }
        let router = Namespace::new("r")?;
        let forwarding = if self.forwarding { "1" } else { "0" };
        router.sysctl("net/ipv4/ip_forward", forwarding)?;
        router.sysctl("net/ipv6/conf/all/forwarding", forwarding)?;
        let mut topology = Topology { hosts: Vec::with_capacity(self.ports), router };
        for (port, letter) in (0u8..).zip('a'..='q').take(self.ports) {
            let host = host(port, letter)?;
            self.connect(&topology.router, &host, usize::from(port) < detached_ports())?;
            topology.hosts.push(host);
        }
        Ok(topology)
    }

    fn connect(&self, router: &Namespace, host: &Host, detached: bool) -> Result<()> {
        let wire = host.router_interface.replace('r', "w");
        let mut near = End::new(&host.ns, &host.interface)
            .mac(&host.mac)
            .address(format!("{}/24", host.v4))
            .address(format!("{}/64", host.v6));
        let mut far = match detached {
            true => End::new(router, &wire),
            false => End::new(router, &host.router_interface)
                .mac(&host.router_mac)
                .address(format!("{}/24", host.router_v4))
                .address(format!("{}/64", host.router_v6)),
        };
        if detached {
            near = near.offload("tso", false).offload("gso", false);
        }
        for (feature, on) in &self.host_offloads {
            near = near.offload(feature, *on);
        }
        for (feature, on) in &self.router_offloads {
            far = far.offload(feature, *on);
        }
        Veth::new(near, far).mtu(self.mtu).queues(self.queues).create()?;
        if detached {
            self.detach(router, host, &wire)?;
        }

        let Host { router_v4, router_v6, interface, .. } = host;
        let mut lines = format!(
            "route add default via {router_v4} dev {interface}\nroute add ::/0 via {router_v6} dev {interface}\n"
        );
        if self.static_neighbours {
            for gateway in [router_v4.to_string(), router_v6.to_string()] {
                let mac = &host.router_mac;
                let _ = writeln!(lines, "neigh add {gateway} lladdr {mac} nud permanent dev {interface}");
            }
            let mut router_lines = String::new();
            for address in [host.v4.to_string(), host.v6.to_string()] {
                let Host { mac, router_interface, .. } = host;
                let _ = writeln!(router_lines, "neigh add {address} lladdr {mac} nud permanent dev {router_interface}");
            }
            router.ip_batch(&router_lines)?;
        }
        host.ns.ip_batch(&lines).map(drop)
    }

    /// The kernel takes nothing at `wire`, and has a TAP interface instead.
    fn detach(&self, router: &Namespace, host: &Host, wire: &str) -> Result<()> {
        let Host { router_interface: tap, router_mac, router_v4, router_v6, .. } = host;
        // Its MAC address is not the one that hosts send to, so packets are another machine's; and no ARP, no IPv6.
        router.sysctl(&format!("net/ipv6/conf/{wire}/disable_ipv6"), "1")?;
        router.ip_batch(&format!(
            "link set {wire} arp off\ntuntap add dev {tap} mode tap\n\
             link set {tap} address {router_mac} mtu {mtu} up\n\
             address add {router_v4}/24 dev {tap}\naddress add {router_v6}/64 dev {tap} nodad\n",
            mtu = self.mtu
        ))?;
        Ok(())
    }
}

fn host(port: u8, letter: char) -> Result<Host> {
    let net = port + 1;
    let v6_net = u16::from(net);
    Ok(Host {
        ns: Namespace::new(&letter.to_string())?,
        interface: format!("{letter}0"),
        mac: format!("02:00:00:00:{net:02x}:02"),
        v4: Ipv4Addr::new(10, 0, net, 2),
        v6: Ipv6Addr::new(0xfd00, v6_net, 0, 0, 0, 0, 0, 2),
        router_interface: format!("r{port}"),
        router_mac: format!("02:00:00:00:{net:02x}:01"),
        router_v4: Ipv4Addr::new(10, 0, net, 1),
        router_v6: Ipv6Addr::new(0xfd00, v6_net, 0, 0, 0, 0, 0, 1),
    })
}
