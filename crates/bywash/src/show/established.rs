//! Established flows of a router, and the connections that are left to the kernel.

use crate::api::{
    EstablishedFlow, EstablishedFlows, FlowDirection, FlowFamily, FlowTable, KernelConnections, KernelReason, Topic,
    client,
};
use crate::cli::ShowArgs;
use crate::config::count;
use crate::error::Usage;
use crate::stdout::stdout;
use std::fmt::Write as _;
use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::time::{SystemTime, UNIX_EPOCH};

/// Flows shown without `--limit`.
const SOME: u64 = 1000;
/// Maximum number of flows requested at once.
const PAGE: u64 = 10_000;

/// Prints flows as they arrive, part by part, so that they need not all fit into memory.
pub fn run(args: &ShowArgs) -> anyhow::Result<()> {
    let mut out = std::io::BufWriter::new(stdout());
    let mut shown = None;
    let (next, total) = each_part(args, |part| {
        // Only now: an error leaves nothing behind that is no JSON.
        if args.json && shown.is_none() {
            write!(out, "{{\"flows\":[")?;
        }
        let shown = shown.get_or_insert(0);
        for flow in &part.flows {
            match args.json {
                true if *shown > 0 => write!(out, ",{}", serde_json::to_string(flow)?)?,
                true => write!(out, "{}", serde_json::to_string(flow)?)?,
                false => writeln!(out, "{}", line(flow))?,
            }
            *shown += 1;
        }
        Ok(())
    })?;
    match args.json {
        true => writeln!(out, "],\"total\":{total},\"next\":{}}}", serde_json::to_string(&next)?)?,
        false => out.write_all(end(shown.unwrap_or(0), total, next.is_some()).as_bytes())?,
    }
    Ok(out.flush()?)
}

/// Returns all flows that are shown, as one answer.
pub fn all(args: &ShowArgs) -> anyhow::Result<EstablishedFlows> {
    let mut flows = vec![];
    let (next, total) = each_part(args, |part| {
        flows.extend(part.flows);
        Ok(())
    })?;
    Ok(EstablishedFlows { flows, total, next })
}

/// Requests the flows that are shown, part by part. Returns the place in the table from which others follow, and the
/// number of flows in the table.
fn each_part(
    args: &ShowArgs,
    mut each: impl FnMut(EstablishedFlows) -> anyhow::Result<()>,
) -> anyhow::Result<(Option<String>, u64)> {
    let filter = args.filter.as_deref().unwrap_or_default();
    check(filter)?;
    let (limit, mut shown, mut after) = (limit(args), 0, None::<String>);
    loop {
        let place = after.as_ref().map_or(String::new(), |after| format!(",after={after}"));
        let filter = format!("{filter},limit={}{place}", PAGE.min(limit - shown));
        let part: EstablishedFlows = client::topic(&args.socket, Topic::EstablishedFlows, Some(&filter))?;
        let (next, total) = (part.next.clone(), part.total);
        shown += part.flows.len() as u64;
        each(part)?;
        if next.is_none() || shown >= limit {
            return Ok((next, total));
        }
        after = next;
    }
}

/// Checks a filter, which the instance would refuse as well.
fn check(filter: &str) -> Result<(), Usage> {
    let prefix = |text: &str| {
        let (address, length) = text.split_once('/').map_or((text, None), |(address, length)| (address, Some(length)));
        let most = address.parse::<IpAddr>().ok().map(|address| if address.is_ipv4() { 32 } else { 128 });
        most.is_some_and(|most| length.is_none_or(|length| length.parse::<u8>().is_ok_and(|length| length <= most)))
    };
    for part in filter.split([',', ' ']).filter(|part| !part.is_empty()) {
        let wrong = |what: &str| Err(Usage(format!("FILTER `{part}`: {what}")));
        match part.split_once('=') {
            Some(("src" | "dst", value)) if prefix(value) => {}
            Some(("src" | "dst", _)) => return wrong("expected an address or a prefix"),
            Some(("port", value)) if value.parse::<u16>().is_ok() => {}
            Some(("port", _)) => return wrong("expected a port from 0 to 65535"),
            Some(("proto", "tcp" | "udp")) => {}
            // Where the last answer ended.
            Some(("after", _)) => {}
            Some(("limit", _)) => return wrong("the number is set by --limit"),
            Some(("proto", _)) => return wrong("proto is tcp or udp"),
            _ => return wrong("a router's flows are selected by src=, dst=, port= and proto="),
        }
    }
    Ok(())
}

