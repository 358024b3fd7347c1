//! Counters of a device.

use crate::NetDevice;
use libc::{EINVAL, c_int};

/// Packets of a device.
#[repr(C)]
#[derive(Default)]
pub struct NetCounters {
    /// Dispatched to channels.
    pub dispatched: u64,
    /// Sent by ports.
    pub sent: u64,
    /// Released by threads without sending.
    pub released: u64,
    /// Received and dropped because their channel was full.
    pub channel_full: u64,
    /// Received and dropped because no cell was free.
    pub no_buffer: u64,
    /// Dropped on transmit because their port did not take them.
    pub tx_full: u64,
    /// Dropped on transmit because their port does not exist.
    pub no_port: u64,
}

/// Writes the counters of a started device to `counters`. Returns 0, or -EINVAL if the device has not been started.
/// Any thread may call it.
///
/// # Safety
/// `device` is from create_net_device() and has not been destroyed; `counters` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn net_device_counters(device: *const NetDevice, counters: *mut NetCounters) -> c_int {
    // SAFETY: the caller vouches for both.
    let (device, counters) = unsafe { (device.as_ref(), counters.as_mut()) };
    let Some((started, counters)) = device.and_then(|device| device.started.as_ref()).zip(counters) else {
        return -EINVAL;
    };
    let now = started.running.counters();
    *counters = NetCounters {
        dispatched: now.dispatched.get(),
        sent: now.sent.get(),
        released: now.dropped.get(),
        channel_full: now.channel_full.get(),
        no_buffer: now.no_buffer.get(),
        tx_full: now.tx_full.get(),
        no_port: now.no_port.get(),
    };
    0
}
