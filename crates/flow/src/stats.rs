//! Counters: of flows, by worker; and of a worker's caches.

use bywash_sync::Counter;
use std::sync::OnceLock;

const PAGE: usize = 4096;
/// Most flows in all tables.
pub const MAX_FLOWS: usize = PAGE * 1024;

#[derive(Default)]
struct Pair {
    packets: Counter,
    bytes: Counter,
}

/// One worker's counters of all flows, by slot. Room is made by the control side, a page at a time, before a slot is in
/// use.
///
/// # Thread-safety
/// Written by one worker, read by anyone.
pub struct FlowStats {
    pages: Vec<OnceLock<Box<[Pair]>>>,
}

impl Default for FlowStats {
    fn default() -> Self {
        Self { pages: std::iter::repeat_with(OnceLock::new).take(MAX_FLOWS / PAGE).collect() }
    }
}

impl FlowStats {
    /// Makes room for `slot`.
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

    /// Packets and bytes so far.
    pub fn get(&self, slot: u32) -> (u64, u64) {
        self.pair(slot).map_or((0, 0), |p| (p.packets.get(), p.bytes.get()))
    }
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What a worker's caches did. Written by it, read by anyone.
        #[derive(Debug, Default)]
        pub struct CacheCounters { $($(#[$doc])* pub $name: Counter,)* }

        impl CacheCounters {
            /// Every counter by name.
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
    /// Packets taken through the tables.
    misses,
    /// Masks tried for packets the exact-match cache did not know.
    masks_tried,
    /// Megaflows now.
    megaflows,
    /// Masks now.
    masks,
    /// Packets whose flow was not cached: the megaflow cache was full.
    not_cached,
    /// Megaflows made for a single packet's bits: there were too many masks.
    masks_full,
    /// Megaflows made.
    made,
    /// Megaflows checked again after a change.
    revalidated,
    /// Megaflows that a change made wrong, changed in place.
    changed,
    /// Megaflows removed: no longer right, or unused.
    removed,
    /// Addresses that could not be told to the control side at once.
    learn_later,
    /// Packets that the driver forwarded by megaflows.
    driver_hits,
    /// Megaflows the driver has now.
    driver_flows,
    /// Generation of the tables that all megaflows are known to be right for.
    generation,
}
