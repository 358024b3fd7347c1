//! Frame generator in the kernel: BPF_PROG_TEST_RUN with live frames.
//!
//! The kernel runs a small program over pages of its own and sends the resulting frames out of a device, several times
//! faster than a packet or AF_XDP socket can (`xdp-trafficgen` does the same). Needs Linux 5.18.

use super::Error;
use super::load::loader;
use super::test_run::TestRun;
use aya::Ebpf;
use aya::maps::{Array, MapData};
use aya::programs::Xdp;
use bywash_wire::checksum::checksum;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

static OBJECT: &[u8] = aya::include_bytes_aligned!("../../xdp/gen.bpf.o");
/// Minimal programs, among them one that drops every frame.
static BARE: &[u8] = aya::include_bytes_aligned!("../../xdp/bare.bpf.o");

/// Bytes of a frame that are rewritten each time; also the shortest frame.
const HEAD: usize = 60;
const IPV4: [u8; 2] = [0x08, 0x00];
const IPV6: [u8; 2] = [0x86, 0xdd];
/// Longest frame the kernel makes: a page less headroom, `skb_shared_info` and the bookkeeping of the test run.
const LONGEST: usize = 3072;
/// Maximum number of frames per system call. The kernel takes about 20 ms to set up and tear down a call and sends
/// nothing meanwhile.
const CHUNK: u64 = 1 << 22;
/// Frames in the first call, when the rate is not known yet.
const FIRST_CHUNK: u64 = 1 << 16;

// linux/bpf.h
const BPF_F_TEST_XDP_LIVE_FRAMES: u32 = 1 << 1;

/// `struct gen` of `xdp/gen.bpf.c`.
#[repr(C)]
#[derive(Clone, Copy)]
struct RawGen {
    head: [u8; 112],
    flows: u32,
    v4: u32,
    v6: u32,
    around: u32,
    next: u32,
}

/// `struct flow` of `xdp/gen.bpf.c`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct RawFlow {
    dst: [u8; 16],
    check: [u8; 2],
    pad: [u8; 2],
}

// SAFETY: repr(C), integers only, no padding.
unsafe impl aya::Pod for RawGen {}
// SAFETY: as above.
unsafe impl aya::Pod for RawFlow {}

/// Returns the fields of `frame` that differ when it is sent to `to`; `None` if the address family does not match.
fn flow(frame: &[u8], to: IpAddr) -> Option<RawFlow> {
    let mut flow = RawFlow::default();
    match (to, frame[12..14].try_into().ok()?) {
        (IpAddr::V4(to), IPV4) => {
            flow.dst[..4].copy_from_slice(&to.octets());
            let mut header: [u8; 20] = frame[14..34].try_into().ok()?;
            header[16..].copy_from_slice(&to.octets());
            header[10..12].fill(0);
            flow.check = checksum(&header).to_be_bytes();
        }
        (IpAddr::V6(to), IPV6) => flow.dst = to.octets(),
        _ => return None,
    }
    Some(flow)
}

/// Headers in front of the IP packet whose destination a [`LiveGen`] writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Around {
    /// Ethernet.
    Ethernet,
    /// Ethernet with an 802.1Q tag.
    Tag,
    /// Ethernet, IPv4 without options, UDP, VXLAN, and Ethernet. The outer UDP checksum, if there is one, stays right
    /// if the inner packet is IPv4.
    Vxlan,
}

impl Around {
    /// Returns their length beyond that of an Ethernet header, in bytes.
    fn len(self) -> usize {
        match self {
            Self::Ethernet => 0,
            Self::Tag => 4,
            Self::Vxlan => 50,
        }
    }
}

/// Sends copies of one frame out of an interface, addressed to the destinations of a list in turn.
///
/// On veth the frames reach the peer's XDP program; they are lost if the peer has neither a program nor GRO on. Belongs
/// to one thread in the interface's network namespace: the kernel looks up the interface in each run.
pub struct LiveGen {
    interface: String,
    index: u32,
    frame: Vec<u8>,
    program: Ebpf,
    /// Name of the program that makes the frames.
    name: &'static str,
    /// Frames made, and the nanoseconds that took.
    made: (u64, u64),
}

impl LiveGen {
    /// Creates a generator for `frame`, 60 to 3,072 bytes with Ethernet header and without FCS. Destinations of another
    /// address family are ignored; without any destination left, or if the frame is not IP, all frames are the same.
    /// The IPv4 header checksum is updated; checksums after it are not.
    pub fn new(interface: &str, frame: &[u8], destinations: &[IpAddr]) -> Result<Self, Error> {
        Self::writing(interface, frame, destinations, Around::Ethernet)
    }

