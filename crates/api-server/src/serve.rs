//! Serves the API within bounds: the number of connections is limited, and so is the time for which a client can hold
//! one.

use crate::guard::{Guard, guard};
use crate::patient::Patient;
use crate::refusal::Refusing;
use crate::socket::Named;
use crate::{Instance, Listener, metrics, pieces};
use anyhow::Context;
use axum::Extension;
use axum::extract::{Query, Request, State};
use axum::http::{Method, StatusCode};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use bywash_api::{Problem, Topic, Version};
use hyper::body::Incoming;
use hyper::server::conn::http1::Builder;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use serde::Serialize;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::task::AbortHandle;

/// Maximum number of connections of each socket served at once. A further one takes the place of the oldest that has
/// not sent its request yet, or waits in the socket's backlog.
const CONNECTIONS: usize = 64;
/// Threads that query the instance, so that a large answer does not delay others.
const ASKING: usize = 6;
/// Maximum number of these threads for requests by the socket for reading, and for scrapes: the others are left to
/// requests that may change something.
const READING: usize = 2;
/// Longest time for a request's header to arrive.
const HEADER: Duration = Duration::from_secs(2);
/// Longest duration of a connection, from accepting it to the last byte of the answer.
const CONNECTION: Duration = Duration::from_secs(15);
/// Longest time for which a client may read nothing of an answer that has no time limit.
const STALLED: Duration = Duration::from_secs(60);
/// Largest header of a request, in bytes.
const HEADER_BYTES: usize = 16 << 10;

type Shared = Arc<dyn Instance>;

/// Extension of every request, by which its handler takes away the response's time limit.
#[derive(Clone, Default)]
pub struct Endless(Arc<AtomicBool>);

impl Endless {
    /// Takes away the time limit.
    pub fn set(&self) {
        self.0.store(true, Ordering::Release);
    }
}

/// The API's thread. Dropping this stops it and removes the sockets' names before it returns.
pub struct Server {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Serves `instance` at `listener`, on a thread of its own. `more` handles requests that are not queries; those that
/// change something cannot come by the socket for reading.
///
/// # Errors
/// If the sockets or the thread cannot be prepared.
pub fn serve(listener: Listener, instance: Arc<dyn Instance>, more: Router) -> anyhow::Result<Server> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(ASKING)
        .thread_name("bywash-api-ask")
        .build()
        .context("cannot start the API")?;
    // Before the thread starts: once this has returned, a request is answered.
    let acceptors = {
        let _context = runtime.enter();
        Acceptors::of(&listener).context("cannot listen for API requests")?
    };
    let (stop, stopped) = oneshot::channel();
    let thread = std::thread::Builder::new()
        .name("bywash-api".into())
        .spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    () = listen(acceptors, instance, more) => {}
                    // Stops on a dropped sender, too.
                    _ = stopped => {}
                }
            });
            // Remove the names first, so that a client that finds one gets an answer.
            drop(listener);
            runtime.shutdown_timeout(Duration::from_millis(200));
        })
        .context("cannot start the API's thread")?;
    Ok(Server { stop: Some(stop), thread: Some(thread) })
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // Joining fails only after a panic, which the panic hook has reported.
            let _ = thread.join();
        }
    }
}

async fn listen(acceptors: Acceptors, instance: Shared, more: Router) {
    let scraped = scrapes(instance.clone());
    let all = routes(instance, more);
    let reading = async {
        if let Some(acceptor) = acceptors.reading {
            serve_at(acceptor, only_reading(all.clone())).await;
        }
    };
    let api = serve_at(acceptors.all, all.clone());
    let metrics = async {
        if let Some((acceptor, by)) = acceptors.metrics {
            serve_at(acceptor, taking_turns(scraped).layer(from_fn_with_state(by, guard))).await;
        }
    };
    tokio::join!(api, reading, metrics);
}

