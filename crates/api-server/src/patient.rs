//! Connection whose peer must read something from time to time.

use std::io::{Error, ErrorKind, IoSlice, Result};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// Stream on which writes fail when the peer has read nothing for a while. Time in which nothing is written does not
/// count.
pub struct Patient<S> {
    stream: S,
    limit: Duration,
    /// Runs since the reader last took something, while there is something to take.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl<S> Patient<S> {
    /// Creates an instance that waits for the stream's reader for `limit`.
    pub fn new(stream: S, limit: Duration) -> Self {
        Self { stream, limit, stalled: None }
    }

    fn judge(&mut self, cx: &mut Context<'_>, written: Poll<Result<usize>>) -> Poll<Result<usize>> {
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        let limit = self.limit;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(limit)));
        stalled.as_mut().poll(cx).map(|()| Err(Error::from(ErrorKind::TimedOut)))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Patient<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Patient<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.judge(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, pieces);
        self.judge(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use tokio::net::UnixStream;

    const LIMIT: Duration = Duration::from_millis(20);

    /// Runs a test with both ends of a connection.
    fn connected<F: Future<Output = ()>>(test: impl FnOnce(Patient<UnixStream>, UnixStream) -> F) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (ours, theirs) = UnixStream::pair().unwrap();
            test(Patient::new(ours, LIMIT), theirs).await;
        });
    }

    async fn write(to: &mut Patient<UnixStream>) -> Result<usize> {
        poll_fn(|cx| Pin::new(&mut *to).poll_write(cx, &[0; 4096])).await
    }

    #[test]
    fn who_takes_nothing_is_given_up() {
        connected(async |mut ours, _theirs| {
            let failed = loop {
                if let Err(failed) = write(&mut ours).await {
                    break failed;
                }
            };
            assert_eq!(failed.kind(), ErrorKind::TimedOut);
        });
    }

    #[test]
    fn silence_with_nothing_to_take_may_last() {
        connected(async |mut ours, _theirs| {
            let mut bytes = [0];
            let mut buf = ReadBuf::new(&mut bytes);
            let read = poll_fn(|cx| Pin::new(&mut ours).poll_read(cx, &mut buf));
            assert!(tokio::time::timeout(4 * LIMIT, read).await.is_err(), "there was nothing to read");
            assert_eq!(write(&mut ours).await.unwrap(), 4096);
        });
    }
}
