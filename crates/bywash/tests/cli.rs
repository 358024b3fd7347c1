//! Tests of the command line: golden/*.txt contain commands and their expected output.
//!
//! `BYWASH_BLESS=1 cargo test -p bywash --test cli` replaces the expected output by the present one.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const BYWASH: &str = env!("CARGO_BIN_EXE_bywash");

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

fn bywash(args: &[&str]) -> Command {
    let mut command = Command::new(BYWASH);
    command.args(args).current_dir(golden()).stdin(Stdio::null());
    for variable in ["BYWASH_SOCKET", "BYWASH_LOG", "JOURNAL_STREAM", "RUST_BACKTRACE"] {
        command.env_remove(variable);
    }
    command.env("COLUMNS", "100");
    command
}

/// Runs a command that must succeed without writing to standard error. Returns its standard output.
fn output(args: &[&str]) -> String {
    let out = bywash(args).output().unwrap();
    let stderr = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success() && stderr.is_empty(), "{args:?}: {}\n{stderr}", out.status);
    String::from_utf8(out.stdout).unwrap()
}

/// Returns a transcript of the commands in a golden file: `$ bywash ..`, `? status`, standard output, standard error.
fn transcript(commands: &str) -> String {
    let mut text = String::new();
    for line in commands.lines().filter(|line| line.starts_with("$ bywash")) {
        let args: Vec<&str> = line.split_whitespace().skip(2).collect();
        let out = bywash(&args).output().unwrap();
        let status = out.status.code().map_or("killed".into(), |code| code.to_string());
        text += &format!("{line}\n? {status}\n");
        text += &String::from_utf8_lossy(&out.stdout);
        text += &String::from_utf8_lossy(&out.stderr);
        text += "\n";
    }
    text
}

fn check(name: &str) {
    let path = golden().join(name);
    let expected = std::fs::read_to_string(&path).unwrap();
    let printed = transcript(&expected);
    if std::env::var_os("BYWASH_BLESS").is_some() {
        std::fs::write(&path, printed).unwrap();
        return;
    }
    for (line, (expected, printed)) in expected.lines().zip(printed.lines()).enumerate() {
        assert_eq!(printed, expected, "{}:{}, in:\n{printed}", path.display(), line + 1);
    }
    assert_eq!(printed.len(), expected.len(), "{}: longer or shorter than expected:\n{printed}", path.display());
}

#[test]
fn help() {
    check("help.txt");
}

#[test]
fn usage_errors() {
    check("usage.txt");
}

#[test]
fn configuration_errors() {
    check("config.txt");
}

#[test]
fn live_views() {
    check("top.txt");
}

/// Editors use this schema to complete and check the keys of a configuration.
#[test]
fn the_configuration_has_a_schema() {
    let schema: serde_json::Value = serde_json::from_str(&output(&["config", "schema"])).unwrap();
    assert_eq!(schema["properties"]["mode"]["enum"], serde_json::json!(["router", "switch", "cmts"]));
    let workers = &schema["properties"]["workers"]["properties"]["count"]["anyOf"];
    assert_eq!(workers[1], serde_json::json!({ "type": "integer", "minimum": 1, "maximum": 256 }));
    assert!(schema["properties"]["port"]["items"]["properties"]["ring"]["anyOf"][1]["properties"]["rx"].is_object());
}

#[test]
fn recorded_profiles() {
    check("profile.txt");
}

