//! `mode = "switch"`: the learning bridge, VLANs, storm control, flows by command, and ports that come and go.

use crate::harness::{Bywash, PATIENCE, alone, bywash, program};
use crate::load;
use crate::raw::{Ear, send};
use crate::reload;
use bywash_lab::{
    Direction, End, Iperf, Namespace, Output, Ping, Transfer, Veth, has_tool, kernel_has, require, require_lab,
    wait_until,
};
use bywash_wire::build::Packet;
use bywash_wire::checksum::crc32c;
use bywash_wire::ethernet::MacAddr;
use bywash_wire::{hex, ipv4};
use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A switch's namespace and hosts in one network: host n, counted from 1, has the address 10.7.0.n and the port p`n`.
pub struct Lab {
    pub switch: Namespace,
    hosts: Vec<Namespace>,
    directory: TempDir,
}

impl Lab {
    pub fn new(hosts: usize) -> Self {
        let switch = Namespace::new("s").unwrap();
        let made: Vec<Namespace> = (0..hosts).map(|n| Namespace::new(&format!("h{n}")).unwrap()).collect();
        made.iter().zip(1..).for_each(|(host, n)| cable((&switch, &format!("p{n}")), (host, "e0"), n));
        Self { switch, hosts: made, directory: tempfile::tempdir().unwrap() }
    }

    /// Returns the address of host `n`.
    pub fn address(n: usize) -> Ipv4Addr {
        Ipv4Addr::new(10, 7, 0, n as u8)
    }

    /// Returns the namespace of host `n`.
    pub fn host(&self, n: usize) -> &Namespace {
        &self.hosts[n - 1]
    }

    /// Runs the switch: `ports` are further lines of each port's section, `end` is the end of the configuration.
    pub fn run(&self, ports: &[&str], end: &str) -> Bywash<'_> {
        let mut text = "mode = \"switch\"\n".to_string();
        for (port, n) in ports.iter().zip(1..) {
            let _ = writeln!(text, "[[port]]\ninterface = \"p{n}\"\n{port}");
        }
        let file = self.file("bywash.toml", &(text + end));
        Bywash::run(&self.switch, &["--config", file.to_str().unwrap()])
    }

    fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    /// Returns whether a ping from one host to another is answered.
    pub fn reaches(&self, from: usize, to: usize) -> bool {
        let report = Ping::to(Self::address(to)).count(1).run(self.host(from)).unwrap();
        report.received == 1
    }

    /// Waits until one host reaches another.
    pub fn assert_reaches(&self, from: usize, to: usize) {
        let what = format!("host {from} to reach host {to}");
        wait_until(&what, PATIENCE, || self.reaches(from, to)).unwrap();
    }
}

/// Connects host `n` to a port of the switch.
fn cable(switch: (&Namespace, &str), host: (&Namespace, &str), n: usize) {
    let end =
        End::new(host.0, host.1).mac(format!("02:00:00:00:07:{n:02x}")).address(format!("{}/24", Lab::address(n)));
    // XDP programs do not see tags that travel beside the frame: the documentation tells users to turn this off.
    Veth::new(End::new(switch.0, switch.1), end.offload("tx-vlan-hw-insert", false)).create().unwrap();
}

/// Runs `bywash flow` with these arguments.
fn flow(switch: &Bywash<'_>, arguments: &[&str]) -> Output {
    let socket = switch.socket();
    let mut argv = vec!["flow"];
    argv.extend(arguments);
    argv.extend(["--socket", socket.to_str().unwrap()]);
    bywash(switch.namespace(), &argv)
}

/// Runs `bywash flow`, which must succeed, and returns its output.
pub fn flow_ok(switch: &Bywash<'_>, arguments: &[&str]) -> String {
    let output = flow(switch, arguments);
    assert!(output.status.success(), "{arguments:?}: {}", output.stderr);
    output.stdout
}

#[test]
fn hosts_find_each_other_and_tcp_goes_both_ways() {
    require!(require_lab(), has_tool("iperf3"));
    let _alone = alone();
    let lab = Lab::new(3);
    let switch = Bywash::run(&lab.switch, &["--mode", "switch", "p1", "p2", "p3"]);
    for (from, to) in [(1, 2), (2, 3), (3, 1)] {
        lab.assert_reaches(from, to);
    }
    // Each address is learned once, at its host's port.
    let known = |fdb: &serde_json::Value, mac: &str| fdb.as_array().unwrap().iter().any(|row| row["mac"] == mac);
    switch.wait("the addresses to be learned", |switch| {
        let fdb = switch.show(&["fdb"]);
        (1..=3).all(|n| known(&fdb, &format!("02:00:00:00:07:{n:02x}")))
    });
    let fdb = switch.show(&["fdb"]);
    for n in 1..=3 {
        let mac = format!("02:00:00:00:07:{n:02x}");
        let rows: Vec<_> = fdb.as_array().unwrap().iter().filter(|row| row["mac"] == *mac).collect();
        assert_eq!(rows.len(), 1, "{fdb}");
        assert_eq!((&rows[0]["port"], &rows[0]["vlan"]), (&format!("p{n}").into(), &0.into()));
    }
    // A third host receives no unicast frames between two others whose addresses are known.
    let ear = Ear::at(lab.host(3), "e0");
    let report = Transfer::new(30_000_000).run(lab.host(1), lab.host(2), Lab::address(2)).unwrap();
    assert!(report.is_intact(), "{report:?}");
    for way in [Direction::Forward, Direction::Reverse] {
        let mut rates = vec![];
        // Once is enough, since a busy machine may stand still for a while.
        let fast = (0..5).any(|_| {
            let report = Iperf::tcp(1).run(lab.host(1), lab.host(2), Lab::address(2), way).unwrap();
            rates.push(report.bits_per_second);
            report.bits_per_second > 20e6
        });
        println!("TCP {way:?}: {rates:.0?} bit/s");
        assert!(fast, "{way:?}: {rates:.0?} bit/s");
    }
    let strange = ear.heard().into_iter().filter(|frame| frame[0] & 1 == 0 && frame[12..14] == [8, 0]).count();
    assert!(strange < 20, "{strange} frames for others at host 3");
    assert!(switch.events("p1", "checksum-completed") > 0, "no partial checksum was met: has veth changed?");
    switch.stop();
}

