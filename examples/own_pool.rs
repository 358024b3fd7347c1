//! Custom pool policy: the free cell with the lowest address is taken first, so that cells in use are adjacent.
//!
//!     sudo -E cargo run -p bywash-examples --example own_pool

use bywash_engine::{Context, PortId};
use bywash_frame::{Arena, ArenaConfig, Batch, Policy, PoolSet};
use bywash_kit::Kit;
use bywash_lab::{Ping, Wire};
use std::collections::BTreeSet;
use std::error::Error;
use std::sync::Mutex;

const CELLS: usize = 16_384;

/// Set of free cells under a lock, which is taken once a burst.
#[derive(Default)]
struct Lowest(Mutex<BTreeSet<u32>>);

impl Policy for Lowest {
    fn put(&self, cells: &[u32]) {
        self.0.lock().expect("cells").extend(cells);
    }

    fn take(&self, out: &mut [u32]) -> usize {
        let mut free = self.0.lock().expect("cells");
        out.iter_mut().map_while(|place| free.pop_first().map(|cell| *place = cell)).count()
    }

    fn free(&self) -> usize {
        self.0.lock().expect("cells").len()
    }
}

fn forward(cx: &mut Context<'_>, from: PortId, batch: &mut Batch) {
    cx.send_batch(from, PortId(1 - from.0), batch);
}

fn main() -> Result<(), Box<dyn Error>> {
    let lab = Wire::new()?;
    let arena = Arena::new(ArenaConfig { cells: CELLS, ..ArenaConfig::default() })?;
    let pools = PoolSet::with_policy(arena, "lowest", CELLS, Box::new(Lowest::default()))?;
    let mut kit = Kit::with_pools(pools.clone());
    lab.r.enter(|| kit.interface("r0").and_then(|_| kit.interface("r1")))??;
    let running = kit.start(forward)?;
    let report = Ping::to(Wire::B).count(10).run(&lab.a)?;
    println!("{} of {} answered; {} of {CELLS} cells free", report.received, report.sent, pools.pools()[0].free());
    Ok(running.stop()?)
}
