//! Statistics of a follower, for other threads to read.

use bywash_fib::flows::{FlowId, Traffic};
use bywash_sync::lock;
use std::ops::Range;
use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime};

/// Reason why all flows, or one, were revoked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Revocation {
    /// Rules, ports or the kernel's timeouts have changed, or routes where rules look them up: all flows, until they
    /// are judged again.
    Rules,
    /// Lost events: all flows, until all connections have been read.
    Lost,
    /// A failure: all flows, until it has ended.
    Failed,
    /// The kernel's connection is gone, or about to expire: the flow is removed.
    Gone,
    /// A packet with SYN, FIN or RST has passed: the flow is removed.
    Closed,
    /// The connection has changed, or is judged otherwise than before: the flow is removed.
    Changed,
}

impl Revocation {
    /// All reasons.
    pub const ALL: [Self; 6] = [Self::Rules, Self::Lost, Self::Failed, Self::Gone, Self::Closed, Self::Changed];

    /// Returns the reason's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rules => "new-rules",
            Self::Lost => "events-lost",
            Self::Failed => "failure",
            Self::Gone => "connection-gone",
            Self::Closed => "closed-by-packet",
            Self::Changed => "verdict-changed",
        }
    }
}

/// Counts since the start.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    /// Flows inserted, of IPv4 and of IPv6.
    pub inserted: [u64; 2],
    /// Flows removed, of IPv4 and of IPv6.
    pub removed: [u64; 2],
    /// Connections that the table had no room for.
    pub full: u64,
    /// Flows revoked, by [`Revocation::ALL`].
    pub revoked: [u64; Revocation::ALL.len()],
    /// Last time that flows were revoked, and why.
    pub last: Option<(SystemTime, Revocation)>,
    /// Number of times that events were lost.
    pub lost: u64,
    /// Connections judged, and the time that it took.
    pub judged: (u64, Duration),
    /// Packets and bytes of removed flows.
    pub retired: (u64, u64),
}

/// Further state of a flow, kept outside of the table. Times are seconds since the start.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FlowState {
    /// Set if the flow is in the table.
    present: bool,
    /// Identifier of its connection.
    pub id: u32,
    /// Hash of status, mark and identifier when they were judged.
    pub judged: u64,
    /// Packets when its use was last examined.
    pub packets: u64,
    /// Time at which it was inserted.
    began: u32,
    /// Time at which its use was last seen.
    pub used: u32,
    /// Time at which its connection was last renewed.
    pub renewed: u32,
    /// Set if it has been used since.
    pub unrenewed: bool,
    /// Time at which its connection expires unless it is renewed, or the kernel has seen further packets.
    pub expires: u32,
}

/// Returns the packets of a flow that had `before` when its use was last examined: the table counts them modulo 2^32.
/// `before` has to be read first.
pub fn packets_since(before: u64, traffic: &[Traffic; 2]) -> u64 {
    let now = traffic.iter().fold(0, |sum: u32, one| sum.wrapping_add(one.packets));
    before + u64::from(now.wrapping_sub(before as u32))
}

/// Times of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// Seconds since the flow was inserted.
    pub age: u32,
    /// Seconds since [`Follower::renew`](crate::Follower::renew) found that it had been used, or since it was inserted.
    pub idle: u32,
}

/// Counts of a follower, and the further state of its flows.
#[derive(Debug)]
pub struct Statistics {
    counts: Mutex<Counts>,
    /// By family, IPv4 first, and index of the flow.
    states: Mutex<[Vec<FlowState>; 2]>,
    start: Instant,
}

impl Default for Statistics {
    fn default() -> Self {
        Self { counts: Mutex::default(), states: Mutex::default(), start: Instant::now() }
    }
}

impl Statistics {
    /// Returns the counts.
    pub fn counts(&self) -> Counts {
        lock(&self.counts).clone()
    }

    /// Returns the number of places that flows of IPv4 and of IPv6 have taken so far; all their indices are below these
    /// numbers.
    pub fn places(&self) -> [usize; 2] {
        lock(&self.states).each_ref().map(Vec::len)
    }

    /// Returns the packets that a flow had when its use was last examined; see [`packets_since`].
    pub fn packets(&self, id: FlowId) -> u64 {
        let states = lock(&self.states);
        states[usize::from(id.is_v6())].get(id.index()).filter(|state| state.present).map_or(0, |state| state.packets)
    }

    /// Returns the times of flows, in their order.
    pub fn times(&self, ids: impl Iterator<Item = FlowId>) -> Vec<Times> {
        let (now, states) = (self.now(), lock(&self.states));
        let times = |id: FlowId| {
            let of = states[usize::from(id.is_v6())].get(id.index()).copied().unwrap_or_default();
            Times { age: now.saturating_sub(of.began), idle: now.saturating_sub(of.used) }
        };
        ids.map(times).collect()
    }

