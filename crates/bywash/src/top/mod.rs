//! `bywash top`: live view of the running instance.

mod figures;
mod screen;
mod text;

use crate::cli::top::TopArgs;
use crate::error::Usage;
use crate::stdout::stdout;
use anyhow::Context as _;
use figures::{Figures, Sample};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::time::Timespec;
use screen::{Screen, Wish};
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};
use text::{View, headline, render};

/// Longest interval for checking the stop flag, and for a sample, while there is no input.
const GLANCE: Duration = Duration::from_millis(100);
/// Shortest interval for checking for a sample.
const SOON: Duration = Duration::from_millis(5);

/// Runs `bywash top`: prints one sample, or shows the live view.
pub fn run(args: &TopArgs) -> anyhow::Result<()> {
    if let Some(file) = &args.from {
        let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
        let figures = serde_json::from_str(&text);
        let figures =
            figures.map_err(|why| Usage(format!("{}: not in the format of `top --json`: {why}", file.display())))?;
        return print(&figures, args.json);
    }
    if args.once || args.json {
        let before = Sample::take(&args.socket)?;
        std::thread::sleep(Duration::from_secs_f64(args.interval));
        return print(&Figures::between(&before, &Sample::take(&args.socket)?), args.json);
    }
    let term = std::env::var("TERM").unwrap_or_default();
    if !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        return Err(
            Usage("no terminal to draw on: use --once to print one sample, or --json for programs".into()).into()
        );
    }
    if term.is_empty() || term == "dumb" {
        return Err(Usage(format!("cannot draw on TERM=`{term}`: set TERM, or use --once")).into());
    }
    // Connect before the screen is set up, so that an error is readable.
    let first = Sample::take(&args.socket)?;
    let stop = Arc::new(AtomicBool::new(false));
    // On SIGHUP the terminal may still be there.
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP] {
        signal_hook::flag::register(signal, stop.clone())?;
    }
    // crossterm would report a resize in place of a key that is typed at the same time, and read the key only when
    // another one is typed. The size is read whenever the screen is drawn.
    nix::sys::signal::SigSet::from(nix::sys::signal::Signal::SIGWINCH).thread_block()?;
    let mut terminal = ratatui::try_init().context("cannot draw on this terminal")?;
    let done = live(args, first, &stop, &mut terminal);
    // Ignore errors: a terminal that has disappeared need not be restored.
    let _ = ratatui::try_restore();
    done
}

fn print(figures: &Figures, json: bool) -> anyhow::Result<()> {
    let mut out = stdout();
    if json {
        return Ok(writeln!(out, "{}", serde_json::to_string(figures)?)?);
    }
    let (mode, seconds) = (&figures.mode, figures.interval_s);
    Ok(write!(out, "{mode}, {seconds:.1} s\n{}\n\n{}", headline(figures), render(figures, View::Overview))?)
}

/// Runs the live view until the user quits or the terminal disappears.
fn live(args: &TopArgs, first: Sample, stop: &AtomicBool, terminal: &mut DefaultTerminal) -> anyhow::Result<()> {
    let (mut screen, mut before, mut due) = (Screen::new(args.interval), first, Instant::now());
    // Show the first figures soon.
    due += Duration::from_secs_f64(args.interval.min(0.3));
    let (ask, samples) = sampler(&args.socket)?;
    // Time at which the sample was requested that has not come yet.
    let mut asked: Option<Instant> = None;
    while !stop.load(Ordering::Acquire) {
        if asked.is_none() && Instant::now() >= due {
            due = Instant::now() + Duration::from_secs_f64(screen.interval);
            asked = ask.send(()).is_ok().then(Instant::now);
        }
        if let Ok(sample) = samples.try_recv() {
            asked = None;
            match sample {
                Ok(_) if screen.paused => {}
                Ok(now) => {
                    screen.show(Figures::between(&before, &now));
                    before = now;
                }
                Err(why) => screen.error = Some(format!("{why:#}")),
            }
        }
        let drawn = terminal.draw(|frame| screen.draw(frame)).map(drop);
        let wait = match asked {
            Some(asked) => asked.elapsed().clamp(SOON, GLANCE),
            None => due.saturating_duration_since(Instant::now()).min(GLANCE),
        };
        if gone(wait) {
            return Ok(());
        }
        drawn.context("cannot write to the terminal")?;
        // Handle all pending input before the next redraw.
        while event::poll(Duration::ZERO).context("the terminal has disappeared")? {
            if let Event::Key(key) = event::read().context("the terminal has disappeared")?
                && key.kind == KeyEventKind::Press
                && screen.key(key) == Wish::End
            {
                return Ok(());
            }
        }
        // A key may have made the interval shorter.
        due = due.min(Instant::now() + Duration::from_secs_f64(screen.interval));
    }
    Ok(())
}

/// Starts a thread that takes a sample at each request: keys are read even while the instance does not answer.
fn sampler(socket: &Path) -> std::io::Result<(Sender<()>, Receiver<anyhow::Result<Sample>>)> {
    let ((ask, asked), (give, samples)) = (mpsc::channel::<()>(), mpsc::channel());
    let socket = socket.to_owned();
    let take = move || _ = asked.into_iter().try_for_each(|()| give.send(Sample::take(&socket)).ok());
    std::thread::Builder::new().name("samples".into()).spawn(take)?;
    Ok((ask, samples))
}

/// Waits for input, at most for `wait`. Returns true if the terminal has disappeared; crossterm would read from such a
/// terminal forever.
fn gone(wait: Duration) -> bool {
    let stdin = std::io::stdin();
    let mut fds = [PollFd::new(&stdin, PollFlags::IN)];
    let timeout = Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: wait.subsec_nanos().into() };
    match poll(&mut fds, Some(&timeout)) {
        Ok(_) => fds[0].revents().intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL),
        // Interrupted by a signal: a request to stop.
        Err(why) => why != Errno::INTR,
    }
}
