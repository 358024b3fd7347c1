//! Runs a filter on a burst at a time: each instruction once, for all packets that reach it.
//!
//! Jumps go forward only, so one pass over the program in order completes every packet. An instruction's mask tells
//! which packets have reached it, and its registers are columns with one value for each packet.

use super::{Filter, Instruction, MEMORY};
use bywash_frame::{Arena, BATCH, Frame, Heads};
use bywash_sync::wide::{Wide, widest};
use std::arch::x86_64::{_mm_loadu_si128, _mm_movemask_epi8};
use std::sync::Arc;

/// One value for each packet of a burst.
type Column = [u32; BATCH];
const ZERO: Column = [0; BATCH];
/// Number of values to whose multiples loops are rounded up, so that they run over whole vectors.
const LANES: usize = 16;

/// State of a running filter. Used by one worker.
pub struct Matcher {
    filter: Arc<Filter>,
    heads: Heads,
    registers: Registers,
    /// For each instruction, a bit mask of the packets that have reached it.
    reached: Vec<u64>,
}

/// Registers of the program.
#[repr(C, align(64))]
struct Registers {
    a: Column,
    x: Column,
    /// Result of an instruction, and its operand beside A.
    made: Column,
    by: Column,
    memory: [Column; MEMORY],
}

impl Matcher {
    /// Creates the state to run `filter`.
    pub fn new(filter: Arc<Filter>) -> Self {
        let reached = vec![0; filter.0.len()];
        let registers = Registers { a: ZERO, x: ZERO, made: ZERO, by: ZERO, memory: [ZERO; MEMORY] };
        Self { filter, heads: Heads::default(), registers, reached }
    }

    /// Returns a bit mask of the packets that pass, among the first [`BATCH`] of `frames`; the lowest bit is the first
    /// packet's. A packet for which the program reads beyond the end or divides by zero does not pass.
    pub fn passing(&mut self, arena: &Arena, frames: &[Frame]) -> u64 {
        let frames = &frames[..frames.len().min(BATCH)];
        if frames.is_empty() {
            return 0;
        }
        let Self { filter, heads, registers, reached } = self;
        let whole = heads.read_shared(arena, frames);
        widest(Pass { program: &filter.0, arena, frames, heads, whole, registers, reached })
    }
}

/// One pass over the program for a burst.
struct Pass<'a> {
    program: &'a [Instruction],
    arena: &'a Arena,
    frames: &'a [Frame],
    heads: &'a Heads,
    /// Set if every packet is long enough to have all its words in `heads`.
    whole: bool,
    registers: &'a mut Registers,
    reached: &'a mut [u64],
}

impl Wide for Pass<'_> {
    type Out = u64;

    #[inline(always)]
    fn run(self) -> u64 {
        let Self { program, arena, frames, heads, whole, registers, reached } = self;
        let Registers { a, x, made, by, memory } = registers;
        let n = frames.len().next_multiple_of(LANES).min(BATCH);
        let all = u64::MAX >> (BATCH - frames.len());
        (*a, *x) = (ZERO, ZERO);
        reached.fill(0);
        let (mut here, mut undecided, mut passing, mut remembers) = (all, all, 0, false);
        for (at, &Instruction { code, jt, jf, k }) in program.iter().enumerate() {
            here |= reached[at];
            if here == 0 {
                continue;
            }
            // Operand of arithmetic and jumps: bit 3 selects K or X.
            if code & 4 != 0 && code & 7 < 6 {
                if code & 8 == 0 { by[..n].fill(k) } else { *by = *x }
            }
            match code {
                // Loads of a word, half-word or byte. 0xb1 loads X with four times the low nibble of a byte, the length
                // of an IPv4 header.
                0x20 | 0x28 | 0x30 | 0x40 | 0x48 | 0x50 | 0xb1 => {
                    let size = [4, 2, 1, 1][usize::from(code >> 3 & 3)];
                    let indexed = code & 0x40 != 0;
                    match (!indexed && whole).then(|| in_heads(k, size)).flatten() {
                        Some((word, right)) => {
                            let left = 32 - 8 * size as u32;
                            map(made, &heads.words[word], n, |w| (w >> right).swap_bytes() >> left);
                        }
                        None => {
                            let beyond = gather(made, here, arena, frames, indexed.then_some(&*x), k, size);
                            (here, undecided) = (here & !beyond, undecided & !beyond);
                        }
                    }
                    if code == 0xb1 {
                        *by = *made;
                        map(made, by, n, |byte| (byte & 15) * 4);
                        set(x, made, here, undecided);
                    } else {
                        set(a, made, here, undecided);
                    }
                }
                // Loads of an immediate or the packet length to A or X.
                0x00 => set(a, &[k; BATCH], here, undecided),
                0x01 => set(x, &[k; BATCH], here, undecided),
                0x80 => set(a, &heads.lens, here, undecided),
                0x81 => set(x, &heads.lens, here, undecided),
                // Loads from and stores to scratch memory.
                0x60 | 0x61 | 0x02 | 0x03 => {
                    if !remembers {
                        (*memory, remembers) = ([ZERO; MEMORY], true);
                    }
                    let cell = &mut memory[k as usize % MEMORY];
                    match code {
                        0x60 => set(a, cell, here, undecided),
                        0x61 => set(x, cell, here, undecided),
                        0x02 => set(cell, a, here, undecided),
                        _ => set(cell, x, here, undecided),
                    }
                }
                0x07 => set(x, a, here, undecided),
                0x87 => set(a, x, here, undecided),
                // Return of K or A.
                0x06 | 0x16 => {
                    passing |= match code {
                        0x06 if k == 0 => 0,
                        0x06 => here,
                        _ => here & those(a, &ZERO, n, |a, zero| a != zero),
                    };
                    undecided &= !here;
                    here = 0;
                    if undecided == 0 {
                        break;
                    }
                }
                0x05 => {
                    reached[at + 1 + k as usize] |= here;
                    here = 0;
                }
                0x15 | 0x1d | 0x25 | 0x2d | 0x35 | 0x3d | 0x45 | 0x4d => {
                    let yes = here
                        & match code & !8 {
                            0x15 => those(a, by, n, |a, by| a == by),
                            0x25 => those(a, by, n, |a, by| a > by),
                            0x35 => those(a, by, n, |a, by| a >= by),
                            _ => those(a, by, n, |a, by| a & by != 0),
                        };
                    reached[at + 1 + usize::from(jt)] |= yes;
                    reached[at + 1 + usize::from(jf)] |= here & !yes;
                    here = 0;
                }
                _ => {
                    match code & !8 {
                        0x04 => with(made, a, by, n, u32::wrapping_add),
                        0x14 => with(made, a, by, n, u32::wrapping_sub),
                        0x24 => with(made, a, by, n, u32::wrapping_mul),
                        0x34 => with(made, a, by, n, |a, by| a / by.max(1)),
                        0x94 => with(made, a, by, n, |a, by| a % by.max(1)),
                        0x44 => with(made, a, by, n, |a, by| a | by),
                        0x54 => with(made, a, by, n, |a, by| a & by),
                        0xa4 => with(made, a, by, n, |a, by| a ^ by),
                        0x64 => with(made, a, by, n, |a, by| if by < 32 { a << by } else { 0 }),
                        0x74 => with(made, a, by, n, |a, by| if by < 32 { a >> by } else { 0 }),
                        // 0x84, the only other instruction in a verified program.
                        _ => map(made, a, n, u32::wrapping_neg),
                    }
                    if matches!(code, 0x3c | 0x9c) {
                        let by_zero = those(x, &ZERO, n, |x, zero| x == zero);
                        (here, undecided) = (here & !by_zero, undecided & !(here & by_zero));
                    }
                    set(a, made, here, undecided);
                }
            }
        }
        passing
    }
}

