//! Counts of what a follower does, for other threads to read.

use bywash_fib::flows::{FlowId, Traffic};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// Reason why flows were revoked, all of them or one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Revocation {
    /// Other rules, or other ports: all flows, until they are judged anew.
    Rules,
    /// Lost announcements: all flows, until all connections have been read.
    Lost,
    /// A failure: all flows, until it has ended.
    Failed,
    /// The kernel's connection is gone: the flow is removed.
    Gone,
    /// A packet of the connection that opens or closes it, such as FIN or RST: the flow is removed.
    Closed,
    /// The connection has changed, or its judgement has: the flow is removed.
    Changed,
}

impl Revocation {
    /// All reasons.
    pub const ALL: [Self; 6] = [Self::Rules, Self::Lost, Self::Failed, Self::Gone, Self::Closed, Self::Changed];

    /// Returns the reason's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rules => "new-rules",
            Self::Lost => "announcements-lost",
            Self::Failed => "failure",
            Self::Gone => "connection-gone",
            Self::Closed => "closed-by-packet",
            Self::Changed => "judged-otherwise",
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
    /// Number of times that announcements were lost.
    pub lost: u64,
    /// Connections judged, and the time that it took.
    pub judged: (u64, Duration),
    /// Packets and bytes of removed flows.
    pub retired: (u64, u64),
}

/// Counts of a follower, and when its flows began.
#[derive(Debug)]
pub struct Statistics {
    counts: Mutex<Counts>,
    /// Second since `start` in which each flow was inserted, by family and index.
    begun: Mutex<[Vec<u32>; 2]>,
    start: Instant,
}

impl Default for Statistics {
    fn default() -> Self {
        Self { counts: Mutex::default(), begun: Mutex::default(), start: Instant::now() }
    }
}

fn locked<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Statistics {
    /// Returns the counts.
    pub fn counts(&self) -> Counts {
        locked(&self.counts).clone()
    }

    /// Returns the number of places that flows of IPv4 and of IPv6 have taken so far: all indices are below.
    pub fn places(&self) -> [usize; 2] {
        locked(&self.begun).each_ref().map(Vec::len)
    }

    /// Returns the seconds since a flow was inserted.
    pub fn age(&self, id: FlowId) -> u32 {
        let begun = locked(&self.begun)[usize::from(id.is_v6())].get(id.index()).copied();
        self.now().saturating_sub(begun.unwrap_or_default())
    }

    pub(crate) fn inserted(&self, id: FlowId) {
        let (now, family) = (self.now(), usize::from(id.is_v6()));
        let mut begun = locked(&self.begun);
        let len = begun[family].len().max(id.index() + 1);
        begun[family].resize(len, 0);
        begun[family][id.index()] = now;
        drop(begun);
        locked(&self.counts).inserted[family] += 1;
    }

    /// Counts a flow that was removed with this traffic.
    pub(crate) fn removed(&self, id: FlowId, why: Revocation, traffic: [Traffic; 2]) {
        let mut counts = locked(&self.counts);
        counts.removed[usize::from(id.is_v6())] += 1;
        for Traffic { packets, bytes } in traffic {
            counts.retired.0 += u64::from(packets);
            counts.retired.1 += bytes;
        }
        counts.revoke(why, 1);
    }

    /// Counts all flows as revoked.
    pub(crate) fn revoked(&self, why: Revocation) {
        let mut counts = locked(&self.counts);
        counts.lost += u64::from(why == Revocation::Lost);
        let flows = counts.inserted.iter().sum::<u64>() - counts.removed.iter().sum::<u64>();
        if flows > 0 {
            counts.revoke(why, flows);
        }
    }

    pub(crate) fn full(&self) {
        locked(&self.counts).full += 1;
    }

    pub(crate) fn judged(&self, took: Duration) {
        let mut counts = locked(&self.counts);
        counts.judged.0 += 1;
        counts.judged.1 += took;
    }

    fn now(&self) -> u32 {
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
        [a, b].into_iter().for_each(|id| statistics.inserted(id));
        assert_eq!((statistics.places(), statistics.age(a)), ([4, 2], 0));
        statistics.revoked(Revocation::Lost);
        let traffic = [Traffic { packets: 2, bytes: 200 }, Traffic { packets: u32::MAX, bytes: 1 }];
        statistics.removed(a, Revocation::Closed, traffic);
        let counts = statistics.counts();
        assert_eq!((counts.inserted, counts.removed, counts.lost), ([1, 1], [1, 0], 1));
        assert_eq!(counts.retired, (2 + u64::from(u32::MAX), 201));
        let [rules, lost, failed, gone, closed, changed] = counts.revoked;
        assert_eq!([rules, lost, failed, gone, closed, changed], [0, 2, 0, 0, 1, 0]);
        assert_eq!(counts.last.map(|last| last.1), Some(Revocation::Closed));
    }
}
