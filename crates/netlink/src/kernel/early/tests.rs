use super::*;
use crate::kernel::Origin;
use crate::kernel::tests::{reported, route, route_by};
use crate::parse::Event;
use crate::uapi::{NLM_F_APPEND, NLM_F_EXCL, NLM_F_REPLACE};
use bywash_fib::model::{Behind, Change, Neighbour, NeighbourState, Station};

/// Several routes of one key, whose order matters: what a notification has changed early is undone before it is
/// replayed.
#[test]
fn early_changes_and_their_replay_give_the_kernels_order() {
    let to: IpAddr = [192, 0, 2, 0].into();
    let event = |index, flags, gone| route_by(to, index, flags, gone);
    let shown = |index| event(index, 0, false);
    let other = || route([192, 0, 3, 0].into(), false);
    let hop = |kernel: &mut Kernel| {
        let routes = reported(kernel).into_iter().filter_map(|change| match change {
            Change::Route(route) if route.prefix.addr == to => Some(route.next_hops[0].index),
            Change::RouteGone { prefix, .. } if prefix.addr == to => Some(0),
            _ => None,
        });
        routes.last()
    };
    let all = |kernel: &mut Kernel, events: &[Event], origin| {
        for event in events {
            kernel.apply(event.clone(), origin);
        }
    };
    let begin = || {
        let mut kernel = Kernel::default();
        kernel.begin(Scope::ROUTES4);
        kernel.begin_dump(Scope::ROUTES4);
        kernel
    };
    let end = |kernel: &mut Kernel, log: &[Event]| {
        kernel.finish(Scope::ROUTES4, true);
        kernel.begin_replay();
        let scopes = log.iter().map(|event| kernel.apply(event.clone(), Origin::Replay)).collect::<Vec<_>>();
        kernel.end_dump(Scope::ROUTES4);
        scopes
    };
    // Append, delete the first, replace what is left: after the dump has shown the route.
    let log = [event(11, NLM_F_APPEND, false), event(10, 0, true), event(13, NLM_F_REPLACE, false)];
    let mut kernel = begin();
    all(&mut kernel, &[shown(10), other()], Origin::Dump);
    all(&mut kernel, &log, Origin::Early);
    assert_eq!(hop(&mut kernel), Some(13), "known at once");
    assert_eq!(end(&mut kernel, &log), [Scope::NONE; 3]);
    assert_eq!(hop(&mut kernel), None);
    kernel.apply(event(13, 0, true), Origin::Live);
    assert_eq!(hop(&mut kernel), Some(0), "nothing is left");
    // A route of which the dump has shown a part.
    let log = [event(13, NLM_F_APPEND, false)];
    let mut kernel = begin();
    kernel.apply(shown(10), Origin::Dump);
    kernel.apply(log[0].clone(), Origin::Early);
    all(&mut kernel, &[shown(11), shown(13), other()], Origin::Dump);
    end(&mut kernel, &log);
    assert_eq!(hop(&mut kernel), Some(10));
    kernel.apply(event(10, 0, true), Origin::Live);
    assert_eq!(hop(&mut kernel), Some(11));
    // A route that the dump does not show, because it had passed its place.
    let log = [event(10, NLM_F_EXCL, false)];
    let mut kernel = begin();
    kernel.apply(other(), Origin::Dump);
    kernel.apply(log[0].clone(), Origin::Early);
    assert_eq!(hop(&mut kernel), Some(10));
    end(&mut kernel, &log);
    assert_eq!(hop(&mut kernel), None);
    // A dump of another kind leaves it as it is.
    kernel.begin(Scope::ROUTES4 | Scope::NEIGHBOURS);
    kernel.begin_dump(Scope::ROUTES4);
    all(&mut kernel, &[shown(10), other()], Origin::Dump);
    end(&mut kernel, &[]);
    kernel.begin_dump(Scope::NEIGHBOURS);
    kernel.apply(event(11, NLM_F_REPLACE, false), Origin::Early);
    assert!(!kernel.begin_replay());
    assert_eq!(hop(&mut kernel), Some(11));
}

