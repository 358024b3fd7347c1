//! The slow path: a packet's way through the tables, as a flat list of ops and the bits of the packet it depends on.

use crate::field::{Field, Needs, Subfield};
use crate::key::{FLOW_WORDS, FRAG_LATER, Flow, IP_SOUND, Key, TAGGED, TPID_88A8, TPID_8100, at, hash_words};
use crate::model::{Action, GroupKind, OfPort};
use crate::ops::Op;
use crate::pipeline::{Group, Pipeline, TABLES};
use bywash_engine::DropReason;
use bywash_wire::ethernet::ethertype;

/// Lists of actions nested in each other, at most.
const NEST: usize = 80;
/// Times a packet may be looked up in the same or an earlier table, from within, at most (as OVS's limit).
const DEPTH: u32 = 64;
/// Times a packet may be looked up, enter a group or take another of its buckets, at most (as OVS's limit).
const RESUBMITS: u32 = 4096;
/// Ops a packet may come to, at most.
pub const MAX_OPS: usize = 1024;
/// Flows a packet is counted for, at most; more are not counted.
const MAX_RULES: usize = 64;

/// An Ethernet address was seen: where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Learn {
    /// VLAN.
    pub vlan: u16,
    /// Address, in the lower 48 bits.
    pub mac: u64,
    /// The port it is behind.
    pub port: OfPort,
}

/// Why a packet went nowhere.
pub(crate) type Reason = DropReason;

/// A tag on a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Tag {
    tpid: u16,
    tci: u16,
}

/// TTL or hop limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ttl {
    /// The packet's own, less this.
    Less(u8),
    /// This one.
    Set(u8),
}

/// The packet as it is at some point.
#[derive(Clone, Copy)]
pub(crate) struct State {
    pub(crate) flow: Flow,
    /// Bits whose value does not depend on the packet any more.
    known: Flow,
    ttl: Ttl,
    /// Its tags, the outer first; those below the second are out of sight.
    tags: [Tag; 2],
    tagged: usize,
    /// The tag is the packet's own.
    own_tag: bool,
}

/// What remains to be done of a list of actions.
#[derive(Clone, Copy)]
struct Frame<'t> {
    actions: &'t [Action],
    table: u8,
    depth: u32,
    /// A group's bucket: the group, the number of its next bucket, and the state to return to, in `saved`.
    bucket: Option<(&'t Group, usize)>,
}

/// Translates packets; kept from one to the next, so that nothing is allocated.
#[derive(Default)]
pub struct Translator {
    /// What to do, in order.
    pub ops: Vec<Op>,
    /// Counters of the flows it passed.
    pub rules: Vec<u32>,
    /// Bits of the packet that this depends on.
    pub mask: Flow,
    /// Tables it was looked up in.
    pub tables: [u64; 4],
    /// It depends on learned addresses.
    pub bridged: bool,
    /// An address to learn, or to keep.
    pub learn: Option<Learn>,
    /// Why nothing is sent; none when something is.
    pub reason: Option<Reason>,
    saved: Vec<State>,
    resubmits: u32,
    /// What happened, in words, when that is wanted.
    pub story: Option<Vec<String>>,
}

/// The trip in progress.
pub(crate) struct Trip<'a, 't> {
    pub(crate) t: &'a mut Translator,
    pub(crate) pipeline: &'t Pipeline,
    pub(crate) now: State,
    /// The packet as the ops so far leave it.
    base: State,
    depth_of_story: usize,
}

macro_rules! tell {
    ($trip:expr, $($text:tt)+) => {
        if $trip.t.story.is_some() {
            $trip.tell(format!($($text)+));
        }
    };
}
pub(crate) use tell;

