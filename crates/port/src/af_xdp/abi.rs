//! Constants and structures shared with the XDP program: the Rust side of `xdp/bywash.h`.

use serde::Serialize;

/// Names of the program's frame counters, in the order of `enum bywash_reason`: where a frame went, and why.
pub const REASONS: [&str; 27] = [
    "to_user",
    "pass_disabled",
    "pass_no_socket",
    "pass_not_mine",
    "pass_vlan",
    "pass_ethertype",
    "pass_options",
    "pass_local",
    "pass_multicast",
    "pass_link_local",
    "pass_reserved",
    "pass_superframe",
    "pass_short",
    "pass_route",
    "pass_returned",
    "to_port",
    "pass_policy",
    "pass_exception",
    "drop_port_gone",
    "drop_cpu_busy",
    "pass_source",
    "to_program",
    "drop_program",
    "pass_station",
    "to_member",
    "pass_bridged",
    "pass_unfinished",
];

/// Index of `to_port`, which is counted in the map `port_pairs` rather than in `struct bywash_counters`.
const TO_PORT: usize = 15;
/// Index of `to_member`, which is counted in both.
const TO_MEMBER: usize = 24;

/// Maximum number of ports of a process.
pub const PORTS: u32 = 64;
/// Maximum number of VLANs and bridges of a process, which have numbers from [`PORTS`] on.
pub const VLANS: u32 = 192;
/// Slots for VLANs by tag.
pub(crate) const TAGS: u32 = 512;
/// Bytes of a segment of a forwarding table.
pub const SEGMENT: usize = 2 << 20;
/// Number of places (hash buckets) for stations of bridges, each with room for [`STATIONS_AT_A_PLACE`].
pub(crate) const STATIONS: usize = 2048;
/// Number of stations at a place. The word after them marks those of which the kernel
/// has to receive a frame.
pub(crate) const STATIONS_AT_A_PLACE: usize = 7;
/// Number of slots of the program's port table that may hold a port, starting at its interface index modulo [`PORTS`].
pub(crate) const PROBES: u32 = 4;
/// Maximum number of queues of a port.
pub(crate) const QUEUES: u32 = 256;
/// Maximum number of CPUs that send frames for a port.
pub const PORT_CPUS: usize = 64;
/// Next hops the program can hold; packets to other next hops go to user space.
pub const HOPS: usize = 16384;
/// Members of next-hop groups the program can hold.
pub const BUCKETS: usize = 65536;
/// IPv4 destinations whose next hop each CPU caches.
pub(crate) const DST_CACHE4: u32 = 32768;
/// IPv6 destinations whose next hop each CPU caches.
pub(crate) const DST_CACHE6: u32 = 16384;
/// CPUs with a destination cache of their own; CPUs beyond these share them.
pub(crate) const DST_CACHE_CPUS: u32 = 64;

/// Number of flows per switch worker that the program can hold, and of hash buckets in which they are found.
pub const FLOWS: usize = 4096;
/// Maximum number of switch workers with flows in the program; each CPU has counters for the flows of all of them.
pub(crate) const FLOW_WORKERS: usize = 16;
/// Maximum number of masks per worker under which flows are looked up.
pub(crate) const FLOW_MASKS: usize = 8;

pub(crate) const FLAG_ENABLED: u16 = 1 << 0;
pub(crate) const FLAG_FORWARD: u16 = 1 << 1;
pub(crate) const FLAG_PARTIAL: u16 = 1 << 2;
pub(crate) const FLAG_RAW: u16 = 1 << 3;
pub(crate) const FLAG_KERNEL4: u16 = 1 << 6;
pub(crate) const FLAG_KERNEL6: u16 = 1 << 7;
pub(crate) const FLAG_DEFRAG: u16 = 1 << 10;
pub(crate) const FLAG_NATIVE: u16 = 1 << 5;
pub(crate) const FLAG_REDIRECTS: u16 = 1 << 4;
pub(crate) const FLAG_RPF_LOOSE: u16 = 1 << 8;
pub(crate) const FLAG_RPF_STRICT: u16 = 1 << 9;
pub(crate) const FLAG_L3_HASH4: u16 = 1 << 11;
pub(crate) const FLAG_L3_HASH6: u16 = 1 << 12;
pub(crate) const FLAG_FLOWS4: u16 = 1 << 13;
pub(crate) const FLAG_FLOWS6: u16 = 1 << 14;
pub(crate) const FLAG_RULES: u16 = 1 << 15;

