//! Errors of AF_XDP ports: what failed, where, and what to do.

use super::program::OURS;
use std::io;

/// Error of an AF_XDP port.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The interface does not exist in this network namespace.
    #[error("no interface named `{0}` in this network namespace (see `ip link`)")]
    NoInterface(String),
    /// The kernel's link table could not be queried.
    #[error("cannot query interface `{interface}` in the kernel: {source}")]
    Query {
        /// The interface.
        interface: String,
        /// The kernel's reason.
        source: io::Error,
    },
    /// The kernel or the loader refused the built-in program.
    #[error("the kernel refused the XDP program{}: {reason}", of(interface))]
    Load {
        /// The interface; empty for programs that serve several.
        interface: String,
        /// The loader's reason.
        reason: String,
    },
    /// The VLANs of an interface could not be set in its program.
    #[error("packets of VLANs of {interface} are left to the kernel: {reason}")]
    Vlans {
        /// The interface.
        interface: String,
        /// The kernel's or the loader's reason.
        reason: String,
    },
    /// Another XDP program runs on the interface.
    #[error(
        "interface `{interface}` already runs XDP program {}id {id} ({mode}), and only one can be attached; {}; a \
         router's port without a `program` can leave XDP to it with `xdp = \"generic\"` and `level = \"driver\"`, \
         which forward by traffic control",
        quoted(name),
        removal(interface, name, *id, mode)
    )]
    AnotherProgram {
        /// The interface.
        interface: String,
        /// Name of the other program; empty if it is unknown.
        name: String,
        /// Kernel id of the other program.
        id: u32,
        /// Attach mode of the other program: native, generic or offloaded.
        mode: &'static str,
    },
    /// The user's own program could not be used.
    #[error("cannot use the program {file}: {reason}")]
    UserProgram {
        /// The object file.
        file: String,
        /// The reason, with advice.
        reason: String,
    },
    /// The program could not be attached in any allowed mode.
    #[error("cannot attach to `{interface}`: {reason}")]
    Attach {
        /// The interface.
        interface: String,
        /// Each mode tried, with the kernel's reason.
        reason: String,
    },
    /// A map of the program could not be read or changed.
    #[error("cannot use map `{map}` of the XDP program on `{interface}`: {reason}")]
    Map {
        /// The interface.
        interface: String,
        /// The map.
        map: &'static str,
        /// The loader's reason.
        reason: String,
    },
    /// Frames cannot be spread over CPUs.
    #[error("cannot spread the frames received by `{interface}` over CPUs: {reason}")]
    Spread {
        /// The interface.
        interface: String,
        /// Reason given by the kernel or by this process.
        reason: String,
    },
    /// Invalid ring size.
    #[error("{ring} ring of {size} entries: the size must be a power of two between 64 and 65536")]
    RingSize {
        /// Ring.
        ring: &'static str,
        /// Size requested, in entries.
        size: u32,
    },
    /// Invalid number of transmit sockets.
    #[error("{0} transmit sockets on one queue: 1 to 16 are possible")]
    TxSockets(usize),
    /// The interface does not have the queue.
    #[error("interface `{interface}` has no queue {queue}: it has {queues} (see `ethtool -l {interface}`)")]
    NoQueue {
        /// The interface.
        interface: String,
        /// Queue requested.
        queue: u32,
        /// Number of queues it has.
        queues: u32,
    },
    /// A socket could not be set up.
    #[error("AF_XDP socket for `{interface}` queue {queue}: {step} failed: {source}{hint}")]
    Socket {
        /// The interface.
        interface: String,
        /// The queue.
        queue: u32,
        /// The step that failed.
        step: &'static str,
        /// The kernel's reason.
        source: io::Error,
        /// Advice; empty, or starting with a separator.
        hint: &'static str,
    },
    /// The driver would cut frames in zero-copy mode, which was required.
    #[error("no zero-copy on `{interface}`, which was required: {reason}")]
    ShortBuffers {
        /// The interface.
        interface: String,
        /// The reason, with advice.
        reason: String,
    },
    /// The queue was still in use by another socket at the deadline.
    #[error(
        "queue {queue} of `{interface}` is in use by another AF_XDP socket and was not released within {waited_ms} ms; \
         `ss --xdp -p` shows its owner if the kernel has CONFIG_XDP_SOCKETS_DIAG"
    )]
    QueueBusy {
        /// The interface.
        interface: String,
        /// The queue.
        queue: u32,
        /// Time waited, in milliseconds.
        waited_ms: u128,
    },
    /// An interface setting could not be read or changed.
    #[error("cannot {action} of `{interface}`: {source}")]
    Feature {
        /// The interface.
        interface: String,
        /// Action that failed, with the setting's name.
        action: String,
        /// The kernel's reason.
        source: io::Error,
    },
    /// The journal of changed settings could not be written or read.
    #[error("journal {path}: {source}")]
    Journal {
        /// The file.
        path: String,
        /// The reason.
        source: io::Error,
    },
    /// The journal could have been written by others, or was not written by Bywash.
    #[error(
        "journal {path} is not trusted, so no setting was restored: {reason}; if Bywash wrote the journal, fix this \
         and try again; otherwise delete it and configure the interfaces yourself"
    )]
    JournalRefused {
        /// The file.
        path: String,
        /// The reason.
        reason: String,
    },
    /// Others could have written journals in this directory.
    #[error(
        "directory {path} is not trusted, so no setting was restored: it {reason}, so others could have written the \
         journals in it; inspect or delete the journals, then run `{remedy}`"
    )]
    JournalDirectory {
        /// The directory.
        path: String,
        /// The reason.
        reason: String,
        /// The command that corrects this.
        remedy: String,
    },
    /// The live-frame generator could not be set up or run.
    #[error("live-frame generator on `{interface}`: {reason}")]
    Generator {
        /// The interface.
        interface: String,
        /// The reason.
        reason: String,
    },
    /// The injector could not be set up: frames cannot be given to the kernel in batches or returned to it.
    #[error("the kernel refused the packet injection program: {0}")]
    Injector(String),
    /// A program could not be run on a frame.
    #[error("cannot run the XDP program on a test frame: {0}")]
    TestRun(String),
}

