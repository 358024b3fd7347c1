//! Filters written in tcpdump's language, which it compiles.

use std::io::{self, ErrorKind};
use std::process::Command;
use std::string::FromUtf8Error;
use thiserror::Error;

/// Error of [`compile`]. Its text names `--filter`, the option for filters of every command.
#[derive(Debug, Error)]
pub enum CompileError {
    /// No tcpdump is installed.
    #[error("--filter needs tcpdump to compile it, and it is not installed: install tcpdump, or omit --filter")]
    Missing,
    /// The program cannot be run.
    #[error("cannot run tcpdump to compile the filter")]
    Run(#[source] io::Error),
    /// Expression that tcpdump rejects, and its reason.
    #[error("--filter `{0}`: {1}; see pcap-filter(7)")]
    Rejected(String, String),
    /// Output that is not text.
    #[error("tcpdump's output is not UTF-8 text")]
    Text(#[source] FromUtf8Error),
}

/// Compiles a filter expression to a BPF program with tcpdump, in the format that [`Filter::parse`] takes.
///
/// [`Filter::parse`]: super::Filter::parse
pub fn compile(expression: &str) -> Result<String, CompileError> {
    let out = Command::new("tcpdump").args(["-y", "EN10MB", "-s", "262144", "-ddd", "--", expression]).output();
    let out = out.map_err(|why| match why.kind() {
        ErrorKind::NotFound => CompileError::Missing,
        _ => CompileError::Run(why),
    })?;
    if !out.status.success() {
        let said = String::from_utf8_lossy(&out.stderr);
        let why = said.lines().last().unwrap_or("tcpdump did not say why").trim_start_matches("tcpdump: ");
        return Err(CompileError::Rejected(expression.into(), why.into()));
    }
    String::from_utf8(out.stdout).map_err(CompileError::Text)
}
