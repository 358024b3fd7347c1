//! Validation of a configuration: constraints between values, and existence on this machine.

use crate::choice::*;
use crate::host::{Host, group_id, user_id};
use crate::keys::CELLS;
use crate::model::*;
use crate::modems::WrongModems;
use crate::pools;
use crate::problem::{Problem, nearest};
use crate::text;
use bywash_docsis::channel::CHANNELS_MAX;
use bywash_docsis::police::BURST_MIN;
use bywash_flow::script::{self, ScriptError, Verb};
use bywash_port::af_xdp::{PORT_CPUS, PORTS};
use bywash_port::broker;

/// Bytes of a frame that an interface's MTU does not count: Ethernet header and one VLAN tag.
const LINK_HEADER: usize = 18;

/// Maximum length of a socket path in bytes. `sun_path` has 108 bytes (unix(7)); the socket is created under a slightly
/// longer name and then renamed.
const SOCKET_NAME: usize = 90;

/// Returns the smallest cell size for frames of an interface with this MTU; `None` if the MTU is too large for all.
pub fn cell_for(mtu: usize) -> Option<usize> {
    CELLS.into_iter().find(|cell| mtu <= largest_mtu(*cell))
}

/// Returns the largest MTU in bytes whose frames fit a cell of this size.
pub const fn largest_mtu(cell: usize) -> usize {
    cell - bywash_frame::DATA_OFFSET - LINK_HEADER
}

/// Maximum UMEM chunk size of the kernel in bytes; longer frames arrive in several chunks.
const CHUNK: usize = 4096;

/// Appends to `problems`, the errors of single values, every other error of `config`, including what is missing on
/// `host` if there is one.
pub fn check(config: &Config, host: Option<&Host>, problems: &mut Vec<Problem>) {
    if config.ports.is_empty() {
        let expected = "add a [[port]] table with `interface = \"...\"` for each interface";
        problems.push(Problem::at("", "no ports", expected));
        return;
    }
    if config.ports.len() > PORTS as usize {
        let what = format!("{} ports", config.ports.len());
        problems.push(Problem::at(format!("port.{PORTS}"), what, format!("expected at most {PORTS}")));
    }
    let api = &config.api;
    for (key, socket) in [("api.socket", Some(&api.socket)), ("api.read_socket", api.read_socket.as_ref())] {
        let Some(socket) = socket else { continue };
        if !socket.is_absolute() || socket.as_os_str().len() > SOCKET_NAME {
            let expected = format!("expected a path of at most {SOCKET_NAME} bytes");
            problems.push(Problem::at(key, format!("invalid socket path {}", socket.display()), expected));
        }
    }
    if api.read_socket.as_ref() == Some(&api.socket) {
        let what = "`socket` and `read_socket` are the same";
        problems.push(Problem::at("api.read_socket", what, "expected another path"));
    }
    if api.read_group.is_some() && api.read_socket.is_none() {
        let what = "`read_group` is set, but `read_socket` is not";
        problems.push(Problem::at("api.read_group", what, "add `read_socket = \"..\"`"));
    }
    if api.metrics_public && api.metrics.is_none() {
        let what = "`metrics_public` is set, but `metrics` is not";
        problems.push(Problem::at("api.metrics_public", what, "add `metrics = \"ADDRESS:PORT\"`"));
    }
    if !api.metrics_token.expose().is_empty() && api.metrics.is_none() {
        let what = "`metrics_token` is set, but `metrics` is not";
        problems.push(Problem::at("api.metrics_token", what, "add `metrics = \"ADDRESS:PORT\"`"));
    }
    if let Some(at) = api.metrics.filter(|at| !at.ip().is_loopback()) {
        let what = format!("other machines reach {at}");
        if !api.metrics_public {
            let expected = "expected a loopback address, or `metrics_public = true`";
            problems.push(Problem::at("api.metrics", what, expected));
        } else if api.metrics_token.expose().is_empty() {
            let expected = "expected `metrics_token`, without which everyone there could read the metrics";
            problems.push(Problem::at("api.metrics", what, expected));
        }
    }
    names(config, problems);
    mode(config, problems);
    groups(config, problems);
    sizes(config, problems);
    pools::check(config, problems);
    workers(config, problems);
    if let Some(host) = host {
        on_host(config, host, problems);
    }
    // Planning an invalid configuration would report the same errors again.
    if !problems.is_empty() {
        return;
    }
    let queues: Option<Vec<Vec<usize>>> = config.ports.iter().map(|port| known_queues(port, host)).collect();
    let cpus = host.map(|host| host.allowed.as_slice()).unwrap_or_default();
    if let Some(queues) = queues
        && let Err(problem) = config.lay_out(&queues, cpus)
    {
        problems.push(*problem);
    }
}

