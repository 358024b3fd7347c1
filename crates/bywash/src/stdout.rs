//! Standard output, whose errors can be told from those of files and sockets.

use std::io::{self, IsTerminal, Write};

/// Standard output. Its errors contain [`Unprinted`].
pub struct Stdout(io::Stdout);

/// Error of a write to standard output.
#[derive(Debug, thiserror::Error)]
#[error("cannot write to standard output: {0}")]
pub struct Unprinted(io::Error);

/// Returns standard output.
pub fn stdout() -> Stdout {
    Stdout(io::stdout())
}

impl Stdout {
    pub fn is_terminal(&self) -> bool {
        self.0.is_terminal()
    }
}

impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes).map_err(marked)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush().map_err(marked)
    }
}

/// Marks an error. Its kind stays: `write_all` tries again after an interruption.
fn marked(why: io::Error) -> io::Error {
    io::Error::new(why.kind(), Unprinted(why))
}

/// Returns the kind of the error that a write to standard output ended with, if a cause of `error` is one.
pub fn unprinted(error: &anyhow::Error) -> Option<io::ErrorKind> {
    let of = |cause: &(dyn std::error::Error + 'static)| {
        Some(cause.downcast_ref::<io::Error>()?.get_ref()?.is::<Unprinted>())
    };
    let kind = |cause: &(dyn std::error::Error + 'static)| cause.downcast_ref::<io::Error>().map(io::Error::kind);
    error.chain().find(|cause| of(*cause) == Some(true)).and_then(kind)
}
