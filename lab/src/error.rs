//! Error type of the lab: each variant names the command or file concerned.

use std::io;
use std::time::Duration;

/// Error while building or using a lab.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A program could not be started (missing, or no permission).
    #[error("cannot start `{command}`: {source}")]
    Start {
        /// Command line.
        command: String,
        /// Cause.
        source: io::Error,
    },
    /// A program ended with a failure status.
    #[error("`{command}` failed ({status}): {stderr}")]
    Failed {
        /// Command line.
        command: String,
        /// Exit status or signal, in words.
        status: String,
        /// Standard error of the program, or its standard output if that was empty.
        stderr: String,
    },
    /// A condition was not met in time.
    #[error("timed out after {after:?} waiting for {what}")]
    Timeout {
        /// Condition that was awaited.
        what: String,
        /// Time limit.
        after: Duration,
    },
    /// Output of a tool could not be parsed.
    #[error("cannot read the output of {what}: {detail}")]
    Parse {
        /// Name of the tool.
        what: &'static str,
        /// Missing or unexpected part of the output.
        detail: String,
    },
    /// A system call or a file access failed.
    #[error("{what}: {source}")]
    Io {
        /// Operation attempted, with the path if there is one.
        what: String,
        /// Cause.
        source: io::Error,
    },
}

/// Shorthand for results of this crate.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn io(what: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self::Io { what: what.into(), source: source.into() }
    }

    pub(crate) fn parse(what: &'static str, detail: impl Into<String>) -> Self {
        Self::Parse { what, detail: detail.into() }
    }
}
