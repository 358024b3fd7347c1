//! Random configurations, as a sequence of changes that can be undone one by one.

mod filter;
pub mod firewall;
mod routing;
mod tunnel;
mod upper;

use crate::change::Change;
use crate::random::Random;
use crate::topology::{self, PORTS};
use bywash_lab::{Namespace, has_tool};
use std::fmt::Write;

/// A part of the configuration, or of the traffic, that is varied. Each can be switched on and off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Feature {
    Routes,
    /// Routes for a type of service; needs [`Self::Routes`].
    Tos,
    /// Routes of the types local and broadcast; needs [`Self::Routes`].
    LocalRoutes,
    Nexthops,
    Addresses,
    Neighbours,
    Links,
    Vlans,
    Bonds,
    Vrfs,
    Bridges,
    /// Bridges that filter VLANs.
    Trunks,
    Macvlans,
    Vxlans,
    /// Tunnels of IP packets in IP packets.
    Tunnels,
    Mtu,
    Linkdown,
    Forwarding,
    RpFilter,
    Sysctls,
    Rules,
    Nft,
    Iptables,
    Legacy,
    Xfrm,
    Qdisc,
    Encap,
    /// Unusual and malformed packets; changes no configuration.
    Packets,
    /// Packets from the router's own addresses; changes no configuration.
    OwnSource,
    /// Established connections through a firewall and a translation, which Bywash forwards past the kernel's rules.
    Flows,
}

impl Feature {
    pub const ALL: [Self; 30] = [
        Self::Routes,
        Self::Tos,
        Self::LocalRoutes,
        Self::Nexthops,
        Self::Addresses,
        Self::Neighbours,
        Self::Links,
        Self::Vlans,
        Self::Bonds,
        Self::Vrfs,
        Self::Bridges,
        Self::Trunks,
        Self::Macvlans,
        Self::Vxlans,
        Self::Tunnels,
        Self::Mtu,
        Self::Linkdown,
        Self::Forwarding,
        Self::RpFilter,
        Self::Sysctls,
        Self::Rules,
        Self::Nft,
        Self::Iptables,
        Self::Legacy,
        Self::Xfrm,
        Self::Qdisc,
        Self::Encap,
        Self::Packets,
        Self::OwnSource,
        Self::Flows,
    ];

    pub fn name(self) -> String {
        format!("{self:?}").to_lowercase()
    }

    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|feature| feature.name() == name)
    }

    /// Returns the reason why this machine lacks the feature; `None` if it has it.
    pub fn missing(self) -> Option<String> {
        let tried = |command: &[&str]| {
            has_tool(command[0]).map_err(|reason| reason.to_string())?;
            let namespace = Namespace::new("probe").map_err(|error| error.to_string())?;
            namespace.run(command).map(drop).map_err(|error| format!("kernel without {}: {error}", self.name()))
        };
        let rule = ["-A", "FORWARD", "-j", "DROP"];
        let tried = match self {
            Self::Nft | Self::Iptables | Self::Legacy if has_tool("conntrack").is_err() => Err("no conntrack".into()),
            Self::Nft => tried(&["nft", "add", "table", "inet", "probe"]),
            Self::Iptables => tried(&[&["iptables-nft"], &rule[..]].concat()),
            Self::Flows if has_tool("conntrack").is_err() => Err("no conntrack".into()),
            Self::Flows => tried(&["nft", "add", "table", "inet", "probe"])
                .and_then(|()| tried(&[&["iptables-nft"], &rule[..]].concat())),
            Self::Legacy => tried(&[&["iptables-legacy"], &rule[..]].concat()),
            Self::Vlans => tried(&["sh", "-c", "ip link add probe type veth && ip link add link probe type vlan id 5"]),
            Self::Bonds => tried(&["ip", "link", "add", "probe", "type", "bond"]),
            Self::Vrfs => tried(&["ip", "link", "add", "probe", "type", "vrf", "table", "9"]),
            Self::Bridges => tried(&["ip", "link", "add", "probe", "type", "bridge"]),
            Self::Trunks => tried(&["ip", "link", "add", "probe", "type", "bridge", "vlan_filtering", "1"]),
            Self::Macvlans => {
                tried(&["sh", "-c", "ip link add probe type veth && ip link add link probe type macvlan"])
            }
            Self::Vxlans => tried(&["ip", "link", "add", "probe", "type", "vxlan", "id", "1", "dstport", "4789"]),
            Self::Tunnels if tunnel::kinds().is_empty() => {
                Err("kernel without gre, ipip, sit, ip6gre and ip6tnl".into())
            }
            Self::Xfrm => tried(&["ip", "xfrm", "policy", "list"]),
            Self::Qdisc => tried(&["tc", "qdisc", "add", "dev", "lo", "clsact"]),
            Self::Encap => tried(&[
                "ip",
                "-6",
                "route",
                "add",
                "fd99::/64",
                "encap",
                "seg6",
                "mode",
                "inline",
                "segs",
                "fd98::1",
                "dev",
                "lo",
            ]),
            _ => Ok(()),
        };
        tried.err()
    }
}

