//! Every kind of pool under the router: packets are forwarded, buffers are reused, and all are accounted for.

use crate::harness::Bywash;
use bywash_lab::{Ping, Topology, require, require_lab};
use std::time::Duration;

#[test]
fn every_kind_of_pool_forwards_and_reuses_buffers() {
    require!(require_lab());
    let lab = Topology::router().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("bywash.toml");
    for kind in ["stack", "ring", "sdb", "tabm"] {
        // Two queues with four rings of 64 take half of the frames: blocks are reused after a few hundred packets.
        let text = format!(
            "[[port]]\ninterface = \"r0\"\nring = 64\nlevel = \"user\"\n\
             [[port]]\ninterface = \"r1\"\nring = 64\nlevel = \"user\"\n\
             [pool]\nkind = \"{kind}\"\nblock = 64\nframes = 1024\n"
        );
        std::fs::write(&file, text).unwrap();
        let mut bywash = Bywash::spawn(lab.r(), &["--config", file.to_str().unwrap()]);
        bywash.process.wait_for_output("forwarding;", crate::harness::PATIENCE).unwrap();
        let ping = Ping::to(lab.b().v4).count(1500).interval(Duration::from_millis(1));
        let report = ping.run(&lab.a().ns).unwrap();
        assert_eq!(report.received, 1500, "{kind}: {}", report.text);
        let shown = bywash.show(&["pools"]);
        let pool = &shown["pools"][0];
        let figure = |name: &str| pool[name].as_u64().unwrap_or_else(|| panic!("{kind}: no {name} in {pool}"));
        assert_eq!((pool["kind"].as_str(), figure("frames"), figure("surplus")), (Some(kind), 1024, 0));
        assert!(figure("normal") <= figure("peak") && figure("peak") <= 1024, "{pool}");
        assert!(figure("allocated") > 3000, "{kind}: no buffer is reused: {pool}");
        assert_eq!(shown["audit"]["missing"].as_i64(), Some(0), "{shown}");
        if matches!(kind, "sdb" | "tabm") {
            let blocks = &pool["blocks"];
            let states = ["free", "open", "draining"].map(|state| blocks[state].as_u64().unwrap());
            assert_eq!((blocks["size"].as_u64(), states.iter().sum::<u64>()), (Some(64), 16), "{pool}");
        } else {
            assert!(pool["blocks"].is_null());
        }
        bywash.stop();
    }
}