/// Returns the port's queues; `None` if they are not known before the port is opened.
fn known_queues(port: &PortConfig, host: Option<&Host>) -> Option<Vec<usize>> {
    match port.af_xdp.as_ref().map(|port| &port.queues) {
        Some(Queues::List(list)) => Some(list.clone()),
        Some(Queues::All) => {
            let interface = host?.interface(port.interface.as_ref()?)?;
            Some((0..interface.queues?).collect())
        }
        None => Some((0..port.own_queues() as usize).collect()),
    }
}

/// Returns the index of the first earlier port with the same value.
fn earlier<'a, T: PartialEq>(
    ports: &'a [PortConfig],
    at: usize,
    value: impl Fn(&'a PortConfig) -> Option<T>,
) -> Option<usize> {
    let mine = value(&ports[at])?;
    ports[..at].iter().position(|other| value(other).is_some_and(|other| other == mine))
}

/// Returns the socket path of a memif server port.
fn listens(port: &PortConfig) -> Option<&std::path::Path> {
    port.memif.as_ref().filter(|memif| memif.role == MemifRole::Server).map(|memif| memif.socket.as_path())
}

fn names(config: &Config, problems: &mut Vec<Problem>) {
    let ports = &config.ports;
    for (at, port) in ports.iter().enumerate() {
        let missing = |key: &str, why: String| Problem::at(format!("port.{at}"), why, format!("add `{key}`"));
        if port.interface.is_none() && (port.kind == PortKind::AfXdp || port.is_tap()) {
            let or = if port.kind == PortKind::Npe { ", and no file to replay" } else { "" };
            problems.push(missing("interface = \"..\"", format!("port {} has no interface{or}", at + 1)));
        } else if port.name.is_empty() {
            problems.push(missing("name = \"..\"", format!("port {} has no name", at + 1)));
        }
        if port.interface.is_some()
            && config.mode != Mode::Router
            && !matches!(port.kind, PortKind::AfXdp | PortKind::Dpdk)
            && !port.is_tap()
        {
            let what = format!("`interface` is not allowed for a port of kind \"{}\" in this mode", port.kind.name());
            problems.push(Problem::at(format!("port.{at}.interface"), what, "only with mode = \"router\""));
        }
        if port.pcap.as_ref().is_some_and(|pcap| pcap.file.as_os_str().is_empty() && pcap.record.is_none()) {
            problems.push(missing("file = \"..\"", format!("port {} has no file to replay", at + 1)));
        }
        if port.memif.as_ref().is_some_and(|memif| memif.socket.as_os_str().is_empty()) {
            problems.push(missing("socket = \"..\"", format!("port {} has no socket", at + 1)));
        }
        if let Some(other) = earlier(ports, at, |port| listens(port).filter(|path| !path.as_os_str().is_empty())) {
            let what = "two ports listen on the same socket";
            problems.push(
                Problem::at(format!("port.{at}.socket"), what, "expected another path")
                    .other(format!("port.{other}.socket"), "first here"),
            );
        }
        if port.af_xdp.as_ref().is_some_and(|af_xdp| af_xdp.program.is_none() && af_xdp.program_section.is_some()) {
            let what = format!("port {} sets `program_section`, but not `program`", port.name);
            problems.push(Problem::at(format!("port.{at}.program_section"), what, "add `program = \"FILE\"`"));
        }
        if port.dpdk.as_ref().is_some_and(|dpdk| dpdk.device.is_empty()) {
            problems.push(missing("device = \"..\"", format!("port {} has no device", at + 1)));
        }
        if let Some(other) = earlier(ports, at, |port| port.interface.as_ref()) {
            let interface = port.interface.as_deref().unwrap_or_default();
            let what = format!("interface {interface} is listed twice");
            problems.push(
                Problem::at(format!("port.{at}.interface"), what, "expected another interface")
                    .other(format!("port.{other}.interface"), "first here"),
            );
        } else if let Some(other) = earlier(ports, at, |port| Some(&port.name).filter(|name| !name.is_empty())) {
            let what = format!("two ports are named {}", port.name);
            problems.push(
                Problem::at(format!("port.{at}.name"), what, "expected another name")
                    .other(format!("port.{other}.name"), "first here"),
            );
        }
        if let Some(other) = earlier(ports, at, |port| port.pcap.as_ref()?.record.as_ref()) {
            let what = "two ports record to the same file";
            problems.push(
                Problem::at(format!("port.{at}.record"), what, "expected another file")
                    .other(format!("port.{other}.record"), "first here"),
            );
        }
    }
}

