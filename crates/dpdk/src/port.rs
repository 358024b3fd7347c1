//! One queue of a DPDK device as a port.

use crate::cells;
use crate::eal::Eal;
use crate::ffi::{self, Call, Device};
use bywash_frame::{Batch, Buffers};
use bywash_port::{Port, PortCounters, PortState};
use bywash_sync::lock;
use std::ffi::{CStr, CString, c_char};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering};

/// Configuration of a device.
#[derive(Clone, Debug)]
pub struct DpdkConfig {
    /// DPDK's name for the device, with arguments: `net_tap0,iface=dtap0`, `0000:03:00.0`.
    pub devargs: String,
    /// Number of queues in each direction.
    pub queues: u16,
    /// Descriptors of each ring; the driver may adjust the number.
    pub descriptors: u16,
    /// MTU in bytes; `None` leaves the device's own.
    pub mtu: Option<u16>,
}

impl DpdkConfig {
    /// Returns a configuration for `devargs` with one queue and 1024 descriptors.
    pub fn new(devargs: &str) -> Self {
        Self { devargs: devargs.into(), queues: 1, descriptors: 1024, mtu: None }
    }

    /// Returns the device's name: `devargs` up to the first comma.
    pub fn name(&self) -> &str {
        self.devargs.split(',').next().unwrap_or_default()
    }
}

/// Error of [`DpdkPort::open`].
#[derive(Debug, thiserror::Error)]
pub enum DpdkError {
    /// Devargs without a name or with a NUL byte.
    #[error("`{0}` is not a device's name and arguments")]
    Devargs(String),
    /// Unsupported number of queues.
    #[error("device {device} ({driver}) supports 1 to {most} queues each way, not {queues}")]
    Queues {
        /// Name of the device.
        device: String,
        /// Name of its driver.
        driver: String,
        /// Maximum number of queues.
        most: u16,
        /// Number of queues requested.
        queues: u16,
    },
    /// Failed setup step; DPDK logs the details.
    #[error("device {device}: DPDK cannot {step}: {source} (see DPDK's messages in the log)")]
    Device {
        /// Name of the device.
        device: String,
        /// Step that failed.
        step: String,
        /// Error returned by DPDK.
        source: std::io::Error,
    },
    /// Device that another port uses.
    #[error("device {0} is already in use by another port")]
    InUse(String),
}

/// State shared by all queues of a device.
struct Shared {
    eal: Arc<Eal>,
    name: String,
    device: Device,
    /// Number of queues that are not closed.
    open: AtomicUsize,
    /// Cells that the driver holds and that no queue accounts for.
    held: AtomicI64,
    copied: AtomicU64,
    lost: AtomicU64,
}

/// Queue of a DPDK device.
///
/// Frames are not copied: their cells are the driver's buffers. With a driver that requires memory of its own, frames
/// are copied, and [`Port::details`] reports it.
///
/// # Thread-safety
/// Used by one worker.
pub struct DpdkPort {
    shared: Arc<Shared>,
    queue: u16,
    /// Cells that the driver took in calls to this queue, less those that it freed. A device may take in one queue and
    /// free in another, so this can be negative.
    held: i64,
    closed: bool,
    idle: u32,
    /// Size of the last received burst.
    last: u16,
    counters: Arc<PortCounters>,
}

/// Names of the open devices.
static OPEN: std::sync::Mutex<Vec<String>> = std::sync::Mutex::new(Vec::new());

/// Drivers that require a mempool with a memory layout of their own.
const OWN_MEMORY: [&str; 1] = ["net_af_xdp"];

/// Turns of the worker between two requests to the driver to free sent frames.
const RECLAIM: u32 = 64;

