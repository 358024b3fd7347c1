//! Megaflows offloaded to the driver: each worker has a table in the XDP program, a cache level in front of its own
//! caches.
//!
//! A megaflow whose actions the program supports is copied there with its own mask. Like the megaflow itself, the copy
//! is valid for one generation of the tables. Packets that the program forwards are credited to the megaflow, so that
//! neither the megaflow nor the learned source address expires for lack of packets.

use super::Caches;
use crate::key::{IP_VALID, KEY_WORDS, Key, TAGGED, at};
use crate::model::OfPort;
use crate::ops::Op;
use crate::pipeline::Pipeline;
use crate::rewrite::be16;
use bywash_port::af_xdp::{FLOW_KEY, FLOWS, FlowTable, Forward, Tag};
use bywash_wire::ethernet::ethertype;
use bywash_wire::proto;
use zerocopy::IntoBytes;

/// Number of entries maintained per turn.
const STEP: usize = 64;
/// Maintenance passes per second while the tables are unchanged.
const PASSES: u64 = 10;

/// Worker-side state of one entry of the driver's table.
#[derive(Default)]
struct Place {
    megaflow: u32,
    /// Set if the megaflow still uses this entry.
    linked: bool,
    /// Packets and bytes counted there at the last read.
    seen: (u64, u64),
    /// Counter slots of the flows to credit with the remaining counts once the entry has been removed.
    rules: Vec<u32>,
}

/// One worker's flows in the driver.
pub(super) struct Driven {
    table: FlowTable,
    places: Vec<Place>,
    /// Position of the pass in progress, and start time in ticks of the latest pass.
    at: usize,
    began: u64,
    /// Generation of the latest pass, and whether the pass in progress brings the flows to a new generation.
    passed: u64,
    catching_up: bool,
    /// Number of entries ever used, counted from the start of the table.
    high: usize,
    /// Numbers of entries removed by the worker and of entries freed by the table.
    left: u64,
    back: u64,
    /// Generation that all megaflows are valid for, published when this many entries have been freed.
    publishing: Option<(u64, u64)>,
}

impl Driven {
    pub(super) fn new(table: FlowTable) -> Self {
        let places = std::iter::repeat_with(Place::default).take(FLOWS).collect();
        Self {
            table,
            places,
            at: 0,
            began: 0,
            passed: 0,
            catching_up: false,
            high: 0,
            left: 0,
            back: 0,
            publishing: None,
        }
    }

    /// Removes all flows.
    pub(super) fn emptied(mut self) -> Self {
        for (at, place) in self.places.iter_mut().enumerate().filter(|(_, place)| place.linked) {
            self.table.remove(at as u32);
            self.left += 1;
            place.linked = false;
            place.rules.clear();
        }
        Self { at: 0, passed: 0, catching_up: false, publishing: None, ..self }
    }

    /// Returns the packets and bytes counted at an entry since the last call.
    fn take(&mut self, at: u32) -> (u64, u64) {
        let (now, place) = (self.table.counts(at), &mut self.places[at as usize]);
        let before = std::mem::replace(&mut place.seen, now);
        (now.0.wrapping_sub(before.0), now.1.wrapping_sub(before.1))
    }

    /// Makes the driver leave an entry's packets to the worker until the entry is confirmed again.
    pub(super) fn distrust(&self, at: u32) {
        self.table.stamp(at, 0);
    }
}

impl Caches {
    /// Updates the driver's copy of a megaflow that is valid for the pipeline's generation.
    pub(super) fn drive(&mut self, pipeline: &Pipeline, at: u32) {
        let Some(driven) = &mut self.driven else { return };
        let key = self.mega.sample(at);
        let port = in_port(&key).and_then(|of| pipeline.port(of)).map(|port| port.id);
        let served = port.filter(|port| driven.table.serves(port.0));
        let mask = *self.mega.mask(at);
        let cold = self.mega.cold(at);
        let flow = served.and_then(|port| forward(&key, &mask, port.0, &cold.ops));
        match (cold.driven.checked_sub(1), flow) {
            (Some(place), Some(flow)) if driven.table.is(place, &flow) => {
                driven.table.stamp(place, pipeline.generation);
            }
            (place, flow) => {
                if place.is_some() {
                    self.retire(at);
                }
                let Some(flow) = flow else { return };
                let Some(driven) = &mut self.driven else { return };
                if let Some(place) = driven.table.insert(&flow, pipeline.generation) {
                    self.mega.cold(at).driven = place + 1;
                    driven.high = driven.high.max(place as usize + 1);
                    let place = &mut driven.places[place as usize];
                    (place.megaflow, place.linked) = (at, true);
                }
            }
        }
    }

