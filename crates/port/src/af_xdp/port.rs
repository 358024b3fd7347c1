//! AF_XDP port: moves frames between the rings and the pools.

use super::in_flight::InFlight;
use super::inject::{Direction, Injector};
use super::long::{Long, MORE};
use super::order::InOrderCompletion;
use super::prefilled::Prefilled;
use super::socket::{Polling, Socket, SocketConfig, Transmit};
use super::{Error, Layout, LinkInfo, Umem, driver};
use crate::pace::Pace;
use crate::{Port, PortCounters, PortState};
use bywash_frame::{BATCH, Batch, Buffers, Frame, RawFrame};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt;
use rustix::time::{ClockId, clock_gettime};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Interval in milliseconds of checks whether the socket still works, and of reading its statistics.
const CHECK_EVERY_MS: u64 = 50;
/// Maximum number of system calls per turn to empty the TX ring: enough for a full ring of 2,048 with a budget of 32
/// frames per call.
const MAX_KICKS: usize = 64;
/// Frames gathered for one system call in copy mode while every turn adds some. Several bursts in a row keep the
/// kernel's transmit path in the caches. Unless the worker is saturated, a turn without frames to send follows within
/// microseconds and sends the gathered ones.
const KICK_AT: u32 = 256;
/// Longest wait on close for the last sent frames to complete.
const LINGER: Duration = Duration::from_millis(20);

/// Bit at which the offset of the data begins in a descriptor's address, in a UMEM of unaligned chunks
/// (linux/if_xdp.h).
const UNALIGNED_SHIFT: u32 = 48;
const UNALIGNED_BASE: u64 = (1 << UNALIGNED_SHIFT) - 1;

/// One queue of an interface, used through an AF_XDP socket.
pub struct AfXdpPort {
    /// `None` if closed, or if the kernel took it away (interface deleted or moved).
    socket: Option<Socket>,
    /// Kept alive as long as the kernel may write to the memory.
    umem: Arc<Umem>,
    /// Sends instead of the socket, if present.
    injector: Option<Injector>,
    /// Interface index.
    index: u32,
    in_flight: InFlight,
    /// Cells to be sent, which are here instead of in `in_flight` while completion in order is relied on.
    order: Option<InOrderCompletion>,
    /// Present if cells are larger than chunks.
    long: Option<Long>,
    polling: Polling,
    burst: usize,
    prefetch: bool,
    pace: Pace,
    interface: String,
    queue: u32,
    max_frame: Arc<AtomicUsize>,
    /// Frames in the TX ring or with the injector since the last system call.
    unkicked: u32,
    /// `unkicked` at the end of the last turn.
    unkicked_before: u32,
    /// Descriptors given to the TX ring and not completed.
    sending: u32,
    /// Descriptors completed.
    done: u64,
    state: PortState,
    counters: Arc<PortCounters>,
    details: Vec<(&'static str, String)>,
    /// Frames and descriptors refused by the port, in addition to those the kernel counts.
    stray: u64,
    turns: u32,
    /// Time of the last check, in milliseconds of the coarse clock.
    checked_at: u64,
}

impl AfXdpPort {
    /// Opens a socket for `queue` of the interface and binds it. Frames reach it once it is registered in the program
    /// ([`super::Program::set_socket`] with [`AfXdpPort::fd`]) and the worker has run one turn.
    pub fn open(umem: &Arc<Umem>, link: &LinkInfo, queue: u32, config: &SocketConfig) -> Result<Self, Error> {
        Self::open_with(umem, (link, queue), config, None, None)
    }

    /// Returns the longest frame in bytes that the port sends, for the control side to change with the interface's MTU
    /// ([`max_frame`]). Longer frames are refused.
    pub fn frame_limit(&self) -> Arc<AtomicUsize> {
        self.max_frame.clone()
    }

