//! The firewall's verdict on a connection.

use crate::connection::{Connection, Tuple, status};
use crate::kernel::Subscription;
use bywash_exceptions::nft::{
    self, Answer, Chain, Evaluator, Expression, Family, Finding, Flow, Interface, Place, Ruleset, Table, ct,
};
use std::fmt;
use std::net::IpAddr;

const NOT_TRANSLATED: &str = "the kernel may not translate it: no table without an owner has a chain of type nat, or \
                              none has a rule that turns connection tracking on";

/// Reason why a connection is left to the kernel by the firewall's rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// A rule decides packet by packet, or has an effect that only the kernel can have.
    Rule(Finding),
    /// Every packet of one direction is dropped at this place.
    Dropped(Place),
    /// The connection is translated, but the kernel may have stopped translating it: the NAT rules are gone, or will be
    /// removed with the program that owns their table.
    NotTranslated,
    /// The rule is not understood, or may have selected another timeout or other events for the connection: its end may
    /// then cause no event, or its renewal may be wrong. The second field is nft's name for the rule's action.
    Unseen(Place, String),
    /// The rules' verdict is not known, for a reason that was not found.
    Unknown,
}

impl Refusal {
    /// Returns the refusal for what an evaluation found, the most important finding first.
    fn of(findings: Vec<Finding>) -> Self {
        findings.into_iter().next().map_or(Self::Unknown, Self::Rule)
    }

    /// Returns the rule, or chain, and what it does.
    pub fn parts(&self) -> (Option<&Place>, &str) {
        match self {
            Self::Rule(finding) => (Some(&finding.place), &finding.why),
            Self::Dropped(place) => (Some(place), "drop"),
            Self::NotTranslated => (None, NOT_TRANSLATED),
            Self::Unseen(place, how) => (Some(place), how),
            Self::Unknown => (None, "the rules' verdict is not known"),
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (place, what) = self.parts();
        place.map_or(Ok(()), |place| write!(f, "{place}: "))?;
        f.write_str(what)
    }
}

/// A ruleset, prepared for evaluating connections.
#[derive(Debug)]
pub struct Judge<'a> {
    evaluator: Evaluator<'a>,
    /// The refusal that applies to every connection, if there is one.
    unseen: Option<Refusal>,
    /// Set if the kernel translates packets of IPv4 and of IPv6.
    translates: [bool; 2],
    asks_routes: bool,
    /// Set if packets may change the marks of connections. The kernel sends the event once it has accepted the packet,
    /// and none if it drops the packet (nf_ct_deliver_cached_events).
    sets_marks: bool,
    subscription: Subscription,
}

impl<'a> Judge<'a> {
    /// Prepares a ruleset that was read with the elements of its sets.
    pub fn new(ruleset: &'a Ruleset) -> Self {
        Self {
            evaluator: Evaluator::new(ruleset),
            unseen: ruleset.hidden_effect().map(|(place, how)| Refusal::Unseen(place, how.to_owned())),
            translates: [false, true].map(|v6| translates(ruleset, v6)),
            asks_routes: any_expression(ruleset, asks_routes),
            sets_marks: any_expression(ruleset, sets_marks),
            subscription: Subscription {
                changes: any_expression(ruleset, asks_marks),
                replied: any_expression(ruleset, |expression| *expression == Expression::FlowAdd),
            },
        }
    }

    /// Returns the events to subscribe to: changes, if rules match the marks of connections, which programs can set at
    /// any time (where rules themselves set marks, the evaluation takes marks for unknown); and the ends of all replied
    /// connections, if rules put some into a flow table. The tuples, the zone and the translation of an established
    /// connection, which rules may match too, never change. Other bits of its status may change; the evaluation takes
    /// them for unknown.
    pub fn subscription(&self) -> Subscription {
        self.subscription
    }

    /// Returns whether the end of a connection is announced: other events are not subscribed to.
    pub fn learns_end(&self, connection: &Connection) -> bool {
        self.subscription.replied || connection.has(status::ASSURED)
    }

    /// Returns whether rules look up the route to the source of packets, so that connections have to be judged again
    /// when routes change. Packets of a flow are forwarded by the route to their destination alone.
    pub fn asks_routes(&self) -> bool {
        self.asks_routes
    }

