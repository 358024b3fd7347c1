//! Interface counters, as kept by the kernel.

use crate::error::{Error, Result};
use crate::namespace::Namespace;
use serde_json::Value;

/// Interface counters: the fields of `struct rtnl_link_stats64` (linux/if_link.h) used here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Packets received.
    pub rx_packets: u64,
    /// Bytes received.
    pub rx_bytes: u64,
    /// Received packets dropped.
    pub rx_dropped: u64,
    /// Receive errors.
    pub rx_errors: u64,
    /// Packets sent.
    pub tx_packets: u64,
    /// Bytes sent.
    pub tx_bytes: u64,
    /// Packets dropped on transmit.
    pub tx_dropped: u64,
    /// Transmit errors.
    pub tx_errors: u64,
}

impl Counters {
    /// Returns the increase since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            rx_packets: self.rx_packets.wrapping_sub(earlier.rx_packets),
            rx_bytes: self.rx_bytes.wrapping_sub(earlier.rx_bytes),
            rx_dropped: self.rx_dropped.wrapping_sub(earlier.rx_dropped),
            rx_errors: self.rx_errors.wrapping_sub(earlier.rx_errors),
            tx_packets: self.tx_packets.wrapping_sub(earlier.tx_packets),
            tx_bytes: self.tx_bytes.wrapping_sub(earlier.tx_bytes),
            tx_dropped: self.tx_dropped.wrapping_sub(earlier.tx_dropped),
            tx_errors: self.tx_errors.wrapping_sub(earlier.tx_errors),
        }
    }
}

/// Reads the counters of an interface in a namespace.
pub fn counters(namespace: &Namespace, interface: &str) -> Result<Counters> {
    let output = namespace.ip(&["-j", "-s", "link", "show", "dev", interface])?;
    parse(&output.stdout)
}

fn parse(text: &str) -> Result<Counters> {
    let links: Value = serde_json::from_str(text).map_err(|error| Error::parse("ip -s link", error.to_string()))?;
    let stats = &links[0]["stats64"];
    let field = |side: &str, name: &str| {
        stats[side][name].as_u64().ok_or_else(|| Error::parse("ip -s link", format!("no {side}.{name} in {text}")))
    };
    Ok(Counters {
        rx_packets: field("rx", "packets")?,
        rx_bytes: field("rx", "bytes")?,
        rx_dropped: field("rx", "dropped")?,
        rx_errors: field("rx", "errors")?,
        tx_packets: field("tx", "packets")?,
        tx_bytes: field("tx", "bytes")?,
        tx_dropped: field("tx", "dropped")?,
        tx_errors: field("tx", "errors")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_field_is_an_error_not_a_zero() {
        assert!(parse("[]").is_err() && parse("x").is_err());
        let side = r#"{"bytes":1,"packets":2,"errors":3,"dropped":4}"#;
        let counters = parse(&format!(r#"[{{"stats64":{{"rx":{side},"tx":{side}}}}}]"#)).unwrap();
        assert_eq!((counters.rx_packets, counters.tx_dropped), (2, 4));
        assert_eq!(counters.since(&counters), Counters::default());
    }
}
