//! MPLS labels of a packet during its translation, and the IP packet behind them.

use super::{Reason, State, Trip, Ttl, explain};
use crate::field::{Field, Needs, Subfield};
use crate::key::{BOTTOM, Flow, LABELS, at, stack};
use crate::ops::Op;
use bywash_engine::DropReason;
use bywash_wire::ethernet::ethertype;

/// Network and transport headers that no flow sees: those behind labels, and those under an Ethernet type that is not
/// theirs.
#[derive(Clone, Copy)]
pub(super) struct Hidden {
    flow: Flow,
    known: Flow,
    ttl: Ttl,
    /// Ethernet type that the headers have; 0 if there are none, or if they were not read.
    dl_type: u16,
}

pub(super) fn is_mpls(dl_type: u16) -> bool {
    matches!(dl_type, ethertype::MPLS | ethertype::MPLS_UPSTREAM)
}

/// Returns the mask of these label stack entries of a packet, counted from the outermost.
fn entry_bits(entries: std::ops::Range<usize>) -> Flow {
    let mut bits = Flow::default();
    entries.for_each(|i| bits.put_label(i, u32::MAX));
    bits
}

/// Returns the mask of the network and transport headers, and of the labels, which have the same place.
fn network() -> Flow {
    let mut bits = Flow::default();
    for range in
        [at::NW_TOS..at::TPID, at::LABEL..at::INNER_TCI, at::ARP_THA..at::INNER_TPID, at::ND_TARGET..at::METADATA]
    {
        bits.bytes_mut()[range].fill(0xff);
    }
    bits
}

impl State {
    fn entry(&self, i: usize) -> u32 {
        self.flow.label(i)
    }

    fn known_of(&self, i: usize) -> u32 {
        self.known.label(i)
    }

    fn put_entry(&mut self, i: usize, entry: u32) {
        self.flow.put_label(i, entry);
    }

    /// Takes the labels of a received packet, and hides the packet behind them. Returns the mask of the bits that show
    /// how many there are.
    pub(super) fn receive_labels(&mut self) -> Flow {
        let mut seen = Flow::default();
        if !is_mpls(self.flow.u16(at::DL_TYPE)) {
            return seen;
        }
        seen.bytes_mut()[at::STACK] = 0xff;
        let extent = self.flow.u8(at::STACK);
        let (all, labels) = (self.flow, entry_bits(0..LABELS) | seen);
        self.labels = usize::from(extent & stack::ENTRIES);
        self.deeper = extent & stack::DEEPER != 0;
        self.flow = self.flow & !labels;
        self.known = self.known | labels;
        self.hide(match extent >> stack::VERSION {
            4 => ethertype::IPV4,
            6 => ethertype::IPV6,
            _ => 0,
        });
        let own = entry_bits(0..self.labels);
        self.flow = self.flow | all & own;
        self.known = self.known & !own;
        seen
    }

    /// Hides the network header, which has this Ethernet type, from flows; or those in front of a header that is hidden
    /// already.
    fn hide(&mut self, dl_type: u16) {
        let bits = network();
        if self.hidden.is_none() {
            self.hidden = Some(Hidden { flow: self.flow & bits, known: self.known & bits, ttl: self.ttl, dl_type });
        }
        self.flow = self.flow & !bits;
        self.known = self.known | bits;
    }

    /// Returns the packet without its labels.
    pub(super) fn bare(&self) -> Self {
        let Some(Hidden { flow, known, ttl, dl_type }) = self.hidden else { return *self };
        let bits = network();
        let mut bare = Self {
            flow: flow | self.flow & !bits,
            known: known | self.known & !bits,
            ttl,
            hidden: None,
            labels: 0,
            ..*self
        };
        Field::DlType.set(&mut bare.flow, dl_type.into());
        bare
    }
}

impl Trip<'_, '_> {
    /// Returns the value of a subfield. Labels, and addresses of ARP and neighbour discovery, are 0 in each other's
    /// packets.
    pub(super) fn value(&self, from: Subfield) -> u128 {
        let labels = is_mpls(self.dl_type());
        match from.field.info().needs {
            Needs::Mpls if !labels => 0,
            Needs::Arp | Needs::NdSolicit | Needs::NdAdvert if labels => 0,
            _ => from.get(&self.now.flow),
        }
    }

