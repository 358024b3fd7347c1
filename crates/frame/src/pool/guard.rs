//! The guard: records which cells are in use, and refuses a frame that is freed twice or belongs to another arena.
//!
//! Safe code cannot free a frame twice; a device that returns a descriptor twice, or code that copies one, can. Without
//! the guard, the cell would then be handed out to two packets at once. With debug assertions the guard panics, and
//! reports the last events of the cell.
//!
//! It costs about 3 cycles per packet. Without debug assertions only pools of blocks use it: a block that counts a cell
//! twice would be reused while another of its cells is in use. Other pools notice only when more cells are returned
//! than they hold.

use super::out::Out;
use crate::BATCH;

/// Record of the cells in use, by all pools of a set.
pub(crate) struct Guard {
    out: Out,
    #[cfg(debug_assertions)]
    history: std::sync::Mutex<Vec<[Event; EVENTS]>>,
}

/// Events kept per cell, the latest first.
#[cfg(debug_assertions)]
const EVENTS: usize = 4;

#[cfg(debug_assertions)]
#[derive(Clone, Copy, Default)]
struct Event {
    what: Option<&'static str>,
    /// Sequence number among all events.
    at: u64,
    thread: Option<std::thread::ThreadId>,
}

impl Guard {
    pub fn new(cells: usize) -> Self {
        Self {
            out: Out::new(cells, false),
            #[cfg(debug_assertions)]
            history: std::sync::Mutex::new(vec![Default::default(); cells]),
        }
    }

    /// Marks `cells` as in use.
    #[inline]
    pub fn take(&self, cells: &[u32]) {
        cells.iter().for_each(|cell| self.out.take(*cell));
        #[cfg(debug_assertions)]
        self.note("taken", cells);
    }

    /// Marks `cells`, at most a batch, as free. Moves those that were in use to the front, in order, and returns how
    /// many there are.
    ///
    /// # Panics
    /// With debug assertions, if one was not in use.
    #[inline]
    pub fn give(&self, cells: &mut [u32]) -> usize {
        debug_assert!(cells.len() <= BATCH);
        let mut good = 0u64;
        for (i, &cell) in cells.iter().enumerate() {
            // A burst can hold the same cell twice, so each is recorded before the next is read.
            good |= u64::from(self.out.give(cell)) << i;
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
            panic!("cell {cell} freed twice, or of another arena; last events: {told}");
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

    /// Returns whether the cell is in use.
    pub fn is_out(&self, cell: u32) -> bool {
        self.out.is_out(cell)
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

    /// Returns the last events of the cell as text, the latest first.
    pub fn history(&self, cell: u32) -> String {
        let history = self.history.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let Some(events) = history.get(cell as usize) else { return "no such cell here".into() };
        let of = |e: &Event| Some(format!("{} by {:?} (event {})", e.what?, e.thread?, e.at));
        let told: Vec<String> = events.iter().filter_map(of).collect();
        if told.is_empty() { "never handed out".into() } else { told.join(", ") }
    }
}
