//! Generator of flow tables in ovs-ofctl syntax and of packets. Values come from small sets, so that packets hit flows.

use super::{labels, masked, tags};
use bywash_wire::build::Packet;
use bywash_wire::ethernet::MacAddr;
use std::fmt::Write;

/// xorshift64* generator (Vigna 2016), which gives the same numbers on every machine.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        let mut this = Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        for _ in 0..4 {
            this.next();
        }
        this
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        (self.next() >> 32) % n
    }

    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    pub fn pick<'a, T: ?Sized>(&mut self, from: &[&'a T]) -> &'a T {
        from[self.below(from.len() as u64) as usize]
    }
}

pub const PORTS: u16 = 5;
pub const MACS: [&str; 5] =
    ["02:00:00:00:00:01", "02:00:00:00:00:02", "02:00:00:00:01:03", "ff:ff:ff:ff:ff:ff", "01:00:5e:00:00:05"];
pub const IPS: [&str; 6] = ["10.0.0.1", "10.0.0.2", "10.0.1.1", "10.128.0.1", "192.168.0.1", "224.0.0.5"];
pub const IP6S: [&str; 4] = ["fd00::1", "fd00::2", "fd00:0:0:1::1", "2001:db8::1"];
pub const TP: [&str; 5] = ["80", "443", "1024", "5000", "65535"];

/// Properties of packets that a flow is known to match.
#[derive(Default, Clone, Copy)]
pub struct Kind {
    /// Set if actions may use fields that the match does not guarantee: only in OpenFlow 1.0, without groups and
    /// `goto_table`.
    pub loose: bool,
    pub ip: u8,
    pub proto: u8,
    /// Whether there is an outer and an inner tag, in OVS's reckoning when it reads actions.
    pub vlans: [bool; 2],
    pub arp: bool,
    pub mpls: bool,
    /// Set if actions may change labels.
    labels: bool,
    pub bares: bool,
    /// Set if no tag is to be pushed, because OVS recirculates the packet: then its datapath reads the tags again.
    pub no_push: bool,
    /// Type of a neighbour discovery message; 0 for other packets.
    pub nd: u8,
}

/// Flow tables and what they need.
pub struct Tables {
    /// OpenFlow version.
    pub version: &'static str,
    /// Groups, meters and flows in ovs-ofctl syntax.
    pub groups: Vec<String>,
    pub meters: Vec<String>,
    pub flows: Vec<String>,
    /// Set if packets teach addresses or flows.
    pub learns: bool,
    /// Set if packets have labels.
    labels: bool,
    /// Set if there are flows with the action `normal`.
    normal: bool,
    /// Set if OVS recirculates packets: what it sends before is sent even if what follows is too much, and it counts
    /// anew.
    pub recirculates: bool,
}

impl Tables {
    /// Returns the length that packets for the tables must have: [`LONG`] if a meter decides by it, else 0.
    fn length(&self) -> usize {
        if self.meters.is_empty() { 0 } else { LONG }
    }

    /// Returns a random packet that ends with `mark`.
    pub fn packet(&self, r: &mut Random, mark: u32) -> Vec<u8> {
        let mut bytes = packet(r, mark, self.length(), if self.labels { 2 } else { 16 });
        if !self.normal {
            tags::make_eligible(r, &mut bytes);
        }
        bytes
    }
}

/// Length of a packet that a meter with [`CLOSED`] never lets pass.
const LONG: usize = 200;
/// Meters that let every packet pass, and no packet of [`LONG`] bytes: their burst is one second's worth.
const OPEN: &str = "pktps bands=type=drop rate=10000000";
const CLOSED: &str = "kbps bands=type=drop rate=1";

/// Words that actions can be made of.
#[derive(Clone, Copy)]
struct Words {
    groups: u64,
    meters: u64,
    normal: bool,
    /// Clones, and action sets. OVS 3.1 aborts where a select group recirculates a packet with either, and does not
    /// execute the set after `exit`.
    clones: bool,
    sets: bool,
    /// Set if flows of table 0 tell packets apart by their length. No flow leads back there then: what follows the list
    /// of actions that asks for the length is translated by OVS as if it had not been asked for.
    lengths: bool,
    /// Set if packets make flows, which later packets meet.
    learns: bool,
    /// See [`Kind`].
    labels: bool,
    bares: bool,
    no_push: bool,
}

impl Words {
    /// Returns a table to look the packet up in again.
    fn again(&self, r: &mut Random) -> u64 {
        if self.lengths { 1 + r.below(3) } else { r.below(4) }
    }
}

