//! Replays the seeds of the fuzz targets and every crash they ever found.

mod properties;
#[path = "../../../fuzz/replay.rs"]
mod replay;

#[test]
fn corpus_and_crashes() {
    replay::corpus_and_crashes(&properties::TARGETS);
}
