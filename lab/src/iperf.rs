//! Throughput measurement with iperf3 between two namespaces, with its JSON report parsed.

use crate::error::{Error, Result};
use crate::namespace::Namespace;
use crate::wait_until;
use serde_json::Value;
use std::net::IpAddr;
use std::time::Duration;

const PORT: u16 = 5201;

/// Direction of the traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// The client sends to the server.
    Forward,
    /// The server sends to the client (`-R`).
    Reverse,
}

/// Parameters of an iperf3 run. Default: TCP, 2 s, one stream.
#[derive(Debug, Clone)]
pub struct Iperf {
    seconds: u32,
    streams: u32,
    udp_bits_per_second: Option<u64>,
    udp_payload: Option<u32>,
}

/// Result of an iperf3 run.
#[derive(Debug, Clone, PartialEq)]
pub struct IperfReport {
    /// Payload bits received per second.
    pub bits_per_second: f64,
    /// TCP segments retransmitted; 0 for UDP.
    pub retransmits: u64,
    /// UDP datagrams lost; 0 for TCP.
    pub lost: u64,
    /// Payload bytes received.
    pub bytes: u64,
}

impl Default for Iperf {
    fn default() -> Self {
        Self { seconds: 2, streams: 1, udp_bits_per_second: None, udp_payload: None }
    }
}

impl Iperf {
    /// Creates a TCP run of `seconds`; iperf3 accepts whole seconds only.
    pub fn tcp(seconds: u32) -> Self {
        Self { seconds, ..Self::default() }
    }

    /// Creates a UDP run at a rate in payload bits per second; 0 sends as fast as possible.
    pub fn udp(seconds: u32, bits_per_second: u64) -> Self {
        Self { seconds, udp_bits_per_second: Some(bits_per_second), ..Self::default() }
    }

    /// Sets the number of parallel streams.
    #[must_use]
    pub fn streams(mut self, streams: u32) -> Self {
        self.streams = streams;
        self
    }

    /// Sets the payload of a UDP datagram in bytes.
    #[must_use]
    pub fn udp_payload(mut self, bytes: u32) -> Self {
        self.udp_payload = Some(bytes);
        self
    }

    /// Runs a server for `address` in `server` and a client in `client`, on port 5201. Only one run at a time is
    /// possible per server namespace.
    pub fn run(
        &self,
        client: &Namespace,
        server: &Namespace,
        address: impl Into<IpAddr>,
        direction: Direction,
    ) -> Result<IperfReport> {
        let (address, port) = (address.into().to_string(), PORT.to_string());
        let _server = server.spawn(&["iperf3", "-s", "-1", "-B", &address, "-p", &port])?;
        wait_until("iperf3 server to listen", Duration::from_secs(30), || server.is_listening(PORT))?;
        let mut argv: Vec<String> = ["iperf3", "-J", "-c", &address, "-p", &port].map(String::from).to_vec();
        argv.extend(["-t".to_owned(), self.seconds.to_string(), "-P".to_owned(), self.streams.to_string()]);
        if direction == Direction::Reverse {
            argv.push("-R".to_owned());
        }
        if let Some(rate) = self.udp_bits_per_second {
            argv.extend(["-u".to_owned(), "-b".to_owned(), rate.to_string()]);
        }
        if let Some(bytes) = self.udp_payload {
            argv.extend(["-l".to_owned(), bytes.to_string()]);
        }
        let output = client.try_run(&argv, Duration::from_secs(u64::from(self.seconds) + 60))?;
        parse(&output.stdout, self.udp_bits_per_second.is_some())
    }
}

/// Parses the JSON report. iperf3 reports its own errors as JSON, too, with a failure status.
fn parse(text: &str, udp: bool) -> Result<IperfReport> {
    let report: Value =
        serde_json::from_str(text).map_err(|error| Error::parse("iperf3", format!("{error}: {text}")))?;
    if let Some(error) = report["error"].as_str() {
        return Err(Error::parse("iperf3", error));
    }
    let end = &report["end"];
    // For UDP, versions before 3.12 report only `sum`.
    let received = if udp && end["sum_received"].is_null() { &end["sum"] } else { &end["sum_received"] };
    let missing = || Error::parse("iperf3", format!("no end.sum_received in {text}"));
    Ok(IperfReport {
        bits_per_second: received["bits_per_second"].as_f64().ok_or_else(missing)?,
        bytes: received["bytes"].as_u64().ok_or_else(missing)?,
        retransmits: end["sum_sent"]["retransmits"].as_u64().unwrap_or(0),
        lost: received["lost_packets"].as_u64().unwrap_or(0),
    })
}

impl Namespace {
    /// Returns whether a TCP socket listens on `port`, on any IPv4 or IPv6 address.
    pub fn is_listening(&self, port: u16) -> bool {
        let tables = self.enter(|| {
            ["/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"]
                .map(|path| std::fs::read_to_string(path).unwrap_or_default())
        });
        tables.is_ok_and(|tables| tables.iter().any(|table| listens(table, port)))
    }
}

/// Searches a table in the format of proc_net_tcp: `sl local_address rem_address st ...`, where state 0A is listening.
fn listens(table: &str, port: u16) -> bool {
    let suffix = format!(":{port:04X}");
    table.lines().skip(1).any(|line| {
        let mut fields = line.split_whitespace().skip(1);
        fields.next().is_some_and(|local| local.ends_with(&suffix)) && fields.nth(1) == Some("0A")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_are_read() {
        let tcp =
            r#"{"end":{"sum_sent":{"retransmits":7},"sum_received":{"bits_per_second":1.5e9,"bytes":375000000}}}"#;
        let report = parse(tcp, false).unwrap();
        assert_eq!((report.retransmits, report.lost, report.bytes), (7, 0, 375_000_000));
        let udp = r#"{"end":{"sum":{"bits_per_second":1e6,"bytes":125000,"lost_packets":3}}}"#;
        assert_eq!(parse(udp, true).unwrap().lost, 3);
        let error = parse(r#"{"end":{},"error":"unable to connect"}"#, false).unwrap_err().to_string();
        assert!(error.contains("unable to connect"), "{error}");
        assert!(parse(r#"{"end":{}}"#, false).is_err() && parse("", false).is_err());
    }

    #[test]
    fn listening_sockets_are_seen() {
        let table = "  sl  local_address rem_address   st\n   0: 0100007F:1451 00000000:0000 0A 0\n   1: 0100007F:0016 0200007F:1234 01 0\n";
        assert!(listens(table, 5201) && !listens(table, 22) && !listens(table, 80));
    }
}