/// A sender leaves checksums within tunnels to its device, too, and so it does with the CRC of SCTP.
#[test]
fn checksums_within_tunnels_of_hosts_are_completed() {
    require!(require_lab(), kernel_has("vxlan"));
    let lab = Lab::new(2);
    for (n, other) in [(1, 2), (2, 1)] {
        let (local, remote) = (Lab::address(n), Lab::address(other));
        lab.host(n)
            .ip_batch(&format!(
                "link add vx type vxlan id 7 local {local} remote {remote} dstport 4789 udpcsum\n\
                 addr add 10.77.0.{n}/24 dev vx\naddr add fd77::{n}/64 dev vx nodad\nlink set vx mtu 1450 up\n"
            ))
            .unwrap();
    }
    for level in ["user", "driver"] {
        let line = format!("level = \"{level}\"\n");
        let switch = lab.run(&[&line, &line], "");
        lab.assert_reaches(1, 2);
        for to in ["10.77.0.2", "fd77::2"] {
            let report = Transfer::new(1_000_000).run(lab.host(1), lab.host(2), to.parse::<IpAddr>().unwrap()).unwrap();
            assert!(report.is_intact(), "{level} {to}: {report:?}");
        }
        let ear = Ear::at(lab.host(2), "e0");
        let mut frame = sctp();
        send(lab.host(1), "e0", &[(1, frame.clone())]);
        let crc = crc32c(&frame[34..]).to_le_bytes();
        frame[42..46].copy_from_slice(&crc);
        ear.wait(1, |heard| *heard == *frame);
        switch.stop();
    }
}

/// Returns a frame from host 1 to host 2 with an empty COOKIE-ACK of SCTP, without its CRC.
fn sctp() -> Vec<u8> {
    let (src, dst) = ((Lab::address(1), 0).into(), (Lab::address(2), 0).into());
    let macs = [1, 2].map(|n| MacAddr([2, 0, 0, 0, 7, n]));
    let carried = [0, 7, 0, 9, 1, 2, 3, 4, 0, 0, 0, 0, 11, 0, 0, 4];
    // In place of a datagram's header, and of 8 bytes in it.
    let mut frame = Packet::udp(src, dst).macs(macs[0], macs[1]).payload(&[0; 8]).build().unwrap();
    frame[23] = 132;
    frame[34..].copy_from_slice(&carried);
    ipv4::fill_checksum(&mut frame[14..]);
    frame
}

#[test]
fn a_port_with_an_address_is_warned_of() {
    require!(require_lab());
    let lab = Lab::new(2);
    lab.switch.ip(&["address", "add", "10.8.0.1/24", "dev", "p1"]).unwrap();
    let switch = Bywash::run(&lab.switch, &["--mode", "switch", "p1", "p2"]);
    switch.wait("the warning", |switch| {
        switch.log().contains("p1: the kernel can no longer be reached at its address 10.8.0.1")
    });
    lab.switch.ip(&["address", "add", "2001:db8::1/64", "dev", "p2", "nodad"]).unwrap();
    switch.wait("the warning", |switch| {
        switch.log().contains("p2: the kernel can no longer be reached at its address 2001:db8::1")
    });
    assert!(!switch.log().contains("fe80:"), "{}", switch.log());
    // At level kernel the port is left to a kernel that does not switch.
    let socket = switch.socket();
    let level = |level: &str| {
        let argv = ["level", level, "p1", "--socket", socket.to_str().unwrap()];
        crate::harness::bywash(&lab.switch, &argv).ok().unwrap().stdout
    };
    let why = "p1 level: as requested: the kernel gets its frames, and nothing is forwarded on the port";
    assert!(level("kernel").contains(why));
    assert!(switch.log().contains("WARN port `p1`: level kernel in effect: "), "{}", switch.log());
    assert!(!level("user").contains(why));
    switch.stop();
}

