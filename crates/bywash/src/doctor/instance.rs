//! Checks of a running instance: its state, and counters that rise during the examination.

use super::finding::Finding;
use super::finding::Severity::{Error, Note, Warning};
use crate::api::client::ask;
use crate::api::{Config, DropCount, Drops, Health, Placement, Pool, Pools, Port, Worker};
use crate::config::count;
use crate::namespace::elsewhere;
use std::io::ErrorKind;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// Time between the two samples.
const INTERVAL: Duration = Duration::from_secs(1);
/// Threshold for the fraction of a pool's buffers in use, and of a worker's busy time.
const NEARLY: f64 = 0.9;

/// Sample of the examined topics.
#[derive(Debug)]
#[cfg_attr(test, derive(serde::Deserialize))]
pub struct Sample {
    /// Mode of the instance.
    pub mode: String,
    pub ports: Vec<Port>,
    workers: Vec<Worker>,
    pools: Pools,
    drops: Drops,
    placement: Vec<Placement>,
}

impl Sample {
    /// Takes a sample. Errors if no instance answers on the socket.
    pub fn now(socket: &Path) -> anyhow::Result<Self> {
        Ok(Self {
            // An instance at fault does not tell its health.
            mode: ask::<Config>(socket)?.mode,
            ports: ask(socket)?,
            workers: ask(socket)?,
            pools: ask(socket)?,
            drops: ask(socket)?,
            placement: ask(socket)?,
        })
    }

    /// Takes a sample, and returns it with the instance's process if that is in another network namespace; `None` if no
    /// instance runs. Errors if one may run, but does not answer.
    pub fn of_running(socket: &Path) -> anyhow::Result<Option<(Self, Option<i32>)>> {
        match UnixStream::connect(socket) {
            Err(why) if [ErrorKind::NotFound, ErrorKind::ConnectionRefused].contains(&why.kind()) => Ok(None),
            stream => Ok(Some((Self::now(socket)?, stream.ok().and_then(|stream| elsewhere(&stream))))),
        }
    }
}

/// Returns the finding that the instance at `socket`, process `pid`, is in another network namespace.
pub fn is_elsewhere(pid: i32, socket: &Path) -> Finding {
    let what = format!("the instance (pid {pid}) runs in another network namespace");
    let socket = socket.display();
    let mend = format!("nsenter --net=/proc/{pid}/ns/net bywash doctor --socket {socket}");
    Finding::new(Warning, "other-namespace", what, "the interfaces of its ports are not examined").mend(mend)
}

/// Returns the increase of a counter since the row of `before` that is `like` this one.
fn grown<T>(before: &[T], now: &T, like: impl Fn(&T, &T) -> bool, count: impl Fn(&T) -> u64) -> u64 {
    count(now).saturating_sub(before.iter().find(|was| like(was, now)).map_or(0, count))
}

/// Examines the instance by comparing `before` with a new sample.
pub fn examine(socket: &Path, before: &Sample) -> Vec<Finding> {
    std::thread::sleep(INTERVAL);
    let mut found = Sample::now(socket).map(|now| compare(before, &now)).unwrap_or_default();
    // The error is the instance's own, and says what to do.
    if let Err(why) = ask::<Health>(socket) {
        let costs = "some of its functions fail until this is fixed";
        let what = format!("{why:#}");
        let what = what.trim_start_matches("show health: ");
        found.push(Finding::new(Error, "unhealthy", what, costs).see("bywash show health"));
    }
    found
}

