//! What can go wrong with an AF_XDP port: what, where, and what to do.

use std::io;

/// An error of the AF_XDP port.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No such interface in this network namespace.
    #[error("no interface named `{0}` in this network namespace (see `ip link`)")]
    NoInterface(String),
    /// The kernel's link table could not be asked.
    #[error("cannot ask the kernel about interface `{interface}`: {source}")]
    Query {
        /// The interface.
        interface: String,
        /// The kernel's reason.
        source: io::Error,
    },
    /// The built-in program was not accepted.
    #[error("the kernel does not take the XDP program for `{interface}`: {reason}")]
    Load {
        /// The interface.
        interface: String,
        /// The loader's reason.
        reason: String,
    },
    /// A program of someone else's runs on the interface.
    #[error(
        "interface `{interface}` already runs XDP program id {id} ({mode}); see it with `bpftool prog show id {id}`, \
         remove it with `ip link set dev {interface} xdp off` or by ending the program that attached it"
    )]
    AnotherProgram {
        /// The interface.
        interface: String,
        /// Kernel id of that program.
        id: u32,
        /// How it is attached: native, generic or offloaded.
        mode: &'static str,
    },
    /// The program could not be attached in any mode allowed.
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
    #[error("cannot spread over CPUs what `{interface}` receives: {reason}")]
    Spread {
        /// The interface.
        interface: String,
        /// The kernel's reason, or ours.
        reason: String,
    },
    /// A ring size that is impossible.
    #[error("{ring} ring of {size} entries: the size must be a power of two between 64 and 65536")]
    RingSize {
        /// Which ring.
        ring: &'static str,
        /// The size asked for.
        size: u32,
    },
    /// A number of transmit sockets that is impossible.
    #[error("{0} transmit sockets on one queue: 1 to 16 are possible")]
    TxSockets(usize),
    /// A queue the interface does not have.
    #[error("interface `{interface}` has no queue {queue}: it has {queues} (see `ethtool -l {interface}`)")]
    NoQueue {
        /// The interface.
        interface: String,
        /// The queue asked for.
        queue: u32,
        /// Queues it has.
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
        /// What to do about it; empty, or starting with a separator.
        hint: &'static str,
    },
    /// The queue belongs to another socket, and stayed so until the deadline.
    #[error(
        "queue {queue} of `{interface}` is in use by another AF_XDP socket and was not released within {waited_ms} ms; \
         `ss --xdp -p` shows whose it is"
    )]
    QueueBusy {
        /// The interface.
        interface: String,
        /// The queue.
        queue: u32,
        /// How long was waited, in milliseconds.
        waited_ms: u128,
    },
    /// An interface setting could not be read or changed.
    #[error("cannot {action} of `{interface}`: {source}")]
    Feature {
        /// The interface.
        interface: String,
        /// What was tried, with the setting's name.
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
    /// The live-frame generator could not be set up or run.
    #[error("live-frame generator on `{interface}`: {reason}")]
    Generator {
        /// The interface.
        interface: String,
        /// The reason.
        reason: String,
    },
    /// The injector could not be set up: nothing can be given to the kernel in batches, nor handed back to it.
    #[error("the kernel does not take the program that gives it packets: {0}")]
    Injector(String),
    /// A program could not be run over a frame.
    #[error("the kernel does not run the XDP program over a frame: {0}")]
    TestRun(String),
}

impl Error {
    /// The kernel's reason.
    pub(super) fn reason(&self) -> String {
        match self {
            Self::Load { reason, .. } => reason.clone(),
            Self::Map { map, reason, .. } => format!("map {map}: {reason}"),
            other => other.to_string(),
        }
    }
}
