//! Packet filters in tcpdump's language, as its compiler leaves them: classic BPF, verified once and then interpreted.

use thiserror::Error;

/// Most instructions of a filter (the kernel's `BPF_MAXINSNS`).
const LONGEST: usize = 4096;
/// Words of scratch memory (`BPF_MEMWORDS`).
const MEMORY: usize = 16;

/// What is wrong with a filter.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum FilterError {
    /// It is not the text that `tcpdump -ddd` prints.
    #[error("line {0} of the filter is not what `tcpdump -ddd` prints")]
    Text(usize),
    /// It has no instructions, or too many.
    #[error("the filter has {0} instructions: expected 1 to {LONGEST}")]
    Length(usize),
    /// An instruction that is not known, or must not be there.
    #[error("instruction {0} of the filter is not permitted: {1}")]
    Instruction(usize, &'static str),
}

#[derive(Clone, Copy, Debug)]
struct Instruction {
    code: u16,
    jt: u8,
    jf: u8,
    k: u32,
}

/// A filter that has been verified: it ends after at most as many steps as it has instructions, whatever the packet.
#[derive(Clone, Debug)]
pub struct Filter(Vec<Instruction>);

impl Filter {
    /// Reads what `tcpdump -ddd EXPRESSION` prints: the number of instructions, then each on a line of its own, as
    /// `code jt jf k`.
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

    /// Whether the packet, `length` bytes on the wire of which `data` is the beginning, passes. What reads beyond
    /// `data` does not.
    pub fn accepts(&self, data: &[u8], length: usize) -> bool {
        run(&self.0, data, length as u32).unwrap_or(0) > 0
    }
}

/// Refuses what could run on, or mean something else to the kernel, whose extensions are loads at negative offsets.
fn verify(program: &[Instruction]) -> Result<(), FilterError> {
    for (at, &Instruction { code, jt, jf, k }) in program.iter().enumerate() {
        let no = |why| Err(FilterError::Instruction(at, why));
        let left = program.len() - at - 1;
        match code {
            // Loads: a word, half-word or byte at an offset, absolute or indexed; and four times a nibble.
            0x20 | 0x28 | 0x30 | 0x40 | 0x48 | 0x50 | 0xb1 if k > i32::MAX as u32 => return no("a negative offset"),
            0x20 | 0x28 | 0x30 | 0x40 | 0x48 | 0x50 | 0xb1 => {}
            // An immediate, the length; to A, to X.
            0x00 | 0x01 | 0x80 | 0x81 => {}
            // Memory: loads and stores.
            0x60 | 0x61 | 0x02 | 0x03 if k as usize >= MEMORY => return no("beyond the scratch memory"),
            0x60 | 0x61 | 0x02 | 0x03 => {}
            // Arithmetic, with K and with X.
            0x34 | 0x94 if k == 0 => return no("division by zero"),
            0x64 | 0x74 if k > 31 => return no("a shift of more than 31"),
            0x04 | 0x14 | 0x24 | 0x34 | 0x44 | 0x54 | 0x64 | 0x74 | 0x84 | 0x94 | 0xa4 => {}
            0x0c | 0x1c | 0x2c | 0x3c | 0x4c | 0x5c | 0x6c | 0x7c | 0x9c | 0xac => {}
            // Jumps only lead forward.
            0x05 if k as usize >= left => return no("a jump beyond the end"),
            0x05 => {}
            0x15 | 0x25 | 0x35 | 0x45 | 0x1d | 0x2d | 0x3d | 0x4d => {
                if usize::from(jt.max(jf)) >= left {
                    return no("a jump beyond the end");
                }
            }
            // Return K or A; A to X and back.
            0x06 | 0x16 | 0x07 | 0x87 => {}
            _ => return no("not known"),
        }
    }
    match program.last().map(|last| last.code) {
        Some(0x06 | 0x16) => Ok(()),
        _ => Err(FilterError::Instruction(program.len().saturating_sub(1), "it runs off the end")),
    }
}

