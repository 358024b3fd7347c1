//! Takeover of a running process's ports by a new process.
//!
//! The new process first asks the running one through the API to connect to a socket, and receives there the bpf_link
//! descriptors of the attached programs. Then it prepares everything of its own: buffers, the kernel's tables, the
//! program. Nothing has changed so far: whichever of the two fails, the running one continues. On `"let_go"` the
//! running process leaves its ports to the kernel, lets its workers finish, closes its sockets and answers `"gone"`.
//! The new one opens its sockets, and last replaces the attached programs with its own. Meanwhile a switch's program
//! goes on in the driver; a router's leaves all packets to the kernel, because nobody follows the kernel's policies for
//! it. No program is detached, and no interface is set up again.
//!
//! If the new process has ended before it got the ports, or programs have been attached anew since it received their
//! descriptors, the running one closes the connection and continues.
//!
//! | sender | message | descriptors |
//! |---|---|---|
//! | running | `{"port": {"interface", "native", "xdp", "tc"}}`, once for each AF_XDP port | the links' descriptors |
//! | running | `"ready"` | |
//! | new | `"let_go"` | |
//! | running | `"gone"`, its sockets are closed | |
//! | running | closes the connection: its process has nothing left to do | |

use crate::sandbox;
use anyhow::{Context as _, bail, ensure};
use bywash_api::client;
use bywash_config::{PortConfig, PortKind};
use bywash_port::af_xdp::Attachment;
use bywash_port::broker;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen, socket_with};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::Permissions;
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Largest message, in bytes.
const MESSAGE: usize = 1024;
/// Longest duration of each step of the running process.
pub const STEP: Duration = Duration::from_secs(5);

/// Message between the two processes.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Message {
    /// Program of a port. `xdp` and `tc` say which descriptors come with it.
    Port {
        interface: String,
        native: bool,
        xdp: bool,
        tc: bool,
    },
    Ready,
    LetGo,
    Gone,
}

/// Socket between the two processes.
pub struct Line(pub OwnedFd);

impl Line {
    /// Sends a message with descriptors.
    pub fn send(&self, message: &Message, fds: &[BorrowedFd<'_>]) -> anyhow::Result<()> {
        Ok(broker::send(&self.0, message, fds)?)
    }

    /// Receives the next message. `None` if the peer has ended; errors if none arrives within `wait`.
    pub fn receive(&self, wait: Duration) -> anyhow::Result<Option<(Message, Vec<OwnedFd>)>> {
        let until = Instant::now() + wait;
        loop {
            let left = Timespec::try_from(until.saturating_duration_since(Instant::now()))?;
            match poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&left)) {
                Ok(0) => bail!("it did not answer within {} s", wait.as_secs()),
                Ok(_) => break,
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        let mut bytes = [0; MESSAGE];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let Some((text, fds)) = broker::receive_into(&self.0, &mut bytes, &mut space)? else { return Ok(None) };
        Ok(Some((serde_json::from_slice(text).context("a message of another version")?, fds)))
    }

    /// Returns whether a message, or the end of the connection, can be received now.
    pub fn ready(&self) -> bool {
        poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&Timespec::default())).is_ok_and(|n| n > 0)
    }

    /// Returns the pid of the peer. Errors if it runs as another user, or in a PID namespace that cannot be seen.
    pub fn peer(&self) -> anyhow::Result<i32> {
        let peer = broker::peer(&self.0)?;
        let pid = peer.pid.context("it is in another PID namespace")?;
        ensure!(peer.user == sandbox::started_as().as_raw(), "pid {pid} runs as another user");
        Ok(pid)
    }
}

/// Receives the ports of the running process, each within `wait`.
pub fn ports(line: &Line, wait: Duration) -> anyhow::Result<BTreeMap<String, Attachment>> {
    let mut ports = BTreeMap::new();
    loop {
        match line.receive(wait)?.context("it has ended")? {
            (Message::Port { interface, native, xdp, tc }, fds) => {
                let mut fds = fds.into_iter();
                let mut next = |there: bool| there.then(|| fds.next().context("a descriptor is missing")).transpose();
                ports.insert(interface, Attachment { native, xdp: next(xdp)?, tc: next(tc)? });
            }
            (Message::Ready, _) => return Ok(ports),
            (other, _) => bail!("unexpected message {other:?}: is it another version of bywash?"),
        }
    }
}

