//! The kernel's conntrack table, by ctnetlink.

use crate::connection::{Connection, Key, status};
use crate::filter::filter;
use crate::message::{self, Body, Event, parse_event};
use bywash_nl::socket::{DATAGRAM, Dumped, Received, Socket};
use bywash_nl::wire::{Message, Messages, NLM_F_ECHO, NLMSG_ERROR, Request};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Errno;
use socket2::SockRef;
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};

/// Receive buffer for events, in octets: room for 100,000 connections that end at once. If more are lost, the table is
/// read again.
const RECEIVE_BUFFER: usize = 64 << 20;
/// Receive buffer for answers, in octets.
const REQUEST_BUFFER: usize = 1 << 20;
/// Requests that are sent by one system call. The kernel handles them before the call returns.
const REQUESTS: usize = 64;
/// Maximum number of events that are read between two parts of the table, in datagrams.
const DATAGRAMS: usize = 1024;
/// Maximum number of pending events, in datagrams.
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
    Netlink(#[from] bywash_nl::Error),
    /// The kernel lacks ctnetlink.
    #[error("connections cannot be read: the kernel lacks ctnetlink (module nf_conntrack_netlink)")]
    Unsupported,
}

/// Events to subscribe to, besides the ends of assured connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Subscription {
    /// Changes of connections.
    pub changes: bool,
    /// Ends of all connections with packets in both directions: connections in a flow table of the kernel are never
    /// assured.
    pub replied: bool,
}

/// Result of receiving events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Events {
    /// All pending events have been read.
    All,
    /// Some were lost: the table must be read again.
    Lost,
}

/// The conntrack table of the network namespace of the thread that opened it. Holds two sockets.
#[derive(Debug)]
pub struct Kernel {
    /// Receives events.
    events: Socket,
    /// Sends queries and changes.
    requests: Socket,
    buffer: Vec<u8>,
}

impl Kernel {
    /// Opens the table and subscribes to events.
    ///
    /// This may make the kernel load its ctnetlink module. The kernel sends no events while
    /// `net.netfilter.nf_conntrack_events` is 0.
    ///
    /// A subscription costs time for every connection: the kernel builds an event for each change of each connection if
    /// anyone subscribes to changes, and for each end if anyone subscribes to ends.
    ///
    /// # Errors
    /// If the kernel lacks netfilter, or refuses a socket.
    pub fn open(subscription: Subscription) -> Result<Self, Error> {
        let mut groups = vec![NFNLGRP_CONNTRACK_DESTROY];
        groups.extend(subscription.changes.then_some(NFNLGRP_CONNTRACK_UPDATE));
        let status = if subscription.replied { status::SEEN_REPLY } else { status::ASSURED };
        let (events, requests) = (open(&groups, RECEIVE_BUFFER)?, open(&[], REQUEST_BUFFER)?);
        SockRef::from(&events)
            .attach_filter(&filter(status))
            .map_err(|source| bywash_nl::Error::Socket { doing: "filter the events of", source })?;
        Ok(Self { events, requests, buffer: vec![0; DATAGRAM] })
    }

    /// Returns the socket that becomes readable with an event.
    pub fn readable(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }

    /// Calls `each` with the pending events, at most those of `datagrams` datagrams; the rest stays pending.
    ///
    /// # Errors
    /// If the socket fails.
    pub fn receive(&mut self, datagrams: usize, mut each: impl FnMut(Event)) -> Result<Events, Error> {
        Ok(receive(&self.events, &mut self.buffer, datagrams, &mut each)?)
    }

