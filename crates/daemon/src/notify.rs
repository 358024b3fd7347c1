//! Notifications to the service manager, by systemd's protocol (sd_notify(3)): ready, still alive, stopping. Does
//! nothing without a service manager that asks for them.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::{Duration, Instant};

/// Connection to the service manager.
pub struct Notifier {
    to: Option<(UnixDatagram, SocketAddr)>,
    /// Interval between watchdog notifications, if the manager wants any.
    every: Option<Duration>,
    notified: Instant,
}

impl Notifier {
    /// Creates a notifier for the manager named in the environment (`NOTIFY_SOCKET`, `WATCHDOG_USEC`, `WATCHDOG_PID`).
    pub fn from_environment() -> Self {
        let name = std::env::var_os("NOTIFY_SOCKET").unwrap_or_default();
        let pid = std::env::var("WATCHDOG_PID").ok().and_then(|pid| pid.parse().ok());
        let ours = pid.is_none_or(|pid: u32| pid == std::process::id());
        let watchdog = std::env::var("WATCHDOG_USEC").ok().filter(|_| ours).and_then(|us| us.parse().ok());
        Self::new(name.as_bytes(), watchdog.map(Duration::from_micros))
    }

    fn new(name: &[u8], watchdog: Option<Duration>) -> Self {
        let address = match name {
            [b'@', name @ ..] => SocketAddr::from_abstract_name(name).ok(),
            [b'/', ..] => SocketAddr::from_pathname(std::ffi::OsStr::from_bytes(name)).ok(),
            _ => None,
        };
        let to = address.and_then(|address| Some((UnixDatagram::unbound().ok()?, address)));
        // A quarter of the requested interval leaves three to what follows a notification: a port that is opened.
        Self { to, every: watchdog.map(|time| time / 4), notified: Instant::now() }
    }

    /// Sends `KEY=value` lines. Does not block, and ignores errors.
    fn say(&self, lines: &str) {
        if let Some((socket, to)) = &self.to {
            let _ = socket.set_nonblocking(true);
            let _ = socket.send_to_addr(lines.as_bytes(), to);
        }
    }

    /// Reports that the process is ready, with a status line.
    pub fn ready(&self, status: &str) {
        self.say(&format!("READY=1\nSTATUS={status}"));
    }

    /// Reports that the process is alive, at most four times in the interval the manager asked for, however often this
    /// is called.
    pub fn alive(&mut self) {
        if self.every.is_some_and(|every| self.notified.elapsed() >= every) {
            self.notified = Instant::now();
            self.say("WATCHDOG=1");
        }
    }

    /// Reports that the process with this pid is the main process from now on.
    pub fn followed_by(&self, pid: i32) {
        self.say(&format!("MAINPID={pid}\nSTATUS=pid {pid} has taken over"));
    }

    /// Reports that the process is stopping.
    pub fn stopping(&self) {
        self.say("STOPPING=1\nSTATUS=the kernel forwards");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manager_is_notified() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("notify");
        let manager = UnixDatagram::bind(&path).unwrap();
        manager.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let receive = || {
            let mut bytes = [0; 100];
            let n = manager.recv(&mut bytes).unwrap();
            String::from_utf8_lossy(&bytes[..n]).into_owned()
        };
        let mut notifier = Notifier::new(path.as_os_str().as_bytes(), Some(Duration::ZERO));
        notifier.ready("forwarding");
        assert_eq!(receive(), "READY=1\nSTATUS=forwarding");
        notifier.alive();
        assert_eq!(receive(), "WATCHDOG=1");
        notifier.stopping();
        assert!(receive().starts_with("STOPPING=1\n"));
        drop(manager);
        notifier.ready("nobody listens");
        // No socket, and one with an invalid name.
        Notifier::new(b"", None).ready("nobody listens");
        Notifier::new(b"relative", None).alive();
    }
}
