//! MPLS in generated flows and packets.

use super::generate::{Kind, Random};

/// Adds conditions on labels to a match.
pub fn matches(r: &mut Random, kind: &mut Kind, put: &mut impl FnMut(String)) {
    kind.mpls = true;
    put(if r.one_in(4) { "mplsm" } else { "mpls" }.into());
    if r.one_in(4) {
        put(format!("mpls_label={}", LABELS[r.below(5) as usize]));
    }
    match r.below(8) {
        0 => put(format!("mpls_tc={}", r.below(4))),
        1 => put(format!("mpls_bos={}", r.below(2))),
        2 => put(format!("mpls_ttl={}", TTLS[r.below(6) as usize])),
        _ => {}
    }
}

/// Returns an action on labels that a packet of this kind can have; `None` if it cannot have the one drawn.
pub fn change(r: &mut Random, kind: &mut Kind) -> Option<String> {
    let drawn = r.below(9);
    let dl_type = if r.one_in(4) { "0x8848" } else { "0x8847" };
    let has = kind.mpls || kind.loose;
    let (ip, to) = [(4, "0x0800"), (4, "0x0800"), (6, "0x86dd"), (0, "0x88b5")][r.below(4) as usize];
    let becomes = |kind: &mut Kind, mpls, ip| {
        (kind.mpls, kind.ip, kind.proto) = (mpls, ip, 0);
        (kind.arp, kind.nd) = (false, 0);
    };
    Some(match drawn {
        0..=2 => {
            becomes(kind, true, 0);
            format!("push_mpls:{dl_type}")
        }
        3 if has => {
            becomes(kind, true, 0);
            format!("pop_mpls:{dl_type}")
        }
        4 if has && kind.bares => {
            becomes(kind, false, ip);
            format!("pop_mpls:{to}")
        }
        5 if has => format!("set_mpls_label:{}", LABELS[r.below(5) as usize]),
        6 if has => "dec_mpls_ttl".into(),
        7 if has => match r.below(2) {
            0 => format!("set_mpls_tc:{}", r.below(8)),
            _ => format!("set_mpls_ttl:{}", TTLS[r.below(6) as usize]),
        },
        8 if kind.mpls => match r.below(4) {
            0 => format!("set_field:{}->mpls_label", LABELS[r.below(5) as usize]),
            1 => format!("load:{}->OXM_OF_MPLS_LABEL[4..7]", r.below(16)),
            2 => format!("move:OXM_OF_MPLS_LABEL[0..7]->NXM_NX_REG{}[0..7]", r.below(3)),
            _ => format!("move:NXM_NX_REG{}[0..2]->OXM_OF_MPLS_TC[]", r.below(3)),
        },
        _ => return None,
    })
}

const LABELS: [u32; 5] = [0, 2, 5, 100, 0xf_ffff];
const TTLS: [u32; 6] = [1, 2, 64, 63, 255, 0];

/// Puts labels behind the Ethernet type of an untagged frame. The bottom of the stack may be deeper than can be read,
/// or not be marked, which makes labels of the packet behind.
pub fn insert(r: &mut Random, bytes: &mut Vec<u8>) {
    bytes[12..14].copy_from_slice(&if r.one_in(4) { [0x88, 0x48] } else { [0x88, 0x47] });
    let n = [1, 1, 1, 2, 2, 3, 4][r.below(7) as usize];
    for i in 0..n {
        let bottom = if i == 0 && !r.one_in(12) { 0x100 } else { 0 };
        let entry = LABELS[r.below(5) as usize] << 12 | (r.below(4) as u32) << 9 | bottom | TTLS[r.below(6) as usize];
        // OVS does not count entries of zeros.
        let entry = if entry == 0 { 5 << 12 } else { entry };
        bytes.splice(14..14, entry.to_be_bytes());
    }
}

/// Returns the offset behind the labels of a frame whose Ethernet type is in front of `at`.
pub fn behind(bytes: &[u8], mut at: usize) -> usize {
    if matches!(bytes[at - 2..at], [0x88, 0x47 | 0x48]) {
        while let Some(entry) = bytes[at..].first_chunk::<4>() {
            at += 4;
            if entry[2] & 1 != 0 {
                break;
            }
        }
    }
    at
}