fn matches(r: &mut Random, table: u8, mut kind: Kind) -> (String, Kind) {
    let mut out = String::new();
    let mut put = |text: String| write!(out, "{text},").unwrap();
    if r.one_in(4) {
        put(format!("in_port={}", 1 + r.below(u64::from(PORTS))));
    }
    if r.one_in(6) {
        put(format!("dl_dst={}", r.pick(&MACS)));
    } else if r.one_in(12) {
        put("dl_dst=01:00:00:00:00:00/01:00:00:00:00:00".into());
    }
    if r.one_in(8) {
        put(format!("dl_src={}", r.pick(&MACS[..3])));
    }
    match r.below(14) {
        0 => {
            put(format!("dl_vlan={}", [0, 5, 10][r.below(3) as usize]));
            kind.vlans[0] = true;
        }
        1 => put("dl_vlan=0xffff".into()),
        2 => {
            put(format!("dl_vlan_pcp={}", r.below(4)));
            kind.vlans[0] = true;
        }
        3 => {
            put("vlan_tci=0x1000/0x1000".into());
            kind.vlans[0] = true;
        }
        _ => {}
    }
    if table > 0 && r.one_in(3) {
        put(format!("reg{}={}", r.below(3), r.below(3)));
    } else if table > 0 && r.one_in(6) {
        put(format!("metadata={}/0x3", r.below(4)));
    } else if table > 0 && r.one_in(6) {
        put(r.pick(&["pkt_mark=1", "pkt_mark=0/0x2", "xreg0=0/0x3", "xxreg0=0x1/0x1"]).into());
    }
    match r.below(10) {
        _ if kind.labels && r.one_in(3) => labels::matches(r, &mut kind, &mut put),
        0 => {}
        1 => {
            put("arp".into());
            kind.arp = true;
            match r.below(5) {
                0 => put(format!("arp_op={}", 1 + r.below(2))),
                1 => put(format!("arp_spa={}", r.pick(&IPS))),
                2 => put(format!("arp_tpa={}/16", r.pick(&IPS))),
                3 => put(format!("arp_sha={}", r.pick(&MACS))),
                _ => {}
            }
        }
        2 => put(format!("dl_type={}", r.pick(&["0x88b5", "0x8100", "0x88a8", "0x05ff", "0x0800"]))),
        v => {
            kind.ip = if r.one_in(3) { 6 } else { 4 };
            kind.proto = [0, 6, 17, if kind.ip == 4 { 1 } else { 58 }, 132][r.below(5) as usize];
            let name = match (kind.ip, kind.proto) {
                (4, 6) => "tcp",
                (4, 17) => "udp",
                (4, 1) => "icmp",
                (4, 132) => "sctp",
                (4, _) => "ip",
                (_, 6) => "tcp6",
                (_, 17) => "udp6",
                (_, 58) => "icmp6",
                (_, 132) => "sctp6",
                _ => "ipv6",
            };
            put(name.into());
            let (src, dst, list): (_, _, &[&str]) =
                if kind.ip == 4 { ("nw_src", "nw_dst", &IPS) } else { ("ipv6_src", "ipv6_dst", &IP6S) };
            if v < 6 {
                let len = if kind.ip == 4 { 8 + r.below(25) } else { 16 + 16 * r.below(8) };
                put(format!("{}={}/{len}", if r.one_in(2) { src } else { dst }, r.pick(list)));
            }
            if r.one_in(8) {
                put(format!("nw_tos={}", 4 * r.below(3)));
            }
            if r.one_in(10) {
                put(format!("nw_ecn={}", r.below(4)));
            }
            if r.one_in(10) {
                put(format!("nw_ttl={}", [1, 2, 64, 63][r.below(4) as usize]));
            }
            if r.one_in(8) {
                let frag = r.pick(&["no", "yes", "first", "later", "not_later"]);
                put(format!("ip_frag={frag}"));
                if frag == "later" {
                    return (out, Kind { proto: 0, ..kind });
                }
            }
            if matches!(kind.proto, 6 | 17 | 132) {
                if r.one_in(4) {
                    put(format!("tp_src={}", r.pick(&TP)));
                }
                if r.one_in(4) {
                    put(format!("tp_dst={}", r.pick(&TP)));
                } else if r.one_in(5) {
                    put(format!("tp_dst={}/0xfff0", r.pick(&["1024", "4992", "65520"])));
                }
                if kind.proto == 6 && r.one_in(6) {
                    put(format!("tcp_flags={}", r.pick(&["+syn-ack", "+ack", "-rst", "0x010/0x010"])));
                }
            }
            if matches!(kind.proto, 1 | 58) && r.one_in(3) {
                put(format!(
                    "{}={}",
                    if kind.proto == 1 { "icmp_type" } else { "icmpv6_type" },
                    r.pick(&["8", "128", "135"])
                ));
            } else if kind.proto == 58 && r.one_in(2) {
                kind.nd = 135 + r.below(2) as u8;
                put(format!("icmpv6_type={},icmpv6_code=0", kind.nd));
                match r.below(5) {
                    0 => put(format!("nd_target={}", r.pick(&IP6S))),
                    1 => put(format!("nd_target={}/{}", r.pick(&IP6S), 16 + 16 * r.below(8))),
                    2 => put(format!("nd_{}ll={}", if kind.nd == 135 { 's' } else { 't' }, r.pick(&MACS[..3]))),
                    _ => {}
                }
            }
        }
    }
    let more =
        [r.one_in(8).then(|| masked::ethernet(r)), masked::network(r, kind).filter(|_| !kind.mpls && r.one_in(3))];
    for text in more.into_iter().flatten() {
        // `vlan_vid` and `dl_vlan` are one field.
        let field = text.split('=').next().unwrap();
        let stem = if field.contains("vlan") { "vlan" } else { field.trim_end_matches("code") };
        if !(out.contains(stem) || stem == "ip_dscp" && out.contains("nw_tos")) {
            write!(out, "{text},").unwrap();
            // These have the bit for a tag in value and mask.
            kind.vlans[0] |= text.contains("=0x1") && text.contains("/0x1");
        }
    }
    (out, kind)
}

