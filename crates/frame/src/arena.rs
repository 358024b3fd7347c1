//! The arena: one mapping divided into cells.

use crate::marks::{LINE_SHIFT, Marks};
use crate::pages::{HUGE, Mapping, SMALL};
use crate::{DATA_OFFSET, Frame, META, PageKind, Pages, RawFrame};
use bywash_sync::wide::{Wide, widest};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

/// A cache line of packet bytes, for [`Arena::write_lines`].
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub struct Line(pub [u8; 64]);

/// Configuration of an [`Arena`].
#[derive(Clone, Debug)]
pub struct ArenaConfig {
    /// Number of cells.
    pub cells: usize,
    /// Cell size in bytes: 2048 or 4096 (the chunk sizes that AF_XDP accepts); 16384 for frames longer than a chunk; or
    /// 512 or 1024 for short frames only, with several cells per chunk.
    pub cell: usize,
    /// Page size to request.
    pub pages: Pages,
    /// NUMA node to bind the memory to. If `None`, pages are placed by first touch.
    pub node: Option<u32>,
    /// Cells hold several packets, each in as many cache lines as it needs. Required by, and only valid for, pools of
    /// kind `typewriter`.
    pub packed: bool,
}

impl Default for ArenaConfig {
    fn default() -> Self {
        Self { cells: 16384, cell: 2048, pages: Pages::Auto, node: None, packed: false }
    }
}

/// Error from [`Arena::new`].
#[derive(Debug, thiserror::Error)]
pub enum ArenaError {
    /// Cell size not supported.
    #[error("invalid cell size {0}: must be 512, 1024, 2048 or 4096 bytes, or 16384 if a cell holds one packet")]
    CellSize(usize),
    /// No cells, or more than a 32-bit index can address.
    #[error("invalid number of cells {0}: must be from 1 to {max}", max = u32::MAX)]
    Cells(usize),
    /// The kernel refused to map the memory.
    #[error("cannot map {mib} MiB of {kind} pages for the arena: {source}")]
    Map {
        /// Requested size in MiB.
        mib: usize,
        /// Page kind that failed.
        kind: PageKind,
        /// Error returned by the kernel.
        source: std::io::Error,
    },
    /// The memory could not be bound to the NUMA node.
    #[error("cannot bind the arena to NUMA node {node}: {source}")]
    Bind {
        /// Requested node.
        node: u32,
        /// Error returned by the kernel.
        source: std::io::Error,
    },
}

/// One shared mapping per process, divided into cells. It is a memfd, so that it can be passed to another process. It
/// is the UMEM of every AF_XDP socket and the region of every memif, so that a frame can move between any two ports
/// without a copy.
///
/// A cell consists of `META` bytes of metadata, headroom up to `DATA_OFFSET`, and data. In a packed arena a cell may be
/// divided into several slots with this layout.
///
/// # Thread-safety
/// Shared by all workers. Memory is reached only through a [`Frame`], which is exclusive. A frame does not know its
/// arena: a process with several must not give one's frames to ports, pools or functions of another.
pub struct Arena {
    map: Mapping,
    cells: usize,
    shift: u32,
    /// Slot boundaries of a packed arena. If `None`, every cell is one slot.
    marks: Option<Arc<Marks>>,
}

