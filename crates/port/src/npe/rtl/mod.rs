//! The engine in hardware (docs/rtl.md), simulated: what a driver of it does.
//!
//! All cells of the channels' pools are the engine's from the start: it gives a packet its cell, and counts what comes
//! back. The frames of cells that it has lie here until a packet is found in one.

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

/// Bytes of a descriptor, and how far before the packet it lies.
const DESCRIPTOR: usize = 32;
const BEFORE: usize = 64;

/// The address that the engine has for the memory's first byte: not 0, so that an offset is never taken for one.
const BIAS: u64 = 1 << 32;

/// Clocks of a turn, at most.
const CLOCKS: u64 = 20_000;

/// A thread's end, as the driver sees it.
struct Lane {
    /// Index of its pool's first cell in `Engine::cells`, and its address in the arena.
    first: usize,
    base: u64,
    /// Index of the cell in which the next packet will lie.
    next: usize,
    /// Number of the packet that was found last.
    seq: u32,
    /// Commands written, and those that the engine is known to have taken.
    commands: u32,
    taken: u32,
    dropped: u32,
}

/// The engine and its driver.
pub struct Engine {
    sim: Simulator,
    arena: Arc<Arena>,
    /// Of every cell of the channels' pools: its frame, unless a thread has it.
    cells: Vec<Option<Frame>>,
    lanes: Vec<Lane>,
    depth: u32,
    ports: usize,
    waiting: u64,
}

fn refused(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why)
}

impl Engine {
    /// Starts `program` as the engine of `pools`, with `config`.
    pub fn start(program: &Path, config: &Config, ports: usize, pools: &Arc<PoolSet>) -> io::Result<Self> {
        let arena = pools.arena().clone();
        let mut sim = Simulator::start(program, arena.fd(), arena.mapped(), BIAS)?;
        let id = sim.read(regs::ID)?;
        if id != 0x4259_574e << 32 | u64::from(regs::VERSION) {
            return Err(refused(format!("not an engine of version {}: ID is {id:#x}", regs::VERSION)));
        }
        let params = sim.read(regs::PARAMS)?;
        let param = |field: Field| field.of(params) as usize;
        let shared = pools.pools().len() == 2 && config.channels > 1;
        let fits = [
            ("threads", config.channels <= param(regs::PARAMS_THREADS)),
            ("ports", ports <= param(regs::PARAMS_PORTS)),
            ("pool for all threads", shared == (param(regs::PARAMS_SHARED) == 1) || config.channels == 1),
            ("bytes a cell", arena.cell_size() == 1 << param(regs::PARAMS_UNIT_LOG)),
            ("headroom", DATA_OFFSET == param(regs::PARAMS_DATA_OFFSET)),
        ];
        if let Some((what, _)) = fits.iter().find(|(_, fits)| !fits) {
            return Err(refused(format!("the engine was built with other {what}: PARAMS is {params:#x}")));
        }
        let mut engine = Self {
            sim,
            arena,
            cells: vec![],
            lanes: vec![],
            depth: 1 << param(regs::PARAMS_COMMANDS_LOG),
            ports,
            waiting: 0,
        };
        let (block, most) = (1usize << param(regs::PARAMS_UNITS_LOG), 1usize << param(regs::PARAMS_BLOCKS_LOG));
        for pool in 1..pools.pools().len() {
            // Each channel of a pool may keep one block from coming back: the one of its next cell.
            let least = if shared { config.channels + 1 } else { 2 };
            engine.post(pools, pool, block, least..=most)?;
        }
        let mut control = regs::CTRL_CHANNELS.put(config.channels as u64);
        control |= regs::CTRL_BY_PORT.put(u64::from(config.dispatch == Dispatch::ByPort));
        for port in 0..ports {
            engine.sim.write(regs::PORT_MAP + 8 * port as u32, (port % config.channels) as u64)?;
        }
        // The channels first: what each begins with is read before a packet can come.
        for channel in 0..config.channels {
            let own = if shared { 0 } else { channel };
            let (first, base) = (engine.lanes[own].first, engine.lanes[own].base);
            if channel >= engine.lanes.len() {
                engine.lanes.push(Lane::new(first, base));
            }
            engine.sim.write(regs::BASE + 8 * channel as u32, BIAS + base)?;
        }
        engine.sim.write(regs::CTRL, control)?;
        engine.sim.run(1000, |_, _| {})?;
        for channel in 0..config.channels {
            let next = engine.sim.read(regs::NEXT + 8 * channel as u32)?;
            if regs::NEXT_VALID.of(next) == 0 {
                return Err(refused(format!("channel {channel} has no cell: it needs two blocks")));
            }
            engine.lanes[channel].next = engine.lanes[channel].first + regs::NEXT_UNIT.of(next) as usize;
        }
        engine.sim.write(regs::CTRL, control | regs::CTRL_ENABLE.put(1))?;
        Ok(engine)
    }

