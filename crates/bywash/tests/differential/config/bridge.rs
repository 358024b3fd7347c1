//! Bridges of ports, with addresses, and their stations.

use super::Object;
use crate::change::Change;
use crate::random::Random;
use crate::topology::{self, HOSTS, PORTS, host_mac, text};

/// Returns a bridge of one to three ports, of which one may give it its subnets. Members that are given to a bridge while
/// they belong to another are refused.
pub fn bridge(random: &Random, named: u32) -> Object {
    let (first, name) = (1 + random.below(PORTS), format!("br{named}"));
    let members: Vec<usize> = (0..1 + random.below(3)).map(|more| (first - 1 + more) % PORTS + 1).collect();
    let sysctl = |key: String, value: &str| Change::Sysctl(key, value.into());
    let ip = |line: String| Change::Ip(line);
    let mut add = vec![
        // No duplicate address detection: link-local addresses are there at once.
        sysctl("net/ipv6/conf/default/accept_dad".into(), "0"),
        ip(format!("link add {name} type bridge mcast_snooping 0 ageing_time {}", random.pick(&[30000, 30000, 200]))),
    ];
    for key in ["rp_filter", "send_redirects"] {
        add.push(sysctl(format!("net/ipv4/conf/{name}/{key}"), "0"));
    }
    for family in ["ipv4", "ipv6"] {
        for probes in ["mcast_solicit", "ucast_solicit"] {
            add.push(sysctl(format!("net/{family}/neigh/{name}/{probes}"), "0"));
        }
    }
    let mut remove = vec![ip(format!("link del {name}"))];
    for n in &members {
        add.push(ip(format!("link set p{n} master {name}")));
    }
    add.push(ip(format!("link set {name} up")));
    let known = |n: usize, device: &str| -> Vec<Change> {
        let of = |change: Change| match change {
            Change::Ip(line) => Change::Ip(line.replace(&format!("dev p{n}"), &format!("dev {device}"))),
            other => other,
        };
        topology::neighbours(n - 1).into_iter().map(of).collect()
    };
    if random.chance(80) {
        // The first member's subnets move to the bridge; a host of another member has an address there.
        let n = first;
        add.push(ip(format!("address del 10.0.{n}.1/24 dev p{n}")));
        add.push(ip(format!("address del fd00:{n}::1/64 dev p{n}")));
        add.push(ip(format!("address add 10.0.{n}.1/24 dev {name}")));
        add.push(ip(format!("address add fd00:{n}::1/64 dev {name} nodad")));
        add.extend(known(n, &name));
        let (other, host) = (random.pick(&members), 2 + random.below(HOSTS));
        for address in [format!("10.0.{n}.{}", 20 + host), format!("fd00:{n}::{}", 20 + host)] {
            let mac = text(host_mac(other - 1, host));
            add.push(ip(format!("neighbour replace {address} lladdr {mac} nud permanent dev {name}")));
        }
        remove.push(ip(format!("address add 10.0.{n}.1/24 dev p{n}")));
        remove.push(ip(format!("address add fd00:{n}::1/64 dev p{n} nodad")));
        remove.extend(topology::neighbours(n - 1));
    }
    if random.chance(50) {
        let (n, host) = (random.pick(&members), 2 + random.below(HOSTS));
        let mac = text(host_mac(first - 1, host));
        add.push(Change::Run(format!(
            "bridge fdb replace {mac} dev p{n} master {}",
            random.pick(&["static", "dynamic"])
        )));
    }
    let option = match random.below(10) {
        0 => Some("learning off"),
        1 => Some("isolated on"),
        2 => Some("hairpin on"),
        3 => Some("locked on"),
        _ => None,
    };
    if let Some(option) = option {
        add.push(ip(format!("link set p{first} type bridge_slave {option}")));
    }
    Object::new(add, remove)
}
