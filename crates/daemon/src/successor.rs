//! The process that takes over, as the running one sees it: its half of [`crate::takeover`].

use crate::shared::Shared;
use crate::slots::programs;
use crate::takeover::{Line, Message, can_follow, why_not};
use anyhow::{Context as _, anyhow, bail, ensure};
use bywash_port::af_xdp::Attachment;
use bywash_port::broker;
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

/// The process that takes over, as the running one sees it.
pub struct Successor {
    line: Line,
    pub pid: i32,
    /// Ids of the programs' links that the process has been sent.
    links: Vec<u32>,
}

impl Successor {
    /// Connects to the socket of the new process, which is beside the API's, and sends it the attached programs. Errors
    /// if a port cannot be taken over.
    pub fn meet(name: &str, shared: &Shared) -> anyhow::Result<Self> {
        let (path, api) = (Path::new(name), std::path::absolute(&shared.config().api.socket)?);
        // A broker connects to sockets in the directories of this process's sockets alone. Without the broker's
        // privileges these may not be found.
        let directory = |path: &Path| path.parent().and_then(|directory| directory.canonicalize().ok());
        let beside = directory(path).is_some_and(|there| Some(there) == directory(&api));
        ensure!(beside || broker::present(), "the socket to take over must be beside {}", api.display());
        let line = reach(path)?;
        let pid = line.peer()?;
        can_be_followed(shared)?;
        let links = links(shared);
        for xdp in programs(&mut shared.ports()) {
            let Attachment { native, xdp: link, tc } = xdp.program.attachment()?;
            let fds: Vec<BorrowedFd<'_>> = link.iter().chain(&tc).map(OwnedFd::as_fd).collect();
            let interface = xdp.interface.clone();
            line.send(&Message::Port { interface, native, xdp: link.is_some(), tc: tc.is_some() }, &fds)?;
        }
        line.send(&Message::Ready, &[])?;
        tracing::info!("pid {pid} is preparing to take over");
        Ok(Self { line, pid, links })
    }

    /// Returns whether `LetGo` has been received. Errors if the process has given up or ended, or if it was sent the
    /// programs' links before some were attached anew.
    pub fn wants_all(&self, shared: &Shared) -> anyhow::Result<bool> {
        let asked = wants_all(&self.line, self.pid)?;
        ensure!(
            !asked || self.links == links(shared),
            "the programs were attached again during the takeover: run the new process again"
        );
        Ok(asked)
    }

    /// Notifies the process that the sockets are closed. Errors if it has ended.
    pub fn gone(&self) -> anyhow::Result<()> {
        let sent = self.line.send(&Message::Gone, &[]);
        sent.with_context(|| format!("pid {} has ended while it took over: the kernel forwards from now on", self.pid))
    }
}

fn wants_all(line: &Line, pid: i32) -> anyhow::Result<bool> {
    if !line.ready() {
        return Ok(false);
    }
    match line.receive(Duration::ZERO)? {
        // The process may have ended since, or given up because no answer came.
        Some((Message::LetGo, _)) if line.ready() => bail!("it has ended"),
        Some((Message::LetGo, _)) => Ok(true),
        Some((other, _)) => bail!("unexpected message {other:?} from pid {pid}: is it another version of bywash?"),
        None => bail!("it has ended"),
    }
}

/// Returns the ids of the links by which the ports' programs are attached.
fn links(shared: &Shared) -> Vec<u32> {
    programs(&mut shared.ports()).flat_map(|xdp| xdp.program.links()).collect()
}

/// Longest time for which the control loop waits until the process accepts the connection, or takes a message.
const TAKES: Duration = Duration::from_secs(2);

/// Connects to the socket of a process, which may be one that never answers.
fn reach(path: &Path) -> anyhow::Result<Line> {
    let connected = broker::connect(path, Some(TAKES));
    let line = connected.map_err(|why| match Errno::from_io_error(&why) {
        Some(Errno::AGAIN) => {
            anyhow!("the new process did not accept a connection at {} within {} s", path.display(), TAKES.as_secs())
        }
        _ if broker::ended() => {
            anyhow!("the broker, which would connect to {}, has ended: restart bywash", path.display())
        }
        _ => anyhow::Error::new(why).context(format!("no process is waiting at {}", path.display())),
    })?;
    // Messages are not waited for longer either.
    set_socket_timeout(&line, Timeout::Send, Some(TAKES))?;
    Ok(Line(line))
}

/// Checks that every port can be taken over. Errors if an interface would disappear with this process.
fn can_be_followed(shared: &Shared) -> anyhow::Result<()> {
    match shared.ports().values().find(|slot| !can_follow(&slot.config)) {
        Some(slot) => bail!("{}", why_not(&slot.config)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::takeover::line;
    use rustix::net::{SocketAddrUnix, bind, listen};
    use std::sync::mpsc;

    #[test]
    fn only_a_living_process_is_let_have_the_ports() {
        let pair = || {
            let [ours, theirs] = socket_pair();
            (Line(ours), Line(theirs))
        };
        let (ours, theirs) = pair();
        assert!(!wants_all(&ours, 1).unwrap());
        theirs.send(&Message::LetGo, &[]).unwrap();
        assert!(wants_all(&ours, 1).unwrap());
        assert!(!wants_all(&ours, 1).unwrap());
        // It asks, and ends before this process turns to it.
        theirs.send(&Message::LetGo, &[]).unwrap();
        drop(theirs);
        assert!(wants_all(&ours, 1).is_err());
        let (ours, theirs) = pair();
        drop(theirs);
        assert!(wants_all(&ours, 1).is_err());
        let successor = Successor { line: ours, pid: 7, links: vec![] };
        assert!(successor.gone().unwrap_err().to_string().contains("pid 7 has ended"));
    }

    fn socket_pair() -> [OwnedFd; 2] {
        use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
        let (one, other) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        [one, other]
    }

    #[test]
    fn who_accepts_nothing_or_takes_nothing_is_given_up() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("silent");
        let silent = line().unwrap();
        bind(&silent, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        assert!(reach(&path).is_err(), "nobody listens");
        listen(&silent, 0).unwrap();
        let (done, results) = mpsc::channel();
        std::thread::spawn(move || {
            // One connection waits to be accepted; there is no room for another.
            let first = reach(&path).unwrap();
            done.send(reach(&path).map(drop)).unwrap();
            let sent = (0..100_000).try_for_each(|_| first.send(&Message::Ready, &[]));
            done.send(sent).unwrap();
        });
        for _ in 0..2 {
            let result = results.recv_timeout(Duration::from_secs(60)).expect("it waits for ever");
            assert!(result.is_err());
        }
    }
}