/// The counts of the files `example-*` are made up, to give the percentages and CPIs of the published analysis of
/// OVS-DPDK: they check the formulas, and were not measured.
#[test]
fn examples_have_the_document_s_figures() {
    let profile = |file: &str| -> serde_json::Value {
        serde_json::from_str(&output(&["profile", "--json", "--from", &format!("profile/{file}")])).unwrap()
    };
    let whole = profile("example-before.csv");
    let slots = &whole["workers"][0]["stages"][0]["counters"]["slots"];
    for (part, share) in
        [("retiring", 0.35), ("front_end_bound", 0.10), ("bad_speculation", 0.04), ("back_end_bound", 0.51)]
    {
        assert!((slots[part].as_f64().unwrap() - share).abs() < 1e-9, "{part}: {slots}");
    }
    let send = "netdev_dpdk_eth_send";
    let of = |report: &serde_json::Value| {
        let stages = report["workers"][0]["stages"].as_array().unwrap();
        stages.iter().find(|stage| stage["stage"] == send).unwrap().clone()
    };
    let before = profile("example-before.json");
    let stage = of(&before);
    assert!((stage["percent"].as_f64().unwrap() - 17.0).abs() < 1e-9, "{stage}");
    assert!((stage["counters"]["cpi"].as_f64().unwrap() - 4.921).abs() < 5e-4, "{stage}");
    assert!(stage["counters"]["slots"]["retiring"].as_f64().unwrap() < 0.06, "{stage}");
    assert_eq!(before["hot"]["stage"], send, "{before:#}");
    let after = profile("example-after.json");
    assert_eq!(after["hot"]["stage"], "emc_lookup", "{after:#}");
    let after = of(&after);
    assert!((after["counters"]["cpi"].as_f64().unwrap() - 1.108).abs() < 5e-4, "{after}");
    let page = tempfile::tempdir().unwrap();
    let page = page.path().join("profile.html");
    output(&["profile", "--from", "profile/example-before.json", "--html", page.to_str().unwrap()]);
    let html = std::fs::read_to_string(page).unwrap();
    assert!(html.contains("class=\"hot\"") && html.contains(send) && html.contains("CPI 4.921"), "{html}");
    assert!(!html.contains("http") && !html.contains("<script"), "the page loads a resource");
}

#[test]
fn completions_know_the_commands() {
    for (shell, mark) in [("bash", "complete "), ("zsh", "#compdef bywash"), ("fish", "complete -c bywash")] {
        let script = output(&["completion", shell]);
        assert!(script.contains(mark) && script.contains("restore") && script.contains("zero-copy"), "{shell}");
    }
}

#[test]
fn bash_takes_the_completions() {
    let script = output(&["completion", "bash"]);
    let mut bash = Command::new("bash").args(["-n"]).stdin(Stdio::piped()).spawn().unwrap();
    bash.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
    assert!(bash.wait().unwrap().success());
}

#[test]
fn manual_pages_are_clean() {
    let directory = tempfile::tempdir().unwrap();
    let listed = output(&["man", "--out", directory.path().to_str().unwrap()]);
    let pages: Vec<&str> = listed.lines().collect();
    for name in ["bywash", "bywash-run", "bywash-show", "bywash-config-check", "bywash-bench-forward"] {
        let page = directory.path().join(format!("{name}.1"));
        assert!(pages.contains(&page.to_str().unwrap()), "no {name} in {listed}");
    }
    for hidden in ["broker", "bench-step"] {
        assert!(!pages.iter().any(|page| page.ends_with(&format!("/bywash-{hidden}.1"))), "{hidden} in {listed}");
    }
    assert_eq!(output(&["man"]), std::fs::read_to_string(directory.path().join("bywash.1")).unwrap());
    let man = Command::new("man").arg("--version").output();
    if !man.is_ok_and(|out| out.status.success()) {
        println!("SKIP: no man(1) to check the pages with");
        return;
    }
    for page in pages {
        let out = Command::new("man").args(["--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z", page]).output().unwrap();
        let stderr = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success() && stderr.is_empty(), "{page}: {stderr}");
    }
}

/// A reader that closes the pipe early ends the program without an error message.
#[test]
fn broken_pipe_is_quiet() {
    let shell = format!("{BYWASH} config reference | head -n 1; exit ${{PIPESTATUS[0]}}");
    for _ in 0..10 {
        let out = Command::new("bash").args(["-c", &shell]).output().unwrap();
        assert_eq!((out.status.code(), String::from_utf8_lossy(&out.stderr).as_ref()), (Some(0), ""));
    }
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let out = bywash(&["config", "reference"]).stdout(writer).output().unwrap();
    assert_eq!((out.status.code(), String::from_utf8_lossy(&out.stderr).as_ref()), (Some(0), ""));
}

