//! `bywash show firewall` in a network namespace with rules.

use bywash_lab::{Namespace, has_tool, require, require_lab};
use serde_json::Value;
use std::time::Duration;

const BYWASH: &str = env!("CARGO_BIN_EXE_bywash");

const RULES: &str = "
table inet filter {
 chain input { type filter hook input priority 0; policy drop; }
 chain forward {
  type filter hook forward priority 0; policy drop;
  udp dport 53 limit rate 10/second accept comment \"few\"
  ct state established,related counter accept
 }
}
table ip nat {
 chain out { type nat hook postrouting priority 100; oifname p0 masquerade; }
}
table ip raw {
 chain pre { type filter hook prerouting priority -300; ip saddr 10.66.0.0/16 drop; }
}
";

fn shown(namespace: &Namespace, options: &[&str]) -> String {
    namespace.run(&[&[BYWASH, "show", "firewall"], options].concat()).unwrap().stdout
}

#[test]
fn rules_are_shown_with_what_established_flows_get() {
    require!(require_lab(), has_tool("nft"));
    let namespace = Namespace::new("firewall").unwrap();
    let none = "no chains that forwarded packets meet\n\nestablished flows, IPv4 TCP, IPv4 UDP, IPv6 TCP, IPv6 UDP: every \
                packet is accepted\n";
    assert_eq!(shown(&namespace, &[]), none);
    namespace.nft(RULES).unwrap();

    let text = shown(&namespace, &[]);
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[1].starts_with("prerouting  -300      ip raw       pre      accept      1"), "{text}");
    assert!(lines[2].starts_with("forward     0         inet filter  forward  drop        2"), "{text}");

    let value: Value = serde_json::from_str(&shown(&namespace, &["--json"])).unwrap();
    let schema: Value = serde_json::from_str(&shown(&namespace, &["--schema"])).unwrap();
    let validator = jsonschema::draft202012::new(&schema).unwrap();
    let errors: Vec<String> = validator.iter_errors(&value).map(|error| error.to_string()).collect();
    assert!(errors.is_empty(), "{errors:?}");
    let answers = value["established"].as_array().unwrap();
    let of = |flows: &str| answers.iter().find(|one| one["flows"].as_array().unwrap().contains(&flows.into())).unwrap();
    // IPv6 meets no chain of table ip raw.
    assert_eq!(of("IPv6 TCP")["verdict"], "accept");
    let counter = of("IPv6 TCP")["counters"][0].as_str().unwrap();
    assert!(counter.starts_with("table inet filter chain forward rule handle "), "{counter}");
    assert_eq!(of("IPv4 TCP")["verdict"], "depends");
    let reason = &of("IPv4 TCP")["reasons"][0];
    assert_eq!((&reason["why"], &reason["text"]), (&"source address".into(), &"ip saddr 10.66.0.0/16 drop".into()));
    assert_eq!(of("IPv6 UDP")["verdict"], "depends");
    let reason = &of("IPv6 UDP")["reasons"][0];
    assert_eq!((&reason["why"], &reason["some"]), (&"limit".into(), &true.into()));
    assert!(reason["text"].as_str().unwrap().ends_with("dport 53 limit accept comment \"few\""), "{reason}");

    // A rule whose effect on connections the kernel does not show concerns all of them.
    namespace.nft("table ip raw { chain pre { ct label set 1; ct event set new; }; }").unwrap();
    let text = shown(&namespace, &[]);
    let expected =
        "IPv4 TCP, IPv4 UDP, IPv6 TCP, IPv6 UDP: only the kernel can tell\n  table ip raw chain pre rule handle ";
    assert!(text.contains(expected) && text.contains(": ct event set: may change the timeouts or events"), "{text}");

    let refused = namespace.try_run(&[BYWASH, "show", "firewall", "10.0.0.0/8"], Duration::from_secs(20)).unwrap();
    assert_eq!(refused.status.code(), Some(2), "{}", refused.stderr);
}
