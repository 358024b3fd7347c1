//! Ports on DPDK's drivers, for builds with the `dpdk` feature.

use super::opened::Device;
use bywash_config::PortConfig;
use bywash_frame::PoolSet;
use std::sync::Arc;

/// DPDK, started when the first port needs it: at startup, or by a reload.
pub struct Dpdk {
    #[cfg(feature = "dpdk")]
    pools: Arc<PoolSet>,
    #[cfg(feature = "dpdk")]
    eal: std::sync::Mutex<Option<Started>>,
}

/// Running EAL, with the options it was started with.
#[cfg(feature = "dpdk")]
struct Started {
    eal: Arc<bywash_dpdk::Eal>,
    options: Vec<String>,
}

#[cfg(feature = "dpdk")]
impl Dpdk {
    /// Starts EAL, with the options of all ports, if any port is of kind `dpdk`.
    pub fn start(ports: &[PortConfig], pools: &Arc<PoolSet>) -> anyhow::Result<Self> {
        let dpdk = Self { pools: pools.clone(), eal: std::sync::Mutex::default() };
        let wanted: Vec<_> = ports.iter().filter_map(|port| port.dpdk.as_ref()).collect();
        if !wanted.is_empty() {
            let options = wanted.iter().flat_map(|port| port.eal.split_whitespace()).map(Into::into).collect();
            *bywash_sync::lock(&dpdk.eal) = Some(Started::new(options, pools)?);
        }
        Ok(dpdk)
    }

    /// Returns EAL, and starts it first if necessary. Options take effect only at that start.
    fn eal(&self, port: &PortConfig) -> anyhow::Result<Arc<bywash_dpdk::Eal>> {
        let mut eal = bywash_sync::lock(&self.eal);
        let wanted: Vec<String> =
            port.dpdk.iter().flat_map(|port| port.eal.split_whitespace()).map(Into::into).collect();
        let started = match &mut *eal {
            Some(started) => started,
            none => none.insert(Started::new(wanted.clone(), &self.pools)?),
        };
        if let Some(late) = wanted.iter().find(|option| !started.options.contains(option)) {
            tracing::warn!(
                "{}: DPDK's EAL runs already: its option `{late}` takes effect at the next start",
                port.name
            );
        }
        Ok(started.eal.clone())
    }

    /// Opens all queues of a port's device.
    pub fn open(&self, port: &PortConfig) -> anyhow::Result<Device> {
        use super::opened::End;
        use anyhow::Context as _;
        use bywash_port::Port as _;
        let (eal, config) = (self.eal(port)?, port.dpdk.as_ref().context("no device")?);
        let mut wanted = bywash_dpdk::DpdkConfig::new(&config.device);
        wanted.queues = config.device_queues;
        wanted.descriptors = bywash_config::DEVICE_RING as u16;
        wanted.mtu = config.mtu.set().copied();
        let ends = bywash_dpdk::DpdkPort::open(&eal, &wanted)?;
        if let Some(why) = ends.first().and_then(bywash_dpdk::DpdkPort::copies) {
            tracing::warn!("{}: frames are copied: {why}", port.name);
        }
        let mac = ends.first().map(bywash_dpdk::DpdkPort::mac).filter(|mac| *mac != [0; 6]);
        let end =
            |(queue, end): (u32, bywash_dpdk::DpdkPort)| End { queue, counters: end.counters(), port: Box::new(end) };
        Ok(Device { ends: (0..).zip(ends).map(end).collect(), mac })
    }
}

#[cfg(feature = "dpdk")]
impl Started {
    fn new(options: Vec<String>, pools: &Arc<PoolSet>) -> anyhow::Result<Self> {
        use anyhow::Context as _;
        let eal = bywash_dpdk::Eal::start(pools, &bywash_dpdk::EalConfig { options: options.clone() });
        let eal = eal.context("the ports of kind \"dpdk\"")?;
        if let Some(note) = eal.note() {
            tracing::warn!("{note}");
        }
        Ok(Self { eal, options })
    }
}

#[cfg(not(feature = "dpdk"))]
impl Dpdk {
    /// Does nothing: there is no DPDK to start.
    pub fn start(_: &[PortConfig], _: &Arc<PoolSet>) -> anyhow::Result<Self> {
        Ok(Self {})
    }

    /// Always errors, with how to build DPDK support.
    pub fn open(&self, _: &PortConfig) -> anyhow::Result<Device> {
        anyhow::bail!("this program was built without DPDK: cargo build --release -p bywash --features dpdk")
    }
}
