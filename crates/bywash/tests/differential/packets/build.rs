//! Builds packets byte by byte.

use super::MAGIC;
use crate::random::Random;
use bywash_wire::checksum::{Sum, checksum, pseudo4, pseudo6};
use std::net::{Ipv4Addr, Ipv6Addr};

pub fn ethernet(to: [u8; 6], from: [u8; 6], ethertype: u16, payload: Vec<u8>) -> Vec<u8> {
    let mut frame = [to, from].concat();
    frame.extend(ethertype.to_be_bytes());
    frame.extend(payload);
    frame
}

pub fn tagged(frame: Vec<u8>, ethertype: u16, tci: u16) -> Vec<u8> {
    [&frame[..12], &ethertype.to_be_bytes(), &tci.to_be_bytes(), &frame[12..]].concat()
}

pub struct Ipv4 {
    pub src: Ipv4Addr,
    pub dst: Ipv4Addr,
    pub tos: u8,
    pub ident: u16,
    pub fragment: u16,
    pub ttl: u8,
    pub protocol: u8,
    pub options: Vec<u8>,
}

impl Default for Ipv4 {
    fn default() -> Self {
        let (src, dst) = (Ipv4Addr::UNSPECIFIED, Ipv4Addr::UNSPECIFIED);
        Self { src, dst, tos: 0, ident: 0, fragment: 0, ttl: 64, protocol: 17, options: vec![] }
    }
}

impl Ipv4 {
    fn header(&self, payload: usize) -> Vec<u8> {
        let mut options = self.options.clone();
        options.resize(options.len().next_multiple_of(4).min(40), 0);
        let words = 5 + options.len() / 4;
        let mut header = vec![0x40 | words as u8, self.tos];
        header.extend(((words * 4 + payload) as u16).to_be_bytes());
        header.extend(self.ident.to_be_bytes());
        header.extend(self.fragment.to_be_bytes());
        header.extend([self.ttl, self.protocol, 0, 0]);
        header.extend(self.src.octets());
        header.extend(self.dst.octets());
        header.extend(options);
        header
    }

    pub fn packet(&self, payload: &[u8]) -> Vec<u8> {
        let mut packet = self.header(payload.len());
        packet.extend(payload);
        resum4(&mut packet, |_| {});
        packet
    }
}

/// Changes a packet and recomputes its header's checksum.
pub fn resum4(packet: &mut [u8], change: impl FnOnce(&mut [u8])) {
    change(packet);
    let length = (usize::from(packet[0] & 15) * 4).clamp(20, packet.len());
    packet[10..12].fill(0);
    let sum = checksum(&packet[..length]);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
}

pub fn set_length4(packet: &mut [u8], random: &Random) {
    let length = packet.len();
    let length = random.pick(&[0, 19, 20, length - 1, length + 1, length + 100, 65535, length.saturating_sub(9)]);
    resum4(packet, |packet| packet[2..4].copy_from_slice(&(length as u16).to_be_bytes()));
}

