//! Findings of `bywash doctor`.

use serde::Serialize;

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Packets are not forwarded, or not as configured.
    Error,
    /// Packets are lost, or forwarding is slower.
    Warning,
    /// Forwarding may be slower, or the fact is worth knowing.
    Note,
}

impl Severity {
    pub fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
            Self::Note => "note",
        }
    }
}

/// Reversible change of a setting that fixes a finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fix {
    /// Interface feature, by the kernel's name.
    Feature { interface: String, feature: String, on: bool },
    /// File under /proc/sys or /sys.
    File { path: String, value: String },
}

/// Finding of the doctor.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// Interface; `None` for the machine or the running instance.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    /// Identifier, stable across versions.
    pub id: &'static str,
    pub severity: Severity,
    /// Description of the problem.
    pub what: String,
    /// Consequence of the problem.
    pub costs: &'static str,
    /// Remedy: a command or advice; empty if there is none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub mend: String,
    /// True if `--fix` can fix it.
    pub fixable: bool,
    /// True if `--fix` has fixed it in this run.
    pub fixed: bool,
    /// Error if the fix failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
    #[serde(skip)]
    pub fix: Option<Fix>,
    /// True if `mend` only shows more about the problem.
    #[serde(skip)]
    pub sees: bool,
}

impl Finding {
    pub fn new(severity: Severity, id: &'static str, what: impl Into<String>, costs: &'static str) -> Self {
        Self {
            interface: None,
            id,
            severity,
            what: what.into(),
            costs,
            mend: String::new(),
            fixable: false,
            fixed: false,
            failed: None,
            fix: None,
            sees: false,
        }
    }

    /// Sets the interface.
    pub fn of(mut self, interface: &str) -> Self {
        self.interface = Some(interface.into());
        self
    }

    /// Sets a remedy that the user has to decide on.
    pub fn mend(mut self, command: impl Into<String>) -> Self {
        self.mend = command.into();
        self
    }

    /// Sets a command that shows more about the problem, but does not solve it.
    pub fn see(mut self, command: impl Into<String>) -> Self {
        self.sees = true;
        self.mend(command)
    }

    /// Sets a fix that `--fix` applies; it is also shown as a command.
    pub fn fix(mut self, fix: Fix) -> Self {
        self.mend = match &fix {
            Fix::Feature { interface, feature, on } => {
                format!("ethtool -K {interface} {feature} {}", if *on { "on" } else { "off" })
            }
            Fix::File { path, value } => {
                match path.strip_prefix("/sys/class/net/").and_then(|of| of.strip_suffix("/flags")) {
                    Some(interface) => format!("ip link set {interface} up"),
                    None => format!("echo {value} > {path}"),
                }
            }
        };
        self.fixable = true;
        self.fix = Some(fix);
        self
    }
}
