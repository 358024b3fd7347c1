//! Generation of the ops that bring the packet from its current to its wanted state.

use super::{State, Trip, Ttl};
use crate::field::Field;
use crate::key::{Flow, IP_VALID, at};
use crate::ops::Op;
use bywash_wire::ethernet::ethertype;

impl Trip<'_, '_> {
    /// Generates the ops that bring the packet to the state that the actions so far require.
    pub(super) fn commit(&mut self) {
        let ops = self.t.ops.len();
        let (now, base) = (self.now.bare(), self.base.bare());
        // Where an overwritten value of the packet is restored, the result depends on that value.
        let back = base.known & !now.known & writable();
        self.look_own(&back);
        let differing = now.known & base.known & now.flow.differing(&base.flow);
        let mut write = (now.known & !base.known | differing) & writable() | back;
        if now.flow.u8(at::NW_FRAG) & IP_VALID == 0 {
            // There is no valid network header to write to.
            write.bytes_mut()[at::NW_TOS..].fill(0);
        }
        if write.0[0] | write.0[1] != 0 {
            let value = (now.flow & write).0;
            self.t.ops.push(Op::Eth { value: [value[0], value[1]], mask: [write.0[0], write.0[1]] });
        }
        let from = self.t.ops.len();
        self.write(&now, &write);
        if now.flow.u8(at::NW_FRAG) & IP_VALID != 0 && now.is_ip() {
            self.commit_ttl(&now, base.ttl);
        }
        // The network header is written to while there are no labels in front of it.
        let mut labels = self.base.labels;
        if labels > 0 && (self.now.labels == 0 || self.t.ops.len() > from) {
            self.t.ops.insert(from, Op::PopMpls { entries: labels as u8, dl_type: self.dl_type() });
            labels = 0;
        }
        self.commit_labels(labels);
        self.commit_tags();
        self.base = self.now;
        if self.t.ops.len() > ops {
            self.copied.clear();
        }
    }

    fn commit_ttl(&mut self, now: &State, base: Ttl) {
        match (now.ttl, base) {
            (Ttl::Less(n), Ttl::Less(b)) if n > b => self.t.ops.push(Op::DecTtl(n - b)),
            (Ttl::Less(n), Ttl::Less(b)) if n == b => {}
            (Ttl::Set(a), Ttl::Set(b)) if a == b => {}
            (Ttl::Set(ttl), _) => self.t.ops.push(Op::Ttl(ttl)),
            (Ttl::Less(_), _) => {
                self.look_own(&Field::NwTtl.mask(u128::MAX));
                self.t.ops.push(Op::Ttl(now.flow.u8(at::NW_TTL)));
            }
        }
    }

    /// Generates the ops that write these bits of the headers behind the Ethernet type.
    fn write(&mut self, now: &State, write: &Flow) {
        let value = now.flow & *write;
        let word = |flow: &Flow, at: usize| flow.0[at / 8];
        let dl_type = now.flow.u16(at::DL_TYPE);
        let arp = matches!(dl_type, ethertype::ARP | 0x8035);
        if arp {
            // Offsets of the operation and of the sender's and target's addresses (RFC 826).
            for (at, to, len) in [
                (at::NW_PROTO, 7, 1),
                (at::ARP_SHA, 8, 6),
                (at::NW_SRC, 14, 4),
                (at::ARP_THA, 18, 6),
                (at::NW_DST, 24, 4),
            ] {
                let take = |flow: &Flow| std::array::from_fn(|i| if i < len { flow.bytes()[at + i] } else { 0 });
                let mask: [u8; 6] = take(write);
                if mask != [0; 6] {
                    self.t.ops.push(Op::Arp { at: to, value: take(&value), mask });
                }
            }
            return;
        }
        for (which, at) in [(0, at::NW_SRC), (1, at::NW_DST)] {
            let take = |flow: &Flow| u32::from(flow.u16(at)) << 16 | u32::from(flow.u16(at + 2));
            if take(write) != 0 {
                self.t.ops.push(Op::Ip4 { which, value: take(&value), mask: take(write) });
            }
        }
        for half in 0..4 {
            let at = at::IPV6_SRC + 8 * half;
            if word(write, at) != 0 {
                self.t.ops.push(Op::Ip6 { word: half as u8, value: word(&value, at), mask: word(write, at) });
            }
        }
        if write.u8(at::NW_TOS) != 0 {
            self.t.ops.push(Op::Tos { value: value.u8(at::NW_TOS), mask: write.u8(at::NW_TOS) });
        }
        let label = Field::Ipv6Label;
        if label.get(write) != 0 {
            self.t.ops.push(Op::Label { value: label.get(&value) as u32, mask: label.get(write) as u32 });
        }
        for half in 0..2 {
            let at = at::ND_TARGET + 8 * half;
            if word(write, at) != 0 {
                self.t.ops.push(Op::NdTarget { word: half as u8, value: word(&value, at), mask: word(write, at) });
            }
        }
        for (option, at) in [(1, at::ARP_SHA), (2, at::ARP_THA)] {
            let take = |flow: &Flow| std::array::from_fn(|i| flow.bytes()[at + i]);
            let mask: [u8; 6] = take(write);
            if mask != [0; 6] {
                self.t.ops.push(Op::NdLla { option, value: take(&value), mask });
            }
        }
        if write.u16(at::TP_SRC) | write.u16(at::TP_DST) != 0 {
            let protocol = now.flow.u8(at::NW_PROTO);
            self.look_own(&Field::NwProto.mask(u128::MAX));
            for (which, at) in [(0, at::TP_SRC), (1, at::TP_DST)] {
                let (value, mask) = (value.u16(at), write.u16(at));
                match protocol {
                    _ if mask == 0 => {}
                    6 | 17 | 132 => self.t.ops.push(Op::Tp { which, value, mask }),
                    1 | 58 if (protocol == 1) == (dl_type == ethertype::IPV4) => {
                        self.t.ops.push(Op::Icmp { which, value: value as u8, mask: mask as u8 });
                    }
                    _ => {}
                }
            }
        }
    }
}

/// Returns the mask of the writable bits. VLAN tags and TTL have ops of their own and are not included.
fn writable() -> Flow {
    let mut mask = Flow::default();
    for range in [
        at::DL_DST..at::VLAN_TCI,
        at::DL_SRC..at::DL_TYPE,
        at::NW_TOS..at::NW_TTL,
        at::NW_PROTO..at::NW_FRAG,
        at::TP_SRC..at::TPID,
        at::LABEL..at::INNER_TCI,
        at::ARP_THA..at::INNER_TPID,
        at::ND_TARGET..at::METADATA,
    ] {
        mask.bytes_mut()[range].fill(0xff);
    }
    mask
}