/// Returns the names of the settings that differ from their defaults.
fn set(bridge: &BridgePortConfig) -> impl Iterator<Item = String> {
    let table = |bridge: &BridgePortConfig| toml::Table::try_from(bridge).unwrap_or_default();
    let defaults = table(&BridgePortConfig::default());
    table(bridge).into_iter().filter(move |(key, value)| defaults.get(key) != Some(value)).map(|(key, _)| key)
}

/// Checks for keys of another mode, and the settings of a switch's ports.
fn mode(config: &Config, problems: &mut Vec<Problem>) {
    let switch = config.mode == Mode::Switch;
    if !switch && !config.switch.is_default() {
        let what = format!("[switch] is not allowed with mode = \"{}\"", config.mode.name());
        problems.push(Problem::at("switch", what, "only with mode = \"switch\""));
    }
    let (router, kernel) = (RouterConfig::default(), KernelConfig::default());
    let of_router = [("router", config.router != router), ("kernel", config.kernel != kernel)];
    for (key, _) in of_router.into_iter().filter(|(_, given)| *given && config.mode != Mode::Router) {
        let what = format!("[{key}] is not allowed with mode = \"{}\"", config.mode.name());
        problems.push(Problem::at(key, what, "only with mode = \"router\""));
    }
    let local = config.ports.iter().find(|port| config.switch.local.as_ref() == Some(&port.name));
    if let Some(port) = local.filter(|port| port.kind != PortKind::Tap) {
        let what = format!("port {} is of kind \"{}\"", port.name, port.kind.name());
        problems.push(Problem::at("switch.local", what, "a port of kind \"tap\", or the name of a new one"));
    }
    for (at, port) in config.ports.iter().enumerate() {
        let path = |key: &str| format!("port.{at}.{key}");
        for key in set(&port.bridge).filter(|_| !switch) {
            let what = format!("`{key}` is not allowed with mode = \"{}\"", config.mode.name());
            problems.push(Problem::at(path(&key), what, "only with mode = \"switch\""));
        }
        if !switch {
            continue;
        }
        let BridgePortConfig { tag, trunks, mirror, .. } = &port.bridge;
        if tag.is_some() && trunks.is_some() {
            let what = format!("port {} is both an access port and a trunk", port.name);
            problems.push(Problem::at(path("trunks"), what, "expected one of the two").other(path("tag"), "its VLAN"));
        }
        if let Some(to) = mirror
            && (to == &port.name || !config.ports.iter().any(|other| &other.name == to))
        {
            let others = config.ports.iter().map(|other| other.name.as_str()).filter(|name| *name != port.name);
            let help = format!("the other ports: {}", others.collect::<Vec<_>>().join(", "));
            let what = format!("port {} cannot be mirrored to {to}", port.name);
            problems.push(Problem::at(path("mirror"), what, "expected the name of another port").help(help));
        }
    }
}

