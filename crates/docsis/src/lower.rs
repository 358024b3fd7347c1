//! Lower MAC: schedules the flows' packets and sends them as protected MAC frames on channels.

use crate::channel::Channels;
use crate::cpe::Observer;
use crate::crc::CRC_LEN;
use crate::depi::{Depi, FLOWS, Packer, Packets};
use crate::group::{Group, LEAD, Lead};
use crate::header::{HEADER_MAX, Header, Privacy, Service};
use crate::keys::{self, NewKeys, Rollover};
use crate::protect::Protection;
use crate::queue::{Cause, PRIORITIES, QueueLimits, Queues};
use crate::seal::{Crypto, SealError, Sealer};
use bywash_engine::{App, Context, DropReason, Event, PortId};
use bywash_frame::{Arena, BATCH, Batch, Frame};
use bywash_sync::{Counter, clock};
use std::collections::VecDeque;
use std::sync::Arc;

const QUEUE: usize = 0;
const SCHEDULE: usize = 1;
const SEAL: usize = 2;

/// Maximum number of frames sent in a turn. This is less than a turn can receive, so that excess frames gather in the
/// flows' queues, which drop by policy, and not before them, where drops would be arbitrary.
const BUDGET: usize = BATCH * 3 / 4;

/// Maximum number of frames that a turn can finish: those sealed, and those that the sealer held.
const DONE: usize = 4 * BATCH + BUDGET;

const _: () = assert!(HEADER_MAX <= LEAD);
// DEPI flows are numbered by priority.
const _: () = assert!(FLOWS == PRIORITIES);

/// Configuration of a lower MAC.
#[derive(Clone, Debug)]
pub struct LowerConfig {
    /// CRC and encryption.
    pub protection: Protection,
    /// Implementation used for sealing.
    pub crypto: Crypto,
    /// Set if the upper MAC also seals while the lower MAC is behind.
    pub assist: bool,
    /// Limits of the flows' queues.
    pub queues: QueueLimits,
    /// Rates of the OFDM channels in bits per second; 0 means no limit. Channels have shares of the bytes that follow
    /// their rates; one without limit has the share of the fastest with one.
    pub channels: Vec<u64>,
    /// Bits per symbol of the profile to which the rates refer; 0 without profiles.
    pub bits: u8,
    /// Tunnel to the remote PHY. `None` sends frames without encapsulation.
    pub depi: Option<Depi>,
}

/// Counters of a channel.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct ChannelCounters {
    /// MAC frames sent.
    pub packets: Counter,
    /// Bytes of MAC frames sent, headers included.
    pub bytes: Counter,
    /// Codewords begun; 0 without profiles.
    pub codewords: Counter,
}

/// Statistics of a lower MAC. Written by its worker, readable by any thread. Read for each frame, so it shares no cache
/// line with data that others write.
#[derive(Debug)]
#[repr(align(128))]
pub struct LowerStats {
    /// Counters of each channel.
    pub channels: Vec<ChannelCounters>,
    /// Frames in queues at the end of the last turn.
    pub queued: Counter,
    /// Frames in queues that wait for this worker and not for a free channel.
    pub behind: Counter,
    /// Implementation used for sealing, with the reason if it is not libipsec-mb.
    pub crypto: String,
}

/// Application of a lower MAC's worker: queues frames from the upper MAC and, as channels become free, adds headers,
/// seals and sends them.
pub struct Lower {
    group: Arc<Group>,
    arena: Arc<Arena>,
    protection: Protection,
    queues: Queues,
    channels: Channels,
    /// Tunnel of each channel; empty without encapsulation.
    tunnels: Vec<Packer>,
    /// Channel and tunnel's flow of each frame on its way through the sealer; empty without encapsulation.
    places: VecDeque<(usize, usize)>,
    /// Packets of the tunnels; empty between turns.
    packets: Packets,
    sealer: Sealer,
    /// New keys; `None` if they never change.
    new_keys: Option<NewKeys>,
    /// Learns addresses behind modems from upstream frames; `None` if none are learned.
    observer: Option<Observer>,
    /// Next sequence number of each flow.
    sequences: Vec<u16>,
    out: PortId,
    /// Port from the upper MAC.
    from: PortId,
    /// Port on which drops are counted: the original ingress port of the frames.
    account: PortId,
    /// Frames with headers that are to be sealed; empty between turns.
    framed: Vec<Framed>,
    done: Vec<Frame>,
    stats: Arc<LowerStats>,
}

