//! JSON schemas (draft 2020-12) of the answers: the contract that programs can rely on.

use schemars::generate::SchemaSettings;
use schemars::transform::{RecursiveTransform, Transform as _};
use schemars::{JsonSchema, Schema};
use serde_json::Value;

/// Returns the JSON schema of `T` as it is serialised, with a title and a description of each key.
pub fn schema<T: JsonSchema>(title: &str) -> Value {
    let settings = SchemaSettings::draft2020_12().for_serialize().with(|settings| settings.inline_subschemas = true);
    let mut schema = settings.into_generator().into_root_schema_for::<T>();
    RecursiveTransform(strict).transform(&mut schema);
    schema.insert("title".into(), title.into());
    schema.to_value()
}

/// Returns a JSON schema without descriptions: only what can be checked.
pub fn without_descriptions(schema: Value) -> Value {
    let Ok(mut schema) = Schema::try_from(schema) else { return Value::Null };
    RecursiveTransform(|schema: &mut Schema| drop(schema.remove("description"))).transform(&mut schema);
    schema.to_value()
}

/// Rejects keys that an object is not known to have, and a null scalar where the key would be missing instead. Removes
/// ranges of Rust's types, and defaults, which are only for readers of other versions.
fn strict(schema: &mut Schema) {
    let Some(object) = schema.as_object_mut() else { return };
    ["default", "format", "minimum", "maximum"].iter().for_each(|key| drop(object.remove(*key)));
    if let Some(Value::Array(required)) = object.get_mut("required") {
        required.sort_by(|a, b| a.as_str().cmp(&b.as_str()));
    }
    let required = object.get("required").cloned().unwrap_or_default();
    let Some(properties) = object.get_mut("properties").and_then(Value::as_object_mut) else { return };
    for (key, property) in properties {
        let missing = required.as_array().is_none_or(|required| !required.iter().any(|name| *name == **key));
        if let Some(Value::Array(types)) = property.get_mut("type").filter(|_| missing)
            && types[0] != "object"
        {
            types.retain(|kind| kind != "null");
        }
    }
    object.entry("additionalProperties").or_insert(false.into());
}