    pub(super) fn push_mpls(&mut self, dl_type: u16) -> Result<(), Reason> {
        let n = self.now.labels;
        if n >= LABELS {
            explain!(self, "dropped: more than {LABELS} labels");
            return Err(DropReason::TooManyLabels);
        }
        let outer = if n > 0 {
            self.unwildcard(&entry_bits(0..n));
            for i in (0..n).rev() {
                self.now.put_entry(i + 1, self.now.entry(i));
            }
            self.now.entry(0) & !BOTTOM
        } else {
            self.commit();
            let (mut class, mut ttl) = (0, 64);
            if self.is_ip() {
                self.unwildcard(&(Field::IpDscp.mask(u128::MAX) | Field::NwTtl.mask(u128::MAX)));
                class = u32::from(self.now.flow.u8(at::NW_TOS)) >> 2 & 7;
                ttl = Some(self.now.flow.u8(at::NW_TTL)).filter(|ttl| *ttl != 0).unwrap_or(ttl);
            }
            // Explicit null (RFC 3032 2.1).
            let label = if self.dl_type() == ethertype::IPV6 { 2 } else { 0 };
            self.now.hide(self.dl_type());
            label << 12 | class << 9 | BOTTOM | u32::from(ttl)
        };
        self.now.put_entry(0, outer);
        self.change_labels(n + 1, dl_type);
        Ok(())
    }

    pub(super) fn pop_mpls(&mut self, dl_type: u16) -> Result<(), Reason> {
        let n = self.now.labels;
        if n == 0 {
            return Ok(());
        }
        if n == LABELS && self.now.deeper {
            explain!(self, "dropped: more than {LABELS} labels");
            return Err(DropReason::TooManyLabels);
        }
        if is_mpls(dl_type) {
            self.unwildcard(&entry_bits(1..n));
            for i in 1..n {
                self.now.put_entry(i - 1, self.now.entry(i));
            }
            self.now.put_entry(n - 1, 0);
            self.change_labels(n - 1, dl_type);
            return Ok(());
        }
        self.now.flow = self.now.flow & !entry_bits(0..LABELS);
        self.change_labels(0, dl_type);
        if let Some(hidden) = self.now.hidden.filter(|hidden| hidden.dl_type == dl_type) {
            let bits = network();
            self.now.flow = self.now.flow & !bits | hidden.flow;
            self.now.known = self.now.known & !bits | hidden.known;
            (self.now.ttl, self.now.hidden) = (hidden.ttl, None);
        }
        Ok(())
    }

    /// Sets the number of labels, all of whose values are known from now on, and the Ethernet type.
    fn change_labels(&mut self, labels: usize, dl_type: u16) {
        self.now.labels = labels;
        Field::DlType.set(&mut self.now.flow, dl_type.into());
        self.now.known = self.now.known | entry_bits(0..LABELS);
    }

    /// Decrements the TTL of the outer label. Returns `false` if it is 0 or 1, or if there are no labels.
    pub(super) fn dec_mpls_ttl(&mut self) -> bool {
        if !is_mpls(self.dl_type()) {
            explain!(self, "dec_mpls_ttl: the packet has no label");
            return false;
        }
        self.unwildcard_field(Field::MplsTtl);
        let ttl = Field::MplsTtl.get(&self.now.flow);
        if ttl <= 1 {
            explain!(self, "dec_mpls_ttl: the TTL is 0 or 1");
            self.t.reason = Some(DropReason::TtlExceeded);
            return false;
        }
        self.set(Field::MplsTtl, ttl - 1, u128::MAX);
        true
    }

    /// Counts what has been set in a packet of MPLS without a label as a label, as OVS does.
    pub(super) fn labelled(&mut self) {
        if self.now.labels == 0 && self.now.entry(0) != 0 {
            self.now.labels = 1;
        }
    }

    /// Generates the ops that turn the labels of the packet into the wanted ones. `had` is how many it has after the
    /// ops so far: those of `base`, or none.
    pub(super) fn commit_labels(&mut self, had: usize) {
        let (base, now) = (self.base, self.now);
        let (mut have, mut want) = (had, now.labels);
        // Bits of which one of the two is not known are those of the received packet.
        let differ = |trip: &mut Self, i: usize, j: usize| {
            trip.look_entry(i, now.known_of(j) & !base.known_of(i));
            trip.look_entry(j, base.known_of(i) & !now.known_of(j));
            base.entry(i) != now.entry(j)
        };
        // From the bottom on, entries that are alike stay.
        while have > 0 && want > 0 && !differ(self, have - 1, want - 1) {
            (have, want) = (have - 1, want - 1);
        }
        let dl_type = self.dl_type();
        let set = have > 0 && want > 0;
        let entries = have - usize::from(set);
        if entries > 0 {
            self.t.ops.push(Op::PopMpls { entries: entries as u8, dl_type });
        }
        if set {
            let mask = base.known_of(have - 1) | now.known_of(want - 1);
            want -= 1;
            self.t.ops.push(Op::SetMpls { value: now.entry(want) & mask, mask });
        }
        for i in (0..want).rev() {
            self.look_entry(i, !now.known_of(i));
            self.t.ops.push(Op::PushMpls { entry: now.entry(i), dl_type });
        }
    }

    /// Records that the result depends on these bits of a label stack entry of the received packet.
    fn look_entry(&mut self, i: usize, bits: u32) {
        let mut mask = Flow::default();
        mask.put_label(i, bits);
        self.look_own(&mask);
    }
}
