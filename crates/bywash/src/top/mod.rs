//! `bywash top`: the running instance, live.

mod figures;
mod screen;
mod text;

use crate::cli::top::TopArgs;
use crate::error::Usage;
use anyhow::Context as _;
use figures::{Figures, Look};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::time::Timespec;
use screen::{Screen, Wish};
use std::io::{IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use text::{View, headline, render};

/// How often it looks whether it is to end while nothing is typed.
const GLANCE: Duration = Duration::from_millis(100);

/// Shows one look, or one after the other.
pub fn run(args: &TopArgs) -> anyhow::Result<()> {
    if let Some(file) = &args.from {
        let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
        let figures = serde_json::from_str(&text);
        let figures =
            figures.map_err(|why| Usage(format!("{}: not what `top --json` writes: {why}", file.display())))?;
        return print(&figures, args.json);
    }
    if args.once || args.json {
        let before = Look::take(&args.socket)?;
        std::thread::sleep(Duration::from_secs_f64(args.interval));
        return print(&Figures::between(&before, &Look::take(&args.socket)?), args.json);
    }
    let term = std::env::var("TERM").unwrap_or_default();
    if !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        return Err(
            Usage("there is no terminal to draw on: --once prints one look, --json one for programs".into()).into()
        );
    }
    if term.is_empty() || term == "dumb" {
        return Err(Usage(format!("TERM=`{term}` cannot be drawn on: set it, or use --once")).into());
    }
    // Before the screen is taken: is there one to look at?
    let first = Look::take(&args.socket)?;
    let stop = Arc::new(AtomicBool::new(false));
    // SIGHUP ends it at once: there is no terminal to put right.
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, stop.clone())?;
    }
    let mut terminal = ratatui::try_init().context("cannot draw on this terminal")?;
    let done = live(args, first, &stop, &mut terminal);
    // A terminal that is gone need not be put right.
    let _ = ratatui::try_restore();
    done
}

fn print(figures: &Figures, json: bool) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    if json {
        return Ok(writeln!(out, "{}", serde_json::to_string(figures)?)?);
    }
    let (mode, seconds) = (&figures.mode, figures.interval_s);
    Ok(write!(out, "{mode}, {seconds:.1} s\n{}\n\n{}", headline(figures), render(figures, View::Overview))?)
}

/// Until somebody wants it to end, or the terminal is gone.
fn live(args: &TopArgs, first: Look, stop: &AtomicBool, terminal: &mut DefaultTerminal) -> anyhow::Result<()> {
    let (mut screen, mut before, mut due) = (Screen::new(args.interval), first, Instant::now());
    // The first figures come soon.
    due += Duration::from_secs_f64(args.interval.min(0.3));
    while !stop.load(Ordering::Acquire) {
        if Instant::now() >= due {
            due = Instant::now() + Duration::from_secs_f64(screen.interval);
            match Look::take(&args.socket) {
                Ok(_) if screen.paused => {}
                Ok(now) => {
                    screen.show(Figures::between(&before, &now));
                    before = now;
                }
                Err(why) => screen.error = Some(format!("{why:#}")),
            }
        }
        let drawn = terminal.draw(|frame| screen.draw(frame)).map(drop);
        let wait = due.saturating_duration_since(Instant::now()).min(GLANCE);
        if gone(wait) {
            return Ok(());
        }
        drawn.context("the terminal takes no more")?;
        // All that has come is dealt with before it is drawn again.
        while event::poll(Duration::ZERO).context("the terminal is gone")? {
            if let Event::Key(key) = event::read().context("the terminal is gone")?
                && key.kind == KeyEventKind::Press
                && screen.key(key) == Wish::End
            {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// Waits until something is typed, at most so long. Whether the terminal is gone: on such a one crossterm would read for
/// ever.
fn gone(wait: Duration) -> bool {
    let stdin = std::io::stdin();
    let mut fds = [PollFd::new(&stdin, PollFlags::IN)];
    let timeout = Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: wait.subsec_nanos().into() };
    match poll(&mut fds, Some(&timeout)) {
        Ok(_) => fds[0].revents().intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL),
        // By a signal: it was resized, or is to end.
        Err(why) => why != Errno::INTR,
    }
}
