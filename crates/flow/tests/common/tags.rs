//! VLAN tags in generated flows and packets.

use super::generate::{Kind, Random};

/// Returns an action on tags that a packet of this kind can have; `None` if it cannot have the one drawn.
pub fn change(r: &mut Random, kind: &mut Kind) -> Option<String> {
    let tagged = kind.loose || kind.vlans[0];
    Some(match r.below(10) {
        // In OpenFlow 1.1 and later, ovs-ofctl turns `mod_vlan_vid` into pushing a tag if the flow matches no tag.
        0 | 1 if tagged => {
            kind.vlans[0] = true;
            format!("{}_vlan_vid:{}", if kind.loose { "mod" } else { "set" }, [5, 10, 7, 0][r.below(4) as usize])
        }
        2 if tagged => {
            kind.vlans[0] = true;
            format!("{}_vlan_pcp:{}", if kind.loose { "mod" } else { "set" }, r.below(8))
        }
        3 | 4 if tagged => {
            kind.vlans = if kind.vlans[0] { [kind.vlans[1], false] } else { kind.vlans };
            "strip_vlan".into()
        }
        5 | 6 if !kind.loose && !kind.vlans[1] && !kind.no_push => {
            kind.vlans = [true, kind.vlans[0]];
            format!("push_vlan:{}", r.pick(&["0x8100", "0x88a8"]))
        }
        7 if kind.vlans[0] => format!("set_field:{}->vlan_vid", 4096 + r.below(4000)),
        8 => {
            let tci = r.pick(&["0", "0x1005", "0xf00a", "0x0005"]);
            kind.vlans[0] = tci.starts_with("0x1") || tci.starts_with("0xf");
            format!("load:{tci}->NXM_OF_VLAN_TCI[]")
        }
        9 => match r.below(2) {
            0 => format!("move:NXM_OF_VLAN_TCI[0..11]->NXM_NX_REG{}[0..11]", r.below(3)),
            _ => format!("move:NXM_NX_REG{}[0..3]->NXM_OF_VLAN_TCI[0..3]", r.below(3)),
        },
        _ => return None,
    })
}

/// Puts up to three tags behind the addresses of an untagged frame.
pub fn insert(r: &mut Random, bytes: &mut Vec<u8>) {
    for _ in 0..[0, 0, 0, 1, 1, 2, 2, 3][r.below(8) as usize] {
        let tpid = if r.one_in(4) { 0x88a8u16 } else { 0x8100 };
        let priority = if r.one_in(3) { 0 } else { r.below(8) << 13 };
        let tci = (priority | [0, 5, 10][r.below(3) as usize]) as u16;
        bytes.splice(12..12, [tpid.to_be_bytes(), tci.to_be_bytes()].concat());
    }
}

/// Sets the drop eligible bit of some tags. OVS clears it when it removes a tag for one port and pushes it again for
/// the next, and takes the ports of `normal` in an order of its own.
pub fn make_eligible(r: &mut Random, bytes: &mut [u8]) {
    for tag in bytes[12..].chunks_exact_mut(4).take_while(|tag| matches!(tag[..2], [0x81, 0] | [0x88, 0xa8])) {
        tag[2] |= if r.one_in(8) { 0x10 } else { 0 };
    }
}