#[test]
fn privileges_are_asked_for_by_name() {
    let nobody = Command::new("setpriv")
        .args(["--reuid=65534", "--clear-groups", "--bounding-set=-all", "--inh-caps=-all", "--", "/bin/true"])
        .status();
    if !nobody.is_ok_and(|status| status.success()) {
        println!("SKIP: not root, or no setpriv");
        return;
    }
    // A directory that the user nobody can read.
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("bywash");
    std::fs::copy(BYWASH, &program).unwrap();
    let config = directory.path().join("good.toml");
    std::fs::copy(golden().join("good.toml"), &config).unwrap();
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(directory.path(), open).unwrap();
    let out = Command::new("setpriv")
        .args(["--reuid=65534", "--clear-groups", "--bounding-set=-all", "--inh-caps=-all", "--"])
        .arg(&program)
        .args(["run", "--config"])
        .arg(&config)
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(1), "{stderr}");
    for part in ["CAP_NET_ADMIN", "CAP_NET_RAW", "CAP_BPF", "CAP_IPC_LOCK", "try `sudo bywash run --config "] {
        assert!(stderr.contains(part), "no {part} in {stderr}");
    }
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
}

/// Modelled figures are marked as such, with the reason why they were not measured.
#[test]
fn benchmarks_of_buffers_say_where_figures_come_from() {
    let bench = |args: &[&str]| -> serde_json::Value { serde_json::from_str(&output(args)).unwrap() };
    let tabm =
        ["bench", "tabm", "--kinds", "sdb,tabm,typewriter", "--threads", "1", "--sizes", "64", "--frames", "8192"];
    let tabm = bench(&[&tabm[..], &["--block", "256", "--rounds", "1", "--milliseconds", "200", "--json"]].concat());
    let sources = tabm["hardware"].as_array().unwrap();
    assert_eq!(sources.len(), 3, "{tabm:#}");
    assert!(sources.iter().all(|s| s["missing"].is_null() || s["missing"].as_str().unwrap().len() > 10));
    let kinds: Vec<&str> = tabm["rows"].as_array().unwrap().iter().map(|row| row["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["sdb", "tabm", "typewriter", "sdb", "tabm", "typewriter"]);
    let orders = tabm["rows"].as_array().unwrap().iter().map(|row| row["order"].as_str().unwrap());
    assert_eq!(orders.collect::<Vec<_>>(), ["fifo", "fifo", "fifo", "lifo", "lifo", "lifo"]);
    let measured = tabm["hardware"][0]["missing"].is_null();
    let pool = bench(&["bench", "pool", "--kinds", "stack", "--frames", "8192", "--json"]);
    let kind = pool["auto"]["kind"].as_str().unwrap();
    assert!(["stack", "tabm", "ring"].contains(&kind) && pool["auto"]["fastest"].is_null(), "{pool:#}");
    for line in [&pool["line"], &tabm["rows"][0]["line"]] {
        assert!(line.as_array().is_some_and(|rounds| rounds.len() == 1), "{line:#}");
    }
    for row in tabm["rows"].as_array().unwrap() {
        assert!(row["mpps"].as_f64().unwrap() > 0.0, "{row:#}");
        let source = row["dtlb_source"].as_str().unwrap();
        assert!(source == "modelled" || measured && source == "measured", "{row:#}");
        assert!(source == "measured" || row["llc_misses_per_packet"].is_null(), "{row:#}");
        // The device takes and sends no more than the line carries; it catches up 10 ms.
        let [offered, received, carried] =
            ["offered_mpps", "received_mpps", "mpps"].map(|rate| row[rate].as_f64().unwrap());
        assert!((offered - 10_000.0 / 672.0).abs() < 0.01, "64 bytes take 84 on the wire: {row:#}");
        assert!(received < 1.1 * offered && carried < 1.1 * offered, "{row:#}");
        let chained = if row["kind"] == "typewriter" { 0.0 } else { 1.0 };
        assert!((row["chained"].as_f64().unwrap() - chained).abs() < 0.01 && row["crowded"] == false, "{row:#}");
        // A thread gets all cells of a block, also of one that is another thread's.
        let consecutive = if row["kind"] == "typewriter" { 0.0..0.5 } else { 0.99..1.01 };
        assert!(consecutive.contains(&row["consecutive"].as_f64().unwrap()), "{row:#}");
    }
    let slow = ["--kinds", "tabm", "--order", "fifo", "--rate", "0.01", "--dispatch", "round-robin,by-port"];
    let small = ["--threads", "2", "--sizes", "1500", "--frames", "8192", "--rounds", "1", "--milliseconds", "300"];
    let text = output(&[&["bench", "tabm"][..], &slow, &small].concat());
    let full = std::fs::File::create("/dev/full").unwrap();
    let unprinted = bywash(&[&["bench", "tabm"][..], &slow, &small].concat()).stdout(full).output().unwrap();
    let why = String::from_utf8(unprinted.stderr).unwrap();
    assert!(unprinted.status.code() == Some(1) && why.contains("cannot write to standard output: No space"), "{why}");
    assert!(text.contains("0.01 Gbit/s offered") && text.contains("carried"), "{text}");
    let rows: Vec<Vec<&str>> =
        text.lines().filter(|line| line.starts_with("      2")).map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows.iter().map(|row| row[3]).collect::<Vec<_>>(), ["round-robin", "by-port"], "{text}");
    // At most 822 packets of 1,520 bytes on the wire a second.
    assert!(rows.iter().all(|row| row[5] == "0.00" && ["0.00", "0.01"].contains(&row[7])), "{text}");
    let refused = bywash(&["bench", "tabm", "--kinds", "tabm,stack"]).output().unwrap();
    let stderr = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && stderr.contains("kind stack have no blocks"), "{stderr}");
}

