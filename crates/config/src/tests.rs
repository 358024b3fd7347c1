//! Tests of the file format: every key, every error, and the positions of errors.

use crate::choice::*;
use crate::host::{Host, Interface};
use crate::key::{Key, Section};
use crate::keys;
use crate::load::Draft;
use crate::model::*;
use crate::problem::{ConfigErrors, Problem};
use proptest::prelude::*;

fn host() -> Host {
    let interface = |name: &str, mtu| Interface { name: name.into(), mtu: Some(mtu), queues: Some(2), tap: None };
    let jumbo = Interface { tap: Some(false), ..interface("jumbo0", 9000) };
    let interfaces = vec![interface("lo", 1500), interface("eth0", 1500), jumbo];
    Host { interfaces, cpus: vec![0, 1, 2, 3], allowed: vec![0, 1, 2, 3], dpdk: true }
}

fn load(text: &str) -> Result<Config, ConfigErrors> {
    Draft::text("t.toml", text.into()).finish(Some(&host()))
}

/// Reads a configuration without checking it against a machine.
fn read(text: &str) -> Config {
    Draft::text("t.toml", text.into()).finish(None).unwrap_or_else(|errors| panic!("{text}\n{errors}"))
}

/// Returns the only problem, and the source text from its position to the end of the line.
fn problem(text: &str) -> (Problem, String) {
    let errors = load(text).expect_err(text);
    assert_eq!(errors.problems().len(), 1, "{errors}");
    let shown = errors.to_string();
    let at = shown.lines().find_map(|line| line.trim().strip_prefix("--> t.toml:"));
    let place = at.map(|place| {
        let (line, column) = place.split_once(':').unwrap();
        let line = text.lines().nth(line.parse::<usize>().unwrap() - 1).unwrap();
        line[column.parse::<usize>().unwrap() - 1..].to_string()
    });
    (errors.problems()[0].clone(), place.unwrap_or_default())
}

const PORT: &str = "[[port]]\ninterface = \"eth0\"\n";

/// Returns a file that sets one key of a section, with the other keys that the section needs.
fn with(section: &Section, key: &Key, value: &str) -> String {
    let assigned = format!("{} = {value}\n", key.name);
    if section.header.is_empty() {
        return assigned + PORT;
    }
    let mode = key.mode.map_or(String::new(), |mode| format!("mode = \"{}\"\n", mode.name()));
    if key.mode == Some(Mode::Cmts) {
        return of_cmts(section, key, &assigned);
    }
    if section.header != "[[port]]" {
        let needed = match key.name {
            "read_group" => "read_socket = \"/run/r\"\n",
            "metrics_public" | "metrics_token" => "metrics = \"127.0.0.1:9100\"\n",
            _ => "",
        };
        return format!("{mode}{PORT}{}\n{assigned}{needed}", section.header);
    }
    let kind = key.kinds.first().copied().unwrap_or_default();
    let other = "[[port]]\nkind = \"null\"\nname = \"probe\"\n";
    let other = if key.name == "mirror" { other } else { "" };
    let mut text = format!("{mode}{other}[[port]]\n{assigned}");
    let mut need = |key_name: &str, line: &str| {
        if key.name != key_name {
            text += line;
        }
    };
    need("kind", &format!("kind = \"{}\"\n", kind.name()));
    match kind {
        PortKind::AfXdp | PortKind::Tap | PortKind::Npe => {
            need("interface", "interface = \"eth0\"\n");
            if key.name == "program_section" {
                text += "program = \"/x\"\n";
            }
        }
        PortKind::Pcap => {
            need("name", "name = \"x\"\n");
            need("file", "file = \"/dev/null\"\n");
        }
        PortKind::Memif => {
            need("name", "name = \"x\"\n");
            need("socket", "socket = \"/run/x\"\n");
        }
        PortKind::Null => need("name", "name = \"x\"\n"),
        PortKind::Dpdk => {
            need("name", "name = \"x\"\n");
            need("device", "device = \"net_null0\"\n");
        }
    }
    text
}

