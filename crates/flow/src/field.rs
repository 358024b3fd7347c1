//! Fields that flows match and set: names, positions, widths and prerequisites.

use crate::key::{Flow, at};

/// Prerequisite for a packet to have a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// No prerequisite.
    Nothing,
    /// A VLAN tag.
    Vlan,
    /// An MPLS label.
    Mpls,
    /// ARP or RARP.
    Arp,
    /// IPv4.
    Ip4,
    /// IPv6.
    Ip6,
    /// IPv4 or IPv6.
    Ip,
    /// This protocol in IPv4 or IPv6, not in a later fragment.
    Proto(u8),
    /// TCP, UDP or SCTP, not in a later fragment.
    Ports,
    /// ICMP in IPv4.
    Icmp4,
    /// ICMPv6.
    Icmp6,
    /// A neighbour solicitation or advertisement.
    Nd,
    /// A neighbour solicitation.
    NdSolicit,
    /// A neighbour advertisement.
    NdAdvert,
}

/// Notation of a field's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A number, shown in decimal.
    Decimal,
    /// A number, shown in hexadecimal.
    Hex,
    /// An Ethernet address.
    Mac,
    /// An IPv4 address.
    Ip4,
    /// An IPv6 address.
    Ip6,
    /// A port's number or name.
    Port,
    /// `no`, `yes`, `first`, `later`, `not_later`.
    Frag,
    /// TCP flags: a number, or `+syn-ack`.
    TcpFlags,
}

/// Description of a field.
#[derive(Debug)]
pub struct Info {
    /// Names in ovs-ofctl syntax: first the name that OVS shows, then the accepted aliases.
    pub names: &'static [&'static str],
    /// Offset of its first byte in a [`Flow`].
    at: usize,
    /// Number of bytes that contain it.
    bytes: usize,
    /// Number of bits below it in those bytes.
    low: u32,
    /// Width in bits.
    pub bits: u32,
    /// Prerequisite for a packet to have it.
    pub needs: Needs,
    /// Notation of its value.
    pub form: Form,
    /// Set if it can be matched under a mask; if not, only as a whole.
    pub maskable: bool,
    /// Set if actions can set it.
    pub writable: bool,
}

macro_rules! fields {
    ($($name:ident: $names:expr, $at:expr, $bytes:expr, $low:expr, $bits:expr, $needs:expr, $form:expr, $flags:expr;)*) => {
        /// Field that flows can match.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[allow(missing_docs)]
        pub enum Field { $($name,)* }

        /// All fields, in the enum's order.
        pub const FIELDS: &[Field] = &[$(Field::$name,)*];

        static INFO: &[Info] = &[$(Info {
            names: &$names, at: $at, bytes: $bytes, low: $low, bits: $bits, needs: $needs, form: $form,
            maskable: $flags & MASK != 0, writable: $flags & WRITE != 0,
        },)*];
    };
}

const MASK: u8 = 1;
const WRITE: u8 = 2;

use Form::{Decimal, Frag, Hex, Mac, Port, TcpFlags};
use Needs::{Arp, Icmp4, Icmp6, Ip, Ip4, Ip6, Mpls, Nd, NdAdvert, NdSolicit, Nothing, Ports, Proto, Vlan};

