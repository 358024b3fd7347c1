//! The process that takes over, as the running one sees it: its half of [`crate::takeover`].

use crate::shared::Shared;
use crate::slots::programs;
use crate::takeover::{Line, Message, can_follow, line, why_not};
use anyhow::{Context as _, bail, ensure};
use bywash_port::af_xdp::Attachment;
use rustix::net::{SocketAddrUnix, connect};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

/// The process that takes over, as the running one sees it.
pub struct Successor {
    line: Line,
    pub pid: i32,
}

impl Successor {
    /// Connects to the socket of the new process, which is beside the API's, and sends it the attached programs. Errors
    /// if a port cannot be taken over.
    pub fn meet(name: &str, shared: &Shared) -> anyhow::Result<Self> {
        let (path, api) = (Path::new(name), std::path::absolute(&shared.config().api.socket)?);
        let directory = |path: &Path| path.parent().and_then(|directory| directory.canonicalize().ok());
        ensure!(directory(path) == directory(&api), "the socket to take over must be beside {}", api.display());
        let line = Line(line()?);
        connect(&line.0, &SocketAddrUnix::new(path)?).context("no process waits at that socket")?;
        let pid = line.peer()?;
        can_be_followed(shared)?;
        for xdp in programs(&mut shared.ports()) {
            let Attachment { native, xdp: link, tc } = xdp.program.attachment()?;
            let fds: Vec<BorrowedFd<'_>> = link.iter().chain(&tc).map(OwnedFd::as_fd).collect();
            let interface = xdp.interface.clone();
            line.send(&Message::Port { interface, native, xdp: link.is_some(), tc: tc.is_some() }, &fds)?;
        }
        line.send(&Message::Ready, &[])?;
        tracing::info!("pid {pid} is preparing to take over");
        Ok(Self { line, pid })
    }

    /// Returns whether `LetGo` has been received. Errors if the process has given up.
    pub fn wants_all(&self) -> anyhow::Result<bool> {
        if !self.line.ready() {
            return Ok(false);
        }
        match self.line.receive(Duration::ZERO)? {
            Some((Message::LetGo, _)) => Ok(true),
            Some((other, _)) => bail!("unexpected message {other:?}"),
            None => bail!("it has ended"),
        }
    }

    /// Tells the process that the sockets are closed.
    pub fn gone(&self) {
        if let Err(e) = self.line.send(&Message::Gone, &[]) {
            tracing::error!("pid {} has ended ({e}): the kernel forwards", self.pid);
        }
    }
}

/// Checks that every port can be taken over. Errors if an interface would disappear with this process.
fn can_be_followed(shared: &Shared) -> anyhow::Result<()> {
    match shared.ports().values().find(|slot| !can_follow(&slot.config)) {
        Some(slot) => bail!("{}", why_not(&slot.config)),
        None => Ok(()),
    }
}
