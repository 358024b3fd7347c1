//! Distribution of one queue's frames over several sending CPUs: `xdp/cpumap.h`.

use super::abi::{PORT_CPUS, PORTS};
use super::datapath::mapped;
use super::program::{chain, named};
use super::shared::Words;
use aya::Ebpf;
use aya::maps::{CpuMap, IterableMap as _, MapData, MapError};
use aya::programs::{ProgramFd, RawTracePoint, Xdp};

/// Most frames queued for a CPU: the default of `xdp-bench` of xdp-tools.
const QUEUE: u32 = 2048;

/// Queues to CPUs, and the CPUs that send for each port.
pub(super) struct CpuQueues {
    queues: CpuMap<MapData>,
    by_port: Words,
    program: ProgramFd,
    /// Whether the tracepoint that counts frames lost to full queues is attached. It is not attached before there is a
    /// queue, because it would slow down other users of CPU maps.
    counts: bool,
}

impl CpuQueues {
    /// Loads the program that runs on the sending CPUs and the one that counts frames lost to full queues; makes no
    /// queue yet.
    pub fn load(ebpf: &mut Ebpf) -> Result<Self, String> {
        // Before their maps are taken: a taken map is closed with its owner, and loading looks it up by its descriptor.
        let program: &mut Xdp = named(ebpf, "bywash_cpumap")?;
        program.load().map_err(|e| chain(&e))?;
        let program = program.fd().and_then(|fd| Ok(fd.try_clone()?)).map_err(|e| chain(&e))?;
        let dropped: &mut RawTracePoint = named(ebpf, "bywash_cpumap_enqueue")?;
        dropped.load().map_err(|e| chain(&e))?;
        let queues = ebpf.take_map("cpumap").ok_or("map cpumap: not in the object")?;
        let queues: CpuMap<MapData> = queues.try_into().map_err(|e: MapError| chain(&e))?;
        let words = |name, words| mapped(ebpf, name, words).map_err(|e| e.reason());
        let by_port = words("port_cpus", PORTS as usize * PORT_CPUS)?;
        words("cpumap_id", 1)?.store(0, u64::from(queues.map().info().map_err(|e| chain(&e))?.id()));
        Ok(Self { queues, by_port, program, counts: false })
    }

    /// Sets the CPUs, at most [`PORT_CPUS`], that send for a port; the program uses them once the port's entry has
    /// their number. Queues are kept once made.
    pub fn set(&mut self, ebpf: &mut Ebpf, id: u16, cpus: &[usize]) -> Result<(), String> {
        if !self.counts {
            let dropped: &mut RawTracePoint = named(ebpf, "bywash_cpumap_enqueue")?;
            dropped.attach("xdp_cpumap_enqueue").map_err(|e| chain(&e))?;
            self.counts = true;
        }
        for (n, &cpu) in cpus.iter().enumerate() {
            if !self.queues.get(cpu as u32, 0).is_ok_and(|queue| queue.queue_size > 0) {
                let made = self.queues.set(cpu as u32, QUEUE, Some(&self.program), 0);
                made.map_err(|e| format!("no queue to CPU {cpu}: {}", chain(&e)))?;
            }
            self.by_port.store(usize::from(id) * PORT_CPUS + n, cpu as u64);
        }
        Ok(())
    }
}