/// Returns a file that sets one key of a cable downstream, with the two ports, group and names that it needs.
fn of_cmts(section: &Section, key: &Key, assigned: &str) -> String {
    let line = |name: &str, line: &str| if key.name == name { String::new() } else { format!("{line}\n") };
    let ports = format!("mode = \"cmts\"\n{PORT}[[port]]\nkind = \"null\"\nname = \"cable\"\n");
    let group = "[[group]]\ninput = \"eth0\"\noutput = \"cable\"\n";
    match section.header {
        "[[group]]" => {
            let ends = line("input", "input = \"eth0\"") + &line("output", "output = \"cable\"");
            format!("{ports}[[group]]\n{ends}{assigned}")
        }
        "[[flow]]" if ["shape", "aqm"].contains(&key.name) => {
            let shape = line("shape", "shape = true");
            format!("{ports}{group}[[flow]]\nname = \"x\"\nrate = 1_000_000\n{shape}{assigned}")
        }
        // A flow other than the first, which needs no classifier.
        "[[flow]]" if key.name == "drop" => format!("{ports}{group}[[flow]]\nname = \"x\"\nproto = 6\n{assigned}"),
        "[[profile]]" => format!("{ports}{group}[[profile]]\n{}{assigned}", line("name", "name = \"x\"")),
        "[[flow]]" => format!("{ports}{group}[[flow]]\n{}{assigned}", line("name", "name = \"x\"")),
        header => format!("{ports}{group}{header}\n{assigned}"),
    }
}

#[test]
fn a_program_of_the_users_is_found_in_its_file() {
    let (wrong, place) = problem(&format!("{PORT}program_section = \"discard\"\n"));
    assert!(wrong.what.contains("sets `program_section`, but not `program`"), "{}", wrong.what);
    assert_eq!(place, "\"discard\"");
    let (wrong, place) = problem(&format!("{PORT}program = \"/dev/null\"\n"));
    assert!(wrong.what.contains("/dev/null: ") && wrong.what.contains("expected an object file"), "{}", wrong.what);
    assert_eq!(place, "\"/dev/null\"");
}

#[test]
fn every_key_is_read() {
    for section in keys::SECTIONS {
        for key in section.keys {
            let set = with(section, key, key.example);
            let config = read(&set);
            // A required key has no default to compare with.
            if key.default != "(required)" {
                let default = read(&set.replace(&format!("{} = {}\n", key.name, key.example), ""));
                assert_ne!(config, default, "{} {} changes nothing", section.header, key.name);
            }
        }
    }
}

#[test]
fn documented_defaults_are_the_defaults() {
    for section in keys::SECTIONS {
        for key in section.keys.iter().filter(|key| !key.default.starts_with('(')) {
            let explicit = with(section, key, key.default);
            let implicit = explicit.replace(&format!("{} = {}\n", key.name, key.default), "");
            assert_eq!(read(&explicit), read(&implicit), "{} {}", section.header, key.name);
        }
    }
}

#[test]
fn reference_is_up_to_date() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/config.md");
    let written = std::fs::read_to_string(path).expect(path);
    assert!(written == crate::reference(), "docs/config.md is old: bywash config reference > docs/config.md");
}

#[test]
fn interfaces_are_a_file_with_ports() {
    let config = Config::for_interfaces(&["eth0".into(), "lo".into()]);
    assert_eq!(load(&format!("{PORT}[[port]]\ninterface = \"lo\"\n")).unwrap(), config);
}

/// Linux permits nearly all characters in the name of an interface; as a port's name they could not be read again.
#[test]
fn a_port_of_any_interface_has_a_name_that_can_be_read() {
    let config = Config::for_interfaces(&["e,h0".into()]);
    assert_eq!((config.ports[0].name.as_str(), config.ports[0].interface.as_deref()), ("e_h0", Some("e,h0")));
    assert_eq!(read("[[port]]\ninterface = \"e,h0\"\n"), config);
    assert_eq!(read(&toml::to_string(&config).unwrap()), config);
    let two = "[[port]]\ninterface = \"e,h0\"\n[[port]]\ninterface = \"e=h0\"\n";
    let errors = Draft::text("t.toml", two.into()).finish(None).unwrap_err().to_string();
    assert!(errors.contains("two ports are named e_h0"), "{errors}");
}

#[test]
fn effective_configuration_is_a_file() {
    let text = r#"
[[port]]
name = "wan"
interface = "eth0"
queues = [1, 0]
ring = { rx = 512 }
worker = 0
[[port]]
kind = "pcap"
name = "replay"
file = "/dev/null"
loop = true
rate = 5
[[port]]
kind = "tap"
interface = "tap0"
[pool]
cache = 64
[workers]
cpus = [2]
count = 1
[api]
group = "0"
"#;
    same_when_printed(text);
    same_when_printed(
        r#"
mode = "switch"
[[port]]
interface = "eth0"
tag = 10
macs = 16
storm = 100
[[port]]
kind = "null"
name = "x"
trunks = [0, 10]
flood = false
mirror = "eth0"
[switch]
exact = 0
"#,
    );
    same_when_printed("mode = \"switch\"\n[switch]\nlocal = \"br0\"\n");
}

