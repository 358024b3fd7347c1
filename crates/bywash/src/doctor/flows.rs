//! Checks of a router's established flows: the rules that they have to pass, the table's room, and connection
//! tracking's settings.

use super::finding::Finding;
use super::finding::Severity::{Note, Warning};
use crate::api::client::ask;
use crate::api::{Established, Firewall, FirewallReason, FlowTable};
use crate::config::count;
use bywash_exceptions::nft;
use std::path::Path;

/// Directory of connection tracking's settings.
const SETTINGS: &str = "/proc/sys/net/netfilter/nf_conntrack_";

/// Connection tracking's settings; `None` if the kernel does not have one.
#[derive(Default)]
struct Settings {
    events: Option<u64>,
    acct: Option<u64>,
    /// Connections now.
    count: Option<u64>,
}

impl Settings {
    fn read() -> Self {
        let of = |name| std::fs::read_to_string(format!("{SETTINGS}{name}")).ok()?.trim().parse().ok();
        Self { events: of("events"), acct: of("acct"), count: of("count") }
    }
}

/// Examines the established flows of the router that runs, and what concerns them in the kernel if the router is in
/// this network namespace; finds nothing if none runs.
pub fn examine(socket: &Path, is_here: bool) -> Vec<Finding> {
    let Ok(table) = ask::<FlowTable>(socket) else { return vec![] };
    if !is_here {
        return compare(&table, &Firewall::default(), &Settings::default());
    }
    // If the rules cannot be read, privileges are missing; the instance reports its own.
    let firewall = nft::read_whole().map(|ruleset| crate::show::evaluated(&ruleset)).unwrap_or_default();
    compare(&table, &firewall, &Settings::read())
}

fn compare(table: &FlowTable, firewall: &Firewall, settings: &Settings) -> Vec<Finding> {
    let mut found = vec![];
    if !firewall.chains.is_empty() {
        rules(table.state != "off", firewall, settings, &mut found);
    }
    if table.state == "off" {
        return found;
    }
    let flows: u64 = table.families.iter().map(|family| family.flows).sum();
    if flows >= table.limit || table.full > 0 {
        let what = format!(
            "the flow table is full or was: {} of at most {}; {} refused since the start",
            count(flows, "flow"),
            table.limit,
            count(table.full, "connection")
        );
        let costs = "the kernel forwards further connections, at its rate";
        found.push(Finding::new(Warning, "flows-full", what, costs).mend("increase `flows` in [router]"));
    }
    if settings.events == Some(0) {
        let what = "the kernel sends no events of connections: net.netfilter.nf_conntrack_events is 0";
        let costs = "no connection is forwarded past the kernel's rules: the kernel forwards all of them";
        let mend = "sysctl -w net.netfilter.nf_conntrack_events=1";
        found.push(Finding::new(Warning, "flows-events", what, costs).mend(mend));
    }
    if settings.acct == Some(1) && flows > 0 {
        let what = "the kernel counts packets by connection (net.netfilter.nf_conntrack_acct)";
        let costs = "its counts do not include packets of established flows; `bywash show flows` has them";
        found.push(Finding::new(Note, "flows-acct", what, costs));
    }
    found
}

