//! Slow path: translates a packet's path through the tables into a flat list of ops and the bits of the packet that
//! they depend on.

mod commit;
mod labels;
mod learn;
mod link;
mod set;
pub(crate) mod tags;
mod walk;

use crate::dependents::SEVERAL;
use crate::field::{Field, Needs, Subfield, ones};
use crate::key::{FLOW_WORDS, FRAG_LATER, Flow, Key, TAGGED, at};
use crate::learn::FlowChange;
use crate::model::{Action, OfPort};
use crate::ops::Op;
use crate::pipeline::{Pipeline, TABLES, mac_key};
use bywash_engine::{DropReason, PortId};
use bywash_wire::ethernet::ethertype;
use labels::{Hidden, is_mpls};
use set::ActionSet;

/// Maximum number of nested lists of actions.
const NEST: usize = 80;
/// Maximum nesting of lookups in the same or an earlier table and of groups, the same as OVS's limit.
const DEPTH: u32 = 64;
/// Maximum number of lookups, groups and further buckets for one packet, the same as OVS's limit.
const RESUBMITS: u32 = 4096;
/// Maximum number of ops of one packet.
pub const MAX_OPS: usize = 1024;
/// Maximum number of flows that a packet is counted for; any further ones do not count it.
const MAX_RULES: usize = 64;
/// Maximum number of source addresses that are learned from a packet.
pub(crate) const SOURCES: usize = 8;
/// Maximum number of ranges of lengths by which the packets of a megaflow are distinguished.
const LENGTHS: usize = 64;
/// Maximum number of entries of a stack; a clone has a copy of its own.
const STACK: usize = 1024;

/// Ethernet address and the port on which it was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Learn {
    /// VLAN identifier.
    pub vlan: u16,
    /// Address, in the lower 48 bits.
    pub mac: u64,
    /// Port on which it was seen.
    pub port: OfPort,
}

/// Report of a worker: an address seen on a port, or a flow to learn.
#[derive(Clone, Debug)]
pub(crate) enum Report {
    /// A packet changed the flows, or used a megaflow that did.
    Change(FlowChange),
    /// A packet came from that port just now.
    Seen(Learn),
    /// Packets came from that port since the address was last reported. They do not show whether the address has moved
    /// since.
    Used(Learn),
}

/// Reason why a packet was not sent.
pub(crate) type Reason = DropReason;

/// TTL or hop limit relative to the packet's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ttl {
    /// The packet's own value minus this number.
    Less(u8),
    /// A value of its own.
    Set(u8),
}

/// State of a packet during the translation.
#[derive(Clone, Copy)]
pub(crate) struct State {
    pub(crate) flow: Flow,
    /// Bits whose value no longer depends on the received packet.
    known: Flow,
    ttl: Ttl,
    /// Number of MPLS labels, which are in `flow`.
    labels: usize,
    /// Set if there are more labels than can be read.
    deeper: bool,
    /// Headers behind the labels; `None` if all are in `flow`.
    hidden: Option<Hidden>,
}

impl State {
    fn is_ip(&self) -> bool {
        matches!(self.flow.u16(at::DL_TYPE), ethertype::IPV4 | ethertype::IPV6)
    }
}

/// Translator of packets. Reused from one packet to the next, so that its buffers need no new allocation.
#[derive(Default)]
pub struct Translator {
    /// Resulting ops, in order.
    pub ops: Vec<Op>,
    /// Counter slots of the flows that matched.
    pub rules: Vec<u32>,
    /// Bits of the packet that the result depends on.
    pub mask: Flow,
    /// Bit set of the tables that the packet was looked up in or makes flows in.
    pub tables: [u64; 4],
    /// Key of the learned address that was looked up as the destination, or [`SEVERAL`].
    pub(crate) looked_up: Option<u64>,
    /// Source addresses to learn or to refresh: of each source under which the packet was bridged.
    pub learn: Vec<Learn>,
    /// Changes of the flows that the packet makes.
    pub(crate) flow_changes: Vec<FlowChange>,
    /// Reason why nothing is sent; `None` if there is an output.
    pub reason: Option<Reason>,
    saved: Vec<State>,
    /// Stack of `push` and `pop`.
    stack: Vec<u128>,
    resubmits: u32,
    /// Description of each step, collected if set to `Some`.
    pub story: Option<Vec<String>>,
}