#[test]
fn a_switch_has_a_local_port() {
    let config = load(&format!("mode = \"switch\"\n{PORT}[switch]\nlocal = \"br0\"\n")).unwrap();
    let port = &config.ports[1];
    assert_eq!((port.name.as_str(), port.kind, port.interface.as_deref()), ("br0", PortKind::Tap, Some("br0")));
    let own = "mode = \"switch\"\n[switch]\nlocal = \"br0\"\n[[port]]\nkind = \"tap\"\ninterface = \"br0\"\ntag = 5\n";
    let config = load(own).unwrap();
    assert_eq!((config.ports.len(), config.ports[0].bridge.tag), (1, Some(5)));
    let (wrong, path) = problem(&format!("mode = \"switch\"\n{PORT}[switch]\nlocal = \"eth0\"\n"));
    assert_eq!((wrong.what.as_str(), path.as_str()), ("port eth0 is of kind \"af_xdp\"", "\"eth0\""));
    let (wrong, _) = problem(&format!("{PORT}[switch]\nlocal = \"br0\"\n"));
    assert_eq!(wrong.what, "[switch] is not allowed with mode = \"router\"");
}

fn same_when_printed(text: &str) {
    let config = load(text).unwrap_or_else(|errors| panic!("{errors}"));
    let printed = toml::to_string(&config).unwrap();
    assert_eq!(load(&printed).unwrap_or_else(|errors| panic!("{printed}\n{errors}")), config);
    // The same configuration, as the API returns it.
    let through: serde_json::Value = serde_json::to_value(&config).unwrap();
    let printed = toml::to_string(&through).unwrap();
    assert_eq!(load(&printed).unwrap_or_else(|errors| panic!("{printed}\n{errors}")), config);
}

#[test]
fn what_belongs_to_a_switch() {
    for key in ["tag = 5", "trunks = [1]", "flood = false", "macs = 1", "storm = 1", "mirror = \"eth0\""] {
        let (wrong, _) = problem(&format!("{PORT}{key}\n"));
        assert_eq!(wrong.expected, "only with mode = \"switch\"", "{key}");
    }
    let (wrong, _) = problem(&format!("{PORT}[switch]\nexact = 1\n"));
    assert_eq!(wrong.what, "[switch] is not allowed with mode = \"router\"");
    let switch = format!("mode = \"switch\"\n{PORT}");
    for (wrong, path) in [
        ("tag = 5\ntrunks = [5]\n", "port.0.trunks"),
        ("mirror = \"eth0\"\n", "port.0.mirror"),
        ("mirror = \"eth9\"\n", "port.0.mirror"),
        ("tag = 4095\n", "port.0.tag"),
        ("trunks = [1, 1]\n", "port.0.trunks"),
        ("[switch]\nflows = \"/nowhere\"\n", "switch.flows"),
    ] {
        assert_eq!(problem(&format!("{switch}{wrong}")).0.path, path, "{wrong}");
    }
    let (wrong, place) = problem(&format!("mode = \"bridge\"\n{PORT}"));
    assert_eq!(
        (wrong.expected.as_str(), place.as_str()),
        ("expected \"router\", \"switch\" or \"cmts\"", "\"bridge\"")
    );
}

#[test]
fn all_errors_at_once() {
    let text = "[pool]\nkind = \"heap\"\nframs = 5\n[[port]]\ninterface = 3\nring = 7\n[[port]]\nfoo = 1\n[poool]\n";
    let errors = load(text).unwrap_err();
    let whats: Vec<&str> = errors.problems().iter().map(|problem| problem.what.as_str()).collect();
    assert_eq!(
        whats,
        [
            "`kind` in [pool] cannot be \"heap\"",
            "unknown key `frams` in [pool]",
            "`interface` in [[port]] cannot be 3",
            "`ring` in [[port]] cannot be 7",
            "unknown key `foo` in [[port]]",
            "unknown key or table `poool`",
        ]
    );
    assert!(errors.to_string().contains("did you mean `frames`?"));
    assert!(errors.to_string().contains("did you mean `pool`?"));
}

