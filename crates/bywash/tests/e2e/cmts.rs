//! `mode = "cmts"`: packets from a host to modems are recorded as DOCSIS MAC frames in a capture file, which the tests
//! decrypt and tshark reads.

use crate::harness::{Bywash, count};
use crate::raw::send;
use bywash_docsis::cipher::{Tek, derived_key};
use bywash_docsis::header::parse;
use bywash_docsis::protect::{Protection, open};
use bywash_lab::{End, Namespace, Veth, has_tool, require, require_lab};
use bywash_wire::build::Packet;
use bywash_wire::ethernet::MacAddr;
use bywash_wire::hex;
use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use tempfile::TempDir;

const KEY: [u8; 16] = [0x2b; 16];
const IV: [u8; 16] = [0x17; 16];

/// A host and the headend that it sends to; the link is `e0` at the host and `in` at the headend.
struct Lab {
    headend: Namespace,
    host: Namespace,
    directory: TempDir,
}

impl Lab {
    fn new() -> Self {
        let (headend, host) = (Namespace::new("c").unwrap(), Namespace::new("h").unwrap());
        Veth::new(End::new(&headend, "in"), End::new(&host, "e0")).create().unwrap();
        Self { headend, host, directory: tempfile::tempdir().unwrap() }
    }

    fn capture(&self) -> PathBuf {
        self.directory.path().join("cable.pcap")
    }

    /// Runs the headend with `end` at the end of its configuration; it records MAC frames.
    fn run(&self, end: &str) -> Bywash<'_> {
        self.run_with_link("docsis", end)
    }

    /// Runs the headend with `end` at the end of its configuration; the recording has this link type.
    fn run_with_link(&self, link: &str, end: &str) -> Bywash<'_> {
        let text = format!(
            "mode = \"cmts\"\n[[port]]\ninterface = \"in\"\n[[port]]\nname = \"cable\"\nkind = \"pcap\"\nlink = \"{link}\"\n\
             record = \"{}\"\n[[group]]\ninput = \"in\"\noutput = \"cable\"\nmodems = 300\nsaid = 100\nkey = \"{}\"\n\
             iv = \"{}\"\n{end}",
            self.capture().display(),
            hex::encode(&KEY),
            hex::encode(&IV),
        );
        let file = self.directory.path().join("bywash.toml");
        std::fs::write(&file, text).unwrap();
        Bywash::run(&self.headend, &["--config", file.to_str().unwrap()])
    }

    /// Returns the implementation that the headend says that it seals by, with this sandbox.
    fn sealed_by(&self, sandbox: &str) -> String {
        self.run("").stop();
        let file = self.directory.path().join("bywash.toml");
        let text = std::fs::read_to_string(&file).unwrap();
        std::fs::write(&file, format!("sandbox = \"{sandbox}\"\n{text}")).unwrap();
        let bywash = Bywash::run(&self.headend, &["--config", file.to_str().unwrap()]);
        let log = bywash.log();
        let (_, by) = log.split_once("sealed by ").unwrap_or_else(|| panic!("{log}"));
        let by = by.lines().next().unwrap().to_owned();
        bywash.stop();
        by
    }

    fn send(&self, frames: &[(u32, Vec<u8>)]) {
        send(&self.host, "e0", frames);
    }
}

/// Returns the MAC address of modem `n`, counted from 0.
fn modem(n: u8) -> [u8; 6] {
    [2, 0xca, 0xb1, 0, 0, 1 + n]
}

pub fn packet(mac: [u8; 6], port: u16, dscp: u8, size: usize) -> Vec<u8> {
    let to = SocketAddr::from(([10, 0, 0, 2], port));
    let packet = Packet::udp(SocketAddr::from(([198, 18, 0, 1], 443)), to).tos(dscp << 2);
    packet.macs(MacAddr([2, 0, 0, 0, 0, 9]), MacAddr(mac)).size(size).build().unwrap()
}

