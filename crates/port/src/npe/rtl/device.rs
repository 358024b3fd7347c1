//! Dispatching device over a hardware engine: packets of ports and threads pass through the engine.

use super::super::device::{Device, NOWHERE};
use bywash_frame::Batch;
use rtrb::Consumer;
use std::io;

impl Device {
    /// Runs [`Device::turn`] with an engine. Panics if the engine fails.
    pub(in super::super) fn turn_engine(&mut self) {
        if let Err(e) = self.try_turn() {
            panic!("hardware engine: {e}");
        }
    }

    fn try_turn(&mut self) -> io::Result<()> {
        let Some(mut engine) = self.engine.take() else { return Ok(()) };
        for port in 0..self.ports.len() {
            if engine.behind() {
                break;
            }
            self.ports[port].rx_burst(&mut self.staging, &mut self.received);
            for frame in self.received.as_slice() {
                engine.receive(port, self.staging.arena().data(frame))?;
            }
            self.staging.free(&mut self.received);
        }
        for lane in 0..self.lanes.len() {
            self.hand_back(&mut engine, lane)?;
        }
        self.run_engine(&mut engine)?;
        for lane in 0..self.lanes.len() {
            self.hand_over(&mut engine, lane)?;
        }
        self.counters.no_buffer.add(engine.lost()?);
        self.free_dropped();
        self.transmit();
        self.engine = Some(engine);
        Ok(())
    }

    /// Runs the engine and queues the packets that it sends at the ports.
    fn run_engine(&mut self, engine: &mut super::Engine) -> io::Result<()> {
        let (ports, sending, staging, counters) =
            (&mut self.ports, &mut self.sending, &mut self.staging, &self.counters);
        engine.run(|port, packet| {
            let (Some(batch), Some(port)) = (sending.get_mut(usize::from(port)), ports.get_mut(usize::from(port)))
            else {
                return counters.no_port.add(1);
            };
            if batch.room() == 0 {
                counters.sent.add(port.tx_burst(staging, batch) as u64);
            }
            let frame = if batch.room() > 0 { staging.alloc_one() } else { None };
            let Some(mut frame) = frame else { return counters.tx_full.add(1) };
            let fits = staging.arena().write(&mut frame, packet);
            debug_assert!(fits, "a cell's packet, from a cell");
            let pushed = batch.push(frame);
            debug_assert!(pushed.is_ok(), "there was room");
        })
    }

    /// Passes packets that a thread has handed over to the engine, as far as its ring has room; those in other memory
    /// than the channel's to their port.
    fn hand_back(&mut self, engine: &mut super::Engine, lane: usize) -> io::Result<()> {
        while self.lanes[lane].outbox.as_ref().is_some_and(|outbox| !outbox.is_empty()) && engine.takes(lane)? {
            let Some(Ok((frame, port))) = self.lanes[lane].outbox.as_mut().map(Consumer::pop) else { break };
            if !engine.owns(lane, &frame) {
                self.hand_to_port(frame, port);
                continue;
            }
            if port == NOWHERE {
                self.counters.dropped.add(1);
            } else if usize::from(port) >= self.ports.len() {
                self.counters.no_port.add(1);
            }
            engine.command(lane, frame, (port != NOWHERE).then_some(port));
        }
        Ok(())
    }

    /// Passes packets that the engine has given to a thread on to it, or releases them if the thread has ended.
    fn hand_over(&mut self, engine: &mut super::Engine, lane: usize) -> io::Result<()> {
        while self.lanes[lane].gone && engine.takes(lane)? {
            let Some(frame) = engine.poll(lane) else { return Ok(()) };
            self.counters.channel_full.add(1);
            engine.command(lane, frame, None);
        }
        while !self.lanes[lane].gone && !self.lanes[lane].inbox.is_full() {
            let Some(frame) = engine.poll(lane) else { break };
            let pushed = self.lanes[lane].inbox.push(frame);
            debug_assert!(pushed.is_ok(), "there was room");
            self.counters.dispatched.add(1);
        }
        Ok(())
    }

    /// Sends what threads have handed over, then ends the engine. Panics if the engine fails or reports errors.
    pub(in super::super) fn close_engine(&mut self) {
        let Some(mut engine) = self.engine.take() else { return };
        let mut last = || -> io::Result<()> {
            // More packets may be queued than the engine takes at once.
            while self.lanes.iter().any(|l| l.outbox.as_ref().is_some_and(|o| !o.is_empty())) {
                for lane in 0..self.lanes.len() {
                    self.hand_back(&mut engine, lane)?;
                }
                self.run_engine(&mut engine)?;
                self.transmit();
            }
            let errors = engine.errors()?;
            if errors == 0 { Ok(()) } else { Err(io::Error::other(format!("errors reported: STATUS is {errors:#x}"))) }
        };
        let said = last();
        engine.close(&mut self.staging);
        if let Err(e) = said {
            panic!("hardware engine: {e}");
        }
    }
}

/// Frees frames in batches.
pub(super) fn give_back(frames: impl Iterator<Item = bywash_frame::Frame>, bufs: &mut bywash_frame::Buffers) {
    let mut batch = Batch::new();
    for frame in frames {
        if let Err(frame) = batch.push(frame) {
            bufs.free(&mut batch);
            bufs.free_one(frame);
        }
    }
    bufs.free(&mut batch);
}
