//! Trace of a program's reads and writes, by valgrind's lackey.
//!
//! The program says on standard error, where lackey prints, when accesses are those of a simulated device ([`Mark`]).
//! Instruction fetches are left out. Valgrind 3.19 has no AVX-512: code for it is replaced by its variant for AVX2,
//! which reads and writes the same lines.

use std::io::{BufRead as _, BufReader, Read, Write as _};
use std::ops::Range;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

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
        let line = match self {
            Self::Dma(range) => format!("dma {} {}", range.start, range.end),
            // Printed for each burst: whatever is printed is traced as well.
            Self::Device => return tell("bywash-trace device\n"),
            Self::Core => return tell("bywash-trace core\n"),
            Self::Turn => return tell("bywash-trace turn\n"),
            Self::Warm(packets) => format!("warm {packets}"),
            Self::End(packets) => format!("end {packets}"),
        };
        tell(&format!("{PREFIX} {line}\n"));
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

/// Writes to standard error in one system call. An error is the parent's: it sees the end of the trace.
fn tell(line: &str) {
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// Kind of an access to a line: a read or write by the processor or by a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Read,
    Write,
    DeviceRead,
    DeviceWrite,
}

/// Access to a cache line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Touch {
    /// Address of the line.
    pub addr: u64,
    pub access: Access,
}

/// Number of lines whose accesses are recorded once: an eighth of a first-level cache.
pub const RECENT: usize = 64;

/// Parser of a trace.
#[derive(Default)]
struct Parser {
    dma: Vec<Range<u64>>,
    device: bool,
    /// Lines just accessed, by the low bits of their number. The processor's first-level cache serves them.
    recent: Vec<Option<Touch>>,
    touches: Vec<Touch>,
    /// Other lines of the program: its errors.
    said: Vec<String>,
}

impl Parser {
    /// Takes a line of the trace; returns the mark on it.
    fn line(&mut self, line: &[u8]) -> Option<Mark> {
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
        for number in addr / LINE..(addr + len).div_ceil(LINE) {
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

/// Returns the command that traces `program`.
pub fn valgrind(program: &Path) -> Command {
    let mut command = Command::new("valgrind");
    command.args(["--tool=lackey", "--trace-mem=yes", "--basic-counts=no"]).arg(program);
    command
}

/// Runs a command of [`valgrind`] to its end. Calls `each` at each turn, and at the other marks in between, with the
/// lines accessed since the last call.
///
/// # Errors
/// Returns the program's own errors if it fails.
pub fn follow(command: &mut Command, mut each: impl FnMut(&Mark, &[Touch])) -> anyhow::Result<()> {
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().map_err(|why| {
        anyhow::anyhow!("cannot run valgrind, which traces the pipeline ({why}): install the package valgrind")
    })?;
    let mut child = Ended(child);
    let pipe = child.0.stderr.take().expect("standard error is piped");
    // Not possible beyond the user's limit on pipes.
    let _ = rustix::pipe::fcntl_setpipe_size(&pipe, PIPE);
    let mut trace = BufReader::with_capacity(PIPE, Patient(pipe));
    let (mut parser, mut line, mut ended) = (Parser::default(), vec![], false);
    while trace.read_until(b'\n', &mut line)? > 0 {
        if let Some(mark) = parser.line(&line) {
            ended |= matches!(mark, Mark::End(_));
            if !matches!(mark, Mark::Device | Mark::Core) {
                each(&mark, &parser.touches);
                parser.touches.clear();
            }
        }
        line.clear();
    }
    let status = child.0.wait()?;
    let said = parser.said.join("; ");
    anyhow::ensure!(status.success() && ended, "the pipeline under valgrind failed ({status}): {said}");
    Ok(())
}

/// Process that is killed if it still runs when this is dropped: nobody reads its trace then.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Size of the pipe and of the buffer behind it.
const PIPE: usize = 1 << 20;

/// Reader of a pipe that lets it fill: lackey writes each line by itself, and a reader that waited for it would be
/// woken for each.
struct Patient<R>(R);

impl<R: Read> Read for Patient<R> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        std::thread::sleep(Duration::from_millis(1));
        self.0.read(into)
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

    #[test]
    fn a_program_that_fails_says_why() {
        let mut command = Command::new("sh");
        let why = follow(command.args(["-c", "echo 'no pools' >&2; exit 3"]), |_, _| {}).unwrap_err().to_string();
        assert!(why.contains("no pools") && why.contains('3'), "{why}");
        let mut marks = vec![];
        let told = "printf 'bywash-trace core\\n L 40,1\\nbywash-trace turn\\n S 40,1\\nbywash-trace end 1\\n' >&2";
        let mut command = Command::new("sh");
        follow(command.args(["-c", told]), |mark, touches| marks.push((mark.clone(), touches.len()))).unwrap();
        assert_eq!(marks, [(Mark::Turn, 1), (Mark::End(1), 1)]);
    }
}
