//! Text rendering of the figures, at most 80 columns wide if names are short.

use super::figures::{Figures, PathShares};
use crate::config::count;
use crate::show::{Grid, bits, pps};

/// View of the screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum View {
    Overview,
    Ports,
    Workers,
    Buffers,
    Flows,
    Drops,
}

impl View {
    /// All views with their key and title, in the order of Tab.
    pub const ALL: [(Self, char, &str); 6] = [
        (Self::Overview, 'o', "overview"),
        (Self::Ports, 'p', "ports"),
        (Self::Workers, 'w', "workers"),
        (Self::Buffers, 'b', "buffers"),
        (Self::Flows, 'f', "flows"),
        (Self::Drops, 'd', "drops"),
    ];

    /// Returns the next view in the order of Tab.
    pub fn next(self) -> Self {
        let at = Self::ALL.iter().position(|(view, ..)| *view == self).unwrap_or(0);
        Self::ALL[(at + 1) % Self::ALL.len()].0
    }
}

/// Maximum number of drop reasons in the overview; the drops view shows all.
const SOME: usize = 8;

/// Formats the totals in one line.
pub fn headline(it: &Figures) -> String {
    let total = &it.total;
    format!(
        "rx {} {}  tx {} {}  drops {}  busy {:.0} %",
        pps(total.rx_pps),
        bits(total.rx_bps),
        pps(total.tx_pps),
        bits(total.tx_bps),
        pps(total.drops_pps),
        total.busy_percent
    )
}

/// Renders the tables of a view.
pub fn render(it: &Figures, view: View) -> String {
    let parts = match view {
        View::Overview => {
            let mut parts = vec![ports(it), workers(it), pools(it), drops(it, SOME)];
            parts.extend(it.ways.as_ref().map(path_shares));
            if it.caches.is_some() || !it.flows.is_empty() {
                parts.push(flows(it));
            }
            parts
        }
        View::Ports => vec![ports(it)],
        View::Workers => vec![workers(it), stages(it)],
        View::Buffers => vec![pools(it)],
        View::Flows => vec![it.ways.as_ref().map_or_else(|| flows(it), path_shares)],
        View::Drops => vec![drops(it, usize::MAX)],
    };
    parts.join("\n")
}

fn ports(it: &Figures) -> String {
    let mut grid = Grid::new(&["port", "state", "level", "rx", "", "tx", " ", "held"]);
    for port in &it.ports {
        grid.row(vec![
            port.name.clone(),
            port.state.clone(),
            port.level.clone(),
            pps(port.rx_pps),
            bits(port.rx_bps),
            pps(port.tx_pps),
            bits(port.tx_bps),
            port.held.to_string(),
        ]);
    }
    grid.render("no ports")
}

fn workers(it: &Figures) -> String {
    let mut grid = Grid::new(&["worker", "cpu", "busy %", "rx", "burst", "cycles/pkt", "where its time goes"]);
    for worker in &it.workers {
        // Only the two most expensive stages fit 80 columns.
        let mut stages: Vec<_> = worker.stages.iter().filter(|stage| stage.percent >= 1.0).collect();
        stages.sort_by(|a, b| b.percent.total_cmp(&a.percent));
        let stages = stages.iter().take(2).map(|stage| format!("{} {:.0} %", stage.name, stage.percent));
        grid.row(vec![
            worker.id.to_string(),
            worker.cpu.map_or(String::new(), |cpu| cpu.to_string()),
            format!("{:.1}", worker.busy_percent),
            pps(worker.rx_pps),
            format!("{:.1}", worker.burst_mean),
            format!("{:.0}", worker.cycles_per_packet),
            stages.collect::<Vec<_>>().join(", "),
        ]);
    }
    grid.render("no workers")
}

fn stages(it: &Figures) -> String {
    let mut grid = Grid::new(&["worker", "stage", "time %", "packets", "cycles/packet"]);
    for worker in &it.workers {
        for stage in &worker.stages {
            grid.row(vec![
                worker.id.to_string(),
                stage.name.clone(),
                format!("{:.1}", stage.percent),
                pps(stage.pps),
                format!("{:.1}", stage.cycles_per_packet),
            ]);
        }
        let idle = format!("{:.1}", 100.0 - worker.busy_percent);
        grid.row(vec![worker.id.to_string(), "idle".into(), idle, String::new(), String::new()]);
    }
    grid.render("no workers")
}

fn pools(it: &Figures) -> String {
    let mut grid = Grid::new(&["pool", "buffers", "in use", "%", "peak", "short of buffers"]);
    for pool in &it.pools {
        let percent = 100.0 * pool.in_use as f64 / pool.frames.max(1) as f64;
        grid.row(vec![
            pool.name.clone(),
            pool.frames.to_string(),
            pool.in_use.to_string(),
            format!("{percent:.0}"),
            pool.peak.to_string(),
            format!("{:.0}/s", pool.exhausted_per_s),
        ]);
    }
    grid.render("no pools")
}

fn drops(it: &Figures, most: usize) -> String {
    let mut grid = Grid::new(&["port", "dropped for", "now", "packets"]);
    for drop in it.drops.iter().take(most) {
        grid.row(vec![drop.port.clone(), drop.reason.clone(), pps(drop.pps), drop.packets.to_string()]);
    }
    let more = it.drops.len().saturating_sub(most);
    grid.render("nothing was dropped") + &if more > 0 { format!("and {more} more\n") } else { String::new() }
}

fn path_shares(it: &PathShares) -> String {
    let PathShares { flow_percent, route_percent, kernel_percent, flows, limit } = it;
    format!(
        "by flow {flow_percent:.1} %, by route {route_percent:.1} %, kernel {kernel_percent:.1} %; {flows} of {}\n",
        count(limit, "flow")
    )
}

fn flows(it: &Figures) -> String {
    let mut out = String::new();
    if let Some(caches) = &it.caches {
        out += &format!(
            "{}; {} looked up: exact {:.1} %, megaflow {:.1} %, tables {:.1} %\n",
            count(caches.flows, "flow"),
            pps(caches.lookups_pps),
            caches.exact_percent,
            caches.megaflow_percent,
            caches.miss_percent
        );
    }
    if it.flows.is_empty() {
        let none = if it.mode == "router" { "no flows: a router forwards by routes" } else { "no flows are shown" };
        return out + none + "\n";
    }
    let mut grid = Grid::new(&["now", "", "queued", "packets", "flow"]);
    for flow in &it.flows {
        grid.row(vec![
            pps(flow.pps),
            bits(flow.bps),
            flow.queued.map_or(String::new(), |queued| queued.to_string()),
            flow.packets.to_string(),
            flow.name.clone(),
        ]);
    }
    out + &grid.render("no flows")
}
