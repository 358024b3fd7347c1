//! Replay of the fuzz targets' seeds and of all inputs that ever crashed them; included by the corpus tests of the
//! crates.

use std::path::Path;

/// Name of a fuzz target and its function.
type Target = (&'static str, fn(&[u8]));

/// Runs each target on all files in its corpus and crash folders.
///
/// # Panics
/// Panics if a target panics or has fewer than 4 files, which means that the corpus is incomplete.
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
        assert!(replayed >= 4, "{name}: only {replayed} inputs, need 4: is fuzz/corpus present?");
    }
}
