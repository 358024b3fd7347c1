//! Compares the programs with the router where all ports are members of a bond, by which packets arrive and leave, and
//! of a VLAN on it: both choose the same member.

use super::*;
use bywash_router::bond::XmitHash;
use bywash_router::tables::{BondInfo, VlanInfo};
use bywash_router::vlan::{FIRST, tag};
use bywash_router::xdp::{Target, Targets, XdpTableSink};

const BOND: PortId = PortId(FIRST);
const VLAN: PortId = PortId(FIRST + 1);
/// Members of the bond, not in the order of their numbers.
const MEMBERS: [u16; PORTS as usize] = [2, 0, 1];

/// Returns tables in which next hops by port 0 are by a VLAN on the bond, and all others by the bond.
fn bonded(world: &World, mode: Mode, hash: XmitHash) -> Tables {
    let mut tables = world.plain_tables(mode);
    let by_port = |entry: &&mut Entry| matches!(entry.kind, Kind::Forward | Kind::Glean | Kind::Pending);
    for entry in tables.entries.iter_mut().filter(by_port) {
        entry.port = if entry.port == PortId(0) { VLAN } else { BOND };
    }
    tables.ports.iter_mut().for_each(|port| port.master = Some(BOND));
    let info = tables.ports[0].clone();
    tables.vlans = vec![None, Some(VlanInfo { port: BOND, tag: tag(0x8100, 5), info: info.clone() })];
    tables.bonds = vec![(BOND, BondInfo { ports: MEMBERS.map(PortId).to_vec(), hash, info })];
    tables
}

/// Returns whether the program leaves a frame to user space for the sake of its hash: ICMP other than queries, rare
/// protocols with ports, and transport headers that are not whole.
fn hashed_by_user(frame: &[u8], hash: XmitHash) -> bool {
    let ip = &frame[14..];
    let (proto, len) =
        if ip[0] >> 4 == 6 { (ip[6], be16(&ip[4..])) } else { (ip[9], be16(&ip[2..]).saturating_sub(20)) };
    let rare = [33, 50, 51, 132, 136].contains(&proto);
    let icmp = [1, 58].contains(&proto);
    let short = (rare || icmp || [6, 17].contains(&proto)) && len < 8;
    hash != XmitHash::Layer2 && (icmp || short || (rare && hash == XmitHash::Layer34))
}

#[test]
fn the_program_chooses_the_member_that_the_router_does() {
    require!(require_lab());
    let check = || {
        let mut twin = Twin::new();
        let mut runner = TestRunner::deterministic();
        let (targets, mut forwarded) = (Targets::default(), BTreeMap::<(u8, u16, bool), u64>::new());
        for (id, (_, ifindex)) in (0u16..).zip(&twin.programs) {
            targets.set(usize::from(id), Target { ifindex: *ifindex, takes_frames: true });
            twin.datapath.set_device(id, *ifindex).unwrap();
        }
        let mut sink = XdpTableSink { program: twin.datapath.clone(), targets };
        for (mode, hash) in MODES
            .into_iter()
            .flat_map(|mode| [XmitHash::Layer2, XmitHash::Layer23, XmitHash::Layer34].map(|hash| (mode, hash)))
        {
            sink.publish(&bonded(&twin.world, mode, hash));
            let tables = Arc::new(Published::new(&twin.world.domain, bonded(&twin.world, mode, hash)));
            for (id, (program, _)) in (0..).zip(&mut twin.programs) {
                program.set_config(XdpConfig { master: Some(BOND.0), ..mode.config(id) }).unwrap();
            }
            for _ in 0..4 {
                let shapes = prop::collection::vec(a_shape(), 200).new_tree(&mut runner).unwrap().current();
                let frames: Vec<_> =
                    shapes.iter().map(|s| s.build(&twin.world.targets4, &twin.world.targets6)).collect();
                let fates = route(tables.clone(), &twin.world.domain, mode.redirects, &frames);
                for (frame, fate) in frames.iter().zip(&fates) {
                    let (reason, to, bytes) = twin.drive(frame, false);
                    let show = || {
                        format!("{mode:?} {hash:?} {reason} to {to:?}: {frame:02x?} {bytes:02x?}, {:02x?}", fate.sent)
                    };
                    let plain =
                        matches!(&fate.sent[..], [(_, sent)] if [frame.len(), frame.len() + 4].contains(&sent.len()));
                    match (reason, to) {
                        ("to_port", Some(to)) => {
                            assert!(fate.sent == [(to, bytes.clone())], "{}", show());
                            *forwarded.entry((hash as u8, to, bytes.len() > frame.len())).or_default() += 1;
                        }
                        (_, Some(_)) => panic!("{}", show()),
                        (_, None) => assert!(bytes == *frame, "{}", show()),
                    }
                    if reason == "pass_no_socket" && plain {
                        let left = || leaves(frame, false, 1, &fate.sent[0].1) || hashed_by_user(frame, hash);
                        assert!(mode.redirects || left(), "{}", show());
                    }
                    // The tag of an skb lies beside its data, so that only the port is compared.
                    if plain && frame.len() >= 54 && !unfinished(frame) {
                        let (_, skb_to, _) = twin.drive(frame, true);
                        assert!(skb_to == to || frame.len() > 1514, "as an skb to {skb_to:?}: {}", show());
                    }
                }
            }
        }
        println!("{forwarded:?}");
        for hash in 0..3 {
            for port in MEMBERS {
                for tagged in [false, true] {
                    // By addresses of the link, the packets of a family to one host all leave by one member.
                    assert!(hash == 0 || forwarded[&(hash, port, tagged)] > 20, "{forwarded:?}");
                }
            }
        }
    };
    lab().enter(check).unwrap();
}
