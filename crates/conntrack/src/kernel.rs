//! The kernel's conntrack table, by ctnetlink.

use crate::connection::{Connection, Key, status};
use crate::filter::filter;
use crate::message::{self, Announcement, Body, announcement};
use bywash_netlink::socket::{DATAGRAM, Dumped, Received, Socket};
use bywash_netlink::wire::{Message, Messages, NLM_F_ECHO, NLMSG_ERROR, Request};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Errno;
use socket2::SockRef;
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};

/// Receive buffer for announcements, in octets: room for 100,000 connections that end at once. If more are lost, the
/// table is read again.
const RECEIVE_BUFFER: usize = 64 << 20;
/// Receive buffer for answers, in octets.
const ASKED_BUFFER: usize = 1 << 20;
/// Requests that are sent by one system call. The kernel handles them before the call returns.
const REQUESTS: usize = 64;
/// Maximum number of announcements that are read between two parts of the table, in datagrams.
const DATAGRAMS: usize = 1024;
/// Maximum number of pending announcements, in datagrams.
const PENDING: usize = 1 << 20;
/// Maximum number of connections that may be announced while the table is read.
const ANNOUNCED: usize = 1 << 20;

const NFNLGRP_CONNTRACK_UPDATE: u32 = 2;
const NFNLGRP_CONNTRACK_DESTROY: u32 = 3;

/// Error of ctnetlink.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The kernel lacks nfnetlink.
    #[error("the kernel has no nfnetlink: connections cannot be followed")]
    Lacking,
    /// A netlink socket failed.
    #[error("connections cannot be followed: {0}")]
    Netlink(#[from] bywash_netlink::Error),
    /// The kernel lacks ctnetlink.
    #[error("connections cannot be read: the kernel lacks ctnetlink (module nf_conntrack_netlink)")]
    Unsupported,
}

/// Announcements to listen to: the ends of assured connections, and more of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hears {
    /// Other changes, too.
    pub changes: bool,
    /// All connections with packets in both directions: connections in a flow table of the kernel are never assured.
    pub replied: bool,
}

/// Result of hearing announcements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Announced {
    /// All pending announcements have been read.
    All,
    /// Some were lost: the table must be read again.
    Lost,
}

/// The conntrack table of the network namespace of the thread that opened it. Holds two sockets.
#[derive(Debug)]
pub struct Kernel {
    /// Receives announcements.
    heard: Socket,
    /// Sends queries and changes.
    asked: Socket,
    buffer: Vec<u8>,
}

impl Kernel {
    /// Opens the table and listens from now on to announcements.
    ///
    /// The kernel may load its module for ctnetlink. It announces nothing about connections while
    /// `net.netfilter.nf_conntrack_events` is 0.
    ///
    /// Every connection pays for listening: the kernel makes an announcement of each change of each connection if
    /// anyone listens to changes, and of each end if anyone listens to ends.
    ///
    /// # Errors
    /// If the kernel lacks netfilter, or refuses a socket.
    pub fn open(hears: Hears) -> Result<Self, Error> {
        let mut groups = vec![NFNLGRP_CONNTRACK_DESTROY];
        groups.extend(hears.changes.then_some(NFNLGRP_CONNTRACK_UPDATE));
        let status = if hears.replied { status::SEEN_REPLY } else { status::ASSURED };
        let (heard, asked) = (open(&groups, RECEIVE_BUFFER)?, open(&[], ASKED_BUFFER)?);
        SockRef::from(&heard)
            .attach_filter(&filter(status))
            .map_err(|source| bywash_netlink::Error::Socket { doing: "filter the announcements of", source })?;
        Ok(Self { heard, asked, buffer: vec![0; DATAGRAM] })
    }

