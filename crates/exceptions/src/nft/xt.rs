//! x_tables (iptables) extensions that nf_tables rules may contain (expressions "match" and "target").

/// Common extensions that do not enable connection tracking or defragmentation (net/netfilter/xt_*.c: nf_ct_netns_get
/// and nf_defrag_*_enable are not called). All others may.
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

/// Returns whether the extension `name` is known not to enable connection tracking.
pub fn is_untracked(target: bool, name: &str) -> bool {
    match target {
        true => UNTRACKED_TARGETS.contains(&name),
        false => UNTRACKED_MATCHES.contains(&name),
    }
}