    /// Like [`LiveGen::new`], with these headers; the frame has as many bytes more.
    pub fn writing(interface: &str, frame: &[u8], destinations: &[IpAddr], around: Around) -> Result<Self, Error> {
        let around = around.len();
        let failed = |reason: String| Error::Generator { interface: interface.into(), reason };
        let index = super::LinkInfo::query(interface)?.index;
        let head = HEAD + around;
        if !(head..=LONGEST).contains(&frame.len()) {
            return Err(failed(format!("invalid frame length {}: must be {head} to {LONGEST} bytes", frame.len())));
        }
        let inner = &frame[around..];
        let flows: Vec<RawFlow> = destinations.iter().filter_map(|to| flow(inner, *to)).collect();
        let mut ebpf = loader()
            .map_max_entries("flows", flows.len().max(1) as u32)
            .load(OBJECT)
            .map_err(|e| failed(e.to_string()))?;
        let many = flows.len().max(1) as u32;
        let mut raw = RawGen { head: [0; 112], flows: many, v4: 0, v6: 0, around: around as u32, next: 0 };
        raw.head[..head].copy_from_slice(&frame[..head]);
        if !flows.is_empty() {
            (raw.v4, raw.v6) = if inner[12..14] == IPV4 { (1, 0) } else { (0, 1) };
        }
        // Borrowed, not taken: a map that is taken and dropped is closed, but the program is loaded with it only below.
        fn array<'a, T: aya::Pod>(ebpf: &'a mut Ebpf, name: &str) -> Result<Array<&'a mut MapData, T>, String> {
            let map = ebpf.map_mut(name).ok_or_else(|| format!("the object has no map `{name}`"))?;
            map.try_into().map_err(|e: aya::maps::MapError| e.to_string())
        }
        array(&mut ebpf, "gen").and_then(|mut m| m.set(0, raw, 0).map_err(|e| e.to_string())).map_err(failed)?;
        let mut map = array::<RawFlow>(&mut ebpf, "flows").map_err(failed)?;
        for (i, flow) in flows.iter().enumerate() {
            map.set(i as u32, *flow, 0).map_err(|e| failed(e.to_string()))?;
        }
        Self::with(interface, index, frame, (ebpf, "generate")).map_err(failed)
    }

    /// Creates a generator whose frames are neither written nor sent, but given back at once: it measures what the
    /// kernel needs to make frames at all.
    pub fn idle(interface: &str, frame: &[u8]) -> Result<Self, Error> {
        let failed = |reason: String| Error::Generator { interface: interface.into(), reason };
        let index = super::LinkInfo::query(interface)?.index;
        let ebpf = loader().load(BARE).map_err(|e| failed(e.to_string()))?;
        Self::with(interface, index, frame, (ebpf, "drop")).map_err(failed)
    }

    fn with(
        interface: &str,
        index: u32,
        frame: &[u8],
        (mut program, name): (Ebpf, &'static str),
    ) -> Result<Self, String> {
        let xdp: &mut Xdp = program
            .program_mut(name)
            .ok_or_else(|| format!("the object has no program `{name}`"))?
            .try_into()
            .map_err(|e: aya::programs::ProgramError| e.to_string())?;
        xdp.load().map_err(|e| e.to_string())?;
        Ok(Self { interface: interface.into(), index, frame: frame.to_vec(), program, name, made: (0, 0) })
    }

    /// Makes `packets` frames, in batches of `batch` (1 to 256; the kernel's default is 64). Returns the number made.
    /// Frames the device did not take are included, so count received frames instead.
    pub fn run(&mut self, packets: u64, batch: u32) -> Result<u64, Error> {
        let mut left = packets;
        while left > 0 {
            let n = left.min(CHUNK);
            self.chunk(n as u32, batch)?;
            left -= n;
        }
        Ok(packets)
    }

    /// Like [`LiveGen::run`], but for a time instead of a number of frames.
    pub fn run_for(&mut self, time: Duration, batch: u32) -> Result<u64, Error> {
        let start = Instant::now();
        let (mut made, mut n) = (0, FIRST_CHUNK);
        loop {
            let began = Instant::now();
            self.chunk(n as u32, batch)?;
            made += n;
            let Some(left) = time.checked_sub(start.elapsed()).filter(|left| !left.is_zero()) else { return Ok(made) };
            let rate = n as f64 / began.elapsed().as_secs_f64();
            n = ((rate * left.as_secs_f64()) as u64).clamp(FIRST_CHUNK, CHUNK);
        }
    }

    /// Returns the mean time in nanoseconds that the kernel took for a frame, without setting up its runs. It includes
    /// the work of the frame's receivers that the kernel does at once on this CPU.
    pub fn nanoseconds(&self) -> f64 {
        self.made.1 as f64 / self.made.0.max(1) as f64
    }

    fn chunk(&mut self, packets: u32, batch: u32) -> Result<(), Error> {
        let failed = |reason: String| Error::Generator { interface: self.interface.clone(), reason };
        let program: &Xdp = self
            .program
            .program(self.name)
            .and_then(|p| p.try_into().ok())
            .ok_or_else(|| failed(format!("the object has no program `{}`", self.name)))?;
        let fd = program.fd().map_err(|e| failed(e.to_string()))?;
        // struct xdp_md: data, data_end, data_meta, ingress_ifindex.
        let context = [0, self.frame.len() as u32, 0, self.index];
        let run = TestRun {
            program: fd.as_fd(),
            data: &self.frame,
            context: &context,
            repeat: packets,
            flags: BPF_F_TEST_XDP_LIVE_FRAMES,
            batch_size: batch.clamp(1, 256),
        };
        let ran = run.run_into(&mut []).map_err(|e| failed(e.to_string()))?;
        self.made.0 += u64::from(packets);
        self.made.1 += u64::from(packets) * u64::from(ran.nanoseconds);
        Ok(())
    }
}
