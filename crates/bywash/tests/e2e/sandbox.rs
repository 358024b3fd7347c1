//! The service's unit: sound, tight, and with what it leaves the program forwards.

use crate::harness::{PATIENCE, program};
use bywash_lab::{Ping, Topology, has_tool, require, require_lab, run_host};
use std::path::{Path, PathBuf};

/// systemd's measure of exposure that the unit must not exceed.
const EXPOSURE: f64 = 3.5;

fn unit() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib/systemd/bywash.service")
}

#[test]
fn the_unit_is_tight() {
    require!(has_tool("systemd-analyze"));
    let unit = unit();
    let out =
        run_host(&["systemd-analyze", "security", "--offline=true", "--no-pager", unit.to_str().unwrap()]).unwrap();
    let line = out.stdout.lines().find(|line| line.contains("Overall exposure level")).unwrap();
    let score = line.split(' ').find_map(|word| word.parse::<f64>().ok()).unwrap();
    assert!(score <= EXPOSURE, "{line}");
}

#[test]
fn the_capabilities_of_the_unit_suffice() {
    require!(require_lab());
    require!(has_tool("setpriv"));
    let text = std::fs::read_to_string(unit()).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("CapabilityBoundingSet=")).unwrap();
    let names: Vec<String> = line.split(' ').map(|name| name.trim_start_matches("CAP_").to_lowercase()).collect();
    let only = format!("-all,+{}", names.join(",+"));
    let lab = Topology::router().unwrap();
    let program = program();
    let place = tempfile::tempdir().unwrap();
    let socket = place.path().join("socket");
    let socket = socket.to_str().unwrap();
    let confined = ["setpriv", "--no-new-privs", "--inh-caps=-all", "--bounding-set", &only];
    let run = [program.as_str(), "run", "--socket", socket, "r0", "r1"];
    let mut process = lab.r().spawn(&[&confined[..], &run].concat()).unwrap();
    process.wait_for_output("forwarding;", PATIENCE).unwrap();
    assert_eq!(Ping::to(lab.b().v4).count(3).run(&lab.a().ns).unwrap().received, 3);
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.pid())).unwrap();
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().to_owned();
    let bits = u64::from_str_radix(&field("CapEff:"), 16).unwrap();
    assert_eq!(bits.count_ones() as usize, names.len(), "{status}");
    assert_eq!((field("CapEff:"), field("NoNewPrivs:").as_str()), (field("CapBnd:"), "1"));
    assert!(!process.output().contains("ERROR"), "{}", process.output());
    assert!(process.terminate(PATIENCE).unwrap().success(), "{}", process.output());
}
