//! View of a cable downstream: modems, their service flows, and channels.

use super::modems::Modems;
use crate::modes::mac;
use crate::view::View;
use bywash_api::{Answer, Channel, Cpe, CpesChanged, KeysChanged, Modem, ServiceFlow, Topic};
use bywash_config::Config;
use bywash_docsis::cpe::Origin;
use bywash_docsis::group::{Group, LowerCounters, Mac, ModemConfig};
use bywash_docsis::lower::LowerStats;
use bywash_router::control::{PortView, Ports};
use bywash_sync::lock;
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
    pub modems: Arc<Modems>,
}

/// Counters of one service flow, or the sum of a modem's.
#[derive(Clone, Copy, Default)]
struct Sum {
    received: u64,
    packets: u64,
    bytes: u64,
    policed: u64,
    overflow: u64,
    early: u64,
}

impl View for Headend {
    fn ports(&self) -> Vec<PortView> {
        lock(&self.ports).ports().collect()
    }

    fn show(&self, topic: Topic, _filter: Option<&str>) -> Result<Answer, String> {
        let groups = || self.groups.iter().enumerate().map(|(n, group)| (n as u64 + 1, group));
        Ok(match topic {
            Topic::Modems => Answer::Modems(groups().flat_map(modems).collect()),
            Topic::Cpes => Answer::Cpes(groups().flat_map(cpes).collect()),
            Topic::ServiceFlows => Answer::ServiceFlows(groups().flat_map(flows).collect()),
            Topic::Channels => Answer::Channels(groups().flat_map(channels).collect()),
            _ => return Err(format!("a cmts has no {}", topic.name())),
        })
    }

    fn change_keys(&self, group: usize, lines: &str, later: bool) -> Result<KeysChanged, String> {
        self.modems(group)?.change(lines, later)
    }

    fn change_cpes(&self, group: usize, lines: &str, add: bool) -> Result<CpesChanged, String> {
        self.modems(group)?.change_cpes(lines, add)
    }

    fn reread(&self, config: &Config, apply: bool) -> anyhow::Result<Vec<String>> {
        let told = (1..).zip(&self.groups).map(|(number, group)| group.modems.reread(number, config, apply));
        Ok(told.collect::<anyhow::Result<Vec<_>>>()?.into_iter().flatten().collect())
    }
}

impl Headend {
    /// Returns the modems of the group with this number.
    fn modems(&self, group: usize) -> Result<&Modems, String> {
        let found = group.checked_sub(1).and_then(|at| self.groups.get(at));
        let none = || format!("there is no group {group}: expected 1 to {}", self.groups.len());
        found.map(|group| &*group.modems).ok_or_else(none)
    }
}

impl Sum {
    fn of(group: &Group, flow: usize) -> Self {
        let counters = group.counters(flow);
        // Read the lower MAC's counters first: the upper MAC has counted every packet that the lower one has sent.
        let LowerCounters { packets, bytes, overflow, early } = &*counters.lower;
        let (packets, bytes, overflow, early) = (packets.get(), bytes.get(), overflow.get(), early.get());
        let (received, policed) = (counters.upper.packets.get(), counters.upper.policed.get());
        Self { received, packets, bytes, policed, overflow, early }
    }

    fn add(self, other: Self) -> Self {
        Self {
            received: self.received + other.received,
            packets: self.packets + other.packets,
            bytes: self.bytes + other.bytes,
            policed: self.policed + other.policed,
            overflow: self.overflow + other.overflow,
            early: self.early + other.early,
        }
    }

    fn queued(self) -> u64 {
        self.received.saturating_sub(self.packets + self.overflow + self.early)
    }
}

fn modems((number, view): (u64, &GroupView)) -> Vec<Modem> {
    let group = &view.group;
    let mut sums = vec![(0, Sum::default()); group.modems().len()];
    for (n, flow) in group.flows().iter().enumerate() {
        let (flows, sum) = &mut sums[flow.modem as usize];
        *flows += 1;
        *sum = sum.add(Sum::of(group, n));
    }
    let row = |(n, (modem, (flows, sum))): (usize, (&ModemConfig, (u64, Sum)))| Modem {
        group: number,
        mac: mac(modem.mac),
        said: modem.said,
        key_sequence: group.key_in_use(n),
        bits: modem.bits,
        flows,
        packets: sum.packets,
        bytes: sum.bytes,
        queued: sum.queued(),
        policed: sum.policed,
        queue_overflow: sum.overflow,
        aqm: sum.early,
    };
    group.modems().iter().zip(sums).enumerate().map(row).collect()
}

fn cpes((number, view): (u64, &GroupView)) -> Vec<Cpe> {
    let modems = view.group.modems();
    let row = |(address, cpe): (Mac, bywash_docsis::cpe::Cpe)| Cpe {
        group: number,
        mac: mac(address),
        modem: mac(modems[cpe.modem].mac),
        origin: match cpe.origin {
            Origin::Configured => "configured".into(),
            Origin::Added => "added".into(),
            Origin::Learned(_) => "learned".into(),
        },
        idle_s: cpe.seen().map(|seen| seen.elapsed().as_secs()),
    };
    view.modems.cpes().into_iter().map(row).collect()
}

fn flows((number, view): (u64, &GroupView)) -> Vec<ServiceFlow> {
    let group = &view.group;
    let row = |(n, flow): (usize, &bywash_docsis::group::Flow)| {
        let sum = Sum::of(group, n);
        ServiceFlow {
            group: number,
            modem: mac(group.modems()[flow.modem as usize].mac),
            flow: group.kind_of(n).name.clone(),
            dsid: flow.dsid,
            priority: flow.priority,
            packets: sum.packets,
            bytes: sum.bytes,
            queued: sum.queued(),
            policed: sum.policed,
            queue_overflow: sum.overflow,
            aqm: sum.early,
        }
    };
    group.flows().iter().enumerate().map(row).collect()
}

fn channels((number, view): (u64, &GroupView)) -> Vec<Channel> {
    let row = |(n, counters): (usize, &bywash_docsis::lower::ChannelCounters)| Channel {
        group: number,
        channel: n as u64 + 1,
        rate: view.channels.get(n).copied().filter(|rate| *rate > 0),
        packets: counters.packets.get(),
        bytes: counters.bytes.get(),
        codewords: counters.codewords.get(),
        group_queued: view.stats.queued.get(),
        crypto: view.stats.crypto.clone(),
    };
    view.stats.channels.iter().enumerate().map(row).collect()
}
