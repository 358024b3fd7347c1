use super::*;
use crate::State;
use crate::change::{Changer, Changes};
use crate::probe::{Found, Prober};
use bywash_lab::Namespace;
use bywash_nl::wake::Wake;
use std::net::Ipv4Addr;
use std::sync::Arc;

/// Links are read every second beside a bridge.
#[test]
fn other_readings_do_not_delay_that_of_vlans() {
    let now = Instant::now();
    let first = vlans_due(None, false, now);
    assert_eq!(first, now + VLANS_AGAIN);
    let later = now + LINKS_AGAIN;
    assert_eq!(vlans_due(Some(first), false, later), first);
    assert_eq!(vlans_due(Some(first), true, later), later + VLANS_AGAIN);
}

#[test]
fn readings_do_not_wait_for_that_of_disturbed_routes() {
    let mut follower = Follower::new(1 << 20, Duration::ZERO, true).unwrap();
    let later = Instant::now() + Duration::from_secs(3600);
    follower.disturbed = [None, Some(later)];
    assert_eq!(follower.due(), Some(later));
    follower.want(Scope::ROUTES4);
    assert!(follower.due().is_some_and(|due| due <= Instant::now()));
    // Nor does what is due before end the pause of the others.
    follower.due = Some(later);
    follower.vlans = Some(Instant::now());
    follower.read(&mut |_: Change| {}).unwrap();
    assert!(follower.wanted.has(Scope::ROUTES4));
    assert_eq!((follower.due, follower.disturbed), (Some(later), [None, Some(later)]));
}

#[test]
fn neighbours_that_a_dump_has_left_out_are_read_again_when_they_are_needed() {
    if let Err(reason) = bywash_lab::require_lab() {
        return bywash_lab::report_skip(&reason);
    }
    let ns = Namespace::new("found").unwrap();
    ns.ip_batch(
        "link add a0 type veth peer name a1\nlink set a1 up\nlink set a0 up\naddr add 10.1.0.1/24 dev a0\n\
         neigh add 10.1.0.9 lladdr 02:00:00:00:00:09 dev a0 nud permanent\n\
         neigh add 10.1.0.8 lladdr 02:00:00:00:00:08 dev a0 nud reachable\n",
    )
    .unwrap();
    ns.enter(|| {
        let found = Arc::new(Found::new(Arc::new(Wake::new().unwrap())));
        let prober = Prober::open(Arc::clone(&found)).unwrap();
        let mut follower = Follower::new(1 << 20, Duration::ZERO, true).unwrap();
        let index = crate::interface_by_name("a0").unwrap().unwrap().index;
        for last in [8, 9] {
            prober.probe(index, Ipv4Addr::new(10, 1, 0, last).into());
        }
        let found = found.take();
        let macs: Vec<_> = found.iter().map(|known| known.mac).collect();
        assert_eq!(macs, [8, 9].map(|last| Some([2, 0, 0, 0, 0, last])));
        follower.check_neighbours(&found);
        let mut state = State::default();
        follower.read(&mut |change: Change| state.apply(&change)).unwrap();
        follower.report(&mut |change| state.apply(&change));
        assert!(found.iter().all(|known| follower.kernel.knows(known)));
        follower.check_neighbours(&found);
        assert!(follower.is_settled());
    })
    .unwrap();
}

/// Receives what a reading reports, and changes the kernel's tables after the first route.
struct Meddler<'a> {
    namespace: &'a Namespace,
    state: State,
    reported: Vec<Change>,
    lines: Option<String>,
}

impl Sink for Meddler<'_> {
    fn put(&mut self, change: Change) {
        self.state.apply(&change);
        if matches!(change, Change::Route(_))
            && let Some(lines) = self.lines.take()
        {
            self.namespace.ip_batch(&lines).unwrap();
        }
        self.reported.push(change);
    }
}