    /// Like [`AfXdpPort::open`], with an injector loaded beforehand ([`may_inject`]), so that nothing is loaded while
    /// frames wait, and with buffers for the fill ring: some zero-copy drivers receive nothing if it is empty when the
    /// socket is bound.
    ///
    /// # Errors
    /// Errors of [`AfXdpPort::open`]; the buffers are free then.
    pub fn open_with(
        umem: &Arc<Umem>,
        (link, queue): (&LinkInfo, u32),
        config: &SocketConfig,
        ahead: Option<Injector>,
        bufs: Option<&mut Buffers>,
    ) -> Result<Self, Error> {
        let opened = Prefilled::open(umem, (link, queue), config, ahead, bufs)?;
        let Prefilled { socket, in_flight, mut injector, why } = opened;
        let arena = umem.arena();
        let max_frame = max_frame(link.mtu, arena.max_data());
        let mode = if socket.zero_copy { "zero-copy" } else { "copy" };
        let sizes = [
            ("fill", socket.fill.size()),
            ("rx", socket.rx.size()),
            ("tx", socket.tx.size()),
            ("completion", socket.completion.size()),
        ];
        let mut details = vec![
            ("interface", link.name.clone()),
            ("queue", queue.to_string()),
            ("mode", mode.to_owned()),
            ("rings", sizes.map(|(name, size)| format!("{name} {size}")).join(", ")),
            ("tx_budget", socket.tx_budget.to_string()),
        ];
        if !socket.note.is_empty() {
            details.push(("mode_note", socket.note.clone()));
        }
        if config.tx_sockets > 1 {
            details.push(("tx_sockets", config.tx_sockets.to_string()));
        }
        if config.polling == Polling::BusyPoll {
            details.push(("busy_poll", format!("{} frames a call", config.budget)));
        }
        let in_order = config.in_order && !umem.long();
        // Frames of an injector have no completions.
        if in_order && injector.is_none() {
            details.push(("completion", "in order".into()));
        }
        injector.iter_mut().for_each(|injector| injector.send_by(queue));
        details.push(("transmit", if injector.is_some() { "inject" } else { "socket" }.to_owned()));
        details.extend(why.map(|why| ("transmit_note", why)));
        Ok(Self {
            socket: Some(socket),
            umem: umem.clone(),
            injector,
            index: link.index,
            in_flight,
            long: umem.long().then(|| Long::new(arena, umem.chunk())),
            order: in_order.then(|| InOrderCompletion::new(config.rings.tx, config.rings.completion)),
            polling: config.polling,
            burst: config.burst.clamp(1, BATCH),
            prefetch: config.prefetch,
            pace: Pace::new(),
            interface: link.name.clone(),
            queue,
            max_frame: Arc::new(AtomicUsize::new(max_frame)),
            unkicked: 0,
            unkicked_before: 0,
            sending: 0,
            done: 0,
            state: PortState::Up,
            counters: Arc::default(),
            details,
            stray: 0,
            turns: 0,
            checked_at: 0,
        })
    }

    /// Returns the socket, for the program's map; `None` after the interface is gone.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.socket.as_ref().map(|s| s.fd.as_fd())
    }

    /// Returns the reason why the port sends through the socket although the injector would be faster.
    pub fn transmit_fallback(&self) -> Option<&str> {
        let note = self.details.iter().find(|(name, _)| *name == "transmit_note")?;
        self.injector.is_none().then_some(note.1.as_str())
    }

    /// Returns the reason why the socket copies frames although zero-copy would have been allowed.
    pub fn copy_fallback(&self) -> Option<&str> {
        self.details.iter().find(|(name, _)| *name == "mode_note").map(|(_, why)| why.as_str())
    }

    /// Returns whether the socket is in zero-copy mode.
    pub fn zero_copy(&self) -> bool {
        self.socket.as_ref().is_some_and(|socket| socket.zero_copy)
    }

    /// Returns the interface's name at the time the port was opened.
    pub fn interface(&self) -> &str {
        &self.interface
    }

    /// Returns the queue number.
    pub fn queue(&self) -> u32 {
        self.queue
    }

