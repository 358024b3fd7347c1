//! Reference interpreter of classic BPF.

/// Code, offsets of the two jumps, and constant.
pub type Instruction = (u16, u8, u8, u32);

/// Number of words of a filter's scratch memory.
pub const MEMORY: usize = 16;

/// Codes of all instructions.
pub const CODES: &[u16] = &[
    0x20, 0x28, 0x30, 0x40, 0x48, 0x50, 0xb1, 0x00, 0x01, 0x80, 0x81, 0x60, 0x61, 0x02, 0x03, 0x04, 0x0c, 0x14, 0x1c,
    0x24, 0x2c, 0x34, 0x3c, 0x94, 0x9c, 0x44, 0x4c, 0x54, 0x5c, 0xa4, 0xac, 0x64, 0x6c, 0x74, 0x7c, 0x84, 0x05, 0x15,
    0x1d, 0x25, 0x2d, 0x35, 0x3d, 0x45, 0x4d, 0x06, 0x16, 0x07, 0x87,
];

/// Reference interpreter of classic BPF for one packet: returns the length to keep. `None` if the program reads beyond
/// the packet or divides by zero.
pub fn one_by_one(program: &[Instruction], data: &[u8]) -> Option<u32> {
    let (mut a, mut x, mut memory) = (0u32, 0u32, [0u32; MEMORY]);
    let load = |offset: u32, size: usize| -> Option<u32> {
        let bytes = data.get(offset as usize..)?.get(..size)?;
        Some(bytes.iter().fold(0, |value, byte| value << 8 | u32::from(*byte)))
    };
    let mut at = 0;
    loop {
        let (code, jt, jf, k) = program[at];
        at += 1;
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
            0x80 => a = data.len() as u32,
            0x81 => x = data.len() as u32,
            0x60 => a = memory[k as usize],
            0x61 => x = memory[k as usize],
            0x02 => memory[k as usize] = a,
            0x03 => memory[k as usize] = x,
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
            _ => unreachable!("a filter that was verified"),
        }
    }
}

/// Returns a program in the format of `tcpdump -ddd`.
pub fn text(program: &[Instruction]) -> String {
    let lines = program.iter().map(|(code, jt, jf, k)| format!("{code} {jt} {jf} {k}\n"));
    format!("{}\n{}", program.len(), lines.collect::<String>())
}
