//! The watcher's thread: receives announcements, polls what is not announced, and closes the gate.

mod read;

use super::{Outer, POLL, Reading, Shared};
use crate::dump::{dump, text};
use crate::effect::{Effect, Kind, Scope};
use crate::hooks::Hooks;
use crate::keeper::Keeper;
use crate::legacy::{Legacy, Open};
use crate::programs::{Attached, Programs};
use crate::rules::Rule;
use crate::search::Search;
use crate::sockets::{self, Lost};
use crate::sysctl::Sysctls;
use crate::translated::translated;
use crate::verdict::PortLink;
use crate::{nft, tc, xfrm};
use bywash_fib::model::{Families, Tunnel};
use bywash_nl::Error;
use bywash_nl::socket::{DATAGRAM, Received, Socket};
use bywash_nl::wire::{Attributes, Message, Messages, u32_at};
use bywash_sync::lock;
use rustix::fd::AsFd;
use rustix::io::Errno;
use rustix::net::netlink;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::Ipv6Addr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

/// Interval between reads of IPsec states, while there are some that decrypt.
const DECRYPTING: Duration = Duration::from_secs(1);
/// Interval between reads of translated connections, while there are some that no rule translates.
const TRANSLATING: Duration = Duration::from_secs(1);
/// Interval between attempts to read state that the kernel failed to report, or whose protocol it lacked.
const FAILED: Duration = Duration::from_secs(1);
/// Receive buffer for announcements, in octets. An overflow closes the gate, and everything is read again.
const RECEIVE_BUFFER: usize = 1 << 20;

/// Netlink sockets of the namespace. The second column is the protocol.
const SOCKETS: &str = "/proc/thread-self/net/netlink";
/// Sockets of PF_KEY (RFC 2367). The file exists if the kernel has this protocol.
const PFKEY: &str = "/proc/thread-self/net/pfkey";

// linux/netlink.h
const NETLINK_XFRM: &str = "6";
const NETLINK_NETFILTER: &str = "12";

// linux/rtnetlink.h, linux/neighbour.h, linux/netconf.h, linux/netfilter/nfnetlink.h
const RTM_NEWRULE: u16 = 32;
const RTM_DELRULE: u16 = 33;
const RTM_NEWNEIGH: u16 = 28;
const RTM_GETNEIGH: u16 = 30;
const NDA_DST: u16 = 1;
const NTF_PROXY: u8 = 8;
const RTM_NEWNETCONF: u16 = 80;
const RTM_DELNETCONF: u16 = 81;
const RTNLGRP_IPV4_RULE: u32 = 8;
const RTNLGRP_IPV6_RULE: u32 = 19;
const RTNLGRP_IPV4_NETCONF: u32 = 24;
const RTNLGRP_IPV6_NETCONF: u32 = 25;
const NETCONFA_IFINDEX: u16 = 1;
const NFNLGRP_NFTABLES: u32 = 7;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;

/// State of the watcher's thread.
pub(super) struct Runner {
    sockets: Sockets,
    nft: nft::Reader,
    legacy: Legacy,
    sysctls: Sysctls,
    ports: Vec<PortLink>,
    keeper: Keeper,
    programs: Attached,
    hooks: Hooks,
    /// Addresses for which the kernel answers neighbour discovery, with the interface's index, as last read; empty
    /// while that is off.
    proxied: Result<Vec<(u32, Ipv6Addr)>, String>,
    /// Policy routing rules as last read.
    rules: Vec<Rule>,
    /// Families in which nf_tables has a chain of type nat.
    hooked: Families,
    /// Effects of connections that are translated although no rule does it any more, and when they were last read.
    leftovers: Vec<Effect>,
    leftovers_at: Instant,
    lost: Lost,
    /// Time of the last read of IPsec states.
    states_at: Instant,
    /// Effects as last read.
    known: BTreeMap<Kind, Vec<Effect>>,
    outer: Outer,
    /// Searches for translated connections of outer packets.
    search: Search,
    /// Indices of the tunnels whose outer packets the rules refuse, as last read.
    refused: BTreeSet<u32>,
    /// Reason why the sockets of a protocol that the kernel has gained cannot be opened.
    unopened: Option<String>,
    /// Kinds that must be read again.
    dirty: BTreeSet<Kind>,
    /// Kinds that the kernel failed to report, and the time when it was last asked for them and for protocols that it
    /// lacked.
    failed: BTreeSet<Kind>,
    failed_at: Instant,
    buffer: Vec<u8>,
    sender: Sender<Reading>,
    shared: Arc<Shared>,
}