    /// Frees the frames whose transmission has completed.
    #[inline]
    fn reap(&mut self, bufs: &mut Buffers) {
        let Some(socket) = &mut self.socket else { return };
        loop {
            let n = socket.completion.ready(BATCH as u32);
            if n == 0 {
                return;
            }
            let (in_flight, arena) = (&mut self.in_flight, self.umem.arena());
            if let Some(order) = &mut self.order {
                let came = (0..n).map(|i| arena.cell_of(socket.completion.get(i)));
                let wrong = n as usize - order.agree(came);
                if wrong == 0 {
                    let mut cells = [0; BATCH];
                    cells.iter_mut().zip(order.take(n as usize)).for_each(|(to, cell)| *to = cell);
                    // SAFETY: each was sent once, and the completions name these very cells.
                    unsafe { bufs.free_cells(&mut cells[..n as usize]) };
                    self.sending = self.sending.saturating_sub(n);
                    self.done += u64::from(n);
                    socket.completion.release(n);
                    continue;
                }
                // The driver reorders: from now on free by what the ring says.
                self.counters.tx_reordered.add(wrong as u64);
                order.take(usize::MAX).for_each(|cell| in_flight.give(cell));
                self.order = None;
            }
            let (mut wrong, mut cells, mut free) = (0, [0; BATCH], 0);
            for i in 0..n {
                let cell = arena.cell_of(socket.completion.get(i));
                if self.long.as_mut().is_some_and(|long| !long.completed(cell)) {
                    continue;
                }
                if in_flight.take(cell) {
                    cells[free] = cell;
                    free += 1;
                } else {
                    wrong += 1;
                }
            }
            // SAFETY: `in_flight` says that each was given to the kernel, and `take` lets it come back once.
            unsafe { bufs.free_cells(&mut cells[..free]) };
            self.stray += wrong;
            self.sending = self.sending.saturating_sub(n);
            self.done += u64::from(n);
            socket.completion.release(n);
        }
    }

    /// Posts empty frames as far as the fill ring has room and the pool has frames.
    #[inline]
    fn refill(&mut self, bufs: &mut Buffers) {
        let Some(socket) = &mut self.socket else { return };
        let mut batch = Batch::new();
        loop {
            // Fewer are not worth the pool's and the kernel's cache lines.
            let free = socket.fill.free(BATCH as u32);
            if free < BATCH as u32 / 2 {
                break;
            }
            let n = bufs.alloc(&mut batch, free as usize);
            let (in_flight, arena) = (&mut self.in_flight, self.umem.arena());
            batch.take_front(n, |i, raw| {
                in_flight.give(arena.cell_of(raw.addr));
                socket.fill.put(i as u32, arena.cell_addr(arena.cell_of(raw.addr)));
            });
            socket.fill.submit(n as u32);
            if n < free as usize {
                break;
            }
        }
        // In copy mode the kernel never waits for the fill ring; a zero-copy driver that ran dry asks for a wakeup.
        if socket.zero_copy && socket.fill.wants_wakeup() {
            self.counters.rx_wakeups.add(1);
            let _ = socket.kick_rx();
        }
    }

    /// Copies the frames to the injector, which sends many at once, and frees them; returns how many there were.
    #[inline]
    fn inject(&mut self, bufs: &mut Buffers, frames: &mut Batch) -> usize {
        for frame in frames.as_slice() {
            if self.injector.as_ref().is_some_and(|injector| !injector.has_room()) {
                self.flush(bufs);
            }
            let Some(injector) = &mut self.injector else {
                // The interface went away in this burst.
                self.counters.tx_refused.add(1);
                continue;
            };
            let pushed = injector.push(self.umem.arena().data(frame));
            debug_assert!(pushed);
            self.unkicked = injector.len() as u32;
        }
        let n = frames.len();
        bufs.free(frames);
        n
    }

