//! `bywash top`: one sample as text and as JSON, and a terminal that is small, closes, or is missing.

use crate::harness::{Bywash, PATIENCE, bywash, program};
use bywash_lab::{Topology, has_tool, require, require_lab};
use serde_json::Value;

#[test]
fn a_sample_shows_current_rates() {
    require!(require_lab());
    let lab = Topology::router().unwrap();
    let router = Bywash::run(lab.r(), &lab.router_interfaces());
    let socket = router.socket();
    let top =
        |arguments: &[&str]| bywash(lab.r(), &[&["top", "--socket", socket.to_str().unwrap()], arguments].concat());
    let (to, nowhere) = (lab.b().v4.to_string(), "10.99.0.1");
    let mut pings =
        [to.as_str(), nowhere].map(|to| lab.a().ns.spawn(&["ping", "-q", "-i", "0.01", "-c", "9000", to]).unwrap());
    router.wait("packets", |b| b.drops("r0", "no-route") > 0 && b.counter("r1", "tx_packets") > 0);
    let out = top(&["--json", "--interval", "2"]);
    let it: Value =
        serde_json::from_str(&out.stdout).unwrap_or_else(|why| panic!("{why}: {}{}", out.stdout, out.stderr));
    let above = |value: &Value| value.as_f64().unwrap() > 0.0;
    assert!(above(&it["total"]["rx_pps"]) && above(&it["total"]["drops_pps"]), "{it}");
    assert!(above(&it["ports"][0]["rx_pps"]) && above(&it["ports"][1]["tx_bps"]), "{it}");
    let worker = &it["workers"][0];
    assert!(
        above(&worker["busy_percent"]) && above(&worker["burst_mean"]) && above(&worker["cycles_per_packet"]),
        "{it}"
    );
    let stages: Vec<_> = worker["stages"].as_array().unwrap().iter().map(|stage| &stage["name"]).collect();
    assert!(["rx", "input", "lookup", "forward"].iter().all(|name| stages.iter().any(|stage| *stage == name)), "{it}");
    assert_eq!(it["drops"][0]["reason"], "no-route");

    let out = top(&["--once", "--interval", "2"]);
    let interval = out.stdout.strip_prefix("router, ").and_then(|rest| rest.split_once(" s\n")?.0.parse::<f64>().ok());
    // The interval is as long as asked for, or longer on a busy machine.
    assert!(out.status.success() && interval >= Some(2.0), "{}{}", out.stdout, out.stderr);
    for text in ["\nrx ", "\nr0 ", "\nworker ", "\nworker0 ", "no-route"] {
        assert!(out.stdout.contains(text), "no {text} in {}", out.stdout);
    }
    assert!(out.stdout.lines().all(|line| line.chars().count() <= 80), "{}", out.stdout);
    for ping in &mut pings {
        ping.kill().unwrap();
    }
    // The output of --json can be shown again.
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("top.json");
    std::fs::write(&file, it.to_string()).unwrap();
    let again = bywash(lab.r(), &["top", "--from", file.to_str().unwrap()]);
    assert!(again.stdout.contains("no-route") && again.stdout.contains("\nr1 "), "{}{}", again.stdout, again.stderr);

    // Errors: no terminal, no instance. Output into a closed pipe is not a panic.
    let out = top(&[]);
    assert!(
        !out.status.success() && out.stderr.contains("no terminal") && out.stderr.contains("--once"),
        "{}",
        out.stderr
    );
    let out = bywash(lab.r(), &["top", "--once", "--socket", "/nowhere/socket"]);
    assert!(out.stderr.contains("no bywash runs here"), "{}", out.stderr);
    let script = format!("{} top --once --interval 0.1 --socket {} | true", program(), socket.display());
    let out =
        lab.r().try_run(&["bash", "-c", &format!("set -o pipefail; {script}; echo status $?")], PATIENCE).unwrap();
    assert!(!out.stderr.contains("panicked") && !out.stderr.contains("bug"), "{}", out.stderr);
    router.stop();
}

