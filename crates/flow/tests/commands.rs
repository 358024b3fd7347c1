//! Commands on flows, groups and meters, which do what those of ovs-ofctl do.

use bywash_flow::control::{BridgeConfig, FlowControl};
use bywash_flow::key::KEY_WORDS;
use bywash_flow::model::FlowFilter;
use bywash_flow::ops::Op;
use bywash_flow::pipeline::SwitchPort;
use bywash_flow::script::{Verb, carry_out, parse, replace};
use bywash_flow::syntax::Shown;
use bywash_sync::Qsbr;
use bywash_wire::build::Packet;
use std::time::{Duration, Instant};

const DEL: Verb = Verb::Del { strict: false };
const MOD: Verb = Verb::Mod { strict: false };

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

#[test]
fn only_new_flows_are_checked_for_overlaps() {
    let mut control = switch("priority=5,ip,actions=1\npriority=5,in_port=1,actions=2\npriority=6,tcp,actions=2");
    let refused = request(&mut control, Verb::Add, "priority=5,check_overlap,udp,actions=3").unwrap_err();
    assert!(refused.contains("the flow overlaps `priority=5,"), "{refused}");
    assert_eq!(request(&mut control, Verb::Add, "priority=5,check_overlap,ip,actions=3"), Ok(1));
    assert_eq!(request(&mut control, Verb::Add, "table=1,priority=5,check_overlap,udp,actions=3"), Ok(1));
    assert_eq!(flows(&control).iter().filter(|flow| flow.ends_with("output:3")).count(), 2);
}

#[test]
fn flows_go_with_their_meter() {
    let meters = "meter=1 pktps bands=type=drop rate=5\nmeter=2 pktps bands=type=drop rate=5";
    let uses = "ip,actions=meter:1,output:2\nipv6,actions=meter:2,output:2";
    let mut control = switch(&format!("{meters}\n{uses}\narp,actions=output:2"));
    assert_eq!(request(&mut control, DEL, "meter=1"), Ok(1));
    assert_eq!(flows(&control), ["ipv6 actions=meter:2,output:2", "arp actions=output:2"]);
    // The remaining flows can be loaded again.
    let all = flows(&control).join("\n");
    let again = format!("delete\ndelete meter=all\nmeter=2 pktps bands=type=drop rate=5\n{all}");
    assert_eq!(request(&mut control, Verb::Add, &again), Ok(2 + 1 + 1 + 2));
    assert_eq!(request(&mut control, DEL, "meter=all"), Ok(1));
    assert_eq!(flows(&control), ["arp actions=output:2"]);
}

#[test]
fn a_group_or_meter_that_does_not_exist_cannot_be_changed() {
    let mut control = switch("arp,actions=output:2");
    for (line, what) in [("group_id=5,bucket=output:1", "group 5"), ("meter=6 pktps bands=type=drop rate=5", "meter 6")]
    {
        let refused = Err(format!("{what} does not exist: use add to add it; no change was applied"));
        assert_eq!(request(&mut control, MOD, &format!("arp,actions=drop\n{line}")), refused);
        assert_eq!(flows(&control), ["arp actions=output:2"]);
        assert_eq!(request(&mut control, Verb::Add, line), Ok(1));
        assert_eq!(request(&mut control, MOD, line), Ok(1));
        assert_eq!(
            request(&mut control, Verb::Add, &format!("delete {}", &line[..line.find([',', ' ']).unwrap()])),
            Ok(1)
        );
        assert_eq!(request(&mut control, MOD, line), refused);
    }
}

/// Returns the ports that an untagged packet received on port 1 leaves by.
fn sent(control: &FlowControl) -> Vec<u16> {
    let mut key = [0; KEY_WORDS];
    let packet = Packet::udp("10.0.0.1:1".parse().unwrap(), "10.0.0.2:2".parse().unwrap());
    bywash_flow::extract::extract(&packet.build().unwrap(), 1, 1, &mut key).unwrap();
    control
        .trace(&key)
        .ops
        .iter()
        .filter_map(|op| if let Op::Output(id) = op { Some(id.0 + 1) } else { None })
        .collect()
}

