//! Captures over the API: a response that lasts until `DELETE` ends the capture or the client disconnects.

use super::serve::Shared;
use axum::body::Body;
use axum::extract::{Extension, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, post};
use bywash_api::{CAPTURE_NUMBER, CaptureEnded, CaptureRequest, Direction};
use bywash_api_server::{Endless, Pieces, error};
use bywash_sync::lock;
use hyper::body::Bytes;
use std::collections::HashMap;
use std::io::{ErrorKind, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

/// Maximum number of captures at once: each costs workers time.
const AT_ONCE: usize = 4;
/// Maximum number of pieces queued for the client, of at most 256 KiB each.
const PIECES: usize = 16;
/// Interval at which room for the next piece is looked for.
const POLL: Duration = Duration::from_millis(2);
/// Longest time for which a capture that is to end waits for a client that reads nothing.
const LAST: Duration = Duration::from_secs(2);

const HINT: &str =
    "any number of `port` and `drops`, one `way` (rx or tx), one `snaplen` in bytes; a filter in the body";

/// Running captures.
#[derive(Default)]
struct Running {
    next: u64,
    stops: HashMap<u64, Arc<AtomicBool>>,
}

/// Returns the handlers: `POST` starts a capture, `DELETE` ends one.
pub fn routes() -> MethodRouter<Shared> {
    let running: Arc<Mutex<Running>> = Arc::default();
    let to_end = running.clone();
    let begin = move |State(instance): State<Shared>,
                      Extension(endless): Extension<Endless>,
                      Query(query): Query<Vec<(String, String)>>,
                      filter: String| begin(running, instance, endless, query, filter);
    let end = async move |Query(query): Query<HashMap<String, String>>| end(&to_end, &query);
    post(begin).delete(end)
}

async fn begin(
    running: Arc<Mutex<Running>>,
    instance: Shared,
    endless: Endless,
    query: Vec<(String, String)>,
    filter: String,
) -> Response {
    let mut request = CaptureRequest { filter: (!filter.trim().is_empty()).then_some(filter), ..Default::default() };
    for (key, value) in query {
        match key.as_str() {
            "port" => request.ports.push(value),
            "drops" => request.drops.push(value),
            "way" if value == "rx" && request.direction.is_none() => request.direction = Some(Direction::Rx),
            "way" if value == "tx" && request.direction.is_none() => request.direction = Some(Direction::Tx),
            "snaplen" if value.parse::<u32>().is_ok() => request.snaplen = value.parse().unwrap_or(0),
            _ => return error(StatusCode::BAD_REQUEST, &format!("wrong parameter `{key}={value}`"), HINT),
        }
    }
    let prepared = tokio::task::spawn_blocking(move || instance.capture(&request)).await;
    let capturing = match prepared {
        Ok(Ok(capturing)) => capturing,
        Ok(Err(why)) => return error(StatusCode::BAD_REQUEST, &why, ""),
        Err(_) => return error(StatusCode::INTERNAL_SERVER_ERROR, "internal error", "see the log"),
    };
    let (number, stop) = {
        let mut running = lock(&running);
        if running.stops.len() >= AT_ONCE {
            let what = format!("{AT_ONCE} captures run already");
            return error(StatusCode::TOO_MANY_REQUESTS, &what, "end one of them");
        }
        running.next += 1;
        let (number, stop) = (running.next, Arc::new(AtomicBool::new(false)));
        running.stops.insert(number, stop.clone());
        (number, stop)
    };
    let (pieces, body) = mpsc::channel(PIECES);
    let ended = Ended { running, number };
    let spawned = std::thread::Builder::new().name("bywash-capture".into()).spawn(move || {
        let _ended = ended;
        let out = Box::new(Out { to: pieces, stop: stop.clone(), ending: None });
        // A broken pipe only means that the client has disconnected.
        match capturing.run(out, &stop) {
            Err(why) if why.kind() != ErrorKind::BrokenPipe => tracing::warn!("a capture ended: {why}"),
            _ => {}
        }
    });
    if let Err(why) = spawned {
        return error(StatusCode::INTERNAL_SERVER_ERROR, &format!("cannot start a capture: {why}"), "");
    }
    endless.set();
    let headers = [("content-type", "application/x-pcapng".to_owned()), (CAPTURE_NUMBER, number.to_string())];
    (headers, Body::new(Pieces(body))).into_response()
}

fn end(running: &Mutex<Running>, query: &HashMap<String, String>) -> Response {
    let number = query.get("number").and_then(|number| number.parse().ok());
    let Some(number): Option<u64> = number.filter(|_| query.len() == 1) else {
        return error(StatusCode::BAD_REQUEST, "no capture number given", "one `number`");
    };
    match lock(running).stops.get(&number) {
        Some(stop) => {
            stop.store(true, Ordering::Release);
            axum::Json(CaptureEnded { ended: number }).into_response()
        }
        None => error(StatusCode::NOT_FOUND, &format!("no capture {number} runs"), ""),
    }
}

/// Removes a capture from the list when dropped, however the capture ended.
struct Ended {
    running: Arc<Mutex<Running>>,
    number: u64,
}

impl Drop for Ended {
    fn drop(&mut self) {
        lock(&self.running).stops.remove(&self.number);
    }
}

/// Writing end of the response body. Waits for a slow client, unless the capture is to end; packets lost meanwhile are
/// counted.
struct Out {
    to: mpsc::Sender<std::io::Result<Bytes>>,
    stop: Arc<AtomicBool>,
    /// Time at which a piece first had to wait after the stop.
    ending: Option<Instant>,
}

impl Write for Out {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let mut piece = Ok(Bytes::copy_from_slice(bytes));
        loop {
            piece = match self.to.try_send(piece) {
                Ok(()) => return Ok(bytes.len()),
                Err(TrySendError::Full(piece)) => piece,
                Err(TrySendError::Closed(_)) => return Err(ErrorKind::BrokenPipe.into()),
            };
            if self.stop.load(Ordering::Acquire) && self.ending.get_or_insert_with(Instant::now).elapsed() > LAST {
                return Err(ErrorKind::BrokenPipe.into());
            }
            std::thread::sleep(POLL);
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        if self.to.is_closed() { Err(ErrorKind::BrokenPipe.into()) } else { Ok(()) }
    }
}
