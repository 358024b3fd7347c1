//! Flows, groups and meters, as they are asked for.

use crate::field::{Field, Subfield};
use crate::key::Flow;

/// A port as flows name it: OpenFlow's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OfPort(pub u16);

impl OfPort {
    /// The port a packet came in by.
    pub const IN_PORT: Self = Self(0xfff8);
    /// The learning bridge.
    pub const NORMAL: Self = Self(0xfffa);
    /// Every port but the one it came in by and those that do not flood.
    pub const FLOOD: Self = Self(0xfffb);
    /// Every port but the one it came in by.
    pub const ALL: Self = Self(0xfffc);
    /// The host's own port, which there is none of here.
    pub const LOCAL: Self = Self(0xfffe);
    /// No port.
    pub const NONE: Self = Self(0xffff);
    /// First number that is no port's.
    pub const MAX: u16 = 0xff00;

    /// Names of the special ports.
    pub const NAMES: [(&'static str, Self); 6] = [
        ("in_port", Self::IN_PORT),
        ("normal", Self::NORMAL),
        ("flood", Self::FLOOD),
        ("all", Self::ALL),
        ("local", Self::LOCAL),
        ("none", Self::NONE),
    ];
}

/// What a flow matches: a packet with `value` where `mask` is set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Match {
    /// The bits, zero where `mask` is.
    pub value: Flow,
    /// Bits that are matched.
    pub mask: Flow,
}

impl Match {
    /// Whether it matches.
    pub fn matches(&self, flow: &Flow) -> bool {
        self.value.0.iter().zip(&self.mask.0).zip(&flow.0).all(|((v, m), f)| f & m == *v)
    }

    /// Adds a field's condition.
    pub fn add(&mut self, field: Field, value: u128, mask: u128) {
        field.set_masked(&mut self.value, value & mask, mask);
        let before = field.get(&self.mask);
        field.set(&mut self.mask, before | mask & field.all());
    }

    /// The value, where all of the field is matched.
    pub fn exact(&self, field: Field) -> Option<u128> {
        (field.get(&self.mask) == field.all()).then(|| field.get(&self.value))
    }

    /// Whether every packet it matches is matched by `other` as well.
    pub fn within(&self, other: &Self) -> bool {
        self.mask.covers(&other.mask) && (self.value & other.mask) == other.value
    }

    /// Whether some packet is matched by both.
    pub fn overlaps(&self, other: &Self) -> bool {
        (self.value.differing(&other.value) & self.mask & other.mask).is_zero()
    }
}

/// How a field's setting was written, and is shown again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spelling {
    /// `mod_dl_src:..`
    Mod(&'static str),
    /// `set_field:..->field`
    SetField,
    /// `load:..->field[..]`
    Load,
}

/// One action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Sends the packet.
    Output(OfPort),
    /// Sends it to the port whose number these bits are.
    OutputReg(Subfield),
    /// Runs a group.
    Group(u32),
    /// A rate limit.
    Meter(u32),
    /// Adds a tag of this Ethernet type.
    PushVlan(u16),
    /// Removes a tag, if there is one; whether it was written `strip_vlan`.
    PopVlan(bool),
    /// Sets the VLAN; `push`: of an untagged packet as well.
    VlanVid {
        /// VLAN.
        vid: u16,
        /// Whether an untagged packet gets a tag.
        push: bool,
    },
    /// Sets the priority; `push` as for the VLAN.
    VlanPcp {
        /// Priority.
        pcp: u8,
        /// Whether an untagged packet gets a tag.
        push: bool,
    },
    /// Sets bits of a field, when the packet has it.
    Set {
        /// The field.
        field: Field,
        /// New bits.
        value: u128,
        /// Bits to set.
        mask: u128,
        /// How it was written.
        as_: Spelling,
    },
    /// Copies bits, when the packet has both fields.
    Move(Subfield, Subfield),
    /// Decrements TTL or hop limit; one that is 0 or 1 ends this list of actions.
    DecTtl,
    /// Looks the packet up again, as if it had come in by this port, in this table.
    Resubmit(Option<OfPort>, Option<u8>),
    /// Goes on in a later table.
    Goto(u8),
    /// Ends all processing.
    Exit,
    /// Does nothing here: no action set is kept.
    ClearActions,
}

/// A flow to be added or changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowSpec {
    /// Its table.
    pub table: u8,
    /// Priority: the highest wins.
    pub priority: u16,
    /// What it matches.
    pub matches: Match,
    /// What is done then.
    pub actions: Vec<Action>,
    /// For whoever made it.
    pub cookie: u64,
    /// Seconds without a packet after which it goes; 0: never.
    pub idle_timeout: u16,
    /// Seconds after which it goes; 0: never.
    pub hard_timeout: u16,
    /// It may not overlap another of its priority.
    pub check_overlap: bool,
    /// A change begins its counters anew.
    pub reset_counts: bool,
}

impl FlowSpec {
    /// Priority of a flow that does not say.
    pub const DEFAULT_PRIORITY: u16 = 32768;
}

/// Which flows to change, delete or show.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlowFilter {
    /// The table; none: all.
    pub table: Option<u8>,
    /// The priority; only asked for when strict.
    pub priority: Option<u16>,
    /// What they match: these packets, or only some of them; exactly these when strict.
    pub matches: Match,
    /// Their cookie, and the bits of it to compare.
    pub cookie: Option<(u64, u64)>,
    /// They send to this port.
    pub out_port: Option<OfPort>,
    /// They run this group.
    pub out_group: Option<u32>,
}

/// How a group chooses among its buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupKind {
    /// Every one, each with a packet of its own.
    All,
    /// One, by a hash of the packet's flow.
    Select,
    /// The first that is alive.
    FastFailover,
    /// The only one.
    Indirect,
}

impl GroupKind {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Select => "select",
            Self::FastFailover => "ff",
            Self::Indirect => "indirect",
        }
    }
}

/// One of a group's choices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// Its number.
    pub id: u32,
    /// Its share of a select group.
    pub weight: u16,
    /// It is alive while this port is up.
    pub watch_port: Option<OfPort>,
    /// It is alive while this group has a bucket that is.
    pub watch_group: Option<u32>,
    /// As written.
    pub actions: Vec<Action>,
}

/// A group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupSpec {
    /// Its number.
    pub id: u32,
    /// How it chooses.
    pub kind: GroupKind,
    /// Fields a select group hashes; empty: addresses, protocol and ports.
    pub fields: Vec<Field>,
    /// Its choices.
    pub buckets: Vec<Bucket>,
}

/// A meter: a rate limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeterSpec {
    /// Its number.
    pub id: u32,
    /// Packets a second, rather than kilobits.
    pub packets: bool,
    /// Rate: packets, or kilobits, a second.
    pub rate: u32,
    /// Packets, or kilobits, at once; 0: as many as in a second.
    pub burst: u32,
}
