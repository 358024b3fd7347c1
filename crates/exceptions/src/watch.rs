//! The watcher: one thread that receives the kernel's notifications, closes the gate, reads the state again and reports
//! it.

use crate::dump::{dump, text};
use crate::effect::{Effect, Kind, Scope};
use crate::hooks::Hooks;
use crate::keeper::Keeper;
use crate::legacy::{Legacy, Open};
use crate::programs::{Attached, Programs};
use crate::rules::Rule;
use crate::search::Search;
use crate::sockets::Lost;
use crate::sysctl::{Settings, Sysctls};
use crate::translated::translated;
use crate::verdict::PortLink;
use crate::{nft, rules, sockets, tc, xfrm};
use bywash_fib::model::{Families, Prefix, Tunnel};
use bywash_nl::Error;
use bywash_nl::socket::{DATAGRAM, Received, Socket};
use bywash_nl::wake::Wake;
use bywash_nl::wire::{Attributes, Message, Messages, u32_at};
use bywash_sync::lock;
use rustix::fd::AsFd;
use rustix::io::Errno;
use rustix::net::netlink;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Interval between reads of state whose changes the kernel does not announce.
pub const POLL: Duration = Duration::from_millis(5);

/// Interval between reads of IPsec states, while there are some that decrypt.
const DECRYPTING: Duration = Duration::from_secs(1);
/// Interval between reads of translated connections, while there are some that no rule translates.
const TRANSLATING: Duration = Duration::from_secs(1);
/// Time after which state that the kernel failed to report is read again.
const FAILED: Duration = Duration::from_secs(1);
/// Receive buffer for announcements, in octets. An overflow closes the gate, and everything is read again.
const RECEIVE_BUFFER: usize = 1 << 20;

// linux/rtnetlink.h, linux/neighbour.h, linux/netconf.h, linux/netfilter/nfnetlink.h
const RTM_NEWRULE: u16 = 32;
const RTM_DELRULE: u16 = 33;
const RTM_GETRULE: u16 = 34;
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

/// Snapshot of the kernel state that concerns forwarded packets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// Number of the reading, for [`Keeper::open`].
    pub number: u64,
    /// Effects of all kinds, in the order of [`Kind::ALL`].
    pub effects: Vec<Effect>,
    /// Settings that the dataplane applies itself.
    pub settings: Settings,
    /// Policy routing rules, in the kernel's order.
    pub rules: Vec<Rule>,
    /// Tunnels among the ports, by number, whose outer packets the effects were determined for.
    pub tunnels: Vec<(u16, Tunnel)>,
    /// Extent to which the rules of nf_tables were evaluated for these packets.
    pub outer: Outer,
}

/// Extent to which the rules of nf_tables were evaluated for the outer packets of tunnels.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outer {
    /// Set if all chains that the host's own packets meet were: what the others do does not concern them.
    pub judged: bool,
    /// Set if the chains on devices were, too, and accept all packets of the tunnels that the others accept.
    pub accepted: bool,
    /// Families in which nf_tables has chains of type nat.
    pub translating: Families,
    /// Indices of the tunnels whose outer packets may be masqueraded: the kernel leaves them as they are only if their
    /// source is the address that it would give them.
    pub masqueraded: BTreeSet<u32>,
}

/// Watches the kernel's state until dropped.
///
/// One thread, `bywash-except`, does all the work. It sends a first reading and another one after each change; the
/// owner passes each to [`crate::judge`] and opens the gate by [`Keeper::open`].
#[derive(Debug)]
pub struct Watcher {
    readings: Receiver<Reading>,
    shared: Arc<Shared>,
    keeper: Keeper,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    stop: AtomicBool,
    ports: Mutex<Option<Vec<PortLink>>>,
    wake: Wake,
}

