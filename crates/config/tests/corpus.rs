//! Replay of the fuzz target's seeds and of all inputs that ever crashed it.

mod properties;
#[path = "../../../fuzz/replay.rs"]
mod replay;

#[test]
fn corpus_and_crashes() {
    replay::corpus_and_crashes(&properties::TARGETS);
}
