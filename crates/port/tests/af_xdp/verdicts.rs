//! Frames that the program passes to the kernel and frames it keeps, with the live-frame generator as a source.

use crate::rig::{Net, R0, Taken, Wire, forward, frame, ipv4, ipv6, pools, socket, tables};
use bywash_fib::{Net4, Net6};
use bywash_lab::{patience, require, require_lab};
use bywash_port::Port;
use bywash_port::af_xdp::{Hop, HopKind, LiveGen, XdpConfig};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const SRC: [u8; 4] = [10, 0, 1, 2];

#[test]
fn each_frame_goes_to_whom_it_belongs() {
    require!(require_lab());
    let net = Net::new();
    // The host's own multicasts would be counted, too.
    net.host.sysctl("net/ipv6/conf/h0/disable_ipv6", "1").unwrap();
    let near = net.host.enter(|| Wire::open("h0")).unwrap();
    let pools = pools(4096);
    net.with_buffers(&pools, |umem, mut bufs| {
        let mut a = Taken::new(&umem, "r0", false, &socket());
        let mut b = Taken::new(&umem, "r1", false, &socket());
        forward(&mut a.port, &mut b.port, &mut bufs, |_, _| true);
        let (mut table4, mut table6) = tables(&a.datapath);
        let mut route4 = |a: [u8; 4], len, id| {
            table4.insert(Net4::new(u32::from_be_bytes(a), len).unwrap(), id);
        };
        let mut route6 = |a: &str, len, id| {
            table6.insert(Net6::new(a.parse::<Ipv6Addr>().unwrap().into(), len).unwrap(), id);
        };
        let kinds = [HopKind::User, HopKind::Local, HopKind::Kernel, HopKind::User];
        let hops: Vec<Hop> = kinds.iter().map(|kind| Hop { kind: *kind, ..Hop::default() }).collect();
        const LOCAL: u32 = 1;
        const KERNEL: u32 = 2;
        const USER: u32 = 3;
        a.datapath.publish(&hops, &[], 0);
        route4([10, 0, 1, 1], 32, LOCAL);
        route4([10, 0, 1, 255], 32, LOCAL);
        route4([10, 9, 0, 0], 16, LOCAL);
        route6("fd00:1::1", 128, LOCAL);
        route6("fd00:9::", 32, LOCAL);
        // Routes whose egress interface is not a port, with more specific routes out of ports.
        route4([198, 18, 0, 0], 15, KERNEL);
        route4([198, 19, 0, 0], 16, USER);
        route4([198, 19, 7, 7], 32, KERNEL);
        route4([198, 19, 7, 8], 32, LOCAL);
        route4([198, 19, 7, 8], 32, KERNEL);
        route4([198, 19, 7, 9], 32, LOCAL);
        route6("2001:db8::", 32, KERNEL);
        route6("2001:db8:1::", 48, USER);

        let v4 = |dst| frame(R0, IPV4, &ipv4(SRC, dst, 7));
        let v6 = |dst: &str| frame(R0, IPV6, &ipv6("fd00:1::2", dst, 17));
        let edit = |mut f: Vec<u8>, at: usize, to: u8| {
            f[at] = to;
            f
        };
        let cases: Vec<(&str, Vec<u8>)> = vec![
            ("to_user", v4([10, 0, 2, 2])),
            ("to_user", v4([10, 0, 2, 99])),
            ("to_user", v4([240, 0, 0, 1])),
            ("to_user", v6("fd00:2::2")),
            // Malformed, but addressed to us: user space drops it with a drop reason.
            ("to_user", edit(v4([10, 0, 1, 1]), 14, 0x55)),
            ("to_user", frame(R0, IPV4, &[0x45; 3])[..30].to_vec()),
            ("to_user", edit(v6("fd00:1::1"), 14, 0x40)),
            ("pass_local", v4([10, 0, 1, 1])),
            ("pass_local", v4([10, 0, 1, 255])),
            ("pass_local", v4([10, 9, 200, 1])),
            ("pass_local", v6("fd00:1::1")),
            ("pass_local", v6("fd00:9:1::5")),
            ("pass_local", v4([198, 19, 7, 9])),
            ("pass_route", v4([198, 18, 0, 1])),
            ("to_user", v4([198, 19, 0, 1])),
            ("pass_route", v4([198, 19, 7, 7])),
            ("pass_route", v4([198, 19, 7, 8])),
            ("pass_route", v6("2001:db8::1")),
            ("to_user", v6("2001:db8:1::1")),
            ("to_user", v6("2001:db9::1")),
            ("pass_returned", [&R0, &R0, &v4([10, 0, 2, 2])[12..]].concat()),
            ("pass_multicast", v4([224, 0, 0, 5])),
            ("pass_multicast", v4([255, 255, 255, 255])),
            ("pass_multicast", frame([0xff; 6], 0x0806, &[0; 46])),
            ("pass_multicast", frame([1, 0, 0x5e, 0, 0, 5], IPV4, &ipv4(SRC, [224, 0, 0, 5], 7))),
            ("pass_multicast", v6("ff02::1")),
            ("pass_reserved", v4([0, 0, 0, 1])),
            ("pass_reserved", v4([127, 0, 0, 1])),
            ("pass_reserved", frame(R0, IPV4, &ipv4([127, 0, 0, 1], [10, 0, 2, 2], 7))),
            ("pass_reserved", v6("::1")),
            ("pass_reserved", v6("::")),
            ("pass_link_local", v4([169, 254, 0, 1])),
            ("pass_link_local", frame(R0, IPV4, &ipv4([169, 254, 1, 1], [10, 0, 2, 2], 7))),
            ("pass_link_local", v6("fe80::1")),
            ("pass_link_local", v6("febf::1")),
            ("pass_link_local", frame(R0, IPV6, &ipv6("fe80::2", "fd00:2::2", 17))),
            ("pass_options", edit(v4([10, 0, 2, 2]), 14, 0x46)),
            ("pass_options", frame(R0, IPV6, &ipv6("fd00:1::2", "fd00:2::2", 0))),
            ("pass_not_mine", edit(v4([10, 0, 2, 2]), 5, 0x77)),
            ("pass_ethertype", frame(R0, 0x0806, &[0; 46])),
            ("pass_ethertype", frame(R0, 0x88cc, &[0; 46])),
            ("pass_vlan", frame(R0, 0x8100, &[0, 5, 8, 0])),
            ("pass_vlan", frame(R0, 0x88a8, &[0, 5, 8, 0])),
        ];
        for (want, bytes) in cases {
            let before = a.program.counters().unwrap();
            near.send(&bytes);
            let counted = forward(&mut a.port, &mut b.port, &mut bufs, |_, _| {
                a.program.counters().unwrap().get(want) == before.get(want) + 1
            });
            let after = a.program.counters().unwrap();
            assert!(counted, "{want}: {bytes:02x?}\n{before:?}\n{after:?}");
        }

        // Too long for user space: goes to the kernel. Disabled: everything goes to the kernel.
        let config = a.program.config();
        a.program.set_config(XdpConfig { max_frame: 59, ..config }).unwrap();
        near.send(&v4([10, 0, 2, 2]));
        assert!(forward(&mut a.port, &mut b.port, &mut bufs, |_, _| {
            a.program.counters().unwrap().get("pass_superframe") >= 1
        }));
        a.program.set_config(XdpConfig { enabled: false, ..config }).unwrap();
        near.send(&v4([10, 0, 2, 2]));
        assert!(forward(&mut a.port, &mut b.port, &mut bufs, |_, _| {
            a.program.counters().unwrap().get("pass_disabled") >= 1
        }));
        // After the socket is closed its entry in the map is gone, so the frame goes to the kernel.
        a.program.set_config(config).unwrap();
        a.port.close(&mut bufs);
        assert!(forward(&mut a.port, &mut b.port, &mut bufs, |_, _| {
            // The kernel may remove the entry only now; a frame that finds it is lost.
            near.send(&v4([10, 0, 2, 2]));
            a.program.counters().unwrap().get("pass_no_socket") >= 1
        }));
        b.port.close(&mut bufs);
    });
}

