//! Checks parsed TOML by the table of keys and records the position of each value and every error. Reading continues
//! after an error, so that all errors are reported at once; serde would stop at the first.

use crate::key::{Key, Section, Takes, either, kind};
use crate::problem::{Problem, Spans, nearest};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Positions of values, and the problems found so far.
#[derive(Default)]
pub struct Notes {
    pub spans: Spans,
    pub problems: Vec<Problem>,
    /// Problems with values that do not keep the configuration from being checked.
    pub misfits: Vec<Problem>,
    /// Positions of the secrets.
    pub secrets: Vec<std::ops::Range<usize>>,
}

impl Notes {
    /// Checks a table; `path` is its path, as in [`Spans`].
    pub fn table(&mut self, path: &str, section: &'static Section, table: &DeTable<'_>) {
        let text = |key: &str| table.get(key).and_then(|value| value.get_ref().as_str());
        let kind = kind(text("kind").filter(|_| section.is_port()));
        for (name, value) in table {
            match section.key(name.get_ref()) {
                Some(key) if key.applies(kind) => {
                    self.value(&format!("{path}.{}", key.name), section, key, key.takes_in(kind), value);
                }
                Some(key) => {
                    if key.takes.secret().is_some() {
                        self.secrets.push(value.span());
                    }
                    let kinds: Vec<_> = key.kinds.iter().map(|kind| kind.name()).collect();
                    let what = format!("a port of kind \"{}\" has no `{}`", kind.name(), key.name);
                    let expected = format!("only of kind {}", either(&kinds));
                    self.problems.push(Problem { span: Some(name.span()), ..Problem::at("", what, expected) });
                }
                None => {
                    let known = || section.keys.iter().map(|key| key.name);
                    let meant = nearest(name.get_ref(), known()).and_then(|name| section.key(name));
                    if meant.is_none_or(|key| key.takes.secret().is_some()) {
                        self.secrets.push(value.span());
                    }
                    let expected = match nearest(name.get_ref(), known()) {
                        Some(name) => format!("did you mean `{name}`?"),
                        None => "not a key here".into(),
                    };
                    let what = format!("unknown key `{}` in {}", name.get_ref(), section.header);
                    let list = known().collect::<Vec<_>>().join(", ");
                    self.problems.push(Problem {
                        span: Some(name.span()),
                        help: format!("keys of {}: {list}", section.header),
                        ..Problem::at(path, what, expected)
                    });
                }
            }
        }
        // The required keys of a port depend on its kind.
        let missing = |key: &&Key| key.required() && !section.is_port() && !table.contains_key(key.name);
        for key in section.keys.iter().filter(missing) {
            let what = format!("{} has no {}", place(path), key.name);
            self.problems.push(Problem::at(path, what, format!("add `{} = \"..\"`", key.name)));
        }
    }

    /// Records the position of a key's value, a problem if it is refused, and those of the tables in it.
    pub fn value(&mut self, path: &str, section: &Section, key: &Key, takes: &Takes, value: &Spanned<DeValue<'_>>) {
        self.spans.insert(path.into(), Some(value.span()));
        let secret = takes.secret().is_some() && !value.get_ref().is_table();
        if secret {
            self.secrets.push(value.span());
        }
        let value = value.get_ref();
        match (takes.refuses(value), value, takes.section()) {
            (Some(expected), ..) => {
                let header = if section.header.is_empty() { String::new() } else { format!(" in {}", section.header) };
                let what = match secret {
                    true => format!("invalid `{}`{header}", key.name),
                    false => format!("`{}`{header} cannot be {}", key.name, shown(value)),
                };
                self.problems.push(Problem::at(path, what, expected));
            }
            (None, DeValue::Table(table), Some(nested)) => self.table(path, nested, table),
            _ => self.misfits.extend(
                takes
                    .misfit(value)
                    .map(|(what, expected)| Problem::at(path, what, format!("{expected} {}", key.unit).trim_end())),
            ),
        }
    }
}

/// Returns the table at a path in words: `group 1` for `group.0`, `depi` for `group.0.depi`.
fn place(path: &str) -> String {
    let (table, last) = path.rsplit_once('.').unwrap_or(("", path));
    last.parse::<usize>().map_or_else(|_| format!("`{last}`"), |at| format!("{table} {}", at + 1))
}

fn shown(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => format!("\"{text}\""),
        DeValue::Integer(number) => number.to_string(),
        DeValue::Float(number) => number.to_string(),
        DeValue::Boolean(truth) => truth.to_string(),
        DeValue::Array(list) if list.len() <= 8 && list.iter().all(|value| is_scalar(value.get_ref())) => {
            format!("[{}]", list.iter().map(|value| shown(value.get_ref())).collect::<Vec<_>>().join(", "))
        }
        other => format!("a{} {}", if other.is_array() { "n" } else { "" }, other.type_str()),
    }
}

fn is_scalar(value: &DeValue<'_>) -> bool {
    !value.is_array() && !value.is_table()
}