/// Returns a broadcast frame with a tag. `mark` is in its source address and its payload.
pub fn tagged(vlan: u16, mark: u8) -> Vec<u8> {
    let mut frame = vec![0xff; 6];
    frame.extend([2, 0, 0, 0, 9, mark, 0x81, 0]);
    frame.extend(vlan.to_be_bytes());
    frame.extend([0x88, 0xb5]);
    frame.resize(60, mark);
    frame
}

/// Returns the frame of [`tagged`] without the tag.
fn untagged(mark: u8) -> Vec<u8> {
    let mut frame = tagged(0, mark);
    frame.drain(12..16);
    frame.resize(60, mark);
    frame
}

#[test]
fn vlans_are_kept_apart() {
    require!(require_lab(), has_tool("tcpdump"));
    let lab = Lab::new(4);
    // Access ports of two VLANs, a trunk of both, and a trunk of a third VLAN.
    let switch = lab.run(&["tag = 10", "tag = 20", "trunks = [10, 20]", "trunks = [30]"], "");
    let ears: Vec<Ear> = (1..=4).map(|n| Ear::at(lab.host(n), "e0")).collect();
    // A frame from an access port goes to the trunk, with a tag, and to no other port.
    send(lab.host(1), "e0", &[(5, untagged(1))]);
    ears[2].wait(5, |frame| frame[..16] == tagged(10, 1)[..16]);
    // A frame from the trunk goes to the VLAN's access port, without the tag.
    send(lab.host(3), "e0", &[(5, tagged(20, 3))]);
    ears[1].wait(5, |frame| frame[..14] == untagged(3)[..14]);
    // Dropped: a tagged frame on an access port, a VLAN that the trunk does not carry, an untagged frame on a trunk.
    send(lab.host(1), "e0", &[(3, tagged(10, 4))]);
    send(lab.host(3), "e0", &[(3, tagged(30, 5)), (3, untagged(6))]);
    switch.wait("frames of wrong VLANs to be dropped", |s| {
        s.drops("p1", "bridge-filtered") == 3 && s.drops("p3", "bridge-filtered") >= 6
    });
    let foreign = |n: usize, marks: &[u8]| {
        ears[n - 1].heard().iter().filter(|frame| frame[6..11] == [2, 0, 0, 0, 9] && marks.contains(&frame[11])).count()
    };
    assert_eq!(foreign(1, &[3, 5, 6]), 0);
    assert_eq!(foreign(2, &[1, 4, 5, 6]), 0);
    assert_eq!(foreign(3, &[4]), 0);
    assert_eq!(foreign(4, &[1, 3, 4, 5, 6]), 0);
    switch.wait("the addresses to be learned", |switch| {
        let fdb = switch.show(&["fdb"]).to_string();
        ["02:00:00:00:09:01", "02:00:00:00:09:03"].iter().all(|mac| fdb.contains(mac))
    });
    let fdb = switch.show(&["fdb"]);
    let vlan = |mac: &str| fdb.as_array().unwrap().iter().find(|row| row["mac"] == mac).map(|row| row["vlan"].clone());
    assert_eq!(vlan("02:00:00:00:09:01"), Some(10.into()), "{fdb}");
    assert_eq!(vlan("02:00:00:00:09:03"), Some(20.into()), "{fdb}");
    drop(ears);
    switch.stop();
}

/// Returns a UDP packet from host 1 to host 2 with these tags, outer tag first, padded to 80 bytes.
fn packet(ttl: u8, tags: &[(u16, u16)]) -> Vec<u8> {
    let packet = Packet::udp((Lab::address(1), 5).into(), (Lab::address(2), 7).into()).ttl(ttl);
    let mut frame = packet.macs(MacAddr([2, 0, 0, 0, 9, 2]), MacAddr([2, 0, 0, 0, 9, 1])).build().unwrap();
    frame.splice(12..12, tags.iter().flat_map(|(tpid, tci)| [tpid.to_be_bytes(), tci.to_be_bytes()].concat()));
    frame.resize(80, 0);
    frame
}

#[test]
fn customers_tags_cross_a_provider() {
    require!(require_lab(), has_tool("tcpdump"));
    let lab = Lab::new(3);
    // Port 3 leads to the provider, which knows the customer of port 1 by service tag 100.
    let file = lab.file(
        "flows",
        "in_port=1,dl_vlan=5,actions=push_vlan:0x88a8,set_field:4196->vlan_vid,output:3\n\
         in_port=3,dl_vlan=100,udp,actions=pop_vlan,resubmit(,1)\n\
         table=1,dl_vlan=5,udp,nw_dst=10.7.0.2,actions=dec_ttl,mod_vlan_pcp:3,output:1\n",
    );
    let section = |limit: &str| format!("[switch]\nflows = \"{}\"\n{limit}", file.display());
    let switch = lab.run(&["", "", ""], &section("vlan_limit = 2\n"));
    let ears: Vec<Ear> = [1, 3].map(|n| Ear::at(lab.host(n), "e0")).into();
    let outer = (0x88a8, 100);
    send(lab.host(1), "e0", &[(5, packet(9, &[(0x8100, 5)]))]);
    ears[1].wait(5, |frame| frame[..72] == packet(9, &[outer, (0x8100, 5)])[..72]);
    send(lab.host(3), "e0", &[(5, packet(9, &[outer, (0x8100, 5)]))]);
    ears[0].wait(5, |frame| frame[..72] == packet(8, &[(0x8100, 0x6005)])[..72]);
    let trace = flow_ok(&switch, &["trace", &format!("p3 {}", hex::encode(&packet(9, &[outer, (0x8100, 5)])))]);
    assert!(trace.contains("sent to: p1") && trace.contains("dl_vlan=100,dl_vlan1=5,"), "{trace}");
    switch.stop();
    // With one tag, no flow sees the packet behind two.
    let switch = lab.run(&["", "", ""], &section(""));
    send(lab.host(3), "e0", &[(5, packet(9, &[outer, (0x8100, 5)]))]);
    switch.wait("packets with two tags to be dropped", |s| s.drops("p3", "no-flow") >= 5);
    drop(ears);
    switch.stop();
}

