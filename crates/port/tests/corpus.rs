//! Replay of the fuzz targets' seeds and of all inputs that ever crashed them.

mod properties;
#[path = "../../../fuzz/replay.rs"]
mod replay;

#[test]
fn corpus_and_crashes() {
    replay::corpus_and_crashes(&properties::TARGETS);
}
