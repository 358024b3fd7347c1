//! Replays the seeds of the fuzz targets and every crash they ever found.

mod properties;

use std::path::Path;

#[test]
fn corpus_and_crashes() {
    let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz");
    for (name, target) in properties::TARGETS {
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
