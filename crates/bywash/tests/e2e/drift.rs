//! `show drift`: empty while the router follows the kernel, and the missed changes after it was kept from doing so.

use crate::harness::{Bywash, PATIENCE};
use bywash_lab::{Namespace, Process, Topology, has_tool, require, require_lab};
use serde_json::json;

/// Stops the router's netlink thread, which receives the kernel's changes, until the returned process ends.
fn hold(namespace: &Namespace, running: &Bywash) -> Process {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", running.process.pid())).unwrap();
    let is_mirror = |task: &std::path::Path| {
        std::fs::read_to_string(task.join("comm")).is_ok_and(|name| name.trim() == "bywash-netlink")
    };
    let task = tasks.map(|task| task.unwrap().path()).find(|task| is_mirror(task)).unwrap();
    let thread = task.file_name().unwrap().to_str().unwrap().to_owned();
    // PTRACE_SEIZE and PTRACE_INTERRUPT; the thread continues when its tracer ends.
    let script = format!(
        "import ctypes, time\nptrace = ctypes.CDLL(None).ptrace\nassert ptrace(0x4206, {thread}, 0, 0) == 0\n\
         assert ptrace(0x4207, {thread}, 0, 0) == 0\nprint('held', flush=True)\ntime.sleep(60)"
    );
    let mut holder = namespace.spawn(&["python3", "-c", &script]).unwrap();
    holder.wait_for_output("held", PATIENCE).unwrap();
    holder
}

#[test]
pub fn drift_is_seen_and_is_none_when_idle() {
    require!(require_lab(), has_tool("python3"));
    let lab = Topology::builder().ports(2).static_neighbours(true).build().unwrap();
    let r = lab.r();
    let running = Bywash::run(r, &["r0", "r1"]);
    r.ip_batch(&(0..200).map(|n| format!("route add 45.0.{n}.0/24 via 10.0.2.2\n")).collect::<String>()).unwrap();
    r.ip_batch(
        "route add 46.0.0.0/8 via 10.0.1.2\nroute add blackhole fd46::/16\nnexthop add id 7 via 10.0.2.2 dev r1\n",
    )
    .unwrap();
    r.ip(&["route", "add", "47.0.0.0/8", "nhid", "7"]).unwrap();
    running.wait("the changes to be followed", |running| running.show(&["drift"]) == json!([]));

    let holder = hold(r, &running);
    r.ip_batch(
        "route add 48.0.0.0/8 via 10.0.2.2\nroute add 49.0.0.0/8 via 10.0.2.2 table 100\nroute del 46.0.0.0/8\nroute replace 47.0.0.0/8 via 10.0.1.2\n\
         address add 10.0.9.1/32 dev lo\n",
    )
    .unwrap();
    let drift = running.show(&["drift"]);
    let of = |object: &str, name: &str| {
        let row = drift.as_array().unwrap().iter().find(|row| row["object"] == object && row["name"] == name);
        row.map(|row| row["drift"].as_str().unwrap().to_owned())
    };
    let missing = Some("the kernel has it, the data plane does not".to_owned());
    assert_eq!(of("route", "48.0.0.0/8 table 254 metric 0"), missing, "{drift}");
    assert_eq!(of("route", "49.0.0.0/8 table 100 metric 0"), missing, "{drift}");
    assert_eq!(of("address", "10.0.9.1/32 dev lo"), missing, "{drift}");
    let gone = Some("the data plane has it, the kernel does not".to_owned());
    assert_eq!(of("route", "46.0.0.0/8 table 254 metric 0"), gone, "{drift}");
    assert_eq!(of("route", "47.0.0.0/8 table 254 metric 0"), Some("the kernel's entry differs".into()), "{drift}");
    drop(holder);
    running.wait("no drift", |running| running.show(&["drift"]) == json!([]));
    running.stop();
}