#[test]
fn errors_point_at_the_value() {
    let (wrong, place) = problem("[[port]]\ninterface = \"eth0\"\nring = { rx = 1000 }\n");
    assert_eq!(wrong.expected, "expected 512 or 1024");
    assert!(place.starts_with("1000"), "{place}");

    let (wrong, place) =
        problem("[[port]]\ninterface = \"eth0\"\nname = \"a\"\n[[port]]\ninterface = \"lo\"\nname = \"a\"\n");
    assert_eq!(wrong.what, "two ports are named a");
    assert_eq!((place.as_str(), wrong.other.unwrap().0.as_str()), ("\"a\"", "port.0.name"));

    let (wrong, place) = problem(&format!("{PORT}[[port]]\ninterface = \"eth0\"\nname = \"b\"\n"));
    assert_eq!((wrong.what.as_str(), place.as_str()), ("interface eth0 is listed twice", "\"eth0\""));

    let (wrong, place) = problem("[[port]]\ninterface = \"eth3\"\n");
    assert_eq!((wrong.expected.as_str(), place.as_str()), ("did you mean eth0?", "\"eth3\""));

    let (wrong, place) = problem("[[port]]\ninterface = \"eth0\"\nloop = true\n");
    assert_eq!((wrong.what.as_str(), place.as_str()), ("a port of kind \"af_xdp\" has no `loop`", "loop = true"));

    let (wrong, place) = problem("[[port]]\ninterface = \"jumbo0\"\n");
    assert_eq!(wrong.help, "set `cell = 16384` in [pool]");
    assert_eq!(place, "\"jumbo0\"");

    let (wrong, place) = problem(&format!("{PORT}[workers]\ncpus = [9]\n"));
    assert_eq!((wrong.what.as_str(), wrong.expected.as_str()), ("unknown CPU 9", "this machine has 0-3"));
    assert_eq!(place, "[9]");

    let (wrong, place) = problem("[[port]]\nkind = \"pcap\"\nname = \"p\"\nfile = \"/nowhere\"\n");
    assert_eq!((wrong.what.as_str(), place.as_str()), ("cannot read /nowhere", "\"/nowhere\""));
}

#[test]
fn keys_that_contradict_each_other_are_errors() {
    let cable = format!(
        "mode = \"cmts\"\n{PORT}[[port]]\nkind = \"null\"\nname = \"cable\"\n[[group]]\ninput = \"eth0\"\n\
         output = \"cable\"\n[[flow]]\nname = \"x\"\n"
    );
    for (text, what, at) in [
        ((0..65).map(|n| format!("[[port]]\nkind = \"null\"\nname = \"n{n}\"\n")).collect(), "65 ports", ""),
        (format!("{PORT}[api]\nread_group = \"users\"\n"), "`read_socket` is not", "\"users\""),
        (format!("{PORT}[api]\nmetrics_public = true\n"), "`metrics` is not", "true"),
        (format!("mode = \"switch\"\n{PORT}[kernel]\nrules = \"ignore\"\n"), "[kernel] is not allowed with mode", ""),
        (format!("mode = \"switch\"\n{PORT}[router]\nredirects = true\n"), "[router] is not allowed with mode", ""),
        (format!("{cable}rate = 1000\npeak = 999\n"), "a peak below its rate", "999"),
        (format!("{cable}burst = 2003\n"), "shorter than the longest PDU", "2003"),
        (format!("{cable}[[flow]]\nname = \"x\"\nproto = 6\n"), "two flows are named x", "\"x\""),
    ] {
        let (wrong, place) = problem(&text);
        assert!(wrong.what.contains(what) && (at.is_empty() || place == at), "{}: {place}", wrong.what);
    }
}

#[test]
fn pool_must_hold_the_rings() {
    // Two queues, each with four rings of 2048.
    let (wrong, place) = problem(&format!("{PORT}[workers]\ncount = 1\n[pool]\nframes = 16383\n"));
    assert_eq!((wrong.expected.as_str(), place.as_str()), ("expected at least 16384", "16383"));
    assert!(load(&format!("{PORT}[workers]\ncount = 1\n[pool]\nframes = 16384\n")).is_ok());
    let (wrong, _) = problem(&format!("{PORT}[workers]\ncount = 1\n[pool]\nframes = 16384\ncache = 1\n"));
    assert_eq!(wrong.expected, "expected at least 16385");
    let (wrong, place) = problem(&format!("{PORT}[pool]\nframes = 1000\ncache = 501\n"));
    assert_eq!((wrong.expected.as_str(), place.as_str()), ("expected at most 500", "501"));
}

#[test]
fn zero_copy_is_not_the_drivers() {
    let (wrong, place) = problem(&format!("{PORT}zero_copy = \"require\"\nlevel = \"driver\"\n"));
    assert_eq!((wrong.expected.as_str(), place.as_str()), ("expected \"auto\" or \"user\"", "\"driver\""));
    assert!(load(&format!("{PORT}level = \"driver\"\n")).is_ok());
}

