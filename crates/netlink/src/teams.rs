//! Teams (the kernel's driver `team`). Rtnetlink shows which interfaces belong to one; everything else is an option,
//! which the kernel announces, and shows on request, by generic netlink (linux/if_team.h).

use bywash_fib::model::{Bond, Member};
use bywash_nl::Error;
use bywash_nl::generic::{self, Family};
use bywash_nl::socket::{DATAGRAM, Received, Socket};
use bywash_nl::wire::{Attributes, Messages, attribute, text, u8_at, u32_at};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Errno;
use std::collections::BTreeMap;

const TEAM_CMD_OPTIONS_GET: u8 = 2;
const TEAM_ATTR_TEAM_IFINDEX: u16 = 1;
const TEAM_ATTR_LIST_OPTION: u16 = 2;
const TEAM_ATTR_OPTION_NAME: u16 = 1;
const TEAM_ATTR_OPTION_TYPE: u16 = 3;
const TEAM_ATTR_OPTION_DATA: u16 = 4;
const TEAM_ATTR_OPTION_REMOVED: u16 = 5;
const TEAM_ATTR_OPTION_PORT_IFINDEX: u16 = 6;
/// Type of an option that is set if its data is there, which is then empty (linux/netlink.h).
const NLA_FLAG: u8 = 6;

/// Options of a team in mode activebackup. Those without effect on packets are how it announces a new active port, and
/// the states of links by which teamd chooses it; `priority` orders ports that have the same `queue_id`.
const KNOWN: [&str; 11] = [
    "mode",
    "activeport",
    "enabled",
    "queue_id",
    "priority",
    "user_linkup",
    "user_linkup_enabled",
    "notify_peers_count",
    "notify_peers_interval",
    "mcast_rejoin_count",
    "mcast_rejoin_interval",
];

/// New value of an option, or its removal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Set {
    /// Kernel index of the port that the option is about; 0 for one about the team.
    port: u32,
    name: String,
    /// Octets of the value, for a flag whether it is set; `None` if the option has been removed.
    value: Option<Vec<u8>>,
}

/// All options of a team, by the port that they are about, and by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Team(BTreeMap<(u32, String), Vec<u8>>);

impl Team {
    pub fn apply(&mut self, options: Vec<Set>) {
        for Set { port, name, value } in options {
            match value {
                Some(value) => self.0.insert((port, name), value),
                None => self.0.remove(&(port, name)),
            };
        }
    }

    fn get(&self, port: u32, name: &str) -> Option<&[u8]> {
        self.0.get(&(port, name.to_owned())).map(Vec::as_slice)
    }

    /// Returns the mode of the bond that does what the team does, and the member that this sends by.
    pub fn mode(&self) -> (u8, Option<u32>) {
        let known = self.0.keys().all(|(_, name)| KNOWN.contains(&name.as_str()));
        match self.get(0, "mode").map(text) {
            Some(mode) if mode == "activebackup" && known => {
                let active = self.get(0, "activeport").and_then(|value| u32_at(value, 0));
                (Bond::ACTIVE_BACKUP, active.filter(|active| *active != 0))
            }
            _ => (Bond::UNKNOWN, None),
        }
    }

    /// Returns the state of a member; `None` if it is not known.
    pub fn member(&self, port: u32) -> Option<Member> {
        let active = self.get(port, "enabled")? == [1];
        let plain = u32_at(self.get(port, "queue_id")?, 0)? == 0;
        Some(Member { active, plain, ..Member::default() })
    }
}

/// Returns the team and the options that a message about options is about; `Ok(None)` for another message.
fn parse(body: &[u8]) -> Result<Option<(u32, Vec<Set>)>, ()> {
    if u8_at(body, 0) != Some(TEAM_CMD_OPTIONS_GET) {
        return Ok(None);
    }
    let (mut team, mut options) = (None, vec![]);
    for (kind, value) in Attributes::after(body, generic::HEADER) {
        match kind {
            TEAM_ATTR_TEAM_IFINDEX => team = u32_at(value, 0),
            TEAM_ATTR_LIST_OPTION => {
                for (_, item) in Attributes::after(value, 0) {
                    options.push(option(item).ok_or(())?);
                }
            }
            _ => {}
        }
    }
    Ok(Some((team.ok_or(())?, options)))
}

fn option(item: &[u8]) -> Option<Set> {
    let (mut port, mut name, mut kind_of, mut data, mut removed) = (0, None, None, None, false);
    for (kind, value) in Attributes::after(item, 0) {
        match kind {
            TEAM_ATTR_OPTION_NAME => name = Some(text(value)),
            TEAM_ATTR_OPTION_TYPE => kind_of = u8_at(value, 0),
            TEAM_ATTR_OPTION_DATA => data = Some(value),
            TEAM_ATTR_OPTION_REMOVED => removed = true,
            TEAM_ATTR_OPTION_PORT_IFINDEX => port = u32_at(value, 0)?,
            _ => {}
        }
    }
    let value = if kind_of? == NLA_FLAG { vec![u8::from(data.is_some())] } else { data?.to_vec() };
    Some(Set { port, name: name?, value: (!removed).then_some(value) })
}

