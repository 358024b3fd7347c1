//! DPDK net_pcap devices as ports: they replay a capture from memory in a loop and discard sent packets.

use bywash_frame::PoolSet;
use bywash_port::Port;
use std::path::Path;
use std::sync::Arc;

/// Opens one device for each of `ports` ports, which replays `port<N>.pcap` in `dir`.
#[cfg(feature = "dpdk")]
pub fn net_pcap(dir: &Path, ports: u16, pools: &Arc<PoolSet>) -> anyhow::Result<Vec<Box<dyn Port>>> {
    use bywash_dpdk::{DpdkConfig, DpdkPort, Eal, EalConfig};
    let eal = Eal::start(pools, &EalConfig::default())?;
    let open = |n: u16| -> anyhow::Result<Box<dyn Port>> {
        let file = dir.join(format!("port{n}.pcap"));
        anyhow::ensure!(file.exists(), "no {}: `bywash bench forward --write-pcap DIR` writes it", file.display());
        let device = format!("net_pcap{n},rx_pcap={},infinite_rx=1", file.display());
        let mut queues = DpdkPort::open(&eal, &DpdkConfig::new(&device))?;
        Ok(Box::new(queues.remove(0)))
    };
    (0..ports).map(open).collect()
}

/// Always errors: this build has no DPDK.
#[cfg(not(feature = "dpdk"))]
pub fn net_pcap(_: &Path, _: u16, _: &Arc<PoolSet>) -> anyhow::Result<Vec<Box<dyn Port>>> {
    anyhow::bail!("this program was built without DPDK: cargo build --release -p bywash --features dpdk")
}
