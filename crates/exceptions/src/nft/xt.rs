//! Extensions of x_tables (iptables) that may stand in nf_tables' rules ("match", "target").

/// Those, of hosts' usual rules, that leave connection tracking and the putting together of fragments off
/// (net/netfilter/xt_*.c: nf_ct_netns_get and nf_defrag_*_enable are not called). All others may turn it on.
const UNTRACKED_MATCHES: [&str; 30] = [
    "addrtype",
    "ah",
    "bpf",
    "cgroup",
    "comment",
    "dscp",
    "ecn",
    "esp",
    "frag",
    "hashlimit",
    "hl",
    "icmp",
    "icmp6",
    "iprange",
    "ipv6header",
    "length",
    "limit",
    "mac",
    "mark",
    "multiport",
    "owner",
    "pkttype",
    "recent",
    "set",
    "string",
    "tcp",
    "tos",
    "ttl",
    "u32",
    "udp",
];
const UNTRACKED_TARGETS: [&str; 11] =
    ["CLASSIFY", "DSCP", "HL", "LOG", "MARK", "NFLOG", "NFQUEUE", "REJECT", "TCPMSS", "TOS", "TTL"];

/// Whether the extension `name` certainly leaves connection tracking off.
pub fn is_untracked(target: bool, name: &str) -> bool {
    match target {
        true => UNTRACKED_TARGETS.contains(&name),
        false => UNTRACKED_MATCHES.contains(&name),
    }
}
