//! The Linux kernel as a function from a frame to the frames that it sends for it. The kernel forwards a frame written
//! to a TAP interface within the write: when the system call returns, the result is in the queue of another TAP, unless
//! the machine is so busy that a thread of the kernel takes over (ksoftirqd).

use bywash_fib::{Net4, Net6};
use bywash_frame::{Arena, ArenaConfig, Batch, Buffers, PoolConfig, PoolSet};
use bywash_lab::{Namespace, wait_until};
use bywash_port::{Port, TapConfig, TapPort};
use bywash_wire::ethernet::MacAddr;
use std::fmt::Write;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

/// The arguments of `ip route` behind the prefix, for IPv4 and IPv6. The route type may precede them, separated by `|`.
/// `None` if the kernel cannot express the route.
pub type Leads = [Option<String>; 2];

pub struct Kernel {
    _namespace: Namespace,
    taps: Vec<TapPort>,
    bufs: Buffers,
}

/// Returns the address of the gateway behind port `id`, whose MAC address is known.
pub fn gateway(id: u16, v6: bool) -> String {
    if v6 { format!("fd00:{id}::2") } else { format!("10.100.{id}.2") }
}

impl Kernel {
    /// Creates a router with ports t0, t1 and so on, which have these MAC addresses. `station` returns the MAC address
    /// of the gateway behind each.
    pub fn new(macs: &[[u8; 6]], station: impl Fn(u16) -> [u8; 6], routes: &str) -> Self {
        let namespace = Namespace::new("oracle").unwrap();
        let arena = Arena::new(ArenaConfig { cells: 1024, ..Default::default() }).unwrap();
        let pools = PoolSet::new(arena, &[PoolConfig::stack("main", 1024)]).unwrap();
        let tap = |(id, mac): (usize, &[u8; 6])| {
            let config = TapConfig { name: format!("t{id}"), mac: Some(*mac), mtu: None, up: true };
            namespace.enter(|| TapPort::create(&config)).unwrap().unwrap()
        };
        let taps: Vec<_> = macs.iter().enumerate().map(tap).collect();
        for (key, value) in [
            ("net.ipv4.ip_forward", "1"),
            ("net.ipv6.conf.all.forwarding", "1"),
            ("net.ipv4.conf.all.rp_filter", "0"),
            ("net.ipv4.conf.default.rp_filter", "0"),
            ("net.ipv4.conf.all.send_redirects", "0"),
        ] {
            namespace.sysctl(key, value).unwrap();
        }
        let mut lines = String::from("link add away type veth peer name far\nlink set away up\nlink set far up\n");
        for id in 0..macs.len() as u16 {
            for key in ["rp_filter", "send_redirects"] {
                namespace.sysctl(&format!("net.ipv4.conf.t{id}.{key}"), "0").unwrap();
            }
            let mac = MacAddr(station(id));
            writeln!(lines, "addr add 10.100.{id}.1/24 dev t{id}\naddr add fd00:{id}::1/64 dev t{id} nodad").unwrap();
            for v6 in [false, true] {
                let gateway = gateway(id, v6);
                writeln!(lines, "neigh replace {gateway} lladdr {mac} nud permanent dev t{id}").unwrap();
            }
        }
        namespace.ip_batch(&lines).unwrap();
        namespace.ip_batch(routes).unwrap();
        Self { _namespace: namespace, taps, bufs: Buffers::attach(&pools, 0) }
    }

    /// Delivers a frame to port 0. Returns the frames that leave and their ports, without those that the kernel sends
    /// on its own account.
    pub fn give(&mut self, frame: &[u8]) -> Vec<(u16, Vec<u8>)> {
        self.sent();
        let mut batch = Batch::new();
        assert_eq!(self.bufs.alloc(&mut batch, 1), 1);
        assert!(self.bufs.arena().write(&mut batch.as_mut_slice()[0], frame));
        assert_eq!(self.taps[0].tx_burst(&mut self.bufs, &mut batch), 1);
        self.sent_for(frame)
    }

    /// Returns what the kernel still sends for the frame given last; empty if that is nothing for half a second.
    pub fn late(&mut self, frame: &[u8]) -> Vec<(u16, Vec<u8>)> {
        let mut late = vec![];
        let _ = wait_until("the kernel to forward", Duration::from_millis(500), || {
            late = self.sent_for(frame);
            !late.is_empty()
        });
        late
    }

    fn sent_for(&mut self, frame: &[u8]) -> Vec<(u16, Vec<u8>)> {
        self.sent().into_iter().filter(|(_, sent)| ends(sent).is_some_and(|e| Some(e) == ends(frame))).collect()
    }

    fn sent(&mut self) -> Vec<(u16, Vec<u8>)> {
        let mut sent = vec![];
        for (id, tap) in self.taps.iter_mut().enumerate() {
            let mut batch = Batch::new();
            while tap.rx_burst(&mut self.bufs, &mut batch) > 0 {
                sent.extend(batch.as_slice().iter().map(|f| (id as u16, self.bufs.arena().data(f).to_vec())));
                self.bufs.free(&mut batch);
            }
        }
        sent
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        self.taps.iter_mut().for_each(|tap| tap.close(&mut self.bufs));
    }
}

/// Returns source and destination: a forwarded packet keeps them, an error about it does not have them.
fn ends(frame: &[u8]) -> Option<&[u8]> {
    match u16::from_be_bytes([*frame.get(12)?, *frame.get(13)?]) {
        0x800 => frame.get(26..34),
        0x86dd => frame.get(22..54),
        _ => None,
    }
}

/// Returns lines of `ip -batch` for these routes. `leads` holds the arguments for each id; routes of an id without
/// arguments are left out.
pub fn routes(v4: &[(Net4, u32)], v6: &[(Net6, u32)], leads: &[Leads]) -> String {
    let mut lines = String::new();
    let mut route = |prefix: String, to: &Option<String>| {
        let Some(to) = to else { return };
        // Route types such as blackhole precede the prefix.
        let (kind, to) = to.split_once('|').unwrap_or(("", to));
        writeln!(lines, "route replace {kind} {prefix} {to}").unwrap();
    };
    for (net, id) in v4 {
        route(format!("{}/{}", Ipv4Addr::from(net.addr()), net.len()), &leads[*id as usize][0]);
    }
    for (net, id) in v6 {
        route(format!("{}/{}", Ipv6Addr::from(net.addr()), net.len()), &leads[*id as usize][1]);
    }
    lines
}
