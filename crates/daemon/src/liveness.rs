//! Zero-copy ports that no longer receive or send although their interface does.
//!
//! Some drivers leave a zero-copy socket without frames, or keep what it gave them to send, and report no error. Such a
//! port is opened again, in copy mode if that does not help, and otherwise left to the kernel.

use std::time::Duration;

/// Interval between samples.
pub const EVERY: Duration = Duration::from_millis(100);
/// Time without a frame after which a port counts as deaf or mute. A worker that sleeps publishes its figures every
/// 160 ms.
const SILENT: Duration = Duration::from_millis(400);
/// Number of frames that must have arrived by then: single ones may belong to the next sample.
const CAME: u64 = 3;
/// Time without such a frame after which the earlier ones no longer count.
const FORGETS: Duration = Duration::from_secs(5);

/// Figures of a port at one time. All but `waiting` only grow.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// Frames that the interface received, or missed for want of buffers.
    pub arrived: u64,
    /// Frames that the program has seen.
    pub seen: u64,
    /// Frames that the program handed to the sockets.
    pub handed: u64,
    /// Frames that the sockets received.
    pub received: u64,
    /// Frames that found no buffer posted.
    pub no_buffer: u64,
    /// Frames that the device has sent.
    pub sent: u64,
    /// Frames that the device has and has not sent yet.
    pub waiting: u64,
    /// Turns of each worker that polls the port.
    pub turns: Vec<u64>,
    /// Set if the interface is up, with a carrier.
    pub up: bool,
}

/// Fault of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Frames arrive at the interface but not at the sockets.
    Deaf {
        /// The program has handed frames over.
        handed: bool,
    },
    /// The device keeps frames without sending any.
    Mute,
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Deaf { handed: false } => "its interface receives frames, and its sockets none",
            Self::Deaf { handed: true } => "its program hands frames to its sockets, which receive none",
            Self::Mute => "its device keeps the frames to be sent",
        })
    }
}

/// Remedy for a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// The port is opened again as it is configured.
    Reopen,
    /// The port is opened again in copy mode.
    Copy,
    /// The port is opened again as it is configured, and not watched any more: copy mode has the same fault, so that
    /// zero-copy is not the cause.
    Trust,
    /// The port is left to the kernel.
    Leave,
}

/// Observations of a port since it was opened, and the last remedy.
#[derive(Clone, Debug, Default)]
pub struct Life {
    last: Option<Sample>,
    /// Time since the first frame that arrived and was not received, and since the last such frame.
    quiet: Duration,
    since: Duration,
    came: u64,
    handed: u64,
    /// Time for which frames have waited and none was sent.
    stuck: Duration,
    /// Set once the port has worked in the mode that was in doubt.
    settled: bool,
    tried: Option<Remedy>,
}

impl Life {
    /// Returns whether the port is to be watched: it is zero-copy, or has yet to show that it works without.
    pub fn watches(&self, zero_copy: bool) -> bool {
        match self.tried {
            None | Some(Remedy::Reopen) => zero_copy,
            Some(Remedy::Copy) => !self.settled,
            Some(Remedy::Trust | Remedy::Leave) => false,
        }
    }

    /// Adds a sample that was taken `elapsed` after the last one. Returns a fault if there is one.
    pub fn add(&mut self, now: Sample, elapsed: Duration) -> Option<Fault> {
        let last = self.last.replace(now.clone())?;
        // A worker that does not turn neither receives nor frees what has been sent.
        let turned = last.turns.len() == now.turns.len() && last.turns.iter().zip(&now.turns).all(|(a, b)| a != b);
        if !turned || !last.up || !now.up {
            (self.quiet, self.stuck, self.came) = Default::default();
            return None;
        }
        self.settled |= now.received != last.received || now.sent != last.sent;
        // Figures of a new interface, or program, begin anew.
        let handed = now.handed.saturating_sub(last.handed);
        let came = match now.seen.saturating_sub(last.seen) {
            0 => now.arrived.saturating_sub(last.arrived),
            // Frames for the kernel are seen, too, and come to no socket.
            _ => handed,
        };
        let received = now.received != last.received || now.no_buffer != last.no_buffer;
        if received || (came == 0 && now.seen != last.seen) || self.since >= FORGETS {
            (self.quiet, self.since, self.came, self.handed) = Default::default();
        } else if came > 0 || self.came > 0 {
            self.quiet += elapsed;
            self.since = if came > 0 { Duration::ZERO } else { self.since + elapsed };
            self.came += came;
            self.handed += handed;
        }
        self.stuck = if now.waiting == 0 || last.waiting == 0 || now.sent != last.sent {
            Duration::ZERO
        } else {
            self.stuck + elapsed
        };
        if self.quiet >= SILENT && self.came >= CAME {
            return Some(Fault::Deaf { handed: self.handed > 0 });
        }
        (self.stuck >= SILENT).then_some(Fault::Mute)
    }

