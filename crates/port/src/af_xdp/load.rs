//! Loading of compiled programs, and what the kernel says when it refuses one.

use aya::programs::{ProgramError, ProgramFd};
use aya::{Ebpf, EbpfLoader};
use bywash_sync::lock;
use std::sync::{LazyLock, Mutex, MutexGuard};

/// Returns the loader of all objects. It is shared because a new one reads the kernel's BTF types (6 MB, some 50 ms),
/// for relocations that these objects do not have; the broker cannot open that file. Its settings persist: call
/// [`EbpfLoader::map_max_entries`] before every load that needs it.
pub(super) fn loader() -> MutexGuard<'static, EbpfLoader<'static>> {
    static LOADER: LazyLock<Mutex<EbpfLoader>> = LazyLock::new(|| {
        let mut loader = EbpfLoader::new();
        loader.btf(None);
        Mutex::new(loader)
    });
    lock(&LOADER)
}

/// Returns a program of the object, as its type.
pub(super) fn named<'a, P>(ebpf: &'a mut Ebpf, name: &str) -> Result<&'a mut P, String>
where
    &'a mut P: TryFrom<&'a mut aya::programs::Program, Error = ProgramError>,
{
    let program = ebpf.program_mut(name).ok_or_else(|| format!("the object has no program `{name}`"))?;
    program.try_into().map_err(|e| chain(&e))
}

/// Returns the descriptor of a loaded program of the object.
pub(super) fn program_fd(ebpf: &mut Ebpf, name: &str) -> Result<ProgramFd, String> {
    let program = ebpf.program_mut(name).ok_or_else(|| format!("the object has no program `{name}`"))?;
    let fd = program.fd().map_err(|e| chain(&e))?;
    fd.try_clone().map_err(|e| e.to_string())
}

/// Returns an error with its causes on one line, shortened.
pub(super) fn chain(e: &dyn std::error::Error) -> String {
    let mut text = e.to_string();
    let mut source = e.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    verdict(text.replace('\n', " "))
}

/// Shortens a verifier's log, which may be megabytes long, to the verdict at its end.
pub(super) fn verdict(text: String) -> String {
    let Some((what, log)) = text.split_once(" Verifier output: ") else { return text };
    let log = log.split(" verification time").next().unwrap_or(log);
    // Each instruction is a line "N: (op) ..", and the error follows the last one.
    let from = log.rfind(": (").unwrap_or(0);
    let last = log[from..].split_once(' ').map_or(log, |(_, rest)| rest);
    let verdict = last.char_indices().rev().nth(159).map_or(last, |(at, _)| &last[at..]);
    format!("{what} The verifier: {verdict}")
}
