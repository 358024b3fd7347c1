//! Specifications of flows, groups and meters.

use crate::field::{Field, Subfield};
use crate::key::Flow;
use crate::learn::Learn;

/// OpenFlow port number, by which flows refer to a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OfPort(pub u16);

impl OfPort {
    /// Ingress port of the packet.
    pub const IN_PORT: Self = Self(0xfff8);
    /// Processing by the learning bridge.
    pub const NORMAL: Self = Self(0xfffa);
    /// All ports except the ingress port and those with flooding off.
    pub const FLOOD: Self = Self(0xfffb);
    /// All ports except the ingress port.
    pub const ALL: Self = Self(0xfffc);
    /// A controller. There is none: what is sent to it is counted, and captures show it.
    pub const CONTROLLER: Self = Self(0xfffd);
    /// The host's own port, if the switch has one.
    pub const LOCAL: Self = Self(0xfffe);
    /// No port.
    pub const NONE: Self = Self(0xffff);
    /// First number above those of regular ports.
    pub const MAX: u16 = 0xff00;

    /// Names of the special ports.
    pub const NAMES: [(&'static str, Self); 7] = [
        ("in_port", Self::IN_PORT),
        ("normal", Self::NORMAL),
        ("flood", Self::FLOOD),
        ("all", Self::ALL),
        ("controller", Self::CONTROLLER),
        ("local", Self::LOCAL),
        ("none", Self::NONE),
    ];
}

/// Match of a flow: selects packets that have the bits `value` where `mask` is set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Match {
    /// Bits to compare with, zero where `mask` is zero.
    pub value: Flow,
    /// Mask of the bits that are matched.
    pub mask: Flow,
}

impl Match {
    /// Returns `true` if `flow` matches.
    pub fn matches(&self, flow: &Flow) -> bool {
        self.value.0.iter().zip(&self.mask.0).zip(&flow.0).all(|((v, m), f)| f & m == *v)
    }

    /// Adds a condition on a field.
    pub fn add(&mut self, field: Field, value: u128, mask: u128) {
        field.set_masked(&mut self.value, value & mask, mask);
        let before = field.get(&self.mask);
        field.set(&mut self.mask, before | mask & field.all());
    }

    /// Returns the value of a field, or `None` if not all of its bits are matched.
    pub fn exact(&self, field: Field) -> Option<u128> {
        (field.get(&self.mask) == field.all()).then(|| field.get(&self.value))
    }

    /// Returns `true` if every packet that this matches is also matched by `other`.
    pub fn within(&self, other: &Self) -> bool {
        self.mask.covers(&other.mask) && (self.value & other.mask) == other.value
    }

    /// Returns `true` if some packet can match both.
    pub fn overlaps(&self, other: &Self) -> bool {
        (self.value.differing(&other.value) & self.mask & other.mask).is_zero()
    }
}

/// Notation in which a field assignment was written; it is shown in the same way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spelling {
    /// `mod_dl_src:..`
    Mod(&'static str),
    /// `set_field:..->field`
    SetField,
    /// `load:..->field[..]`
    Load,
}

