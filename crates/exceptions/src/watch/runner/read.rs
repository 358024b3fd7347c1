//! Readings: the kernel's state, kind by kind, as effects on forwarded packets.

use super::{AF_INET, AF_INET6, PFKEY, RTM_NEWRULE, Runner};
use crate::dump::{dump, text};
use crate::effect::{Effect, Kind, Scope};
use crate::watch::{Outer, Reading};
use crate::{nft, rules, tc, xfrm};
use bywash_fib::model::{Families, Prefix, Tunnel};
use bywash_nl::Error;
use bywash_nl::socket::Socket;
use bywash_nl::wire::Message;
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv6Addr};
use std::path::Path;
use std::time::Instant;

// linux/rtnetlink.h
const RTM_GETRULE: u16 = 34;

impl Runner {
    /// Reads the kinds that must be read again. Those that the kernel fails to report are effects on every packet.
    pub(super) fn read(&mut self, number: u64) -> Reading {
        let rules = [Kind::Netfilter, Kind::IptablesLegacy].iter().any(|kind| self.dirty.contains(kind));
        for kind in std::mem::take(&mut self.dirty) {
            self.failed.remove(&kind);
            let effects = self.read_kind(kind).unwrap_or_else(|why| {
                // Tables of iptables-legacy are looked at all the time.
                if kind != Kind::IptablesLegacy {
                    self.failed.insert(kind);
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

    pub(super) fn read_kind(&mut self, kind: Kind) -> Result<Vec<Effect>, String> {
        if let (Kind::Netfilter | Kind::Ipsec, Some(why)) = (kind, &self.unopened) {
            return Err(why.clone());
        }
        match kind {
            Kind::Netfilter => self.netfilter(),
            Kind::IptablesLegacy => {
                self.legacy.effects().map(<[Effect]>::to_vec).map_err(|unknown| unknown.why.clone())
            }
            Kind::Ipsec => self.ipsec(),
            Kind::Rules => self.rules(),
            Kind::Sysctls => {
                if let Some(why) = self.sysctls.unreadable() {
                    return Err(why);
                }
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

    /// Reads the rules of nf_tables and evaluates them for the outer packets of tunnels.
    fn netfilter(&mut self) -> Result<Vec<Effect>, String> {
        self.hooked = Families::BOTH;
        self.outer = Outer::default();
        let tunnels = self.ports.iter().filter_map(|port| Some((port.interface(), port.tunnel?)));
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
            let index = |effect: &Effect| if let Scope::Tunnel(index) = effect.scope { Some(index) } else { None };
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

    fn ipsec(&mut self) -> Result<Vec<Effect>, String> {
        let Some((_, asked)) = &mut self.sockets.ipsec else {
            return match Path::new(PFKEY).exists() {
                true => Err("the kernel has PF_KEY, but not NETLINK_XFRM (CONFIG_XFRM_USER)".into()),
                false => Ok(vec![]),
            };
        };
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
    pub(super) fn states(&mut self) -> Result<bool, String> {
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