/// Checks the groups, flows and workers of a cable downstream.
fn groups(config: &Config, problems: &mut Vec<Problem>) {
    if config.mode != Mode::Cmts {
        let set = [
            ("cmts", "[cmts]", !config.cmts.is_default()),
            ("group", "[[group]]", !config.groups.is_empty()),
            ("profile", "[[profile]]", !config.profiles.is_empty()),
            ("flow", "[[flow]]", !config.flows.is_empty()),
        ];
        for (path, header, _) in set.iter().filter(|(.., set)| *set) {
            let what = format!("{header} is not allowed with mode = \"{}\"", config.mode.name());
            problems.push(Problem::at(*path, what, "only with mode = \"cmts\""));
        }
        return;
    }
    if config.cmts.channels.len() > CHANNELS_MAX {
        let what = format!("{} channels", config.cmts.channels.len());
        problems.push(Problem::at("cmts.channels", what, format!("expected at most {CHANNELS_MAX}")));
    }
    if config.groups.is_empty() {
        let example = "for each service group: [[group]], input = \"eth0\" and output = \"eth1\"";
        problems.push(Problem::at("", "no service group is configured", "").help(example));
    }
    let mut used: Vec<(&str, String)> = vec![];
    for (at, group) in config.groups.iter().enumerate() {
        for (key, port) in [("input", &group.input), ("output", &group.output)] {
            let path = format!("group.{at}.{key}");
            let names = || config.ports.iter().map(|port| port.name.as_str());
            if names().all(|name| name != port) {
                let expected = match nearest(port, names()) {
                    Some(name) => format!("did you mean {name}?"),
                    None => "expected the name of a [[port]]".into(),
                };
                problems.push(Problem::at(path, format!("unknown port {port}"), expected));
            } else if let Some((_, other)) = used.iter().find(|(name, _)| *name == port) {
                let what = format!("port {port} is used twice");
                problems.push(Problem::at(path, what, "expected another port").other(other.clone(), "first here"));
            } else {
                used.push((port, path));
            }
        }
    }
    for (at, port) in config.ports.iter().enumerate() {
        if used.iter().all(|(name, _)| *name != port.name) {
            let what = format!("port {} belongs to no group", port.name);
            problems.push(Problem::at(format!("port.{at}"), what, "name it as a group's input or output"));
        }
        if port.worker.set().is_some() {
            let what = "workers are fixed: the upper MAC polls the input, the lower MAC the output";
            problems.push(Problem::at(format!("port.{at}.worker"), what, "not with mode = \"cmts\""));
        }
    }
    if config.workers.count.set().is_some_and(|count| *count != 2 * config.groups.len()) {
        let what = format!(
            "{} for {}",
            text::count(config.workers.count.set().unwrap_or(&0), "worker"),
            text::count(config.groups.len(), "group")
        );
        problems.push(Problem::at("workers.count", what, "expected two per group, or no `count`"));
    }
    for (at, profile) in config.profiles.iter().enumerate() {
        if let Some(other) = config.profiles[..at].iter().position(|other| other.name == profile.name) {
            let what = format!("two profiles are named {}", profile.name);
            let problem = Problem::at(format!("profile.{at}.name"), what, "expected another name");
            problems.push(problem.other(format!("profile.{other}.name"), "first here"));
        }
    }
    let mut first = true;
    for (at, flow) in config.flows.iter().enumerate() {
        // The first flow takes what no other matches.
        if !flow.has_rule() && (flow.drop || !first) {
            let what = format!("flow {} has no classifier: it would match every packet", flow.name);
            problems.push(Problem::at(format!("flow.{at}"), what, "expected dscp, proto, a prefix or a port"));
        }
        first &= flow.drop;
        let mut wrong = |key: &str, what: &str, expected: &str| {
            let what = format!("flow {} {what}", flow.name);
            problems.push(Problem::at(format!("flow.{at}.{key}"), what, expected));
        };
        if flow.shape && flow.rate == 0 && flow.peak == 0 {
            wrong("shape", "has no rate to be shaped to", "expected `rate` or `peak`");
        }
        if flow.aqm == Aqm::Pie && !(flow.shape && flow.rate > 0) {
            wrong("aqm", "has no rate to estimate the delay by", "expected `shape = true` and `rate`");
        }
        if flow.rate > 0 && flow.reserved > flow.rate {
            wrong("reserved", "reserves more than its rate", "expected at most `rate`");
        }
        if flow.peak > 0 && flow.peak < flow.rate {
            wrong("peak", "has a peak below its rate", "expected at least `rate`");
        }
        if flow.burst > 0 && flow.burst < BURST_MIN {
            let expected = format!("expected 0, or at least {BURST_MIN}");
            wrong("burst", "has a burst shorter than the longest PDU", &expected);
        }
        if let Some(other) = config.flows[..at].iter().position(|other| other.name == flow.name) {
            let what = format!("two flows are named {}", flow.name);
            let problem = Problem::at(format!("flow.{at}.name"), what, "expected another name");
            problems.push(problem.other(format!("flow.{other}.name"), "first here"));
        }
    }
}

