//! Applications: a thread in the router's namespace that receives, sends or forwards, or several that send, each on a
//! queue of its own.

use super::{AfxdpApp, AfxdpArgs, AfxdpLayout, AfxdpMode};
use crate::args::OnOff;
use anyhow::Context as _;
use bywash_frame::{Arena, ArenaConfig, Batch, Buffers, DATA_OFFSET, PoolConfig, PoolSet};
use bywash_lab::Namespace;
use bywash_port::af_xdp::{
    AfXdpPort, Journal, Layout, LinkInfo, Polling, Program, RingSizes, SocketConfig, Umem, XdpAttach, XdpConfig, wait,
};
use bywash_port::{Port, PortCounters};
use bywash_sync::{Counter, clock};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Buffer size in bytes if several buffers share a chunk.
const SHORT_CELL: usize = 512;
/// Timeout of poll(2), after which the stop flag is checked.
const PATIENCE: Duration = Duration::from_millis(50);

/// Maximum time for the kernel to release the rings of zero-copy sockets from drivers.
const LET_GO: Duration = Duration::from_secs(1);

/// Running application, to be stopped by [`App::stop`].
pub struct App {
    /// Statistics of each of its threads.
    pub work: Vec<Arc<Work>>,
    pub ports: Vec<Opened>,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<anyhow::Result<()>>,
}

/// Interface that the application has opened.
pub struct Opened {
    pub counters: Arc<PortCounters>,
    /// Features in use, as reported by the port.
    pub got: BTreeMap<&'static str, String>,
}

/// Statistics of one of the application's threads.
#[derive(Default)]
pub struct Work {
    /// Frames received, sent, or both.
    pub frames: Counter,
    /// TSC ticks in iterations that had frames.
    pub busy: Counter,
    /// Kernel's ID of the thread; 0 until it has started.
    thread: Counter,
    /// Sum of the bytes read with `--touch`, so that the reads are not optimized away.
    sum: Counter,
}

impl Work {
    /// Returns the thread's CPU time as accounted by the kernel, in clock ticks: in user space and in the kernel.
    /// `None` if it cannot be read.
    pub fn times(&self) -> Option<[u64; 2]> {
        let stat = std::fs::read_to_string(format!("/proc/self/task/{}/stat", self.thread.get())).ok()?;
        // utime and stime are fields 14 and 15; field 2 is a name in parentheses.
        let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
        Some([fields.next()?.parse().ok()?, fields.next()?.parse().ok()?])
    }
}

impl App {
    /// Starts the application on the interfaces of `r` that it needs, each of its threads on one of `cpus`, and waits
    /// until it runs.
    pub fn start(args: &AfxdpArgs, r: &Namespace, cpus: &[usize], frame: &[u8]) -> anyhow::Result<Self> {
        let work: Vec<_> = cpus.iter().map(|_| Arc::<Work>::default()).collect();
        let stop = Arc::new(AtomicBool::new(false));
        let (ready, opened) = channel();
        let settings = Settings::of(args);
        let threads: Vec<_> = cpus.iter().copied().zip(work.iter().cloned()).collect();
        let (stopped, frame) = (stop.clone(), frame.to_vec());
        let thread = r.thread(move || {
            // The memory belongs to the first thread's node.
            crate::pin(threads.first().map(|(cpu, _)| *cpu))?;
            settings.run(&frame, &threads, &stopped, ready)
        })?;
        let thread =
            std::thread::spawn(move || thread.join().map_err(|_| anyhow::anyhow!("the application panicked"))??);
        match opened.recv() {
            Ok(ports) => Ok(Self { work, ports, stop, thread }),
            // The thread ended before it was ready; its result says why.
            Err(_) => Err(ended(thread).err().context("the application ended immediately")?),
        }
    }

    /// Stops the application. Errors if a frame has not been returned to its pool.
    pub fn stop(self) -> anyhow::Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        ended(self.thread)
    }
}

fn ended(thread: JoinHandle<anyhow::Result<()>>) -> anyhow::Result<()> {
    thread.join().map_err(|_| anyhow::anyhow!("the application panicked"))?
}

/// Settings of the thread.
struct Settings {
    app: AfxdpApp,
    touch: bool,
    mode: AfxdpMode,
    /// Ticks without frames after which a thread calls poll(2).
    spin: u64,
    batch: usize,
    frames: usize,
    pages: bywash_frame::Pages,
    layout: Layout,
    socket: SocketConfig,
    /// True if the settings need frames to be sent by the socket's own rings.
    own_rings: bool,
}

