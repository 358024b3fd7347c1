//! Benchmark of forwarding between two or more ports by frame size: the kernel, Bywash in user space and Bywash in the
//! driver, in alternating rounds.
//!
//! ```text
//!   a - r0 ┐       ┌ r1 - b      a and b send to each other, as do c and d, e and f: each port receives and sends
//!   c - r2 ┼ router┼ r3 - d
//!   e - r4 ┘       └ r5 - f
//! ```
//!
//! Every host has a live-frame generator. All generators run on the first CPU, where the kernel and the driver's
//! program forward as well; user space has one worker on the second CPU. The result counts the frames that arrive at
//! the hosts, whose drivers drop them.

use super::lab::{BATCH, Bywash, FOR_RATE, WARM_UP, rate};
use crate::args::{SECONDS, number, size};
use anyhow::Context as _;
use bywash_config::{Host as Machine, Level, count};
use bywash_lab::{Host, Topology, counters};
use bywash_port::af_xdp::{Bare, LiveGen};
use bywash_wire::build::Packet;
use bywash_wire::ethernet::MacAddr;
use clap::Args;
use serde::Serialize;
use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

/// `bywash bench ports`
#[derive(Debug, Args)]
pub struct PortsArgs {
    /// Port counts to measure; half of the ports send to the other half and back
    #[arg(long, value_name = "LIST", default_value = "2,4,6", value_delimiter = ',', value_parser = even_ports)]
    pub ports: Vec<usize>,
    /// Frame sizes on the wire in bytes, FCS included
    #[arg(long, value_name = "LIST", default_value = "64,128,256,512,1024,1280,1518", value_delimiter = ',', value_parser = size)]
    pub sizes: Vec<usize>,
    /// Number of rounds, each measuring everything; the result is the median
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub rounds: u64,
    /// Length of each measurement, in seconds
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(SECONDS))]
    pub seconds: u64,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

fn even_ports(text: &str) -> Result<usize, String> {
    let wanted = "expected an even number of ports from 2 to 16".to_string();
    number(text, 2..=16, "ports").ok().filter(|n| n % 2 == 0).ok_or(wanted)
}

/// Number of destinations per port: addresses in 198.18.PORT.0/24 (RFC 2544, appendix C.2.2: addresses for benchmarks).
const FLOWS: u8 = 250;

#[derive(Serialize)]
struct Figures {
    seconds: u64,
    rounds: u64,
    /// CPUs of the generators and of the worker.
    cpus: [usize; 2],
    rows: Vec<Row>,
}

/// Medians of the rounds, in millions of arrived frames per second.
#[derive(Serialize)]
struct Row {
    ports: usize,
    size: usize,
    kernel_mpps: f64,
    user_mpps: f64,
    driver_mpps: f64,
}

/// Runs `bywash bench ports`.
pub fn run(args: &PortsArgs) -> anyhow::Result<()> {
    bywash_lab::require_lab().map_err(|why| anyhow::anyhow!("cannot build the lab: {why}"))?;
    let allowed = Machine::this().allowed;
    let first = *allowed.first().context("no CPU to run on")?;
    let cpus = [first, *allowed.get(1).unwrap_or(&first)];
    let mut rows = vec![];
    for &ports in &args.ports {
        let lab = Lab::new(ports, cpus)?;
        // Indexed by forwarder, then by size.
        let mut rounds: Vec<[Vec<f64>; 3]> = vec![];
        for _ in 0..args.rounds {
            rounds.push([lab.kernel(args)?, lab.bywash(args, Level::User)?, lab.bywash(args, Level::Driver)?]);
        }
        for (at, &size) in args.sizes.iter().enumerate() {
            let median = |who: usize| super::median(rounds.iter().map(|round| round[who][at])).context("no round");
            rows.push(Row { ports, size, kernel_mpps: median(0)?, user_mpps: median(1)?, driver_mpps: median(2)? });
        }
    }
    super::report(args.json, &Figures { seconds: args.seconds, rounds: args.rounds, cpus, rows }, print)
}

