//! `bywash demo`: host - router - host in network namespaces of this machine, forwarded by the kernel and by bywash in
//! turn. Prints every step. Touches nothing outside these namespaces, and removes them at the end.

use crate::cli::DemoArgs;
use crate::stdout::stdout;
use anyhow::{bail, ensure};
use bywash_bench::lab::{Bywash, FOR_RATE, Lab, Rate, Traffic};
use bywash_lab::{Direction, Host, Iperf, Ping, has_tool, require_lab, run_host};
use bywash_sync::clock;
use std::io::Write;
use std::net::IpAddr;
use std::process::ExitStatus;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const PICTURE: &str = "     \
     namespace a             namespace r             namespace b
     10.0.1.2  a0 --------- r0  router  r1 --------- b0  10.0.2.2
     fd00:1::2                                           fd00:2::2";

/// Prints a line; returns the error from the enclosing function if stdout is closed.
macro_rules! say {
    ($($text:tt)*) => { writeln!(stdout(), $($text)*)? };
}

/// Interval between the pings while bywash is killed.
const PING_EVERY: Duration = Duration::from_millis(5);
const PINGS: u32 = 400;
/// Duration of a TCP measurement; iperf3 takes whole seconds.
const TCP_SECONDS: u32 = 1;

/// Builds host - router - host, measures it, and removes it.
pub fn run(args: DemoArgs) -> anyhow::Result<()> {
    for probe in [require_lab(), has_tool("iperf3"), has_tool("ethtool")] {
        probe.map_err(|why| {
            let hint = match rustix::process::geteuid().is_root() {
                true => "install iproute2, ethtool and iperf3; in the source tree `make demo` does",
                false => "run `sudo bywash demo`",
            };
            anyhow::anyhow!("cannot build the lab: {why}: {hint}")
        })?;
    }
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, stop.clone())?;
    }
    let demo = Demo { stop, step: 0, time: Duration::from_secs(args.seconds), started: Instant::now() };
    let stop = demo.stop.clone();
    let result = demo.play();
    if stop.load(Ordering::Acquire) {
        // The failure is due to Ctrl-C, which reached the children, too.
        say!("\nInterrupted: the namespaces are removed.");
        return Ok(());
    }
    result
}

struct Demo {
    stop: Arc<AtomicBool>,
    step: u32,
    time: Duration,
    started: Instant,
}

impl Demo {
    fn play(mut self) -> anyhow::Result<()> {
        self.step("Three network namespaces of this machine, joined by veth pairs")?;
        say!("{PICTURE}");
        let lab = Lab::new(Traffic::one_route(64))?;

        self.step("The kernel forwards between a and b")?;
        ping(&lab)?;
        let kernel_tcp = tcp(&lab)?;
        for (name, bits) in &kernel_tcp {
            say!("     TCP {name}: {:5.1} Gbit/s", bits / 1e9);
        }

        self.step("`bywash run r0 r1` takes over, with the kernel's own routes and neighbours")?;
        let bywash = lab.bywash(&[])?;
        for line in bywash.process.output().lines() {
            say!("     | {line}");
        }
        ping(&lab)?;
        self.check()?;
        for ((name, bits), (_, kernel)) in tcp(&lab)?.iter().zip(&kernel_tcp) {
            say!("     TCP {name}: {:5.1} Gbit/s, {:3.0}% of the kernel's", bits / 1e9, 100.0 * bits / kernel);
        }
        say!("     (TCP segments of up to 64 KiB are forwarded whole: `bywash show placement` says where)");
        bywash.stop()?;

        self.step("64-byte frames from the kernel's generator at full rate, counted where they arrive")?;
        for host in lab.topology().hosts() {
            host.ns.offload(&host.interface, "gro", true)?;
        }
        say!("     (with GRO on in a and b, a veth takes redirected frames, as a network card does)");
        let kernel = lab.kernel(self.time)?;
        say!(
            "     kernel  {:.2} Mpps: it forwards within the generator's system call, which waits for it",
            kernel.mpps
        );
        self.check()?;
        let in_driver = lab.bywash(FOR_RATE)?;
        let driver = lab.measure(self.time)?;
        let options = FOR_RATE.join(" ");
        say!("     bywash  {:.2} Mpps in the driver, within the same call (`run {options}`)", driver.mpps);
        in_driver.stop()?;
        self.check()?;
        let bywash = lab.bywash(&[&["--level", "user"], FOR_RATE].concat())?;
        let ours = lab.measure(self.time)?;
        say!(
            "     bywash  {:.2} Mpps in user space, by one worker on the other CPU, of {:.2} offered (`run --level \
             user {options}`)",
            ours.mpps,
            ours.offered_mpps
        );
        limits(&bywash, kernel, ours)?;

        self.step("State of the running instance")?;
        show(&bywash, "ports")?;
        show(&bywash, "drops")?;

        self.step("kill -9 under ping: the kernel takes over")?;
        self.kill(&lab, bywash)?;

        drop(lab);
        say!("\nDone in {:.0} s; the namespaces are removed.", self.started.elapsed().as_secs_f64());
        Ok(())
    }

