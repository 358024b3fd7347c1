//! Instructions of a running thread, counted without hardware counters: the thread runs one instruction at a time, by
//! `ptrace`, and whenever it reads the time-stamp counter, it gets the number of instructions so far instead.
//!
//! A program that measures its stages in ticks of that counter measures them in instructions while it is stepped. It is
//! the same program on the same processor, with the same vector instructions, but some ten thousand times slower.

use nix::errno::Errno;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::ptrace;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;

/// Error from [`Stepper`].
#[derive(Debug, thiserror::Error)]
pub enum StepError {
    /// The kernel refused.
    #[error(
        "cannot step thread {thread}: {errno}; being root, or kernel.yama.ptrace_scope = 0 for one's own threads, is \
         required, and no debugger may be attached"
    )]
    Refused {
        /// Thread.
        thread: i32,
        /// Error number of `ptrace`.
        errno: Errno,
    },
    /// The thread ended meanwhile.
    #[error("thread {0} ended while it was stepped")]
    Ended(i32),
    /// The addresses of the program are not known.
    #[error("cannot read the memory map of thread {thread}: {error}")]
    Map {
        /// Thread.
        thread: i32,
        /// Error of the file in `/proc`.
        error: std::io::Error,
    },
}

/// Thread that is stopped, to run one instruction at a time. Runs on when this is dropped.
pub struct Stepper {
    thread: Pid,
    /// Value of the time-stamp counter for the thread.
    clock: u64,
    /// Addresses of the program's own code. The kernel's clock functions, outside of it, read the counter, too.
    code: Vec<Range<u64>>,
    /// Set if the instruction at an address reads the time-stamp counter.
    reads: HashMap<u64, bool>,
    /// Signal to deliver with the next step.
    signal: Option<Signal>,
}

impl Stepper {
    /// Stops a thread of another process. `clock` returns the value of the time-stamp counter; the thread's own goes on
    /// from there, so that it is called once the thread has stopped.
    ///
    /// # Errors
    /// If the thread may not be traced, or ends.
    pub fn attach(thread: i32, clock: impl FnOnce() -> u64) -> Result<Self, StepError> {
        let refused = |errno| StepError::Refused { thread, errno };
        let code = code(thread).map_err(|error| StepError::Map { thread, error })?;
        let pid = Pid::from_raw(thread);
        ptrace::seize(pid, ptrace::Options::empty()).map_err(refused)?;
        let mut this = Self { thread: pid, clock: 0, code, reads: HashMap::new(), signal: None };
        ptrace::interrupt(pid).map_err(refused)?;
        this.wait()?;
        this.clock = clock();
        // On the thread's CPU, where the two follow each other without waking another CPU: several times as fast.
        if let Some(cpu) = cpu(thread) {
            let mut set = CpuSet::new();
            // Ignored on failure: stepping works on any CPU.
            let _ = set.set(cpu).and_then(|()| sched_setaffinity(Pid::from_raw(0), &set));
        }
        Ok(this)
    }

    /// Runs this many instructions of the thread.
    ///
    /// # Errors
    /// If the thread ends.
    pub fn step(&mut self, instructions: u64) -> Result<(), StepError> {
        let thread = self.thread;
        let ended = |_| StepError::Ended(thread.as_raw());
        let mut registers = ptrace::getregs(thread).map_err(ended)?;
        for _ in 0..instructions {
            let read = self.reads_counter(registers.rip);
            ptrace::step(thread, self.signal.take()).map_err(ended)?;
            self.wait()?;
            self.clock += 1;
            registers = ptrace::getregs(thread).map_err(ended)?;
            if read {
                (registers.rax, registers.rdx) = (self.clock & 0xffff_ffff, self.clock >> 32);
                ptrace::setregs(thread, registers).map_err(ended)?;
            }
        }
        Ok(())
    }