/// Applies events; returns the kinds that must be read again.
fn apply(kernel: &mut Kernel, events: &[Event], origin: Origin) -> Scope {
    let scopes = events.iter().map(|event| kernel.apply(event.clone(), origin));
    scopes.fold(Scope::NONE, Scope::or)
}

/// Returns the links of a route's bodies.
fn links_of(kernel: &Kernel, to: IpAddr) -> Vec<u32> {
    let Event::Route { key, .. } = route(to, false) else { unreachable!() };
    let mut list = vec![];
    match to {
        IpAddr::V4(_) => kernel.routes4.read(&Key4::of(&key), &mut list),
        IpAddr::V6(_) => kernel.routes6.read(&Key6::of(&key), &mut list),
    };
    list.iter().map(|id| kernel.bodies.get(*id).body.legs[0].index).collect()
}

/// A replacement that a dump has overtaken displaces another route than it did in the kernel.
#[test]
fn overtaken_replacements_leave_the_route_to_the_kernel_if_they_go() {
    for (to, other, kind) in [("192.0.2.0", "192.0.3.0", Scope::ROUTES4), ("2001:db8::", "2001:db9::", Scope::ROUTES6)]
    {
        let (to, other) = (to.parse::<IpAddr>().unwrap(), route(other.parse().unwrap(), false));
        let shown = |index| route_by(to, index, 0, false);
        let (added, replaced) =
            (|index| route_by(to, index, NLM_F_EXCL, false), |index| route_by(to, index, NLM_F_REPLACE, false));
        let gone = |index| route_by(to, index, 0, true);
        let appended = |index| route_by(to, index, NLM_F_APPEND, false);
        // Bodies that the dump shows before and after the notifications, and the outcome; the route was by 10 and 11.
        // Notifications that are received with the first datagram, in which it is, may be older.
        for (opening, before, log, after, again, left) in [
            (false, vec![], vec![replaced(12), gone(12)], vec![11], true, vec![0]),
            (false, vec![], vec![replaced(12), gone(12)], vec![11, 9], true, vec![0]),
            (false, vec![10, 11], vec![replaced(12), gone(12)], vec![], false, vec![11]),
            (true, vec![11], vec![replaced(12), gone(12)], vec![], true, vec![0]),
            (false, vec![], vec![replaced(12), gone(12), gone(11)], vec![], false, vec![]),
            (false, vec![], vec![replaced(12), gone(12), gone(11), added(13)], vec![13], false, vec![13]),
            (false, vec![], vec![replaced(12), replaced(14)], vec![14, 11], false, vec![14, 11]),
            // A message repeats what the dump has shown, and another displaces it.
            (false, vec![], vec![appended(11), replaced(12), gone(12)], vec![11], true, vec![0]),
            // The replacement is in place already, and an older message has brought back what it replaced.
            (false, vec![], vec![appended(11), gone(10), replaced(12)], vec![12], true, vec![0]),
            (false, vec![], vec![replaced(12)], vec![12], false, vec![12]),
            // Only the first of these replacements came before the dump.
            (false, vec![], vec![replaced(12), replaced(14), gone(14), gone(11)], vec![14, 11], false, vec![]),
        ] {
            let mut kernel = Kernel::default();
            kernel.begin(kind);
            apply(&mut kernel, &[shown(10), shown(11), other.clone()], Origin::Dump);
            kernel.finish(kind, true);
            kernel.begin(kind);
            kernel.begin_dump(kind);
            apply(&mut kernel, &before.into_iter().map(shown).collect::<Vec<_>>(), Origin::Dump);
            apply(&mut kernel, std::slice::from_ref(&other), Origin::Dump);
            if !opening {
                kernel.end_datagram();
            }
            apply(&mut kernel, &log, Origin::Early);
            if opening {
                assert_eq!(links_of(&kernel, to), left, "reported at once: {log:?}");
            }
            apply(&mut kernel, &after.into_iter().map(shown).collect::<Vec<_>>(), Origin::Dump);
            kernel.finish(kind, true);
            kernel.begin_replay();
            assert_eq!(apply(&mut kernel, &log, Origin::Replay), Scope::NONE);
            let wanted = kernel.end_dump(kind);
            assert_eq!((wanted.has(kind), links_of(&kernel, to)), (again, left), "{log:?}");
        }
    }
}