/// Something that was configured, and the changes that undo it.
pub struct Object {
    pub add: Vec<Change>,
    pub remove: Vec<Change>,
}

impl Object {
    fn new(add: Vec<Change>, remove: Vec<Change>) -> Self {
        Self { add, remove }
    }

    fn ip(add: String, remove: String) -> Self {
        Self::new(vec![Change::Ip(add)], vec![Change::Ip(remove)])
    }

    fn sysctl(key: String, value: &str, back: &str) -> Self {
        let set = |value: &str| vec![Change::Sysctl(key.clone(), value.into())];
        Self::new(set(value), set(back))
    }
}

/// A router's configuration, changed step by step at random.
pub struct Walk {
    features: Vec<Feature>,
    pub objects: Vec<Object>,
    named: u32,
}

/// Number of objects beyond which more are removed than added.
const MANY: usize = 30;
/// Number for VLANs, bonds and VRFs, of which each may take a port's subnets from others.
const MANY_ABOVE: usize = 10;
/// Number for established flows, of which each rule may take some.
const MANY_RULES: usize = 6;

impl Walk {
    pub fn new(features: &[Feature]) -> Self {
        let silent = [Feature::Packets, Feature::OwnSource];
        let features = features.iter().filter(|feature| !silent.contains(feature)).copied().collect();
        Self { features, objects: vec![], named: 0 }
    }

    /// Adds or removes one to three objects, and returns the changes for it. If some of them are refused, call
    /// [`Self::forget`].
    pub fn step(&mut self, random: &Random) -> Vec<Change> {
        let mut changes = vec![];
        if self.features.is_empty() {
            return changes;
        }
        for _ in 0..1 + random.below(3) {
            let has = |feature: &Feature| self.features.contains(feature);
            let many = if has(&Feature::Flows) {
                MANY_RULES
            } else if [Feature::Vlans, Feature::Bonds, Feature::Vrfs, Feature::Trunks].iter().any(has) {
                MANY_ABOVE
            } else {
                MANY
            };
            let back = if self.objects.len() > many { 70 } else { 35 };
            if !self.objects.is_empty() && random.chance(back) {
                let at = random.below(self.objects.len());
                changes.extend(self.objects.swap_remove(at).remove);
            } else {
                self.named += 1;
                let object = self.object(random);
                changes.extend(object.add.iter().cloned());
                self.objects.push(object);
            }
        }
        changes
    }

    /// Forgets objects whose last change was refused.
    pub fn forget(&mut self, refused: &[&Change]) {
        self.objects.retain(|object| !object.add.last().is_some_and(|change| refused.contains(&change)));
    }

