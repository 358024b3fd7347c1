//! JSON schemas (draft 2020-12) of the API's answers: the contract that programs can rely on.
//!
//! A shape is written as an example value, with a type's name for each scalar. A `?` after a type means that it may be
//! null; after a key, that the key may be missing. The key `*` stands for all other keys.

use super::Topic;
use serde_json::{Map, Value, json};

/// Returns the JSON schema of a topic's answer.
pub fn schema(topic: Topic) -> Value {
    let mut schema = expand(&shape(topic));
    if let Some(schema) = schema.as_object_mut() {
        schema.insert("$schema".into(), "https://json-schema.org/draft/2020-12/schema".into());
        schema.insert("title".into(), format!("GET /v1/{}", topic.name()).into());
    }
    schema
}

fn expand(shape: &Value) -> Value {
    match shape {
        Value::String(kind) if kind == "any" => json!({}),
        Value::String(kind) => match kind.strip_suffix('?') {
            Some(kind) => json!({ "type": [kind, "null"] }),
            None => json!({ "type": kind }),
        },
        Value::Array(items) => json!({ "type": "array", "items": items.first().map_or(json!({}), expand) }),
        Value::Object(keys) => {
            let (mut properties, mut required, mut others) = (Map::new(), vec![], Value::Bool(false));
            for (key, shape) in keys {
                match key.strip_suffix('?') {
                    _ if key == "*" => others = expand(shape),
                    Some(key) => drop(properties.insert(key.into(), expand(shape))),
                    None => {
                        properties.insert(key.clone(), expand(shape));
                        required.push(key.clone());
                    }
                }
            }
            json!({
                "type": "object",
                "properties": properties,
                "required": required,
                "additionalProperties": others,
            })
        }
        // Shapes contain no other values.
        _ => json!({}),
    }
}

fn shape(topic: Topic) -> Value {
    let audit = json!({
        "cells": "integer", "free": "integer", "cached": "integer", "parked": "integer", "held": "integer",
        "missing": "integer",
    });
    let queue = json!({
        "sends": "integer", "packets": "integer", "burst_mean": "number", "bursts": ["integer"],
        "wait_us_p50": "number?", "wait_us_p99": "number?", "wait_us_max": "number?", "waits_us": "any",
    });
    let queue_with = |more: &[(&str, &str)]| {
        let mut queue = queue.clone();
        more.iter().for_each(|(key, kind)| queue[*key] = (*kind).into());
        queue
    };
    match topic {
        Topic::Ports => json!([{
            "name": "string", "id": "integer", "interface": "string?", "kind": "string", "state": "string",
            "reason": "string?", "mac": "string?", "mtu": "integer?", "addresses": ["string"], "mode": "string?",
            "level": "string", "queues": [{ "worker": "integer", "held": "integer", "state": "string", "*": "string" }],
            "tx_queue": queue_with(&[("burst", "integer"), ("deadline_us", "integer")]), "counters": { "*": "integer" },
        }]),
        Topic::Workers => json!([{
            "id": "integer", "cpu": "integer?", "idle": "string",
            "polls": [{ "port": "string", "queue": "integer" }], "turns": "integer", "idle_turns": "integer",
            "sleeps": "integer", "thread": "integer", "cycles": "integer", "busy_cycles": "integer",
            "busy_percent": "number", "rx_burst_mean": "number", "rx_bursts": ["integer"],
            "stages": [{
                "name": "string", "cycles": "integer", "packets": "integer", "bursts": "integer",
                "cycles_per_packet": "number",
            }],
            "tx_queues": [queue_with(&[("port", "string")])],
        }]),
        Topic::Pools => json!({
            "arena": { "cells": "integer", "spare": "integer", "cell": "integer", "bytes": "integer", "pages": "string", "note": "string" },
            "pools": [{
                "name": "string", "kind": "string", "frames": "integer", "free": "integer", "cached": "integer",
                "parked": "integer", "draining": "boolean", "in_use": "integer", "normal": "integer", "peak": "integer",
                "high_water": "integer", "allocated": "integer", "freed": "integer", "exhausted": "integer",
                "*": "any",
            }],
            "audit": audit,
        }),
        Topic::Routes => json!([{
            "prefix": "string", "table": "integer", "kind": "string", "metric": "integer", "protocol": "integer",
            "next_hops": [{
                "via": "string?", "port": "string?", "interface": "string?", "state": "string", "weight": "integer",
            }],
            "mtu": "integer?", "source": "string?", "installed": "boolean", "reason": "string?",
        }]),
        Topic::Neighbours => json!([{
            "addr": "string", "interface": "string?", "port": "string?", "mac": "string?", "state": "string",
            "installed": "boolean",
        }]),
        Topic::Drift => json!([{ "object": "string", "name": "string", "drift": "string" }]),
        Topic::Drops => json!({
            "drops": [{ "port": "string", "reason": "string", "packets": "integer" }],
            "events": [{ "port": "string", "event": "string", "count": "integer" }],
            "xdp": [{ "port": "string", "verdict": "string", "packets": "integer" }],
        }),
        Topic::Placement => json!([{
            "port": "string", "configured": "string?", "level?": "string", "why": "string", "mode?": "string",
            "mode_why?": "string", "spread?": [{ "cpu": "integer", "frames": "integer" }], "spread_why?": "string",
            "target?": "boolean", "target_why?": "string",
            "kept": [{ "kind": "string", "packets": "string", "object": "string", "reason": "string", "ignored": "boolean",
                "allow": "string" }],
            "frames": { "driver": "integer", "user": "integer", "kernel": "integer" },
        }]),
        Topic::Sandbox => json!({
            "state": "string", "reason": "string?", "threads": "integer", "no_new_privs": "boolean",
            "capabilities": ["string"], "seccomp": "boolean", "system_calls": ["string"],
        }),
        Topic::Flows => json!([{
            "table": "integer", "priority": "integer", "cookie": "integer", "match": "string", "actions": "string",
            "n_packets": "integer", "n_bytes": "integer", "duration_s": "number", "idle_age_s": "integer",
            "idle_timeout_s": "integer", "hard_timeout_s": "integer",
        }]),
        Topic::Groups => json!({
            "groups": ["string"], "meters": [{ "meter": "string", "passed": "integer", "refused": "integer" }],
        }),
        Topic::Fdb => json!([{
            "port": "string?", "number": "integer", "vlan": "integer", "mac": "string", "age_s": "integer",
        }]),
        Topic::Caches => json!({
            "workers": [{ "worker": "integer", "*": "integer" }], "flows": "integer", "addresses_moved": "integer",
        }),
        Topic::Modems => json!([{
            "group": "integer", "mac": "string", "said": "integer", "flows": "integer", "packets": "integer",
            "bytes": "integer", "queued": "integer", "policed": "integer", "queue_overflow": "integer",
        }]),
        Topic::ServiceFlows => json!([{
            "group": "integer", "modem": "string", "flow": "string", "dsid": "integer", "priority": "integer",
            "packets": "integer", "bytes": "integer", "queued": "integer", "policed": "integer",
            "queue_overflow": "integer",
        }]),
        Topic::Channels => json!([{
            "group": "integer", "channel": "integer", "rate": "integer?", "packets": "integer", "bytes": "integer",
            "group_queued": "integer", "crypto": "string",
        }]),
        // `bywash config schema` describes it, with its defaults.
        Topic::Config => json!({ "mode": "string", "sandbox": "string", "*": "any" }),
        Topic::Audit => audit,
        Topic::Health => json!({ "status": "string" }),
    }
}
