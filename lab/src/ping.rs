//! ICMP echo: requests, and their replies or the ICMP errors that they cause.
//!
//! The `ping` of iputils is not used: once it has had a reply, it waits after the last request only for twice the
//! longest round trip so far or one interval, whatever its option `-W` says. On a busy machine it counts replies as
//! lost that are only late.

use crate::error::{Error, Result};
use crate::namespace::Namespace;
use crate::patience;
use nix::libc::{SO_EE_ORIGIN_LOCAL, sock_extended_err};
use nix::sys::socket::sockopt::{Ipv4RecvErr, Ipv4RecvTtl, Ipv6RecvErr, Ipv6RecvHopLimit};
use nix::sys::socket::{ControlMessageOwned, MsgFlags, SockaddrIn, SockaddrIn6, SockaddrStorage, recvmsg, setsockopt};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{self, Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery};
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, ipproto, sendto, socket_with};
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

/// Length of the ICMP header of a request or reply.
const HEADER: usize = 8;

/// Parameters of a ping run. Default: 3 requests, 20 ms apart, 56 bytes of data, 3 s for the last replies.
#[derive(Debug, Clone)]
pub struct Ping {
    destination: IpAddr,
    count: u32,
    interval: Duration,
    size: u32,
    ttl: Option<u8>,
    dont_fragment: bool,
    wait: Duration,
    one_by_one: bool,
}

/// Result of a ping run.
#[derive(Debug, Clone, PartialEq)]
pub struct PingReport {
    /// Requests sent, including those that the kernel refused.
    pub sent: u32,
    /// Correct replies received, without duplicates.
    pub received: u32,
    /// ICMP errors, requests that the kernel refused to send, and replies with wrong data or from another address.
    pub errors: u32,
    /// Mean round-trip time; `None` if there was no reply.
    pub mean: Option<Duration>,
    /// A line for each reply and for each error with its sender, in the words of iputils' `ping`, and a summary.
    pub text: String,
}

impl Ping {
    /// Creates a run to an IPv4 or IPv6 address.
    pub fn to(destination: impl Into<IpAddr>) -> Self {
        Self {
            destination: destination.into(),
            count: 3,
            interval: Duration::from_millis(20),
            size: 56,
            ttl: None,
            dont_fragment: false,
            wait: Duration::from_secs(3),
            one_by_one: false,
        }
    }

    /// Sets the number of requests.
    #[must_use]
    pub fn count(mut self, count: u32) -> Self {
        self.count = count;
        self
    }

    /// Sets the time between requests.
    #[must_use]
    pub fn interval(mut self, interval: Duration) -> Self {
        self.interval = interval;
        self
    }

    /// Sets the number of data bytes after the ICMP header.
    #[must_use]
    pub fn size(mut self, size: u32) -> Self {
        self.size = size;
        self
    }

    /// Sets the TTL or hop limit.
    #[must_use]
    pub fn ttl(mut self, ttl: u8) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// Sets DF and prevents the kernel from fragmenting locally. Requests longer than a path MTU that the kernel has
    /// learnt from ICMP errors are not sent, and are counted as errors.
    #[must_use]
    pub fn dont_fragment(mut self) -> Self {
        self.dont_fragment = true;
        self
    }

    /// Sets the time to wait, after the last request, for replies that are still missing.
    #[must_use]
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    /// Sends each request only when those before it have a reply or an error, or the waiting time for these is over: a
    /// busy machine then lets no packets pile up, which queues on the way might not hold.
    #[must_use]
    pub fn one_by_one(mut self) -> Self {
        self.one_by_one = true;
        self
    }

    /// Sends the requests from `namespace`, and waits until each has a reply or an error, or until the waiting time is
    /// over. Lost replies are reported, not an error; a network unreachable from the sender itself is an error.
    pub fn run(&self, namespace: &Namespace) -> Result<PingReport> {
        let failed = |source| Error::io(format!("pinging {} in {}", self.destination, namespace.name()), source);
        namespace.enter(|| self.run_here()).and_then(|report| report.map_err(failed))
    }