    /// Returns the remedy for a fault, and begins anew. `copy`: the port may be in copy mode.
    pub fn remedy(&mut self, fault: Fault, copy: bool) -> Remedy {
        let remedy = match self.tried {
            None => Remedy::Reopen,
            Some(Remedy::Reopen) if copy => Remedy::Copy,
            Some(Remedy::Copy) if !matches!(fault, Fault::Deaf { handed: true }) => Remedy::Trust,
            _ => Remedy::Leave,
        };
        *self = Self { tried: Some(remedy), ..Self::default() };
        remedy
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A port whose workers turn, and its figures.
    #[derive(Default)]
    struct Port {
        life: Life,
        now: Sample,
    }

    impl Port {
        fn after(&mut self, change: impl Fn(&mut Sample)) -> Option<Fault> {
            self.now.up = true;
            self.now.turns = vec![self.now.turns.first().map_or(0, |turns| turns + 1)];
            change(&mut self.now);
            self.life.add(self.now.clone(), EVERY)
        }

        /// Applies a change before each of `times` samples. Returns the first fault, and the number of samples until
        /// then.
        fn each(&mut self, times: usize, change: impl Fn(&mut Sample)) -> Option<(usize, Fault)> {
            (1..=times).find_map(|n| self.after(&change).map(|fault| (n, fault)))
        }
    }

    const DEAF: Fault = Fault::Deaf { handed: false };

    #[test]
    fn a_port_that_receives_or_has_nothing_to_receive_is_not_deaf() {
        let mut port = Port::default();
        assert_eq!(port.each(1000, |_| {}), None);
        let receives = |now: &mut Sample| {
            (now.arrived, now.seen, now.handed, now.received) =
                (now.arrived + 1, now.seen + 1, now.handed + 1, now.received + 1)
        };
        assert_eq!(port.each(1000, receives), None);
        // Frames of the kernel's.
        assert_eq!(port.each(1000, |now| (now.arrived, now.seen) = (now.arrived + 9, now.seen + 9)), None);
        // Frames that find no buffer, because the pool is empty.
        assert_eq!(port.each(1000, |now| (now.arrived, now.no_buffer) = (now.arrived + 9, now.no_buffer + 9)), None);
    }

    #[test]
    fn a_deaf_port_is_found_in_half_a_second() {
        let mut port = Port::default();
        assert_eq!(port.after(|_| {}), None);
        assert_eq!(port.each(10, |now| now.arrived += 1), Some((4, DEAF)));
        let mut port = Port::default();
        assert_eq!(port.after(|_| {}), None);
        let handed =
            |now: &mut Sample| (now.arrived, now.seen, now.handed) = (now.arrived + 1, now.seen + 1, now.handed + 1);
        assert_eq!(port.each(10, handed), Some((4, Fault::Deaf { handed: true })));
    }

    #[test]
    fn rare_frames_count_together_and_lonely_ones_do_not() {
        let mut port = Port::default();
        let second = |port: &mut Port| port.each(1, |now| now.arrived += 1).or_else(|| port.each(9, |_| {}));
        assert_eq!((second(&mut port), second(&mut port), second(&mut port)), (None, None, None));
        assert_eq!(second(&mut port), Some((1, DEAF)));
        let mut port = Port::default();
        for _ in 0..10 {
            assert_eq!(port.each(1, |now| now.arrived += 1), None);
            assert_eq!(port.each(60, |_| {}), None);
        }
    }

    #[test]
    fn a_mute_port_is_found() {
        let mut port = Port::default();
        assert_eq!(port.each(100, |now| (now.sent, now.waiting) = (now.sent + 1, 5)), None);
        assert_eq!(port.each(10, |_| {}), Some((4, Fault::Mute)));
        assert_eq!(port.each(1, |now| now.waiting = 0), None);
        assert_eq!(port.each(10, |_| {}), None);
    }

    #[test]
    fn a_port_is_in_no_doubt_while_its_worker_hangs_or_its_link_is_down() {
        let mut port = Port::default();
        let hangs = |now: &mut Sample| (now.turns, now.arrived, now.waiting) = (vec![0], now.arrived + 9, 5);
        assert_eq!(port.each(100, hangs), None);
        let down = |now: &mut Sample| (now.up, now.arrived, now.waiting) = (false, now.arrived + 9, 5);
        assert_eq!(port.each(100, down), None);
    }

    #[test]
    fn remedies_follow_each_other() {
        let all = |fault, copy| {
            let mut life = Life::default();
            let mut watched = vec![];
            let remedies: Vec<Remedy> = (0..3)
                .map(|_| {
                    watched.push(life.watches(true));
                    life.remedy(fault, copy)
                })
                .collect();
            (remedies, watched, life.watches(true))
        };
        assert_eq!(all(DEAF, true), (vec![Remedy::Reopen, Remedy::Copy, Remedy::Trust], vec![true; 3], false));
        assert_eq!(all(Fault::Mute, true).0[2], Remedy::Trust);
        assert_eq!(all(Fault::Deaf { handed: true }, true).0[2], Remedy::Leave);
        assert_eq!(all(DEAF, false).0[1], Remedy::Leave);
        // Copy mode is watched until it has shown that it works.
        let mut port = Port::default();
        let _ = (port.life.remedy(DEAF, true), port.life.remedy(DEAF, true));
        assert!(port.life.watches(false));
        let _ = port.each(2, |now| now.received += 1);
        assert!(!port.life.watches(false));
    }
}
