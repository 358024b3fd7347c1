//! View of a cable downstream: modems, their service flows, and channels.

use super::modems::Modems;
use crate::modes::mac;
use crate::view::{Pieces, View};
use bywash_api::{Answer, Channel, Cpe, CpesChanged, KeysChanged, Modem, ServiceFlow, Topic};
use bywash_api_server::Rows;
use bywash_config::Config;
use bywash_docsis::cpe::Origin;
use bywash_docsis::group::{Group, LowerCounters};
use bywash_docsis::lower::LowerStats;
use bywash_router::control::{PortView, Ports};
use bywash_sync::lock;
use std::sync::{Arc, Mutex};

/// The downstream, as the API sees it.
pub struct Headend {
    pub ports: Arc<Mutex<Ports>>,
    pub groups: Arc<[GroupView]>,
}

/// Service group.
pub struct GroupView {
    pub group: Arc<Group>,
    pub stats: Arc<LowerStats>,
    /// Rates of its channels, in bits per second.
    pub channels: Vec<u64>,
    pub modems: Arc<Modems>,
}

/// Group with its place among all.
#[derive(Clone)]
struct Numbered {
    groups: Arc<[GroupView]>,
    at: usize,
}

impl Numbered {
    fn view(&self) -> &GroupView {
        &self.groups[self.at]
    }

    fn number(&self) -> u64 {
        self.at as u64 + 1
    }
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
        let groups = || (1..).zip(self.groups.iter());
        Ok(match topic {
            Topic::Channels => Answer::Channels(groups().flat_map(channels).collect()),
            _ => return Err(topic.not_in("cmts")),
        })
    }

    fn rows(&self, topic: Topic, _filter: Option<&str>) -> Option<Result<Box<dyn Rows>, String>> {
        let groups = self.groups.clone();
        let all = move || (0..groups.len()).map(move |at| Numbered { groups: groups.clone(), at });
        Some(Ok(match topic {
            Topic::Modems => Pieces::of(all().flat_map(modems), Answer::Modems),
            Topic::Cpes => Pieces::of(all().flat_map(cpes), Answer::Cpes),
            Topic::ServiceFlows => Pieces::of(all().flat_map(flows), Answer::ServiceFlows),
            _ => return None,
        }))
    }

    fn change_keys(&self, group: usize, lines: &str, later: bool) -> Result<KeysChanged, String> {
        self.modems(group)?.change(lines, later)
    }

    fn change_cpes(&self, group: usize, lines: &str, add: bool) -> Result<CpesChanged, String> {
        self.modems(group)?.change_cpes(lines, add)
    }

    fn reread(&self, config: &Config, apply: bool) -> anyhow::Result<Vec<String>> {
        let changes = (1..).zip(self.groups.iter()).map(|(number, group)| group.modems.reread(number, config, apply));
        Ok(changes.collect::<anyhow::Result<Vec<_>>>()?.into_iter().flatten().collect())
    }
}

impl Headend {
    /// Returns the modems of the group with this number.
    fn modems(&self, group: usize) -> Result<&Modems, String> {
        let found = group.checked_sub(1).and_then(|at| self.groups.get(at));
        let none = || format!("unknown group {group}: expected 1 to {}", self.groups.len());
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

fn modems(of: Numbered) -> impl Iterator<Item = Modem> {
    let group = &of.view().group;
    let mut sums = vec![(0, Sum::default()); group.modems().len()];
    for (n, flow) in group.flows().iter().enumerate() {
        let (flows, sum) = &mut sums[flow.modem as usize];
        *flows += 1;
        *sum = sum.add(Sum::of(group, n));
    }
    sums.into_iter().enumerate().map(move |(n, (flows, sum))| {
        let group = &of.view().group;
        let modem = &group.modems()[n];
        Modem {
            group: of.number(),
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
        }
    })
}

fn cpes(of: Numbered) -> impl Iterator<Item = Cpe> {
    let all = of.view().modems.cpes();
    all.into_iter().map(move |(address, cpe)| Cpe {
        group: of.number(),
        mac: mac(address),
        modem: mac(of.view().group.modems()[cpe.modem].mac),
        origin: match cpe.origin {
            Origin::Configured => "configured".into(),
            Origin::Added => "added".into(),
            Origin::Learned(_) => "learned".into(),
        },
        idle_s: cpe.seen().map(|seen| seen.elapsed().as_secs()),
    })
}

fn flows(of: Numbered) -> impl Iterator<Item = ServiceFlow> {
    (0..of.view().group.flows().len()).map(move |n| {
        let group = &of.view().group;
        let (flow, sum) = (&group.flows()[n], Sum::of(group, n));
        ServiceFlow {
            group: of.number(),
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
    })
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