#[test]
fn generated_frames_are_valid_in_every_flow() {
    require!(require_lab());
    let net = Net::new();
    let pools = pools(8192);
    const FLOWS: u64 = 300;
    let mut template = frame(R0, IPV4, &ipv4(SRC, [10, 0, 2, 250], 0));
    let mut sum: u32 = template[14..34].chunks(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]]))).sum();
    sum = (sum & 0xffff) + (sum >> 16);
    template[24..26].copy_from_slice(&(!(sum as u16)).to_be_bytes());

    net.with_buffers(&pools, |umem, mut bufs| {
        let mut a = Taken::new(&umem, "r0", false, &socket());
        a.port.housekeep(&mut bufs);
        let first = u32::from_be_bytes([10, 0, 2, 250]);
        let to: Vec<_> = (first..first + FLOWS as u32).map(|to| Ipv4Addr::from(to).into()).collect();
        net.host.enter(|| LiveGen::new("h0", &template, &to).unwrap().run(2 * FLOWS, 64).unwrap()).unwrap();
        let mut batch = bywash_frame::Batch::new();
        let mut seen = std::collections::BTreeMap::new();
        let end = Instant::now() + patience(Duration::from_secs(60));
        while seen.values().sum::<u64>() < 2 * FLOWS && Instant::now() < end {
            a.port.rx_burst(&mut bufs, &mut batch);
            for f in batch.as_slice() {
                let data = bufs.arena().data(f);
                let words = data[14..34].chunks(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]])));
                let sum: u32 = words.sum();
                assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff, "checksum of {data:02x?}");
                *seen.entry(u32::from_be_bytes(data[30..34].try_into().unwrap())).or_insert(0) += 1;
            }
            bufs.free(&mut batch);
            a.port.housekeep(&mut bufs);
        }
        let all: std::collections::BTreeMap<_, _> = (first..first + FLOWS as u32).map(|dst| (dst, 2)).collect();
        assert_eq!(seen, all);
        a.port.close(&mut bufs);
    });
}
