//! Runs the program on a port that is a bridge's member: what it receives from the bridge's stations is handled as on
//! any other port, or forwarded to another member, and the kernel has everything from others.

use super::*;
use bywash_port::af_xdp::{XdpBridging, XdpGate, XdpVlan};
use bywash_router::vlan::FIRST;
use bywash_sync::random::splitmix64;

const STATION: [u8; 6] = [2, 0, 0, 0, 0, 9];

impl Twin {
    /// Returns a pair with plain settings, whose port 0 is a member of a bridge.
    fn of_bridge(bridge: u16) -> Self {
        let mut twin = Self::new();
        twin.set_up(Mode { redirects: false, check: SourceCheck::Off, l3: false });
        twin.bridge(Some(bridge));
        twin
    }

    /// Makes port 0 a member of a bridge, or no longer.
    fn bridge(&mut self, bridge: Option<u16>) {
        let (program, _) = &mut self.programs[0];
        let config = program.config();
        program.set_config(XdpConfig { master: bridge, bridged: bridge.is_some(), ..config }).unwrap();
    }

    /// Sets whether the bridge filters VLANs.
    fn filter(&mut self, filters: bool) {
        let (program, _) = &mut self.programs[0];
        let config = program.config();
        program.set_config(XdpConfig { filters, ..config }).unwrap();
    }

    /// Sets which frames of port 0 are forwarded to other members, and the longest that user space takes to stations
    /// behind VXLANs.
    fn forward_frames(&mut self, to: u64, longest: u32, through: u32) {
        let (program, _) = &mut self.programs[0];
        let config = program.config();
        program.set_config(XdpConfig { bridging: XdpBridging { to, longest, through }, ..config }).unwrap();
    }
}

#[test]
fn what_a_bridges_member_receives_is_handled_alike() {
    require!(require_lab());
    lab()
        .enter(|| {
            let mut twin = Twin::new();
            let mut runner = TestRunner::deterministic();
            for redirects in [false, true] {
                for check in [SourceCheck::Off, SourceCheck::Loose, SourceCheck::Strict] {
                    twin.set_up(Mode { redirects, check, l3: false });
                    for _ in 0..400 {
                        let frame = a_shape()
                            .new_tree(&mut runner)
                            .unwrap()
                            .current()
                            .build(&twin.world.targets4, &twin.world.targets6);
                        let own = frame.get(..6) == Some(&mac(0)[..]);
                        let source = frame.get(6..12).and_then(|source| source.try_into().ok()).unwrap_or(STATION);
                        for skb in [false, true].into_iter().take(if frame.len() >= 54 { 2 } else { 1 }) {
                            twin.bridge(None);
                            let plain = twin.drive(&frame, skb);
                            twin.bridge(Some(FIRST + 7));
                            twin.datapath.set_stations(&[(FIRST + 7, source, 0)]).unwrap();
                            let bridged = twin.drive(&frame, skb);
                            assert_eq!(bridged, plain, "{check:?} {redirects} {skb}: {frame:02x?}");
                            // From a station behind another port, of another bridge, or of none.
                            for others in [&[(FIRST + 7, source, 1)][..], &[(FIRST + 6, source, 0)], &[]] {
                                twin.datapath.set_stations(others).unwrap();
                                let (reason, to, bytes) = twin.drive(&frame, skb);
                                assert!(!own || (reason == "pass_station" && to.is_none()), "{reason} {frame:02x?}");
                                assert_eq!((to, &bytes), (None, &frame), "{reason}");
                            }
                        }
                    }
                }
            }
        })
        .unwrap();
}

#[test]
fn many_stations_are_found_and_renewed() {
    require!(require_lab());
    lab()
        .enter(|| {
            let twin = Twin::of_bridge(FIRST);
            let address = |n: u64| -> [u8; 6] {
                let [a, b, c, d, e, ..] = splitmix64(SEED, n).to_ne_bytes();
                [2, a, b, c, d, e]
            };
            let stations: Vec<_> = (0..10_000).map(|n| (FIRST, address(n), 0)).collect();
            twin.datapath.set_stations(&stations).unwrap();
            let mut frame = vec![0; 60];
            frame[..6].copy_from_slice(&mac(0));
            // Of no EtherType that is forwarded.
            let mut verdict = |n: u64| {
                frame[6..12].copy_from_slice(&address(n));
                twin.drive(&frame, false).0
            };
            assert!((0..10_000).all(|n| verdict(n) == "pass_ethertype"));
            assert!((10_000..12_000).all(|n| verdict(n) == "pass_station"));
            let datapath = twin.datapath.clone();
            let mut heard = |n: u64| {
                frame[6..12].copy_from_slice(&address(n));
                [0; 2].map(|_| twin.drive(&frame, false).0)
            };
            for _ in 0..2 {
                datapath.renew_stations();
                assert!((0..1000).all(|n| heard(n) == ["pass_station", "pass_ethertype"]));
            }
        })
        .unwrap();
}