pub fn options4(random: &Random) -> Vec<u8> {
    let hop = [10, 0, 1 + random.below(4) as u8, 1 + random.below(3) as u8];
    match random.below(10) {
        0 => vec![1, 1, 1, 0],
        1 => vec![148, 4, 0, 0],
        2 => [&[7, 11, 4][..], &[0; 8]].concat(),
        // The list is full: otherwise each router would insert its own time.
        3 => [&[68, 12, 13, 0x10][..], &[0; 8]].concat(),
        4 => [&[68, 12, 13, 0xf1][..], &[0; 8]].concat(),
        5 => [&[131, 7, 4][..], &hop].concat(),
        6 => [&[137, 7, 4][..], &hop].concat(),
        7 => vec![7, 3, 4, 0],
        8 => vec![130, 11, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        _ => random.bytes(8),
    }
}

pub struct Ipv6 {
    pub src: Ipv6Addr,
    pub dst: Ipv6Addr,
    pub class: u8,
    pub label: u32,
    pub limit: u8,
    /// Type and contents of the extension headers, without the next header field.
    pub extensions: Vec<(u8, Vec<u8>)>,
}

impl Ipv6 {
    fn header(&self, next: u8, payload: usize) -> Vec<u8> {
        let mut header = (6 << 28 | u32::from(self.class) << 20 | self.label).to_be_bytes().to_vec();
        header.extend((payload as u16).to_be_bytes());
        header.extend([next, self.limit]);
        header.extend(self.src.octets());
        header.extend(self.dst.octets());
        header
    }

    pub fn packet(&self, protocol: u8, payload: &[u8]) -> Vec<u8> {
        let mut body = vec![];
        for (at, (_, content)) in self.extensions.iter().enumerate() {
            body.push(self.extensions.get(at + 1).map_or(protocol, |next| next.0));
            body.extend(content);
        }
        body.extend(payload);
        let next = self.extensions.first().map_or(protocol, |first| first.0);
        let mut packet = self.header(next, body.len());
        packet.extend(body);
        packet
    }
}

pub fn extensions(random: &Random, number: u32) -> Vec<(u8, Vec<u8>)> {
    let pad = vec![0, 1, 4, 0, 0, 0, 0];
    let one = |random: &Random| match random.below(12) {
        0 => (0, pad.clone()),
        1 => (0, vec![0, 5, 2, 0, 0, 1, 0]),
        2 => (0, vec![0, 0xc2, 4, 0, 1, 0, 0]),
        3 => (0, vec![0, random.pick(&[0x3e, 0x7e, 0xbe, 0xfe]), 4, 0, 0, 0, 0]),
        4 | 5 => (60, pad.clone()),
        6 => (60, vec![0, random.pick(&[0x3e, 0x7e, 0xbe, 0xfe]), 4, 0, 0, 0, 0]),
        7 => {
            let segment = Ipv6Addr::new(0xfd00, 2, 0, 0, 0, 0, 0, 3).octets();
            let kind = random.pick(&[0, 2, 4, 9]);
            (43, [&[2, kind, random.pick(&[0, 1]), 0, 0, 0, 0][..], &segment].concat())
        }
        8 | 9 => {
            let place: u16 = random.pick(&[0, 1, 8, 9, 0x100, 0xfff8]);
            (44, [&[0][..], &place.to_be_bytes(), &number.to_be_bytes()].concat())
        }
        10 => (51, [&[1, 0, 0][..], &random.bytes(8)].concat()),
        _ => (135, vec![0, 1, 4, 0, 0, 0, 0]),
    };
    (0..1 + random.below(2)).map(|_| one(random)).collect()
}

/// Returns a payload of the number and `size` random bytes.
fn data(random: &Random, size: usize, number: u32) -> Vec<u8> {
    let mut data = [&MAGIC[..], &number.to_be_bytes()].concat();
    data.extend(random.bytes(size));
    data
}

fn ports(random: &Random) -> [u16; 2] {
    let one = |random: &Random| random.pick(&[53, 80, 22, 1024, 4789, 500, 4500, 9, 0, 40000, 33434, 60123]);
    let from = 1024 + random.below(60000) as u16;
    [if random.chance(80) { from } else { one(random) }, one(random)]
}

fn udp(random: &Random, size: usize, number: u32) -> Vec<u8> {
    let data = data(random, size, number);
    let mut udp: Vec<u8> = ports(random).iter().flat_map(|port| port.to_be_bytes()).collect();
    udp.extend(((8 + data.len()) as u16).to_be_bytes());
    udp.extend([0, 0]);
    udp.extend(data);
    udp
}

fn tcp(random: &Random, size: usize, number: u32) -> Vec<u8> {
    let mut tcp: Vec<u8> = ports(random).iter().flat_map(|port| port.to_be_bytes()).collect();
    tcp.extend((number << 12).to_be_bytes());
    tcp.extend(number.to_be_bytes());
    tcp.extend([0x50, random.pick(&[2, 16, 16, 24, 17, 4, 18, 0, 0x3f]), 0xff, 0xff, 0, 0, 0, 0]);
    tcp.extend(data(random, size, number));
    tcp
}

/// Writes the checksum: the correct one, or in unusual packets sometimes a wrong or unfinished one.
fn finish(random: &Random, payload: &mut [u8], at: usize, pseudo: Sum, unusual: bool) {
    let mut sum = (pseudo + Sum::of(payload)).checksum();
    if unusual {
        match random.below(25) {
            0 => sum ^= 0x1234,
            1 => sum = 0,
            2 => sum = pseudo.fold(),
            _ => {}
        }
    }
    payload[at..at + 2].copy_from_slice(&sum.to_be_bytes());
}

/// Returns the protocol and the payload.
pub fn transport4(random: &Random, ip: &Ipv4, size: usize, number: u32, unusual: bool) -> (u8, Vec<u8>) {
    // Unique: if two packets had the same one, NAT would replace one of them at random.
    let id = (number as u16).to_be_bytes();
    let kind = random.below(if unusual { 100 } else { 85 });
    let (protocol, mut payload, at) = match kind {
        0..50 => (17, udp(random, size, number), 6),
        50..70 => (6, tcp(random, size, number), 16),
        70..85 => {
            let kind = if unusual { random.pick(&[8, 8, 0, 13, 17, 10, 15, 42]) } else { 8 };
            (1, [&[kind, 0, 0, 0, id[0], id[1], 0, 1][..], &data(random, size, number)].concat(), 2)
        }
        85..93 => {
            // An error about a packet of the opposite direction.
            let inner = Ipv4 { src: ip.dst, dst: ip.src, ident: number as u16, ..Ipv4::default() };
            let inner = inner.packet(&udp(random, size.min(60), number));
            let (kind, code) = random.pick(&[(3, 1), (3, 3), (3, 4), (11, 0), (12, 0), (5, 1), (4, 0)]);
            let mtu: u16 = if kind == 3 { 1400 } else { 0 };
            let [a, b] = mtu.to_be_bytes();
            (1, [&[kind, code, 0, 0, 0, 0, a, b][..], &inner].concat(), 2)
        }
        _ => {
            let protocol = random.pick(&[47, 50, 51, 4, 41, 132, 2, 89, 103, 112, 253, 0, 255, 136, 33]);
            return (protocol, data(random, size, number));
        }
    };
    let pseudo = if protocol == 1 {
        Sum::ZERO
    } else {
        let header: [u8; 20] = ip.header(0)[..20].try_into().unwrap();
        pseudo4(&header, protocol, payload.len() as u16)
    };
    finish(random, &mut payload, at, pseudo, unusual && protocol != 1);
    (protocol, payload)
}

/// Returns the protocol and the payload.
pub fn transport6(random: &Random, ip: &Ipv6, size: usize, number: u32, unusual: bool) -> (u8, Vec<u8>) {
    // Unique: if two packets had the same one, NAT would replace one of them at random.
    let id = (number as u16).to_be_bytes();
    let kind = random.below(if unusual { 100 } else { 85 });
    let (protocol, mut payload, at) = match kind {
        0..50 => (17, udp(random, size, number), 6),
        50..70 => (6, tcp(random, size, number), 16),
        70..85 => {
            let kind = if unusual { random.pick(&[128, 128, 129, 1, 133, 135, 143, 200, 101]) } else { 128 };
            (58, [&[kind, 0, 0, 0, id[0], id[1], 0, 1][..], &data(random, size, number)].concat(), 2)
        }
        85..93 => {
            let inner =
                Ipv6 { src: ip.dst, dst: ip.src, class: 0, label: number & 0xf_ffff, limit: 64, extensions: vec![] };
            let inner = inner.packet(17, &udp(random, size.min(60), number));
            let (kind, code) = random.pick(&[(1, 0), (1, 4), (2, 0), (3, 0), (4, 1), (137, 0)]);
            let mtu: u16 = if kind == 2 { 1280 } else { 0 };
            let [a, b] = mtu.to_be_bytes();
            (58, [&[kind, code, 0, 0, 0, 0, a, b][..], &inner].concat(), 2)
        }
        _ => {
            let protocol = random.pick(&[47, 50, 4, 41, 132, 59, 89, 103, 112, 253, 139, 140, 255, 1, 136, 33]);
            return (protocol, data(random, size, number));
        }
    };
    let header: [u8; 40] = ip.header(0, 0).try_into().unwrap();
    let pseudo = pseudo6(&header, protocol, payload.len() as u32);
    finish(random, &mut payload, at, pseudo, unusual && protocol != 58);
    (protocol, payload)
}

/// Returns a small UDP datagram without a checksum that carries the number.
pub fn tagged_udp(number: u32) -> Vec<u8> {
    [&[0x9c, 0x40, 0, 9, 0, 16, 0, 0][..], &MAGIC, &number.to_be_bytes()].concat()
}
