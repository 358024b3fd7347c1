//! Packets that wait until their neighbour is resolved.

use super::errors::Answer;
use super::{SlowPath, addresses, lookup};
use crate::gates::is_kept;
use crate::request::Request;
use crate::tables::{Kind, Tables};
use crate::vlan::Ingress;
use crate::waiting::{Added, Asked, CAPACITY, Wait};
use bywash_engine::{Context, DropReason, Event};
use bywash_frame::Frame;
use bywash_sync::clock;
use std::net::IpAddr;

/// Maximum time a packet waits for its neighbour: the kernel solicits three times, a second apart.
const PATIENCE_US: u64 = 3_500_000;
/// Interval at which waiting packets check whether their neighbour is resolved.
const RECHECK_US: u64 = 500;
/// Number of neighbour slots checked each time.
const RECHECKED: usize = 128;
/// Interval at which resolution of a waiting packet's neighbour is requested again: longer than the time for which the
/// kernel side ignores repeated requests.
const ASK_US: u64 = 600_000;

impl SlowPath {
    /// Queues a packet until its neighbour is resolved; `own` if the router made it. If the worker's queue is full, an
    /// older packet is evicted; a packet beyond the limit of its neighbour is dropped.
    pub(super) fn wait(
        &mut self,
        cx: &mut Context<'_>,
        tables: &Tables,
        from: Ingress,
        frame: Frame,
        id: u32,
        own: bool,
    ) {
        let failed = tables.entry(id).kind == Kind::Failed;
        let Some((index, addr)) = neighbour(tables, id, cx.bufs.arena().data(&frame)) else {
            return cx.drop(from.port, DropReason::Runt, frame);
        };
        let until = cx.now + clock::us_to_ticks(PATIENCE_US);
        let ask_at = cx.now + clock::us_to_ticks(ASK_US);
        let mut asked = Asked { index, addr, ask_at, failed };
        // If the request queue is full, the packet stays queued and the request is repeated.
        if !self.waiting.has(index, addr) && self.requests.push(Request::Resolve { index, addr }).is_err() {
            asked.ask_at = cx.now;
        }
        match self.waiting.add(asked, Wait { frame, from, until, own }) {
            Added::Waits(evicted) => {
                cx.event(from.port, Event::NeighbourWait, 1);
                if let Some(w) = evicted {
                    cx.drop(w.from.port, DropReason::NeighbourQueueFull, w.frame);
                }
            }
            Added::Full(wait) => cx.drop(from.port, DropReason::NeighbourQueueFull, wait.frame),
        }
    }

    /// Sends waiting packets whose neighbour has been resolved and answers those whose neighbour has failed. Checks a
    /// part of the neighbours on each call.
    pub(crate) fn release(&mut self, cx: &mut Context<'_>, tables: &Tables) {
        if cx.now < self.waiting.recheck_at {
            return;
        }
        self.waiting.recheck_at = cx.now + clock::us_to_ticks(RECHECK_US);
        for _ in 0..RECHECKED {
            let place = self.next;
            self.next = (place + 1) % CAPACITY;
            while self.release_one(cx, tables, place) {}
        }
    }

    /// Ends the wait of the oldest packet for the neighbour in this slot. Returns false if the packet still waits or
    /// there is none.
    fn release_one(&mut self, cx: &mut Context<'_>, tables: &Tables, place: usize) -> bool {
        let Some(oldest) = self.waiting.oldest(place) else { return false };
        let data = cx.bufs.arena().data(&oldest.frame);
        let (id, until) = (lookup(tables, oldest.from, data), oldest.until);
        let kind = tables.entry(id).kind;
        let waits = matches!(kind, Kind::Glean | Kind::Pending | Kind::Failed);
        // The outer packet must obey rules that were added meanwhile: the kernel, too, would send it only now.
        let kept = kind == Kind::Tunnel && is_kept(self.gates.get(oldest.from.id), data);
        let neighbour = neighbour(tables, id, data);
        let Some(asked) = self.waiting.asked(place) else { return false };
        // The packet's route may have moved to another neighbour.
        let waits = waits && neighbour == Some((asked.index, asked.addr));
        let wait_on = waits
            && match kind {
                // The neighbour had already failed when the packet arrived: wait for the result of the new request.
                Kind::Failed => asked.failed,
                Kind::Glean | Kind::Pending => {
                    asked.failed = false;
                    true
                }
                _ => false,
            };
        if wait_on && cx.now < until {
            let Asked { index, addr, ask_at, .. } = *asked;
            if cx.now >= ask_at && self.requests.push(Request::Resolve { index, addr }).is_ok() {
                asked.ask_at = cx.now + clock::us_to_ticks(ASK_US);
            }
            return false;
        }
        let Some(w) = self.waiting.take(place) else { return false };
        if waits {
            self.refuse(cx, tables, w.from, w.frame, DropReason::NeighbourFailed, Answer::HostUnreachable);
        } else {
            cx.event(w.from.port, Event::NeighbourReleased, 1);
            if w.own && kept {
                cx.drop(w.from.port, DropReason::NoRoute, w.frame);
            } else if w.own {
                self.send_own(cx, tables, w.from, w.frame);
            } else if kept || (w.from.id != w.from.port && tables.port(w.from.id).is_none()) {
                // The interface that received the packet may be gone, and the rules for its packets with it.
                self.punt(cx, w.from, w.frame);
            } else {
                self.route(cx, tables, w.from, w.frame);
            }
        }
        true
    }
}

/// Returns the neighbour by which next hop `id` reaches a packet's destination: the kernel index of the interface and
/// the address. `None` if the frame is too short.
fn neighbour(tables: &Tables, id: u32, data: &[u8]) -> Option<(u32, IpAddr)> {
    let cold = tables.cold.get(id as usize).copied().unwrap_or_default();
    Some((cold.index, cold.gateway.unwrap_or(addresses(data)?.1)))
}
