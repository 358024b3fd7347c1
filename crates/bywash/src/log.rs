//! Logging to stderr, and the panic hook.

use crate::error::Usage;
use std::fmt;
use std::io::IsTerminal;
use std::panic::AssertUnwindSafe;
use std::process::ExitCode;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::{DefaultFields, FormatEvent, FormatFields, Writer};
use tracing_subscriber::fmt::{FmtContext, FormattedFields, time};
use tracing_subscriber::prelude::*;
use tracing_subscriber::registry::LookupSpan;

/// Starts logging at `level`, or else at the level in BYWASH_LOG, or else at `default`. Errors with [`Usage`] if the
/// level is invalid.
pub fn init(level: Option<&str>, default: &str) -> anyhow::Result<()> {
    let environment = std::env::var("BYWASH_LOG").ok();
    let (text, origin) = match (level, &environment) {
        (Some(level), _) => (level, "--log"),
        (None, Some(level)) if !level.is_empty() => (level.as_str(), "BYWASH_LOG"),
        _ => (default, "the default"),
    };
    let wanted = "expected error, warn, info, debug, trace, off, or a filter such as `info,bywash_port=debug`";
    let filter: Targets = text.parse().map_err(|_| Usage(format!("no log level `{text}` in {origin}: {wanted}")))?;
    // `Targets` takes an unknown word as the name of a module, and silences everything else.
    if text.chars().all(|c| c.is_ascii_alphanumeric())
        && !text.is_empty()
        && text.parse::<tracing::level_filters::LevelFilter>().is_err()
    {
        return Err(Usage(format!("no log level `{text}` in {origin}: {wanted}")).into());
    }
    let builder = tracing_subscriber::fmt().with_max_level(Level::TRACE).with_writer(std::io::stderr);
    let terminal = std::io::stderr().is_terminal();
    // Fails only if logging is set up already, as in a test.
    let _ = if !terminal && std::env::var_os("JOURNAL_STREAM").is_some() {
        builder.with_ansi(false).event_format(Journal).finish().with(filter).try_init()
    } else {
        let colours = terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        builder.with_ansi(colours).with_target(false).with_timer(time::uptime()).finish().with(filter).try_init()
    };
    Ok(())
}

/// Format for journald, which adds the time itself and reads the priority from the start of a line (sd-daemon(3)).
struct Journal;

impl<S> FormatEvent<S, DefaultFields> for Journal
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, DefaultFields>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let priority = match *event.metadata().level() {
            Level::ERROR => 3,
            Level::WARN => 4,
            Level::INFO => 6,
            _ => 7,
        };
        write!(writer, "<{priority}>")?;
        for span in context.event_scope().into_iter().flat_map(|scope| scope.from_root()) {
            write!(writer, "{}", span.name())?;
            let extensions = span.extensions();
            if let Some(fields) = extensions.get::<FormattedFields<DefaultFields>>().filter(|fields| !fields.is_empty())
            {
                write!(writer, "{{{fields}}}")?;
            }
            write!(writer, ": ")?;
        }
        context.field_format().format_fields(writer.by_ref(), event)?;
        writeln!(writer)
    }
}

/// Start of the message with which `println!` panics.
const NO_STDOUT: &str = "failed printing to stdout";

/// Runs a command. Returns its result, or an exit status if its output could not be printed.
pub fn printing<T>(command: impl FnOnce() -> T) -> Result<T, ExitCode> {
    std::panic::catch_unwind(AssertUnwindSafe(command)).or_else(|panic| {
        let message = panic.downcast_ref::<String>().map_or("", String::as_str);
        if message.starts_with(NO_STDOUT) { Err(ExitCode::FAILURE) } else { std::panic::resume_unwind(panic) }
    })
}

/// Installs a hook that prints a panic as one line, like any other error. The panic still unwinds, so that guards
/// restore the interfaces.
pub fn panic_hook() {
    std::panic::set_hook(Box::new(|panic| {
        let message = panic.payload_as_str().unwrap_or("a panic");
        // `println!` panics so when its reader has gone, as with `head`, or the disk is full: no fault of the program.
        if let Some(why) = message.strip_prefix(NO_STDOUT) {
            if !why.contains("Broken pipe") {
                eprintln!("bywash: cannot write to standard output{why}");
            }
            return;
        }
        let place = panic.location().map_or_else(|| "somewhere".to_string(), ToString::to_string);
        let thread = std::thread::current();
        let thread = thread.name().unwrap_or("unnamed");
        // Bypass the log: its filter may hide the line, and it may be the source of the panic.
        eprintln!("bywash: internal error, thread {thread}, {place}: {message}: this is a bug, please report it");
        if std::env::var_os("RUST_BACKTRACE").is_some() {
            eprintln!("{}", std::backtrace::Backtrace::force_capture());
        }
    }));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::sync::{Arc, Mutex};

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn journal_lines_have_priorities() {
        let lines = Lines::default();
        let writer = lines.clone();
        let log = tracing_subscriber::fmt()
            .with_ansi(false)
            .event_format(Journal)
            .with_writer(move || writer.clone())
            .finish();
        tracing::subscriber::with_default(log, || {
            tracing::warn!(port = "eth0", "link down");
            tracing::info_span!("start", n = 2).in_scope(|| tracing::error!("no memory"));
        });
        let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        assert_eq!(text, "<4>link down port=\"eth0\"\n<3>start{n=2}: no memory\n");
    }
}