    fn object(&self, random: &Random) -> Object {
        let mut feature = random.pick(&self.features);
        // The kernel finishes a link change up to a second later: more of them would leave no time for anything else.
        while self.features.len() > 1 && feature == Feature::Links && random.chance(80) {
            feature = random.pick(&self.features);
        }
        if self.features.contains(&Feature::Flows) && random.chance(70) {
            feature = Feature::Flows;
        }
        if [Feature::Tos, Feature::LocalRoutes].contains(&feature) {
            feature = Feature::Routes;
        }
        let (n, named) = (1 + random.below(PORTS), self.named);
        match feature {
            Feature::Routes => routing::route(random, feature, None, &self.features),
            Feature::Nexthops => routing::nexthop(random, named, &self.features),
            Feature::Addresses => routing::address(random),
            Feature::Neighbours => routing::neighbour(random),
            Feature::Rules => routing::rule(random, named, &self.features),
            Feature::Encap => routing::encap(random),
            Feature::Links => link(random, n),
            Feature::Vlans => upper::vlan(random, named),
            Feature::Bonds => upper::bond(random, named),
            Feature::Vrfs => upper::vrf(random, named),
            Feature::Bridges => upper::bridge(random, named),
            Feature::Trunks => upper::trunk(random, named),
            Feature::Macvlans => upper::macvlan(random, named),
            Feature::Vxlans => upper::vxlan(random, named),
            Feature::Tunnels => tunnel::object(random, named, &self.standing()),
            Feature::Mtu => {
                let mtu = random.pick(&[1280, 1281, 1400, 1492, 1499, 1500, 1501, 1504, 1700, 1279, 600, 68]);
                // With an MTU below 1280, the kernel removes the IPv6 addresses.
                let mut back = vec![Change::Ip(format!("link set p{n} mtu 1500"))];
                back.push(Change::Ip(format!("address replace fd00:{n}::1/64 dev p{n} nodad")));
                back.extend(topology::neighbours(n - 1));
                Object::new(vec![Change::Ip(format!("link set p{n} mtu {mtu}"))], back)
            }
            Feature::Linkdown => {
                let family = random.pick(&["ipv4", "ipv6"]);
                let device = random.pick(&["all", &format!("p{n}")]).to_owned();
                Object::sysctl(format!("net/{family}/conf/{device}/ignore_routes_with_linkdown"), "1", "0")
            }
            Feature::Forwarding => {
                let keys = [
                    "ipv4/ip_forward".into(),
                    format!("ipv4/conf/p{n}/forwarding"),
                    "ipv6/conf/all/forwarding".into(),
                    format!("ipv6/conf/p{n}/forwarding"),
                ];
                Object::sysctl(format!("net/{}", random.pick(&keys)), "0", "1")
            }
            Feature::RpFilter => {
                let device = random.pick(&["all", &format!("p{n}"), &format!("p{n}")]).to_owned();
                Object::sysctl(format!("net/ipv4/conf/{device}/rp_filter"), random.pick(&["1", "2"]), "0")
            }
            Feature::Sysctls => sysctl(random, n),
            Feature::Nft => filter::nft(random, named, self.features.contains(&Feature::Vxlans)),
            Feature::Iptables => filter::iptables(random, "nft"),
            Feature::Legacy => filter::iptables(random, "legacy"),
            Feature::Xfrm => filter::xfrm(random),
            Feature::Qdisc => filter::qdisc(random, named),
            Feature::Flows => firewall::object(random, named),
            Feature::Packets | Feature::OwnSource | Feature::Tos | Feature::LocalRoutes => {
                unreachable!("no configuration")
            }
        }
    }

    /// Returns the changes that make the present configuration.
    pub fn standing(&self) -> Vec<Change> {
        self.objects.iter().flat_map(|object| object.add.iter().cloned()).collect()
    }

    /// Returns the present configuration, one change a line.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for change in self.standing() {
            writeln!(text, "{change}").unwrap();
        }
        text
    }
}