/// The sockets of a [`Listener`], for tasks to accept from.
struct Acceptors {
    all: Acceptor,
    reading: Option<Acceptor>,
    metrics: Option<(Acceptor, Guard)>,
}

impl Acceptors {
    /// Creates the acceptors within the runtime that the caller has entered. The listener keeps descriptors of its own,
    /// and with them the sockets' names.
    fn of(listener: &Listener) -> std::io::Result<Self> {
        let unix = |named: &Named| {
            let socket = named.socket.try_clone()?;
            socket.set_nonblocking(true)?;
            UnixListener::from_std(socket).map(Acceptor::Unix)
        };
        let tcp = |(socket, guard): &(std::net::TcpListener, Guard)| {
            let socket = socket.try_clone()?;
            socket.set_nonblocking(true)?;
            TcpListener::from_std(socket).map(|socket| (Acceptor::Tcp(socket), guard.clone()))
        };
        Ok(Self {
            all: unix(&listener.all)?,
            reading: listener.reading.as_ref().map(unix).transpose()?,
            metrics: listener.metrics.as_ref().map(tcp).transpose()?,
        })
    }
}

/// Socket from which connections are accepted.
enum Acceptor {
    Unix(UnixListener),
    Tcp(TcpListener),
}

/// Connection over either kind of socket.
trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

impl Acceptor {
    async fn accept(&self) -> std::io::Result<Box<dyn Stream>> {
        Ok(match self {
            Self::Unix(socket) => Box::new(socket.accept().await?.0),
            Self::Tcp(socket) => Box::new(socket.accept().await?.0),
        })
    }
}

/// Serves connections to a TCP address forever.
pub async fn serve_tcp(socket: TcpListener, routes: Router) {
    serve_at(Acceptor::Tcp(socket), routes).await;
}

/// Connection that is being served.
struct Served {
    task: AbortHandle,
    /// Set when its request has arrived.
    requested: Arc<AtomicBool>,
}

/// Waits for a place for one more connection. If all are taken, the oldest connection whose request has not arrived is
/// closed.
async fn place_at(places: &Arc<Semaphore>, connections: &mut VecDeque<Served>) -> Option<OwnedSemaphorePermit> {
    connections.retain(|connection| !connection.task.is_finished());
    if let Ok(place) = places.clone().try_acquire_owned() {
        return Some(place);
    }
    // A request that has arrived is seen once its task has run.
    tokio::task::yield_now().await;
    if let Some(idle) = connections.iter().position(|connection| !connection.requested.load(Ordering::Acquire)) {
        connections.remove(idle).inspect(|connection| connection.task.abort());
    }
    places.clone().acquire_owned().await.ok()
}

/// Returns the HTTP server. Each connection carries one request, so that the bounds of a connection are those of one
/// request and its answer.
fn http() -> Builder {
    let mut http = Builder::new();
    http.keep_alive(false).timer(TokioTimer::new()).header_read_timeout(HEADER).max_buf_size(HEADER_BYTES);
    http
}

/// Serves one connection. Its client has closed its side after the request.
pub async fn serve_one(stream: impl AsyncRead + AsyncWrite + Unpin, routes: Router) {
    let service = TowerToHyperService::new(routes.layer(Extension(Endless::default())));
    // Not logged: a client that disconnects, or whose request is refused, knows about it.
    let _ = http().half_close(true).serve_connection(TokioIo::new(stream), service).await;
}

