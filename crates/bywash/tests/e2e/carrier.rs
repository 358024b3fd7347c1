//! The far end of a link goes down while the kernel's routes over it stay: packets are forwarded, or dropped, as by the
//! kernel alone.

use crate::garbage::udp;
use crate::harness::{Bywash, PATIENCE};
use crate::raw::{Ear, send};
use bywash_lab::{Topology, has_tool, require, require_lab, wait_until};
use std::net::IpAddr;

/// Packets to each network, each to another address.
const PACKETS: u8 = 64;
/// UDP destination port of the packets that mark the end of a round.
const MARK: u16 = 7;

/// Networks behind b, of IPv4 and then of IPv6, each by the routes of [`ROUTES`] and [`OBJECTS`]: on the link, by a
/// gateway, by two paths with c, by a next-hop object, by a group of two.
const NETS: [&str; 10] =
    ["10.0.2.", "10.9.1.", "10.9.2.", "10.9.3.", "10.9.4.", "fd00:2::", "fd09:1::", "fd09:2::", "fd09:3::", "fd09:4::"];

/// Routes without next-hop objects; the default route leads to c.
const ROUTES: &str = "route add default via 10.0.3.2\nroute add 10.9.1.0/24 via 10.0.2.2\n\
    route add 10.9.2.0/24 nexthop via 10.0.2.2 nexthop via 10.0.3.2\n\
    route add ::/0 via fd00:3::2\nroute add fd09:1::/64 via fd00:2::2\n\
    route add fd09:2::/64 nexthop via fd00:2::2 nexthop via fd00:3::2\n";
/// Routes by next-hop objects.
const OBJECTS: &str = "nexthop add id 1 via 10.0.2.2 dev r1\nnexthop add id 2 via 10.0.3.2 dev r2\n\
    nexthop add id 3 group 1/2\nroute add 10.9.3.0/24 nhid 1\nroute add 10.9.4.0/24 nhid 3\n\
    nexthop add id 4 via fd00:2::2 dev r1\nnexthop add id 5 via fd00:3::2 dev r2\n\
    nexthop add id 6 group 4/5\nroute add fd09:3::/64 nhid 4\nroute add fd09:4::/64 nhid 6\n";

/// Share of the packets to a network that leave by c.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leave {
    Nothing,
    Part,
    All,
}

/// Sends packets to each network and returns the share that leaves by c.
fn by_c(lab: &Topology, ear: &Ear) -> [Leave; 10] {
    let a = lab.a();
    let addresses =
        |net: &'static str| (0..PACKETS).map(move |n| format!("{net}{}", 100 + n).parse::<IpAddr>().unwrap());
    let from = |to: IpAddr| if to.is_ipv4() { IpAddr::from(a.v4) } else { a.v6.into() };
    let marks: [IpAddr; 2] = [lab.hosts()[2].v4.into(), lab.hosts()[2].v6.into()];
    let before = ear.heard().len();
    let mut frames: Vec<_> =
        NETS.into_iter().flat_map(addresses).map(|to| (1, udp(a, (from(to), 1000), (to, 9)))).collect();
    frames.extend(marks.map(|to| (1, udp(a, (from(to), 1000), (to, MARK)))));
    send(&a.ns, &a.interface, &frames);
    // Returns destination and UDP port of a packet without options.
    let parse = |frame: &[u8]| -> Option<(IpAddr, u16)> {
        let (to, udp): (IpAddr, usize) = match frame.get(12..14)? {
            [8, 0] if frame[23] == 17 => (<[u8; 4]>::try_from(&frame[30..34]).ok()?.into(), 34),
            [0x86, 0xdd] if frame[20] == 17 => (<[u8; 16]>::try_from(&frame[38..54]).ok()?.into(), 54),
            _ => return None,
        };
        Some((to, u16::from_be_bytes([*frame.get(udp + 2)?, *frame.get(udp + 3)?])))
    };
    let heard = || ear.heard()[before..].iter().filter_map(|frame| parse(frame)).collect::<Vec<_>>();
    let marked = || heard().iter().filter(|(to, port)| marks.contains(to) && *port == MARK).count() == 2;
    wait_until("the marks", PATIENCE, marked).unwrap();
    let heard = heard();
    NETS.map(|net| match heard.iter().filter(|(to, _)| addresses(net).any(|address| address == *to)).count() {
        0 => Leave::Nothing,
        all if all == usize::from(PACKETS) => Leave::All,
        _ => Leave::Part,
    })
}

