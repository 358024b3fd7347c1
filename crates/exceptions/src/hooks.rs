//! Functions on netfilter's hooks that no ruleset shows: IPVS, BPF programs of type netfilter, and those of other
//! modules.
//!
//! nfnetlink_hook lists them (CONFIG_NETFILTER_NETLINK_HOOK, Linux 5.14). A kernel without it shows IPVS alone, by the
//! services in /proc. Neither source announces changes.

use crate::dump::dump;
use crate::effect::{Effect, Kind, Scope};
use bywash_fib::model::Families;
use bywash_nl::socket::Socket;
use bywash_nl::wire::Attributes;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read};

// linux/netfilter/nfnetlink_hook.h: NFNL_MSG_HOOK_GET of NFNL_SUBSYS_HOOK.
const HOOK_GET: u16 = 12 << 8;
const NFNLA_HOOK_HOOKNUM: u16 = 1;
const NFNLA_HOOK_FUNCTION_NAME: u16 = 4;
const NFNLA_HOOK_MODULE_NAME: u16 = 5;
// linux/netfilter.h: enum nf_inet_hooks, NFPROTO_IPV4 and NFPROTO_IPV6.
const HOOKS: [&str; 5] = ["prerouting", "input", "forward", "output", "postrouting"];
const INPUT: usize = 1;
const OUTPUT: usize = 3;
const FAMILIES: [(&str, u8, Families); 2] = [("IPv4", 2, Families::V4), ("IPv6", 10, Families::V6)];

/// Services of IPVS in the calling thread's network namespace, after lines that describe them. There while the module
/// is loaded.
const SERVICES: &str = "/proc/thread-self/net/ip_vs";
/// Number of lines before the first service.
const HEADER: usize = 3;

/// Functions whose effect on forwarded packets is known otherwise, or that have none.
const KNOWN: [&str; 42] = [
    // Chains of nf_tables and tables of iptables, which are read.
    "nft_do_chain_inet",
    "nft_do_chain_ipv4",
    "nft_do_chain_ipv6",
    "ipt_do_table",
    "ip6t_do_table",
    "iptable_filter_hook",
    "iptable_mangle_hook",
    "iptable_raw_hook",
    "iptable_security_hook",
    "iptable_nat_do_chain",
    "ip6table_filter_hook",
    "ip6table_mangle_hook",
    "ip6table_raw_hook",
    "ip6table_security_hook",
    "ip6table_nat_do_chain",
    // Connection tracking and translation, which rules turn on.
    "ipv4_conntrack_defrag",
    "ipv6_defrag",
    "ipv4_conntrack_in",
    "ipv4_conntrack_local",
    "ipv4_confirm",
    "ipv4_helper",
    "ipv6_conntrack_in",
    "ipv6_conntrack_local",
    "ipv6_confirm",
    "ipv6_helper",
    "nf_confirm",
    "nf_nat_ipv4_pre_routing",
    "nf_nat_ipv4_in",
    "nf_nat_ipv4_out",
    "nf_nat_ipv4_fn",
    "nf_nat_ipv4_local_fn",
    "nf_nat_ipv4_local_in",
    "nf_nat_ipv6_in",
    "nf_nat_ipv6_out",
    "nf_nat_ipv6_fn",
    "nf_nat_ipv6_local_fn",
    // br_netfilter, for packets that a bridge has let the hooks see.
    "ip_sabotage_in",
    // Labels, which rules or IPsec policies give to packets, and the sockets of this host.
    "apparmor_ip_postroute",
    "smack_ip_output",
    "selinux_ip_forward",
    "selinux_ip_postroute",
    "selinux_ip_output",
];

/// A function of a hook, and the module that it is in; empty for the kernel itself.
type Function = (String, String);

/// Functions on the hooks of the calling thread's network namespace, read in turns.
#[derive(Debug)]
pub struct Hooks {
    /// Functions that are not known, by the number of the family and the hook.
    found: BTreeMap<(usize, usize), Result<BTreeSet<Function>, String>>,
    /// Pair that is read next.
    next: usize,
    /// Set if the kernel does not list the functions. Asking again would have it look for the module each time.
    unlisted: bool,
    /// Set if IPVS has services.
    services: Result<bool, String>,
}