fn output(r: &mut Random, normal: bool) -> String {
    if normal && r.one_in(3) {
        return "normal".into();
    }
    match r.below(17) {
        16 => "controller".into(),
        0 => "in_port".into(),
        1 => "flood".into(),
        2 => "all".into(),
        3 => "output:99".into(),
        4 => "output:NXM_NX_REG0[0..15]".into(),
        _ => format!("output:{}", 1 + r.below(u64::from(PORTS))),
    }
}

fn change(r: &mut Random, kind: &mut Kind) -> String {
    loop {
        if r.one_in(6)
            && let Some(text) = tags::change(r, kind)
        {
            return text;
        }
        if r.one_in(5)
            && !kind.mpls
            && let Some(text) = masked::change(r, *kind)
        {
            return text;
        }
        let text = match r.below(if kind.labels { 40 } else { 32 }) {
            0 => format!("mod_dl_src:{}", r.pick(&MACS[..3])),
            1 | 2 => format!("mod_dl_dst:{}", r.pick(&MACS)),
            7 if kind.loose || kind.ip == 4 => format!("mod_nw_src:{}", r.pick(&IPS)),
            8 if kind.loose || kind.ip == 4 => format!("mod_nw_dst:{}", r.pick(&IPS)),
            9 if kind.loose || kind.ip != 0 => format!("mod_nw_tos:{}", 4 * r.below(20)),
            10 if kind.ip != 0 => format!("mod_nw_ecn:{}", r.below(4)),
            11 if kind.ip != 0 => format!("mod_nw_ttl:{}", 1 + r.below(80)),
            12 | 13 if kind.loose || kind.ip != 0 => "dec_ttl".into(),
            14 if matches!(kind.proto, 6 | 17 | 132) => format!("mod_tp_src:{}", r.pick(&TP)),
            15 if matches!(kind.proto, 6 | 17 | 132) => format!("mod_tp_dst:{}", r.pick(&TP)),
            16 if kind.ip == 4 => format!("set_field:{}->ip_dst", r.pick(&IPS)),
            17 if kind.ip == 6 => format!("set_field:{}->ipv6_src", r.pick(&IP6S)),
            18 if kind.ip == 6 => format!("load:{:#x}->NXM_NX_IPV6_DST[0..15]", r.below(65536)),
            20 => format!("load:{}->NXM_NX_REG{}[]", r.below(6), r.below(3)),
            21 => format!("load:{}->NXM_NX_REG{}[4..7]", r.below(4), r.below(3)),
            22 => format!("move:NXM_OF_ETH_DST[0..15]->NXM_NX_REG{}[0..15]", r.below(3)),
            24 if kind.arp => format!("set_field:{}->arp_spa", r.pick(&IPS)),
            25 if kind.arp => format!("set_field:{}->arp_tha", r.pick(&MACS[..3])),
            26 if kind.nd != 0 => format!("set_field:{}->nd_target", r.pick(&IP6S)),
            27 if kind.nd != 0 => {
                format!("set_field:{}->nd_{}ll", r.pick(&MACS[..3]), if kind.nd == 135 { 's' } else { 't' })
            }
            23 => format!("load:{:#x}->NXM_NX_XXREG0[{}]", r.below(64), r.pick(&["0..63", "30..35", "96..127"])),
            29 => format!("set_field:{:#x}/0x3ffffffff->xreg{}", r.next() & 0x3_0000_0003, r.below(2)),
            30 => format!("load:{}->NXM_NX_PKT_MARK[]", r.below(3)),
            31 => format!("move:NXM_NX_REG{}[0..3]->NXM_NX_PKT_MARK[0..3]", r.below(3)),
            28 if kind.nd != 0 => format!("move:NXM_NX_ND_TARGET[0..15]->NXM_NX_REG{}[0..15]", r.below(3)),
            32.. => match labels::change(r, kind) {
                Some(text) => text,
                None => continue,
            },
            _ => continue,
        };
        return text;
    }
}

