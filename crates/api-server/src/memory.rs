//! Serves the API to requests in memory instead of a socket.

use crate::serve::{only_reading, routes, serve_one};
use crate::{Guard, Instance, guard};
use axum::Router;
use axum::middleware::from_fn_with_state;
use std::sync::Arc;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::runtime::Runtime;

/// Capacity of the pipe in one direction, in bytes.
const PIPE: usize = 64 << 10;

/// The API of an instance, in memory.
pub struct InMemory {
    runtime: Runtime,
    routes: Router,
}

impl InMemory {
    /// Prepares the routes of a socket, see [`crate::serve()`]: of the one for reading if `reading`.
    ///
    /// # Errors
    /// If the threads cannot be started.
    pub fn new(instance: Arc<dyn Instance>, more: Router, reading: bool) -> std::io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(1).build()?;
        let routes = routes(instance, more);
        Ok(Self { runtime, routes: if reading { only_reading(routes) } else { routes } })
    }

    /// Guards requests like those over TCP.
    pub fn guarded(self, by: Guard) -> Self {
        Self { routes: self.routes.layer(from_fn_with_state(by, guard)), ..self }
    }

    /// Returns what a client receives that sends these bytes and nothing more.
    pub fn answer(&self, request: &[u8]) -> Vec<u8> {
        let (mut client, server) = tokio::io::duplex(PIPE);
        let mut answer = vec![];
        self.runtime.block_on(async {
            let talk = async {
                // The server may refuse a request before it has all of it.
                let _ = client.write_all(request).await;
                let _ = client.shutdown().await;
                let _ = client.read_to_end(&mut answer).await;
            };
            tokio::join!(talk, serve_one(server, self.routes.clone()));
        });
        answer
    }
}