fn compare(before: &Sample, now: &Sample) -> Vec<Finding> {
    let mut found = vec![];
    for port in &now.ports {
        let name = &port.name;
        if port.state != "up" {
            let why = port.reason.as_deref().unwrap_or("no reason given");
            let what = format!("the port is {}: {why}", port.state);
            let finding = Finding::new(Error, "port-down", what, "it forwards nothing");
            found.push(finding.see("bywash show ports").of(name));
        }
        let full = grown(&before.ports, port, |a, b| a.name == b.name, |port: &Port| port.counters.tx_full);
        if full > 0 {
            let what = format!("its TX ring was full {} in a second", count(full, "time"));
            let costs = "packets are delayed, and dropped when the TX queue is full";
            let mend = "use a faster link, or an additional queue and worker";
            found.push(Finding::new(Warning, "tx-ring-full", what, costs).mend(mend).of(name));
        }
        for queue in port.queues.iter().filter(|queue| queue.mode.as_deref() == Some("copy")) {
            let why = queue.mode_note.as_deref().unwrap_or("the driver has no zero-copy");
            let what = format!("queue {} copies frames: {why}", queue.queue.as_deref().unwrap_or("?"));
            found.push(Finding::new(Note, "copy-mode", what, "a copy for each packet").of(name));
        }
    }
    for Placement { port, configured, level, why, .. } in &now.placement {
        if let (Some(wanted), Some(is)) = (configured, level)
            && wanted != is
            && wanted != "auto"
        {
            let what = format!("level {wanted} is configured, but {is} is in effect: {why}");
            let costs = "packets are forwarded at another level than configured";
            found.push(Finding::new(Warning, "level", what, costs).of(port));
        }
    }
    for Placement { port, kept, .. } in &now.placement {
        for kept in kept {
            let what = format!("{}: {}: {}", kept.packets, kept.object, kept.reason);
            let finding = if kept.ignored {
                let costs = "packets are forwarded that the kernel would have handled otherwise";
                Finding::new(Error, "kernel-policy-ignored", what, costs)
                    .mend("remove the key from [kernel] and reload")
            } else {
                let costs = "the kernel handles these packets, at its rate";
                let finding = Finding::new(Warning, "kernel-policy", what, costs);
                match kept.allow.starts_with("`bywash show firewall`") {
                    true => finding.see(&kept.allow),
                    false => finding.mend(&kept.allow),
                }
            };
            found.push(finding.of(port));
        }
    }
    for row in &now.drops.drops {
        let DropCount { port, reason, .. } = row;
        let like = |a: &DropCount, b: &DropCount| (&a.port, &a.reason) == (&b.port, &b.reason);
        let more = grown(&before.drops.drops, row, like, |row| row.packets);
        if more > 0 {
            let what = format!("{} dropped in a second: {reason}", count(more, "packet"));
            let see = match reason.as_str() {
                "rx-no-buffer" => "bywash show pools".into(),
                "rx-ring-full" | "invalid-descriptor" | "tx-refused" => "bywash show ports".into(),
                _ => format!("bywash capture {port} --drops {reason}"),
            };
            found.push(Finding::new(Warning, "drops", what, "packets are lost").see(see).of(port));
        }
    }
    for pool in &now.pools.pools {
        let exhausted = grown(&before.pools.pools, pool, |a, b| a.name == b.name, |pool: &Pool| pool.exhausted);
        let Pool { name, in_use, frames, .. } = pool;
        if exhausted > 0 || *in_use as f64 > NEARLY * *frames as f64 {
            let what = format!(
                "pool {name} has {in_use} of {} in use and ran out {} in a second",
                count(frames, "buffer"),
                count(exhausted, "time")
            );
            found.push(
                Finding::new(Warning, "pool", what, "packets are lost for lack of buffers")
                    .mend("increase `frames` in [pool]"),
            );
        }
    }
    for worker in &now.workers {
        let of = |count: fn(&Worker) -> u64| grown(&before.workers, worker, |a, b| a.id == b.id, count) as f64;
        let (busy, all) = (of(|worker| worker.busy_cycles), of(|worker| worker.cycles));
        if all > 0.0 && busy > NEARLY * all {
            let what = format!("worker {} is busy for {:.0} % of its time", worker.id, 100.0 * busy / all);
            let costs = "packets beyond this load are lost";
            let mend = "add workers and queues; `bywash profile` shows where its time goes";
            found.push(Finding::new(Warning, "saturated", what, costs).mend(mend));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn look(busy: u64, drops: u64, full: u64, in_use: u64) -> Sample {
        let json = json!({
            "mode": "router",
            "ports": [{ "name": "r0", "state": "up", "counters": { "tx_full": full },
                "queues": [{ "queue": "0", "mode": "copy", "mode_note": "no zero-copy" }] }],
            "workers": [{ "id": 0, "busy_cycles": busy, "cycles": 100 + busy }],
            "pools": { "pools": [{ "name": "worker0", "frames": 100, "in_use": in_use, "exhausted": 3 }] },
            "drops": { "drops": [{ "port": "r0", "reason": "no-route", "packets": drops }] },
            "placement": [{ "port": "r0", "configured": "driver", "level": "user", "why": "no native XDP" },
                { "port": "r1", "configured": "auto", "level": "user", "why": "" }],
        });
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn what_rises_is_found() {
        let ids = |before, now| compare(&before, &now).iter().map(|f| f.id).collect::<Vec<_>>();
        assert_eq!(ids(look(0, 5, 2, 10), look(0, 5, 2, 10)), ["copy-mode", "level"]);
        let all = ["tx-ring-full", "copy-mode", "level", "drops", "pool", "saturated"];
        assert_eq!(ids(look(0, 5, 2, 10), look(1000, 6, 3, 95)), all);
    }
}