impl Watcher {
    /// Starts watching the calling thread's network namespace for `ports`. The first reading arrives shortly
    /// afterwards. `open` opens files that only root may open.
    ///
    /// # Errors
    /// If the eventfd or a netlink socket cannot be opened, or the thread cannot be started. A netlink protocol that
    /// the kernel lacks is not an error. State that the kernel later refuses to report becomes an effect on every
    /// packet.
    pub fn start(ports: Vec<PortLink>, keeper: Keeper, programs: Programs, open: Open) -> Result<Self, Error> {
        let shared = Arc::new(Shared { stop: AtomicBool::new(false), ports: Mutex::new(None), wake: Wake::new()? });
        let (sender, readings) = channel();
        // The sockets are opened on this thread because it is in the network namespace to watch.
        let mut sockets = Sockets::open()?;
        let mut buffer = vec![0; DATAGRAM];
        let hooks = Hooks::read(sockets.netfilter.as_mut().map(|(_, asked)| asked), &mut buffer);
        let searching = match &sockets.netfilter {
            Some(_) => Some(Socket::open_protocol(Some(netlink::NETFILTER), &[], RECEIVE_BUFFER)?),
            None => None,
        };
        let runner = Runner {
            sockets,
            nft: nft::Reader::open()
                .map_err(|unknown| Error::Socket { doing: "open", source: io::Error::other(unknown.why) })?,
            legacy: Legacy::open(open),
            sysctls: Sysctls::open(&ports),
            ports,
            keeper: keeper.clone(),
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
            search: Search::new(searching),
            refused: BTreeSet::new(),
            dirty: Kind::ALL.into(),
            failed: BTreeSet::new(),
            failed_at: Instant::now(),
            buffer,
            sender,
            shared: shared.clone(),
        };
        let thread =
            thread::Builder::new().name("bywash-except".into()).spawn(move || runner.run()).map_err(Error::Thread)?;
        Ok(Self { readings, shared, keeper, thread: Some(thread) })
    }

    /// Returns the channel on which readings arrive. It disconnects when the watcher has failed; nothing may be
    /// forwarded past the kernel then.
    pub fn readings(&self) -> &Receiver<Reading> {
        &self.readings
    }

    /// Returns the keeper of the gate.
    pub fn keeper(&self) -> &Keeper {
        &self.keeper
    }

