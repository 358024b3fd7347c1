//! Loading of a configuration from a file, or from interfaces given on the command line.

use crate::check::check;
use crate::cmts::{FlowConfig, GroupConfig};
use crate::host::{Host, interface_name};
use crate::keys;
use crate::model::*;
use crate::problem::{ConfigErrors, Problem, Source, nearest};
use crate::reader::{Notes, Table};
use bywash_port::memif;
use clap::ValueEnum;
use std::net::SocketAddr;
use std::path::Path;
use toml::de::{DeTable, DeValue};

/// Unchecked configuration, with the source of its values.
#[derive(Default)]
pub struct Draft {
    config: Config,
    source: Option<Source>,
    notes: Notes,
}

impl Draft {
    /// Returns the default configuration with a port on each interface.
    pub fn interfaces(interfaces: &[String]) -> Self {
        Self { config: Config::for_interfaces(interfaces), ..Self::default() }
    }

    /// Reads a configuration file.
    ///
    /// Errors if the file cannot be read; errors in its contents are reported by [`Draft::finish`].
    pub fn read(path: &Path) -> Result<Self, ConfigErrors> {
        let name = path.display().to_string();
        match std::fs::read_to_string(path) {
            Ok(text) => Ok(Self::text(&name, text)),
            Err(why) => {
                let what = format!("cannot read the configuration file {name}: {why}");
                Err(ConfigErrors::new(None, Default::default(), vec![Problem::at("", what, "")]))
            }
        }
    }

    /// Parses the text of a configuration file; `name` is its name in error messages.
    pub fn text(name: &str, text: String) -> Self {
        let mut notes = Notes::default();
        let (root, errors) = DeTable::parse_recoverable(&text);
        for error in &errors {
            let mut lines = error.message().lines();
            let what = lines.next().unwrap_or("not TOML").to_string();
            let span = error.span().or(Some(0..0));
            notes.problems.push(Problem { span, ..Problem::at("", what, lines.collect::<Vec<_>>().join(", ")) });
        }
        // The recovered part of a file with a syntax error would only cause spurious errors.
        let config = if errors.is_empty() { document(root.get_ref(), &mut notes) } else { Config::default() };
        Self { config, source: Some(Source { name: name.into(), text }), notes }
    }

    /// Overrides a value from the command line; errors in it no longer refer to the file. `path` is the path of the
    /// value, such as `pool.frames`.
    pub fn set(&mut self, path: &str, change: impl FnOnce(&mut Config)) {
        change(&mut self.config);
        self.notes.spans.insert(path.into(), None);
    }

    /// Checks the configuration, also against `host` if there is one, and returns it.
    ///
    /// Errors with all problems found.
    pub fn finish(mut self, host: Option<&Host>) -> Result<Config, ConfigErrors> {
        // Checking a partially read configuration would report what the reader already has.
        if self.notes.problems.is_empty() {
            check(&self.config, host, &mut self.notes.problems);
        }
        if self.notes.problems.is_empty() {
            Ok(self.config)
        } else {
            Err(ConfigErrors::new(self.source, self.notes.spans, self.notes.problems))
        }
    }
}