/// Translation in progress.
pub(crate) struct Trip<'a, 't> {
    pub(crate) t: &'a mut Translator,
    pub(crate) pipeline: &'t Pipeline,
    pub(crate) now: State,
    /// State of the packet after the ops generated so far.
    base: State,
    set: ActionSet<'t>,
    /// Index of the lowest entry of the stack that can be popped.
    bottom: usize,
    /// Number of tags and labels of the received packet.
    own_tags: usize,
    /// Lengths of the packets with this outcome: more bytes than `least`, and at most `most`.
    least: u32,
    most: u32,
    /// Number of the addresses in [`Translator::learn`] that packets of other lengths taught.
    others: usize,
    indent: usize,
    /// Ports of mirrors that have a copy of the packet as it is after the ops generated so far.
    copied: Vec<PortId>,
}

macro_rules! explain {
    ($trip:expr, $($text:tt)+) => {
        if $trip.t.story.is_some() {
            $trip.explain(format!($($text)+));
        }
    };
}
pub(crate) use explain;

impl Translator {
    /// Translates the packet `key` with the tables of `pipeline`; the results are in the fields.
    pub fn translate(&mut self, pipeline: &Pipeline, key: &Key) {
        let mut flow = Flow::from(key);
        // Flows need not match these fields, but rewriting and output depend on them.
        self.mask = Field::InPort.mask(u128::MAX) | Field::DlType.mask(u128::MAX);
        self.mask.bytes_mut()[at::NW_FRAG] = 0xff;
        self.ops.clear();
        self.rules.clear();
        self.learn.clear();
        self.flow_changes.clear();
        (self.tables, self.looked_up, self.resubmits) = ([0; 4], None, 0);
        let mut known = Flow::default();
        known.0[crate::key::KEY_WORDS..].fill(!0);
        flow.0[crate::key::KEY_WORDS..].fill(0);
        let mut now = State { flow, known, ttl: Ttl::Less(0), labels: 0, deeper: false, hidden: None };
        self.mask = self.mask | now.receive_tags(pipeline.vlan_limit) | now.receive_labels();
        // Longest packets first: each round translates those of the greatest length that is left.
        let (mut most, mut sends, mut reason) = (u32::MAX, false, None);
        for n in 1.. {
            let (from, explained) = (self.ops.len(), self.story.as_ref().map_or(0, Vec::len));
            let (least, dropped) = if n > LENGTHS {
                (0, Some(DropReason::TooManyResubmits))
            } else {
                self.one_length(pipeline, now, most)
            };
            sends |= dropped.is_none();
            reason = reason.or(dropped);
            let several = least > 0 || n > 1;
            // Behind the ops of another length, or the copies for mirrors, the reason is an op.
            if several || self.ops[from..].iter().any(|op| matches!(op, Op::Output(_))) {
                self.ops.extend(dropped.map(Op::Drop));
            }
            if let Some(story) = self.story.as_mut().filter(|_| several) {
                story.insert(explained, lengths(least, most));
            }
            if least == 0 {
                break;
            }
            self.ops.insert(from, Op::Longer { than: least, ops: (self.ops.len() - from) as u16 });
            most = least;
        }
        self.reason = reason.filter(|_| !sends);
    }

    /// Translates a packet of the greatest length that is at most `most`. Returns the greatest length for which the
    /// result is another, or 0, and the reason why nothing is sent.
    fn one_length(&mut self, pipeline: &Pipeline, now: State, most: u32) -> (u32, Option<Reason>) {
        self.saved.clear();
        self.stack.clear();
        self.reason = None;
        let (from, others) = (self.ops.len(), self.learn.len());
        let (set, own_tags) = (ActionSet::default(), now.tags() + now.labels);
        let (bottom, least, indent, copied) = (0, 0, 0, vec![]);
        let mut trip =
            Trip { t: self, pipeline, now, base: now, set, bottom, own_tags, least, most, others, indent, copied };
        trip.mirror_in();
        let mirrored = trip.t.ops.len();
        let (done, least) = (trip.run(), trip.least);
        for at in (others..self.learn.len()).rev() {
            if self.learn[..others].contains(&self.learn[at]) {
                self.learn.swap_remove(at);
            }
        }
        if let Err(reason) = done {
            // Mirrors get no copy of it either, as in OVS.
            self.ops.truncate(from);
            return (least, Some(reason));
        }
        (least, self.finish(mirrored))
    }