/// Returns a function that returns random numbers below its argument, the same in every run.
fn random(seed: u64) -> impl FnMut(u64) -> u64 {
    let mut n = 0;
    move |below| {
        n += 1;
        splitmix64(seed, n) % below
    }
}

/// A station: its bridge, its address, and the port that leads to it.
type At = (u16, [u8; 6], u16);

/// Returns the verdict on a frame to another address than the bridge's own that port 0 receives, and the port that it
/// leaves by, as slowly as a description has it.
fn bridged(
    frame: &[u8],
    bridge: u16,
    stations: &[At],
    (to, longest, through): (u64, u32, u32),
) -> (&'static str, Option<u16>) {
    let (destination, source, kind) = (&frame[..6], &frame[6..12], u16::from_be_bytes([frame[12], frame[13]]));
    let behind = |mac: &[u8]| stations.iter().find(|at| at.0 == bridge && at.1 == mac).map(|at| at.2);
    let discovery = kind == 0x86dd && frame[20] == 58 && (133..=137).contains(&frame[54]);
    let plain = [0x800, 0x86dd, 0x8864, 0x8847].contains(&kind) && !discovery;
    match behind(destination) {
        _ if destination[0] & 1 == 1 => ("pass_multicast", None),
        _ if to & !1 == 0 && through == 0 => ("pass_not_mine", None),
        _ if [0x8100, 0x88a8].contains(&kind) => ("pass_vlan", None),
        Some(port) if port != 0 && port < FIRST && to >> port & 1 == 1 => match behind(source) {
            _ if !plain || frame.len() > longest as usize => ("pass_bridged", None),
            // Without a device.
            Some(0) if port == NO_TARGET => ("pass_bridged", None),
            Some(0) => ("to_member", Some(port)),
            _ => ("pass_station", None),
        },
        Some(FIRST) if through != 0 => match behind(source) {
            _ if discovery || frame.len() > through as usize => ("pass_bridged", None),
            _ if ![(0x800, 4), (0x86dd, 6)].contains(&(kind, frame[14] >> 4)) => ("pass_bridged", None),
            Some(0) => ("pass_no_socket", None),
            _ => ("pass_station", None),
        },
        _ => ("pass_not_mine", None),
    }
}

