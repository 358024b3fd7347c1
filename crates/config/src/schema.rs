//! JSON schema of the configuration file, for editors, generated from the table of keys.

use crate::key::{self, Key, Section, Takes};
use crate::keys;
use serde_json::{Map, Value, json};
use std::ops::RangeInclusive;

/// Returns the schema (JSON Schema, draft 2020-12).
pub fn schema() -> Value {
    let mut properties = Map::new();
    for section in keys::SECTIONS {
        match section.header {
            "" => properties.extend(section.keys.iter().map(|key| (key.name.into(), of_key(key)))),
            header => {
                let table = table(section);
                let name = header.trim_matches(['[', ']']);
                let list = json!({ "type": "array", "items": table });
                let value = match (section.many(), section.one_or_many()) {
                    (true, _) => list,
                    (_, true) => json!({ "anyOf": [table, list] }),
                    _ => table,
                };
                properties.insert(name.into(), value);
            }
        }
    }
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Bywash's configuration",
        "type": "object",
        "additionalProperties": false,
        "required": ["port"],
        "properties": properties,
    })
}

fn table(section: &Section) -> Value {
    let properties: Map<String, Value> = section.keys.iter().map(|key| (key.name.into(), of_key(key))).collect();
    // Required keys of a port depend on its kind.
    let needed = |key: &&Key| key.required() && !section.is_port();
    let required: Vec<&str> = section.keys.iter().filter(needed).map(|key| key.name).collect();
    json!({
        "type": "object",
        "description": section.doc,
        "additionalProperties": false,
        "required": required,
        "properties": properties,
    })
}

fn of_key(key: &Key) -> Value {
    let mut schema = Map::new();
    let exception = key.exception.iter().flat_map(|(_, takes)| alternatives(takes));
    let alternatives: Vec<Value> = alternatives(&key.takes).into_iter().chain(exception).collect();
    match alternatives.as_slice() {
        [Value::Object(one)] => schema.extend(one.clone()),
        many => drop(schema.insert("anyOf".into(), many.into())),
    }
    let unit = if key.unit.is_empty() { String::new() } else { format!(" Unit: {}.", key.unit) };
    let mode = key.mode.map_or(String::new(), |mode| format!(" Only with mode = \"{}\".", mode.name()));
    let kinds: Vec<_> = key.kinds.iter().map(|kind| kind.name()).collect();
    let kinds = if kinds.is_empty() { String::new() } else { format!(" Only of ports of kind {}.", kinds.join(", ")) };
    schema.insert("description".into(), format!("{}{unit}{mode}{kinds}", key.doc).trim().into());
    schema.extend(value(key.default).map(|default| ("default".to_owned(), default)));
    schema.extend(value(key.example).map(|example| ("examples".to_owned(), json!([example]))));
    schema.into()
}

/// Converts a TOML value to JSON; `None` if `text` is not a value.
fn value(text: &str) -> Option<Value> {
    serde_json::to_value(key::value(text)?).ok()
}

/// Returns a schema for each alternative of what a key takes.
fn alternatives(takes: &Takes) -> Vec<Value> {
    let integer =
        |range: &RangeInclusive<usize>| json!({ "type": "integer", "minimum": range.start(), "maximum": range.end() });
    let list = |range| json!({ "type": "array", "items": integer(range) });
    match takes {
        Takes::Bool => vec![json!({ "enum": [true, false] })],
        Takes::Int(range) | Takes::PowerOfTwo(_, range) => vec![integer(range)],
        Takes::OneOf(_, numbers) => vec![json!({ "enum": numbers })],
        Takes::Choice(names) => vec![json!({ "enum": names() })],
        Takes::Text(_) => vec![json!({ "type": "string" })],
        Takes::List(_, range) => vec![list(range)],
        Takes::OneOrMore(_, range) => vec![integer(range), list(range)],
        Takes::Table(section) => vec![table(section)],
        Takes::Or(word, other) => [vec![json!({ "enum": [word] })], alternatives(other)].concat(),
        Takes::Either(one, other) => [alternatives(one), alternatives(other)].concat(),
    }
}