/// Returns the records of a pcap file with nanoseconds and in this machine's byte order.
fn records(path: &std::path::Path) -> Vec<Vec<u8>> {
    let bytes = std::fs::read(path).unwrap();
    let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
    assert_eq!((word(0), word(20)), (0xa1b2_3c4d, 143), "not a capture of DOCSIS frames");
    let (mut at, mut records) = (24, vec![]);
    while at < bytes.len() {
        let len = word(at + 8) as usize;
        records.push(bytes[at + 16..at + 16 + len].to_vec());
        at += 16 + len;
    }
    records
}

/// The sandbox hides the directories of libraries.
#[test]
fn the_sandbox_leaves_the_library_for_sealing() {
    require!(require_lab());
    let lab = Lab::new();
    assert_eq!(lab.sealed_by("on"), lab.sealed_by("off"));
}

#[test]
fn packets_reach_their_modems_sealed() {
    require!(require_lab(), has_tool("python3"));
    let lab = Lab::new();
    let flows = "[[flow]]\nname = \"rest\"\npriority = 1\n[[flow]]\nname = \"voice\"\npriority = 5\ndscp = 46\n\
                 [[flow]]\nname = \"none\"\ndrop = true\nproto = 17\ndestination_port = \"9\"\n";
    let bywash = lab.run(flows);
    let rest: Vec<_> = (0..50).map(|n| (2, packet(modem(n), 80, 0, 100 + 25 * usize::from(n)))).collect();
    let voice: Vec<_> = (0..20).map(|n| (1, packet(modem(n), 5060, 46, 200))).collect();
    lab.send(&[&rest[..], &voice].concat());
    lab.send(&[(3, packet(modem(7), 9, 0, 100)), (4, packet([2, 9, 9, 9, 9, 9], 80, 0, 100))]);
    bywash.wait("frames on the cable", |b| b.counter("cable", "tx_packets") == 120);
    bywash.wait("drops by name", |b| b.drops("in", "filtered") == 3 && b.drops("in", "unknown-modem") >= 4);

    let modems = bywash.show(&["modems"]);
    assert_eq!(modems.as_array().unwrap().len(), 300);
    assert_eq!(count(&modems, &[("mac", "02:ca:b1:00:00:01")], "packets"), 3, "{modems}");
    assert_eq!(count(&modems, &[], "queued"), 0);
    let shown = bywash.show(&["service-flows"]);
    assert_eq!(count(&shown, &[("flow", "rest")], "packets"), 100);
    assert_eq!(count(&shown, &[("flow", "voice")], "packets"), 20);
    assert_eq!(count(&bywash.show(&["channels"]), &[], "packets"), 120);
    bywash.stop();

    let records = records(&lab.capture());
    assert_eq!(records.len(), 120);
    let mut got: Vec<Vec<u8>> = records
        .iter()
        .map(|record| {
            let frame = parse(record).unwrap();
            let n = u32::from(frame.header.privacy.unwrap().said) - 100;
            let tek = Tek::new(&derived_key(&KEY, n), &derived_key(&IV, n));
            let mut pdu = frame.pdu.to_vec();
            let len = open(&tek, Protection::default(), &mut pdu).unwrap();
            pdu.truncate(len);
            assert_eq!(pdu[..6], modem(n as u8));
            pdu
        })
        .collect();
    let mut sent: Vec<Vec<u8>> =
        rest.iter().chain(&voice).flat_map(|(n, frame)| vec![frame.clone(); *n as usize]).collect();
    got.sort();
    sent.sort();
    assert_eq!(got, sent);
}

#[test]
fn a_port_with_an_address_is_warned_of() {
    require!(require_lab());
    let lab = Lab::new();
    lab.headend.ip(&["address", "add", "10.8.0.1/24", "dev", "in"]).unwrap();
    let headend = lab.run("");
    let log = headend.log();
    assert!(
        log.contains("in: the kernel can no longer be reached at its address 10.8.0.1: the cable downstream"),
        "{log}"
    );
    // `crypto` is `auto`, the default.
    assert!(!log.contains("set crypto to"), "{log}");
    headend.stop();
}