/// Returns a choice with only one possible outcome.
fn link(r: &mut Random) -> String {
    let fields = r.pick(&["eth_src", "symmetric_l4", "symmetric_l3l4", "symmetric_l3", "nw_src", "nw_dst"]);
    let members = r.pick(&["2,3", "99,3,1", "98,4,99", "99", "5"]);
    // With more than one live member, only the first can be relied on.
    let algorithm = if matches!(members, "98,4,99" | "99" | "5") { "hrw" } else { "active_backup" };
    match r.below(3) {
        0 => {
            let algorithm = r.pick(&["modulo_n", "hash_threshold", "hrw", "iter_hash"]);
            format!("multipath({fields},{},{algorithm},1,0,NXM_NX_REG{}[4..9])", r.below(9), r.below(3))
        }
        1 => format!("bundle({fields},{},{algorithm},ofport,members:{members})", r.below(9)),
        _ => format!("bundle_load({fields},0,{algorithm},ofport,NXM_NX_REG0[0..15],members:{members})"),
    }
}

/// Returns an action on the stack, which it may empty.
fn stack(r: &mut Random) -> String {
    match r.below(4) {
        0 => format!("push:NXM_NX_REG{}[0..7]", r.below(3)),
        1 => format!(
            "push:{}",
            r.pick(&["NXM_OF_ETH_DST[]", "NXM_OF_VLAN_TCI[]", "NXM_NX_XXREG0[]", "NXM_OF_ETH_SRC[0..9]"])
        ),
        2 => format!("pop:NXM_NX_REG{}[{}]", r.below(3), r.pick(&["", "0..3", "28..31"])),
        _ => format!("pop:{}", r.pick(&["NXM_OF_ETH_DST[0..15]", "NXM_OF_IN_PORT[]", "NXM_OF_ETH_SRC[16..23]"])),
    }
}

/// Returns an action that adds a flow. Learned flows have a priority of their own each: two that overlap are made by
/// the same action.
fn learn(r: &mut Random, kind: Kind) -> String {
    let priority = 100 + r.below(1000);
    let mut parts = vec![format!("table={},priority={priority}", r.below(4))];
    let field = match r.below(8) {
        0 => "NXM_OF_ETH_DST[]=NXM_OF_ETH_SRC[]",
        1 => "NXM_OF_ETH_SRC[]",
        2 => "NXM_OF_IN_PORT[]",
        3 => "NXM_NX_REG0[0..3]=NXM_OF_IN_PORT[0..3]",
        4 if kind.ip == 4 => "dl_type=0x800,NXM_OF_IP_DST[]=NXM_OF_IP_SRC[]",
        4 if kind.arp => "dl_type=0x806,NXM_OF_ARP_SPA[]=NXM_OF_ARP_TPA[]",
        5 if kind.ip == 6 => "eth_type=0x86dd,NXM_NX_IPV6_SRC[0..63]=NXM_NX_IPV6_SRC[0..63]",
        6 if kind.ip == 4 && kind.proto == 17 => "dl_type=0x800,nw_proto=17,NXM_OF_UDP_DST[]=NXM_OF_UDP_SRC[]",
        _ => "NXM_OF_VLAN_TCI[0..11],NXM_OF_ETH_DST[0..15]=NXM_OF_ETH_SRC[0..15]",
    };
    parts.push(field.into());
    for _ in 0..1 + r.below(2) {
        parts.push(match r.below(6) {
            0 => format!("load:{}->NXM_NX_REG{}[0..2]", r.below(8), r.below(3)),
            1 => "load:NXM_OF_ETH_SRC[]->NXM_OF_ETH_DST[]".into(),
            2 => format!("load:NXM_OF_IN_PORT[]->NXM_NX_REG{}[0..15]", r.below(3)),
            3 => "output:NXM_NX_REG0[0..15]".into(),
            _ => "output:NXM_OF_IN_PORT[]".into(),
        });
    }
    match r.below(4) {
        0 => parts.push(format!("cookie={priority},limit={}", 1 + r.below(2))),
        1 => parts.push("idle_timeout=600,hard_timeout=900".into()),
        _ => {}
    }
    format!("learn({})", parts.join(","))
}

