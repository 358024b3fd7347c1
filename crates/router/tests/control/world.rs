//! A control side under test, and helpers to express what the kernel reports.

use bywash_engine::PortId;
use bywash_fib::model::{
    Address, Change, Link, Mac, Neighbour, NeighbourState, NextHop, Outer, Prefix, Route, RouteKind,
};
use bywash_router::control::{Applied, Control, PortSpec};
use bywash_router::tables::{Cold, Entry, Kind, Reception, Tables};
use bywash_sync::Qsbr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Interface indices of most tests: two ports, and an interface that is not a port.
pub const P0: u32 = 1;
pub const P1: u32 = 2;
pub const OTHER: u32 = 3;

/// Result for a packet, with everything that a stage would read.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Got {
    Verdict(&'static str),
    Out {
        kind: &'static str,
        port: u16,
        index: u32,
        gateway: Option<IpAddr>,
        to: Mac,
        from: Mac,
        mtu: u32,
        source4: Option<Ipv4Addr>,
        source6: Option<Ipv6Addr>,
    },
    /// Members with their shares of the flows.
    Group(Vec<(Got, Share)>),
}

/// A share of flows in 1/65,536. Shares are equal if they match to the nearest of 256 buckets.
#[derive(Clone, Copy, Debug, PartialOrd, Ord)]
pub struct Share(pub usize);

impl PartialEq for Share {
    fn eq(&self, other: &Self) -> bool {
        self.0.abs_diff(other.0) <= 256 + 16
    }
}

impl Eq for Share {}

pub struct World {
    pub domain: Qsbr,
    pub control: Control,
}

impl World {
    /// Creates two ports, `p0` and `p1`, whose links have not been reported yet.
    pub fn bare() -> Self {
        let domain = Qsbr::new();
        let spec = |id, index, name: &str| PortSpec {
            id: PortId(id),
            index,
            name: name.into(),
            partial_checksums: false,
            reception: Reception::Own,
        };
        let control = Control::new(&domain, vec![spec(0, P0, "p0"), spec(1, P1, "p1")]).unwrap();
        Self { domain, control }
    }

    /// Creates the same ports with links up, 10.0.0.1/24 and fd00::1/64 on `p0`, 10.0.1.1/24 and fd01::1/64 on `p1`.
    pub fn new() -> Self {
        let mut w = Self::bare();
        w.apply(&[link(P0, "p0"), link(P1, "p1"), link(OTHER, "x")]);
        for (index, v4, v6) in [(P0, "10.0.0.1", "fd00::1"), (P1, "10.0.1.1", "fd01::1")] {
            w.apply(&[address(index, v4, 24), address(index, v6, 64)]);
            w.apply(&[route(&format!("{v4}/32")).local(), route(&format!("{v6}/128")).local()].map(R::into));
            let connected = [route(&format!("{v4}/24")).dev(index).source(v4), route(&format!("{v6}/64")).dev(index)];
            w.apply(&connected.map(R::into));
        }
        w
    }

    pub fn apply(&mut self, changes: &[Change]) -> Applied {
        let applied = self.control.apply(changes);
        applied.ports_back.iter().for_each(|back| self.control.set_open(back.id, true));
        applied
    }

    pub fn with<T>(&self, f: impl FnOnce(&Tables) -> T) -> T {
        let reader = self.domain.register();
        f(self.control.tables().load(&reader))
    }

    pub fn id(&self, addr: &str) -> u32 {
        self.with(|t| lookup(t, addr.parse().unwrap()))
    }

    pub fn got(&self, addr: &str) -> Got {
        self.get(addr.parse().unwrap())
    }

    pub fn get(&self, addr: IpAddr) -> Got {
        self.with(|t| got(t, lookup(t, addr)))
    }

    /// Returns kind, gateway and the destination MAC's last byte, which is enough for most tests.
    pub fn brief(&self, addr: &str) -> String {
        match self.got(addr) {
            Got::Verdict(kind) => kind.into(),
            Got::Out { kind, index, gateway, to, .. } => {
                let via = gateway.map(|g| format!(" via {g}")).unwrap_or_default();
                format!("{kind} dev {index}{via} mac {}", to[5])
            }
            Got::Group(members) => format!("group of {}", members.len()),
        }
    }
}

pub fn lookup(t: &Tables, addr: IpAddr) -> u32 {
    match addr {
        IpAddr::V4(a) => t.fib4.lookup(a.to_bits()),
        IpAddr::V6(a) => t.fib6.lookup(a.to_bits()),
    }
}

/// Returns the content of `id`. Panics if it, or a member, is out of range.
pub fn got(t: &Tables, id: u32) -> Got {
    let (entry, cold): (&Entry, &Cold) = (&t.entries[id as usize], &t.cold[id as usize]);
    let name = kind_name(entry.kind);
    match entry.kind {
        Kind::Forward | Kind::Glean | Kind::Pending | Kind::Failed => Got::Out {
            kind: name,
            port: entry.port.0,
            index: cold.index,
            gateway: cold.gateway,
            to: entry.macs[..6].try_into().unwrap(),
            from: entry.macs[6..].try_into().unwrap(),
            mtu: entry.mtu,
            source4: cold.source4,
            source6: cold.source6,
        },
        Kind::Group => {
            assert!((1..=256).contains(&entry.group().len()));
            let ids = &t.buckets[entry.group()];
            share(ids.iter().map(|id| (got(t, *id), 1)).collect())
        }
        _ => Got::Verdict(name),
    }
}

