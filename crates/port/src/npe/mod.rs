//! A dispatching device in software: it receives by its ports, deals the packets out to channels, one for each thread,
//! and sends and takes back what the threads hand to it.
//!
//! It is the engine of the TABM paper. Where a packet lies is decided when it is known whose it is: with a pool of kind
//! `tabm` for each channel, the packets of a thread lie at consecutive addresses; with one of kind `sdb` for all, those
//! of different threads alternate. A packet's descriptor, control data and bytes lie in one cell. Threads find packets
//! by polling; sending, completions and buffers are the device's, on a thread of its own.
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
#[cfg(feature = "rtl")]
mod rtl;

pub use channel::{Channel, Descriptor};
use device::Lane;
pub use device::{Counters, Device, Running};

use crate::Port;
use bywash_frame::{Frame, PoolConfig, PoolKind, PoolSet};
use rtrb::{Consumer, RingBuffer};
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex};

/// Channels a device can have.
pub const CHANNELS: RangeInclusive<usize> = 1..=16;

/// Frames in the device's own pool: what its ports receive into.
const STAGING: usize = 2048;

/// Which channel a packet goes to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dispatch {
    /// Each channel in turn, packet by packet.
    #[default]
    RoundRobin,
    /// The one of the port it came in by, modulo the number of channels.
    ByPort,
}

/// What does the device's work: which cells packets lie in, and when they are free again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Engine {
    /// The pools.
    #[default]
    Software,
    /// The engine in `rtl/`, simulated by the program that the environment's `BYWASH_RTL_ENGINE` names. Pools are `tabm`,
    /// of two or more free blocks as large as the engine's; with one for all channels, an engine built so.
    #[cfg(feature = "rtl")]
    Rtl,
}

impl std::str::FromStr for Engine {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "software" => Ok(Self::Software),
            #[cfg(feature = "rtl")]
            "rtl" => Ok(Self::Rtl),
            _ => Err(format!("engine {name}: it is software or, in a build with the feature rtl, rtl")),
        }
    }
}

/// A device's settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// One for each thread.
    pub channels: usize,
    /// Which of them a packet goes to.
    pub dispatch: Dispatch,
    /// Packets that wait in a channel, at most, in each direction.
    pub depth: usize,
    /// What does its work.
    pub engine: Engine,
}

impl Default for Config {
    fn default() -> Self {
        Self { channels: 1, dispatch: Dispatch::default(), depth: 512, engine: Engine::default() }
    }
}

impl Config {
    /// The pools of a device: its own, then for `tabm` and `typewriter` one for each channel, for other kinds one for all. `frames` for
    /// each channel.
    pub fn layout(&self, kind: PoolKind, frames: usize, block: usize) -> Vec<PoolConfig> {
        let pool = |name: &str, frames| PoolConfig { cache: 0, block, ..PoolConfig::new(name, kind, frames) };
        // In a packed arena all pools are: what ports receive into is one of blocks then.
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

/// What the end that goes first leaves to the other: nobody else could free the frames in it.
#[derive(Default)]
struct Left {
    /// The channel has gone.
    inbox: Option<Consumer<Frame>>,
    /// The device has gone.
    outbox: Option<Consumer<(Frame, u16)>>,
}

/// Why there is no device.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Error {
    /// Channels that cannot be.
    #[error("{0} channels: a device has 1 to 16")]
    Channels(usize),
    /// Nothing to receive from or send to.
    #[error("a device without ports: give it at least one")]
    NoPort,
    /// More ports than a descriptor can name.
    #[error("{0} ports: a device has at most 256")]
    Ports(usize),
    /// Channels that hold nothing.
    #[error("channels of depth 0 hold no packet")]
    Depth,
    /// Pools that are not those of [`Config::layout`].
    #[error("{got} pools for {channels} channels: expected the device's own, and one more or {channels}")]
    Pools {
        /// Pools there are.
        got: usize,
        /// Channels.
        channels: usize,
    },
    /// The engine in hardware does not start, or is not one for these settings.
    #[cfg(feature = "rtl")]
    #[error("engine {program}: {why} (BYWASH_RTL_ENGINE names it)")]
    Engine {
        /// Its program; empty where none is named.
        program: String,
        /// What is wrong.
        why: String,
    },
}

/// A device over `ports`, and its channels: each moves to its thread. `pools` as [`Config::layout`] says.
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
    let (mut lanes, mut ends) = (vec![], vec![]);
    for _ in 0..channels {
        let (to_thread, from_device) = RingBuffer::new(config.depth);
        let (to_device, from_thread) = RingBuffer::new(config.depth);
        let left = Arc::new(Mutex::default());
        lanes.push(Lane { inbox: to_thread, outbox: Some(from_thread), left: Arc::clone(&left), gone: false });
        ends.push(Channel::new(pools.clone(), from_device, to_device, left));
    }
    #[cfg(feature = "rtl")]
    if config.engine == Engine::Rtl {
        let program = std::env::var("BYWASH_RTL_ENGINE").unwrap_or_default();
        let started = rtl::Engine::start(program.as_ref(), &config, ports.len(), pools);
        let engine = started.map_err(|e| Error::Engine { program, why: e.to_string() })?;
        return Ok((Device::with_engine(config, ports, pools, lanes, engine), ends));
    }
    Ok((Device::new(config, ports, pools, lanes), ends))
}
