//! Tests of replay and recording, with common capture tools and with damaged files.

mod common;

use bywash_frame::{Batch, Buffers};
use bywash_port::pcap::{
    CaptureFile, Direction, Format, Pace, PacketMeta, PcapError, PcapPort, PcapRecorder, PcapSource,
};
use bywash_port::{NullPort, Port, PortState};
use common::{assert_conserved, batch_of, contents, pools};
use proptest::prelude::*;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

fn packet(i: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (i * 31 + at * 7) as u8).collect()
}

/// Returns packets of sizes around the boundaries of cache lines, and the largest that fit.
fn packets() -> Vec<Vec<u8>> {
    [0, 1, 14, 59, 60, 63, 64, 65, 127, 128, 129, 1513, 1514, 1518, 1791, 1792]
        .iter()
        .enumerate()
        .map(|(i, len)| packet(i, *len))
        .collect()
}

fn deliver(port: &mut PcapPort, bufs: &mut Buffers, want: usize) -> Vec<Vec<u8>> {
    let mut got = Vec::new();
    let mut batch = Batch::new();
    while got.len() < want {
        let n = port.rx_burst(bufs, &mut batch);
        if n == 0 {
            break;
        }
        got.extend(contents(bufs, &mut batch));
    }
    got
}

#[test]
fn what_is_recorded_is_replayed() {
    let dir = tempfile::tempdir().unwrap();
    let pools = pools(256);
    let mut bufs = Buffers::attach(&pools, 0);
    for name in ["a.pcap", "a.pcapng"] {
        let path = dir.path().join(name);
        let mut sink = PcapPort::record(PcapRecorder::create(&path).unwrap());
        assert!(!sink.receives());
        let mut batch = batch_of(&mut bufs, packets());
        assert_eq!(sink.tx_burst(&mut bufs, &mut batch), packets().len());
        assert!(batch.is_empty());
        assert_eq!(sink.counters().tx_packets.get(), packets().len() as u64);
        sink.close(&mut bufs);
        assert_eq!(sink.state(), PortState::Up);

        let source = PcapSource::load(&path).unwrap();
        assert_eq!(source.frames().collect::<Vec<_>>(), packets());
        let mut port = PcapPort::replay(source);
        assert_eq!(deliver(&mut port, &mut bufs, usize::MAX), packets(), "{name}");
        assert_eq!(port.state(), PortState::Ended);
        assert!(!port.receives());
        assert_eq!(port.counters().rx_bytes.get(), packets().iter().map(|p| p.len() as u64).sum::<u64>());
        port.close(&mut bufs);
    }
    drop(bufs);
    assert_conserved(&pools);
}

fn tool(name: &str, args: &[&str]) -> Option<String> {
    let out = match Command::new(name).args(args).output() {
        Ok(out) => out,
        Err(e) => {
            println!("SKIP: {name} does not run here: {e}");
            return None;
        }
    };
    let (stdout, stderr) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success(), "{name} {args:?}: {stderr}");
    Some(stdout.into_owned())
}

/// Returns an Ethernet frame of `len` bytes with IPv4 and UDP from source port `port`.
fn udp(port: u16, len: usize) -> Vec<u8> {
    let mut p = vec![0u8; len];
    p[..6].copy_from_slice(&[2, 0, 0, 0, 0, 2]);
    p[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 1]);
    p[12..14].copy_from_slice(&[8, 0]);
    let ip = (len - 14) as u16;
    p[14..24].copy_from_slice(&[0x45, 0, (ip >> 8) as u8, ip as u8, 0, 0, 0, 0, 64, 17]);
    p[26..34].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
    p[34..36].copy_from_slice(&port.to_be_bytes());
    p[36..38].copy_from_slice(&9u16.to_be_bytes());
    p[38..40].copy_from_slice(&(ip - 20).to_be_bytes());
    p
}