/// The model of memory traffic runs on a trace, and marks its figures as modelled.
#[test]
fn memory_traffic_is_modelled_from_a_trace() {
    // Each kind takes half a minute under valgrind in a program that is not optimized.
    let small = ["--instances", "1", "--frames", "256", "--in-flight", "64", "--rx-ring", "64", "--tx-ring", "64"];
    let args = [&["bench", "memory", "--json", "--kinds", "stack"][..], &small].concat();
    let refused = bywash(&args).env("PATH", "").output().unwrap();
    let stderr = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && stderr.contains("install the package valgrind"), "{stderr}");
    if Command::new("valgrind").arg("--version").output().is_err() {
        println!("SKIP: no valgrind");
        return;
    }
    let memory: serde_json::Value = serde_json::from_str(&output(&args)).unwrap();
    let rows = memory["rows"].as_array().unwrap();
    assert!(rows.len() == 1 && rows[0]["source"] == "modelled", "{memory:#}");
    assert_eq!(memory["hardware"].as_array().unwrap().len(), 3);
}

/// The minimal loop forwards every packet of the router's source, and does not route. Behind a closed gate, established
/// connections are forwarded.
#[test]
fn a_minimal_loop_runs_on_the_router_s_source() {
    let bench = |app: &str| -> serde_json::Value {
        let args = ["bench", "forward", "--frames", "1024", "--seconds", "1", "--json", "--app", app];
        serde_json::from_str(&output(&args)).unwrap()
    };
    let (swap, route, nat) = (bench("swap"), bench("route"), bench("nat"));
    for (figures, app) in [(&swap, "swap"), (&route, "route"), (&nat, "nat")] {
        assert_eq!(figures["app"], app, "{figures:#}");
        assert!(figures["mpps"].as_f64().unwrap() > 0.0 && figures["drops"] == 0, "{figures:#}");
    }
    let stages = |figures: &serde_json::Value| -> Vec<String> {
        figures["stages"].as_array().unwrap().iter().map(|stage| stage["stage"].as_str().unwrap().into()).collect()
    };
    assert_eq!(stages(&swap), ["rx", "tx"]);
    assert!(stages(&route).len() > 2, "{route:#}");
    assert_eq!(swap["flows"], route["flows"]);
}

/// Every packet leaves through a tunnel, or comes out of one.
#[test]
fn packets_in_tunnels_are_forwarded_in_memory() {
    for app in ["vxlan", "vxlan6", "from-vxlan", "gre", "from-gre"] {
        let args = ["bench", "forward", "--frames", "1024", "--seconds", "1", "--json", "--app", app];
        let figures: serde_json::Value = serde_json::from_str(&output(&args)).unwrap();
        assert_eq!(figures["app"], app, "{figures:#}");
        assert!(figures["mpps"].as_f64().unwrap() > 0.0 && figures["drops"] == 0, "{figures:#}");
    }
}

