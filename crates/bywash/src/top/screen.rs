//! Screen layout: a line of totals, four lines of history, and a scrollable view.

use super::figures::Figures;
use super::text::{View, headline, render};
use ratatui::Frame;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Sparkline};
use std::collections::VecDeque;

/// Number of samples in the history: more than the width of a screen.
const PAST: usize = 512;
/// Selectable intervals in seconds.
const INTERVALS: [f64; 8] = [0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 60.0];

/// State of the screen.
pub struct Screen {
    pub figures: Figures,
    /// Error of the last sample.
    pub error: Option<String>,
    pub interval: f64,
    pub paused: bool,
    view: View,
    /// First visible line of the view.
    from: usize,
    /// History of received, sent and dropped packets per second, and of the load in per mille.
    past: [VecDeque<u64>; 4],
}

/// Action that a key requests.
#[derive(Debug, PartialEq, Eq)]
pub enum Wish {
    End,
    Nothing,
}

impl Screen {
    pub fn new(interval: f64) -> Self {
        let past = Default::default();
        let figures = Figures::default();
        Self { figures, error: None, interval, paused: false, view: View::Overview, from: 0, past }
    }

    /// Replaces the displayed figures and appends them to the history.
    pub fn show(&mut self, figures: Figures) {
        let total = &figures.total;
        let now = [total.rx_pps, total.tx_pps, total.drops_pps, 10.0 * total.busy_percent];
        for (past, now) in self.past.iter_mut().zip(now) {
            past.push_back(now.round() as u64);
            if past.len() > PAST {
                past.pop_front();
            }
        }
        (self.figures, self.error) = (figures, None);
    }

