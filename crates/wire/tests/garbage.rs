//! Robustness on random bytes of every length: no function panics or violates its contract, with unmodified input and
//! with headers repaired to pass validation.

mod common;

use bywash_wire::{ethernet, icmp4, ipv4, l4};

/// xorshift64 generator with a fixed seed, so that every run uses the same bytes.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next() as u8).collect()
    }
}

/// Repairs `l3` to pass the IPv4 check if it is long enough; all other bytes stay random.
fn mend4(l3: &mut [u8], noise: &mut Noise) {
    let len = l3.len();
    if len < 20 {
        return;
    }
    let ihl = 5 + noise.next() as usize % (len / 4 - 4).min(11);
    l3[0] = 0x40 | ihl as u8;
    l3[2..4].copy_from_slice(&((ihl * 4 + noise.next() as usize % (len - ihl * 4 + 1)) as u16).to_be_bytes());
    l3[9] = [1, 6, 17, 17, l3[9]][noise.next() as usize % 5];
    if !noise.next().is_multiple_of(4) {
        l3[6..8].fill(0);
    }
    ipv4::fill_checksum(l3);
}

/// Repairs `l3` to pass the IPv6 check, with a high probability of short extension headers.
fn mend6(l3: &mut [u8], noise: &mut Noise) {
    if l3.len() < 40 {
        return;
    }
    l3[0] = 0x60;
    let payload = noise.next() as usize % (l3.len() - 39);
    l3[4..6].copy_from_slice(&(payload as u16).to_be_bytes());
    let kinds = [0, 43, 44, 51, 60, 6, 17, 58];
    let pick = |noise: &mut Noise| kinds[noise.next() as usize % kinds.len()];
    l3[6] = pick(noise);
    for at in (40..l3.len() - 1).step_by(8) {
        if !noise.next().is_multiple_of(8) {
            (l3[at], l3[at + 1]) = (pick(noise), (noise.next() % 3) as u8);
        }
    }
}

#[test]
fn every_length() {
    let mut noise = Noise(0x9e37_79b9_7f4a_7c15);
    let mut good4 = 0;
    for len in 0..200 {
        for round in 0..200 {
            let mut data = noise.bytes(len);
            match round % 4 {
                1 | 2 => mend4(&mut data, &mut noise),
                3 => mend6(&mut data, &mut noise),
                _ => {}
            }
            good4 += usize::from(ipv4::check(&data).is_ok());
            for (_, target) in common::TARGETS {
                target(&data);
            }
            common::frag(&[&[0, 68 + (len % 64) as u8], &data[..]].concat());
            views(&mut data);
        }
    }
    assert!(good4 > 10_000, "more than 10,000 repaired headers must pass the check, got {good4}");
}

fn views(data: &mut [u8]) {
    for proto in 0..=255 {
        l4::flow_ports(proto, data);
    }
    assert_eq!(l4::UdpHeader::parse(data).is_some(), data.len() >= 8);
    assert_eq!(l4::TcpHeader::parse(data).is_some(), data.len() >= 20);
    assert_eq!(l4::IcmpHeader::parse(data).is_some(), data.len() >= 8);
    assert_eq!(ethernet::EthernetHeader::parse_mut(data).is_some(), data.len() >= 14);
    assert_eq!(ethernet::VlanTag::parse(data).is_some(), data.len() >= 4);
    for (l4, end) in [(0, data.len()), (5, 3), (usize::MAX, 0), (0, usize::MAX), (data.len(), data.len())] {
        for proto in [1, 6, 17] {
            bywash_wire::partial::complete_at(data, proto, l4, end);
        }
    }
    let kind = icmp4::Icmp4Error::TimeExceeded;
    assert_eq!(icmp4::build_icmp4_error(&mut [0; 47], kind, data, std::net::Ipv4Addr::LOCALHOST, 0), None);
    let mut short = data.to_vec();
    if !ipv4::fill_checksum(&mut short) {
        assert_eq!(short, data);
    }
}

/// Parse results of one packet are used on another: the result may be useless, but nothing panics.
#[test]
fn stale_findings() {
    use bywash_wire::{frag, ipv6, partial};
    let mut noise = Noise(42);
    for len in 40..160 {
        let (mut a, mut b) = (noise.bytes(len), noise.bytes(len));
        mend4(&mut a, &mut noise);
        mend6(&mut b, &mut noise);
        let info4 = ipv4::check(&a).unwrap();
        let (info6, upper) = (ipv6::check(&b).unwrap(), ipv6::upper(&b).map(|u| u.1));
        let plan = frag::plan(&a, 68);
        for cut in [0, 1, 19, 20, 39, 40, 41, len / 2] {
            let mut other = noise.bytes(cut);
            partial::complete4(&mut other, &info4);
            let _ = ipv6::walk(&other, &info6);
            if let Some(upper) = upper {
                partial::complete6(&mut other, &info6, &upper);
                let lying = ipv6::Upper { offset: usize::MAX, ..upper };
                assert!(!partial::complete6(&mut other, &info6, &lying));
            }
            if let Ok(plan) = &plan {
                for i in 0..=plan.count() {
                    let _ = plan.write(i, &other, &mut [0; 100]);
                }
            }
        }
    }
}
