//! Tens of thousands of route changes while packets flow: no packet is lost, and the routes end up as in the kernel.

use crate::harness::{Bywash, PATIENCE, alone};
use bywash_lab::{Ping, Topology, require, require_lab, wait_until};
use std::fmt::Write;
use std::time::{Duration, Instant};

const ROUTES: u32 = 20_000;

fn lines(what: &str, via: &str) -> String {
    let mut lines = String::new();
    for n in 0..ROUTES {
        let (high, low) = (n >> 8, n & 0xff);
        writeln!(lines, "route {what} 44.{high}.{low}.0/24{via}").unwrap();
    }
    lines
}

#[test]
pub fn routes_change_under_traffic() {
    require!(require_lab());
    let _alone = alone();
    let lab = Topology::router_n(3).unwrap();
    let bywash = Bywash::run(lab.r(), &lab.router_interfaces());
    let count = |via: &str| {
        let routes = bywash.show(&["routes", "44.0.0.0/8"]);
        routes.as_array().unwrap().iter().filter(|route| route["next_hops"][0]["via"] == via).count() as u32
    };
    // Packets to a neighbour that is not known yet wait, and few may.
    let known = || Ping::to(lab.b().v4).count(1).run(&lab.a().ns).is_ok_and(|report| report.received == 1);
    wait_until("the neighbours to be known", PATIENCE, known).unwrap();
    std::thread::scope(|scope| {
        let steady = scope.spawn(|| {
            let ping = Ping::to(lab.b().v4).count(600).interval(Duration::from_millis(5)).wait(PATIENCE);
            ping.run(&lab.a().ns).unwrap()
        });
        let started = Instant::now();
        lab.r().ip_batch(&lines("add", " via 10.0.2.2")).unwrap();
        bywash.wait("the routes to come", |_| count("10.0.2.2") == ROUTES);
        lab.r().ip_batch(&lines("replace", " via 10.0.3.2")).unwrap();
        bywash.wait("the routes to move", |_| count("10.0.3.2") == ROUTES);
        println!("{} changes taken in within {:?}", 2 * ROUTES, started.elapsed());
        // Flushed all at once: the kernel sends few or no notifications of single routes.
        lab.r().ip(&["route", "flush", "44.0.0.0/8", "root", "44.0.0.0/8"]).ok();
        lab.r().ip(&["route", "flush", "root", "44.0.0.0/8"]).unwrap();
        bywash.wait("the routes to go", |_| bywash.show(&["routes", "44.0.0.0/8"]) == serde_json::json!([]));
        let report = steady.join().unwrap();
        let lost = "packets lost while unrelated routes changed";
        assert_eq!(report.received, report.sent, "{lost}: {}; {}", report.text, bywash.show(&["drops"]));
    });
    bywash.stop();
}
