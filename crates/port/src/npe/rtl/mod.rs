//! Driver of the hardware engine (docs/rtl.md), which is simulated.
//!
//! The engine owns all cells of the channels' pools from the start: it chooses each packet's cell and counts the
//! releases. The driver keeps the frames of the engine's cells and hands one out once it finds a packet in it.

mod device;
mod regs;
mod sim;

use super::channel::Descriptor;
use super::{Config, Dispatch};
use bywash_frame::{Arena, Buffers, DATA_OFFSET, Frame, PoolSet};
use regs::Field;
use sim::Simulator;
use std::io;
use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::Arc;

/// Size of a descriptor, and its distance before the packet, in bytes.
const DESCRIPTOR: usize = 32;
const BEFORE: usize = 64;

/// Engine's address of the arena's first byte. Not 0, so that offsets and addresses cannot be confused.
const BIAS: u64 = 1 << 32;

/// log2 of the number of commands in a channel's ring, and a command's size in bytes.
const RING_LOG: u32 = 7;
const COMMAND: usize = 8;

/// Maximum number of clocks simulated in a turn.
const CLOCKS: u64 = 20_000;

/// Driver's state of one channel.
struct Lane {
    /// Index of the first cell of the channel's pool in `Engine::cells`, and its address in the arena.
    first: usize,
    base: u64,
    /// Index of the cell of the next packet.
    next: usize,
    /// Sequence number of the last packet received.
    seq: u32,
    /// Buffer with the ring of commands.
    ring: Option<Frame>,
    /// Commands written, commands that the engine has been told of, and commands that it is known to have taken.
    commands: u32,
    told: u32,
    taken: u32,
    dropped: u32,
}

/// Engine with its driver.
pub struct Engine {
    sim: Simulator,
    arena: Arc<Arena>,
    /// Frame of every cell of the channels' pools, or `None` while a thread holds it.
    cells: Vec<Option<Frame>>,
    lanes: Vec<Lane>,
    /// Number of cells in a pool.
    pool: usize,
    ports: usize,
    waiting: u64,
}

fn refused(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why)
}

impl Engine {
    /// Starts the simulation `program` as the engine of `pools`. Errors if the engine's parameters do not match
    /// `config`, `ports` or the pools.
    pub fn start(program: &Path, config: &Config, ports: usize, pools: &Arc<PoolSet>) -> io::Result<Self> {
        let arena = pools.arena().clone();
        let mut sim = Simulator::start(program, arena.fd(), arena.mapped(), BIAS)?;
        let id = sim.read(regs::ID)?;
        if id != 0x4259_574e << 32 | u64::from(regs::VERSION) {
            return Err(refused(format!(
                "register ID is {id:#x}, not that of an engine with register map version {}",
                regs::VERSION
            )));
        }
        let params = sim.read(regs::PARAMS)?;
        let param = |field: Field| field.of(params) as usize;
        let shared = pools.pools().len() == 2 && config.channels > 1;
        let fits = [
            ("number of threads", config.channels <= param(regs::PARAMS_THREADS)),
            ("number of ports", ports <= param(regs::PARAMS_PORTS)),
            ("pool for all threads", shared == (param(regs::PARAMS_SHARED) == 1) || config.channels == 1),
            ("cell size", arena.cell_size() == 1 << param(regs::PARAMS_UNIT_LOG)),
            ("headroom", DATA_OFFSET == param(regs::PARAMS_DATA_OFFSET)),
        ];
        if let Some((what, _)) = fits.iter().find(|(_, fits)| !fits) {
            return Err(refused(format!("the engine was built with a different {what}: PARAMS is {params:#x}")));
        }
        let mut engine = Self {
            sim,
            arena,
            cells: vec![],
            lanes: vec![],
            pool: pools.pools()[1].config().frames,
            ports,
            waiting: 0,
        };
        let (block, most) = (1usize << param(regs::PARAMS_UNITS_LOG), 1usize << param(regs::PARAMS_BLOCKS_LOG));
        for pool in 1..pools.pools().len() {
            // Each channel of a pool can hold one block back: the block of its next cell.
            let least = if shared { config.channels + 1 } else { 2 };
            engine.post(pools, pool, block, least..=most)?;
        }
        let mut control = regs::CTRL_CHANNELS.put(config.channels as u64);
        control |= regs::CTRL_BY_PORT.put(u64::from(config.dispatch == Dispatch::ByPort));
        for port in 0..ports {
            engine.sim.write(regs::PORT_MAP + 8 * port as u32, (port % config.channels) as u64)?;
        }
        // Set the channels up first: each one's first cell must be read before a packet can arrive.
        for channel in 0..config.channels {
            let own = if shared { 0 } else { channel };
            let (first, base) = (engine.lanes[own].first, engine.lanes[own].base);
            if channel >= engine.lanes.len() {
                engine.lanes.push(Lane::new(first, base));
            }
            engine.sim.write(regs::BASE + 8 * channel as u32, BIAS + base)?;
            engine.begin_ring(channel, &mut Buffers::attach(pools, 0))?;
        }
        engine.sim.write(regs::CTRL, control)?;
        engine.sim.run(1000, |_, _| {})?;
        for channel in 0..config.channels {
            let next = engine.sim.read(regs::NEXT + 8 * channel as u32)?;
            if regs::NEXT_VALID.of(next) == 0 {
                return Err(refused(format!("channel {channel} has no free cell: its pool needs two blocks or more")));
            }
            engine.lanes[channel].next = engine.lanes[channel].first + regs::NEXT_UNIT.of(next) as usize;
        }
        engine.sim.write(regs::CTRL, control | regs::CTRL_ENABLE.put(1))?;
        Ok(engine)
    }