#[test]
fn an_address_moves() {
    require!(require_lab());
    let lab = Lab::new(3);
    let switch = lab.run(&["", "", ""], "");
    lab.assert_reaches(1, 2);
    let host = [2, 0, 0, 0, 7, 9];
    let from = |dst: [u8; 6], src: [u8; 6]| {
        let mut frame = [dst, src].concat();
        frame.extend([0x88, 0xb5]);
        frame.resize(60, 0);
        frame
    };
    let at = |switch: &Bywash<'_>, port: &str| {
        let fdb = switch.show(&["fdb"]);
        fdb.as_array().unwrap().iter().any(|row| row["mac"] == "02:00:00:00:07:09" && row["port"] == port)
    };
    send(lab.host(2), "e0", &[(1, from([0xff; 6], host))]);
    switch.wait("the address at p2", |s| at(s, "p2"));
    let (second, third) = (Ear::at(lab.host(2), "e0"), Ear::at(lab.host(3), "e0"));
    let wanted = |frame: &[u8]| frame[..6] == host;
    send(lab.host(1), "e0", &[(3, from(host, [2, 0, 0, 0, 7, 1]))]);
    second.wait(3, wanted);
    send(lab.host(3), "e0", &[(1, from([0xff; 6], host))]);
    switch.wait("the address at p3", |s| at(s, "p3"));
    // The cached path leads to p3 now, and no frame more goes to p2.
    send(lab.host(1), "e0", &[(3, from(host, [2, 0, 0, 0, 7, 1]))]);
    third.wait(3, wanted);
    assert_eq!(second.wait(3, wanted).len(), 3);
    assert!(switch.show(&["caches"])["addresses_moved"].as_u64() >= Some(1));
    switch.stop();
}

#[test]
fn a_loop_is_stopped_by_storm_control() {
    require!(require_lab());
    let lab = Lab::new(2);
    // A cable connects two ports of the switch.
    Veth::new(End::new(&lab.switch, "p3"), End::new(&lab.switch, "p4")).create().unwrap();
    // Without storm control, ten frames circulate for ever.
    let switch = lab.run(&["", "", "", ""], "");
    send(lab.host(1), "e0", &[(10, untagged(1))]);
    switch.wait("a storm", |s| s.counter("p3", "rx_packets") > 10_000);
    drop(switch);
    let switch = lab.run(&["", "", "storm = 50", "storm = 50"], "");
    // Within their limits the two ports pass frames; those that circulate soon exceed the limits.
    send(lab.host(1), "e0", &[(300, untagged(1))]);
    switch.wait("the storm to meet its limit", |s| s.drops("p3", "storm") + s.drops("p4", "storm") > 200);
    let (begun, before) = (Instant::now(), switch.counter("p3", "rx_packets"));
    std::thread::sleep(Duration::from_secs(2));
    let after = switch.counter("p3", "rx_packets");
    let most = 100.0 * begun.elapsed().as_secs_f64();
    assert!(((after - before) as f64) < most, "{} frames, not below {most}", after - before);
    // While the loop exists, a host's broadcasts come back as far as the limit allows, and the host's address is
    // learned in the loop. After the loop is cut, the address is learned correctly when the host sends.
    lab.switch.ip(&["link", "set", "p3", "down"]).unwrap();
    lab.assert_reaches(1, 2);
    switch.stop();
}