impl Runner {
    /// Opens the sockets and files, in the calling thread's network namespace.
    pub(super) fn open(
        ports: Vec<PortLink>,
        keeper: Keeper,
        programs: Programs,
        open: Open,
        sender: Sender<Reading>,
        shared: Arc<Shared>,
    ) -> Result<Self, Error> {
        let (mut sockets, nft, search) = self::open()?;
        let mut buffer = vec![0; DATAGRAM];
        let hooks = Hooks::read(sockets.netfilter.as_mut().map(|(_, asked)| asked), &mut buffer);
        Ok(Self {
            sockets,
            nft,
            legacy: Legacy::open(open),
            sysctls: Sysctls::open(&ports),
            ports,
            keeper,
            programs: Attached::new(programs),
            hooks,
            proxied: Ok(vec![]),
            rules: vec![],
            hooked: Families::BOTH,
            leftovers: vec![],
            leftovers_at: Instant::now(),
            lost: Lost::new(Socket::open_protocol(Some(netlink::SOCK_DIAG), &[], RECEIVE_BUFFER).ok()),
            states_at: Instant::now(),
            known: BTreeMap::new(),
            outer: Outer::default(),
            search,
            refused: BTreeSet::new(),
            unopened: None,
            dirty: Kind::ALL.into(),
            failed: BTreeSet::new(),
            failed_at: Instant::now(),
            buffer,
            sender,
            shared,
        })
    }

    /// Watches until told to stop, or until nobody receives readings.
    pub(super) fn run(mut self) {
        self.ask_programs();
        self.ask_proxied();
        while !self.shared.stop.load(Ordering::Acquire) {
            if !self.dirty.is_empty() {
                let number = self.number();
                let reading = self.read(number);
                if self.sender.send(reading).is_err() {
                    return;
                }
            }
            self.wait();
            let mut changed = self.receive();
            changed.extend(self.poll_unannounced());
            if !changed.is_empty() {
                self.keeper.close();
                self.dirty.extend(changed);
            }
        }
    }

    /// Returns the number of a reading that begins now. Later announcements are not part of it.
    fn number(&mut self) -> u64 {
        let shared = self.shared.clone();
        // While this is locked, no ports are set, which closes the gate: the number counts those that are set by now.
        let mut news = lock(&shared.ports);
        if let Some(ports) = news.take() {
            let concerned = self.adopt(ports);
            self.dirty.extend(concerned);
        }
        self.keeper.announced()
    }

    /// Watches these ports from now on, and returns the kinds that must be read for them.
    fn adopt(&mut self, ports: Vec<PortLink>) -> [Kind; 5] {
        self.ports = ports;
        // The files of the old ports are closed first: together with those of the new ones they may be too many.
        self.sysctls = Sysctls::default();
        self.sysctls = Sysctls::open(&self.ports);
        // Chains on devices are listed by the devices' names, whose changes nf_tables does not announce.
        [Kind::Netfilter, Kind::Rules, Kind::Sysctls, Kind::TrafficControl, Kind::Programs]
    }

    fn wait(&self) {
        // Everything is checked, whether or not the wait failed.
        let _ = self.shared.wake.wait(self.sockets.readable().map(AsFd::as_fd), Some(POLL));
    }

    /// Returns the interfaces that the ports' packets pass, by index and name, some of them more than once.
    fn devices(&self) -> impl Iterator<Item = (u32, &str)> {
        self.ports.iter().flat_map(PortLink::watched)
    }