    /// Removes the ops from index `from` on that have no effect. Returns the reason why nothing is sent.
    fn finish(&mut self, from: usize) -> Option<Reason> {
        let shows: fn(&Op) -> bool = |op| matches!(op, Op::Controller | Op::Sample(_));
        let last = |of: fn(&Op) -> bool| self.ops[from..].iter().rposition(of).map(|at| from + at);
        let (sent, shown) = (last(|op| matches!(op, Op::Output(_))), last(shows));
        let Some(used) = sent.max(shown) else {
            self.ops.extract_if(from.., |op| !matches!(op, Op::Meter(_))).for_each(drop);
            return Some(self.reason.unwrap_or(DropReason::FlowDrop));
        };
        // Ops behind the last use of the packet have no effect.
        self.ops.truncate(used + 1);
        let Some(sent) = sent else {
            if self.ops.last() != Some(&Op::Controller) {
                return Some(self.reason.unwrap_or(DropReason::FlowDrop));
            }
            self.ops.pop();
            return Some(DropReason::Controller);
        };
        if self.ops[sent + 1..].iter().all(shows) {
            // The output that is last is the packet itself.
            self.ops[sent..].rotate_left(1);
        } else if let Some(last @ Op::Controller) = self.ops.last_mut() {
            *last = Op::Drop(DropReason::Controller);
        }
        None
    }
}

/// Describes packets of more bytes than `least`, and at most `most`.
fn lengths(least: u32, most: u32) -> String {
    match (least, most) {
        (_, u32::MAX) => format!("packets longer than {least} bytes:"),
        (0, _) => format!("packets of at most {most} bytes:"),
        _ => format!("packets longer than {least} and of at most {most} bytes:"),
    }
}

impl Trip<'_, '_> {
    /// Returns the addresses that the packet has taught so far.
    pub(crate) fn learned(&self) -> &[Learn] {
        &self.t.learn[self.others..]
    }

    /// Returns the port where an address was learned, the packet's own included, and records that the result depends on
    /// it.
    pub(crate) fn look_up_address(&mut self, key: u64) -> Option<OfPort> {
        if let Some(own) = self.learned().iter().find(|learn| mac_key(learn.vlan, learn.mac) == key) {
            return Some(own.port);
        }
        self.t.looked_up = Some(self.t.looked_up.map_or(key, |before| if before == key { key } else { SEVERAL }));
        self.pipeline.macs.get(&key).copied()
    }

    pub(crate) fn explain(&mut self, text: String) {
        let line = format!("{:1$}{text}", "", 4 * self.indent);
        if let Some(story) = &mut self.t.story {
            story.push(line);
        }
    }

    /// Records that the result depends on these bits.
    pub(crate) fn unwildcard(&mut self, bits: &Flow) {
        let mut bits = *bits & !self.now.known;
        // A decremented TTL depends on every bit of the packet's own TTL.
        if bits.u8(at::NW_TTL) != 0 {
            bits.bytes_mut()[at::NW_TTL] = 0xff;
        }
        self.t.mask = self.t.mask | bits;
    }

    pub(crate) fn unwildcard_field(&mut self, field: Field) {
        self.unwildcard(&field.mask(u128::MAX));
    }

    /// Records that the result depends on these bits of the received packet, even if they have been overwritten since.
    fn look_own(&mut self, bits: &Flow) {
        self.t.mask = self.t.mask | *bits;
    }

    fn dl_type(&self) -> u16 {
        self.now.flow.u16(at::DL_TYPE)
    }

    fn is_ip(&self) -> bool {
        self.now.is_ip()
    }