impl Settings {
    fn of(args: &AfxdpArgs) -> Self {
        let rings = RingSizes::all(args.ring);
        let polling = match args.mode {
            AfxdpMode::Rtc => Polling::Rtc,
            AfxdpMode::Poll => Polling::Poll,
            AfxdpMode::BusyPoll => Polling::BusyPoll,
        };
        let layout = match args.layout {
            AfxdpLayout::Aligned => Layout::Aligned,
            AfxdpLayout::Unaligned => Layout::Unaligned,
            AfxdpLayout::Typewriter => Layout::Typewriter,
        };
        Self {
            app: args.app,
            touch: args.touch,
            mode: args.mode,
            spin: clock::us_to_ticks(args.spin_us),
            batch: args.batch,
            frames: args.frames,
            pages: args.pages,
            layout,
            socket: SocketConfig {
                rings,
                polling,
                zero_copy: args.zero_copy,
                transmit: args.transmit,
                budget: args.budget,
                burst: args.batch,
                // Forwarded frames are read, if only to be copied.
                prefetch: args.touch || args.app == AfxdpApp::L2fwd,
                need_wakeup: args.need_wakeup == OnOff::On,
                in_order: args.in_order == OnOff::On,
                tx_sockets: args.tx_sockets,
                ..SocketConfig::default()
            },
            own_rings: args.uses_transmit_rings(),
        }
    }

    fn run(
        &self,
        frame: &[u8],
        threads: &[(usize, Arc<Work>)],
        stop: &AtomicBool,
        ready: Sender<Vec<Opened>>,
    ) -> anyhow::Result<()> {
        let cell = if self.layout == Layout::Typewriter { SHORT_CELL } else { ArenaConfig::default().cell };
        anyhow::ensure!(
            frame.len() <= cell - DATA_OFFSET,
            "frames of {} bytes: with --layout typewriter a buffer holds {}",
            frame.len() + 4,
            cell - DATA_OFFSET + 4
        );
        let cells = threads.len() * self.frames + self.layout.spare(cell);
        let arena = Arena::new(ArenaConfig { cells, cell, pages: self.pages, ..ArenaConfig::default() })?;
        let pools: Vec<_> =
            (0..threads.len()).map(|at| PoolConfig::stack(&format!("bench{at}"), self.frames)).collect();
        let pools = PoolSet::new(arena, &pools)?;
        let umem = Umem::with_layout(pools.arena(), self.layout);
        let mut settings = Kept::new()?;
        let (receives, sends) = (self.app != AfxdpApp::Txpush, self.app != AfxdpApp::Rxdrop);
        let (mut programs, mut shares) = (vec![], vec![]);
        for queue in 0..threads.len() {
            let mut bufs = Buffers::attach(&pools, queue);
            fill(&mut bufs, frame);
            let mut ports = vec![];
            for (name, wanted) in [("r0", receives), ("r1", sends)] {
                if !wanted {
                    continue;
                }
                let link = LinkInfo::query(name)?;
                let mut port = AfXdpPort::open(&umem, &link, queue as u32, &self.socket)?;
                let injects = port.details().contains(&("transmit", "inject".into()));
                if injects && self.own_rings {
                    port.close(&mut bufs);
                    anyhow::bail!(
                        "--in-order and --tx-sockets concern the rings of sockets, but {name} sends by injection: add \
                         --transmit socket"
                    );
                }
                port.housekeep(&mut bufs);
                if self.mode == AfxdpMode::BusyPoll {
                    settings.journal.busy_poll(name)?;
                }
                if receives {
                    let mut program = Program::attach(&link, XdpAttach::Native)?;
                    program.set_socket(0, port.fd().context("a socket without a descriptor")?)?;
                    let max_frame = port.max_frame() as u32;
                    let mac = link.mac;
                    program.set_config(XdpConfig {
                        enabled: true,
                        mac,
                        max_frame,
                        raw: true,
                        ..XdpConfig::default()
                    })?;
                    programs.push(program);
                }
                ports.push(port);
            }
            shares.push((bufs, ports));
        }
        let opened = |port: &AfXdpPort| {
            let mut got: BTreeMap<&'static str, String> = port.details().into_iter().collect();
            got.insert("layout", format!("{:?}", umem.layout()).to_lowercase());
            got.insert("pages", pools.arena().pages().to_string());
            Opened { counters: port.counters(), got }
        };
        let opened: Vec<_> = shares.iter().flat_map(|(_, ports)| ports).map(opened).collect();
        std::thread::scope(|scope| {
            let mut serving = vec![];
            for ((bufs, ports), (cpu, work)) in shares.iter_mut().zip(threads) {
                let serve = move || crate::pin(Some(*cpu)).map(|()| self.serve(bufs, ports, frame, work, stop));
                serving.push(scope.spawn(serve));
            }
            let _ = ready.send(opened);
            serving
                .into_iter()
                .try_for_each(|thread| thread.join().map_err(|_| anyhow::anyhow!("a thread panicked"))?)
        })?;
        // Close the sockets while the programs still pass frames on.
        for (bufs, ports) in &mut shares {
            ports.iter_mut().for_each(|port| port.close(bufs));
        }
        settings.put_back()?;
        if let Some((bufs, _)) = shares.first_mut() {
            umem.settle(bufs, LET_GO);
        }
        drop((shares, programs));
        crate::all_back(&pools)
    }

