//! Candidates: tuples of packets that belong to no flow, found among all such packets by weighing.
//!
//! A tuple's weight is stored in the slot of its hash. A packet of the tuple that holds the slot adds eight; a packet
//! of another tuple takes one away, and takes over the slot at weight zero (after Boyer, Moore 1981, "MJRTY"). So each
//! of a few tuples with packets at the same rate gets its turn, and a flood of tuples that come once hardly delays
//! those that carry the traffic. A tuple is reported at the weight of eight packets, and each time that its weight
//! doubles. At the weight of 512 packets it is halved, so that the kernel is asked again about a connection that may
//! not become a flow yet, at a cost that its packets bound. A packet that opens or closes a connection resets the
//! weight of its tuple: short connections that use the same ports one after the other are not reported.
//!
//! Readers write without synchronisation. When they overwrite each other's words, a report is late, or names a tuple
//! without a connection.

use super::layout::{Key, front, hash, record_at};
use super::reader::FlowTable;
use super::writer::Writer;

/// Weight of a packet.
const PACKET: u32 = 8;
/// Weight of the first report.
const FIRST: u32 = 8 * PACKET;
/// Weight at which it is halved.
const MOST: u32 = 512 * PACKET;

impl<const N: usize> FlowTable<N> {
    /// Weighs a packet of TCP or UDP that belongs to no flow. `closing` is set if it opens or closes its connection.
    #[inline]
    pub fn miss(&self, key: &Key<N>, closing: bool) {
        if self.size().buckets() == 0 {
            return;
        }
        let hash = hash(&self.keys, key);
        if closing {
            self.forget(hash);
        } else if self.weighs(hash) {
            self.report(key);
        }
    }

    fn weight_at(hash: u32) -> usize {
        record_at::<N>(0) + front::WEIGHTS + hash as usize % front::MANY_WEIGHTS
    }

    /// Weighs a packet of a tuple with this hash; returns whether it is to be reported.
    fn weighs(&self, hash: u32) -> bool {
        let (at, holder) = (Self::weight_at(hash), u64::from(hash) << 32);
        let was = self.region.load(at);
        let before = was as u32;
        if was & !u64::from(u32::MAX) != holder {
            self.region.store(at, if before == 0 { holder | u64::from(PACKET) } else { was - 1 });
            return false;
        }
        let after = before.wrapping_add(PACKET);
        self.region.store(at, holder | u64::from(if after >= MOST { MOST / 2 } else { after }));
        // The highest bit has changed.
        after >= FIRST && after ^ before > before
    }

    /// Resets the weight of a tuple that has become a flow, or has another connection from now on.
    pub(super) fn forget(&self, hash: u32) {
        let at = Self::weight_at(hash);
        if self.region.load(at) >> 32 == u64::from(hash) {
            self.region.store(at, 0);
        }
    }

    fn report(&self, key: &Key<N>) {
        let header = record_at::<N>(0);
        let reported = self.region.load(header + front::REPORTED);
        let at = header + report_at(reported);
        for (i, word) in key.addresses.iter().enumerate() {
            self.region.store(at + i, *word);
        }
        self.region.store(at + 4, key.rest);
        self.region.store(header + front::REPORTED, reported.wrapping_add(1));
    }
}

/// Returns the offset from the header of a report.
fn report_at(number: u64) -> usize {
    front::REPORTS + number as usize % front::MANY_REPORTS * front::REPORT
}

impl<const N: usize> Writer<N> {
    /// Calls `each` with up to `most` reports since the last call; returns their number. Reports that the ring has
    /// overwritten are lost.
    pub fn candidates(&mut self, most: usize, mut each: impl FnMut(Key<N>)) -> usize {
        let region = &self.reader().region;
        let (header, kept) = (record_at::<N>(0), front::MANY_REPORTS as u64);
        let reported = region.load(header + front::REPORTED);
        let behind = reported.wrapping_sub(self.taken).min(kept);
        let (from, many) = (reported.wrapping_sub(behind), behind.min(most as u64));
        for number in 0..many {
            let at = header + report_at(from.wrapping_add(number));
            let addresses = std::array::from_fn(|i| region.load(at + i));
            each(Key { addresses, rest: region.load(at + 4) });
        }
        self.taken = from.wrapping_add(many);
        many as usize
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Flow, FlowTables, Flows, Tuple, key4, key6};
    use super::*;
    use bywash_sync::Qsbr;
    use std::collections::HashMap;

    fn tuple(port: u16) -> Tuple {
        Tuple { src: [192, 0, 2, 1].into(), dst: [198, 51, 100, 1].into(), src_port: port, dst_port: 80 }
    }

