//! `bywash restore`: puts back what a killed run or `bywash doctor` changed in this network namespace.

use crate::config::count;
use crate::doctor::SavedSettings;
use crate::error::hint_at_root;
use serde_json::json;

/// Restores the settings, and prints them or their number.
pub fn run(json: bool) -> anyhow::Result<()> {
    let restored = bywash_daemon::restore().map_err(hint_at_root)?;
    let bywash_daemon::Restored { changes: mut all, mut failed, running, instances, removed } = restored;
    let saved = SavedSettings::open().map_err(hint_at_root)?;
    // A running instance may need what the doctor has set.
    let kept = instances > 0 && !saved.is_empty();
    if !kept {
        let (changed, not) = saved.restore().map_err(hint_at_root)?;
        all.extend(changed);
        failed.extend(not);
    }
    if json {
        println!(
            "{}",
            json!({ "settings": all, "failed": failed, "running": running, "kept": kept, "removed": removed })
        );
    } else {
        if !running.is_empty() {
            let interfaces = running.into_iter().collect::<Vec<_>>().join(", ");
            println!("{interfaces}: their instance runs, and restores their settings when it ends");
        }
        if kept {
            println!(
                "the settings that `bywash doctor --fix` has changed are kept while an instance runs: end it first"
            );
        }
        if removed > 0 {
            println!("{} of network namespaces that are gone: removed", count(removed, "journal"));
        }
        match all.len() {
            0 if kept => {}
            0 => println!("nothing to restore"),
            all => println!("{} of {} restored", all - failed.len(), count(all, "setting")),
        }
    }
    anyhow::ensure!(failed.is_empty(), "could not restore {}", failed.join("; "));
    Ok(())
}
