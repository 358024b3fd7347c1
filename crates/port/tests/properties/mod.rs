//! Properties that hold for any file, shared by the fuzz targets and the test that replays their findings.

mod interpreter;
mod pcap;

use bywash_port::af_xdp::{Change, Journal, Value};
pub use pcap::{filter, pcap};

/// Name of a property and its check.
pub type Target = (&'static str, fn(&[u8]));

/// All properties, by the names of their fuzz targets.
pub const TARGETS: [Target; 3] = [("filter", filter), ("journal", journal), ("pcap", pcap)];

/// Checks that what a journal may name is one component of a path, and never a file of somebody's choice.
pub fn journal(data: &[u8]) {
    let Ok(changes) = Journal::parse(data) else { return };
    for Change { interface, feature, was, .. } in &changes {
        assert!((1..16).contains(&interface.len()), "{interface:?}");
        assert!(interface != "." && interface != ".." && !interface.contains(['/', '\0']), "{interface:?}");
        match was {
            Value::On(_) => assert!(feature.starts_with("rx-") || feature == "tx-vlan-hw-insert", "{feature:?}"),
            Value::Number(n) => {
                assert!(feature == "napi_defer_hard_irqs" || feature == "gro_flush_timeout", "{feature:?}");
                assert!(i32::try_from(*n).is_ok(), "{n}");
            }
        }
        assert!(!feature.contains(['/', '.', '\0']), "{feature:?}");
    }
}
