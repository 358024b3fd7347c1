//! Expressions of rules.

use super::{Table, xt};

/// Keys of `meta` (enum nft_meta_keys).
#[allow(missing_docs, reason = "the names are those of the kernel and of nft")]
pub mod meta {
    pub const LEN: u32 = 0;
    pub const PROTOCOL: u32 = 1;
    pub const PRIORITY: u32 = 2;
    pub const MARK: u32 = 3;
    pub const IIF: u32 = 4;
    pub const OIF: u32 = 5;
    pub const IIFNAME: u32 = 6;
    pub const OIFNAME: u32 = 7;
    pub const SKUID: u32 = 10;
    pub const SKGID: u32 = 11;
    pub const NFPROTO: u32 = 15;
    pub const L4PROTO: u32 = 16;
    pub const PKTTYPE: u32 = 19;
    pub const CGROUP: u32 = 23;

    /// Returns nft's name of a key.
    pub fn name(key: u32) -> &'static str {
        const NAMES: [&str; 35] = [
            "length",
            "protocol",
            "priority",
            "mark",
            "iif",
            "oif",
            "iifname",
            "oifname",
            "iiftype",
            "oiftype",
            "skuid",
            "skgid",
            "nftrace",
            "rtclassid",
            "secmark",
            "nfproto",
            "l4proto",
            "ibrname",
            "obrname",
            "pkttype",
            "cpu",
            "iifgroup",
            "oifgroup",
            "cgroup",
            "random",
            "ipsec",
            "iifkind",
            "oifkind",
            "ibrpvid",
            "ibrvproto",
            "time",
            "day",
            "hour",
            "sdif",
            "sdifname",
        ];
        NAMES.get(key as usize).copied().unwrap_or("unknown meta key")
    }
}

/// Keys of `ct` (enum nft_ct_keys).
#[allow(missing_docs, reason = "the names are those of the kernel and of nft")]
pub mod ct {
    pub const STATE: u32 = 0;
    pub const DIRECTION: u32 = 1;
    pub const STATUS: u32 = 2;
    pub const MARK: u32 = 3;
    pub const SECMARK: u32 = 4;
    pub const L3PROTOCOL: u32 = 7;
    pub const SRC: u32 = 8;
    pub const DST: u32 = 9;
    pub const PROTOCOL: u32 = 10;
    pub const PROTO_SRC: u32 = 11;
    pub const PROTO_DST: u32 = 12;
    pub const LABELS: u32 = 13;
    pub const ZONE: u32 = 17;
    pub const EVENTMASK: u32 = 18;
    pub const SRC_IP: u32 = 19;
    pub const DST_IP: u32 = 20;
    pub const SRC_IP6: u32 = 21;
    pub const DST_IP6: u32 = 22;

    /// Returns nft's name of a key, after "ct".
    pub fn name(key: u32) -> &'static str {
        const NAMES: [&str; 24] = [
            "ct state",
            "ct direction",
            "ct status",
            "ct mark",
            "ct secmark",
            "ct expiration",
            "ct helper",
            "ct l3proto",
            "ct saddr",
            "ct daddr",
            "ct protocol",
            "ct proto-src",
            "ct proto-dst",
            "ct label",
            "ct packets",
            "ct bytes",
            "ct avgpkt",
            "ct zone",
            "ct event",
            "ct ip saddr",
            "ct ip daddr",
            "ct ip6 saddr",
            "ct ip6 daddr",
            "ct id",
        ];
        NAMES.get(key as usize).copied().unwrap_or("unknown ct key")
    }
}

/// Results of `fib` (enum nft_fib_result), and flags (enum nft_fib_flags).
#[allow(missing_docs, reason = "the names are those of the kernel")]
pub mod fib {
    pub const OIF: u32 = 1;
    pub const OIFNAME: u32 = 2;
    pub const ADDRTYPE: u32 = 3;

    pub const SADDR: u32 = 1;
    pub const DADDR: u32 = 2;
    pub const MARK: u32 = 4;
    pub const IIF: u32 = 8;
    pub const PRESENT: u32 = 32;