    /// Allocates all cells of a pool and posts its blocks to the engine.
    fn post(
        &mut self,
        pools: &Arc<PoolSet>,
        pool: usize,
        block: usize,
        blocks: RangeInclusive<usize>,
    ) -> io::Result<()> {
        let (least, most) = blocks.into_inner();
        let wanted = pools.pools()[pool].config().frames;
        let mut bufs = Buffers::attach(pools, pool);
        let mut frames: Vec<Frame> = std::iter::from_fn(|| bufs.alloc_one()).take(wanted).collect();
        frames.sort_by_key(Frame::addr);
        let base = frames.first().map_or(0, |f| f.addr() - DATA_OFFSET as u64);
        let blocks = wanted / block;
        let size = self.arena.cell_size() as u64;
        let whole = frames.iter().zip(0..).all(|(f, n)| f.addr() == base + n * size + DATA_OFFSET as u64);
        let sound = frames.len() == wanted && whole && base.is_multiple_of(4096) && wanted.is_multiple_of(block);
        if !sound || !(least..=most).contains(&blocks) {
            device::give_back(frames.into_iter(), &mut bufs);
            return Err(refused(format!(
                "pool {pool} must have {least} to {most} whole free blocks of {block} cells for the engine"
            )));
        }
        for frame in &mut frames {
            // A stale descriptor must not be mistaken for a new one.
            let fits = self.arena.push(frame, BEFORE);
            debug_assert!(fits, "headroom is larger");
            self.arena.data_mut(frame)[..DESCRIPTOR].fill(0);
        }
        self.lanes.push(Lane::new(self.cells.len(), base));
        self.cells.extend(frames.into_iter().map(Some));
        for n in 0..blocks {
            let at = regs::POST_POOL.put(pool as u64 - 1) | regs::POST_BLOCK.put(n as u64);
            self.sim.write(regs::POST, at)?;
        }
        Ok(())
    }

    /// Sets up a channel's ring of commands, in a buffer of the device's own pool.
    fn begin_ring(&mut self, channel: usize, bufs: &mut Buffers) -> io::Result<()> {
        let mut ring = bufs.alloc_one().ok_or_else(|| refused("the device's own pool is empty".into()))?;
        let fits = self.arena.resize(&mut ring, COMMAND << RING_LOG);
        debug_assert!(fits, "half a cell");
        let at = BIAS + ring.addr();
        self.lanes[channel].ring = Some(ring);
        self.sim.write(regs::RING + 8 * channel as u32, at | regs::RING_LOG.put(RING_LOG.into()))
    }

    /// Returns whether received packets are still queued in the engine; more would only wait.
    pub fn behind(&self) -> bool {
        self.waiting > 0
    }

    /// Passes a packet received by `port` to the engine.
    pub fn receive(&mut self, port: usize, packet: &[u8]) -> io::Result<()> {
        self.sim.receive(port as u8, packet)
    }

    /// Tells the engine of new commands and runs it; `sent` is called with the port and bytes of each packet that
    /// leaves.
    pub fn run(&mut self, sent: impl FnMut(u8, &[u8])) -> io::Result<()> {
        for (channel, lane) in self.lanes.iter_mut().enumerate().filter(|(_, lane)| lane.told != lane.commands) {
            let count = regs::DOORBELL_COUNT.put(lane.commands.into());
            self.sim.write(regs::DOORBELL + 8 * channel as u32, count)?;
            lane.told = lane.commands;
        }
        self.waiting = self.sim.run(CLOCKS, sent)?;
        Ok(())
    }