fn document(root: &DeTable<'_>, notes: &mut Notes) -> Config {
    let mut config = Config::default();
    for (key, value) in root {
        let (name, span) = (key.get_ref().as_ref(), value.span());
        notes.spans.insert(name.into(), Some(span.clone()));
        let header = keys::SECTIONS.iter().map(|section| section.header).filter(|header| !header.is_empty());
        if name == keys::TOP.keys[0].name {
            read_choice(name, value, notes, &mut config.mode);
            continue;
        }
        if name == keys::TOP.keys[1].name {
            read_choice(name, value, notes, &mut config.sandbox);
            continue;
        }
        let known = header.clone().find(|header| header.trim_matches(['[', ']']) == name);
        let mut wrong = |what: String, expected: String| {
            let list = header.clone().collect::<Vec<_>>().join(", ");
            let problem = Problem { span: Some(key.span()), ..Problem::at("", what, expected) };
            notes.problems.push(problem.help(format!("tables of the configuration: {list}")));
        };
        match (known, value.get_ref()) {
            (Some("[[port]]"), DeValue::Array(ports)) if ports.iter().all(|port| port.get_ref().is_table()) => {
                for (at, port) in ports.iter().enumerate() {
                    notes.spans.insert(format!("port.{at}"), Some(port.span()));
                    if let Some(table) = port.get_ref().as_table() {
                        config.ports.push(read_port(Table::new(&format!("port.{at}"), &keys::PORT, table, notes)));
                    }
                }
            }
            (Some("[[group]]"), DeValue::Array(groups)) if groups.iter().all(|group| group.get_ref().is_table()) => {
                for (at, group) in groups.iter().enumerate() {
                    notes.spans.insert(format!("group.{at}"), Some(group.span()));
                    if let Some(table) = group.get_ref().as_table() {
                        config.groups.push(GroupConfig::read(Table::new(
                            &format!("group.{at}"),
                            &keys::GROUP,
                            table,
                            notes,
                        )));
                    }
                }
            }
            (Some("[[flow]]"), DeValue::Array(flows)) if flows.iter().all(|flow| flow.get_ref().is_table()) => {
                for (at, flow) in flows.iter().enumerate() {
                    notes.spans.insert(format!("flow.{at}"), Some(flow.span()));
                    if let Some(table) = flow.get_ref().as_table() {
                        config.flows.push(FlowConfig::read(Table::new(
                            &format!("flow.{at}"),
                            &keys::FLOW,
                            table,
                            notes,
                        )));
                    }
                }
            }
            (Some("[cmts]"), DeValue::Table(table)) => {
                config.cmts.read(Table::new(name, &keys::CMTS, table, notes));
            }
            (Some("[router]"), DeValue::Table(table)) => {
                read_router(Table::new(name, &keys::ROUTER, table, notes), &mut config.router);
            }
            (Some("[kernel]"), DeValue::Table(table)) => {
                read_kernel(Table::new(name, &keys::KERNEL, table, notes), &mut config.kernel);
            }
            (Some("[switch]"), DeValue::Table(table)) => {
                read_switch(Table::new(name, &keys::SWITCH, table, notes), &mut config.switch);
            }
            (Some("[pool]"), DeValue::Table(table)) => {
                read_pool(Table::new(name, &keys::POOL, table, notes), &mut config.pool);
            }
            (Some("[workers]"), DeValue::Table(table)) => {
                read_workers(Table::new(name, &keys::WORKERS, table, notes), &mut config.workers);
            }
            (Some("[api]"), DeValue::Table(table)) => {
                read_api(Table::new(name, &keys::API, table, notes), &mut config.api);
            }
            (Some(header), _) => wrong(format!("`{name}` is not a value but a table"), format!("write `{header}`")),
            (None, _) => {
                let names = header.clone().map(|header| header.trim_matches(['[', ']']));
                let expected = match nearest(name, names) {
                    Some(name) => format!("did you mean `{name}`?"),
                    None => "not a table of the configuration".into(),
                };
                wrong(format!("unknown table `{name}`"), expected);
            }
        }
    }
    config
}

/// Sets `to` if there is a value; otherwise it keeps the default of the model.
fn put<T>(to: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *to = value;
    }
}

fn read_choice<T: ValueEnum>(key: &str, value: &toml::Spanned<DeValue<'_>>, notes: &mut Notes, to: &mut T) {
    match value.get_ref().as_str().and_then(|text| T::from_str(text, false).ok()) {
        Some(wanted) => *to = wanted,
        None => {
            let names = T::value_variants().iter().filter_map(ValueEnum::to_possible_value);
            let names: Vec<String> = names.map(|value| format!("\"{}\"", value.get_name())).collect();
            let expected = format!("expected {}", names.join(" or "));
            notes.problems.push(Problem::at(key, format!("invalid {key}"), expected));
        }
    }
}

fn read_router(mut table: Table<'_, '_>, router: &mut RouterConfig) {
    put(&mut router.icmp_rate, table.integer("icmp_rate", 0..=1_000_000).map(|rate| rate as u32));
    put(&mut router.redirects, table.boolean("redirects"));
}

fn read_kernel(mut table: Table<'_, '_>, kernel: &mut KernelConfig) {
    put(&mut kernel.netfilter, table.choice("netfilter"));
    put(&mut kernel.iptables_legacy, table.choice("iptables_legacy"));
    put(&mut kernel.ipsec, table.choice("ipsec"));
    put(&mut kernel.rules, table.choice("rules"));
    put(&mut kernel.sysctls, table.choice("sysctls"));
    put(&mut kernel.traffic_control, table.choice("traffic_control"));
    put(&mut kernel.programs, table.choice("programs"));
}

