//! The file with the switch's flows, which is loaded at the start and, if it has changed, by a reload.

use anyhow::Context as _;
use bywash_flow::control::FlowControl;
use bywash_flow::model::OfPort;
use bywash_flow::script::{self as flows, Verb};
use bywash_port::broker;
use bywash_sync::lock;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::PathBuf;
use std::sync::Mutex;

/// File with flows, one per line.
pub struct FlowFile {
    path: PathBuf,
    /// Hash of the text that was loaded last; `None` before the first time.
    loaded: Mutex<Option<u64>>,
}

impl FlowFile {
    /// Creates a file that has not been loaded yet.
    pub fn new(path: PathBuf) -> Self {
        Self { path, loaded: Mutex::new(None) }
    }

    /// Returns the file's text; `None` if it is the one that was loaded last.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn changed(&self) -> anyhow::Result<Option<String>> {
        let text = broker::read_to_string(&self.path);
        let text = text.with_context(|| format!("cannot read {}", self.path.display()))?;
        Ok(Some(text).filter(|text| *lock(&self.loaded) != Some(hash(text))))
    }

    /// Replaces all flows, groups and meters by those of the file's text. `names` returns the number of a port.
    ///
    /// # Errors
    /// If a line is wrong or cannot be applied: nothing has changed then.
    pub fn load(
        &self,
        control: &mut FlowControl,
        text: &str,
        names: &dyn Fn(&str) -> Option<OfPort>,
    ) -> anyhow::Result<()> {
        let path = self.path.display();
        let lines = flows::parse(text, Verb::Add, names)
            .map_err(|wrong| anyhow::anyhow!("{path}:{}:{}: {}", wrong.line, wrong.error.column, wrong.error.what))?;
        flows::replace(control, lines).map_err(|why| anyhow::anyhow!("{path}: {why}"))?;
        *lock(&self.loaded) = Some(hash(text));
        Ok(())
    }
}

fn hash(text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}