#[test]
fn groups_and_meters_are_replaced_with_the_flows_in_one_version_of_the_tables() {
    let lines = |to: u8| {
        format!("group_id=1,bucket=output:{to}\nmeter=1 pktps bands=type=drop rate={to}\nactions=meter:1,group:1")
    };
    let mut control = switch(&lines(2));
    let before = control.pipeline().generation;
    let all = "delete\ndelete group_id=all\ndelete meter=all";
    assert_eq!(request(&mut control, Verb::Add, &format!("{all}\n{}", lines(3))), Ok(6));
    assert_eq!((control.pipeline().generation, sent(&control)), (before + 1, vec![3]));
    // Groups that run each other are found within a request, too.
    let looped = "group_id=2,bucket=group:3\ngroup_id=3,bucket=group:2";
    let refused = request(&mut control, Verb::Add, looped).unwrap_err();
    assert!(refused.contains("group 3 would run itself; 1 change before it was applied"), "{refused}");
    assert_eq!(control.groups().iter().map(|group| group.spec.id).collect::<Vec<_>>(), [1, 2]);
}

#[test]
fn all_flows_are_replaced_or_none() {
    let config = BridgeConfig { flows: 3, ..BridgeConfig::default() };
    let ports = (1..=3).map(SwitchPort::numbered).collect();
    let mut control = FlowControl::new(&Qsbr::new(), ports, config);
    let lines = |to: u8| {
        format!(
            "group_id=1,bucket=output:{to}\nmeter=1 pktps bands=type=drop rate={to}\n\
             priority=5,actions=meter:1,group:1\npriority=4,idle_timeout=9,ip,actions=learn(table=1)"
        )
    };
    let replace = |control: &mut FlowControl, lines: &str| {
        replace(control, parse(lines, Verb::Add, &|_| None).map_err(|wrong| wrong.to_string())?)
    };
    let shown = |control: &FlowControl| {
        let groups = control.groups().iter().map(|group| Shown(&group.spec).to_string()).collect::<Vec<_>>();
        let meters = control.meters().iter().map(|meter| Shown(&meter.spec).to_string()).collect::<Vec<_>>();
        (flows(control), groups, meters, sent(control), control.pipeline().generation)
    };
    assert_eq!(replace(&mut control, &lines(2)), Ok(()));
    let before = shown(&control);
    assert_eq!((before.0.len(), &before.3), (2, &vec![2]));
    for (more, why) in [
        ("priority=5,check_overlap,ip,actions=drop", "the flow overlaps `priority=5 actions="),
        ("arp,actions=drop\nipv6,actions=drop", "the tables are full (3 flows)"),
        ("group_id=2,bucket=group:2", "group 2 would run itself"),
        ("delete group_id=1", "group 1 does not exist"),
    ] {
        let refused = replace(&mut control, &format!("{}\n{more}", lines(3))).unwrap_err();
        assert!(refused.contains(why) && !refused.contains("applied"), "{refused}");
        assert_eq!(shown(&control), before, "{more}");
    }
    // Nothing of the refused lines is published later.
    assert_eq!(request(&mut control, Verb::Add, "arp,actions=drop"), Ok(1));
    assert_eq!((control.len(), sent(&control)), (3, vec![2]));
    assert_eq!(replace(&mut control, &lines(3)), Ok(()));
    assert_eq!((control.len(), sent(&control), control.pipeline().generation), (2, vec![3], before.4 + 2));
    assert_eq!(request(&mut control, DEL, "group_id=1"), Ok(1));
    assert_eq!(control.len(), 1);
}

#[test]
fn the_hard_timeout_starts_again_when_a_flow_is_changed() {
    let timeout = Duration::from_secs(2);
    // A machine that stands still shows nothing: then once more.
    let shown = (0..20).any(|_| {
        let mut control = switch("hard_timeout=2,actions=2");
        let added = Instant::now();
        std::thread::sleep(Duration::from_millis(1100));
        control.expire();
        if control.is_empty() {
            return false;
        }
        let changing = Instant::now();
        assert_eq!(request(&mut control, MOD, "actions=3"), Ok(1));
        std::thread::sleep((added + timeout + Duration::from_millis(100)).duration_since(Instant::now()));
        control.expire();
        let there = !control.is_empty();
        if changing.elapsed() >= timeout {
            return false;
        }
        assert!(there, "{:?} after the change", changing.elapsed());
        std::thread::sleep((changing + timeout + Duration::from_secs(1)).duration_since(Instant::now()));
        control.expire();
        assert!(control.is_empty());
        true
    });
    assert!(shown, "the machine is too slow");
}