fn actions(r: &mut Random, table: u8, words: Words, mut kind: Kind) -> String {
    if r.one_in(12) {
        return "drop".into();
    }
    let mut list = vec![];
    // ovs-ofctl takes a meter in front only.
    if words.meters > 0 && r.one_in(4) {
        list.push(format!("meter:{}", 1 + r.below(words.meters)));
    }
    for _ in 0..1 + r.below(5) {
        list.push(match r.below(10) {
            0..=3 => change(r, &mut kind),
            4 if r.one_in(2) => format!("resubmit(,{})", words.again(r)),
            4 => format!("resubmit({},{})", 1 + r.below(u64::from(PORTS)), words.again(r)),
            9 if words.lengths && table == 0 => {
                format!("check_pkt_larger({})->NXM_NX_REG{}[{}]", 60 + r.below(80), r.below(3), r.below(2))
            }
            5 if words.groups > 0 => format!("group:{}", 1 + r.below(words.groups)),
            6 if r.one_in(5) => link(r),
            6 if words.learns => learn(r, kind),
            6 if kind.proto == 6 && r.one_in(4) => "fin_timeout(idle_timeout=500,hard_timeout=600)".into(),
            6 if r.one_in(8) => "sample(probability=65535)".into(),
            6 if !words.sets && r.one_in(4) => "exit".into(),
            6 if r.one_in(2) => stack(r),
            6 if words.clones && r.one_in(2) => {
                // Changes made in a clone are undone, tags included.
                let mut kind = kind;
                let mut inner: Vec<String> = (0..r.below(3)).map(|_| change(r, &mut kind)).collect();
                inner.push(match r.below(6) {
                    0 => format!("resubmit(,{})", words.again(r)),
                    1 if !words.sets => "exit".into(),
                    2 => stack(r),
                    3 if words.groups > 0 => format!("group:{}", 1 + r.below(words.groups)),
                    _ => output(r, words.normal),
                });
                if r.one_in(2) {
                    inner.push(output(r, words.normal));
                }
                format!("clone({})", inner.join(","))
            }
            _ => output(r, words.normal),
        });
    }
    if !kind.loose && r.one_in(12) {
        list.push("clear_actions".into());
    }
    if !kind.loose && words.sets && r.one_in(3) {
        let mut inner: Vec<String> = (0..r.below(4)).map(|_| change(r, &mut kind)).collect();
        inner.push(match r.below(6) {
            0 => format!("resubmit(,{})", r.below(4)),
            1 if words.groups > 0 => format!("group:{}", 1 + r.below(words.groups)),
            2 => "dec_ttl".into(),
            _ => format!("output:{}", 1 + r.below(u64::from(PORTS))),
        });
        list.push(format!("write_actions({})", inner.join(",")));
    }
    if r.one_in(6) {
        list.push(format!("write_metadata:{}/0x3", r.below(4)));
    }
    if table < 3 && !kind.loose && r.one_in(3) {
        list.push(format!("goto_table:{}", u64::from(table) + 1 + r.below(u64::from(3 - table))));
    }
    list.join(",")
}

/// Returns a group with one bucket that can be chosen, or whose buckets all do the same.
fn select(r: &mut Random, id: u64, labels: bool) -> String {
    let mut line = format!("group_id={id},type=select");
    let (buckets, changes) = (1 + r.below(3), r.below(3));
    let actions = |r: &mut Random| {
        let kind = Kind { no_push: true, labels, ..Kind::default() };
        let changes: String = (0..changes).map(|_| change(r, &mut { kind }) + ",").collect();
        format!("actions={changes}output:{}", 1 + r.below(u64::from(PORTS)))
    };
    let live = r.below(buckets);
    let same = r.one_in(2).then(|| actions(r));
    for bucket in 0..buckets {
        let does = same.clone().unwrap_or_else(|| actions(r));
        let liveness = match same.is_some() || bucket == live {
            true => format!("weight:{}", 1 + r.below(3)),
            false => r.pick(&["weight:0", "weight:1,watch_port:99"]).into(),
        };
        write!(line, ",bucket={liveness},{does}").unwrap();
    }
    line
}

