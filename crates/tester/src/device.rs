//! A device under test whose limits are known: to check the tester itself.

use bywash_frame::{Batch, Buffers};
use bywash_port::{Fault, Faults, PairPort, Port, pair};

/// Frames that may be on their way to a port of the device.
const DEPTH: usize = 4096;

/// What it can do, in each direction.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Planted {
    /// Frames a second that it forwards; 0: any.
    pub limit_pps: u64,
    /// Frames that wait for their turn when more come; beyond, they are lost.
    pub buffer: usize,
    /// Every frame leaves this many nanoseconds later.
    pub delay_ns: u64,
    /// Share of frames lost at random.
    pub drop: f64,
    /// Share of frames that come twice.
    pub duplicate: f64,
    /// Share of frames that change places with the one before.
    pub reorder: f64,
}

/// Two ports, and what joins them: frames that come in by one leave by the other.
pub struct Device {
    sides: [Fault<PairPort>; 2],
    /// Forwards nothing until then.
    down_until: u64,
}

impl Device {
    /// A device, and the two ports that it is connected to. It works while it is turned.
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

    /// Loses what comes until then.
    pub fn fail_until(&mut self, until: u64) {
        self.down_until = until;
    }

    /// Moves what may go.
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

    /// Gives every frame back.
    pub fn close(&mut self, bufs: &mut Buffers) {
        self.sides.iter_mut().for_each(|side| side.close(bufs));
    }
}
