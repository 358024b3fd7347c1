//! The XDP program as the router's driver: it forwards by the same tables as the workers.

use bywash_port::af_xdp::{self, Family, Hop, HopKind, Segments};
use bywash_route::Shared;
use bywash_router::control;
use bywash_router::tables::{Entry, Kind, Tables};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Ports that the program can send to, a bit each.
#[derive(Clone, Default)]
pub struct Targets(Arc<AtomicU64>);

impl Targets {
    /// Whether the program can send to this port; true when that is news.
    pub fn set(&self, port: usize, on: bool) -> bool {
        let bit = 1u64.checked_shl(port as u32).unwrap_or(0);
        let before =
            if on { self.0.fetch_or(bit, Ordering::Relaxed) } else { self.0.fetch_and(!bit, Ordering::Relaxed) };
        (before & bit != 0) != on && bit != 0
    }

    pub fn has(&self, port: u16) -> bool {
        self.0.load(Ordering::Relaxed).checked_shr(port.into()).is_some_and(|bits| bits & 1 != 0)
    }
}

/// See [`control::Driver`].
#[derive(Clone)]
pub struct Driver {
    pub program: af_xdp::Driver,
    pub targets: Targets,
}

impl control::Driver for Driver {
    fn memory(&mut self) -> [Box<dyn Shared>; 2] {
        [Family::V4, Family::V6].map(|family| Box::new(Memory(self.program.segments(family))) as Box<dyn Shared>)
    }

    fn publish(&mut self, tables: &Tables) {
        let hops: Vec<Hop> = tables.entries.iter().map(|entry| self.hop(entry, tables)).collect();
        self.program.publish(&hops, &tables.buckets);
    }
}

impl Driver {
    fn hop(&self, entry: &Entry, tables: &Tables) -> Hop {
        let kind = match entry.kind {
            Kind::Local => HopKind::Local,
            Kind::Kernel => HopKind::Kernel,
            Kind::Forward if self.targets.has(entry.port.0) => HopKind::Forward,
            // Where one of several ways is the kernel's, it chooses among all of them.
            Kind::Group if members(entry, tables).any(|m| m.kind == Kind::Kernel) => HopKind::Kernel,
            Kind::Group => HopKind::Group,
            _ => HopKind::User,
        };
        let Entry { macs, port, mtu, first, count, .. } = *entry;
        Hop { macs, kind, port: port.0, mtu, first, count, ..Hop::default() }
    }
}

fn members<'a>(group: &Entry, tables: &'a Tables) -> impl Iterator<Item = &'a Entry> {
    let buckets = tables.buckets.get(group.first as usize..).unwrap_or_default();
    buckets.iter().take(group.count as usize).filter_map(|id| tables.entries.get(*id as usize))
}

struct Memory(Option<Segments>);

impl Shared for Memory {
    fn segment(&mut self, n: usize) -> io::Result<OwnedFd> {
        let made = self.0.as_mut().map_or(Err(io::ErrorKind::AddrInUse.into()), |segments| segments.make(n));
        made.inspect_err(|e| {
            tracing::warn!("a table has outgrown the XDP program ({e}): what lies beyond is forwarded in user space");
        })
    }

    fn grace(&mut self) {
        if let Some(segments) = &self.0 {
            segments.grace();
        }
    }
}
