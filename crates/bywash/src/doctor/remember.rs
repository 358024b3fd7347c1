//! Journal of the settings that the doctor changed, for `bywash restore`.
//!
//! Interface features are recorded in a journal of the same kind as that of `run`, but in a separate file, because
//! `run` empties its own on exit. Previous file contents are stored in a file beside it.

use super::finding::Fix;
use super::setting;
use anyhow::Context as _;
use bywash_port::af_xdp::{Features, Journal, JournalFile};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::path::PathBuf;

/// Contents of a file before it was changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Saved {
    path: String,
    was: String,
}

/// Changes made in this network namespace.
pub struct SavedSettings {
    features: Journal,
    files: Vec<Saved>,
    journal: JournalFile,
}

impl SavedSettings {
    /// Opens the journals with the changes of earlier runs. Errors if one is refused.
    pub fn open() -> anyhow::Result<Self> {
        Self::open_at(bywash_daemon::journal("doctor"), bywash_daemon::journal("doctor-files"))
    }

    fn open_at(features: PathBuf, files: PathBuf) -> anyhow::Result<Self> {
        let journal = JournalFile::new(files);
        let files = journal.read(|file: &Saved| setting::check(&file.path, &file.was))?;
        Ok(Self { features: Journal::open(features)?, files, journal })
    }

    /// Returns whether no setting is changed.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty() && self.features.changes().is_empty()
    }

    /// Applies a fix after recording the previous value. Fixes of the same setting keep the first recorded value.
    pub fn apply(&mut self, fix: &Fix) -> anyhow::Result<()> {
        match fix {
            Fix::Feature { interface, feature, on } => {
                self.features.set(&Features::of(interface)?, feature, *on)?;
            }
            Fix::File { path, value } => {
                let was = read(path)?;
                setting::check(path, &was).map_err(|why| anyhow::anyhow!("{why}, and so is not changed"))?;
                let known = self.files.iter().any(|file| file.path == *path);
                if !known {
                    self.files.push(Saved { path: path.clone(), was });
                    self.journal.write(&self.files)?;
                }
                if let Err(why) = setting::write(path, value) {
                    if !known {
                        self.files.pop();
                        self.journal.write(&self.files)?;
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
            if let Err(why) = setting::restore(&file.path, &file.was)
                && std::path::Path::new(&file.path).exists()
            {
                failed.push(format!("{}: {why:#}", file.path));
                left.push(file);
            }
        }
        left.reverse();
        self.files = left;
        self.journal.write(&self.files)?;
        let features = self.features.restore()?;
        failed.extend(features.iter().map(|(c, why)| format!("{} {}: {why}", c.interface, c.feature)));
        Ok((all, failed))
    }
}

fn read(path: &str) -> anyhow::Result<String> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {path}"))?;
    Ok(text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_journal_that_names_another_file_is_refused_and_nothing_of_it_written() {
        let directory = tempfile::tempdir().unwrap();
        let (features, files) = (directory.path().join("doctor.json"), directory.path().join("doctor-files.json"));
        let victim = directory.path().join("victim");
        fs::write(&victim, "as it was").unwrap();
        // The second change is one that the doctor makes: it is not put back either.
        let crafted = json!([
            { "path": victim, "was": "changed" },
            { "path": "/proc/sys/net/ipv4/conf/nosuchif0/forwarding", "was": "0" },
        ]);
        fs::write(&files, crafted.to_string()).unwrap();
        let restored = SavedSettings::open_at(features.clone(), files.clone()).and_then(SavedSettings::restore);
        let why = format!("{:#}", restored.unwrap_err());
        let named = [files.display().to_string(), "is not trusted".into(), victim.display().to_string()];
        assert!(named.iter().all(|part| why.contains(part)), "{why}");
        assert_eq!(fs::read_to_string(&victim).unwrap(), "as it was");
        assert_eq!(fs::read_to_string(&files).unwrap(), crafted.to_string(), "it is kept, to be looked at");
        fs::remove_file(&files).unwrap();
        let (all, failed) = SavedSettings::open_at(features, files).and_then(SavedSettings::restore).unwrap();
        assert!(all.is_empty() && failed.is_empty());
    }
}