/// Action of a flow or of a group's bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Sends the packet to a port.
    Output(OfPort),
    /// Sends the packet to the port whose number is in this subfield.
    OutputReg(Subfield),
    /// Runs a group.
    Group(u32),
    /// Applies a meter.
    Meter(u32),
    /// Pushes a VLAN tag with this Ethernet type.
    PushVlan(u16),
    /// Removes the outer VLAN tag, if there is one. The flag is set if it was written `strip_vlan`.
    PopVlan(bool),
    /// Sets the VLAN identifier.
    VlanVid {
        /// VLAN identifier.
        vid: u16,
        /// Set if a tag is added to an untagged packet.
        push: bool,
    },
    /// Sets the VLAN priority.
    VlanPcp {
        /// Priority.
        pcp: u8,
        /// Set if a tag is added to an untagged packet.
        push: bool,
    },
    /// Pushes an MPLS label with this Ethernet type.
    PushMpls(u16),
    /// Removes the outer MPLS label, if there is one; all labels if this Ethernet type is not MPLS.
    PopMpls(u16),
    /// Sets bits of a field, if the packet has it.
    Set {
        /// Field to set.
        field: Field,
        /// New bits.
        value: u128,
        /// Bits to set.
        mask: u128,
        /// Notation in which it was written.
        as_: Spelling,
    },
    /// Copies the first subfield to the second, if the packet has both fields.
    Move(Subfield, Subfield),
    /// Decrements the TTL or hop limit; if it is 0 or 1, ends the current list of actions.
    DecTtl,
    /// Decrements the TTL of the outer MPLS label; if it is 0 or 1, or there is no label, ends the current list of
    /// actions.
    DecMplsTtl,
    /// Looks the packet up again in the given table (default: the current one), as if it had arrived on the given port.
    Resubmit(Option<OfPort>, Option<u8>),
    /// Continues in a later table.
    Goto(u8),
    /// Ends all processing.
    Exit,
    /// Empties the action set.
    ClearActions,
    /// Adds to the action set, which is executed at the end of the pipeline.
    WriteActions(Vec<Action>),
    /// Runs these actions, and then restores the packet, the stack and the action set.
    Clone(Vec<Action>),
    /// Stores in this bit whether the packet is longer than this many bytes, tags included.
    Longer(u16, Subfield),
    /// Makes the flow, which has no other actions, one of several alternatives of a part of a conjunction.
    Conjunction {
        /// Number of the conjunction, which the flow for packets that match all parts matches as `conj_id`.
        id: u32,
        /// Number of the part, from 1.
        part: u8,
        /// Number of parts.
        parts: u8,
    },
    /// Shortens the timeouts of the flow if the packet ends a TCP connection.
    FinTimeout(Timeouts),
    /// Adds a flow for the packet, or refreshes it.
    Learn(Learn),
    /// Shows so many of 65,535 packets to captures.
    Sample(u16),
    /// Pushes a subfield on the stack.
    Push(Subfield),
    /// Pops the top of the stack into a subfield, if the packet has it.
    Pop(Subfield),
    /// Stores the number of a link, chosen by the packet's flow.
    Multipath(Multipath),
    /// Sends the packet to one of several ports, or stores that port's number.
    Bundle(Bundle),
}

/// Timeouts to which those of a flow are shortened, in seconds; 0 leaves one as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timeouts {
    /// Idle timeout.
    pub idle: u16,
    /// Hard timeout.
    pub hard: u16,
}

/// Part of a packet that is hashed to choose a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hashed {
    /// Ethernet source.
    EthSrc,
    /// Ethernet addresses and type, VLAN, IP addresses and protocol, ports of TCP and SCTP; the same for both
    /// directions, as are the following.
    SymmetricL4,
    /// IP addresses and protocol, ports of TCP and SCTP.
    SymmetricL3L4,
    /// IP addresses and protocol, ports of TCP, SCTP and UDP.
    SymmetricL3L4Udp,
    /// IP addresses.
    SymmetricL3,
    /// IP source.
    NwSrc,
    /// IP destination.
    NwDst,
}

impl Hashed {
    /// Names in the syntax.
    pub const NAMES: [(&'static str, Self); 7] = [
        ("eth_src", Self::EthSrc),
        ("symmetric_l4", Self::SymmetricL4),
        ("symmetric_l3l4", Self::SymmetricL3L4),
        ("symmetric_l3l4+udp", Self::SymmetricL3L4Udp),
        ("symmetric_l3", Self::SymmetricL3),
        ("nw_src", Self::NwSrc),
        ("nw_dst", Self::NwDst),
    ];

    /// Returns the name in the syntax.
    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(_, hashed)| *hashed == self).map_or("", |(name, _)| name)
    }
}

/// Choice of a link by `multipath`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Multipath {
    /// Part of the packet that is hashed.
    pub hashed: Hashed,
    /// Key of the hash.
    pub basis: u16,
    /// Algorithm, one of [`Multipath::ALGORITHMS`]. They differ in how flows move when the number of links changes.
    pub algorithm: &'static str,
    /// Number of links.
    pub links: u32,
    /// Argument of the algorithm.
    pub arg: u32,
    /// Subfield that gets the link's number, from 0.
    pub to: Subfield,
}

