//! Dispatching device in software: receives from its ports, distributes the packets over channels, one for each thread,
//! sends the packets that the threads hand over and frees those they release.
//!
//! Implements the engine of the TABM paper. A packet's address is chosen once its thread is known: with a pool of kind
//! `tabm` for each channel, a thread's packets lie at consecutive addresses; with one pool of kind `sdb` for all, those
//! of different threads alternate. A packet's descriptor, control data and bytes lie in one cell. Threads receive
//! packets by polling; the device sends, handles completions and manages buffers on a thread of its own.
//!
//! ```no_run
//! use bywash_frame::{Arena, ArenaConfig, Batch, PoolKind, PoolSet};
//! use bywash_port::{NullPort, npe};
//! let config = npe::Config { channels: 2, dispatch: npe::Dispatch::RoundRobin, ..Default::default() };
//! let layout = config.layout(PoolKind::Tabm, 8192, 1024);
//! let cells = layout.iter().map(|pool| pool.frames).sum();
//! let pools = PoolSet::new(Arena::new(ArenaConfig { cells, ..Default::default() })?, &layout)?;
//! let (device, mut channels) = npe::create(config, vec![Box::new(NullPort::new())], &pools)?;
//! let device = device.start(None)?;
//! let mut packets = Batch::new();
//! channels[0].poll(&mut packets);
//! for packet in packets.drain() {
//!     let len = packet.len();
//!     let _ = channels[0].send(packet, 0, len);
//! }
//! # drop(device);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod channel;
mod device;
mod port;
#[cfg(feature = "rtl")]
mod rtl;

pub use channel::{Channel, Descriptor};
use device::Lane;
pub use device::{Counters, Device, Running};
pub use port::{ChannelPort, Memory, OpenError, open};

use crate::Port;
use bywash_frame::{Frame, PoolConfig, PoolKind, PoolSet};
use rtrb::{Consumer, RingBuffer};
use serde::{Deserialize, Serialize};
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex};

/// Valid numbers of channels of a device.
pub const CHANNELS: RangeInclusive<usize> = 1..=16;

/// Number of frames in the device's own pool, from which its ports receive.
const STAGING: usize = 2048;

/// Rule that selects the channel of a received packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "kebab-case")]
pub enum Dispatch {
    /// Next channel in turn, packet by packet
    #[default]
    RoundRobin,
    /// Channel with the index of the ingress port, modulo the number of channels
    ByPort,
}

/// Engine that chooses the cells of packets and reclaims them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "lowercase")]
pub enum Engine {
    /// In software: the pools choose and reclaim the cells
    #[default]
    Software,
    /// The hardware engine in `rtl/`, simulated, in a build with the feature `rtl`
    ///
    /// The environment variable `BYWASH_RTL_ENGINE` names the program of the simulation. Requires pools of kind `tabm`
    /// with two or more free blocks of the engine's block size, or one pool for all channels if the engine was built
    /// with a shared pool.
    Rtl,
}

impl std::str::FromStr for Engine {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "software" => Ok(Self::Software),
            "rtl" => Ok(Self::Rtl),
            _ => Err(format!("unknown engine {name}: expected software or rtl")),
        }
    }
}

/// Configuration of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Number of channels, one for each thread.
    pub channels: usize,
    /// Rule that selects the channel of a packet.
    pub dispatch: Dispatch,
    /// Maximum number of packets queued in a channel, in each direction.
    pub depth: usize,
    /// Engine to use.
    pub engine: Engine,
}

impl Default for Config {
    fn default() -> Self {
        Self { channels: 1, dispatch: Dispatch::default(), depth: 512, engine: Engine::default() }
    }
}

