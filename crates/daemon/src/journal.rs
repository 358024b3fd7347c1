//! Places of the journals that record changed interface settings until they are restored.

use std::fs::DirBuilder;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

/// Directory of the journals.
const STATE: &str = "/run/bywash";

/// Returns the directory of the journals. Makes it if there is none: in the sandbox it cannot be made any more. An error
/// is that of the first journal.
pub fn directory() -> &'static Path {
    let _ = DirBuilder::new().recursive(true).mode(0o755).create(STATE);
    Path::new(STATE)
}

/// Returns the path of the journal of a running instance.
pub fn settings() -> PathBuf {
    journal("settings")
}

/// Returns the path of journal `what` for the current network namespace, so that instances in different namespaces use
/// separate journals.
pub fn journal(what: &str) -> PathBuf {
    let ns = std::fs::metadata("/proc/self/ns/net").map(|m| m.ino()).unwrap_or(0);
    Path::new(STATE).join(format!("{what}-{ns}.json"))
}