/// Adds one or two conjunctions. All flows of one have the same priority.
fn conjunctions(r: &mut Random, words: Words, loose: bool, flows: &mut Vec<(String, String)>) {
    let of = |r: &mut Random, part: u64| match (part, r.below(4)) {
        (1, 0) => format!("in_port={}", 1 + r.below(u64::from(PORTS))),
        (1, _) => format!("dl_src={}", r.pick(&MACS[..3])),
        (2, 0) => "dl_vlan=0xffff".into(),
        (2, 1) => format!("ip,nw_src={}/{}", r.pick(&IPS), 8 + r.below(25)),
        (2, _) => format!("dl_dst={}", r.pick(&MACS)),
        (_, 0) => format!("tcp,tp_dst={}", r.pick(&TP)),
        _ => r.pick(&["ip", "ipv6", "arp", "udp", "icmp"]).into(),
    };
    for _ in 0..1 + r.below(2) {
        let (table, id, parts) = (r.below(2), 1 + r.below(2), 2 + r.below(2));
        let key = format!("table={table},priority={}", 1 + flows.len());
        for part in 1..=parts {
            for _ in 0..1 + r.below(3) {
                flows.push((key.clone(), format!("{},actions=conjunction({id},{part}/{parts})", of(r, part))));
            }
        }
        let Words { labels, bares, no_push, .. } = words;
        let kind = Kind { loose, no_push, labels, bares, ..Kind::default() };
        let other = if r.one_in(4) { "dl_vlan=0xffff," } else { "" };
        let id = if r.one_in(8) { 3 } else { id };
        flows.push((key, format!("{other}conj_id={id},actions={}", actions(r, table as u8, words, kind))));
    }
}

/// Returns flow tables for a switch that reads this number of VLAN tags, and the groups and meters that they use. Their
/// flows have the action `normal` only if it is allowed.
pub fn tables(r: &mut Random, normal: bool, tags: usize) -> Tables {
    let loose = r.one_in(3);
    let normal = normal && r.one_in(2);
    let meters = if !loose && r.one_in(5) { 1 + r.below(2) } else { 0 };
    let meter = |r: &mut Random, id: u64| format!("meter={id} {}", r.pick(&[OPEN, CLOSED]));
    let meters_text: Vec<String> = (1..=meters).map(|id| meter(r, id)).collect();
    let groups = if !loose && r.one_in(2) { 1 + r.below(2) } else { 0 };
    let labels = r.one_in(3);
    let bares = labels && r.one_in(2);
    let no_push = bares && tags < 2;
    let group = |r: &mut Random, id: u64| {
        let kind = r.pick(&["all", "indirect", "ff", "all", "select", "select"]);
        if kind == "select" {
            return select(r, id, labels);
        }
        let buckets = if kind == "indirect" { 1 } else { 1 + r.below(3) };
        let mut line = format!("group_id={id},type={kind}");
        for _ in 0..buckets {
            line += ",bucket=";
            if kind == "ff" {
                write!(line, "watch_port:{},", [1, 2, 99][r.below(3) as usize]).unwrap();
            }
            line += "actions=";
            for _ in 0..r.below(3) {
                let kind = Kind { labels, bares, mpls: labels && r.one_in(4), no_push, ..Kind::default() };
                line += &change(r, &mut { kind });
                line += ",";
            }
            write!(line, "output:{}", 1 + r.below(u64::from(PORTS))).unwrap();
        }
        line
    };
    let groups_text: Vec<String> = (1..=groups).map(|id| group(r, id)).collect();
    let clones = !bares && !groups_text.iter().any(|group| group.contains("select"));
    let sets = clones && r.one_in(2);
    // If the labels are too many for packets of one length, OVS drops all.
    let lengths = clones && !sets && !labels && meters == 0 && r.one_in(3);
    let learns = !loose && r.one_in(6);
    let words = Words { groups, meters, normal, clones, sets, lengths, learns, labels, bares, no_push };
    let mut flows: Vec<(String, String)> = vec![];
    for _ in 0..4 + r.below(16) {
        let table = if r.one_in(2) { 0 } else { r.below(4) as u8 };
        let kind = Kind { loose, no_push, labels, bares, ..Kind::default() };
        let (matches, kind) = matches(r, table, kind);
        // Give every flow its own priority: among overlapping flows of one priority the result is undefined.
        let key = format!("table={table},priority={}", 1 + flows.len());
        flows.push((key, format!("{matches}actions={}", actions(r, table, words, kind))));
    }
    if r.one_in(6) {
        conjunctions(r, words, loose, &mut flows);
    }
    let version = if loose { "OpenFlow10" } else { "OpenFlow15" };
    let flows: Vec<String> = flows.into_iter().map(|(key, rest)| format!("{key},{rest}")).collect();
    let normal = flows.iter().any(|flow| flow.contains("normal"));
    let learns = normal || flows.iter().any(|flow| flow.contains("learn"));
    let recirculates = bares || groups_text.iter().any(|group| group.contains("select"));
    Tables { version, groups: groups_text, meters: meters_text, flows, learns, labels, normal, recirculates }
}