    /// Returns nft's text of an expression.
    pub fn text(result: u32, flags: u32) -> String {
        let parts = ["saddr", "daddr", "mark", "iif", "oif"].iter().enumerate();
        let key: Vec<&str> = parts.filter(|(bit, _)| flags >> bit & 1 != 0).map(|(_, part)| *part).collect();
        let result = ["unknown", "oif", "oifname", "type"].get(result as usize).unwrap_or(&"unknown");
        format!("fib {} {result}{}", key.join(" . "), if flags & PRESENT != 0 { " exists" } else { "" })
    }
}

/// An expression. Registers are given by their first octet among the 64 octets of all data registers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expression {
    /// Copies a value into a register.
    Immediate {
        /// Register.
        register: usize,
        /// Value.
        value: Vec<u8>,
    },
    /// Gives a verdict.
    Verdict(Verdict),
    /// Loads metadata into a register.
    Meta {
        /// Key ([`meta`]).
        key: u32,
        /// Register.
        register: usize,
    },
    /// Loads a property of the connection into a register.
    Ct {
        /// Key ([`ct`]).
        key: u32,
        /// Direction of the tuple (IP_CT_DIR_*), if the key needs one.
        direction: Option<u8>,
        /// Register.
        register: usize,
    },
    /// Loads octets of the packet into a register.
    Payload {
        /// Start: the link-layer (0), network (1) or transport header (2), or another place.
        base: u32,
        /// First octet, from there.
        offset: u32,
        /// Number of octets.
        len: u32,
        /// Register.
        register: usize,
    },
    /// Ends the rule unless the comparison with the register, as a number in network order, holds.
    Compare {
        /// Register.
        register: usize,
        /// Comparison.
        by: Comparison,
        /// Value on the right.
        value: Vec<u8>,
    },
    /// Ends the rule unless the register is in a range.
    Range {
        /// Register.
        register: usize,
        /// Set if it must be inside.
        inside: bool,
        /// First value.
        from: Vec<u8>,
        /// Last value.
        to: Vec<u8>,
    },
    /// Computes `(from & mask) ^ xor`.
    Bitwise {
        /// Register read.
        from: usize,
        /// Register written.
        to: usize,
        /// Bits that are kept.
        mask: Vec<u8>,
        /// Bits that are inverted afterwards.
        xor: Vec<u8>,
    },
    /// Converts between host and network order.
    ByteOrder {
        /// Register read.
        from: usize,
        /// Register written.
        to: usize,
        /// Octets in all.
        len: usize,
        /// Octets of each number.
        size: usize,
    },
    /// Looks a register up in a set; ends the rule if it is not in it.
    Lookup {
        /// Name of the set.
        set: String,
        /// Register with the key.
        key: usize,
        /// Destination of the set's data, if it is a map.
        data: Option<To>,
        /// Set if the rule ends if the key is in the set.
        invert: bool,
    },
    /// Counts packets and octets.
    Counter {
        /// Name of the counter, unless it is the rule's own.
        name: Option<String>,
    },
    /// Ends the rule unless an extension of x_tables matches.
    Match {
        /// Name of the extension.
        name: String,
        /// Revision of the extension.
        revision: u32,
        /// Binary data of the extension.
        info: Vec<u8>,
    },
    /// Sets the packet's mark to `(mark & keep) ^ xor`: the target MARK of x_tables.
    Mark {
        /// Bits that are kept.
        keep: u32,
        /// Bits that are inverted afterwards.
        xor: u32,
    },
    /// Translates a new connection's source, and nothing else, to one address, and accepts the packet.
    SourceNat {
        /// Register with the address; `None` for that of the interface that sends the packet (masquerade).
        address: Option<usize>,
    },
    /// Gives the connection to a flow table of the kernel's, or ends the rule: `flow add`.
    FlowAdd,
    /// Looks an address of the packet up in the routing tables.
    Fib {
        /// Result to load (`fib`).
        result: u32,
        /// Address, and what else the lookup depends on (`fib`).
        flags: u32,
        /// Register.
        register: usize,
    },
    /// Reads or computes something in a way that is not described here, and does nothing else.
    Reads {
        /// Name: "fib".
        how: String,
        /// Register written, if it is known. More octets may be written than one register has.
        register: Option<usize>,
    },
    /// Adds, changes or removes an element of a set.
    Update {
        /// Name of the set.
        set: String,
        /// Side effect of an expression that the element gets, if any: "limit".
        acts: Option<String>,
        /// Role in connection tracking of these expressions.
        tracking: Tracking,
    },
    /// Has side effects, or is not understood.
    Acts {
        /// Description: "masquerade".
        how: String,
        /// Role in connection tracking.
        tracking: Tracking,
    },
}

