//! Tests `bywash rfc2544` against a device with known limits, and its report in a browser.

use bywash_lab::{Namespace, Process, has_tool, patience, require, require_lab, run_host_with_timeout, wait_until};
use rustix::process::Signal;
use serde_json::Value;
use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

const BYWASH: &str = env!("CARGO_BIN_EXE_bywash");
const PATIENCE: Duration = Duration::from_secs(240);

/// A plan for a device that forwards 20,000 frames a second with a delay of 0.5 ms, buffers 128 frames, and needs 0.25
/// s after a reset.
const KNOWN: &str = r#"
title = "a <known> device"
max_rate = "80kpps"

[device]
limit_pps = 20_000
delay_us = 500
buffer = 128
reset_ms = 250

[plan]
sizes = [64]
tests = ["throughput", "latency", "loss", "back-to-back", "recovery", "reset"]
seconds = 0.6
drain = 0.03
retries = 2
latency_loads = [90, 50]
latency_trials = 1
burst_trials = 3
burst_seconds = 0.02
"#;

fn write(directory: &Path, text: &str) -> String {
    let file = directory.join("plan.toml");
    std::fs::write(&file, text).unwrap();
    file.to_str().unwrap().to_owned()
}

fn run(arguments: &[&str]) -> (Option<i32>, String) {
    let mut process = Process::start(&[&[BYWASH, "rfc2544", "--config"], arguments].concat()).unwrap();
    let status = process.wait(patience(PATIENCE)).unwrap();
    (status.code(), process.output())
}

fn json(output: &str) -> Value {
    serde_json::from_str(output.lines().find(|line| line.starts_with('{')).unwrap_or("no JSON")).expect(output)
}

fn near(found: &Value, known: f64, what: &str) -> Result<(), String> {
    let found = found.as_f64().unwrap();
    let good = (found / known - 1.0).abs() < 0.02;
    if good { Ok(()) } else { Err(format!("{what}: found {found}, planted {known}")) }
}

/// Locks a test that measures time, or loads the CPUs, against the others.
fn alone() -> std::sync::MutexGuard<'static, ()> {
    static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[test]
fn planted_limits_are_found_within_two_percent() {
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    let config = write(directory.path(), KNOWN);
    let page = directory.path().join("report.html");
    let (status, output) = run(&[&config, "--json", "--html", page.to_str().unwrap()]);
    assert_eq!(status, Some(0), "{output}");
    let mut verdict = as_planted(&json(&output));
    // The measurement depends on time, so that another load of the machine may disturb it.
    for _ in 0..5 {
        if verdict.is_ok() {
            break;
        }
        verdict = as_planted(&json(&run(&[&config, "--json", "--html", page.to_str().unwrap()]).1));
    }
    assert_eq!(verdict, Ok(()));
    assert!(!directory.path().join("plan.toml.state.json").exists());
    in_a_browser(&page);
}

/// Checks that every limit was found within two percent.
fn as_planted(report: &Value) -> Result<(), String> {
    for size in report["sizes"].as_array().unwrap() {
        near(&size["throughput"]["pps"], 20_000.0, "throughput")?;
        for at in size["latency"].as_array().unwrap() {
            near(&at["latency"]["min_us"], 500.0, "the shortest delay")?;
            near(&at["latency"]["p50_us"], 500.0, "the median delay")?;
        }
        // The frames in the buffer at the end of a trial still arrive.
        let loss = size["loss"].as_array().unwrap();
        for at in loss.iter().filter(|at| at["pps"].as_f64().unwrap() > 22_000.0) {
            let pps = at["pps"].as_f64().unwrap();
            let known = (1.0 - 20_000.0 / pps - 128.0 / (pps * 0.6)) * 100.0;
            if (at["loss"].as_f64().unwrap() - known).abs() >= 2.0 {
                return Err(format!("loss: expected {known} percent: {at}"));
            }
        }
        near(&size["back_to_back"]["buffer_frames"], 128.0, "buffer")?;
        near(&size["reset"]["seconds"], 0.25, "reset")?;
        if size["recovery"]["seconds"].as_f64().unwrap() > 0.01 {
            return Err(format!("recovery: {size}"));
        }
    }
    Ok(())
}

