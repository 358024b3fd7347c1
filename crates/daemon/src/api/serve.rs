//! Requests other than queries: they change the instance, or ask for more than a topic.

use super::{Instance, capture};
use axum::Extension;
use axum::Router;
use axum::extract::{DefaultBodyLimit, Query, State};
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::post;
use bywash_api::{Reloaded, TakenOver};
use bywash_api_server::{Endless, Listener, Server, answer, error};
use bywash_config::Level;
use bywash_flow::script::Verb;
use clap::ValueEnum;
use serde::Serialize;
use std::collections::HashMap;
use std::sync::Arc;

/// Largest body of a request with flows, in bytes.
const FLOWS_BYTES: usize = 64 << 20;

const LEVEL_HINT: &str = "one `level` of auto, driver, user, kernel, and any number of `port`";

const FLOWS_HINT: &str = "one `op` of add, mod, del; of mod and del, `strict=true` as well";

const KEYS_HINT: &str = "the number of a `group`; `use=later` to load keys only";

const CPES_HINT: &str = "one `op` of add, del; the number of a `group`";

pub(super) type Shared = Arc<dyn Instance>;

/// Serves `instance` at `listener`, on a thread of its own.
pub fn serve(listener: Listener, instance: Shared) -> anyhow::Result<Server> {
    let more = more(&instance);
    bywash_api_server::serve(listener, instance, more)
}

/// Returns the routes of requests that are not queries.
pub(super) fn more(instance: &Shared) -> Router {
    Router::new()
        .route("/v1/flows", post(change_flows).layer(DefaultBodyLimit::max(FLOWS_BYTES)))
        .route("/v1/cpes", post(change_cpes))
        .route("/v1/keys", post(change_keys))
        .route("/v1/level", post(set_level))
        .route("/v1/reload", post(reload))
        .route("/v1/takeover", post(take_over))
        .route("/v1/trace", post(trace))
        .route("/v1/capture", capture::routes())
        .with_state(instance.clone())
}

/// Answers a request for a change, without a time limit: the change is made in any case, and the client must learn its
/// result.
async fn changes<T: Serialize + Send + 'static>(
    endless: &Endless,
    change: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Response {
    endless.set();
    answer(change).await
}

async fn set_level(
    State(instance): State<Shared>,
    Extension(endless): Extension<Endless>,
    Query(query): Query<Vec<(String, String)>>,
) -> Response {
    let (mut level, mut ports) = (None, vec![]);
    for (key, value) in query {
        match (key.as_str(), Level::from_str(&value, false)) {
            ("level", Ok(wanted)) if level.is_none() => level = Some(wanted),
            ("port", _) => ports.push(value),
            _ => return error(StatusCode::BAD_REQUEST, &format!("wrong parameter `{key}={value}`"), LEVEL_HINT),
        }
    }
    let Some(level) = level else { return error(StatusCode::BAD_REQUEST, "no level given", LEVEL_HINT) };
    changes(&endless, move || instance.set_level(level, &ports)).await
}

async fn reload(
    State(instance): State<Shared>,
    Extension(endless): Extension<Endless>,
    Query(query): Query<Vec<(String, String)>>,
) -> Response {
    let mut wanted = None;
    for (key, value) in query {
        match (key.as_str(), value.parse()) {
            ("dry_run", Ok(dry)) if wanted.is_none() => wanted = Some(dry),
            _ => {
                let hint = "nothing, or `dry_run=true`";
                return error(StatusCode::BAD_REQUEST, &format!("wrong parameter `{key}={value}`"), hint);
            }
        }
    }
    let dry_run = wanted.unwrap_or(false);
    changes(&endless, move || Ok(Reloaded { changes: instance.reload(dry_run)?, applied: !dry_run })).await
}

async fn take_over(
    State(instance): State<Shared>,
    Extension(endless): Extension<Endless>,
    Query(query): Query<HashMap<String, String>>,
) -> Response {
    let Some(socket) = query.get("socket").filter(|_| query.len() == 1).cloned() else {
        let hint = "one `socket`, as `bywash run --takeover` gives it";
        return error(StatusCode::BAD_REQUEST, "no socket given", hint);
    };
    changes(&endless, move || instance.take_over(&socket).map(|()| TakenOver {})).await
}

async fn change_flows(
    State(instance): State<Shared>,
    Extension(endless): Extension<Endless>,
    Query(query): Query<HashMap<String, String>>,
    lines: String,
) -> Response {
    let wrong = |what: String| error(StatusCode::BAD_REQUEST, &what, FLOWS_HINT);
    if let Some((key, value)) = query.iter().find(|(key, _)| !["op", "strict"].contains(&key.as_str())) {
        return wrong(format!("wrong parameter `{key}={value}`"));
    }
    let strict = match query.get("strict").map_or("false", String::as_str) {
        "true" => true,
        "false" => false,
        other => return wrong(format!("wrong parameter `strict={other}`")),
    };
    let op = query.get("op").map_or("", String::as_str);
    let Some(verb) = Verb::named(op, strict) else { return wrong(format!("no `op` of flows: `{op}`")) };
    changes(&endless, move || instance.change_flows(verb, &lines)).await
}

async fn change_keys(
    State(instance): State<Shared>,
    Extension(endless): Extension<Endless>,
    Query(query): Query<HashMap<String, String>>,
    lines: String,
) -> Response {
    let (mut group, mut later) = (1, false);
    for (key, value) in &query {
        match (key.as_str(), value.as_str(), value.parse()) {
            ("group", _, Ok(number)) => group = number,
            ("use", "later", _) => later = true,
            _ => return error(StatusCode::BAD_REQUEST, &format!("wrong parameter `{key}={value}`"), KEYS_HINT),
        }
    }
    changes(&endless, move || instance.change_keys(group, &lines, later)).await
}

async fn change_cpes(
    State(instance): State<Shared>,
    Extension(endless): Extension<Endless>,
    Query(query): Query<HashMap<String, String>>,
    lines: String,
) -> Response {
    let (mut group, mut add) = (1, None);
    for (key, value) in &query {
        match (key.as_str(), value.as_str(), value.parse()) {
            ("group", _, Ok(number)) => group = number,
            ("op", "add" | "del", _) => add = Some(value == "add"),
            _ => return error(StatusCode::BAD_REQUEST, &format!("wrong parameter `{key}={value}`"), CPES_HINT),
        }
    }
    let Some(add) = add else { return error(StatusCode::BAD_REQUEST, "no `op` given", CPES_HINT) };
    changes(&endless, move || instance.change_cpes(group, &lines, add)).await
}

async fn trace(State(instance): State<Shared>, packet: String) -> Response {
    answer(move || instance.trace(&packet)).await
}
