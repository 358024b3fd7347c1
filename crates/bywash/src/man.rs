//! Manual pages and shell completions generated from the clap definition.

use crate::cli::Cli;
use crate::stdout::stdout;
use anyhow::Context;
use clap::CommandFactory;
use clap_complete::Shell;
use std::io::Write;
use std::path::Path;

/// Prints the completion script of a shell.
pub fn completion(shell: Shell) -> anyhow::Result<()> {
    let mut out = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "bywash", &mut out);
    Ok(stdout().write_all(&out)?)
}

/// Prints bywash(1).
pub fn print() -> anyhow::Result<()> {
    Ok(stdout().write_all(&page(command())?)?)
}

/// Writes bywash.1, bywash-run.1 and so on into a directory, which it creates if needed, and prints their paths. Hidden
/// commands have no page.
pub fn write(directory: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(directory).with_context(|| format!("cannot create {}", directory.display()))?;
    let mut stdout = stdout();
    let mut commands = vec![command()];
    while let Some(command) = commands.pop() {
        commands.extend(command.get_subcommands().filter(|command| !command.is_hide_set()).cloned());
        let name = command.get_display_name().unwrap_or(command.get_name()).to_string();
        let path = directory.join(format!("{name}.1"));
        std::fs::write(&path, page(command)?).with_context(|| format!("cannot write {}", path.display()))?;
        writeln!(stdout, "{}", path.display())?;
    }
    Ok(())
}

/// Returns the command definition with every subcommand's full name and without `help`, which needs no page.
fn command() -> clap::Command {
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    command
}

fn page(command: clap::Command) -> anyhow::Result<Vec<u8>> {
    let name = command.get_display_name().unwrap_or(command.get_name()).to_string();
    let man = clap_mangen::Man::new(command)
        .title(name.to_uppercase())
        .section("1")
        .source(concat!("bywash ", env!("CARGO_PKG_VERSION")))
        .manual("Bywash");
    let mut out = Vec::new();
    man.render(&mut out)?;
    Ok(out)
}
