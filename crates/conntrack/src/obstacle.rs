//! Reasons for leaving a connection to the kernel whatever the firewall's rules are.

use crate::connection::{Connection, TCP, status, tcp};
use std::fmt;

/// Reason why only the kernel can handle a connection's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Obstacle {
    /// TCP is being opened or closed: the kernel tracks its state until it is established.
    NotEstablished,
    /// The connection is neither assured (UDP in its first two seconds or without replies, TCP during its handshake)
    /// nor in a flow table, where it would last as long as an assured one.
    NotAssured,
    /// An event that leaves out the unchanged TCP state: the kernel has to be asked for it.
    StateMissing,
    /// A helper looks into its packets.
    Helper,
    /// A helper of another connection expected this one.
    Expected,
    /// TCP sequence numbers are adjusted.
    SequenceChanges,
    /// The connection is in a zone: a rule decides for each packet which zone it belongs to.
    Zone,
    /// The connection's timeout is fixed, so it cannot be renewed.
    FixedTimeout,
    /// A device forwards it (`flow add` to a flow table with `flags offload`).
    Device,
    /// A TCP connection in a flow table of the kernel (`flow add`): the kernel does not report its state.
    FlowTable,
    /// The kernel is removing it.
    Dying,
    /// The connection has an attribute that this crate does not know.
    Unknown,
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotEstablished => "not established",
            Self::NotAssured => "not assured",
            Self::StateMissing => "TCP state not reported",
            Self::Helper => "helper",
            Self::Expected => "expected by a helper",
            Self::SequenceChanges => "sequence numbers change",
            Self::Zone => "zone",
            Self::FixedTimeout => "fixed timeout",
            Self::Device => "forwarded by a device",
            Self::FlowTable => "TCP in a flow table of the kernel",
            Self::Dying => "being removed",
            Self::Unknown => "unknown attribute",
        })
    }
}

/// Returns the reason why a connection is left to the kernel; `None` if the firewall's rules decide. Reasons that last
/// come first.
pub fn obstacle(connection: &Connection) -> Option<Obstacle> {
    // Connection tracking does not see the packets of a connection in a flow table, which may therefore never become
    // assured. After the flow table has given it up, it is kept as long as an assured one (flow_offload_fixup_ct).
    let offloaded = connection.has(status::OFFLOAD);
    let lasts = connection.has(status::ASSURED) || offloaded;
    let unreported = connection.key.protocol == TCP && connection.tcp_state.is_none();
    let reasons = [
        (connection.unknown.is_some(), Obstacle::Unknown),
        (connection.key.zone != 0 || connection.zone_of_direction, Obstacle::Zone),
        (connection.helper, Obstacle::Helper),
        (connection.expected, Obstacle::Expected),
        (connection.sequence_changes, Obstacle::SequenceChanges),
        (connection.has(status::FIXED_TIMEOUT), Obstacle::FixedTimeout),
        (connection.has(status::HW_OFFLOAD), Obstacle::Device),
        (connection.has(status::DYING), Obstacle::Dying),
        (!connection.has(status::CONFIRMED | status::SEEN_REPLY) || !lasts, Obstacle::NotAssured),
        (unreported && offloaded, Obstacle::FlowTable),
        (unreported, Obstacle::StateMissing),
        (connection.key.protocol == TCP && connection.tcp_state != Some(tcp::ESTABLISHED), Obstacle::NotEstablished),
    ];
    reasons.into_iter().find(|(holds, _)| *holds).map(|(_, reason)| reason)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::connection::{Key, Tuple, UDP};

    /// Returns an established connection.
    pub fn connection(protocol: u8) -> Connection {
        let original = Tuple { src: "192.0.2.1:1".parse().unwrap(), dst: "192.0.2.2:2".parse().unwrap() };
        Connection {
            key: Key { protocol, original, zone: 0 },
            reply: original.reversed(),
            id: 1,
            status: status::CONFIRMED | status::SEEN_REPLY | status::ASSURED,
            mark: 0,
            timeout: None,
            tcp_state: Some(tcp::ESTABLISHED).filter(|_| protocol == TCP),
            liberal: false,
            zone_of_direction: false,
            helper: false,
            expected: false,
            sequence_changes: false,
            unknown: None,
        }
    }

    #[test]
    fn an_established_connection_has_no_obstacle() {
        assert_eq!(obstacle(&connection(TCP)), None);
        assert_eq!(obstacle(&connection(UDP)), None);
        // A flow table of the kernel's has no say about packets that do not meet it.
        let mut taken = connection(UDP);
        taken.status |= status::OFFLOAD;
        assert_eq!(obstacle(&taken), None);
        taken.status &= !status::ASSURED;
        assert_eq!(obstacle(&taken), None);
    }

    #[test]
    fn each_obstacle_is_found() {
        let with = |change: &dyn Fn(&mut Connection)| {
            let mut connection = connection(TCP);
            change(&mut connection);
            obstacle(&connection).unwrap()
        };
        assert_eq!(with(&|c| c.unknown = Some(99)), Obstacle::Unknown);
        assert_eq!(with(&|c| c.key.zone = 1), Obstacle::Zone);
        assert_eq!(with(&|c| c.zone_of_direction = true), Obstacle::Zone);
        assert_eq!(with(&|c| c.helper = true), Obstacle::Helper);
        assert_eq!(with(&|c| c.expected = true), Obstacle::Expected);
        assert_eq!(with(&|c| c.sequence_changes = true), Obstacle::SequenceChanges);
        assert_eq!(with(&|c| c.status |= status::FIXED_TIMEOUT), Obstacle::FixedTimeout);
        assert_eq!(with(&|c| c.status |= status::OFFLOAD | status::HW_OFFLOAD), Obstacle::Device);
        assert_eq!(with(&|c| c.status |= status::DYING), Obstacle::Dying);
        assert_eq!(with(&|c| c.status &= !status::ASSURED), Obstacle::NotAssured);
        assert_eq!(with(&|c| c.status &= !status::SEEN_REPLY), Obstacle::NotAssured);
        assert_eq!(with(&|c| c.tcp_state = None), Obstacle::StateMissing);
        assert_eq!(with(&|c| (c.status, c.tcp_state) = (c.status | status::OFFLOAD, None)), Obstacle::FlowTable);
        // TCP_CONNTRACK_FIN_WAIT.
        assert_eq!(with(&|c| c.tcp_state = Some(4)), Obstacle::NotEstablished);
    }
}
