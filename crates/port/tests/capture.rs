//! Captures of a port's packets.

mod common;

use bywash_frame::Buffers;
use bywash_port::{Wanted, capture};
use common::{batch_of, pools};

#[test]
fn a_drain_ends_although_packets_are_recorded_meanwhile() {
    let pools = pools(8);
    let mut bufs = Buffers::attach(&pools, 0);
    let mut batch = batch_of(&mut bufs, &[vec![1; 60], vec![2; 60]]);
    let (mut recorder, mut records) =
        capture(0, Wanted { received: vec![true], snaplen: 64, ..Wanted::default() }, 1 << 16);
    recorder.received(bufs.arena(), 0, batch.as_slice());
    let mut drain = || {
        records.drain(|_| {
            recorder.received(bufs.arena(), 0, batch.as_slice());
            Ok(())
        })
    };
    assert_eq!(drain().unwrap(), 2);
    assert_eq!(drain().unwrap(), 4);
    bufs.free(&mut batch);
}
