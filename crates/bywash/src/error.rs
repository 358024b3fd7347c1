//! Errors of the program: one line that says what failed, where and what to do, and an exit status.

use crate::config::ConfigErrors;
use crate::stdout::unprinted;
use bywash_port::pcap::CompileError;
use std::io::{ErrorKind, IsTerminal};
use std::process::ExitCode;

/// Invalid command line. The exit status is 2, as for a configuration error.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Usage(pub String);

/// Prints an error to stderr, and returns the exit status.
pub fn report(error: &anyhow::Error) -> ExitCode {
    // The reader of the output has closed it, and needs no more. A socket whose peer has ended gives the same error.
    if unprinted(error) == Some(ErrorKind::BrokenPipe) {
        return ExitCode::SUCCESS;
    }
    if let Some(errors) = error.downcast_ref::<ConfigErrors>() {
        let colours =
            std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        crate::log::print(&errors.render(colours).to_string());
        return ExitCode::from(2);
    }
    crate::log::print(&format!("bywash: {}\n", line(error)));
    let rejected = matches!(error.downcast_ref(), Some(CompileError::Rejected(..)));
    ExitCode::from(if rejected || error.is::<Usage>() { 2 } else { 1 })
}

/// Adds what to do to an error for lack of privileges.
pub fn hint_at_root(error: anyhow::Error) -> anyhow::Error {
    // Some errors have their cause only as text.
    let (text, denials) = (line(&error), ["Operation not permitted", "Permission denied"]);
    if rustix::process::geteuid().is_root() || !denials.iter().any(|denial| text.contains(denial)) {
        return error;
    }
    anyhow::anyhow!("{text}: run the command as root, with sudo")
}

/// Formats an error and its causes in one line. Leaves out a cause that the text before it already contains.
pub fn line(error: &anyhow::Error) -> String {
    let mut line = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if line.is_empty() {
            line = cause;
        } else if !line.contains(&cause) {
            line = format!("{line}: {cause}");
        }
    }
    // The message of another process already shows the places in a configuration file.
    if line.contains("--> ") { line } else { line.replace('\n', " ") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;

    /// An instance whose successor has ended must fail, so that its service manager starts it again.
    #[test]
    fn a_peer_that_has_ended_is_no_success() {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        drop(theirs);
        let why = std::io::Write::write(&mut &ours, b"x").unwrap_err();
        assert_eq!(why.kind(), ErrorKind::BrokenPipe);
        let status = report(&Err::<(), _>(why).context("pid 7 has ended").unwrap_err());
        assert_eq!(format!("{status:?}"), format!("{:?}", ExitCode::FAILURE));
    }

    #[test]
    fn one_line_without_repetition() {
        let cause = std::io::Error::other("disk on fire");
        let error = Err::<(), _>(cause).context("cannot read x: disk on fire").context("no config").unwrap_err();
        assert_eq!(line(&error), "no config: cannot read x: disk on fire");
        assert_eq!(line(&anyhow::anyhow!("a\nb")), "a b");
    }
}