/// Returns the word of [`Heads`] that contains the `size` bytes at `offset`, and their distance from its right end in
/// bits. `None` if no word contains them.
#[inline(always)]
fn in_heads(offset: u32, size: usize) -> Option<(usize, u32)> {
    let from = (offset as usize).checked_sub(Heads::FROM)?;
    let (word, byte) = (from / 4, from % 4);
    (word < Heads::WORDS && byte + size <= 4).then_some((word, 8 * byte as u32))
}

/// Sets the values of `to` that `here` selects. Values of decided packets may change: they are not read any more.
#[inline(always)]
fn set(to: &mut Column, from: &Column, here: u64, undecided: u64) {
    if here == undecided {
        *to = *from;
        return;
    }
    let mut left = here;
    while left != 0 {
        let i = left.trailing_zeros() as usize % BATCH;
        left &= left - 1;
        to[i] = from[i];
    }
}

// The number of values must not be a constant, or the compiler unrolls these loops instead of vectorising them.

#[inline(always)]
fn map(to: &mut Column, from: &Column, n: usize, value: impl Fn(u32) -> u32) {
    for (to, from) in to[..n].iter_mut().zip(&from[..n]) {
        *to = value(*from);
    }
}

#[inline(always)]
fn with(to: &mut Column, a: &Column, by: &Column, n: usize, value: impl Fn(u32, u32) -> u32) {
    for ((to, a), by) in to[..n].iter_mut().zip(&a[..n]).zip(&by[..n]) {
        *to = value(*a, *by);
    }
}

/// Returns a bit mask of the packets for which `is` is true.
#[inline(always)]
fn those(a: &Column, by: &Column, n: usize, is: impl Fn(u32, u32) -> bool) -> u64 {
    let mut truths = [0u8; BATCH];
    for ((truth, a), by) in truths[..n].iter_mut().zip(&a[..n]).zip(&by[..n]) {
        *truth = if is(*a, *by) { u8::MAX } else { 0 };
    }
    // SAFETY: SSE2, which every x86-64 has; a chunk is 16 bytes.
    let bits = |bytes: &[u8; 16]| unsafe { _mm_movemask_epi8(_mm_loadu_si128(bytes.as_ptr().cast())) as u64 };
    truths.as_chunks().0.iter().rev().fold(0, |all, bytes| all << 16 | bits(bytes))
}

/// Reads `size` bytes at `offset`, plus the packet's own offset if given, for the packets that `mask` selects. Returns
/// a bit mask of the packets that end before.
fn gather(
    to: &mut Column,
    mask: u64,
    arena: &Arena,
    frames: &[Frame],
    own: Option<&Column>,
    offset: u32,
    size: usize,
) -> u64 {
    let (mut left, mut beyond) = (mask, 0);
    while left != 0 {
        let i = left.trailing_zeros() as usize % BATCH;
        left &= left - 1;
        let data = frames.get(i).map_or(&[][..], |frame| arena.data(frame));
        let from = own.map_or(0, |own| own[i]) as usize + offset as usize;
        let bytes = data.get(from..).unwrap_or(&[]);
        let value = match size {
            4 => bytes.first_chunk().map(|bytes| u32::from_be_bytes(*bytes)),
            2 => bytes.first_chunk().map(|bytes| u16::from_be_bytes(*bytes).into()),
            _ => bytes.first().map(|byte| u32::from(*byte)),
        };
        match value {
            Some(value) => to[i] = value,
            None => beyond |= 1 << i,
        }
    }
    beyond
}