    /// Reads all pending announcements and returns the kinds they concern.
    fn receive(&mut self) -> BTreeSet<Kind> {
        let mut changed = BTreeSet::new();
        let ports: BTreeSet<u32> = self.devices().map(|(index, _)| index).collect();
        let decrypts = self.decrypts();
        let buffer = &mut self.buffer;
        let mut lost = vec![];
        drain(&self.sockets.route.0, buffer, &mut changed, |message| match message.kind {
            sockets::RTM_DELADDR => sockets::lost(message).map(|addr| {
                lost.push(addr);
                Kind::Sysctls
            }),
            _ => concerns(message, &ports),
        });
        lost.into_iter().for_each(|addr| self.lost.add(addr));
        if changed.contains(&Kind::Programs) {
            // Announcements were lost, with which all kinds are read again.
            self.lost.missed();
        }
        if let Some((events, _)) = &self.sockets.netfilter {
            drain(events, buffer, &mut changed, |_| Some(Kind::Netfilter));
        }
        if let Some((events, _)) = &self.sockets.ipsec {
            drain(events, buffer, &mut changed, |message| xfrm::concerns(message, decrypts).then_some(Kind::Ipsec));
        }
        changed
    }

    /// Polls the state that is not announced and returns the kinds that have changed.
    fn poll_unannounced(&mut self) -> BTreeSet<Kind> {
        let mut changed = BTreeSet::new();
        let ports = lock(&self.shared.ports).take();
        if let Some(ports) = ports {
            changed.extend(self.adopt(ports));
        } else if self.sysctls.changed() {
            changed.insert(Kind::Sysctls);
        }
        changed.extend(self.ask_failed());
        if self.ask_proxied() {
            changed.insert(Kind::Sysctls);
        }
        if self.legacy.changed() {
            changed.insert(Kind::IptablesLegacy);
        }
        let asked = self.sockets.netfilter.as_mut().map(|(_, asked)| asked);
        if self.hooks.changed(asked, &mut self.buffer) | self.ask_programs() {
            changed.insert(Kind::Programs);
        }
        if self.lost.poll(&mut self.sockets.route.1, &mut self.buffer) {
            changed.insert(Kind::Sysctls);
        }
        if self.decrypts() && self.states_at.elapsed() >= DECRYPTING && self.states() != Ok(true) {
            changed.insert(Kind::Ipsec);
        }
        changed.extend(self.ask_translated());
        changed.extend(self.search.has_news().then_some(Kind::Netfilter));
        changed
    }

    /// Returns whether IPsec states decrypt packets that may be forwarded, as last read.
    fn decrypts(&self) -> bool {
        self.known.get(&Kind::Ipsec).is_some_and(|all| all.iter().any(|effect| effect.scope == Scope::Decrypted))
    }

    /// Returns the kinds that the kernel failed to report and reports now; asks once a second. Until then they are
    /// effects on every packet, so that the gate need not close for the attempt.
    fn ask_failed(&mut self) -> BTreeSet<Kind> {
        if self.failed_at.elapsed() < FAILED {
            return BTreeSet::new();
        }
        self.failed_at = Instant::now();
        let gained = self.gain_protocols();
        if !gained.is_empty() {
            return gained;
        }
        // Policies of PF_KEY cannot be read: they are unknown from the next reading on.
        let hidden = self.sockets.ipsec.is_none() && !self.failed.contains(&Kind::Ipsec) && Path::new(PFKEY).exists();
        let failed = std::mem::take(&mut self.failed);
        let (mut mended, failed): (BTreeSet<Kind>, _) =
            failed.into_iter().partition(|kind| self.read_kind(*kind).is_ok());
        self.failed = failed;
        mended.extend(hidden.then_some(Kind::Ipsec));
        mended
    }

    /// Opens all sockets again if the kernel now has a netlink protocol that it lacked, and returns the kinds to read.
    fn gain_protocols(&mut self) -> BTreeSet<Kind> {
        let absent =
            [(NETLINK_XFRM, self.sockets.ipsec.is_none()), (NETLINK_NETFILTER, self.sockets.netfilter.is_none())];
        if absent.iter().all(|(_, absent)| !absent) {
            return BTreeSet::new();
        }
        // The kernel itself has a socket of each protocol. An attempt to open one of an unknown protocol would start
        // modprobe.
        let sockets = std::fs::read_to_string(SOCKETS).unwrap_or_default();
        let gained = absent.iter().any(|(protocol, absent)| *absent && has_protocol(&sockets, protocol));
        match gained.then(open) {
            None => BTreeSet::new(),
            Some(Ok((sockets, nft, search))) => {
                (self.sockets, self.nft, self.search, self.unopened) = (sockets, nft, search, None);
                let netfilter = self.sockets.netfilter.as_mut().map(|(_, asked)| asked);
                self.hooks = Hooks::read(netfilter, &mut self.buffer);
                // Of the announcements that the old sockets had.
                self.lost.missed();
                Kind::ALL.into()
            }
            Some(Err(why)) => {
                let known = self.unopened.replace(text(&why)).is_some();
                if known { BTreeSet::new() } else { [Kind::Netfilter, Kind::Ipsec].into() }
            }
        }
    }