    /// Returns the socket that becomes readable with an announcement.
    pub fn readable(&self) -> BorrowedFd<'_> {
        self.heard.as_fd()
    }

    /// Calls `each` with the pending announcements, at most those of `datagrams` datagrams. The rest stays pending.
    ///
    /// # Errors
    /// If the socket fails.
    pub fn hear(&mut self, datagrams: usize, mut each: impl FnMut(Announcement)) -> Result<Announced, Error> {
        Ok(hear(&self.heard, &mut self.buffer, datagrams, &mut each)?)
    }

    /// Reads the table and hands its connections to `each`, and the announcements that arrive meanwhile; those that
    /// were pending are discarded. Connections that were announced meanwhile are handed over by their announcements
    /// only: their entries in the table are older, and they may be gone. Once announcements are lost, nothing else is
    /// handed over: until its buffer is empty, the socket does not report further losses.
    ///
    /// # Errors
    /// If a socket fails, or the kernel lacks ctnetlink.
    pub fn read(&mut self, each: &mut dyn FnMut(Heard)) -> Result<Announced, Error> {
        let Self { heard, asked, buffer } = self;
        for n in 0.. {
            match heard.receive(buffer)? {
                Received::Empty => break,
                _ if n > PENDING => return Ok(Announced::Lost),
                _ => {}
            }
        }
        // Announcements are received while `buffer` has a part of the table.
        let mut other = vec![0; DATAGRAM];
        let mut all = Announced::All;
        let mut announced = HashSet::new();
        let part = RefCell::new(Vec::new());
        let gather = |message: &Message<'_>| {
            if let Some(Announcement::Present { connection, .. }) = announcement(message) {
                part.borrow_mut().push(connection);
            }
        };
        let mut between = |datagrams| {
            if all == Announced::Lost {
                part.take();
                return Ok(());
            }
            all = hear(heard, &mut other, datagrams, &mut |of| {
                announced.insert(of.key());
                each(Heard::Announced(of));
            })?;
            if announced.len() > ANNOUNCED {
                all = Announced::Lost;
            }
            if all == Announced::Lost {
                each(Heard::Lost);
            }
            for connection in part.take() {
                if all == Announced::All && !announced.contains(&connection.key) {
                    each(Heard::Read(connection));
                }
            }
            Ok(())
        };
        let asking = (message::IPCTNL_MSG_CT_GET, message::family(None));
        let dumped = asked.dump(asking.0, &asking.1, &[], buffer, gather, || between(DATAGRAMS))?;
        between(PENDING)?;
        match dumped {
            Dumped::Whole => Ok(all),
            Dumped::Interrupted => Ok(Announced::Lost),
            Dumped::Unsupported => Err(Error::Unsupported),
        }
    }

    /// Returns the present state of the connections to which packets with these tuples belong, as original direction or
    /// as replies. Tuples without a connection are left out.
    ///
    /// # Errors
    /// If the socket fails.
    pub fn get(&mut self, tuples: &[Key]) -> Result<Vec<Connection>, Error> {
        let mut found = Vec::new();
        for tuples in tuples.chunks(REQUESTS) {
            let request = |_, key: &Key| Request::new(message::IPCTNL_MSG_CT_GET, 0, 0, Body::new(key).octets());
            self.ask(tuples, request, |answer| {
                if let Some(Announcement::Present { connection, .. }) = announcement(answer) {
                    found.push(connection);
                }
            })?;
        }
        Ok(found)
    }

    /// Changes connections, in their order, and returns what became of each. Listeners hear of each change, whoever
    /// made it.
    ///
    /// # Errors
    /// If the socket fails.
    pub fn change(&mut self, changes: &[Change]) -> Result<Vec<Changed>, Error> {
        let mut all = Vec::with_capacity(changes.len());
        for changes in changes.chunks(REQUESTS) {
            let request = |n, change: &Change| {
                let mut body = Body::new(&change.key);
                if let Some(seconds) = change.timeout {
                    body = body.timeout(seconds);
                }
                if change.liberal {
                    body = body.liberal();
                }
                // Without NLM_F_CREATE: a connection that is gone does not come back.
                Request::new(message::IPCTNL_MSG_CT_NEW, NLM_F_ECHO, n, body.octets())
            };
            let first = all.len();
            all.resize(first + changes.len(), Changed::Unannounced);
            let numbers: HashMap<Key, usize> = changes.iter().zip(first..).map(|(change, n)| (change.key, n)).collect();
            // An echo does not carry the request's number.
            self.ask(changes, request, |answer| match announcement(answer) {
                Some(Announcement::Present { connection, .. }) => {
                    if let Some(n) = numbers.get(&connection.key) {
                        all[*n] = Changed::To(connection);
                    }
                }
                _ if answer.kind == NLMSG_ERROR => {
                    if let Some(one) = all.get_mut(first + answer.sequence as usize) {
                        *one = Changed::Gone;
                    }
                }
                _ => {}
            })?;
        }
        Ok(all)
    }

    /// Sends requests, numbered from 0, and calls `each` with each message of the answers.
    fn ask<T>(
        &mut self,
        of: &[T],
        request: impl Fn(u32, &T) -> Request,
        mut each: impl FnMut(&Message<'_>),
    ) -> Result<(), Error> {
        let messages: Vec<u8> = of.iter().zip(0..).flat_map(|(of, n)| request(n, of).bytes().to_vec()).collect();
        self.asked.send_bytes(&messages)?;
        // The kernel has answered already.
        loop {
            match self.asked.receive(&mut self.buffer)? {
                Received::Empty => return Ok(()),
                Received::Lost => {}
                Received::Datagram(length) => Messages::new(&self.buffer[..length]).for_each(|answer| each(&answer)),
            }
        }
    }
}