fn of(interface: &str) -> String {
    if interface.is_empty() { String::new() } else { format!(" for `{interface}`") }
}

fn quoted(name: &str) -> String {
    if name.is_empty() { String::new() } else { format!("`{name}`, ") }
}

/// Returns how to remove a program that is in the way. The kernel refuses to detach one that is held by a link, as an
/// instance holds its own.
fn removal(interface: &str, name: &str, id: u32, mode: &str) -> String {
    if OURS.contains(&name) {
        return "it is that of another instance of Bywash: end that instance".into();
    }
    let word = keyword(mode);
    format!(
        "see it with `bpftool prog show id {id}`, remove it by ending the program that attached it or, if no program \
         holds it by a link, with `ip link set dev {interface} {word} off`"
    )
}

/// Returns the word of ip-link(8) for an attach mode.
fn keyword(mode: &str) -> &'static str {
    match mode {
        "generic" => "xdpgeneric",
        "offloaded" => "xdpoffload",
        _ => "xdp",
    }
}

impl Error {
    /// Returns the reason without the interface's name, where the variant has one.
    pub(super) fn reason(&self) -> String {
        match self {
            Self::Load { reason, .. } => reason.clone(),
            Self::Map { map, reason, .. } => format!("map {map}: {reason}"),
            other => other.to_string(),
        }
    }
}

/// Returns the result of a change of a map.
pub(super) fn checked<T>(map: &'static str, result: io::Result<T>) -> Result<T, Error> {
    result.map_err(|e| Error::Map { interface: String::new(), map, reason: e.to_string() })
}
