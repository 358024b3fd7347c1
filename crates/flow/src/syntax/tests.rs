//! Tests of the parsers: every word of ovs-fields(7), ovs-actions(7) and ovs-ofctl(8) has an effect, or is an error.

use super::actions::KNOWN;
use super::matches::SHORTHANDS;
use super::{filter, flow, group, meter};
use crate::field::{FIELDS, Field, Form, Needs};
use crate::model::OfPort;

/// Fields of ovs-fields(7) that are not here.
const NO_FIELDS: &[&str] = &[
    "tun_id=1",
    "tunnel_id=1",
    "tun_src=1.2.3.4",
    "tun_dst=1.2.3.4",
    "tun_ipv6_src=::1",
    "tun_ipv6_dst=::1",
    "tun_gbp_id=1",
    "tun_gbp_flags=1",
    "tun_erspan_ver=1",
    "tun_erspan_idx=1",
    "tun_erspan_dir=1",
    "tun_erspan_hwid=1",
    "tun_gtpu_flags=1",
    "tun_gtpu_msgtype=1",
    "tun_metadata0=1",
    "tun_metadata63=1",
    "tun_flags=oam",
    "ct_state=+trk",
    "ct_zone=1",
    "ct_mark=1",
    "ct_label=1",
    "ct_nw_src=1.2.3.4",
    "ct_nw_dst=1.2.3.4",
    "ct_ipv6_src=::1",
    "ct_ipv6_dst=::1",
    "ct_nw_proto=6",
    "ct_tp_src=1",
    "ct_tp_dst=1",
    "nsh_flags=1",
    "nsh_ttl=1",
    "nsh_mdtype=1",
    "nsh_np=1",
    "nsh_spi=1",
    "nsh_si=1",
    "nsh_c1=1",
    "nsh_c4=1",
    "packet_type=(0,0)",
    "nd_reserved=1",
    "nd_options_type=1",
    "dp_hash=1",
    "recirc_id=1",
    "actset_output=1",
    "in_port_oxm=1",
    "skb_priority=1",
];

/// Actions of ovs-actions(7) that are not here.
const NO_ACTIONS: &[&str] = &[
    "enqueue(1,2)",
    "push_mpls:0x800",
    "pop_mpls:0x806",
    "pop_mpls:0x8100",
    "dec_mpls_ttl(1)",
    "encap(ethernet)",
    "decap",
    "dec_nsh_ttl",
    "delete_field:tun_metadata0",
    "set_tunnel:1",
    "set_tunnel64:1",
    "set_queue:1",
    "pop_queue",
    "ct",
    "ct(commit)",
    "ct_clear",
    "learn(table=255)",
    "learn(send_flow_rem)",
    "learn(fin_idle_timeout=1)",
    "learn(fin_hard_timeout=1,dl_type=0x800)",
    "learn(result_dst=reg0[0])",
    "learn(eth_dst=eth_src/ff:ff:ff:ff:ff:00)",
    "learn(udp_dst)",
    "learn(udp_src=5)",
    "learn(output:normal)",
    "conjunction(1,1/1)",
    "conjunction(1,0/2)",
    "conjunction(1,3/2)",
    "conjunction(1,1/65)",
    "conjunction(1,1/2),output:1",
    "output:1,conjunction(1,1/2)",
    "clone(conjunction(1,1/2))",
    "controller:64",
    "controller(max_len=64)",
    "controller(reason=action)",
    "controller(id=1)",
    "controller(userdata=00)",
    "controller(pause)",
    "sample(probability=0)",
    "sample(probability=1,collector_set_id=1)",
    "sample(probability=1,sampling_port=1)",
    "sample(probability=1,ingress)",
    "sample(obs_domain_id=1)",
    "note:00",
    "fin_timeout(idle_timeout=0)",
    "fin_timeout(idle_timeout=1)",
    "debug_slow",
    "debug_recirc",
    "dec_ttl(1)",
    "sw_controller",
];

fn names(name: &str) -> Option<OfPort> {
    (name == "lan").then_some(OfPort(1))
}