#[test]
fn frames_are_spread_over_cpus_that_are_there_by_native_xdp() {
    let (wrong, place) = problem(&format!("{PORT}spread = [1, 7]\n"));
    assert_eq!((wrong.what.as_str(), wrong.expected.as_str()), ("unknown CPU 7", "this machine has 0-3"));
    assert_eq!(place, "[1, 7]");
    let (wrong, place) = problem(&format!("{PORT}xdp = \"generic\"\nspread = [1]\n"));
    assert_eq!((wrong.what.as_str(), place.as_str()), ("`spread` requires native XDP", "[1]"));
    let list = |n: usize| (0..n).map(|cpu| cpu.to_string()).collect::<Vec<_>>().join(", ");
    let errors = load(&format!("{PORT}spread = [{}]\n", list(65))).unwrap_err().to_string();
    assert!(errors.contains("65 CPUs are too many for port eth0"), "{errors}");
    let spread =
        |text: &str| load(&format!("{PORT}spread = {text}\n")).unwrap().ports[0].af_xdp.clone().unwrap().spread;
    assert_eq!((spread("\"off\""), spread("[3, 1]")), (vec![], vec![3, 1]));
}

#[test]
fn pools_of_blocks_are_whole_blocks() {
    let pool = |text: &str| format!("{PORT}[workers]\ncount = 1\n[pool]\nkind = \"tabm\"\n{text}");
    for block in ["0", "63", "100", "65537", "-1"] {
        let (wrong, place) = problem(&pool(&format!("block = {block}\n")));
        assert_eq!((wrong.path.as_str(), place.as_str()), ("pool.block", block), "{}", wrong.what);
    }
    let (wrong, place) = problem(&pool("frames = 20000\n"));
    assert_eq!((wrong.expected.as_str(), place.as_str()), ("expected 20480, or another multiple of 1024", "20000"));
    let (wrong, place) = problem(&pool("cache = 64\n"));
    assert_eq!((wrong.expected.as_str(), place.as_str()), ("expected 0 or \"auto\"", "64"));
    // Capacity of the rings plus 1024, rounded up to whole blocks, plus two blocks.
    let config = load(&pool("block = 4096\n")).unwrap();
    assert_eq!(config.plan(&[vec![0, 1]], &[]).unwrap().workers[0].frames, 20480 + 8192);
}

#[test]
fn a_typewriter_is_not_for_af_xdp() {
    let (wrong, place) = problem(&format!("{PORT}[workers]\ncount = 1\n[pool]\nkind = \"typewriter\"\n"));
    assert_eq!((wrong.path.as_str(), place.as_str()), ("pool.kind", "\"typewriter\""));
    assert!(wrong.what.contains("several packets in a buffer") && wrong.expected.contains("tabm"), "{}", wrong.what);
    let pcap = "[[port]]\nkind = \"pcap\"\nname = \"in\"\nfile = \"/dev/null\"\n";
    assert!(load(&format!("{pcap}[pool]\nkind = \"typewriter\"\n")).is_ok());
    let dpdk = "[[port]]\nname = \"d\"\nkind = \"dpdk\"\ndevice = \"net_null0\"\n";
    let (wrong, _) = problem(&format!("{dpdk}[workers]\ncount = 1\n[pool]\nkind = \"typewriter\"\n"));
    assert!(wrong.what.contains("DPDK needs a buffer for each packet"), "{wrong:?}");
}

#[test]
fn a_created_interface_is_no_other_than_a_tap() {
    let tap = "[[port]]\nkind = \"tap\"\ninterface = \"jumbo0\"\n";
    let twin = "[[port]]\nkind = \"null\"\ninterface = \"jumbo0\"\n";
    for text in [tap, twin, &format!("mode = \"switch\"\n{tap}")] {
        let (wrong, place) = problem(text);
        assert_eq!((wrong.what.as_str(), place.as_str()), ("jumbo0 exists, and is no TAP interface", "\"jumbo0\""));
    }
    let mut host = host();
    host.interfaces[2].tap = Some(true);
    let reused = Draft::text("t.toml", tap.into()).finish(Some(&host));
    assert!(reused.is_ok(), "{reused:?}");
}

#[test]
fn a_program_without_dpdk_refuses_its_ports() {
    let text = "[[port]]\nname = \"d\"\nkind = \"dpdk\"\ndevice = \"net_null0\"\n";
    assert!(load(text).is_ok());
    let errors = Draft::text("t.toml", text.into()).finish(Some(&Host { dpdk: false, ..host() })).unwrap_err();
    assert_eq!(errors.problems()[0].what, "this program was built without DPDK");
}

#[test]
fn flows_of_a_file_run_its_groups() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("flows");
    let text = format!("mode = \"switch\"\n{PORT}[switch]\nflows = {file:?}\n");
    std::fs::write(&file, "group_id=5,bucket=output:1\nip,actions=group:5\n").unwrap();
    load(&text).unwrap();
    std::fs::write(&file, "ip,actions=group:6\n").unwrap();
    assert_eq!(problem(&text).0.what, format!("{}: group 6 does not exist", file.display()));
}