#[test]
fn tcpdump_and_tshark_read_what_is_written() {
    let dir = tempfile::tempdir().unwrap();
    for (format, name) in [(Format::Pcap, "w.pcap"), (Format::PcapNg, "w.pcapng")] {
        let path = dir.path().join(name);
        let mut file = CaptureFile::create(&path, &["left", "right"], 0).unwrap();
        assert_eq!(Format::of(&path), format);
        for i in 0..5u16 {
            let bytes = udp(1000 + i, 60 + usize::from(i));
            let direction = Some(if i % 2 == 0 { Direction::Rx } else { Direction::Tx });
            let time_ns = 1_700_000_000_123_456_789 + u64::from(i);
            let meta = PacketMeta { time_ns, length: bytes.len() as u32 + 100, direction, interface: u32::from(i % 2) };
            file.write(meta, &bytes).unwrap();
        }
        file.flush().unwrap();
        let path = path.to_str().unwrap();
        if let Some(out) = tool("tcpdump", &["--nano", "-tt", "-nr", path]) {
            let lines: Vec<_> = out.lines().collect();
            assert_eq!(lines.len(), 5, "{out}");
            assert!(lines[3].starts_with("1700000000.123456792 IP 10.0.0.1.1003 > 10.0.0.2.9"), "{out}");
        }
        let fields = ["-T", "fields", "-e", "udp.srcport", "-e", "frame.len", "-e", "frame.cap_len"];
        let mut args = vec!["-r", path];
        args.extend(fields);
        if format == Format::PcapNg {
            args.extend(["-e", "frame.interface_name", "-e", "frame.packet_flags_direction"]);
        }
        if let Some(out) = tool("tshark", &args) {
            let want: Vec<String> = (0..5)
                .map(|i| {
                    let base = format!("{}\t{}\t{}", 1000 + i, 160 + i, 60 + i);
                    let (name, way) = if i % 2 == 0 { ("left", 1) } else { ("right", 2) };
                    if format == Format::PcapNg { format!("{base}\t{name}\t0x0000000{way}") } else { base }
                })
                .collect();
            // Versions of tshark differ in how they print the direction.
            let got: Vec<String> = out
                .lines()
                .map(|l| match l.rsplit_once('\t') {
                    Some((rest, way)) if format == Format::PcapNg && !way.starts_with("0x") => {
                        format!("{rest}\t0x{:08x}", way.parse::<u32>().unwrap_or(99))
                    }
                    _ => l.to_string(),
                })
                .collect();
            assert_eq!(got, want);
        }
    }
}

#[test]
fn a_repeated_source_goes_on_in_order_and_survives_an_empty_pool() {
    let pools = pools(48);
    let mut bufs = Buffers::attach(&pools, 0);
    let all: Vec<Vec<u8>> = (0..37).map(|i| packet(i, 60 + i)).collect();
    let mut port = PcapPort::replay(PcapSource::from_frames(&all).unwrap().repeated());
    let mut batch = Batch::new();
    assert_eq!(port.rx_burst(&mut bufs, &mut batch), 48);
    assert_eq!(port.rx_burst(&mut bufs, &mut batch), 0, "the pool is empty");
    assert_eq!(port.state(), PortState::Up);
    let mut got = contents(&mut bufs, &mut batch);
    got.extend(deliver(&mut port, &mut bufs, 200));
    assert!(got.len() >= 200);
    got.iter().enumerate().for_each(|(i, p)| assert_eq!(p, &all[i % 37], "packet {i}"));
    drop(bufs);
    assert_conserved(&pools);
}

#[test]
fn headers_alone_leave_payloads_as_they_were() {
    let pools = pools(1);
    let mut bufs = Buffers::attach(&pools, 0);
    let full = PcapSource::from_frames(packets()).unwrap();
    let other = PcapSource::from_frames([vec![0xee; 1792]]).unwrap();
    let mut heads = PcapPort::replay(full.clone().heads_only());
    for want in packets() {
        // Fills the only buffer of the pool.
        assert_eq!(deliver(&mut PcapPort::replay(other.clone()), &mut bufs, 1), [vec![0xee; 1792]]);
        let got = deliver(&mut heads, &mut bufs, 1).pop().unwrap();
        let head = want.len().min(64);
        assert_eq!((got.len(), &got[..head]), (want.len(), &want[..head]));
        assert!(got[head..].iter().all(|byte| *byte == 0xee), "of {} bytes", want.len());
    }
    drop(bufs);
    assert_conserved(&pools);
}

