//! `bywash show firewall`: reads the kernel's rules and evaluates them for established flows.

use super::established;
use super::layout::Grid;
use crate::api::{Established, Firewall, FirewallChain, FirewallReason, client, schema, without_descriptions};
use crate::cli::ShowArgs;
use crate::error::{Usage, hint_at_root};
use crate::namespace;
use crate::stdout::stdout;
use bywash_exceptions::nft::{self, Answer, Cause, Counter, Evaluator, Family, Finding, Flow, Place, Ruleset};
use bywash_exceptions::{IfMatch, Scope, legacy};
use std::io::Write;
use std::os::unix::net::UnixStream;

const TCP: u8 = 6;
const UDP: u8 = 17;

pub fn run(args: &ShowArgs) -> anyhow::Result<()> {
    if args.filter.is_some() || args.watch.is_some() || args.limit.is_some() {
        return Err(Usage("`show firewall` takes no filter, --watch or --limit: leave them out".into()).into());
    }
    let mut out = stdout();
    if args.schema {
        return Ok(writeln!(out, "{:#}", without_descriptions(schema::<Firewall>("bywash show firewall")))?);
    }
    let ruleset = nft::read_whole().map_err(|why| hint_at_root(why.into()))?;
    // Legacy rules that cannot be read count as rules; a module of ebtables has none of iptables.
    let legacy = legacy::read().map_or(true, |effects| effects.iter().any(|effect| effect.scope != Scope::Bridged));
    let elsewhere = UnixStream::connect(&args.socket).ok().and_then(|stream| namespace::elsewhere(&stream));
    let flows = if elsewhere.is_none() { client::ask(&args.socket).ok() } else { None };
    let firewall = Firewall { legacy, flows, elsewhere, ..evaluated(&ruleset) };
    match args.json {
        true => Ok(writeln!(out, "{}", serde_json::to_value(&firewall)?)?),
        false => Ok(out.write_all(render(&firewall).as_bytes())?),
    }
}

/// Evaluates a ruleset for flows of which only the family and the protocol are known.
pub fn evaluated(ruleset: &Ruleset) -> Firewall {
    let evaluator = Evaluator::new(ruleset);
    let hidden = ruleset.hidden_effect();
    let chain = |hooked: &nft::Hooked<'_>| FirewallChain {
        hook: hooked.hook.map_or("", nft::Hook::name).into(),
        priority: hooked.base.priority,
        family: hooked.table.family.to_string(),
        table: hooked.table.name.clone(),
        chain: hooked.chain.name.clone(),
        devices: hooked.base.devices.iter().map(device).collect(),
        policy: if hooked.base.accepts { "accept" } else { "drop" }.into(),
        rules: hooked.chain.rules.len(),
    };
    let mut established: Vec<Established> = Vec::new();
    for (v6, family) in [(false, "IPv4"), (true, "IPv6")] {
        for (protocol, name) in [(TCP, "TCP"), (UDP, "UDP")] {
            let flow = Flow { v6, protocol, skb_mark: Some(0), returns: true, ..Flow::default() };
            let one = match &hidden {
                Some((place, how)) => hides(ruleset, place, how),
                None => answered(ruleset, evaluator.evaluate(&flow)),
            };
            let flows = format!("{family} {name}");
            let same = |other: &&mut Established| Established { flows: Vec::new(), ..(**other).clone() } == one;
            match established.iter_mut().find(same) {
                Some(other) => other.flows.push(flows),
                None => established.push(Established { flows: vec![flows], ..one }),
            }
        }
    }
    let untracked = [(false, "IPv4"), (true, "IPv6")].into_iter().filter(|(v6, _)| is_untracked(ruleset, *v6));
    Firewall {
        untracked: untracked.map(|(_, family)| family.into()).collect(),
        generation: ruleset.generation,
        chains: evaluator.chains().iter().map(chain).collect(),
        established,
        ..Firewall::default()
    }
}