#[test]
fn frames_between_members_are_forwarded_as_they_came() {
    require!(require_lab());
    lab()
        .enter(|| {
            let mut twin = Twin::of_bridge(FIRST);
            let mut seen: BTreeMap<&str, u64> = BTreeMap::new();
            let mut random = random(SEED);
            // The address of nobody is that of an empty entry, in the bridge with the first number.
            let some =
                [[2, 0, 0, 0, 0, 9], [2, 0, 0, 0, 0, 10], [2, 9, 9, 9, 9, 9], [0; 6], [3, 0, 0, 0, 0, 1], [2; 6]];
            for _ in 0..500 {
                let bridge = FIRST + random(2) as u16;
                twin.bridge(Some(bridge));
                let (to, longest) = ([7, 7, 2, 3, 4, 1][random(6) as usize], [1000, 1514, 9014][random(3) as usize]);
                let through = [0, 1000, 1514, 9014][random(4) as usize];
                twin.forward_frames(to, longest, through);
                let mut stations: Vec<At> = vec![];
                for mac in some.into_iter().filter(|mac| *mac != [0; 6] && mac[0] & 1 == 0) {
                    let of = if random(8) == 0 { FIRST + 1 } else { bridge };
                    stations.push((of, mac, [0, 0, 1, 1, 2, FIRST][random(6) as usize]));
                }
                twin.datapath.set_stations(&stations).unwrap();
                for _ in 0..20 {
                    let length = [60, 61, 1000, 1001, 1514, 1515][random(6) as usize];
                    let mut frame: Vec<u8> = (0..length).map(|_| random(256) as u8).collect();
                    frame[..6].copy_from_slice(&some[[0, 1, 2, 0, 1, 2, 3, 4, 5][random(9) as usize]]);
                    frame[6..12].copy_from_slice(&some[[0, 1, 2, 0, 1, 2, 3, 4, 5][random(9) as usize]]);
                    let kinds = [
                        0x800, 0x800, 0x86dd, 0x86dd, 0x8864, 0x8847, 0x800, 0x86dd, 0x806, 0x8100, 0x88a8, 0x888e,
                        0x8808, 0x88cc, 100,
                    ];
                    let kind: u16 = kinds[random(kinds.len() as u64) as usize];
                    frame[12..14].copy_from_slice(&kind.to_be_bytes());
                    frame[14] = if (kind == 0x86dd) == (random(8) != 0) { 0x60 } else { 0x45 };
                    (frame[20], frame[54]) = ([6, 58, 58][random(3) as usize], 130 + random(10) as u8);
                    let expected = bridged(&frame, bridge, &stations, (to, longest, through));
                    let tagged = [0x8100, 0x88a8].contains(&kind);
                    for (skb, filters) in [(false, false), (true, false), (false, true), (true, true)] {
                        // Traffic control reaches no user space.
                        if skb && through != 0 {
                            continue;
                        }
                        twin.filter(filters);
                        let (reason, port, bytes) = twin.drive(&frame, skb);
                        let expected = if tagged && filters { ("pass_vlan", None) } else { expected };
                        assert_eq!((reason, port), expected, "{skb} {to:b} {longest} {stations:02x?} {frame:02x?}");
                        assert_eq!(bytes, frame, "changed");
                    }
                    *seen.entry(expected.0).or_default() += 1;
                }
            }
            println!("{seen:?}");
            let of = [
                "to_member",
                "pass_no_socket",
                "pass_bridged",
                "pass_station",
                "pass_not_mine",
                "pass_vlan",
                "pass_multicast",
            ];
            assert!(of.iter().all(|reason| seen[reason] > 20), "too few of some verdict: {seen:?}");
        })
        .unwrap();
}

#[test]
fn frames_between_members_end_with_their_gate_and_renew_stations() {
    require!(require_lab());
    lab()
        .enter(|| {
            let mut twin = Twin::of_bridge(FIRST);
            twin.forward_frames(2, 1514, 0);
            let other = [2, 0, 0, 0, 0, 10];
            twin.datapath.set_stations(&[(FIRST, STATION, 0), (FIRST, other, 1)]).unwrap();
            let frame = [&other[..], &STATION, &[8, 0], &[0x45; 46]].concat();
            for skb in [false, true] {
                let verdicts = |n| (0..n).map(|_| twin.drive(&frame, skb).0).collect::<Vec<_>>();
                assert_eq!(verdicts(2), ["to_member"; 2]);
                // The source is heard once more. The destination is not: it has sent nothing.
                twin.datapath.renew_stations();
                assert_eq!(verdicts(3), ["pass_station", "to_member", "to_member"]);
                twin.datapath.close();
                assert_eq!(verdicts(1), ["pass_not_mine"]);
                twin.datapath.open();
                assert_eq!(verdicts(1), ["to_member"]);
            }
            // To a VXLAN, where user space may forward.
            twin.forward_frames(0, 0, 1514);
            twin.datapath.set_stations(&[(FIRST, STATION, 0), (FIRST, other, FIRST)]).unwrap();
            let verdicts = |n| (0..n).map(|_| twin.drive(&frame, false).0).collect::<Vec<_>>();
            assert_eq!(verdicts(2), ["pass_no_socket"; 2]);
            twin.datapath.renew_stations();
            assert_eq!(verdicts(2), ["pass_station", "pass_no_socket"]);
            twin.datapath.close();
            assert_eq!(verdicts(1), ["pass_not_mine"]);
            twin.datapath.open();
            twin.forward_frames(2, 1514, 0);
            twin.datapath.set_stations(&[(FIRST, STATION, 0), (FIRST, other, 1)]).unwrap();
            // Another level, another bridge, or none.
            let config = twin.programs[0].0.config();
            for (config, reason) in [
                (XdpConfig { enabled: false, ..config }, "pass_disabled"),
                (XdpConfig { forward: false, ..config }, "pass_not_mine"),
                (XdpConfig { master: Some(FIRST + 1), ..config }, "pass_not_mine"),
                (XdpConfig { master: None, bridged: false, ..config }, "pass_not_mine"),
            ] {
                twin.programs[0].0.set_config(config).unwrap();
                assert_eq!(twin.drive(&frame, false).0, reason);
            }
        })
        .unwrap();
}

