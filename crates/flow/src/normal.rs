//! The `normal` action: the learning bridge.

use crate::field::Field;
use crate::key::{TAGGED, at};
use crate::model::OfPort;
use crate::ops::Op;
use crate::pipeline::{SwitchPort, Vlans, mac_key};
use crate::translate::{Learn, SOURCES, Trip, tell};
use bywash_engine::DropReason;
use bywash_wire::ethernet::ethertype;

/// Returns `true` for 01:80:c2:00:00:00 to 01:80:c2:00:00:0f, to which a bridge does not forward (IEEE 802.1D 7.12.6).
fn reserved(mac: u64) -> bool {
    mac & !0xf == 0x0180_c200_0000
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
        self.unwildcard(&Field::VlanTci.mask(u128::from(0xfff | TAGGED)));
        let pipeline = self.pipeline;
        let flow = &self.now.flow;
        let mac = |at: usize| flow.bytes()[at..at + 6].iter().fold(0, |m, b| m << 8 | u64::from(*b));
        let (src, dst) = (mac(at::DL_SRC), mac(at::DL_DST));
        let Some(from) = pipeline.port(own) else { return };
        let tci = self.tci();
        let partial = matches!(flow.u16(at::DL_TYPE), ethertype::VLAN | ethertype::QINQ) && tci & TAGGED == 0;
        let vid = tci & 0xfff;
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
            return self.refuse("refused: bridges do not forward to this destination (802.1D reserved)");
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
                    tell!(self, "the destination was learned on port {port}");
                    self.bridge(from, to, vlan);
                }
            }
            None => {
                tell!(self, "flooded in VLAN {vlan}");
                if pipeline.storm.get(usize::from(from.id.0)).is_some_and(Option::is_some) {
                    self.t.ops.push(Op::Storm);
                }
                let mirrored = |of: OfPort| pipeline.mirrors.iter().any(|m| m.output == Some(of));
                for to in &pipeline.ports {
                    if to.of != own && to.flood && to.carries(vlan) && !mirrored(to.of) {
                        self.bridge(from, to, vlan);
                    }
                }
            }
        }
    }

    fn refuse(&mut self, why: &str) {
        tell!(self, "{why}");
        self.t.reason = Some(DropReason::BridgeFiltered);
    }

    /// Sends the packet out of port `to`, tagged as that port requires.
    fn bridge(&mut self, from: &SwitchPort, to: &SwitchPort, vlan: u16) {
        let before = self.now;
        let pcp = self.tci() & 0xe000;
        match to.vlans {
            Vlans::Access(_) => self.pop_tag(),
            // Both ports are tagged: leave the tag as it is.
            _ if !matches!(from.vlans, Vlans::Access(_)) && vlan != 0 => {}
            _ if self.tci() & TAGGED == 0 && vlan == 0 => {}
            // Remove a tag without a VLAN, unless it carries a priority.
            _ => {
                self.unwildcard(&Field::VlanTci.mask(u128::MAX));
                self.put_tag(if vlan | pcp == 0 { 0 } else { vlan | pcp | TAGGED });
            }
        }
        self.send(to.of);
        self.now = before;
    }
}
