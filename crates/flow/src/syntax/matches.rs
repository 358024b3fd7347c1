//! Parser of match conditions, with the prerequisites of fields.

use super::PortNames;
use super::text::{SyntaxError, Text};
use super::value;
use crate::field::{Field, Needs};
use crate::key::TAGGED;
use crate::model::Match;
use bywash_wire::ethernet::ethertype;

/// Protocol shorthands: name, Ethernet type, and IP protocol if any.
pub const SHORTHANDS: [(&str, u16, Option<u8>); 15] = [
    ("ip", 0x800, None),
    ("icmp", 0x800, Some(1)),
    ("tcp", 0x800, Some(6)),
    ("udp", 0x800, Some(17)),
    ("sctp", 0x800, Some(132)),
    ("arp", 0x806, None),
    ("rarp", 0x8035, None),
    ("ipv6", 0x86dd, None),
    ("ip6", 0x86dd, None),
    ("tcp6", 0x86dd, Some(6)),
    ("udp6", 0x86dd, Some(17)),
    ("sctp6", 0x86dd, Some(132)),
    ("icmp6", 0x86dd, Some(58)),
    ("mpls", ethertype::MPLS, None),
    ("mplsm", ethertype::MPLS_UPSTREAM, None),
];

/// Conditions in the order given, with their positions in the line, to report which one lacks its prerequisite.
#[derive(Default)]
pub struct Conditions<'a> {
    given: Vec<(Field, Text<'a>)>,
}

impl<'a> Conditions<'a> {
    /// Parses a condition and adds it to `matches`. Returns `false` if `name` is not a match field.
    pub fn take(
        &mut self,
        matches: &mut Match,
        name: Text<'a>,
        text: Option<Text<'a>>,
        names: PortNames<'_>,
    ) -> Result<bool, SyntaxError> {
        if let Some((_, dl_type, protocol)) = SHORTHANDS.iter().find(|(s, ..)| *s == name.str()) {
            if text.is_some() {
                return name.wrong(format!("`{}` takes no value", name.str()));
            }
            self.add(matches, Field::DlType, name, u128::from(*dl_type), u128::MAX)?;
            if let Some(protocol) = protocol {
                self.add(matches, Field::NwProto, name, u128::from(*protocol), u128::MAX)?;
            }
            return Ok(true);
        }
        let vlan = match name.str() {
            "dl_vlan" => Some((0xfff, 0)),
            "dl_vlan_pcp" | "vlan_pcp" => Some((7, 13)),
            "vlan_vid" => Some((0x1fff, 0)),
            _ => None,
        };
        let Some(text) = text else {
            return match Field::find(name.str()) {
                Some(_) => name.wrong(format!("{} needs a value", name.str())),
                None => Ok(false),
            };
        };
        if let Some((most, low)) = vlan {
            return self.vlan(matches, name, text, most, low).map(|()| true);
        }
        let Some(field) = Field::find(name.str()) else { return Ok(false) };
        let (value, mask) = value::masked(text, field, names)?;
        match field {
            Field::NwTos => self.add(matches, Field::IpDscp, name, value >> 2, u128::MAX)?,
            _ => self.add(matches, field, name, value, mask)?,
        }
        Ok(true)
    }

    /// Parses VLAN conditions: `dl_vlan=10`, `dl_vlan=0xffff` (no tag), `vlan_vid=0x100a/0x1fff`, `dl_vlan_pcp=3`.
    fn vlan(
        &mut self,
        matches: &mut Match,
        name: Text<'a>,
        text: Text<'a>,
        most: u128,
        low: u32,
    ) -> Result<(), SyntaxError> {
        let (value, mask) = match text.split("/") {
            Some((value, mask)) if name.str() == "vlan_vid" => (value, value::number(mask, 13)?),
            _ => (text, most),
        };
        let given = value::number(value, 16)?;
        let tagged = u128::from(TAGGED);
        let (value, mask) = match name.str() {
            "dl_vlan" if given == 0xffff => (0, u128::from(u16::MAX)),
            "dl_vlan" if given <= most => (given | tagged, mask | tagged),
            "vlan_vid" if given <= most => (given & mask, mask),
            "dl_vlan_pcp" | "vlan_pcp" if given <= most => (given << low | tagged, most << low | tagged),
            _ => return text.wrong(format!("{given} is too large for {}: at most {most}", name.str())),
        };
        self.add(matches, Field::VlanTci, name, value, mask)
    }

