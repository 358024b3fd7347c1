//! Trace of a program's reads and writes, by valgrind's lackey.
//!
//! The program says on standard error, where lackey prints, when accesses are those of a simulated device ([`Mark`]).
//! Instruction fetches are left out. Valgrind 3.19 has no AVX-512: code for it is replaced by its variant for AVX2,
//! which reads and writes the same lines.

use std::fmt;
use std::io::Write as _;
use std::ops::Range;

/// Bytes per cache line.
pub const LINE: u64 = 64;
/// Start of the lines on which the traced program prints marks.
const PREFIX: &str = "bywash-trace";

/// Event of the traced program, printed in order with its accesses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mark {
    /// A device may read and write this range of addresses.
    Dma(Range<u64>),
    /// Accesses by a device begin.
    Device,
    /// Accesses by a processor begin. Those before the first such mark do not count.
    Core,
    /// Both workers have had a turn.
    Turn,
    /// Counting begins; this number of packets was sent before.
    Warm(u64),
    /// The run ends after this number of packets.
    End(u64),
}

impl Mark {
    /// Prints the mark.
    pub fn print(&self) {
        match self {
            // Printed for each burst: whatever is printed is traced as well.
            Self::Device => tell("bywash-trace device\n"),
            Self::Core => tell("bywash-trace core\n"),
            Self::Turn => tell("bywash-trace turn\n"),
            other => tell(&format!("{other}\n")),
        }
    }

    fn parse(line: &str) -> Option<Self> {
        let mut words = line.strip_prefix(PREFIX)?.split_whitespace();
        let mut next = || words.next();
        let name = next()?;
        let mut number = || next()?.parse().ok();
        Some(match name {
            "dma" => Self::Dma(number()?..number()?),
            "device" => Self::Device,
            "core" => Self::Core,
            "turn" => Self::Turn,
            "warm" => Self::Warm(number()?),
            "end" => Self::End(number()?),
            _ => return None,
        })
    }
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dma(range) => write!(f, "{PREFIX} dma {} {}", range.start, range.end),
            Self::Device => write!(f, "{PREFIX} device"),
            Self::Core => write!(f, "{PREFIX} core"),
            Self::Turn => write!(f, "{PREFIX} turn"),
            Self::Warm(packets) => write!(f, "{PREFIX} warm {packets}"),
            Self::End(packets) => write!(f, "{PREFIX} end {packets}"),
        }
    }
}

/// Writes to standard error in one system call. An error is the parent's: it sees the end of the trace.
fn tell(line: &str) {
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// Kind of an access to a line: a read or write by the processor or by a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read by the processor.
    Read,
    /// Write by the processor.
    Write,
    /// Read by the device.
    DeviceRead,
    /// Write by the device.
    DeviceWrite,
}

/// Access to a cache line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Touch {
    /// Address of the line.
    pub addr: u64,
    /// Kind of the access.
    pub access: Access,
}

/// Upper bound of the bytes of an access: lackey reports none as long.
const LONGEST: u64 = 4096;

/// Number of lines whose accesses are recorded once: an eighth of a first-level cache.
pub const RECENT: usize = 64;

/// Parser of a trace.
#[derive(Debug, Default)]
pub struct Parser {
    dma: Vec<Range<u64>>,
    device: bool,
    /// Lines just accessed, by the low bits of their number. The processor's first-level cache serves them.
    recent: Vec<Option<Touch>>,
    touches: Vec<Touch>,
    /// Other lines that the program printed: its errors.
    said: Vec<String>,
}

impl Parser {
    /// Returns the lines accessed since the last call.
    pub fn take(&mut self) -> Vec<Touch> {
        std::mem::take(&mut self.touches)
    }

    /// Returns the other lines that the program printed.
    pub fn said(&self) -> &[String] {
        &self.said
    }

    /// Takes a line of the trace; returns the mark on it.
    pub fn line(&mut self, line: &[u8]) -> Option<Mark> {
        match line {
            [b'I', ..] => {}
            [b' ', kind @ (b'L' | b'S' | b'M'), b' ', access @ ..] => self.access(*kind != b'L', access),
            _ => return self.text(&String::from_utf8_lossy(line)),
        }
        None
    }

    fn text(&mut self, line: &str) -> Option<Mark> {
        let Some(mark) = Mark::parse(line) else {
            // Valgrind's own lines begin with its process.
            if !line.starts_with("==") {
                self.said.push(line.trim_end().to_owned());
            }
            return None;
        };
        match &mark {
            Mark::Dma(range) => self.dma.push(range.clone()),
            Mark::Device | Mark::Core => {
                self.device = mark == Mark::Device;
                self.recent.clear();
                self.recent.resize(RECENT, None);
            }
            Mark::Turn | Mark::Warm(_) | Mark::End(_) => {}
        }
        Some(mark)
    }

