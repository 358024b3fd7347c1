//! The guard: which cells are out, so that a frame cannot come back twice, or to an arena it is not of.
//!
//! Safe code cannot free a frame twice; a device that returns a descriptor twice, or code that copies one, can. The
//! guard then refuses what would otherwise be handed to two packets at once. With debug assertions it panics, and says
//! what became of the cell before.
//!
//! It costs some 3 cycles a packet. Without debug assertions only pools of blocks have it: a block that counts a cell twice
//! would be used again while another cell of it is out. Other pools then notice when more comes back than they hold.

use crate::BATCH;
use bywash_sync::facade::{AtomicU8, Ordering};

/// One byte per cell: whether it is out. Plain loads and stores: a cell has one holder, and only two frees of the same
/// cell at the same instant could both pass.
pub(crate) struct Guard {
    out: Box<[AtomicU8]>,
    #[cfg(debug_assertions)]
    history: std::sync::Mutex<Vec<[Event; EVENTS]>>,
}

/// Events kept of each cell, the latest first.
#[cfg(debug_assertions)]
const EVENTS: usize = 4;

#[cfg(debug_assertions)]
#[derive(Clone, Copy, Default)]
struct Event {
    what: Option<&'static str>,
    /// Order among all events of the arena.
    at: u64,
    thread: Option<std::thread::ThreadId>,
}

impl Guard {
    pub fn new(cells: usize) -> Self {
        Self {
            out: (0..cells).map(|_| AtomicU8::new(0)).collect(),
            #[cfg(debug_assertions)]
            history: std::sync::Mutex::new(vec![Default::default(); cells]),
        }
    }

    /// These are handed out.
    #[inline]
    pub fn take(&self, cells: &[u32]) {
        for &cell in cells {
            self.out[cell as usize].store(1, Ordering::Relaxed);
        }
        #[cfg(debug_assertions)]
        self.note("taken", cells);
    }

    /// These come back, at most a batch. Moves those that were out to the front, in order, and returns how many they
    /// are.
    ///
    /// # Panics
    /// With debug assertions, when one was not out.
    #[inline]
    pub fn give(&self, cells: &mut [u32]) -> usize {
        debug_assert!(cells.len() <= BATCH);
        let mut good = 0u64;
        for (i, &cell) in cells.iter().enumerate() {
            // Loaded and stored one after the other: a burst can hold the same cell twice.
            let Some(out) = self.out.get(cell as usize) else { continue };
            good |= u64::from(out.load(Ordering::Relaxed)) << i;
            out.store(0, Ordering::Relaxed);
        }
        let n = cells.len();
        if good.count_ones() as usize != n {
            return self.pick(cells, good);
        }
        #[cfg(debug_assertions)]
        self.note("freed", cells);
        n
    }

    #[cold]
    fn pick(&self, cells: &mut [u32], good: u64) -> usize {
        #[cfg(debug_assertions)]
        if let Some(cell) = cells.iter().enumerate().find(|(i, _)| good >> i & 1 == 0).map(|(_, c)| *c) {
            let told = self.history(cell);
            panic!("cell {cell} freed twice, or a frame of another arena; the cell was last: {told}");
        }
        let mut kept = 0;
        for i in 0..cells.len() {
            if good >> i & 1 == 1 {
                cells[kept] = cells[i];
                kept += 1;
            }
        }
        kept
    }

    /// Whether the cell is out.
    pub fn is_out(&self, cell: u32) -> bool {
        self.out[cell as usize].load(Ordering::Relaxed) != 0
    }
}

#[cfg(debug_assertions)]
impl Guard {
    fn note(&self, what: &'static str, cells: &[u32]) {
        static CLOCK: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        let mut history = self.history.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let at = CLOCK.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        for &cell in cells {
            let events = &mut history[cell as usize];
            events.copy_within(..EVENTS - 1, 1);
            events[0] = Event { what: Some(what), at, thread: Some(std::thread::current().id()) };
        }
    }

    /// What became of the cell, the latest first.
    pub fn history(&self, cell: u32) -> String {
        let history = self.history.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let Some(events) = history.get(cell as usize) else { return "no such cell here".into() };
        let of = |e: &Event| Some(format!("{} by {:?} (event {})", e.what?, e.thread?, e.at));
        let told: Vec<String> = events.iter().filter_map(of).collect();
        if told.is_empty() { "never handed out".into() } else { told.join(", ") }
    }
}
