//! Ports on DPDK's drivers, in a program built with them.

use super::ports::End;
use crate::config::PortConfig;
use bywash_frame::PoolSet;
use std::sync::Arc;

/// DPDK, started if a port wants it.
pub struct Dpdk {
    #[cfg(feature = "dpdk")]
    eal: Option<Arc<bywash_dpdk::Eal>>,
}

#[cfg(feature = "dpdk")]
impl Dpdk {
    /// Starts EAL, with the options of all ports, if one of them is DPDK's.
    pub fn start(ports: &[PortConfig], pools: &Arc<PoolSet>) -> anyhow::Result<Self> {
        use anyhow::Context as _;
        let wanted: Vec<_> = ports.iter().filter_map(|port| port.dpdk.as_ref()).collect();
        if wanted.is_empty() {
            return Ok(Self { eal: None });
        }
        let options = wanted.iter().flat_map(|port| port.eal.split_whitespace()).map(Into::into).collect();
        let eal = bywash_dpdk::Eal::start(pools, &bywash_dpdk::EalConfig { options });
        let eal = eal.context("the ports of kind \"dpdk\"")?;
        if let Some(note) = eal.note() {
            tracing::warn!("{note}");
        }
        Ok(Self { eal: Some(eal) })
    }

    /// Opens a port's device, all of its queues.
    pub fn open(&self, port: &PortConfig) -> anyhow::Result<Vec<End>> {
        use anyhow::Context as _;
        use bywash_port::Port as _;
        let (eal, config) = (self.eal.as_ref().context("no EAL")?, port.dpdk.as_ref().context("no device")?);
        let mut wanted = bywash_dpdk::DpdkConfig::new(&config.device);
        wanted.queues = config.device_queues;
        wanted.descriptors = crate::config::DEVICE_RING as u16;
        wanted.mtu = config.mtu.set().copied();
        let ends = bywash_dpdk::DpdkPort::open(eal, &wanted)?;
        if let Some(why) = ends.first().and_then(bywash_dpdk::DpdkPort::copies) {
            tracing::warn!("{}: frames are copied: {why}", port.name);
        }
        let end =
            |(queue, end): (u32, bywash_dpdk::DpdkPort)| End { queue, counters: end.counters(), port: Box::new(end) };
        Ok((0..).zip(ends).map(end).collect())
    }
}

#[cfg(not(feature = "dpdk"))]
impl Dpdk {
    /// Nothing to start.
    pub fn start(_: &[PortConfig], _: &Arc<PoolSet>) -> anyhow::Result<Self> {
        Ok(Self {})
    }

    /// Says what is missing.
    pub fn open(&self, _: &PortConfig) -> anyhow::Result<Vec<End>> {
        anyhow::bail!("this program was built without DPDK: cargo build --release -p bywash --features dpdk")
    }
}
