//! Established connections for benchmarks of forwarding past a closed gate.

use anyhow::bail;
use bywash_fib::flows::{Flow, Flows, Refused, Tuple};
use bywash_wire::ethernet::HEADER_LEN;
use bywash_wire::proto;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Generation of the flows.
pub const GENERATION: u32 = 1;

/// Adds the connection of the UDP packet in a frame, with its source translated, or one with a source port `more`
/// higher. `ports` are the port that receives the frame and the one that it leaves by.
pub fn add(flows: &mut Flows, frame: &[u8], ports: (u16, u16), more: u16) -> anyhow::Result<()> {
    let ip = &frame[HEADER_LEN..];
    let (src, dst, l4, hidden): (IpAddr, IpAddr, usize, IpAddr) = match ip[0] >> 4 {
        4 => {
            let at = |at: usize| Ipv4Addr::from(std::array::from_fn::<u8, 4, _>(|i| ip[at + i]));
            (at(12).into(), at(16).into(), 20, Ipv4Addr::new(192, 0, 2, 1).into())
        }
        _ => {
            let at = |at: usize| Ipv6Addr::from(std::array::from_fn::<u8, 16, _>(|i| ip[at + i]));
            (at(8).into(), at(24).into(), 40, Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into())
        }
    };
    let port = |at: usize| u16::from_be_bytes([ip[l4 + at], ip[l4 + at + 1]]);
    let (src_port, dst_port) = (port(0).wrapping_add(more), port(2));
    let original = Tuple { src, dst, src_port, dst_port };
    let reply = Tuple { src: dst, dst: hidden, src_port: dst_port, dst_port: src_port };
    let flow = Flow { protocol: proto::UDP, original, reply, input: ports.0, output: ports.1 };
    match flows.insert(&flow, GENERATION) {
        // Several frames may have one destination.
        Ok(_) | Err(Refused::Known) => Ok(()),
        Err(why) => bail!("{flow:?}: {why:?}"),
    }
}
