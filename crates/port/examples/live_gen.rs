//! Sends 64-byte UDP frames (60 without FCS) as fast as the kernel makes them.
//!
//!     live_gen IF DST_MAC DST_IP [--flows N] [--seconds N] [--size N]

use bywash_port::af_xdp::LiveGen;
use std::error::Error;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let value = |name: &str, default: u64| {
        let at = arguments.iter().position(|a| a == name);
        at.and_then(|at| arguments.get(at + 1)?.parse().ok()).unwrap_or(default)
    };
    let [interface, mac, ip, ..] = &arguments[..] else { return Err("usage: live_gen IF MAC IP [options]".into()) };
    let mac = mac.split(':').map(|b| u8::from_str_radix(b, 16)).collect::<Result<Vec<_>, _>>()?;
    let ip: Ipv4Addr = ip.parse()?;
    let size = value("--size", 60).max(60) as usize;

    let mut frame = [&mac[..], &[2, 0, 0, 0, 0, 9], &[8, 0]].concat();
    let mut header = [0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 1, 2, 0, 0, 0, 0];
    header[2..4].copy_from_slice(&(size as u16 - 14).to_be_bytes());
    header[16..].copy_from_slice(&ip.octets());
    let mut sum: u32 = header.chunks(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]]))).sum();
    sum = (sum & 0xffff) + (sum >> 16);
    header[10..12].copy_from_slice(&(!((sum & 0xffff) + (sum >> 16)) as u16).to_be_bytes());
    frame.extend(header);
    frame.extend([0x10, 0, 0x20, 0]);
    frame.extend((size as u16 - 34).to_be_bytes());
    frame.resize(size, 0);

    let first = u32::from(ip);
    let to: Vec<_> = (first..first + value("--flows", 1) as u32).map(|to| Ipv4Addr::from(to).into()).collect();
    let mut generator = LiveGen::new(interface, &frame, &to)?;
    let start = Instant::now();
    let made = generator.run_for(Duration::from_secs(value("--seconds", 5)), 64)?;
    println!("made {:.3} Mpps", made as f64 / start.elapsed().as_secs_f64() / 1e6);
    Ok(())
}