/// Returns the conditions that a field needs, and a value of the field.
fn example(field: Field) -> (&'static str, &'static str) {
    let needs = match field.info().needs {
        Needs::Nothing => "",
        Needs::Vlan => "dl_vlan=5,",
        Needs::Mpls => "mpls,",
        Needs::Arp => "arp,",
        Needs::Ip4 => "ip,",
        Needs::Ip6 => "ipv6,",
        Needs::Ip => "ip,",
        Needs::Proto(6) | Needs::Ports => "tcp,",
        Needs::Proto(17) => "udp,",
        Needs::Proto(_) => "sctp,",
        Needs::Icmp4 => "icmp,",
        Needs::Icmp6 => "icmp6,",
        Needs::Nd | Needs::NdSolicit => "icmp6,icmpv6_type=135,",
        Needs::NdAdvert => "icmp6,icmpv6_type=136,",
    };
    let value = match field.info().form {
        Form::Decimal if field.info().bits == 1 => "1",
        Form::Decimal | Form::Hex => "4",
        Form::Mac => "02:00:00:00:00:01",
        Form::Ip4 => "10.0.0.1",
        Form::Ip6 => "fd00::1",
        Form::Port => "lan",
        Form::Frag => "later",
        Form::TcpFlags => "+syn",
    };
    (needs, value)
}

#[test]
fn fields_match_or_are_errors() {
    let mut known = 0;
    for field in FIELDS {
        let (needs, value) = example(*field);
        let without = flow(&format!("{needs}actions=drop"), &names).unwrap();
        for name in field.info().names {
            let line = format!("{needs}{name}={value},actions=drop");
            if let Ok(spec) = flow(&line, &names) {
                // Fields that tag or protocol determine are matched already.
                assert!(spec.matches != without.matches || !needs.is_empty(), "{line} matches nothing");
                known += 1;
            }
        }
    }
    assert!(known > FIELDS.len(), "{known} of {} fields", FIELDS.len());
    for (name, ..) in SHORTHANDS {
        assert!(flow(&format!("{name},actions=drop"), &names).unwrap().matches != Default::default(), "{name}");
    }
    for no in NO_FIELDS {
        assert!(flow(&format!("{no},actions=drop"), &names).is_err(), "{no} in a flow");
        assert!(filter(no, &names, true).is_err(), "{no} in a filter");
    }
}

#[test]
fn properties_of_flows_have_an_effect_or_are_errors() {
    let plain = flow("ip,actions=drop", &names).unwrap();
    let with = |word: &str| flow(&format!("ip,{word},actions=drop"), &names);
    for word in [
        "table=1",
        "table_id=1",
        "priority=1",
        "cookie=1",
        "idle_timeout=1",
        "hard_timeout=1",
        "check_overlap",
        "reset_counts",
    ] {
        assert_ne!(with(word).unwrap(), plain, "{word}");
    }
    for word in [
        "send_flow_rem",
        "importance=1",
        "no_packet_counts",
        "no_byte_counts",
        "allow_hidden_fields",
        "check_overlap=0",
        "reset_counts=0",
        "priority",
        "cookie=1/1",
        "out_port=1",
        "out_group=1",
    ] {
        assert!(with(word).is_err(), "{word}");
    }
    // Statistics of a dump.
    for word in ["duration=1.5s", "n_packets=1", "n_bytes=1", "idle_age=1", "hard_age=1"] {
        assert_eq!(with(word).unwrap(), plain, "{word}");
    }
    for word in ["table=1", "priority=1", "cookie=1", "cookie=1/-1", "out_port=1", "out_group=1"] {
        assert_ne!(filter(word, &names, true).unwrap(), Default::default(), "{word}");
    }
}

#[test]
fn actions_have_an_effect_or_are_errors() {
    let of = |name: &str| match name {
        "output" | "resubmit" => "1",
        "write_actions" | "clone" => "output:1",
        "push" | "pop" => "reg0",
        "multipath" => "(eth_src,50,hrw,12,0,reg0[0..3])",
        "bundle" => "(eth_src,0,hrw,ofport,slaves:1,2)",
        "bundle_load" => "(eth_src,0,hrw,ofport,reg0[],slaves:1)",
        "conjunction" => "(1,1/2)",
        "fin_timeout" => "(idle_timeout=1)",
        "learn" => "(eth_dst=eth_src,output:in_port)",
        "sample" => "(probability=1)",
        "check_pkt_larger" => "(100)->reg0[0]",
        "push_vlan" => "0x8100",
        "push_mpls" => "0x8847",
        "pop_mpls" => "0x0800",
        name if name.starts_with("set_mpls") => "4",
        "mod_dl_src" | "mod_dl_dst" => "02:00:00:00:00:01",
        "mod_nw_src" | "mod_nw_dst" => "10.0.0.1",
        "set_field" | "load" => "4->reg0",
        "move" => "reg0[]->reg1[]",
        "goto_table" | "group" | "meter" | "write_metadata" | "mod_nw_ecn" => "1",
        name if name.starts_with("mod_") => "4",
        _ => "",
    };
    let plain = flow("tcp,dl_vlan=5,actions=drop", &names).unwrap();
    for name in KNOWN.split(", ") {
        let separator = if of(name).is_empty() || of(name).starts_with('(') { "" } else { ":" };
        let line = format!("tcp,dl_vlan=5,actions={name}{separator}{}", of(name).replace("4->reg0", "4->reg0[]"));
        let line = if name == "set_field" { line.replace("[]", "") } else { line };
        let spec = flow(&line, &names).unwrap_or_else(|e| panic!("{line}: {e}"));
        assert!(name == "drop" || spec.actions != plain.actions, "{line} does nothing");
    }
    for no in NO_ACTIONS {
        assert!(flow(&format!("actions={no}"), &names).is_err(), "{no}");
    }
}