#[test]
fn tshark_accepts_what_is_recorded() {
    require!(require_lab(), has_tool("python3"), has_tool("tshark"));
    let lab = Lab::new();
    let bywash = lab.run("");
    lab.send(&(0..200).map(|n| (1, packet(modem(n), 80, 0, 64 + 7 * usize::from(n)))).collect::<Vec<_>>());
    bywash.wait("frames on the cable", |b| b.counter("cable", "tx_packets") == 200);
    bywash.stop();
    let file = lab.capture();
    let argv = ["tshark", "-r", file.to_str().unwrap(), "-T", "fields", "-e", "frame.protocols", "-e"];
    let output = lab.headend.run(&[&argv[..], &["docsis.hcs.status", "-e", "_ws.malformed"]].concat()).unwrap();
    let lines: Vec<&str> = output.stdout.lines().collect();
    assert_eq!(lines.len(), 200);
    for line in lines {
        assert!(line.starts_with("docsis") && line.trim_end().ends_with('1') && !line.contains("alformed"), "{line}");
    }
}

/// Returns the lines that tshark prints for a capture: these fields of every packet.
fn tshark(lab: &Lab, options: &[&str], fields: &[&str]) -> Vec<String> {
    let file = lab.capture();
    let fields: Vec<&str> = fields.iter().flat_map(|field| ["-e", field]).collect();
    let argv = [&["tshark", "-r", file.to_str().unwrap()], options, &["-T", "fields"], &fields].concat();
    lab.headend.run(&argv).unwrap().stdout.lines().map(str::to_owned).collect()
}

#[test]
fn tshark_finds_every_frame_in_depi_packets() {
    require!(require_lab(), has_tool("python3"), has_tool("tshark"));
    let lab = Lab::new();
    let bywash = lab.run_with_link(
        "ethernet",
        "depi = { local = \"192.0.2.1\", local_mac = \"02:00:00:00:00:01\", remote = \"192.0.2.2\", remote_mac = \
         \"02:00:00:00:00:02\", session = 77, dscp = 46, mtu = 1000 }\n[cmts]\nchannels = [0, 0]\n[[flow]]\nname = \
         \"rest\"\n[[flow]]\nname = \"voice\"\npriority = 5\ndscp = 46\n",
    );
    let frames: Vec<_> = (0..100)
        .map(|n| (2, packet(modem(n), 80, if n % 4 == 0 { 46 } else { 0 }, 64 + 14 * usize::from(n))))
        .collect();
    lab.send(&frames);
    let sent = |b: &Bywash<'_>| count(&b.show(&["service-flows"]), &[], "packets");
    bywash.wait("frames on the cable", |b| sent(b) == 200 && b.events("in", "depi-packed") == 200);
    bywash.stop();

    // Wireshark's own dissector knows the header, but no segments.
    let specific = ["-o", "l2tp.l2_specific:DOCSIS DMPT-Specific", "-o", "l2tp.cookie_size:None"];
    let lines = tshark(&lab, &specific, &["l2tp.sid", "l2tp.l2_spec_s", "l2tp.l2_spec_flow_id", "ip.len"]);
    for line in &lines {
        let values: Vec<&str> = line.split('\t').collect();
        let [session, sequenced, flow, len] = values[..] else { panic!("{line}") };
        assert!(["0x0000004d", "0x0000004e"].contains(&session) && ["1", "True"].contains(&sequenced), "{line}");
        assert!(["0x00", "0x05"].contains(&flow) && len.parse::<u32>().unwrap() <= 1000, "{line}");
    }
    let script = format!("lua_script:{}", concat!(env!("CARGO_MANIFEST_DIR"), "/tests/e2e/psp.lua"));
    let fields = ["psp.frames", "docsis.hcs.status", "_ws.malformed", "_ws.expert.message", "docsis.ehdr.said"];
    let lines = tshark(&lab, &["-X", &script], &fields);
    let (mut whole, mut good) = (0, 0);
    for line in lines {
        let values: Vec<&str> = line.split('\t').collect();
        whole += values[0].parse::<usize>().unwrap_or_else(|_| panic!("{line}"));
        good += values[1].split(',').filter(|status| *status == "1").count();
        assert!(values[2].is_empty() && !values[3].contains("Lost"), "{line}");
    }
    assert_eq!((whole, good), (200, 200));
}