fn print(f: &Figures) {
    println!("medians of {} of {} s, Mpps", count(f.rounds, "round"), f.seconds);
    println!("ports   size   kernel  user space   driver");
    for row in &f.rows {
        println!(
            "{:5}  {:5}  {:7.3}  {:10.3}  {:7.3}",
            row.ports, row.size, row.kernel_mpps, row.user_mpps, row.driver_mpps
        );
    }
}

struct Lab {
    /// XDP programs that drop the frames at the hosts. First field, so that they are detached before their interfaces
    /// are removed.
    _sinks: Vec<Bare>,
    topology: Topology,
    cpus: [usize; 2],
}

impl Lab {
    fn new(ports: usize, cpus: [usize; 2]) -> anyhow::Result<Self> {
        let topology = Topology::router_n(ports)?;
        let mut lines = String::new();
        for (port, host) in topology.hosts().iter().enumerate() {
            let (dev, net) = (&host.router_interface, port + 1);
            writeln!(lines, "neigh replace 10.0.{net}.3 lladdr 02:00:00:00:{net:02x}:03 nud permanent dev {dev}")?;
            writeln!(lines, "route add 198.18.{port}.0/24 via 10.0.{net}.3 dev {dev}")?;
        }
        topology.r().ip_batch(&lines)?;
        let sink = |host: &Host| anyhow::Ok(host.ns.enter(|| Bare::drop(&host.interface))??);
        let sinks = topology.hosts().iter().map(sink).collect::<anyhow::Result<_>>()?;
        Ok(Self { _sinks: sinks, topology, cpus })
    }

    /// Measures the kernel's forwarding at each size.
    fn kernel(&self, args: &PortsArgs) -> anyhow::Result<Vec<f64>> {
        // veth accepts live frames only if its peer polls: with GRO enabled, or with an XDP program.
        let gro = |on| {
            let interfaces = self.topology.router_interfaces();
            interfaces.into_iter().try_for_each(|interface| self.topology.r().offload(interface, "gro", on))
        };
        gro(true)?;
        let rates = self.sizes(args);
        gro(false)?;
        rates
    }

    fn bywash(&self, args: &PortsArgs, level: Level) -> anyhow::Result<Vec<f64>> {
        let options = [FOR_RATE, &["--level", level.name()]].concat();
        let bywash = Bywash::start(&self.topology, self.cpus[1], &options)?;
        let rates = self.sizes(args);
        bywash.stop()?;
        rates
    }

    fn sizes(&self, args: &PortsArgs) -> anyhow::Result<Vec<f64>> {
        args.sizes.iter().map(|size| self.measure(*size, Duration::from_secs(args.seconds))).collect()
    }

    /// Sends from every host at the maximum rate and counts all arriving frames.
    fn measure(&self, size: usize, time: Duration) -> anyhow::Result<f64> {
        let mut sources = vec![];
        for (port, host) in self.topology.hosts().iter().enumerate() {
            let mac = |text: &str| text.parse::<MacAddr>().map_err(|_| anyhow::anyhow!("{text} is not a MAC address"));
            let to = |flow: u8| Ipv4Addr::new(198, 18, (port ^ 1) as u8, 1 + flow);
            let frame = Packet::udp(SocketAddr::from((host.v4, 1024)), SocketAddr::from((to(0), 9)))
                .macs(mac(&host.mac)?, mac(&host.router_mac)?)
                .size(size)
                .build()?;
            let destinations: Vec<IpAddr> = (0..FLOWS).map(|flow| to(flow).into()).collect();
            let (interface, cpu) = (host.interface.clone(), self.cpus[0]);
            sources.push(host.ns.thread(move || -> anyhow::Result<()> {
                super::pin(Some(cpu))?;
                let mut generator = LiveGen::new(&interface, &frame, &destinations)?;
                generator.run_for(WARM_UP + time + WARM_UP, BATCH)?;
                Ok(())
            })?);
        }
        let mpps = rate(time, || {
            let hosts = self.topology.hosts().iter();
            hosts.map(|host| Ok(counters(&host.ns, &host.interface)?.rx_packets)).sum()
        })?;
        for source in sources {
            source.join().map_err(|_| anyhow::anyhow!("a generator panicked"))???;
        }
        Ok(mpps)
    }
}