pub(crate) const SENDING_TARGET: u16 = 1 << 0;
pub(crate) const SENDING_TAKES_FRAMES: u16 = 1 << 1;
pub(crate) const SENDING_KEPT4: u16 = 1 << 2;
pub(crate) const SENDING_KEPT6: u16 = 1 << 3;
pub(crate) const SENDING_BY_RULES: u16 = 1 << 4;
pub(crate) const SENDING_KEEPS: u16 = 1 << 5;
pub(crate) const SENDING_BRIDGED: u16 = 1 << 6;
pub(crate) const SENDING_MACVLANS: u16 = 1 << 7;
pub(crate) const SENDING_FILTERS: u16 = 1 << 8;
pub(crate) const SENDING_CHUNKS: u16 = 1 << 9;

/// `struct bywash_port`, without the fields `version`, `own` and `members`.
#[derive(Clone, Copy, Default)]
pub(crate) struct RawPort {
    pub mac: [u8; 6],
    pub flags: u16,
    pub max_frame: u32,
    pub ifindex: u32,
    pub id: u16,
    pub cpus: u16,
    pub route_id: u16,
    pub sending: u16,
    /// Members of the port's bridge to which frames are forwarded, a bit for each port, the port's own for VXLANs; and
    /// the longest frames to other ports and to VXLANs.
    pub members: u64,
    pub longest: u32,
    pub through: u32,
}

impl RawPort {
    /// Length of `struct bywash_port` in 64-bit words.
    pub const WORDS: usize = 8;
    /// Index of the word with the version of routes and next hops.
    pub const VERSION: usize = 3;
    /// Index of the word with the bit set of the host's own addresses.
    pub const OWN: usize = 4;
    /// Index of the word with the members of the port's bridge to which frames are forwarded.
    pub const MEMBERS: usize = 5;
    /// Index of the word with the longest of these frames.
    pub const LONGEST: usize = 6;

    /// Returns the words before `version`. For an enabled port with flows, or with rules that the program follows, the
    /// flag of these takes the place of the enabling flag; for a bridge's member, the flag of bridges does. So the
    /// program needs no further test on other ports.
    pub fn words(&self) -> [u64; 3] {
        let m = self.mac;
        let mac = u64::from_le_bytes([m[0], m[1], m[2], m[3], m[4], m[5], 0, 0]);
        let asks = if self.sending & SENDING_BY_RULES != 0 { FLAG_RULES } else { 0 };
        let instead = self.flags & (FLAG_FLOWS4 | FLAG_FLOWS6 | asks) | self.sending & SENDING_BRIDGED;
        let (flags, sending) = match (self.flags & FLAG_ENABLED, instead) {
            (0, _) => (self.flags & !(FLAG_FLOWS4 | FLAG_FLOWS6 | FLAG_RULES), self.sending & !SENDING_BRIDGED),
            (_, 0) => (self.flags, self.sending),
            _ => (self.flags & !FLAG_ENABLED, self.sending),
        };
        [
            mac | u64::from(flags) << 48,
            u64::from(self.max_frame) | u64::from(self.ifindex) << 32,
            u64::from(self.id) | u64::from(self.cpus) << 16 | u64::from(self.route_id) << 32 | u64::from(sending) << 48,
        ]
    }
}

/// Number of counters of a port on one CPU, in `struct bywash_counters`.
const COUNTERS: usize = 32;

/// `struct bywash_traffic`: frames forwarded from one port to another, or by one flow.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Traffic {
    pub frames: u64,
    pub bytes: u64,
}

impl Traffic {
    /// Length in 64-bit words.
    pub const WORDS: usize = 2;
}

/// Treatment of a packet whose route leads to a next hop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum HopKind {
    /// Decided by user space.
    #[default]
    User,
    /// Forwarded: the MAC addresses are rewritten and the frame leaves on a port.
    Forward,
    /// Group of next hops, one of which is chosen by flow hash.
    Group,
    /// Forwarded like [`HopKind::Forward`], with a VLAN tag, or by a macvlan.
    Vlan,
    /// Forwarded like [`HopKind::Vlan`], by the member of a bond that a hash selects; with a tag or without.
    Bond,
    /// Address of the host: passed to the kernel.
    Local,
    /// Egress interface is not a port: passed to the kernel.
    Kernel,
    /// A kernel policy applies to packets sent there: passed to the kernel.
    Policy,
}