    /// Returns `true` if the packet has fields with this prerequisite, and records the bits that this depends on.
    fn has(&mut self, needs: Needs) -> bool {
        let dl_type = self.dl_type();
        let later = self.now.flow.u8(at::NW_FRAG) & FRAG_LATER != 0;
        match needs {
            Needs::Nothing => true,
            Needs::Vlan => self.now.tags() > 0,
            Needs::Mpls => is_mpls(dl_type),
            Needs::Arp => matches!(dl_type, ethertype::ARP | 0x8035),
            Needs::Ip4 => dl_type == ethertype::IPV4,
            Needs::Ip6 => dl_type == ethertype::IPV6,
            Needs::Ip => self.is_ip(),
            Needs::Ports => self.is_ip() && !later,
            Needs::Proto(protocol) => self.is_ip() && self.protocol() == protocol && !later,
            Needs::Icmp4 => dl_type == ethertype::IPV4 && self.protocol() == 1,
            Needs::Icmp6 => dl_type == ethertype::IPV6 && self.protocol() == 58,
            Needs::Nd | Needs::NdSolicit | Needs::NdAdvert => {
                if !self.has(Needs::Icmp6) {
                    return false;
                }
                self.unwildcard_field(Field::Icmp6Type);
                self.unwildcard_field(Field::Icmp6Code);
                let (kind, code) = (Field::Icmp6Type.get(&self.now.flow), Field::Icmp6Code.get(&self.now.flow));
                code == 0
                    && match needs {
                        Needs::NdSolicit => kind == 135,
                        Needs::NdAdvert => kind == 136,
                        _ => matches!(kind, 135 | 136),
                    }
            }
        }
    }

    fn protocol(&mut self) -> u8 {
        self.unwildcard_field(Field::NwProto);
        self.now.flow.u8(at::NW_PROTO)
    }

    /// Decrements the TTL. Returns `false` if it is 0 or 1.
    fn dec_ttl(&mut self) -> bool {
        let ttl = self.now.flow.u8(at::NW_TTL);
        match &mut self.now.ttl {
            Ttl::Less(n) => {
                // The highest set bit is enough to show that the packet's own TTL is above 1.
                let seen = if *n == 0 && ttl > 1 { 1 << ttl.ilog2() } else { 0xff };
                self.t.mask.bytes_mut()[at::NW_TTL] |= seen;
                if ttl <= 1 {
                    return false;
                }
                *n += 1;
            }
            Ttl::Set(_) if ttl <= 1 => return false,
            Ttl::Set(to) => *to = ttl - 1,
        }
        self.now.flow.bytes_mut()[at::NW_TTL] = ttl - 1;
        true
    }

    fn act(&mut self, action: &Action) -> Result<(), Reason> {
        if self.t.ops.len() >= MAX_OPS {
            explain!(self, "dropped: the limit of {MAX_OPS} ops is reached");
            return Err(DropReason::TooManyResubmits);
        }
        explain!(self, "{action}");
        match *action {
            Action::Output(port) => self.output(port),
            Action::OutputReg(from) => {
                self.unwildcard(&from.field.mask(from.mask()));
                if let Ok(port) = u16::try_from(self.value(from)) {
                    self.output(OfPort(port));
                }
            }
            Action::Meter(id) => {
                if let Some(slot) = self.pipeline.meter_slots.get(&id) {
                    self.t.ops.push(Op::Meter(*slot));
                }
            }
            Action::PushVlan(tpid) => self.push_tag(tpid),
            Action::PopVlan(_) => self.pop_tag(),
            Action::PushMpls(dl_type) => self.push_mpls(dl_type)?,
            Action::PopMpls(dl_type) => self.pop_mpls(dl_type)?,
            Action::VlanVid { vid, push } if push || self.now.tags() > 0 => {
                self.set_tci(vid | TAGGED, 0x0fff | TAGGED);
            }
            Action::VlanPcp { pcp, push } if push || self.now.tags() > 0 => {
                self.set_tci(u16::from(pcp) << 13 | TAGGED, 0xe000 | TAGGED);
            }
            Action::Longer(than, to) => {
                let longer = self.is_longer(than);
                if self.has(to.field.info().needs) {
                    self.set(to.field, u128::from(longer) << to.low, to.mask());
                }
            }
            Action::Sample(of) => {
                self.commit();
                self.t.ops.push(Op::Sample(of));
            }
            Action::Push(from) => {
                if self.t.stack.len() - self.bottom >= STACK {
                    explain!(self, "dropped: the stack is full");
                    return Err(DropReason::TooManyResubmits);
                }
                self.unwildcard(&from.field.mask(from.mask()));
                self.t.stack.push(self.value(from));
            }
            Action::Pop(to) if self.t.stack.len() > self.bottom => {
                let value = self.t.stack.pop().unwrap_or_default();
                if self.has(to.field.info().needs) {
                    self.set(to.field, (value & ones(to.bits)) << to.low, to.mask());
                }
            }
            Action::Learn(ref learn) => self.learn(learn)?,
            Action::ClearActions => self.set.clear(),
            Action::Multipath(ref choice) => self.multipath(choice),
            Action::Bundle(ref choice) => self.bundle(choice),
            Action::Set { field, value, mask, .. } if self.has(field.info().needs) => self.set(field, value, mask),
            Action::Move(src, dst) if self.has(dst.field.info().needs) && self.has(src.field.info().needs) => {
                self.copy(src, dst);
            }
            _ => {}
        }
        Ok(())
    }