    /// Returns the next packet that the engine has given to a channel, with its descriptor in the metadata.
    pub fn poll(&mut self, channel: usize) -> Option<Frame> {
        let lane = &mut self.lanes[channel];
        let slot = &mut self.cells[lane.next];
        let frame = slot.as_mut()?;
        self.arena.reset(frame);
        let fits = self.arena.push(frame, BEFORE);
        debug_assert!(fits, "headroom is larger");
        let bytes: [u8; DESCRIPTOR] = self.arena.data(frame)[..DESCRIPTOR].try_into().expect("32 of 64 bytes");
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 of 32 bytes"));
        let (about, seq) = (word(24) as u32, (word(24) >> 32) as u32);
        if seq != lane.seq.wrapping_add(1) || (about >> 24) as usize != channel {
            return None;
        }
        let mut frame = slot.take()?;
        let (len, port) = (about & 0xffff, (about >> 16) as u8);
        self.arena.reset(&mut frame);
        let fits = self.arena.resize(&mut frame, len as usize);
        debug_assert!(fits, "the engine drops what is too long");
        let next = word(8) - BIAS;
        Descriptor { next: Some(next + DATA_OFFSET as u64), len, port: u16::from(port) }
            .put(self.arena.meta_mut(&mut frame));
        lane.next = lane.first + ((next - lane.base) / self.arena.cell_size() as u64) as usize;
        lane.seq = seq;
        Some(frame)
    }

    /// Returns whether a frame lies in a channel's pool; the engine reads no other memory.
    pub fn owns(&self, channel: usize, frame: &Frame) -> bool {
        // The byte before the data belongs to the cell, even if the frame is empty and at the cell's end.
        let inside = frame.addr().wrapping_sub(1).checked_sub(self.lanes[channel].base);
        let cell = inside.map(|at| at as usize / self.arena.cell_size());
        cell.is_some_and(|cell| cell < self.pool)
    }

    /// Returns whether a channel's ring of commands has room.
    pub fn takes(&mut self, channel: usize) -> io::Result<bool> {
        let lane = &mut self.lanes[channel];
        if lane.commands.wrapping_sub(lane.taken) == 1 << RING_LOG {
            lane.taken = self.sim.read(regs::TAKEN + 8 * channel as u32)? as u32;
        }
        Ok(lane.commands.wrapping_sub(lane.taken) < 1 << RING_LOG)
    }

    /// Writes a command that sends a channel's packet by `port`, or releases it if `None`. The ring must have room, see
    /// [`Engine::takes`].
    pub fn command(&mut self, channel: usize, mut frame: Frame, port: Option<u16>) {
        if frame.len() == 0 {
            // The engine finds the cell by the offset, which may be the cell's end.
            self.arena.reset(&mut frame);
        }
        let lane = &mut self.lanes[channel];
        let offset = frame.addr() - lane.base;
        let mut command = regs::COMMAND_OFFSET.put(offset) | regs::COMMAND_LENGTH.put(frame.len() as u64);
        command |= match port {
            None => regs::COMMAND_DROP.put(1),
            // The engine may have more ports than the device: use one that neither has.
            Some(port) if usize::from(port) >= self.ports => regs::COMMAND_PORT.put(0xff),
            Some(port) => regs::COMMAND_PORT.put(u64::from(port)),
        };
        self.cells[lane.first + (offset / self.arena.cell_size() as u64) as usize] = Some(frame);
        let entry = lane.commands as usize % (1 << RING_LOG) * COMMAND;
        if let Some(ring) = &mut lane.ring {
            self.arena.data_mut(ring)[entry..entry + COMMAND].copy_from_slice(&command.to_le_bytes());
        }
        lane.commands = lane.commands.wrapping_add(1);
    }

    /// Returns the number of packets lost by all channels since the last call because no cell was free.
    pub fn lost(&mut self) -> io::Result<u64> {
        let mut lost = 0;
        for (channel, lane) in self.lanes.iter_mut().enumerate() {
            let dropped = self.sim.read(regs::DROPPED + 8 * channel as u32)? as u32;
            lost += u64::from(dropped.wrapping_sub(lane.dropped));
            lane.dropped = dropped;
        }
        Ok(lost)
    }

    /// Returns the engine's error bits, 0 if there are none.
    pub fn errors(&mut self) -> io::Result<u64> {
        Ok(self.sim.read(regs::STATUS)? & !regs::STATUS_BUSY.put(1))
    }

    /// Returns the number of frames whose cells the engine holds.
    pub fn held(&self) -> usize {
        self.cells.iter().flatten().count() + self.lanes.iter().filter(|lane| lane.ring.is_some()).count()
    }

    /// Ends the engine and frees the frames of its cells and rings.
    pub fn close(self, bufs: &mut Buffers) {
        let rings = self.lanes.into_iter().filter_map(|lane| lane.ring);
        device::give_back(self.cells.into_iter().flatten().chain(rings), bufs);
    }
}

impl Lane {
    fn new(first: usize, base: u64) -> Self {
        Self { first, base, next: first, seq: 0, ring: None, commands: 0, told: 0, taken: 0, dropped: 0 }
    }
}