/// On a bridge that filters VLANs, each interface has the stations of its own VLAN, and frames of other VLANs are the
/// kernel's.
#[test]
fn frames_with_a_tag_come_from_stations_of_their_vlan() {
    require!(require_lab());
    lab()
        .enter(|| {
            let mut twin = Twin::of_bridge(FIRST);
            twin.filter(true);
            let (id, other) = (FIRST + 8, [2, 0, 0, 0, 0, 10]);
            let vlan = XdpVlan {
                id,
                entry: FIRST + 9,
                tag: [0x81, 0, 0, 5],
                mac: mac(0),
                max_frame: MAX_FRAME + 4,
                gate: XdpGate::default(),
                source_check: twin.programs[0].0.config().source_check,
                rules: false,
                bridging: XdpBridging::default(),
            };
            twin.programs[0].0.set_vlans(vec![vlan]).unwrap();
            twin.datapath.set_stations(&[(FIRST, STATION, 0), (id, other, 0)]).unwrap();
            // Of no EtherType that is forwarded.
            let frame = |to: [u8; 6], from: [u8; 6], tag: &[u8]| [&to[..], &from, tag, &[0; 48]].concat();
            let verdict = |twin: &Twin, from, tag: &[u8]| twin.drive(&frame(mac(0), from, tag), false).0;
            for (from, tag, reason) in [
                (other, &[0x81, 0, 0, 5][..], "pass_ethertype"),
                (other, &[0x81, 0, 0xe0, 5], "pass_ethertype"),
                (STATION, &[0x81, 0, 0, 5], "pass_station"),
                (STATION, &[], "pass_ethertype"),
                (other, &[], "pass_station"),
                (other, &[0x81, 0, 0, 6], "pass_vlan"),
                (other, &[0x88, 0xa8, 0, 5], "pass_vlan"),
                (STATION, &[0x81, 0, 0, 0], "pass_vlan"),
            ] {
                assert_eq!(verdict(&twin, from, tag), reason, "{from:02x?} {tag:02x?}");
            }
            twin.datapath.renew_stations();
            let both = |twin: &Twin| [verdict(twin, STATION, &[]), verdict(twin, other, &[0x81, 0, 0, 5])];
            assert_eq!([both(&twin), both(&twin)], [["pass_station"; 2], ["pass_ethertype"; 2]]);
            // Frames without a tag that belong to no interface.
            let config = twin.programs[0].0.config();
            twin.programs[0].0.set_config(XdpConfig { master: None, gate: XdpGate::CLOSED, ..config }).unwrap();
            assert_eq!(both(&twin), ["pass_vlan", "pass_ethertype"]);
        })
        .unwrap();
}

