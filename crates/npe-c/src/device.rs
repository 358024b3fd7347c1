//! Devices: creating, starting and destroying them.

use crate::error;
use bywash_frame::{Arena, ArenaConfig, BLOCK, Batch, Buffers, Frame, PoolKind, PoolSet};
use bywash_port::Port;
use bywash_port::npe::{self, CHANNELS, Channel, Config, Dispatch, Running};
use libc::c_int;
use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::sync::Arc;

/// Packets go to the channels in turn.
pub const DISP_ROUND_ROBIN: u32 = 0;
/// Packets go to the channel with the number of their port, modulo the number of channels.
pub const DISP_BY_PORT: u32 = 1;

/// Blocks of each channel, as in the paper: 16 of 1,024 packets of 2 KiB.
const BLOCKS: usize = 16;

/// Dispatching device: distributes the packets that its ports receive over channels, one for each thread.
pub struct NetDevice {
    config: Config,
    /// Ports added so far; empty once started.
    pub(crate) ports: Vec<Box<dyn Port>>,
    pub(crate) started: Option<Started>,
}

/// Device that runs.
pub struct Started {
    pub(crate) pools: Arc<PoolSet>,
    /// Each used by the one thread that receives from it.
    pub(crate) lanes: Box<[UnsafeCell<Lane>]>,
    /// Frame of each cell whose packet the program has, used by the thread that has it.
    pub(crate) held: Box<[UnsafeCell<Option<Frame>>]>,
    pub(crate) running: Running,
}

/// Channel, with the packets polled from it and not yet received by the program.
pub struct Lane {
    pub(crate) channel: Channel,
    batch: Batch,
    polled: VecDeque<Frame>,
}

impl Lane {
    pub(crate) fn receive(&mut self) -> Option<Frame> {
        if self.polled.is_empty() {
            self.channel.poll(&mut self.batch);
            self.polled.extend(self.batch.drain());
        }
        self.polled.pop_front()
    }
}

impl NetDevice {
    fn start(&mut self) -> Result<(), String> {
        if self.started.is_some() {
            return Err("the device has been started already".into());
        }
        let layout = self.config.layout(PoolKind::Tabm, BLOCKS * BLOCK, BLOCK);
        let cells = layout.iter().map(|pool| pool.frames).sum();
        let arena = Arena::new(ArenaConfig { cells, ..Default::default() }).map_err(|why| why.to_string())?;
        let pools = PoolSet::new(arena, &layout).map_err(|why| why.to_string())?;
        let ports = std::mem::take(&mut self.ports);
        let (device, channels) = npe::create(self.config, ports, &pools).map_err(|why| why.to_string())?;
        let running = device.start(None).map_err(|why| format!("cannot start the device's thread: {why}"))?;
        let lane =
            |channel| Lane { channel, batch: Batch::new(), polled: VecDeque::with_capacity(bywash_frame::BATCH) };
        self.started = Some(Started {
            lanes: channels.into_iter().map(|channel| UnsafeCell::new(lane(channel))).collect(),
            held: (0..cells).map(|_| UnsafeCell::new(None)).collect(),
            pools,
            running,
        });
        Ok(())
    }
}

impl Started {
    /// Ends the device; returns the number of packets that the program still had.
    fn close(self) -> usize {
        let Self { pools, lanes, held, running } = self;
        drop(running);
        let mut bufs = Buffers::attach(&pools, 0);
        for lane in lanes {
            lane.into_inner().polled.into_iter().for_each(|frame| bufs.free_one(frame));
        }
        let kept = held.into_iter().filter_map(UnsafeCell::into_inner);
        kept.map(|frame| bufs.free_one(frame)).count()
    }
}

/// Creates a device with `dma_cnt` channels, 1 to 16, one for each of the program's threads. `disp_mode` selects the
/// channel of a packet: DISP_ROUND_ROBIN or DISP_BY_PORT. Returns NULL on failure, with the reason in
/// net_device_error().
///
/// Add its ports next, then start it.
#[unsafe(no_mangle)]
pub extern "C" fn create_net_device(dma_cnt: u32, disp_mode: u32) -> *mut NetDevice {
    let channels = dma_cnt as usize;
    let dispatch = match disp_mode {
        DISP_ROUND_ROBIN => Dispatch::RoundRobin,
        DISP_BY_PORT => Dispatch::ByPort,
        other => {
            let why = format!("no such dispatch mode: {other}; expected DISP_ROUND_ROBIN (0) or DISP_BY_PORT (1)");
            error::keep("create_net_device", why);
            return std::ptr::null_mut();
        }
    };
    if !CHANNELS.contains(&channels) {
        error::keep("create_net_device", npe::Error::Channels(channels));
        return std::ptr::null_mut();
    }
    let config = Config { channels, dispatch, ..Config::default() };
    Box::into_raw(Box::new(NetDevice { config, ports: vec![], started: None }))
}

/// Starts a device: from now on it receives. Its thread also sends and takes buffers back. Each channel gets 32 MiB
/// of memory. Returns 0, or -1 on failure, with the reason in net_device_error().
///
/// # Safety
/// `device` is from create_net_device() and has not been destroyed, and no other thread uses it yet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn start_net_device(device: *mut NetDevice) -> c_int {
    // SAFETY: the caller vouches for the device.
    let Some(device) = (unsafe { device.as_mut() }) else {
        error::keep("start_net_device", "no device");
        return -1;
    };
    match device.start() {
        Ok(()) => 0,
        Err(why) => {
            error::keep("start_net_device", why);
            -1
        }
    }
}

/// Ends a device once it has sent what it took over, and frees its memory. Returns the number of packets that the
/// program received and neither sent nor released; their pointers are invalid now, as is `device`. NULL is ignored.
///
/// # Safety
/// `device` is from create_net_device() and has not been destroyed, and no other thread uses it any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn destroy_net_device(device: *mut NetDevice) -> usize {
    if device.is_null() {
        return 0;
    }
    // SAFETY: the caller vouches that the device came from `Box::into_raw` and nobody else uses it.
    let device = unsafe { Box::from_raw(device) };
    device.started.map_or(0, Started::close)
}