fn limit(args: &ShowArgs) -> u64 {
    match args.limit {
        Some(0) => u64::MAX,
        limit => limit.unwrap_or(SOME),
    }
}

/// Formats a part of the flows.
pub fn flows(part: &EstablishedFlows) -> String {
    let mut lines: String = part.flows.iter().map(|flow| line(flow) + "\n").collect();
    lines += &end(part.flows.len() as u64, part.total, part.next.is_some());
    lines
}

fn end(shown: u64, total: u64, more: bool) -> String {
    let more = if more { "; `--limit N` shows more" } else { "" };
    format!("{} shown, {total} in the table{more}\n", count(shown, "flow"))
}

fn line(flow: &EstablishedFlow) -> String {
    let direction = |of: &FlowDirection| {
        let (src, dst) = (SocketAddr::new(of.src, of.src_port), SocketAddr::new(of.dst, of.dst_port));
        let FlowDirection { port, level, packets, bytes, .. } = of;
        format!("{src} > {dst} on {port} ({level}), {}, {bytes} B", count(packets, "packet"))
    };
    let EstablishedFlow { protocol, original, reply, age_s, idle_s, state } = flow;
    let state = if state == "valid" { String::new() } else { format!(", {state}") };
    format!("{protocol} {}; replies {}; {age_s} s, idle {idle_s} s{state}", direction(original), direction(reply))
}

/// Formats the table's size and counts.
pub fn table(table: &FlowTable) -> String {
    let FlowTable { state, limit, families, packets, bytes, revoked, last_revoked, full, lost, judged, judging_us } =
        table;
    if state == "off" {
        return "established flows: off, `flows` in [router] turns them on\n".into();
    }
    let family = |of: &FlowFamily| format!("{} {}", of.flows, of.family);
    let now = families.iter().map(family).collect::<Vec<_>>().join(", ");
    let sum = |of: fn(&FlowFamily) -> u64| families.iter().map(of).sum::<u64>();
    let (inserted, removed) = (sum(|family| family.inserted), sum(|family| family.removed));
    let passing: Vec<&str> = families.iter().filter(|of| of.passing).map(|of| of.family.as_str()).collect();
    let only = match passing[..] {
        [one] if families.len() > 1 => format!(" ({one} only)"),
        _ => String::new(),
    };
    let mut out = format!("established flows: {state}{only}; {now}, at most {limit}\n");
    let _ = writeln!(out, "forwarded: {}, {bytes} B", count(packets, "packet"));
    let _ = writeln!(out, "inserted: {inserted}; removed: {removed}; not inserted for lack of room: {full}");
    let counted = revoked.iter().filter(|row| row.flows > 0);
    let counted = counted.map(|row| format!("{} {}", row.flows, row.reason)).collect::<Vec<_>>();
    let counted = if counted.is_empty() { "none".into() } else { counted.join(", ") };
    let last = last_revoked.as_ref().map_or(String::new(), |last| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        format!("; last: {}, {} s ago", last.reason, now.saturating_sub(last.time))
    });
    let _ = writeln!(out, "revoked: {counted}{last}");
    let took = *judging_us as f64 / 1e3;
    let times = if *lost == 1 { "time" } else { "times" };
    out + &format!("evaluated: {} in {took:.1} ms; events lost: {lost} {times}\n", count(judged, "connection"))
}

