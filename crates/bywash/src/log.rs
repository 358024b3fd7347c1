//! Logging to stderr, and the panic hook.
//!
//! A reader of stderr may stall: a terminal after Ctrl-S, a pager, a collector of logs. So an instance that forwards
//! does not write its lines itself: the thread that follows the kernel would wait for the reader, and packets would go
//! by old routes meanwhile.

use crate::error::Usage;
use bywash_sync::lock;
use std::cell::Cell;
use std::collections::VecDeque;
use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::panic::AssertUnwindSafe;
use std::process::ExitCode;
use std::sync::{Condvar, Mutex, OnceLock};
use std::time::{Duration, Instant};
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
    let builder = tracing_subscriber::fmt().with_max_level(Level::TRACE).with_writer(|| Stderr);
    let terminal = std::io::stderr().is_terminal();
    // Fails only if logging is set up already, as in a test.
    let _ = if is_journal(std::io::stderr(), std::env::var("JOURNAL_STREAM").ok().as_deref()) {
        builder.with_ansi(false).event_format(Journal).finish().with(filter).try_init()
    } else {
        let colours = terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        builder.with_ansi(colours).with_target(false).with_timer(time::SystemTime).finish().with(filter).try_init()
    };
    Ok(())
}

/// Returns whether `stream` is the connection to journald that JOURNAL_STREAM names by its device and inode
/// (systemd.exec(5)): a service's stderr may be a file although its stdout is the journal.
fn is_journal(stream: impl AsFd, variable: Option<&str>) -> bool {
    let file = rustix::fs::fstat(stream);
    file.is_ok_and(|file| variable == Some(&format!("{}:{}", file.st_dev, file.st_ino)))
}

/// Octets of lines that wait for the reader of stderr, at most.
const WAITING: usize = 1 << 20;
/// Time that the end of the program, or of a thread, leaves to the reader for the last lines.
const LAST_LINES: Duration = Duration::from_secs(1);

/// Lines that a thread writes to stderr, once it has been started.
static QUEUE: OnceLock<Queue> = OnceLock::new();

thread_local! {
    /// Set on the thread that writes the lines of [`QUEUE`].
    static WRITES: Cell<bool> = const { Cell::new(false) };
}

/// Has a thread write to stderr from now on, so that no other thread waits for its reader. The thread has the
/// privileges of the caller.
pub fn write_from_thread() {
    let write = || {
        WRITES.set(true);
        let lost = |lines| tracing::warn!("{lines} lines of the log are lost here: nobody read it");
        queue().write(&mut io::stderr(), lost);
    };
    match std::thread::Builder::new().name("bywash-log".into()).spawn(write) {
        Ok(_) => _ = queue(),
        Err(why) => tracing::warn!("no thread writes the log: {why}; while nobody reads it, nothing is followed"),
    }
}

/// Writes to stderr like the log, but whatever its level, and waits for a moment until everything has been written.
pub fn print(text: &str) {
    // A failure to write to stderr cannot be reported.
    let _ = Stderr.write(text.as_bytes());
    // The thread that writes would wait for itself.
    if !WRITES.get() {
        flush();
    }
}

/// Waits for a moment until all lines have been written.
pub fn flush() {
    if let Some(queue) = QUEUE.get() {
        queue.flush(LAST_LINES);
    }
}

fn queue() -> &'static Queue {
    QUEUE.get_or_init(Queue::default)
}

/// Stderr, by way of the thread that writes to it, if there is one.
struct Stderr;

impl Write for Stderr {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        match QUEUE.get() {
            Some(queue) if !WRITES.get() => queue.put(line),
            _ => io::stderr().write_all(line)?,
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Lines on their way to a writer that may stall.
#[derive(Debug, Default)]
struct Queue {
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Waiting {
    items: VecDeque<Item>,
    /// Octets of all lines.
    octets: usize,
    /// Number of lines that found no room since the last item.
    lost: u64,
    /// Set while the thread is writing.
    writing: bool,
}

#[derive(Debug, PartialEq, Eq)]
enum Item {
    Line(Vec<u8>),
    /// Number of lines that were lost here.
    Lost(u64),
}

impl Queue {
    /// Adds a line, or counts it as lost if there is no room.
    fn put(&self, line: &[u8]) {
        let mut waiting = lock(&self.waiting);
        if waiting.octets + line.len() > WAITING {
            waiting.lost += 1;
            return;
        }
        let lost = waiting.take_lost();
        waiting.items.extend(lost);
        waiting.octets += line.len();
        waiting.items.push_back(Item::Line(line.to_vec()));
        drop(waiting);
        self.changed.notify_all();
    }