/// Frame with its headers, ready to be sealed.
struct Framed {
    frame: Frame,
    key: usize,
    start: usize,
    /// Set if the upper MAC has sealed the frame.
    sealed: bool,
}

impl Lower {
    /// Creates the lower MAC of `group`, with frames in `arena`; `from` is the port from the upper MAC, `out` the port
    /// to the modems.
    pub fn new(
        group: Arc<Group>,
        arena: Arc<Arena>,
        config: &LowerConfig,
        from: PortId,
        out: PortId,
    ) -> Result<Self, SealError> {
        let sealer = Sealer::new(config.crypto, config.protection, &arena, &group.keys())?;
        let tunnel = |index| config.depi.as_ref().map(|depi| Packer::new(depi, index as u32, DONE, &arena));
        let stats = LowerStats {
            channels: config.channels.iter().map(|_| ChannelCounters::default()).collect(),
            queued: Counter::new(),
            behind: Counter::new(),
            crypto: sealer.note().to_owned(),
        };
        Ok(Self {
            queues: Queues::new(
                (0..group.flows().len()).map(|flow| group.treatment(flow)).map(|mut treatment| {
                    // A list of all channels is not a set of its own.
                    if treatment.channels.count_ones() as usize == config.channels.len() {
                        treatment.channels = 0;
                    }
                    treatment
                }),
                config.queues,
                clock::tsc_hz(),
            ),
            channels: Channels::here(&config.channels, config.bits),
            tunnels: (0..config.channels.len()).filter_map(tunnel).collect(),
            places: VecDeque::with_capacity(DONE),
            packets: Packets::default(),
            sequences: vec![0; group.flows().len()],
            protection: config.protection,
            group,
            arena,
            sealer,
            new_keys: None,
            observer: None,
            out,
            from,
            account: from,
            framed: Vec::with_capacity(BUDGET),
            done: Vec::with_capacity(DONE),
            stats: Arc::new(stats),
        })
    }

    /// Counts drops on `port` instead of on the port from the upper MAC.
    pub fn on_account_of(mut self, port: PortId) -> Self {
        self.account = port;
        self
    }

    /// Takes new keys from the control half of the group's keys.
    pub fn keyed_by(mut self, rollover: &mut Rollover) -> Self {
        self.new_keys = Some(rollover.add_worker());
        self
    }

    /// Passes the source addresses of upstream frames to `observer`.
    pub fn observed_by(mut self, observer: Observer) -> Self {
        self.observer = Some(observer);
        self
    }

    /// Returns the statistics.
    pub fn stats(&self) -> Arc<LowerStats> {
        self.stats.clone()
    }