// SAFETY: the mapping lives as long as the arena; its bytes are reached only through exclusive frames.
unsafe impl Send for Arena {}
// SAFETY: as for `Send`.
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
        // Lines of a packed arena are numbered with 32 bits, too.
        if packed && cells > u32::MAX as usize >> (cell.trailing_zeros() - LINE_SHIFT) {
            return Err(ArenaError::Cells(cells));
        }
        let len = cells.checked_mul(cell).ok_or(ArenaError::Cells(cells))?;
        let map =
            Mapping::new(len, pages).map_err(|(kind, source)| ArenaError::Map { mib: len >> 20, kind, source })?;
        let shift = cell.trailing_zeros();
        let arena = Self { map, cells, shift, marks: packed.then(|| Arc::new(Marks::new(cells, shift))) };
        if let Some(node) = node {
            arena.bind(0, cells, node).map_err(|source| ArenaError::Bind { node, source })?;
        }
        Ok(Arc::new(arena))
    }

    /// Binds the memory of `cells` cells from `first` on to a NUMA node, in whole pages: a page belongs to the cell at
    /// its start.
    pub(crate) fn bind(&self, first: usize, cells: usize, node: u32) -> std::io::Result<()> {
        const MPOL_BIND: i32 = 2;
        const MPOL_MF_MOVE: u32 = 2;
        if node >= 64 {
            return Err(std::io::Error::from_raw_os_error(libc::EINVAL));
        }
        let mask: u64 = 1 << node;
        let page = if self.map.kind == PageKind::Small { SMALL } else { HUGE };
        // The mapping is a multiple of large pages, so that the end stays inside.
        let [start, end] = [first, first + cells].map(|cell| (cell << self.shift).next_multiple_of(page));
        if start == end {
            return Ok(());
        }
        // SAFETY: mbind(2) on our own mapping; the mask outlives the call.
        let rc = unsafe {
            libc::syscall(
                libc::SYS_mbind,
                self.map.base.add(start),
                end - start,
                MPOL_BIND,
                &raw const mask,
                65usize,
                MPOL_MF_MOVE,
            )
        };
        if rc == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    }

    /// Returns the number of cells.
    pub fn cells(&self) -> usize {
        self.cells
    }

    /// Returns the cell size in bytes.
    pub fn cell_size(&self) -> usize {
        1 << self.shift
    }

    /// Returns the most packet bytes that fit one cell without using its headroom.
    pub fn max_data(&self) -> usize {
        self.cell_size() - DATA_OFFSET
    }

    /// Returns the number of bytes mapped: at least `cells * cell_size`, a multiple of 2 MiB.
    pub fn mapped(&self) -> usize {
        self.map.len
    }

    /// Returns the number of bytes covered by cells: the length to register as UMEM.
    pub fn size(&self) -> usize {
        self.cells << self.shift
    }

    /// Returns the start of the mapping, for registering it with the kernel or a device. Access through this pointer is
    /// sound only within cells whose frames the caller holds.
    pub fn base(&self) -> *mut u8 {
        self.map.base
    }

    /// Returns the mapping's file descriptor, to pass to another process.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.map.fd.as_fd()
    }

    /// Returns the kind of pages that the mapping uses.
    pub fn pages(&self) -> PageKind {
        self.map.kind
    }

    /// Returns why larger pages could not be used; empty if they were used or not requested.
    pub fn pages_note(&self) -> &str {
        &self.map.note
    }

    /// Returns the index of the cell that contains `addr`.
    #[inline]
    pub fn cell_of(&self, addr: u64) -> u32 {
        (addr >> self.shift) as u32
    }

    /// Returns the offset of the start of `cell` in bytes.
    #[inline]
    pub fn cell_addr(&self, cell: u32) -> u64 {
        u64::from(cell) << self.shift
    }

    /// Returns whether a cell may hold several packets.
    pub fn packed(&self) -> bool {
        self.marks.is_some()
    }

    /// Returns the slot boundaries of a packed arena.
    pub(crate) fn marks(&self) -> Option<&Arc<Marks>> {
        self.marks.as_ref()
    }

    /// Returns the unit by which pools identify the frame at `addr`: its cell index or, in a packed arena, the index of
    /// its slot's first line.
    #[inline]
    pub(crate) fn unit_of(&self, addr: u64) -> u32 {
        match &self.marks {
            None => self.cell_of(Self::inside(addr)),
            Some(marks) => u32::try_from(Self::slot(marks, addr).0).unwrap_or(u32::MAX),
        }
    }

    /// Writes the unit of each address (see [`Arena::unit_of`]) to `units`.
    #[inline]
    pub(crate) fn units_of(&self, addrs: impl Iterator<Item = u64>, units: &mut [u32]) {
        let pairs = units.iter_mut().zip(addrs);
        // Two loops: the usual one has no branch.
        match &self.marks {
            None => pairs.for_each(|(unit, addr)| *unit = self.cell_of(Self::inside(addr))),
            Some(_) => pairs.for_each(|(unit, addr)| *unit = self.unit_of(addr)),
        }
    }

    /// Returns a fresh, empty frame for `unit` (see [`Arena::unit_of`]).
    ///
    /// # Safety
    /// `unit` has no other frame.
    #[inline]
    pub(crate) unsafe fn frame_of(&self, unit: u32) -> Frame {
        match &self.marks {
            // SAFETY: upheld by the caller.
            None => unsafe { self.frame(unit) },
            Some(_) => {
                let addr = (u64::from(unit) << LINE_SHIFT) + DATA_OFFSET as u64;
                // SAFETY: the caller vouches for exclusiveness; the address is right behind the headroom.
                unsafe { Frame::from_raw(RawFrame { addr, len: 0, options: 0 }) }
            }
        }
    }

    /// Returns the byte before the data of the frame at `addr`. Data lie behind metadata, so it belongs to the frame's
    /// cell or slot even if the frame is empty and `addr` is the cell's end.
    #[inline(always)]
    fn inside(addr: u64) -> u64 {
        addr.wrapping_sub(1)
    }

    /// Returns the slot of the frame at `addr` as a range of lines.
    #[inline]
    fn slot(marks: &Marks, addr: u64) -> (u64, u64) {
        marks.around(Self::inside(addr) >> LINE_SHIFT)
    }

    /// Returns the byte range of the frame at `addr`: from the start of its metadata to the end of its data area.
    #[inline]
    fn bounds(&self, addr: u64) -> (usize, usize) {
        match &self.marks {
            None => {
                let start = Self::inside(addr) as usize >> self.shift << self.shift;
                (start, start + self.cell_size())
            }
            Some(marks) => {
                let (start, end) = Self::slot(marks, addr);
                ((start as usize) << LINE_SHIFT, (end as usize) << LINE_SHIFT)
            }
        }
    }

    /// Returns a fresh, empty frame for `cell`.
    ///
    /// # Safety
    /// `cell` has no other frame.
    #[inline]
    pub unsafe fn frame(&self, cell: u32) -> Frame {
        debug_assert!((cell as usize) < self.cells);
        let addr = self.cell_addr(cell) + DATA_OFFSET as u64;
        // SAFETY: the caller vouches for exclusiveness; the address is right behind the headroom.
        unsafe { Frame::from_raw(RawFrame { addr, len: 0, options: 0 }) }
    }

    /// Returns the packet's bytes.
    #[inline]
    pub fn data<'a>(&'a self, frame: &'a Frame) -> &'a [u8] {
        let (at, len) = self.checked(frame);
        // SAFETY: in bounds, and the frame is exclusive: nobody writes while it is borrowed.
        unsafe { std::slice::from_raw_parts(self.map.base.add(at), len) }
    }

    /// Returns the packet's bytes, mutable.
    #[inline]
    #[allow(clippy::mut_from_ref)]
    pub fn data_mut<'a>(&'a self, frame: &'a mut Frame) -> &'a mut [u8] {
        let (at, len) = self.checked(frame);
        // SAFETY: in bounds, and the frame is exclusively borrowed.
        unsafe { std::slice::from_raw_parts_mut(self.map.base.add(at), len) }
    }

    /// Returns the cell's metadata area. It holds whatever was last written there, possibly by another owner of the
    /// cell.
    #[inline]
    #[allow(clippy::mut_from_ref)]
    pub fn meta_mut<'a>(&'a self, frame: &'a mut Frame) -> &'a mut [u8; META] {
        self.checked(frame);
        let (start, _) = self.bounds(frame.addr());
        // SAFETY: the first META bytes of a cell, or slot, lie in the mapping and belong to the frame, exclusively
        // borrowed.
        unsafe { &mut *self.map.base.add(start).cast() }
    }

    /// Returns the packet's first `N` bytes; `None` if it is shorter.
    #[inline(always)]
    pub fn head<'a, const N: usize>(&'a self, frame: &'a Frame) -> Option<&'a [u8; N]> {
        let (at, len) = self.checked(frame);
        // SAFETY: in bounds as far as the packet goes, and the frame is exclusive: nobody writes while it is borrowed.
        (len >= N).then(|| unsafe { &*self.map.base.add(at).cast() })
    }

    /// Returns the packet's first `N` bytes, mutable; `None` if it is shorter.
    #[inline(always)]
    #[allow(clippy::mut_from_ref)]
    pub fn head_mut<'a, const N: usize>(&'a self, frame: &'a mut Frame) -> Option<&'a mut [u8; N]> {
        let (at, len) = self.checked(frame);
        // SAFETY: in bounds as far as the packet goes, and the frame is exclusively borrowed.
        (len >= N).then(|| unsafe { &mut *self.map.base.add(at).cast() })
    }

    /// Prefetches the first cache line of the packet.
    #[inline]
    pub fn prefetch(&self, frame: &Frame) {
        bywash_sync::hint::prefetch_at(self.map.base.wrapping_add(frame.addr() as usize));
    }

    /// Sets the packet's length to `len` bytes without moving its start. Returns false and changes nothing if the cell
    /// has no room for it. Added bytes hold stale data.
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

    /// Adds `n` bytes in front of the packet. Returns false and changes nothing if the headroom is too small.
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

    /// Resets the frame to no data and full headroom.
    #[inline]
    pub fn reset(&self, frame: &mut Frame) {
        let (start, _) = self.bounds(frame.addr());
        frame.place((start + DATA_OFFSET) as u64, 0);
    }

    /// Replaces the packet with a copy of `bytes`. Returns false and changes nothing if they do not fit the cell.
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

    /// Replaces the packet with the first `len` bytes of `lines`, copying whole cache lines: if the source is laid out
    /// in lines, a short packet costs one fixed-size copy. Returns false and changes nothing if the lines do not fit
    /// the cell or `len` exceeds them.
    #[inline]
    pub fn write_lines(&self, frame: &mut Frame, lines: &[Line], len: usize) -> bool {
        let bytes = size_of_val(lines);
        assert!(frame.addr() <= self.size() as u64, "frame of another arena");
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

    /// Performs [`Arena::write_lines`] for a burst: replaces each packet with the first bytes of its line, as many as
    /// its length says, at most the whole line. Packets start at different lines of their cells: at the same offset, a
    /// burst would compete for two sets of the L1 cache.
    ///
    /// # Panics
    /// If the three slices differ in length, or a frame belongs to another arena.
    #[inline]
    pub fn write_line_each(&self, frames: &mut [Frame], lines: &[Line], lens: &[u32]) {
        assert!(frames.len() == lines.len() && frames.len() == lens.len(), "one line and one length per frame");
        if self.marks.is_some() {
            // Consecutive packets of a packed arena start at different lines anyway.
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

/// Size of a [`Line`] in bytes.
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
        // Number of start lines that fit any cell: four, eight or sixteen.
        let room = (arena.cell_size() - DATA_OFFSET) / LINE;
        let picks = (1 << room.ilog2().min(4)) * LINE as u64 - LINE as u64;
        for ((frame, line), len) in frames.iter_mut().zip(lines).zip(lens) {
            let addr = Arena::inside(frame.addr());
            assert!(addr < size, "frame of another arena");
            // Choose by the address bits from 4 KiB up: the lower ones already select the cache set.
            let pick = addr >> 6 & picks;
            let at = (addr & !inside) + DATA_OFFSET as u64 + pick;
            // SAFETY: the line lies inside an existing cell, which the frame owns exclusively; its address is a
            // multiple of a line, as is the mapping's; `line` is outside the cell, or it could not be borrowed while
            // the frame is.
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
    fn an_empty_frame_at_the_end_of_its_cell_stays_there() {
        let a = arena(2, Pages::Auto);
        // SAFETY: the only frames of their cells.
        let mut frames = unsafe { [a.frame(0), a.frame(1)] };
        for (cell, frame) in frames.iter_mut().enumerate() {
            let to_end = |frame: &mut Frame| {
                assert!(a.write(frame, &[7; 1792]));
                frame.pull(1792);
                assert_eq!(frame.raw(), RawFrame { addr: (cell as u64 + 1) * 2048, len: 0, options: 0 });
                let mut unit = [9];
                a.units_of(std::iter::once(frame.addr()), &mut unit);
                assert_eq!((a.unit_of(frame.addr()), unit), (cell as u32, [cell as u32]));
                assert!(a.data(frame).is_empty() && a.head::<1>(frame).is_none());
                cell as u64 * 2048
            };
            let start = to_end(frame);
            assert!(!a.resize(frame, 1) && a.resize(frame, 0));
            let meta: *const _ = a.meta_mut(frame);
            assert_eq!(meta as usize, a.base() as usize + start as usize);
            assert!(a.push(frame, 1792) && !a.push(frame, 1 + DATA_OFFSET - META));
            assert_eq!(a.data(frame), [7; 1792]);
            to_end(frame);
            a.reset(frame);
            assert_eq!(frame.addr(), start + DATA_OFFSET as u64);
            to_end(frame);
            assert!(a.write_lines(frame, &[Line([1; 64])], 1));
            assert_eq!((frame.addr(), a.data(frame)), (start + DATA_OFFSET as u64, &[1][..]));
            to_end(frame);
            a.write_line_each(std::slice::from_mut(frame), &[Line([2; 64])], &[64]);
            assert_eq!((frame.addr() / 2048 * 2048, a.data(frame)), (start, &[2; 64][..]));
        }
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

    /// As many frames as a worker has in flight occupy no more than four ways of a cache with 64 sets.
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

    /// The mapping's policies, as the kernel shows them. On a machine with one node, that node is 0.
    #[test]
    fn the_pages_that_begin_in_a_range_of_cells_are_bound() {
        let a = arena(1024, Pages::Small);
        a.bind(3, 6, 0).unwrap();
        a.bind(9, 0, 0).unwrap();
        let maps = std::fs::read_to_string("/proc/self/numa_maps").unwrap();
        let policy = |offset: usize| {
            let at = format!("{:x} ", a.base() as usize + offset);
            maps.lines().find_map(|line| line.strip_prefix(&at)).and_then(|line| line.split(' ').next())
        };
        // Cell 3 begins in the second page, and cell 8 the fifth.
        let expected = [Some("default"), Some("bind:0"), Some("default")];
        assert_eq!([0, 8192, 20480].map(policy), expected, "{maps}");
        assert!(a.bind(0, 1024, 63).is_err() && a.bind(0, 1024, 64).is_err());
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