#[test]
fn a_paced_source_never_exceeds_its_rate() {
    let pools = pools(256);
    let mut bufs = Buffers::attach(&pools, 0);
    // A frame of 60 bytes and one of 188 take 1,184 bits each on average.
    let bits = |rate| Pace::BitsPerSecond(1184 * rate);
    let packets = |rate| Pace::PacketsPerSecond(rate);
    for (pace, rate) in [2_000, 200_000].into_iter().flat_map(|rate| [(packets(rate), rate), (bits(rate), rate)]) {
        let source = PcapSource::from_frames([packet(0, 60), packet(1, 188)]).unwrap().repeated();
        let mut port = PcapPort::replay(source.paced(pace));
        let mut batch = Batch::new();
        let (mut n, start) = (0u64, Instant::now());
        while start.elapsed() < Duration::from_millis(300) {
            n += port.rx_burst(&mut bufs, &mut batch) as u64;
            bufs.free(&mut batch);
        }
        let want = start.elapsed().as_secs_f64() * rate as f64;
        // No lower bound: it depends on how long this thread was delayed. The pacer's unit test checks the average.
        assert!(n > 0 && (n as f64) < want * 1.01 + 2.0, "{n} packets at {pace:?}, at most {want}");
    }
    drop(bufs);
    assert_conserved(&pools);
}

#[test]
fn what_does_not_fit_a_cell_is_left_out_and_reported() {
    let pools = pools(64);
    let mut bufs = Buffers::attach(&pools, 0);
    let source = PcapSource::from_frames([packet(1, 9000), packet(2, 60), packet(3, 1793), packet(4, 70)]).unwrap();
    let mut port = PcapPort::replay(source.clone());
    assert_eq!(deliver(&mut port, &mut bufs, usize::MAX), [packet(2, 60), packet(4, 70)]);
    assert!(port.details().contains(&("oversize", "2".into())));
    let mut none = PcapPort::replay(PcapSource::from_frames([packet(1, 9000)]).unwrap().repeated());
    assert!(deliver(&mut none, &mut bufs, 1).is_empty());
    assert_eq!(none.state(), PortState::Ended);
    drop(bufs);
    assert_conserved(&pools);
}

#[test]
fn a_full_disk_takes_the_port_down_and_leaves_the_frames() {
    let pools = pools(256);
    let mut bufs = Buffers::attach(&pools, 0);
    let full = match PcapRecorder::create("/dev/full") {
        // Writing the file header fails already.
        Err(e) => e,
        Ok(_) => panic!("/dev/full took the head"),
    };
    assert_eq!(full.raw_os_error(), Some(28));

    // A file that fills up later, at a limit on its size.
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("small.pcap");
    let mut port = PcapPort::record(PcapRecorder::create(&path).unwrap());
    std::fs::remove_file(&path).unwrap();
    let mut limited = PcapPort::record(PcapRecorder::to(Box::new(Limited(1 << 20)), Format::Pcap).unwrap());
    let mut sent = 0;
    while limited.state() == PortState::Up {
        let mut batch = batch_of(&mut bufs, (0..64).map(|i| packet(i, 1500)));
        sent += limited.tx_burst(&mut bufs, &mut batch);
        bufs.free(&mut batch);
        assert!(sent < 1000);
    }
    assert!(matches!(limited.state(), PortState::Down(why) if why.contains("No space left")));
    assert_eq!(limited.counters().tx_packets.get(), sent as u64);
    let mut batch = batch_of(&mut bufs, [packet(0, 60)]);
    assert_eq!(limited.tx_burst(&mut bufs, &mut batch), 0);
    assert_eq!(batch.len(), 1);
    assert_eq!(port.tx_burst(&mut bufs, &mut batch), 1, "an unlinked file can still be written");
    limited.close(&mut bufs);
    port.close(&mut bufs);
    drop(bufs);
    assert_conserved(&pools);
}

/// Writer that accepts this many bytes, then fails with ENOSPC.
struct Limited(usize);

impl std::io::Write for Limited {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.0 == 0 {
            return Err(std::io::Error::from_raw_os_error(28));
        }
        let n = bytes.len().min(self.0);
        self.0 -= n;
        Ok(n)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn unusable_files_are_refused_with_a_reason() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, bytes: &[u8]| {
        let path = dir.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    };
    let why = |path: &Path| PcapSource::load(path).map(|_| ()).unwrap_err().to_string();
    assert!(why(Path::new("/nonexistent.pcap")).contains("No such file"));
    assert!(why(dir.path()).contains("directory"));
    assert!(why(&file("empty", b"")).contains("not a usable"));
    assert!(why(&file("text", b"this is certainly no capture file at all")).contains("header"));

