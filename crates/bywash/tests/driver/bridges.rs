//! Runs the program on a port that is a bridge's member: what it receives from the bridge's stations is handled as on any
//! other port, and the kernel has everything from others.

use super::*;
use bywash_router::vlan::FIRST;
use bywash_sync::random::splitmix64;

const STATION: [u8; 6] = [2, 0, 0, 0, 0, 9];

impl Twin {
    /// Makes port 0 a member of a bridge, or no longer.
    fn bridge(&mut self, bridge: Option<u16>) {
        let (program, _) = &mut self.programs[0];
        let config = program.config();
        program.set_config(XdpConfig { bridge, ..config }).unwrap();
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
fn many_stations_are_found_and_heard_again() {
    require!(require_lab());
    lab()
        .enter(|| {
            let mut twin = Twin::new();
            twin.set_up(Mode { redirects: false, check: SourceCheck::Off, l3: false });
            twin.bridge(Some(FIRST));
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
