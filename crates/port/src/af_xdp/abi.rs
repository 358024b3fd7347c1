//! What the XDP program and this process agree on: the Rust side of `xdp/bywash.h`.

use serde::Serialize;

/// Names of the program's counters, in the order of `enum bywash_reason`: where each frame went, and why.
pub const REASONS: [&str; 21] = [
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
];

/// The reason that is counted by both ports.
const TO_PORT: usize = 15;

/// Ports of a process.
pub const PORTS: u32 = 64;
/// Places a port may have in the program's table, from its interface index on.
pub(crate) const PROBES: u32 = 4;
/// Queues of a port.
pub(crate) const QUEUES: u32 = 256;
/// CPUs that send for a port.
pub const SPREAD: usize = 64;
/// Next hops the program knows; packets to others are user space's.
pub const HOPS: usize = 16384;
/// Members of groups it knows.
pub const BUCKETS: usize = 65536;
/// IPv4 destinations that a CPU remembers the next hop of.
pub(crate) const KNOWN4: u32 = 32768;
/// IPv6 ones.
pub(crate) const KNOWN6: u32 = 16384;
/// CPUs that remember each for itself; beyond these they share.
pub(crate) const KNOWN_CPUS: u32 = 64;

/// Flows of a switch's worker that the program knows, and buckets it finds them in.
pub const FLOWS: usize = 4096;
/// Workers that have such, at most: each CPU counts for the flows of all.
pub(crate) const FLOW_WORKERS: usize = 16;
/// Masks it looks them up by.
pub(crate) const FLOW_MASKS: usize = 8;

pub(crate) const FLAG_ENABLED: u16 = 1 << 0;
pub(crate) const FLAG_DRIVER: u16 = 1 << 1;
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

/// `struct bywash_port`, without the version.
#[derive(Clone, Copy, Default)]
pub(crate) struct RawPort {
    pub mac: [u8; 6],
    pub flags: u16,
    pub max_frame: u32,
    pub ifindex: u32,
    pub id: u16,
    pub spread: u16,
}

impl RawPort {
    /// 64-bit words of `struct bywash_port`.
    pub const WORDS: usize = 8;
    /// Which of them is the version of routes and next hops.
    pub const VERSION: usize = 3;
    /// Which of them tells the host's own addresses.
    pub const OWN: usize = 4;

    /// The words in front of it.
    pub fn words(&self) -> [u64; 3] {
        let m = self.mac;
        let mac = u64::from_le_bytes([m[0], m[1], m[2], m[3], m[4], m[5], 0, 0]);
        [
            mac | u64::from(self.flags) << 48,
            u64::from(self.max_frame) | u64::from(self.ifindex) << 32,
            u64::from(self.id) | u64::from(self.spread) << 16,
        ]
    }
}

/// `struct bywash_counters`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct RawCounters {
    pub frames: [u64; 32],
}

/// `struct bywash_passage`: frames forwarded from one port to another by one CPU.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Passage {
    pub frames: u64,
    pub bytes: u64,
}

impl Passage {
    /// Its 64-bit words.
    pub const WORDS: usize = 2;
}

// SAFETY: repr(C), integers only, no padding.
unsafe impl aya::Pod for RawCounters {}

/// What becomes of a packet whose route led to a next hop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum HopKind {
    /// User space knows.
    #[default]
    User,
    /// The MAC addresses are rewritten, and the frame leaves by a port.
    Forward,
    /// One of several, by flow hash.
    Group,
    /// An address of the host: the kernel's.
    Local,
    /// Its way out is an interface that is no port: the kernel's.
    Kernel,
    /// A policy of the kernel's concerns what goes there.
    Policy,
}

/// Of a next hop: its device takes frames that native XDP redirects.
pub const TAKES_FRAMES: u8 = 1;
/// Of a next hop: a unicast route leads there, by its port, whatever the neighbour's state.
pub const UNICAST: u8 = 2;

/// A next hop, as the program has it: `struct bywash_hop`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Hop {
    /// Destination MAC, then source MAC, as they go into the frame.
    pub macs: [u8; 12],
    /// What to do.
    pub kind: HopKind,
    /// [`TAKES_FRAMES`] and [`UNICAST`].
    pub flags: u8,
    /// Port to send on, for [`HopKind::Forward`].
    pub port: u16,
    /// Largest IP packet, in bytes.
    pub mtu: u32,
    /// For a group: its first bucket.
    pub first: u32,
    /// For a group: how many buckets.
    pub count: u32,
    /// For [`HopKind::Forward`]: the port's interface, by kernel index.
    pub ifindex: u32,
}

