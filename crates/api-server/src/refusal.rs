//! Connection whose client gets a reason when the HTTP library refuses its request.

use bywash_api::Problem;
use hyper::StatusCode;
use std::io::{IoSlice, Result};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Stream that puts the API's error in place of an answer that is written before a request has reached the service:
/// the library's, which has no body.
pub struct Refusing<S> {
    stream: S,
    /// Set when a request has reached the service.
    asked: Arc<AtomicBool>,
    /// Rest of the answer to a refused request that is still to be written.
    left: Vec<u8>,
}

impl<S> Refusing<S> {
    /// Creates an instance; `asked` is set when a request reaches the service.
    pub fn new(stream: S, asked: Arc<AtomicBool>) -> Self {
        Self { stream, asked, left: vec![] }
    }
}

impl<S: AsyncWrite + Unpin> Refusing<S> {
    fn poll_left(&mut self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        while !self.left.is_empty() {
            let written = ready!(Pin::new(&mut self.stream).poll_write(cx, &self.left))?;
            if written == 0 {
                return Poll::Ready(Err(std::io::ErrorKind::WriteZero.into()));
            }
            self.left.drain(..written);
        }
        Poll::Ready(Ok(()))
    }
}

/// Returns the answer in place of the library's, which begins with `bytes`; `None` if that is not such an answer.
fn answer(bytes: &[u8]) -> Option<Vec<u8>> {
    let status = StatusCode::from_bytes(bytes.strip_prefix(b"HTTP/1.")?.get(2..5)?).ok()?;
    let (error, hint) = match status {
        StatusCode::URI_TOO_LONG => ("the path is too long", "ask for less at once"),
        StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE => {
            ("the request's header is too long", "at most 16 KiB and 100 fields are accepted")
        }
        _ => ("the request is not one of HTTP/1.1", "send one such as `GET /v1/ports HTTP/1.1`"),
    };
    let body = serde_json::to_string(&Problem { error: error.into(), hint: hint.into() }).ok()?;
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n"
    );
    status.is_client_error().then(|| (head + &body).into_bytes())
}

impl<S: AsyncRead + Unpin> AsyncRead for Refusing<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Refusing<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize>> {
        // The library's answer is written at once.
        if !self.asked.load(Ordering::Acquire)
            && let Some(answer) = answer(bytes)
        {
            self.left = answer;
            return Poll::Ready(Ok(bytes.len()));
        }
        ready!(self.poll_left(cx))?;
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        if !self.asked.load(Ordering::Acquire) {
            return self.poll_write(cx, pieces.iter().find(|piece| !piece.is_empty()).map_or(&[], |piece| piece));
        }
        Pin::new(&mut self.stream).poll_write_vectored(cx, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        ready!(self.poll_left(cx))?;
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        ready!(self.poll_left(cx))?;
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