    /// Reads the table and calls `each` with its connections and with the events that arrive meanwhile; events that
    /// were already pending are discarded. A connection with an event is not reported from the table as well: its entry
    /// there is older, and it may be gone by now. Once events are lost, nothing more is reported, because the socket
    /// reports no further loss until its buffer is empty.
    ///
    /// # Errors
    /// If a socket fails, or the kernel lacks ctnetlink.
    pub fn read(&mut self, each: &mut dyn FnMut(Item)) -> Result<Events, Error> {
        let Self { events, requests, buffer } = self;
        for n in 0.. {
            match events.receive(buffer)? {
                Received::Empty => break,
                _ if n > PENDING => return Ok(Events::Lost),
                _ => {}
            }
        }
        // Events are received while `buffer` has a part of the table.
        let mut other = vec![0; DATAGRAM];
        let mut all = Events::All;
        let mut announced = HashSet::new();
        let part = RefCell::new(Vec::new());
        let gather = |message: &Message<'_>| {
            if let Some(Event::Present { connection }) = parse_event(message) {
                part.borrow_mut().push(connection);
            }
        };
        let mut between = |datagrams| {
            if all == Events::Lost {
                part.take();
                return Ok(());
            }
            all = receive(events, &mut other, datagrams, &mut |of| {
                announced.insert(of.key());
                each(Item::Event(of));
            })?;
            if announced.len() > ANNOUNCED {
                all = Events::Lost;
            }
            if all == Events::Lost {
                each(Item::Lost);
            }
            for connection in part.take() {
                if all == Events::All && !announced.contains(&connection.key) {
                    each(Item::Connection(connection));
                }
            }
            Ok(())
        };
        let request = (message::IPCTNL_MSG_CT_GET, message::family(None));
        let dumped = requests.dump(request.0, &request.1, &[], buffer, gather, || between(DATAGRAMS))?;
        between(PENDING)?;
        match dumped {
            Dumped::Whole => Ok(all),
            Dumped::Interrupted => Ok(Events::Lost),
            Dumped::Unsupported => Err(Error::Unsupported),
        }
    }

    /// Returns the present state of the connections that have one of these tuples, in the original direction or in that
    /// of replies. Tuples without a connection are left out.
    ///
    /// # Errors
    /// If the socket fails.
    pub fn get(&mut self, tuples: &[Key]) -> Result<Vec<Connection>, Error> {
        let mut found = Vec::new();
        for tuples in tuples.chunks(REQUESTS) {
            let request = |_, key: &Key| Request::new(message::IPCTNL_MSG_CT_GET, 0, 0, Body::new(key).octets());
            self.ask(tuples, request, |answer| {
                if let Some(Event::Present { connection }) = parse_event(answer) {
                    found.push(connection);
                }
            })?;
        }
        Ok(found)
    }

    /// Changes connections in order, and returns the outcome of each change. Subscribers receive an event for each
    /// change, whoever made it.
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
            all.resize(first + changes.len(), Changed::Unreported);
            let numbers: HashMap<Key, usize> = changes.iter().zip(first..).map(|(change, n)| (change.key, n)).collect();
            // An echo does not carry the request's number.
            self.ask(changes, request, |answer| match parse_event(answer) {
                Some(Event::Present { connection }) => {
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
        self.requests.send_bytes(&messages)?;
        // The kernel has queued its answers before `send_bytes` returned.
        loop {
            match self.requests.receive(&mut self.buffer)? {
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
    /// The connection may have been changed, but the kernel did not echo it, and will send no event of its end either.
    Unreported,
    /// The kernel has no such connection, or cannot change it.
    Gone,
}

/// An item that reading the table yields.
#[derive(Clone, Debug)]
pub enum Item {
    /// A connection of the table.
    Connection(Connection),
    /// An event.
    Event(Event),
    /// Events were lost: all that was read before may be out of date.
    Lost,
}

/// Calls `each` with the TCP and UDP connections of the calling thread's network namespace, without regard to events: a
/// connection that changes meanwhile may be missing, or be reported twice.
///
/// # Errors
/// If the kernel lacks netfilter or ctnetlink, or the socket fails.
pub fn read_connections(each: &mut dyn FnMut(Connection)) -> Result<(), Error> {
    let (mut socket, mut buffer) = (open(&[], REQUEST_BUFFER)?, vec![0; DATAGRAM]);
    let found = |message: &Message<'_>| {
        if let Some(Event::Present { connection }) = parse_event(message) {
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
        bywash_nl::Error::Socket { ref source, .. } if Errno::from_io_error(source) == Some(Errno::PROTONOSUPPORT) => {
            Error::Lacking
        }
        error => error.into(),
    })
}

fn receive(
    socket: &Socket,
    buffer: &mut [u8],
    datagrams: usize,
    each: &mut dyn FnMut(Event),
) -> Result<Events, bywash_nl::Error> {
    let mut announced = Events::All;
    for _ in 0..datagrams {
        match socket.receive(buffer)? {
            Received::Datagram(length) => {
                let mut messages = Messages::new(&buffer[..length]);
                messages.by_ref().filter_map(|message| parse_event(&message)).for_each(&mut *each);
                if !messages.is_whole() {
                    announced = Events::Lost;
                }
            }
            Received::Lost => announced = Events::Lost,
            Received::Empty => break,
        }
    }
    Ok(announced)
}
