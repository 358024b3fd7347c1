//! Commands on flows, groups and meters, which do what those of ovs-ofctl do.

use bywash_flow::control::{BridgeConfig, FlowControl};
use bywash_flow::model::FlowFilter;
use bywash_flow::pipeline::SwitchPort;
use bywash_flow::script::{Verb, carry_out, parse};
use bywash_flow::syntax::Shown;
use bywash_sync::Qsbr;

const DEL: Verb = Verb::Del { strict: false };

fn switch(lines: &str) -> FlowControl {
    let ports = (1..=3).map(SwitchPort::numbered).collect();
    let mut control = FlowControl::new(&Qsbr::new(), ports, BridgeConfig::default());
    request(&mut control, Verb::Add, lines).unwrap();
    control
}

fn request(control: &mut FlowControl, verb: Verb, lines: &str) -> Result<usize, String> {
    let items = parse(lines, verb, &|_| None).map_err(|wrong| wrong.to_string())?;
    carry_out(control, items)
}

fn flows(control: &FlowControl) -> Vec<String> {
    control.flows(&FlowFilter::default()).iter().map(|flow| Shown(&flow.rule.spec).to_string()).collect()
}

#[test]
fn a_priority_selects_flows_for_strict_commands_only() {
    let mut control = switch("priority=5,ip,actions=1\npriority=6,ip,actions=2\npriority=6,arp,actions=2");
    let refused = request(&mut control, DEL, "priority=5,ip").unwrap_err();
    assert!(refused.contains("column 1: priority: only a strict command"), "{refused}");
    assert!(request(&mut control, Verb::Add, "delete priority=5,ip").is_err());
    assert_eq!(control.len(), 3);
    assert_eq!(request(&mut control, Verb::Del { strict: true }, "priority=5,ip"), Ok(1));
    assert_eq!(request(&mut control, Verb::Add, "delete_strict priority=6,ip"), Ok(1));
    assert_eq!(flows(&control), ["priority=6,arp actions=output:2"]);
}
