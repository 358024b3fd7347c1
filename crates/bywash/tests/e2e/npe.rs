//! Ports of kind `npe`: a switch between a dispatching device and a capture file.

use crate::harness::{Bywash, alone};
use bywash_lab::{Namespace, require, require_lab};
use bywash_port::pcap::{CaptureFile, PcapSource};
use std::path::Path;

/// Less than the cells of a device with two channels, so that none is lost however slow the worker is.
const FRAMES: usize = 300;

/// Returns broadcast frames that differ in length and in every byte.
fn frames(from: u8) -> Vec<Vec<u8>> {
    let head = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 9, from, 0x88, 0xb5];
    let frame = |n: usize| {
        let body = (0..46 + n * 7 % 1400).map(|i| (n * 31 + i * (1 + n % 5)) as u8);
        head.into_iter().chain(body).collect()
    };
    (0..FRAMES).map(frame).collect()
}

/// Returns the frames of a capture file, sorted: those of different channels have no order.
fn sorted(path: &Path) -> Vec<Vec<u8>> {
    let mut frames: Vec<Vec<u8>> = PcapSource::load(path).unwrap().frames().collect();
    frames.sort();
    frames
}

/// The simulated engine is used if `BYWASH_RTL_ENGINE` names its program.
#[test]
fn a_switch_forwards_from_and_to_a_dispatching_device() {
    require!(require_lab());
    let _alone = alone();
    let engines: &[&str] =
        if std::env::var_os("BYWASH_RTL_ENGINE").is_some() { &["software", "rtl"] } else { &["software"] };
    for engine in engines {
        let (namespace, directory) = (Namespace::new("npe").unwrap(), tempfile::tempdir().unwrap());
        let at = |name: &str| directory.path().join(name);
        let (one, two) = (frames(1), frames(2));
        CaptureFile::of_frames(at("one.pcap"), &one).unwrap();
        CaptureFile::of_frames(at("two.pcap"), &two).unwrap();
        let text = format!(
            "mode = \"switch\"\n[[port]]\nkind = \"npe\"\nname = \"device\"\nchannels = 2\nengine = \"{engine}\"\n\
             block = 64\nfile = \"{0}/one.pcap\"\nrecord = \"{0}/sent-by-device.pcap\"\n\
             [[port]]\nkind = \"pcap\"\nname = \"line\"\nfile = \"{0}/two.pcap\"\nrecord = \"{0}/sent-by-line.pcap\"\n",
            directory.path().display()
        );
        let file = at("bywash.toml");
        std::fs::write(&file, text).unwrap();
        let switch = Bywash::run(&namespace, &["--config", file.to_str().unwrap()]);
        switch.wait("all frames to be forwarded", |switch| {
            ["device", "line"].iter().all(|port| switch.counter(port, "tx_packets") == FRAMES as u64)
        });
        let device = switch.port("device");
        assert_eq!((&device["kind"], device["queues"].as_array().unwrap().len()), (&"npe".into(), 2), "{device}");
        assert_eq!((switch.counter("device", "rx_packets"), switch.all_drops()), (FRAMES as u64, vec![]));
        switch.assert_conserved();
        switch.stop();
        for (sent, mut expected) in [("sent-by-line.pcap", one), ("sent-by-device.pcap", two)] {
            expected.sort();
            assert!(sorted(&at(sent)) == expected, "engine {engine}: {sent} has other frames");
        }
    }
}