    /// Does [`Self::run`] in the calling thread's namespace.
    fn run_here(&self) -> io::Result<PingReport> {
        // Connecting sends nothing, but fails without a route.
        let any: IpAddr =
            if self.destination.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        UdpSocket::bind((any, 0))?.connect((self.destination, 9))?;
        let socket = self.open()?;
        let mut tally = Tally::new(self);
        let mut due = Instant::now();
        for _ in 0..self.count {
            if self.one_by_one {
                tally.receive(&socket, Instant::now() + patience(self.wait), true);
            }
            tally.receive(&socket, due, false);
            tally.send(&socket);
            // Requests that are late are not sent in a burst, which queues on the way might not hold.
            due = (due + self.interval).max(Instant::now());
        }
        tally.receive(&socket, Instant::now() + patience(self.wait), true);
        Ok(tally.report())
    }

    /// Opens an ICMP socket that receives only replies to its own requests, and the errors that these cause.
    fn open(&self) -> io::Result<OwnedFd> {
        let open = |family, protocol| socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, Some(protocol));
        let socket;
        if self.destination.is_ipv4() {
            socket = open(AddressFamily::INET, ipproto::ICMP)?;
            setsockopt(&socket, Ipv4RecvErr, &true)?;
            setsockopt(&socket, Ipv4RecvTtl, &true)?;
            if let Some(ttl) = self.ttl {
                sockopt::set_ip_ttl(&socket, ttl.into())?;
            }
            if self.dont_fragment {
                sockopt::set_ip_mtu_discover(&socket, Ipv4PathMtuDiscovery::DO)?;
            }
        } else {
            socket = open(AddressFamily::INET6, ipproto::ICMPV6)?;
            setsockopt(&socket, Ipv6RecvErr, &true)?;
            setsockopt(&socket, Ipv6RecvHopLimit, &true)?;
            if self.ttl.is_some() {
                sockopt::set_ipv6_unicast_hops(&socket, self.ttl)?;
            }
            if self.dont_fragment {
                sockopt::set_ipv6_mtu_discover(&socket, Ipv6PathMtuDiscovery::DO)?;
            }
        }
        Ok(socket)
    }

    /// Returns a request. The kernel fills in its checksum and identifier.
    fn request(&self, number: usize) -> Vec<u8> {
        let mut request = vec![if self.destination.is_ipv4() { 8 } else { 128 }, 0, 0, 0, 0, 0];
        request.extend((number as u16).to_be_bytes());
        // The data differ from request to request, and from place to place.
        let first = number as u32;
        request.extend((0..self.size).map(|at| ((first + at).wrapping_mul(0x9e37_79b1) >> 24) as u8));
        request
    }
}

/// Requests of a run and what has become of them.
struct Tally<'a> {
    ping: &'a Ping,
    requests: Vec<Request>,
    /// Requests without a reply or an error.
    open: u32,
    received: u32,
    duplicates: u32,
    errors: u32,
    /// Sum of the round-trip times.
    total: Duration,
    text: String,
}

struct Request {
    sent: Instant,
    /// False once a reply or an error has come.
    open: bool,
    replied: bool,
}

impl<'a> Tally<'a> {
    fn new(ping: &'a Ping) -> Self {
        let (requests, text, total) = (Vec::new(), String::new(), Duration::ZERO);
        Self { ping, requests, open: 0, received: 0, duplicates: 0, errors: 0, total, text }
    }

    /// Sends the next request.
    fn send(&mut self, socket: &OwnedFd) {
        self.requests.push(Request { sent: Instant::now(), open: true, replied: false });
        self.open += 1;
        let number = self.requests.len();
        let request = self.ping.request(number);
        let to = SocketAddr::new(self.ping.destination, 0);
        // A call also fails if an earlier request has caused an error meanwhile, or if a queue is full for a moment.
        let mut again = 0..20;
        let why = loop {
            let Err(why) = sendto(socket, &request, SendFlags::empty(), &to) else { return };
            self.read_errors(socket);
            if !self.requests[number - 1].open {
                return;
            }
            if again.next().is_none() {
                break why;
            }
            thread::sleep(Duration::from_millis(1));
        };
        self.fail(number, &format!("icmp_seq={number} not sent: {why}"));
    }

