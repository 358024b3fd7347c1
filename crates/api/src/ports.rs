//! Answer about ports.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Port.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Port {
    /// Name in the configuration.
    pub name: String,
    /// Number.
    pub id: u64,
    /// Name of its interface; null if it has none.
    pub interface: Option<String>,
    /// Kind of port: `af_xdp`, `dpdk`, `memif`, `npe`, `tap`, `pcap` or `null`; of an application on the development
    /// kit also `twin`, `kernel` (packets given back to the kernel) or `custom`.
    pub kind: String,
    /// State: `up`, `down`, or `ended` for a source that has delivered everything.
    pub state: String,
    /// Reason for the state; null if it is up.
    pub reason: Option<String>,
    /// MAC address.
    pub mac: Option<String>,
    /// MTU, in bytes.
    pub mtu: Option<u64>,
    /// Addresses with the prefix lengths of their subnets.
    pub addresses: Vec<String>,
    /// Mode of its XDP program: `native`, `generic` or `tc`; null if it has none.
    pub mode: Option<String>,
    /// Level in effect: `driver`, `user` or `kernel`.
    pub level: String,
    /// Ends that workers poll.
    pub queues: Vec<Queue>,
    /// Settings of its TX queues, and their statistics over all workers.
    pub tx_queue: PortTxQueue,
    /// Counters over all queues, and levels `driver` and `user`.
    pub counters: PortCounters,
    /// Number and addresses of the port in a switch; null in other modes.
    pub switch: Option<SwitchPort>,
    /// Interfaces above it, and tunnels through it.
    pub above: Vec<Above>,
}

/// Interface above a port, or tunnel through it. Its packets are handled at the port's level unless they are left to
/// the kernel.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Above {
    /// Name of the interface; of one of several networks of a VXLAN, followed by its VNI: `vx0 VNI 1010`.
    pub name: String,
    /// Kind: `bond`, `team`, `bridge`, `vlan`, `macvlan`, `gre`, `gretap`, `ipip`, `sit`, `ip6gre`, `ip6gretap`,
    /// `ip6tnl` or `vxlan`. A tunnel is listed with the port that its remote is reached through; one that is left to
    /// the kernel, with the first port if that is not known.
    pub kind: String,
    /// Protocol and number of a VLAN, such as `802.1Q 10`; null for other kinds.
    pub tag: Option<String>,
    /// Addresses of a tunnel, such as `192.0.2.1 to 192.0.2.2`, or `by routes` if it takes them from routes; null for
    /// other kinds.
    pub ends: Option<String>,
    /// State: `up` or `down`.
    pub state: String,
    /// True if packets routed to it are sent by the port, without the kernel.
    pub sends: bool,
    /// Reason for which all its packets are left to the kernel; null if they are not, as far as its own properties
    /// decide.
    pub left: Option<String>,
    /// MAC address.
    pub mac: Option<String>,
    /// MTU, in bytes.
    pub mtu: Option<u64>,
    /// Addresses with the prefix lengths of their subnets.
    pub addresses: Vec<String>,
}

/// Part of a port in a switch.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct SwitchPort {
    /// OpenFlow number.
    pub number: u64,
    /// Number of addresses learned on it.
    pub addresses: u64,
    /// Maximum number of them; null if only a full table limits them.
    pub limit: Option<u64>,
    /// Number of addresses that were replaced by others.
    pub evicted: u64,
}

/// End of a port that a worker polls. Which of the texts are present depends on the port's kind.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Queue {
    /// Worker that polls it.
    pub worker: u64,
    /// Number of buffers it holds.
    pub held: u64,
    /// State: `up`, `down` or `ended`.
    pub state: String,
    /// Number of the queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// Mode, such as `zero-copy` or `copy`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// Reason for the mode.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode_note: Option<String>,
    /// Reason for the transmit method.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transmit_note: Option<String>,
    /// Peer of a memif, while they are connected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
    /// Number of times that a memif's peer has connected again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reconnects: Option<String>,
    /// Number of peers that a memif refused, and why it refused the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    /// Other texts.
    #[serde(flatten)]
    pub others: BTreeMap<String, String>,
}

/// Statistics of TX queues.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct TxQueue {
    /// Number of times that packets were sent.
    pub sends: u64,
    /// Packets sent.
    pub packets: u64,
    /// Mean number of packets sent at once.
    pub burst_mean: f64,
    /// Number of sends by the number of packets sent at once, from 0.
    pub bursts: Vec<u64>,
    /// Median of the times that packets have waited, in microseconds; null if none has.
    pub wait_us_p50: Option<f64>,
    /// 99th percentile of the waiting times, in microseconds.
    pub wait_us_p99: Option<f64>,
    /// Longest waiting time, in microseconds.
    pub wait_us_max: Option<f64>,
    /// Histogram of the waiting times: the longest of each bucket in microseconds, and the number of packets.
    pub waits_us: Vec<(f64, u64)>,
}

/// Settings of a port's TX queues, and their statistics.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct PortTxQueue {
    /// Number of packets at which a queue is sent.
    pub burst: u64,
    /// Longest time for which packets wait for others, in microseconds.
    pub deadline_us: u64,
    /// Statistics over all workers.
    #[serde(flatten)]
    pub stats: TxQueue,
}

/// Counters of a port.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct PortCounters {
    /// Frames received, without those that the port's program left to the kernel, which `show placement` and the
    /// interface's own counters have.
    pub rx_packets: u64,
    /// Bytes received, without FCS.
    pub rx_bytes: u64,
    /// Frames sent, without the kernel's own.
    pub tx_packets: u64,
    /// Bytes sent, without FCS.
    pub tx_bytes: u64,
    /// Frames lost before they reached the port because no buffer was posted.
    pub rx_no_buffer: u64,
    /// Frames lost before they reached the port because the RX ring was full.
    pub rx_ring_full: u64,
    /// Descriptors that the kernel refused: a bug if not zero.
    pub invalid: u64,
    /// Bursts that the device took only in part because its ring was full.
    pub tx_full: u64,
    /// Frames that the kernel took but did not send: its queue was full or the link was down.
    pub tx_refused: u64,
    /// System calls to wake the receiving side.
    pub rx_wakeups: u64,
    /// System calls to wake the sending side.
    pub tx_wakeups: u64,
    /// System calls of poll(2).
    pub polls: u64,
    /// System calls that polled the driver for received frames.
    pub busy_polls: u64,
    /// Frames that completed in another order than they were sent in, on a port that relied on the order.
    pub tx_reordered: u64,
}