#[test]
fn flows_by_command() {
    require!(require_lab());
    let lab = Lab::new(3);
    let flows = lab.file("flows", "# nothing but ARP\narp,actions=NORMAL\n");
    let switch = lab.run(&["", "", ""], &format!("[switch]\nflows = \"{}\"\n", flows.display()));
    assert!(!lab.reaches(1, 2));
    // A new flow takes effect with the very next packet.
    flow_ok(&switch, &["add", "priority=10,ip,actions=NORMAL"]);
    assert!(lab.reaches(1, 2));
    flow_ok(&switch, &["add", "priority=20,icmp,in_port=p1,actions=drop", "cookie=0x7,priority=5,actions=2"]);
    assert!(!lab.reaches(1, 2));
    let changed = flow_ok(&switch, &["mod", "--strict", "priority=20,icmp,in_port=1,actions=NORMAL"]);
    assert_eq!(changed, "1 changed or added\n");
    assert_eq!(flow_ok(&switch, &["del", "--strict", "priority=77,udp"]), "0 deleted\n");
    assert!(lab.reaches(1, 2));
    let dump = flow_ok(&switch, &["dump", "icmp"]);
    let line = dump.trim_end();
    assert!(line.starts_with(" cookie=0x0, duration=") && !line.contains('\n'), "{dump}");
    assert!(line.contains("s, table=0, n_packets="), "{dump}");
    assert!(line.ends_with(", priority=20,icmp,in_port=1 actions=NORMAL"), "{dump}");
    // The workers report counters with a delay.
    switch.wait("packets to be counted", |s| {
        let flows = s.show(&["flows", "icmp"]);
        flows[0]["n_packets"].as_u64() >= Some(2) && flows[0]["n_bytes"].as_u64() >= Some(2 * 98)
    });
    // The output of `dump` can be loaded again.
    let saved = flow_ok(&switch, &["dump", "--no-stats"]);
    let file = lab.file("saved", &saved);
    flow_ok(&switch, &["del"]);
    assert_eq!(flow_ok(&switch, &["dump"]), "");
    assert!(!lab.reaches(1, 2));
    flow_ok(&switch, &["load", file.to_str().unwrap()]);
    assert_eq!(flow_ok(&switch, &["dump", "--no-stats"]), saved);
    assert!(lab.reaches(1, 2));
    flow_ok(&switch, &["load", "--replace", flows.to_str().unwrap()]);
    assert_eq!(flow_ok(&switch, &["dump", "--no-stats"]), "arp actions=NORMAL\n");
    // The same command adds groups and meters.
    flow_ok(
        &switch,
        &["add", "group_id=1,type=all,bucket=output:2,bucket=output:3", "meter=1 pktps bands=type=drop rate=5"],
    );
    flow_ok(&switch, &["add", "priority=9,in_port=1,actions=meter:1,group:1"]);
    let groups = switch.show(&["groups"]);
    assert!(groups["groups"][0].as_str().unwrap().starts_with("group_id=1,type=all,bucket="), "{groups}");
    let ears = [2, 3].map(|n| Ear::at(lab.host(n), "e0"));
    send(lab.host(1), "e0", &[(3, untagged(8))]);
    ears.iter().for_each(|ear| drop(ear.wait(3, |frame| frame[11] == 8)));
    send(lab.host(1), "e0", &[(100, untagged(8))]);
    switch.wait("the meter to refuse", |s| s.drops("p1", "metered") >= 50);
    drop(ears);
    switch.stop();
}

#[test]
fn a_reload_loads_a_changed_file_of_flows() {
    require!(require_lab());
    let lab = Lab::new(3);
    let flows = lab.file("flows", "actions=NORMAL\n");
    let pool = "[pool]\nframes = 32768\n";
    let switch = lab.run(&["", ""], &format!("{pool}[switch]\nflows = \"{}\"\n", flows.display()));
    let reload = |arguments: &[&str]| {
        let socket = switch.socket();
        bywash(&lab.switch, &[&["reload", "--socket", socket.to_str().unwrap()], arguments].concat())
    };
    flow_ok(&switch, &["add", "priority=40000,icmp,actions=drop"]);
    assert_eq!(reload(&[]).ok().unwrap().stdout, "nothing to change\n");
    assert!(!lab.reaches(1, 2), "a reload without a change has removed a flow that was added");
    lab.file(
        "flows",
        "# Groups too.\ngroup_id=1,type=all,bucket=output:2\nin_port=p1,actions=group:1\nactions=NORMAL\n",
    );
    let replaced = "all flows replaced by those of the changed file\n";
    assert_eq!(reload(&["--dry-run"]).ok().unwrap().stdout, replaced);
    assert!(!lab.reaches(1, 2), "a dry run has loaded flows");
    assert_eq!(reload(&[]).ok().unwrap().stdout, replaced);
    lab.assert_reaches(1, 2);
    assert_eq!(reload(&[]).ok().unwrap().stdout, "nothing to change\n");
    assert_eq!(switch.show(&["groups"])["groups"].as_array().map(Vec::len), Some(1));
    // A file with a fault changes nothing, and with it nothing else.
    lab.file("flows", "actions=NORMAL\nactions=group:1\n");
    let refused = reload(&[]);
    let said = format!("{}: group 1 does not exist", flows.display());
    assert!(refused.status.code() == Some(1) && refused.stderr.contains("nothing changed"), "{}", refused.stderr);
    assert!(refused.stderr.contains(&said), "{}", refused.stderr);
    lab.assert_reaches(1, 2);
    // The file may name a port that the same reload adds.
    lab.file("flows", "in_port=p1,actions=p3\nin_port=p3,actions=p1\n");
    let config = lab.directory.path().join("bywash.toml");
    let with_another = std::fs::read_to_string(&config).unwrap() + "[[port]]\ninterface = \"p3\"\n";
    std::fs::write(&config, with_another).unwrap();
    let told = "port p3 added: af_xdp\nall flows replaced by those of the changed file\n";
    assert_eq!(reload(&[]).ok().unwrap().stdout, told);
    lab.assert_reaches(1, 3);
    assert!(!lab.reaches(1, 2));
    switch.stop();
}

