//! Configuration keys: what each takes, and the checks, defaults and words that follow from it.

use crate::choice::{Mode, PortKind};
use crate::text::Format;
use clap::ValueEnum;
use serde::de::DeserializeOwned;
use std::fmt;
use std::ops::RangeInclusive;
use toml::de::{DeArray, DeValue};

/// Values that a key takes. `Display` formats them as in docs/config.md.
pub enum Takes {
    /// True or false.
    Bool,
    /// Integer in a range.
    Int(RangeInclusive<usize>),
    /// Power of two in a range, with words for it in errors.
    PowerOfTwo(&'static str, RangeInclusive<usize>),
    /// Integer from a list, with words for it in errors.
    OneOf(&'static str, &'static [usize]),
    /// Name of a variant of an enumeration; the function returns all names.
    Choice(fn() -> Vec<String>),
    /// String in a format.
    Text(&'static Format),
    /// Non-empty list of different integers, with a word for them.
    List(&'static str, RangeInclusive<usize>),
    /// Integer, with words for it, or a non-empty list of such integers.
    OneOrMore(&'static str, RangeInclusive<usize>),
    /// Table with the keys of a section.
    Table(&'static Section),
    /// The named word, or another value.
    Or(&'static str, &'static Takes),
    /// Value of either kind.
    Either(&'static Takes, &'static Takes),
}

impl fmt::Display for Takes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bool => f.write_str("`true`, `false`"),
            Self::Int(range) => write!(f, "{} to {}", range.start(), range.end()),
            Self::PowerOfTwo(_, range) => write!(f, "a power of two from {} to {}", range.start(), range.end()),
            Self::OneOf(_, numbers) => f.write_str(&joined(numbers.iter(), ", ")),
            Self::Choice(names) => f.write_str(&joined(names().iter().map(|name| format!("`\"{name}\"`")), ", ")),
            Self::Text(format) => f.write_str(format.words),
            Self::List(items, _) => write!(f, "a list of {items}"),
            Self::OneOrMore(item, _) => write!(f, "{item}, a list of them"),
            Self::Table(_) => f.write_str("a table"),
            Self::Or(word, other) => write!(f, "`\"{word}\"`, {other}"),
            Self::Either(one, other) => write!(f, "{one}, or {other}"),
        }
    }
}

fn joined(items: impl Iterator<Item = impl ToString>, separator: &str) -> String {
    items.map(|item| item.to_string()).collect::<Vec<_>>().join(separator)
}

/// Formats alternatives, as in `1, 2 or 3`.
pub fn either(items: &[impl fmt::Display]) -> String {
    match items.split_last() {
        Some((last, [])) => last.to_string(),
        Some((last, others)) => format!("{} or {last}", joined(others.iter(), ", ")),
        None => String::new(),
    }
}

impl Takes {
    /// Returns what was expected instead of `value`; `None` if the value is valid. Does not look into tables.
    pub fn refuses(&self, value: &DeValue<'_>) -> Option<String> {
        match (self, value.as_str()) {
            (Self::Text(format) | Self::Either(Self::Text(format), _), Some(text)) => (format.check)(text).err(),
            _ => (!self.fits(value)).then(|| format!("expected {}", self.expected())),
        }
    }

    fn fits(&self, value: &DeValue<'_>) -> bool {
        match self {
            Self::Bool => value.is_bool(),
            Self::Int(range) | Self::PowerOfTwo(_, range) => {
                integer(value).is_some_and(|number| range.contains(&number))
            }
            Self::OneOf(..) => integer(value).is_some(),
            Self::Choice(names) => value.as_str().is_some_and(|text| names().iter().any(|name| name == text)),
            Self::Text(format) => value.as_str().is_some_and(|text| (format.check)(text).is_ok()),
            Self::List(_, range) => value.as_array().is_some_and(|list| all(list, range, true)),
            Self::OneOrMore(_, range) => match value.as_array() {
                Some(list) => all(list, range, false),
                None => integer(value).is_some_and(|number| range.contains(&number)),
            },
            Self::Table(_) => value.is_table(),
            Self::Or(word, other) => value.as_str() == Some(word) || other.fits(value),
            Self::Either(one, other) => one.fits(value) || other.fits(value),
        }
    }

    /// Returns the expected value in words, for an error message.
    fn expected(&self) -> String {
        let from = |range: &RangeInclusive<usize>| format!("from {} to {}", range.start(), range.end());
        let quoted = |name: &String| format!("\"{name}\"");
        match self {
            Self::Bool => "true or false".into(),
            Self::Int(range) | Self::PowerOfTwo(_, range) => format!("an integer {}", from(range)),
            Self::OneOf(_, numbers) => either(numbers),
            Self::Choice(names) => either(&names().iter().map(quoted).collect::<Vec<_>>()),
            Self::Text(_) => "a string".into(),
            Self::List(_, range) => format!("a list of different integers {}", from(range)),
            Self::OneOrMore(_, range) => format!("an integer {}, or a list of them", from(range)),
            Self::Table(_) => "a table".into(),
            Self::Or(word, other @ Self::OneOrMore(..)) => format!("\"{word}\", {}", other.expected()),
            Self::Or(word, Self::Choice(names)) => {
                either(&[vec![(*word).to_owned()], names()].concat().iter().map(quoted).collect::<Vec<_>>())
            }
            Self::Or(word, other) => format!("\"{word}\" or {}", other.expected()),
            Self::Either(one, other) => format!("{}, or {}", one.expected(), other.expected()),
        }
    }

    /// Returns an error message and what was expected if a value is not refused but does not fit. A configuration with
    /// such a value can still be checked.
    pub fn misfit(&self, value: &DeValue<'_>) -> Option<(String, String)> {
        let number = integer(value)?;
        match self {
            Self::Or(_, other) => other.misfit(value),
            Self::PowerOfTwo(name, _) if !number.is_power_of_two() => {
                let next = number.next_power_of_two();
                let what = format!("invalid {name} {number}: must be a power of two");
                Some((what, format!("expected {} or {next}", next / 2)))
            }
            Self::OneOf(name, numbers) if !numbers.contains(&number) => {
                Some((format!("invalid {name} {number}"), format!("expected {}", either(numbers))))
            }
            Self::Either(one, other) => one.misfit(value).or_else(|| other.misfit(value)),
            _ => None,
        }
    }

    /// Returns the keys of a table that is a valid value; `None` if none is.
    pub fn section(&self) -> Option<&'static Section> {
        match self {
            Self::Table(section) => Some(section),
            Self::Or(_, other) => other.section(),
            Self::Either(one, other) => one.section().or_else(|| other.section()),
            _ => None,
        }
    }

    /// Returns true if an integer stands for a list of one.
    fn one_or_more(&self) -> bool {
        matches!(self, Self::OneOrMore(..) | Self::Or(_, Self::OneOrMore(..)))
    }
}

fn integer(value: &DeValue<'_>) -> Option<usize> {
    let number = value.as_integer()?;
    i64::from_str_radix(number.as_str(), number.radix()).ok()?.try_into().ok()
}

/// Returns true if a list is not empty and its integers are in range, and different if they must be.
fn all(list: &DeArray<'_>, range: &RangeInclusive<usize>, different: bool) -> bool {
    let numbers: Option<Vec<usize>> = list.iter().map(|value| integer(value.get_ref())).collect();
    let Some(numbers) = numbers.filter(|numbers| !numbers.is_empty()) else { return false };
    let fits = |(at, number): (usize, &usize)| range.contains(number) && !(different && numbers[..at].contains(number));
    numbers.iter().enumerate().all(fits)
}

/// Configuration key and its documentation.
pub struct Key {
    pub name: &'static str,
    pub takes: Takes,
    /// Values that a port of this kind takes instead.
    pub exception: Option<(PortKind, Takes)>,
    /// Default value: TOML, or words in parentheses.
    pub default: &'static str,
    /// Unit of the value; empty if it has none.
    pub unit: &'static str,
    pub doc: &'static str,
    /// Non-default value, as TOML.
    pub example: &'static str,
    /// Kinds of port that have this key; empty if all have it or it is not a port's key.
    pub kinds: &'static [PortKind],
    /// Mode that has this key; `None` if all have it.
    pub mode: Option<Mode>,
}

/// Returns a key without documentation.
pub const fn key(name: &'static str, takes: Takes, default: &'static str, unit: &'static str) -> Key {
    Key { name, takes, exception: None, default, unit, doc: "", example: "", kinds: &[], mode: None }
}

impl Key {
    pub const fn doc(self, doc: &'static str) -> Self {
        Self { doc, ..self }
    }

