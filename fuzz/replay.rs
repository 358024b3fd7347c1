//! Replays the seeds of fuzz targets and every crash they ever found; included by the tests of the crates that have some.

use std::path::Path;

/// A target's name, and what it does with an input.
type Target = (&'static str, fn(&[u8]));

/// Runs each target over its files.
///
/// # Panics
/// When a target does, and when one has too few files to be the whole of them.
pub fn corpus_and_crashes(targets: &[Target]) {
    let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz");
    for (name, target) in targets {
        let mut replayed = 0;
        for folder in ["corpus", "crashes"] {
            let Ok(files) = fuzz.join(folder).join(name).read_dir() else { continue };
            for file in files {
                let path = file.unwrap().path();
                println!("{}", path.display());
                target(&std::fs::read(path).unwrap());
                replayed += 1;
            }
        }
        assert!(replayed >= 4, "{name}: only {replayed} inputs; is fuzz/corpus there?");
    }
}