impl DpdkPort {
    /// Opens a device and returns its queues, in order.
    pub fn open(eal: &Arc<Eal>, config: &DpdkConfig) -> Result<Vec<Self>, DpdkError> {
        let name = config.name().to_owned();
        let c_string = |s: &str| CString::new(s).map_err(|_| DpdkError::Devargs(config.devargs.clone()));
        let (devargs, c_name) = (c_string(&config.devargs)?, c_string(&name)?);
        if name.is_empty() {
            return Err(DpdkError::Devargs(config.devargs.clone()));
        }
        let mut open = lock(&OPEN);
        if open.contains(&name) {
            return Err(DpdkError::InUse(name));
        }
        let mut device = Device {
            queues: config.queues,
            descriptors: config.descriptors,
            mtu: config.mtu.unwrap_or(0),
            ..Device::default()
        };
        let mut failed: *const c_char = std::ptr::null();
        let error = |rc: i32, failed: *const c_char| DpdkError::Device {
            device: name.clone(),
            // SAFETY: the shim sets it to a string constant before any step that can fail.
            step: unsafe { CStr::from_ptr(failed) }.to_string_lossy().into_owned(),
            source: std::io::Error::from_raw_os_error(-rc),
        };
        // SAFETY: NUL-terminated strings and writable places, all of which outlive the call.
        let rc = unsafe { ffi::bywash_dpdk_probe(devargs.as_ptr(), c_name.as_ptr(), &mut device, &mut failed) };
        if rc < 0 {
            return Err(error(rc, failed));
        }
        let driver = driver(&device);
        if config.queues == 0 || config.queues > device.most_queues {
            let most = device.most_queues;
            // SAFETY: the device was found, and no port uses it.
            unsafe { ffi::bywash_dpdk_close(device.port, std::ptr::null_mut()) };
            return Err(DpdkError::Queues { device: name, driver, most, queues: config.queues });
        }
        device.copies = OWN_MEMORY.contains(&driver.as_str());
        // SAFETY: no other port uses the device (`OPEN`).
        let (rc, held) = cells::alone(|| unsafe { ffi::bywash_dpdk_open(&mut device, &mut failed) });
        if rc < 0 {
            // SAFETY: no other port uses the device; this removes what was set up.
            unsafe { ffi::bywash_dpdk_close(device.port, std::ptr::null_mut()) };
            return Err(error(rc, failed));
        }
        open.push(name.clone());
        let shared = Arc::new(Shared {
            eal: eal.clone(),
            name,
            open: AtomicUsize::new(device.queues.into()),
            held: AtomicI64::new(held),
            copied: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            device,
        });
        let end = |queue| Self {
            shared: shared.clone(),
            queue,
            held: 0,
            closed: false,
            idle: 0,
            last: 0,
            counters: Arc::default(),
        };
        Ok((0..shared.device.queues).map(end).collect())
    }

    /// Returns the device's MAC address; all zeros if it has none.
    pub fn mac(&self) -> [u8; 6] {
        self.shared.device.mac
    }

    /// Returns the name of the device's driver.
    pub fn driver(&self) -> String {
        driver(&self.shared.device)
    }

    /// Sets whether received mbufs are read a whole line at once, which needs AVX-512. Returns false if the processor
    /// does not have it. For tests: it is set if the processor has it.
    #[doc(hidden)]
    pub fn read_lines(on: bool) -> bool {
        ffi::bywash_dpdk_lines(on)
    }

    /// Returns the reason for which frames are copied. `None` if they are not.
    pub fn copies(&self) -> Option<&'static str> {
        self.shared.device.copies.then_some("the driver receives only into memory with its own layout")
    }
}

/// Meaning of a bit mask.
#[derive(Clone, Copy)]
enum What {
    Rss,
    Rx,
    Tx,
}

/// Returns DPDK's names of `bits`, in the spelling of `show`.
fn names(what: What, bits: u64) -> String {
    // SAFETY: `at` has `room` bytes.
    let names = text(2048, |at, room| unsafe { ffi::bywash_dpdk_names(what as u32, bits, at, room) });
    if names.is_empty() { "none".into() } else { names.to_lowercase().replace('_', "-") }
}