/// Checks that a browser shows the charts of the page without console messages.
fn in_a_browser(page: &Path) {
    let text = std::fs::read_to_string(page).unwrap();
    assert!(text.contains("a &lt;known&gt; device") && !text.contains("NaN") && !text.contains("http-equiv"), "{text}");
    assert_eq!(text.matches("<svg").count(), 3);
    require!(has_tool("chromium"));
    let (directory, url) = (page.parent().unwrap(), format!("file://{}", page.display()));
    let profile = format!("--user-data-dir={}", directory.join("profile").display());
    let browser = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", &profile];
    let shot = directory.join("shot.png");
    let to = format!("--screenshot={}", shot.display());
    let size = "--window-size=900,2000";
    let drawn = run_host_with_timeout(&[&browser[..], &[size, &to, &url]].concat(), patience(PATIENCE)).unwrap();
    assert!(!drawn.stderr.contains("CONSOLE"), "{}", drawn.stderr);
    let colours = colours(&std::fs::read(&shot).unwrap(), directory);
    for (what, colour) in [("bars and lines", [0x00, 0x72, 0xb2]), ("the highest rate", [0xd5, 0x5e, 0x00])] {
        let count = colours.chunks(3).filter(|pixel| *pixel == colour).count();
        assert!(count > 200, "{what}: {count} pixels");
    }
}