/// Next-hop flag: its device accepts frames redirected by native XDP.
pub const TAKES_FRAMES: u8 = 1;
/// Next-hop flag: a unicast route leads there by its port, whatever the neighbour's state.
pub const UNICAST: u8 = 2;
/// Next-hop flag: it leads through a tunnel, by user space.
pub const THROUGH: u8 = 4;

/// Next hop in the program's layout, `struct bywash_hop`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Hop {
    /// Destination MAC, then source MAC, as written into the frame.
    pub macs: [u8; 12],
    /// Treatment of packets.
    pub kind: HopKind,
    /// Flags [`TAKES_FRAMES`], [`UNICAST`] and [`THROUGH`].
    pub flags: u8,
    /// Egress port, for [`HopKind::Forward`]; number of the interface, for [`HopKind::Vlan`] and [`HopKind::Bond`].
    pub port: u16,
    /// MTU: largest IP packet, in bytes.
    pub mtu: u32,
    /// First bucket, for [`HopKind::Group`]; port that carries it, for [`HopKind::Vlan`]; bucket with the first of its
    /// ports, for [`HopKind::Bond`].
    pub first: u32,
    /// Number of buckets, for [`HopKind::Group`]; tag as it lies in memory, 0 for none, for [`HopKind::Vlan`] and
    /// [`HopKind::Bond`].
    pub count: u32,
    /// Kernel index of the egress port's interface, for [`HopKind::Forward`] and [`HopKind::Vlan`]; number of ports
    /// and, from bit 16 on, their hash (BOND_XMIT_POLICY_*, linux/if_bonding.h), for [`HopKind::Bond`].
    pub ifindex: u32,
}

impl Hop {
    /// Length of `struct bywash_hop` in 64-bit words.
    pub(super) const WORDS: usize = size_of::<Self>() / 8;

    /// Returns the words. The second has the kind.
    pub(super) fn words(&self) -> [u64; Self::WORDS] {
        let m = &self.macs;
        let u32_at = |at: usize| u64::from(u32::from_le_bytes([m[at], m[at + 1], m[at + 2], m[at + 3]]));
        let rest = u64::from(self.kind as u8) | u64::from(self.flags) << 8 | u64::from(self.port) << 16;
        [
            u32_at(0) | u32_at(4) << 32,
            u32_at(8) | rest << 32,
            u64::from(self.mtu) | u64::from(self.first) << 32,
            u64::from(self.count) | u64::from(self.ifindex) << 32,
        ]
    }
}

/// Counters of the XDP program for a port's frames, summed over CPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct XdpCounters {
    frames: [u64; REASONS.len()],
    /// Bytes received and forwarded by the program (`to_port` counts these frames).
    pub rx_bytes: u64,
    /// Frames forwarded out of this port by the program.
    pub tx_frames: u64,
    /// Bytes forwarded out of this port by the program.
    pub tx_bytes: u64,
}

impl XdpCounters {
    /// Sums the words that each CPU has of `struct bywash_counters`.
    pub(crate) fn sum(cpus: &[u64]) -> Self {
        let mut all = Self::default();
        for cpu in cpus.chunks(COUNTERS) {
            all.frames.iter_mut().zip(cpu).for_each(|(sum, n)| *sum = sum.wrapping_add(*n));
        }
        all
    }

    /// Adds the frames forwarded from and to the port; `between(from, to)` returns those from one port to another.
    pub(crate) fn add_forwarded(&mut self, port: u16, between: impl Fn(u16, u16) -> Traffic) {
        for other in 0..PORTS as u16 {
            let (from, to) = (between(port, other), between(other, port));
            self.frames[TO_PORT] = self.frames[TO_PORT].wrapping_add(from.frames);
            self.rx_bytes = self.rx_bytes.wrapping_add(from.bytes);
            self.tx_frames = self.tx_frames.wrapping_add(to.frames);
            self.tx_bytes = self.tx_bytes.wrapping_add(to.bytes);
        }
        self.frames[TO_PORT] = self.frames[TO_PORT].wrapping_sub(self.frames[TO_MEMBER]);
    }