/// Sockets for the options of all teams.
#[derive(Debug)]
pub struct Teams {
    events: Socket,
    requests: Socket,
    family: u16,
}

impl Teams {
    /// Subscribes in the calling thread's network namespace.
    pub fn open() -> Result<Self, Error> {
        let mut requests = generic::open(&[], DATAGRAM)?;
        let family = Family::find(&mut requests, "team", &mut vec![0; DATAGRAM])?;
        let group = family
            .group("change_event")
            .ok_or(Error::Socket { doing: "find a group of", source: Errno::NOENT.into() })?;
        Ok(Self { events: generic::open(&[group], 1 << 20)?, requests, family: family.id })
    }

    /// Receives pending announcements, and hands each to `each`: `None` if some have been lost.
    pub fn receive(&self, buffer: &mut [u8], mut each: impl FnMut(Option<(u32, Vec<Set>)>)) -> Result<(), Error> {
        loop {
            let length = match self.events.receive(buffer)? {
                Received::Empty => return Ok(()),
                Received::Lost => {
                    each(None);
                    continue;
                }
                Received::Datagram(length) => length,
            };
            let mut messages = Messages::new(&buffer[..length]);
            for message in messages.by_ref().filter(|message| message.kind == self.family) {
                match parse(message.body) {
                    Ok(Some(change)) => each(Some(change)),
                    Ok(None) => {}
                    Err(()) => each(None),
                }
            }
            if !messages.is_whole() {
                each(None);
            }
        }
    }

    /// Reads the options of a team, for which CAP_NET_ADMIN in the initial user namespace is needed.
    ///
    /// # Errors
    /// If the kernel refuses that, or something in its answer is not understood.
    pub fn read(&mut self, team: u32, buffer: &mut [u8]) -> Result<Team, Error> {
        let asked = attribute(TEAM_ATTR_TEAM_IFINDEX, &team.to_ne_bytes());
        let (mut read, mut whole, family) = (Team::default(), true, self.family);
        self.requests.ask(
            family,
            &generic::request(TEAM_CMD_OPTIONS_GET, 1, &asked),
            buffer,
            |message| match parse(message.body) {
                _ if message.kind != family => {}
                Ok(Some((_, options))) => read.apply(options),
                Ok(None) => {}
                Err(()) => whole = false,
            },
        )?;
        whole.then_some(read).ok_or(Error::Socket { doing: "understand", source: Errno::BADMSG.into() })
    }
}

impl AsFd for Teams {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NLA_U32: u8 = 3;
    const NLA_STRING: u8 = 5;

    /// Returns an option as the kernel writes it (team_nl_fill_one_option_get).
    fn item(name: &str, port: u32, kind: u8, data: Option<&[u8]>, removed: bool) -> Vec<u8> {
        let mut item = attribute(TEAM_ATTR_OPTION_NAME, &[name.as_bytes(), &[0]].concat());
        if port != 0 {
            item.extend(attribute(TEAM_ATTR_OPTION_PORT_IFINDEX, &port.to_ne_bytes()));
        }
        item.extend(attribute(TEAM_ATTR_OPTION_TYPE, &[kind]));
        item.extend(data.iter().flat_map(|data| attribute(TEAM_ATTR_OPTION_DATA, data)));
        if removed {
            item.extend(attribute(TEAM_ATTR_OPTION_REMOVED, &[]));
        }
        attribute(1, &item)
    }

    fn number(name: &str, port: u32, value: u32) -> Vec<u8> {
        item(name, port, NLA_U32, Some(&value.to_ne_bytes()), false)
    }

    fn flag(name: &str, port: u32, set: bool) -> Vec<u8> {
        item(name, port, NLA_FLAG, set.then_some(&[]), false)
    }

    fn message(items: &[Vec<u8>]) -> Vec<u8> {
        let list = attribute(TEAM_ATTR_LIST_OPTION, &items.concat());
        let attributes = [attribute(TEAM_ATTR_TEAM_IFINDEX, &9u32.to_ne_bytes()), list].concat();
        generic::request(TEAM_CMD_OPTIONS_GET, 1, &attributes)
    }

    fn applied(team: &Team, items: &[Vec<u8>]) -> Team {
        let (mut team, (index, options)) = (team.clone(), parse(&message(items)).unwrap().unwrap());
        assert_eq!(index, 9);
        team.apply(options);
        team
    }

