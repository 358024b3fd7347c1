//! Functions on netfilter's hooks that no ruleset shows: packets that pass them are left to the kernel.

use crate::bpf;
use crate::harness::{Bywash, PATIENCE};
use bywash_lab::{Namespace, Ping, Probe, Reason, Topology, has_tool, require, require_lab};
use std::io::Read;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

/// Requires IPVS, whose module is loaded for a service.
fn has_ipvs() -> Probe {
    has_tool("ipvsadm")?;
    let namespace = Namespace::new("ipvs").map_err(|error| Reason::new(error.to_string()))?;
    let tried = namespace.run(&["ipvsadm", "-A", "-t", "192.0.2.1:80", "-s", "rr"]);
    tried.map(drop).map_err(|_| Reason::new("kernel without IPVS"))
}

/// Returns what a client in `ns` reads from a service within this time.
fn read_from(ns: &Namespace, service: SocketAddr, patience: Duration) -> std::io::Result<String> {
    let connected = ns.enter(|| TcpStream::connect_timeout(&service, patience));
    let mut stream = connected.map_err(std::io::Error::other)??;
    stream.set_read_timeout(Some(patience))?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}

/// Requires a kernel that has BPF programs of type netfilter, and lists them.
fn lists_hooks() -> Probe {
    has_tool("nft")?;
    let failed = |error: bywash_lab::Error| Reason::new(error.to_string());
    let namespace = Namespace::new("hooks").map_err(failed)?;
    let _other = bpf::netfilter_that_drops(&namespace);
    let listed = namespace.run(&["nft", "list", "hooks", "ip"]).map_err(failed)?.stdout;
    if listed.contains("bpf") { Ok(()) } else { Err(Reason::new("kernel without nfnetlink_hook")) }
}

#[test]
fn programs_on_netfilters_hooks_hold() {
    require!(require_lab(), has_tool("python3"), lists_hooks());
    let lab = Topology::builder().static_neighbours(true).build().unwrap();
    let (a, b, r) = (lab.a(), lab.b(), lab.r());
    let answered = |to| Ping::to(to).count(3).run(&a.ns).unwrap().received;
    for arguments in [&["--level", "driver"][..], &["--level", "user"]] {
        let bywash = Bywash::run(r, &[arguments, &["r0", "r1"]].concat());
        bywash.wait("packets to pass", |_| answered(b.v4.into()) == 3);
        let mut other = bpf::netfilter_that_drops(r);
        bywash.wait("the program to hold", |bywash| {
            answered(b.v4.into()) == 0 && bywash.placement("r0")["kept"].to_string().contains("nf_hook_run_bpf")
        });
        assert_eq!(answered(std::net::IpAddr::from(b.v6)), 3);
        other.kill().unwrap();
        bywash.wait("packets to pass again", |_| answered(b.v4.into()) == 3);
        bywash.stop();
    }
}

/// IPVS translates what the real servers of a virtual service answer.
#[test]
fn answers_of_real_servers_are_left_to_the_kernel() {
    require!(require_lab(), has_ipvs());
    let lab = Topology::builder().static_neighbours(true).build().unwrap();
    let (a, b, r) = (lab.a(), lab.b(), lab.r());
    let server = b.ns.enter(|| TcpListener::bind((b.v4, 7000))).unwrap().unwrap();
    std::thread::spawn(move || {
        use std::io::Write;
        server.incoming().flatten().for_each(|mut stream| drop(stream.write_all(b"served")));
    });
    let service = SocketAddr::from((a.router_v4, 7000));
    let read = |patience| read_from(&a.ns, service, patience).ok();
    let add = format!("ipvsadm -A -t {service} -s rr && ipvsadm -a -t {service} -r {}:7000 --masquerading", b.v4);
    for arguments in [&["--level", "driver"][..], &["--level", "user"]] {
        let bywash = Bywash::run(r, &[arguments, &["r0", "r1"]].concat());
        assert_eq!(read(Duration::from_millis(500)), None);
        r.run(&["sh", "-c", &add]).unwrap();
        bywash.wait("services to be noticed", |bywash| bywash.placement("r1")["kept"].to_string().contains("IPVS"));
        assert_eq!(read(PATIENCE).as_deref(), Some("served"), "{arguments:?}");
        r.run(&["ipvsadm", "-C"]).unwrap();
        bywash.wait("packets to be forwarded again", |bywash| bywash.placement("r1")["kept"] == serde_json::json!([]));
        bywash.stop();
    }
}