#[test]
fn options_do_not_point_into_the_file() {
    let mut draft = Draft::text("t.toml", format!("{PORT}[pool]\nframes = 65536\n"));
    draft.set_pools("frames", |pool| pool.frames = Auto::Set(100));
    let errors = draft.finish(Some(&host())).unwrap_err().to_string();
    let expected =
        "bywash: 100 buffers are too few for worker 0: expected at least 8192: its 1 queue can hold 8192, its cache 0";
    assert_eq!(errors, expected);
}

#[test]
fn queues_are_distributed_over_workers() {
    let text = format!("{PORT}[[port]]\ninterface = \"lo\"\n");
    let config = load(&text).unwrap();
    let plan = config.plan(&[vec![0, 1, 2], vec![0, 1]], &[0, 1, 2, 3]).unwrap();
    assert_eq!(plan.workers.len(), 2);
    assert_eq!(plan.workers[0].queues, [(0, 0), (0, 2), (1, 0)]);
    assert_eq!(plan.workers[1].queues, [(0, 1), (1, 1)]);
    assert_eq!((plan.workers[0].cpu, plan.workers[1].cpu), (Some(1), Some(2)), "the first CPU last");
    assert_eq!(plan.workers[1].frames, 2 * 4 * 2048 + 1024);
    // With one CPU there is one worker, pinned to it.
    let plan = config.plan(&[vec![0, 1], vec![0, 1]], &[5]).unwrap();
    assert_eq!((plan.workers.len(), plan.workers[0].cpu), (1, Some(5)));

    // With fewer queues than workers, each port begins at another worker.
    let config = load(&format!("{text}[workers]\ncount = 2\n")).unwrap();
    let plan = config.plan(&[vec![0], vec![0]], &[0, 1]).unwrap();
    assert_eq!((&plan.workers[0].queues, &plan.workers[1].queues), (&vec![(0, 0)], &vec![(1, 0)]));
    let (wrong, place) = problem(&format!("{text}[workers]\ncount = 9\n"));
    assert!(wrong.what.ends_with("has nothing to poll"), "{}", wrong.what);
    assert_eq!(place, "9");
    let (wrong, place) = problem(&format!("{PORT}worker = [0, 3]\n[workers]\ncpus = [0, 1, 2, 3]\n"));
    assert_eq!((wrong.what.as_str(), place.as_str()), ("worker 1 has nothing to poll", "[0, 3]"));
    let (wrong, place) = problem(&format!("{PORT}worker = [0, 2]\n[workers]\ncount = 2\n"));
    assert_eq!((wrong.expected.as_str(), place.as_str()), ("expected 0 to 1", "[0, 2]"));
    let (wrong, _) = problem(&format!("{PORT}[workers]\ncount = 2\ncpus = [0]\n"));
    assert_eq!(wrong.what, "2 workers for 1 CPU");
}

#[test]
fn what_is_needed() {
    for (text, what) in [
        ("", "no ports"),
        ("[[port]]\n", "port 1 has no interface"),
        ("[[port]]\nkind = \"null\"\n", "port 1 has no name"),
        ("[[port]]\nkind = \"pcap\"\nname = \"p\"\n", "port 1 has no file to replay"),
        ("[port]\ninterface = \"eth0\"\n", "`port` is not a value but a table"),
        ("port = 3\n", "`port` is not a value but a table"),
    ] {
        assert_eq!(problem(text).0.what, what, "{text}");
    }
    for bad in ["\"0123456789abcdef\"", "\"\"", "\"a b\"", "3", "[]"] {
        assert_eq!(problem(&format!("[[port]]\ninterface = {bad}\n")).0.path, "port.0.interface", "{bad}");
    }
    for (key, bad) in [
        ("queues", "[]"),
        ("queues", "[0, 0]"),
        ("queues", "[2]"),
        ("queues", "\"some\""),
        ("ring", "63"),
        ("ring", "{ rx = 131072 }"),
        ("tx_burst", "65"),
        ("tx_burst", "1.5"),
        ("worker", "\"all\""),
        ("worker", "[]"),
        ("zero_copy", "true"),
        ("name", "\"two words\""),
    ] {
        let (wrong, _) = problem(&format!("{PORT}{key} = {bad}\n"));
        assert!(wrong.path.starts_with(&format!("port.0.{key}")), "{key} = {bad}: {wrong:?}");
    }
}