fn sizes(config: &Config, problems: &mut Vec<Problem>) {
    let cell = config.cell();
    let typewriter = config.pools.iter().position(PoolConfig::packed).map(|at| config.pool_path(at, "kind"));
    if let Some(kind) = typewriter.clone().filter(|_| CELLS.contains(&cell) && cell > CHUNK) {
        let what = format!("a pool of kind typewriter cannot have cells of {cell} bytes");
        problems.push(Problem::at(config.cell_path(), what, "expected 2048 or 4096").other(kind, "the pool"));
    }
    let by_buffer = |port: &PortConfig| matches!(port.kind, PortKind::AfXdp | PortKind::Dpdk);
    if let (Some(kind), Some(at)) = (typewriter, config.ports.iter().position(by_buffer)) {
        let who = if config.ports[at].kind == PortKind::Dpdk { "DPDK" } else { "AF_XDP" };
        let what =
            format!("a pool of kind typewriter puts several packets in a buffer; {who} needs a buffer for each packet");
        problems.push(
            Problem::at(kind, what, "expected another kind, such as `tabm`").other(format!("port.{at}"), "the port"),
        );
    }
    for (at, port) in config.ports.iter().enumerate() {
        let Some(af_xdp) = &port.af_xdp else { continue };
        if af_xdp.in_order && cell > CHUNK {
            let what = format!("in_order requires frames of one buffer: with cells of {cell} bytes, some have several");
            problems.push(
                Problem::at(format!("port.{at}.in_order"), what, "expected false")
                    .other(config.cell_path(), "the cell"),
            );
        }
        if af_xdp.zero_copy == ZeroCopy::Require && af_xdp.level == Level::Driver {
            let what = "the driver cannot forward what zero-copy sockets receive".to_owned();
            problems.push(
                Problem::at(format!("port.{at}.level"), what, "expected \"auto\" or \"user\"")
                    .other(format!("port.{at}.zero_copy"), "zero-copy"),
            );
        }
        if !af_xdp.spread.is_empty() {
            if af_xdp.spread.len() > PORT_CPUS {
                let path = format!("port.{at}.spread");
                let what = format!("{} CPUs are too many for port {}", af_xdp.spread.len(), port.name);
                problems.push(Problem::at(path, what, format!("expected at most {PORT_CPUS}")));
            }
            let (of_port, xdp, zero_copy) = (|key: &str| format!("port.{at}.{key}"), af_xdp.xdp, af_xdp.zero_copy);
            for (wrong, what, key) in [
                (xdp == XdpMode::Generic, "`spread` requires native XDP", of_port("xdp")),
                (
                    zero_copy == ZeroCopy::Require,
                    "the driver cannot forward what zero-copy sockets receive",
                    of_port("zero_copy"),
                ),
                (config.mode == Mode::Cmts, "a cmts does not forward in the driver", "mode".into()),
            ] {
                if wrong {
                    problems.push(
                        Problem::at(of_port("spread"), what.to_owned(), "expected no `spread`").other(key, "set here"),
                    );
                }
            }
        }
    }
}

fn workers(config: &Config, problems: &mut Vec<Problem>) {
    let (count, cpus) = (config.workers.count.set().copied(), config.workers.cpus.set());
    if let (Some(count), Some(cpus)) = (count, cpus)
        && cpus.len() < count
    {
        let what = format!("{} for {}", text::count(count, "worker"), text::count(cpus.len(), "CPU"));
        problems.push(
            Problem::at("workers.cpus", what, "expected a CPU for each worker").other("workers.count", "workers"),
        );
    }
    for (at, port) in config.ports.iter().enumerate() {
        let Some(of_queues) = port.worker.set() else { continue };
        if let (Some(count), Some(&highest)) = (count, of_queues.iter().max())
            && highest >= count
        {
            let what = format!("port {} names worker {highest} of {}", port.name, text::count(count, "worker"));
            let expected = format!("expected 0 to {}", count - 1);
            problems.push(Problem::at(format!("port.{at}.worker"), what, expected).other("workers.count", "workers"));
        }
        let queues = match port.af_xdp.as_ref().map(|port| &port.queues) {
            Some(Queues::All) => continue,
            Some(Queues::List(list)) => list.len(),
            None => 1,
        };
        if of_queues.len() > queues {
            let (workers, queues) = (text::count(of_queues.len(), "worker"), text::count(queues, "queue"));
            let what = format!("port {} names {workers} for {queues}", port.name);
            problems.push(Problem::at(format!("port.{at}.worker"), what, "expected at most one for each queue"));
        }
    }
}

