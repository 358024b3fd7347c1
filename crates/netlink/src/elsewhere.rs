//! Interfaces in other network namespaces that use interfaces of this one, such as the ipvlan of a container.
//!
//! The kernel lists them for namespaces that have a number (nsid) in this one, and sends notifications of them only to
//! processes with CAP_NET_BROADCAST. It gives a number to the namespaces to which interfaces of this one were moved.
//! Those of processes are given one here, because programs also create interfaces directly where they belong.

use crate::parse::upper_elsewhere;
use crate::uapi::*;
use bywash_fib::model::{Change, Link};
use bywash_nl::Error;
use bywash_nl::pace::Cost;
use bywash_nl::socket::{DATAGRAM, Dumped, Socket};
use bywash_nl::wire::{Attributes, Message, attribute, u32_at};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// Shortest and longest interval between searches, and the least ratio between the interval and the CPU time that a
/// search takes, unless that makes the interval the longest.
const SHORTEST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(5);
const RARELY: u32 = 100;
/// Header of messages about numbers of namespaces: struct rtgenmsg, padded.
const GENERAL: [u8; 4] = [0; 4];
/// Number of a namespace that has none (NETNSA_NSID_NOT_ASSIGNED).
const NONE: u32 = u32::MAX;

/// Search for interfaces in other network namespaces that use interfaces of this one. It makes a system call for each
/// process, and so has a thread of its own.
#[derive(Debug)]
pub struct Elsewhere {
    socket: Socket,
    buffer: Vec<u8>,
    /// Interfaces by the numbers of their namespaces.
    known: BTreeMap<u32, Vec<Link>>,
    reported: Vec<Link>,
    /// Reason why the last search failed.
    failed: Option<String>,
}

impl Elsewhere {
    /// Opens a socket in the calling thread's network namespace.
    pub fn open() -> Result<Self, Error> {
        let socket = Socket::open(&[], 1 << 20)?;
        Ok(Self { socket, buffer: vec![0; DATAGRAM], known: BTreeMap::new(), reported: vec![], failed: None })
    }

    /// Searches until the end, or until `stop` is set; returns what has changed since the last search. Interfaces that
    /// cannot be read are reported as before. The calling thread must be in the namespace in which the socket was
    /// opened.
    pub fn search(&mut self, stop: &AtomicBool) -> Option<Change> {
        let failed = self.read(stop).err().map(|error| error.to_string());
        if let Some(why) = failed.as_ref().filter(|_| failed != self.failed) {
            tracing::warn!(
                "interfaces in other network namespaces that use interfaces of this one may be missed: {why}"
            );
        }
        self.failed = failed;
        let links: Vec<Link> = self.known.values().flatten().cloned().collect();
        if links == self.reported {
            return None;
        }
        self.reported.clone_from(&links);
        Some(Change::Elsewhere { links })
    }

    fn read(&mut self, stop: &AtomicBool) -> Result<(), Error> {
        let Self { socket, buffer, known, .. } = self;
        let own = number_of(socket, buffer, rustix::thread::gettid().as_raw_pid() as u32)?;
        let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let processes = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let goes_on = |_: &u32| !stop.load(Ordering::Relaxed);
        for process in processes.take_while(goes_on) {
            // The process may have ended.
            let _ = number_of(socket, buffer, process);
        }
        // The dump may miss numbers when others go away meanwhile (rtnl_net_dumpid resumes by counting).
        let mut numbers: BTreeSet<u32> = known.keys().copied().collect();
        let number = |message: &Message<'_>| numbers.extend(number_in(message.body));
        socket.dump(RTM_GETNSID, &GENERAL, &[], buffer, number, || Ok(()))?;
        let mut done = Ok(());
        for number in numbers.into_iter().filter(|number| *number != own).take_while(goes_on) {
            let attributes: [(u16, &[u8]); 2] =
                [(IFLA_EXT_MASK, &RTEXT_FILTER_SKIP_STATS.to_ne_bytes()), (IFLA_TARGET_NETNSID, &number.to_ne_bytes())];
            let mut links = vec![];
            let dumped = socket.dump(
                RTM_GETLINK,
                &[0; 16],
                &attributes,
                buffer,
                |message| links.extend(upper_elsewhere(message.body, own)),
                || Ok(()),
            );
            match dumped {
                Ok(Dumped::Whole) => drop(known.insert(number, links)),
                // The namespace is gone.
                Ok(Dumped::Unsupported) => drop(known.remove(&number)),
                Ok(Dumped::Interrupted) => {
                    let known = known.entry(number).or_default();
                    known.retain(|known| links.iter().all(|link| link.index != known.index));
                    known.extend(links);
                }
                Err(error @ Error::Silent) => return Err(error),
                // The others do not depend on it.
                Err(error) => done = Err(error),
            }
        }
        done
    }

    /// Searches again after each interval, and soon after each message in `hurried`, until that is disconnected.
    pub fn follow(mut self, hurried: &Receiver<()>, stop: &AtomicBool, found: impl Fn(Change)) {
        let (mut ended, mut rest) = (Instant::now(), Duration::ZERO);
        loop {
            let mut due = ended + rest.max(SHORTEST);
            loop {
                match hurried.recv_timeout(due.saturating_duration_since(Instant::now())) {
                    Ok(()) => due = ended + rest,
                    Err(RecvTimeoutError::Timeout) => break,
                    Err(RecvTimeoutError::Disconnected) => return,
                }
            }
            let cost = Cost::begin();
            self.search(stop).into_iter().for_each(&found);
            (ended, rest) = (Instant::now(), cost.times(RARELY).min(LONGEST));
        }
    }
}

/// Returns the number in a message about a namespace.
fn number_in(body: &[u8]) -> Option<u32> {
    let number = Attributes::after(body, 4).find(|(kind, _)| *kind == NETNSA_NSID);
    number.and_then(|(_, value)| u32_at(value, 0)).filter(|number| *number != NONE)
}

/// Returns the number, in the socket's network namespace, of that of a process or thread, which gets one if it has
/// none.
fn number_of(socket: &mut Socket, buffer: &mut [u8], process: u32) -> Result<u32, Error> {
    let mut request = [&GENERAL[..], &attribute(NETNSA_PID, &process.to_ne_bytes())].concat();
    let mut number = None;
    socket.ask(RTM_GETNSID, &request, buffer, |message| number = number_in(message.body))?;
    if number.is_none() {
        let len = request.len();
        request.extend(attribute(NETNSA_NSID, &NONE.to_ne_bytes()));
        socket.ask(RTM_NEWNSID, &request, buffer, |_| {})?;
        socket.ask(RTM_GETNSID, &request[..len], buffer, |message| number = number_in(message.body))?;
    }
    Ok(number.unwrap_or(NONE))
}
