//! Interfaces in other network namespaces that use interfaces of this one, such as the ipvlan of a container.
//!
//! The kernel sends no notification of them, and lists them only for a namespace that has a number (nsid) in this one.
//! It gives one to the namespaces to which interfaces of this one were moved. Those of processes are given one here,
//! because programs also make interfaces directly where they belong.

use crate::error::Error;
use crate::parse::upper_elsewhere;
use crate::socket::{DATAGRAM, Socket};
use crate::uapi::*;
use crate::wire::{Attributes, attribute, u32_at};
use bywash_fib::model::{Change, Link};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

/// Interval between searches, and the part of the time that they may take: one of this many.
const INTERVAL: Duration = Duration::from_secs(1);
const PART: u32 = 100;
/// Header of messages about numbers of namespaces: struct rtgenmsg, padded.
const GENERAL: [u8; 4] = [0; 4];

/// Search for such interfaces, by a thread of its own: it takes a system call for each process.
#[derive(Debug)]
pub struct Elsewhere {
    socket: Socket,
    buffer: Vec<u8>,
    known: Vec<Link>,
}

impl Elsewhere {
    /// Opens a socket in the calling thread's network namespace.
    pub fn open() -> Result<Self, Error> {
        Ok(Self { socket: Socket::open(&[], 1 << 20)?, buffer: vec![0; DATAGRAM], known: vec![] })
    }

    /// Searches. Returns what has changed since the last search; after an error, what was found before holds.
    pub fn search(&mut self) -> Option<Change> {
        let links = interfaces(&mut self.socket, &mut self.buffer).ok().filter(|links| *links != self.known)?;
        self.known.clone_from(&links);
        Some(Change::Elsewhere { links })
    }

    /// Searches in each interval, and soon after each message in `hurried`, until that is disconnected.
    pub fn follow(mut self, hurried: &Receiver<()>, found: impl Fn(Change)) {
        loop {
            let began = Instant::now();
            self.search().into_iter().for_each(&found);
            let rest = began.elapsed() * PART;
            match hurried.recv_timeout(rest.max(INTERVAL)) {
                Ok(()) => thread::sleep(rest.saturating_sub(began.elapsed())),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }
}

/// Returns the interfaces in other namespaces that use interfaces of this one, with the kernel indices that they have
/// there, in the order of their namespaces.
fn interfaces(socket: &mut Socket, buffer: &mut [u8]) -> Result<Vec<Link>, Error> {
    let own = number_of(socket, buffer, std::process::id())?;
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let processes = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    for process in processes {
        // It may have ended.
        let _ = number_of(socket, buffer, process);
    }
    let mut numbers = vec![];
    let number =
        |body: &[u8]| Attributes::after(body, 4).find(|(kind, _)| *kind == NETNSA_NSID).map(|(_, n)| n.to_vec());
    socket.dump(RTM_GETNSID, &GENERAL, &[], buffer, |message| numbers.extend(number(message.body)), || Ok(()))?;
    let mut links = vec![];
    for number in numbers.iter().filter(|number| u32_at(number, 0) != Some(own)) {
        let attributes: [(u16, &[u8]); 2] =
            [(IFLA_EXT_MASK, &RTEXT_FILTER_SKIP_STATS.to_ne_bytes()), (IFLA_TARGET_NETNSID, number)];
        // The namespace may be gone, or this process not be privileged in it.
        let _ = socket.dump(
            RTM_GETLINK,
            &[0; 16],
            &attributes,
            buffer,
            |message| links.extend(upper_elsewhere(message.body, own)),
            || Ok(()),
        );
    }
    Ok(links)
}

/// Returns the number of a process' network namespace in this one, which gets one if it has none.
fn number_of(socket: &mut Socket, buffer: &mut [u8], process: u32) -> Result<u32, Error> {
    /// NETNSA_NSID_NOT_ASSIGNED
    const NONE: u32 = u32::MAX;
    let of_process = attribute(NETNSA_PID, &process.to_ne_bytes());
    let mut ask = |socket: &mut Socket| {
        let mut number = NONE;
        let body = [&GENERAL[..], &of_process].concat();
        socket.ask(RTM_GETNSID, &body, buffer, |message| {
            let found = Attributes::after(message.body, 4).find(|(kind, _)| *kind == NETNSA_NSID);
            number = found.and_then(|(_, value)| u32_at(value, 0)).unwrap_or(NONE);
        })?;
        Ok::<_, Error>(number)
    };
    let number = ask(socket)?;
    if number != NONE {
        return Ok(number);
    }
    let body = [&GENERAL[..], &of_process, &attribute(NETNSA_NSID, &NONE.to_ne_bytes())].concat();
    socket.ask(RTM_NEWNSID, &body, &mut vec![0; 256], |_| {})?;
    ask(socket)
}