    fn mode(name: &str) -> Vec<u8> {
        item("mode", 0, NLA_STRING, Some(&[name.as_bytes(), &[0]].concat()), false)
    }

    /// Returns a team whose second port, with index 5, is active.
    fn backup() -> Team {
        let of_port = |port| [flag("enabled", port, true), number("queue_id", port, 0), number("priority", port, 7)];
        let own = [mode("activebackup"), number("activeport", 0, 5), number("notify_peers_count", 0, 1)];
        applied(&Team::default(), &[&own[..], &of_port(4), &of_port(5)].concat())
    }

    #[test]
    fn a_team_is_like_a_bond_as_far_as_all_its_options_are_known() {
        let team = backup();
        assert_eq!(team.mode(), (Bond::ACTIVE_BACKUP, Some(5)));
        let member = Member { active: true, plain: true, ..Member::default() };
        assert_eq!([4, 5, 6].map(|port| team.member(port)), [Some(member), Some(member), None]);
        assert_eq!(applied(&team, &[number("activeport", 0, 4)]).mode(), (Bond::ACTIVE_BACKUP, Some(4)));
        assert_eq!(applied(&team, &[number("activeport", 0, 0)]).mode(), (Bond::ACTIVE_BACKUP, None));
        let disabled = applied(&team, &[flag("enabled", 5, false)]);
        assert_eq!(disabled.member(5), Some(Member { active: false, ..member }));
        assert_eq!(applied(&disabled, &[flag("enabled", 5, true)]), team);
        assert_eq!(applied(&team, &[number("queue_id", 4, 2)]).member(4), Some(Member { plain: false, ..member }));
    }

    #[test]
    fn what_is_not_known_of_a_team_leaves_it_unknown() {
        let (team, unknown) = (backup(), (Bond::UNKNOWN, None));
        for name in ["roundrobin", "loadbalance", "*NOMODE*", ""] {
            assert_eq!(applied(&team, &[mode(name)]).mode(), unknown);
        }
        assert_eq!(Team::default().mode(), unknown);
        for port in [0, 5] {
            assert_eq!(
                applied(&team, &[flag("rx_enabled", port, true)]).mode(),
                unknown,
                "an option that is not known"
            );
        }
        let gone = |name, port, kind| applied(&team, &[item(name, port, kind, Some(&[0; 4]), true)]);
        assert_eq!(gone("mode", 0, NLA_STRING).mode(), unknown);
        assert_eq!(gone("activeport", 0, NLA_U32).mode(), (Bond::ACTIVE_BACKUP, None));
        assert_eq!(gone("enabled", 5, NLA_FLAG).member(5), None);
        assert_eq!(gone("queue_id", 5, NLA_U32).member(5), None);
    }

    #[test]
    fn messages_that_are_not_understood_are_told_from_those_about_ports() {
        const TEAM_CMD_PORT_LIST_GET: u8 = 3;
        assert_eq!(parse(&generic::request(TEAM_CMD_PORT_LIST_GET, 1, &[])), Ok(None));
        let nameless = attribute(1, &attribute(TEAM_ATTR_OPTION_TYPE, &[NLA_FLAG]));
        let typeless = attribute(1, &attribute(TEAM_ATTR_OPTION_NAME, b"enabled\0"));
        for item in [nameless, typeless, item("activeport", 0, NLA_U32, None, false)] {
            assert_eq!(parse(&message(&[item])), Err(()));
        }
        assert_eq!(parse(&generic::request(TEAM_CMD_OPTIONS_GET, 1, &[])), Err(()), "of no team");
    }

    proptest! {
        #[test]
        fn any_octets_are_parsed_or_refused(octets in prop::collection::vec(any::<u8>(), 0..200)) {
            let body = generic::request(TEAM_CMD_OPTIONS_GET, 1, &octets);
            if let Ok(Some((_, options))) = parse(&body) {
                let mut team = Team::default();
                team.apply(options);
                prop_assert_eq!(team.mode().0, Bond::UNKNOWN);
            }
        }
    }

    impl Team {
        /// Returns the options of a team in mode activebackup with these ports, by kernel index.
        pub(crate) fn with(active: u32, ports: &[u32]) -> Self {
            let own = [mode("activebackup"), number("activeport", 0, active)];
            let of = |port: &u32| [flag("enabled", *port, true), number("queue_id", *port, 0)];
            applied(&Self::default(), &[&own[..], &ports.iter().flat_map(of).collect::<Vec<_>>()].concat())
        }
    }

    impl Set {
        pub(crate) fn active(port: u32) -> Vec<Self> {
            parse(&message(&[number("activeport", 0, port)])).unwrap().unwrap().1
        }
    }
}
