//! DPDK devices as ports.

use bywash_frame::PoolSet;
use bywash_port::Port;
use std::path::Path;
use std::sync::Arc;

/// Returns the arguments of a net_pcap device for each of `ports` ports, which replays `port<N>.pcap` in `dir` from
/// memory in a loop and discards sent packets.
pub fn net_pcap(dir: &Path, ports: u16) -> anyhow::Result<Vec<String>> {
    let device = |n: u16| {
        let file = dir.join(format!("port{n}.pcap"));
        anyhow::ensure!(file.exists(), "no {}: `bywash bench forward --write-pcap DIR` writes it", file.display());
        Ok(format!("net_pcap{n},rx_pcap={},infinite_rx=1", file.display()))
    };
    (0..ports).map(device).collect()
}

/// Opens devices, and waits until their links are up.
#[cfg(feature = "dpdk")]
pub fn open(devices: &[String], pools: &Arc<PoolSet>) -> anyhow::Result<Vec<Box<dyn Port>>> {
    use bywash_dpdk::{DpdkConfig, DpdkPort, Eal, EalConfig};
    use bywash_port::PortState;
    use std::time::{Duration, Instant};
    let options = vec!["--single-file-segments".to_owned()];
    let eal = Eal::start(pools, &EalConfig { options })?;
    let open = |device: &String| -> anyhow::Result<Box<dyn Port>> {
        Ok(Box::new(DpdkPort::open(&eal, &DpdkConfig::new(device))?.remove(0)))
    };
    let ports: Vec<_> = devices.iter().map(open).collect::<anyhow::Result<_>>()?;
    let start = Instant::now();
    while let Some(n) = ports.iter().position(|port| port.state() != PortState::Up) {
        anyhow::ensure!(start.elapsed() < Duration::from_secs(10), "the link of {} stays down", devices[n]);
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(ports)
}

/// Always errors: this build has no DPDK.
#[cfg(not(feature = "dpdk"))]
pub fn open(_: &[String], _: &Arc<PoolSet>) -> anyhow::Result<Vec<Box<dyn Port>>> {
    anyhow::bail!("this program was built without DPDK: cargo build --release -p bywash --features dpdk")
}
