//! View of a mode for the API.

use crate::vlans::Left;
use bywash_api::{
    Above, Answer, CpesChanged, FlowsChanged, Kept, KeysChanged, NO_FLOW_RULES, Policies, SwitchPort, Topic, Traced,
};
use bywash_api_server::Rows;
use bywash_config::Config;
use bywash_engine::PortId;
use bywash_flow::script::Verb;
use bywash_router::control::PortView;
use bywash_sync::Counter;

/// Frames of a port that the kernel did not accept.
#[derive(Debug, Default)]
pub struct Refused {
    /// Punted packets: they are lost.
    pub packets: Counter,
    /// Copies of dropped packets: no ICMP error is sent about those.
    pub copies: Counter,
}

/// Maximum number of rows examined for one piece of an answer: the control side waits for less than a millisecond.
pub const PIECE: usize = 512;

/// Rows that are made one by one, in pieces: only the newest piece and the iterator's state are in memory.
pub struct Pieces<T> {
    rows: Box<dyn Iterator<Item = T> + Send>,
    answer: fn(Vec<T>) -> Answer,
}

impl<T: 'static> Pieces<T> {
    /// Returns `rows` as the rows of a topic; `answer` turns each piece of them into an answer.
    pub fn of(rows: impl Iterator<Item = T> + Send + 'static, answer: fn(Vec<T>) -> Answer) -> Box<dyn Rows> {
        Box::new(Self { rows: Box::new(rows), answer })
    }
}

impl<T> Rows for Pieces<T> {
    fn next(&mut self) -> Option<Answer> {
        let piece: Vec<T> = self.rows.by_ref().take(PIECE).collect();
        (!piece.is_empty()).then(|| (self.answer)(piece))
    }
}

/// View of a mode for the API, which calls it from several threads at once.
pub trait View: Send + Sync {
    /// Returns the ports with their state in the kernel, by port number.
    fn ports(&self) -> Vec<PortView>;

    /// Returns the interfaces above ports, and tunnels, each with a port that carries it; a bridge with each of its
    /// members' ports. `left` are those that are left to the kernel.
    fn above(&self, _left: &[Left]) -> Vec<(PortId, Above)> {
        vec![]
    }

    /// Returns a topic that only some modes have. Errors if this one lacks it or the filter is invalid.
    fn show(&self, topic: Topic, filter: Option<&str>) -> Result<Answer, String>;

    /// Returns the rows of a topic that may have very many; `None` if [`View::show`] returns all of the topic.
    fn rows(&self, _topic: Topic, _filter: Option<&str>) -> Option<Result<Box<dyn Rows>, String>> {
        None
    }

    /// Changes flows, groups and meters.
    fn change_flows(&self, _verb: Verb, _lines: &str) -> Result<FlowsChanged, String> {
        Err(NO_FLOW_RULES.into())
    }

    /// Changes keys of the modems of group `group`, one per line; with `later`, does not use them yet.
    fn change_keys(&self, _group: usize, _lines: &str, _later: bool) -> Result<KeysChanged, String> {
        Err("only a cmts has keys (mode = \"cmts\")".into())
    }

    /// Adds addresses behind modems of group `group`, one per line, or removes them.
    fn change_cpes(&self, _group: usize, _lines: &str, _add: bool) -> Result<CpesChanged, String> {
        Err("only a cmts has modems (mode = \"cmts\")".into())
    }

    /// Reads again the files that the configuration names and a reload can apply; returns a line for each change. Only
    /// with `apply`, applies them.
    fn reread(&self, _config: &Config, _apply: bool) -> anyhow::Result<Vec<String>> {
        Ok(vec![])
    }

    /// Traces a packet; `has_program` says whether a port has an XDP or tc program.
    fn trace(&self, _packet: &str, _has_program: &dyn Fn(PortId) -> bool) -> Result<Traced, String> {
        Err("mode cmts has no trace: `bywash trace` shows the packets of a router and a switch".into())
    }

    /// Returns the policies for which packets received on this port are left to the kernel.
    fn kept(&self, _port: PortId) -> Vec<Kept> {
        vec![]
    }

    /// Returns the state of the kernel's policies; `None` in modes that do not follow them.
    fn policies(&self) -> Option<Policies> {
        None
    }

    /// Returns this port's part in a switch; `None` in other modes.
    fn switch_port(&self, _port: PortId) -> Option<SwitchPort> {
        None
    }

    /// Returns the counters of this port's frames that the kernel did not accept; `None` in a mode that hands it none.
    fn refused(&self, _port: PortId) -> Option<&Refused> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bywash_api::Address;

    #[test]
    fn rows_come_in_pieces_of_limited_size() {
        let made = (0..2 * PIECE as u64 + 1).map(|n| Address { number: n, ..Address::default() });
        let mut rows = Pieces::of(made, Answer::Fdb);
        let mut next = || match rows.next() {
            Some(Answer::Fdb(piece)) => Some((piece.len(), piece[0].number)),
            _ => None,
        };
        assert_eq!([next(), next(), next(), next()], [Some((PIECE, 0)), Some((PIECE, 512)), Some((1, 1024)), None]);
    }
}
