//! One error type for the lab: every variant says which command or file it was about.

use std::io;
use std::time::Duration;

/// What went wrong while building or using a lab.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A program could not be started (missing, or no permission).
    #[error("cannot start `{command}`: {source}")]
    Start {
        /// The command line.
        command: String,
        /// Why.
        source: io::Error,
    },
    /// A program ended with a failure.
    #[error("`{command}` failed ({status}): {stderr}")]
    Failed {
        /// The command line.
        command: String,
        /// Exit status or signal, in words.
        status: String,
        /// What it wrote to standard error, or to standard output where that was empty.
        stderr: String,
    },
    /// Something did not happen in time.
    #[error("{what}: not within {after:?}")]
    Timeout {
        /// What was waited for.
        what: String,
        /// How long.
        after: Duration,
    },
    /// A tool's output was not what this crate knows how to read.
    #[error("cannot read the output of {what}: {detail}")]
    Parse {
        /// Which tool.
        what: &'static str,
        /// What was missing or odd.
        detail: String,
    },
    /// A system call or a file access failed.
    #[error("{what}: {source}")]
    Io {
        /// What was attempted, with the path where there is one.
        what: String,
        /// Why it failed.
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