/// Several workers, each with traffic and a pool of its own, are measured in turn; they share a CPU where there are too
/// few.
#[test]
fn workers_are_counted() {
    let of = |what: &[&str]| -> serde_json::Value {
        let scaling = ["--workers", "1,3", "--rounds", "2", "--frames", "1024", "--seconds", "1", "--json"];
        serde_json::from_str(&output(&[&["bench"], what, &scaling].concat())).unwrap()
    };
    for what in [&["forward", "--app", "nat", "--flows", "64"][..], &["switch", "--flows", "64"]] {
        let figures = of(what);
        let rows = figures["scaling"]["rows"].as_array().unwrap();
        assert_eq!(rows.iter().map(|row| row["workers"].as_u64().unwrap()).collect::<Vec<_>>(), [1, 3], "{figures:#}");
        for row in rows {
            assert_eq!(row["rounds_mpps"].as_array().unwrap().len(), 2, "{figures:#}");
            assert!(row["mpps"].as_f64().unwrap() > 0.0, "{figures:#}");
        }
        assert_eq!(figures["drops"], 0, "{figures:#}");
    }
}

/// Without transmit queues, each flow of a burst costs a call to the port; with them, all flows share one.
#[test]
fn transmit_queues_save_calls() {
    let bench = |more: &[&str]| -> serde_json::Value {
        let args =
            [&["bench", "txq", "--port", "null", "--rounds", "1", "--milliseconds", "100", "--json"], more].concat();
        serde_json::from_str(&output(&args)).unwrap()
    };
    // A busy machine may leave one side with too few packets for its share of whole bursts, but hardly each time.
    let mut all = vec![];
    let are_cut = (0..10).any(|_| {
        let compared = bench(&["--flows", "1,16,64"])["compared"].clone();
        let cut = |at: usize, by: &str, expected: f64| {
            assert_eq!(compared[at]["coalesce"], by);
            (compared[at]["send_calls_cut"].as_f64().unwrap() / expected - 1.0).abs() < 0.05
        };
        // The port gets a burst of 64 packets of one flow in one call, whatever the queue's limit, else 32 of the
        // flows.
        let on = [(0, 1.0), (2, 16.0), (4, 64.0)].into_iter().all(|(at, expected)| cut(at, "on", expected));
        let queue = [(1, 1.0), (3, 8.0), (5, 32.0)].into_iter().all(|(at, expected)| cut(at, "queue", expected));
        all.push(compared);
        on && queue
    });
    assert!(are_cut, "{all:#?}");
    // Packets that come one by one are gathered. Their time in the queue is not bounded from above here: on a busy
    // machine it measures the scheduler (crates/port/tests/txq.rs has the deadline). There, packets that are late come
    // together, and may fill the queue at once.
    let mut slow = serde_json::Value::Null;
    let are_gathered = (0..10).any(|_| {
        let more = ["--flows", "64", "--coalesce", "on", "--rate", "100000", "--deadline-us", "200", "--burst", "64"];
        slow = bench(&more);
        let of = |name: &str| slow["rows"][0][name].as_f64().unwrap();
        of("send_calls_per_packet") < 0.5 && of("wait_us_p50") >= 1.0
    });
    assert!(are_gathered, "{slow:#}");
}

/// An instance that ends a connection while a request is being sent is not taken for a reader of the output that has
/// gone; if it has answered before, the answer counts.
#[test]
fn a_request_that_is_refused_while_it_is_sent() {
    let directory = tempfile::tempdir().unwrap();
    let (socket, file) = (directory.path().join("socket"), directory.path().join("flows"));
    std::fs::write(&file, "priority=1,actions=drop\n".repeat(200_000)).unwrap();
    let listener = UnixListener::bind(&socket).unwrap();
    let refused = r#"{"error":"only for reading","hint":""}"#;
    let no_answer = format!("no answer from the instance at {}: Broken pipe (os error 32)", socket.display());
    // The connection is reset if it is closed before everything has been read.
    for (answers, resets, told) in [
        (true, false, "flow load: only for reading"),
        (true, true, "flow load: only for reading"),
        (false, false, no_answer.as_str()),
    ] {
        let load = ["flow", "load", file.to_str().unwrap(), "--socket", socket.to_str().unwrap()];
        let load = bywash(&load).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let accept = || {
            let (mut stream, _) = listener.accept().unwrap();
            assert!(stream.read(&mut [0; 1024]).unwrap() > 0);
            stream
        };
        let answer = |stream: &mut UnixStream, status: &str, body: &str| {
            write!(stream, "HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{body}", body.len()).unwrap();
        };
        // The ports, then the flows.
        answer(&mut accept(), "200 OK", "[]");
        let mut stream = accept();
        if answers {
            answer(&mut stream, "403 Forbidden", refused);
        }
        if !resets {
            stream.shutdown(Shutdown::Both).unwrap();
        }
        drop(stream);
        let out = load.wait_with_output().unwrap();
        let why = String::from_utf8_lossy(&out.stderr);
        assert_eq!((out.status.code(), why.as_ref()), (Some(1), format!("bywash: {told}\n").as_str()));
    }
}

