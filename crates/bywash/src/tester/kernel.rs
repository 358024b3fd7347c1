//! Streams generated in the kernel.

use bywash_port::af_xdp::{LiveOrder, LiveStream};
use bywash_tester::{Length, Sent, Source, Task, Templates};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Maximum delay that is made up for: the kernel pauses for about 20 ms between calls.
const CATCH_UP: Duration = Duration::from_millis(50);

/// Kernel generator on an interface, for the frames of one stream.
pub struct Kernel {
    interface: String,
    stream: LiveStream,
}

impl Kernel {
    /// Sets up the generator.
    pub fn new(interface: &str, templates: &Templates) -> anyhow::Result<Self> {
        let stream = LiveStream::new(interface, &templates.heads(), templates.stamp_at())?;
        Ok(Self { interface: interface.into(), stream })
    }

    /// Returns the number of frames that the device did not accept, from its statistics; 0 if they cannot be read.
    fn dropped(&self) -> u64 {
        let file = format!("/sys/class/net/{}/statistics/tx_dropped", self.interface);
        std::fs::read_to_string(file).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
    }
}

impl Source for Kernel {
    fn send(&mut self, task: &Task, stop: &AtomicBool) -> Result<Sent, String> {
        let (frames, time) = match (task.length, task.pps) {
            (Length::Frames(frames), _) => (frames, Duration::MAX),
            // Frames that are due may be sent a little later.
            (Length::Time(ns), Some(pps)) => ((pps * ns as f64 / 1e9) as u64, Duration::from_nanos(ns) + CATCH_UP),
            (Length::Time(ns), None) => (u64::MAX, Duration::from_nanos(ns)),
        };
        let order = LiveOrder { stream: task.stream, pps: task.pps, catch_up: CATCH_UP, frames, time };
        let before = self.dropped();
        let sent = self.stream.send(&order, stop).map_err(|e| e.to_string())?;
        let refused = self.dropped().saturating_sub(before).min(sent.frames);
        Ok(Sent { frames: sent.frames, time: sent.time, behind: sent.behind, refused })
    }
}