    /// Removes a megaflow from the driver's table.
    pub(super) fn retire(&mut self, at: u32) {
        let cold = self.mega.cold(at);
        let (Some(driven), Some(place)) = (&mut self.driven, std::mem::take(&mut cold.driven).checked_sub(1)) else {
            return;
        };
        driven.table.remove(place);
        driven.left += 1;
        let place = &mut driven.places[place as usize];
        place.linked = false;
        place.rules.clear();
        place.rules.extend_from_slice(&cold.rules);
    }

    /// Returns the packets and bytes that the driver forwarded by a megaflow since the last call.
    pub(super) fn take_driven(&mut self, at: u32) -> (u64, u64) {
        let Some(driven) = &mut self.driven else { return (0, 0) };
        let Some(place) = self.mega.cold(at).driven.checked_sub(1) else { return (0, 0) };
        let taken = driven.take(place);
        self.ends.counters.driver_hits.add(taken.0);
        taken
    }

    /// Collects the driver's counters and updates its flows. Returns `true` while a change of the tables needs more
    /// work.
    pub(super) fn look_after_driven(&mut self, now: u64, pipeline: &Pipeline) -> bool {
        let Some(driven) = &mut self.driven else { return false };
        while let Some(place) = driven.table.freed() {
            driven.back += 1;
            let (packets, bytes) = driven.take(place);
            self.ends.counters.driver_hits.add(packets);
            for rule in &driven.places[place as usize].rules {
                self.ends.stats.add(*rule, packets, bytes);
            }
        }
        // The control side may reuse a counter slot as soon as no worker counts for it. Publish the generation only
        // after the driver has freed all entries that still count for removed flows.
        if self.ends.counters.generation.get() != self.swept && driven.publishing.is_none() {
            driven.publishing = Some((self.swept, driven.left));
        }
        if let Some((generation, left)) = driven.publishing
            && driven.back >= left
        {
            self.ends.counters.generation.set(generation);
            driven.publishing = None;
        }
        self.ends.counters.driver_flows.set(driven.table.len() as u64);
        if driven.at == 0 {
            let changed = driven.passed != pipeline.generation;
            if driven.table.is_empty() || !changed && now.wrapping_sub(driven.began) < self.ticks_per_s / PASSES {
                return false;
            }
            (driven.began, driven.passed, driven.catching_up) = (now, pipeline.generation, changed);
        }
        let begin = driven.at;
        let end = (begin + STEP).min(driven.high);
        driven.at = if end == driven.high { 0 } else { end };
        let more = driven.catching_up && end != driven.high;
        for place in begin..end {
            let Some(Place { megaflow, linked: true, .. }) = self.driven.as_ref().map(|d| &d.places[place]) else {
                continue;
            };
            let at = *megaflow;
            let current = self.mega.cold(at).generation == pipeline.generation;
            self.credit(at, now, current);
            if current {
                // The port may have moved to another placement level.
                self.drive(pipeline, at);
            } else {
                self.revalidate(pipeline, at, None, now);
            }
        }
        more
    }
}

fn in_port(key: &Key) -> Option<OfPort> {
    Some(OfPort(be16(key.as_bytes(), at::IN_PORT))).filter(|of| of.0 != 0)
}