    /// Receives until `end`; if `all_sent`, only until no request is open.
    fn receive(&mut self, socket: &OwnedFd, end: Instant, all_sent: bool) {
        loop {
            let now = Instant::now();
            self.read_errors(socket);
            self.read_replies(socket);
            if now >= end || (all_sent && self.open == 0) {
                return;
            }
            let left = Timespec::try_from(end - now).ok();
            // An interrupted call is repeated like one that has waited.
            let _ = poll(&mut [PollFd::new(socket, PollFlags::IN)], left.as_ref());
        }
    }

    fn read_replies(&mut self, socket: &OwnedFd) {
        // The buffer has one byte more than a reply, so that a longer one is noticed.
        let mut buffer = vec![0; HEADER + self.ping.size as usize + 1];
        while let Ok((length, from, notes)) = read(socket, &mut buffer, MsgFlags::empty()) {
            let ttl = notes.iter().find_map(|note| match note {
                ControlMessageOwned::Ipv4Ttl(ttl) | ControlMessageOwned::Ipv6HopLimit(ttl) => Some(*ttl),
                _ => None,
            });
            self.take_reply(&buffer[..length], from, ttl.unwrap_or(0));
        }
    }

    fn read_errors(&mut self, socket: &OwnedFd) {
        let mut quoted = [0; 64];
        while let Ok((length, _, notes)) = read(socket, &mut quoted, MsgFlags::MSG_ERRQUEUE) {
            for note in notes {
                let (error, from) = match note {
                    ControlMessageOwned::Ipv4RecvErr(error, from) => {
                        (error, from.map(|from| IpAddr::from(SockaddrIn::from(from).ip())))
                    }
                    ControlMessageOwned::Ipv6RecvErr(error, from) => {
                        (error, from.map(|from| IpAddr::from(SockaddrIn6::from(from).ip())))
                    }
                    _ => continue,
                };
                self.take_error(&error, from, &quoted[..length]);
            }
        }
    }

    /// Returns the number, counted from 1, of the latest request with this sequence number.
    fn number(&self, packet: &[u8]) -> Option<usize> {
        let sequence = u16::from_be_bytes(packet.get(6..HEADER)?.try_into().ok()?);
        let sent = self.requests.len();
        sent.checked_sub((sent as u16).wrapping_sub(sequence).into()).filter(|number| *number > 0)
    }

    /// Counts a reply, which starts with its ICMP header.
    fn take_reply(&mut self, reply: &[u8], from: Option<IpAddr>, ttl: i32) {
        let Some(number) = self.number(reply) else { return };
        let from = from.map_or_else(String::new, |from| from.to_string());
        if from != self.ping.destination.to_string() {
            return self.fail(number, &format!("From {from} icmp_seq={number} Reply from another address"));
        }
        let (data, sent) = (&reply[HEADER..], &self.ping.request(number)[HEADER..]);
        if data != sent {
            let same = data.iter().zip(sent).take_while(|(got, sent)| got == sent).count();
            let what = format!("{} bytes instead of {}, wrong from byte {same} on", data.len(), sent.len());
            return self.fail(number, &format!("From {from} icmp_seq={number} Reply with other data: {what}"));
        }
        let request = &mut self.requests[number - 1];
        let again = std::mem::replace(&mut request.replied, true);
        let took = request.sent.elapsed();
        if again {
            self.duplicates += 1;
        } else {
            self.received += 1;
            self.total += took;
        }
        self.close(number);
        let (length, time, again) = (reply.len(), took.as_secs_f64() * 1e3, if again { " (DUP!)" } else { "" });
        self.line(&format!("{length} bytes from {from}: icmp_seq={number} ttl={ttl} time={time:.3} ms{again}"));
    }