fields! {
    InPort: ["in_port", "NXM_OF_IN_PORT", "OXM_OF_IN_PORT"], at::IN_PORT, 2, 0, 16, Nothing, Port, WRITE;
    DlSrc: ["dl_src", "eth_src", "NXM_OF_ETH_SRC", "OXM_OF_ETH_SRC"], at::DL_SRC, 6, 0, 48, Nothing, Mac, MASK | WRITE;
    DlDst: ["dl_dst", "eth_dst", "NXM_OF_ETH_DST", "OXM_OF_ETH_DST"], at::DL_DST, 6, 0, 48, Nothing, Mac, MASK | WRITE;
    DlType: ["dl_type", "eth_type", "NXM_OF_ETH_TYPE", "OXM_OF_ETH_TYPE"], at::DL_TYPE, 2, 0, 16, Nothing, Hex, 0;
    VlanTci: ["vlan_tci", "NXM_OF_VLAN_TCI"], at::VLAN_TCI, 2, 0, 16, Nothing, Hex, MASK | WRITE;
    VlanVid: ["vlan_vid", "OXM_OF_VLAN_VID"], at::VLAN_TCI, 2, 0, 12, Vlan, Decimal, MASK | WRITE;
    VlanPcp: ["vlan_pcp", "OXM_OF_VLAN_PCP"], at::VLAN_TCI, 2, 13, 3, Vlan, Decimal, WRITE;
    MplsLabel: ["mpls_label", "OXM_OF_MPLS_LABEL"], at::MPLS, 3, 4, 20, Mpls, Decimal, WRITE;
    MplsTc: ["mpls_tc", "OXM_OF_MPLS_TC"], at::MPLS + 2, 1, 1, 3, Mpls, Decimal, WRITE;
    MplsBos: ["mpls_bos", "OXM_OF_MPLS_BOS"], at::MPLS + 2, 1, 0, 1, Mpls, Decimal, 0;
    MplsTtl: ["mpls_ttl", "NXM_NX_MPLS_TTL"], at::MPLS + 3, 1, 0, 8, Mpls, Decimal, WRITE;
    NwSrc: ["nw_src", "ip_src", "NXM_OF_IP_SRC", "OXM_OF_IPV4_SRC"], at::NW_SRC, 4, 0, 32, Ip4, Form::Ip4, MASK | WRITE;
    NwDst: ["nw_dst", "ip_dst", "NXM_OF_IP_DST", "OXM_OF_IPV4_DST"], at::NW_DST, 4, 0, 32, Ip4, Form::Ip4, MASK | WRITE;
    Ipv6Src: ["ipv6_src", "NXM_NX_IPV6_SRC", "OXM_OF_IPV6_SRC"], at::IPV6_SRC, 16, 0, 128, Ip6, Form::Ip6, MASK | WRITE;
    Ipv6Dst: ["ipv6_dst", "NXM_NX_IPV6_DST", "OXM_OF_IPV6_DST"], at::IPV6_DST, 16, 0, 128, Ip6, Form::Ip6, MASK | WRITE;
    Ipv6Label: ["ipv6_label", "NXM_NX_IPV6_LABEL", "OXM_OF_IPV6_FLABEL"], at::LABEL, 3, 0, 20, Ip6, Hex, MASK | WRITE;
    NwProto: ["nw_proto", "ip_proto", "NXM_OF_IP_PROTO", "OXM_OF_IP_PROTO"], at::NW_PROTO, 1, 0, 8, Ip, Decimal, 0;
    NwTos: ["nw_tos", "NXM_OF_IP_TOS"], at::NW_TOS, 1, 0, 8, Ip, Decimal, WRITE;
    IpDscp: ["ip_dscp", "OXM_OF_IP_DSCP"], at::NW_TOS, 1, 2, 6, Ip, Decimal, WRITE;
    NwEcn: ["nw_ecn", "ip_ecn", "NXM_NX_IP_ECN", "OXM_OF_IP_ECN"], at::NW_TOS, 1, 0, 2, Ip, Decimal, WRITE;
    NwTtl: ["nw_ttl", "NXM_NX_IP_TTL"], at::NW_TTL, 1, 0, 8, Ip, Decimal, WRITE;
    IpFrag: ["ip_frag", "nw_frag", "NXM_NX_IP_FRAG"], at::NW_FRAG, 1, 0, 2, Ip, Frag, MASK;
    ArpOp: ["arp_op", "NXM_OF_ARP_OP", "OXM_OF_ARP_OP"], at::NW_PROTO, 1, 0, 8, Arp, Decimal, WRITE;
    ArpSpa: ["arp_spa", "NXM_OF_ARP_SPA", "OXM_OF_ARP_SPA"], at::NW_SRC, 4, 0, 32, Arp, Form::Ip4, MASK | WRITE;
    ArpTpa: ["arp_tpa", "NXM_OF_ARP_TPA", "OXM_OF_ARP_TPA"], at::NW_DST, 4, 0, 32, Arp, Form::Ip4, MASK | WRITE;
    ArpSha: ["arp_sha", "NXM_NX_ARP_SHA", "OXM_OF_ARP_SHA"], at::ARP_SHA, 6, 0, 48, Arp, Mac, MASK | WRITE;
    ArpTha: ["arp_tha", "NXM_NX_ARP_THA", "OXM_OF_ARP_THA"], at::ARP_THA, 6, 0, 48, Arp, Mac, MASK | WRITE;
    TcpSrc: ["tcp_src", "NXM_OF_TCP_SRC", "OXM_OF_TCP_SRC"], at::TP_SRC, 2, 0, 16, Proto(6), Decimal, MASK | WRITE;
    TcpDst: ["tcp_dst", "NXM_OF_TCP_DST", "OXM_OF_TCP_DST"], at::TP_DST, 2, 0, 16, Proto(6), Decimal, MASK | WRITE;
    TcpFlags: ["tcp_flags", "NXM_NX_TCP_FLAGS", "OXM_OF_TCP_FLAGS"], at::TCP_FLAGS, 2, 0, 12, Proto(6), TcpFlags, MASK;
    UdpSrc: ["udp_src", "NXM_OF_UDP_SRC", "OXM_OF_UDP_SRC"], at::TP_SRC, 2, 0, 16, Proto(17), Decimal, MASK | WRITE;
    UdpDst: ["udp_dst", "NXM_OF_UDP_DST", "OXM_OF_UDP_DST"], at::TP_DST, 2, 0, 16, Proto(17), Decimal, MASK | WRITE;
    SctpSrc: ["sctp_src", "OXM_OF_SCTP_SRC"], at::TP_SRC, 2, 0, 16, Proto(132), Decimal, MASK | WRITE;
    SctpDst: ["sctp_dst", "OXM_OF_SCTP_DST"], at::TP_DST, 2, 0, 16, Proto(132), Decimal, MASK | WRITE;
    TpSrc: ["tp_src"], at::TP_SRC, 2, 0, 16, Ports, Decimal, MASK | WRITE;
    TpDst: ["tp_dst"], at::TP_DST, 2, 0, 16, Ports, Decimal, MASK | WRITE;
    IcmpType: ["icmp_type", "NXM_OF_ICMP_TYPE", "OXM_OF_ICMPV4_TYPE"], at::TP_SRC + 1, 1, 0, 8, Icmp4, Decimal, WRITE;
    IcmpCode: ["icmp_code", "NXM_OF_ICMP_CODE", "OXM_OF_ICMPV4_CODE"], at::TP_DST + 1, 1, 0, 8, Icmp4, Decimal, WRITE;
    Icmp6Type: ["icmpv6_type", "NXM_NX_ICMPV6_TYPE", "OXM_OF_ICMPV6_TYPE"], at::TP_SRC + 1, 1, 0, 8, Icmp6, Decimal, WRITE;
    Icmp6Code: ["icmpv6_code", "NXM_NX_ICMPV6_CODE", "OXM_OF_ICMPV6_CODE"], at::TP_DST + 1, 1, 0, 8, Icmp6, Decimal, WRITE;
    NdTarget: ["nd_target", "NXM_NX_ND_TARGET", "OXM_OF_IPV6_ND_TARGET"], at::ND_TARGET, 16, 0, 128, Nd, Form::Ip6, MASK | WRITE;
    NdSll: ["nd_sll", "NXM_NX_ND_SLL", "OXM_OF_IPV6_ND_SLL"], at::ARP_SHA, 6, 0, 48, NdSolicit, Mac, MASK | WRITE;
    NdTll: ["nd_tll", "NXM_NX_ND_TLL", "OXM_OF_IPV6_ND_TLL"], at::ARP_THA, 6, 0, 48, NdAdvert, Mac, MASK | WRITE;
    Metadata: ["metadata", "OXM_OF_METADATA"], at::METADATA, 8, 0, 64, Nothing, Hex, MASK | WRITE;
    Reg0: ["reg0", "NXM_NX_REG0"], at::REGS, 4, 0, 32, Nothing, Hex, MASK | WRITE;
    Reg1: ["reg1", "NXM_NX_REG1"], at::REGS + 4, 4, 0, 32, Nothing, Hex, MASK | WRITE;
    Reg2: ["reg2", "NXM_NX_REG2"], at::REGS + 8, 4, 0, 32, Nothing, Hex, MASK | WRITE;
    Reg3: ["reg3", "NXM_NX_REG3"], at::REGS + 12, 4, 0, 32, Nothing, Hex, MASK | WRITE;
    Reg4: ["reg4", "NXM_NX_REG4"], at::REGS + 16, 4, 0, 32, Nothing, Hex, MASK | WRITE;
    Reg5: ["reg5", "NXM_NX_REG5"], at::REGS + 20, 4, 0, 32, Nothing, Hex, MASK | WRITE;
    Reg6: ["reg6", "NXM_NX_REG6"], at::REGS + 24, 4, 0, 32, Nothing, Hex, MASK | WRITE;
    Reg7: ["reg7", "NXM_NX_REG7"], at::REGS + 28, 4, 0, 32, Nothing, Hex, MASK | WRITE;
    Reg8: ["reg8", "NXM_NX_REG8"], at::REGS + 32, 4, 0, 32, Nothing, Hex, MASK | WRITE;
    Reg9: ["reg9", "NXM_NX_REG9"], at::REGS + 36, 4, 0, 32, Nothing, Hex, MASK | WRITE;
    Reg10: ["reg10", "NXM_NX_REG10"], at::REGS + 40, 4, 0, 32, Nothing, Hex, MASK | WRITE;
    Reg11: ["reg11", "NXM_NX_REG11"], at::REGS + 44, 4, 0, 32, Nothing, Hex, MASK | WRITE;
    Reg12: ["reg12", "NXM_NX_REG12"], at::REGS + 48, 4, 0, 32, Nothing, Hex, MASK | WRITE;
    Reg13: ["reg13", "NXM_NX_REG13"], at::REGS + 52, 4, 0, 32, Nothing, Hex, MASK | WRITE;
    Reg14: ["reg14", "NXM_NX_REG14"], at::REGS + 56, 4, 0, 32, Nothing, Hex, MASK | WRITE;
    Reg15: ["reg15", "NXM_NX_REG15"], at::REGS + 60, 4, 0, 32, Nothing, Hex, MASK | WRITE;
    XReg0: ["xreg0", "OXM_OF_PKT_REG0"], at::REGS, 8, 0, 64, Nothing, Hex, MASK | WRITE;
    XReg1: ["xreg1", "OXM_OF_PKT_REG1"], at::REGS + 8, 8, 0, 64, Nothing, Hex, MASK | WRITE;
    XReg2: ["xreg2", "OXM_OF_PKT_REG2"], at::REGS + 16, 8, 0, 64, Nothing, Hex, MASK | WRITE;
    XReg3: ["xreg3", "OXM_OF_PKT_REG3"], at::REGS + 24, 8, 0, 64, Nothing, Hex, MASK | WRITE;
    XReg4: ["xreg4", "OXM_OF_PKT_REG4"], at::REGS + 32, 8, 0, 64, Nothing, Hex, MASK | WRITE;
    XReg5: ["xreg5", "OXM_OF_PKT_REG5"], at::REGS + 40, 8, 0, 64, Nothing, Hex, MASK | WRITE;
    XReg6: ["xreg6", "OXM_OF_PKT_REG6"], at::REGS + 48, 8, 0, 64, Nothing, Hex, MASK | WRITE;
    XReg7: ["xreg7", "OXM_OF_PKT_REG7"], at::REGS + 56, 8, 0, 64, Nothing, Hex, MASK | WRITE;
    XXReg0: ["xxreg0", "NXM_NX_XXREG0"], at::REGS, 16, 0, 128, Nothing, Hex, MASK | WRITE;
    XXReg1: ["xxreg1", "NXM_NX_XXREG1"], at::REGS + 16, 16, 0, 128, Nothing, Hex, MASK | WRITE;
    XXReg2: ["xxreg2", "NXM_NX_XXREG2"], at::REGS + 32, 16, 0, 128, Nothing, Hex, MASK | WRITE;
    XXReg3: ["xxreg3", "NXM_NX_XXREG3"], at::REGS + 48, 16, 0, 128, Nothing, Hex, MASK | WRITE;
    PktMark: ["pkt_mark", "NXM_NX_PKT_MARK"], at::PKT_MARK, 4, 0, 32, Nothing, Hex, MASK | WRITE;
    ConjId: ["conj_id", "NXM_NX_CONJ_ID"], at::CONJ_ID, 4, 0, 32, Nothing, Decimal, 0;
}