/// Without a tag, `set_vlan_vid` would have no effect, where OVS adds one (OpenFlow 1.0) or refuses the flow (1.1).
#[test]
fn a_tag_is_set_where_there_is_one() {
    for set in ["set_vlan_vid:5", "set_vlan_pcp:5"] {
        for before in ["", "clone(", "push_vlan:0x8100,pop_vlan,", "dec_ttl,"] {
            let (line, end) = (format!("actions={before}{set}"), if before == "clone(" { ")" } else { "" });
            let error = flow(&format!("ip,{line}{end}"), &names).unwrap_err().to_string();
            assert!(error.contains(" can only be used in a flow that matches a tag"), "{line}: {error}");
            flow(&format!("ip,dl_vlan=5,actions=output:1,{before}output:2{end}"), &names).unwrap();
        }
        for line in ["dl_vlan=5,actions=", "vlan_tci=0x1000/0x1000,actions=", "actions=push_vlan:0x8100,"] {
            flow(&format!("{line}{set}"), &names).unwrap();
        }
    }
}

/// Of the TOS, OVS's field has the upper six bits.
#[test]
fn the_tos_is_set_without_the_lowest_two_bits() {
    for no in ["set_field:0xe1->nw_tos", "load:1->NXM_OF_IP_TOS[0..1]", "load:0xb9->NXM_OF_IP_TOS[]", "mod_nw_tos:3"] {
        let error = flow(&format!("ip,actions={no}"), &names).unwrap_err().to_string();
        assert!(error.contains("the lowest two bits of "), "{no}: {error}");
    }
    for bits in ["set_field:0x20->nw_tos", "load:1->NXM_OF_IP_TOS[2..3]", "load:0xb8->NXM_OF_IP_TOS[]"] {
        flow(&format!("ip,actions={bits}"), &names).unwrap();
    }
}

/// OVS reads ports and tables as decimal numbers, and other numbers with a leading 0 as octal ones.
#[test]
fn a_leading_zero_of_a_port_or_table_means_nothing() {
    for (line, shown) in [
        ("in_port=010,actions=output:08", "in_port=10 actions=output:8"),
        ("table=010,actions=resubmit(00,012),goto_table:041", "table=10,  actions=resubmit(0,12),goto_table:41"),
        ("priority=010,dl_vlan=010,actions=group:010", "priority=8,dl_vlan=8 actions=group:8"),
    ] {
        assert_eq!(super::Shown(&flow(line, &names).unwrap()).to_string(), shown);
    }
    assert!(flow("actions=output:0x", &names).is_err() && flow("actions=output:", &names).is_err());
}

#[test]
fn properties_of_groups_and_meters_have_an_effect_or_are_errors() {
    let of = |head: &str, bucket: &str| group(&format!("group_id=1,{head},bucket={bucket}output:1"), &names);
    let plain = of("type=select", "").unwrap();
    for (head, bucket) in [
        ("type=select,selection_method=hash,fields(nw_src)", ""),
        ("type=select", "weight:2,"),
        ("type=select", "watch_port:lan,"),
        ("type=select", "watch_group:2,"),
        ("type=select", "bucket_id:7,"),
        ("type=all", ""),
        ("type=indirect", ""),
        ("type=ff", "watch_port:1,"),
    ] {
        assert_ne!(of(head, bucket).unwrap(), plain, "{head} {bucket}");
    }
    // Both words select the hash that is used anyway.
    for method in ["hash", "dp_hash"] {
        assert_eq!(of(&format!("type=select,selection_method={method}"), "").unwrap(), plain);
    }
    for (head, bucket) in [
        ("type=all,selection_method=hash", ""),
        ("type=all,fields(nw_src)", ""),
        ("type=all", "weight:2,"),
        ("type=all", "watch_port:1,"),
        ("type=indirect", "watch_group:2,"),
        ("type=select,selection_method=rr", ""),
        ("type=select,fields(nw_src=255.0.0.0)", ""),
        ("type=select,selection_method=dp_hash,fields(nw_src)", ""),
        ("type=select,selection_method_param=1", ""),
        ("type=select,command_bucket_id=1", ""),
        ("type=ff", ""),
    ] {
        assert!(of(head, bucket).is_err(), "{head} {bucket}");
    }
    let of = |rest: &str| meter(&format!("meter=1 {rest}"));
    let plain = of("kbps bands=type=drop rate=5").unwrap();
    for rest in ["pktps bands=type=drop rate=5", "kbps burst bands=type=drop rate=5 burst_size=9"] {
        assert_ne!(of(rest).unwrap(), plain, "{rest}");
    }
    assert_eq!(of("kbps stats bands=type=drop rate=5").unwrap(), plain, "every meter has statistics");
    for rest in [
        "kbps burst bands=type=drop rate=5",
        "kbps bands=type=drop rate=5 burst_size=9",
        "kbps pktps bands=type=drop rate=5",
        "kbps bands=type=dscp_remark rate=5",
        "kbps bands=type=drop rate=5 prec_level=1",
        "kbps bands=type=drop",
    ] {
        assert!(of(rest).is_err(), "{rest}");
    }
}

