//! Tracks ports and their interfaces without routes.

use super::links::Links;
use super::{Applied, PortSpec, PortView};
use bywash_engine::PortId;
use bywash_fib::model::Change;

/// Ports of an application that does not route, such as a switch, which bridges between interfaces whatever is routed
/// to them.
pub struct Ports {
    links: Links,
}

impl Ports {
    /// Creates ports whose interfaces are not known yet.
    ///
    /// # Panics
    /// If the port numbers do not count from 0 without gaps.
    pub fn new(mut ports: Vec<PortSpec>) -> Self {
        ports.sort_by_key(|p| p.id);
        assert!(ports.iter().enumerate().all(|(n, p)| n == usize::from(p.id.0)), "port numbers have gaps");
        Self { links: Links::new(ports) }
    }

    /// Applies the changes of links and addresses in a batch.
    pub fn apply(&mut self, changes: &[Change]) -> Applied {
        let mut applied = Applied::default();
        for change in changes {
            match change {
                Change::Link(link) => {
                    let effect = self.links.set(link);
                    applied.ports_changed.extend(effect.port);
                    applied.port_back(effect.back);
                }
                Change::LinkGone { index } => {
                    if let Some((id, back)) = self.links.remove(*index) {
                        applied.port_gone(id, back);
                    }
                }
                Change::Address(address) => drop(self.links.add_address(address)),
                Change::AddressGone { index, addr, len } => drop(self.links.remove_address(*index, *addr, *len)),
                Change::Synced => applied.synced = true,
                Change::Route(_) | Change::RouteGone { .. } => {}
                Change::Selective { .. } | Change::SelectiveGone { .. } => {}
                Change::Neighbour(_) | Change::NeighbourGone { .. } => {}
                Change::Station(_) | Change::StationGone { .. } | Change::Elsewhere { .. } => {}
            }
        }
        applied.ports_changed.sort_unstable();
        applied.ports_changed.dedup();
        applied
    }

    /// Adds a port, with the next number or that of a removed port.
    ///
    /// # Panics
    /// If its number leaves a gap.
    pub fn add_port(&mut self, spec: PortSpec) {
        self.links.add_port(spec);
    }

    /// Removes a port; its interface stays.
    pub fn remove_port(&mut self, id: PortId) {
        self.links.remove_port(id);
    }

    /// Records whether a port is open on its interface.
    pub fn set_open(&mut self, id: PortId, open: bool) {
        self.links.set_open(id, open);
    }

    /// Returns all ports, by number.
    pub fn ports(&self) -> impl Iterator<Item = PortView> {
        self.links.views()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tables::Reception;
    use bywash_fib::model::Link;

    fn link(index: u32, name: &str, up: bool) -> Change {
        Change::Link(Link { index, name: name.into(), mtu: 1500, up, carrier: up, rx_queues: 1, ..Link::default() })
    }

    #[test]
    fn an_interface_goes_and_comes_back() {
        let spec = |id, index, name: &str| PortSpec {
            id: PortId(id),
            index,
            name: name.into(),
            partial_checksums: false,
            reception: Reception::Own,
        };
        let mut ports = Ports::new(vec![spec(0, 7, "x"), spec(1, 0, "")]);
        let first = ports.apply(&[link(7, "x", true), link(8, "y", true), Change::Synced]);
        assert!(first.synced && first.ports_changed == [PortId(0)], "{first:?}");
        let running = |ports: &Ports| ports.ports().next().is_some_and(|p| p.running);
        assert!(running(&ports));
        let down = ports.apply(&[link(7, "x", false)]);
        assert!(down.ports_changed == [PortId(0)] && !running(&ports), "{down:?}");
        let gone = ports.apply(&[Change::LinkGone { index: 7 }]);
        assert!(gone.ports_gone == [PortId(0)] && gone.ports_back.is_empty(), "{gone:?}");
        let back = ports.apply(&[link(9, "x", true)]);
        assert_eq!(back.ports_back.iter().map(|b| (b.id, b.index)).collect::<Vec<_>>(), [(PortId(0), 9)]);
        assert!(!running(&ports), "it is not open");
        // Reported until it is open.
        assert_eq!(ports.apply(&[link(9, "x", true)]).ports_back, back.ports_back);
        ports.set_open(PortId(0), true);
        assert!(running(&ports) && ports.apply(&[link(9, "x", true)]).ports_back.is_empty());
    }
}
