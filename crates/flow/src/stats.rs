//! Per-worker counters of flows and caches.

use bywash_sync::Counter;
use std::sync::OnceLock;

const PAGE: usize = 4096;
/// Maximum number of flows in all tables together.
pub const MAX_FLOWS: usize = PAGE * 1024;

#[derive(Default)]
struct Pair {
    packets: Counter,
    bytes: Counter,
}

/// One worker's counters of all flows, by slot. The control side allocates pages of 4,096 slots before a slot is used.
///
/// # Thread-safety
/// Written by one worker, read by any thread.
pub struct FlowStats {
    pages: Vec<OnceLock<Box<[Pair]>>>,
}

impl Default for FlowStats {
    fn default() -> Self {
        Self { pages: std::iter::repeat_with(OnceLock::new).take(MAX_FLOWS / PAGE).collect() }
    }
}

impl FlowStats {
    /// Allocates the page that contains `slot`.
    pub(crate) fn make_room(&self, slot: u32) {
        if let Some(page) = self.pages.get(slot as usize / PAGE) {
            page.get_or_init(|| std::iter::repeat_with(Pair::default).take(PAGE).collect());
        }
    }

    fn pair(&self, slot: u32) -> Option<&Pair> {
        self.pages.get(slot as usize / PAGE)?.get()?.get(slot as usize % PAGE)
    }

    pub(crate) fn add(&self, slot: u32, packets: u64, bytes: u64) {
        if let Some(pair) = self.pair(slot) {
            pair.packets.add(packets);
            pair.bytes.add(bytes);
        }
    }

    /// Returns the packets and bytes counted so far for a slot.
    pub fn get(&self, slot: u32) -> (u64, u64) {
        self.pair(slot).map_or((0, 0), |p| (p.packets.get(), p.bytes.get()))
    }
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters of a worker's caches. Written by that worker, read by any thread.
        #[derive(Debug, Default)]
        pub struct CacheCounters { $($(#[$doc])* pub $name: Counter,)* }

        impl CacheCounters {
            /// Returns all counters with their names.
            pub fn list(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name.get()),)*]
            }
        }
    };
}

counters! {
    /// Packets found in the exact-match cache.
    exact_hits,
    /// Packets found in the megaflow cache.
    megaflow_hits,
    /// Packets sent through the tables.
    misses,
    /// Masks tried for packets that missed the exact-match cache.
    masks_tried,
    /// Current number of megaflows.
    megaflows,
    /// Current number of masks.
    masks,
    /// Packets whose flow was not cached because the megaflow cache was full.
    not_cached,
    /// Megaflows created for an exact key because there were too many masks.
    masks_full,
    /// Megaflows created.
    made,
    /// Megaflows revalidated after a change.
    revalidated,
    /// Megaflows whose ops a change made invalid and which were updated in place.
    changed,
    /// Megaflows removed because they were invalid or idle.
    removed,
    /// Address reports not sent because the queue to the control side was full.
    learn_later,
    /// Packets that the driver forwarded by megaflows.
    driver_hits,
    /// Current number of megaflows in the driver.
    driver_flows,
    /// Generation of the tables that all megaflows are known to be valid for.
    generation,
}
