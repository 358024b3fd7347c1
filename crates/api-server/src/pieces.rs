//! Answers that are made piece by piece, as fast as the client takes them.

use crate::Rows;
use crate::serve::internal_error;
use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http_body::Frame;
use hyper::body::Bytes;
use std::io::{Error, ErrorKind};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::mpsc::{Receiver, Sender, channel};

/// Longest duration of such an answer, which may have a million rows.
const LONGEST: Duration = Duration::from_secs(120);

/// Body of a response that another task or thread makes. An error in place of a piece ends the connection, so that the
/// client does not take the answer for a whole one.
pub struct Pieces(pub Receiver<Result<Bytes, Error>>);

impl http_body::Body for Pieces {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        self.0.poll_recv(cx).map(|piece| piece.map(|piece| piece.map(Frame::data)))
    }
}

/// Answers with rows, as a JSON list. One piece is made ahead of the client, by a thread that does not wait for it.
pub async fn answer(rows: Box<dyn Rows>) -> Response {
    // A list that ends with its first piece is answered with its length.
    let begin = async {
        let (mut text, rest) = Listing { rows, any: false }.next().await?;
        let Some(rest) = rest else { return Ok((text, None)) };
        let (more, rest) = rest.next().await?;
        text += &more;
        Ok::<_, Error>((text, rest))
    };
    let (text, rest) = match begin.await {
        Ok((text, rest)) => (format!("[{text}"), rest),
        Err(why) => {
            broken(&why);
            return internal_error();
        }
    };
    let kind = [("content-type", "application/json")];
    let Some(rest) = rest else { return (kind, text).into_response() };
    let (pieces, body) = channel(1);
    tokio::spawn(async move {
        if tokio::time::timeout(LONGEST, send(text, rest, &pieces)).await.is_err() {
            let _ = pieces.send(Err(ErrorKind::TimedOut.into())).await;
        }
    });
    (kind, Body::new(Pieces(body))).into_response()
}

/// Sends a text and the rest of a list, until the end or until the client has gone.
async fn send(mut text: String, mut rest: Listing, to: &Sender<Result<Bytes, Error>>) {
    while text.is_empty() || to.send(Ok(text.into())).await.is_ok() {
        match rest.next().await {
            Ok((more, Some(next))) => (text, rest) = (more, next),
            Ok((end, None)) => {
                let _ = to.send(Ok(end.into())).await;
                return;
            }
            Err(why) => {
                broken(&why);
                let _ = to.send(Err(why)).await;
                return;
            }
        }
    }
}

fn broken(why: &Error) {
    tracing::error!("an answer of the API is not complete: {why}");
}

/// Rest of a list.
struct Listing {
    rows: Box<dyn Rows>,
    /// Rows have been written before, if true.
    any: bool,
}

impl Listing {
    /// Returns the text of the next piece, and the rest of the list; `None` after its end.
    async fn next(mut self) -> Result<(String, Option<Self>), Error> {
        let made = tokio::task::spawn_blocking(move || {
            let Some(piece) = self.rows.next() else { return Ok(("]".to_owned(), None)) };
            let text = serde_json::to_string(&piece)?;
            let rows = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or_default();
            let comma = if self.any && !rows.is_empty() { "," } else { "" };
            self.any |= !rows.is_empty();
            Ok((format!("{comma}{rows}"), Some(self)))
        });
        made.await?
    }
}
