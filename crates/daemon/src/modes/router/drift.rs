//! Comparison of the kernel's tables, read afresh, with the data plane's.

use crate::modes::mac;
use bywash_api::Drift;
use bywash_fib::model::{Behind, Change, Neighbour, Prefix, Station};
use bywash_netlink::State;
use bywash_router::control::{Control, kept_in_local};
use bywash_sync::lock;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Comparisons repeat up to `TIMES` times, `AGAIN` apart, until no difference is left or `LONG` has passed: an update
/// in flight is not drift.
const AGAIN: Duration = Duration::from_millis(100);
const TIMES: usize = 5;
const LONG: Duration = Duration::from_secs(2);
/// Maximum number of rows reported; further differences are only counted.
const ROWS: usize = 1000;

/// Returns the differences that persist.
pub fn drift(control: &Mutex<Control>) -> Result<Vec<Drift>, String> {
    let (mut rows, started) = (vec![], Instant::now());
    for time in 0..TIMES {
        if time > 0 {
            std::thread::sleep(AGAIN);
        }
        let mut kernel = State::read().map_err(|e| format!("the kernel's tables cannot be read: {e}"))?;
        let kept: Vec<Change> = kernel.routes().filter_map(|route| kept_in_local(&route)).map(Change::Route).collect();
        kept.iter().for_each(|change| kernel.apply(change));
        // Hold the lock only while copying, so that route updates continue meanwhile.
        let (all, inconsistent_prefixes) = {
            let control = lock(control);
            (control.known().collect::<Vec<Change>>(), control.inconsistent_prefixes())
        };
        let mut known = State::default();
        all.iter().for_each(|change| known.apply(change));
        drop(all);
        rows = differences(&known, &kernel);
        rows.extend(
            inconsistent_prefixes.iter().map(|p| row("fib", p, "the lookup table lacks what was computed for it")),
        );
        if rows.is_empty() || started.elapsed() > LONG {
            break;
        }
    }
    let more = rows.len().saturating_sub(ROWS);
    if more > 0 {
        rows.truncate(ROWS);
        rows.push(row("all", format!("{more} more"), "further differences, not listed"));
    }
    Ok(rows)
}

fn row(object: &str, name: impl ToString, drift: &str) -> Drift {
    Drift { object: object.into(), name: name.to_string(), drift: drift.into() }
}

fn differences(known: &State, kernel: &State) -> Vec<Drift> {
    const MISSING: &str = "the kernel has it, the data plane does not";
    const DIFFERENT: &str = "the kernel's entry differs";
    const GONE: &str = "the data plane has it, the kernel does not";
    let had = |is: bool| if is { DIFFERENT } else { MISSING };
    let dev = |index: u32| {
        let link = kernel.link(index).or_else(|| known.link(index));
        link.map_or(format!("interface {index}"), |link| link.name.clone())
    };
    let route = |table: u32, prefix: Prefix, metric: u32| format!("{prefix} table {table} metric {metric}");
    let selective = |table: u32, prefix: Prefix| format!("{prefix} table {table} by TOS or source");
    let is_tunnel = |index: u32| kernel.link(index).is_some_and(|link| link.tunnel.is_some());
    let station = |bridge: u32, vlan: u32, of| match vlan {
        0 => format!("{} of {}", mac(of), dev(bridge)),
        vni if is_tunnel(bridge) => format!("{} in VNI {vni} of {}", mac(of), dev(bridge)),
        vlan => format!("{} in VLAN {vlan} of {}", mac(of), dev(bridge)),
    };
    // The kernel resolves no addresses on interfaces without a MAC address (loopback, tunnels), and creates neighbour
    // entries there without a notification.
    let asks = |index: u32| kernel.link(index).is_none_or(|link| link.mac.is_some());
    let rows = State::diff(known, kernel).into_iter().filter_map(|change| {
        Some(match change {
            Change::Neighbour(Neighbour { index, .. }) | Change::NeighbourGone { index, .. } if !asks(index) => {
                return None;
            }
            Change::Link(link) => row("link", &link.name, had(known.link(link.index).is_some())),
            Change::LinkGone { index } => row("link", dev(index), GONE),
            Change::Address(a) => {
                let is = known.addresses().any(|k| (k.index, k.addr, k.len) == (a.index, a.addr, a.len));
                row("address", format!("{}/{} dev {}", a.addr, a.len, dev(a.index)), had(is))
            }
            Change::AddressGone { index, addr, len } => {
                row("address", format!("{addr}/{len} dev {}", dev(index)), GONE)
            }
            Change::Route(r) => {
                let is = known.route(r.table, r.prefix, r.metric).is_some();
                row("route", route(r.table, r.prefix, r.metric), had(is))
            }
            Change::RouteGone { table, prefix, metric } => row("route", route(table, prefix, metric), GONE),
            Change::Selective { table, prefix } => row("route", selective(table, prefix), MISSING),
            Change::SelectiveGone { table, prefix } => row("route", selective(table, prefix), GONE),
            Change::Neighbour(n) => {
                let is = known.neighbours().any(|k| (k.index, k.addr) == (n.index, n.addr));
                row("neighbour", format!("{} dev {}", n.addr, dev(n.index)), had(is))
            }
            Change::NeighbourGone { index, addr } => row("neighbour", format!("{addr} dev {}", dev(index)), GONE),
            Change::Station(Station { bridge, vlan, mac: of, behind }) => {
                let by = match behind {
                    Behind::End(end) => end.to_string(),
                    Behind::Member(member) => dev(member),
                };
                let name = format!("{} by {by}", station(bridge, vlan, of));
                row("station", name, had(known.station(bridge, vlan, of)))
            }
            Change::StationGone { bridge, vlan, mac: of } => row("station", station(bridge, vlan, of), GONE),
            Change::Elsewhere { .. } | Change::Synced => return None,
        })
    });
    rows.collect()
}
