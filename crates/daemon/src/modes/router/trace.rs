//! Trace of one packet through the router: the router's own stages run on a temporary worker, with the current tables.
//! No packet leaves the machine, no request reaches the control loop, and the counters shown elsewhere do not change.

use crate::workers::ANSWER;
use bywash_api::{Placement, Route, TraceAdjacency, TraceFrame, TraceGate, TraceLevel, Traced, TracedRoute};
use bywash_engine::{DROP_REASONS, Idle, PortId, PortTable, Worker, WorkerConfig};
use bywash_fib::flows::{Flow, FlowTables, Flows, Tuple};
use bywash_frame::{Arena, ArenaConfig, Batch, Buffers, Pages, PoolConfig, PoolKind, PoolSet};
use bywash_port::{Happened, Port, TxQueue, TxQueueConfig, Wanted, capture, pair};
use bywash_router::gates::Gates;
use bywash_router::tables::Tables;
use bywash_router::{Gated, Request, Router, RouterConfig, gated};
use bywash_sync::{Published, Qsbr};
use bywash_wire::ethernet::{EthernetHeader, MacAddr};
use bywash_wire::{hex, proto, summary};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Buffers of the temporary worker: for the packet, the packets made from it, and those its ports hold.
const CELLS: usize = 512;
const CELL: usize = 4096;
/// Number of the temporary worker, which is part of its thread's name; distinct from those of forwarding workers.
const NUMBER: usize = 999;
/// Longest duration of a trace.
const PATIENCE: Duration = Duration::from_millis(500);
/// Time without a new event after which a trace is complete.
const QUIET: Duration = Duration::from_millis(20);

/// State of the router that a tracing worker uses.
pub struct Tracer {
    pub tables: Arc<Published<Tables>>,
    pub domain: Qsbr,
    pub config: RouterConfig,
    pub gates: Gates,
    pub flows: Option<FlowTables>,
}

/// Event in the trace of a packet.
pub enum Event {
    /// A packet was sent on this port.
    Sent(PortId, Vec<u8>),
    /// The packet, or one made from it, was dropped for this reason.
    Dropped(&'static str),
    /// The kernel would get a copy of the packet, which it answers with an ICMP error.
    Copied,
    /// The worker would have sent a request to the control loop; the text describes it.
    Asked(String),
}

/// Result of tracing a packet.
#[derive(Default)]
pub struct Followed {
    /// Names of the stages that handled the packet.
    pub stages: Vec<&'static str>,
    pub events: Vec<Event>,
    /// Effect of the port's gate on the packet; `None` if the gate does not keep it.
    pub gate: Option<Kept>,
}

/// A packet that is left to the kernel unless it belongs to an established flow.
pub enum Kept {
    /// The packet is left to the kernel, for this reason.
    Kernel(&'static str),
    /// The packet belongs to this flow.
    Flow {
        flow: Flow,
        reply: bool,
        /// Set if it opens or closes its connection.
        closing: bool,
    },
}

impl Kept {
    /// Returns the address that a packet of a flow is routed to: its destination after the translation.
    pub fn destination(&self) -> Option<IpAddr> {
        match self {
            Self::Kernel(_) => None,
            Self::Flow { flow, reply, .. } => Some(if *reply { flow.original.src } else { flow.reply.src }),
        }
    }

    /// Returns the flow and, if the packet was not sent, the reason why it is left to the kernel.
    fn describe(&self, sent: bool) -> TraceGate {
        let (flow, reply, closing) = match self {
            Self::Kernel(why) => return TraceGate { flow: None, kernel: Some((*why).into()) },
            Self::Flow { flow, reply, closing } => (flow, *reply, *closing),
        };
        let text =
            |of: &Tuple| format!("{} > {}", SocketAddr::new(of.src, of.src_port), SocketAddr::new(of.dst, of.dst_port));
        let protocol = if flow.protocol == proto::TCP { "tcp" } else { "udp" };
        let direction = if reply { "a reply" } else { "of the original direction" };
        let kernel = match (sent, closing) {
            (true, _) => None,
            (_, true) => Some("its SYN, FIN or RST, which also revokes the flow".into()),
            _ => {
                let to = if reply { flow.original.src } else { flow.reply.src };
                Some(format!(
                    "the route to {to} is no resolved next hop on the flow's port, the packet does not fit its MTU, or \
                     its source fails the port's check"
                ))
            }
        };
        let flow =
            format!("{protocol} {}, replies {}; the packet is {direction}", text(&flow.original), text(&flow.reply));
        TraceGate { flow: Some(flow), kernel }
    }
}

impl Followed {
    /// Returns the first drop reason; `None` if nothing was dropped.
    pub fn dropped(&self) -> Option<&'static str> {
        self.events.iter().find_map(|event| if let Event::Dropped(reason) = event { Some(*reason) } else { None })
    }

