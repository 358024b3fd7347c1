//! Answers about the process.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Sandbox of all threads.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Sandbox {
    /// State: `on`, `off` or `partly`.
    pub state: String,
    /// Reason for which it is not on.
    pub reason: Option<String>,
    /// Number of the user as which the instance runs; 0 is root.
    pub user: u64,
    /// Number of threads.
    pub threads: u64,
    /// True if no thread can gain privileges (no_new_privs).
    pub no_new_privs: bool,
    /// Capabilities that some thread has.
    pub capabilities: Vec<String>,
    /// True if seccomp filters the system calls of all threads.
    pub seccomp: bool,
    /// System calls allowed; empty if the sandbox is not on.
    pub system_calls: Vec<String>,
    /// Pid of the process that loads BPF programs, opens files and changes settings for the instance; null if the
    /// instance does it itself.
    pub broker: Option<u64>,
    /// True if that process has ended: ports cannot be added, and settings are not restored at the end.
    pub broker_ended: bool,
    /// True if Landlock restricts the files that can be opened.
    pub landlock: bool,
    /// Files, and directories of files, that can be read; empty if Landlock restricts none.
    pub readable: Vec<String>,
    /// Files, and directories of files, that can be read, written, made and removed; empty if Landlock restricts none.
    pub writable: Vec<String>,
    /// Files, and directories of files, that the broker makes, changes and removes for the instance.
    pub made: Vec<String>,
    /// Actions that an attacker in control of the process could still take.
    pub left: Vec<String>,
}

/// Configuration in effect. `bywash config schema` describes it, with its defaults.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Config {
    /// Mode: `router`, `switch` or `cmts`; `application` for one on the development kit.
    pub mode: String,
    /// Sandbox: `on` or `off`.
    pub sandbox: String,
    /// All other settings.
    #[serde(flatten)]
    pub others: Map<String, Value>,
}

/// Health.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Health {
    /// State: `ok`.
    pub status: String,
    /// Version of Bywash.
    pub version: String,
    /// Mode: `router`, `switch` or `cmts`; `application` for one on the development kit.
    pub mode: String,
    /// Pid of the process.
    pub pid: u64,
    /// Time since the process started, in seconds.
    pub uptime_s: u64,
}
