//! Configuration errors and their presentation.

use annotate_snippets::{AnnotationKind, Level, Renderer, Snippet};
use std::collections::HashMap;
use std::fmt;
use std::ops::Range;

/// Position of each value in the source, by path: `pool.frames`, `port.1.ring.rx`. `None` for a value from the command
/// line.
pub type Spans = HashMap<String, Option<Range<usize>>>;

/// Configuration error.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Problem {
    /// Path of the invalid value, as in [`Spans`], or of the nearest enclosing table that has a position.
    pub path: String,
    /// Position, if it is not that of `path`: an unknown key, a syntax error.
    pub span: Option<Range<usize>>,
    /// Error message, in one line without the file name.
    pub what: String,
    /// Expected value, printed beside the invalid one.
    pub expected: String,
    /// Path of a related value, and a label for it.
    pub other: Option<(String, String)>,
    /// Advice, if `what` and `expected` are not enough.
    pub help: String,
}

impl Problem {
    pub fn at(path: impl Into<String>, what: impl Into<String>, expected: impl Into<String>) -> Self {
        Self { path: path.into(), what: what.into(), expected: expected.into(), ..Self::default() }
    }

    pub fn help(self, help: impl Into<String>) -> Self {
        Self { help: help.into(), ..self }
    }

    pub fn other(self, path: impl Into<String>, what: impl Into<String>) -> Self {
        Self { other: Some((path.into(), what.into())), ..self }
    }

    /// Returns the position in the source: that of `span`, or of the innermost part of `path` that has one.
    fn place(&self, spans: &Spans) -> Option<Range<usize>> {
        self.span.clone().or_else(|| place(&self.path, spans))
    }
}

fn place(mut path: &str, spans: &Spans) -> Option<Range<usize>> {
    loop {
        if let Some(span) = spans.get(path) {
            return span.clone();
        }
        path = &path[..path.rfind('.')?];
    }
}

/// Text of a configuration file.
#[derive(Clone, Debug, Default)]
pub struct Source {
    /// Name in error messages.
    pub name: String,
    /// Contents.
    pub text: String,
}

/// All errors of a configuration. `Display` prints them as shown to the user, without colours.
#[derive(Debug)]
pub struct ConfigErrors {
    source: Option<Box<Source>>,
    spans: Spans,
    problems: Vec<Problem>,
    /// Where what the file can have is described.
    described: &'static str,
}

impl ConfigErrors {
    /// Creates the errors from at least one problem, sorted by position.
    pub(crate) fn new(source: Option<Source>, spans: Spans, mut problems: Vec<Problem>) -> Self {
        problems.sort_by_key(|problem| problem.place(&spans).map_or(usize::MAX, |span| span.start));
        let source = source.map(Box::new);
        Self { source, spans, problems, described: "`bywash config reference` lists what can be set" }
    }

    /// Creates the error in the text of another file in TOML. `described` says where its keys are described.
    pub fn of_toml(name: &str, text: &str, why: &toml::de::Error, described: &'static str) -> Self {
        let span = why.span().or(Some(0..0));
        let mut lines = why.message().lines();
        let what = lines.next().unwrap_or("not TOML").to_owned();
        let problem = Problem { span, ..Problem::at("", what, lines.collect::<Vec<_>>().join(", ")) };
        let source = Source { name: name.into(), text: text.into() };
        Self { source: Some(source.into()), spans: Spans::new(), problems: vec![problem], described }
    }

    /// Renders every problem with the lines it refers to, followed by a one-line summary as the last line.
    pub fn render(&self, colours: bool) -> String {
        let renderer = if colours { Renderer::styled() } else { Renderer::plain() };
        let mut out = String::new();
        let mut placed = 0;
        for problem in &self.problems {
            match (&self.source, problem.place(&self.spans)) {
                (Some(source), Some(span)) => {
                    placed += 1;
                    out += &self.snippet(&renderer, source, problem, span);
                    out += "\n\n";
                }
                // No position in the file: from the command line, or about the file as a whole.
                _ => {
                    out += &format!("bywash: {}", problem.what);
                    for more in [&problem.expected, &problem.help].into_iter().filter(|more| !more.is_empty()) {
                        out += &format!(": {more}");
                    }
                    out += "\n";
                }
            }
        }
        if let Some(source) = self.source.as_ref().filter(|_| placed > 0) {
            let errors = if placed == 1 { "error".into() } else { format!("{placed} errors") };
            let name = &source.name;
            out += &format!("bywash: {errors} in {name}: see above; {}\n", self.described);
        }
        out
    }

    fn snippet(&self, renderer: &Renderer, source: &Source, problem: &Problem, span: Range<usize>) -> String {
        let within = |span: Range<usize>| {
            let end = span.end.min(source.text.len());
            span.start.min(end)..end
        };
        let mut snippet = Snippet::source(source.text.as_str())
            .path(source.name.as_str())
            .annotation(AnnotationKind::Primary.span(within(span)).label(problem.expected.as_str()));
        if let Some((path, what)) = &problem.other
            && let Some(span) = place(path, &self.spans)
        {
            snippet = snippet.annotation(AnnotationKind::Context.span(within(span)).label(what.as_str()));
        }
        let mut group = Level::ERROR.primary_title(problem.what.as_str()).element(snippet);
        if !problem.help.is_empty() {
            group = group.element(Level::HELP.message(problem.help.as_str()));
        }
        renderer.render(&[group])
    }

    #[cfg(test)]
    pub(crate) fn problems(&self) -> &[Problem] {
        &self.problems
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.render(false).trim_end())
    }
}

impl std::error::Error for ConfigErrors {}

/// Returns the name in `names` that `given` is most likely a misspelling of.
pub fn nearest<'a>(given: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let limit = given.len().max(3) / 3;
    let scored = names.into_iter().map(|name| (distance(given, name), name));
    scored.filter(|(distance, _)| *distance <= limit).min().map(|(_, name)| name)
}

/// Returns the edit distance between two words (insert, delete, replace, swap neighbours), ignoring case and treating
/// `-` in `a` as `_`.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) =
        (a.to_lowercase().replace('-', "_").chars().collect(), b.to_lowercase().chars().collect());
    let mut before = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let mut best = (last[j] + 1).min(row[j - 1] + 1).min(last[j - 1] + usize::from(a[i - 1] != b[j - 1]));
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                let two: &Vec<usize> = &before;
                best = best.min(two[j - 2] + 1);
            }
            row.push(best);
        }
        before = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips() {
        let names = ["queues", "zero_copy", "kind", "ring"];
        assert_eq!(nearest("qeues", names), Some("queues"));
        assert_eq!(nearest("zero-copy", names), Some("zero_copy"));
        assert_eq!(nearest("knid", names), Some("kind"));
        assert_eq!(nearest("colour", names), None);
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("abc", "acb"), 1);
    }
}
