//! TAP interface beside a port that has no kernel interface of its own: the port's twin in the kernel.

use crate::{Port, PortCounters, PortState, TapPort};
use bywash_frame::{Batch, Buffers};
use bywash_sync::clock;
use std::sync::Arc;

/// Time between two checks of the port's state in microseconds. (Counted in turns of the worker, which sleeps between
/// them if it is idle, the carrier followed seconds late.)
const ASK_US: u64 = 10_000;

const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;
const ICMPV6: u8 = 58;
/// ICMPv6 types of neighbour discovery, router solicitation to redirect (RFC 4861, 4.1 to 4.5).
const NEIGHBOUR_DISCOVERY: std::ops::RangeInclusive<u8> = 133..=137;

/// Port with a twin. Received frames that belong to the kernel whatever the routes are (ARP, neighbour discovery,
/// multicast, anything but IP) are passed to the twin at once; the twin's carrier follows the port's state.
///
/// The other direction is [`TwinPort::from_kernel`], a port of its own: a worker receives from it what the kernel sends
/// on the twin, and sends that on this port.
///
/// # Thread-safety
/// Both ends belong to one worker.
pub struct TwinPort {
    wire: Box<dyn Port>,
    kernel: TapPort,
    /// Counters of the [`TwinPort::from_kernel`] end, if it was made from this port.
    sent: Option<Arc<PortCounters>>,
    /// Frames that the twin's queue did not take.
    lost: u64,
    /// Received frames not yet sorted; empty between calls.
    got: Batch,
    carrier: Option<bool>,
    /// Time of the last check in TSC ticks, and the time between two.
    asked: u64,
    ask: u64,
}

impl TwinPort {
    /// Returns `wire` with the twin `kernel`.
    pub fn new(wire: Box<dyn Port>, kernel: TapPort) -> Self {
        Self {
            wire,
            kernel,
            sent: None,
            lost: 0,
            got: Batch::new(),
            carrier: None,
            asked: 0,
            ask: clock::us_to_ticks(ASK_US),
        }
    }

    /// Returns the queues of a device, in their order, each sharing the twin `kernel`. Call [`TwinPort::from_kernel`]
    /// on the first.
    ///
    /// # Errors
    /// If the process has no file descriptors left.
    pub fn of_queues(queues: Vec<Box<dyn Port>>, kernel: TapPort) -> std::io::Result<Vec<Self>> {
        let shares = (1..queues.len()).map(|_| kernel.second()).collect::<std::io::Result<Vec<_>>>()?;
        let shares = std::iter::once(kernel).chain(shares);
        Ok(queues.into_iter().zip(shares).map(|(wire, kernel)| Self::new(wire, kernel)).collect())
    }

    /// Returns the port from which a worker receives what the kernel sends on the twin.
    ///
    /// # Errors
    /// If the process has no file descriptors left.
    pub fn from_kernel(&mut self) -> std::io::Result<TapPort> {
        let end = self.kernel.second()?;
        self.sent = Some(end.counters());
        Ok(end)
    }

    /// Returns a port by which a worker sends frames to the kernel, which receives them on the twin.
    ///
    /// # Errors
    /// If the process has no file descriptors left.
    pub fn to_kernel(&self) -> std::io::Result<ToKernel> {
        Ok(ToKernel(self.kernel.second()?))
    }

    fn follow_carrier(&mut self) {
        let up = !matches!(self.wire.state(), PortState::Down(_));
        if self.carrier != Some(up) {
            self.carrier = Some(up);
            // Before Linux 5.0 the carrier cannot be changed and stays on: packets are lost at the port and counted
            // there.
            let _ = self.kernel.set_carrier(up);
        }
    }
}

/// Returns whether a frame belongs to the kernel whatever the routes are.
fn is_kernels(frame: &[u8]) -> bool {
    let Some(&[group, .., high, low]) = frame.first_chunk::<14>() else { return true };
    match u16::from_be_bytes([high, low]) {
        _ if group & 1 != 0 => true,
        ETHERTYPE_IPV4 => false,
        ETHERTYPE_IPV6 => {
            frame.get(20) == Some(&ICMPV6) && frame.get(54).is_some_and(|kind| NEIGHBOUR_DISCOVERY.contains(kind))
        }
        _ => true,
    }
}

impl Port for TwinPort {
    crate::by_port!(wire: tx_burst, wait_fd, receives, state, max_frame, counters);

    fn rx_burst(&mut self, bufs: &mut Buffers, out: &mut Batch) -> usize {
        if !out.is_empty() || self.wire.rx_burst(bufs, &mut self.got) == 0 {
            return 0;
        }
        let kernels = &mut self.got;
        kernels
            .filter(|_, frame| if is_kernels(bufs.arena().data(&frame)) { Some(frame) } else { out.push(frame).err() });
        if !kernels.is_empty() {
            self.kernel.tx_burst(bufs, kernels);
            // As on any interface, frames that its queue does not take are lost.
            self.lost += kernels.len() as u64;
            bufs.free(kernels);
        }
        out.len()
    }

    fn housekeep(&mut self, bufs: &mut Buffers) {
        let now = clock::tsc();
        // A counter that went back is not waited for.
        if self.carrier.is_none() || now.wrapping_sub(self.asked) >= self.ask {
            self.asked = now;
            self.follow_carrier();
        }
        self.wire.housekeep(bufs);
    }

    fn held(&self) -> usize {
        self.wire.held() + self.kernel.held()
    }

    fn details(&self) -> Vec<(&'static str, String)> {
        let counters = self.kernel.counters();
        let to_kernel = (counters.tx_packets.get() + counters.invalid.get()).to_string();
        let mut details = self.wire.details();
        details.extend([("twin", self.kernel.name().to_owned()), ("to_kernel", to_kernel)]);
        details.push(("to_kernel_lost", self.lost.to_string()));
        details.extend(self.sent.as_ref().map(|sent| ("from_kernel", sent.rx_packets.get().to_string())));
        details
    }

    fn close(&mut self, bufs: &mut Buffers) {
        self.wire.close(bufs);
        self.kernel.close(bufs);
    }
}

/// End of a twin that only sends to the kernel: see [`TwinPort::to_kernel`].
pub struct ToKernel(TapPort);

impl Port for ToKernel {
    crate::by_port!(0: tx_burst, state, counters, close);

    fn rx_burst(&mut self, _bufs: &mut Buffers, _out: &mut Batch) -> usize {
        0
    }

    fn receives(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::is_kernels;

    fn frame(to: u8, kind: u16, rest: &[u8]) -> Vec<u8> {
        let mut frame = vec![to, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
        frame.extend(kind.to_be_bytes());
        frame.extend(rest);
        frame
    }

    #[test]
    fn what_is_left_to_the_kernel() {
        assert!(!is_kernels(&frame(2, 0x0800, &[0x45; 40])) && is_kernels(&frame(1, 0x0800, &[0x45; 40])));
        assert!(is_kernels(&frame(2, 0x0806, &[])) && is_kernels(&frame(2, 0x8100, &[])) && is_kernels(&[2; 13]));
        let icmp = |kind: u8| {
            let mut packet = vec![0x60; 60];
            (packet[6], packet[40]) = (58, kind);
            is_kernels(&frame(2, 0x86dd, &packet))
        };
        assert!(icmp(135) && icmp(136) && !icmp(128) && !icmp(129));
        assert!(!is_kernels(&frame(2, 0x86dd, &[])));
    }
}