/// Returns a group of members with weights; equal members are merged.
pub fn share(members: Vec<(Got, usize)>) -> Got {
    let total: usize = members.iter().map(|m| m.1).sum();
    Got::Group(merged(members).into_iter().map(|(got, weight)| (got, Share(weight * 65_536 / total))).collect())
}

fn merged(mut members: Vec<(Got, usize)>) -> Vec<(Got, usize)> {
    members.sort();
    members.dedup_by(|next, kept| {
        next.0 == kept.0 && {
            kept.1 += next.1;
            true
        }
    });
    members
}

pub fn kind_name(kind: Kind) -> &'static str {
    match kind {
        Kind::NoRoute => "no-route",
        Kind::Forward => "forward",
        Kind::Glean => "glean",
        Kind::Pending => "pending",
        Kind::Failed => "failed",
        Kind::Group => "group",
        Kind::Blackhole => "blackhole",
        Kind::Unreachable => "unreachable",
        Kind::Prohibit => "prohibit",
        Kind::Local => "local",
        Kind::Kernel => "kernel",
        Kind::Policy => "policy",
        Kind::Tunnel => "tunnel",
        Kind::NoCarrier => "no-carrier",
    }
}

pub fn a_link(index: u32, name: &str) -> Link {
    Link {
        index,
        name: name.into(),
        mac: Some([2, 0, 0, 0, 0xff, index as u8]),
        mtu: 1500,
        up: true,
        carrier: true,
        kind: "veth".into(),
        rx_queues: 1,
        ..Link::default()
    }
}

pub fn link(index: u32, name: &str) -> Change {
    Change::Link(a_link(index, name))
}

pub fn address(index: u32, addr: &str, len: u8) -> Change {
    let link_scope = addr.starts_with("fe80:");
    Change::Address(Address { index, addr: addr.parse().unwrap(), len, secondary: false, link_scope })
}

/// Returns a usable neighbour whose MAC ends in `mac`; 0 stands for a failed one.
pub fn neighbour(index: u32, addr: &str, mac: u8) -> Change {
    let (mac, state) = match mac {
        0 => (None, NeighbourState::Failed),
        n => (Some([2, 0, 0, 0, 0, n]), NeighbourState::Reachable),
    };
    Change::Neighbour(Neighbour { index, addr: addr.parse().unwrap(), mac, state })
}

pub fn prefix(text: &str) -> Prefix {
    text.parse().unwrap()
}

/// Builder for a route.
pub struct R(pub Route);

pub fn route(to: &str) -> R {
    R(Route {
        table: 254,
        prefix: prefix(to),
        kind: RouteKind::Unicast,
        metric: 0,
        next_hops: [].into(),
        mtu: None,
        source: None,
        protocol: 4,
    })
}

impl R {
    fn hop(mut self, hop: NextHop) -> Self {
        let mut hops = self.0.next_hops.to_vec();
        hops.push(hop);
        self.0.next_hops = hops.into();
        self
    }

    pub fn dev(self, index: u32) -> Self {
        self.hop(NextHop { index, outer: None, gateway: None, weight: 1, alive: true })
    }

    pub fn via(self, index: u32, gateway: &str) -> Self {
        self.weighted(index, gateway, 1)
    }

    /// A next hop that puts these headers around packets.
    pub fn around(self, index: u32, gateway: &str, outer: Outer) -> Self {
        let gateway = Some(gateway.parse().unwrap());
        self.hop(NextHop { index, outer: Some(outer), gateway, weight: 1, alive: true })
    }

    pub fn weighted(self, index: u32, gateway: &str, weight: u16) -> Self {
        self.hop(NextHop { index, outer: None, gateway: Some(gateway.parse().unwrap()), weight, alive: true })
    }

    pub fn dead(self, index: u32, gateway: &str) -> Self {
        self.hop(NextHop { index, outer: None, gateway: Some(gateway.parse().unwrap()), weight: 1, alive: false })
    }

    pub fn kind(mut self, kind: RouteKind) -> Self {
        self.0.kind = kind;
        self
    }

    pub fn local(mut self) -> Self {
        (self.0.kind, self.0.table, self.0.protocol) = (RouteKind::Local, 255, 2);
        self
    }

    pub fn protocol(mut self, protocol: u8) -> Self {
        self.0.protocol = protocol;
        self
    }

    pub fn table(mut self, table: u32) -> Self {
        self.0.table = table;
        self
    }

    pub fn metric(mut self, metric: u32) -> Self {
        self.0.metric = metric;
        self
    }

    pub fn mtu(mut self, mtu: u32) -> Self {
        self.0.mtu = Some(mtu);
        self
    }

    pub fn source(mut self, source: &str) -> Self {
        self.0.source = Some(source.parse().unwrap());
        self
    }

    pub fn gone(self) -> Change {
        Change::RouteGone { table: self.0.table, prefix: self.0.prefix, metric: self.0.metric }
    }
}

impl From<R> for Change {
    fn from(r: R) -> Self {
        Change::Route(r.0)
    }
}