    /// Records an access: the address in hexadecimal, a comma, and the number of bytes.
    fn access(&mut self, write: bool, access: &[u8]) {
        if self.recent.is_empty() {
            return;
        }
        let mut numbers = access.trim_ascii_end().split(|byte| *byte == b',');
        let mut number = |radix| u64::from_str_radix(std::str::from_utf8(numbers.next()?).ok()?, radix).ok();
        let Some((addr, len)) = number(16).zip(number(10)) else { return };
        let Some(end) = addr.checked_add(len).filter(|_| len <= LONGEST) else { return };
        let access = match (self.device, write) {
            (false, false) => Access::Read,
            (false, true) => Access::Write,
            (true, false) => Access::DeviceRead,
            (true, true) => Access::DeviceWrite,
        };
        // The simulated device has a memory of its own.
        if self.device && !self.dma.iter().any(|range| range.contains(&addr)) {
            return;
        }
        for number in addr / LINE..end.div_ceil(LINE) {
            let touch = Touch { addr: number * LINE, access };
            let recent = &mut self.recent[number as usize % RECENT];
            let covered = recent.is_some_and(|r| r == touch || r == Touch { access: Access::Write, ..touch });
            if !covered {
                *recent = Some(touch);
                self.touches.push(touch);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns what `text` touches, and its marks.
    fn parsed(text: &str) -> (Vec<Touch>, Vec<Mark>) {
        let mut parser = Parser::default();
        let marks = text.lines().filter_map(|line| parser.line(format!("{line}\n").as_bytes())).collect();
        (parser.touches, marks)
    }

    fn touch(addr: u64, access: Access) -> Touch {
        Touch { addr, access }
    }

    #[test]
    fn marks_are_read_as_printed() {
        let marks = [Mark::Dma(4096..8192), Mark::Device, Mark::Core, Mark::Turn, Mark::Warm(7), Mark::End(u64::MAX)];
        let text = "bywash-trace dma 4096 8192\nbywash-trace device\nbywash-trace core\nbywash-trace turn\n\
                    bywash-trace warm 7\nbywash-trace end 18446744073709551615";
        assert_eq!(parsed(text).1, marks);
        assert_eq!(marks.map(|mark| mark.to_string()).join("\n"), text);
        assert_eq!(parsed("bywash-trace dma 1\nbywash-trace\n==7== bywash-trace turn\n").1, []);
    }

    #[test]
    fn accesses_are_those_to_lines() {
        let text = "I  1000,4\n L 1000,8\nbywash-trace core\nI  1000,4\n L 103f,1\n L 1040,64\n S 107c,8\n M 2000,4\n";
        let lines = [(0x1000, Access::Read), (0x1040, Access::Read), (0x1040, Access::Write), (0x1080, Access::Write)];
        let lines = lines.into_iter().chain([(0x2000, Access::Write)]);
        assert_eq!(parsed(text).0, lines.map(|(addr, access)| touch(addr, access)).collect::<Vec<_>>());
    }

    #[test]
    fn accesses_past_the_end_of_memory_do_not_count() {
        let text = "bywash-trace core\n L ffffffffffffffff,1\n L fffffffffffffffe,1\n S ffffffffffffffc0,64\n\
                    \x20L 40,18446744073709551615\n";
        assert_eq!(parsed(text).0, [touch(u64::MAX / LINE * LINE, Access::Read)]);
    }

    #[test]
    fn lines_just_accessed_are_not_repeated() {
        let repeated = "bywash-trace core\n L 40,8\n L 48,8\n S 40,8\n L 40,8\n S 50,8\n";
        assert_eq!(parsed(repeated).0, [touch(0x40, Access::Read), touch(0x40, Access::Write)]);
        // Another line in the same place.
        let other = "bywash-trace core\n L 40,8\n L 1040,8\n L 40,8\n";
        assert_eq!(parsed(other).0.len(), 3);
    }

    #[test]
    fn a_device_accesses_what_it_is_given() {
        let text = "bywash-trace dma 4096 8192\nbywash-trace device\n S 1000,32\n S 1020,32\n L 1040,8\n L 40,8\n\
                    \x20S 40,8\nbywash-trace core\n L 1000,8\n";
        let lines = [(0x1000, Access::DeviceWrite), (0x1040, Access::DeviceRead), (0x1000, Access::Read)];
        assert_eq!(parsed(text).0, lines.map(|(addr, access)| touch(addr, access)));
    }
}