    /// Prepends the headers for `channel` to a PDU. Errors with the frame if there is no room.
    #[inline]
    fn frame(&mut self, flow: usize, mut frame: Frame, channel: usize, now: u64) -> Result<Framed, Frame> {
        let Self { group, arena, protection, sequences, channels, tunnels, places, stats, .. } = self;
        let description = &group.flows()[flow];
        let modem = description.modem as usize;
        let early = Lead::read(arena, &frame).and_then(|lead| lead.sealed);
        if let Some(sequence) = early {
            group.key_state().gone(modem, sequence);
        }
        let sealed = early.is_some();
        let sequence = early.unwrap_or_else(|| group.key_state().in_use(modem));
        let header = Header {
            privacy: protection.cipher.then_some(Privacy {
                enabled: true,
                key_sequence: sequence,
                toggle: sequence & 1 != 0,
                said: description.said,
            }),
            service: Some(Service {
                priority: description.priority,
                dsid: Some(description.dsid),
                sequence: Some(sequences[flow]),
                sequence_change: false,
            }),
        };
        let added = protection.added();
        let pdu = frame.len() - LEAD + if sealed { 0 } else { added };
        if !arena.resize(&mut frame, LEAD + pdu) {
            return Err(frame);
        }
        let start = header.len();
        frame.pull(LEAD - start);
        let len = start + pdu;
        if header.write(arena.data_mut(&mut frame), pdu).is_none() {
            return Err(frame);
        }
        if !tunnels.is_empty() {
            places.push_back((channel, description.priority.into()));
        }
        sequences[flow] = sequences[flow].wrapping_add(1);
        let codewords = channels.send(channel, len, description.bits, now);
        let counters = &stats.channels[channel];
        counters.codewords.add(codewords.into());
        counters.packets.add(1);
        counters.bytes.add(len as u64);
        let counters = &group.counters(flow).lower;
        counters.packets.add(1);
        counters.bytes.add((pdu - added) as u64);
        Ok(Framed { frame, key: keys::slot(modem, sequence), start, sealed })
    }

    /// Adds headers to frames and seals them, as far as channels are free; returns how many.
    #[inline]
    fn serve(&mut self, cx: &mut Context<'_>) -> usize {
        let mut n = 0;
        // Free channels for which no flow has frames.
        let mut idle = 0;
        while n < BUDGET
            && let Some(channel) = self.channels.free(cx.now, idle)
        {
            let Some((flow, frame)) = self.queues.pop(cx.now, 1 << channel) else {
                idle |= 1 << channel;
                continue;
            };
            match self.frame(flow, frame, channel, cx.now) {
                Ok(one) => {
                    self.framed.push(one);
                    n += 1;
                }
                Err(frame) => cx.drop(self.account, DropReason::Oversize, frame),
            }
        }
        if n > 0 {
            cx.stage(SCHEDULE, n);
        }
        let Self { sealer, done, framed, .. } = self;
        for Framed { frame, key, start, sealed } in framed.drain(..) {
            if sealed {
                sealer.pass(frame, |frame| done.push(frame));
            } else {
                sealer.seal(frame, key, start, |frame| done.push(frame));
            }
        }
        // Frames may wait in the sealer for more frames, but not when there are none.
        if n == 0 && sealer.waiting() > 0 {
            sealer.flush(|frame| done.push(frame));
        }
        n
    }

    fn send(&mut self, cx: &mut Context<'_>) {
        let Self { tunnels, done, account, out, .. } = self;
        if !tunnels.is_empty() {
            return self.send_packed(cx);
        }
        let sent = done.len();
        in_batches(done, |batch| cx.send_batch(*account, *out, batch));
        cx.sent(sent);
    }

    /// Packs the finished frames and sends the packets.
    fn send_packed(&mut self, cx: &mut Context<'_>) {
        let Self { arena, tunnels, places, packets: all, done, account, out, .. } = self;
        for frame in done.drain(..) {
            match places.pop_front() {
                Some((channel, flow)) => tunnels[channel].push(flow, frame),
                None => debug_assert!(false, "a frame without a place"),
            }
        }
        tunnels.iter_mut().for_each(|tunnel| tunnel.flush(arena, cx.bufs, all));
        let Packets { packets, packed, lost } = all;
        let sent = packets.len();
        cx.event(*account, Event::DepiPacked, packed.len() as u64);
        cx.event(*account, Event::DepiMade, sent as u64);
        packed.drain(..).for_each(|frame| cx.discard(frame));
        lost.drain(..).for_each(|frame| cx.drop(*account, DropReason::NoBuffer, frame));
        in_batches(packets, |batch| cx.send_batch(*account, *out, batch));
        cx.sent(sent);
    }
}

