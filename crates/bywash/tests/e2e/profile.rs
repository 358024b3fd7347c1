//! `bywash profile` of a running router, and the router's tx queues in `show`.

use crate::harness::{Bywash, program};
use bywash_lab::{Topology, require, require_lab};
use serde_json::Value;

#[test]
fn a_running_router_is_profiled() {
    require!(require_lab());
    let lab = Topology::router().unwrap();
    let bywash = Bywash::run(lab.r(), &lab.router_interfaces());
    let to = lab.b().v4.to_string();
    let mut ping = lab.a().ns.spawn(&["ping", "-q", "-i", "0.005", &to]).unwrap();
    bywash.wait("the first packets", |b| b.counter("r1", "tx_packets") > 10);
    let (program, socket, page) = (program(), bywash.socket(), bywash.socket().with_extension("html"));
    let socket = socket.to_str().unwrap();
    let look = |more: &[&str]| {
        let argv = [&[program.as_str(), "profile", "--socket", socket, "--seconds", "1"], more].concat();
        lab.r().run(&argv).unwrap().stdout
    };
    let report: Value = serde_json::from_str(&look(&["--json", "--html", page.to_str().unwrap()])).unwrap();
    let workers = report["workers"].as_array().unwrap();
    assert!(workers.iter().any(|w| w["packets"].as_u64().unwrap() > 0), "{report:#}");
    let stages = workers[0]["stages"].as_array().unwrap();
    let names: Vec<&str> = stages.iter().map(|stage| stage["stage"].as_str().unwrap()).collect();
    assert!(["rx", "input", "lookup", "forward", "tx"].iter().all(|name| names.contains(name)), "{names:?}");
    assert!(names.contains(&report["hot"]["stage"].as_str().unwrap()), "{report:#}");
    // There are counters, or a reason why there are none.
    let counted = workers.iter().all(|worker| worker["counters"]["cpi"].is_f64());
    let why = report["missing"].to_string();
    assert!(counted || why.contains("hardware counters"), "{report:#}");
    assert!(std::fs::read_to_string(page).unwrap().contains("class=\"chart\""));
    let text = look(&["--worker", "0"]);
    assert!(text.contains("look at `") && text.contains("worker 0: "), "{text}");

    // The tx queues are shown by worker and by port.
    let queues = bywash.show(&["workers"])[0]["tx_queues"].clone();
    let ports = bywash.show(&["ports"]);
    for (queue, port) in queues.as_array().unwrap().iter().zip(ports.as_array().unwrap()) {
        let all = &port["tx_queue"];
        assert!(queue["sends"].as_u64().unwrap() > 0 && queue["wait_us_p99"].as_f64().is_some(), "{queue}");
        assert!(all["sends"].as_u64() >= queue["sends"].as_u64(), "{all}");
        assert_eq!((&all["burst"], &all["deadline_us"]), (&32.into(), &0.into()));
    }
    ping.kill().unwrap();
    bywash.stop();
}
