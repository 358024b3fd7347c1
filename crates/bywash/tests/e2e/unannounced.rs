//! What the kernel decides about a packet of an established connection without an announcement: that it is invalid, or no
//! longer translated.

use crate::flows::{Ends, FIREWALL, LEVELS, run, wait_for_flow};
use crate::raw;
use bywash_lab::{Topology, has_tool, require, require_lab};
use bywash_wire::build::Packet;
use bywash_wire::checksum::checksum;
use bywash_wire::ethernet::MacAddr;
use bywash_wire::ipv4;

/// Returns an IPv4 packet with a UDP datagram, and octets behind it that are part of neither its length nor its checksum.
fn with_octets_behind(mut frame: Vec<u8>, behind: &[u8]) -> Vec<u8> {
    frame.extend_from_slice(behind);
    let ip = &mut frame[14..];
    let len = ip.len() as u16;
    ip[2..4].copy_from_slice(&len.to_be_bytes());
    ipv4::fill_checksum(&mut ip[..20]);
    let udp = len - 20 - behind.len() as u16;
    let pseudo = [&ip[12..20], &[0, 17], &udp.to_be_bytes(), &ip[20..][..udp.into()]].concat();
    assert_eq!(checksum(&pseudo), 0, "the receiver finds the checksum right");
    frame
}

/// The kernel checks the checksum of a datagram over the whole IP packet (nf_ip_checksum); a datagram that ends before it
/// is therefore invalid, although its receiver would take it.
#[test]
fn datagrams_that_end_before_their_packet_are_the_kernels() {
    require!(require_lab(), has_tool("nft"));
    for level in LEVELS {
        let lab = Topology::builder().static_neighbours(true).build().unwrap();
        lab.r().nft(FIREWALL).unwrap();
        let bywash = run(&lab, level);
        let (near, far) = (lab.a().v4, lab.b().v4);
        let mut udp = Ends::udp(&lab, far.into());
        wait_for_flow(&bywash, &mut udp, "UDP");
        let [own, router]: [MacAddr; 2] = [&lab.a().mac, &lab.a().router_mac].map(|mac| mac.parse().unwrap());
        let datagram = |text: &'static [u8]| {
            let packet = Packet::udp((near, 4000).into(), (far, 80).into()).payload(text);
            packet.macs(own, router).build().unwrap()
        };
        let short = with_octets_behind(datagram(b"short"), &[0x12, 0x34, 0x56, 0x78]);
        raw::send(&lab.a().ns, &lab.a().interface, &[(3, short), (1, datagram(b"whole"))]);
        let Ends::Udp(_, socket) = &udp else { unreachable!() };
        let mut buffer = [0; 16];
        let len = socket.recv(&mut buffer).unwrap();
        assert_eq!(&buffer[..len], b"whole", "{level:?}: forwarded past connection tracking");
        bywash.stop();
    }
}
