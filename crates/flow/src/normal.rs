//! The `normal` action: the learning bridge.

use crate::field::Field;
use crate::key::{TAGGED, TPID_8100, at};
use crate::model::OfPort;
use crate::ops::Op;
use crate::pipeline::{SwitchPort, Vlans, mac_key};
use crate::translate::tags::{Tag, tag_bits, tci_bits};
use crate::translate::{Learn, SOURCES, Trip, explain};
use bywash_engine::DropReason;
use bywash_wire::ethernet::ethertype;

/// Bits of a TCI.
const VLAN: u16 = 0x0fff;
const PRIORITY: u16 = 0xe000;

/// Returns `true` for 01:80:c2:00:00:00 to 01:80:c2:00:00:0f, to which a bridge does not forward (IEEE 802.1D 7.12.6),
/// and, as in OVS, for the addresses of other control protocols: of Extreme Networks (EDP, EAPS) and of Cisco (ISL;
/// CDP, VTP, DTP, PAgP and UDLD; PVST+; uplink fast; CFM).
fn reserved(mac: u64) -> bool {
    matches!(mac & !0xf, 0x0180_c200_0000)
        || matches!(mac, 0x00e0_2b00_0000 | 0x00e0_2b00_0004 | 0x00e0_2b00_0006 | 0x0100_0c00_0000)
        || matches!(mac, 0x0100_0ccc_cccc | 0x0100_0ccc_cccd | 0x0100_0ccd_cdcd | 0x0100_0ccc_ccc0..=0x0100_0ccc_ccc7)
}

fn multicast(mac: u64) -> bool {
    mac >> 40 & 1 == 1
}

impl Trip<'_, '_> {
    /// Sends the packet to the port where its destination was learned, or floods it in its VLAN, and learns its source
    /// address.
    pub(crate) fn normal(&mut self, own: OfPort) {
        self.unwildcard_field(Field::DlSrc);
        self.unwildcard_field(Field::DlDst);
        self.unwildcard(&tci_bits(0, VLAN | TAGGED));
        let pipeline = self.pipeline;
        let flow = &self.now.flow;
        let mac = |at: usize| flow.bytes()[at..at + 6].iter().fold(0, |m, b| m << 8 | u64::from(*b));
        let (src, dst) = (mac(at::DL_SRC), mac(at::DL_DST));
        let Some(from) = pipeline.port(own) else { return };
        let tci = self.now.outer_tag().tci;
        let partial = matches!(flow.u16(at::DL_TYPE), ethertype::VLAN | ethertype::QINQ) && tci & TAGGED == 0;
        let vid = tci & VLAN;
        let vlan = match from.vlans {
            Vlans::Access(vlan) if vid == 0 => vlan,
            Vlans::Access(_) => return self.refuse("refused: tagged packet on an access port"),
            _ if !from.carries(vid) => return self.refuse("refused: the ingress port does not carry this VLAN"),
            _ => vid,
        };
        if partial {
            return self.refuse("refused: the VLAN tag is truncated");
        }
        if pipeline.mirrors.iter().any(|m| m.output == Some(own)) {
            return self.refuse("refused: the ingress port is the output of a mirror");
        }
        if reserved(dst) {
            return self.refuse("refused: bridges do not forward to this destination (reserved)");
        }
        let learn = Learn { vlan, mac: src, port: own };
        if !multicast(src) && !self.learned().contains(&learn) && self.learned().len() < SOURCES {
            self.t.learn.push(learn);
        }
        let known = if multicast(dst) { None } else { self.look_up_address(mac_key(vlan, dst)) };
        match known {
            Some(port) if port == own => self.refuse("refused: the destination is on the ingress port"),
            Some(port) => {
                if let Some(to) = pipeline.port(port) {
                    explain!(self, "the destination was learned on port {port}");
                    self.bridge(from, to, vlan);
                }
            }
            None => {
                explain!(self, "flooded in VLAN {vlan}");
                if pipeline.storm.get(usize::from(from.id.0)).is_some_and(Option::is_some) {
                    self.t.ops.push(Op::Storm);
                }
                let mirrored = |of: OfPort| pipeline.mirrors.iter().any(|m| m.output == Some(of));
                for to in &pipeline.ports {
                    let takes = to.of != own && to.flood && to.carries(vlan) && !mirrored(to.of);
                    // As in OVS, packets of a VLAN within the VLAN are not flooded to access ports.
                    if takes && (from.is_access() || !to.is_access() || !self.has_inner_vlan()) {
                        self.bridge(from, to, vlan);
                    }
                }
            }
        }
    }

    fn refuse(&mut self, why: &str) {
        explain!(self, "{why}");
        self.t.reason = Some(DropReason::BridgeFiltered);
    }

    /// Sends the packet out of port `to`, tagged as that port requires.
    fn bridge(&mut self, from: &SwitchPort, to: &SwitchPort, vlan: u16) {
        let before = self.now;
        if to.is_access() {
            self.now.truncate_tags(0);
        } else if from.is_access() {
            // Only the priority is left of the tags that were not in a VLAN.
            self.unwildcard(&tag_bits(0));
            let Tag { tpid, tci } = self.now.outer_tag();
            let tpid = if tpid == 0 { TPID_8100 } else { tpid };
            self.now.truncate_tags(0);
            self.now.put_tag(0, Tag { tpid, tci: vlan | tci & PRIORITY | TAGGED });
        } else {
            self.remove_empty_tag();
        }
        self.send(to.of);
        self.now = before;
    }

    fn has_inner_vlan(&mut self) -> bool {
        self.now.tags() > 1 && self.tag_has(1, VLAN)
    }

    /// Removes the outermost tag that has neither a VLAN nor a priority, and those behind it, as OVS does.
    fn remove_empty_tag(&mut self) {
        for i in 0..self.now.tags() {
            if !self.tag_has(i, VLAN | PRIORITY) {
                return self.now.truncate_tags(i);
            }
        }
    }

    /// Returns `true` if any of these bits is set in the TCI of a tag. One that is set is enough to show it.
    fn tag_has(&mut self, i: usize, bits: u16) -> bool {
        let set = self.now.tag(i).tci & bits;
        self.unwildcard(&tci_bits(i, set.checked_ilog2().map_or(bits, |bit| 1 << bit)));
        set != 0
    }
}
