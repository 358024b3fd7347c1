//! Simulated device under test with known limits, to check the tester itself.

use bywash_frame::{Batch, Buffers};
use bywash_port::{Fault, Faults, PairPort, Port, pair};

/// Maximum number of frames in flight to a port of the device.
const DEPTH: usize = 4096;

/// Properties of the device, in each direction.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Planted {
    /// Forwarding rate in frames per second; 0: unlimited.
    pub limit_pps: u64,
    /// Queue length in frames; frames beyond it are lost.
    pub buffer: usize,
    /// Delay added to every frame, in nanoseconds.
    pub delay_ns: u64,
    /// Share of frames dropped at random.
    pub drop: f64,
    /// Share of frames duplicated.
    pub duplicate: f64,
    /// Share of frames swapped with the previous one.
    pub reorder: f64,
}

/// Two connected ports: frames received by one are sent by the other.
pub struct Device {
    sides: [Fault<PairPort>; 2],
    /// Time in nanoseconds until which nothing is forwarded.
    down_until: u64,
}

impl Device {
    /// Creates a device, and the two ports connected to it. It forwards only while [`Device::turn`] is called.
    pub fn new(planted: Planted, seed: u64) -> (Self, PairPort, PairPort) {
        let faults = Faults {
            limit_pps: planted.limit_pps,
            queue: planted.buffer,
            delay_ns: planted.delay_ns,
            drop: planted.drop,
            duplicate: planted.duplicate,
            reorder: planted.reorder,
            ..Faults::default()
        };
        let side = |n| {
            let (near, far) = pair(DEPTH);
            (near, Fault::new(far, seed ^ n, faults, Faults::default()))
        };
        let ((a, left), (b, right)) = (side(0), side(1));
        (Self { sides: [left, right], down_until: 0 }, a, b)
    }

    /// Drops received frames until the time `until`, in nanoseconds.
    pub fn fail_until(&mut self, until: u64) {
        self.down_until = until;
    }

    /// Forwards the frames that are due.
    #[inline]
    pub fn turn(&mut self, bufs: &mut Buffers, now: u64) {
        for (from, to) in [(0, 1), (1, 0)] {
            let mut batch = Batch::new();
            if self.sides[from].rx_burst(bufs, &mut batch) > 0 {
                if now >= self.down_until {
                    self.sides[to].tx_burst(bufs, &mut batch);
                }
                bufs.free(&mut batch);
            }
            self.sides[from].housekeep(bufs);
        }
    }

    /// Frees every frame and closes the ports.
    pub fn close(&mut self, bufs: &mut Buffers) {
        self.sides.iter_mut().for_each(|side| side.close(bufs));
    }
}
