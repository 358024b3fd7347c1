//! Configuration of the built-in XDP program for a port, and for the VLANs above it.

use super::abi::{
    FLAG_DEFRAG, FLAG_ENABLED, FLAG_FLOWS4, FLAG_FLOWS6, FLAG_FORWARD, FLAG_KERNEL4, FLAG_KERNEL6, FLAG_L3_HASH4,
    FLAG_L3_HASH6, FLAG_NATIVE, FLAG_PARTIAL, FLAG_RAW, FLAG_REDIRECTS, FLAG_RPF_LOOSE, FLAG_RPF_STRICT, FLAG_RULES,
    RawPort, SENDING_BRIDGED, SENDING_BY_RULES, SENDING_CHUNKS, SENDING_FILTERS, SENDING_KEEPS, SENDING_KEPT4,
    SENDING_KEPT6, SENDING_TAKES_FRAMES, SENDING_TARGET,
};

/// Packets received by a router's port that go to the kernel because a kernel policy applies to them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct XdpGate {
    /// All of IPv4.
    pub v4: bool,
    /// All of IPv6.
    pub v6: bool,
    /// Fragments of both.
    pub fragments: bool,
    /// Set if packets of established IPv4 flows ([`super::XdpDatapath::flow_segments`]) are exempt from `v4`.
    pub flows4: bool,
    /// Set if packets of established IPv6 flows are exempt from `v6`.
    pub flows6: bool,
}

impl XdpGate {
    /// Gate through which everything goes to the kernel.
    pub const CLOSED: Self = Self { v4: true, v6: true, fragments: true, flows4: false, flows6: false };
}

/// Configuration of the program for a port. Everything is passed to the kernel until `enabled` is set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct XdpConfig {
    /// Set if the port is in use; if not, every frame is passed to the kernel.
    pub enabled: bool,
    /// MAC address of the port, or of `master`; frames to other stations are passed to the kernel.
    pub mac: [u8; 6],
    /// Number, from [`super::PORTS`] on, of the bond, the bridge, or the VLAN interface on a bridge to which the port's
    /// frames without a tag belong, together with those of other ports.
    pub master: Option<u16>,
    /// Set if the port is a member of a bridge. A frame is then passed to the kernel unless its source is known
    /// ([`super::XdpDatapath::set_stations`]) to be a station behind this port, on the interface that the frame belongs
    /// to.
    pub bridged: bool,
    /// Set if that bridge filters VLANs. Frames with a tag belong to the VLAN with that tag ([`XdpVlan`]), and those
    /// that belong to none are passed to the kernel, as are those without a tag if there is no `master`.
    pub filters: bool,
    /// Longest frame for user space, in bytes with the Ethernet header. Longer frames are passed to the kernel.
    pub max_frame: u32,
    /// Set if every frame that is not too long goes to user space; for ports that are not a router's.
    pub raw: bool,
    /// Set if the program forwards what it can.
    pub forward: bool,
    /// Set if frames may carry unfinished transport checksums, which XDP cannot have completed when it sends them: such
    /// frames go to user space, which completes the checksums. With generic XDP, datagrams with such a checksum are
    /// passed to the kernel instead of user space: they may be several in one packet.
    pub partial: bool,
    /// Set if packets that would leave on their ingress port go to user space, which sends a redirect.
    pub redirects: bool,
    /// Packets that go to the kernel.
    pub gate: XdpGate,
    /// Source check of IPv4 packets before the program forwards them. Packets whose source it cannot verify go to the
    /// kernel (`pass_source`), which decides.
    pub source_check: RpFilter,
    /// Set if the hash that selects a group's member uses only addresses for IPv4 (net.ipv4.fib_multipath_hash_policy
    /// 0), instead of ports as well.
    pub l3_hash4: bool,
    /// The same for IPv6 (net.ipv6.fib_multipath_hash_policy 0), with flow label and next header.
    pub l3_hash6: bool,
    /// Set if policy routing rules apply to the packets. User space looks the packets up, unless `fib_lookup` is set.
    pub rules: bool,
    /// Set if the program, at level `driver`, looks up packets to which rules apply by `bpf_fib_lookup`
    /// ([`super::XdpDatapath::refuses_rules`]), which ignores the MTUs of routes.
    pub fib_lookup: bool,
    /// Set if the result of that lookup depends only on a packet's addresses, so that it can be cached.
    pub fib_cache: bool,
    /// Conditions for sending packets to which such rules apply on the port.
    pub sending: XdpSending,
    /// Frames between members of the port's bridge that the program forwards, where it forwards.
    pub bridging: XdpBridging,
}