/// Returns the words of the documentation's table under `title` that are here, or that are not.
fn documented(title: &str, here: bool) -> Vec<&'static str> {
    let page = include_str!("../../../../docs/decisions/flow.md");
    let table = &page[page.find(title).unwrap()..];
    let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    let cells = rows.map(|row| row.split('|').map(str::trim).collect::<Vec<_>>());
    let wanted = cells.filter(|cells| cells[2] == if here { "yes" } else { "no" });
    wanted.flat_map(|cells| cells[1].split('`').skip(1).step_by(2)).collect()
}

fn sorted<'a>(words: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let mut words: Vec<&str> = words.into_iter().collect();
    words.sort_unstable();
    words.dedup();
    words
}

/// The documentation's tables say of each word whether it is here.
#[test]
fn the_documentation_has_every_word() {
    let name = |word: &&'static str| word.split(['=', ':', '(', '-']).next().unwrap();
    let numbered = |name: &str| {
        name.contains("reg") && !matches!(name, "reg0" | "reg15" | "xreg0" | "xreg7" | "xxreg0" | "xxreg3")
    };
    let fields = FIELDS.iter().map(|field| field.name()).filter(|name| !numbered(name));
    // Spellings of fields that are not fields of their own.
    let fields = fields.chain(["dl_vlan", "dl_vlan_pcp", "mpls", "mplsm"]);
    assert_eq!(sorted(documented("| fields of", true)), sorted(fields));
    assert_eq!(sorted(documented("| fields of", false)), sorted(NO_FIELDS.iter().map(name)));
    assert_eq!(sorted(documented("| actions of", true)), sorted(KNOWN.split(", ")));
    // Actions of which some arguments are not here.
    let actions = NO_ACTIONS.iter().map(name).filter(|name| !KNOWN.split(", ").any(|known| known == *name));
    assert_eq!(sorted(documented("| actions of", false)), sorted(actions));
}

/// Returns the flow as it is shown.
fn shown(line: &str) -> String {
    super::Shown(&flow(line, &names).unwrap_or_else(|e| panic!("{line}: {e}"))).to_string()
}

fn refused(line: &str) -> String {
    flow(line, &names).err().unwrap_or_else(|| panic!("{line} is accepted")).what
}

#[test]
fn an_ipv4_address_has_four_parts() {
    for value in ["10", "10/8", "0x0a000000", "167772160", "10.0/16"] {
        for line in ["ip,nw_dst=@,actions=drop", "arp,arp_spa=@,actions=drop", "ip,actions=mod_nw_src:@"] {
            let line = line.replace('@', value);
            let error = refused(&line);
            assert!(error.contains("invalid IPv4 address") || error.contains("takes no mask"), "{line}: {error}");
        }
    }
    assert_eq!(shown("ip,nw_dst=10.0.0.0/8,actions=drop"), "ip,nw_dst=10.0.0.0/8 actions=drop");
    flow("ip,actions=load:0x0a000001->NXM_OF_IP_SRC[]", &names).unwrap();
}

/// The names for ICMP are also those for ICMPv6, as in OVS's dumps, and neighbour discovery does not need the
/// code.
#[test]
fn either_icmp_has_the_same_names() {
    for (line, as_shown) in [
        ("icmp6,icmp_type=136,nd_target=fe80::1", "icmp6,icmp_type=136,nd_target=fe80::1"),
        (
            "icmp_type=136,icmp_code=0,icmp6,nd_tll=02:00:00:00:00:01",
            "icmp6,icmp_type=136,icmp_code=0,nd_tll=02:00:00:00:00:01",
        ),
        ("icmp6,icmpv6_type=135,nd_sll=02:00:00:00:00:01", "icmp6,icmp_type=135,nd_sll=02:00:00:00:00:01"),
        ("icmp,icmpv6_type=8,icmpv6_code=0", "icmp,icmp_type=8,icmp_code=0"),
    ] {
        assert_eq!(shown(&format!("{line},actions=drop")), format!("{as_shown} actions=drop"));
        filter(line, &names, true).unwrap();
    }
    for line in ["icmp_type=8", "ip,icmp_type=8", "tcp,icmpv6_type=8", "icmp6,icmp_type=136,icmp_code=1,nd_target=::1"]
    {
        assert!(refused(&format!("{line},actions=drop")).contains(" can only be matched with "), "{line}");
    }
    assert!(refused("icmp6,actions=set_field:4->icmp_type").contains("can only be used in a flow that matches icmp"));
}

#[test]
fn names_of_actions_ignore_case() {
    for (line, as_shown) in [
        ("DROP", "drop"),
        ("Output:2", "output:2"),
        ("CLONE(OutPut:1),Mod_Vlan_Vid:5", "clone(output:1),mod_vlan_vid:5"),
        ("Load:1->NXM_NX_REG0[],GOTO_TABLE:3", "load:0x1->NXM_NX_REG0[],goto_table:3"),
        ("Write_Actions(DROP)", "write_actions(drop)"),
    ] {
        assert_eq!(shown(&format!("actions={line}")), format!("actions={as_shown}").replacen("actions", " actions", 1));
    }
}

#[test]
fn nothing_is_sent_to_no_port() {
    for action in
        ["output:none", "output:65535", "none", "NONE", "output:any", "clone(output:none)", "write_actions(none)"]
    {
        assert!(refused(&format!("actions={action}")).contains("there is no port"), "{action}");
    }
    for line in ["actions=resubmit(none,1)", "in_port=any,actions=drop", "actions=load:0xffff->NXM_OF_IN_PORT[]"] {
        flow(line, &names).unwrap();
    }
}

/// `check_pkt_larger` is the exception, as in OVS.
#[test]
fn fields_of_actions_have_their_prerequisites() {
    for action in [
        "write_actions(set_field:1->tcp_src)",
        "write_actions(move:NXM_OF_TCP_SRC[]->NXM_NX_REG0[0..15])",
        "clone(set_field:1->tcp_src)",
        "push:tcp_src[]",
        "pop:tcp_src[]",
        "output:NXM_OF_TCP_SRC[]",
        "multipath(eth_src,50,hrw,12,0,NXM_OF_TCP_SRC[])",
        "bundle_load(eth_src,0,hrw,ofport,NXM_OF_TCP_SRC[],slaves:1)",
    ] {
        for of in ["", "udp,", "ip,"] {
            let error = refused(&format!("{of}actions={action}"));
            assert!(error.contains("can only be used in a flow that matches tcp or tcp6"), "{of}{action}: {error}");
        }
        assert!(refused(&format!("tcp,actions=push_mpls:0x8847,{action}")).contains("matches tcp or tcp6"), "{action}");
        flow(&format!("tcp,actions={action}"), &names).unwrap();
    }
    flow("actions=check_pkt_larger(100)->NXM_OF_TCP_SRC[0]", &names).unwrap();
}

#[test]
fn buckets_have_different_ids() {
    let ids = |line: &str| {
        let group = group(&format!("group_id=1,type=select,{line}"), &names);
        group.map(|group| group.buckets.iter().map(|bucket| bucket.id).collect::<Vec<_>>()).map_err(|e| e.what)
    };
    let mut many = String::new();
    for (buckets, wanted) in [
        (&["", "", ""][..], &[0, 1, 2][..]),
        (&["", "bucket_id:0,"], &[1, 0]),
        (&["bucket_id:1,", "", "bucket_id:7,", ""], &[1, 0, 7, 2]),
        (&["bucket_id:4294967040,"], &[0xffff_ff00]),
    ] {
        many = buckets.iter().map(|bucket| format!("bucket={bucket}output:1,")).collect();
        assert_eq!(ids(&many), Ok(wanted.to_vec()), "{many}");
    }
    let twice = ids(&format!("{many}{many}")).unwrap_err();
    assert_eq!(twice, "another bucket has this id");
    assert!(ids("bucket=bucket_id:4294967041,output:1").unwrap_err().contains("0xffffff00"));
}