    /// Makes the injector send its batch.
    fn flush(&mut self, bufs: &mut Buffers) {
        let Some(injector) = &mut self.injector else { return };
        self.counters.tx_wakeups.add(1);
        let done = injector.flush(self.index, Direction::Send);
        self.unkicked = 0;
        self.counters.tx_packets.add(done.frames);
        self.counters.tx_bytes.add(done.bytes);
        if let Some(errno) = done.error {
            self.counters.tx_refused.add(done.refused);
            if errno != Errno::NOBUFS {
                // The interface is down or gone: the socket reports which.
                self.check(bufs);
            }
        }
    }

    /// Makes the kernel send what is in the TX ring.
    fn kick(&mut self, bufs: &mut Buffers) {
        if self.injector.is_some() {
            return self.flush(bufs);
        }
        let Some(socket) = &mut self.socket else { return };
        if !socket.tx.wants_wakeup() {
            // The driver may be about to ask for a wake-up without having seen the newest frames: neither side has a
            // barrier between its write and its read. What it has not taken by the next turn is looked at again.
            self.unkicked = socket.pending();
            return;
        }
        let mut before = socket.pending();
        let mut failed = false;
        for _ in 0..MAX_KICKS {
            if before == 0 {
                break;
            }
            let result = if self.polling == Polling::Poll {
                self.counters.polls.add(1);
                poll(&mut [PollFd::new(&socket.fd, PollFlags::OUT)], Some(&Timespec::default())).map(drop)
            } else {
                self.counters.tx_wakeups.add(1);
                socket.kick_tx()
            };
            let result = result.and_then(|()| {
                self.counters.tx_wakeups.add(socket.kick_others()?.into());
                Ok(())
            });
            let after = socket.pending();
            match result {
                Ok(()) => failed = false,
                // More than one call's budget, or no progress now: the completion ring is full or the device is busy.
                // The next turn tries again.
                Err(Errno::AGAIN | Errno::BUSY | Errno::NOBUFS | Errno::INTR) => failed = true,
                Err(errno) => return self.lost(bufs, errno),
            }
            // A zero-copy driver is only notified and takes frames later.
            if socket.zero_copy || after == before {
                break;
            }
            before = after;
        }
        self.unkicked = if socket.zero_copy && !failed { 0 } else { socket.pending() };
    }

    /// Makes the driver receive frames unless a burst of them is already waiting.
    #[inline]
    fn busy_poll(&mut self) {
        let Some(socket) = &mut self.socket else { return };
        if socket.rx.ready(BATCH as u32) < self.burst as u32 {
            self.counters.busy_polls.add(1);
            // An error means that nothing was received or the device is gone; `check` detects the latter.
            let _ = socket.kick_rx();
        }
    }

    /// Sets the state after the device or its link went away under the socket.
    #[cold]
    fn lost(&mut self, bufs: &mut Buffers, errno: Errno) {
        if errno == Errno::NETDOWN {
            self.state = PortState::Down("link is down".into());
            return;
        }
        let what = if matches!(errno, Errno::NXIO | Errno::NODEV) { "deleted or moved away" } else { "lost" };
        self.state = PortState::Down(format!("interface {} was {what} ({errno})", self.interface));
        // While the socket is in the program's map, frames redirected to it are lost; after it is closed they go to the
        // kernel.
        self.let_go(bufs);
    }

    /// Closes the socket and frees the port's cells. Those that the device may still access are freed when it is done
    /// with them: in zero-copy mode all, and in copy mode all while frames are being sent, because some drivers send
    /// from the cells themselves (`xsk_build_skb_zerocopy` of the kernel), or while another thread keeps the socket
    /// open in order to join it.
    fn let_go(&mut self, bufs: &mut Buffers) {
        if let Some(injector) = self.injector.take() {
            self.counters.tx_refused.add(injector.len() as u64);
        }
        let mut cells = self.take_cells();
        let kept_open = self.socket.as_ref().is_some_and(|socket| self.umem.left(&socket.fd));
        if self.zero_copy() || self.sending > 0 || kept_open {
            // Must come before the close, so that a later bind of the queue shows that these cells are free.
            self.umem.unreturned().put((self.index, self.queue), std::mem::take(&mut cells));
        }
        self.socket = None;
        // SAFETY: each was given to the kernel and has not come back, or is that of an incomplete frame. With the
        // socket closed and its rings unmapped the kernel no longer returns it; all sending is completed, and in copy
        // mode no device receives into it.
        unsafe { bufs.free_cells(&mut cells) };
        self.sending = 0;
        self.unkicked = 0;
    }