    fn table() -> (Flows, FlowTables) {
        let mut flows = Flows::new(&Qsbr::new(), [None, None], 100).unwrap();
        let reader = flows.reader();
        reader.v4.miss(&key4(6, &tuple(1), 0).unwrap(), false);
        assert_eq!(flows.memory(), 0, "nothing is counted before the first generation");
        flows.set_generation(1);
        (flows, reader)
    }

    #[test]
    fn a_tuple_is_reported_each_time_that_its_weight_has_doubled() {
        let (mut flows, reader) = table();
        let key = key4(6, &tuple(1), 7).unwrap();
        let mut reports = vec![];
        for packet in 1..=1300 {
            reader.v4.miss(&key, false);
            let found = flows.candidates(9);
            if !found.is_empty() {
                assert_eq!(found, [(6, tuple(1))]);
                reports.push(packet);
            }
        }
        assert_eq!(reports, [8, 16, 32, 64, 128, 256, 512, 768, 1024, 1280]);
    }

    #[test]
    fn connections_with_the_same_tuple_do_not_add_up() {
        let (mut flows, reader) = table();
        let key = key4(6, &tuple(1), 0).unwrap();
        for _ in 0..100 {
            reader.v4.miss(&key, true);
            (0..7).for_each(|_| reader.v4.miss(&key, false));
        }
        assert_eq!(flows.candidates(9), []);
        reader.v4.miss(&key4(6, &tuple(2), 0).unwrap(), true);
        reader.v4.miss(&key, false);
        assert_eq!(flows.candidates(9), [(6, tuple(1))], "another tuple's connection leaves the weight");
    }

    #[test]
    fn tuples_of_both_families_are_reported_whole() {
        let (mut flows, reader) = table();
        let six = Tuple { src: "2001:db8::1:2".parse().unwrap(), dst: "2001:db8:5::9".parse().unwrap(), ..tuple(3) };
        for _ in 0..8 {
            reader.v6.miss(&key6(17, &six, 2).unwrap(), false);
            reader.v4.miss(&key4(17, &tuple(3), 2).unwrap(), false);
        }
        assert_eq!(flows.candidates(1), [(17, tuple(3))], "no more than were asked for");
        assert_eq!(flows.candidates(9), [(17, six)]);
        assert_eq!(flows.candidates(9), []);
    }

    /// A tuple is reported although there are a hundred times as many packets of other tuples, each seen once.
    #[test]
    fn a_flood_hides_nobody() {
        let (mut flows, reader) = table();
        for n in 0..20_000u32 {
            let [.., a, b] = n.to_be_bytes();
            let other = Tuple { src: [10, 0, a, b].into(), ..tuple(9) };
            reader.v4.miss(&key4(17, &other, 0).unwrap(), false);
            if n % 100 == 0 {
                reader.v4.miss(&key4(17, &tuple(1), 0).unwrap(), false);
            }
        }
        let found = flows.candidates(100);
        assert!(found.contains(&(17, tuple(1))), "{found:?}");
        assert!(found.iter().all(|(_, of)| *of == tuple(1)), "{found:?}");
    }

    /// Each of the tuples in one slot, with alternating packets, is reported in time, once those before it have become
    /// flows.
    #[test]
    fn tuples_of_one_slot_have_their_turns() {
        let (mut flows, reader) = table();
        // Many tuples, so that some share a slot.
        let of = |n: u32| Tuple { src: (n << 7).to_be_bytes().into(), ..tuple((n % 977) as u16) };
        let mut by_slot = HashMap::<usize, Vec<Tuple>>::new();
        for n in 0..1 << 19 {
            let hash = hash(&reader.v4.keys, &key4(6, &of(n), 0).unwrap());
            by_slot.entry(hash as usize % front::MANY_WEIGHTS).or_default().push(of(n));
        }
        let mut left = by_slot.into_values().find(|tuples| tuples.len() >= 7).unwrap();
        left.truncate(7);
        for _ in 0..1000 {
            left.iter().for_each(|tuple| reader.v4.miss(&key4(6, tuple, 0).unwrap(), false));
            for (protocol, original) in flows.candidates(9) {
                left.retain(|tuple| *tuple != original);
                let Tuple { src, dst, src_port, dst_port } = original;
                let reply = Tuple { src: dst, dst: src, src_port: dst_port, dst_port: src_port };
                flows.insert(&Flow { protocol, original, reply, input: 0, output: 1 }, 1).unwrap();
            }
        }
        assert_eq!(left, []);
    }

    #[test]
    fn the_last_reports_are_kept() {
        let (mut flows, reader) = table();
        let many = front::MANY_REPORTS as u16 + 100;
        (0..many).for_each(|port| reader.v4.report(&key4(6, &tuple(port), 0).unwrap()));
        let found = flows.candidates(usize::MAX);
        assert_eq!(found.len(), front::MANY_REPORTS);
        assert_eq!((found[0], found.last().unwrap()), ((6, tuple(100)), &(6, tuple(many - 1))));
    }
}