impl XdpConfig {
    /// Returns the entry in the program of the port with this number, interface index, and mode of XDP.
    pub(super) fn entry(&self, id: u16, ifindex: u32, native: bool) -> RawPort {
        let XdpGate { v4, v6, fragments, flows4, flows6 } = self.gate;
        let mut flags = 0;
        for (on, flag) in [
            (self.enabled, FLAG_ENABLED),
            (self.forward && !self.rules, FLAG_FORWARD),
            (self.rules, FLAG_RULES),
            (self.partial, FLAG_PARTIAL),
            (self.raw, FLAG_RAW),
            (self.redirects, FLAG_REDIRECTS),
            (v4, FLAG_KERNEL4),
            (v6, FLAG_KERNEL6),
            (v4 && flows4, FLAG_FLOWS4),
            (v6 && flows6, FLAG_FLOWS6),
            (fragments, FLAG_DEFRAG),
            (self.source_check == RpFilter::Loose, FLAG_RPF_LOOSE),
            (self.source_check == RpFilter::Strict, FLAG_RPF_STRICT),
            (self.l3_hash4, FLAG_L3_HASH4),
            (self.l3_hash6, FLAG_L3_HASH6),
            (native, FLAG_NATIVE),
        ] {
            flags |= if on { flag } else { 0 };
        }
        let mut sending = 0;
        for (on, flag) in [
            (self.sending.target, SENDING_TARGET),
            (self.sending.takes_frames, SENDING_TAKES_FRAMES),
            (self.sending.kernel_only4, SENDING_KEPT4),
            (self.sending.kernel_only6, SENDING_KEPT6),
            (self.rules && self.fib_lookup && self.forward, SENDING_BY_RULES),
            (self.fib_cache, SENDING_KEEPS),
            (self.bridged, SENDING_BRIDGED),
            (self.filters, SENDING_FILTERS),
            (self.partial && !native, SENDING_CHUNKS),
        ] {
            sending |= if on { flag } else { 0 };
        }
        let (mac, max_frame, route_id) = (self.mac, self.max_frame, self.master.unwrap_or(id));
        let XdpBridging { to, longest, through } = self.bridging;
        let others = if self.forward && self.bridged { to & !(1 << id) } else { 0 };
        let members = others | u64::from(self.bridged && through != 0) << id;
        RawPort { mac, flags, max_frame, ifindex, id, cpus: 0, route_id, sending, members, longest, through }
    }

    /// Returns the words of such an entry, for native XDP, as they are in the program's memory.
    #[cfg(fuzzing)]
    #[doc(hidden)]
    pub fn words(&self, id: u16, ifindex: u32) -> [u64; 3] {
        self.entry(id, ifindex, true).words()
    }
}

/// Conditions for packets that are sent on a port by policy routing rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct XdpSending {
    /// Set if the program may send on the port at all.
    pub target: bool,
    /// Set if the port's device takes redirected frames, as native XDP sends them.
    pub takes_frames: bool,
    /// Set if only the kernel may send IPv4 packets on the port.
    pub kernel_only4: bool,
    /// Set if only the kernel may send IPv6 packets on the port.
    pub kernel_only6: bool,
}

/// Frames that the program forwards between members of a bridge, or hands to user space: unicast frames of IPv4, IPv6,
/// PPPoE or MPLS, except neighbour discovery, from a station behind the receiving port to a station behind another
/// port. They are unchanged, but for a tag ([`super::XdpDatapath::set_bridge_tags`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct XdpBridging {
    /// Ports through which they leave: bit n stands for port n. With native XDP their devices take redirected frames.
    pub to: u64,
    /// Longest such frame in bytes, with its Ethernet header and without a tag. Longer ones are passed to the kernel,
    /// except an skb that will be segmented.
    pub longest: u32,
    /// Longest frame in bytes, with its Ethernet header and without a tag, that user space forwards to a station behind
    /// a VXLAN; 0 if it forwards none. For XDP only, with tags in the frames.
    pub through: u32,
}

/// A VLAN that a port carries, or a macvlan above it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XdpVlan {
    /// Number of the interface, from [`super::PORTS`] on.
    pub id: u16,
    /// Number of its entry in the program, from [`super::PORTS`] on: its own, or another for each member of the bond or
    /// bridge below it, because an entry also has properties of the port.
    pub entry: u16,
    /// Tag of its frames, in network byte order and with priority 0; zeros for a macvlan.
    pub tag: [u8; 4],
    /// MAC address of the interface; frames to other stations are passed to the kernel.
    pub mac: [u8; 6],
    /// Longest frame for user space, as [`XdpConfig::max_frame`], with the tag.
    pub max_frame: u32,
    /// Packets that go to the kernel.
    pub gate: XdpGate,
    /// Source check, as [`XdpConfig::source_check`].
    pub source_check: RpFilter,
    /// Set if policy routing rules apply, as [`XdpConfig::rules`].
    pub rules: bool,
    /// Frames with the tag between members of a bridge, as [`XdpConfig::bridging`].
    pub bridging: XdpBridging,
}

/// IPv4 source validation by reverse path in the XDP program: the values of `rp_filter` (ip-sysctl), RFC 3704.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RpFilter {
    /// No check.
    #[default]
    Off,
    /// There must be a unicast route to the source (`rp_filter` 2). Only for a port with an IPv4 address: Linux checks
    /// strictly on others.
    Loose,
    /// The route to the source must leave by the ingress port (`rp_filter` 1).
    Strict,
}