/// Runs a program on a pseudo-terminal. The arguments are TERM, steps separated by commas, the instance's process id,
/// and the command line. Steps set the size, wait for a word or the end, close the terminal, send SIGHUP, stop or
/// continue the instance, or are typed. Prints the program's exit status, `restored` if the program left the alternate
/// screen, and `no answer` if it showed that.
const TERMINAL: &str = r#"
import fcntl, os, pty, select, signal, struct, sys, termios, time
term, steps, instance, argv = sys.argv[1], sys.argv[2].split(","), int(sys.argv[3]), sys.argv[4:]
pid, master = pty.fork()
if pid == 0:
    os.environ["TERM"] = term
    os.execv(argv[0], argv)
shown = b""
def read(until, limit=60):
    global shown
    end = time.monotonic() + limit
    while time.monotonic() < end and not until(shown):
        if select.select([master], [], [], 0.1)[0]:
            try:
                data = os.read(master, 65536)
            except OSError:
                return
            if not data:
                return
            shown += data
for step in steps:
    if step.startswith("size="):
        rows, columns = map(int, step[5:].split("x"))
        fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        read(lambda seen: False, 0.3)
    elif step.startswith("see="):
        at = len(shown)
        word = step[4:].encode()
        read(lambda seen: word in seen)
        assert word in shown, (step, shown[-4000:])
    elif step == "close":
        os.close(master)
        break
    elif step == "ends":
        read(lambda seen: False)
    elif step == "hangup":
        os.kill(pid, signal.SIGHUP)
    elif step in ("stop", "continue"):
        os.kill(instance, {"stop": signal.SIGSTOP, "continue": signal.SIGCONT}[step])
        read(lambda seen: False, 0.3)
    else:
        os.write(master, step.encode())
        read(lambda seen: False, 0.3)
if steps[-1] != "close":
    read(lambda seen: False, 60)
end = time.monotonic() + 60
while time.monotonic() < end:
    done, status = os.waitpid(pid, os.WNOHANG)
    if done:
        code = os.waitstatus_to_exitcode(status)
        put_right = b"\x1b[?1049l" in shown
        print("status", code, "restored" if put_right else "", "no answer" if b"no answer" in shown else "", flush=True)
        sys.exit(0)
    time.sleep(0.05)
os.kill(pid, 9)
print("it does not end", shown[-2000:])
"#;

#[test]
fn no_terminal_is_too_small_for_it() {
    require!(require_lab());
    require!(has_tool("python3"));
    let lab = Topology::router().unwrap();
    let router = Bywash::run(lab.r(), &lab.router_interfaces());
    let (socket, program, instance) = (router.socket(), program(), router.process.pid().to_string());
    let terminal = |term: &str, steps: &str| {
        let socket = socket.to_str().unwrap();
        let argv =
            ["python3", "-c", TERMINAL, term, steps, &instance, &program, "top", "-i", "0.1", "--socket", socket];
        let out = lab.r().try_run(&argv, 6 * PATIENCE).unwrap();
        out.stdout + &out.stderr
    };
    let said = terminal(
        "xterm",
        "size=24x80,see=busy,see=worker0,see=r0,d,w,see=idle,size=1x1,size=0x0,size=2x500,size=24x80,q",
    );
    assert!(said.contains("status 0 restored"), "{said}");
    // A change of the size, and a key, while it waits for the instance, which it does not do in vain.
    let said = terminal("xterm", "size=24x80,see=r1,stop,size=24x100,q,ends,continue");
    assert!(said.contains("status 0 restored") && !said.contains("no answer"), "{said}");
    assert!(terminal("xterm", "size=24x80,see=r1,hangup").contains("status 0 restored"));
    // Ctrl-C is typed; then the terminal is closed.
    assert!(terminal("xterm", "size=24x80,see=r1,\u{3}").contains("status 0 restored"));
    let gone = terminal("xterm", "size=24x80,see=r1,close");
    assert!(gone.contains("status ") && !gone.contains("does not end"), "{gone}");
    for term in ["", "dumb"] {
        let said = terminal(term, "size=24x80");
        assert!(said.contains("status 2"), "{said}");
    }
    router.stop();
}
