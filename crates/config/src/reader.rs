//! Reads values from parsed TOML and records the position of each value and every error. Reading continues after an
//! error, so that all errors are reported at once; serde would stop at the first.

use crate::keys::{Key, Section};
use crate::model::Auto;
use crate::problem::{Problem, Spans, nearest};
use clap::ValueEnum;
use std::ops::{Range, RangeInclusive};
use toml::de::{DeArray, DeTable, DeValue};

/// Positions of values, and the problems found so far.
#[derive(Default)]
pub struct Notes {
    pub spans: Spans,
    pub problems: Vec<Problem>,
}

/// TOML table that is being read.
pub struct Table<'a, 'i> {
    path: String,
    header: &'static str,
    table: &'a DeTable<'i>,
    pub notes: &'a mut Notes,
}

impl<'a, 'i> Table<'a, 'i> {
    /// Begins to read a table; records a problem for each unknown key.
    pub fn new(path: &str, section: &'static Section, table: &'a DeTable<'i>, notes: &'a mut Notes) -> Self {
        let keys = || section.keys.iter().map(|key: &Key| key.name);
        for key in table.keys().filter(|key| keys().all(|known| known != key.get_ref().as_ref())) {
            let expected = match nearest(key.get_ref(), keys()) {
                Some(name) => format!("did you mean `{name}`?"),
                None => "not a key here".into(),
            };
            let list = keys().collect::<Vec<_>>().join(", ");
            notes.problems.push(Problem {
                span: Some(key.span()),
                help: format!("keys of {}: {list}", section.header),
                ..Problem::at(path, format!("unknown key `{}` in {}", key.get_ref(), section.header), expected)
            });
        }
        Self { path: path.into(), header: section.header, table, notes }
    }

    fn path(&self, key: &str) -> String {
        format!("{}.{key}", self.path)
    }

    /// Returns the position of the key's name; `None` if the table does not have the key.
    pub fn key_span(&self, key: &str) -> Option<Range<usize>> {
        self.table.keys().find(|known| known.get_ref() == key).map(|known| known.span())
    }

    fn get(&mut self, key: &str) -> Option<&'a DeValue<'i>> {
        let value = self.table.get(key)?;
        self.notes.spans.insert(self.path(key), Some(value.span()));
        Some(value.get_ref())
    }

    fn wrong(&mut self, key: &str, value: &DeValue<'_>, expected: impl Into<String>) {
        let found = match value {
            DeValue::String(text) => format!("\"{text}\""),
            DeValue::Integer(number) => number.to_string(),
            DeValue::Float(number) => number.to_string(),
            DeValue::Boolean(truth) => truth.to_string(),
            other => format!("a{} {}", if other.is_array() { "n" } else { "" }, other.type_str()),
        };
        let what = format!("`{key}` in {} cannot be {found}", self.header);
        self.notes.problems.push(Problem::at(self.path(key), what, expected));
    }

    /// Returns the value of `key` as converted by `parse`. If `parse` returns `None`, records a problem with the text
    /// `expected`.
    fn parsed<T>(
        &mut self,
        key: &str,
        expected: impl Into<String>,
        parse: impl FnOnce(&'a DeValue<'i>) -> Option<T>,
    ) -> Option<T> {
        let value = self.get(key)?;
        let parsed = parse(value);
        if parsed.is_none() {
            self.wrong(key, value, expected);
        }
        parsed
    }

    pub fn integer(&mut self, key: &str, range: RangeInclusive<usize>) -> Option<usize> {
        let expected = format!("expected an integer from {} to {}", range.start(), range.end());
        self.parsed(key, expected, |value| integer(value, &range))
    }

    pub fn auto_integer(&mut self, key: &str, range: RangeInclusive<usize>) -> Option<Auto<usize>> {
        let expected = format!("expected \"auto\" or an integer from {} to {}", range.start(), range.end());
        self.parsed(key, expected, |value| auto(value, |value| integer(value, &range)))
    }