/// Returns what the rules mean for established flows, which are on or off.
fn rules(on: bool, firewall: &Firewall, settings: &Settings, found: &mut Vec<Finding>) {
    for Established { flows, verdict, reasons, .. } in &firewall.established {
        // Where another rule drops some flows, no rule keeps all of them. A drop is no rule to change.
        let keeps = |reason: &&FirewallReason| match verdict.as_str() {
            "kernel" => !reason.some,
            _ => verdict == "depends" && !reason.change.starts_with("none"),
        };
        let whole: Vec<&FirewallReason> = reasons.iter().filter(keeps).collect();
        if let (true, Some(first)) = (on, whole.first()) {
            let text = |of: &FirewallReason| if of.text.is_empty() { String::new() } else { format!(" ({})", of.text) };
            let rules: Vec<String> = whole.iter().map(|of| format!("{}{}: {}", of.rule, text(of), of.why)).collect();
            let which = if verdict == "kernel" { "all" } else { "some" };
            let what = format!("{which} {} flows are left to the kernel by {}", flows.join(", "), rules.join("; "));
            let costs = "the kernel forwards every packet of these connections, at its rate";
            found.push(Finding::new(Warning, "flows-kept", what, costs).mend(&first.change));
        }
    }
    let may = firewall.established.iter().filter(|of| ["accept", "depends"].contains(&of.verdict.as_str()));
    let (all, some): (Vec<&Established>, Vec<&Established>) = may.partition(|of| of.verdict == "accept");
    let names = |of: &[&Established]| of.iter().flat_map(|of| of.flows.clone()).collect::<Vec<_>>().join(", ");
    if !on && all.len() + some.len() > 0 {
        let mut gain = vec![];
        if !all.is_empty() {
            gain.push(format!("all {} connections", names(&all)));
        }
        if !some.is_empty() {
            gain.push(format!("{} connections, depending on the flow,", names(&some)));
        }
        let count = settings.count.map_or(String::new(), |count| format!("; the kernel tracks {count} now"));
        let what = format!(
            "the kernel's rules see every packet, and established flows are off: with them, {} could be forwarded \
             without the kernel{count}",
            gain.join(", and ")
        );
        let costs = "the kernel forwards established connections, at its rate";
        let mend = "remove `flows = 0` from [router]; docs/firewall.md has what differs";
        found.push(Finding::new(Note, "flows-off", what, costs).mend(mend));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn firewall(verdict: &str) -> Firewall {
        let reason = |some: bool| {
            json!({ "rule": "table inet f chain c rule handle 4", "text": "limit accept", "why": "limit", "some": some,
                    "change": "accept before" })
        };
        let of = json!({ "chains": [{ "hook": "forward" }], "established": [
            { "flows": ["IPv4 TCP"], "verdict": verdict, "reasons": [reason(verdict != "kernel"), reason(true)] },
            { "flows": ["IPv4 UDP"], "verdict": "depends" }]});
        serde_json::from_value(of).unwrap()
    }

    fn table(state: &str, flows: u64) -> FlowTable {
        let of = json!({ "state": state, "limit": 10, "families": [{ "flows": flows }, { "flows": 1 }] });
        serde_json::from_value(of).unwrap()
    }

    #[test]
    fn what_holds_flows_back_is_found() {
        let ids = |table: &FlowTable, firewall: &Firewall, settings: &Settings| {
            compare(table, firewall, settings).iter().map(|found| found.id).collect::<Vec<_>>()
        };
        let none = Settings::default();
        assert_eq!(ids(&table("off", 0), &firewall("accept"), &none), ["flows-off"]);
        // Without rules, established connections are forwarded by routes.
        assert_eq!(ids(&table("off", 0), &Firewall::default(), &none), [""; 0]);
        assert_eq!(ids(&table("passing", 3), &firewall("accept"), &none), [""; 0]);
        assert_eq!(ids(&table("passing", 3), &firewall("kernel"), &none), ["flows-kept"]);
        // A drop of some flows hides no rule that keeps the others.
        assert_eq!(ids(&table("passing", 3), &firewall("depends"), &none), ["flows-kept"]);
        assert_eq!(ids(&table("passing", 9), &firewall("accept"), &none), ["flows-full"]);
        let set = Settings { events: Some(0), acct: Some(1), count: None };
        assert_eq!(ids(&table("passing", 3), &firewall("accept"), &set), ["flows-events", "flows-acct"]);
    }

    #[test]
    fn findings_name_rules_and_gain() {
        let kept = &compare(&table("passing", 3), &firewall("kernel"), &Settings::default())[0];
        let rule = "table inet f chain c rule handle 4 (limit accept): limit";
        assert_eq!(kept.what, format!("all IPv4 TCP flows are left to the kernel by {rule}"));
        assert_eq!(kept.mend, "accept before");
        let settings = Settings { count: Some(12), ..Settings::default() };
        let off = &compare(&table("off", 0), &firewall("accept"), &settings)[0];
        assert!(off.what.contains("all IPv4 TCP connections, and IPv4 UDP connections, depending"), "{}", off.what);
        assert!(off.what.ends_with("; the kernel tracks 12 now"), "{}", off.what);
    }
}