    /// Removes and returns all cells that the port has: those the kernel has, and that of an incomplete frame.
    fn take_cells(&mut self) -> Vec<u32> {
        let mut cells = self.in_flight.take_all();
        cells.extend(self.order.iter_mut().flat_map(|order| order.take(usize::MAX)));
        let incomplete = self.long.as_mut().and_then(Long::clear);
        cells.extend(incomplete.map(|frame| self.umem.arena().cell_of(frame.into_raw().addr)));
        cells
    }

    /// Frees the frames that no device takes, empty or longer than the port's maximum plus a VLAN tag; returns how
    /// many. An empty frame would not even be returned: the kernel skips it without completing it.
    #[cold]
    fn refuse(&mut self, bufs: &mut Buffers, frames: &mut Batch) -> usize {
        let mut refused = 0;
        frames.filter(|_, frame| {
            if self.sendable(&frame) {
                return Some(frame);
            }
            bufs.free_one(frame);
            refused += 1;
            None
        });
        self.stray += refused as u64;
        refused
    }

    #[inline]
    fn sendable(&self, frame: &Frame) -> bool {
        // Padding behind a packet does not count towards the MTU: frames of Ethernet's own length always pass.
        frame.len().wrapping_sub(1) < self.max_frame.load(Ordering::Relaxed).max(1514) + 4
    }

    /// Reads the kernel's statistics and checks whether the socket still works.
    #[cold]
    fn check(&mut self, bufs: &mut Buffers) {
        let Some(socket) = &mut self.socket else { return };
        if let Ok(s) = sockopt::xdp_statistics(&*socket.fd) {
            let c = &self.counters;
            // In copy mode, the kernel counts a frame that finds no buffer in both.
            let dry = s.rx_fill_ring_empty_descs.filter(|_| socket.zero_copy).unwrap_or(0);
            c.rx_no_buffer.set(s.rx_dropped + dry);
            c.rx_ring_full.set(s.rx_ring_full.unwrap_or(0));
            c.invalid.set(s.rx_invalid_descs + s.tx_invalid_descs + self.stray);
        }
        self.counters.tx_done.set(self.done);
        self.counters.tx_waiting.set(self.sending.into());
        match socket.kick_tx() {
            Err(errno @ (Errno::NETDOWN | Errno::NXIO | Errno::NODEV | Errno::BADF)) => self.lost(bufs, errno),
            _ => self.state = PortState::Up,
        }
    }
}

impl Drop for AfXdpPort {
    /// Leaves the buffers of a port that was never closed to [`Umem::reclaim`]: a port may hold buffers as soon as it
    /// is opened.
    fn drop(&mut self) {
        let cells = self.take_cells();
        if !cells.is_empty() {
            // Before the socket is closed, as in `let_go`.
            self.umem.unreturned().put((self.index, self.queue), cells);
        }
    }
}

/// Returns whether a port of this interface sends by injection, provided that its socket is not zero-copy.
pub fn may_inject(transmit: Transmit, interface: &str) -> bool {
    match transmit {
        Transmit::Inject => true,
        Transmit::Socket => false,
        _ => driver(interface).is_some_and(|driver| driver == "veth"),
    }
}

/// Returns the injector to send with, if any, and the reason for the choice if the configuration did not determine it.
pub(super) fn injector(
    transmit: Transmit,
    zero_copy: bool,
    interface: &str,
    ahead: Option<Injector>,
) -> Result<(Option<Injector>, Option<String>), Error> {
    let load = || ahead.map_or_else(Injector::new, Ok);
    if transmit == Transmit::Inject {
        return Ok((Some(load()?), None));
    }
    if zero_copy || !may_inject(transmit, interface) {
        return Ok((None, None));
    }
    Ok(match load() {
        Ok(injector) => (Some(injector), Some("sends by injection: a veth receives injected frames in batches".into())),
        Err(e) => (None, Some(format!("sends through the socket: {e}"))),
    })
}