    pub fn boolean(&mut self, key: &str) -> Option<bool> {
        self.parsed(key, "expected true or false", |value| value.as_bool())
    }

    /// Reads a string that `check` accepts.
    pub fn text(&mut self, key: &str, check: impl FnOnce(&str) -> Result<(), String>) -> Option<String> {
        let text = self.parsed(key, "expected a string", |value| value.as_str())?;
        match check(text) {
            Ok(()) => Some(text.into()),
            Err(why) => {
                let what = format!("`{key}` in {} cannot be \"{text}\"", self.header);
                self.notes.problems.push(Problem::at(self.path(key), what, why));
                None
            }
        }
    }

    /// Reads the name of a variant of an enumeration.
    pub fn choice<T: ValueEnum>(&mut self, key: &str) -> Option<T> {
        let names: Vec<String> = T::value_variants()
            .iter()
            .filter_map(|variant| variant.to_possible_value())
            .map(|value| format!("\"{}\"", value.get_name()))
            .collect();
        let expected = format!("expected {}", names.join(" or "));
        self.parsed(key, expected, |value| T::from_str(value.as_str()?, false).ok())
    }

    /// Reads a list of different integers, or `word`, for which it returns `Some(None)`.
    pub fn list_or(&mut self, key: &str, word: &str, range: RangeInclusive<usize>) -> Option<Option<Vec<usize>>> {
        let expected =
            format!("expected \"{word}\" or a list of different integers from {} to {}", range.start(), range.end());
        self.parsed(key, expected, |value| match value.as_str() {
            Some(text) => (text == word).then_some(None),
            None => different(value, &range).map(Some),
        })
    }

    /// Reads a list of different integers.
    pub fn list(&mut self, key: &str, range: RangeInclusive<usize>) -> Option<Vec<usize>> {
        let expected = format!("expected a list of different integers from {} to {}", range.start(), range.end());
        self.parsed(key, expected, |value| different(value, &range))
    }

    /// Reads an integer, a list of integers, or `auto`.
    pub fn auto_one_or_more(&mut self, key: &str, range: RangeInclusive<usize>) -> Option<Auto<Vec<usize>>> {
        let bounds = format!("from {} to {}", range.start(), range.end());
        let expected = format!("expected \"auto\", an integer {bounds}, or a list of them");
        self.parsed(key, expected, |value| {
            auto(value, |value| match value.as_array() {
                Some(list) => integers(list, &range),
                None => integer(value, &range).map(|number| vec![number]),
            })
        })
    }

    /// Returns the value as a table with the keys of `section`; `None` if it is not a table.
    pub fn table(&mut self, key: &str, section: &'static Section) -> Option<Table<'_, 'i>> {
        let table = self.get(key)?.as_table()?;
        let path = self.path(key);
        Some(Table::new(&path, section, table, self.notes))
    }
}

fn integer(value: &DeValue<'_>, range: &RangeInclusive<usize>) -> Option<usize> {
    let number = value.as_integer()?;
    let number = i128::from_str_radix(number.as_str(), number.radix()).ok()?;
    usize::try_from(number).ok().filter(|number| range.contains(number))
}

/// Converts a non-empty list of different integers.
fn different(value: &DeValue<'_>, range: &RangeInclusive<usize>) -> Option<Vec<usize>> {
    let list = integers(value.as_array()?, range)?;
    let different = list.iter().enumerate().all(|(at, number)| !list[..at].contains(number));
    different.then_some(list)
}

/// Converts a non-empty list of integers.
fn integers(list: &DeArray<'_>, range: &RangeInclusive<usize>) -> Option<Vec<usize>> {
    let list: Option<Vec<usize>> = list.iter().map(|value| integer(value.get_ref(), range)).collect();
    list.filter(|list| !list.is_empty())
}

fn auto<T>(value: &DeValue<'_>, parse: impl FnOnce(&DeValue<'_>) -> Option<T>) -> Option<Auto<T>> {
    if value.as_str() == Some("auto") { Some(Auto::Auto) } else { parse(value).map(Auto::Set) }
}
