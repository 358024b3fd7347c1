//! VXLANs of the router, by which it sends or receives the frames.

use super::{Lab, STATION, UDP_CHECKSUM, mac};
use anyhow::ensure;
use bywash_port::af_xdp::Around;
use bywash_wire::build::Packet;
use bywash_wire::ethernet::ethertype;
use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};

/// MAC address, network identifier and UDP port of the VXLAN by which the router receives.
const VXLAN_MAC: &str = "02:00:00:00:78:01";
/// MAC address of the station whose frames come through it.
const SENDER: &str = "02:00:00:00:78:02";
pub(crate) const VNI: u32 = 8;
pub(crate) const VXLAN_PORT: u16 = 4789;
/// First word of a VXLAN header with a network identifier and nothing else (RFC 7348 5).
const HAS_VNI: u32 = 0x0800_0000;

/// Returns the payload of a VXLAN's UDP packet with this inner frame.
pub(crate) fn payload(frame: &[u8]) -> Vec<u8> {
    [&HAS_VNI.to_be_bytes()[..], &(VNI << 8).to_be_bytes(), frame].concat()
}

impl Lab {
    /// Has the router send to the destinations through a VXLAN, over IPv6 or over IPv4, with UDP checksums, to a
    /// station behind b.
    ///
    /// # Errors
    /// Also if the traffic has more than one route.
    pub fn start_vxlan(&self, over6: bool) -> anyhow::Result<()> {
        ensure!(self.routes == 1, "tunnels are measured with one route");
        let (b, r) = (self.topology.b(), self.topology.r());
        let [local, remote]: [IpAddr; 2] = match over6 {
            true => [b.router_v6.into(), b.v6.into()],
            false => [b.router_v4.into(), b.v4.into()],
        };
        let (port, mtu) = (&b.router_interface, if over6 { 1430 } else { 1450 });
        // The outer packets, too, are not to b's own MAC address.
        let mut lines = format!(
            "link add vx0 type vxlan id 7 local {local} remote {remote} dstport 4789\nlink set vx0 mtu {mtu} up\n\
             address add 10.77.0.1/24 dev vx0\naddress add fd77::1/64 dev vx0 nodad\n\
             neigh replace {remote} lladdr {STATION} nud permanent dev {port}\n"
        );
        for ((_, network), station) in self.next_hops().into_iter().zip(["10.77.0.9", "fd77::9"]) {
            writeln!(
                lines,
                "neigh replace {station} lladdr {STATION} nud permanent dev vx0\nroute replace {network} via {station} dev vx0"
            )?;
        }
        r.ip_batch(&lines)?;
        Ok(r.run(&["bridge", "fdb", "add", STATION, "dev", "vx0", "dst", &remote.to_string()]).map(drop)?)
    }

    /// Ends [`Lab::start_vxlan`].
    ///
    /// # Errors
    /// Errors of the commands.
    pub fn end_vxlan(&self) -> anyhow::Result<()> {
        let port = &self.topology.b().router_interface;
        let mut lines = "link del vx0\n".to_owned();
        for (station, network) in self.next_hops() {
            writeln!(lines, "route replace {network} via {station} dev {port}")?;
        }
        Ok(self.topology.r().ip_batch(&lines).map(drop)?)
    }

    /// Makes host a send the frames in a VXLAN's packets to the router, with right UDP checksums around IPv4, and
    /// none around IPv6. The router routes them or, if `bridged`, its bridge forwards them to a station behind b.
    ///
    /// # Errors
    /// Errors of the commands.
    pub fn receive_by_vxlan(&mut self, bridged: bool) -> anyhow::Result<()> {
        let (a, r) = (self.topology.a(), self.topology.r());
        let (local, remote, own) = (a.router_v4, a.v4, mac(VXLAN_MAC)?);
        r.ip_batch(&format!(
            "link add vx1 address {VXLAN_MAC} type vxlan id {VNI} local {local} remote {remote} dstport {VXLAN_PORT}\n\
             link set vx1 mtu 1450 up\naddress add 10.78.0.1/24 dev vx1\naddress add fd78::1/64 dev vx1 nodad\n"
        ))?;
        r.run(&["bridge", "fdb", "add", SENDER, "dev", "vx1", "dst", &remote.to_string()])?;
        if bridged {
            let far = &self.topology.b().router_interface;
            r.ip_batch(&format!(
                "link add br0 type bridge\nlink set vx1 master br0\nlink set {far} master br0\nlink set br0 up\n"
            ))?;
            self.disable_bridge_netfilter();
            for (mac, port) in [(SENDER, "vx1"), (STATION, far)] {
                r.run(&["bridge", "fdb", "replace", mac, "dev", port, "master", "static"])?;
            }
        }
        let mut inner = self.frame.clone();
        inner[..6].copy_from_slice(&if bridged { mac(STATION)? } else { own }.0);
        inner[6..12].copy_from_slice(&mac(SENDER)?.0);
        let sums_up = inner[12..14] == ethertype::IPV4.to_be_bytes();
        let payload = payload(&inner);
        let ends = (SocketAddr::from((remote, 50_000)), SocketAddr::from((local, VXLAN_PORT)));
        let packet = Packet::udp(ends.0, ends.1).macs(mac(&a.mac)?, mac(&a.router_mac)?).payload(&payload);
        let mut packet = packet.build()?;
        if !sums_up {
            packet[UDP_CHECKSUM].fill(0);
        }
        self.send_instead(packet, Around::Vxlan);
        Ok(())
    }

    /// Ends [`Lab::receive_by_vxlan`].
    ///
    /// # Errors
    /// Errors of the command.
    pub fn receive_plain(&mut self) -> anyhow::Result<()> {
        self.send_plain();
        let r = self.topology.r();
        // The bridge does not exist if the frames were routed.
        let _ = r.ip(&["link", "del", "br0"]);
        Ok(r.ip(&["link", "del", "vx1"]).map(drop)?)
    }
}