impl Translator {
    /// Takes the packet `key` through `pipeline`; the results are in the fields.
    pub fn translate(&mut self, pipeline: &Pipeline, key: &Key) {
        let mut flow = Flow::from(key);
        // Not a flow's business, but the rewriting's.
        let always = Field::InPort.mask(u128::MAX) | Field::DlType.mask(u128::MAX) | Field::VlanTci.mask(TAGGED.into());
        self.mask = always;
        self.mask.bytes_mut()[at::NW_FRAG] = 0xff;
        self.ops.clear();
        self.rules.clear();
        self.saved.clear();
        (self.tables, self.bridged, self.learn, self.reason, self.resubmits) = ([0; 4], false, None, None, 0);
        let mut known = Flow::default();
        known.0[crate::key::KEY_WORDS..].fill(!0);
        flow.0[crate::key::KEY_WORDS..].fill(0);
        let tag = Tag {
            tpid: if flow.u8(at::TPID) == TPID_88A8 { ethertype::QINQ } else { ethertype::VLAN },
            tci: flow.u16(at::VLAN_TCI),
        };
        let now = State {
            flow,
            known,
            ttl: Ttl::Less(0),
            tags: [tag, Tag::default()],
            tagged: usize::from(tag.tci & TAGGED != 0),
            own_tag: true,
        };
        let mut trip = Trip { t: self, pipeline, now, base: now, depth_of_story: 0 };
        trip.mirror_in();
        let done = trip.run();
        let outputs = self.ops.iter().any(|op| matches!(op, Op::Output(_)));
        match done {
            Err(reason) => {
                self.ops.clear();
                self.reason = Some(reason);
            }
            Ok(()) if outputs => {
                // What follows the last output changes nothing.
                let last = self.ops.iter().rposition(|op| matches!(op, Op::Output(_))).unwrap_or(0);
                self.ops.truncate(last + 1);
                self.reason = None;
            }
            Ok(()) => {
                self.ops.retain(|op| matches!(op, Op::Meter(_)));
                self.reason = Some(self.reason.unwrap_or(DropReason::FlowDrop));
            }
        }
    }
}