/// Measures the packets that leave by c in three rounds: b is down; b is down and then `ignore_routes_with_linkdown` is
/// set; b goes down after that was set. With `expected`, waits in each round for the expected result.
fn rounds(lab: &Topology, arguments: Option<&[&str]>, expected: Option<&[[Leave; 10]; 3]>) -> [[Leave; 10]; 3] {
    let (b, c, r) = (lab.b(), &lab.hosts()[2], lab.r());
    r.ip_batch(&format!("{ROUTES}{OBJECTS}")).unwrap();
    let bywash = arguments.map(|arguments| Bywash::run(r, &[arguments, &lab.router_interfaces()].concat()));
    let ear = Ear::at(&c.ns, &c.interface);
    let ignore = |on: &str| {
        for family in ["ipv4", "ipv6"] {
            r.sysctl(&format!("net/{family}/conf/r1/ignore_routes_with_linkdown"), on).unwrap();
        }
    };
    let carrier = |up: bool| {
        b.ns.ip(&["link", "set", &b.interface, if up { "up" } else { "down" }]).unwrap();
        // The kernel's link watch runs with a delay, and marks the routes of one family after those of the other.
        let marked = |family| !r.ip(&[family, "route", "show", "dev", "r1"]).unwrap().stdout.contains("linkdown");
        wait_until("the kernel to notice the carrier", PATIENCE, || marked("-4") == up && marked("-6") == up).unwrap();
        if let Some(bywash) = &bywash {
            bywash.wait("the port to follow the carrier", |bywash| (bywash.port("r1")["state"] == "up") == up);
        }
    };
    let mut round = 0;
    let mut measure = || {
        let mut came = by_c(lab, &ear);
        // The router follows the kernel with a short delay.
        if let Some(expected) = expected {
            let _ = wait_until("packets to leave as the kernel's do", PATIENCE, || {
                came == expected[round] || {
                    came = by_c(lab, &ear);
                    false
                }
            });
        }
        round += 1;
        came
    };
    carrier(false);
    let kept = measure();
    ignore("1");
    let ignored = measure();
    carrier(true);
    carrier(false);
    let rounds = [kept, ignored, measure()];
    bywash.into_iter().for_each(|bywash| drop(bywash.stop()));
    rounds
}

fn lab() -> Topology {
    Topology::builder().ports(3).static_neighbours(true).build().unwrap()
}

fn as_the_kernel(arguments: &[&str]) {
    let expected = rounds(&lab(), None, None);
    // The kernel removes a next-hop object whose link loses its carrier; the default route then takes its packets.
    let of = |link, gateway, paths| [link, gateway, paths, Leave::All, Leave::All];
    assert_eq!(expected[0].to_vec(), [of(Leave::Nothing, Leave::Nothing, Leave::Part); 2].concat());
    // The kernel computes the shares of paths when a carrier changes, not when the setting does (fib_rebalance).
    assert_eq!(expected[1].to_vec(), [of(Leave::All, Leave::All, Leave::Part); 2].concat());
    assert_eq!(expected[2].to_vec(), [of(Leave::All, Leave::All, Leave::All); 2].concat());
    let mut expected = expected;
    expected[1] = expected[2];
    assert_eq!(rounds(&lab(), Some(arguments), Some(&expected)), expected);
}

#[test]
pub fn routes_without_carrier_are_used_as_the_kernel_uses_them() {
    require!(require_lab(), has_tool("python3"));
    as_the_kernel(&["--level", "user"]);
}

#[test]
fn routes_without_carrier_are_used_as_the_kernel_uses_them_in_the_driver() {
    require!(require_lab(), has_tool("python3"));
    as_the_kernel(&["--xdp", "generic", "--level", "driver"]);
    as_the_kernel(&["--xdp", "native", "--level", "driver"]);
}