    /// Returns the flows at those of these places that are taken. Places are counted through IPv4 first, then IPv6.
    pub(crate) fn flows(&self, places: Range<usize>) -> Vec<FlowId> {
        let states = lock(&self.states);
        let [v4, v6] = &*states;
        let places = places.start..places.end.min(v4.len() + v6.len());
        let id = |at: usize| FlowId::new(at >= v4.len(), if at < v4.len() { at } else { at - v4.len() });
        places.map(id).filter(|id| states[usize::from(id.is_v6())][id.index()].present).collect()
    }

    /// Calls a function with the state of a flow.
    pub(crate) fn with_state<T>(&self, id: FlowId, then: impl FnOnce(&mut FlowState) -> T) -> T {
        let mut states = lock(&self.states);
        let family = &mut states[usize::from(id.is_v6())];
        let len = family.len().max(id.index() + 1);
        family.resize(len, FlowState::default());
        then(&mut family[id.index()])
    }

    /// Counts a flow that was inserted for a connection, which expires after `left` seconds.
    pub(crate) fn inserted(&self, id: FlowId, connection: u32, judged: u64, left: u32) {
        let now = self.now();
        let (began, used, renewed, expires) = (now, now, now, now.saturating_add(left));
        let new =
            FlowState { present: true, id: connection, judged, began, used, renewed, expires, ..FlowState::default() };
        self.with_state(id, |state| *state = new);
        lock(&self.counts).inserted[usize::from(id.is_v6())] += 1;
    }

    /// Counts a flow that was removed with this traffic.
    pub(crate) fn removed(&self, id: FlowId, why: Revocation, traffic: [Traffic; 2]) {
        let packets = self.with_state(id, |state| {
            state.present = false;
            packets_since(state.packets, &traffic)
        });
        let mut counts = lock(&self.counts);
        counts.removed[usize::from(id.is_v6())] += 1;
        counts.retired.0 += packets;
        counts.retired.1 += traffic.iter().map(|one| one.bytes).sum::<u64>();
        counts.revoke(why, 1);
    }

    /// Counts all flows as revoked.
    pub(crate) fn revoked(&self, why: Revocation) {
        let mut counts = lock(&self.counts);
        counts.lost += u64::from(why == Revocation::Lost);
        let flows = counts.inserted.iter().sum::<u64>() - counts.removed.iter().sum::<u64>();
        if flows > 0 {
            counts.revoke(why, flows);
        }
    }

    pub(crate) fn full(&self) {
        lock(&self.counts).full += 1;
    }

    pub(crate) fn judged(&self, took: Duration) {
        let mut counts = lock(&self.counts);
        counts.judged.0 += 1;
        counts.judged.1 += took;
    }

    /// Returns the seconds since the start.
    pub(crate) fn now(&self) -> u32 {
        self.start.elapsed().as_secs() as u32
    }
}

impl Counts {
    fn revoke(&mut self, why: Revocation, flows: u64) {
        self.revoked[why as usize] += flows;
        self.last = Some((SystemTime::now(), why));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_add_up() {
        let statistics = Statistics::default();
        let (a, b) = (FlowId::new(false, 3), FlowId::new(true, 1));
        statistics.revoked(Revocation::Rules);
        assert!(statistics.counts().last.is_none(), "there were no flows");
        [a, b].into_iter().for_each(|id| statistics.inserted(id, 1, 1, 9));
        assert_eq!((statistics.places(), statistics.flows(0..9)), ([4, 2], vec![a, b]));
        statistics.revoked(Revocation::Lost);
        let traffic = |packets| [Traffic { packets: 2, bytes: 200 }, Traffic { packets, bytes: 1 }];
        let examined = packets_since(statistics.packets(a), &traffic(u32::MAX - 3));
        statistics.with_state(a, |state| state.packets = examined);
        assert_eq!(statistics.packets(a), u64::from(u32::MAX - 1));
        // The table's number has passed zero.
        statistics.removed(a, Revocation::Closed, traffic(1));
        assert_eq!(statistics.packets(a), 0);
        assert_eq!(statistics.flows(0..9), [b]);
        assert_eq!(statistics.times([b].into_iter()), [Times { age: 0, idle: 0 }]);
        let counts = statistics.counts();
        assert_eq!((counts.inserted, counts.removed, counts.lost), ([1, 1], [1, 0], 1));
        assert_eq!(counts.retired, (4 + u64::from(u32::MAX), 201));
        let [rules, lost, failed, gone, closed, changed] = counts.revoked;
        assert_eq!([rules, lost, failed, gone, closed, changed], [0, 2, 0, 0, 1, 0]);
        assert_eq!(counts.last.map(|last| last.1), Some(Revocation::Closed));
    }
}