    fn check(&self) -> anyhow::Result<()> {
        ensure!(!self.stop.load(Ordering::Acquire), "interrupted");
        Ok(())
    }

    fn step(&mut self, what: &str) -> anyhow::Result<()> {
        self.check()?;
        self.step += 1;
        say!("\n{}. {what}", self.step);
        Ok(())
    }

    fn kill(&self, lab: &Lab, mut bywash: Bywash) -> anyhow::Result<()> {
        let topology = lab.topology();
        let (a, b) = (topology.a(), topology.b());
        let (report, status) = std::thread::scope(|scope| {
            let pings = scope.spawn(|| Ping::to(b.v4).count(PINGS).interval(PING_EVERY).run(&a.ns));
            std::thread::sleep(PING_EVERY * PINGS / 2);
            let status = bywash.process.kill();
            (pings.join(), status)
        });
        let report = report.map_err(|_| anyhow::anyhow!("the ping thread panicked"))??;
        let status: ExitStatus = status?;
        let lost = report.sent - report.received;
        let gap = PING_EVERY * lost;
        say!(
            "     bywash ended with {status}; {lost} of {} pings lost, {} ms apart",
            report.sent,
            PING_EVERY.as_millis()
        );
        say!("     the kernel forwarded again within {} ms", (gap + PING_EVERY).as_millis());
        for host in topology.hosts() {
            say!("     {}: {}", host.router_interface, attached(lab, host)?);
        }
        let program = std::env::current_exe()?;
        let restored = topology.r().run(&[program.as_os_str(), "restore".as_ref()])?;
        say!("     bywash restore: {}", restored.stdout.trim());
        ensure!(report.received > 0, "every ping was lost");
        Ok(())
    }
}

fn ping(lab: &Lab) -> anyhow::Result<()> {
    let (a, b) = (lab.topology().a(), lab.topology().b());
    for to in [IpAddr::from(b.v4), IpAddr::from(b.v6)] {
        let report = Ping::to(to).count(5).run(&a.ns)?;
        let mean = report.mean.map_or(String::new(), |mean| format!(", {} us", mean.as_micros()));
        say!("     ping a -> {to}: {} of {} came back{mean}", report.received, report.sent);
        if report.received == 0 {
            bail!("{to} does not answer: {}", report.text);
        }
    }
    Ok(())
}

/// Measures TCP in both directions over IPv4 and IPv6. Returns names and bits per second.
fn tcp(lab: &Lab) -> anyhow::Result<Vec<(String, f64)>> {
    let (a, b) = (lab.topology().a(), lab.topology().b());
    let mut rates = vec![];
    for (family, to) in [("IPv4", IpAddr::from(b.v4)), ("IPv6", IpAddr::from(b.v6))] {
        for (name, direction) in [("a -> b", Direction::Forward), ("b -> a", Direction::Reverse)] {
            let report = Iperf::tcp(TCP_SECONDS).run(&a.ns, &b.ns, to, direction)?;
            rates.push((format!("{family} {name}"), report.bits_per_second));
        }
    }
    Ok(rates)
}

/// Prints where the time per packet goes.
fn limits(bywash: &Bywash, kernel: Rate, ours: Rate) -> anyhow::Result<()> {
    let stages = bywash.stages()?;
    let ns = |cycles: f64| cycles * 1e9 / clock::tsc_hz() as f64;
    let own: f64 = stages.iter().filter(|(name, _)| name != "tx").map(|(_, cycles)| ns(*cycles)).sum();
    say!("   What limits the kernel: {:.0} ns for each packet, on one CPU: an skb is made for it,", 1e3 / kernel.mpps);
    say!("   looked up, filtered and queued on its own.");
    say!(
        "   What limits a worker here: one packet in {:.0} ns, of which its own stages take {own:.0}. The rest is",
        1e3 / ours.mpps
    );
    say!("   the kernel's transmit system call: copy, skb, veth, and b's half of it on the same CPU. A");
    say!("   network card with zero-copy has none of that.");
    let parts: Vec<String> = stages.iter().map(|(name, cycles)| format!("{name} {:.0} ns", ns(*cycles))).collect();
    say!("   By stage: {}", parts.join(", "));
    Ok(())
}

/// Prints the output of `bywash show`.
fn show(bywash: &Bywash, what: &str) -> anyhow::Result<()> {
    let program = std::env::current_exe()?;
    let argv = [program.as_os_str(), "show".as_ref(), what.as_ref(), "--socket".as_ref(), bywash.socket.as_os_str()];
    let shown = run_host(&argv)?;
    say!("     $ bywash show {what}");
    for line in shown.stdout.lines() {
        say!("     {line}");
    }
    Ok(())
}

/// Returns whether an XDP program is attached to the router's interface to a host, as text.
fn attached(lab: &Lab, host: &Host) -> anyhow::Result<&'static str> {
    let shown = lab.topology().r().ip(&["-d", "link", "show", "dev", &host.router_interface])?;
    let text = shown.stdout;
    ensure!(!text.is_empty(), "no interface {}", host.router_interface);
    Ok(if text.contains("prog/xdp") { "an XDP program is still attached" } else { "nothing attached" })
}