#[test]
fn flows_learn_addresses_and_show_packets() {
    require!(require_lab());
    let lab = Lab::new(2);
    let bridge = "actions=learn(table=10,idle_timeout=300,NXM_OF_ETH_DST[]=NXM_OF_ETH_SRC[],\
                  load:NXM_OF_IN_PORT[]->NXM_NX_REG0[0..15]),resubmit(,10),resubmit(,11)\n\
                  table=11,reg0=0,actions=flood\ntable=11,priority=10,actions=output:NXM_NX_REG0[0..15]\n";
    let flows = lab.file("flows", bridge);
    let switch = lab.run(&["", ""], &format!("[switch]\nflows = \"{}\"\n", flows.display()));
    assert!(lab.reaches(1, 2));
    switch.wait("both addresses to be learned", |s| {
        s.show(&["flows", "table=10"]).as_array().is_some_and(|flows| flows.len() >= 2)
    });
    let (program, socket) = (program(), switch.socket());
    let capture = ["capture", "--socket", socket.to_str().unwrap(), "--drops", "controller", "-c", "2"];
    let mut capture = switch.namespace().spawn(&[&[program.as_str()], &capture[..]].concat()).unwrap();
    capture.wait_for_output("capturing; Ctrl-C ends it", PATIENCE).unwrap();
    flow_ok(&switch, &["add", "priority=40000,icmp,actions=controller,resubmit(,10),resubmit(,11)"]);
    assert!(lab.reaches(1, 2));
    let status = capture.wait(PATIENCE).unwrap();
    let said = capture.output();
    let echo = format!("icmp {} > {}", Lab::address(1), Lab::address(2));
    let first = said.lines().find(|line| line.contains(" p1 dropped: controller (worker "));
    assert!(status.success() && first.is_some_and(|line| line.ends_with(&echo)), "{status}: {said}");
    assert!(switch.drops("p1", "controller") >= 1);
    switch.assert_conserved();
    switch.stop();
}

#[test]
fn faults_of_flows_are_located() {
    require!(require_lab());
    let lab = Lab::new(2);
    let switch = lab.run(&["", ""], "");
    let before = flow_ok(&switch, &["dump", "--no-stats"]);
    for (flows, said) in [
        ("tp_src=80,actions=drop", "column 1:"),
        ("ip,actions=output:p9", "column 19:"),
        ("ip,nw_dst=10.0.0.300,actions=drop", "column 11:"),
        ("priority=5,ip", "a flow needs `actions=`"),
    ] {
        let output = flow(&switch, &["add", "arp,actions=drop", flows]);
        assert_eq!(output.status.code(), Some(1), "{flows}");
        assert!(output.stderr.contains(said) && output.stderr.contains(flows), "{flows}: {}", output.stderr);
    }
    let file = lab.file("wrong", "arp,actions=drop\n\nip,nw_src=1.2.3,actions=drop\n");
    let output = flow(&switch, &["load", file.to_str().unwrap()]);
    assert!(output.stderr.contains("wrong:3:11: "), "{}", output.stderr);
    assert_eq!(output.status.code(), Some(1));
    // No flow of a faulty request was added.
    assert_eq!(flow_ok(&switch, &["dump", "--no-stats"]), before);
    // Faults in the configuration's file of flows are reported in the same way, before a port is opened.
    let config = format!("mode = \"switch\"\n[switch]\nflows = \"{}\"\n[[port]]\ninterface = \"p1\"\n", file.display());
    let config = lab.file("wrong.toml", &config);
    let socket = lab.directory.path().join("other");
    let run = bywash(&lab.switch, &["run", "--config", config.to_str().unwrap(), "--socket", socket.to_str().unwrap()]);
    assert!(run.status.code() == Some(2) && run.stderr.contains("wrong:3:11"), "{}", run.stderr);
    switch.stop();
}

/// A reload whose file of flows fails changes neither the flows nor anything else.
#[test]
fn a_file_of_flows_is_loaded_as_a_whole() {
    require!(require_lab());
    let lab = Lab::new(2);
    let good = "priority=5,arp,actions=NORMAL\npriority=5,ip,actions=NORMAL\n";
    let flows = lab.file("flows", good);
    let section = format!("[switch]\nflows = \"{}\"\n", flows.display());
    let more = "[[port]]\nkind = \"null\"\nname = \"n\"\n";
    let switch = lab.run(&["", ""], &format!("{more}{section}"));
    let shown = || (flow_ok(&switch, &["dump", "--no-stats"]), switch.show(&["ports"]).as_array().unwrap().len());
    let before = shown();
    assert_eq!(before.1, 3);
    // The second line overlaps the first, which is known only once that one is in the table.
    lab.file("flows", "priority=5,arp,actions=drop\npriority=5,check_overlap,in_port=1,actions=drop\n");
    lab.file(
        "bywash.toml",
        &format!("mode = \"switch\"\n[[port]]\ninterface = \"p1\"\n[[port]]\ninterface = \"p2\"\n{section}"),
    );
    let refused = reload::reload(&switch, &[]);
    assert!(refused.stderr.contains("nothing changed") && refused.stderr.contains("overlaps"), "{refused:?}");
    assert_eq!(shown(), before);
    lab.assert_reaches(1, 2);
    lab.file("flows", good);
    assert_eq!(reload::reload(&switch, &[]).ok().unwrap().stdout, "port n removed\n");
    assert_eq!(shown(), (before.0, 2));
    reload::end(switch);
}

