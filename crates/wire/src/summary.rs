//! Frames as text.

use crate::ethernet::{self, ethertype};
use crate::{ipv4, ipv6, l4};
use std::net::IpAddr;

/// Summarises a frame in one line: protocol, source and destination.
pub fn line(frame: &[u8]) -> String {
    let Some((header, _)) = ethernet::EthernetHeader::parse(frame) else { return "runt".into() };
    let Some(carried) = ethernet::carried(frame) else { return "runt".into() };
    let l3 = frame.get(carried.offset..).unwrap_or_default();
    match carried.ethertype {
        ethertype::IPV4 => {
            if let Some((ip, _)) = ipv4::Ipv4Header::parse(l3) {
                return flow(ip.src.into(), ip.dst.into(), ip.proto, l3.get(ip.header_len()..).unwrap_or_default());
            }
        }
        ethertype::IPV6 => {
            if let Some((ip, l4)) = ipv6::Ipv6Header::parse(l3) {
                return flow(ip.src.into(), ip.dst.into(), ip.next_header, l4);
            }
        }
        _ => {}
    }
    format!("{} > {} type {:#06x}", header.src, header.dst, carried.ethertype)
}

fn flow(src: IpAddr, dst: IpAddr, protocol: u8, l4: &[u8]) -> String {
    let name = match protocol {
        1 => "icmp".into(),
        6 => "tcp".into(),
        17 => "udp".into(),
        58 => "icmp6".into(),
        132 => "sctp".into(),
        other => format!("protocol {other}"),
    };
    match l4::flow_ports(protocol, l4) {
        Some((from, to)) => format!("{name} {src} port {from} > {dst} port {to}"),
        None => format!("{name} {src} > {dst}"),
    }
}
