//! What the mirror counts.

use serde::Serialize;

/// The mirror's counters and sizes, since its start.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Stats {
    /// Notifications heard.
    pub messages: u64,
    /// Messages read in dumps.
    pub dumped: u64,
    /// Messages that made no sense, and were left out.
    pub malformed: u64,
    /// Times that the socket's buffer overflowed: notifications were lost and everything was read again.
    pub overflows: u64,
    /// Times that everything was read: at the start, on request, after an overflow.
    pub resyncs: u64,
    /// Times that anything was read again, these included.
    pub readings: u64,
    /// Dumps that the kernel called inconsistent, and that were repeated.
    pub interrupted: u64,
    /// How long the last reading took, in milliseconds.
    pub last_reading_ms: f64,
    /// Changes reported.
    pub changes: u64,
    /// Links.
    pub links: usize,
    /// Addresses.
    pub addresses: usize,
    /// IPv4 routes, by table, prefix and metric.
    pub routes4: usize,
    /// IPv6 routes, likewise.
    pub routes6: usize,
    /// Neighbours.
    pub neighbours: usize,
    /// Distinct route bodies.
    pub route_bodies: usize,
    /// What steers packets in the kernel and is not followed.
    pub warnings: Vec<String>,
    /// Why the mirror has stopped, when it has.
    pub failed: Option<String>,
}