    pub const fn example(self, example: &'static str) -> Self {
        Self { example, ..self }
    }

    pub const fn only(self, mode: Mode) -> Self {
        Self { mode: Some(mode), ..self }
    }

    pub const fn of(self, kinds: &'static [PortKind]) -> Self {
        Self { kinds, ..self }
    }

    pub const fn but(self, kind: PortKind, takes: Takes) -> Self {
        Self { exception: Some((kind, takes)), ..self }
    }

    /// Returns true if the key must be set.
    pub fn required(&self) -> bool {
        self.default == "(required)"
    }

    /// Returns true if a port of this kind has the key.
    pub fn applies(&self, kind: PortKind) -> bool {
        self.kinds.is_empty() || self.kinds.contains(&kind)
    }

    /// Returns what the key takes in a port of this kind.
    pub fn takes_in(&self, kind: PortKind) -> &Takes {
        self.exception.as_ref().filter(|(of, _)| *of == kind).map_or(&self.takes, |(_, takes)| takes)
    }
}

/// Table of the configuration file.
pub struct Section {
    /// Header as in the file: `[pool]`, `[[port]]`; empty for the top of the file.
    pub header: &'static str,
    pub doc: &'static str,
    pub keys: &'static [Key],
}

impl Section {
    /// Returns the name in the header.
    pub fn name(&self) -> &'static str {
        self.header.trim_matches(['[', ']'])
    }

