//! SVG charts for embedding in an HTML page.

use std::fmt::Write as _;

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 320.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 150.0;
const TOP: f64 = 20.0;
const BOTTOM: f64 = 50.0;
/// Palette distinguishable with colour blindness (Okabe and Ito, 2008).
const COLOURS: [&str; 7] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#555555"];

/// Named series of points.
pub struct Line {
    pub name: String,
    pub points: Vec<(f64, f64)>,
}

/// Axis of a chart.
pub struct Axis {
    pub title: &'static str,
    /// Tick values with their labels.
    pub ticks: Vec<(f64, String)>,
    pub logarithmic: bool,
}

impl Axis {
    /// Creates a linear axis from 0 to the first round number that is at least `most`.
    pub fn linear(title: &'static str, most: f64) -> Self {
        let most = if most > 0.0 { most } else { 1.0 };
        let unit = 10f64.powf((most / 5.0).log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|n| n * unit).into_iter().find(|step| step * 5.0 >= most);
        let step = step.unwrap_or(10.0 * unit);
        let count = (most / step).ceil() as u32;
        let ticks = (0..=count).map(|n| f64::from(n) * step).map(|value| (value, short(value))).collect();
        Self { title, ticks, logarithmic: false }
    }

    /// Creates a logarithmic axis over the powers of ten that enclose these values, which must be positive.
    pub fn logarithmic(title: &'static str, least: f64, most: f64) -> Self {
        let (low, high) = (least.max(1e-3).log10().floor() as i32, most.max(1e-2).log10().ceil() as i32);
        let ticks = (low..=high.max(low + 1)).map(|n| 10f64.powi(n)).map(|value| (value, short(value))).collect();
        Self { title, ticks, logarithmic: true }
    }

    /// Creates an axis with these labels at even distances.
    pub fn names(title: &'static str, names: Vec<String>) -> Self {
        let ticks = names.into_iter().enumerate().map(|(i, name)| (i as f64, name)).collect();
        Self { title, ticks, logarithmic: false }
    }

    fn scale(&self, value: f64) -> f64 {
        let scaled = |value: f64| if self.logarithmic { value.max(1e-9).log10() } else { value };
        let (first, last) = match (self.ticks.first(), self.ticks.last()) {
            (Some(first), Some(last)) if last.0 > first.0 => (scaled(first.0), scaled(last.0)),
            _ => return 0.5,
        };
        ((scaled(value) - first) / (last - first)).clamp(0.0, 1.0)
    }
}

fn short(value: f64) -> String {
    match value.abs() {
        a if a >= 1e9 => format!("{} G", value / 1e9),
        a if a >= 1e6 => format!("{} M", value / 1e6),
        a if a >= 1e3 => format!("{} k", value / 1e3),
        _ => format!("{}", (value * 1e6).round() / 1e6),
    }
}

fn x(share: f64) -> f64 {
    LEFT + share * (WIDTH - LEFT - RIGHT)
}

fn y(share: f64) -> f64 {
    HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)
}

/// Returns the text escaped for HTML.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

fn frame(id: &str, title: &str, across: &Axis, up: &Axis) -> String {
    let mut svg = format!(
        "<svg id=\"{id}\" role=\"img\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" xmlns=\"http://www.w3.org/2000/svg\">\
         <title>{}</title>\n",
        escape(title)
    );
    for (value, text) in &up.ticks {
        let at = y(up.scale(*value));
        let _ = writeln!(
            svg,
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{text}</text>",
            WIDTH - RIGHT,
            LEFT - 6.0,
            at + 4.0
        );
    }
    for (value, text) in &across.ticks {
        let at = x(across.scale(*value));
        let below = HEIGHT - BOTTOM + 18.0;
        let _ = writeln!(svg, "<text x=\"{at:.1}\" y=\"{below}\" text-anchor=\"middle\">{}</text>", escape(text));
    }
    let (middle, bottom) = (x(0.5), HEIGHT - 8.0);
    let _ = writeln!(
        svg,
        "<text x=\"{middle:.1}\" y=\"{bottom}\" text-anchor=\"middle\">{}</text>\
         <text x=\"14\" y=\"{:.1}\" text-anchor=\"middle\" transform=\"rotate(-90 14 {:.1})\">{}</text>",
        across.title,
        y(0.5),
        y(0.5),
        up.title
    );
    svg
}

/// Returns a line chart with the series names beside it.
pub fn lines(id: &str, title: &str, across: &Axis, up: &Axis, lines: &[Line]) -> String {
    let mut svg = frame(id, title, across, up);
    for (i, line) in lines.iter().enumerate() {
        let colour = COLOURS[i % COLOURS.len()];
        let points: Vec<(f64, f64)> = line.points.iter().map(|(a, b)| (x(across.scale(*a)), y(up.scale(*b)))).collect();
        let path: Vec<String> = points.iter().map(|(a, b)| format!("{a:.1},{b:.1}")).collect();
        let _ = writeln!(
            svg,
            "<polyline class=\"series\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" points=\"{}\"/>",
            path.join(" ")
        );
        for (a, b) in points {
            let _ = write!(svg, "<circle cx=\"{a:.1}\" cy=\"{b:.1}\" r=\"3\" fill=\"{colour}\"/>");
        }
        let (at, side) = (TOP + 10.0 + 18.0 * i as f64, WIDTH - RIGHT + 12.0);
        let _ = writeln!(svg, "<text x=\"{side}\" y=\"{at}\" style=\"fill:{colour}\">{}</text>", escape(&line.name));
    }
    svg + "</svg>\n"
}

/// Returns a bar chart with a mark above each bar for its maximum. `values`: (value, maximum).
pub fn bars(id: &str, title: &str, across: &Axis, up: &Axis, values: &[(f64, f64)]) -> String {
    let mut svg = frame(id, title, across, up);
    let width = (WIDTH - LEFT - RIGHT) / values.len().max(1) as f64;
    for (i, (value, most)) in values.iter().enumerate() {
        let middle = if values.len() == 1 { x(0.5) } else { x(across.scale(i as f64)) };
        let half = (width * 0.3).min(30.0);
        let (top, bottom, line) = (y(up.scale(*value)), y(0.0), y(up.scale(*most)));
        let _ = writeln!(
            svg,
            "<rect class=\"series\" x=\"{:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{}\"/>\
             <line x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{line:.1}\" y2=\"{line:.1}\" stroke=\"{}\" stroke-width=\"3\"/>",
            middle - half,
            2.0 * half,
            (bottom - top).max(0.0),
            COLOURS[0],
            middle - half - 3.0,
            middle + half + 3.0,
            COLOURS[1]
        );
    }
    let side = WIDTH - RIGHT + 12.0;
    let _ = writeln!(
        svg,
        "<text x=\"{side}\" y=\"{}\" style=\"fill:{}\">found</text><text x=\"{side}\" y=\"{}\"
        style=\"fill:{}\">highest \
         tried</text>",
        TOP + 10.0,
        COLOURS[0],
        TOP + 28.0,
        COLOURS[1]
    );
    svg + "</svg>\n"
}
