//! Captures over the API: a response that lasts until `DELETE` ends the capture or the client disconnects.

use super::serve::Shared;
use axum::body::Body;
use axum::extract::{Extension, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, post};
use bywash_api::{CAPTURE_NUMBER, CaptureEnded, CaptureRequest, Way};
use bywash_api_server::{Endless, error};
use http_body::Frame;
use hyper::body::Bytes;
use std::collections::HashMap;
use std::convert::Infallible;
use std::io::{ErrorKind, Write};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use tokio::sync::mpsc;

/// Most captures at once: each costs workers time.
const AT_ONCE: usize = 4;
/// Most pieces queued for the client, of at most 256 KiB each.
const PIECES: usize = 16;

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
            "way" if value == "rx" && request.way.is_none() => request.way = Some(Way::Rx),
            "way" if value == "tx" && request.way.is_none() => request.way = Some(Way::Tx),
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
        let mut running = running.lock().expect("captures");
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
        let out = Box::new(Pieces { to: pieces });
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
    (headers, Body::new(Stream(body))).into_response()
}

fn end(running: &Mutex<Running>, query: &HashMap<String, String>) -> Response {
    let number = query.get("number").and_then(|number| number.parse().ok());
    let Some(number): Option<u64> = number.filter(|_| query.len() == 1) else {
        return error(StatusCode::BAD_REQUEST, "no capture number given", "one `number`");
    };
    match running.lock().expect("captures").stops.get(&number) {
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
        if let Ok(mut running) = self.running.lock() {
            running.stops.remove(&self.number);
        }
    }
}

/// Writing end of the response body. Blocks on a slow client; packets lost meanwhile are counted.
struct Pieces {
    to: mpsc::Sender<Bytes>,
}

impl Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        match self.to.blocking_send(Bytes::copy_from_slice(bytes)) {
            Ok(()) => Ok(bytes.len()),
            Err(_) => Err(ErrorKind::BrokenPipe.into()),
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        if self.to.is_closed() { Err(ErrorKind::BrokenPipe.into()) } else { Ok(()) }
    }
}

/// Reading end of the response body.
struct Stream(mpsc::Receiver<Bytes>);

impl http_body::Body for Stream {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(cx).map(|piece| piece.map(|piece| Ok(Frame::data(piece))))
    }
}
