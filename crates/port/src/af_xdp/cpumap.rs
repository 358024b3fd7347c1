//! Distribution of one queue's frames over several sending CPUs: `xdp/cpumap.h`.

use super::abi::{PORT_CPUS, PORTS};
use super::attach::{Attached, attach_tracepoint};
use super::map::Map;
use super::objects::Made;
use super::shared::Words;
use std::collections::BTreeSet;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

/// Maximum number of frames queued for a CPU: the default of `xdp-bench` of xdp-tools.
const QUEUE: u32 = 2048;

/// Queues to CPUs, and the CPUs that send for each port.
pub(super) struct CpuQueues {
    queues: Map,
    /// CPUs that have a queue.
    made: BTreeSet<usize>,
    by_port: Words,
    /// Runs on the sending CPUs.
    program: OwnedFd,
    /// Counts frames lost to full queues.
    losses: OwnedFd,
    /// Attachment of `losses`. There is none before there is a queue, because it would slow down other users of CPU
    /// maps.
    counts: Option<Attached>,
}

impl CpuQueues {
    /// Takes the objects that it needs; makes no queue yet.
    pub fn new(made: &mut Made) -> Result<Self, String> {
        if let Some(why) = made.no_spread.take() {
            return Err(why);
        }
        let queues = Map::new(made.take("cpumap")?).map_err(|e| e.to_string())?;
        if queues.value_size() < 8 {
            return Err("programs on the sending CPUs need Linux 5.9".into());
        }
        let mut words = |name, words| Words::map(made.take(name)?.as_fd(), words).map_err(|e| e.to_string());
        let by_port = words("port_cpus", PORTS as usize * PORT_CPUS)?;
        words("cpumap_id", 1)?.store(0, u64::from(queues.id()));
        let (program, losses) = (made.take("bywash_cpumap")?, made.take("bywash_cpumap_enqueue")?);
        Ok(Self { queues, made: BTreeSet::new(), by_port, program, losses, counts: None })
    }

    /// Sets the CPUs, at most [`PORT_CPUS`], that send for a port; the program uses them once the port's entry has
    /// their number. Queues are kept once made.
    pub fn set(&mut self, id: u16, cpus: &[usize]) -> Result<(), String> {
        if self.counts.is_none() {
            let attached = attach_tracepoint(self.losses.as_fd(), c"xdp_cpumap_enqueue");
            self.counts = Some(attached.map_err(|e| format!("cannot count the frames that a full queue drops: {e}"))?);
        }
        for (n, &cpu) in cpus.iter().enumerate() {
            if !self.made.contains(&cpu) {
                // struct bpf_cpumap_val
                let value = [QUEUE.to_ne_bytes(), self.program.as_raw_fd().to_ne_bytes()].concat();
                let made = self.queues.update(&(cpu as u32).to_ne_bytes(), &value);
                made.map_err(|e| format!("no queue to CPU {cpu}: {e}"))?;
                self.made.insert(cpu);
            }
            self.by_port.store(usize::from(id) * PORT_CPUS + n, cpu as u64);
        }
        Ok(())
    }
}
