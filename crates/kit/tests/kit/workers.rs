//! Several workers, with the queues of the ports distributed over them.

use crate::lab::{Lab, datagrams};
use bywash_engine::{Context, PortId};
use bywash_frame::Batch;
use bywash_kit::{Error, Kit};
use bywash_lab::require;
use bywash_port::pair;

fn forward(cx: &mut Context<'_>, from: PortId, batch: &mut Batch) {
    cx.send_batch(from, PortId(1 - from.0), batch);
}

/// Packets that each worker of an application between two links with these queues has received.
fn received(queues: [u32; 2], workers: usize) -> Vec<u64> {
    let lab = Lab::new(queues);
    let mut kit = Kit::new(65_536).unwrap();
    kit.workers(workers);
    let ports = lab.r.enter(|| ["r0", "r1"].map(|name| kit.interface(name).unwrap())).unwrap();
    assert_eq!(ports, [PortId(0), PortId(1)]);
    let mut made = vec![];
    let running = kit
        .start_with(|worker| {
            made.push(worker);
            forward
        })
        .unwrap();
    assert_eq!(made, (0..workers).collect::<Vec<_>>());
    assert_eq!(datagrams(&lab.a, &lab.b, Lab::B, 64), 64);
    assert!(!running.failed());
    let received = running.counters().map(|worker| worker.stages[0].packets.get()).collect();
    running.stop().unwrap();
    received
}

#[test]
fn every_worker_has_its_queues() {
    require!(bywash_lab::require_lab());
    let received = received([2, 2], 2);
    assert!(received.iter().all(|packets| *packets > 0), "{received:?}");
}

/// The second port has one queue, so that the second worker sends on it through the first; the third worker has none.
#[test]
fn a_worker_sends_on_a_port_without_a_queue_of_its_own() {
    require!(bywash_lab::require_lab());
    let received = received([2, 1], 3);
    assert!(received[0] > 0 && received[1] > 0 && received[2] == 0, "{received:?}");
}

#[test]
fn a_panic_names_the_worker() {
    let mut kit = Kit::new(1024).unwrap();
    kit.workers(2);
    let ((one, mut peer), (other, _kept)) = (pair(64), pair(64));
    kit.port_of_queues(vec![Box::new(other), Box::new(one)]);
    let mut buffers = bywash_frame::Buffers::attach(kit.pools(), 0);
    let running = kit
        .start_with(|worker| move |_: &mut Context<'_>, _: PortId, _: &mut Batch| panic!("on {worker}, as it should"))
        .unwrap();
    let mut batch = Batch::new();
    assert_eq!(buffers.alloc(&mut batch, 1), 1);
    assert_eq!(bywash_port::Port::tx_burst(&mut peer, &mut buffers, &mut batch), 1);
    bywash_lab::wait_until("the panic", std::time::Duration::from_secs(60), || running.failed()).unwrap();
    let error = running.stop().unwrap_err();
    assert!(matches!(&error, Error::App { worker: 1, why } if why == "on 1, as it should"), "{error}");
}
