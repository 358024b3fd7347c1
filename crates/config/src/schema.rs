//! JSON schema of the configuration file, for editors, generated from the table of keys.

use crate::keys::{self, Key, Section};
use serde_json::{Map, Value, json};

/// Returns the schema (JSON Schema, draft 2020-12).
pub fn schema() -> Value {
    let mut properties = Map::new();
    for section in keys::SECTIONS {
        match section.header {
            "" => properties.extend(section.keys.iter().map(|key| (key.name.into(), of_key(key)))),
            header => {
                let table = table(section);
                let name = header.trim_matches(['[', ']']);
                let many = header.starts_with("[[");
                let value = if many { json!({ "type": "array", "items": table }) } else { table };
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
    let needed = |key: &&Key| key.default == "(required)" && section.header != "[[port]]";
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
    let alternatives = alternatives(key);
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
    let table: toml::Table = toml::from_str(&format!("value = {text}")).ok()?;
    serde_json::to_value(table.get("value")?).ok()
}

/// Returns a schema for each alternative in the key's accepted values. Words that denote neither a number nor a list
/// denote a string.
fn alternatives(key: &Key) -> Vec<Value> {
    match (key.name, key.takes) {
        ("depi", _) => return vec![table(&keys::DEPI)],
        // A key of a nested table: derive the type from its example.
        (_, "") => {
            let kind = match value(key.example).or_else(|| value(key.default)) {
                Some(Value::Number(_)) => "integer",
                _ => "string",
            };
            return vec![json!({ "type": kind })];
        }
        _ => {}
    }
    let mut constants = vec![];
    let mut others: Vec<Value> = vec![];
    for part in key.takes.split(", ") {
        let part = part.trim_start_matches("or ");
        if let Some(constant) = part.strip_prefix('`').and_then(|part| part.strip_suffix('`')).and_then(value) {
            constants.push(constant);
            continue;
        }
        if let Ok(number) = part.parse::<u64>() {
            constants.push(number.into());
            continue;
        }
        let other = match part {
            "a table" => table(&keys::RING),
            "a list of them" => {
                let items = others.last().cloned().unwrap_or(Value::Bool(true));
                json!({ "type": "array", "items": items })
            }
            _ if part.starts_with("a list of ") => {
                let items = range(part).unwrap_or(json!({ "type": "integer", "minimum": 0 }));
                json!({ "type": "array", "items": items })
            }
            "a rate" | "a worker's number" | "a code point" => json!({ "type": "integer", "minimum": 0 }),
            // Not a range but a length: `1 to 32 of ..`.
            _ if !part.contains(" of `") => range(part).unwrap_or(json!({ "type": "string" })),
            _ => json!({ "type": "string" }),
        };
        if !others.contains(&other) {
            others.push(other);
        }
    }
    if !constants.is_empty() {
        others.insert(0, json!({ "enum": constants }));
    }
    others
}

/// Parses a range at the end of `words`, such as `.. 1 to 5`.
fn range(words: &str) -> Option<Value> {
    let (before, most) = words.rsplit_once(" to ")?;
    let least: u64 = before.rsplit(' ').next()?.parse().ok()?;
    let most: u64 = most.parse().ok()?;
    Some(json!({ "type": "integer", "minimum": least, "maximum": most }))
}