/// Creates a socket for a [`Line`].
pub fn line() -> rustix::io::Result<OwnedFd> {
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
}

/// Socket beside the API's at which a process that takes over waits. Every user could have taken an abstract name
/// first; to this path only processes of the same user can connect.
struct Meeting {
    socket: OwnedFd,
    path: PathBuf,
}

impl Meeting {
    fn open(api: &Path) -> anyhow::Result<Self> {
        // The running instance may have another working directory. A short name: paths of sockets have at most 107
        // bytes.
        let path = std::path::absolute(api)?.with_file_name(format!(".t-{}", std::process::id()));
        // Left by an earlier process of the same pid.
        let _ = std::fs::remove_file(&path);
        let meeting = Self { socket: line()?, path };
        let name = || format!("cannot listen at {}: give a shorter --socket", meeting.path.display());
        bind(&meeting.socket, &SocketAddrUnix::new(&meeting.path).with_context(name)?).with_context(name)?;
        // The mode is set in time: nobody can connect before `listen`.
        std::fs::set_permissions(&meeting.path, Permissions::from_mode(0o600))?;
        listen(&meeting.socket, 1)?;
        Ok(meeting)
    }

    /// Accepts the connection that was made.
    fn accept(self) -> anyhow::Result<Line> {
        let step = Timespec { tv_sec: STEP.as_secs() as i64, tv_nsec: 0 };
        let waiting = poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(&step))?;
        ensure!(waiting > 0, "the running instance has not connected");
        Ok(Line(accept_with(&self.socket, SocketFlags::CLOEXEC)?))
    }
}

impl Drop for Meeting {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// The process that is taken over, as the new one sees it.
pub struct Predecessor {
    line: Line,
    pub pid: i32,
    ports: BTreeMap<String, Attachment>,
    /// Time at which `LetGo` was sent, if the process has let go.
    let_go: Option<Instant>,
}

impl Predecessor {
    /// Asks the instance at `api` for its ports. `None` if no instance runs there.
    pub fn find(api: &Path) -> anyhow::Result<Option<Self>> {
        if !client::answers(api) {
            return Ok(None);
        }
        let running = broker::peer(&UnixStream::connect(api)?)?;
        let pid = running.pid.context("the running instance is in another PID namespace")?;
        // Ports are handed over by their interfaces' names, which mean other interfaces there.
        match running.shares_network() {
            Ok(shares) => ensure!(
                shares,
                "pid {pid} at {} runs in another network namespace: give this instance another --socket",
                api.display()
            ),
            // Without CAP_SYS_PTRACE, as in a container. The interfaces are compared when they are taken over.
            Err(why) => tracing::warn!("cannot see the network namespace of pid {pid}, which must be this one: {why}"),
        }
        let meeting = Meeting::open(api).context("a socket for the running instance")?;
        // A busy instance may take its time, and one that hangs the whole time limit.
        tracing::info!("asking the running instance at {} for its ports", api.display());
        // By the time it answers, it has connected.
        client::take_over(api, &meeting.path.to_string_lossy())?;
        let line = meeting.accept()?;
        // The peer may be the broker: a process in its sandbox does not connect itself.
        line.peer()?;
        let ports = ports(&line, STEP)?;
        tracing::info!("taking over from pid {pid}");
        Ok(Some(Self { line, pid, ports, let_go: None }))
    }

    /// Takes the programs attached to an interface, if there are any.
    pub fn take(&mut self, interface: &str) -> Option<Attachment> {
        self.ports.remove(interface)
    }