impl Multipath {
    /// Names of the algorithms.
    pub const ALGORITHMS: [&'static str; 4] = ["modulo_n", "hash_threshold", "hrw", "iter_hash"];
}

/// Choice of a port by `bundle` or `bundle_load`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bundle {
    /// Part of the packet that is hashed.
    pub hashed: Hashed,
    /// Key of the hash.
    pub basis: u16,
    /// Set if the hash chooses among the live ports (`hrw`); otherwise the first live one is chosen (`active_backup`).
    pub by_hash: bool,
    /// Ports to choose from.
    pub members: Vec<OfPort>,
    /// Subfield that gets the port's number, for `bundle_load`.
    pub to: Option<Subfield>,
}

impl Action {
    /// Returns the actions of a list, each followed by those nested in it.
    pub fn all(list: &[Self]) -> impl Iterator<Item = &Self> {
        let mut lists = vec![list.iter()];
        std::iter::from_fn(move || {
            loop {
                let Some(action) = lists.last_mut()?.next() else {
                    lists.pop();
                    continue;
                };
                if let Self::WriteActions(inner) | Self::Clone(inner) = action {
                    lists.push(inner.iter());
                }
                return Some(action);
            }
        })
    }
}

/// Specification of a flow to add or modify.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowSpec {
    /// Table number.
    pub table: u8,
    /// Priority: the highest wins.
    pub priority: u16,
    /// Match.
    pub matches: Match,
    /// Actions for matching packets.
    pub actions: Vec<Action>,
    /// Opaque value chosen by the creator of the flow.
    pub cookie: u64,
    /// Idle timeout in seconds; 0 disables it.
    pub idle_timeout: u16,
    /// Hard timeout in seconds; 0 disables it.
    pub hard_timeout: u16,
    /// Set to refuse the flow if it overlaps another one with the same priority.
    pub check_overlap: bool,
    /// Set if a modification resets the counters.
    pub reset_counts: bool,
}

impl FlowSpec {
    /// Default priority of a flow.
    pub const DEFAULT_PRIORITY: u16 = 32768;
}

/// Filter that selects flows to modify, delete or show.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlowFilter {
    /// Table; `None` selects all tables.
    pub table: Option<u8>,
    /// Priority, compared only in strict mode.
    pub priority: Option<u16>,
    /// Match that contains the flows' matches; in strict mode it must be equal.
    pub matches: Match,
    /// Cookie and the mask of its bits to compare.
    pub cookie: Option<(u64, u64)>,
    /// Port that the flows must output to.
    pub out_port: Option<OfPort>,
    /// Group that the flows must run.
    pub out_group: Option<u32>,
}

/// Rule by which a group chooses among its buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupKind {
    /// All buckets, each with its own copy of the packet.
    All,
    /// One bucket, selected by a hash of the packet's flow.
    Select,
    /// The first live bucket.
    FastFailover,
    /// The only bucket.
    Indirect,
}

impl GroupKind {
    /// Returns the name in the syntax.
    pub fn name(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Select => "select",
            Self::FastFailover => "ff",
            Self::Indirect => "indirect",
        }
    }
}

/// Bucket of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// Bucket id.
    pub id: u32,
    /// Weight in a select group.
    pub weight: u16,
    /// Port that makes the bucket live while it is up.
    pub watch_port: Option<OfPort>,
    /// Group that makes this bucket live while it has a live bucket itself.
    pub watch_group: Option<u32>,
    /// Actions in the order in which they were written.
    pub actions: Vec<Action>,
}

/// Specification of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupSpec {
    /// Group id.
    pub id: u32,
    /// Rule for choosing buckets.
    pub kind: GroupKind,
    /// Fields that a select group hashes; if empty, a default set of addresses, protocol and ports.
    pub fields: Vec<Field>,
    /// Buckets.
    pub buckets: Vec<Bucket>,
}

/// Specification of a meter, which is a rate limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeterSpec {
    /// Meter id.
    pub id: u32,
    /// Set if the rate is in packets per second rather than kilobits per second.
    pub packets: bool,
    /// Rate in packets or kilobits per second.
    pub rate: u32,
    /// Burst in packets or kilobits; 0 means one second's worth.
    pub burst: u32,
}