    /// Runs one thread of the application until `stop` is set.
    fn serve(&self, bufs: &mut Buffers, ports: &mut [AfXdpPort], frame: &[u8], work: &Work, stop: &AtomicBool) {
        work.thread.add(rustix::thread::gettid().as_raw_nonzero().get() as u64);
        let mut frames = Batch::new();
        let mut turn_began = clock::tsc();
        let mut came = turn_began;
        while !stop.load(Ordering::Relaxed) {
            if self.mode == AfxdpMode::Poll && turn_began - came > self.spin {
                wait(ports, self.app == AfxdpApp::Txpush, PATIENCE);
            }
            let n = self.turn(ports, bufs, &mut frames, frame, work);
            let now = clock::tsc();
            if n > 0 {
                work.frames.add(n as u64);
                work.busy.add(now - turn_began);
                came = now;
            }
            turn_began = now;
        }
        bufs.free(&mut frames);
    }

    /// Runs one iteration of the application and returns the number of frames it moved.
    fn turn(
        &self,
        ports: &mut [AfXdpPort],
        bufs: &mut Buffers,
        frames: &mut Batch,
        template: &[u8],
        work: &Work,
    ) -> usize {
        let mut moved = 0;
        match (self.app, ports) {
            (AfxdpApp::Rxdrop, [port]) => {
                moved = port.rx_burst(bufs, frames);
                if self.touch {
                    work.sum.add(read(bufs.arena(), frames));
                }
                bufs.free(frames);
                port.housekeep(bufs);
            }
            (AfxdpApp::Txpush, [port]) => {
                let before = frames.len();
                bufs.alloc(frames, self.batch - before);
                let arena = bufs.arena();
                for frame in &mut frames.as_mut_slice()[before..] {
                    if self.touch {
                        arena.write(frame, template);
                    } else {
                        // `fill` has already written the frame.
                        arena.resize(frame, template.len());
                    }
                }
                moved = port.tx_burst(bufs, frames);
                port.housekeep(bufs);
            }
            (AfxdpApp::L2fwd, [a, b]) => {
                for forth in [true, false] {
                    let (rx, tx) = if forth { (&mut *a, &mut *b) } else { (&mut *b, &mut *a) };
                    rx.rx_burst(bufs, frames);
                    if self.touch && !frames.is_empty() {
                        work.sum.add(read(bufs.arena(), frames));
                        swap(bufs, frames);
                    }
                    moved += tx.tx_burst(bufs, frames);
                    // Frames that do not fit the TX ring are lost, as in any forwarder.
                    bufs.free(frames);
                    rx.housekeep(bufs);
                }
            }
            _ => unreachable!("one port to receive or send, two to forward"),
        }
        moved
    }
}

/// Changed interface settings, restored on drop.
struct Kept {
    journal: Journal,
}

impl Kept {
    fn new() -> anyhow::Result<Self> {
        // Only root can create files in this directory.
        let path = format!("/run/bywash/bench-afxdp-{}.json", std::process::id());
        Ok(Self { journal: Journal::open(path)? })
    }

    fn put_back(&mut self) -> anyhow::Result<()> {
        match self.journal.restore()?.pop() {
            Some((_, why)) => Err(anyhow::Error::msg(why)),
            None => Ok(()),
        }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        // Errors have been reported before, or are less important than the current one.
        let _ = self.put_back();
    }
}

/// Writes the frame into every cell of the pool, so that it need not be written before sending.
fn fill(bufs: &mut Buffers, frame: &[u8]) {
    let mut taken = vec![];
    while let Some(mut one) = bufs.alloc_one() {
        bufs.arena().write(&mut one, frame);
        taken.push(one);
    }
    taken.into_iter().for_each(|one| bufs.free_one(one));
}

/// Reads every byte and returns the sum.
fn read(arena: &Arena, frames: &Batch) -> u64 {
    frames.as_slice().iter().flat_map(|frame| arena.data(frame)).map(|byte| u64::from(*byte)).sum()
}

fn swap(bufs: &Buffers, frames: &mut Batch) {
    let arena = bufs.arena();
    for frame in frames.as_mut_slice() {
        if let Some(head) = arena.data_mut(frame).first_chunk_mut::<12>() {
            head.rotate_left(6);
        }
    }
}
