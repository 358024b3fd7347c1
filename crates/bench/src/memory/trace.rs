//! Runs a program under valgrind's lackey, and follows its accesses while it runs.

pub use bywash_measure::lackey::{Access, LINE, Mark, RECENT, Touch};

use bywash_measure::lackey::Parser;
use std::io::{BufRead as _, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

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
    // Fails beyond the user's limit on pipes, which only makes this slower.
    let _ = rustix::pipe::fcntl_setpipe_size(&pipe, PIPE);
    let mut trace = BufReader::with_capacity(PIPE, Patient(pipe));
    let (mut parser, mut line, mut ended) = (Parser::default(), vec![], false);
    while trace.read_until(b'\n', &mut line)? > 0 {
        if let Some(mark) = parser.line(&line) {
            ended |= matches!(mark, Mark::End(_));
            if !matches!(mark, Mark::Device | Mark::Core) {
                each(&mark, &parser.take());
            }
        }
        line.clear();
    }
    let status = child.0.wait()?;
    let said = parser.said().join("; ");
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
