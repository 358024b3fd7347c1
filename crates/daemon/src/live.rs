//! The configuration in effect, and the numbers of its ports: at the start the order in the file, which reloads may
//! change.

use bywash_config::{Config, PortConfig};

/// One version of the configuration. Each reload creates the next.
#[derive(Clone)]
pub struct Live {
    pub config: Config,
    /// Ports by number; `None` if the number is free.
    slots: Vec<Option<PortConfig>>,
}

impl Live {
    /// Numbers the ports in the order of the configuration.
    pub fn new(config: Config) -> Self {
        Self { slots: config.ports.iter().cloned().map(Some).collect(), config }
    }

    /// Returns the ports with their numbers.
    pub fn ports(&self) -> impl Iterator<Item = (usize, &PortConfig)> {
        self.slots.iter().enumerate().filter_map(|(at, port)| Some((at, port.as_ref()?)))
    }

    /// Returns the configuration of the port with this number; `None` if the number is free.
    pub fn port(&self, at: usize) -> Option<&PortConfig> {
        self.slots.get(at)?.as_ref()
    }

    /// Returns the name of the port with this number; `?` if the number is free.
    pub fn name(&self, at: usize) -> &str {
        self.port(at).map_or("?", |port| &port.name)
    }

    /// Returns number and configuration of the port with this name.
    pub fn number(&self, name: &str) -> Option<(usize, &PortConfig)> {
        self.ports().find(|(_, port)| port.name == name)
    }

    /// Returns a number for another port: the first free one, or else the next.
    pub fn free(&self) -> usize {
        self.slots.iter().position(Option::is_none).unwrap_or(self.slots.len())
    }

    /// Assigns a number to a port, or frees it if `port` is `None`.
    pub fn set(&mut self, at: usize, port: Option<PortConfig>) {
        self.slots.resize(self.slots.len().max(at + 1), None);
        self.slots[at] = port;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stay_and_are_used_again() {
        let mut live = Live::new(Config::for_interfaces(&["a".into(), "b".into(), "c".into()]));
        live.set(1, None);
        let names = |live: &Live| live.ports().map(|(at, port)| (at, port.name.clone())).collect::<Vec<_>>();
        assert_eq!(names(&live), [(0, "a".into()), (2, "c".into())]);
        assert_eq!((live.free(), live.name(1), live.number("b").is_none()), (1, "?", true));
        live.set(1, Some(PortConfig::interface("d")));
        live.set(3, Some(PortConfig::interface("e")));
        assert_eq!((live.free(), live.name(1), live.number("e").unwrap().0), (4, "d", 3));
    }
}