/// A capture that does not begin leaves an earlier one in its file.
#[test]
fn a_capture_that_fails_keeps_the_file() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("earlier.pcapng");
    std::fs::write(&file, "packets").unwrap();
    for wrong in [&["--socket", "/nowhere/bywash.sock"][..], &["--filter", "udp prt 53"]] {
        let out = bywash(&[&["capture", "-w", file.to_str().unwrap()], wrong].concat()).output().unwrap();
        assert!(!out.status.success(), "{wrong:?}");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "packets", "{wrong:?}");
    }
}

/// Serves requests at a socket, and returns the first line of each.
fn serve(listener: &UnixListener, answers: &[(&str, String)]) -> Vec<String> {
    listener.set_nonblocking(true).unwrap();
    let until = Instant::now() + Duration::from_secs(60);
    let serve = |(status, body): &(&str, String)| {
        let mut stream = loop {
            match listener.accept() {
                Ok((stream, _)) => break stream,
                Err(why) => assert!(why.kind() == ErrorKind::WouldBlock && Instant::now() < until, "no request: {why}"),
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        stream.set_nonblocking(false).unwrap();
        let mut head = [0; 4096];
        let n = stream.read(&mut head).unwrap();
        write!(stream, "HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{body}", body.len()).unwrap();
        String::from_utf8_lossy(&head[..n]).lines().next().unwrap().to_owned()
    };
    answers.iter().map(serve).collect()
}

#[test]
fn flows_are_read_in_parts_and_an_error_leaves_no_half_of_an_answer() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("socket");
    let listener = UnixListener::bind(&socket).unwrap();
    let show = |more: &[&str]| {
        let mut command = bywash(&[&["show", "established-flows", "--json"], more].concat());
        command.args(["--socket", socket.to_str().unwrap()]).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().unwrap()
    };
    let part = |flows: usize, next: &str| {
        let way = serde_json::json!({ "src": "10.0.0.1", "src_port": 1, "dst": "10.0.0.2", "dst_port": 2, "port": "r0",
            "level": "driver", "packets": 3, "bytes": 180 });
        let flow =
            serde_json::json!({ "protocol": "tcp", "age_s": 5, "state": "valid", "original": way, "reply": way });
        let part = serde_json::json!({ "flows": vec![flow; flows], "total": 9, "next": next });
        ("200 OK", part.to_string())
    };
    for more in [&["--limit", "3"][..], &["--limit", "3", "--watch", "3600"]] {
        let mut shown = show(more);
        let asked = serve(&listener, &[part(2, "4.7"), part(1, "4.8")]);
        assert!(asked[0].contains("limit%3D3") && asked[1].contains("limit%3D1%2Cafter%3D4.7"), "{asked:?}");
        let mut line = String::new();
        BufReader::new(shown.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let all: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!((all["flows"].as_array().unwrap().len(), &all["next"]), (3, &"4.8".into()), "{all}");
        // With --watch it would go on.
        let _ = shown.kill();
        shown.wait().unwrap();
    }
    let shown = show(&[]);
    serve(&listener, &[("400 Bad Request", r#"{"error":"no","hint":""}"#.into())]);
    let out = shown.wait_with_output().unwrap();
    assert_eq!((out.status.code(), out.stdout.as_slice()), (Some(1), &b""[..]));
}

#[test]
fn wrong_filters_and_frames_are_errors_of_usage() {
    for (command, told) in [
        (&["show", "established-flows", "foo=1"][..], "FILTER `foo=1`: a router's flows are selected by "),
        (&["show", "firewall", "--limit", "5"], "`show firewall` takes no filter, --watch or --limit"),
        (&["trace", "r0", "zz"], "the frame is not hex: `z` in column 1 is not"),
    ] {
        let out = bywash(command).output().unwrap();
        let why = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.code() == Some(2) && why.contains(told), "{command:?}: {why}");
    }
}
