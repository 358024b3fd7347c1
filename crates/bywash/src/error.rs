//! How the program fails: one line that says what, where and what to do, and an exit status.

use crate::config::ConfigErrors;
use std::io::{IsTerminal, Write};
use std::process::ExitCode;

/// The command line asks for something impossible: exit status 2, like a configuration error.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Usage(pub String);

/// Says what went wrong, and how the program is to exit.
pub fn report(error: &anyhow::Error) -> ExitCode {
    // Whoever read our output has seen enough.
    if error.chain().filter_map(|cause| cause.downcast_ref()).any(is_broken_pipe) {
        return ExitCode::SUCCESS;
    }
    let mut stderr = std::io::stderr().lock();
    if let Some(errors) = error.downcast_ref::<ConfigErrors>() {
        let colours = stderr.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        // Nobody is left to be told when this fails.
        let _ = write!(stderr, "{}", errors.render(colours));
        return ExitCode::from(2);
    }
    let _ = writeln!(stderr, "bywash: {}", line(error));
    ExitCode::from(if error.is::<Usage>() { 2 } else { 1 })
}

fn is_broken_pipe(error: &std::io::Error) -> bool {
    error.kind() == std::io::ErrorKind::BrokenPipe
}

/// The error and its causes, once each: causes are often already part of what they caused.
fn line(error: &anyhow::Error) -> String {
    let mut line = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if line.is_empty() {
            line = cause;
        } else if !line.contains(&cause) {
            line = format!("{line}: {cause}");
        }
    }
    line.replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;

    #[test]
    fn one_line_without_repetition() {
        let cause = std::io::Error::other("disk on fire");
        let error = Err::<(), _>(cause).context("cannot read x: disk on fire").context("no config").unwrap_err();
        assert_eq!(line(&error), "no config: cannot read x: disk on fire");
        assert_eq!(line(&anyhow::anyhow!("a\nb")), "a b");
    }
}