impl Field {
    /// Returns the field's description.
    pub fn info(self) -> &'static Info {
        &INFO[self as usize]
    }

    /// Returns the name that OVS shows.
    pub fn name(self) -> &'static str {
        self.info().names[0]
    }

    /// Returns the name used in `load` and `move`: the NXM or OXM name if there is one.
    pub fn nxm(self) -> &'static str {
        let names = self.info().names;
        names.iter().find(|n| n.starts_with("NXM") || n.starts_with("OXM")).copied().unwrap_or(names[0])
    }

    /// Returns the field with this name or alias.
    pub fn find(name: &str) -> Option<Self> {
        FIELDS.iter().copied().find(|f| f.info().names.contains(&name))
    }

    /// Returns a value with all bits of the field set. Of `nw_tos`, these are the bits of the DSCP, as in OVS: the
    /// other two are `nw_ecn`.
    pub fn all(self) -> u128 {
        if self == Self::NwTos { 0xfc } else { ones(self.info().bits) }
    }

    /// Returns the field's value in `flow`.
    pub fn get(self, flow: &Flow) -> u128 {
        let info = self.info();
        flow.bytes()[info.at..info.at + info.bytes].iter().fold(0, |v, b| v << 8 | u128::from(*b)) >> info.low
            & self.all()
    }

    /// Sets the field's bits selected by `mask` to those of `value`.
    pub fn set_masked(self, flow: &mut Flow, value: u128, mask: u128) {
        let info = self.info();
        let mask = (mask & self.all()) << info.low;
        let value = (value << info.low) & mask;
        let bytes = &mut flow.bytes_mut()[info.at..info.at + info.bytes];
        for (i, byte) in bytes.iter_mut().rev().enumerate() {
            *byte = *byte & !((mask >> (8 * i)) as u8) | (value >> (8 * i)) as u8;
        }
    }

    /// Sets the field to `value`.
    pub fn set(self, flow: &mut Flow, value: u128) {
        self.set_masked(flow, value, u128::MAX);
    }

    /// Returns a flow mask that selects the given bits of the field.
    pub fn mask(self, bits: u128) -> Flow {
        let mut mask = Flow::default();
        self.set(&mut mask, bits);
        mask
    }
}