impl Hooks {
    /// Reads all hooks. `socket` is of the protocol NETLINK_NETFILTER; `None` if the kernel lacks it, and with it the
    /// list.
    pub fn read(mut socket: Option<&mut Socket>, buffer: &mut [u8]) -> Self {
        let mut hooks = Self { found: BTreeMap::new(), next: 0, unlisted: socket.is_none(), services: services() };
        for pair in pairs() {
            hooks.read_hook(pair, socket.as_deref_mut(), buffer);
        }
        hooks
    }

    /// Reads the services of IPVS and one of the hooks again, and returns whether they have changed.
    pub fn changed(&mut self, socket: Option<&mut Socket>, buffer: &mut [u8]) -> bool {
        let services = services();
        let changed = std::mem::replace(&mut self.services, services) != self.services;
        let pair = pairs().nth(self.next).unwrap_or_default();
        self.next = (self.next + 1) % pairs().count();
        self.read_hook(pair, socket, buffer) | changed
    }

    fn read_hook(&mut self, pair: (usize, usize), socket: Option<&mut Socket>, buffer: &mut [u8]) -> bool {
        let Some(socket) = socket.filter(|_| !self.unlisted) else { return false };
        let (family, hook) = pair;
        // struct nfgenmsg: nfgen_family, version, res_id.
        let body = [FAMILIES[family].1, 0, 0, 0];
        let number = (hook as u32).to_be_bytes();
        let found = dump(socket, HOOK_GET, &body, &[(NFNLA_HOOK_HOOKNUM, &number)], buffer, |message| {
            Ok((message.kind == HOOK_GET).then(|| function(message.body)))
        });
        let found = match found {
            Ok(Some(found)) => Ok(found.into_iter().filter(|(name, _)| !is_known(name)).collect()),
            Ok(None) => {
                self.unlisted = true;
                Ok(BTreeSet::new())
            }
            Err(why) => Err(why),
        };
        let before = self.found.insert(pair, found);
        before.as_ref() != self.found.get(&pair)
    }

    /// Returns the effects of the functions.
    pub fn effects(&self) -> Vec<Effect> {
        let effect = |scope, object, reason: String| Effect { kind: Kind::Programs, scope, object, reason };
        let may = || "may drop, change or redirect packets".to_owned();
        let mut effects = vec![];
        match &self.services {
            Ok(false) => {}
            Ok(true) => effects.push(effect(Scope::All(Families::BOTH), "IPVS services".into(), may())),
            Err(why) => {
                effects.push(effect(Scope::All(Families::BOTH), "IPVS".into(), format!("cannot be read: {why}")));
            }
        }
        for ((family, hook), found) in &self.found {
            let (name, _, families) = FAMILIES[*family];
            let place = format!("netfilter's hook {} of {name}", HOOKS[*hook]);
            let scopes = match *hook {
                INPUT => vec![Scope::Own(families)],
                OUTPUT => vec![Scope::Own(families), Scope::Errors(families)],
                _ => vec![Scope::All(families)],
            };
            let of = |(function, module): &Function| {
                let module = if module.is_empty() { String::new() } else { format!(" of module {module}") };
                (format!("{function}{module} on {place}"), may())
            };
            let all = match found {
                Ok(found) => found.iter().map(of).collect(),
                Err(why) => vec![(format!("functions on {place}"), format!("cannot be read: {why}"))],
            };
            for (object, reason) in all {
                effects.extend(scopes.iter().map(|scope| effect(scope.clone(), object.clone(), reason.clone())));
            }
        }
        effects
    }
}

fn pairs() -> impl Iterator<Item = (usize, usize)> {
    (0..FAMILIES.len()).flat_map(|family| (0..HOOKS.len()).map(move |hook| (family, hook)))
}