    /// Makes the process let go. When this returns, its sockets are closed.
    pub fn let_go(&mut self) -> anyhow::Result<()> {
        let asked = Instant::now();
        let sent = self.line.send(&Message::LetGo, &[]);
        crate::step::reached("takeover-asked");
        let answer = sent.and_then(|()| self.line.receive(STEP));
        let kept = "the running instance did not hand over its ports: see its log";
        match answer.context(kept)?.context(kept)? {
            (Message::Gone, _) => {
                self.let_go = Some(asked);
                Ok(())
            }
            (other, _) => {
                let pid = self.pid;
                bail!("unexpected message {other:?} from pid {pid}: is it another version of bywash?")
            }
        }
    }

    /// Returns whether the process has let go: from then on it does not resume.
    pub fn has_let_go(&self) -> bool {
        self.let_go.is_some()
    }

    /// Ends the takeover, and logs how long it took.
    pub fn done(&mut self) {
        // Detach the programs on interfaces that are no longer ports.
        self.ports.clear();
        let took = self.let_go.map_or(Duration::ZERO, |since| since.elapsed());
        let took = took.as_secs_f64() * 1e3;
        tracing::info!("taken over from pid {}: user space paused for {took:.1} ms, the kernel forwarded", self.pid);
    }

    /// Returns whether the process has nothing left to do, and has closed its API socket.
    pub fn has_ended(&self) -> bool {
        self.line.ready()
    }
}

/// Starts the program file as it is on disk now, as a process that takes over from this one.
pub fn upgrade() {
    if sandbox::entered() {
        tracing::warn!(
            "SIGUSR2: in its sandbox bywash cannot start a program: start the new process yourself, with the same \
             options and --takeover, or use --no-sandbox; this process continues"
        );
        return;
    }
    let mut arguments: Vec<_> = std::env::args_os().collect();
    let program = arguments.remove(0);
    if !arguments.iter().any(|argument| argument == "--takeover") {
        arguments.push("--takeover".into());
    }
    // `WATCHDOG_PID` names this process; without it the new process notifies the watchdog once it is the main process.
    match Command::new(&program).args(arguments).env_remove("WATCHDOG_PID").spawn() {
        Ok(mut child) => {
            tracing::info!("SIGUSR2: started pid {}, which will take over", child.id());
            // Reap the child if it fails before it takes over.
            std::thread::spawn(move || child.wait());
        }
        Err(e) => tracing::error!("SIGUSR2: cannot run {}: {e}; this process continues", program.display()),
    }
}

/// Returns whether a port can be taken over, or opened while another process has a port of the same kind.
pub fn can_follow(port: &PortConfig) -> bool {
    match port.kind {
        PortKind::AfXdp => true,
        PortKind::Dpdk => false,
        _ => port.interface.is_none(),
    }
}

/// Returns the reason for which a port cannot be taken over.
pub fn why_not(port: &PortConfig) -> String {
    let interface = port.interface.as_deref().unwrap_or("its device");
    format!(
        "port `{}` cannot be taken over: {interface} disappears with the process that has it; restart bywash",
        port.name
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};
    use std::io::IoSlice;
    use std::os::fd::AsFd;

    #[test]
    fn messages_carry_descriptors() {
        let (one, other) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let (one, other) = (Line(one), Line(other));
        assert!(!other.ready());
        let file = tempfile::tempfile().unwrap();
        let port = || Message::Port { interface: "eth0".into(), native: true, xdp: true, tc: true };
        one.send(&port(), &[file.as_fd(), file.as_fd()]).unwrap();
        one.send(&Message::Ready, &[]).unwrap();
        let (message, fds) = other.receive(STEP).unwrap().unwrap();
        assert_eq!((message, fds.len()), (port(), 2));
        assert_eq!(other.receive(STEP).unwrap().unwrap().0, Message::Ready);
        assert!(other.receive(Duration::ZERO).is_err());
        assert_eq!(one.peer().unwrap(), std::process::id() as i32);
        sendmsg(&one.0, &[IoSlice::new(b"{}")], &mut SendAncillaryBuffer::default(), SendFlags::empty()).unwrap();
        assert!(other.receive(STEP).unwrap_err().to_string().contains("another version"));
        drop(one);
        assert!(other.ready() && other.receive(STEP).unwrap().is_none());
    }
}