/// Formats the reasons why connections are left to the kernel.
pub fn connections(all: &KernelConnections) -> String {
    let KernelConnections { connections, forwarded, reasons, skipped } = all;
    let all = count(*connections, "connection");
    let mut out = format!("{all}, {forwarded} of them forwarded past the kernel's rules\n");
    for KernelReason { connections, reason, rule, text, example } in reasons {
        let _ = writeln!(out, "\n{connections} left to the kernel: {reason}");
        for part in [rule.as_ref().map(|rule| format!("  {rule}")), text.as_ref().map(|text| format!("    {text}"))] {
            out.extend(part.into_iter().flat_map(|part| [part, "\n".into()]));
        }
        let _ = writeln!(out, "  for example {example}");
    }
    if *skipped > 0 {
        let _ = writeln!(out, "\n{skipped} not examined, for lack of time");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn flows_are_lines_with_their_translation() {
        let way = |src: &str, src_port: u16, dst: &str, dst_port: u16, port: &str| {
            json!({ "src": src, "src_port": src_port, "dst": dst, "dst_port": dst_port, "port": port, "level": "driver",
                    "packets": 3, "bytes": 180 })
        };
        let part = json!({ "total": 7, "next": "4.9", "flows": [
            { "protocol": "tcp", "age_s": 5, "idle_s": 2, "state": "valid", "original": way("10.0.0.1", 4000, "192.0.2.1", 80, "r0"),
              "reply": way("192.0.2.1", 80, "203.0.113.9", 1024, "r1") },
            { "protocol": "udp", "age_s": 0, "idle_s": 0, "state": "revoked", "original": way("2001:db8::1", 1, "2001:db8::2", 2, "r0"),
              "reply": way("2001:db8::2", 2, "2001:db8::1", 1, "r1") }]});
        let expected = "\
tcp 10.0.0.1:4000 > 192.0.2.1:80 on r0 (driver), 3 packets, 180 B; replies 192.0.2.1:80 > 203.0.113.9:1024 on r1 (driver), 3 packets, 180 B; 5 s, idle 2 s
udp [2001:db8::1]:1 > [2001:db8::2]:2 on r0 (driver), 3 packets, 180 B; replies [2001:db8::2]:2 > [2001:db8::1]:1 on r1 (driver), 3 packets, 180 B; 0 s, idle 0 s, revoked
2 flows shown, 7 in the table; `--limit N` shows more
";
        assert_eq!(flows(&serde_json::from_value(part).unwrap()), expected);
        assert_eq!(end(1, 1, false), "1 flow shown, 1 in the table\n");
    }

    #[test]
    fn filters_are_checked() {
        for good in ["", "src=10.0.0.0/8,dst=2001:db8::1", "port=53 proto=udp", ",proto=tcp,", "after=4.9"] {
            assert!(check(good).is_ok(), "{good}");
        }
        for wrong in ["foo=1", "10.0.0.1", "src=10.0.0.0/33", "dst=here", "port=65536", "proto=icmp", "limit"] {
            assert!(check(wrong).unwrap_err().0.starts_with(&format!("FILTER `{wrong}`: ")), "{wrong}");
        }
    }

    #[test]
    fn a_table_is_described() {
        let of = json!({ "state": "passing", "limit": 1000, "packets": 12, "bytes": 900, "full": 1, "lost": 0, "judged": 9,
            "judging_us": 2340,
            "families": [{ "family": "ipv4", "flows": 2, "inserted": 4, "removed": 2 },
                         { "family": "ipv6", "flows": 1, "inserted": 1, "removed": 0 }],
            "revoked": [{ "reason": "new-rules", "flows": 0 }, { "reason": "connection-gone", "flows": 2 }] });
        let expected = "\
established flows: passing; 2 ipv4, 1 ipv6, at most 1000
forwarded: 12 packets, 900 B
inserted: 5; removed: 2; not inserted for lack of room: 1
revoked: 2 connection-gone
evaluated: 9 connections in 2.3 ms; events lost: 0 times
";
        let mut of: FlowTable = serde_json::from_value(of).unwrap();
        assert_eq!(table(&of), expected);
        of.families[1].passing = true;
        assert!(table(&of).starts_with("established flows: passing (ipv6 only); 2 ipv4, 1 ipv6, at most 1000\n"));
        let off = FlowTable { state: "off".into(), ..FlowTable::default() };
        assert_eq!(table(&off), "established flows: off, `flows` in [router] turns them on\n");
    }

    #[test]
    fn reasons_have_their_rule_and_an_example() {
        let of = json!({ "connections": 5, "forwarded": 2, "skipped": 0, "reasons": [
            { "connections": 2, "reason": "limit", "rule": "table inet f chain c rule handle 4", "text": "limit accept",
              "example": "tcp a to b" },
            { "connections": 1, "reason": "not assured", "rule": null, "text": null, "example": "udp c to d" }]});
        let expected = "\
5 connections, 2 of them forwarded past the kernel's rules

2 left to the kernel: limit
  table inet f chain c rule handle 4
    limit accept
  for example tcp a to b

1 left to the kernel: not assured
  for example udp c to d
";
        assert_eq!(connections(&serde_json::from_value(of).unwrap()), expected);
    }
}
