//! Answers about a router.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// Route.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Route {
    /// Destination.
    pub prefix: String,
    /// Number of its table: 254 is main, 255 local.
    pub table: u32,
    /// Action: `unicast`, `local`, `blackhole`, `unreachable`, `prohibit` or `throw`.
    pub kind: String,
    /// Metric.
    pub metric: u32,
    /// Origin (rtm_protocol): 2 kernel, 3 boot, 4 static, 186 BGP, ..
    pub protocol: u8,
    /// Next hops.
    pub next_hops: Vec<NextHop>,
    /// MTU of the route, in bytes; null if it has none of its own.
    pub mtu: Option<u32>,
    /// Preferred source address.
    pub source: Option<IpAddr>,
    /// True if packets are forwarded by the route.
    pub installed: bool,
    /// Reason for which it is not installed: `kernel`, `policy`, `metric`, `dead`, `hidden` or `other-table`.
    pub reason: Option<String>,
}

/// Next hop of a route.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct NextHop {
    /// Gateway; null if the destination is on the link.
    pub via: Option<IpAddr>,
    /// Port; null if the interface is not a port.
    pub port: Option<String>,
    /// Interface.
    pub interface: Option<String>,
    /// State: `forward` (the gateway is resolved), `pending` (not yet), `failed` (the gateway does not answer), `glean`
    /// (no gateway: the destination is on the link), `dead` (the kernel marks it so), `link-down`, `kernel` (the
    /// interface is not a port) or `policy` (packets that leave through the interface are left to the kernel).
    pub state: String,
    /// Outer headers that it adds to packets, such as `ip id 100 dst 192.0.2.2 ttl 0 tos 0 csum` (VXLAN).
    pub encap: Option<String>,
    /// Weight in the choice among next hops.
    pub weight: u16,
}

/// Neighbour.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Neighbour {
    /// Address.
    pub addr: IpAddr,
    /// Interface.
    pub interface: Option<String>,
    /// Port; null if the interface is not a port.
    pub port: Option<String>,
    /// MAC address.
    pub mac: Option<String>,
    /// State in the kernel: `reachable`, `stale`, `incomplete` or `failed`.
    pub state: String,
    /// True if packets are forwarded to the neighbour.
    pub installed: bool,
}

/// Difference between the kernel's tables and the router's.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Drift {
    /// Kind of object: `link`, `address`, `route`, `neighbour`, `policy`, `fib`, or `all` for a count of more.
    pub object: String,
    /// Object.
    pub name: String,
    /// Difference.
    pub drift: String,
}