#[test]
fn required_keys_of_a_cable_downstream() {
    let cmts = format!("mode = \"cmts\"\n{PORT}[[port]]\nkind = \"null\"\nname = \"cable\"\n");
    let group = "[[group]]\ninput = \"eth0\"\noutput = \"cable\"\n";
    let depi = "local_mac = \"02::1\", remote = \"192.0.2.2\", remote_mac = \"02:00:00:00:00:02\"";
    let depi = format!("{group}depi = {{ {} }}\n", depi.replace("02::1", "02:00:00:00:00:01"));
    for (text, path, what) in [
        ("[[group]]\noutput = \"cable\"\n", "group.0", "group 1 has no input"),
        (depi.as_str(), "group.0.depi", "`depi` has no local"),
        (&format!("{group}[[flow]]\npriority = 1\n"), "flow.0", "flow 1 has no name"),
        (&depi.replace("remote =", "local ="), "group.0.depi", "`depi` has no remote"),
        (
            &depi.replace("{ ", "{ local = \"0.0.0.0\", "),
            "group.0.depi.local",
            "`local` in `depi` cannot be \"0.0.0.0\"",
        ),
        (&format!("{group}[[flow]]\nname = \"x\"\ndscp = [64]\n"), "flow.0.dscp", "`dscp` in [[flow]] cannot be [64]"),
    ] {
        let (wrong, _) = problem(&format!("{cmts}{text}"));
        assert_eq!((wrong.path.as_str(), wrong.what.as_str()), (path, what), "{text}");
    }
}

#[test]
fn profiles_have_names_and_modulations() {
    let ports = "[[port]]\nkind = \"null\"\nname = \"a\"\n[[port]]\nkind = \"null\"\nname = \"b\"\n";
    let cmts = format!("mode = \"cmts\"\n{ports}[[group]]\ninput = \"a\"\noutput = \"b\"\n");
    for (text, path) in [
        (format!("{cmts}[[profile]]\nname = \"A\"\n[[profile]]\nname = \"A\"\n"), "profile.1.name"),
        (format!("{cmts}[[profile]]\nname = \"A\"\nbits = 5\n"), "profile.0.bits"),
        (format!("{PORT}[[profile]]\nname = \"A\"\n"), "profile"),
    ] {
        assert_eq!(problem(&text).0.path, path, "{text}");
    }
    let config = read(&format!("{cmts}[[profile]]\nname = \"A\"\nbits = 8\n[[profile]]\nname = \"B\"\n"));
    assert_eq!((config.profiles[0].bits, config.best_bits()), (8, 12));
    let shown = toml::to_string(&config).unwrap().replace(crate::HIDDEN, &"0".repeat(32));
    assert_eq!(read(&shown), config);
}

#[test]
fn rates_of_a_flow_fit_each_other() {
    let cmts = format!("mode = \"cmts\"\n{PORT}[[port]]\nkind = \"null\"\nname = \"cable\"\n");
    let flow = format!("{cmts}[[group]]\ninput = \"eth0\"\noutput = \"cable\"\n[[flow]]\nname = \"x\"\n");
    for (text, path) in [
        ("shape = true\n", "flow.0.shape"),
        ("aqm = \"pie\"\nrate = 5\n", "flow.0.aqm"),
        ("aqm = \"pie\"\nshape = true\npeak = 5\n", "flow.0.aqm"),
        ("rate = 5\nreserved = 6\n", "flow.0.reserved"),
    ] {
        assert_eq!(problem(&format!("{flow}{text}")).0.path, path, "{text}");
    }
    load(&format!("{flow}shape = true\nrate = 5\nreserved = 5\naqm = \"pie\"\n")).unwrap();
}

#[test]
fn a_size_that_does_not_fit_does_not_hide_other_errors() {
    let errors = load(&format!("{PORT}ring = 100\n[pool]\ncell = 5\n[workers]\ncount = 2\ncpus = [0]\n")).unwrap_err();
    let found: Vec<_> = errors.problems().iter().map(|it| (it.what.as_str(), it.expected.as_str())).collect();
    assert_eq!(
        found,
        [
            ("invalid ring size 100: must be a power of two", "expected 64 or 128 descriptors"),
            ("invalid cell size 5", "expected 2048, 4096 or 16384 bytes"),
            ("2 workers for 1 CPU", "expected a CPU for each worker"),
        ]
    );
    // A memif's rings have other sizes.
    let memif = |ring| format!("[[port]]\nkind = \"memif\"\nname = \"x\"\nsocket = \"/run/x\"\nring = {ring}\n");
    assert_eq!(load(&memif(16)).unwrap().ports[0].memif.as_ref().map(|memif| memif.ring), Some(16));
    assert_eq!(problem(&memif(32768)).0.expected, "expected an integer from 16 to 16384");
}

#[test]
fn syntax_errors_have_a_place() {
    let (wrong, place) = problem("[[port]]\ninterface = eth0\n");
    assert!(place.starts_with("eth0"), "{wrong:?} at {place}");
    let errors = load("a = = 1\nb = \"\nc = [1\n").unwrap_err();
    assert!(errors.problems().len() >= 2, "{errors}");
}

