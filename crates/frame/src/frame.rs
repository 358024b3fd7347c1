//! The frame: the exclusive right to one cell.

/// A frame's fields as they travel in a ring: the layout of the kernel's `struct xdp_desc` (linux/if_xdp.h).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RawFrame {
    /// Offset of the first data byte from the arena's start.
    pub addr: u64,
    /// Length of the data in bytes.
    pub len: u32,
    /// Descriptor options of the kernel. In a frame that is not in a ring, zero or [`RawFrame::NOTED`].
    pub options: u32,
}

impl RawFrame {
    /// In `options` of a frame: the device that received the frame has recorded its address and length, which are still
    /// the same, and need not record them again to send it. Cleared by whatever moves the data or changes their length,
    /// and not part of a descriptor. Set by DPDK's ports.
    pub const NOTED: u32 = 1 << 31;
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
    /// `raw.addr..raw.addr + raw.len` lies in one cell, behind its metadata area, and the cell has no other frame.
    /// `raw.options` is zero; it may be [`RawFrame::NOTED`] only if the device's record of the address and length is
    /// still correct.
    #[inline]
    pub unsafe fn from_raw(raw: RawFrame) -> Self {
        // SAFETY: the arena gives access to the bytes of a frame without further checks. By contract they are in one
        // cell, and nobody else has access to it.
        Self(raw)
    }

    /// Converts the frame into a descriptor without options and passes ownership on, to a kernel ring or a device.
    #[inline]
    pub fn into_raw(self) -> RawFrame {
        self.raw()
    }

    /// Returns the descriptor, without options, for inspection; ownership stays with the frame.
    #[inline]
    pub fn raw(&self) -> RawFrame {
        RawFrame { options: 0, ..self.0 }
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
            self.place(self.0.addr, len as u32);
        }
    }

    /// Removes up to `n` bytes from the front of the data.
    #[inline]
    pub fn pull(&mut self, n: usize) {
        let n = n.min(self.len());
        self.place(self.0.addr + n as u64, self.0.len - n as u32);
    }

    #[inline]
    pub(crate) fn place(&mut self, addr: u64, len: u32) {
        self.0 = RawFrame { addr, len, options: 0 };
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::{Arena, ArenaConfig, Line};

    #[test]
    fn what_a_device_noted_ends_with_any_change() {
        let arena = Arena::new(ArenaConfig { cells: 1, ..Default::default() }).unwrap();
        let noted = || {
            // SAFETY: one at a time, of the arena's only cell.
            unsafe { Frame::from_raw(RawFrame { addr: 256, len: 100, options: RawFrame::NOTED }) }
        };
        type Change<'a> = &'a dyn Fn(&mut Frame);
        let changes: [(&str, Change<'_>); 7] = [
            ("truncate", &|frame| frame.truncate(50)),
            ("pull", &|frame| frame.pull(1)),
            ("push", &|frame| assert!(arena.push(frame, 1))),
            ("resize", &|frame| assert!(arena.resize(frame, 101))),
            ("reset", &|frame| arena.reset(frame)),
            ("write", &|frame| assert!(arena.write(frame, &[1; 100]))),
            ("write_lines", &|frame| assert!(arena.write_lines(frame, &[Line([1; 64]); 2], 100))),
        ];
        for (name, change) in changes {
            let mut frame = noted();
            arena.data_mut(&mut frame).fill(1);
            frame.truncate(100);
            assert_eq!(frame.0.options, RawFrame::NOTED, "bytes and length are as they were");
            assert_eq!(frame.raw().options, 0, "a descriptor has no options");
            change(&mut frame);
            assert_eq!(frame.0.options, 0, "{name}");
            let _ = frame.into_raw();
        }
        assert_eq!(noted().into_raw(), RawFrame { addr: 256, len: 100, options: 0 });
    }
}