/// Returns whether base chains concern packets of a family, and no rule turns on connection tracking for it.
fn is_untracked(ruleset: &Ruleset, v6: bool) -> bool {
    let own = if v6 { Family::Ip6 } else { Family::Ip };
    let tables = || ruleset.tables.iter().filter(|table| table.family == own || table.family == Family::Inet);
    let mut chains = tables().flat_map(|table| &table.chains);
    let rules = || tables().flat_map(|table| &table.chains).flat_map(|chain| &chain.rules);
    chains.any(|chain| chain.base.is_some()) && !rules().flat_map(|rule| &rule.expressions).any(|of| of.tracks(v6))
}

fn device(device: &IfMatch) -> String {
    match device {
        IfMatch::Name(name) => name.clone(),
        IfMatch::Prefix(prefix) => format!("{prefix}*"),
        IfMatch::Index(index) => format!("#{index}"),
    }
}

fn answered(ruleset: &Ruleset, answer: Answer) -> Established {
    let reasons = |findings: &[Finding]| findings.iter().map(|finding| reason(ruleset, finding)).collect::<Vec<_>>();
    let places = |counters: &[Counter]| counters.iter().map(|counter| counter.place.to_string()).collect();
    let (verdict, at, counters, reasons) = match answer {
        Answer::Accept { counters, .. } => ("accept", None, places(&counters), Vec::new()),
        Answer::Drop { at, counters } => ("drop", Some(at.to_string()), places(&counters), Vec::new()),
        Answer::Kernel { findings } => ("kernel", None, Vec::new(), reasons(&findings)),
        Answer::Depends { findings } => ("depends", None, Vec::new(), reasons(&findings)),
    };
    Established { flows: Vec::new(), verdict: verdict.into(), at, counters, reasons }
}

/// Returns the answer for all flows while a rule may have an effect on connections that the kernel does not show.
fn hides(ruleset: &Ruleset, place: &Place, how: &str) -> Established {
    let why = format!("{how}: may change the timeouts or events of connections, which the kernel does not show");
    let reason = FirewallReason {
        why,
        change: "remove it: no connection gets a flow while it exists".into(),
        ..at(ruleset, place)
    };
    Established { verdict: "kernel".into(), reasons: vec![reason], ..Established::default() }
}

fn reason(ruleset: &Ruleset, finding: &Finding) -> FirewallReason {
    let place = &finding.place;
    let change = match (finding.cause, finding.some, &place.rule) {
        (_, _, None) => "none: the chain as a whole",
        (Cause::Drops | Cause::Passes, true, _) => "none: it is decided for each flow",
        _ if !finding.tracked => {
            "move it to a chain after connection tracking, after: ct state established,related accept"
        }
        _ => "accept established flows before this rule: ct state established,related accept",
    };
    FirewallReason { why: finding.why.clone(), some: finding.some, change: change.into(), ..at(ruleset, place) }
}

/// Returns a reason that has only the rule and its text.
fn at(ruleset: &Ruleset, place: &Place) -> FirewallReason {
    let text = ruleset.rule(place).map(nft::Rule::text).unwrap_or_default();
    FirewallReason { rule: place.to_string(), text, ..FirewallReason::default() }
}