/// Waits with one poll(2) until one of `ports` has received something. With `to_send`, and for ports with frames
/// waiting to be sent, also until one has room for more; the kernel sends their frames. Counted in the first port's
/// `polls`.
pub fn wait(ports: &mut [AfXdpPort], to_send: bool, timeout: Duration) {
    let Some(first) = ports.first() else { return };
    first.counters.polls.add(1);
    let events = |port: &AfXdpPort| {
        if to_send || port.unkicked > 0 { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN }
    };
    let sockets = ports.iter().filter_map(|port| Some(PollFd::from_borrowed_fd(port.fd()?, events(port))));
    let mut sockets: Vec<PollFd<'_>> = sockets.collect();
    let timeout = Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: timeout.subsec_nanos().into() };
    // If interrupted, the caller looks at its rings and calls again.
    let _ = poll(&mut sockets, Some(&timeout));
    for port in ports.iter_mut().filter(|port| port.injector.is_none()) {
        port.unkicked = port.socket.as_mut().map_or(0, Socket::pending);
        port.unkicked_before = 0;
    }
}

/// Returns the longest frame of a port in bytes: what the MTU allows, as far as a cell can hold it.
pub fn max_frame(mtu: u32, cell_room: usize) -> usize {
    const ETH_HLEN: usize = 14;
    (mtu as usize + ETH_HLEN).min(cell_room)
}

impl Port for AfXdpPort {
    #[inline]
    fn rx_burst(&mut self, bufs: &mut Buffers, out: &mut Batch) -> usize {
        let Some(socket) = &mut self.socket else { return 0 };
        let want = out.room().min(self.burst) as u32;
        if socket.rx.waiting() < want {
            self.pace.poll(|| socket.rx.ready(want) as usize);
        }
        let n = socket.rx.waiting().min(want);
        if n == 0 {
            return 0;
        }
        let (mut bytes, mut wrong, mut taken) = (0, 0, 0);
        let (arena, unaligned) = (self.umem.arena(), self.umem.layout() != Layout::Aligned);
        for i in 0..n {
            let mut raw = socket.rx.get(i);
            if unaligned {
                raw.addr = (raw.addr & UNALIGNED_BASE) + (raw.addr >> UNALIGNED_SHIFT);
            }
            let cell = arena.cell_of(raw.addr);
            let more = raw.options & MORE != 0;
            let inside = arena.cell_of(raw.addr + u64::from(raw.len).saturating_sub(1)) == cell;
            if !self.in_flight.take(cell) {
                wrong += 1;
                continue;
            }
            let raw = if inside { RawFrame { options: 0, ..raw } } else { RawFrame { len: 0, options: 0, ..raw } };
            bytes += u64::from(raw.len);
            // SAFETY: `in_flight` says that the cell was with the kernel, which handed it back, and the data lies
            // inside the cell.
            let mut frame = unsafe { Frame::from_raw(raw) };
            if let Some(long) = &mut self.long {
                match long.join(bufs, frame, more) {
                    Some(whole) => frame = whole,
                    None => continue,
                }
            }
            taken += 1;
            if self.prefetch {
                arena.prefetch(&frame);
            }
            let pushed = out.push(frame);
            debug_assert!(pushed.is_ok());
        }
        socket.rx.release(n);
        self.counters.rx_packets.add(taken as u64);
        self.counters.rx_bytes.add(bytes);
        self.stray += wrong;
        self.refill(bufs);
        taken
    }