/// A change of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Change {
    /// The connection.
    pub key: Key,
    /// Seconds until it expires from now on; unchanged if `None`.
    pub timeout: Option<u32>,
    /// Set to end the check of TCP's window.
    pub liberal: bool,
}

/// Outcome of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Changed {
    /// The connection was changed, and this is its new state.
    To(Connection),
    /// The connection may have been changed, but the kernel did not answer with it, and will not announce its end
    /// either.
    Unannounced,
    /// The kernel has no such connection, or cannot change it.
    Gone,
}

/// An event of reading the table.
#[derive(Clone, Debug)]
pub enum Heard {
    /// A connection of the table.
    Read(Connection),
    /// An announcement.
    Announced(Announcement),
    /// Announcements were lost: all that was read before may be out of date.
    Lost,
}

/// Hands the TCP and UDP connections of the calling thread's network namespace to `each`, without listening to
/// announcements: a connection that changes meanwhile may be missing, or be handed over twice.
///
/// # Errors
/// If the kernel lacks netfilter or ctnetlink, or the socket fails.
pub fn read_connections(each: &mut dyn FnMut(Connection)) -> Result<(), Error> {
    let (mut socket, mut buffer) = (open(&[], ASKED_BUFFER)?, vec![0; DATAGRAM]);
    let found = |message: &Message<'_>| {
        if let Some(Announcement::Present { connection, .. }) = announcement(message) {
            each(connection);
        }
    };
    let (kind, body) = (message::IPCTNL_MSG_CT_GET, message::family(None));
    match socket.dump(kind, &body, &[], &mut buffer, found, || Ok(()))? {
        Dumped::Whole | Dumped::Interrupted => Ok(()),
        Dumped::Unsupported => Err(Error::Unsupported),
    }
}

fn open(groups: &[u32], size: usize) -> Result<Socket, Error> {
    Socket::open_protocol(Some(rustix::net::netlink::NETFILTER), groups, size).map_err(|error| match error {
        bywash_netlink::Error::Socket { ref source, .. }
            if Errno::from_io_error(source) == Some(Errno::PROTONOSUPPORT) =>
        {
            Error::Lacking
        }
        error => error.into(),
    })
}

fn hear(
    socket: &Socket,
    buffer: &mut [u8],
    datagrams: usize,
    each: &mut dyn FnMut(Announcement),
) -> Result<Announced, bywash_netlink::Error> {
    let mut announced = Announced::All;
    for _ in 0..datagrams {
        match socket.receive(buffer)? {
            Received::Datagram(length) => {
                let mut messages = Messages::new(&buffer[..length]);
                messages.by_ref().filter_map(|message| announcement(&message)).for_each(&mut *each);
                if !messages.is_whole() {
                    announced = Announced::Lost;
                }
            }
            Received::Lost => announced = Announced::Lost,
            Received::Empty => break,
        }
    }
    Ok(announced)
}