/// Returns a random packet of at least `length` bytes followed by four bytes with `mark`. One in `labelled` has labels.
pub fn packet(r: &mut Random, mark: u32, length: usize, labelled: u64) -> Vec<u8> {
    let mac = |text: &str| text.parse::<MacAddr>().unwrap();
    let (src, dst) = (mac(r.pick(&MACS[..3])), mac(r.pick(&MACS)));
    let v6 = r.one_in(3);
    let mut addr = || match v6 {
        true => r.pick(&IP6S).parse().unwrap(),
        false => r.pick(&IPS).parse::<std::net::IpAddr>().unwrap(),
    };
    let (a, b) = (addr(), addr());
    let mut port = || r.pick(&TP).parse::<u16>().unwrap();
    let (sport, dport) = (port(), port());
    let kind = r.below(10);
    let (from, to) = ((a, sport).into(), (b, dport).into());
    let ttl = [1, 2, 64, 63, 255, 0][r.below(6) as usize];
    let tos = (r.below(4) * 4 + r.below(4)) as u8;
    let payload = if r.one_in(3) { 24 + r.below(50) as usize } else { 24 };
    let packet = match kind {
        0..=2 | 8 => Packet::udp(from, to),
        3..=5 => Packet::tcp(from, to),
        _ => Packet::echo(a, b, 7, 1),
    };
    let mut bytes = packet.macs(dst, src).ttl(ttl).tos(tos).payload(&[0x5a; 80][..payload]).build().unwrap();
    if !v6 {
        // As the payload's length in an IPv6 header, more than there is.
        bytes[18..20].fill(0xff);
        fix_sum(&mut bytes);
    }
    let discovery = v6 && matches!(kind, 6 | 7) && r.one_in(2);
    if discovery {
        neighbour(r, &mut bytes);
    } else if kind == 9 {
        bytes = arp(r, src, dst);
    } else if kind == 8 {
        sctp_or_other(r, &mut bytes, v6);
    } else if kind == 3 {
        let at = 14 + if v6 { 40 } else { 20 } + 13;
        bytes[at] = [0x02, 0x12, 0x10, 0x04][r.below(4) as usize];
    }
    if !v6 && kind < 8 && r.one_in(6) {
        let frag: [u8; 2] = [[0x20, 0], [0x20, 5], [0, 9]][r.below(3) as usize];
        bytes[20..22].copy_from_slice(&frag);
        fix_sum(&mut bytes);
    }
    if !discovery && kind < 8 && r.one_in(5) {
        unusual(r, &mut bytes, v6);
    }
    // The addresses of neighbour discovery are not read behind labels.
    if !discovery && r.one_in(labelled) {
        labels::insert(r, &mut bytes);
    }
    tags::insert(r, &mut bytes);
    if r.one_in(12) {
        spoil(r, &mut bytes);
    }
    bytes.resize(bytes.len().max(length), 0);
    bytes.extend_from_slice(&mark.to_be_bytes());
    bytes
}

/// Turns an echo over IPv6 into a neighbour solicitation or advertisement, mostly a valid one.
fn neighbour(r: &mut Random, bytes: &mut Vec<u8>) {
    let (icmp, kind) = (54, 135 + r.below(2) as u8);
    bytes.truncate(icmp);
    bytes.extend([kind, if r.one_in(8) { 1 } else { 0 }, 0, 0, 0, 0, 0, 0]);
    bytes.extend(r.pick(&IP6S).parse::<std::net::Ipv6Addr>().unwrap().octets());
    let options: &[u8] = [&[1u8][..], &[2], &[], &[1, 2], &[2, 1], &[3, 1], &[1, 1]][r.below(7) as usize];
    for option in options {
        bytes.extend([*option, if r.one_in(12) { 0 } else { 1 }, 2, 0, 0, 0]);
        bytes.extend([r.below(2) as u8, r.below(4) as u8]);
    }
    if r.one_in(10) {
        bytes.pop();
    }
    let length = bytes.len() - icmp;
    bytes[18..20].copy_from_slice(&(length as u16).to_be_bytes());
    bytes[21] = r.pick(&["255", "255", "64"]).parse().unwrap();
    let mut pseudo = bytes[22..54].to_vec();
    pseudo.extend([0, 0, 0, length as u8, 0, 0, 0, 58]);
    pseudo.extend(&bytes[icmp..]);
    let sum = bywash_wire::checksum::checksum(&pseudo);
    bytes[icmp + 2..icmp + 4].copy_from_slice(&sum.to_be_bytes());
}

