//! ICMP echo with the system's `ping` (iputils), with its report parsed.

use crate::error::{Error, Result};
use crate::namespace::Namespace;
use crate::patience;
use std::net::IpAddr;
use std::time::Duration;

/// Parameters of a ping run. Default: 3 requests, 20 ms apart, 56 bytes of data, 3 s for the last replies.
#[derive(Debug, Clone)]
pub struct Ping {
    destination: IpAddr,
    count: u32,
    interval: Duration,
    size: Option<u32>,
    ttl: Option<u8>,
    dont_fragment: bool,
    wait: Duration,
}

/// Result of a ping run.
#[derive(Debug, Clone, PartialEq)]
pub struct PingReport {
    /// Requests sent.
    pub sent: u32,
    /// Replies received, without duplicates.
    pub received: u32,
    /// ICMP errors received instead of replies.
    pub errors: u32,
    /// Mean round-trip time; `None` if there was no reply.
    pub mean: Option<Duration>,
    /// Complete output of `ping`, including ICMP errors with their senders.
    pub text: String,
}

impl Ping {
    /// Creates a run to an IPv4 or IPv6 address.
    pub fn to(destination: impl Into<IpAddr>) -> Self {
        Self {
            destination: destination.into(),
            count: 3,
            interval: Duration::from_millis(20),
            size: None,
            ttl: None,
            dont_fragment: false,
            wait: Duration::from_secs(3),
        }
    }

    /// Sets the number of requests.
    #[must_use]
    pub fn count(mut self, count: u32) -> Self {
        self.count = count;
        self
    }

    /// Sets the time between requests; below 2 ms requires root.
    #[must_use]
    pub fn interval(mut self, interval: Duration) -> Self {
        self.interval = interval;
        self
    }

    /// Sets the number of data bytes after the ICMP header (`-s`).
    #[must_use]
    pub fn size(mut self, size: u32) -> Self {
        self.size = Some(size);
        self
    }

    /// Sets the TTL or hop limit.
    #[must_use]
    pub fn ttl(mut self, ttl: u8) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// Sets DF and prevents the kernel from fragmenting locally by a learnt path MTU (`-M do`; `-M probe` would hide
    /// the effect of ICMP errors).
    #[must_use]
    pub fn dont_fragment(mut self) -> Self {
        self.dont_fragment = true;
        self
    }

    /// Sets the time to wait for the last reply.
    #[must_use]
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    /// Runs `ping` in `namespace`. Lost replies are reported, not an error; a network unreachable from the sender
    /// itself is an error.
    pub fn run(&self, namespace: &Namespace) -> Result<PingReport> {
        let mut argv: Vec<String> = ["ping", "-n", "-c"].map(String::from).to_vec();
        argv.push(self.count.to_string());
        argv.extend(["-i".to_owned(), format!("{:.3}", self.interval.as_secs_f64())]);
        argv.extend(["-W".to_owned(), format!("{:.3}", patience(self.wait).as_secs_f64())]);
        if let Some(size) = self.size {
            argv.extend(["-s".to_owned(), size.to_string()]);
        }
        if let Some(ttl) = self.ttl {
            argv.extend(["-t".to_owned(), ttl.to_string()]);
        }
        if self.dont_fragment {
            argv.extend(["-M".to_owned(), "do".to_owned()]);
        }
        argv.push(self.destination.to_string());
        let limit = Duration::from_secs(10) + self.wait + self.interval * self.count;
        let output = namespace.try_run(&argv, limit)?;
        // Status 1 means "no reply"; 2 is any other error.
        if !matches!(output.status.code(), Some(0 | 1)) {
            return Err(output.ok().err().unwrap_or_else(|| Error::parse("ping", "odd status")));
        }
        parse(&(output.stdout + &output.stderr))
    }
}

/// Parses a summary such as "3 packets transmitted, 2 received, +1 errors, 33% packet loss, time 40ms".
fn parse(text: &str) -> Result<PingReport> {
    let summary = text.lines().find(|line| line.contains("packets transmitted"));
    let summary = summary.ok_or_else(|| Error::parse("ping", format!("no summary in {text:?}")))?;
    let count = |suffix: &str| {
        let part = summary.split(',').map(str::trim).find(|part| part.ends_with(suffix))?;
        part.trim_start_matches('+').split(' ').next()?.parse().ok()
    };
    let field =
        |suffix: &str| count(suffix).ok_or_else(|| Error::parse("ping", format!("no {suffix:?} in {summary:?}")));
    let mean = text.lines().find(|line| line.starts_with("rtt ")).and_then(|line| {
        let milliseconds: f64 = line.split(" = ").nth(1)?.split('/').nth(1)?.parse().ok()?;
        Some(Duration::from_secs_f64(milliseconds / 1e3))
    });
    Ok(PingReport {
        sent: field("packets transmitted")?,
        received: field("received")?,
        errors: count("errors").unwrap_or(0),
        mean,
        text: text.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_are_read() {
        let good = "3 packets transmitted, 3 received, 0% packet loss, time 40ms\n\
                    rtt min/avg/max/mdev = 0.030/0.040/0.061/0.014 ms\n";
        let report = parse(good).unwrap();
        assert_eq!((report.sent, report.received, report.errors), (3, 3, 0));
        assert_eq!(report.mean, Some(Duration::from_micros(40)));
        let bad = "From 10.0.1.1 icmp_seq=1 Time to live exceeded\n\n--- 10.0.2.2 ping statistics ---\n\
                   2 packets transmitted, 0 received, +2 errors, 100% packet loss, time 20ms\n";
        let report = parse(bad).unwrap();
        assert_eq!((report.sent, report.received, report.errors, report.mean), (2, 0, 2, None));
        let twice = "2 packets transmitted, 2 received, +2 duplicates, 0% packet loss, time 20ms";
        assert_eq!(parse(twice).unwrap().received, 2);
        assert!(parse("nothing").is_err());
    }
}