    /// Returns why the rules leave ordinary established connections to the kernel, whatever their interfaces: those
    /// from a high port to that of HTTPS, and to a high one, between addresses that rules hardly name. `None` if they
    /// do not, or not both, or not on all interfaces.
    pub fn usual_refusal(&self, v6: bool, protocol: u8) -> Option<Refusal> {
        if let Some(unseen) = &self.unseen {
            return Some(unseen.clone());
        }
        let [client, server]: [IpAddr; 2] = match v6 {
            true => [[0x2001, 0xdb8, 0, 0, 0, 0, 0, 1].into(), [0x2001, 0xdb8, 1, 0, 0, 0, 0, 1].into()],
            false => [[192, 0, 2, 1].into(), [198, 51, 100, 1].into()],
        };
        let tuple = |(src, src_port), (dst, dst_port)| nft::Tuple {
            src: Some(src),
            dst: Some(dst),
            src_port: Some(src_port),
            dst_port: Some(dst_port),
        };
        let flow = |port, replies| Flow {
            v6,
            protocol,
            original: tuple((client, 40_000), (server, port)),
            reply: tuple((server, port), (client, 40_000)),
            replies: Some(replies),
            mark_changes: self.sets_marks,
            skb_mark: Some(0),
            returns: true,
            ..Flow::default()
        };
        let refusal = |port| {
            [false, true].into_iter().find_map(|replies| match self.evaluator.evaluate(&flow(port, replies)) {
                Answer::Kernel { findings } => Some(Refusal::of(findings)),
                _ => None,
            })
        };
        refusal(443).filter(|_| refusal(41_000).is_some())
    }

    /// Returns why the rules leave a connection to the kernel; `None` if every further packet of an established one is
    /// accepted in both directions, with no side effect other than being counted.
    ///
    /// `client` and `server` are the interfaces that receive the original direction and the replies, and those that the
    /// routes to the sources lead out of. Unless an interface says otherwise, the packets must have no mark before the
    /// rules: no traffic control, BPF program or legacy iptables may have set one.
    pub fn refusal(&self, connection: &Connection, client: &Interface, server: &Interface) -> Option<Refusal> {
        if let Some(unseen) = &self.unseen {
            return Some(unseen.clone());
        }
        let translated = connection.reply != connection.key.original.reversed();
        if translated && !self.translates[usize::from(connection.key.original.src.is_ipv6())] {
            return Some(Refusal::NotTranslated);
        }
        let answers = [(false, client, server), (true, server, client)].map(|(replies, input, output)| {
            let flow = flow(connection, replies, input, output);
            self.evaluator.evaluate(&Flow { mark_changes: self.sets_marks, ..flow })
        });
        answers.into_iter().find_map(|answer| match answer {
            Answer::Accept { .. } => None,
            Answer::Drop { at, .. } => Some(Refusal::Dropped(at)),
            Answer::Kernel { findings } | Answer::Depends { findings } => Some(Refusal::of(findings)),
        })
    }
}

fn flow(connection: &Connection, replies: bool, input: &Interface, output: &Interface) -> Flow {
    let tuple = |tuple: Tuple| nft::Tuple {
        src: Some(tuple.src.ip()),
        dst: Some(tuple.dst.ip()),
        src_port: Some(tuple.src.port()),
        dst_port: Some(tuple.dst.port()),
    };
    Flow {
        mark_changes: false,
        v6: connection.key.original.src.is_ipv6(),
        options6: false,
        icmp: [0; 2],
        protocol: connection.key.protocol,
        course: nft::Course::Forwarded,
        state: nft::State::Established,
        input: Some(input.clone()),
        output: Some(output.clone()),
        original: tuple(connection.key.original),
        reply: tuple(connection.reply),
        replies: Some(replies),
        status: Some(connection.status),
        mark: Some(connection.mark),
        zone: Some(connection.key.zone),
        skb_mark: (!input.marked).then_some(0),
        // Interfaces are found by the routes of both directions.
        returns: true,
    }
}

/// Returns whether the kernel certainly translates packets of a family: it does while there is a chain of type nat,
/// whatever its rules are (nf_nat_register_fn), and connection tracking is on, which such a chain does not turn on.
/// Tables that the kernel removes without an event do not count.
fn translates(ruleset: &Ruleset, v6: bool) -> bool {
    let own = if v6 { Family::Ip6 } else { Family::Ip };
    let of = |table: &&Table| !table.owned && (table.family == own || table.family == Family::Inet);
    let is_nat = |chain: &Chain| chain.base.as_ref().is_some_and(|base| base.kind == "nat");
    let mut tables = ruleset.tables.iter().filter(of);
    tables.clone().any(|table| !table.dormant && table.chains.iter().any(is_nat))
        && tables.any(|table| expressions(table).any(|expression| expression.tracks(v6)))
}

fn expressions(table: &Table) -> impl Iterator<Item = &Expression> {
    table.chains.iter().flat_map(|chain| &chain.rules).flat_map(|rule| &rule.expressions)
}

fn any_expression(ruleset: &Ruleset, is: impl Fn(&Expression) -> bool) -> bool {
    ruleset.tables.iter().flat_map(expressions).any(is)
}

