//! `normal`: the learning bridge.

use crate::field::Field;
use crate::key::{TAGGED, at};
use crate::model::OfPort;
use crate::ops::Op;
use crate::pipeline::{SwitchPort, Vlans, mac_key};
use crate::translate::{Learn, Trip, tell};
use bywash_engine::DropReason;
use bywash_wire::ethernet::ethertype;

/// Addresses 01:80:c2:00:00:00 to :0f: a bridge does not forward to them (IEEE 802.1D 7.12.6).
fn reserved(mac: u64) -> bool {
    mac & !0xf == 0x0180_c200_0000
}

fn multicast(mac: u64) -> bool {
    mac >> 40 & 1 == 1
}

impl Trip<'_, '_> {
    /// Sends the packet where its destination was seen, or everywhere its VLAN goes.
    pub(crate) fn normal(&mut self, own: OfPort) {
        self.look_field(Field::DlSrc);
        self.look_field(Field::DlDst);
        self.look(&Field::VlanTci.mask(u128::from(0xfff | TAGGED)));
        self.t.bridged = true;
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
            Vlans::Access(_) => return self.refuse("an access port takes no tagged packets"),
            _ if !from.carries(vid) => return self.refuse("the port does not carry this VLAN"),
            _ => vid,
        };
        if partial {
            return self.refuse("the tag is cut off");
        }
        if pipeline.mirrors.iter().any(|m| m.output == Some(own)) {
            return self.refuse("the port is a mirror's");
        }
        if reserved(dst) {
            return self.refuse("the destination is not a bridge's to forward to");
        }
        if !multicast(src) && self.t.learn.is_none() {
            self.t.learn = Some(Learn { vlan, mac: src, port: own });
        }
        let known = if multicast(dst) { None } else { pipeline.macs.get(&mac_key(vlan, dst)) };
        match known {
            Some(port) if *port == own => self.refuse("the destination is where it came from"),
            Some(port) => {
                if let Some(to) = pipeline.port(*port) {
                    tell!(self, "the destination is behind port {port}");
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

    /// Sends the packet by `to`, tagged as that port wants it.
    fn bridge(&mut self, from: &SwitchPort, to: &SwitchPort, vlan: u16) {
        let before = self.now;
        let pcp = self.tci() & 0xe000;
        match to.vlans {
            Vlans::Access(_) => self.pop_tag(),
            // As it came.
            _ if !matches!(from.vlans, Vlans::Access(_)) && vlan != 0 => {}
            _ if self.tci() & TAGGED == 0 && vlan == 0 => {}
            // A tag of no VLAN goes, unless it says a priority.
            _ => {
                self.look(&Field::VlanTci.mask(u128::MAX));
                self.put_tag(if vlan | pcp == 0 { 0 } else { vlan | pcp | TAGGED });
            }
        }
        self.send(to.of);
        self.now = before;
    }
}
