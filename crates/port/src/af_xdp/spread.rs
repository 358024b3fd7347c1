//! One queue's frames sent by several CPUs: `xdp/spread.h`.

use super::abi::{PORTS, SPREAD};
use super::driver::mapped;
use super::program::{chain, named};
use super::shared::Words;
use aya::Ebpf;
use aya::maps::{CpuMap, IterableMap as _, MapData, MapError};
use aya::programs::{ProgramFd, RawTracePoint, Xdp};

/// Frames that wait for a CPU, at most: what `xdp-bench` of xdp-tools begins with.
const QUEUE: u32 = 2048;

/// The queues to CPUs, and who hands frames to which.
pub(super) struct Spread {
    queues: CpuMap<MapData>,
    by_port: Words,
    onward: ProgramFd,
    /// What a full queue loses is counted. Not before there is a queue: whoever else has some would pay for it.
    counts: bool,
}

impl Spread {
    /// Loads what runs on the other side, and what counts frames that a full queue loses; no queue is made yet.
    pub fn load(ebpf: &mut Ebpf) -> Result<Self, String> {
        // Before their maps are taken: a map is closed with what took it, and a program finds it by its descriptor.
        let onward: &mut Xdp = named(ebpf, "bywash_onward")?;
        onward.load().map_err(|e| chain(&e))?;
        let onward = onward.fd().and_then(|fd| Ok(fd.try_clone()?)).map_err(|e| chain(&e))?;
        let overrun: &mut RawTracePoint = named(ebpf, "bywash_overrun")?;
        overrun.load().map_err(|e| chain(&e))?;
        let queues = ebpf.take_map("cpus").ok_or("map cpus: not in the object")?;
        let queues: CpuMap<MapData> = queues.try_into().map_err(|e: MapError| chain(&e))?;
        let mut words = |name, words| mapped(ebpf, name, words).map_err(|e| e.reason());
        let by_port = words("spread", PORTS as usize * SPREAD)?;
        words("cpus_id", 1)?.store(0, u64::from(queues.map().info().map_err(|e| chain(&e))?.id()));
        Ok(Self { queues, by_port, onward, counts: false })
    }

    /// These CPUs, at most [`SPREAD`], send for a port, once it is told how many they are. A queue that is made stays.
    pub fn set(&mut self, ebpf: &mut Ebpf, id: u16, cpus: &[usize]) -> Result<(), String> {
        if !self.counts {
            let overrun: &mut RawTracePoint = named(ebpf, "bywash_overrun")?;
            overrun.attach("xdp_cpumap_enqueue").map_err(|e| chain(&e))?;
            self.counts = true;
        }
        for (n, &cpu) in cpus.iter().enumerate() {
            if !self.queues.get(cpu as u32, 0).is_ok_and(|queue| queue.queue_size > 0) {
                let made = self.queues.set(cpu as u32, QUEUE, Some(&self.onward), 0);
                made.map_err(|e| format!("no queue to CPU {cpu}: {}", chain(&e)))?;
            }
            self.by_port.store(usize::from(id) * SPREAD + n, cpu as u64);
        }
        Ok(())
    }
}