/// Gives an IP packet options or extension headers.
fn unusual(r: &mut Random, bytes: &mut Vec<u8>, v6: bool) {
    if !v6 {
        let words = 1 + r.below(3) as u8;
        bytes.splice(34..34, std::iter::repeat_n(1, 4 * usize::from(words)));
        bytes[14] += words;
        if r.one_in(2) {
            let total = bytes.len() as u16 - 14 - r.below(3) as u16;
            bytes[16..18].copy_from_slice(&total.to_be_bytes());
        } else {
            let total = u16::from_be_bytes([bytes[16], bytes[17]]) + 4 * u16::from(words);
            bytes[16..18].copy_from_slice(&total.to_be_bytes());
        }
        // With the options in place of the header's end.
        let header = usize::from(bytes[14] & 15) * 4;
        bytes[24..26].fill(0);
        let sum = bywash_wire::checksum::checksum(&bytes[14..14 + header]);
        bytes[24..26].copy_from_slice(&sum.to_be_bytes());
        return;
    }
    for _ in 0..1 + r.below(2) {
        let kind = [0u8, 43, 60, 44, 51, 44][r.below(6) as usize];
        let next = std::mem::replace(&mut bytes[20], kind);
        let header: Vec<u8> = match kind {
            44 => {
                let offset: [u8; 2] = [[0, 0], [0, 1], [0, 9], [0, 8], [1, 1]][r.below(5) as usize];
                vec![next, 0, offset[0], offset[1], 0, 0, 0, 7]
            }
            43 => {
                let mut header = vec![next, 2, 0, r.below(2) as u8, 0, 0, 0, 0];
                header.extend(r.pick(&IP6S).parse::<std::net::Ipv6Addr>().unwrap().octets());
                header
            }
            51 => vec![next, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2],
            _ => vec![next, r.below(2) as u8, 1, 4, 0, 0, 0, 0, 1, 4, 0, 0, 0, 0, 1, 4],
        };
        let header = if matches!(kind, 0 | 60) { header[..8 + 8 * usize::from(header[1])].to_vec() } else { header };
        let length = u16::from_be_bytes([bytes[18], bytes[19]]) + header.len() as u16;
        bytes[18..20].copy_from_slice(&length.to_be_bytes());
        bytes.splice(54..54, header);
    }
}

/// Damages a packet: cuts it short, or changes bytes behind its addresses.
fn spoil(r: &mut Random, bytes: &mut Vec<u8>) {
    match r.below(3) {
        0 => bytes.truncate(14 + r.below(bytes.len() as u64 - 14) as usize),
        1 => bytes.resize(bytes.len() + 200 + r.below(120) as usize, 0),
        _ => {
            for _ in 0..1 + r.below(3) {
                let at = 12 + r.below(bytes.len().min(70) as u64 - 12) as usize;
                bytes[at] = r.next() as u8;
            }
        }
    }
}

fn fix_sum(bytes: &mut [u8]) {
    bytes[24..26].fill(0);
    let sum = bywash_wire::checksum::checksum(&bytes[14..34]);
    bytes[24..26].copy_from_slice(&sum.to_be_bytes());
}

fn arp(r: &mut Random, src: MacAddr, dst: MacAddr) -> Vec<u8> {
    let mut bytes: Vec<u8> = dst.0.into_iter().chain(src.0).collect();
    bytes.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 1 + r.below(2) as u8]);
    bytes.extend(src.0);
    bytes.extend(r.pick(&IPS).parse::<std::net::Ipv4Addr>().unwrap().octets());
    bytes.extend([0; 6]);
    bytes.extend(r.pick(&IPS).parse::<std::net::Ipv4Addr>().unwrap().octets());
    bytes.extend([0; 18]);
    bytes
}

/// Turns the packet into SCTP, another Ethernet type, or an 802.3 frame with a length.
fn sctp_or_other(r: &mut Random, bytes: &mut [u8], v6: bool) {
    match r.below(3) {
        0 if v6 => bytes[20] = 132,
        0 => {
            bytes[23] = 132;
            fix_sum(bytes);
        }
        other => {
            bytes[12..14].copy_from_slice(if other == 1 { &[0x88, 0xb5] } else { &[0, 60] });
            // No IP packet, whatever Ethernet type `pop_mpls` gives it.
            bytes[14] = 0x42;
            bytes[18..20].fill(0xff);
        }
    }
}
