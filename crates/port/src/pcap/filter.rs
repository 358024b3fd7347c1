//! Packet filters written in tcpdump's language and compiled by it to classic BPF: verified once, then run on whole
//! bursts.

mod columns;

pub use columns::Matcher;
use thiserror::Error;

/// Maximum number of instructions of a filter (the kernel's `BPF_MAXINSNS`).
const LONGEST: usize = 4096;
/// Number of 32-bit words of scratch memory (`BPF_MEMWORDS`).
const MEMORY: usize = 16;

/// Error of [`Filter::parse`].
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum FilterError {
    /// Line that is not in the format of `tcpdump -ddd`.
    #[error("invalid filter: line {0} is not in the format of `tcpdump -ddd`")]
    Text(usize),
    /// Number of instructions that is 0, too large, or not the number stated in the first line.
    #[error("invalid filter of {0} instructions: must have 1 to {LONGEST}, as many as its first line states")]
    Length(usize),
    /// Unknown or invalid instruction: its index and the reason.
    #[error("invalid filter: instruction {0}: {1}")]
    Instruction(usize, &'static str),
}

#[derive(Clone, Copy, Debug)]
struct Instruction {
    code: u16,
    jt: u8,
    jf: u8,
    k: u32,
}

/// Verified filter: it ends after at most as many steps as it has instructions, for any packet.
#[derive(Clone, Debug)]
pub struct Filter(Vec<Instruction>);

impl Filter {
    /// Parses the output of `tcpdump -ddd EXPRESSION`: the number of instructions, then each on a line of its own, as
    /// `code jt jf k` in decimal.
    pub fn parse(text: &str) -> Result<Self, FilterError> {
        let mut lines = text.lines().enumerate();
        let count: usize = lines.next().and_then(|(_, line)| line.trim().parse().ok()).ok_or(FilterError::Text(1))?;
        if !(1..=LONGEST).contains(&count) {
            return Err(FilterError::Length(count));
        }
        let mut program = Vec::with_capacity(count);
        for (at, line) in lines {
            let mut words = line.split_ascii_whitespace().map(str::parse::<u32>);
            let mut word = || words.next().and_then(Result::ok).ok_or(FilterError::Text(at + 1));
            let narrow = |word: u32| u8::try_from(word).map_err(|_| FilterError::Text(at + 1));
            let code = u16::try_from(word()?).map_err(|_| FilterError::Text(at + 1))?;
            program.push(Instruction { code, jt: narrow(word()?)?, jf: narrow(word()?)?, k: word()? });
        }
        if program.len() != count {
            return Err(FilterError::Length(program.len()));
        }
        verify(&program)?;
        Ok(Self(program))
    }
}

/// Verifies that a program ends and has only the instructions known here. Loads at negative offsets are the kernel's
/// extensions and are rejected.
fn verify(program: &[Instruction]) -> Result<(), FilterError> {
    for (at, &Instruction { code, jt, jf, k }) in program.iter().enumerate() {
        let no = |why| Err(FilterError::Instruction(at, why));
        let left = program.len() - at - 1;
        match code {
            // Loads of a word, half-word or byte at an absolute or indexed offset; 0xb1 loads X with four times the low
            // nibble of a byte.
            0x20 | 0x28 | 0x30 | 0x40 | 0x48 | 0x50 | 0xb1 if k > i32::MAX as u32 => return no("negative offset"),
            0x20 | 0x28 | 0x30 | 0x40 | 0x48 | 0x50 | 0xb1 => {}
            // Loads of an immediate or the packet length to A or X.
            0x00 | 0x01 | 0x80 | 0x81 => {}
            // Loads from and stores to scratch memory.
            0x60 | 0x61 | 0x02 | 0x03 if k as usize >= MEMORY => return no("beyond the scratch memory"),
            0x60 | 0x61 | 0x02 | 0x03 => {}
            // Arithmetic with K or X.
            0x34 | 0x94 if k == 0 => return no("division by zero"),
            0x64 | 0x74 if k > 31 => return no("shift by more than 31 bits"),
            0x04 | 0x14 | 0x24 | 0x34 | 0x44 | 0x54 | 0x64 | 0x74 | 0x84 | 0x94 | 0xa4 => {}
            0x0c | 0x1c | 0x2c | 0x3c | 0x4c | 0x5c | 0x6c | 0x7c | 0x9c | 0xac => {}
            // Jumps go forward only, since offsets are unsigned.
            0x05 if k as usize >= left => return no("a jump beyond the end"),
            0x05 => {}
            0x15 | 0x25 | 0x35 | 0x45 | 0x1d | 0x2d | 0x3d | 0x4d => {
                if usize::from(jt.max(jf)) >= left {
                    return no("a jump beyond the end");
                }
            }
            // Return of K or A; transfers between A and X.
            0x06 | 0x16 | 0x07 | 0x87 => {}
            _ => return no("unknown opcode"),
        }
    }
    match program.last().map(|last| last.code) {
        Some(0x06 | 0x16) => Ok(()),
        _ => Err(FilterError::Instruction(program.len().saturating_sub(1), "program does not end with a return")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_refused() {
        for (text, why) in [
            ("", "line 1"),
            ("x\n", "line 1"),
            ("0\n", "0 instructions"),
            ("5000\n", "5000 instructions"),
            ("2\n6 0 0 0\n", "1 instructions"),
            ("1\n6 0 0\n", "line 2"),
            ("1\n6 256 0 0\n", "line 2"),
            ("1\n6 0 0 -1\n", "line 2"),
            ("1\n40 0 0 12\n", "with a return"),
            ("2\n21 1 0 5\n6 0 0 0\n", "beyond the end"),
            ("2\n5 0 0 4294967295\n6 0 0 0\n", "beyond the end"),
            ("2\n52 0 0 0\n6 0 0 0\n", "division"),
            ("2\n96 0 0 16\n6 0 0 0\n", "scratch"),
            ("2\n40 0 0 4294963200\n6 0 0 0\n", "negative"),
            ("2\n100 0 0 32\n6 0 0 0\n", "shift"),
            ("2\n65535 0 0 0\n6 0 0 0\n", "unknown opcode"),
        ] {
            let told = Filter::parse(text).unwrap_err().to_string();
            assert!(told.contains(why), "{text:?}: {told}");
        }
    }
}