/// Nothing changes early beside a dump of one datagram.
#[test]
fn replacements_before_the_only_datagram_leave_the_route_to_the_kernel_if_they_go() {
    let to: IpAddr = [192, 0, 2, 0].into();
    for opening in [false, true] {
        let mut kernel = Kernel::default();
        kernel.begin(Scope::ROUTES4);
        kernel.begin_dump(Scope::ROUTES4);
        kernel.apply(route_by(to, 11, 0, false), Origin::Dump);
        if !opening {
            kernel.end_datagram();
        }
        kernel.finish(Scope::ROUTES4, true);
        kernel.begin_replay();
        let log = [route_by(to, 12, NLM_F_REPLACE, false), route_by(to, 12, 0, true)];
        apply(&mut kernel, &log, Origin::Replay);
        assert_eq!(kernel.end_dump(Scope::ROUTES4).has(Scope::ROUTES4), opening);
        assert_eq!(links_of(&kernel, to), if opening { vec![0] } else { vec![] });
    }
}

/// The kernel has written a datagram of a dump before it sends a notification, which is received first.
#[test]
fn a_dump_does_not_undo_what_has_changed_early() {
    let mac = |last| Some([2, 0, 0, 0, 0, last]);
    let neighbour =
        |last, mac| Neighbour { index: 3, addr: [10, 0, 0, last].into(), mac, state: NeighbourState::Reachable };
    let station =
        |last, member| Station { bridge: 7, vlan: 0, mac: [2, 0, 0, 0, 0, last], behind: Behind::Member(member) };
    let to = |v6: bool, last: u16| match v6 {
        false => IpAddr::from([192, 0, last as u8, 0]),
        true => IpAddr::from([0x2001, 0xdb8, last, 0, 0, 0, 0, 0]),
    };
    let routes = |v6| {
        let by = move |last, index, flags, gone| route_by(to(v6, last), index, flags, gone);
        let old = vec![by(1, 10, 0, false), by(2, 10, 0, false), by(4, 10, 0, false)];
        let log = vec![by(1, 11, NLM_F_REPLACE, false), by(2, 10, 0, true), by(3, 11, NLM_F_EXCL, false)];
        (old, log)
    };
    let neighbours = (
        [1, 2].map(|last| Event::Neighbour(neighbour(last, mac(last)))).to_vec(),
        vec![Event::Neighbour(neighbour(1, mac(9))), Event::NeighbourGone(3, [10, 0, 0, 2].into())],
    );
    let stations = (
        [1, 2].map(|last| Event::Station(station(last, 3))).to_vec(),
        vec![Event::Station(station(1, 4)), Event::StationGone { bridge: 7, vlan: 0, mac: station(2, 3).mac }],
    );
    for (kind, (old, log)) in [
        (Scope::ROUTES4, routes(false)),
        (Scope::ROUTES6, routes(true)),
        (Scope::NEIGHBOURS, neighbours),
        (Scope::STATIONS, stations),
    ] {
        let mut kernel = Kernel::default();
        kernel.begin(kind);
        apply(&mut kernel, &old, Origin::Dump);
        kernel.finish(kind, true);
        assert_eq!(reported(&mut kernel).len(), old.len());
        kernel.begin(kind);
        kernel.begin_dump(kind);
        apply(&mut kernel, &log, Origin::Early);
        assert_eq!(reported(&mut kernel).len(), log.len());
        apply(&mut kernel, &old, Origin::Dump);
        assert_eq!(reported(&mut kernel), []);
        kernel.finish(kind, true);
        kernel.begin_replay();
        assert_eq!(apply(&mut kernel, &log, Origin::Replay), Scope::NONE);
        kernel.end_dump(kind);
        assert_eq!(reported(&mut kernel), []);
        // The next dump counts again.
        kernel.begin(kind);
        kernel.begin_dump(kind);
        apply(&mut kernel, &old, Origin::Dump);
        kernel.finish(kind, true);
        assert_eq!(reported(&mut kernel).len(), log.len());
    }
}