    /// Returns `true` if the packet, with the tags and labels that it has now, is longer than this many bytes. Narrows
    /// the range of lengths to those for which the answer is the same.
    fn is_longer(&mut self, than: u16) -> bool {
        // Length as received.
        let than = i64::from(than) + 4 * (self.own_tags as i64 - (self.now.tags() + self.now.labels) as i64);
        let longer = than < i64::from(self.most);
        if longer {
            self.least = self.least.max(than.max(0) as u32);
        }
        longer
    }

    fn copy(&mut self, src: Subfield, dst: Subfield) {
        self.unwildcard(&src.field.mask(src.mask()));
        let value = self.value(src);
        self.set(dst.field, value << dst.low, dst.mask());
    }

    fn set(&mut self, field: Field, value: u128, mask: u128) {
        match field {
            Field::VlanTci => self.set_tci(value as u16, mask as u16),
            Field::VlanVid => self.set_tci(value as u16 & 0xfff, mask as u16 & 0xfff),
            Field::VlanPcp => self.set_tci((value as u16 & 7) << 13, (mask as u16 & 7) << 13),
            Field::NwTtl => {
                // The other bits are the packet's own.
                self.unwildcard(&field.mask(!mask));
                field.set_masked(&mut self.now.flow, value, mask);
                self.now.ttl = Ttl::Set(self.now.flow.u8(at::NW_TTL));
                self.now.known = self.now.known | field.mask(u128::MAX);
            }
            _ => {
                field.set_masked(&mut self.now.flow, value, mask);
                self.now.known = self.now.known | field.mask(mask);
                if field.info().needs == Needs::Mpls {
                    self.labelled();
                }
            }
        }
    }

    fn output(&mut self, port: OfPort) {
        let own = OfPort(self.now.flow.u16(at::IN_PORT));
        match port {
            OfPort::IN_PORT => self.send(own),
            OfPort::NORMAL => self.normal(own),
            OfPort::CONTROLLER => {
                self.commit();
                self.t.ops.push(Op::Controller);
            }
            OfPort::FLOOD | OfPort::ALL => {
                let pipeline = self.pipeline;
                for to in pipeline.ports.iter().filter(|p| p.of != own && (port == OfPort::ALL || p.flood)) {
                    self.send(to.of);
                }
            }
            _ if port == own => explain!(self, "not sent: port {port} is the ingress port"),
            _ => self.send(port),
        }
    }

    /// Sends the packet in its current state.
    pub(crate) fn send(&mut self, to: OfPort) {
        let Some(port) = self.pipeline.port(to) else {
            explain!(self, "not sent: port {to} does not exist");
            return;
        };
        self.commit();
        self.t.ops.push(Op::Output(port.id));
        for mirror in self.pipeline.mirrors.iter().filter(|m| m.destinations.contains(&to)) {
            self.copy_to(mirror.output);
        }
    }

    /// Sends a copy to the port of a mirror, unless it has one of the packet in this form, as OVS does.
    fn copy_to(&mut self, output: Option<OfPort>) {
        if let Some(port) = output.and_then(|of| self.pipeline.port(of)).filter(|port| !self.copied.contains(&port.id))
        {
            self.copied.push(port.id);
            self.t.ops.push(Op::Output(port.id));
        }
    }

    fn mirror_in(&mut self) {
        let own = OfPort(self.now.flow.u16(at::IN_PORT));
        for mirror in self.pipeline.mirrors.iter().filter(|m| m.sources.contains(&own)) {
            self.copy_to(mirror.output);
        }
    }
}

const _: () = assert!(TABLES <= 256 && FLOW_WORDS == 23);