/// Serves the connections that `acceptor` accepts, at most [`CONNECTIONS`] at once.
async fn serve_at(acceptor: Acceptor, routes: Router) {
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    let mut connections = VecDeque::new();
    let http = http();
    loop {
        match acceptor.accept().await {
            Ok(stream) => {
                let Some(place) = place_at(&places, &mut connections).await else { return };
                let endless = Endless::default();
                let requested = Arc::new(AtomicBool::new(false));
                let answers = TowerToHyperService::new(routes.clone().layer(Extension(endless.clone())));
                let begun = requested.clone();
                let service = service_fn(move |request: hyper::Request<Incoming>| {
                    begun.store(true, Ordering::Release);
                    answers.call(request)
                });
                let stream = Refusing::new(Patient::new(stream, STALLED), requested.clone());
                let connection = http.serve_connection(TokioIo::new(stream), service);
                let served = tokio::spawn(async move {
                    let mut connection = std::pin::pin!(connection);
                    // Clients that disconnect or take too long are not logged.
                    let timely = tokio::time::timeout(CONNECTION, connection.as_mut()).await;
                    if timely.is_err() && endless.0.load(Ordering::Acquire) {
                        let _ = connection.await;
                    }
                    drop(place);
                });
                connections.push_back(Served { task: served.abort_handle(), requested });
            }
            Err(why) => {
                // Most likely out of descriptors: an immediate retry would keep a CPU busy.
                tracing::warn!("the API cannot accept a connection: {why}");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// Returns the routes of the metrics port.
fn scrapes(instance: Shared) -> Router {
    let nothing = || async { error(StatusCode::NOT_FOUND, "no such path", "GET /metrics") };
    Router::new().route("/metrics", get(metrics)).fallback(nothing).layer(from_fn(as_json)).with_state(instance)
}

fn taking_turns(routes: Router) -> Router {
    routes.layer(from_fn_with_state(Arc::new(Semaphore::new(READING)), in_turn))
}

/// Returns the routes of the socket for reading.
pub fn only_reading(routes: Router) -> Router {
    taking_turns(routes).layer(from_fn(only_read))
}

/// Returns the routes of the socket for all requests.
pub fn routes(instance: Shared, more: Router) -> Router {
    let mut router = Router::new();
    for topic in Topic::SHOWN {
        let handler =
            move |State(instance): State<Shared>,
                  Extension(endless): Extension<Endless>,
                  Query(query): Query<HashMap<String, String>>| { list(instance, endless, topic, query) };
        router = router.route(&format!("/v1/{}", topic.name()), get(handler));
    }
    let audit = |State(instance): State<Shared>| show(instance, Topic::Audit);
    for topic in [Topic::Drift, Topic::KernelConnections] {
        let comparing = Arc::new(Semaphore::new(1));
        let handler = move |State(instance): State<Shared>, Extension(endless): Extension<Endless>| {
            // Reading a million routes or connections afresh, on a busy machine, takes longer than `CONNECTION`.
            endless.set();
            compare(instance, topic, comparing.clone())
        };
        router = router.route(&format!("/v1/{}", topic.name()), get(handler));
    }
    router
        .route("/v1/audit", post(audit))
        .route("/metrics", get(metrics))
        .route("/v1/version", get(|| async { Json(Version { version: env!("CARGO_PKG_VERSION").into() }) }))
        .route("/v1/health", get(health))
        .with_state(instance)
        .merge(more)
        .fallback(|| async { error(StatusCode::NOT_FOUND, "no such path", "GET /v1/ports, /v1/workers, ..") })
        .layer(from_fn(as_json))
}

async fn show(instance: Shared, topic: Topic) -> Response {
    answer(move || instance.show(topic, None)).await
}

/// Answers with a topic that takes much memory or time, one client at a time: the drift, for which both tables are in
/// memory, and the connections of the kernel, each of which is judged.
async fn compare(instance: Shared, topic: Topic, comparing: Arc<Semaphore>) -> Response {
    let Ok(turn) = comparing.try_acquire_owned() else {
        let hint = "ask again when it is done";
        return error(StatusCode::TOO_MANY_REQUESTS, "the tables are being compared for another client", hint);
    };
    answer(move || {
        // Held by the thread that compares, even if the client disconnects.
        let _turn = turn;
        instance.show(topic, None)
    })
    .await
}

/// Answers with a topic, in pieces if it may have very many rows.
async fn list(instance: Shared, endless: Endless, topic: Topic, mut query: HashMap<String, String>) -> Response {
    let filter = topic.filter().and_then(|name| query.remove(name));
    if let Some(key) = query.keys().next() {
        let hint = topic.filter().map_or("it takes no parameters".into(), |name| format!("only `{name}` is accepted"));
        return error(StatusCode::BAD_REQUEST, &format!("unknown parameter `{key}`"), &hint);
    }
    match instance.rows(topic, filter.as_deref()) {
        Some(Ok(rows)) => {
            endless.set();
            pieces::answer(rows).await
        }
        Some(Err(why)) => error(StatusCode::BAD_REQUEST, &why, ""),
        None => answer(move || instance.show(topic, filter.as_deref())).await,
    }
}

async fn health(State(instance): State<Shared>) -> Response {
    let mut response = show(instance, Topic::Health).await;
    if response.status() == StatusCode::BAD_REQUEST {
        *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    }
    response
}

async fn metrics(State(instance): State<Shared>) -> Response {
    spoken(metrics::CONTENT_TYPE, move || Ok(metrics::render(instance.as_ref()))).await
}

/// Lets [`READING`] requests be answered at once, in the order of their arrival.
async fn in_turn(State(turns): State<Arc<Semaphore>>, request: Request, next: Next) -> Response {
    // The semaphore is never closed.
    let turn = turns.acquire_owned().await;
    // A task of its own makes the answer and has the turn until then, even if the client disconnects: otherwise the
    // thread would go on, and others who disconnect could take more threads.
    let made = tokio::spawn(async move {
        let response = next.run(request).await;
        drop(turn);
        response
    });
    made.await.unwrap_or_else(|_| internal_error())
}

/// Rejects all requests but GET and HEAD.
async fn only_read(request: Request, next: Next) -> Response {
    if request.method() == Method::GET || request.method() == Method::HEAD {
        return next.run(request).await;
    }
    let what = format!("{} {} is not allowed at this socket", request.method(), request.uri().path());
    error(StatusCode::FORBIDDEN, &what, "it is read-only; the one at [api] socket takes all requests")
}

/// Answers in JSON with the value that `ask` returns, on a thread that may block. The client gets an error as a bad
/// request.
pub async fn answer<T: Serialize>(ask: impl FnOnce() -> Result<T, String> + Send + 'static) -> Response {
    // Serialise on that thread as well: a million routes take a while.
    spoken("application/json", move || serde_json::to_string(&ask()?).map_err(|why| why.to_string())).await
}

/// Answers with a text that `ask` makes on a thread that may block.
async fn spoken(kind: &'static str, ask: impl FnOnce() -> Result<String, String> + Send + 'static) -> Response {
    match tokio::task::spawn_blocking(ask).await {
        Ok(Ok(text)) => ([("content-type", kind)], text).into_response(),
        Ok(Err(why)) => error(StatusCode::BAD_REQUEST, &why, ""),
        Err(_) => internal_error(),
    }
}

/// Answers after a panic, or another error that the log has.
pub fn internal_error() -> Response {
    error(StatusCode::INTERNAL_SERVER_ERROR, "internal error", "see the log; please report it")
}

/// Answers with an error: the problem, and what the client can do.
pub fn error(status: StatusCode, what: &str, hint: &str) -> Response {
    (status, Json(Problem { error: what.into(), hint: hint.into() })).into_response()
}

/// Gives errors of the framework itself, such as a wrong method or an invalid query, the shape of the API's errors.
async fn as_json(request: Request, next: Next) -> Response {
    let what = format!("{} {}", request.method(), request.uri().path());
    let response = next.run(request).await;
    let status = response.status();
    let ours = response.headers().get("content-type").is_some_and(|kind| kind == "application/json");
    if status.is_success() || ours {
        return response;
    }
    let reason = status.canonical_reason().unwrap_or("failed");
    error(status, &format!("{reason}: {what}"), "GET reads; docs/api.md has the requests by POST and DELETE")
}
