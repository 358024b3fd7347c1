//! Answer about levels.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Level of a port, and why.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Placement {
    /// Port.
    pub port: String,
    /// Requested level; null for a port without levels.
    pub configured: Option<String>,
    /// Level in effect: `driver`, `user` or `kernel`. Missing while the port's interface is gone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub level: Option<String>,
    /// Reason for the level.
    pub why: String,
    /// Mode of the XDP program: `native`, `generic` or `tc`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// Reason for the mode; empty if it is the best one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode_why: Option<String>,
    /// CPUs among which the driver spreads frames, and the frames that each has sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spread: Option<Vec<CpuFrames>>,
    /// Reason for which frames are not spread.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spread_why: Option<String>,
    /// True if native programs of other ports send to this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<bool>,
    /// Reason for `target`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_why: Option<String>,
    /// Kernel policies that apply to packets received on the port.
    pub kept: Vec<Kept>,
    /// State of the kernel's policies as a whole; missing in modes that do not follow them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policies: Option<Policies>,
    /// Frames received, by the level at which they were handled.
    pub frames: LevelFrames,
}

/// State of the kernel's policies as a whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Policies {
    /// Changes noticed since the start, some of them several at once.
    pub changes: u64,
    /// True until the newest change has been read and applied: the kernel forwards all packets meanwhile.
    pub pending: bool,
}

/// Frames sent by a CPU.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct CpuFrames {
    /// CPU.
    pub cpu: u64,
    /// Frames.
    pub frames: u64,
}

/// Kernel policy for which packets are left to the kernel.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Kept {
    /// Key of `[kernel]` in the configuration that decides about it.
    pub kind: String,
    /// Packets concerned.
    pub packets: String,
    /// Object in the kernel.
    pub object: String,
    /// Reason.
    pub reason: String,
    /// True if `[kernel]` ignores the policy: the packets are forwarded despite it.
    pub ignored: bool,
    /// Hint: how to have the packets forwarded.
    pub allow: String,
}

/// Frames by level.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct LevelFrames {
    /// Frames forwarded by the XDP program.
    pub driver: u64,
    /// Frames handed to workers.
    pub user: u64,
    /// Frames left to the kernel.
    pub kernel: u64,
}