/// Returns a mask of the lowest `n` bits, 0 to 128.
pub(crate) fn ones(n: u32) -> u128 {
    if n >= 128 { u128::MAX } else { (1 << n) - 1 }
}

/// Contiguous bits of a field, such as `NXM_NX_REG0[4..7]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subfield {
    /// Field.
    pub field: Field,
    /// Index of the lowest bit.
    pub low: u32,
    /// Number of bits.
    pub bits: u32,
}

impl Subfield {
    /// Returns the subfield that is the whole field.
    pub fn whole(field: Field) -> Self {
        Self { field, low: 0, bits: field.info().bits }
    }

    /// Returns the subfield's value in `flow`.
    pub fn get(self, flow: &Flow) -> u128 {
        self.field.get(flow) >> self.low & ones(self.bits)
    }

    /// Returns a mask of the subfield's bits within the field.
    pub fn mask(self) -> u128 {
        ones(self.bits) << self.low
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_are_unique() {
        let names: Vec<&str> = FIELDS.iter().flat_map(|f| f.info().names).copied().collect();
        for (i, name) in names.iter().enumerate() {
            assert!(!names[..i].contains(name), "{name}");
        }
    }

    proptest! {
        #[test]
        fn set_is_what_get_gets(at in 0..FIELDS.len(), value: u128, mask: u128, noise: [u64; 4]) {
            let field = FIELDS[at];
            let mut flow = Flow(std::array::from_fn(|i| noise[i % 4]));
            let before = flow;
            field.set_masked(&mut flow, value, mask);
            let mask = mask & field.all();
            prop_assert_eq!(field.get(&flow), field.get(&before) & !mask | value & mask);
            prop_assert!(field.mask(mask).covers(&flow.differing(&before)));
        }
    }
}
