//! Sets options of teams by generic netlink (linux/if_team.h), as teamd does.

use bywash_netlink::interface_by_name;
use bywash_nl::generic::{self, Family};
use bywash_nl::socket::DATAGRAM;
use bywash_nl::wire::attribute;

/// Value of an option, and its type (linux/netlink.h).
#[allow(dead_code, reason = "not every test sets options of each type")]
pub enum Value<'a> {
    /// NLA_STRING.
    Text(&'a str),
    /// NLA_U32: the kernel index of a port.
    Port(&'a str),
    /// NLA_FLAG.
    Flag(bool),
}

/// Sets an option of a team of the calling thread's network namespace, or of one of its ports.
pub fn set(team: &str, port: Option<&str>, name: &str, value: Value<'_>) {
    const TEAM_CMD_OPTIONS_SET: u8 = 1;
    let index = |name: &str| interface_by_name(name).unwrap().unwrap().index.to_ne_bytes();
    let (kind, data) = match value {
        Value::Text(text) => (5, Some([text.as_bytes(), &[0]].concat())),
        Value::Port(port) => (3, Some(index(port).to_vec())),
        Value::Flag(set) => (6, set.then(Vec::new)),
    };
    let mut option = attribute(1, &[name.as_bytes(), &[0]].concat());
    option.extend(attribute(3, &[kind]));
    option.extend(data.iter().flat_map(|data| attribute(4, data)));
    option.extend(port.iter().flat_map(|port| attribute(6, &index(port))));
    let attributes = [attribute(1, &index(team)), attribute(2, &attribute(1, &option))].concat();
    let (mut socket, mut buffer) = (generic::open(&[], DATAGRAM).unwrap(), vec![0; DATAGRAM]);
    let family = Family::find(&mut socket, "team", &mut buffer).unwrap().id;
    let request = generic::request(TEAM_CMD_OPTIONS_SET, 1, &attributes);
    // Without anyone to announce it to, the kernel sets the option and returns ESRCH.
    if let Err(error) = socket.ask(family, &request, &mut buffer, |_| {}) {
        assert!(format!("{error:?}").contains("code: 3,"), "{name}: {error:?}");
    }
}
