//! The frame: the exclusive right to one cell.

/// A frame's fields as they travel in a ring: the layout of the kernel's `struct xdp_desc` (linux/if_xdp.h).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RawFrame {
    /// Offset of the first data byte from the arena's start.
    pub addr: u64,
    /// Length of the data in bytes.
    pub len: u32,
    /// Descriptor options of the kernel; zero in a frame that is not in a ring.
    pub options: u32,
}

/// Exclusive, move-only right to one cell of an arena, with the position of the packet in it.
///
/// A frame that is dropped instead of freed is lost to its pool until the program ends; the conservation audit reports
/// it. A frame has no reference to its arena and must only be used with the one it came from.
#[repr(transparent)]
#[must_use = "a dropped frame is a leaked cell"]
#[derive(Debug)]
pub struct Frame(RawFrame);

impl Frame {
    /// Creates a frame from a descriptor.
    ///
    /// # Safety
    /// The cell that `raw` points into has no other frame, and `raw.addr..raw.addr + raw.len` lies inside that
    /// cell, behind its metadata area.
    #[inline]
    pub unsafe fn from_raw(raw: RawFrame) -> Self {
        Self(raw)
    }

    /// Converts the frame into a descriptor and passes ownership on, to a kernel ring or a device.
    #[inline]
    pub fn into_raw(self) -> RawFrame {
        self.0
    }

    /// Returns the descriptor for inspection; ownership stays with the frame.
    #[inline]
    pub fn raw(&self) -> RawFrame {
        self.0
    }

    /// Returns the offset of the data in the arena, in bytes.
    #[inline]
    pub fn addr(&self) -> u64 {
        self.0.addr
    }

    /// Returns the length of the data in bytes.
    #[inline]
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.0.len as usize
    }

    /// Shortens the data to `len` bytes. Does nothing if it is already that short.
    #[inline]
    pub fn truncate(&mut self, len: usize) {
        if len < self.len() {
            self.0.len = len as u32;
        }
    }

    /// Removes up to `n` bytes from the front of the data.
    #[inline]
    pub fn pull(&mut self, n: usize) {
        let n = n.min(self.len());
        self.0.addr += n as u64;
        self.0.len -= n as u32;
    }

    #[inline]
    pub(crate) fn place(&mut self, addr: u64, len: u32) {
        self.0.addr = addr;
        self.0.len = len;
    }
}