/// Returns the function that a message describes. A kernel without symbols' names (CONFIG_KALLSYMS) gives none.
fn function(body: &[u8]) -> Function {
    let text = |wanted| {
        let (_, value) = Attributes::after(body, 4).find(|(kind, _)| *kind == wanted)?;
        let end = value.iter().position(|byte| *byte == 0).unwrap_or(value.len());
        Some(String::from_utf8_lossy(&value[..end]).into_owned())
    };
    let name = text(NFNLA_HOOK_FUNCTION_NAME).unwrap_or_else(|| "a function".into());
    (name, text(NFNLA_HOOK_MODULE_NAME).unwrap_or_default())
}

/// Returns whether a function is one of [`KNOWN`], regardless of what a compiler appends (`.llvm.17`).
fn is_known(name: &str) -> bool {
    let name = name.split('.').next().unwrap_or(name);
    KNOWN.contains(&name)
}

/// Returns whether IPVS has services.
fn services() -> Result<bool, String> {
    let mut start = [0; 1024];
    let read = File::open(SERVICES).and_then(|mut file| file.read(&mut start));
    match read {
        Ok(octets) => Ok(has_services(&start[..octets])),
        Err(why) if why.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(why) => Err(format!("{SERVICES}: {why}")),
    }
}

fn has_services(start: &[u8]) -> bool {
    start.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).count() > HEADER
}

#[cfg(test)]
mod tests {
    use super::*;
    use bywash_nl::wire::attribute;

    #[test]
    fn services_follow_three_lines() {
        let header = "IP Virtual Server version 1.2.1 (size=4096)\nProt LocalAddress:Port Scheduler Flags\n  \
                      -> RemoteAddress:Port Forward Weight ActiveConn InActConn\n";
        assert!(!has_services(header.as_bytes()));
        assert!(has_services(format!("{header}TCP  0A000001:0050 rr \n").as_bytes()));
        assert!(has_services(format!("{header}FWM  00000001 rr \n  -> C0A80001:0000").as_bytes()));
    }

    #[test]
    fn functions_are_known_by_name() {
        let message = |attributes: &[(u16, &str)]| {
            let of = |(kind, text): &(u16, &str)| attribute(*kind, format!("{text}\0").as_bytes());
            [vec![2, 0, 0, 0], attributes.iter().flat_map(of).collect()].concat()
        };
        let body = message(&[(NFNLA_HOOK_FUNCTION_NAME, "ip_vs_reply4"), (NFNLA_HOOK_MODULE_NAME, "ip_vs")]);
        let found = function(&body);
        assert_eq!(found, ("ip_vs_reply4".to_owned(), "ip_vs".to_owned()));
        assert!(!is_known(&found.0) && !is_known("nf_hook_run_bpf"));
        assert!(is_known("ipv4_conntrack_in") && is_known("nf_confirm.llvm.1234"));
        let nameless = message(&[]);
        assert!(!is_known(&function(&nameless).0));
    }

    #[test]
    fn a_function_concerns_the_packets_of_its_hook() {
        let one = || Ok(BTreeSet::from([("nf_hook_run_bpf".to_owned(), String::new())]));
        let mut hooks = Hooks { found: BTreeMap::new(), next: 0, unlisted: false, services: Ok(false) };
        let mut scopes = |pair| {
            hooks.found = BTreeMap::from([(pair, one())]);
            hooks.effects().into_iter().map(|effect| effect.scope).collect::<Vec<_>>()
        };
        assert_eq!(scopes((0, 2)), [Scope::All(Families::V4)]);
        assert_eq!(scopes((1, INPUT)), [Scope::Own(Families::V6)]);
        assert_eq!(scopes((0, OUTPUT)), [Scope::Own(Families::V4), Scope::Errors(Families::V4)]);
        hooks.found.clear();
        assert_eq!(hooks.effects(), []);
        hooks.services = Err("denied".into());
        assert_eq!(hooks.effects()[0].scope, Scope::All(Families::BOTH));
    }
}
