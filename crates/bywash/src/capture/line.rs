//! Packets as lines of text.

use super::blocks::Block;
use bywash_wire::ethernet::{self, ethertype};
use bywash_wire::{ipv4, ipv6, l4};
use std::io::{Result, Write};
use std::net::IpAddr;

/// Writes packets as lines. Interface blocks in the stream give the ports' names.
#[derive(Default)]
pub struct Lines {
    ports: Vec<String>,
}

impl Lines {
    /// Writes a line for a packet, and nothing for other blocks.
    pub fn put(&mut self, block: &Block, out: &mut impl Write) -> Result<()> {
        match block {
            Block::Interface(name) => self.ports.push(name.clone()),
            Block::Packet { interface, time_ns, length, bytes, sent, comment } => {
                let port = self.ports.get(*interface).map_or("?", String::as_str);
                let seconds = time_ns / 1_000_000_000;
                let (h, m, s, us) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60, time_ns / 1000 % 1_000_000);
                let happened = comment.as_deref().unwrap_or(if *sent { "sent" } else { "received" });
                let what = summary(bytes);
                writeln!(out, "{h:02}:{m:02}:{s:02}.{us:06}Z {port} {happened}: {length} B {what}")?;
            }
            _ => {}
        }
        Ok(())
    }
}

/// Summarises a frame in one line: protocol, source and destination.
pub fn summary(frame: &[u8]) -> String {
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