/// Destination of a map's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum To {
    /// The data is a verdict.
    Verdict,
    /// The data goes into a register.
    Register(usize),
}

/// A comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

/// A verdict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The packet leaves the base chain and meets the next one.
    Accept,
    /// The packet is dropped.
    Drop,
    /// The rule goes on.
    Continue,
    /// The rule ends.
    Break,
    /// The chain ends: the packet returns to the rule after the jump, or meets the policy.
    Return,
    /// The packet meets another chain, and returns from it.
    Jump(String),
    /// The packet meets another chain, which returns to where this one would return.
    Goto(String),
    /// Anything else: "verdict 3".
    Other(String),
}

/// Role of an expression in connection tracking.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tracking {
    /// No role.
    No,
    /// Uses the state of connection tracking, which must see the packets of both directions.
    Uses,
    /// Enables connection tracking or defragmentation in the namespace for the table's families, wherever the rule is.
    TurnsOn,
}

impl Expression {
    /// Returns whether a rule with this expression certainly turns connection tracking on for a family of its table,
    /// even in a chain or a table that no packet reaches (nf_ct_netns_get in the kernel).
    pub fn tracks(&self, v6: bool) -> bool {
        match self {
            Self::Ct { .. } | Self::FlowAdd | Self::SourceNat { address: None } => true,
            // A translation to one address is parsed for IPv4 only.
            Self::SourceNat { address: Some(_) } => !v6,
            Self::Match { name, .. } => matches!(name.as_str(), "conntrack" | "state" | "connmark"),
            Self::Acts { how, .. } => match how.as_str() {
                "nat" => !v6,
                "nat ip6" => v6,
                "masquerade" | "redirect" => true,
                "xt target MASQUERADE"
                | "xt target SNAT"
                | "xt target DNAT"
                | "xt target REDIRECT"
                | "xt target NETMAP" => true,
                _ => false,
            },
            _ => false,
        }
    }

    /// Returns the description of the expression's side effect, for packets that pass by without it, and its role in
    /// connection tracking; `None` if it only reads and computes, or gives a verdict.
    ///
    /// A counter is a side effect: it would miss packets forwarded past the kernel, and users of the ruleset would
    /// notice. A set element may carry a counter, a limit or a verdict of its own, so a set lookup is a side effect
    /// too.
    pub fn effect(&self) -> Option<(String, Tracking)> {
        Some(match self {
            Self::Counter { .. } => ("counter".into(), Tracking::No),
            Self::Lookup { .. } => ("set lookup".into(), Tracking::No),
            Self::Ct { .. } => ("ct".into(), Tracking::TurnsOn),
            Self::Match { name, .. } if name == "comment" => return None,
            Self::Match { name, .. } => {
                let tracking = if xt::is_untracked(false, name) { Tracking::No } else { Tracking::TurnsOn };
                (format!("xt match {name}"), tracking)
            }
            Self::Mark { .. } => ("xt target MARK".into(), Tracking::No),
            Self::SourceNat { address } => (source_nat(*address).into(), Tracking::TurnsOn),
            Self::FlowAdd => ("flow add".into(), Tracking::TurnsOn),
            Self::Update { tracking, .. } => ("set update".into(), *tracking),
            Self::Acts { how, tracking } => (how.clone(), *tracking),
            _ => return None,
        })
    }

    /// Returns what the expression, in a rule of `table`, does to a connection that the kernel does not show:
    /// [`Ruleset::hidden_effect`](super::Ruleset::hidden_effect).
    pub(super) fn hidden_effect<'a>(&'a self, table: &'a Table) -> Option<&'a str> {
        let Self::Acts { how, .. } = self else { return None };
        let hides = |how: &str| how.starts_with("unknown") || how.starts_with("ct timeout") || how == "ct event set";
        match how.as_str() {
            "xt target CT" => Some(how),
            // Maps hold objects of their own table (nft_add_set_elem).
            "object of a map" => table.tracking.iter().map(String::as_str).find(|object| hides(object)),
            how => hides(how).then_some(how),
        }
    }
}

/// Returns the name of a source translation in rules.
pub fn source_nat(address: Option<usize>) -> &'static str {
    if address.is_some() { "snat" } else { "masquerade" }
}
