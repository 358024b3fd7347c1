//! `bywash web`: its HTTP interface, and its page in a browser.

use crate::harness::{Bywash, PATIENCE, bywash, program};
use bywash_lab::{Topology, has_tool, require, require_lab, wait_until};
use rustix::process::Signal;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixListener;

#[test]
fn a_browser_shows_ports_rates_and_drops() {
    require!(require_lab());
    require!(has_tool("chromium"), has_tool("curl"));
    let lab = Topology::router().unwrap();
    let bywash_ = Bywash::run(lab.r(), &lab.router_interfaces());
    let (socket, program) = (bywash_.socket(), program());
    let socket = socket.to_str().unwrap();
    let refused = bywash(lab.r(), &["web", "--socket", socket, "--listen", "0.0.0.0:8469"]);
    assert!(!refused.status.success() && refused.stderr.contains("--public"), "{}", refused.stderr);
    let public = ["web", "--socket", socket, "--listen", "0.0.0.0:8470", "--public"];
    let refused = bywash(lab.r(), &public);
    assert!(!refused.status.success() && refused.stderr.contains("--token"), "{}", refused.stderr);
    let place = tempfile::tempdir().unwrap();
    let token = place.path().join("token");
    std::fs::write(&token, "open-sesame-0123456789\n").unwrap();
    let argv = [&[program.as_str()], &public[..], &["--token", token.to_str().unwrap()]].concat();
    let mut for_all = lab.r().spawn(&argv).unwrap();
    for_all.wait_for_output("http://0.0.0.0:8470/", PATIENCE).unwrap();
    let curl = |more: &[&str]| {
        let argv = ["curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", "http://127.0.0.1:8470/v1/ports"];
        lab.r().run(&[&argv, more].concat()).unwrap().stdout
    };
    assert_eq!(curl(&[]), "401");
    assert_eq!(curl(&["-u", "bywash:open-sesame-0123456789"]), "200");
    for_all.terminate(PATIENCE).unwrap();

    let mut web = lab.r().spawn(&[&program, "web", "--socket", socket]).unwrap();
    web.wait_for_output("http://127.0.0.1:8469/", PATIENCE).unwrap();

    let get = |path: &str, host: &str| {
        let exchange = || -> std::io::Result<String> {
            let mut stream = TcpStream::connect("127.0.0.1:8469")?;
            stream.set_read_timeout(Some(PATIENCE))?;
            write!(stream, "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer).map(|_| answer)
        };
        lab.r().enter(exchange).unwrap().unwrap()
    };
    assert!(get("/v1/ports", "localhost:8469").contains("\"rx_packets\""));
    assert!(get("/v1/audit", "localhost:8469").starts_with("HTTP/1.1 404 "));
    assert!(get("/v1/ports", "elsewhere.example").starts_with("HTTP/1.1 421 "));

    // The traffic includes forwarded and dropped packets.
    let (to, nowhere) = (lab.b().v4.to_string(), "10.99.0.1");
    let mut pings =
        [to.as_str(), nowhere].map(|to| lab.a().ns.spawn(&["ping", "-q", "-i", "0.01", "-c", "9000", to]).unwrap());
    bywash_.wait("packets", |b| b.drops("r0", "no-route") > 0 && b.counter("r1", "tx_packets") > 0);
    let profile = format!("--user-data-dir={}", place.path().join("profile").display());
    let argv = [
        "chromium",
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--enable-logging=stderr",
        &profile,
        "--virtual-time-budget=6000",
        "--dump-dom",
        "http://127.0.0.1:8469/",
    ];
    let drawn = lab.r().run_with_timeout(&argv, 6 * PATIENCE).unwrap();
    for ping in &mut pings {
        ping.kill().unwrap();
    }
    assert!(!drawn.stderr.contains("CONSOLE"), "{}", drawn.stderr);
    let dom = &drawn.stdout;
    for text in ["<td>r0</td><td>up</td>", ">worker 0", "<td>no-route</td>", "<td>worker0</td>", "<polyline", " pps"] {
        assert!(dom.contains(text), "no {text} in {dom}");
    }
    web.terminate(PATIENCE).unwrap();
    bywash_.stop();
}

/// An instance that sends its answer without end keeps a request waiting, but not the end of the page's server.
#[test]
fn it_ends_while_an_instance_does_not_answer() {
    require!(require_lab());
    let lab = Topology::router().unwrap();
    let bywash_ = Bywash::run(lab.r(), &lab.router_interfaces());
    let place = tempfile::tempdir().unwrap();
    let (socket, endless) = (place.path().join("socket"), place.path().join("endless"));
    std::os::unix::fs::symlink(bywash_.socket(), &socket).unwrap();
    let argv = [&program(), "web", "--socket", socket.to_str().unwrap(), "--listen", "127.0.0.1:8471"];
    let mut web = lab.r().spawn(&argv).unwrap();
    web.wait_for_output("http://127.0.0.1:8471/", PATIENCE).unwrap();
    let listener = UnixListener::bind(&endless).unwrap();
    std::fs::remove_file(&socket).unwrap();
    std::os::unix::fs::symlink(&endless, &socket).unwrap();
    let mut client = lab.r().enter(|| TcpStream::connect("127.0.0.1:8471")).unwrap().unwrap();
    write!(client, "GET /v1/ports HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let (mut asked, _) = listener.accept().unwrap();
    web.signal(Signal::INT).unwrap();
    let ended = wait_until("the end", PATIENCE, || {
        // Each octet keeps the request from timing out.
        let _ = asked.write_all(b"x");
        web.try_status().unwrap().is_some()
    });
    ended.unwrap_or_else(|why| panic!("{why}: {}", web.output()));
    bywash_.stop();
}