/// A frame between members enters with the tag of its VLAN or without, and leaves as the other member has the VLAN.
#[test]
fn frames_between_members_leave_as_the_member_has_their_vlan() {
    require!(require_lab());
    lab()
        .enter(|| {
            let mut twin = Twin::of_bridge(FIRST);
            twin.filter(true);
            let mut seen: BTreeMap<(&str, bool, bool), u64> = BTreeMap::new();
            let mut random = random(SEED + 1);
            // The interface of frames without a tag, and those of two tags.
            let of = |n: u64| (FIRST + n as u16, [0x81, 0, 0, 4 + n as u8]);
            let macs = [[2, 0, 0, 0, 0, 9], [2, 0, 0, 0, 0, 10], [2, 9, 9, 9, 9, 9]];
            for _ in 0..400 {
                let tagged: Vec<u64> = (0..3).map(|_| random(8)).collect();
                let tags = (0..3).map(|n| (of(n).0, (of(n).1, tagged[n as usize])));
                twin.datapath.set_bridge_tags(tags.collect());
                let between: Vec<XdpBridging> = (0..3)
                    .map(|_| XdpBridging {
                        to: [6, 6, 2, 4][random(4) as usize],
                        longest: [1000, 1514][random(2) as usize],
                        through: [0, 1000, 1514, 9014][random(4) as usize],
                    })
                    .collect();
                let config = twin.programs[0].0.config();
                twin.programs[0].0.set_config(XdpConfig { bridging: between[0], ..config }).unwrap();
                let vlan = |n: u64| XdpVlan {
                    id: of(n).0,
                    entry: FIRST + 9 + n as u16,
                    tag: of(n).1,
                    mac: mac(0),
                    max_frame: MAX_FRAME + 4,
                    gate: XdpGate::default(),
                    source_check: config.source_check,
                    rules: false,
                    bridging: between[n as usize],
                };
                twin.programs[0].0.set_vlans(vec![vlan(1), vlan(2)]).unwrap();
                twin.datapath.resume_members();
                let mut stations: Vec<At> = vec![];
                for (n, mac) in (0..3).flat_map(|n| macs.map(|mac| (n, mac))) {
                    stations.push((of(n).0, mac, [0, 0, 1, 1, 1, 2, FIRST, FIRST][random(8) as usize]));
                }
                twin.datapath.set_stations(&stations).unwrap();
                for _ in 0..60 {
                    let length = [60, 1000, 1001, 1514, 1515][random(5) as usize];
                    let mut bare: Vec<u8> = (0..length).map(|_| random(256) as u8).collect();
                    bare[..6].copy_from_slice(&macs[random(3) as usize]);
                    bare[6..12].copy_from_slice(&macs[random(3) as usize]);
                    bare[12..14].copy_from_slice(
                        &[[8, 0], [8, 0], [8, 0], [0x88, 0x64], [0x81, 0], [8, 6]][random(6) as usize],
                    );
                    bare[14] = if random(8) == 0 { 0x60 } else { 0x45 };
                    if bare[12..14] == [0x81, 0] {
                        bare[15] = 9;
                    }
                    // Without a tag; with a tag and priority; with one that belongs to no interface.
                    let (n, priority) = (random(4), random(8) as u8);
                    let ([a, b, c, d], foreign) = (of(n % 3).1, n == 3);
                    let tag = match n {
                        0 => vec![],
                        3 => vec![0x88, 0xa8, 0, 5],
                        _ => vec![a, b, priority << 5 | c, d],
                    };
                    let frame = [&bare[..12], &tag, &bare[12..]].concat();
                    let XdpBridging { to, longest, through } = between[n as usize % 3];
                    let expected = match bridged(&bare, of(n % 3).0, &stations, (to, longest, through)) {
                        _ if foreign => ("pass_vlan", None),
                        // Two tags.
                        ("pass_vlan", _) if !tag.is_empty() => continue,
                        other => other,
                    };
                    let (reason, port, bytes) = twin.drive(&frame, false);
                    assert_eq!((reason, port), expected, "{tagged:?} {between:?} {stations:02x?} {frame:02x?}");
                    let leaves = port.map(|port| tagged[n as usize] >> port & 1 == 1);
                    let sent = match leaves {
                        Some(false) => bare.clone(),
                        Some(true) if tag.is_empty() => [&bare[..12], &[a, b, c, d], &bare[12..]].concat(),
                        _ => frame.clone(),
                    };
                    assert_eq!(bytes, sent, "{frame:02x?}");
                    *seen.entry((reason, tag.is_empty(), leaves == Some(true))).or_default() += 1;
                    // The tag of an skb is beside its data, and cannot be set here. Traffic control reaches no user
                    // space.
                    if tag.is_empty() && bare[12..14] != [0x81, 0] && through == 0 {
                        assert_eq!(twin.drive(&frame, true), (reason, port, frame), "as an skb");
                    }
                }
            }
            println!("{seen:?}");
            let of =
                |from: bool| [("to_member", from, true), ("to_member", from, false), ("pass_no_socket", from, false)];
            let mut all = [true, false].into_iter().flat_map(of);
            assert!(all.all(|of| seen.get(&of) > Some(&30)), "too few: {seen:?}");
        })
        .unwrap();
}