#[test]
fn a_trace_shows_the_reason() {
    require!(require_lab());
    let lab = Lab::new(2);
    let switch = lab.run(&["", ""], "");
    flow_ok(&switch, &["del"]);
    flow_ok(&switch, &["add", "priority=1,ip,nw_dst=10.7.0.0/24,actions=dec_ttl,resubmit(,2)", "table=2,actions=p2"]);
    let trace = flow_ok(&switch, &["trace", "in_port=p1,tcp,nw_src=10.7.0.1,nw_dst=10.7.0.2,nw_ttl=64,tp_dst=80"]);
    assert!(trace.contains("sent to: p2"), "{trace}");
    assert!(trace.contains("megaflow: ") && trace.contains("nw_dst=10.7.0.0/24"), "{trace}");
    let trace = flow_ok(&switch, &["trace", "in_port=p1,arp"]);
    assert!(trace.contains("dropped: no-flow"), "{trace}");
    let output = flow(&switch, &["trace", "in_port=77,arp"]);
    assert!(!output.status.success() && output.stderr.contains("no port 77: the ports are 1 p1, "), "{output:?}");
    let output = flow(&switch, &["trace", "in_port=p1,tp_dst=80"]);
    assert!(output.status.code() == Some(1) && output.stderr.contains("column 12"), "{}", output.stderr);
    switch.stop();
}

#[test]
fn a_port_goes_and_comes_back() {
    require!(require_lab());
    let lab = Lab::new(3);
    let switch = lab.run(&["", "", ""], "");
    lab.assert_reaches(1, 2);
    lab.assert_reaches(1, 3);
    // A failover group uses the port that is up, and flows may name ports that do not exist.
    flow_ok(&switch, &["add", "group_id=1,type=ff,bucket=watch_port:3,output:3,bucket=watch_port:2,output:2"]);
    lab.switch.ip(&["link", "del", "p3"]).unwrap();
    switch.wait("p3 to be gone", |s| s.port("p3")["state"] != "up");
    let gone = |s: &Bywash<'_>| !s.show(&["fdb"]).as_array().unwrap().iter().any(|row| row["port"] == "p3");
    switch.wait("the addresses at p3 to be forgotten", gone);
    flow_ok(
        &switch,
        &["add", "priority=9,dl_type=0x88b5,in_port=1,actions=group:1", "priority=8,in_port=99,actions=98"],
    );
    let ear = Ear::at(lab.host(2), "e0");
    send(lab.host(1), "e0", &[(4, untagged(2))]);
    ear.wait(4, |frame| frame[11] == 2);
    lab.assert_reaches(1, 2);
    cable((&lab.switch, "p3"), (lab.host(3), "e0"), 3);
    switch.wait("p3 to be back", |s| s.port("p3")["state"] == "up");
    lab.assert_reaches(1, 3);
    drop(ear);
    switch.stop();
}

/// Adds and deletes 100,000 flows ten times while packets pass: the memory does not grow from round to round.
#[test]
fn many_flows_come_and_go() {
    require!(require_lab());
    let lab = Lab::new(2);
    let switch = lab.run(&["", ""], "");
    lab.assert_reaches(1, 2);
    let (mut add, mut del) = (String::new(), String::new());
    for n in 0..100_000 {
        let address = Ipv4Addr::from_bits(0x0a00_0000 + n);
        let _ = writeln!(add, "priority=10,ip,nw_dst={address},actions=output:2");
        let _ = writeln!(del, "delete_strict priority=10,ip,nw_dst={address}");
    }
    let (add, del) = (lab.file("add", &add), lab.file("del", &del));
    let rss = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", switch.process.pid())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
    };
    let mut after = vec![];
    for _ in 0..10 {
        flow_ok(&switch, &["load", add.to_str().unwrap()]);
        assert_eq!(switch.show(&["caches"])["flows"], 100_001);
        assert!(lab.reaches(1, 2));
        flow_ok(&switch, &["load", del.to_str().unwrap()]);
        assert_eq!(switch.show(&["caches"])["flows"], 1);
        after.push(rss());
    }
    println!("resident after each round, in KiB: {after:?}");
    // A flow takes about 1 KiB, so a leak would be 100 MB a round. An arena of malloc, 64 MiB, may be added late.
    assert!(after[9] < after[1] + 200_000, "the memory grows: {after:?} KiB");
    switch.stop();
}