/// Returns a text of at most `room` bytes written by `write`, which returns its length.
fn text(room: usize, write: impl FnOnce(*mut c_char, usize) -> i32) -> String {
    let mut text = vec![0u8; room];
    let len = write(text.as_mut_ptr().cast(), room);
    text.truncate(len.max(0) as usize);
    String::from_utf8_lossy(&text).into_owned()
}

fn driver(device: &Device) -> String {
    let end = device.driver.iter().position(|b| *b == 0).unwrap_or(device.driver.len());
    String::from_utf8_lossy(&device.driver[..end]).into_owned()
}

/// Closes the device if no worker closed the port.
impl Drop for DpdkPort {
    fn drop(&mut self) {
        if self.closed {
            return;
        }
        let shared = &self.shared;
        if shared.open.fetch_sub(1, Ordering::AcqRel) == 1 {
            // SAFETY: no queue of the device is open any more.
            cells::alone(|| unsafe { ffi::bywash_dpdk_close(shared.device.port, std::ptr::null_mut()) });
            lock(&OPEN).retain(|name| *name != shared.name);
        }
    }
}

impl Port for DpdkPort {
    #[inline]
    fn rx_burst(&mut self, bufs: &mut Buffers, out: &mut Batch) -> usize {
        if self.closed {
            return 0;
        }
        let (port, queue, most, last) = (self.shared.device.port, self.queue, out.room() as u16, self.last);
        let frames = out.spare().as_mut_ptr().cast();
        let mut call = Call::default();
        // SAFETY: an open queue that only this worker uses; `frames` has room for `most` frames.
        let (n, more) = cells::with(bufs, &mut call, |call| unsafe {
            ffi::bywash_dpdk_rx(port, queue, frames, most, most.min(last), call)
        });
        self.last = n;
        let n = usize::from(n);
        self.held += more - n as i64;
        if n == 0 && call.lost == 0 {
            return 0;
        }
        // SAFETY: the shim has written them; the driver took their cells from the pool and has handed them over, the
        // data lie in them, and the mbufs of those that are `NOTED` say the same.
        unsafe { out.append(n) };
        self.counters.rx_packets.add(n as u64);
        self.counters.rx_bytes.add(call.bytes);
        if call.copied + call.lost > 0 {
            self.shared.copied.fetch_add(call.copied, Ordering::Relaxed);
            self.shared.lost.fetch_add(call.lost, Ordering::Relaxed);
            self.counters.rx_no_buffer.add(call.lost);
        }
        n
    }

    #[inline]
    fn tx_burst(&mut self, bufs: &mut Buffers, frames: &mut Batch) -> usize {
        if self.closed || frames.is_empty() {
            return 0;
        }
        let (port, queue, n) = (self.shared.device.port, self.queue, frames.len());
        let raw = frames.as_slice().as_ptr().cast();
        let mut call = Call::default();
        let (sent, more) = cells::with(bufs, &mut call, |call| {
            // SAFETY: an open queue that only this worker uses; the caller owns the frames, which have the layout of
            // their descriptors, and those that are sent leave the batch below. Nobody but a call like this, or a
            // driver, writes the mbuf of a cell, so it says what it did when a `NOTED` frame was received.
            unsafe { ffi::bywash_dpdk_tx(port, queue, raw, n as u16, call) }
        });
        let sent = usize::from(sent);
        self.held += more + sent as i64;
        if sent < n {
            self.counters.tx_full.add(1);
        }
        frames.take_front(sent, |_, _| {});
        self.counters.tx_packets.add(sent as u64);
        self.counters.tx_bytes.add(call.bytes);
        sent
    }