#[test]
fn rates_are_policed_and_queues_overflow_by_flow() {
    require!(require_lab(), has_tool("python3"));
    let lab = Lab::new();
    // The channel of 100 kbit/s takes ten seconds for the frames that must find no room in queues of 8; a second flow
    // is limited to 10 kbit/s.
    let bywash = lab.run(
        "[cmts]\nchannels = 100_000\nqueue = 8\n[[flow]]\nname = \"rest\"\n[[flow]]\nname = \"slow\"\nrate = 10_000\n\
         dscp = 8\n",
    );
    lab.send(&[(300, packet(modem(0), 80, 0, 1000)), (50, packet(modem(1), 80, 8, 1000))]);
    let of = |b: &Bywash<'_>, flow, field| count(&b.show(&["service-flows"]), &[("flow", flow)], field);
    bywash.wait("drops by flow", |b| of(b, "rest", "queue_overflow") > 100 && of(b, "slow", "policed") > 30);
    bywash.wait("empty queues", |b| of(b, "rest", "queued") + of(b, "slow", "queued") == 0);
    assert_eq!(of(&bywash, "rest", "packets") + of(&bywash, "rest", "queue_overflow"), 300);
    assert_eq!(bywash.drops("in", "queue-overflow"), of(&bywash, "rest", "queue_overflow"));
    assert_eq!(bywash.drops("in", "policed"), of(&bywash, "slow", "policed"));
    bywash.stop();
}

/// Writes a capture file with these records.
fn write_pcap(path: &std::path::Path, records: &[Vec<u8>]) {
    let mut bytes = vec![];
    bytes.extend(0xa1b2_3c4d_u32.to_ne_bytes());
    bytes.extend([2u16, 4].map(u16::to_ne_bytes).concat());
    bytes.extend([0u32, 0, 65_535, 1].map(u32::to_ne_bytes).concat());
    for record in records {
        let len = record.len() as u32;
        bytes.extend([0, 0, len, len].map(u32::to_ne_bytes).concat());
        bytes.extend(record);
    }
    std::fs::write(path, bytes).unwrap();
}

/// Returns an upstream MAC frame of a modem: a header with a privacy element, and a PDU from `source`.
fn upstream(said: u16, source: [u8; 6]) -> Vec<u8> {
    let [high, low] = (said | 0x8000).to_be_bytes();
    let mut frame = vec![1, 5, 0, 5 + 60, 0x34, 0x11, high, low, 0];
    frame.extend(bywash_docsis::crc::hcs(&frame));
    frame.extend([[0xff; 6], source].concat());
    frame.extend([7; 48]);
    frame
}