impl<'t> Trip<'_, 't> {
    pub(crate) fn tell(&mut self, text: String) {
        let line = format!("{:1$}{text}", "", 4 * self.depth_of_story);
        if let Some(story) = &mut self.t.story {
            story.push(line);
        }
    }

    /// The answer depends on these bits.
    pub(crate) fn look(&mut self, bits: &Flow) {
        let mut bits = *bits & !self.now.known;
        // A decremented TTL says something about every bit of the packet's.
        if bits.u8(at::NW_TTL) != 0 {
            bits.bytes_mut()[at::NW_TTL] = 0xff;
        }
        self.t.mask = self.t.mask | bits;
    }

    pub(crate) fn look_field(&mut self, field: Field) {
        self.look(&field.mask(u128::MAX));
    }

    /// A packet's own field, whatever was written to it since.
    fn look_own(&mut self, bits: &Flow) {
        self.t.mask = self.t.mask | *bits;
    }

    fn dl_type(&self) -> u16 {
        self.now.flow.u16(at::DL_TYPE)
    }

    fn is_ip(&self) -> bool {
        matches!(self.dl_type(), ethertype::IPV4 | ethertype::IPV6)
    }

    /// Whether the packet has a field; what that depends on is looked at.
    fn has(&mut self, needs: Needs) -> bool {
        let dl_type = self.dl_type();
        let later = self.now.flow.u8(at::NW_FRAG) & FRAG_LATER != 0;
        match needs {
            Needs::Nothing => true,
            Needs::Vlan => self.now.tagged > 0,
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
                self.look_field(Field::Icmp6Type);
                self.look_field(Field::Icmp6Code);
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
        self.look_field(Field::NwProto);
        self.now.flow.u8(at::NW_PROTO)
    }

    /// The flow for the packet as it is, in this table.
    fn find(&mut self, table: u8) -> Option<&'t [Action]> {
        self.t.tables[usize::from(table / 64)] |= 1 << (table % 64);
        let mut looked = Flow::default();
        let flow = self.now.flow;
        let found = self.pipeline.table(table).and_then(|t| t.lookup(&flow, |bits| looked = looked | *bits));
        self.look(&looked);
        match found {
            Some(rule) => {
                if self.t.rules.len() < MAX_RULES && !self.t.rules.contains(&rule.slot) {
                    self.t.rules.push(rule.slot);
                }
                tell!(self, "table {table}: {}", crate::syntax::Shown(&rule.spec));
                Some(rule.actions())
            }
            None => {
                tell!(self, "table {table}: no match");
                None
            }
        }
    }

    /// Runs the actions of the flow in table 0, and what they lead to.
    fn run(&mut self) -> Result<(), Reason> {
        const NONE: Frame<'_> = Frame { actions: &[], table: 0, depth: 0, bucket: None };
        let mut stack = [NONE; NEST];
        let Some(actions) = self.find(0) else {
            self.t.reason = Some(DropReason::NoFlow);
            return Ok(());
        };
        stack[0] = Frame { actions, ..NONE };
        let mut top = 1;
        while top > 0 {
            let frame = &mut stack[top - 1];
            let Some((action, rest)) = frame.actions.split_first() else {
                match frame.bucket {
                    None => top -= 1,
                    Some((group, next)) => {
                        self.now = *self.t.saved.last().expect("a bucket has a saved state");
                        if group.spec.kind != GroupKind::All || next >= group.actions.len() {
                            self.t.saved.pop();
                            top -= 1;
                        } else {
                            self.limit(0)?;
                            self.t.resubmits += 1;
                            frame.bucket = Some((group, next + 1));
                            frame.actions = &group.actions[next];
                        }
                    }
                }
                continue;
            };
            frame.actions = rest;
            let (table, depth) = (frame.table, frame.depth);
            self.depth_of_story = top;
            match action {
                Action::Resubmit(port, to) => {
                    self.limit(depth)?;
                    let to = to.unwrap_or(table);
                    let own = Field::InPort.get(&self.now.flow);
                    if let Some(port) = port.filter(|p| *p != OfPort::IN_PORT) {
                        Field::InPort.set(&mut self.now.flow, port.0.into());
                    }
                    // The port packets came in by is always looked at: whether it is the packet's own does not matter.
                    let found = self.find(to);
                    Field::InPort.set(&mut self.now.flow, own);
                    let deeper = depth + u32::from(to <= table);
                    if let Some(actions) = found {
                        self.t.resubmits += 1;
                        enter(&mut stack, &mut top, Frame { actions, table: to, depth: deeper, bucket: None })?;
                    }
                }
                Action::Goto(to) => {
                    self.limit(depth)?;
                    if let Some(actions) = self.find(*to) {
                        self.t.resubmits += 1;
                        enter(&mut stack, &mut top, Frame { actions, table: *to, depth, bucket: None })?;
                    }
                }
                Action::Group(id) => {
                    self.limit(depth)?;
                    let Some(group) = self.pipeline.groups.get(id) else {
                        tell!(self, "there is no group {id}");
                        leave_list(&mut stack[top - 1]);
                        continue;
                    };
                    if let Some(first) = self.pick(group) {
                        tell!(self, "group {id}: bucket {}", group.spec.buckets[first].id);
                        // Groups that run others are as good at coming to no end as resubmits are.
                        self.t.resubmits += 1;
                        self.t.saved.push(self.now);
                        let bucket = Some((&**group, first + 1));
                        let frame = Frame { actions: &group.actions[first], table, depth: depth + 1, bucket };
                        enter(&mut stack, &mut top, frame)?;
                    } else {
                        tell!(self, "group {id}: no bucket is alive");
                    }
                }
                Action::DecTtl => {
                    if self.is_ip() && !self.dec_ttl() {
                        tell!(self, "dec_ttl: the packet's time is over");
                        self.t.reason = Some(DropReason::TtlExceeded);
                        leave_list(&mut stack[top - 1]);
                    }
                }
                Action::Exit => {
                    // A group's other buckets, and what follows the group, are run all the same.
                    while top > 0 {
                        leave_list(&mut stack[top - 1]);
                        if stack[top - 1].bucket.is_some() {
                            break;
                        }
                        top -= 1;
                    }
                }
                other => self.act(other)?,
            }
        }
        Ok(())
    }

    fn limit(&mut self, depth: u32) -> Result<(), Reason> {
        if depth >= DEPTH || self.t.resubmits >= RESUBMITS {
            tell!(self, "too many resubmits: the packet is dropped");
            return Err(DropReason::TooManyResubmits);
        }
        Ok(())
    }

    /// The bucket to run; the first, when all are.
    fn pick(&mut self, group: &Group) -> Option<usize> {
        let n = group.spec.buckets.len();
        let mut looks = RESUBMITS.saturating_sub(self.t.resubmits);
        let picked = match group.spec.kind {
            GroupKind::All | GroupKind::Indirect => (n > 0).then_some(0),
            GroupKind::FastFailover => (0..n).find(|b| self.pipeline.alive(group, *b, &mut looks)),
            GroupKind::Select => {
                self.look(&group.hashed);
                let hash = hash_words(&(self.now.flow & group.hashed).0, u64::from(group.spec.id));
                // Each bucket draws a number for the flow, and the highest, by weight, wins: when a bucket comes or goes,
                // only its own flows move.
                let score = |b: usize| {
                    let bucket = &group.spec.buckets[b];
                    let draw = hash_words(&[hash, u64::from(bucket.id)], hash) >> 11;
                    let uniform = (draw as f64 + 1.0) / (1u64 << 53) as f64;
                    uniform.ln() / f64::from(bucket.weight)
                };
                let weighs = (0..n).filter(|b| group.spec.buckets[*b].weight > 0);
                let usable = weighs.filter(|b| self.pipeline.alive(group, *b, &mut looks));
                usable.max_by(|a, b| score(*a).total_cmp(&score(*b)))
            }
        };
        self.t.resubmits = RESUBMITS - looks;
        picked
    }

    /// False when it cannot be decremented.
    fn dec_ttl(&mut self) -> bool {
        let ttl = self.now.flow.u8(at::NW_TTL);
        match &mut self.now.ttl {
            Ttl::Less(n) => {
                // To see that the packet's own is above 1, its highest bit is enough.
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
            tell!(self, "too many actions: the packet is dropped");
            return Err(DropReason::TooManyResubmits);
        }
        tell!(self, "{action}");
        match *action {
            Action::Output(port) => self.output(port),
            Action::OutputReg(from) => {
                self.look(&from.field.mask(from.mask()));
                if let Ok(port) = u16::try_from(from.get(&self.now.flow)) {
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
            Action::VlanVid { vid, push } if push || self.now.tagged > 0 => {
                self.set_tci(vid | TAGGED, 0x0fff | TAGGED);
            }
            Action::VlanPcp { pcp, push } if push || self.now.tagged > 0 => {
                self.set_tci(u16::from(pcp) << 13 | TAGGED, 0xe000 | TAGGED);
            }
            Action::Set { field, value, mask, .. } if self.has(field.info().needs) => self.set(field, value, mask),
            Action::Move(src, dst) if self.has(dst.field.info().needs) && self.has(src.field.info().needs) => {
                self.copy(src, dst);
            }
            _ => {}
        }
        Ok(())
    }

    fn copy(&mut self, src: Subfield, dst: Subfield) {
        self.look(&src.field.mask(src.mask()));
        let value = src.get(&self.now.flow);
        self.set(dst.field, value << dst.low, dst.mask());
    }

    fn set(&mut self, field: Field, value: u128, mask: u128) {
        match field {
            Field::VlanTci => self.set_tci(value as u16, mask as u16),
            Field::VlanVid => self.set_tci(value as u16 & 0xfff, mask as u16 & 0xfff),
            Field::VlanPcp => self.set_tci((value as u16 & 7) << 13, (mask as u16 & 7) << 13),
            Field::NwTtl => {
                self.now.ttl = Ttl::Set(value as u8);
                field.set(&mut self.now.flow, value);
                self.now.known = self.now.known | field.mask(u128::MAX);
            }
            _ => {
                field.set_masked(&mut self.now.flow, value, mask);
                self.now.known = self.now.known | field.mask(mask);
            }
        }
    }

    /// All there is to the packet's own tag.
    fn tag_bits() -> Flow {
        let mut bits = Field::VlanTci.mask(u128::MAX);
        bits.bytes_mut()[at::TPID] = 0xff;
        bits
    }

    pub(crate) fn tci(&self) -> u16 {
        if self.now.tagged > 0 { self.now.tags[0].tci } else { 0 }
    }

    /// The tag is no longer the packet's own. `seen`: what becomes of it depends on what it was.
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

    fn set_tci(&mut self, value: u16, mask: u16) {
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

    /// Makes the tag this one, or none for 0.
    pub(crate) fn put_tag(&mut self, tci: u16) {
        if tci == 0 { self.pop_tag() } else { self.set_tci(tci | TAGGED, 0xffff) }
    }

    fn output(&mut self, port: OfPort) {
        let own = OfPort(self.now.flow.u16(at::IN_PORT));
        match port {
            OfPort::IN_PORT => self.send(own),
            OfPort::NORMAL => self.normal(own),
            OfPort::FLOOD | OfPort::ALL => {
                let pipeline = self.pipeline;
                for to in pipeline.ports.iter().filter(|p| p.of != own && (port == OfPort::ALL || p.flood)) {
                    self.send(to.of);
                }
            }
            _ if port == own => tell!(self, "not sent back by the port it came in by"),
            _ => self.send(port),
        }
    }

    /// Sends the packet as it is.
    pub(crate) fn send(&mut self, to: OfPort) {
        let Some(port) = self.pipeline.port(to) else {
            tell!(self, "there is no port {to}");
            return;
        };
        self.commit();
        self.t.ops.push(Op::Output(port.id));
        for mirror in self.pipeline.mirrors.iter().filter(|m| m.destinations.contains(&to)) {
            self.copy_to(mirror.output);
        }
    }

    fn copy_to(&mut self, output: Option<OfPort>) {
        if let Some(port) = output.and_then(|of| self.pipeline.port(of)) {
            self.t.ops.push(Op::Output(port.id));
        }
    }

    fn mirror_in(&mut self) {
        let own = OfPort(self.now.flow.u16(at::IN_PORT));
        for mirror in self.pipeline.mirrors.iter().filter(|m| m.sources.contains(&own)) {
            self.copy_to(mirror.output);
        }
    }

    /// Makes the packet what the actions so far want it to be.
    fn commit(&mut self) {
        let (now, base) = (self.now, self.base);
        // Where the packet's own value is wanted again, it has to be known.
        let back = base.known & !now.known & writable();
        self.look_own(&back);
        let differing = now.known & base.known & now.flow.differing(&base.flow);
        let mut write = (now.known & !base.known | differing) & writable() | back;
        if now.flow.u8(at::NW_FRAG) & IP_SOUND == 0 {
            // No network header to write to.
            write.bytes_mut()[at::NW_TOS..].fill(0);
        }
        if !write.is_zero() {
            self.write(&write);
        }
        if now.flow.u8(at::NW_FRAG) & IP_SOUND != 0 && self.is_ip() {
            self.commit_ttl(now.ttl, base.ttl);
        }
        self.commit_tags();
        self.base = self.now;
    }

    fn commit_ttl(&mut self, now: Ttl, base: Ttl) {
        match (now, base) {
            (Ttl::Less(n), Ttl::Less(b)) if n > b => self.t.ops.push(Op::DecTtl(n - b)),
            (Ttl::Less(n), Ttl::Less(b)) if n == b => {}
            (Ttl::Set(a), Ttl::Set(b)) if a == b => {}
            (Ttl::Set(ttl), _) => self.t.ops.push(Op::Ttl(ttl)),
            (Ttl::Less(_), _) => {
                self.look_own(&Field::NwTtl.mask(u128::MAX));
                self.t.ops.push(Op::Ttl(self.now.flow.u8(at::NW_TTL)));
            }
        }
    }

    /// Ops that write these bits.
    fn write(&mut self, write: &Flow) {
        let value = self.now.flow & *write;
        let word = |flow: &Flow, at: usize| flow.0[at / 8];
        if write.0[0] | write.0[1] != 0 {
            let eth = Op::Eth { value: [value.0[0], value.0[1]], mask: [write.0[0], write.0[1]] };
            self.t.ops.push(eth);
        }
        let arp = matches!(self.dl_type(), ethertype::ARP | 0x8035);
        if arp {
            // Operation, sender's and target's addresses (RFC 826).
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
            let protocol = self.protocol();
            for (which, at) in [(0, at::TP_SRC), (1, at::TP_DST)] {
                let (value, mask) = (value.u16(at), write.u16(at));
                match protocol {
                    _ if mask == 0 => {}
                    6 | 17 | 132 => self.t.ops.push(Op::Tp { which, value, mask }),
                    1 | 58 if (protocol == 1) == (self.dl_type() == ethertype::IPV4) => {
                        self.t.ops.push(Op::Icmp { which, value: value as u8 });
                    }
                    _ => {}
                }
            }
        }
    }

    fn commit_tags(&mut self) {
        let (now, base) = (self.now, self.base);
        if now.own_tag && base.own_tag {
            return;
        }
        if base.own_tag && now.tagged == 0 {
            (0..base.tagged).for_each(|_| self.t.ops.push(Op::PopVlan));
            return;
        }
        if now.own_tag || base.own_tag {
            self.look_own(&Self::tag_bits());
        }
        let (mut have, mut want) = (&base.tags[..base.tagged], &now.tags[..now.tagged]);
        while let (Some((a, h)), Some((b, w))) = (have.split_last(), want.split_last())
            && a == b
        {
            (have, want) = (h, w);
        }
        if let ([old], [new]) = (have, want)
            && old.tpid == new.tpid
        {
            self.t.ops.push(Op::SetTci(new.tci & !TAGGED));
            return;
        }
        have.iter().for_each(|_| self.t.ops.push(Op::PopVlan));
        for tag in want.iter().rev() {
            self.t.ops.push(Op::PushVlan { tpid: tag.tpid, tci: tag.tci & !TAGGED });
        }
    }
}

/// Bits of a packet that ops of their own kind do not write, and that can be written.
fn writable() -> Flow {
    let mut mask = Flow::default();
    for range in [
        at::DL_DST..at::VLAN_TCI,
        at::DL_SRC..at::DL_TYPE,
        at::NW_TOS..at::NW_TTL,
        at::NW_PROTO..at::NW_FRAG,
        at::TP_SRC..at::TPID,
        at::LABEL..at::METADATA,
    ] {
        mask.bytes_mut()[range].fill(0xff);
    }
    mask
}

fn leave_list(frame: &mut Frame<'_>) {
    frame.actions = &[];
}

/// Begins a list of actions; in place of one that is done.
fn enter<'t>(stack: &mut [Frame<'t>; NEST], top: &mut usize, frame: Frame<'t>) -> Result<(), Reason> {
    let ended = |f: &Frame<'_>| f.actions.is_empty() && f.bucket.is_none();
    if *top > 0 && ended(&stack[*top - 1]) {
        *top -= 1;
    }
    if *top == NEST {
        return Err(DropReason::TooManyResubmits);
    }
    stack[*top] = frame;
    *top += 1;
    Ok(())
}

const _: () = assert!(TABLES <= 256 && FLOW_WORDS == 22);
