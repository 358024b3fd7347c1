//! Bridges, VLANs, bonds and a VRF of the router, by whose interfaces it routes the frames.

use super::{Lab, STATION, mac};
use anyhow::ensure;
use bywash_lab::Host;
use bywash_port::af_xdp::Around;
use bywash_wire::ethernet::ethertype;
use std::fmt::Write as _;

/// VLANs on the interfaces towards a and b.
const VLANS: [u16; 2] = [10, 20];
/// Table of the VRF.
const TABLE: u32 = 77;

/// Interfaces by which the router routes instead of its own two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interfaces {
    /// Bridges, of one member each.
    Bridges,
    /// VLANs, with tags on both sides.
    Vlans,
    /// Bonds (balance-xor), of one member each.
    Bonds,
    /// The router's own, in a VRF.
    Vrf,
}

impl Interfaces {
    /// Name in the results.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bridges => "bridges",
            Self::Vlans => "vlans",
            Self::Bonds => "bonds",
            Self::Vrf => "vrf",
        }
    }

    /// Returns the commands that make `upper` of a port with this MAC address.
    fn make(self, upper: &str, port: &str, mac: &str, vlan: u16) -> String {
        match self {
            Self::Bridges => {
                format!("link add {upper} address {mac} type bridge\nlink set {port} master {upper}\n")
            }
            Self::Vlans => format!("link add link {port} name {upper} type vlan id {vlan}\n"),
            // A bond takes interfaces that are down.
            Self::Bonds => format!(
                "link add {upper} type bond mode balance-xor miimon 100\nlink set {port} down\n\
                 link set {port} master {upper}\n"
            ),
            Self::Vrf => format!("link set {port} master vrf0\n"),
        }
    }

    /// Returns the name of the interface by which the router reaches a host, of number `n`, through a port.
    fn upper(self, n: usize, port: &str) -> String {
        if self == Self::Vrf { port.into() } else { format!("up{n}") }
    }
}

impl Lab {
    /// Has the router route by these interfaces.
    ///
    /// # Errors
    /// Errors of the commands; also if the traffic has more than one route.
    pub fn route_by(&mut self, interfaces: Interfaces) -> anyhow::Result<()> {
        ensure!(self.routes == 1, "{} are measured with one route", interfaces.name());
        let (b, r) = (self.topology.b(), self.topology.r());
        let mut lines = String::new();
        if interfaces == Interfaces::Vrf {
            writeln!(lines, "link add vrf0 type vrf table {TABLE}\nlink set vrf0 up")?;
        }
        for ((n, host), vlan) in [self.topology.a(), b].into_iter().enumerate().zip(VLANS) {
            let (port, upper) = (&host.router_interface, interfaces.upper(n, &host.router_interface));
            lines += &interfaces.make(&upper, port, &host.router_mac, vlan);
            writeln!(lines, "address flush dev {port}\nlink set {upper} up")?;
            self.address(&mut lines, host, &upper)?;
        }
        self.route_to_b(&mut lines, &interfaces.upper(1, &b.router_interface), interfaces == Interfaces::Vrf)?;
        r.ip_batch(&lines)?;
        match interfaces {
            Interfaces::Bridges => {
                let known = ["bridge", "fdb", "replace", STATION, "dev", &b.router_interface, "master", "static"];
                r.run(&known)?;
            }
            Interfaces::Vlans => {
                let mut tagged = self.frame.clone();
                let tag = [ethertype::VLAN.to_be_bytes(), VLANS[0].to_be_bytes()].concat();
                tagged.splice(12..12, tag);
                self.send_instead(tagged, Around::Tag);
            }
            Interfaces::Bonds | Interfaces::Vrf => {}
        }
        Ok(())
    }

    /// Ends [`Lab::route_by`].
    ///
    /// # Errors
    /// Errors of the commands.
    pub fn route_plain(&mut self, interfaces: Interfaces) -> anyhow::Result<()> {
        self.send_plain();
        let (a, b) = (self.topology.a(), self.topology.b());
        let mut lines = match interfaces {
            Interfaces::Vrf => "link del vrf0\n".to_owned(),
            _ => format!("link del {}\nlink del {}\n", interfaces.upper(0, ""), interfaces.upper(1, "")),
        };
        for host in [a, b] {
            let port = &host.router_interface;
            writeln!(lines, "address flush dev {port}\nlink set {port} up")?;
            self.address(&mut lines, host, port)?;
        }
        // The kernel forgets neighbours with an interface's last address.
        self.route_to_b(&mut lines, &b.router_interface, false)?;
        Ok(self.topology.r().ip_batch(&lines).map(drop)?)
    }

    /// Appends the commands that give an interface the router's addresses towards a host.
    fn address(&self, lines: &mut String, host: &Host, dev: &str) -> std::fmt::Result {
        let (v4, v6) = (host.router_v4, host.router_v6);
        writeln!(lines, "address replace {v4}/24 dev {dev}\naddress replace {v6}/64 dev {dev} nodad")
    }

    /// Appends the commands that route the destinations by an interface towards b.
    fn route_to_b(&self, lines: &mut String, dev: &str, in_vrf: bool) -> std::fmt::Result {
        let table = if in_vrf { format!(" table {TABLE}") } else { String::new() };
        for (station, network) in self.next_hops() {
            writeln!(
                lines,
                "neigh replace {station} lladdr {STATION} nud permanent dev {dev}\n\
                 route replace {network} via {station} dev {dev}{table}"
            )?;
        }
        Ok(())
    }

    /// Sends another frame from now on, with these headers.
    pub(super) fn send_instead(&mut self, frame: Vec<u8>, around: Around) {
        self.plain = Some(std::mem::replace(&mut self.frame, frame));
        self.around = around;
    }

    /// Ends [`Lab::send_instead`].
    pub(super) fn send_plain(&mut self) {
        if let Some(plain) = self.plain.take() {
            (self.frame, self.around) = (plain, Around::Ethernet);
        }
    }

    /// Puts both of the router's interfaces into one bridge, and sends the frames to a station behind b instead of the
    /// router's address.
    ///
    /// # Errors
    /// Errors of the commands.
    pub fn bridge_together(&mut self) -> anyhow::Result<()> {
        let (a, b, r) = (self.topology.a(), self.topology.b(), self.topology.r());
        let (near, far) = (&a.router_interface, &b.router_interface);
        r.ip_batch(&format!(
            "link add br0 type bridge\nlink set {near} master br0\nlink set {far} master br0\nlink set br0 up\n"
        ))?;
        self.disable_bridge_netfilter();
        for (mac, port) in [(a.mac.as_str(), near), (STATION, far)] {
            r.run(&["bridge", "fdb", "replace", mac, "dev", port, "master", "static"])?;
        }
        self.frame[..6].copy_from_slice(&mac(STATION)?.0);
        Ok(())
    }

    /// Keeps frames between members of bridges from the hooks of IP, which see them with br_netfilter. Without that
    /// module, these settings are missing.
    pub(super) fn disable_bridge_netfilter(&self) {
        for call in ["arptables", "iptables", "ip6tables"] {
            let _ = self.topology.r().sysctl(&format!("net/bridge/bridge-nf-call-{call}"), "0");
        }
    }

    /// Ends [`Lab::bridge_together`].
    ///
    /// # Errors
    /// Errors of the command.
    pub fn unbridge_together(&mut self) -> anyhow::Result<()> {
        self.frame[..6].copy_from_slice(&mac(&self.topology.a().router_mac)?.0);
        self.topology.r().ip(&["link", "del", "br0"])?;
        Ok(())
    }
}