#[test]
fn addresses_behind_modems_and_multicast() {
    require!(require_lab(), has_tool("python3"));
    let lab = Lab::new();
    let (file, received) = (lab.directory.path().join("modems.csv"), lab.directory.path().join("upstream.pcap"));
    let cpe = |n: u8| [2, 0, 0, 0, 0, n];
    let write = |n: u8| {
        let text = format!("mac,said,cpe\n00:10:18:de:ad:01,5000,02:00:00:00:00:{n:02x}\nff:ff:ff:ff:ff:ff,6000,\n");
        std::fs::write(&file, text).unwrap();
    };
    write(0x77);
    write_pcap(&received, &[upstream(5000, cpe(0x78)), upstream(4000, cpe(0x79))]);
    let link = format!("docsis\"\nfile = \"{}", received.display());
    let bywash = lab.run_with_link(&link, &format!("file = \"{}\"\n", file.display()));
    let known = |b: &Bywash<'_>, n: u8| {
        let all = b.show(&["cpes"]);
        all.as_array().unwrap().iter().any(|row| row["mac"] == format!("02:00:00:00:00:{n:02x}"))
    };
    bywash.wait("a learned address", |b| known(b, 0x77) && known(b, 0x78));
    assert!(!known(&bywash, 0x79), "no modem has SAID 4000");
    let to = |mac| (1, packet(mac, 80, 0, 100));
    lab.send(&[to(cpe(0x77)), to(cpe(0x78)), to([0xff; 6]), to(cpe(0x79))]);
    bywash.wait("frames on the cable", |b| b.counter("cable", "tx_packets") == 3);
    bywash.wait("a drop", |b| b.drops("in", "unknown-modem") >= 1);
    write(0x79);
    let socket = bywash.socket();
    let reloaded = crate::harness::bywash(&lab.headend, &["reload", "--socket", socket.to_str().unwrap()]);
    assert!(reloaded.stdout.contains("group 1: other addresses behind modems"), "{}", reloaded.stdout);
    bywash.wait("the new address", |b| known(b, 0x79) && !known(b, 0x77));
    lab.send(&[to(cpe(0x77)), to(cpe(0x79))]);
    bywash.wait("one more frame", |b| b.counter("cable", "tx_packets") == 4);

    let added = post(&bywash, "/v1/cpes?op=add&group=1", "02:00:00:00:00:7a 00:10:18:de:ad:01\n");
    assert!(added.contains("200 OK") && added.contains(r#"{"changed":1}"#), "{added}");
    let row = |n: u8| {
        let all = bywash.show(&["cpes"]);
        all.as_array().unwrap().iter().find(|row| row["mac"] == format!("02:00:00:00:00:{n:02x}")).unwrap().clone()
    };
    let shown = row(0x7a);
    assert_eq!((&shown["modem"], &shown["origin"]), (&"00:10:18:de:ad:01".into(), &"added".into()));
    assert_eq!([row(0x78), row(0x79)].map(|row| row["origin"].clone()), ["learned", "configured"]);
    lab.send(&[to(cpe(0x7a))]);
    bywash.wait("a frame to the added address", |b| b.counter("cable", "tx_packets") == 5);
    // If one line is wrong, none is applied.
    let both = "02:00:00:00:00:7a\n\n02:00:00:00:00:79\n";
    let refused = post(&bywash, "/v1/cpes?op=del", both);
    assert!(refused.contains("400") && refused.contains("line 3: 02:00:00:00:00:79: it is configured"), "{refused}");
    for (path, body, why) in [
        ("/v1/cpes", "", "no `op` given"),
        ("/v1/cpes?op=add&group=2", "", "unknown group 2: expected 1 to 1"),
        ("/v1/cpes?op=add", "02:00:00:00:00:7b", "line 1: expected an address and that of its modem"),
        ("/v1/cpes?op=add", "02:00:00:00:00:7b ff:ff:ff:ff:ff:ff", "no modem of the group has address"),
        ("/v1/cpes?op=add", "x 00:10:18:de:ad:01", "invalid address `x`"),
    ] {
        let refused = post(&bywash, path, body);
        assert!(refused.contains("400") && refused.contains(why), "{path} {body}: {refused}");
    }
    assert!(known(&bywash, 0x7a));
    let removed = post(&bywash, "/v1/cpes?op=del", "02:00:00:00:00:7a\n");
    assert!(removed.contains("200 OK") && !known(&bywash, 0x7a), "{removed}");
    bywash.stop();
    let mut found: Vec<(u16, u8)> = records(&lab.capture())
        .iter()
        .map(|record| {
            let frame = parse(record).unwrap();
            let said = frame.header.privacy.unwrap().said;
            // 300 generated modems come before those of the file.
            let n = if said == 5000 { 300 } else { 301 };
            let tek = Tek::new(&derived_key(&KEY, n), &derived_key(&IV, n));
            let mut pdu = frame.pdu.to_vec();
            open(&tek, Protection::default(), &mut pdu).unwrap();
            (said, pdu[5])
        })
        .collect();
    found.sort_unstable();
    assert_eq!(found, [(5000, 0x77), (5000, 0x78), (5000, 0x79), (5000, 0x7a), (6000, 0xff)]);
}

/// A modem has the profile of its line, and codewords are counted: no frame shares one with a frame of another profile.
#[test]
fn frames_cost_codewords_of_their_profile() {
    require!(require_lab());
    let lab = Lab::new();
    let file = lab.directory.path().join("modems.csv");
    std::fs::write(&file, "mac,profile\n00:10:18:00:00:01,A\n00:10:18:00:00:02,B\n").unwrap();
    let profiles = "[[profile]]\nname = \"A\"\nbits = 6\n[[profile]]\nname = \"B\"\n";
    let bywash = lab.run(&format!("file = \"{}\"\n{profiles}[cmts]\nchannels = 1_000_000\n", file.display()));
    let bits: Vec<u64> =
        bywash.show(&["modems"]).as_array().unwrap().iter().map(|m| m["bits"].as_u64().unwrap()).collect();
    assert_eq!((bits[0], &bits[bits.len() - 2..]), (6, &[6, 12][..]), "generated modems have the first profile");
    let mac = |n: u8| [0, 0x10, 0x18, 0, 0, n];
    for _ in 0..5 {
        lab.send(&[(1, packet(mac(1), 80, 0, 1000)), (1, packet(mac(2), 80, 0, 1000))]);
    }
    bywash.wait("frames on the cable", |b| b.counter("cable", "tx_packets") == 10);
    let shown = bywash.show(&["channels"]);
    let codewords = count(&shown, &[], "codewords");
    // A codeword for each frame if they are sent in turn, and three for five frames of a modem in a row.
    assert!((6..=10).contains(&codewords), "{shown}");
    bywash.stop();
}

#[test]
fn modems_have_flows_of_their_own() {
    require!(require_lab());
    let lab = Lab::new();
    let file = lab.directory.path().join("modems.csv");
    let write = |flows: &str| {
        let text = format!("mac,flows\n00:10:18:00:00:01,{flows}\n00:10:18:00:00:02,\n00:10:18:00:00:03,voice\n");
        std::fs::write(&file, text).unwrap();
    };
    write("rest");
    let flows = "[[flow]]\nname = \"rest\"\n[[flow]]\nname = \"voice\"\npriority = 5\ndscp = 46\n";
    let bywash = lab.run(&format!("file = \"{}\"\n{flows}", file.display()));
    let mac = |n: u8| [0, 0x10, 0x18, 0, 0, n];
    let frames: Vec<_> =
        [1, 2, 3].iter().flat_map(|n| [(1, packet(mac(*n), 80, 46, 100)), (1, packet(mac(*n), 80, 0, 100))]).collect();
    lab.send(&frames);
    bywash.wait("frames on the cable", |b| b.counter("cable", "tx_packets") == 6);
    let shown = bywash.show(&["service-flows"]);
    let of = |n: u8| {
        let rows = shown.as_array().unwrap().iter().filter(|row| row["modem"] == format!("00:10:18:00:00:{n:02x}"));
        rows.map(|row| (row["flow"].as_str().unwrap().to_owned(), row["packets"].as_u64().unwrap())).collect::<Vec<_>>()
    };
    let row = |flow: &str, packets: u64| (flow.to_owned(), packets);
    // The only flow of a modem takes what no other matches, whatever its classifier.
    assert_eq!(
        [of(1), of(2), of(3)],
        [vec![row("rest", 2)], vec![row("rest", 1), row("voice", 1)], vec![row("voice", 2)]]
    );
    write("rest voice");
    let socket = bywash.socket();
    let refused = crate::harness::bywash(&lab.headend, &["reload", "--socket", socket.to_str().unwrap()]).stderr;
    assert!(refused.contains("read only at startup") || refused.contains("flows of modems are read only"), "{refused}");
    bywash.stop();
}

/// Sends a request with a body to the API, and returns the answer.
fn post(bywash: &Bywash<'_>, path: &str, body: &str) -> String {
    let mut stream = UnixStream::connect(bywash.socket()).unwrap();
    let head = format!("POST {path} HTTP/1.0\r\ncontent-length: {}\r\n\r\n", body.len());
    stream.write_all((head + body).as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn keys_roll_over_by_api_and_file() {
    require!(require_lab(), has_tool("python3"));
    let lab = Lab::new();
    let file = lab.directory.path().join("modems.csv");
    let mac = [0, 0x10, 0x18, 0xde, 0xad, 1];
    // A key by its sequence number.
    let key = |n: u8| ([n; 16], [0xf0 | n; 16]);
    let hex = |n: u8| <[_; 2]>::from(key(n)).map(|block| hex::encode(&block));
    let write = |said: u16, n: u8| {
        let [key, iv] = hex(n);
        let text = format!("mac,said,sequence,key,iv\n00:10:18:de:ad:01,{said},{n},{key},{iv}\n");
        std::fs::write(&file, text).unwrap();
    };
    write(5000, 14);
    let bywash = lab.run(&format!("file = \"{}\"\n", file.display()));
    let mut sent = 0;
    let mut send = |bywash: &Bywash<'_>| {
        lab.send(&[(1, packet(mac, 80, 0, 200))]);
        sent += 1;
        bywash.wait("a frame on the cable", |b| b.counter("cable", "tx_packets") == sent);
    };
    let modem = |b: &Bywash<'_>, field| count(&b.show(&["modems"]), &[("mac", "00:10:18:de:ad:01")], field);
    send(&bywash);
    assert_eq!((modem(&bywash, "key_sequence"), modem(&bywash, "said")), (14, 5000));

    let [new, iv] = hex(15);
    let answer = post(&bywash, "/v1/keys?group=1", &format!("00:10:18:de:ad:01 15 {new} {iv}\n"));
    assert!(answer.contains("200 OK") && answer.contains(r#""changed":1,"under_way":0"#), "{answer}");
    send(&bywash);
    let refused = post(&bywash, "/v1/keys", &format!("00:10:18:de:ad:01 1 {new} {iv}\n"));
    assert!(refused.contains("400") && refused.contains("the next one is 0"), "{refused}");
    let unknown = post(&bywash, "/v1/keys?group=1&use=later", "00:10:18:de:ad:02 0\n");
    assert!(unknown.contains("no modem of the group has address 00:10:18:de:ad:02"), "{unknown}");

    write(5000, 0);
    let socket = bywash.socket();
    let reload = || crate::harness::bywash(&lab.headend, &["reload", "--socket", socket.to_str().unwrap()]);
    assert!(reload().stdout.contains("group 1: new keys of 1 modem"));
    bywash.wait("the new key", |b| modem(b, "key_sequence") == 0);
    send(&bywash);
    write(5001, 1);
    let refused = reload();
    assert!(refused.stderr.contains("modem 00:10:18:de:ad:01 is read only at startup"), "{}", refused.stderr);
    bywash.stop();

    let used: Vec<u8> = records(&lab.capture())
        .iter()
        .map(|record| {
            let frame = parse(record).unwrap();
            let privacy = frame.header.privacy.unwrap();
            let (key, iv) = key(privacy.key_sequence);
            open(&Tek::new(&key, &iv), Protection::default(), &mut frame.pdu.to_vec()).unwrap();
            assert_eq!((privacy.said, privacy.toggle), (5000, privacy.key_sequence % 2 == 1));
            privacy.key_sequence
        })
        .collect();
    assert_eq!(used, [14, 15, 0]);
}