proptest! {
    /// Any text is read or refused without a panic, and every error can be displayed.
    #[test]
    fn any_text(text in "\\PC{0,80}|([\\[\\]a-z_=\"{}0-9 ,.\n]{0,120})") {
        if let Err(errors) = load(&text) {
            prop_assert!(!errors.to_string().is_empty());
        }
    }

    /// The same for any value of any key.
    #[test]
    fn any_value(section in 0..keys::SECTIONS.len(), key in 0..20usize, value in "[0-9a-z\"\\[\\]{}=, .-]{0,16}|\"[a-z0-9_/]{0,100}\"|-?[0-9]{1,30}") {
        let section = keys::SECTIONS[section];
        let key = &section.keys[key % section.keys.len()];
        if let Err(errors) = load(&with(section, key, &value)) {
            prop_assert!(!errors.to_string().is_empty());
        }
    }
}

/// Regression test for a failure found by `any_value`: a cell smaller than its metadata and headroom.
#[test]
fn a_tiny_cell_is_one_error() {
    let (wrong, place) = problem("[[port]]\ninterface = \"jumbo0\"\n[pool]\ncell = 1\n");
    assert_eq!((wrong.path.as_str(), place.as_str()), ("pool.cell", "1"));
}

/// The schema accepts every key's example and default and refuses values that the reader refuses.
#[test]
fn the_schema_knows_every_key() {
    let schema = crate::schema();
    let validator = jsonschema::draft202012::new(&schema).unwrap();
    let json = |text: &str| serde_json::to_value(toml::from_str::<toml::Table>(text).unwrap()).unwrap();
    for section in keys::SECTIONS {
        for key in section.keys {
            let text = with(section, key, key.example);
            let wrong: Vec<String> = validator.iter_errors(&json(&text)).map(|e| e.to_string()).collect();
            assert!(wrong.is_empty(), "{} {}: {wrong:?}\n{text}", section.header, key.name);
            if let Ok(default) = toml::from_str::<toml::Table>(&format!("x = {}", key.default)) {
                let text = with(section, key, &default["x"].to_string());
                assert!(validator.is_valid(&json(&text)), "the default of {} {}: {text}", section.header, key.name);
            }
        }
    }
    for wrong in [
        "modee = \"router\"\n",
        "mode = \"bridge\"\n",
        "sandbox = true\n",
        "[api]\nsocket = 5\n",
        "[pool]\nkind = \"heap\"\n",
        "[workers]\ncount = 257\n",
        "[workers]\ncpus = 3\n",
    ] {
        assert!(!validator.is_valid(&json(&format!("{wrong}{PORT}"))), "{wrong}");
    }
    assert!(!validator.is_valid(&json("mode = \"router\"\n")), "no port");
    let ports = |line: &str| format!("[[port]]\ninterface = \"eth0\"\n{line}\n");
    for wrong in
        ["queues = [-1]", "ring = \"big\"", "level = \"fast\"", "tx_burst = 65", "colour = 1", "trunks = [4095]"]
    {
        assert!(!validator.is_valid(&json(&ports(wrong))), "{wrong}");
    }
}

#[test]
fn a_relative_socket_is_in_the_working_directory() {
    let text = format!("{PORT}[api]\nsocket = \"rel.sock\"\n");
    let config = Draft::text("t.toml", text).finish(None).unwrap_or_else(|errors| panic!("{errors}"));
    assert_eq!(config.api.socket, std::env::current_dir().unwrap().join("rel.sock"));
}

#[test]
fn metrics_for_other_machines_need_a_word_and_a_token() {
    let problems = |api: &str| {
        let text = format!("{PORT}[api]\n{api}\n");
        Draft::text("t.toml", text).finish(None).err().map_or(String::new(), |errors| errors.to_string())
    };
    assert_eq!(problems("metrics = \"127.0.0.1:9469\""), "");
    assert_eq!(problems("metrics = \"[::1]:9469\""), "");
    assert!(problems("metrics = \"0.0.0.0:9469\"").contains("`metrics_public = true`"));
    assert!(problems("metrics = \"[::]:9469\"\nmetrics_public = true").contains("`metrics_token`"));
    assert!(problems("metrics_token = \"0123456789abcdef0123456789abcdef\"").contains("add `metrics = "));
    let token = "metrics = \"10.0.0.1:9469\"\nmetrics_public = true\nmetrics_token";
    assert_eq!(problems(&format!("{token} = \"open-sesame-0123456789\"")), "");
    let short = problems(&format!("{token} = \"open-sesame\""));
    assert!(short.contains("16 to 128") && !short.contains("open-sesame"), "{short}");
}
