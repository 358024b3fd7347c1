//! Searches for translated connections of tunnels' outer packets, on a thread of their own: for each search the kernel
//! lists all its connections, which takes some 0.1 s for a million; the watcher must receive other changes meanwhile.

use crate::translated::translated_outer;
use bywash_fib::model::Tunnel;
use bywash_nl::pace::Cost;
use bywash_nl::socket::{DATAGRAM, Socket};
use bywash_sync::lock;
use std::collections::BTreeSet;
use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Shortest interval between searches for the same tunnels.
const SHORTEST: Duration = Duration::from_secs(1);
/// Longest interval.
const LONGEST: Duration = Duration::from_secs(60);
/// Least ratio between the interval and the CPU time that a search takes, unless that makes the interval the longest.
/// The time grows with the number of connections in all network namespaces, and the kernel handles no packets on that
/// CPU meanwhile.
const RARELY: u32 = 500;

/// Result of a search: the indices of the tunnels whose outer packets belong to translated connections, or the reason
/// why these cannot be read.
pub type Found = Result<BTreeSet<u32>, String>;

/// A thread that searches, `bywash-outer`, until dropped. It starts with the first question, and repeats the search
/// from time to time: a rule may translate another host's connection to the same tuple.
pub struct Search {
    shared: Arc<Shared>,
    /// Set if the kernel has connections.
    tracks: bool,
    /// Socket for the thread, until it starts.
    socket: Option<Socket>,
    thread: Option<JoinHandle<()>>,
    /// Set if it has been told that the thread has ended.
    ended: bool,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    asked: Condvar,
}

#[derive(Default)]
struct State {
    /// Tunnels to search for, with the indices of their interfaces.
    tunnels: Vec<(u32, Tunnel)>,
    /// Number of the question, which changes if what was found is no longer of interest.
    question: u64,
    found: Option<Found>,
    /// Set if `found` has changed since [`Search::has_news`] last returned true.
    news: bool,
    stop: bool,
}

impl Search {
    /// Creates a search without tunnels. `socket` is of the protocol NETLINK_NETFILTER; without one, there are no
    /// connections.
    pub fn new(socket: Option<Socket>) -> Self {
        Self { shared: Arc::default(), tracks: socket.is_some(), socket, thread: None, ended: false }
    }

    /// Searches for the connections of these tunnels from now on; `again` if what was found for the same tunnels is no
    /// longer of interest. Returns what was found; `None` while the first search lasts.
    ///
    /// # Errors
    /// If the thread cannot be started, or has ended.
    pub fn ask(&mut self, tunnels: Vec<(u32, Tunnel)>, again: bool) -> io::Result<Option<Found>> {
        let mut state = lock(&self.shared.state);
        if state.tunnels != tunnels || (again && !tunnels.is_empty()) {
            *state = State { tunnels, question: state.question + 1, ..State::default() };
            self.shared.asked.notify_one();
        }
        if state.tunnels.is_empty() || !self.tracks {
            return Ok(Some(Ok(BTreeSet::new())));
        }
        let found = state.found.clone();
        drop(state);
        if self.has_ended() {
            return Err(io::Error::other("the thread bywash-outer has ended"));
        }
        if let Some(socket) = self.socket.take() {
            let shared = self.shared.clone();
            let search = move || shared.search(socket);
            self.thread = Some(thread::Builder::new().name("bywash-outer".into()).spawn(search)?);
        }
        Ok(found)
    }

    /// Returns whether something else was found than before, or nothing will be found any more.
    pub fn has_news(&mut self) -> bool {
        let ends = self.tracks && self.has_ended() && !std::mem::replace(&mut self.ended, true);
        std::mem::take(&mut lock(&self.shared.state).news) || ends
    }

    fn has_ended(&self) -> bool {
        self.socket.is_none() && self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }
}

impl Drop for Search {
    fn drop(&mut self) {
        lock(&self.shared.state).stop = true;
        self.shared.asked.notify_one();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn search(&self, mut socket: Socket) {
        let (mut buffer, mut due) = (vec![0; DATAGRAM], Instant::now());
        let mut state = lock(&self.state);
        while !state.stop {
            let wait = due.saturating_duration_since(Instant::now());
            if state.tunnels.is_empty() || (state.found.is_some() && !wait.is_zero()) {
                let longest = if state.tunnels.is_empty() { LONGEST } else { wait };
                let waited = self.asked.wait_timeout(state, longest).unwrap_or_else(PoisonError::into_inner);
                state = waited.0;
                continue;
            }
            let (tunnels, question) = (state.tunnels.clone(), state.question);
            drop(state);
            let of = tunnels.iter().map(|(index, tunnel)| (*index, tunnel));
            let cost = Cost::begin();
            let found = Some(translated_outer(&mut socket, of, &mut buffer));
            due = Instant::now() + cost.times(RARELY).clamp(SHORTEST, LONGEST);
            state = lock(&self.state);
            if state.question == question && state.found != found {
                (state.found, state.news) = (found, true);
            }
        }
    }
}
