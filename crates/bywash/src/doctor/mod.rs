//! `bywash doctor`: finds obstacles to forwarding, reports their cost and remedy, and applies fixes on request.

mod finding;
mod flows;
mod instance;
mod interface;
mod machine;
mod remember;
mod setting;

use crate::cli::doctor::DoctorArgs;
use crate::config::{Host, count};
use crate::stdout::stdout;
use finding::Finding;
use instance::Sample;
pub use remember::SavedSettings;
use serde_json::json;
use std::io::Write;

/// Runs `bywash doctor`: examines interfaces, the machine and a running instance, and prints the findings; with
/// `--fix`, first applies the fixes.
pub fn run(args: &DoctorArgs) -> anyhow::Result<()> {
    let host = Host::this();
    let (look, elsewhere, unseen) = match Sample::of_running(&args.socket) {
        Ok(Some((look, elsewhere))) => (Some(look), elsewhere, None),
        Ok(None) => (None, None, None),
        Err(why) => (None, None, Some(format!("{why:#}"))),
    };
    // Interfaces of this namespace may have the same names.
    let ports = look.iter().filter(|_| elsewhere.is_none()).flat_map(|look| &look.ports);
    let running: Vec<String> = ports.filter_map(|port| port.interface.clone()).collect();
    let names = match (args.interfaces.is_empty(), running.is_empty()) {
        (true, true) if elsewhere.is_some() => vec![],
        (false, _) => args.interfaces.clone(),
        (true, false) => running.clone(),
        (true, true) => host.interfaces.iter().map(|i| i.name.clone()).filter(|name| name != "lo").collect(),
    };
    let mode = look.as_ref().map(|look| look.mode.as_str());
    let (mut seen, mut found) = (vec![], vec![]);
    for name in &names {
        let user = mode.filter(|_| running.contains(name));
        let (interface, findings) = interface::examine(name, (user, &args.socket), host.allowed.len());
        seen.extend(interface);
        // Report a setting that several interfaces share only once.
        for finding in findings {
            let twice = finding.fix.is_some() && found.iter().any(|f: &Finding| f.fix == finding.fix);
            if !twice {
                found.push(finding);
            }
        }
    }
    found.extend(machine::examine());
    if let Some(before) = &look {
        found.extend(elsewhere.map(|pid| instance::is_elsewhere(pid, &args.socket)));
        let all = elsewhere.is_some() && args.interfaces.is_empty();
        let of_these =
            |f: &Finding| all || f.interface.is_none() || names.iter().any(|name| Some(name) == f.interface.as_ref());
        found.extend(instance::examine(&args.socket, before).into_iter().filter(of_these));
        found.extend(flows::examine(&args.socket, elsewhere.is_none()));
    }
    // A stable sort keeps the findings of an interface in order.
    found.sort_by_key(|finding| finding.severity);
    // Without names and without ports, all interfaces were examined, also those that have nothing to do with Bywash.
    let fix = args.fix && !(args.interfaces.is_empty() && running.is_empty());
    if fix {
        apply_fixes(&mut found)?;
    }
    let mut out = stdout();
    if args.json {
        let all = json!({ "interfaces": seen, "running": look.is_some(), "unseen": unseen, "findings": found });
        writeln!(out, "{all}")?;
        return outcome(args.fix && !fix, &found);
    }
    for one in &seen {
        let takes = match one.takes_redirected {
            Some(true) => "accepts redirected frames",
            Some(false) => "does not accept redirected frames",
            None => "the kernel does not report what its driver supports",
        };
        let program = one.program.as_ref().map_or("no XDP program".into(), |program| format!("XDP program {program}"));
        let peer = one.peer.as_ref().map_or(String::new(), |peer| format!(", peer {peer}"));
        let queues = count(one.queues, "queue");
        writeln!(out, "{}: {}{peer}, MTU {}, {queues}, {takes}, {program}", one.interface, one.driver, one.mtu)?;
        if let Some(zero_copy) = one.zero_copy {
            let list = |names: &[&str]| if names.is_empty() { "none".into() } else { names.join(", ") };
            let (rx, tx) = (list(&one.rx_metadata), list(&one.tx_metadata));
            let copy = if zero_copy { "zero-copy" } else { "no zero-copy" };
            writeln!(out, "  driver: {copy}; metadata of received frames: {rx}; of sent frames: {tx}")?;
        }
    }
    match unseen {
        Some(why) => writeln!(out, "the running instance was not examined: {why}")?,
        None if elsewhere.is_some() => writeln!(out, "an instance runs in another network namespace")?,
        None if look.is_some() => writeln!(out, "an instance runs in this network namespace")?,
        None => writeln!(out, "no instance runs in this network namespace")?,
    }
    for finding in &found {
        print(finding, &mut out)?;
    }
    if found.is_empty() {
        writeln!(out, "nothing to fix")?;
    }
    if found.iter().any(|finding| finding.fixed) {
        writeln!(out, "`bywash restore` reverts these fixes")?;
    } else if found.iter().any(|finding| finding.fixable && !args.fix) {
        let names = if args.interfaces.is_empty() && running.is_empty() { " IFACE..." } else { "" };
        writeln!(out, "`bywash doctor --fix{names}` fixes those marked with *")?;
    }
    outcome(args.fix && !fix, &found)
}

/// Returns an error if a fix failed, or if `--fix` was given without anything that it may change (`refused`).
fn outcome(refused: bool, found: &[Finding]) -> anyhow::Result<()> {
    anyhow::ensure!(found.iter().all(|finding| finding.failed.is_none()), "not all fixes could be applied");
    anyhow::ensure!(
        !refused,
        "--fix has changed nothing: no interface is named, and no instance with ports was found: name the interfaces, \
         as in `bywash doctor --fix eth0 eth1`"
    );
    Ok(())
}

fn print(finding: &Finding, out: &mut impl Write) -> std::io::Result<()> {
    let mark = if finding.fixable { "*" } else { "" };
    let prefix = finding.interface.as_ref().map_or(String::new(), |name| format!("{name}: "));
    writeln!(out, "\n{}{mark} [{}] {prefix}{}", finding.severity.name(), finding.id, finding.what)?;
    writeln!(out, "  cost: {}", finding.costs)?;
    match &finding.failed {
        _ if finding.fixed => writeln!(out, "  fixed: {}", finding.mend),
        Some(why) => writeln!(out, "  not fixed: {why}"),
        None if finding.mend.is_empty() => Ok(()),
        None if finding.sees => writeln!(out, "  see: {}", finding.mend),
        None => writeln!(out, "  fix: {}", finding.mend),
    }
}

/// Applies the fixes of all findings. A fix that fails is recorded in its finding and does not prevent the others.
fn apply_fixes(found: &mut [Finding]) -> anyhow::Result<()> {
    let mut saved = SavedSettings::open()?;
    for finding in found {
        if let Some(fix) = &finding.fix {
            match saved.apply(fix) {
                Ok(()) => finding.fixed = true,
                Err(why) => finding.failed = Some(crate::error::line(&crate::error::hint_at_root(why))),
            }
        }
    }
    Ok(())
}
