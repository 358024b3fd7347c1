//! Measures full tables and churn, printed beside the kernel's own time. Only the outcome is asserted.

mod common;

use bywash_lab::{Namespace, wait_until};
use bywash_netlink::{Config, State};
use common::{Followed, skipped};
use std::fmt::Write as _;
use std::io::Write as _;
use std::time::{Duration, Instant};

/// Returns the number of routes: `BYWASH_ROUTES`, by default a million, or a tenth of it in unoptimised builds.
fn count() -> u32 {
    let default = if cfg!(debug_assertions) { 100_000 } else { 1_000_000 };
    std::env::var("BYWASH_ROUTES").ok().and_then(|n| n.parse().ok()).unwrap_or(default)
}

fn prefix(n: u32) -> String {
    let addr = std::net::Ipv4Addr::from((11 << 24) + (n << 8));
    format!("{addr}/24")
}

fn batch(ns: &Namespace, path: &std::path::Path, lines: &str) -> Duration {
    std::fs::File::create(path).unwrap().write_all(lines.as_bytes()).unwrap();
    let began = Instant::now();
    ns.try_run(&["ip", "-force", "-batch", path.to_str().unwrap()], Duration::from_secs(120)).unwrap().ok().unwrap();
    began.elapsed()
}

#[test]
fn a_full_table_and_churn() {
    if skipped() {
        return;
    }
    let ns = Namespace::new("speed").unwrap();
    for line in
        ["link add a0 type veth peer name a1", "link set a0 up", "link set a1 up", "addr add 10.1.0.1/16 dev a0"]
    {
        ns.ip(&line.split(' ').collect::<Vec<_>>()).unwrap();
    }
    let file = tempfile("speed");
    let routes = count();
    let mut lines = String::new();
    for n in 0..routes {
        writeln!(lines, "route add {} via 10.1.0.{} proto bird", prefix(n), 2 + n % 32).unwrap();
    }
    let loading = batch(&ns, &file, &lines);

    let began = Instant::now();
    let shown = ns.try_run(&["sh", "-c", "ip route show > /dev/null"], Duration::from_secs(60)).unwrap();
    shown.ok().unwrap();
    let ip_shows = began.elapsed();

    let before = resident();
    let began = Instant::now();
    let mut followed = Followed::start(&ns, Config::default());
    let synced = began.elapsed();
    assert!(followed.state.route_count() >= routes as usize);
    println!(
        "{routes} routes: ip loads {loading:.2?}, ip shows {ip_shows:.2?}; mirror and copy synced {synced:.2?}, \
         together {:.0} octets a route",
        (resident() - before) as f64 / f64::from(routes)
    );

    let began = Instant::now();
    drop(ns.enter(State::read).unwrap().unwrap());
    println!("State::read {:.2?}", began.elapsed());
    // The kernel may add routes to link-local addresses meanwhile.
    wait_until("the mirror to have as many routes", Duration::from_secs(60), || {
        while followed.take(Duration::from_millis(10)) {}
        ns.enter(State::read).unwrap().is_ok_and(|once| once.route_count() == followed.state.route_count())
    })
    .unwrap();

    // Replacements as fast as one sender makes them.
    let churn = 100_000u32.min(routes);
    let mut lines = String::new();
    for n in 0..churn {
        writeln!(lines, "route replace {} via 10.1.0.{} proto bird", prefix(n * 7 % routes), 40 + n % 8).unwrap();
    }
    let (messages, worked) = (followed.mirror.stats().messages, mirror_ticks());
    let began = Instant::now();
    let (sending, taken) = std::thread::scope(|scope| {
        let sender = scope.spawn(|| batch(&ns, &file, &lines));
        let mut last = Instant::now();
        while !sender.is_finished() || last.elapsed() < Duration::from_millis(100) {
            if followed.take(Duration::from_millis(10)) {
                last = Instant::now();
            }
        }
        (sender.join().unwrap(), last - began)
    });
    let stats = followed.mirror.stats();
    println!(
        "{churn} replacements: ip sends them in {sending:.2?}, all taken in after {taken:.2?}; {} messages, {} overflows, \
         {} ms of the mirror's CPU time",
        stats.messages - messages,
        stats.overflows,
        (mirror_ticks() - worked) * 10
    );

    // A change while the tables are being read again.
    let synced = followed.synced;
    followed.mirror.request_resync();
    std::thread::sleep(Duration::from_millis(100));
    let began = Instant::now();
    ns.ip(&["neigh", "replace", "10.1.0.2", "lladdr", "02:00:00:00:00:09", "dev", "a0"]).unwrap();
    let known = |followed: &Followed| followed.state.neighbours().any(|n| n.mac == Some([2, 0, 0, 0, 0, 9]));
    while !known(&followed) {
        followed.take(Duration::from_millis(1));
        assert!(began.elapsed() < Duration::from_secs(60));
    }
    let after = began.elapsed();
    followed.until_synced(synced + 1);
    println!(
        "a neighbour during a reading: known after {after:.2?}; the reading goes on until {:.2?}",
        began.elapsed()
    );

    let began = Instant::now();
    ns.ip(&["link", "set", "a0", "down"]).unwrap();
    let kernel = began.elapsed();
    while followed.state.route_count() > 20 {
        followed.take(Duration::from_millis(100));
        assert!(began.elapsed() < Duration::from_secs(60));
    }
    println!("link down: the kernel takes {kernel:.2?}, the mirror has it after {:.2?}", began.elapsed());
    let _ = std::fs::remove_file(file);
}

fn tempfile(name: &str) -> std::path::PathBuf {
    std::env::temp_dir().join(format!("bywash-netlink-{}-{name}.batch", std::process::id()))
}

/// Returns the resident memory of this process, in octets.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

/// Returns the CPU time of the mirror's thread, in hundredths of a second (USER_HZ).
fn mirror_ticks() -> u64 {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let stats = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("stat")).ok());
    let of_mirror = stats.filter(|stat| stat.contains("(bywash-netlink)"));
    of_mirror
        .map(|stat| {
            let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
            fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
        })
        .sum()
}