    /// Iterates over the name and count of every reason.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        REASONS.into_iter().zip(self.frames)
    }

    /// Returns the count of one reason; 0 for an unknown name.
    pub fn get(&self, name: &str) -> u64 {
        self.iter().find(|(n, _)| *n == name).map_or(0, |(_, count)| count)
    }
}

impl Serialize for XdpCounters {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_map(self.iter())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = include_str!("../../xdp/bywash.h");

    /// Returns name and value of each entry of an enum in the header, the value empty if the entry has none.
    fn names(of: &str) -> Vec<(String, String)> {
        let body = HEADER.split(&format!("enum {of} {{")).nth(1).unwrap().split('}').next().unwrap();
        body.lines()
            .filter_map(|line| line.split(',').next())
            .map(|entry| entry.split_once(" = ").unwrap_or((entry, "")))
            .map(|(name, value)| (name.trim().to_owned(), value.trim().to_owned()))
            .filter(|(name, _)| !name.is_empty())
            .collect()
    }

    #[test]
    fn reasons_are_the_programs() {
        let mut c: Vec<_> = names("bywash_reason").into_iter().map(|(name, _)| name.to_lowercase()).collect();
        assert_eq!(c.pop().as_deref(), Some("bywash_reasons"));
        assert_eq!(c, REASONS);
        assert!(HEADER.contains("__u64 frames[32];"));
        assert!(REASONS.len() <= 32);
        assert_eq!([REASONS[TO_PORT], REASONS[TO_MEMBER]], ["to_port", "to_member"]);
    }

    #[test]
    fn sizes_and_kinds_are_the_programs() {
        for (name, value) in [
            ("BYWASH_PORTS", PORTS as usize),
            ("BYWASH_VLANS", VLANS as usize),
            ("BYWASH_TAGS", TAGS as usize),
            ("BYWASH_ENDS", super::super::TUNNEL_ENDS),
            ("BYWASH_STATIONS", STATIONS),
            ("BYWASH_PROBES", PROBES as usize),
            ("BYWASH_QUEUES", QUEUES as usize),
            ("BYWASH_PORT_CPUS", PORT_CPUS),
            ("BYWASH_HOPS", HOPS),
            ("BYWASH_BUCKETS", BUCKETS),
            ("BYWASH_DST_CACHE4", DST_CACHE4 as usize),
            ("BYWASH_DST_CACHE6", DST_CACHE6 as usize),
            ("BYWASH_DST_CACHE_CPUS", DST_CACHE_CPUS as usize),
            ("BYWASH_FLOWS", FLOWS),
            ("BYWASH_FLOW_MASKS", FLOW_MASKS),
        ] {
            let line = HEADER.lines().find(|line| line.starts_with(&format!("#define {name} "))).unwrap();
            assert_eq!(line.split_whitespace().nth(2).unwrap().parse(), Ok(value), "{name}");
        }
        let kinds: Vec<_> = names("bywash_kind").into_iter().map(|(name, _)| name).collect();
        assert_eq!(
            kinds,
            ["HOP_USER", "HOP_FORWARD", "HOP_GROUP", "HOP_VLAN", "HOP_BOND", "HOP_LOCAL", "HOP_KERNEL", "HOP_POLICY"]
        );
        assert_eq!([HopKind::User as u8, HopKind::Bond as u8, HopKind::Policy as u8], [0, 4, 7]);
        assert_eq!(size_of::<Hop>(), 32);
    }

