//! The frame: the exclusive right to one cell.

/// A frame's fields as they travel in a ring: the layout of the kernel's `struct xdp_desc` (linux/if_xdp.h).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RawFrame {
    /// Offset of the first data byte from the arena's start.
    pub addr: u64,
    /// Length of the data in bytes.
    pub len: u32,
    /// The kernel's descriptor options; zero in a frame at rest.
    pub options: u32,
}

/// The exclusive, move-only right to one cell of an arena, with the place of the packet in it.
///
/// A frame that is dropped instead of freed is lost to its pool until the program ends; the conservation audit
/// reports it. Frames carry no reference to their arena: they belong to the one they came from.
#[repr(transparent)]
#[must_use = "a dropped frame is a leaked cell"]
#[derive(Debug)]
pub struct Frame(RawFrame);

impl Frame {
    /// Makes a frame from a descriptor.
    ///
    /// # Safety
    /// The cell that `raw` points into has no other frame, and `raw.addr..raw.addr + raw.len` lies inside that
    /// cell, behind its metadata area.
    #[inline]
    pub unsafe fn from_raw(raw: RawFrame) -> Self {
        Self(raw)
    }

    /// Gives the frame away as a descriptor: to a kernel ring, or a device.
    #[inline]
    pub fn into_raw(self) -> RawFrame {
        self.0
    }

    /// The descriptor, for looking only.
    #[inline]
    pub fn raw(&self) -> RawFrame {
        self.0
    }

    /// Offset of the data in the arena, in bytes.
    #[inline]
    pub fn addr(&self) -> u64 {
        self.0.addr
    }

    /// Length of the data in bytes.
    #[inline]
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.0.len as usize
    }

    /// Shortens the data to `len` bytes; longer than it is, nothing happens.
    #[inline]
    pub fn truncate(&mut self, len: usize) {
        if len < self.len() {
            self.0.len = len as u32;
        }
    }

    /// Removes up to `n` bytes from the front.
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
