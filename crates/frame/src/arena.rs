//! The arena: one mapping, cut into cells.

use crate::marks::{LINE_SHIFT, Marks};
use crate::pages::Mapping;
use crate::{DATA_OFFSET, Frame, META, PageKind, Pages, RawFrame};
use bywash_sync::wide::{Wide, widest};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

/// A cache line of packet bytes, for [`Arena::write_lines`].
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub struct Line(pub [u8; 64]);

/// What an arena is made of.
#[derive(Clone, Debug)]
pub struct ArenaConfig {
    /// Number of cells.
    pub cells: usize,
    /// Bytes a cell: a power of two, 2048 or 4096 (the chunk sizes AF_XDP takes); 16384 for frames longer than a chunk; or 512 or
    /// 1024 for short frames only, of which several lie in a chunk.
    pub cell: usize,
    /// Pages to ask for.
    pub pages: Pages,
    /// NUMA node to bind the memory to; none: where it is first touched.
    pub node: Option<u32>,
    /// Cells hold several packets, each in as many lines as it needs: for pools of kind `typewriter`, and only those.
    pub packed: bool,
}

impl Default for ArenaConfig {
    fn default() -> Self {
        Self { cells: 16384, cell: 2048, pages: Pages::Auto, node: None, packed: false }
    }
}

/// Why there is no arena.
#[derive(Debug, thiserror::Error)]
pub enum ArenaError {
    /// A cell size AF_XDP cannot use.
    #[error("cell size {0} is none of 512, 1024, 2048, 4096 and, where a cell holds one packet, 16384 bytes")]
    CellSize(usize),
    /// No cells, or more than a 32-bit index can name.
    #[error("{0} cells: the number must be between 1 and {max}", max = u32::MAX)]
    Cells(usize),
    /// The kernel refused the memory.
    #[error("cannot map {mib} MiB of {kind} pages for the arena: {source}")]
    Map {
        /// Size asked for.
        mib: usize,
        /// Kind of pages that failed.
        kind: PageKind,
        /// The kernel's reason.
        source: std::io::Error,
    },
    /// The memory could not be bound to its NUMA node.
    #[error("cannot bind the arena to NUMA node {node}: {source}")]
    Bind {
        /// Node asked for.
        node: u32,
        /// The kernel's reason.
        source: std::io::Error,
    },
}

/// One shared mapping per process (a memfd, so that it can be handed to another process), cut into cells. It is
/// the UMEM of every AF_XDP socket and the region of every memif, so that any port sends any other port's frame
/// without a copy.
///
/// A cell is `META` bytes of metadata, headroom up to `DATA_OFFSET`, and data. In a packed arena a cell may hold
/// several such, its slots.
///
/// # Thread-safety
/// Shared by all workers. Memory is reached only through a [`Frame`], which is exclusive.
pub struct Arena {
    map: Mapping,
    cells: usize,
    shift: u32,
    /// Where slots begin, in a packed arena; none: every cell is one.
    marks: Option<Arc<Marks>>,
}

// SAFETY: the mapping lives as long as the arena; its bytes are reached only through exclusive frames.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

impl Arena {
    /// Maps and populates the memory.
    pub fn new(config: ArenaConfig) -> Result<Arc<Self>, ArenaError> {
        let ArenaConfig { cells, cell, pages, node, packed } = config;
        if ![512, 1024, 2048, 4096, 16384].contains(&cell) || packed && cell > 4096 {
            return Err(ArenaError::CellSize(cell));
        }
        if cells == 0 || cells > u32::MAX as usize {
            return Err(ArenaError::Cells(cells));
        }
        // Lines of a packed arena's cells have numbers as well.
        if packed && cells > u32::MAX as usize >> (cell.trailing_zeros() - LINE_SHIFT) {
            return Err(ArenaError::Cells(cells));
        }
        let len = cells.checked_mul(cell).ok_or(ArenaError::Cells(cells))?;
        let map =
            Mapping::new(len, pages).map_err(|(kind, source)| ArenaError::Map { mib: len >> 20, kind, source })?;
        let shift = cell.trailing_zeros();
        let arena = Self { map, cells, shift, marks: packed.then(|| Arc::new(Marks::new(cells, shift))) };
        if let Some(node) = node {
            arena.bind(node).map_err(|source| ArenaError::Bind { node, source })?;
        }
        Ok(Arc::new(arena))
    }