fn on_host(config: &Config, host: &Host, problems: &mut Vec<Problem>) {
    let no_cpu = |path: String, cpu: &usize| {
        let expected = format!("this machine has {}", list(&host.cpus));
        Problem::at(path, format!("unknown CPU {cpu}"), expected)
    };
    for cpu in config.workers.cpus.set().into_iter().flatten().filter(|cpu| !host.cpus.contains(cpu)) {
        problems.push(no_cpu("workers.cpus".into(), cpu));
    }
    for (at, pool) in config.pools.iter().enumerate() {
        if let Some(cpu) = pool.cpu.filter(|cpu| !host.cpus.contains(cpu)) {
            problems.push(no_cpu(config.pool_path(at, "cpu"), &cpu));
        }
    }
    for (at, port) in config.ports.iter().enumerate() {
        if let Some(user) = port.af_xdp.as_ref().and_then(AfXdpConfig::user_program)
            && let Err(why) = user.check()
        {
            problems.push(Problem::at(format!("port.{at}.program"), why.to_string(), "expected an XDP program"));
        }
        let cpus = port.af_xdp.as_ref().map(|af_xdp| af_xdp.spread.as_slice()).unwrap_or_default();
        if let Some(cpu) = cpus.iter().find(|cpu| !host.cpus.contains(cpu)) {
            problems.push(no_cpu(format!("port.{at}.spread"), cpu));
        }
    }
    let api = &config.api;
    for (key, group) in [("api.group", &api.group), ("api.read_group", &api.read_group)] {
        if let Some(group) = group
            && group_id(group).is_none()
        {
            let expected = "not in /etc/group: expected a group name or number";
            problems.push(Problem::at(key, format!("unknown group {group}"), expected));
        }
    }
    for (at, port) in config.ports.iter().enumerate() {
        let peer = port.memif.as_ref().and_then(|memif| memif.peer.as_ref());
        if let Some(user) = peer.filter(|user| user_id(user).is_none()) {
            let expected = "not in /etc/passwd: expected a user name or number";
            problems.push(Problem::at(format!("port.{at}.peer"), format!("unknown user {user}"), expected));
        }
    }
    for (at, group) in config.groups.iter().enumerate() {
        let most = config.cell().saturating_sub(bywash_frame::DATA_OFFSET + bywash_wire::ethernet::HEADER_LEN);
        if let Some(depi) = group.depi.as_ref().filter(|depi| depi.mtu > most) {
            let what = format!("packets of {} bytes do not fit a cell of {} bytes", depi.mtu, config.cell());
            let problem = Problem::at(format!("group.{at}.depi.mtu"), what, format!("expected at most {most}"));
            problems.push(problem.other(config.cell_path(), "the cell"));
        }
        if let Err(WrongModems { key, what, expected }) = group.all_modems(config) {
            problems.push(Problem::at(format!("group.{at}.{key}"), what, expected));
        }
    }
    if let Some(file) = &config.switch.flows {
        let problem = |what: String, why: String| Problem::at("switch.flows", what, why);
        let names: Vec<String> = config.ports.iter().map(|port| port.name.clone()).collect();
        let of_name = |name: &str| script::port_number(&names, config.switch.local.as_deref(), name);
        match broker::read_to_string(file) {
            Err(why) => problems.push(problem(format!("cannot read {}", file.display()), why.to_string())),
            Ok(text) => {
                let file = file.display();
                match script::parse(&text, Verb::Add, &of_name) {
                    Err(ScriptError { line, error }) => {
                        problems.push(problem(format!("{file}:{line}:{}", error.column), error.what));
                    }
                    Ok(items) => {
                        problems.extend(
                            script::check(&items).err().map(|why| problem(format!("{file}: {why}"), String::new())),
                        );
                    }
                }
            }
        }
    }
    for (at, port) in config.ports.iter().enumerate() {
        if let Some(pcap) = &port.pcap
            && !pcap.file.as_os_str().is_empty()
            && let Err(why) = broker::open(&pcap.file)
        {
            let what = format!("cannot read {}", pcap.file.display());
            problems.push(Problem::at(format!("port.{at}.file"), what, why.to_string()));
        }
        let directory = port.pcap.as_ref().and_then(|pcap| pcap.record.as_ref()?.parent());
        if let Some(directory) = directory.filter(|directory| !directory.as_os_str().is_empty())
            && std::fs::metadata(directory).is_err_and(|why| why.kind() == std::io::ErrorKind::NotFound)
        {
            let what = format!("there is no directory {}", directory.display());
            problems.push(Problem::at(format!("port.{at}.record"), what, "expected a file in one that exists"));
        }
        if port.dpdk.is_some() && !host.dpdk {
            let expected = "build one with it: cargo build --release -p bywash --features dpdk";
            problems.push(Problem::at(format!("port.{at}.kind"), "this program was built without DPDK", expected));
        }
        if let Some(name) = creates(port, config.mode)
            && host.interface(name).is_some_and(|interface| interface.tap == Some(false))
        {
            let what = format!("{name} exists, and is no TAP interface");
            let expected = format!("expected a name that is free; `ip -d link show {name}` tells what it is");
            problems.push(Problem::at(format!("port.{at}.interface"), what, expected));
        }
        let (Some(name), Some(af_xdp)) = (&port.interface, &port.af_xdp) else { continue };
        let Some(interface) = host.interface(name) else {
            let names = || host.interfaces.iter().map(|interface| interface.name.as_str());
            let all = format!("it has {}", names().collect::<Vec<_>>().join(", "));
            let (expected, help) = match nearest(name, names()) {
                Some(name) => (format!("did you mean {name}?"), all),
                None => (all, String::new()),
            };
            let what = format!("no interface {name} in this network namespace");
            problems.push(Problem::at(format!("port.{at}.interface"), what, expected).help(help));
            continue;
        };
        // An invalid cell size has been reported already.
        let cell = Some(config.cell()).filter(|cell| CELLS.contains(cell));
        let room = cell.unwrap_or(usize::MAX) - bywash_frame::DATA_OFFSET;
        let too_large = interface.mtu.filter(|mtu| mtu + LINK_HEADER > room);
        if too_large.is_some() && name == "lo" {
            let expected = "expected an interface that leads to other machines";
            problems.push(Problem::at(format!("port.{at}.interface"), "lo is the loopback interface", expected));
        } else if let Some(mtu) = too_large {
            let what = format!("frames of {name} (MTU {mtu}) do not fit a cell of {} bytes", config.cell());
            let help = match cell_for(mtu) {
                Some(cell) => format!("set `cell = {cell}` in [pool]"),
                None => format!("lower its MTU: ip link set {name} mtu {}", room - LINK_HEADER),
            };
            let expected = format!("the largest MTU is {}", room - LINK_HEADER);
            problems.push(Problem::at(format!("port.{at}.interface"), what, expected).help(help));
        }
        if let (Queues::List(queues), Some(has)) = (&af_xdp.queues, interface.queues) {
            for queue in queues.iter().filter(|&&queue| queue >= has) {
                let what = format!("{name} has no queue {queue}");
                let expected = format!("it has {has}: 0 to {}", has.saturating_sub(1));
                problems.push(Problem::at(format!("port.{at}.queues"), what, expected));
            }
        }
    }
}

/// Returns the TAP interface that a port creates. A DPDK device may create its interface itself.
fn creates(port: &PortConfig, mode: Mode) -> Option<&str> {
    let twin = mode == Mode::Router && !matches!(port.kind, PortKind::AfXdp | PortKind::Dpdk);
    port.interface.as_deref().filter(|_| twin || port.is_tap())
}

/// Formats sorted CPU numbers as a list such as `0-3,6`.
fn list(cpus: &[usize]) -> String {
    let mut parts: Vec<(usize, usize)> = Vec::new();
    for &cpu in cpus {
        match parts.last_mut() {
            Some((_, last)) if *last + 1 == cpu => *last = cpu,
            _ => parts.push((cpu, cpu)),
        }
    }
    let part = |&(first, last): &(usize, usize)| {
        if first == last { first.to_string() } else { format!("{first}-{last}") }
    };
    parts.iter().map(part).collect::<Vec<_>>().join(",")
}