    /// Takes a pool's cells and gives its blocks to the engine.
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
                "pool {pool}: the engine takes {least} to {most} whole free blocks of {block} cells"
            )));
        }
        for frame in &mut frames {
            // A descriptor of an earlier use must not be taken for a new one.
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

    /// Whether packets that came in by ports are still on their way: there is no point in more.
    pub fn behind(&self) -> bool {
        self.waiting > 0
    }

    /// A packet has come in by `port`.
    pub fn receive(&mut self, port: usize, packet: &[u8]) -> io::Result<()> {
        self.sim.receive(port as u8, packet)
    }

    /// Lets it work; `sent` gets what leaves, by port.
    pub fn run(&mut self, sent: impl FnMut(u8, &[u8])) -> io::Result<()> {
        self.waiting = self.sim.run(CLOCKS, sent)?;
        Ok(())
    }

    /// The next packet that a channel has been given.
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

    /// Whether a channel can hand something back.
    pub fn takes(&mut self, channel: usize) -> io::Result<bool> {
        let (depth, lane) = (self.depth, &mut self.lanes[channel]);
        if lane.commands.wrapping_sub(lane.taken) == depth {
            lane.taken = self.sim.read(regs::TAKEN + 8 * channel as u32)? as u32;
        }
        Ok(lane.commands.wrapping_sub(lane.taken) < depth)
    }

    /// Takes a packet back from a channel that may hand one back, to send it by `port` or not.
    pub fn command(&mut self, channel: usize, frame: Frame, port: Option<u16>) -> io::Result<()> {
        let lane = &mut self.lanes[channel];
        let offset = frame.addr() - lane.base;
        let mut command = regs::COMMAND_OFFSET.put(offset) | regs::COMMAND_LENGTH.put(frame.len() as u64);
        command |= match port {
            None => regs::COMMAND_DROP.put(1),
            // The engine has more ports than the device: one that it does not have either.
            Some(port) if usize::from(port) >= self.ports => regs::COMMAND_PORT.put(0xff),
            Some(port) => regs::COMMAND_PORT.put(u64::from(port)),
        };
        self.cells[lane.first + (offset / self.arena.cell_size() as u64) as usize] = Some(frame);
        lane.commands = lane.commands.wrapping_add(1);
        self.sim.write(regs::COMMAND + 8 * channel as u32, command)
    }

    /// Packets lost since the last call, by all channels: no cell was free for them.
    pub fn lost(&mut self) -> io::Result<u64> {
        let mut lost = 0;
        for (channel, lane) in self.lanes.iter_mut().enumerate() {
            let dropped = self.sim.read(regs::DROPPED + 8 * channel as u32)? as u32;
            lost += u64::from(dropped.wrapping_sub(lane.dropped));
            lane.dropped = dropped;
        }
        Ok(lost)
    }

    /// Errors that the engine has seen: 0 for none.
    pub fn errors(&mut self) -> io::Result<u64> {
        Ok(self.sim.read(regs::STATUS)? & !regs::STATUS_BUSY.put(1))
    }

    /// Frames of cells that the engine has.
    pub fn held(&self) -> usize {
        self.cells.iter().flatten().count()
    }

    /// Ends it, and gives the frames back that it has.
    pub fn close(self, bufs: &mut Buffers) {
        device::give_back(self.cells.into_iter().flatten(), bufs);
    }
}

impl Lane {
    fn new(first: usize, base: u64) -> Self {
        Self { first, base, next: first, seq: 0, commands: 0, taken: 0, dropped: 0 }
    }
}