    fn bind(&self, node: u32) -> std::io::Result<()> {
        const MPOL_BIND: i32 = 2;
        const MPOL_MF_MOVE: u32 = 2;
        if node >= 64 {
            return Err(std::io::Error::from_raw_os_error(libc::EINVAL));
        }
        let mask: u64 = 1 << node;
        // SAFETY: mbind(2) on our own mapping; the mask outlives the call.
        let rc = unsafe {
            libc::syscall(
                libc::SYS_mbind,
                self.map.base,
                self.map.len,
                MPOL_BIND,
                &raw const mask,
                65usize,
                MPOL_MF_MOVE,
            )
        };
        if rc == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    }

    /// Number of cells.
    pub fn cells(&self) -> usize {
        self.cells
    }

    /// Bytes a cell.
    pub fn cell_size(&self) -> usize {
        1 << self.shift
    }

    /// Most bytes a packet in one cell can have, without using its headroom.
    pub fn max_data(&self) -> usize {
        self.cell_size() - DATA_OFFSET
    }

    /// Bytes mapped: at least `cells * cell_size`, a multiple of 2 MiB.
    pub fn mapped(&self) -> usize {
        self.map.len
    }

    /// Bytes cut into cells: the length to register as UMEM.
    pub fn size(&self) -> usize {
        self.cells << self.shift
    }

    /// Start of the mapping: for registering it with a kernel or a device. Reading or writing through it is only
    /// sound in cells whose frames one holds.
    pub fn base(&self) -> *mut u8 {
        self.map.base
    }

