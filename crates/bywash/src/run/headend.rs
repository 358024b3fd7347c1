//! View of a cable downstream: modems, their service flows, and channels.

use super::instance::mac;
use super::mode::View;
use crate::api::Topic;
use bywash_docsis::group::Group;
use bywash_docsis::lower::LowerStats;
use bywash_router::control::{PortView, Ports};
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};

/// The downstream, as the API sees it.
pub struct Headend {
    pub ports: Arc<Mutex<Ports>>,
    pub groups: Vec<GroupView>,
}

/// Service group.
pub struct GroupView {
    pub group: Arc<Group>,
    pub stats: Arc<LowerStats>,
    /// Rates of its channels, in bits per second.
    pub channels: Vec<u64>,
}

/// Counters of one service flow, or the sum of a modem's.
#[derive(Clone, Copy, Default)]
struct Sum {
    received: u64,
    packets: u64,
    bytes: u64,
    policed: u64,
    overflow: u64,
}

impl View for Headend {
    fn ports(&self) -> Vec<PortView> {
        self.ports.lock().expect("ports").ports().collect()
    }

    fn show(&self, topic: Topic, _filter: Option<&str>) -> Result<Value, String> {
        let all = |of: fn(usize, &GroupView) -> Vec<Value>| {
            Ok(self.groups.iter().enumerate().flat_map(|(n, group)| of(n + 1, group)).collect())
        };
        match topic {
            Topic::Modems => all(modems),
            Topic::ServiceFlows => all(flows),
            Topic::Channels => all(channels),
            _ => Err(format!("a cmts has no {}", topic.name())),
        }
    }
}

impl Sum {
    fn of(group: &Group, flow: usize) -> Self {
        let counters = group.counters(flow);
        // Read the lower MAC's counters first: the upper MAC has counted every packet that the lower one has sent.
        let (packets, overflow) = (counters.lower.packets.get(), counters.lower.overflow.get());
        let bytes = counters.lower.bytes.get();
        Self { received: counters.upper.packets.get(), packets, bytes, policed: counters.upper.policed.get(), overflow }
    }

    fn add(self, other: Self) -> Self {
        Self {
            received: self.received + other.received,
            packets: self.packets + other.packets,
            bytes: self.bytes + other.bytes,
            policed: self.policed + other.policed,
            overflow: self.overflow + other.overflow,
        }
    }

    fn fill(self, mut row: Value) -> Value {
        row["packets"] = self.packets.into();
        row["bytes"] = self.bytes.into();
        row["queued"] = self.received.saturating_sub(self.packets + self.overflow).into();
        row["policed"] = self.policed.into();
        row["queue_overflow"] = self.overflow.into();
        row
    }
}

fn modems(number: usize, view: &GroupView) -> Vec<Value> {
    let group = &view.group;
    let mut sums = vec![(0, Sum::default()); group.modems().len()];
    for (n, flow) in group.flows().iter().enumerate() {
        let (flows, sum) = &mut sums[flow.modem as usize];
        *flows += 1;
        *sum = sum.add(Sum::of(group, n));
    }
    let row = |(modem, (flows, sum)): (&bywash_docsis::group::ModemConfig, (u32, Sum))| {
        sum.fill(json!({ "group": number, "mac": mac(modem.mac), "said": modem.said, "flows": flows }))
    };
    group.modems().iter().zip(sums).map(row).collect()
}

fn flows(number: usize, view: &GroupView) -> Vec<Value> {
    let group = &view.group;
    let row = |(n, flow): (usize, &bywash_docsis::group::Flow)| {
        let modem = &group.modems()[flow.modem as usize];
        let name = &group.kind_of(n).name;
        let row = json!({
            "group": number, "modem": mac(modem.mac), "flow": name, "dsid": flow.dsid, "priority": flow.priority,
        });
        Sum::of(group, n).fill(row)
    };
    group.flows().iter().enumerate().map(row).collect()
}

fn channels(number: usize, view: &GroupView) -> Vec<Value> {
    let row = |(n, counters): (usize, &bywash_docsis::lower::ChannelCounters)| {
        json!({
            "group": number,
            "channel": n + 1,
            "rate": view.channels.get(n).filter(|rate| **rate > 0),
            "packets": counters.packets.get(),
            "bytes": counters.bytes.get(),
            "group_queued": view.stats.queued.get(),
            "crypto": view.stats.crypto,
        })
    };
    view.stats.channels.iter().enumerate().map(row).collect()
}