/// Bytes of the packet to keep; none where it reads beyond the data or divides by zero, which is to keep none.
fn run(program: &[Instruction], data: &[u8], length: u32) -> Option<u32> {
    let (mut a, mut x, mut memory) = (0u32, 0u32, [0u32; MEMORY]);
    let load = |offset: u32, size: usize| -> Option<u32> {
        let bytes = data.get(offset as usize..)?.get(..size)?;
        Some(bytes.iter().fold(0, |value, byte| value << 8 | u32::from(*byte)))
    };
    let mut at = 0;
    loop {
        let Instruction { code, jt, jf, k } = *program.get(at)?;
        at += 1;
        // The operand of arithmetic and jumps: bit 3 chooses X.
        let operand = if code & 8 == 0 { k } else { x };
        match code {
            0x20 => a = load(k, 4)?,
            0x28 => a = load(k, 2)?,
            0x30 => a = load(k, 1)?,
            0x40 => a = load(x.checked_add(k)?, 4)?,
            0x48 => a = load(x.checked_add(k)?, 2)?,
            0x50 => a = load(x.checked_add(k)?, 1)?,
            0xb1 => x = (load(k, 1)? & 15) * 4,
            0x00 => a = k,
            0x01 => x = k,
            0x80 => a = length,
            0x81 => x = length,
            0x60 => a = *memory.get(k as usize)?,
            0x61 => x = *memory.get(k as usize)?,
            0x02 => *memory.get_mut(k as usize)? = a,
            0x03 => *memory.get_mut(k as usize)? = x,
            0x04 | 0x0c => a = a.wrapping_add(operand),
            0x14 | 0x1c => a = a.wrapping_sub(operand),
            0x24 | 0x2c => a = a.wrapping_mul(operand),
            0x34 | 0x3c => a = a.checked_div(operand)?,
            0x94 | 0x9c => a = a.checked_rem(operand)?,
            0x44 | 0x4c => a |= operand,
            0x54 | 0x5c => a &= operand,
            0xa4 | 0xac => a ^= operand,
            0x64 | 0x6c => a = a.checked_shl(operand).unwrap_or(0),
            0x74 | 0x7c => a = a.checked_shr(operand).unwrap_or(0),
            0x84 => a = a.wrapping_neg(),
            0x05 => at += k as usize,
            0x15 | 0x1d => at += usize::from(if a == operand { jt } else { jf }),
            0x25 | 0x2d => at += usize::from(if a > operand { jt } else { jf }),
            0x35 | 0x3d => at += usize::from(if a >= operand { jt } else { jf }),
            0x45 | 0x4d => at += usize::from(if a & operand != 0 { jt } else { jf }),
            0x06 => return Some(k),
            0x16 => return Some(a),
            0x07 => x = a,
            0x87 => a = x,
            _ => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `tcpdump -ddd udp port 53`
    const DNS: &str = "20\n40 0 0 12\n21 0 6 34525\n48 0 0 20\n21 0 15 17\n40 0 0 54\n21 12 0 53\n40 0 0 56\n\
        21 10 11 53\n21 0 10 2048\n48 0 0 23\n21 0 8 17\n40 0 0 20\n69 6 0 8191\n177 0 0 14\n72 0 0 14\n21 2 0 53\n\
        72 0 0 16\n21 0 1 53\n6 0 0 262144\n6 0 0 0\n";

    fn udp4(to: u16, options: usize) -> Vec<u8> {
        let mut packet = vec![0; 14 + 20 + options + 8];
        packet[12..14].copy_from_slice(&[8, 0]);
        packet[14] = 0x45 + (options / 4) as u8;
        packet[23] = 17;
        packet[34 + options + 2..][..2].copy_from_slice(&to.to_be_bytes());
        packet
    }

    #[test]
    fn a_filter_of_tcpdump() {
        let filter = Filter::parse(DNS).unwrap();
        for options in [0, 40] {
            assert!(filter.accepts(&udp4(53, options), 64));
            assert!(!filter.accepts(&udp4(54, options), 64));
        }
        // Cut off before the port.
        assert!(!filter.accepts(&udp4(53, 0)[..36], 64));
        assert!(!filter.accepts(&[], 0));
        // A fragment that is not the first has no ports.
        let mut fragment = udp4(53, 0);
        fragment[21] = 1;
        assert!(!filter.accepts(&fragment, 64));
    }

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
            ("1\n40 0 0 12\n", "off the end"),
            ("2\n21 1 0 5\n6 0 0 0\n", "beyond the end"),
            ("2\n5 0 0 4294967295\n6 0 0 0\n", "beyond the end"),
            ("2\n52 0 0 0\n6 0 0 0\n", "division"),
            ("2\n96 0 0 16\n6 0 0 0\n", "scratch"),
            ("2\n40 0 0 4294963200\n6 0 0 0\n", "negative"),
            ("2\n100 0 0 32\n6 0 0 0\n", "shift"),
            ("2\n65535 0 0 0\n6 0 0 0\n", "not known"),
        ] {
            let told = Filter::parse(text).unwrap_err().to_string();
            assert!(told.contains(why), "{text:?}: {told}");
        }
    }

    #[test]
    fn arithmetic() {
        // A = length; X = A; A = A / X; A <<= X; return A
        let shift = Filter::parse("5\n128 0 0 0\n7 0 0 0\n60 0 0 0\n108 0 0 0\n22 0 0 0\n").unwrap();
        assert!(shift.accepts(&[], 3));
        assert!(!shift.accepts(&[], 0), "a division by zero keeps nothing");
        assert!(!shift.accepts(&[], 40), "shifted out");
    }

    proptest::proptest! {
        /// Whatever is taken for a filter ends, and does not panic, on whatever packet.
        #[test]
        fn any_program_ends(
            words in proptest::collection::vec((0u16..0xc0, 0u8..4, 0u8..4, proptest::prelude::any::<u32>()), 0..24),
            data in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..80),
        ) {
            let line = |(code, jt, jf, k): &(u16, u8, u8, u32)| format!("{code} {jt} {jf} {}\n", k >> (jt * 8));
            let text = format!("{}\n{}6 0 0 1\n", words.len() + 1, words.iter().map(line).collect::<String>());
            if let Ok(filter) = Filter::parse(&text) {
                filter.accepts(&data, data.len());
            }
        }
    }
}