    /// Watches these ports from now on. Closes the gate until their state has been read.
    pub fn set_ports(&self, ports: Vec<PortLink>) {
        // A reading of these ports must not be numbered before the gate closes for them: it could not open the gate.
        let mut news = lock(&self.shared.ports);
        *news = Some(ports);
        self.keeper.close();
        drop(news);
        self.shared.wake.wake();
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.wake.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Sockets that receive announcements, and those for requests ([`nft::Reader`] has its own for its ones). `None` if the
/// kernel lacks the protocol, and with it the state that is read through it.
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

struct Runner {
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
    /// Kinds that must be read again.
    dirty: BTreeSet<Kind>,
    /// Kinds that the kernel failed to report, and when.
    failed: BTreeSet<Kind>,
    failed_at: Instant,
    buffer: Vec<u8>,
    sender: Sender<Reading>,
    shared: Arc<Shared>,
}

impl Runner {
    fn run(mut self) {
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
        if self.failed_at.elapsed() >= FAILED {
            changed.append(&mut self.failed);
        }
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

    /// Returns the effects of chains of type nat, hooked but without a rule, on connections that they translate all the
    /// same. They do so while connection tracking is on, which they do not turn on themselves.
    fn read_leftovers(&mut self) -> Vec<Effect> {
        let kinds = [(Kind::Netfilter, self.hooked), (Kind::IptablesLegacy, self.legacy.translating())];
        let scopes = |kind| self.known.get(&kind).into_iter().flatten().map(|effect| &effect.scope);
        let (mut tracked, mut open) = (Families::NONE, kinds);
        for (kind, hooked) in &mut open {
            for scope in scopes(*kind) {
                match scope {
                    Scope::Fragments(families) => tracked |= *families,
                    Scope::All(families) => *hooked = *hooked & !*families,
                    _ => {}
                }
            }
        }
        self.leftovers_at = Instant::now();
        let mut effects = vec![];
        for (kind, hooked) in open {
            let families = hooked & tracked;
            let (families, reason) = match self.translated(families) {
                Ok(of) => (of & families, "connections translated before the rules were removed".into()),
                Err(why) => (families, format!("cannot be read: {why}")),
            };
            if !families.is_empty() {
                effects.push(Effect { kind, scope: Scope::All(families), object: "chains of type nat".into(), reason });
            }
        }
        effects
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

    /// Returns the effects of proxied addresses: the kernel takes neighbour discovery that is routed to one for its own
    /// (ip6_forward_proxy_check).
    fn proxied(&self) -> Result<Vec<Effect>, String> {
        let of = |(index, addr): &(u32, Ipv6Addr)| {
            let port = self.ports.iter().find(|port| port.index == *index);
            if *index != 0 && port.is_none() {
                return None;
            }
            let object = format!("neighbour proxy {addr} on {}", port.map_or("all interfaces", |port| &port.name));
            let scope = Scope::To(Prefix::from(IpAddr::from(*addr)));
            Some(Effect { kind: Kind::Sysctls, scope, object, reason: "answers neighbour discovery".into() })
        };
        Ok(self.proxied.as_ref().map_err(Clone::clone)?.iter().filter_map(of).collect())
    }

    fn read(&mut self, number: u64) -> Reading {
        let rules = [Kind::Netfilter, Kind::IptablesLegacy].iter().any(|kind| self.dirty.contains(kind));
        for kind in std::mem::take(&mut self.dirty) {
            let effects = self.read_kind(kind).unwrap_or_else(|why| {
                // Tables of iptables-legacy are looked at all the time.
                if kind != Kind::IptablesLegacy {
                    self.failed.insert(kind);
                    self.failed_at = Instant::now();
                }
                unknown(kind, &why)
            });
            self.known.insert(kind, effects);
        }
        let (settings, _) = self.sysctls.analyse();
        if rules {
            self.leftovers = self.read_leftovers();
        }
        let of = |kind| {
            let left = self.leftovers.iter().filter(move |effect| effect.kind == kind);
            self.known.get(&kind).into_iter().flatten().chain(left)
        };
        let effects = Kind::ALL.into_iter().flat_map(of).cloned().collect();
        let tunnels = self.ports.iter().filter_map(|port| Some((port.id, port.tunnel?))).collect();
        Reading { number, effects, settings, rules: self.rules.clone(), tunnels, outer: self.outer.clone() }
    }

    fn read_kind(&mut self, kind: Kind) -> Result<Vec<Effect>, String> {
        match kind {
            Kind::Netfilter => {
                self.hooked = Families::BOTH;
                self.outer = Outer::default();
                let named = |port: &PortLink| nft::Interface {
                    index: port.index,
                    name: port.name.clone(),
                    marked: port.paired,
                };
                let tunnels = self.ports.iter().filter_map(|port| Some((named(port), port.tunnel?)));
                let tunnels: Vec<(nft::Interface, Tunnel)> = tunnels.collect();
                let tunnels = || tunnels.iter().map(|(interface, tunnel)| (interface.clone(), tunnel));
                // The outer packets of tunnels are judged by the elements of sets, too.
                let tunnelled = tunnels().next().is_some();
                let read = if tunnelled { self.nft.read_whole() } else { self.nft.read() };
                let ruleset = read.map_err(|unknown| unknown.why)?;
                let mut effects = nft::analyse(&ruleset);
                self.hooked = ruleset.translating();
                if tunnelled {
                    effects.retain(|effect| !matches!(effect.scope, Scope::Own(_)));
                    let (mut against, masqueraded) = nft::on_tunnels(&ruleset, tunnels());
                    // A connection that a rule has translated stays translated without the rule: those of tunnels that
                    // the rules have refused until now are looked for at once.
                    let index =
                        |effect: &Effect| if let Scope::Tunnel(index) = effect.scope { Some(index) } else { None };
                    let refused: BTreeSet<u32> = against.iter().filter_map(index).collect();
                    let released = !self.refused.is_subset(&refused);
                    self.refused = refused;
                    let asked = self.translatable();
                    let found = self.search.ask(asked.clone(), released);
                    let found = found.unwrap_or_else(|e| Some(Err(format!("translated connections: {e}"))));
                    against.extend(asked.iter().filter_map(|(index, _)| {
                        let reason = match &found {
                            Some(Ok(indices)) if !indices.contains(index) => return None,
                            Some(Ok(_)) => "a connection of the tunnel's outer packets is translated".into(),
                            Some(Err(why)) => format!("cannot be read: {why}"),
                            None => "connections of the tunnel's outer packets are being searched for".into(),
                        };
                        Some(nft::on_tunnel(*index, "connection tracking".into(), reason))
                    }));
                    let refuses = |index| against.iter().any(|effect| effect.scope == Scope::Tunnel(index));
                    let mut accepted = tunnels().filter(|(interface, _)| !refuses(interface.index));
                    let accepted = nft::pass_devices(&ruleset, &mut accepted);
                    self.outer = Outer { judged: true, accepted, translating: self.hooked, masqueraded };
                    effects.extend(against);
                } else {
                    // Without tunnels, it ends.
                    self.search.ask(vec![], false).map_err(|e| e.to_string())?;
                }
                Ok(effects)
            }
            Kind::IptablesLegacy => {
                self.legacy.effects().map(<[Effect]>::to_vec).map_err(|unknown| unknown.why.clone())
            }
            Kind::Ipsec => self.ipsec(),
            Kind::Rules => self.rules(),
            Kind::Sysctls => {
                let lost = self.lost.effects(&mut self.buffer);
                Ok([self.sysctls.analyse().1, self.proxied()?, lost].concat())
            }
            Kind::TrafficControl => self.traffic_control(),
            Kind::Programs => {
                let name = |index| self.devices().find(|(of, _)| *of == index).map_or("?", |(_, name)| name);
                Ok([self.programs.effects(name), self.hooks.effects()].concat())
            }
        }
    }

    fn ipsec(&mut self) -> Result<Vec<Effect>, String> {
        let Some((_, asked)) = &mut self.sockets.ipsec else { return Ok(vec![]) };
        let mut effects =
            dump(asked, xfrm::XFRM_MSG_GETPOLICY, &[0; 64], &[], &mut self.buffer, |message| match message.kind {
                xfrm::XFRM_MSG_NEWPOLICY => xfrm::parse(message.body),
                _ => Ok(None),
            })?
            .unwrap_or_default();
        effects.extend(ask_default(asked, &mut self.buffer)?);
        effects.extend(self.states()?.then(xfrm::decrypted));
        Ok(effects)
    }

    /// Reads whether IPsec states decrypt packets that may be forwarded.
    fn states(&mut self) -> Result<bool, String> {
        self.states_at = Instant::now();
        let Some((_, asked)) = &mut self.sockets.ipsec else { return Ok(false) };
        let states = dump(asked, xfrm::XFRM_MSG_GETSA, &[], &[], &mut self.buffer, |message| match message.kind {
            xfrm::XFRM_MSG_NEWSA => xfrm::decrypts(message.body).map(Some).ok_or(()),
            _ => Ok(None),
        })?;
        Ok(states.unwrap_or_default().contains(&true))
    }

    fn rules(&mut self) -> Result<Vec<Effect>, String> {
        let asked = &mut self.sockets.route.1;
        self.rules.clear();
        let mut all = vec![];
        for family in [AF_INET, AF_INET6] {
            let mut body = [0; 12];
            body[0] = family;
            let found = dump(asked, RTM_GETRULE, &body, &[], &mut self.buffer, |message| match message.kind {
                RTM_NEWRULE => rules::parse(message.body),
                _ => Ok(None),
            })?;
            all.extend(found.into_iter().flatten());
        }
        self.rules = all;
        Ok(rules::analyse(&self.rules, &self.ports))
    }

    fn traffic_control(&mut self) -> Result<Vec<Effect>, String> {
        let devices: BTreeMap<u32, String> = self.devices().map(|(index, name)| (index, name.to_owned())).collect();
        let asked = &mut self.sockets.route.1;
        let buffer = &mut self.buffer;
        let object = |message: &Message<'_>, of| match message.kind == of {
            true => tc::parse(message.body).map(Some).ok_or(()),
            false => Ok(None),
        };
        let qdiscs = dump(asked, tc::RTM_GETQDISC, &[0; tc::TCMSG], &[], buffer, |m| object(m, tc::RTM_NEWQDISC))?;
        let mut effects = vec![];
        for qdisc in qdiscs.into_iter().flatten() {
            let Some(name) = devices.get(&qdisc.index) else { continue };
            effects.extend(qdisc.qdisc_effect(name));
            if !qdisc.holds_filters() {
                continue;
            }
            let parents: &[u32] = match qdisc.kind.as_str() {
                "clsact" => &[tc::CLSACT_INGRESS, tc::CLSACT_EGRESS],
                _ => &[tc::INGRESS],
            };
            for parent in parents {
                let mut body = [0; tc::TCMSG];
                body[4..8].copy_from_slice(&qdisc.index.to_ne_bytes());
                body[12..16].copy_from_slice(&parent.to_ne_bytes());
                let filters = dump(asked, tc::RTM_GETTFILTER, &body, &[], buffer, |m| object(m, tc::RTM_NEWTFILTER))?;
                let mut filters: Vec<Effect> =
                    filters.iter().flatten().map(|filter| filter.filter_effect(name)).collect();
                // The kernel reports a filter as one head message and one message for each of its parts.
                filters.dedup();
                effects.extend(filters);
            }
        }
        Ok(effects)
    }
}

/// Returns the effects of state that cannot be read, which may concern any packet.
fn unknown(kind: Kind, why: &str) -> Vec<Effect> {
    let object = match kind {
        Kind::Netfilter => "nf_tables",
        Kind::IptablesLegacy => "iptables-legacy",
        Kind::Ipsec => "IPsec policies",
        Kind::Rules => "ip rules",
        Kind::Sysctls => "sysctls",
        Kind::TrafficControl => "qdiscs and filters",
        Kind::Programs => "BPF programs",
    };
    let reason = format!("cannot be read: {why}");
    let effect = |scope| Effect { kind, scope, object: object.into(), reason: reason.clone() };
    // Rules of bridges are among netfilter's; the state of other kinds concerns routed packets alone, or devices.
    let between = matches!(kind, Kind::Netfilter | Kind::IptablesLegacy).then_some(Scope::Between);
    std::iter::once(Scope::All(Families::BOTH)).chain(between).map(effect).collect()
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

/// Requests the default IPsec policy, which applies to packets that no policy selects. Kernels before 5.14 have none.
fn ask_default(socket: &mut Socket, buffer: &mut [u8]) -> Result<Option<Effect>, String> {
    let mut effect = None;
    let answer = socket.ask(xfrm::XFRM_MSG_GETDEFAULT, &[0; 4], buffer, |message| {
        if message.kind == xfrm::XFRM_MSG_GETDEFAULT {
            effect = xfrm::parse_default(message.body);
        }
    });
    match answer {
        Ok(()) => Ok(effect),
        Err(Error::Socket { source, .. })
            if matches!(Errno::from_io_error(&source), Some(Errno::INVAL | Errno::OPNOTSUPP)) =>
        {
            Ok(None)
        }
        Err(error) => Err(format!("the default IPsec policy: {}", text(&error))),
    }
}
