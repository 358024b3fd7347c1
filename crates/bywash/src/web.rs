//! `bywash web`: serves a page with the data of `bywash show` until it is stopped.
//!
//! The page and its data come from this process, which asks the instance; the instance itself serves no browser.

use crate::api::{Config, Topic, client};
use crate::cli::web::WebArgs;
use crate::error::Usage;
use anyhow::Context as _;
use axum::extract::{Path as InPath, Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use serde_json::{Value, json};
use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

/// Most connections at once; a browser opens a few.
const CONNECTIONS: usize = 32;
/// Longest time for a request's header (`HEADER`), and longest duration of a connection (`CONNECTION`).
const HEADER: Duration = Duration::from_secs(5);
const CONNECTION: Duration = Duration::from_secs(60);

const PAGE: &str = include_str!("web/page.html");
/// Content security policy: the page loads nothing from other sites, and no other page may embed it.
const POLICY: &str = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; connect-src 'self'; frame-ancestors 'none'";

struct Site {
    socket: PathBuf,
    listen: SocketAddr,
}

/// Serves until Ctrl-C.
pub fn run(args: &WebArgs) -> anyhow::Result<()> {
    if !args.listen.ip().is_loopback() && !args.public {
        let what =
            format!("{} can be reached from other machines, and anyone there sees what `show` shows", args.listen);
        return Err(Usage(format!("{what}: add --public to allow that")).into());
    }
    // Fail early if no instance runs.
    client::ask::<Config>(&args.socket)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(4).build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind(args.listen)
            .await
            .with_context(|| format!("cannot listen at {}: give another --listen, port 0 for any", args.listen))?;
        let listen = listener.local_addr().context("no address")?;
        // A caller may be waiting for this line.
        writeln!(std::io::stdout(), "http://{listen}/ shows the running instance; Ctrl-C ends it")?;
        std::io::stdout().flush()?;
        let site = Arc::new(Site { socket: args.socket.clone(), listen });
        let routes = routes(site);
        tokio::select! {
            () = accept(&listener, &routes) => Ok(()),
            told = tokio::signal::ctrl_c() => told.context("cannot wait for Ctrl-C"),
        }
    })
}

async fn accept(listener: &TcpListener, routes: &Router) {
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    let mut http = hyper::server::conn::http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEADER);
    loop {
        let Ok(place) = places.clone().acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let connection = http.serve_connection(TokioIo::new(stream), TowerToHyperService::new(routes.clone()));
                tokio::spawn(async move {
                    let _ = tokio::time::timeout(CONNECTION, connection).await;
                    drop(place);
                });
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}

fn routes(site: Arc<Site>) -> Router {
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
        .layer(from_fn_with_state(site.clone(), by_its_own_name))
        .with_state(site)
}

/// Guards against DNS rebinding, by which a foreign page whose name resolves to this address could read the data: on a
/// loopback address, only requests to that address or localhost are answered.
async fn by_its_own_name(State(site): State<Arc<Site>>, request: Request, next: Next) -> Response {
    let asked = request.headers().get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let port = site.listen.port();
    let known = [site.listen.to_string(), format!("localhost:{port}")];
    if site.listen.ip().is_loopback() && !known.iter().any(|name| name == asked) {
        return (StatusCode::MISDIRECTED_REQUEST, "unknown host name").into_response();
    }
    next.run(request).await
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