    /// Counts an error. `quoted` is the request as the error quotes it, from its ICMP header.
    fn take_error(&mut self, error: &sock_extended_err, from: Option<IpAddr>, quoted: &[u8]) {
        if error.ee_origin == SO_EE_ORIGIN_LOCAL {
            // It quotes nothing, and concerns the request that is being sent.
            let number = self.requests.len();
            let why = match Errno::from_raw_os_error(error.ee_errno as i32) {
                Errno::MSGSIZE => format!("message too long, mtu={}", error.ee_info),
                other => other.to_string(),
            };
            return self.fail(number, &format!("icmp_seq={number} local error: {why}"));
        }
        let Some(number) = self.number(quoted) else { return };
        let from = from.map_or_else(|| "?".to_owned(), |from| from.to_string());
        let v4 = self.ping.destination.is_ipv4();
        let line = format!("From {from} icmp_seq={number} {}", reason(v4, error.ee_type, error.ee_code, error.ee_info));
        if v4 && error.ee_type == 5 {
            // The router that redirects forwards the request, too.
            return self.line(&line);
        }
        self.fail(number, &line);
    }

    fn fail(&mut self, number: usize, line: &str) {
        self.errors += 1;
        self.close(number);
        self.line(line);
    }

    fn close(&mut self, number: usize) {
        let request = &mut self.requests[number - 1];
        self.open -= u32::from(std::mem::replace(&mut request.open, false));
    }

    fn line(&mut self, line: &str) {
        self.text.push_str(line);
        self.text.push('\n');
    }

    fn report(mut self) -> PingReport {
        let (sent, received, errors) = (self.requests.len() as u32, self.received, self.errors);
        self.line(&format!(
            "{sent} packets transmitted to {}, {received} received, +{} duplicates, +{errors} errors",
            self.ping.destination, self.duplicates
        ));
        let mean = (received > 0).then(|| self.total / received);
        PingReport { sent, received, errors, mean, text: self.text }
    }
}

/// Reads a packet or, with `MSG_ERRQUEUE`, an error, without waiting: returns its length, its sender, and what the
/// kernel says about it.
fn read(
    socket: &OwnedFd,
    buffer: &mut [u8],
    flags: MsgFlags,
) -> nix::Result<(usize, Option<IpAddr>, Vec<ControlMessageOwned>)> {
    let (mut parts, mut notes) = ([IoSliceMut::new(buffer)], [0; 256]);
    let flags = flags | MsgFlags::MSG_DONTWAIT;
    let message = recvmsg::<SockaddrStorage>(socket.as_raw_fd(), &mut parts, Some(&mut notes), flags)?;
    let from = message.address.and_then(|address| {
        let v4 = address.as_sockaddr_in().map(|address| address.ip().into());
        v4.or_else(|| address.as_sockaddr_in6().map(|address| address.ip().into()))
    });
    Ok((message.bytes, from, message.cmsgs()?.collect()))
}

