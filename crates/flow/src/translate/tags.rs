//! VLAN tags of a packet during its translation. As in OVS, the key has places for two; a tag that is pushed in front
//! of two removes the inner one.

use super::{State, Trip};
use crate::field::Field;
use crate::key::{Flow, TAG_AT, TAGGED, TAGS, TPID_88A8, TPID_8100, at};
use crate::ops::Op;
use bywash_wire::ethernet::ethertype;

/// A place for a tag. There is one if the TCI has the bit [`TAGGED`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tag {
    /// TPID as in the key.
    pub(crate) tpid: u8,
    pub(crate) tci: u16,
}

/// Returns the mask of these bits of the TCI of a tag.
pub(crate) fn tci_bits(i: usize, bits: u16) -> Flow {
    let mut mask = Flow::default();
    mask.put(TAG_AT[i].0, &bits.to_be_bytes());
    mask
}

/// Returns the mask of all bits of a tag.
pub(crate) fn tag_bits(i: usize) -> Flow {
    let mut mask = tci_bits(i, u16::MAX);
    mask.put(TAG_AT[i].1, &[u8::MAX]);
    mask
}

impl State {
    /// Returns the tag in this place, counted from the outermost.
    pub(crate) fn tag(&self, i: usize) -> Tag {
        Tag { tpid: self.flow.u8(TAG_AT[i].1), tci: self.flow.u16(TAG_AT[i].0) }
    }

    /// Returns the number of tags.
    pub(crate) fn tags(&self) -> usize {
        (0..TAGS).take_while(|i| self.tag(*i).tci & TAGGED != 0).count()
    }

    /// Returns the outer tag; all bits are 0 if there is none.
    pub(crate) fn outer_tag(&self) -> Tag {
        if self.tags() > 0 { self.tag(0) } else { Tag::default() }
    }

    /// Sets a tag, which does not depend on the received packet any more.
    pub(crate) fn put_tag(&mut self, i: usize, Tag { tpid, tci }: Tag) {
        self.flow.put(TAG_AT[i].0, &tci.to_be_bytes());
        self.flow.put(TAG_AT[i].1, &[tpid]);
        self.known = self.known | tag_bits(i);
    }

    /// Removes all tags but the outermost `n`.
    pub(crate) fn truncate_tags(&mut self, n: usize) {
        (n..TAGS).for_each(|i| self.put_tag(i, Tag::default()));
    }

    /// Takes the tags of a received packet, of which `limit` are read. Returns the mask of the bits that show how many
    /// there are.
    pub(super) fn receive_tags(&mut self, limit: usize) -> Flow {
        let n = self.tags();
        (n..TAGS).for_each(|i| self.known = self.known | tag_bits(i));
        (0..limit.min(n + 1)).fold(Flow::default(), |seen, i| seen | tci_bits(i, TAGGED))
    }
}

impl Trip<'_, '_> {
    pub(super) fn set_tci(&mut self, value: u16, mask: u16) {
        let Tag { tpid, tci } = self.now.tag(0);
        let tci = tci & !mask | value & mask;
        self.now.flow.put(at::VLAN_TCI, &tci.to_be_bytes());
        self.now.known = self.now.known | tci_bits(0, mask);
        if tci != 0 && tpid == 0 {
            self.now.put_tag(0, Tag { tpid: TPID_8100, tci });
        }
    }

    pub(super) fn push_tag(&mut self, dl_type: u16) {
        for i in (1..TAGS).rev() {
            self.unwildcard(&tag_bits(i - 1));
            self.now.put_tag(i, self.now.tag(i - 1));
        }
        let tpid = if dl_type == ethertype::QINQ { TPID_88A8 } else { TPID_8100 };
        self.now.put_tag(0, Tag { tpid, tci: TAGGED });
    }

    pub(super) fn pop_tag(&mut self) {
        let n = self.now.tags();
        for i in 1..n {
            self.unwildcard(&tag_bits(i));
            self.now.put_tag(i - 1, self.now.tag(i));
        }
        if n > 0 {
            self.now.put_tag(n - 1, Tag::default());
        }
    }

    /// Returns `true` if tag `i` of the packet after the ops so far is to be tag `j`.
    fn stays(&mut self, i: usize, j: usize) -> bool {
        let bits = |known: &Flow, i: usize| Tag { tpid: known.u8(TAG_AT[i].1), tci: known.u16(TAG_AT[i].0) };
        let (base, now) = (self.base, self.now);
        let (had, has) = (bits(&base.known, i), bits(&now.known, j));
        // Bits of which one of the two is not known are those of the received packet.
        let apart = if i == j { Tag::default() } else { Tag { tpid: u8::MAX, tci: u16::MAX } };
        let mut look = |at: usize, known: Tag, other: Tag| {
            let mut mask = tci_bits(at, !known.tci & (other.tci | apart.tci));
            mask.put(TAG_AT[at].1, &[!known.tpid & (other.tpid | apart.tpid)]);
            self.look_own(&mask);
        };
        look(i, had, has);
        look(j, has, had);
        base.tag(i) == now.tag(j)
    }

    /// Generates the ops that turn the packet's tags into the wanted ones.
    pub(super) fn commit_tags(&mut self) {
        let (base, now) = (self.base, self.now);
        let (mut have, mut want) = (base.tags(), now.tags());
        // From the innermost on, tags that are alike stay.
        while have > 0 && want > 0 && self.stays(have - 1, want - 1) {
            (have, want) = (have - 1, want - 1);
        }
        if (have, want) == (1, 1) && base.tag(0).tpid == now.tag(0).tpid {
            self.look_own(&(Field::VlanTci.mask(u128::MAX) & !now.known));
            self.t.ops.push(Op::SetTci(now.tag(0).tci & !TAGGED));
            return;
        }
        (0..have).for_each(|_| self.t.ops.push(Op::PopVlan));
        for i in (0..want).rev() {
            self.look_own(&(tag_bits(i) & !now.known));
            let Tag { tpid, tci } = now.tag(i);
            let tpid = if tpid == TPID_88A8 { ethertype::QINQ } else { ethertype::VLAN };
            self.t.ops.push(Op::PushVlan { tpid, tci: tci & !TAGGED });
        }
    }
}