    fn add(
        &mut self,
        matches: &mut Match,
        field: Field,
        name: Text<'a>,
        value: u128,
        mask: u128,
    ) -> Result<(), SyntaxError> {
        let mask = mask & field.all();
        let known = field.get(&matches.mask) & mask;
        if (field.get(&matches.value) ^ value) & known != 0 {
            return name.wrong(format!("contradicts an earlier condition on {}", field.name()));
        }
        matches.add(field, value, mask);
        self.given.push((field, name));
        Ok(())
    }

    /// Checks that every condition has its prerequisite.
    pub fn finish(self, matches: &Match) -> Result<(), SyntaxError> {
        for (field, name) in self.given {
            // The fields of ICMP and ICMPv6 are the same to OVS, which shows either by the names of ICMP's.
            let lacking = match field.info().needs {
                Needs::Icmp4 | Needs::Icmp6 => {
                    let either = [Needs::Icmp4, Needs::Icmp6].map(|needs| lacking(needs, matches));
                    either.iter().all(Option::is_some).then_some("icmp or icmp6")
                }
                needs => lacking(needs, matches),
            };
            if let Some(lacking) = lacking {
                return name.wrong(format!("{} can only be matched with {lacking}", name.str()));
            }
        }
        Ok(())
    }
}

/// Returns the prerequisite that `matches` lacks for `needs`, in the words of the syntax, or `None` if it is met.
pub fn lacking(needs: Needs, matches: &Match) -> Option<&'static str> {
    let dl_type = matches.exact(Field::DlType).map(|v| v as u16);
    let protocol = matches.exact(Field::NwProto).map(|v| v as u8);
    let is = |types: &[u16], protocols: &[u8]| {
        dl_type.is_some_and(|t| types.contains(&t))
            && (protocols.is_empty() || protocol.is_some_and(|p| protocols.contains(&p)))
    };
    const IP: [u16; 2] = [ethertype::IPV4, ethertype::IPV6];
    let nd = |kinds: &[u128]| {
        is(&IP[1..], &[58])
            && matches.exact(Field::Icmp6Type).is_some_and(|k| kinds.contains(&k))
            // Packets with any other code do not have these fields, which is why it need not be matched.
            && Field::Icmp6Code.get(&matches.value) == 0
    };
    let (ok, what) = match needs {
        Needs::Nothing => (true, ""),
        Needs::Vlan => (Field::VlanTci.get(&matches.value) & u128::from(TAGGED) != 0, "dl_vlan or vlan_tci"),
        Needs::Mpls => (is(&[ethertype::MPLS, ethertype::MPLS_UPSTREAM], &[]), "mpls or mplsm"),
        Needs::Arp => (is(&[ethertype::ARP, 0x8035], &[]), "arp or rarp"),
        Needs::Ip4 => (is(&IP[..1], &[]), "ip"),
        Needs::Ip6 => (is(&IP[1..], &[]), "ipv6"),
        Needs::Ip => (is(&IP, &[]), "ip or ipv6"),
        Needs::Proto(6) => (is(&IP, &[6]), "tcp or tcp6"),
        Needs::Proto(17) => (is(&IP, &[17]), "udp or udp6"),
        Needs::Proto(_) => (is(&IP, &[132]), "sctp or sctp6"),
        Needs::Ports => (is(&IP, &[6, 17, 132]), "tcp, udp, sctp, tcp6, udp6 or sctp6"),
        Needs::Icmp4 => (is(&IP[..1], &[1]), "icmp"),
        Needs::Icmp6 => (is(&IP[1..], &[58]), "icmp6"),
        Needs::Nd => (nd(&[135, 136]), "icmp6,icmpv6_type=135 or 136"),
        Needs::NdSolicit => (nd(&[135]), "icmp6,icmpv6_type=135"),
        Needs::NdAdvert => (nd(&[136]), "icmp6,icmpv6_type=136"),
    };
    (!ok).then_some(what)
}