    /// Handles a key.
    pub fn key(&mut self, key: KeyEvent) -> Wish {
        let page = 10;
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return Wish::End,
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return Wish::End,
            KeyCode::Char(' ') => self.paused = !self.paused,
            KeyCode::Char('+') => self.interval = self.other_interval(|now, other| other > now),
            KeyCode::Char('-') => self.interval = self.other_interval(|now, other| other < now),
            KeyCode::Tab => (self.view, self.from) = (self.view.next(), 0),
            KeyCode::Down => self.from += 1,
            KeyCode::Up => self.from = self.from.saturating_sub(1),
            KeyCode::PageDown => self.from += page,
            KeyCode::PageUp => self.from = self.from.saturating_sub(page),
            KeyCode::Home => self.from = 0,
            KeyCode::End => self.from = usize::MAX,
            KeyCode::Char(key) => {
                if let Some((view, ..)) = View::ALL.iter().find(|(_, letter, _)| *letter == key) {
                    (self.view, self.from) = (*view, 0);
                }
            }
            _ => {}
        }
        Wish::Nothing
    }

    /// Returns the selectable interval nearest to the current one among those for which `is(current, other)` holds.
    fn other_interval(&self, is: impl Fn(f64, f64) -> bool) -> f64 {
        let others = INTERVALS.into_iter().filter(|other| is(self.interval, *other));
        let near = |a: &f64, b: &f64| (a - self.interval).abs().total_cmp(&(b - self.interval).abs());
        others.min_by(near).unwrap_or(self.interval)
    }

    /// Draws the screen; any terminal size is handled.
    pub fn draw(&mut self, frame: &mut Frame<'_>) {
        let rows = [Constraint::Length(1), Constraint::Length(4), Constraint::Min(0), Constraint::Length(1)];
        let [top, past, middle, bottom] = Layout::vertical(rows).areas(frame.area());
        let first = match &self.error {
            Some(why) => Line::from(why.as_str()).red(),
            None => Line::from(headline(&self.figures)).bold(),
        };
        frame.render_widget(Paragraph::new(first), top);

        let names = ["received", "sent", "dropped", "busy"];
        let colours = [Style::new().cyan(), Style::new().green(), Style::new().red(), Style::new().yellow()];
        for ((row, past), (name, style)) in past.rows().zip(&self.past).zip(names.into_iter().zip(colours)) {
            let [label, line] = Layout::horizontal([Constraint::Length(9), Constraint::Min(0)]).areas(row);
            frame.render_widget(Paragraph::new(name), label);
            // The latest samples are at the right.
            let seen = past.iter().skip(past.len().saturating_sub(line.width.into()));
            let of_load = (name == "busy").then_some(1000);
            let most = of_load.unwrap_or_else(|| past.iter().copied().max().unwrap_or(0).max(1));
            let line_of = Sparkline::default().style(style).max(most).data(seen.copied().collect::<Vec<u64>>());
            frame.render_widget(line_of, line);
        }

        let text = render(&self.figures, self.view);
        let lines: Vec<Line<'_>> = text.lines().map(Line::from).collect();
        let last = lines.len().saturating_sub(middle.height.into());
        self.from = self.from.min(last);
        let seen: Vec<Line<'_>> = lines.into_iter().skip(self.from).take(middle.height.into()).collect();
        frame.render_widget(Paragraph::new(seen), middle);

        let mut words = vec![];
        for (view, letter, name) in View::ALL {
            let word = Span::raw(format!(" {letter} {name} "));
            words.push(if view == self.view { word.reversed() } else { word });
        }
        let state = if self.paused { "paused".into() } else { format!("{} s", self.interval) };
        words.push(Span::raw(format!("  +/- {state}  q quit")));
        frame.render_widget(Paragraph::new(Line::from(words)), bottom);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::figures::{Drop, Port, Total};
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn figures() -> Figures {
        let port = |name: &str| Port { name: name.into(), state: "up".into(), rx_pps: 1.5e6, ..Port::default() };
        let drop = |n: u64| Drop { port: "a".into(), reason: format!("reason-{n}"), packets: n, ..Drop::default() };
        Figures {
            mode: "router".into(),
            total: Total { rx_pps: 3.0e6, busy_percent: 50.0, ..Total::default() },
            ports: vec![port("a"), port("b")],
            drops: (0..30).map(drop).collect(),
            ..Figures::default()
        }
    }

    fn drawn(screen: &mut Screen, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| screen.draw(frame)).unwrap();
        let buffer = terminal.backend().buffer().clone();
        let cell = |x: u16, y: u16| buffer[(x, y)].symbol().to_owned();
        (0..height).map(|y| (0..width).map(|x| cell(x, y)).collect::<String>().trim_end().to_owned()).collect()
    }

    #[test]
    fn a_screen_of_80_columns() {
        let mut screen = Screen::new(1.0);
        screen.show(figures());
        let lines = drawn(&mut screen, 80, 24);
        assert!(lines[0].starts_with("rx 3.00 Mpps 0 bit/s  tx 0 pps 0 bit/s  drops 0 pps  busy 50 %"), "{lines:#?}");
        assert!(lines[1].starts_with("received █") && lines[4].starts_with("busy     ▄"), "{lines:#?}");
        assert!(
            lines[5].starts_with("port") && lines[6].starts_with("a") && lines[6].contains("1.50 Mpps"),
            "{lines:#?}"
        );
        assert!(lines[23].contains("o overview") && lines[23].contains("1 s") && lines[23].contains("q quit"));
    }

    #[test]
    fn no_size_is_too_small() {
        for (width, height) in [(0, 0), (1, 1), (1, 40), (200, 1), (80, 2), (3, 5), (80, 6), (1000, 200)] {
            let mut screen = Screen::new(1.0);
            drawn(&mut screen, width, height);
            screen.show(figures());
            drawn(&mut screen, width, height);
        }
    }

    #[test]
    fn keys() {
        let mut screen = Screen::new(1.0);
        screen.show(figures());
        let press = |screen: &mut Screen, code| screen.key(KeyEvent::from(code));
        assert_eq!(press(&mut screen, KeyCode::Char('d')), Wish::Nothing);
        let reasons = |lines: &[String]| lines.iter().filter(|line| line.contains("reason-")).count();
        assert_eq!(reasons(&drawn(&mut screen, 80, 24)), 17, "as many rows as fit below the heading");
        // End scrolls until the last line is at the bottom, and no further.
        press(&mut screen, KeyCode::End);
        let lines = drawn(&mut screen, 80, 24);
        assert!(lines[22].contains("reason-29"), "{lines:#?}");
        press(&mut screen, KeyCode::PageUp);
        press(&mut screen, KeyCode::Down);
        assert!(drawn(&mut screen, 80, 24)[22].contains("reason-20"));
        press(&mut screen, KeyCode::Tab);
        assert!(drawn(&mut screen, 80, 24)[5].starts_with("port"));
        press(&mut screen, KeyCode::Char('+'));
        press(&mut screen, KeyCode::Char('+'));
        press(&mut screen, KeyCode::Char('-'));
        assert_eq!(screen.interval, 2.0);
        press(&mut screen, KeyCode::Char(' '));
        assert!(screen.paused);
        assert_eq!(press(&mut screen, KeyCode::Char('c')), Wish::Nothing);
        assert_eq!(screen.key(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)), Wish::End);
        assert_eq!(press(&mut screen, KeyCode::Char('q')), Wish::End);
    }
}