    let mut whole = Vec::new();
    {
        let mut f = CaptureFile::new(&mut whole, Format::Pcap, &[], 0).unwrap();
        let meta = PacketMeta { time_ns: 0, length: 100, direction: None, interface: 0 };
        (0..3).for_each(|i| f.write(meta, &packet(i, 100)).unwrap());
        f.flush().unwrap();
    }
    assert!(matches!(PcapSource::load(file("none", &whole[..24])), Err(PcapError::Empty(_))));
    let cut = why(&file("cut", &whole[..24 + 116 * 2 + 30]));
    assert!(cut.contains("cut off") && cut.contains("after 2 packets"), "{cut}");
    let mut cooked = whole.clone();
    cooked[20] = 113;
    assert!(matches!(PcapSource::load(file("cooked", &cooked)), Err(PcapError::LinkType { link: 113, .. })));
    let mut huge = whole.clone();
    huge[24 + 8..24 + 12].copy_from_slice(&u32::MAX.to_ne_bytes());
    assert!(PcapSource::load(file("huge", &huge)).is_err());
}

#[test]
fn a_pipe_gives_long_records_in_pieces() {
    let mut whole = Vec::new();
    let long = [packet(1, 10_000), packet(2, 60)];
    {
        let mut f = CaptureFile::new(&mut whole, Format::Pcap, &[], 0).unwrap();
        for packet in &long {
            let meta = PacketMeta { time_ns: 0, length: packet.len() as u32, direction: None, interface: 0 };
            f.write(meta, packet).unwrap();
        }
        f.flush().unwrap();
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pipe");
    rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR).unwrap();
    // Opened before it is read from, as a pipe without a writer is at its end.
    let mut pipe = std::fs::File::options().read(true).write(true).open(&path).unwrap();
    let writer = std::thread::spawn(move || {
        for piece in whole.chunks(1000) {
            while rustix::io::ioctl_fionread(&pipe).unwrap() > 0 {
                std::thread::yield_now();
            }
            std::io::Write::write_all(&mut pipe, piece).unwrap();
        }
    });
    let source = PcapSource::load(&path).unwrap();
    writer.join().unwrap();
    assert!(source.frames().eq(long));
}

#[test]
fn the_null_port_counts_what_it_swallows() {
    let pools = pools(64);
    let mut bufs = Buffers::attach(&pools, 0);
    let mut port = NullPort::new();
    let mut batch = batch_of(&mut bufs, [packet(0, 60), packet(1, 100)]);
    assert_eq!(port.tx_burst(&mut bufs, &mut batch), 2);
    assert_eq!((port.counters().tx_packets.get(), port.counters().tx_bytes.get()), (2, 160));
    assert_eq!(port.rx_burst(&mut bufs, &mut batch), 0);
    drop(bufs);
    assert_conserved(&pools);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// A damaged file leads to an error or fewer packets, never to a panic or an endless loop.
    #[test]
    fn damaged_files_do_no_harm(
        ng in any::<bool>(),
        cut in 0..700usize,
        flips in prop::collection::vec((0..700usize, any::<u8>()), 0..8),
    ) {
        let mut bytes = Vec::new();
        let format = if ng { Format::PcapNg } else { Format::Pcap };
        let mut f = CaptureFile::new(&mut bytes, format, &["x"], 0).unwrap();
        for i in 0..4 {
            let meta = PacketMeta { time_ns: 0, length: 100, direction: Some(Direction::Rx), interface: 0 };
            f.write(meta, &packet(i, 100)).unwrap();
        }
        f.flush().unwrap();
        drop(f);
        for (at, value) in flips {
            let n = bytes.len();
            bytes[at % n] = value;
        }
        bytes.truncate(bytes.len().saturating_sub(cut % 64));
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("damaged");
        std::fs::write(&path, &bytes).unwrap();
        if let Ok(source) = PcapSource::load(&path) {
            prop_assert!(source.len() <= 64);
        }
    }
}
