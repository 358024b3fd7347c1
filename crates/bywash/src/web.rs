//! `bywash web`: serves a page with the data of `bywash show` until it is stopped.
//!
//! The page and its data come from this process, which queries the instance; the instance itself serves no browser.

use crate::api::{Config, Topic, client};
use crate::cli::web::WebArgs;
use crate::error::Usage;
use crate::stdout::stdout;
use anyhow::Context as _;
use axum::extract::{Path as InPath, State};
use axum::http::{StatusCode, header};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use bywash_api_server::{Guard, guard, serve_tcp};
use serde_json::{Value, json};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::net::TcpListener;

const PAGE: &str = include_str!("web/page.html");
/// Content security policy: the page loads nothing from other sites, and no other page may embed it.
const POLICY: &str = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; connect-src 'self'; frame-ancestors 'none'";

/// Shortest token.
const TOKEN: usize = 16;

struct Site {
    socket: PathBuf,
}

/// Serves until Ctrl-C.
pub fn run(args: &WebArgs) -> anyhow::Result<()> {
    if !args.listen.ip().is_loopback() && !args.public {
        let what =
            format!("{} can be reached from other machines, and anyone there sees what `show` shows", args.listen);
        return Err(
            Usage(format!("{what}: add --public and --token to give access to those who have the token")).into()
        );
    }
    if args.public && args.token.is_none() {
        return Err(Usage("--public needs --token FILE, with a token in its first line".into()).into());
    }
    let token = args.token.as_deref().map(token).transpose()?;
    // Fail early if no instance runs.
    client::ask::<Config>(&args.socket)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(4).build()?;
    let served = runtime.block_on(async {
        let listener = TcpListener::bind(args.listen)
            .await
            .with_context(|| format!("cannot listen at {}: give another --listen, port 0 for any", args.listen))?;
        let listen = listener.local_addr().context("no address")?;
        // A caller may be waiting for this line.
        writeln!(stdout(), "http://{listen}/ shows the running instance; Ctrl-C ends it")?;
        stdout().flush()?;
        let routes = routes(Arc::new(Site { socket: args.socket.clone() }), Guard::new(listen, token.as_deref()));
        tokio::select! {
            () = serve_tcp(listener, routes) => Ok(()),
            told = tokio::signal::ctrl_c() => told.context("cannot wait for Ctrl-C"),
        }
    });
    // Requests to an instance that does not answer are not waited for.
    runtime.shutdown_background();
    served
}

/// Reads the token from a file.
fn token(path: &Path) -> anyhow::Result<String> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}, --token", path.display()))?;
    let token = text.lines().next().unwrap_or_default();
    if token.len() < TOKEN || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        let what = format!("{} has no token in its first line", path.display());
        return Err(Usage(format!("{what}: expected {TOKEN} or more printable characters without spaces")).into());
    }
    Ok(token.into())
}

fn routes(site: Arc<Site>, by: Guard) -> Router {
    let page = || async {
        let headers = [
            (header::CONTENT_TYPE, "text/html; charset=utf-8"),
            (header::CONTENT_SECURITY_POLICY, POLICY),
            (header::CACHE_CONTROL, "no-store"),
        ];
        (headers, PAGE)
    };
    Router::new()
        .route("/", get(page))
        .route("/v1/{topic}", get(topic))
        .layer(from_fn_with_state(by, guard))
        .with_state(site)
}

async fn topic(State(site): State<Arc<Site>>, InPath(name): InPath<String>) -> Response {
    let Some(topic) = Topic::SHOWN.into_iter().find(|topic| topic.name() == name) else {
        return (StatusCode::NOT_FOUND, Json(json!({ "error": "no such path" }))).into_response();
    };
    match tokio::task::spawn_blocking(move || client::topic::<Value>(&site.socket, topic, None)).await {
        Ok(Ok(value)) => Json(value).into_response(),
        Ok(Err(why)) => (StatusCode::BAD_GATEWAY, Json(json!({ "error": format!("{why:#}") }))).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}