/// What the XDP program did with a port's frames, summed over CPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct XdpCounters {
    frames: [u64; REASONS.len()],
    /// Bytes received and forwarded by the program (`to_port` counts the frames).
    pub rx_bytes: u64,
    /// Frames that it forwarded by this port.
    pub tx_frames: u64,
    /// Their bytes.
    pub tx_bytes: u64,
}

impl XdpCounters {
    pub(crate) fn sum<'a>(cpus: impl Iterator<Item = &'a RawCounters>) -> Self {
        let mut all = Self::default();
        for cpu in cpus {
            all.frames.iter_mut().zip(cpu.frames).for_each(|(sum, n)| *sum = sum.wrapping_add(n));
        }
        all
    }

    /// Adds what went from the port and to it, as `between` has it by port received from and sent to.
    pub(crate) fn add_forwarded(&mut self, port: u16, between: impl Fn(u16, u16) -> Passage) {
        for other in 0..PORTS as u16 {
            let (from, to) = (between(port, other), between(other, port));
            self.frames[TO_PORT] = self.frames[TO_PORT].wrapping_add(from.frames);
            self.rx_bytes = self.rx_bytes.wrapping_add(from.bytes);
            self.tx_frames = self.tx_frames.wrapping_add(to.frames);
            self.tx_bytes = self.tx_bytes.wrapping_add(to.bytes);
        }
    }

    /// Name and count of every reason.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        REASONS.into_iter().zip(self.frames)
    }

    /// The count of one reason; 0 for a name that is none.
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

    const HEADER: &str = include_str!("../../../../xdp/bywash.h");

    /// Identifiers in front of the first `,` or ` =` of each line of an enum.
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
        assert_eq!(REASONS[TO_PORT], "to_port");
    }

    #[test]
    fn sizes_and_kinds_are_the_programs() {
        for (name, value) in [
            ("BYWASH_PORTS", PORTS as usize),
            ("BYWASH_PROBES", PROBES as usize),
            ("BYWASH_QUEUES", QUEUES as usize),
            ("BYWASH_SPREAD", SPREAD),
            ("BYWASH_HOPS", HOPS),
            ("BYWASH_BUCKETS", BUCKETS),
            ("BYWASH_KNOWN4", KNOWN4 as usize),
            ("BYWASH_KNOWN6", KNOWN6 as usize),
            ("BYWASH_KNOWN_CPUS", KNOWN_CPUS as usize),
            ("BYWASH_FLOWS", FLOWS),
            ("BYWASH_FLOW_MASKS", FLOW_MASKS),
        ] {
            let line = HEADER.lines().find(|line| line.starts_with(&format!("#define {name} "))).unwrap();
            assert_eq!(line.split_whitespace().nth(2).unwrap().parse(), Ok(value), "{name}");
        }
        let kinds: Vec<_> = names("bywash_kind").into_iter().map(|(name, _)| name).collect();
        assert_eq!(kinds, ["HOP_USER", "HOP_FORWARD", "HOP_GROUP", "HOP_LOCAL", "HOP_KERNEL", "HOP_POLICY"]);
        assert_eq!([HopKind::User as u8, HopKind::Group as u8, HopKind::Policy as u8], [0, 2, 5]);
        assert_eq!((size_of::<Hop>(), size_of::<RawCounters>()), (32, 32 * 8));
    }

    #[test]
    fn flags_are_the_programs() {
        let ours = [
            ("BYWASH_ENABLED", FLAG_ENABLED),
            ("BYWASH_DRIVER", FLAG_DRIVER),
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
        ];
        let c: Vec<_> = names("bywash_flag");
        assert_eq!(c.len(), ours.len());
        for ((name, value), (our_name, our_value)) in c.iter().zip(ours) {
            assert_eq!(name, our_name);
            assert_eq!(
                value.strip_prefix("1 << ").and_then(|s| s.parse().ok()).map(|s: u32| 1u16 << s),
                Some(our_value)
            );
        }
    }

    #[test]
    fn counters_add_up_over_cpus() {
        let mut cpus = [RawCounters { frames: [0; 32] }; 2];
        (cpus[0].frames[0], cpus[1].frames[0], cpus[1].frames[7]) = (3, 4, 5);
        let mut sum = XdpCounters::sum(cpus.iter());
        assert_eq!((sum.get("to_user"), sum.get("pass_local"), sum.get("nonsense")), (7, 5, 0));
        let between = |from, to| match (from, to) {
            (1, 2) => Passage { frames: 3, bytes: 300 },
            (2, 1) => Passage { frames: 1, bytes: 60 },
            (1, 1) => Passage { frames: 1, bytes: 100 },
            _ => Passage::default(),
        };
        sum.add_forwarded(1, between);
        assert_eq!((sum.get("to_port"), sum.rx_bytes, sum.tx_frames, sum.tx_bytes), (4, 400, 2, 160));
    }
}