    /// Returns the frames that were sent, each with its egress port.
    pub fn sent(&self) -> impl Iterator<Item = (PortId, &[u8])> {
        self.events.iter().filter_map(|event| match event {
            Event::Sent(port, bytes) => Some((*port, bytes.as_slice())),
            _ => None,
        })
    }
}

impl Tracer {
    /// Traces a frame received on `port` of a router with `ports` ports. Errors if the temporary worker cannot be set
    /// up, or if the frame does not fit into a buffer.
    pub fn follow(&self, ports: usize, (port, number): (PortId, PortId), frame: &[u8]) -> Result<Followed, String> {
        let failed = |what: &str, why: &dyn std::fmt::Display| format!("cannot trace: {what}: {why}");
        let arena = Arena::new(ArenaConfig { cells: CELLS, cell: CELL, pages: Pages::Small, ..ArenaConfig::default() });
        let arena = arena.map_err(|why| failed("no buffers", &why))?;
        let pools = PoolSet::new(arena, &[PoolConfig::new("trace", PoolKind::Stack, CELLS)]);
        let pools = pools.map_err(|why| failed("no pool", &why))?;
        let (mut out, mut far) = (PortTable::new(), vec![]);
        for _ in 0..ports {
            let (here, there) = pair(64);
            out.add(Box::new(here), TxQueue::new(TxQueueConfig::default()));
            far.push(there);
        }
        let (requests, mut asked) = rtrb::RingBuffer::new(16);
        let gate = self.gate(number, frame);
        // A table of its own, with this flow alone: the trace neither counts nor revokes.
        let mut flows = Flows::new(&self.domain, [None, None], 1).map_err(|why| failed("no memory", &why))?;
        flows.set_generation(1);
        if let Some(Kept::Flow { flow, .. }) = &gate {
            flows.insert(flow, 1).map_err(|why| failed("no flow", &format!("{why:?}")))?;
        }
        let router = Router::new(self.tables.clone(), requests, self.config.clone());
        let app = Box::new(router.with_gates(self.gates.clone()).with_flows(flows.reader()));
        let config = WorkerConfig { id: NUMBER, cpu: None, idle: Idle::Sleep };
        let worker = Worker::new(config, out, app, Buffers::attach(&pools, 0), self.domain.register());
        let counters = worker.counters();
        let worker = worker.spawn().map_err(|why| failed("no thread", &why))?;
        let all = vec![true; ports];
        let wanted = Wanted {
            received: vec![],
            sent: all.clone(),
            dropped: all,
            reasons: DROP_REASONS.iter().map(|reason| reason.bit()).sum(),
            filter: None,
            snaplen: CELL,
        };
        let (recorder, mut records) = capture(0, wanted, 1 << 20);
        worker.record(recorder);
        if worker.report(PATIENCE).is_none() {
            return Err("cannot trace: its thread gets no CPU: try again".into());
        }

        let mut bufs = Buffers::attach(&pools, 0);
        let mut one = bufs.alloc_one().ok_or("cannot trace: no buffer")?;
        if !bufs.arena().write(&mut one, frame) {
            bufs.free_one(one);
            return Err(format!("a frame of {} bytes does not fit into a buffer of {CELL} bytes", frame.len()));
        }
        let mut batch = Batch::new();
        // An empty batch has room.
        if let Err(one) = batch.push(one) {
            bufs.free_one(one);
        }
        far[usize::from(port.0)].tx_burst(&mut bufs, &mut batch);
        let mut followed = Followed { gate, ..Followed::default() };
        let (started, mut last) = (Instant::now(), None::<Instant>);
        while started.elapsed() < PATIENCE && last.is_none_or(|last| last.elapsed() < QUIET) {
            let before = followed.events.len();
            let drained = records.drain(|record| {
                followed.events.push(match record.happened {
                    Happened::Dropped(reason) => {
                        Event::Dropped(DROP_REASONS.get(usize::from(reason)).map_or("unknown", |reason| reason.name()))
                    }
                    _ => Event::Sent(PortId(record.port), record.bytes.to_vec()),
                });
                Ok(())
            });
            drained.map_err(|why| failed("its events are lost", &why))?;
            while let Ok(request) = asked.pop() {
                followed.events.push(match request {
                    Request::Resolve { addr, .. } => Event::Asked(format!(
                        "its neighbour {addr} is not known: the packet would wait while the kernel resolves it"
                    )),
                    Request::Punt { frame, copy, .. } => {
                        bufs.free_one(frame);
                        if copy { Event::Copied } else { Event::Asked("handed to the kernel".into()) }
                    }
                });
            }
            if followed.events.len() > before {
                last = Some(Instant::now());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let stages = counters.stages.iter().filter(|stage| stage.packets.get() > 0).map(|stage| stage.name);
        followed.stages = stages.filter(|name| !["rx", "tx"].contains(name)).collect();
        worker.stop_recording(0, ANSWER);
        worker.stop();
        far.iter_mut().for_each(|port| port.close(&mut bufs));
        Ok(followed)
    }
}

impl Tracer {
    /// Returns the effect of the port's gate on a frame; `None` if the gate does not keep it.
    fn gate(&self, port: PortId, frame: &[u8]) -> Option<Kept> {
        let _online = self.domain.register();
        match gated(self.flows.as_ref(), self.gates.get(port), port, frame) {
            Gated::Open => None,
            Gated::Kept(why) => Some(Kept::Kernel(why)),
            Gated::Flow { id, reply, closing } => {
                let flow = self.flows.as_ref()?.at(id)?.flow;
                Some(Kept::Flow { flow, reply, closing })
            }
        }
    }
}

/// Table entries that apply to a packet.
#[derive(Default)]
pub struct Decisions {
    /// Route to the packet's destination, as a line of text and for the API; `None` also if it has no destination.
    pub route: Option<(String, Route)>,
    /// Set if the packet has a destination.
    pub has_destination: bool,
    /// Neighbours that the sent packets went to, each as a line of text and for the API.
    pub adjacencies: Vec<(String, TraceAdjacency)>,
}

fn received(from: &str, frame: &[u8]) -> String {
    format!("{from}: received, {} B: {}", frame.len(), summary::line(frame))
}

/// Builds the API's answer for a packet that the port's program leaves to the kernel.
pub fn left(from: &str, frame: &[u8], why: &str) -> Traced {
    Traced {
        story: vec![received(from, frame), format!("left to the kernel by the port's program: {why}")],
        routed: Some(TracedRoute { port: from.into(), kernel: Some(why.into()), ..TracedRoute::default() }),
        ..Traced::default()
    }
}

/// Builds the API's answer for a frame between members of a bridge.
pub fn bridged(from: &str, frame: &[u8]) -> Traced {
    let why = "not routed: its destination is not the bridge. A trace does not follow bridged frames: the driver \
               forwards unicast to known stations, the kernel the rest (`bywash show drops`, to_member)";
    Traced {
        story: vec![received(from, frame), why.into()],
        routed: Some(TracedRoute { port: from.into(), ..TracedRoute::default() }),
        ..Traced::default()
    }
}

/// Builds the API's answer for a trace. `names` are the port names, by port number.
pub fn answer(names: &[String], from: &str, frame: &[u8], decisions: Decisions, followed: &Followed) -> Traced {
    let name = |port: PortId| names.get(usize::from(port.0)).map_or("?", String::as_str);
    let mut story = vec![received(from, frame)];
    let stages = if followed.stages.is_empty() { "none".into() } else { followed.stages.join(", ") };
    story.push(format!("stages: {stages}"));
    let gate = followed.gate.as_ref().map(|gate| gate.describe(followed.sent().next().is_some()));
    if let Some(gate) = &gate {
        story.push("gate: the kernel's policies keep the packet, unless it is of an established flow".into());
        story.extend(gate.flow.as_ref().map(|flow| format!("flow: {flow}")));
        story.extend(gate.kernel.as_ref().map(|why| format!("left to the kernel: {why}")));
    }
    match &decisions.route {
        Some((line, _)) => story.push(line.clone()),
        None if decisions.has_destination => story.push("route: none covers its destination".into()),
        None => {}
    }
    story.extend(decisions.adjacencies.iter().map(|adjacency| adjacency.0.clone()));
    let copied = followed.events.iter().any(|event| matches!(event, Event::Copied));
    story.extend(followed.events.iter().filter_map(|event| match event {
        Event::Sent(port, bytes) => {
            let macs = EthernetHeader::parse(bytes).map(|(eth, _)| (eth.src, eth.dst));
            let (src, dst): (MacAddr, MacAddr) = macs.unwrap_or_default();
            Some(format!("{}: sent, {} B, {src} > {dst}: {}", name(*port), bytes.len(), summary::line(bytes)))
        }
        Event::Dropped(reason) if copied => {
            Some(format!("not forwarded: {reason}; the kernel gets a copy for the ICMP error"))
        }
        Event::Dropped(reason) => Some(format!("dropped: {reason}")),
        Event::Copied => None,
        Event::Asked(what) => Some(what.clone()),
    }));
    if followed.events.is_empty() {
        story.push("neither sent nor dropped: the packet is held, or was consumed".into());
    }
    let frame = |(port, frame): (PortId, &[u8])| TraceFrame { port: name(port).into(), frame: hex::encode(frame) };
    Traced {
        story,
        outputs: followed.sent().map(|(port, _)| name(port).into()).collect(),
        dropped: followed.dropped().map(str::to_owned),
        megaflow: None,
        routed: Some(TracedRoute {
            port: from.into(),
            level: None,
            kernel: None,
            gate,
            stages: followed.stages.iter().map(|&stage| stage.into()).collect(),
            route: decisions.route.map(|route| route.1),
            adjacencies: decisions.adjacencies.into_iter().map(|adjacency| adjacency.1).collect(),
            frames: followed.sent().map(frame).collect(),
        }),
    }
}

/// Adds the level at which the packet is handled to a router's trace.
pub fn placed(traced: &mut Traced, placement: &[Placement]) {
    let of = |name: &str| placement.iter().find(|row| row.port == name);
    let Some(routed) = &mut traced.routed else { return };
    let Some(port) = of(&routed.port) else { return };
    let (why, at) = (port.why.clone(), 1.min(traced.story.len()));
    let Some(level) = port.level.clone() else {
        return traced.story.insert(at, format!("port {}: {why}; below is what user space would do", port.port));
    };
    let by_tc = port.mode.as_deref() == Some("tc");
    let line = match (level.as_str(), traced.outputs.first().and_then(|to| of(to))) {
        ("kernel", _) => format!("level: kernel ({why}): the kernel decides; below is what user space would do"),
        ("driver", Some(to)) if by_tc || to.target == Some(true) => {
            format!("level: driver ({why}): its program does the same as below for plain packets")
        }
        ("driver", Some(to)) => {
            let (name, why) = (&to.port, to.target_why.as_deref().unwrap_or("?"));
            format!("level: driver, but its program cannot send to {name} ({why}): user space forwards")
        }
        ("driver", None) => {
            let other = if by_tc { "the kernel" } else { "user space" };
            format!("level: driver ({why}): {other} handles packets that its program does not send")
        }
        _ => format!("level: {level} ({why})"),
    };
    traced.story.insert(at, line);
    routed.level = Some(TraceLevel { level, why });
}
