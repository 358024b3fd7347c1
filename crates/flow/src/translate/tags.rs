//! VLAN tags of a packet during its translation.

use super::{Tag, Trip};
use crate::field::Field;
use crate::key::{Flow, TAGGED, TPID_88A8, TPID_8100, at};
use bywash_wire::ethernet::ethertype;

impl Trip<'_, '_> {
    /// Returns the mask of all bits that describe the packet's outer tag.
    pub(super) fn tag_bits() -> Flow {
        let mut bits = Field::VlanTci.mask(u128::MAX);
        bits.bytes_mut()[at::TPID] = 0xff;
        bits
    }

    pub(crate) fn tci(&self) -> u16 {
        if self.now.tagged > 0 { self.now.tags[0].tci } else { 0 }
    }

    /// Marks the tags as changed. `seen` means that the new tag depends on the old one.
    fn change_tag(&mut self, seen: bool) {
        if self.now.own_tag {
            if seen && self.now.tagged > 0 {
                self.look_own(&Self::tag_bits());
            }
            self.now.own_tag = false;
        }
    }

    fn show_tag(&mut self) {
        let (tci, tag) = (self.tci(), self.now.tags[0]);
        Field::VlanTci.set(&mut self.now.flow, tci.into());
        let tpid = match (self.now.tagged, tag.tpid) {
            (0, _) => 0,
            (_, ethertype::QINQ) => TPID_88A8,
            _ => TPID_8100,
        };
        self.now.flow.bytes_mut()[at::TPID] = tpid;
        self.now.known = self.now.known | Self::tag_bits();
    }

    pub(super) fn set_tci(&mut self, value: u16, mask: u16) {
        self.change_tag(true);
        let tci = self.tci() & !mask | value & mask;
        if tci & TAGGED == 0 {
            self.now.tagged = 0;
        } else if self.now.tagged == 0 {
            self.now.tags[0] = Tag { tpid: ethertype::VLAN, tci };
            self.now.tagged = 1;
        } else {
            self.now.tags[0].tci = tci;
        }
        self.show_tag();
    }

    pub(crate) fn push_tag(&mut self, tpid: u16) {
        self.change_tag(true);
        self.now.tags[1] = self.now.tags[0];
        self.now.tags[0] = Tag { tpid, tci: TAGGED };
        self.now.tagged = (self.now.tagged + 1).min(2);
        self.show_tag();
    }

    pub(crate) fn pop_tag(&mut self) {
        if self.now.tagged > 0 {
            self.change_tag(false);
            self.now.tags[0] = self.now.tags[1];
            self.now.tagged -= 1;
            self.show_tag();
        }
    }

    /// Sets the tag to `tci`, or removes it if `tci` is 0.
    pub(crate) fn put_tag(&mut self, tci: u16) {
        if tci == 0 { self.pop_tag() } else { self.set_tci(tci | TAGGED, 0xffff) }
    }
}