    #[inline]
    fn tx_burst(&mut self, bufs: &mut Buffers, frames: &mut Batch) -> usize {
        if self.state != PortState::Up || frames.is_empty() {
            return 0;
        }
        let all_good = frames.as_slice().iter().all(|f| self.sendable(f));
        let refused = if all_good { 0 } else { self.refuse(bufs, frames) };
        if self.injector.is_some() {
            return self.inject(bufs, frames) + refused;
        }
        let want = match &self.long {
            None => frames.len() as u32,
            Some(long) => long.fitting(frames.as_slice(), u32::MAX).1,
        };
        let Some(socket) = &mut self.socket else { return refused };
        let mut n = socket.lane().free(want);
        if n < want {
            self.kick(bufs);
            self.reap(bufs);
            let Some(socket) = &mut self.socket else { return refused };
            n = socket.lane().free(want);
        }
        let Some(socket) = &mut self.socket else { return refused };
        let (mut bytes, lane) = (0, socket.lane());
        let (in_flight, arena) = (&mut self.in_flight, self.umem.arena());
        let mut sent = n as usize;
        if let Some(long) = &mut self.long {
            let mut at = 0;
            (sent, n) = long.fitting(frames.as_slice(), n);
            frames.take_front(sent, |_, raw| {
                bytes += u64::from(raw.len);
                let cell = arena.cell_of(raw.addr);
                in_flight.give(cell);
                long.send(cell, raw, |piece| {
                    lane.put(at, piece);
                    at += 1;
                });
            });
        } else if let Some(order) = &mut self.order {
            n = n.min(order.room() as u32);
            sent = n as usize;
            frames.take_front(n as usize, |i, raw| {
                bytes += u64::from(raw.len);
                order.sent(arena.cell_of(raw.addr));
                lane.put(i as u32, RawFrame { options: 0, ..raw });
            });
        } else {
            frames.take_front(n as usize, |i, raw| {
                bytes += u64::from(raw.len);
                in_flight.give(arena.cell_of(raw.addr));
                lane.put(i as u32, RawFrame { options: 0, ..raw });
            });
        }
        lane.submit(n);
        socket.next_lane();
        self.sending += n;
        self.unkicked += n;
        self.counters.tx_packets.add(sent as u64);
        self.counters.tx_bytes.add(bytes);
        if n < want {
            self.counters.tx_full.add(1);
        }
        sent + refused
    }

    fn housekeep(&mut self, bufs: &mut Buffers) {
        let zero_copy = self.zero_copy();
        if self.polling == Polling::BusyPoll {
            self.busy_poll();
        }
        if self.unkicked > 0 && (zero_copy || self.unkicked >= KICK_AT || self.unkicked == self.unkicked_before) {
            self.kick(bufs);
        }
        self.unkicked_before = self.unkicked;
        if self.sending > 0 {
            self.reap(bufs);
        }
        self.refill(bufs);
        self.turns = self.turns.wrapping_add(1);
        if self.turns.is_multiple_of(16) {
            let now = clock_gettime(ClockId::MonotonicCoarse);
            let now = now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000;
            if now >= self.checked_at + CHECK_EVERY_MS {
                self.checked_at = now;
                self.check(bufs);
            }
        }
    }

    fn held(&self) -> usize {
        self.in_flight.count()
            + self.order.as_ref().map_or(0, InOrderCompletion::len)
            + self.long.as_ref().map_or(0, Long::held)
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        self.fd()
    }

    fn state(&self) -> PortState {
        self.state.clone()
    }

    fn max_frame(&self) -> usize {
        self.max_frame.load(Ordering::Relaxed)
    }

    fn counters(&self) -> Arc<PortCounters> {
        self.counters.clone()
    }

    fn details(&self) -> Vec<(&'static str, String)> {
        self.details.clone()
    }

    fn close(&mut self, bufs: &mut Buffers) {
        let deadline = Instant::now() + LINGER;
        self.flush(bufs);
        while self.sending > 0 && self.socket.is_some() && Instant::now() < deadline {
            self.kick(bufs);
            self.reap(bufs);
            std::thread::yield_now();
        }
        self.let_go(bufs);
        if self.state == PortState::Up {
            self.state = PortState::Down("closed".into());
        }
    }
}

#[cfg(test)]
mod tests;