    /// Returns true if the file can have several such tables.
    pub fn many(&self) -> bool {
        self.header.starts_with("[[")
    }

    /// Returns true for `[pool]`, which can also be an array of tables.
    pub fn one_or_many(&self) -> bool {
        self.header == "[pool]"
    }

    /// Returns true for `[[port]]`, whose keys depend on the kind of port.
    pub fn is_port(&self) -> bool {
        self.header == "[[port]]"
    }

    /// Returns the key with this name.
    pub fn key(&self, name: &str) -> Option<&'static Key> {
        self.keys.iter().find(|key| key.name == name)
    }

    /// Adds the default of each absent key, also in nested tables, and turns an integer that stands for a list into
    /// one.
    pub fn complete(&self, table: &mut toml::Table) {
        let kind = kind(table.get("kind").and_then(toml::Value::as_str).filter(|_| self.is_port()));
        for key in self.keys.iter().filter(|key| key.applies(kind)) {
            match (table.get_mut(key.name), key.takes.section()) {
                (Some(toml::Value::Table(nested)), Some(section)) => section.complete(nested),
                (Some(one @ toml::Value::Integer(_)), _) if key.takes.one_or_more() => *one = vec![one.clone()].into(),
                (Some(_), _) => {}
                (None, _) => table.extend(value(key.default).map(|default| (key.name.into(), default))),
            }
        }
    }

    /// Returns the model of a table without any keys.
    ///
    /// # Panics
    /// The model does not take a default of the section, or a required key has no default in the model.
    pub fn defaults<T: DeserializeOwned>(&self) -> T {
        let mut table = toml::Table::new();
        self.complete(&mut table);
        table.try_into().unwrap_or_else(|why| panic!("the defaults of {} do not fit its model: {why}", self.header))
    }
}

/// Returns the kind of port with this name in `kind = ".."`, or the default kind.
pub fn kind(name: Option<&str>) -> PortKind {
    name.and_then(|name| PortKind::from_str(name, false).ok()).unwrap_or_default()
}

/// Parses a TOML value; `None` if `text` is not a value.
pub fn value(text: &str) -> Option<toml::Value> {
    toml::from_str::<toml::Table>(&format!("value = {text}")).ok()?.remove("value")
}
