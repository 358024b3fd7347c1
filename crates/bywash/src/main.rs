//! The `bywash` program: the command line and the commands that look at a running instance.

#![forbid(unsafe_code)]

mod capture;
mod cli;
mod demo;
mod docsis;
mod doctor;
mod error;
mod log;
mod man;
mod namespace;
mod new;
mod profile;
mod restore;
mod show;
mod stdout;
mod tester;
mod top;
mod trace;
mod web;

use bywash_api as api;
use bywash_config as config;
use bywash_daemon::Source;
use bywash_flow::script as flows;
use clap::Parser;
use cli::{Cli, Command, ConfigCommand, RunArgs};
use config::{Config, ConfigErrors, Draft, Host};
use std::io::Write;
use std::process::ExitCode;
use stdout::stdout;

fn main() -> ExitCode {
    log::panic_hook();
    let done = log::printing(|| dispatch(Cli::parse()));
    log::flush();
    match done {
        Ok(Ok(())) => ExitCode::SUCCESS,
        Ok(Err(error)) => error::report(&error),
        Err(unprinted) => unprinted,
    }
}

fn dispatch(cli: Cli) -> anyhow::Result<()> {
    let default = if matches!(cli.command, Command::Run(_)) { "info" } else { "warn" };
    log::init(cli.log.as_deref(), default)?;
    match cli.command {
        Command::Run(args) => {
            if let (Some(file), Some(first)) = (&args.config, args.interfaces.first()) {
                let (file, names) = (file.display(), args.interfaces.join(" "));
                let what = format!(
                    "`run` takes interfaces from the command line or from --config: put {names} into {file}, each as a \
                     [[port]] table with `interface = \"{first}\"`, or leave out --config"
                );
                return Err(error::Usage(what).into());
            }
            let (file, take_over) = (args.config.is_some(), args.takeover);
            let source = Source { read: Box::new(move |awaited| configure(&args, awaited)), file };
            bywash_daemon::run(source, take_over, log::write_from_thread)
        }
        Command::Reload(args) => show::reload(&args),
        Command::Show(args) => show::run(&args),
        Command::Top(args) => top::run(&args),
        Command::Web(args) => web::run(&args),
        Command::Capture(args) => capture::run(&args),
        Command::Trace(args) => trace::run(&args),
        Command::Level(args) => show::level(&args),
        Command::Profile(args) => profile::run(&args),
        Command::Flow(args) => show::flow(&args),
        Command::Config(ConfigCommand::Check { file, skip_host_checks }) => {
            let config = Draft::read(&file)?.finish((!skip_host_checks).then(Host::this).as_ref())?;
            let ports: Vec<&str> = config.ports.iter().map(|port| port.name.as_str()).collect();
            Ok(writeln!(stdout(), "{}: good, ports {}", file.display(), ports.join(", "))?)
        }
        Command::Config(ConfigCommand::Reference) => Ok(stdout().write_all(config::reference().as_bytes())?),
        Command::Config(ConfigCommand::Schema) => Ok(writeln!(stdout(), "{:#}", config::schema())?),
        Command::Doctor(args) => doctor::run(&args),
        Command::Restore(args) => restore::run(args.json),
        Command::New(args) => new::run(&args),
        Command::Demo(args) => demo::run(args),
        Command::Gen(args) => tester::generate(&args),
        Command::Rfc2544(args) => tester::rfc2544(&args),
        Command::Bench(args) => bywash_bench::run(args),
        Command::Docsis(args) => docsis::run(args),
        Command::Completion { shell } => man::completion(shell),
        Command::Man { out: None } => man::print(),
        Command::Man { out: Some(directory) } => man::write(&directory),
        Command::Broker => bywash_daemon::broker(),
        Command::Version => Ok(writeln!(stdout(), "bywash {}", env!("CARGO_PKG_VERSION"))?),
    }
}

/// Returns the configuration that the arguments name: the file or the interfaces, with the options on top, after the
/// checks. It may name the `awaited` interfaces, although they are gone.
fn configure(args: &RunArgs, awaited: Vec<String>) -> Result<Config, ConfigErrors> {
    let mut draft = match &args.config {
        Some(file) => Draft::read(file)?,
        None => Draft::interfaces(&args.interfaces),
    };
    if let Some(mode) = args.mode {
        draft.set("mode", |config| config.mode = mode);
    }
    if args.no_sandbox {
        draft.set("sandbox", |config| config.sandbox = config::Sandbox::Off);
    }
    if let Some(file) = &args.flows {
        draft.set("switch.flows", |config| config.switch.flows = Some(file.clone()));
    }
    if let Some(count) = &args.workers {
        draft.set("workers.count", |config| config.workers.count = count.clone());
    }
    if let Some(cpus) = &args.cpus {
        draft.set("workers.cpus", |config| {
            config.workers.cpus = cpus.set().map_or(config::Auto::Auto, |list| config::Auto::Set(list.0.clone()));
        });
    }
    if let Some(kind) = args.pool {
        draft.set_pools("kind", |pool| pool.kind = config::Auto::Set(kind));
    }
    if let Some(frames) = &args.frames {
        draft.set_pools("frames", |pool| pool.frames = frames.clone());
    }
    if let Some(pages) = args.pages {
        draft.set("pool.pages", |config| config.common_pool_mut().pages = pages);
    }
    if let Some(zero_copy) = args.zero_copy {
        each_af_xdp(&mut draft, |port| port.zero_copy = zero_copy);
    }
    if let Some(level) = args.level {
        each_af_xdp(&mut draft, |port| port.level = level);
    }
    if let Some(cpus) = &args.spread {
        each_af_xdp(&mut draft, |port| port.spread = cpus.0.clone());
    }
    if let Some(transmit) = args.transmit {
        each_af_xdp(&mut draft, |port| port.transmit = transmit);
    }
    if let Some(xdp) = args.xdp {
        each_af_xdp(&mut draft, |port| port.xdp = xdp);
    }
    if let Some(idle) = args.idle {
        draft.set("workers.idle", |config| config.workers.idle = idle);
    }
    if let Some(socket) = &args.socket {
        draft.set("api.socket", |config| config.api.socket = socket.clone());
    }
    draft.finish(Some(&Host::this().awaiting(awaited)))
}

/// Changes a setting of every AF_XDP port.
fn each_af_xdp(draft: &mut Draft, set: impl FnMut(&mut config::AfXdpConfig)) {
    draft.set("", |config| config.ports.iter_mut().filter_map(|port| port.af_xdp.as_mut()).for_each(set));
}