fn read_switch(mut table: Table<'_, '_>, switch: &mut SwitchConfig) {
    put(&mut switch.flows, table.text("flows", not_empty).map(|path| Some(path.into())));
    put(&mut switch.macs, table.integer("macs", 16..=1_000_000));
    put(&mut switch.mac_ageing_s, table.integer("mac_ageing_s", 1..=86_400).map(|time| time as u32));
    put(&mut switch.exact, table.integer("exact", 0..=1 << 20));
    put(&mut switch.exact_insert, table.integer("exact_insert", 1..=1_000_000).map(|n| n as u32));
    put(&mut switch.megaflows, table.integer("megaflows", 16..=4_000_000));
    put(&mut switch.megaflow_idle_s, table.integer("megaflow_idle_s", 1..=3600).map(|time| time as u32));
}

fn read_pool(mut table: Table<'_, '_>, pool: &mut PoolConfig) {
    put(&mut pool.kind, table.choice("kind"));
    put(&mut pool.cache, table.auto_integer("cache", 0..=8192));
    put(&mut pool.frames, table.auto_integer("frames", FRAMES));
    put(&mut pool.reserve, table.integer("reserve", 0..=*FRAMES.end()));
    put(&mut pool.block, table.integer("block", 1..=*BLOCK.end()));
    put(&mut pool.cell, table.integer("cell", 1..=1 << 20));
    put(&mut pool.pages, table.choice("pages"));
}

fn read_workers(mut table: Table<'_, '_>, workers: &mut WorkersConfig) {
    put(&mut workers.count, table.auto_integer("count", WORKERS));
    let cpus = table.list_or("cpus", "auto", 0..=4095);
    put(&mut workers.cpus, cpus.map(|list| list.map_or(Auto::Auto, Auto::Set)));
    put(&mut workers.idle, table.choice("idle"));
}

fn read_api(mut table: Table<'_, '_>, api: &mut ApiConfig) {
    put(&mut api.socket, table.text("socket", not_empty).map(Into::into));
    put(&mut api.group, table.text("group", not_empty).map(Some));
    put(&mut api.read_socket, table.text("read_socket", not_empty).map(|path| Some(path.into())));
    put(&mut api.read_group, table.text("read_group", not_empty).map(Some));
    put(&mut api.metrics, table.text("metrics", address).map(|text| text.parse().ok()));
}

fn read_port(mut table: Table<'_, '_>) -> PortConfig {
    let kind: PortKind = table.choice("kind").unwrap_or_default();
    for key in keys::PORT.keys.iter().filter(|key| !key.kinds.is_empty() && !key.kinds.contains(&kind)) {
        if let Some(span) = table.key_span(key.name) {
            let kinds: Vec<_> = key.kinds.iter().map(|kind| kind.name()).collect();
            let what = format!("a port of kind \"{}\" has no `{}`", kind.name(), key.name);
            let expected = format!("only of kind {}", kinds.join(" or "));
            table.notes.problems.push(Problem { span: Some(span), ..Problem::at("", what, expected) });
        }
    }
    let mut port = PortConfig { kind, tx_burst: 32, ..PortConfig::default() };
    port.interface = table.text("interface", |name| interface_name(name).map(drop));
    port.name = table.text("name", name).or_else(|| port.interface.clone()).unwrap_or_default();
    put(&mut port.worker, table.auto_one_or_more("worker", 0..=*WORKERS.end() - 1));
    put(&mut port.tx_burst, table.integer("tx_burst", 1..=bywash_frame::BATCH));
    put(&mut port.tx_deadline_us, table.integer("tx_deadline_us", 0..=10_000).map(|time| time as u32));
    let bridge = &mut port.bridge;
    put(&mut bridge.tag, table.integer("tag", 1..=4094).map(|tag| Some(tag as u16)));
    let trunks = table.list("trunks", 0..=4094);
    put(&mut bridge.trunks, trunks.map(|list| Some(list.into_iter().map(|vlan| vlan as u16).collect())));
    put(&mut bridge.flood, table.boolean("flood"));
    put(&mut bridge.storm, table.integer("storm", 0..=100_000_000).map(|rate| rate as u32));
    put(&mut bridge.mirror, table.text("mirror", name).map(Some));
    match kind {
        PortKind::AfXdp => port.af_xdp = Some(read_af_xdp(&mut table)),
        PortKind::Pcap => port.pcap = Some(read_pcap(&mut table)),
        PortKind::Memif => port.memif = Some(read_memif(&mut table)),
        PortKind::Dpdk => port.dpdk = Some(read_dpdk(&mut table)),
        PortKind::Tap | PortKind::Null => {}
    }
    port
}