fn render(firewall: &Firewall) -> String {
    let mut grid = Grid::new(&["hook", "priority", "table", "chain", "devices", "policy", "rules"]);
    for chain in &firewall.chains {
        let FirewallChain { hook, priority, family, table, chain, devices, policy, rules } = chain;
        let hook = if hook.is_empty() { "unknown" } else { hook };
        row!(grid; hook, priority.to_string(), format!("{family} {table}"), chain, devices.join(" "), policy,
            rules.to_string());
    }
    let mut out = grid.render("no chains that forwarded packets meet");
    for answer in &firewall.established {
        let verdict = match (answer.verdict.as_str(), &answer.at) {
            ("accept", _) => "every packet is accepted".to_owned(),
            ("drop", Some(at)) => format!("every packet is dropped by {at}"),
            ("depends", _) => "depends on the flow".to_owned(),
            _ => "only the kernel can tell".to_owned(),
        };
        out += &format!("\nestablished flows, {}: {verdict}\n", answer.flows.join(", "));
        if !answer.counters.is_empty() {
            out += &format!("  counted by {}\n", answer.counters.join(", "));
        }
        for FirewallReason { rule, text, why, some, change } in &answer.reasons {
            let which = if *some { " (some flows)" } else { "" };
            let text = if text.is_empty() { String::new() } else { format!("\n    {text}") };
            out += &format!("  {rule}: {why}{which}{text}\n    to change: {change}\n");
        }
    }
    if !firewall.untracked.is_empty() && !firewall.legacy {
        out += &format!(
            "\nno rule turns on connection tracking for {}, so that no connection is ever established, and all packets \
             that these rules affect stay in the kernel: begin the chain forward with `ct state established,related \
             accept`\n",
            firewall.untracked.join(" and ")
        );
    }
    if firewall.legacy {
        out += "\niptables-legacy has rules or policies, which are not evaluated: `iptables-legacy-save` shows them\n";
    }
    if let Some(pid) = firewall.elsewhere {
        out += &format!(
            "\nbywash (pid {pid}) runs in another network namespace, where other rules apply: `nsenter \
             --net=/proc/{pid}/ns/net bywash show firewall` shows them\n"
        );
    }
    if let Some(table) = &firewall.flows {
        out += &format!("\n{}", established::table(table));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::FlowTable;

    #[test]
    fn chains_and_answers_are_shown() {
        let chain = |hook: &str, priority, devices: &[&str], policy: &str, rules| FirewallChain {
            hook: hook.into(),
            priority,
            family: "inet".into(),
            table: "filter".into(),
            chain: hook.into(),
            devices: devices.iter().map(|&name| name.into()).collect(),
            policy: policy.into(),
            rules,
        };
        let reason = FirewallReason {
            rule: "table inet filter chain forward rule handle 7".into(),
            text: "limit accept".into(),
            why: "limit".into(),
            some: false,
            change: "something".into(),
        };
        let established = |flows: &str, verdict: &str| Established {
            flows: vec![flows.into()],
            verdict: verdict.into(),
            ..Established::default()
        };
        let firewall = Firewall {
            generation: 3,
            chains: vec![chain("ingress", -5, &["eth0"], "accept", 1), chain("forward", 0, &[], "drop", 12)],
            established: vec![
                established("IPv4 TCP", "accept"),
                Established { reasons: vec![reason], ..established("IPv4 UDP", "kernel") },
            ],
            untracked: vec!["IPv6".into()],
            legacy: true,
            flows: Some(FlowTable { state: "off".into(), ..FlowTable::default() }),
            elsewhere: Some(17),
        };
        let expected = "\
hook     priority  table        chain    devices  policy  rules
ingress  -5        inet filter  ingress  eth0     accept      1
forward  0         inet filter  forward           drop       12

established flows, IPv4 TCP: every packet is accepted

established flows, IPv4 UDP: only the kernel can tell
  table inet filter chain forward rule handle 7: limit
    limit accept
    to change: something

iptables-legacy has rules or policies, which are not evaluated: `iptables-legacy-save` shows them

bywash (pid 17) runs in another network namespace, where other rules apply: `nsenter --net=/proc/17/ns/net bywash show \
                        firewall` shows them

established flows: off, `flows` in [router] turns them on
";
        assert_eq!(render(&firewall), expected);
        // Legacy rules may turn it on.
        let without = render(&Firewall { legacy: false, ..firewall });
        assert!(without.contains("no rule turns on connection tracking for IPv6"), "{without}");
    }
}