/// Returns a link that is set down, at the router's end or at the hosts' end.
fn link(random: &Random, n: usize) -> Object {
    if random.chance(50) {
        let set = |what: &str| Change::Host(format!("link set h{n} {what}"));
        return Object::new(vec![set("down")], vec![set("up")]);
    }
    let set = |what: &str| Change::Ip(format!("link set p{n} {what}"));
    let mut back = vec![set("up")];
    back.extend(topology::neighbours(n - 1));
    Object::new(vec![set("down")], back)
}

/// Sysctls that affect forwarding, except those that are features of their own: key, values to set, default.
const SWITCHES: &[(&str, &[&str], &str)] = &[
    ("ipv4/conf/{}/accept_local", &["1"], "0"),
    ("ipv4/conf/{}/route_localnet", &["1"], "0"),
    ("ipv4/conf/{}/src_valid_mark", &["1"], "0"),
    ("ipv4/conf/{}/accept_source_route", &["0", "1"], "0"),
    ("ipv4/conf/{}/disable_policy", &["1"], "0"),
    ("ipv4/conf/{}/disable_xfrm", &["1"], "0"),
    ("ipv4/conf/{}/bc_forwarding", &["1"], "0"),
    ("ipv4/conf/{}/send_redirects", &["1"], "0"),
    ("ipv4/conf/{}/shared_media", &["0"], "1"),
    ("ipv4/conf/{}/drop_unicast_in_l2_multicast", &["1"], "0"),
    ("ipv6/conf/{}/drop_unicast_in_l2_multicast", &["1"], "0"),
    ("ipv4/conf/{}/proxy_arp", &["1"], "0"),
    ("ipv6/conf/{}/proxy_ndp", &["1"], "0"),
    ("ipv6/conf/{}/accept_source_route", &["1", "-1"], "0"),
    ("ipv6/conf/{}/disable_ipv6", &["1"], "0"),
    ("ipv6/conf/{}/disable_policy", &["1"], "0"),
    ("ipv6/conf/{}/seg6_enabled", &["1"], "0"),
    ("ipv6/conf/{}/hop_limit", &["200"], "64"),
    ("ipv6/conf/{}/force_forwarding", &["1"], "0"),
    ("ipv4/ip_forward_use_pmtu", &["1"], "0"),
    ("ipv4/ip_forward_update_priority", &["0"], "1"),
    ("ipv4/ip_default_ttl", &["100"], "64"),
    ("ipv4/fwmark_reflect", &["1"], "0"),
    ("ipv4/icmp_errors_use_inbound_ifaddr", &["1"], "0"),
    ("ipv4/icmp_echo_ignore_all", &["1"], "0"),
    ("ipv4/icmp_errors_extension_mask", &["1"], "0"),
    ("ipv4/fib_multipath_use_neigh", &["1"], "0"),
    ("ipv4/fib_multipath_hash_policy", &["1", "2"], "0"),
    ("ipv6/fib_multipath_hash_policy", &["1", "2"], "0"),
    ("ipv6/fwmark_reflect", &["1"], "0"),
    ("ipv6/icmp/echo_ignore_all", &["1"], "0"),
    ("ipv6/auto_flowlabels", &["0"], "1"),
    ("ipv6/flowlabel_reflect", &["2"], "0"),
    ("ipv6/anycast_src_echo_reply", &["1"], "0"),
    ("ipv6/icmp/error_anycast_as_unicast", &["1"], "0"),
    ("ipv6/skip_notify_on_dev_down", &["1"], "0"),
];

fn sysctl(random: &Random, n: usize) -> Object {
    let (key, values, back) = random.pick(SWITCHES);
    let device = random.pick(&["all", &format!("p{n}"), &format!("p{n}")]).to_owned();
    Object::sysctl(format!("net/{}", key.replace("{}", &device)), random.pick(values), back)
}