    fn housekeep(&mut self, bufs: &mut Buffers) {
        if bufs.recalls() {
            // SAFETY: touches the cache of this thread only.
            let settle = |call: &mut Call| unsafe { ffi::bywash_dpdk_settle(call) };
            let ((), more) = cells::with(bufs, &mut Call::default(), settle);
            self.held += more;
        }
        self.idle += 1;
        if self.closed || self.held <= 0 || self.idle < RECLAIM {
            return;
        }
        self.idle = 0;
        let (port, queue) = (self.shared.device.port, self.queue);
        // SAFETY: an open queue that only this worker uses.
        let reclaim = |call: &mut Call| unsafe { ffi::bywash_dpdk_reclaim(port, queue, call) };
        let (_, more) = cells::with(bufs, &mut Call::default(), reclaim);
        self.held += more;
    }

    fn held(&self) -> usize {
        let common = if self.queue == 0 && !self.closed { self.shared.held.load(Ordering::Relaxed) } else { 0 };
        (self.held + common).max(0) as usize
    }

    fn state(&self) -> PortState {
        if self.closed {
            return PortState::Down("closed".into());
        }
        // SAFETY: an open device.
        match unsafe { ffi::bywash_dpdk_link(self.shared.device.port) } {
            0 => PortState::Down("the link is down".into()),
            1 => PortState::Up,
            _ => PortState::Down("the device was unplugged".into()),
        }
    }

    fn max_frame(&self) -> usize {
        self.shared.device.max_frame as usize
    }

    fn counters(&self) -> Arc<PortCounters> {
        self.counters.clone()
    }

    fn details(&self) -> Vec<(&'static str, String)> {
        let shared = &self.shared;
        let device = &shared.device;
        let mac: Vec<String> = device.mac.iter().map(|b| format!("{b:02x}")).collect();
        let mut details = vec![
            ("device", shared.name.clone()),
            ("driver", driver(device)),
            ("queue", self.queue.to_string()),
            ("mac", mac.join(":")),
            ("mtu", device.mtu.to_string()),
            ("descriptors", device.descriptors.to_string()),
            ("mode", if device.copies { "copy" } else { "zero-copy" }.into()),
            ("rss", names(What::Rss, device.rss)),
            ("rx_offloads", names(What::Rx, device.rx_offloads)),
            ("tx_offloads", names(What::Tx, device.tx_offloads)),
            ("offloads_used", names(What::Tx, device.used)),
        ];
        if !self.closed {
            // SAFETY: an open device.
            let speed = unsafe { ffi::bywash_dpdk_speed(device.port) };
            if speed > 0 {
                details.push(("speed", format!("{speed} Mb/s")));
            }
        }
        let copied = shared.copied.load(Ordering::Relaxed);
        if copied > 0 {
            details.push(("copied", copied.to_string()));
        }
        if let Some(why) = self.copies() {
            details.push(("why", why.into()));
        }
        if let Some(note) = shared.eal.note() {
            details.push(("note", note.into()));
        }
        if self.queue == 0 && !self.closed {
            // SAFETY: an open device; `at` has `room` bytes.
            let xstats = text(8192, |at, room| unsafe { ffi::bywash_dpdk_xstats(device.port, at, room) });
            details.push(("xstats", xstats));
        }
        details
    }

    fn close(&mut self, bufs: &mut Buffers) {
        if std::mem::replace(&mut self.closed, true) {
            return;
        }
        let shared = &self.shared;
        if shared.open.fetch_sub(1, Ordering::AcqRel) > 1 {
            // SAFETY: touches the cache of this thread only. It keeps nothing, as this may be the worker's last port.
            let ((), more) = cells::with(bufs, &mut Call::default(), |call| unsafe {
                call.keep = 0;
                ffi::bywash_dpdk_settle(call);
            });
            self.held += more;
            // The queue closed last frees the cells of the whole device.
            shared.held.fetch_add(self.held, Ordering::Relaxed);
            self.held = 0;
            return;
        }
        // SAFETY: no other queue of the device is open any more.
        let close = |call: &mut Call| unsafe { ffi::bywash_dpdk_close(shared.device.port, call) };
        let ((), more) = cells::with(bufs, &mut Call::default(), close);
        self.held += more + shared.held.swap(0, Ordering::Relaxed);
        lock(&OPEN).retain(|name| *name != shared.name);
    }
}
