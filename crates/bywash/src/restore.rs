//! `bywash restore`: puts back what a killed run or `bywash doctor` changed in this network namespace.

use crate::doctor::Remembered;
use serde_json::json;

/// Restores the settings, and prints them or their number.
pub fn run(json: bool) -> anyhow::Result<()> {
    let (mut all, mut failed) = bywash_daemon::restore()?;
    let (changed, not) = Remembered::open()?.restore()?;
    all.extend(changed);
    failed.extend(not);
    if json {
        println!("{}", json!({ "settings": all, "failed": failed }));
    } else if all.is_empty() {
        println!("nothing to put back");
    } else {
        println!("{} of {} settings put back", all.len() - failed.len(), all.len());
    }
    anyhow::ensure!(failed.is_empty(), "could not put back {}", failed.join("; "));
    Ok(())
}
