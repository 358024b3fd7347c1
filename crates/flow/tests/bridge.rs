//! Address learning of the bridge.

mod common;

use bywash_flow::app::CacheConfig;
use bywash_flow::model::OfPort;
use bywash_flow::syntax;
use common::rig::Rig;

const HOST: u64 = 0x0200_0000_0001;

fn frame() -> Vec<u8> {
    let mut frame = vec![0xff; 6];
    frame.extend(&HOST.to_be_bytes()[2..]);
    frame.extend([0x88, 0xb5]);
    frame.resize(60, 0);
    frame
}

fn bridge() -> Rig {
    let mut rig = Rig::new(3, CacheConfig::default(), 32);
    rig.control.add(syntax::flow("actions=NORMAL", &|_| None).unwrap()).unwrap();
    rig.control.commit();
    rig
}

/// Returns the port of the host after all address reports have been processed.
fn port(rig: &mut Rig) -> Option<OfPort> {
    rig.control.poll();
    rig.control.macs().iter().find(|(_, mac, ..)| *mac == HOST).map(|(_, _, port, _)| *port)
}

#[test]
fn an_address_is_where_it_was_last_seen() {
    let mut rig = bridge();
    for round in 0..3 {
        for of in [1, 2] {
            // A cached path learns addresses like an uncached one.
            assert_eq!(rig.send(of, &[frame()]).len(), 2);
            assert_eq!(port(&mut rig), Some(OfPort(of)), "round {round}");
            // Sweeping the megaflow cached for the other port must not move the address.
            for _ in 0..3 {
                rig.settle(10);
                assert_eq!(port(&mut rig), Some(OfPort(of)), "round {round}");
            }
        }
    }
    assert_eq!(rig.control.moved, 5);
}

#[test]
fn a_port_that_goes_down_is_forgotten() {
    let mut rig = bridge();
    rig.send(1, &[frame()]);
    assert_eq!(port(&mut rig), Some(OfPort(1)));
    rig.control.set_port_up(OfPort(1), false);
    for _ in 0..3 {
        rig.settle(10);
        assert_eq!(port(&mut rig), None);
    }
    rig.control.set_port_up(OfPort(1), true);
    rig.send(1, &[frame()]);
    assert_eq!(port(&mut rig), Some(OfPort(1)));
}
