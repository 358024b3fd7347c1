//! Benchmark of new connections through a router with a stateful firewall and masquerade: TCP connections that carry
//! one octet in each direction and are closed (netperf's TCP_CRR), by the kernel and by Bywash in turn.
//!
//! The kernel is also measured with a socket that listens to connection tracking's announcements of ended connections
//! and reads none. The kernel makes them for any listener, so this is the upper bound for a program that listens. With
//! that socket and a program in traffic control that passes every packet, it is the upper bound for a router that also
//! sees every packet there, as Bywash does by default on veth.
//!
//! Hosts and router share the CPUs. Source ports are reused after a second.

use super::lab;
use super::{median, nat, report};
use crate::args::SECONDS;
use anyhow::ensure;
use bywash_config::count;
use bywash_lab::Topology;
use bywash_nl::socket::Socket;
use clap::Args;
use rustix::net::netlink;
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const PORT: u16 = 80;
/// Names of what is measured.
const NAMES: [&str; 4] = ["kernel", "listened", "passed", "bywash"];
/// Interfaces of the router.
const PORTS: [&str; 2] = ["r0", "r1"];
/// Classic BPF program of one instruction, which returns TC_ACT_OK.
const PASS: &str = "1,6 0 0 0";

/// `bywash bench crr`
#[derive(Debug, Args)]
pub struct CrrArgs {
    /// CPU of the worker
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub cpu: usize,
    /// Connections open at a time
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=256))]
    pub clients: u64,
    /// Length of each measurement, in seconds
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(SECONDS))]
    pub seconds: u64,
    /// Number of rounds, each measuring all; the result is the median of the rounds' ratios
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub rounds: u64,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Serialize)]
struct Figures {
    /// Median ratio of Bywash to the kernel.
    ratio: f64,
    /// Median ratio of the kernel with a listener to the kernel without one.
    listened_ratio: f64,
    /// Median ratio of the kernel with a listener and a program that passes every packet to the kernel without.
    passed_ratio: f64,
    /// Medians of connections per second.
    median: BTreeMap<&'static str, f64>,
    clients: u64,
    seconds: u64,
    rounds: Vec<BTreeMap<&'static str, f64>>,
}

/// Runs `bywash bench crr`.
pub fn run(args: &CrrArgs) -> anyhow::Result<()> {
    bywash_lab::require_lab().map_err(|why| anyhow::anyhow!("cannot build the lab: {why}"))?;
    bywash_lab::has_tool("nft").map_err(|why| anyhow::anyhow!("cannot load rules: {why}"))?;
    bywash_lab::has_tool("tc").map_err(|why| anyhow::anyhow!("cannot load programs: {why}"))?;
    let topology = Topology::builder().static_neighbours(true).build()?;
    let (a, r, b) = (topology.a(), topology.r(), topology.b());
    nat::load(&topology, nat::RULES)?;
    r.sysctl("net/netfilter/nf_conntrack_tcp_timeout_time_wait", "1")?;
    a.ns.sysctl("net/ipv4/ip_local_port_range", "1024 65535")?;
    a.ns.sysctl("net/ipv4/tcp_tw_reuse", "1")?;
    let to = SocketAddr::from((b.v4, PORT));
    let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let listener = Arc::new(b.ns.enter(|| TcpListener::bind(to))??);
    let mut threads = vec![];
    for _ in 0..args.clients {
        let (stop, done, listener) = (stop.clone(), done.clone(), listener.clone());
        std::thread::spawn(move || serve(&listener));
        threads.push(a.ns.thread(move || -> std::io::Result<()> {
            while !stop.load(Ordering::Relaxed) {
                exchange(to)?;
                done.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        })?);
    }
    let rate = || {
        let rate = lab::rate(Duration::from_secs(args.seconds), || Ok(done.load(Ordering::Relaxed)))? * 1e6;
        ensure!(!threads.iter().any(std::thread::JoinHandle::is_finished), "a connection failed");
        Ok(rate)
    };
    let mut rounds = vec![];
    for n in 0..args.rounds {
        let mut round = BTreeMap::new();
        let mut order = NAMES;
        order.rotate_left(n as usize % NAMES.len());
        for name in order {
            let rate = match name {
                "kernel" => rate()?,
                "listened" => {
                    let _listener = r.enter(listening)??;
                    rate()?
                }
                "passed" => {
                    let _listener = r.enter(listening)??;
                    for port in PORTS {
                        r.run(&["tc", "qdisc", "add", "dev", port, "clsact"])?;
                        r.run(&["tc", "filter", "add", "dev", port, "ingress", "bpf", "da", "bytecode", PASS])?;
                    }
                    let rate = rate()?;
                    PORTS
                        .iter()
                        .try_for_each(|port| r.run(&["tc", "qdisc", "del", "dev", port, "clsact"]).map(drop))?;
                    rate
                }
                _ => {
                    let running = nat::start_with(&topology, args.cpu, 100_000, "", "respect")?;
                    let rate = rate()?;
                    running.stop()?;
                    rate
                }
            };
            round.insert(name, rate);
        }
        rounds.push(round);
    }
    stop.store(true, Ordering::Relaxed);
    for thread in threads {
        thread.join().map_err(|_| anyhow::anyhow!("a client panicked"))???;
    }
    let of = |name| median(rounds.iter().map(|round| round[name])).unwrap_or(f64::NAN);
    let ratio = |name| median(rounds.iter().map(|round| round[name] / round["kernel"])).unwrap_or(f64::NAN);
    let figures = Figures {
        ratio: ratio("bywash"),
        listened_ratio: ratio("listened"),
        passed_ratio: ratio("passed"),
        median: NAMES.map(|name| (name, of(name))).into(),
        clients: args.clients,
        seconds: args.seconds,
        rounds,
    };
    report(args.json, &figures, print)
}

/// Listens to the announcements of removed connections in the calling thread's network namespace. The buffer is soon
/// full, which only spares the kernel queueing them.
fn listening() -> Result<Socket, bywash_netlink::Error> {
    const NFNLGRP_CONNTRACK_DESTROY: u32 = 3;
    Socket::open_protocol(Some(netlink::NETFILTER), &[NFNLGRP_CONNTRACK_DESTROY], 4096)
}

/// Accepts connections and answers each.
fn serve(listener: &TcpListener) {
    for mut stream in listener.incoming().flatten() {
        let mut octet = [0];
        // The client's end of a connection reports failures.
        let _ = stream
            .read_exact(&mut octet)
            .and_then(|()| stream.write_all(&octet))
            .and_then(|()| stream.read(&mut octet));
    }
}

fn exchange(to: SocketAddr) -> std::io::Result<()> {
    let mut stream = TcpStream::connect(to)?;
    stream.write_all(&[1])?;
    stream.read_exact(&mut [0])
}

fn print(f: &Figures) {
    let (clients, rounds) = (count(f.clients, "client"), count(f.rounds.len(), "round"));
    println!("{clients}, medians of {rounds} of {} s", f.seconds);
    for (name, rate) in &f.median {
        println!("  {name:8} {rate:8.0} connections/s");
    }
    println!("  bywash to kernel {:.3}", f.ratio);
    println!("  kernel with a listener to kernel {:.3}", f.listened_ratio);
    println!("  kernel with a listener and a program that passes every packet to kernel {:.3}", f.passed_ratio);
}
