//! What the doctor finds.

use serde::Serialize;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Packets are not forwarded, or not where they should be.
    Error,
    /// It costs packets or speed.
    Warning,
    /// It may cost speed, or is worth knowing.
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

/// A setting that mends something, and that can be put back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fix {
    /// A feature of an interface, by the kernel's name.
    Feature { interface: String, feature: String, on: bool },
    /// A file under /proc/sys or /sys.
    File { path: String, value: String },
}

/// One thing found.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// The interface; none: the machine, or the running instance.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    /// Its name, which does not change between versions.
    pub id: &'static str,
    pub severity: Severity,
    /// What is.
    pub what: String,
    /// What it costs.
    pub costs: &'static str,
    /// The command that mends it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub mend: String,
    /// Whether `--fix` mends it.
    pub fixable: bool,
    /// Whether it just did.
    pub fixed: bool,
    /// Why it could not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
    #[serde(skip)]
    pub fix: Option<Fix>,
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
        }
    }

    /// Of an interface.
    pub fn of(mut self, interface: &str) -> Self {
        self.interface = Some(interface.into());
        self
    }

    /// A command that only the user can decide on.
    pub fn mend(mut self, command: impl Into<String>) -> Self {
        self.mend = command.into();
        self
    }

    /// A setting that `--fix` makes; it stands as a command, too.
    pub fn fix(mut self, fix: Fix) -> Self {
        self.mend = match &fix {
            Fix::Feature { interface, feature, on } => {
                format!("ethtool -K {interface} {feature} {}", if *on { "on" } else { "off" })
            }
            Fix::File { path, value } => format!("echo {value} > {path}"),
        };
        self.fixable = true;
        self.fix = Some(fix);
        self
    }
}