/// Returns the pixels of a PNG, decoded by python: red, green, blue.
fn colours(png: &[u8], directory: &Path) -> Vec<u8> {
    const DECODE: &str = "
import struct, sys, zlib
data, at, packed = open(sys.argv[1], 'rb').read(), 8, b''
while at < len(data):
    n, kind = struct.unpack('>I4s', data[at:at + 8])
    body = data[at + 8:at + 8 + n]
    if kind == b'IHDR': width, height, depth, colour = struct.unpack('>IIBB', body[:10])
    if kind == b'IDAT': packed += body
    at += 12 + n
assert depth == 8 and colour in (2, 6)
size = 3 if colour == 2 else 4
raw, row, out = zlib.decompress(packed), bytearray(width * size), bytearray()
for y in range(height):
    at = y * (width * size + 1)
    kind, line = raw[at], bytearray(raw[at + 1:at + 1 + width * size])
    for i in range(len(line)):
        a = line[i - size] if i >= size else 0
        b = row[i]
        c = row[i - size] if i >= size else 0
        if kind == 1: line[i] = (line[i] + a) & 255
        elif kind == 2: line[i] = (line[i] + b) & 255
        elif kind == 3: line[i] = (line[i] + (a + b) // 2) & 255
        elif kind == 4:
            p = a + b - c
            pa, pb, pc = abs(p - a), abs(p - b), abs(p - c)
            line[i] = (line[i] + (a if pa <= pb and pa <= pc else b if pb <= pc else c)) & 255
    row = line
    for i in range(0, len(line), size): out += line[i:i + 3]
open(sys.argv[2], 'wb').write(out)
";
    let (png_at, raw) = (directory.join("in.png"), directory.join("pixels"));
    std::fs::write(&png_at, png).unwrap();
    let argv = ["python3", "-c", DECODE, png_at.to_str().unwrap(), raw.to_str().unwrap()];
    run_host_with_timeout(&argv, patience(PATIENCE)).unwrap().ok().unwrap();
    std::fs::read(raw).unwrap()
}

#[test]
fn an_interrupted_run_goes_on() {
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    let text = KNOWN.replace("sizes = [64]", "sizes = [64, 128, 256, 512, 768, 1024, 1280, 1518]").replace(
        "tests = [\"throughput\", \"latency\", \"loss\", \"back-to-back\", \"recovery\", \"reset\"]",
        "tests = [\"latency\"]",
    );
    let config = write(directory.path(), &text);
    let state = directory.path().join("plan.toml.state.json");
    let mut first = Process::start(&[BYWASH, "rfc2544", "--config", &config]).unwrap();
    wait_until("a first result", PATIENCE, || state.exists()).unwrap();
    first.signal(Signal::INT).unwrap();
    // Without a report, the run has not succeeded.
    assert_eq!(first.wait(patience(PATIENCE)).unwrap().code(), Some(1), "{}", first.output());
    assert!(first.output().contains("bywash: interrupted: run the same command again"), "{}", first.output());
    assert!(first.output().contains("  latency       at 50 %: "), "{}", first.output());
    let kept: Value = serde_json::from_slice(&std::fs::read(&state).unwrap()).unwrap();
    let kept = &kept["report"]["sizes"];
    assert!((1..8).contains(&kept.as_array().unwrap().len()), "{kept}");
    let other = write(directory.path(), &text.replace("seconds = 0.6", "seconds = 0.5"));
    let (status, output) = run(&[&other]);
    assert!(status == Some(1) && output.contains("is of a run with another configuration"), "{output}");
    write(directory.path(), &text);
    let (status, output) = run(&[&config, "--json"]);
    assert_eq!(status, Some(0), "{output}");
    let sizes = &json(&output)["sizes"];
    assert_eq!((sizes.as_array().unwrap().len(), &sizes[0]["latency"]), (8, &kept[0]["latency"]), "{sizes}");
}

/// Pairs of a tester's interfaces, `t0` and `t1` and so on, connected to a router that forwards between the two of each
/// pair.
struct Links {
    tester: Namespace,
    router: Namespace,
    pairs: usize,
}

impl Links {
    fn new(pairs: usize) -> Self {
        let links = Self { tester: Namespace::new("bt").unwrap(), router: Namespace::new("br").unwrap(), pairs };
        // In one batch, since `Veth` waits a second for the IPv6 address of each interface.
        let (mut tester, mut router) = (String::new(), String::new());
        for n in 0..2 * pairs {
            let there = links.router.name();
            writeln!(tester, "link add t{n} type veth peer name r{n} netns {there}").unwrap();
            writeln!(tester, "addr add 10.0.{n}.2/24 dev t{n}\nlink set t{n} up").unwrap();
            writeln!(router, "addr add 10.0.{n}.1/24 dev r{n}\nlink set r{n} up").unwrap();
            writeln!(router, "route add 198.18.{n}.0/24 via 10.0.{n}.2").unwrap();
        }
        links.tester.ip_batch(&tester).unwrap();
        links.router.ip_batch(&router).unwrap();
        links.router.sysctl("net/ipv4/ip_forward", "1").unwrap();
        links
    }

    /// Returns a plan with rates low enough for a busy machine.
    fn plan(&self) -> String {
        let mut text = format!(
            "max_rate = \"2kpps\"\nline_rate = \"10gbps\"\nreset = \"ip -n {0} link set r1 down && ip -n {0} link set r1 up && \
             ip -n {0} route replace 198.18.1.0/24 via 10.0.1.2\"\n\
             [plan]\nsizes = [64]\nseconds = 0.1\ndrain = 0.1\nresolution = 10\naccepted_loss = 20\n\
             tests = [\"throughput\", \"latency\", \"loss\", \"back-to-back\", \"recovery\", \"reset\"]\n\
             latency_loads = [50]\nlatency_trials = 1\nburst_trials = 1\nburst_seconds = 0.02\n",
            self.router.name()
        );
        for (from, to) in (0..self.pairs).map(|pair| (2 * pair, 2 * pair + 1)) {
            writeln!(
                text,
                "[[pair]]\nfrom = \"t{from}\"\nto = \"t{to}\"\nbidirectional = {}\ngateway = \"10.0.{from}.1\"\n\
                 reverse_gateway = \"10.0.{to}.1\"\nsrc = \"198.18.{from}.1\"\ndst = \"198.18.{to}.1\"",
                from == 0
            )
            .unwrap();
        }
        text
    }

    fn start(&self, arguments: &[&str]) -> Process {
        self.tester.spawn(&[&[BYWASH, "rfc2544", "--config"], arguments].concat()).unwrap()
    }
}

#[test]
fn six_pairs_through_the_kernel_and_through_bywash() {
    require!(require_lab());
    let _alone = alone();
    for (pairs, own) in [(6, false), (1, true)] {
        let links = Links::new(pairs);
        let directory = tempfile::tempdir().unwrap();
        let (config, socket) = (write(directory.path(), &links.plan()), directory.path().join("socket"));
        let bywash = own.then(|| {
            let mut argv = vec![BYWASH.to_owned(), "run".into(), "--socket".into(), socket.to_str().unwrap().into()];
            argv.extend((0..2 * pairs).map(|n| format!("r{n}")));
            let mut bywash = links.router.spawn(&argv).unwrap();
            bywash.wait_for_output("forwarding;", patience(PATIENCE)).unwrap();
            bywash
        });
        // Interrupt the run after its first result, to resume it below.
        let kept = own.then_some(()).and_then(|()| {
            let state = directory.path().join("plan.toml.state.json");
            let mut first = links.start(&[&config]);
            wait_until("a result", PATIENCE, || state.exists()).unwrap_or_else(|e| panic!("{e}: {}", first.output()));
            first.signal(Signal::INT).unwrap();
            assert!(first.wait(patience(PATIENCE)).unwrap().code().is_some(), "{}", first.output());
            // The file is gone if the run ended before the signal came.
            let kept: Value = serde_json::from_slice(&std::fs::read(&state).ok()?).unwrap();
            Some(kept["report"]["sizes"][0]["throughput"].clone())
        });
        let mut last = links.start(&[&config, "--json"]);
        let status = last.wait(patience(PATIENCE)).unwrap();
        let output = last.output();
        assert!(status.success(), "{output}");
        let size = &json(&output)["sizes"][0];
        assert!(kept.is_none_or(|kept| size["throughput"] == kept), "{size}");
        assert!(size["throughput"]["pps"].as_f64().is_some_and(|pps| pps > 0.0), "{size}");
        assert!(size["latency"][0]["latency"]["min_us"].as_f64().is_some_and(|us| us > 0.0), "{size}");
        assert!(!size["loss"].as_array().unwrap().is_empty(), "{size}");
        assert!(size["back_to_back"]["frames"].is_f64(), "{size}");
        assert!(size["recovery"]["seconds"].is_f64() && size["reset"]["seconds"].is_f64(), "{size}");
        if let Some(mut bywash) = bywash {
            assert!(bywash.terminate(patience(PATIENCE)).unwrap().success(), "{}", bywash.output());
        }
    }
}

#[test]
fn what_the_router_refuses_is_its_loss() {
    require!(require_lab());
    let _alone = alone();
    let links = Links::new(1);
    // A veth refuses frames that the other end cannot receive: here all, as they are longer than its MTU allows.
    links.router.ip(&["link", "set", "r0", "mtu", "100"]).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let plan = links.plan().replace("sizes = [64]", "sizes = [512]").replace("bidirectional = true", "");
    let config = write(directory.path(), &plan.replace("[\"throughput\", ", "[\"throughput\"] # "));
    let mut ran = links.start(&[&config, "--json"]);
    assert!(ran.wait(patience(PATIENCE)).unwrap().success(), "{}", ran.output());
    let throughput = &json(&ran.output())["sizes"][0]["throughput"];
    assert_eq!(throughput["pps"], 0.0, "{throughput}");
    let trials = throughput["trials"].as_array().unwrap();
    assert!(trials.iter().all(|trial| trial[1] == 100.0), "{throughput}");
}

#[test]
fn sizes_that_no_port_carries_are_refused_before_the_first_trial() {
    let directory = tempfile::tempdir().unwrap();
    let text = KNOWN.replace("sizes = [64]", "sizes = [64, 9000]").replace("\", \"reset\"]", "\"]");
    let (status, output) = run(&[&write(directory.path(), &text)]);
    assert!(status == Some(1) && output.contains("bytes at most (FCS included), but 9000 are requested"), "{output}");
    assert!(!directory.path().join("plan.toml.state.json").exists() && !output.contains("64 B"), "{output}");
}

#[test]
fn what_is_complete_is_printed_with_an_error() {
    require!(require_lab());
    let _alone = alone();
    let links = Links::new(1);
    let directory = tempfile::tempdir().unwrap();
    let mut plan = links.plan().replace("\"latency\", \"loss\", \"back-to-back\", \"recovery\", ", "");
    let (from, to) = (plan.find("reset = ").unwrap(), plan.find("[plan]").unwrap());
    plan.replace_range(from..to, "reset = \"false\"\n");
    let mut ran = links.start(&[&write(directory.path(), &plan), "--json"]);
    assert_eq!(ran.wait(patience(PATIENCE)).unwrap().code(), Some(1), "{}", ran.output());
    assert!(ran.output().contains("the reset command failed"), "{}", ran.output());
    let size = &json(&ran.output())["sizes"][0];
    assert!(size["throughput"]["pps"].as_f64().is_some_and(|pps| pps > 0.0) && size["reset"].is_null(), "{size}");
}

#[test]
fn what_is_wrong_with_a_file_is_said() {
    let directory = tempfile::tempdir().unwrap();
    let pair = "[[pair]]\nfrom = \"a\"\nto = \"b\"\n";
    let wrong = [
        ("", "expected at least one [[pair]] of ports, or a [device]"),
        ("nonsense = 1", "unknown field `nonsense`"),
        ("[device]\n[plan]\nsizes = [63]", "plan.sizes: expected frame sizes from 64 to 9216 bytes"),
        ("[device]\n[plan]\nseconds = 0", "plan.seconds = 0: expected 0.01 to 86400"),
        ("[device]\n[plan]\ntests = [\"reset\"]", "needs a command that resets the device"),
        ("[device]\n[plan]\ntests = [\"speed\"]", "unknown variant `speed`"),
        (
            "[device]\n[plan]\ntests = [\"recovery\", \"throughput\"]",
            "plan.tests: `recovery` evaluates the throughput: list \"throughput\" before it",
        ),
        ("[device]\n[plan]\ntests = [\"latency\", \"back-to-back\"]", "`back-to-back` evaluates the throughput"),
        ("[device]\n", "the link's rate is not known"),
        ("max_rate = \"max\"\n[device]\n", "expected a rate at which the search can start"),
        ("[[pair]]\nfrom = \"a\"\nto = \"a\"\n", "interface `a` is listed twice"),
        (&pair.repeat(7), "7 pairs: expected at most 6"),
    ];
    for (text, said) in wrong {
        let (status, output) = run(&[&write(directory.path(), text)]);
        assert!(status == Some(2) && output.contains(said), "{text}: {status:?} {output}");
    }
    let (_, output) = run(&[&write(directory.path(), "title = \"a\"\nnonsense = 1\n")]);
    let place = output.contains(":2:1\n") && output.contains("\n2 | nonsense = 1\n  | ^^^^^^^^");
    assert!(place, "the line is shown: {output}");
    let (status, output) = run(&["/nowhere.toml"]);
    assert!(status == Some(2) && output.contains("cannot read `/nowhere.toml`"), "{output}");
}
