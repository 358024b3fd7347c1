//! DPDK's environment: started once in a process, with our arena as its memory.

use crate::cells;
use crate::ffi::{self, Hooks};
use bywash_frame::{PageKind, PoolSet};
use std::ffi::{CStr, CString, c_char};
use std::sync::{Arc, Mutex, PoisonError};

/// How it is started.
#[derive(Clone, Debug, Default)]
pub struct EalConfig {
    /// Further options of EAL's, as on a command line.
    pub options: Vec<String>,
}

/// Why DPDK's ports cannot be.
#[derive(Debug, thiserror::Error)]
pub enum EalError {
    /// It runs, or ran: EAL cannot be started twice.
    #[error("DPDK's EAL was started in this process already, and can be only once: restart the program")]
    Twice,
    /// An option that would end the process, or make it another's servant.
    #[error("EAL option `{0}` is not for here: it would end the program or tie it to another process")]
    Option(String),
    /// A cell of the arena may hold several packets, and a driver knows a packet by its cell.
    #[error("a pool of kind typewriter puts several packets in a buffer; DPDK knows a packet by its buffer")]
    Packed,
    /// The library is not the one of the headers.
    #[error("built with {built}, but {found} is installed: build again")]
    Version {
        /// Of the headers.
        built: String,
        /// Of the library.
        found: String,
    },
    /// EAL's own reason; more is in the log.
    #[error("DPDK's EAL does not start with `{options}`: {source} (its own words are in the log)")]
    Start {
        /// All that was given.
        options: String,
        /// Its reason.
        source: std::io::Error,
    },
    /// The arena is not accepted.
    #[error("DPDK does not take the buffers: {0}")]
    Arena(std::io::Error),
}

/// DPDK, started. Stops when the last port on it is gone.
pub struct Eal {
    /// Why devices with DMA may not reach the arena, if so.
    note: Option<&'static str>,
    pools: Arc<PoolSet>,
}

static STARTED: Mutex<bool> = Mutex::new(false);

fn text(from: *const c_char) -> String {
    // SAFETY: a constant of the shim's or the library's.
    unsafe { CStr::from_ptr(from) }.to_string_lossy().into_owned()
}

fn errno(rc: i32) -> std::io::Error {
    std::io::Error::from_raw_os_error(-rc)
}

/// Its words, into our log. EAL's levels are those of syslog.
extern "C" fn log(level: u32, said: *const c_char, len: usize) {
    // SAFETY: the shim names as many bytes as there are.
    let said = String::from_utf8_lossy(unsafe { std::slice::from_raw_parts(said.cast::<u8>(), len) });
    for line in said.lines().map(str::trim_end).filter(|line| !line.is_empty()) {
        match level {
            0..=4 => tracing::warn!(target: "dpdk", "{line}"),
            5..=6 => tracing::debug!(target: "dpdk", "{line}"),
            _ => tracing::trace!(target: "dpdk", "{line}"),
        }
    }
}