    /// Waits until the thread has stopped.
    fn wait(&mut self) -> Result<(), StepError> {
        let ended = StepError::Ended(self.thread.as_raw());
        loop {
            match waitpid(self.thread, Some(WaitPidFlag::__WALL)) {
                Ok(WaitStatus::Stopped(_, Signal::SIGTRAP) | WaitStatus::PtraceEvent(..)) => return Ok(()),
                Ok(WaitStatus::Stopped(_, signal)) => {
                    self.signal = Some(signal);
                    return Ok(());
                }
                Ok(WaitStatus::Exited(..) | WaitStatus::Signaled(..)) => return Err(ended),
                Ok(_) | Err(Errno::EINTR) => {}
                Err(_) => return Err(ended),
            }
        }
    }

    /// Returns whether the instruction at `address` is RDTSC or RDTSCP of the program's own code.
    fn reads_counter(&mut self, address: u64) -> bool {
        let Self { thread, code, reads, .. } = self;
        *reads.entry(address).or_insert_with(|| {
            let bytes = ptrace::read(*thread, address as ptrace::AddressType).unwrap_or_default().to_le_bytes();
            code.iter().any(|range| range.contains(&address))
                && (bytes.starts_with(&[0x0f, 0x31]) || bytes.starts_with(&[0x0f, 0x01, 0xf9]))
        })
    }
}

impl Drop for Stepper {
    fn drop(&mut self) {
        // A thread that ended needs nothing more.
        let _ = ptrace::detach(self.thread, self.signal.take());
    }
}

/// Returns the ranges of addresses of a thread's program, as `/proc/THREAD/maps` has them (proc_pid_maps(5)).
fn code(thread: i32) -> std::io::Result<Vec<Range<u64>>> {
    let dir = Path::new("/proc").join(thread.to_string());
    let program = std::fs::read_link(dir.join("exe"))?;
    let program = program.to_string_lossy();
    let of_line = |line: &str| {
        let (range, rest) = line.split_once(' ')?;
        let (from, to) = range.split_once('-')?;
        let address = |text| u64::from_str_radix(text, 16).ok();
        (rest.get(2..3) == Some("x") && rest.ends_with(&*program)).then_some(address(from)?..address(to)?)
    };
    Ok(std::fs::read_to_string(dir.join("maps"))?.lines().filter_map(of_line).collect())
}

/// Returns the CPU on which a thread ran last, as `/proc/THREAD/stat` has it (proc_pid_stat(5), field 39).
fn cpu(thread: i32) -> Option<usize> {
    let stat = std::fs::read_to_string(Path::new("/proc").join(thread.to_string()).join("stat")).ok()?;
    // The second field, a name in parentheses, may contain spaces.
    stat.rsplit_once(')')?.1.split_whitespace().nth(39 - 3)?.parse().ok()
}

/// Counters of a worker's stages at some time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StageSample {
    /// Turns so far.
    pub turns: u64,
    /// Ticks of each stage, estimated from the turns that are timed, and packets.
    pub stages: Vec<(u64, u64)>,
}

/// Returns the instructions per packet of each stage between two samples of a worker that was stepped meanwhile; `None`
/// for stages that saw no packet. One turn in `sample` is timed, and counts for as many.
pub fn instructions(before: &StageSample, after: &StageSample, sample: u64) -> Vec<Option<f64>> {
    let turns = after.turns.saturating_sub(before.turns);
    // Turns 0, `sample`, 2 * `sample` and so on are timed.
    let timed = after.turns.div_ceil(sample) - before.turns.div_ceil(sample).min(after.turns.div_ceil(sample));
    let stages = before.stages.iter().zip(&after.stages);
    let of_stage = |(before, after): (&(u64, u64), &(u64, u64))| {
        let ticks = after.0.saturating_sub(before.0) as f64 / (sample * timed) as f64;
        let packets = after.1.saturating_sub(before.1) as f64 / turns as f64;
        (timed > 0 && packets > 0.0).then(|| ticks / packets)
    };
    stages.map(of_stage).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timed_turns_stand_for_all() {
        let look = |turns, ticks, packets| StageSample { turns, stages: vec![(ticks, packets), (0, 0)] };
        // Turns 16 and 32 are timed, with 640 instructions each; each of 32 turns has 64 packets.
        let (before, after) = (look(5, 1000, 0), look(37, 1000 + 2 * 640 * 16, 32 * 64));
        assert_eq!(instructions(&before, &after, 16), [Some(10.0), None]);
        assert_eq!(instructions(&before, &before, 16), [None, None]);
    }
}
