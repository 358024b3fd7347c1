//! Journal of the settings that the doctor changed, for `bywash restore`.
//!
//! Interface features are recorded in a journal of the same kind as that of `run`, but in a separate file, because
//! `run` empties its own on exit. Previous file contents are stored in a file beside it.

use super::finding::Fix;
use anyhow::Context as _;
use bywash_port::af_xdp::{Features, Journal};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::path::PathBuf;

/// Contents of a file before it was changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Was {
    path: String,
    was: String,
}

/// Changes made in this network namespace.
pub struct Remembered {
    features: Journal,
    files: Vec<Was>,
    path: PathBuf,
}

impl Remembered {
    /// Opens the journal with the changes of earlier runs.
    pub fn open() -> anyhow::Result<Self> {
        let path = bywash_daemon::journal("doctor-files");
        let files = match std::fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes).with_context(|| format!("cannot read {}", path.display()))?,
            Err(why) if why.kind() == std::io::ErrorKind::NotFound => vec![],
            Err(why) => return Err(why).with_context(|| format!("cannot read {}", path.display())),
        };
        Ok(Self { features: Journal::open(bywash_daemon::journal("doctor"))?, files, path })
    }

    /// Applies a fix after recording the previous value. Fixes of the same setting keep the first recorded value.
    pub fn apply(&mut self, fix: &Fix) -> anyhow::Result<()> {
        match fix {
            Fix::Feature { interface, feature, on } => {
                self.features.set(&Features::of(interface)?, feature, *on)?;
            }
            Fix::File { path, value } => {
                let was = read(path)?;
                let known = self.files.iter().any(|file| file.path == *path);
                if !known {
                    self.files.push(Was { path: path.clone(), was });
                    self.write()?;
                }
                if let Err(why) = write(path, value) {
                    if !known {
                        self.files.pop();
                        self.write()?;
                    }
                    return Err(why);
                }
            }
        }
        Ok(())
    }

    /// Restores all settings, the last change first. Returns the recorded changes, and an error for each one that could
    /// not be restored; those stay recorded.
    pub fn restore(mut self) -> anyhow::Result<(Vec<Value>, Vec<String>)> {
        let mut all: Vec<Value> = self.features.changes().iter().map(|change| json!(change)).collect();
        all.extend(self.files.iter().map(|file| json!(file)));
        let mut failed = vec![];
        let mut left = vec![];
        for file in std::mem::take(&mut self.files).into_iter().rev() {
            // A missing file disappeared with its interface.
            if let Err(why) = write(&file.path, &file.was)
                && std::path::Path::new(&file.path).exists()
            {
                failed.push(format!("{}: {why:#}", file.path));
                left.push(file);
            }
        }
        left.reverse();
        self.files = left;
        self.write()?;
        let features = self.features.restore()?;
        failed.extend(features.iter().map(|(c, why)| format!("{} {}: {why}", c.interface, c.feature)));
        Ok((all, failed))
    }

    /// Writes the file atomically, like the journal; removes it if nothing is recorded.
    fn write(&self) -> anyhow::Result<()> {
        let failed = || format!("cannot write {}", self.path.display());
        if self.files.is_empty() {
            return match std::fs::remove_file(&self.path) {
                Err(why) if why.kind() != std::io::ErrorKind::NotFound => Err(why).with_context(failed),
                _ => Ok(()),
            };
        }
        if let Some(directory) = self.path.parent() {
            std::fs::create_dir_all(directory).with_context(failed)?;
        }
        let new = self.path.with_extension("new");
        std::fs::write(&new, serde_json::to_vec_pretty(&self.files)?).with_context(failed)?;
        std::fs::rename(&new, &self.path).with_context(failed)
    }
}

fn read(path: &str) -> anyhow::Result<String> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {path}"))?;
    Ok(text.trim().to_owned())
}

fn write(path: &str, value: &str) -> anyhow::Result<()> {
    std::fs::write(path, value).with_context(|| format!("cannot write {value} to {path}"))
}