fn asks_routes(expression: &Expression) -> bool {
    match expression {
        Expression::Fib { .. } => true,
        Expression::Match { name, .. } => name == "rpfilter",
        _ => false,
    }
}

fn asks_marks(expression: &Expression) -> bool {
    match expression {
        Expression::Ct { key, .. } => *key == ct::MARK,
        Expression::Match { name, .. } => name == "connmark",
        _ => false,
    }
}

/// Targets of iptables that do not change the mark of a connection.
const WITHOUT_MARK: [&str; 15] = [
    "CLASSIFY",
    "CT",
    "DNAT",
    "DSCP",
    "HL",
    "LOG",
    "MASQUERADE",
    "NETMAP",
    "NFLOG",
    "REDIRECT",
    "REJECT",
    "SNAT",
    "TCPMSS",
    "TOS",
    "TTL",
];

/// Returns whether an expression may change the mark of a connection: itself, or by a program behind a queue
/// (nfqnl_recv_verdict).
fn sets_marks(expression: &Expression) -> bool {
    let Expression::Acts { how, .. } = expression else { return false };
    let target = how.strip_prefix("xt target ");
    how == "ct mark set" || how == "queue" || target.is_some_and(|name| !WITHOUT_MARK.contains(&name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection::UDP;
    use bywash_exceptions::nft::{Base, Rule, Tracking};

    /// Returns a table with a chain of a type, and an expression in another one.
    fn table(family: Family, kind: &str, expression: Expression) -> Table {
        let base = Base { hook: 4, priority: 100, kind: kind.into(), accepts: true, devices: vec![] };
        let rule = Rule { handle: 1, expressions: vec![expression], comment: None };
        let chains = [(Some(base), vec![]), (None, vec![rule])];
        let chain = |(base, rules)| Chain { name: "c".into(), base, rules, opaque: None };
        let (dormant, owned, tracking) = (false, false, vec![]);
        let chains = chains.map(chain).into();
        Table { family, name: "t".into(), dormant, owned, chains, sets: vec![], tracking, flow_tables: vec![] }
    }

    fn both(tables: Vec<Table>) -> [bool; 2] {
        let ruleset = Ruleset { generation: 1, tables };
        [false, true].map(|v6| translates(&ruleset, v6))
    }

    #[test]
    fn the_end_of_an_unassured_connection_is_announced_beside_flow_tables_only() {
        let connection = |status| Connection { status, ..crate::obstacle::tests::connection(UDP) };
        let learned = |expression, status| {
            let ruleset = Ruleset { generation: 1, tables: vec![table(Family::Ip, "filter", expression)] };
            Judge::new(&ruleset).learns_end(&connection(status))
        };
        let counter = || Expression::Counter { name: None };
        let replied = status::CONFIRMED | status::SEEN_REPLY | status::OFFLOAD;
        assert!(learned(Expression::FlowAdd, replied));
        assert!(!learned(counter(), replied));
        assert!(learned(counter(), replied | status::ASSURED));
    }

    #[test]
    fn translation_takes_a_chain_of_type_nat_and_connection_tracking_that_last() {
        let acts = |how: &str| Expression::Acts { how: how.into(), tracking: Tracking::TurnsOn };
        let counter = || Expression::Counter { name: None };
        let (masquerade, state) = (
            || Expression::SourceNat { address: None },
            || Expression::Ct { key: ct::STATE, direction: None, register: 0 },
        );
        let nat = |family, expression| table(family, "nat", expression);
        assert_eq!(both(vec![nat(Family::Ip, masquerade())]), [true, false]);
        assert_eq!(both(vec![nat(Family::Inet, masquerade())]), [true, true]);
        assert_eq!(both(vec![nat(Family::Inet, acts("nat"))]), [true, false]);
        assert_eq!(both(vec![nat(Family::Inet, acts("nat ip6"))]), [false, true]);
        assert_eq!(both(vec![nat(Family::Inet, counter())]), [false, false]);
        // A table tracks for another one, whose chains are hooked, also if it is dormant itself.
        let mut tracks = table(Family::Ip, "filter", state());
        tracks.dormant = true;
        assert_eq!(both(vec![nat(Family::Inet, counter()), tracks.clone()]), [true, false]);
        let dormant = Table { dormant: true, ..nat(Family::Inet, masquerade()) };
        assert_eq!(both(vec![dormant]), [false, false]);
        let owned = |table| Table { owned: true, ..table };
        assert_eq!(both(vec![owned(nat(Family::Ip, masquerade())), tracks.clone()]), [false, false]);
        assert_eq!(both(vec![nat(Family::Ip, counter()), owned(tracks)]), [false, false]);
    }
}
