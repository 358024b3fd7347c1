//! DPDK's environment abstraction layer (EAL), started once in a process, with the arena as its memory.

use crate::cells;
use crate::ffi::{self, Hooks};
use bywash_frame::{PageKind, PoolSet};
use bywash_sync::lock;
use std::ffi::{CStr, CString, c_char};
use std::sync::{Arc, Mutex};

// asm-generic/errno-base.h
const EFAULT: i32 = 14;

/// Configuration of the EAL.
#[derive(Clone, Debug, Default)]
pub struct EalConfig {
    /// Additional EAL options, as on a command line.
    pub options: Vec<String>,
}

/// Error of [`Eal::start`].
#[derive(Debug, thiserror::Error)]
pub enum EalError {
    /// The EAL is or was running in this process and cannot be started twice.
    #[error("DPDK's EAL was already started in this process and can start only once: restart the program")]
    Twice,
    /// Option that would end the process or make it a secondary process of another.
    #[error("EAL option `{0}` is not supported: it would end the program or make it depend on another process")]
    Option(String),
    /// Packed arena: its cells may hold several packets, but a driver identifies a packet by its cell.
    #[error("a pool of kind typewriter puts several packets in a buffer; DPDK identifies a packet by its buffer")]
    Packed,
    /// Installed library of another version than the headers of the build.
    #[error("built with {built}, but {found} is installed: rebuild bywash")]
    Version {
        /// Version of the headers.
        built: String,
        /// Version of the library.
        found: String,
    },
    /// Initialisation failed; DPDK logs the details.
    #[error("DPDK's EAL does not start with `{options}`: {source} (see DPDK's messages in the log)")]
    Start {
        /// All options passed.
        options: String,
        /// Error returned by the EAL.
        source: std::io::Error,
    },
    /// The arena cannot be registered as DPDK memory.
    #[error("cannot register the buffers with DPDK: {0}")]
    Arena(std::io::Error),
}

/// Running EAL. Stops when the last port that uses it is dropped.
pub struct Eal {
    /// Warning if devices cannot access the arena by DMA.
    note: Option<&'static str>,
    pools: Arc<PoolSet>,
}

static STARTED: Mutex<bool> = Mutex::new(false);

fn text(from: *const c_char) -> String {
    // SAFETY: a NUL-terminated constant of the shim or the library.
    unsafe { CStr::from_ptr(from) }.to_string_lossy().into_owned()
}

fn errno(rc: i32) -> std::io::Error {
    std::io::Error::from_raw_os_error(-rc)
}

/// Forwards DPDK's log lines to this program's log. EAL levels are those of syslog.
extern "C" fn log(level: u32, said: *const c_char, len: usize) {
    // SAFETY: the shim passes the length of the text.
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
    /// Starts the EAL with the arena of `pools` as memory. Does not change the CPU affinity of the calling thread.
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
        let mut started = lock(&STARTED);
        if std::mem::replace(&mut *started, true) {
            return Err(EalError::Twice);
        }
        let options = options(&config.options);
        let arguments: Vec<CString> = options.iter().filter_map(|o| CString::new(o.as_str()).ok()).collect();
        // The EAL permanently binds the thread that starts it to a CPU, so a temporary thread does it.
        let rc = std::thread::spawn(move || {
            let mut argv: Vec<*mut c_char> = arguments.iter().map(|a| a.as_ptr().cast_mut()).collect();
            argv.push(std::ptr::null_mut());
            let hooks = Hooks { take: cells::take, give: cells::give, count: cells::count, log };
            // SAFETY: the options are NUL-terminated strings, their number is right, and the EAL copies what it keeps.
            unsafe { ffi::bywash_dpdk_start(&hooks, argv.len() as i32 - 1, argv.as_mut_ptr()) }
        });
        let rc = rc.join().unwrap_or(-EFAULT);
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
        // SAFETY: the arena's mapping, which `pools` keeps as long as this value.
        let rc = unsafe { ffi::bywash_dpdk_arena(arena.base().cast(), arena.cells() as u32, shift, mapped, page) };
        let note = (rc > 0).then_some("buffers are not registered with DPDK for DMA: only virtual devices work");
        let eal = Arc::new(Self { note, pools: pools.clone() });
        if rc < 0 { Err(EalError::Arena(errno(rc))) } else { Ok(eal) }
    }

    /// Returns a warning if devices cannot access the arena by DMA.
    pub fn note(&self) -> Option<&'static str> {
        self.note
    }

    /// Returns the pools whose cells the drivers use.
    pub fn pools(&self) -> &Arc<PoolSet> {
        &self.pools
    }
}

impl Drop for Eal {
    fn drop(&mut self) {
        // SAFETY: every port holds a reference to this value, so all ports are closed.
        unsafe { ffi::bywash_dpdk_stop() };
        cells::spare(None);
    }
}

/// Returns the default options followed by the user's, which take precedence.
fn options(more: &[String]) -> Vec<String> {
    let given = |names: &[&str]| more.iter().any(|o| names.iter().any(|n| o == n || o.starts_with(&format!("{n}="))));
    let mut options = vec!["bywash".to_owned()];
    let mut add = |words: &[&str]| options.extend(words.iter().map(|w| (*w).to_owned()));
    if !given(&["--no-huge", "--in-memory", "--huge-dir", "--legacy-mem"]) {
        // Memory for DPDK's own allocations only: packets lie in the arena.
        let free = std::fs::read_to_string("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages");
        let huge = free.ok().and_then(|n| n.trim().parse::<u32>().ok()).is_some_and(|n| n >= 64);
        // The two alternatives exclude each other in DPDK 22.11.
        add(if huge { &["--in-memory"] } else { &["--no-huge", "--no-shconf"] });
        if !given(&["-m", "--socket-mem"]) {
            add(&["-m", "96"]);
        }
    }
    if !given(&["-l", "-c", "--lcores"]) {
        // One idle lcore: workers are this program's own threads.
        add(&["--lcores", "0@0"]);
    }
    // PCI devices are probed individually, by name.
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