    /// Queries the foreign programs and returns whether they have changed.
    fn ask_programs(&mut self) -> bool {
        let indices = self.devices().map(|(index, _)| index).filter(|index| *index != 0).collect();
        self.programs.changed(indices)
    }

    /// Returns the kinds whose chains translate fewer connections than before; asks once a second.
    fn ask_translated(&mut self) -> BTreeSet<Kind> {
        let left = self.leftovers.iter().filter_map(|effect| match effect.scope {
            Scope::All(families) => Some((effect.kind, families)),
            _ => None,
        });
        let left: Vec<(Kind, Families)> = left.collect();
        if left.is_empty() || self.leftovers_at.elapsed() < TRANSLATING {
            return BTreeSet::new();
        }
        self.leftovers_at = Instant::now();
        let Ok(now) = self.translated(left.iter().fold(Families::NONE, |all, (_, of)| all | *of)) else {
            return BTreeSet::new();
        };
        left.into_iter().filter(|(_, of)| *of & now != *of).map(|(kind, _)| kind).collect()
    }

    /// Returns the tunnels whose outer packets may be translated, by index.
    fn translatable(&self) -> Vec<(u32, Tunnel)> {
        let tunnels = self.ports.iter().filter_map(|port| Some((port.index, port.tunnel?)));
        tunnels.filter(|(_, tunnel)| !(tunnel.family() & self.hooked).is_empty()).collect()
    }

    fn translated(&mut self, families: Families) -> Result<Families, String> {
        match &mut self.sockets.netfilter {
            Some((_, asked)) if !families.is_empty() => translated(asked, families, &mut self.buffer),
            _ => Ok(Families::NONE),
        }
    }

    /// Reads the proxied addresses, which the kernel does not announce, and returns whether they have changed.
    fn ask_proxied(&mut self) -> bool {
        let mut proxied = Ok(vec![]);
        if self.sysctls.proxies_discovery() {
            let mut body = [0; 12];
            (body[0], body[10]) = (AF_INET6, NTF_PROXY);
            let asked = &mut self.sockets.route.1;
            let found = dump(asked, RTM_GETNEIGH, &body, &[], &mut self.buffer, |message| match message.kind {
                RTM_NEWNEIGH => proxied_address(message.body).map(Some).ok_or(()),
                _ => Ok(None),
            });
            proxied = found.map(Option::unwrap_or_default);
        }
        std::mem::replace(&mut self.proxied, proxied) != self.proxied
    }
}

/// Opens the sockets, those of [`nft::Reader`] and [`Search`] included, in the calling thread's network namespace.
fn open() -> Result<(Sockets, nft::Reader, Search), Error> {
    let sockets = Sockets::open()?;
    let nft = nft::Reader::open()
        .map_err(|unknown| Error::Socket { doing: "open", source: io::Error::other(unknown.why) })?;
    let searching = match &sockets.netfilter {
        Some(_) => Some(Socket::open_protocol(Some(netlink::NETFILTER), &[], RECEIVE_BUFFER)?),
        None => None,
    };
    Ok((sockets, nft, Search::new(searching)))
}

/// Returns whether a protocol is among these netlink sockets, as the kernel lists them.
fn has_protocol(sockets: &str, protocol: &str) -> bool {
    sockets.lines().any(|line| line.split_whitespace().nth(1) == Some(protocol))
}

/// Sockets that receive announcements, and those for requests ([`nft::Reader`] has its own for its ones). `None` if the
/// kernel lacks the protocol, until it has it ([`Runner::gain_protocols`]).
#[derive(Debug)]
struct Sockets {
    route: (Socket, Socket),
    netfilter: Option<(Socket, Socket)>,
    ipsec: Option<(Socket, Socket)>,
}

