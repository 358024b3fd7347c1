//! Counters of the mirror.

use serde::Serialize;

/// Counters since the mirror's start, and current table sizes.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Stats {
    /// Notifications received.
    pub messages: u64,
    /// Messages received in dumps.
    pub dumped: u64,
    /// Malformed messages, which were skipped.
    pub malformed: u64,
    /// Overflows of the socket's buffer. Each lost notifications and caused everything to be read again.
    pub overflows: u64,
    /// Times that everything was read: at the start, on request and after an overflow.
    pub resyncs: u64,
    /// Times that any tables were read, full reads included.
    pub readings: u64,
    /// Dumps that the kernel marked as inconsistent (NLM_F_DUMP_INTR) and that were repeated.
    pub interrupted: u64,
    /// Duration of the last reading, in milliseconds.
    pub last_reading_ms: f64,
    /// Changes reported.
    pub changes: u64,
    /// Links.
    pub links: usize,
    /// Addresses.
    pub addresses: usize,
    /// IPv4 routes, counted by table, prefix and metric.
    pub routes4: usize,
    /// IPv6 routes, counted likewise.
    pub routes6: usize,
    /// Neighbours.
    pub neighbours: usize,
    /// Distinct route bodies.
    pub route_bodies: usize,
    /// Reason why the mirror has stopped, if it has.
    pub failed: Option<String>,
}