/// Counts a frame of `flow` that is dropped unsent, if the upper MAC has sealed it.
#[inline]
fn forget(group: &Group, arena: &Arena, flow: usize, frame: &Frame) {
    if let Some(sequence) = Lead::read(arena, frame).and_then(|lead| lead.sealed) {
        group.key_state().gone(group.flows()[flow].modem as usize, sequence);
    }
}

/// Passes any number of frames to `send` in batches, which it leaves empty, and empties `frames`.
pub(crate) fn in_batches(frames: &mut Vec<Frame>, mut send: impl FnMut(&mut Batch)) {
    let mut batch = Batch::new();
    for frame in frames.drain(..) {
        if let Err(frame) = batch.push(frame) {
            send(&mut batch);
            let pushed = batch.push(frame);
            debug_assert!(pushed.is_ok());
        }
    }
    send(&mut batch);
}

impl App for Lower {
    fn stages(&self) -> &'static [&'static str] {
        &["queue", "schedule", "seal"]
    }

    fn process(&mut self, cx: &mut Context<'_>, from: PortId, batch: &mut Batch) {
        if from != self.from {
            // Upstream frames are not forwarded.
            if let Some(observer) = &mut self.observer {
                batch.as_slice().iter().for_each(|frame| observer.see(self.arena.data(frame)));
            }
            batch.drain().for_each(|frame| cx.drop(from, DropReason::Filtered, frame));
            return;
        }
        let from = self.account;
        let Self { group, arena, queues, protection, .. } = self;
        let received = batch.len();
        batch.as_slice().iter().for_each(|frame| arena.prefetch(frame));
        for frame in batch.drain() {
            // Only the upper MAC sends here, but a frame without a lead or with an unknown flow must not be trusted.
            let lead = Lead::read(arena, &frame).filter(|lead| (lead.flow as usize) < group.flows().len());
            let Some(Lead { flow, sealed }) = lead else {
                cx.drop(from, DropReason::Runt, frame);
                continue;
            };
            let flow = flow as usize;
            let added = if sealed.is_some() { protection.added() } else { 0 };
            let bytes = (frame.len() - LEAD - added + CRC_LEN) as u32;
            if let Some((dropped, cause)) = queues.push(flow, frame, bytes, cx.now) {
                forget(group, arena, flow, &dropped);
                let counters = &group.counters(flow).lower;
                let (counter, reason) = match cause {
                    Cause::Full => (&counters.overflow, DropReason::QueueOverflow),
                    Cause::Early => (&counters.early, DropReason::Aqm),
                };
                counter.add(1);
                cx.drop(from, reason, dropped);
            }
        }
        cx.stage(QUEUE, received);
    }

    fn turn(&mut self, cx: &mut Context<'_>) -> bool {
        let Self { new_keys, sealer, done, .. } = self;
        if let Some(new_keys) = new_keys {
            new_keys.take(sealer, |frame| done.push(frame));
        }
        if self.queues.is_empty() && self.sealer.waiting() == 0 && self.done.is_empty() {
            return false;
        }
        let n = self.serve(cx);
        if n > 0 || !self.done.is_empty() {
            cx.stage(SEAL, n);
            self.send(cx);
        }
        let queued = self.queues.len() as u64;
        self.stats.queued.set(queued);
        self.stats.behind.set(if n == BUDGET { queued } else { 0 });
        true
    }

    fn held(&self) -> usize {
        self.queues.len() + self.sealer.waiting()
    }

    fn close(&mut self, cx: &mut Context<'_>) {
        let Self { sealer, done, .. } = self;
        sealer.flush(|frame| done.push(frame));
        self.send(cx);
        self.queues.drain(|frame| cx.discard(frame));
    }
}
