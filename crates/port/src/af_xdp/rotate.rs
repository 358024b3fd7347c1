//! Measurement of the program's run time, over packets to many destinations.

use super::load::{chain, loader};
use super::map::Map;
use super::test_run::TestRun;
use super::user_program::data;
use super::{Error, XdpDatapath};
use aya::maps::Array;
use aya::programs::{ProgramFd, Xdp};
use std::os::fd::{AsFd, BorrowedFd};

static OBJECT: &[u8] = aya::include_bytes_aligned!("../../xdp/rotate.bpf.o");

/// Bytes at the start of a frame that differ from packet to packet.
pub const HEAD: usize = 64;
/// Maximum number of frames in a rotation.
pub const HEADS: usize = 4096;

/// Result of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timed {
    /// Nanoseconds per packet, including the exchange of its head.
    pub whole: u32,
    /// Nanoseconds per packet of that exchange alone.
    pub empty: u32,
    /// Verdict of the program's last run.
    pub verdict: u32,
}

impl XdpDatapath {
    /// Runs the program `repeat` times over the frames in turn and returns the mean time; see
    /// [`XdpDatapath::try_frame`].
    ///
    /// # Errors
    /// [`Error::TestRun`] with the kernel's reason.
    pub fn time(&self, ifindex: u32, frames: &[[u8; HEAD]], repeat: u32) -> Result<Timed, Error> {
        let failed = |e: &dyn std::error::Error| Error::TestRun(chain(e));
        let missing = || Error::TestRun("the object lacks a program or a map".into());
        let mut ebpf = loader().load(OBJECT).map_err(|e| failed(&e))?;
        let mut heads: Array<_, [u64; HEAD / 8]> =
            ebpf.take_map("heads").ok_or_else(missing)?.try_into().map_err(|e: aya::maps::MapError| failed(&e))?;
        for (i, frame) in frames.iter().enumerate() {
            let words: [u64; HEAD / 8] =
                std::array::from_fn(|n| u64::from_ne_bytes(std::array::from_fn(|b| frame[8 * n + b])));
            heads.set(i as u32, words, 0).map_err(|e| failed(&e))?;
        }
        let mut cursor: Array<_, u32> =
            ebpf.take_map("cursor").ok_or_else(missing)?.try_into().map_err(|e: aya::maps::MapError| failed(&e))?;
        cursor.set(1, frames.len() as u32, 0).map_err(|e| failed(&e))?;
        let measured = ebpf.map("measured").and_then(data).ok_or_else(missing)?.fd().as_fd().try_clone_to_owned();
        let measured = Map::new(measured.map_err(|e| failed(&e))?).map_err(|e| failed(&e))?;
        let mut load = |name: &str| -> Result<ProgramFd, Error> {
            let program = ebpf.program_mut(name).ok_or_else(missing)?;
            let xdp: &mut Xdp = program.try_into().map_err(|e: aya::programs::ProgramError| failed(&e))?;
            xdp.load().map_err(|e| failed(&e))?;
            xdp.fd().map_err(|e| failed(&e))?.try_clone().map_err(|e| failed(&e))
        };
        let (rotate, nothing) = (load("rotate")?, load("nothing")?);
        let inner = self.lock();
        let context = [0, HEAD as u32, 0, ifindex, 0, 0];
        let run =
            TestRun { program: rotate.as_fd(), data: &[0; HEAD], context: &context, repeat, flags: 0, batch_size: 0 };
        let time = |program: BorrowedFd<'_>| {
            measured.put(0, program).map_err(|e| failed(&e))?;
            run.run_into(&mut []).map_err(|e| failed(&e))
        };
        let empty = time(nothing.as_fd())?.nanoseconds;
        let ran = time(inner.xdp.as_fd())?;
        Ok(Timed { whole: ran.nanoseconds, empty, verdict: ran.verdict })
    }
}