    /// Writes the lines as they come, and calls `lost` in place of those that were lost.
    fn write(&self, out: &mut impl Write, lost: impl Fn(u64)) {
        loop {
            match self.next() {
                // A failure to write to stderr cannot be reported.
                Item::Line(line) => _ = out.write_all(&line),
                Item::Lost(lines) => lost(lines),
            }
        }
    }

    /// Waits for the next item, and takes it.
    fn next(&self) -> Item {
        let mut waiting = lock(&self.waiting);
        waiting.writing = false;
        loop {
            let item = waiting.items.pop_front().or_else(|| waiting.take_lost());
            if let Some(item) = item {
                if let Item::Line(line) = &item {
                    waiting.octets -= line.len();
                }
                waiting.writing = true;
                return item;
            }
            self.changed.notify_all();
            waiting = self.changed.wait(waiting).unwrap_or_else(std::sync::PoisonError::into_inner);
        }
    }

    /// Waits until everything has been written, but not longer than `most`.
    fn flush(&self, most: Duration) {
        let until = Instant::now() + most;
        let mut waiting = lock(&self.waiting);
        while waiting.writing || !waiting.items.is_empty() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            waiting = self.changed.wait_timeout(waiting, left).unwrap_or_else(std::sync::PoisonError::into_inner).0;
        }
    }
}

impl Waiting {
    fn take_lost(&mut self) -> Option<Item> {
        let lost = std::mem::take(&mut self.lost);
        (lost > 0).then_some(Item::Lost(lost))
    }
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
        let mut text =
            format!("bywash: internal error, thread {thread}, {place}: {message}: this is a bug, please report it\n");
        if std::env::var_os("RUST_BACKTRACE").is_some() {
            text.push_str(&format!("{}\n", std::backtrace::Backtrace::force_capture()));
        }
        // The program may be ending.
        print(&text);
    }));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::mpsc::{Receiver, Sender, channel};

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

    #[test]
    fn the_journal_is_the_stream_of_its_device_and_inode() {
        let (stream, other) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
        let file = rustix::fs::fstat(&stream).unwrap();
        let variable = format!("{}:{}", file.st_dev, file.st_ino);
        assert!(is_journal(&stream, Some(&variable)));
        assert!(!is_journal(&other, Some(&variable)) && !is_journal(&stream, None));
    }

    /// A writer that stalls after each line until it is told to go on.
    struct Stalling {
        lines: Sender<String>,
        go_on: Receiver<()>,
    }

    impl Write for Stalling {
        fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
            self.lines.send(String::from_utf8(line.to_vec()).unwrap()).unwrap();
            // Without its other end, the test is over.
            let _ = self.go_on.recv();
            Ok(line.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_wait_for_the_reader_and_the_lost_are_counted_where_they_are_missing() {
        let queue: &'static Queue = Box::leak(Box::default());
        let ((lines, written), (proceed, go_on)) = (channel(), channel());
        let of_lost = lines.clone();
        let lost = move |lines| of_lost.send(format!("{lines} lost")).unwrap();
        std::thread::spawn(move || queue.write(&mut Stalling { lines, go_on }, lost));
        let next = || written.recv().unwrap();
        let long = |letter: char| letter.to_string().repeat(WAITING / 2);
        queue.put(b"first");
        assert_eq!(next(), "first");
        // The writer stalls; two of these have room.
        for letter in ['a', 'b', 'c', 'd'] {
            queue.put(long(letter).as_bytes());
        }
        queue.flush(Duration::from_millis(1));
        assert_eq!(lock(&queue.waiting).items.len(), 2);
        proceed.send(()).unwrap();
        assert_eq!(next(), long('a'));
        queue.put(b"last");
        for expected in [long('b'), "2 lost".to_owned(), "last".to_owned()] {
            if expected != "last" {
                proceed.send(()).unwrap();
            }
            assert_eq!(next(), expected);
        }
        proceed.send(()).unwrap();
        queue.flush(Duration::from_secs(60));
        // Lines that are lost at the end are counted, too.
        queue.put(b"again");
        assert_eq!(next(), "again");
        queue.put(&vec![0; WAITING + 1]);
        proceed.send(()).unwrap();
        assert_eq!(next(), "1 lost");
    }
}