    /// The memory as a file, to hand to another process.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.map.fd.as_fd()
    }

    /// The pages that were got.
    pub fn pages(&self) -> PageKind {
        self.map.kind
    }

    /// Why better pages were not got; empty when they were or none were asked for.
    pub fn pages_note(&self) -> &str {
        &self.map.note
    }

    /// The cell an address lies in.
    #[inline]
    pub fn cell_of(&self, addr: u64) -> u32 {
        (addr >> self.shift) as u32
    }

    /// Offset of a cell's start.
    #[inline]
    pub fn cell_addr(&self, cell: u32) -> u64 {
        u64::from(cell) << self.shift
    }

    /// Whether a cell may hold several packets.
    pub fn packed(&self) -> bool {
        self.marks.is_some()
    }

    /// Where slots begin in cells, in a packed arena.
    pub(crate) fn marks(&self) -> Option<&Arc<Marks>> {
        self.marks.as_ref()
    }

    /// What pools know the frame at `addr` by: the number of its cell; in a packed arena, of its slot's first line.
    #[inline]
    pub(crate) fn unit_of(&self, addr: u64) -> u32 {
        match &self.marks {
            None => self.cell_of(addr),
            Some(marks) => u32::try_from(Self::slot(marks, addr).0).unwrap_or(u32::MAX),
        }
    }

    /// A fresh, empty frame over what pools know as `unit`.
    ///
    /// # Safety
    /// `unit` has no other frame.
    #[inline]
    pub(crate) unsafe fn frame_of(&self, unit: u32) -> Frame {
        match &self.marks {
            // SAFETY: the caller's.
            None => unsafe { self.frame(unit) },
            Some(_) => {
                let addr = (u64::from(unit) << LINE_SHIFT) + DATA_OFFSET as u64;
                // SAFETY: the caller vouches for exclusiveness; the place is right behind the headroom.
                unsafe { Frame::from_raw(RawFrame { addr, len: 0, options: 0 }) }
            }
        }
    }

    /// The slot of the frame at `addr`, in lines. Data lies behind metadata, so that the byte before it is the slot's own,
    /// even where nothing is left of a packet that ended where its slot does.
    #[inline]
    fn slot(marks: &Marks, addr: u64) -> (u64, u64) {
        marks.around(addr.wrapping_sub(1) >> LINE_SHIFT)
    }

    /// What belongs to the frame at `addr`: from its metadata to where its data must end.
    #[inline]
    fn bounds(&self, addr: u64) -> (usize, usize) {
        match &self.marks {
            None => {
                let start = addr as usize >> self.shift << self.shift;
                (start, start + self.cell_size())
            }
            Some(marks) => {
                let (start, end) = Self::slot(marks, addr);
                ((start as usize) << LINE_SHIFT, (end as usize) << LINE_SHIFT)
            }
        }
    }

    /// A fresh, empty frame over `cell`.
    ///
    /// # Safety
    /// `cell` has no other frame.
    #[inline]
    pub unsafe fn frame(&self, cell: u32) -> Frame {
        debug_assert!((cell as usize) < self.cells);
        let addr = self.cell_addr(cell) + DATA_OFFSET as u64;
        // SAFETY: the caller vouches for exclusiveness; the place is right behind the headroom.
        unsafe { Frame::from_raw(RawFrame { addr, len: 0, options: 0 }) }
    }

    /// The packet's bytes.
    #[inline]
    pub fn data<'a>(&'a self, frame: &'a Frame) -> &'a [u8] {
        let (at, len) = self.checked(frame);
        // SAFETY: in bounds, and the frame is exclusive: nobody writes while it is borrowed.
        unsafe { std::slice::from_raw_parts(self.map.base.add(at), len) }
    }

    /// The packet's bytes, changeable.
    #[inline]
    #[allow(clippy::mut_from_ref)]
    pub fn data_mut<'a>(&'a self, frame: &'a mut Frame) -> &'a mut [u8] {
        let (at, len) = self.checked(frame);
        // SAFETY: in bounds, and the frame is exclusively borrowed.
        unsafe { std::slice::from_raw_parts_mut(self.map.base.add(at), len) }
    }

    /// The cell's metadata area. Its contents are what was last written there, by anyone.
    #[inline]
    #[allow(clippy::mut_from_ref)]
    pub fn meta_mut<'a>(&'a self, frame: &'a mut Frame) -> &'a mut [u8; META] {
        self.checked(frame);
        let (start, _) = self.bounds(frame.addr());
        // SAFETY: the first META bytes of a cell, or slot, lie in the mapping and belong to the frame, exclusively
        // borrowed.
        unsafe { &mut *self.map.base.add(start).cast() }
    }

    /// The packet's first `N` bytes; none when it is shorter.
    #[inline(always)]
    pub fn head<'a, const N: usize>(&'a self, frame: &'a Frame) -> Option<&'a [u8; N]> {
        let (at, len) = self.checked(frame);
        // SAFETY: in bounds as far as the packet goes, and the frame is exclusive: nobody writes while it is borrowed.
        (len >= N).then(|| unsafe { &*self.map.base.add(at).cast() })
    }

    /// The packet's first `N` bytes, changeable; none when it is shorter.
    #[inline(always)]
    #[allow(clippy::mut_from_ref)]
    pub fn head_mut<'a, const N: usize>(&'a self, frame: &'a mut Frame) -> Option<&'a mut [u8; N]> {
        let (at, len) = self.checked(frame);
        // SAFETY: in bounds as far as the packet goes, and the frame is exclusively borrowed.
        (len >= N).then(|| unsafe { &mut *self.map.base.add(at).cast() })
    }

    /// Starts loading the first cache line of the packet.
    #[inline]
    pub fn prefetch(&self, frame: &Frame) {
        bywash_sync::hint::prefetch_at(self.map.base.wrapping_add(frame.addr() as usize));
    }

    /// Makes the packet `len` bytes long without moving its start. False, and nothing done, when the cell has no
    /// room for it. New bytes hold what was last written there.
    #[inline]
    pub fn resize(&self, frame: &mut Frame, len: usize) -> bool {
        let addr = frame.addr();
        let (_, end) = self.bounds(addr);
        let fits = len <= end.saturating_sub(addr as usize);
        if fits {
            frame.place(addr, len as u32);
        }
        fits
    }

    /// Adds `n` bytes in front of the packet. False, and nothing done, when the headroom is too small.
    #[inline]
    pub fn push(&self, frame: &mut Frame, n: usize) -> bool {
        let (addr, len) = (frame.addr(), frame.len());
        let (start, _) = self.bounds(addr);
        let fits = addr as usize - start >= META + n;
        if fits {
            frame.place(addr - n as u64, (len + n) as u32);
        }
        fits
    }

    /// Empties the frame: no data, full headroom.
    #[inline]
    pub fn reset(&self, frame: &mut Frame) {
        let (start, _) = self.bounds(frame.addr());
        frame.place((start + DATA_OFFSET) as u64, 0);
    }

    /// Replaces the packet by a copy of `bytes`. False, and nothing done, when they do not fit the cell.
    #[inline]
    pub fn write(&self, frame: &mut Frame, bytes: &[u8]) -> bool {
        let (start, end) = self.bounds(frame.addr());
        if start + DATA_OFFSET + bytes.len() > end {
            return false;
        }
        frame.place((start + DATA_OFFSET) as u64, bytes.len() as u32);
        self.data_mut(frame).copy_from_slice(bytes);
        true
    }

    /// Replaces the packet by the first `len` bytes of `lines`, copied by whole cache lines: for a source that is
    /// laid out in lines, a short packet costs one fixed-size copy. False, and nothing done, when the lines do not
    /// fit the cell or `len` lies beyond them.
    #[inline]
    pub fn write_lines(&self, frame: &mut Frame, lines: &[Line], len: usize) -> bool {
        let bytes = size_of_val(lines);
        assert!((self.cell_of(frame.addr()) as usize) < self.cells, "frame of another arena");
        let (start, end) = self.bounds(frame.addr());
        if start + DATA_OFFSET + bytes > end || len > bytes {
            return false;
        }
        let addr = (start + DATA_OFFSET) as u64;
        // SAFETY: `bytes` from the data offset of an existing cell or slot lie inside it, which the frame owns
        // exclusively; DATA_OFFSET, cells and the mapping are multiples of a line's alignment; `lines` is outside
        // of the cell, or it could not be borrowed while the frame is.
        unsafe {
            let to: *mut Line = self.map.base.add(addr as usize).cast();
            for (i, line) in lines.iter().enumerate() {
                to.add(i).write(*line);
            }
        }
        frame.place(addr, len as u32);
        true
    }

    /// [`Arena::write_lines`] for a burst: each packet is replaced by its length of its line, at most all of it. The
    /// packets begin at different lines of their cells: at one and the same, those of a burst would meet in two sets
    /// of the L1 cache.
    ///
    /// # Panics
    /// When there are not as many of each, or a frame is another arena's.
    #[inline]
    pub fn write_line_each(&self, frames: &mut [Frame], lines: &[Line], lens: &[u32]) {
        assert!(frames.len() == lines.len() && frames.len() == lens.len(), "one line and one length per frame");
        if self.marks.is_some() {
            // Packets one behind the other begin at different lines anyway.
            for ((frame, line), len) in frames.iter_mut().zip(lines).zip(lens) {
                let fits = self.write_lines(frame, std::slice::from_ref(line), (*len as usize).min(LINE));
                debug_assert!(fits);
            }
            return;
        }
        widest(WriteLines { arena: self, frames, lines, lens });
    }

    #[inline(always)]
    pub(crate) fn checked(&self, frame: &Frame) -> (usize, usize) {
        let (at, len) = (frame.addr() as usize, frame.len());
        assert!(at + len <= self.map.len, "frame of another arena");
        (at, len)
    }
}