    #[test]
    fn flags_are_the_programs() {
        let ours = [
            ("BYWASH_ENABLED", FLAG_ENABLED),
            ("BYWASH_FORWARD", FLAG_FORWARD),
            ("BYWASH_PARTIAL", FLAG_PARTIAL),
            ("BYWASH_RAW", FLAG_RAW),
            ("BYWASH_KERNEL4", FLAG_KERNEL4),
            ("BYWASH_KERNEL6", FLAG_KERNEL6),
            ("BYWASH_DEFRAG", FLAG_DEFRAG),
            ("BYWASH_NATIVE", FLAG_NATIVE),
            ("BYWASH_REDIRECTS", FLAG_REDIRECTS),
            ("BYWASH_RPF_LOOSE", FLAG_RPF_LOOSE),
            ("BYWASH_RPF_STRICT", FLAG_RPF_STRICT),
            ("BYWASH_L3_HASH4", FLAG_L3_HASH4),
            ("BYWASH_L3_HASH6", FLAG_L3_HASH6),
            ("BYWASH_FLOWS4", FLAG_FLOWS4),
            ("BYWASH_FLOWS6", FLAG_FLOWS6),
            ("BYWASH_RULES", FLAG_RULES),
        ];
        let sending = [
            ("BYWASH_TARGET", SENDING_TARGET),
            ("BYWASH_TAKES_FRAMES", SENDING_TAKES_FRAMES),
            ("BYWASH_KEPT4", SENDING_KEPT4),
            ("BYWASH_KEPT6", SENDING_KEPT6),
            ("BYWASH_BY_RULES", SENDING_BY_RULES),
            ("BYWASH_KEEPS", SENDING_KEEPS),
            ("BYWASH_BRIDGED", SENDING_BRIDGED),
            ("BYWASH_MACVLANS", SENDING_MACVLANS),
            ("BYWASH_FILTERS", SENDING_FILTERS),
            ("BYWASH_CHUNKS", SENDING_CHUNKS),
        ];
        for (of, ours) in [("bywash_flag", &ours[..]), ("bywash_sending", &sending)] {
            let c: Vec<_> = names(of);
            assert_eq!(c.len(), ours.len());
            for ((name, value), (our_name, our_value)) in c.iter().zip(ours) {
                assert_eq!(name, our_name);
                let bit = value.strip_prefix("1 << ").and_then(|s| s.parse().ok());
                assert_eq!(bit.map(|bit: u32| 1u16 << bit), Some(*our_value));
            }
        }
    }

    #[test]
    fn a_port_is_enabled_by_one_flag() {
        let flags = |flags| RawPort { flags, ..RawPort::default() }.words()[0] >> 48;
        let both = FLAG_KERNEL4 | FLAG_FLOWS4;
        assert_eq!(flags(FLAG_ENABLED | FLAG_KERNEL4), u64::from(FLAG_ENABLED | FLAG_KERNEL4));
        assert_eq!((flags(FLAG_ENABLED | both), flags(both)), (u64::from(both), u64::from(FLAG_KERNEL4)));
        let ruled = FLAG_ENABLED | FLAG_RULES;
        assert_eq!((flags(ruled), flags(FLAG_RULES)), (u64::from(ruled), 0));
        let asks = |flags| RawPort { flags, sending: SENDING_BY_RULES, ..RawPort::default() }.words()[0] >> 48;
        assert_eq!((asks(ruled), asks(FLAG_RULES)), (u64::from(FLAG_RULES), 0));
        let bridged = |flags| {
            let [first, _, last] = RawPort { flags, sending: SENDING_BRIDGED, ..RawPort::default() }.words();
            (first >> 48, last >> 48)
        };
        let flows = FLAG_KERNEL4 | FLAG_FLOWS4;
        assert_eq!(bridged(FLAG_ENABLED | flows), (u64::from(flows), u64::from(SENDING_BRIDGED)));
        assert_eq!(bridged(flows), (u64::from(FLAG_KERNEL4), 0));
    }

    #[test]
    fn counters_add_up_over_cpus() {
        let mut cpus = [0; 2 * COUNTERS];
        (cpus[0], cpus[COUNTERS], cpus[COUNTERS + 7]) = (3, 4, 5);
        let mut sum = XdpCounters::sum(&cpus);
        assert_eq!((sum.get("to_user"), sum.get("pass_local"), sum.get("nonsense")), (7, 5, 0));
        let between = |from, to| match (from, to) {
            (1, 2) => Traffic { frames: 3, bytes: 300 },
            (2, 1) => Traffic { frames: 1, bytes: 60 },
            (1, 1) => Traffic { frames: 1, bytes: 100 },
            _ => Traffic::default(),
        };
        sum.add_forwarded(1, between);
        assert_eq!((sum.get("to_port"), sum.rx_bytes, sum.tx_frames, sum.tx_bytes), (4, 400, 2, 160));
    }
}
