//! The standard lab: hosts around one router.
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

/// Runs `work` with detached ports: in topologies created by this thread meanwhile, the first `ports` ports model a
/// router whose NICs are not handled by the kernel. The host's link ends at `w0`, `w1`, ..., where the kernel receives
/// nothing; `r0`, `r1`, ... are persistent TAP interfaces with the router's addresses, whose other ends belong to the
/// program that opens them. Segmentation offload is off on the hosts' links.
pub fn detached<T>(ports: usize, work: impl FnOnce() -> T) -> T {
    /// Restores the previous value, also on panic: another test may reuse the thread.
    struct Back(usize);
    impl Drop for Back {
        fn drop(&mut self) {
            DETACHED.set(self.0);
        }
    }
    let _back = Back(DETACHED.replace(ports));
    work()
}

/// Returns the number of ports currently detached on this thread by [`detached`].
pub fn detached_ports() -> usize {
    DETACHED.get()
}

/// A host and the router port it is connected to.
#[derive(Debug)]
pub struct Host {
    /// Namespace of the host.
    pub ns: Namespace,
    /// Interface of the host: `a0`, `b0`, ...
    pub interface: String,
    /// MAC address of the host: `02:00:00:00:<port>:02`, ports counted from 1.
    pub mac: String,
    /// IPv4 address of the host, 10.0.`port`.2/24.
    pub v4: Ipv4Addr,
    /// IPv6 address of the host, fd00:`port`::2/64.
    pub v6: Ipv6Addr,
    /// The router's interface on this link: `r0`, `r1`, ...
    pub router_interface: String,
    /// MAC address of that interface: `02:00:00:00:<port>:01`.
    pub router_mac: String,
    /// IPv4 address of that interface, this host's default gateway: 10.0.`port`.1.
    pub router_v4: Ipv4Addr,
    /// IPv6 address of that interface, this host's default gateway: fd00:`port`::1.
    pub router_v6: Ipv6Addr,
}

/// A router with two or more hosts, each on its own link. Deleted on drop.
#[derive(Debug)]
pub struct Topology {
    hosts: Vec<Host>,
    router: Namespace,
}

impl Topology {
    /// Creates host a, router r and host b with default settings.
    pub fn router() -> Result<Self> {
        Self::builder().build()
    }

    /// Creates a router with `ports` hosts a, b, c, ...; at most 17, so that no host is called r.
    pub fn router_n(ports: usize) -> Result<Self> {
        Self::builder().ports(ports).build()
    }

    /// Returns a builder for other settings.
    pub fn builder() -> TopologyBuilder {
        TopologyBuilder::default()
    }

    /// Returns all hosts in port order.
    pub fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    /// Returns the host on port 0.
    pub fn a(&self) -> &Host {
        &self.hosts[0]
    }

    /// Returns the host on port 1.
    pub fn b(&self) -> &Host {
        &self.hosts[1]
    }

    /// Returns the router's namespace.
    pub fn r(&self) -> &Namespace {
        &self.router
    }

    /// Returns the router's interfaces in port order, as arguments for `bywash run`.
    pub fn router_interfaces(&self) -> Vec<&str> {
        self.hosts.iter().map(|host| host.router_interface.as_str()).collect()
    }
}

/// Settings of a [`Topology`]. Default: two ports, one queue, MTU 1500, neighbour resolution by ARP and ND, forwarding
/// on, offloads as set by the kernel.
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
    /// Sets the number of router ports, each with a host: 2 to 17.
    #[must_use]
    pub fn ports(mut self, ports: usize) -> Self {
        self.ports = ports;
        self
    }

    /// Sets the number of receive and transmit queues of every veth.
    #[must_use]
    pub fn queues(mut self, queues: u32) -> Self {
        self.queues = queues;
        self
    }

    /// Sets the MTU of every veth, in bytes.
    #[must_use]
    pub fn mtu(mut self, mtu: u32) -> Self {
        self.mtu = mtu;
        self
    }

    /// Sets whether both sides of every link get permanent neighbour entries, so that no ARP or ND is needed.
    #[must_use]
    pub fn static_neighbours(mut self, on: bool) -> Self {
        self.static_neighbours = on;
        self
    }

    /// Sets whether the router's kernel forwards.
    #[must_use]
    pub fn forwarding(mut self, on: bool) -> Self {
        self.forwarding = on;
        self
    }

    /// Sets an `ethtool -K` feature on every host's end.
    #[must_use]
    pub fn host_offload(mut self, feature: impl Into<String>, on: bool) -> Self {
        self.host_offloads.push((feature.into(), on));
        self
    }

    /// Sets an `ethtool -K` feature on every router's end.
    #[must_use]
    pub fn router_offload(mut self, feature: impl Into<String>, on: bool) -> Self {
        self.router_offloads.push((feature.into(), on));
        self
    }

    /// Creates the topology: namespaces, links, addresses, default routes, forwarding.
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

    /// Makes the kernel receive nothing on `wire`, and creates a TAP interface in its place.
    fn detach(&self, router: &Namespace, host: &Host, wire: &str) -> Result<()> {
        let Host { router_interface: tap, router_mac, router_v4, router_v6, .. } = host;
        // Hosts send to another MAC address than that of `wire`, so the kernel drops the packets; ARP and IPv6 are off.
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