#[test]
fn changes_during_a_long_dump_do_not_wait_for_its_end() {
    if let Err(reason) = bywash_lab::require_lab() {
        return bywash_lab::report_skip(&reason);
    }
    let ns = Namespace::new("early").unwrap();
    for (n, name) in ["a", "b", "c"].iter().enumerate() {
        let n = n + 1;
        ns.ip_batch(&format!(
            "link add {name}0 type veth peer name {name}1\nlink set {name}1 up\nlink set {name}0 up\n\
             addr add 10.{n}.0.1/24 dev {name}0\n"
        ))
        .unwrap();
    }
    ns.ip_batch("route add 200.0.0.0/24 via 10.1.0.9\nroute append 200.0.0.0/24 via 10.2.0.8\n").unwrap();
    let prefixes: Vec<_> = (0..3 * REPORT_AT as u32).map(|n| (Ipv4Addr::from((11 << 24) + (n << 8)), 24)).collect();
    let ([first, .., last], gateway) = (&prefixes[..], Ipv4Addr::new(10, 1, 0, 9)) else { unreachable!() };
    let index = ns.enter(|| crate::interface_by_name("a0")).unwrap().unwrap().unwrap();
    let changes = Changes::replace(&prefixes, gateway, index.index);
    ns.enter(|| {
        let mut changer = Changer::open().unwrap();
        (0..changes.pieces()).for_each(|n| changer.make(&changes, n).unwrap());
    })
    .unwrap();
    let lines = format!(
        "neigh replace {gateway} lladdr 02:00:00:00:00:09 dev a0\nroute replace {}/24 via 10.2.0.9\n\
         route replace {}/24 via 10.2.0.9\nroute add 9.0.0.0/24 via 10.2.0.9\nroute del 10.3.0.0/24\n\
         route replace 200.0.0.0/24 via 10.2.0.7\nroute del 200.0.0.0/24 via 10.2.0.7\nlink set c0 down\n",
        first.0, last.0
    );
    let mut meddler =
        Meddler { namespace: &ns, state: State::default(), reported: vec![], lines: Some(lines.to_string()) };
    ns.enter(|| {
        let mut follower = Follower::new(64 << 20, Duration::ZERO, true).unwrap();
        follower.want_all();
        follower.read(&mut meddler).unwrap();
        // The dump reaches this one after its first body was replaced by another, which then went: the second is left.
        let left = IpAddr::from([200, 0, 0, 0]);
        assert!(meddler.state.routes().any(|route| route.prefix.addr == left));
        let at = |what: &str, of: &dyn Fn(&Change) -> bool| {
            meddler.reported.iter().position(of).unwrap_or_else(|| panic!("{what} was not reported"))
        };
        let via_b = |route: &bywash_fib::model::Route| {
            route.next_hops.first().and_then(|hop| hop.gateway) == Some(Ipv4Addr::new(10, 2, 0, 9).into())
        };
        let moved = |to: Ipv4Addr| {
            at(&format!("the route to {to}"), &|change| {
                matches!(change, Change::Route(route) if route.prefix.addr == IpAddr::from(to) && via_b(route))
            })
        };
        let early = [
            at("the neighbour", &|change| matches!(change, Change::Neighbour(n) if n.addr == IpAddr::from(gateway))),
            at("the link", &|change| matches!(change, Change::Link(link) if link.name == "c0" && !link.up)),
            moved(first.0),
            moved(last.0),
            moved(Ipv4Addr::new(9, 0, 0, 0)),
        ];
        let end = meddler.reported.iter().rposition(|change| matches!(change, Change::Route(_))).unwrap();
        let left = meddler.reported[*early.iter().max().unwrap()..end].len();
        assert!(left > REPORT_AT / 2, "{early:?} of {end}");

        // Routes that the dump had shown before they changed, or passed before they were added, end as the kernel's.
        let deadline = Instant::now() + bywash_lab::patience(Duration::from_secs(30));
        loop {
            while follower.receive(&mut |change| meddler.put(change)).unwrap() {}
            if follower.due().is_some_and(|due| due <= Instant::now()) {
                follower.read(&mut meddler).unwrap();
            }
            follower.report(&mut |change| meddler.put(change));
            let differences = State::diff(&meddler.state, &State::read().unwrap());
            if follower.is_settled() && differences.is_empty() {
                break;
            }
            assert!(Instant::now() < deadline, "{differences:?}");
        }
    })
    .unwrap();
}

#[test]
fn a_dump_may_leave_out_routes_between_the_last_of_a_datagram_and_the_first_of_the_next() {
    let shown = |table, addr: [u8; 4]| Event::Selective {
        table,
        prefix: bywash_fib::model::Prefix { addr: addr.into(), len: 32 },
        links: vec![],
        gone: false,
    };
    let [a, b, c] = [1, 2, 3].map(|last| [10, 0, 0, last]);
    let mut boundaries = Boundaries::default();
    boundaries.show(&shown(254, a));
    boundaries.show(&shown(254, b));
    assert_eq!(boundaries.ranges, []);
    boundaries.end_datagram();
    boundaries.show(&shown(254, c));
    boundaries.show(&shown(255, a));
    boundaries.end_datagram();
    boundaries.show(&shown(100, b));
    assert!(!boundaries.removed_in(&[]));
    let has = |table, addr| boundaries.has((table, u32::from_be_bytes(addr)));
    assert!(!has(254, a) && has(254, b) && has(254, c) && has(255, c) && !has(254, [193, 0, 0, 0]));
    // The end of one table and the beginning of another, and the end of the last.
    assert!(has(255, a) && has(255, [193, 0, 0, 0]) && has(100, a) && has(100, b) && has(100, [193, 0, 0, 0]));
    assert!(!has(101, b));
}

/// Nothing follows the first datagram, in which the kernel may have left off before the end.
#[test]
fn a_dump_may_leave_out_routes_after_its_only_datagram() {
    let route = |addr: [u8; 4]| Event::Selective {
        table: 254,
        prefix: bywash_fib::model::Prefix { addr: addr.into(), len: 32 },
        links: vec![],
        gone: false,
    };
    let removal = |addr: [u8; 4]| {
        let body = [AF_INET, 32, 0, 0, RT_TABLE_MAIN, 0, 0, 1, 0, 0, 0, 0];
        let message = bywash_nl::wire::Request::new(RTM_DELROUTE, 0, 0, &body).attribute(RTA_DST, &addr);
        [&(message.bytes().len() as u32).to_ne_bytes(), message.bytes()].concat()
    };
    for (addr, counts) in [([10, 0, 0, 1], false), ([10, 0, 0, 2], true), ([10, 0, 0, 3], true)] {
        let mut boundaries = Boundaries::default();
        assert!(!boundaries.removed_in(&removal(addr)));
        boundaries.show(&route([10, 0, 0, 1]));
        boundaries.show(&route([10, 0, 0, 2]));
        boundaries.end_datagram();
        assert_eq!(boundaries.removed_in(&removal(addr)), counts, "{addr:?}");
    }
}
