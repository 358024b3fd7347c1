//! Interface to `shim/port.c`.

use bywash_frame::RawFrame;
use std::ffi::{c_char, c_int, c_void};

/// Functions called by the mempool operations and by EAL's log.
#[repr(C)]
pub struct Hooks {
    pub take: extern "C" fn(cells: *mut u32, n: u32) -> c_int,
    pub give: extern "C" fn(cells: *mut u32, n: u32),
    pub count: extern "C" fn() -> u32,
    pub log: extern "C" fn(level: u32, text: *const c_char, len: usize),
}

/// `struct call` of the shim: a worker's call into a driver.
#[repr(C)]
#[derive(Default)]
pub struct Call {
    /// First cell of the worker's own pool, and number of its cells.
    pub first: u32,
    pub count: u32,
    /// Number of free cells that may stay in the cache of the worker's lcore.
    pub keep: u32,
    /// Number of cells in that cache.
    pub kept: u32,
    /// Set if there are other pools.
    pub mixed: bool,
    /// Bytes of the frames received or sent.
    pub bytes: u64,
    /// Received frames that were not in one of the arena's cells: copied, and lost.
    pub copied: u64,
    pub lost: u64,
}

/// `struct device` of the shim.
#[repr(C)]
#[derive(Default)]
pub struct Device {
    pub port: u16,
    pub queues: u16,
    pub descriptors: u16,
    /// In: the requested MTU, 0 for the device's own. Out: the MTU in use.
    pub mtu: u16,
    /// Set if frames are received into DPDK's own memory and copied.
    pub copies: bool,
    pub most_queues: u16,
    pub max_frame: u32,
    pub mac: [u8; 6],
    pub driver: [u8; 32],
    pub rx_offloads: u64,
    pub tx_offloads: u64,
    /// Transmit offloads in use.
    pub used: u64,
    pub rss: u64,
}

unsafe extern "C" {
    pub safe fn bywash_dpdk_version() -> *const c_char;
    pub safe fn bywash_dpdk_built_with() -> *const c_char;
    pub fn bywash_dpdk_start(hooks: *const Hooks, argc: c_int, argv: *mut *mut c_char) -> c_int;
    pub fn bywash_dpdk_stop();
    pub fn bywash_dpdk_arena(at: *mut c_void, count: u32, shift: u32, mapped: usize, page: usize) -> c_int;
    pub fn bywash_dpdk_probe(
        devargs: *const c_char,
        name: *const c_char,
        device: *mut Device,
        failed: *mut *const c_char,
    ) -> c_int;
    pub fn bywash_dpdk_open(device: *mut Device, failed: *mut *const c_char) -> c_int;
    pub fn bywash_dpdk_close(port: u16, call: *mut Call);
    pub fn bywash_dpdk_link(port: u16) -> c_int;
    pub fn bywash_dpdk_names(what: u32, bits: u64, text: *mut c_char, room: usize) -> c_int;
    pub fn bywash_dpdk_speed(port: u16) -> u32;
    pub fn bywash_dpdk_xstats(port: u16, text: *mut c_char, room: usize) -> c_int;
    pub fn bywash_dpdk_rx(port: u16, queue: u16, out: *mut RawFrame, most: u16, expected: u16, call: *mut Call) -> u16;
    pub fn bywash_dpdk_tx(port: u16, queue: u16, frames: *const RawFrame, n: u16, call: *mut Call) -> u16;
    pub fn bywash_dpdk_reclaim(port: u16, queue: u16, call: *mut Call) -> c_int;
    pub fn bywash_dpdk_settle(call: *mut Call);
    pub safe fn bywash_dpdk_lines(on: bool) -> bool;
    pub safe fn bywash_dpdk_cached() -> u32;
    pub safe fn bywash_dpdk_restore(n: u32);
}