fn read_af_xdp(table: &mut Table<'_, '_>) -> AfXdpConfig {
    let mut port = AfXdpConfig::default();
    put(&mut port.queues, table.list_or("queues", "all", 0..=4095).map(|list| list.map_or(Queues::All, Queues::List)));
    put(&mut port.zero_copy, table.choice("zero_copy"));
    put(&mut port.transmit, table.choice("transmit"));
    put(&mut port.busy_poll, table.integer("busy_poll", 0..=1024).map(|frames| frames as u16));
    put(&mut port.rx_burst, table.integer("rx_burst", 1..=bywash_frame::BATCH));
    put(&mut port.need_wakeup, table.boolean("need_wakeup"));
    put(&mut port.in_order, table.boolean("in_order"));
    put(&mut port.mode, table.choice("mode"));
    put(&mut port.checksum, table.choice("checksum"));
    put(&mut port.level, table.choice("level"));
    put(&mut port.spread, table.list_or("spread", "off", 0..=4095).map(Option::unwrap_or_default));
    if let Some(mut rings) = table.table("ring", &keys::RING) {
        for (name, ring) in [
            ("rx", &mut port.ring.rx),
            ("tx", &mut port.ring.tx),
            ("fill", &mut port.ring.fill),
            ("completion", &mut port.ring.completion),
        ] {
            put(ring, rings.integer(name, 64..=65536));
        }
    } else {
        put(&mut port.ring, table.integer("ring", 64..=65536).map(Rings::all));
    }
    port
}

fn read_pcap(table: &mut Table<'_, '_>) -> PcapConfig {
    let mut port = PcapConfig::default();
    put(&mut port.file, table.text("file", not_empty).map(Into::into));
    put(&mut port.repeat, table.boolean("loop"));
    let rate = table.auto_integer("rate", 1..=1_000_000_000);
    put(&mut port.rate, rate.map(|rate| rate.set().map_or(Auto::Auto, |&rate| Auto::Set(rate as u64))));
    put(&mut port.link, table.choice("link"));
    put(&mut port.record, table.text("record", not_empty).map(|path| Some(path.into())));
    port
}

fn read_memif(table: &mut Table<'_, '_>) -> MemifConfig {
    let mut port = MemifConfig::default();
    put(&mut port.socket, table.text("socket", not_empty).map(Into::into));
    put(&mut port.role, table.choice("role"));
    put(&mut port.id, table.integer("id", 0..=u32::MAX as usize).map(|id| id as u32));
    put(&mut port.secret, table.text("secret", secret));
    put(&mut port.ring, table.integer("ring", memif::RING));
    put(&mut port.sealed, table.boolean("sealed"));
    port
}

fn secret(text: &str) -> Result<(), String> {
    let fits = text.len() <= memif::SECRET && !text.contains('\0');
    if fits { Ok(()) } else { Err(format!("expected at most {} bytes", memif::SECRET)) }
}

fn read_dpdk(table: &mut Table<'_, '_>) -> DpdkPortConfig {
    let mut port = DpdkPortConfig::default();
    put(&mut port.device, table.text("device", not_empty));
    put(&mut port.device_queues, table.integer("device_queues", 1..=64).map(|n| n as u16));
    let mtu = table.auto_integer("mtu", 68..=9216);
    put(&mut port.mtu, mtu.map(|mtu| mtu.set().map_or(Auto::Auto, |&mtu| Auto::Set(mtu as u16))));
    put(&mut port.eal, table.text("eal", |_| Ok(())));
    port
}

/// Validates an address and port to listen on.
fn address(text: &str) -> Result<(), String> {
    let parsed = text.parse::<SocketAddr>();
    parsed.map(drop).map_err(|_| "expected an address and a port, such as \"127.0.0.1:9469\"".into())
}

fn not_empty(text: &str) -> Result<(), String> {
    if text.is_empty() { Err("expected a non-empty string".into()) } else { Ok(()) }
}

pub(crate) fn name(text: &str) -> Result<(), String> {
    let fits = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if (1..=32).contains(&text.len()) && text.chars().all(fits) {
        Ok(())
    } else {
        Err("expected 1 to 32 of a-z A-Z 0-9 . _ -".into())
    }
}