/// Converts a megaflow to the program's form: packets that arrive on engine port `port` and match `key` under `mask`
/// are processed by `ops`. Returns `None` if the program cannot do that.
fn forward(key: &Key, mask: &Key, port: u16, ops: &[Op]) -> Option<Forward> {
    let (k, m) = (key.as_bytes(), mask.as_bytes());
    let ip = matches!(be16(k, at::DL_TYPE), ethertype::IPV4 | ethertype::IPV6);
    let ours = matches!(k[at::NW_PROTO], proto::TCP | proto::UDP) || m[at::NW_PROTO] != 0xff;
    let seen =
        [at::IN_PORT, at::IN_PORT + 1, at::DL_TYPE, at::DL_TYPE + 1, at::NW_FRAG].iter().all(|at| m[*at] == 0xff);
    // Multicast frames and packets with fields beyond those of TCP and UDP are processed in user space.
    if !ip
        || !ours
        || !seen
        || k[at::NW_FRAG] != IP_VALID
        || k[0] & 1 == 1
        || key[FLOW_KEY..] != [0; KEY_WORDS - FLOW_KEY]
    {
        return None;
    }
    let mut flow = Forward { keep: [u64::MAX; 2], ..Forward::default() };
    flow.key.copy_from_slice(&key[..FLOW_KEY]);
    flow.mask.copy_from_slice(&mask[..FLOW_KEY]);
    flow.key.as_mut_bytes()[at::IN_PORT..at::IN_PORT + 2].copy_from_slice(&port.to_be_bytes());
    let (last, before) = ops.split_last()?;
    let Op::Output(to) = last else { return None };
    flow.to = Some(to.0).filter(|to| *to != port)?;
    for op in before {
        match *op {
            Op::Eth { value, mask } if flow.macs == [0; 2] && flow.keep == [u64::MAX; 2] => {
                (flow.macs, flow.keep) = (value, mask.map(|m| !m));
            }
            Op::DecTtl(n) if flow.ttl == 0 => flow.ttl = n,
            Op::PopVlan if flow.tag == Tag::Keep => flow.tag = Tag::Pop,
            Op::SetTci(tci) if flow.tag == Tag::Keep => flow.tag = Tag::Set(tci),
            Op::PushVlan { tpid, tci } if flow.tag == Tag::Keep => flow.tag = Tag::Push(tpid, tci),
            Op::PushVlan { tpid, tci } if flow.tag == Tag::Pop => flow.tag = Tag::Swap(tpid, tci),
            _ => return None,
        }
    }
    // A tag may only be changed or removed if the match guarantees that the packet has one.
    let tagged = be16(m, at::VLAN_TCI) & be16(k, at::VLAN_TCI) & TAGGED != 0;
    (tagged || matches!(flow.tag, Tag::Keep | Tag::Push(..))).then_some(flow)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::extract::extract;
    use bywash_engine::PortId;
    use bywash_wire::build::Packet;

    /// Packets with an op that the program cannot do are left to the worker.
    #[test]
    fn ops_that_the_program_lacks_are_refused() {
        let packet = Packet::udp("10.0.0.1:1".parse().unwrap(), "10.0.0.2:2".parse().unwrap()).build().unwrap();
        let mut key = [0; KEY_WORDS];
        extract(&packet, 1, 1, &mut key).unwrap();
        let drives = |ops: &[Op]| forward(&key, &[!0; KEY_WORDS], 0, ops).is_some();
        let out = Op::Output(PortId(1));
        assert!(drives(&[out]) && drives(&[Op::DecTtl(1), out]));
        let others = [Op::Controller, Op::Sample(1), Op::Meter(0), Op::Storm, Op::Ttl(7), out];
        for op in others.into_iter().chain([Op::Longer { than: 100, ops: 1 }]) {
            assert!(!drives(&[op, out]), "{op:?}");
        }
        let labels = [
            Op::PushMpls { entry: 0x100, dl_type: ethertype::MPLS },
            Op::PopMpls { entries: 1, dl_type: ethertype::IPV4 },
            Op::SetMpls { value: 0, mask: 1 },
        ];
        labels.iter().for_each(|op| assert!(!drives(&[*op, out]), "{op:?}"));
        // The program does not read behind labels either.
        let mut labelled = packet.clone();
        labelled.splice(12..14, [0x88, 0x47, 0, 0, 1, 64]);
        let mut behind = [0; KEY_WORDS];
        extract(&labelled, 1, 1, &mut behind).unwrap();
        assert_eq!(behind[4], key[4], "the addresses are read");
        assert!(forward(&behind, &[!0; KEY_WORDS], 0, &[out]).is_none());
        // Nor behind a second tag.
        let drives_tagged = |tags: &[u8]| {
            let (mut frame, mut key) = (packet.clone(), [0; KEY_WORDS]);
            frame.splice(12..12, tags.iter().copied());
            extract(&frame, 1, 2, &mut key).unwrap();
            forward(&key, &[!0; KEY_WORDS], 0, &[out]).is_some()
        };
        assert!(drives_tagged(&[0x81, 0, 0, 7]) && !drives_tagged(&[0x88, 0xa8, 0, 7, 0x81, 0, 0, 5]));
        let by_length = [Op::Longer { than: 100, ops: 1 }, out, Op::Drop(bywash_engine::DropReason::FlowDrop)];
        assert!(!drives(&by_length) && !drives(&by_length[2..]) && !drives(&[]));
    }
}