#[test]
fn ports_come_and_go_under_load() {
    require!(require_lab());
    let _alone = alone();
    let lab = Lab::new(4);
    lab.host(1).ip(&["route", "add", "44.0.0.0/8", "via", &Lab::address(2).to_string()]).unwrap();
    lab.host(2).ip(&["route", "add", "local", "44.0.0.0/8", "dev", "lo"]).unwrap();
    let write = |ports: &[usize]| {
        let ports = ports.iter().map(|n| format!("[[port]]\ninterface = \"p{n}\"\nring = 2048\n"));
        lab.file("bywash.toml", &format!("mode = \"switch\"\n[pool]\nframes = 32768\n{}", ports.collect::<String>()))
    };
    let file = write(&[1, 2, 3]);
    let mut running = Bywash::run_as_is(&lab.switch, &["--config", file.to_str().unwrap()]);
    let socket = running.socket();
    let reload = || bywash(&lab.switch, &["reload", "--socket", socket.to_str().unwrap()]).ok().unwrap().stdout;
    // Returns name and number of the ports with learned addresses. Addresses are learned with a delay of milliseconds.
    let known = || -> Vec<(String, u64)> {
        let list = running.show(&["fdb"]).as_array().unwrap().clone();
        let of = |row: &serde_json::Value| (row["port"].as_str().unwrap().to_owned(), row["number"].as_u64().unwrap());
        list.iter().map(of).collect()
    };
    let learned = |name: &str, number| {
        let is_known = || known().contains(&(name.into(), number));
        wait_until(&format!("an address to be learned at {name}"), PATIENCE, is_known).unwrap();
    };
    lab.assert_reaches(1, 2);
    let ((), loss) = load::between(lab.host(1), &[&lab.switch], lab.host(2), load::rate(), || {
        lab.assert_reaches(1, 3);
        learned("p3", 3);
        write(&[1, 2, 4]);
        assert_eq!(reload(), "port p4 added: af_xdp\nport p3 removed\n");
        assert!(known().iter().all(|(name, _)| name != "p3"), "{:?}", known());
        lab.assert_reaches(1, 4);
        learned("p4", 4);
        assert!(!lab.reaches(1, 3), "the removed port is still bridged");
        // The port that was removed first comes back and gets its former number, which is free again.
        write(&[3, 1, 2]);
        assert_eq!(reload(), "port p3 added: af_xdp\nport p4 removed\n");
        lab.assert_reaches(1, 3);
        learned("p3", 3);
        assert!(known().iter().all(|(name, _)| name != "p4"), "{:?}", known());
    });
    println!("a switch's ports come and go under {} packets/s: {} sent, {} lost", load::rate(), loss.sent, loss.lost);
    assert_eq!((loss.unexplained(running.starved("p1")), loss.twice), (0, 0), "{loss:?}: {}", running.show(&["drops"]));
    // The counters of a removed port are gone: packets cannot be balanced, buffers can.
    let status = running.signalled(rustix::process::Signal::TERM);
    assert!(status.success() && running.log().contains("cells are back in their pools"), "{}", running.log());
}

/// The host of the switch has an address on the local port: others reach it, and it reaches them.
#[test]
fn the_host_has_a_port_of_its_own() {
    require!(require_lab());
    let lab = Lab::new(2);
    let switch = lab.run(&["", ""], "[switch]\nlocal = \"br0\"\n");
    let own = Lab::address(9);
    lab.switch.ip(&["address", "add", &format!("{own}/24"), "dev", "br0"]).unwrap();
    let answers = |from: &Namespace, to| Ping::to(to).count(1).run(from).unwrap().received == 1;
    wait_until("the switch to answer", PATIENCE, || answers(lab.host(1), own)).unwrap();
    assert!(answers(lab.host(2), own) && answers(&lab.switch, Lab::address(1)));
    lab.assert_reaches(1, 2);
    for (from, to, address) in [(lab.host(1), &lab.switch, own), (&lab.switch, lab.host(2), Lab::address(2))] {
        let report = Transfer::new(3_000_000).run(from, to, address).unwrap();
        assert!(report.is_intact(), "{report:?}");
    }
    // Flows know it by its number, as LOCAL and by its name.
    assert_eq!(switch.port("br0")["switch"]["number"], 0xfffe);
    assert!(
        switch.show(&["fdb"]).as_array().unwrap().iter().any(|row| row["port"] == "br0" && row["number"] == 0xfffe)
    );
    flow_ok(
        &switch,
        &["add", "priority=10,icmp,in_port=LOCAL,actions=drop", "priority=11,icmp,in_port=br0,actions=p2"],
    );
    assert!(!answers(&lab.switch, Lab::address(1)));
    assert!(answers(&lab.switch, Lab::address(2)));
    flow_ok(&switch, &["add", "priority=12,icmp,actions=LOCAL"]);
    assert!(!lab.reaches(1, 2));
    let dump = flow_ok(&switch, &["dump", "--no-stats"]);
    assert!(dump.contains("priority=11,icmp,in_port=LOCAL actions=output:2"), "{dump}");
    let trace = flow_ok(&switch, &["trace", "in_port=p1,icmp"]);
    assert!(trace.contains("sent to: br0"), "{trace}");
    switch.stop();
}
