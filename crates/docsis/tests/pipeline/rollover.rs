//! Keys that are replaced while frames flow.

use crate::{Keep, group, instance, two_flows};
use bywash_docsis::cipher::{Tek, derived_key};
use bywash_docsis::header::parse;
use bywash_docsis::instance::{CELL, INPUT, Instance};
use bywash_docsis::keys::SEQUENCES;
use bywash_docsis::lower::LowerConfig;
use bywash_docsis::protect::{self, Protection};
use bywash_docsis::queue::{Overflow, QueueLimits};
use bywash_docsis::seal::{Crypto, KeyPair};
use bywash_docsis::traffic::{Share, packets};
use bywash_docsis::window::Window;
use bywash_frame::{Arena, ArenaConfig, PoolConfig, PoolSet};
use bywash_ipsec_mb::Library;
use bywash_port::Port;
use bywash_port::pcap::{PcapPort, PcapSource};
use bywash_sync::Qsbr;
use std::time::{Duration, Instant};

const MODEMS: u16 = 5;
const ROLLOVERS: usize = 200;

/// Returns the key of a modem after this number of rollovers.
fn key(modem: usize, generation: usize) -> KeyPair {
    (derived_key(&[1; 16], (generation * 100 + modem + 1) as u32), derived_key(&[2; 16], (generation + 1) as u32))
}

/// Replaces every modem's key 200 times under load. Every frame must open with a key of the sequence number in its
/// header, and be one of the last two at that time.
fn roll(crypto: Crypto, sizes: &[Share]) {
    let arena = Arena::new(ArenaConfig { cells: 4096, cell: CELL, ..Default::default() }).unwrap();
    let pools = PoolSet::new(arena, &[PoolConfig::stack("test", 4096)]).unwrap();
    let group = group(MODEMS, two_flows());
    let protection = Protection::default();
    let config = instance(LowerConfig {
        protection,
        crypto,
        assist: true,
        queues: QueueLimits { flow: 2000, total: 2000, overflow: Overflow::Tail },
        channels: vec![0; 2],
        bits: 0,
        depi: None,
    });
    let macs: Vec<_> = group.modems().iter().map(|m| m.mac).collect();
    let input = PcapPort::replay(PcapSource::from_frames(packets(&macs, sizes, 100)).unwrap().repeated());
    let keep = Keep::default();
    let (sent, output) = (keep.sent.clone(), keep.counters());
    let input = Window::new(input, output.clone(), 512);
    let domain = Qsbr::new();
    let mut instance =
        Instance::start(group.clone(), &config, (&pools, 0), Box::new(input), Box::new(keep), &domain).unwrap();
    let until = Instant::now() + Duration::from_secs(120);
    for generation in 1..=ROLLOVERS {
        for modem in 0..usize::from(MODEMS) {
            let sequence = (generation % usize::from(SEQUENCES)) as u8;
            instance.keys.change(modem, sequence, Some(key(modem, generation)), true).unwrap();
        }
        // Some frames with each key.
        let before = output.tx_packets.get();
        while instance.keys.tick() > 0 || output.tx_packets.get() < before + 20 {
            assert!(Instant::now() < until, "generation {generation}");
            std::thread::sleep(Duration::from_micros(200));
        }
    }
    instance.stop().unwrap();
    let drops: u64 = instance.workers.iter().map(|worker| worker.counters().port(INPUT).total()).sum();
    assert_eq!(drops, 0);

    let assisted = instance.workers[0].counters().stages.iter().find(|s| s.name == "seal").unwrap().packets.get();
    let mut next = vec![0u16; group.flows().len()];
    let mut newest = vec![0; usize::from(MODEMS)];
    let sent = std::mem::take(&mut *sent.lock().unwrap());
    println!("{crypto:?}: {} frames, {assisted} sealed early", sent.len());
    for frame in &sent {
        let parsed = parse(frame).unwrap();
        let (privacy, service) = (parsed.header.privacy.unwrap(), parsed.header.service.unwrap());
        assert_eq!(privacy.toggle, privacy.key_sequence % 2 == 1);
        let flow = service.dsid.unwrap() as usize - 1;
        assert_eq!(service.sequence, Some(next[flow]));
        next[flow] = next[flow].wrapping_add(1);
        let modem = group.flows()[flow].modem as usize;
        let opens = |generation: &usize| {
            let (key, iv) = if *generation == 0 { group.modems()[modem].key } else { key(modem, *generation) };
            protect::open(&Tek::new(&key, &iv), protection, &mut parsed.pdu.to_vec()).is_ok()
        };
        let of_sequence = (usize::from(privacy.key_sequence)..ROLLOVERS + 1).step_by(usize::from(SEQUENCES));
        let opened = of_sequence.rev().find(opens);
        let generation = opened.unwrap_or_else(|| panic!("no key {} opens a frame", privacy.key_sequence));
        assert!(generation + 1 >= newest[modem], "key {generation} after key {}", newest[modem]);
        newest[modem] = newest[modem].max(generation);
    }
    assert_eq!(newest, [ROLLOVERS; MODEMS as usize]);
}

#[test]
fn keys_roll_over_under_load_without_loss() {
    let sizes = [Share { weight: 1, size: 68 }, Share { weight: 1, size: 400 }];
    roll(Crypto::Portable, &sizes);
    if Library::load().is_ok() {
        roll(Crypto::IpsecMb, &sizes);
    } else {
        println!("SKIP: libipsec-mb is not installed");
    }
}