/// Returns an ICMP error in the words of iputils' `ping`; `info` is the MTU, if the error has one.
fn reason(v4: bool, kind: u8, code: u8, info: u32) -> String {
    let known = match (v4, kind, code) {
        (true, 3, 0) => "Destination Net Unreachable",
        (true, 3, 1) => "Destination Host Unreachable",
        (true, 3, 2) => "Destination Protocol Unreachable",
        (true, 3, 3) => "Destination Port Unreachable",
        (true, 3, 4) => return format!("Frag needed and DF set (mtu = {info})"),
        (true, 3, 9) => "Destination Net Prohibited",
        (true, 3, 10) => "Destination Host Prohibited",
        (true, 3, 13) => "Packet filtered",
        (true, 5, _) => "Redirect",
        (true, 11, 0) => "Time to live exceeded",
        (true, 11, 1) => "Frag reassembly time exceeded",
        (false, 1, 0) => "Destination unreachable: No route",
        (false, 1, 1) => "Destination unreachable: Administratively prohibited",
        (false, 1, 2) => "Destination unreachable: Beyond scope of source address",
        (false, 1, 3) => "Destination unreachable: Address unreachable",
        (false, 1, 4) => "Destination unreachable: Port unreachable",
        (false, 2, _) => return format!("Packet too big: mtu={info}"),
        (false, 3, 0) => "Time exceeded: Hop limit",
        (false, 3, 1) => "Time exceeded: Defragmentation failure",
        _ => return format!("ICMP error of type {kind}, code {code}"),
    };
    known.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TO: [u8; 4] = [10, 0, 2, 2];

    /// Returns a tally of requests that are thought to have been sent.
    fn sent(ping: &Ping, requests: usize) -> Tally<'_> {
        let mut tally = Tally::new(ping);
        tally.requests.extend((0..requests).map(|_| Request { sent: Instant::now(), open: true, replied: false }));
        tally.open = requests as u32;
        tally
    }

    fn error(origin: u8, kind: u8, code: u8, info: u32) -> sock_extended_err {
        let errno = Errno::MSGSIZE.raw_os_error() as u32;
        sock_extended_err {
            ee_errno: errno,
            ee_origin: origin,
            ee_type: kind,
            ee_code: code,
            ee_pad: 0,
            ee_info: info,
            ee_data: 0,
        }
    }

    #[test]
    fn replies_are_counted_once_and_only_if_right() {
        let ping = Ping::to(TO);
        let mut tally = sent(&ping, 4);
        let from = Some(IpAddr::from(TO));
        tally.take_reply(&ping.request(2), from, 63);
        tally.take_reply(&ping.request(2), from, 63);
        assert_eq!((tally.open, tally.received, tally.duplicates), (3, 1, 1));
        assert!(tally.text.contains("64 bytes from 10.0.2.2: icmp_seq=2 ttl=63 time="), "{}", tally.text);
        // Requests that have not been sent.
        tally.take_reply(&ping.request(5), from, 63);
        tally.take_reply(&ping.request(0), from, 63);
        tally.take_reply(&[0; 7], from, 63);
        assert_eq!((tally.open, tally.received, tally.errors), (3, 1, 0));
        let mut changed = ping.request(1);
        changed[HEADER + 9] ^= 1;
        tally.take_reply(&changed, from, 63);
        tally.take_reply(&ping.request(3)[..HEADER + 55], from, 63);
        tally.take_reply(&ping.request(4), Some([10, 0, 2, 1].into()), 64);
        let report = tally.report();
        assert_eq!((report.sent, report.received, report.errors), (4, 1, 3));
        for wrong in [
            "From 10.0.2.2 icmp_seq=1 Reply with other data: 56 bytes instead of 56, wrong from byte 9 on",
            "From 10.0.2.2 icmp_seq=3 Reply with other data: 55 bytes instead of 56, wrong from byte 55 on",
            "From 10.0.2.1 icmp_seq=4 Reply from another address",
            "4 packets transmitted to 10.0.2.2, 1 received, +1 duplicates, +3 errors",
        ] {
            assert!(report.text.lines().any(|line| line == wrong), "{wrong} in {}", report.text);
        }
    }

    #[test]
    fn errors_end_requests_and_redirects_do_not() {
        let (ping, router) = (Ping::to(TO), Some(IpAddr::from([10, 0, 1, 1])));
        let mut tally = sent(&ping, 3);
        tally.take_error(&error(2, 5, 1, 0), router, &ping.request(1));
        assert_eq!((tally.open, tally.errors), (3, 0));
        tally.take_error(&error(2, 3, 4, 1300), router, &ping.request(1));
        // Of no request.
        tally.take_error(&error(2, 11, 0, 0), router, &ping.request(4));
        tally.take_error(&error(SO_EE_ORIGIN_LOCAL, 0, 0, 1300), None, &[]);
        assert_eq!((tally.open, tally.errors), (1, 2));
        // A reply counts even after an error.
        tally.take_reply(&ping.request(1), Some(TO.into()), 63);
        assert_eq!((tally.open, tally.received, tally.errors), (1, 1, 2));
        let lines: Vec<&str> = tally.text.lines().take(3).collect();
        assert_eq!(lines[0], "From 10.0.1.1 icmp_seq=1 Redirect");
        assert_eq!(lines[1], "From 10.0.1.1 icmp_seq=1 Frag needed and DF set (mtu = 1300)");
        assert_eq!(lines[2], "icmp_seq=3 local error: message too long, mtu=1300");
    }

    #[test]
    fn sequence_numbers_go_round() {
        let ping = Ping::to(TO).size(0);
        let tally = sent(&ping, 65_538);
        for number in [65_538, 65_536, 4] {
            assert_eq!(tally.number(&ping.request(number)), Some(number));
        }
    }
}