impl Sockets {
    fn open() -> Result<Self, Error> {
        let open = |protocol, groups: &[u32]| Socket::open_protocol(protocol, groups, RECEIVE_BUFFER);
        let lacks = |error: &Error| {
            matches!(error, Error::Socket { source, .. }
                if Errno::from_io_error(source) == Some(Errno::PROTONOSUPPORT))
        };
        let maybe = |protocol, groups: &[u32]| match open(protocol, groups) {
            Ok(socket) => Ok(Some(socket)),
            Err(error) if lacks(&error) => Ok(None),
            Err(error) => Err(error),
        };
        let rules = [RTNLGRP_IPV4_RULE, RTNLGRP_IPV6_RULE, tc::RTNLGRP_TC, RTNLGRP_IPV4_NETCONF, RTNLGRP_IPV6_NETCONF];
        let route = [&rules[..], &[sockets::RTNLGRP_IPV4_IFADDR, sockets::RTNLGRP_IPV6_IFADDR]].concat();
        Ok(Self {
            route: (open(None, &route)?, open(None, &[])?),
            netfilter: match maybe(Some(netlink::NETFILTER), &[NFNLGRP_NFTABLES])? {
                Some(events) => Some((events, open(Some(netlink::NETFILTER), &[])?)),
                None => None,
            },
            ipsec: match maybe(Some(netlink::XFRM), &[xfrm::XFRMNLGRP_POLICY, xfrm::XFRMNLGRP_SA])? {
                Some(events) => Some((events, open(Some(netlink::XFRM), &[])?)),
                None => None,
            },
        })
    }

    fn readable(&self) -> impl Iterator<Item = &Socket> {
        let others = self.netfilter.iter().chain(&self.ipsec);
        std::iter::once(&self.route.0).chain(others.map(|(events, _)| events))
    }
}

/// Returns the interface's index and the address of a proxy entry (struct ndmsg).
fn proxied_address(body: &[u8]) -> Option<(u32, Ipv6Addr)> {
    let (_, addr) = Attributes::after(body, 12).find(|(kind, _)| *kind == NDA_DST)?;
    Some((u32_at(body, 4)?, <[u8; 16]>::try_from(addr).ok()?.into()))
}

/// Reads all pending messages of a socket and adds the kinds that `concerns` returns for them. Adds every kind after a
/// loss or a socket error.
fn drain(
    socket: &Socket,
    buffer: &mut [u8],
    changed: &mut BTreeSet<Kind>,
    mut concerns: impl FnMut(&Message<'_>) -> Option<Kind>,
) {
    loop {
        match socket.receive(buffer) {
            Ok(Received::Empty) => return,
            Ok(Received::Datagram(length)) => {
                changed.extend(Messages::new(&buffer[..length]).filter_map(|message| concerns(&message)));
            }
            // The kernel reports an overflow once; later messages arrive normally.
            Ok(Received::Lost) => changed.extend(Kind::ALL),
            Err(_) => {
                changed.extend(Kind::ALL);
                return;
            }
        }
    }
}

/// Returns the kind of state that a routing announcement concerns; `None` if it concerns an interface that is not a
/// port.
fn concerns(message: &Message<'_>, ports: &BTreeSet<u32>) -> Option<Kind> {
    match message.kind {
        RTM_NEWRULE | RTM_DELRULE => Some(Kind::Rules),
        RTM_NEWNETCONF | RTM_DELNETCONF => {
            let index = Attributes::after(message.body, 4).find(|(kind, _)| *kind == NETCONFA_IFINDEX);
            let index = index.and_then(|(_, value)| u32_at(value, 0));
            // The index is negative for all interfaces (NETCONFA_IFINDEX_ALL) and for the default of new ones
            // (NETCONFA_IFINDEX_DEFAULT).
            index.is_none_or(|index| index > i32::MAX as u32 || ports.contains(&index)).then_some(Kind::Sysctls)
        }
        // Qdiscs, filters, classes and chains. A filter block shared by several interfaces has no interface index.
        36..=46 | 100..=102 => {
            let index = u32_at(message.body, 4);
            index.is_none_or(|index| index > i32::MAX as u32 || ports.contains(&index)).then_some(Kind::TrafficControl)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_lists_its_own_sockets_by_protocol() {
        let sockets = std::fs::read_to_string(SOCKETS).unwrap();
        // NETLINK_ROUTE, and one that nobody has.
        assert!(has_protocol(&sockets, "0") && !has_protocol(&sockets, "31"), "{sockets}");
    }
}