impl Config {
    /// Returns the pools of a device: its own, then for `tabm` and `typewriter` one for each channel, for other kinds
    /// one shared by all. Each channel gets `frames` frames.
    pub fn layout(&self, kind: PoolKind, frames: usize, block: usize) -> Vec<PoolConfig> {
        let pool = |name: &str, frames| PoolConfig { cache: 0, block, ..PoolConfig::new(name, kind, frames) };
        // In a packed arena all pools must be packed, so the ports receive from a pool of blocks then.
        let staging = match kind.packed() {
            true => pool("npe", STAGING.next_multiple_of(block.max(1)).max(2 * block)),
            false => PoolConfig::stack("npe", STAGING),
        };
        let mut pools = vec![staging];
        match kind {
            PoolKind::Tabm | PoolKind::Typewriter => {
                pools.extend((0..self.channels).map(|c| pool(&format!("channel{c}"), frames)))
            }
            _ => pools.push(pool("shared", frames * self.channels)),
        }
        pools
    }
}

/// Queue that the end dropped first leaves to the other end, which then frees the frames in it.
#[derive(Default)]
struct Left {
    /// Set by a dropped channel.
    inbox: Option<Consumer<Frame>>,
    /// Set by a closed device.
    outbox: Option<Consumer<(Frame, u16)>>,
}

/// Error of [`create`].
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Error {
    /// Number of channels outside of [`CHANNELS`].
    #[error("invalid number of channels {0}: must be 1 to 16")]
    Channels(usize),
    /// No ports.
    #[error("no ports: a device needs at least one")]
    NoPort,
    /// More than 256 ports.
    #[error("too many ports: {0}, a device has at most 256")]
    Ports(usize),
    /// Channel depth 0.
    #[error("invalid channel depth 0: must be at least 1")]
    Depth,
    /// Number of pools that does not match [`Config::layout`].
    #[error("invalid number of pools {got} for {channels} channels: must be 2 or {channels} + 1")]
    Pools {
        /// Number of pools given.
        got: usize,
        /// Number of channels.
        channels: usize,
    },
    /// [`Engine::Rtl`] in a build without the feature `rtl`.
    #[cfg(not(feature = "rtl"))]
    #[error("engine rtl needs a build with the feature rtl")]
    NoEngine,
    /// Hardware engine that does not start or does not match the configuration.
    #[cfg(feature = "rtl")]
    #[error("cannot use engine `{program}` (set by BYWASH_RTL_ENGINE): {why}")]
    Engine {
        /// Program of the simulation; empty if none is set.
        program: String,
        /// Reason.
        why: String,
    },
}

/// Creates a device over `ports`, and its channels, each to be moved to its thread. `pools` must have the layout of
/// [`Config::layout`].
pub fn create(
    config: Config,
    ports: Vec<Box<dyn Port>>,
    pools: &Arc<PoolSet>,
) -> Result<(Device, Vec<Channel>), Error> {
    let (channels, got) = (config.channels, pools.pools().len());
    if !CHANNELS.contains(&channels) {
        return Err(Error::Channels(channels));
    }
    match ports.len() {
        0 => return Err(Error::NoPort),
        1..=256 => {}
        many => return Err(Error::Ports(many)),
    }
    if config.depth == 0 {
        return Err(Error::Depth);
    }
    if got != 2 && got != 1 + channels {
        return Err(Error::Pools { got, channels });
    }
    #[cfg(not(feature = "rtl"))]
    if config.engine == Engine::Rtl {
        return Err(Error::NoEngine);
    }
    let (mut lanes, mut ends) = (vec![], vec![]);
    for _ in 0..channels {
        let (to_thread, from_device) = RingBuffer::new(config.depth);
        let (to_device, from_thread) = RingBuffer::new(config.depth);
        let left = Arc::new(Mutex::default());
        lanes.push(Lane {
            inbox: to_thread,
            outbox: Some(from_thread),
            left: Arc::clone(&left),
            gone: false,
            next: None,
        });
        ends.push(Channel::new(pools.clone(), from_device, to_device, left));
    }
    #[cfg(feature = "rtl")]
    if config.engine == Engine::Rtl {
        let program = std::env::var("BYWASH_RTL_ENGINE").unwrap_or_default();
        let started = rtl::Engine::start(program.as_ref(), &config, ports.len(), pools);
        let engine = started.map_err(|e| Error::Engine { program, why: e.to_string() })?;
        return Ok((Device::with_engine(config, ports, pools, lanes, engine), ends));
    }
    let mut device = Device::new(config, ports, pools, lanes);
    device.reserve();
    Ok((device, ends))
}