/// Bytes of a [`Line`].
const LINE: usize = size_of::<Line>();

struct WriteLines<'a> {
    arena: &'a Arena,
    frames: &'a mut [Frame],
    lines: &'a [Line],
    lens: &'a [u32],
}

impl Wide for WriteLines<'_> {
    type Out = ();

    #[inline(always)]
    fn run(self) {
        let Self { arena, frames, lines, lens } = self;
        let (base, size, inside) = (arena.map.base, arena.size() as u64, arena.cell_size() as u64 - 1);
        // As many lines as lie in any cell: four, eight or sixteen.
        let room = (arena.cell_size() - DATA_OFFSET) / LINE;
        let picks = (1 << room.ilog2().min(4)) * LINE as u64 - LINE as u64;
        for ((frame, line), len) in frames.iter_mut().zip(lines).zip(lens) {
            assert!(frame.addr() < size, "frame of another arena");
            // By the bits from 4 KiB on: those below tell apart sets of the cache by themselves.
            let pick = frame.addr() >> 6 & picks;
            let at = (frame.addr() & !inside) + DATA_OFFSET as u64 + pick;
            // SAFETY: the line lies inside an existing cell, which the frame owns exclusively; its place is a multiple of
            // a line, as is the mapping's; `line` is outside of the cell, or it could not be borrowed while the frame is.
            unsafe { base.add(at as usize).cast::<Line>().write(*line) };
            frame.place(at, (*len).min(LINE as u32));
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn arena(cells: usize, pages: Pages) -> Arc<Arena> {
        Arena::new(ArenaConfig { cells, pages, ..Default::default() }).unwrap()
    }

    #[test]
    fn frames_stay_inside_their_cell() {
        let a = arena(4, Pages::Auto);
        // SAFETY: the only frame of cell 1.
        let mut f = unsafe { a.frame(1) };
        assert!(a.resize(&mut f, a.max_data()));
        assert!(!a.resize(&mut f, a.max_data() + 1));
        assert!(a.push(&mut f, DATA_OFFSET - META));
        assert!(!a.push(&mut f, 1));
        assert_eq!(f.len(), a.cell_size() - META);
        assert_eq!(a.cell_of(f.addr()), 1);
        a.data_mut(&mut f).fill(0xa5);
        a.meta_mut(&mut f).fill(1);
        assert!(a.data(&f).iter().all(|b| *b == 0xa5));
        assert!(!a.write(&mut f, &[0; 1793]));
        assert!(a.write(&mut f, b"bywash"));
        assert_eq!(a.data(&f), b"bywash");
    }

    #[test]
    fn a_line_each_lies_in_its_own_cell() {
        for cell in [512, 1024, 2048, 4096] {
            let a = Arena::new(ArenaConfig { cells: 64, cell, ..Default::default() }).unwrap();
            for n in [0, 1, 7, 8, 9, 64] {
                // SAFETY: the only frames of their cells.
                let mut frames: Vec<Frame> = (0..n).map(|cell| unsafe { a.frame(cell) }).collect();
                frames.iter_mut().for_each(|f| assert!(a.push(f, 100)));
                let lines: Vec<Line> = (0..n).map(|i| Line([i as u8 + 1; 64])).collect();
                let lens: Vec<u32> = (0..n).map(|i| i * 2).collect();
                a.write_line_each(&mut frames, &lines, &lens);
                for (i, f) in frames.iter().enumerate() {
                    assert_eq!(a.cell_of(f.addr()), i as u32);
                    assert_eq!(a.data(f), vec![i as u8 + 1; (2 * i).min(64)]);
                    let offset = f.addr() as usize % cell;
                    assert!(offset.is_multiple_of(64) && (DATA_OFFSET..DATA_OFFSET + 1024).contains(&offset));
                    assert!(offset + 64 <= cell);
                }
            }
        }
    }

    /// As many frames as a worker has under way lie in no more than four ways of a cache with 64 sets.
    #[test]
    fn lines_spread_over_the_sets_of_a_cache() {
        let a = arena(256, Pages::Auto);
        // SAFETY: the only frames of their cells.
        let mut frames: Vec<Frame> = (0..128).map(|cell| unsafe { a.frame(cell) }).collect();
        a.write_line_each(&mut frames, &vec![Line([1; 64]); 128], &[60; 128]);
        let mut sets = [0; 64];
        frames.iter().for_each(|f| sets[f.addr() as usize / 64 % 64] += 1);
        assert!(sets.iter().all(|lines| *lines <= 4), "{sets:?}");
    }

    #[test]
    fn lines_are_written_whole_and_stay_inside_their_cell() {
        let a = arena(4, Pages::Auto);
        // SAFETY: the only frames of their cells.
        let (mut f, mut next) = unsafe { (a.frame(1), a.frame(2)) };
        assert!(a.write(&mut next, &[7; 1792]));
        a.meta_mut(&mut next).fill(7);
        let mut bytes = [0u8; 29 * 64];
        bytes.iter_mut().enumerate().for_each(|(i, b)| *b = (i % 251) as u8);
        let lines: Vec<Line> = bytes.chunks(64).map(|c| Line(c.try_into().unwrap())).collect();
        for n in 0..=29usize {
            for len in [0, n * 64, (n * 64).saturating_sub(4), n * 64 + 1] {
                assert!(a.write(&mut f, b"before"));
                a.push(&mut f, 20);
                let fits = n <= 28 && len <= n * 64;
                assert_eq!(a.write_lines(&mut f, &lines[..n], len), fits, "{n} lines, {len} bytes");
                if fits {
                    assert_eq!(a.data(&f), &bytes[..len]);
                    assert_eq!(f.addr() as usize, 2048 + DATA_OFFSET);
                } else {
                    assert_eq!(f.len(), 26);
                }
            }
        }
        assert!(a.data(&next).iter().all(|b| *b == 7));
        assert!(a.meta_mut(&mut next).iter().all(|b| *b == 7));
    }

    #[test]
    fn small_pages_are_small_and_sizes_are_checked() {
        assert_eq!(arena(16, Pages::Small).pages(), PageKind::Small);
        assert!(matches!(
            Arena::new(ArenaConfig { cell: 1000, ..Default::default() }),
            Err(ArenaError::CellSize(1000))
        ));
        assert!(matches!(Arena::new(ArenaConfig { cells: 0, ..Default::default() }), Err(ArenaError::Cells(0))));
        let too_large = Arena::new(ArenaConfig { cells: 1 << 31, pages: Pages::Small, ..Default::default() });
        let why = too_large.err().unwrap().to_string();
        assert!(why.contains("cannot map 4194304 MiB") && why.contains("MiB of memory are available"), "{why}");
    }
}