impl Eal {
    /// Starts it, with the arena of `pools` as memory. The CPUs of the calling thread do not change.
    pub fn start(pools: &Arc<PoolSet>, config: &EalConfig) -> Result<Arc<Self>, EalError> {
        let (built, found) = (text(ffi::bywash_dpdk_built_with()), text(ffi::bywash_dpdk_version()));
        if !found.starts_with(&built) {
            return Err(EalError::Version { built, found });
        }
        if pools.arena().packed() {
            return Err(EalError::Packed);
        }
        const ENDS: [&str; 6] = ["-h", "--help", "-v", "--version", "--proc-type", "--create-uio-dev"];
        let ends = |option: &&String| ENDS.iter().any(|end| option == end || option.starts_with(&format!("{end}=")));
        if let Some(option) = config.options.iter().find(ends) {
            return Err(EalError::Option(option.clone()));
        }
        let mut started = STARTED.lock().unwrap_or_else(PoisonError::into_inner);
        if std::mem::replace(&mut *started, true) {
            return Err(EalError::Twice);
        }
        let options = options(&config.options);
        let arguments: Vec<CString> = options.iter().filter_map(|o| CString::new(o.as_str()).ok()).collect();
        // EAL binds the thread that starts it to a CPU, for good: not one of ours.
        let rc = std::thread::spawn(move || {
            let mut argv: Vec<*mut c_char> = arguments.iter().map(|a| a.as_ptr().cast_mut()).collect();
            argv.push(std::ptr::null_mut());
            let hooks = Hooks { take: cells::take, give: cells::give, count: cells::count, log };
            // SAFETY: the options are strings that end, their number is right, and EAL keeps copies of what it needs.
            unsafe { ffi::bywash_dpdk_start(&hooks, argv.len() as i32 - 1, argv.as_mut_ptr()) }
        });
        let rc = rc.join().unwrap_or(-libc_efault());
        if rc < 0 {
            return Err(EalError::Start { options: options[1..].join(" "), source: errno(rc) });
        }
        cells::spare(Some(pools));
        let arena = pools.arena();
        let page = match arena.pages() {
            PageKind::Small => 4096,
            _ => 2 << 20,
        };
        let (shift, mapped) = (arena.cell_size().trailing_zeros(), arena.mapped());
        // SAFETY: the arena's mapping, which `pools` keeps as long as this.
        let rc = unsafe { ffi::bywash_dpdk_arena(arena.base().cast(), arena.cells() as u32, shift, mapped, page) };
        let note = (rc > 0).then_some("DPDK did not take the buffers as memory for DMA: virtual devices only");
        let eal = Arc::new(Self { note, pools: pools.clone() });
        if rc < 0 { Err(EalError::Arena(errno(rc))) } else { Ok(eal) }
    }

    /// Why devices with DMA may not reach the arena, if so.
    pub fn note(&self) -> Option<&'static str> {
        self.note
    }

    /// The pools whose cells it uses.
    pub fn pools(&self) -> &Arc<PoolSet> {
        &self.pools
    }
}

impl Drop for Eal {
    fn drop(&mut self) {
        // SAFETY: the last port is closed: each holds this.
        unsafe { ffi::bywash_dpdk_stop() };
        cells::spare(None);
    }
}

fn libc_efault() -> i32 {
    14
}

/// Ours, and the user's behind them, which count where they contradict.
fn options(more: &[String]) -> Vec<String> {
    let given = |names: &[&str]| more.iter().any(|o| names.iter().any(|n| o == n || o.starts_with(&format!("{n}="))));
    let mut options = vec!["bywash".to_owned()];
    let mut add = |words: &[&str]| options.extend(words.iter().map(|w| (*w).to_owned()));
    if !given(&["--no-huge", "--in-memory", "--huge-dir", "--legacy-mem"]) {
        // Only what DPDK allocates for itself: packets lie in the arena.
        let free = std::fs::read_to_string("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages");
        let huge = free.ok().and_then(|n| n.trim().parse::<u32>().ok()).is_some_and(|n| n >= 64);
        // One excludes the other, in 22.11.
        add(if huge { &["--in-memory"] } else { &["--no-huge", "--no-shconf"] });
        if !given(&["-m", "--socket-mem"]) {
            add(&["-m", "96"]);
        }
    }
    if !given(&["-l", "-c", "--lcores"]) {
        // One lcore, which does nothing: workers are threads of ours.
        add(&["--lcores", "0@0"]);
    }
    // PCI devices are probed one by one, by name.
    if !given(&["-a", "--allow", "--no-pci", "-b", "--block"]) {
        add(&["--no-pci"]);
    }
    if !given(&["--iova-mode"]) {
        add(&["--iova-mode=va"]);
    }
    add(&["--no-telemetry"]);
    options.extend(more.iter().cloned());
    options
}
