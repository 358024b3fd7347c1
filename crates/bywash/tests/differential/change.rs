//! Changes of a router's configuration: their text as shell commands, and their application in batches, each by one
//! process.

use crate::topology::Side;
use std::collections::BTreeSet;
use std::fmt;
use std::io::Write;
use std::process::{Command, Stdio};

/// Command that changes a router; all but [`Change::Host`] run in the router's namespace.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Change {
    /// A line of `ip -batch`, in the router's namespace.
    Ip(String),
    /// A line of `ip -batch` in the hosts' namespace.
    Host(String),
    /// A line of `tc -batch`.
    Tc(String),
    /// A transaction of `nft -f`.
    Nft(String),
    /// A key under /proc/sys, with slashes, and its value.
    Sysctl(String, String),
    /// Another program and its arguments.
    Run(String),
}

impl fmt::Display for Change {
    /// Writes a line of shell. It uses the functions `r`, which runs a command in the router's namespace, and `h`,
    /// which runs one in the hosts' namespace.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(line) => write!(out, "r ip {line}"),
            Self::Host(line) => write!(out, "h ip {line}"),
            Self::Tc(line) => write!(out, "r tc {line}"),
            Self::Nft(text) => write!(out, "r nft '{text}'"),
            Self::Sysctl(key, value) => write!(out, "r sysctl -q -w {}={value}", key),
            Self::Run(line) => write!(out, "r {line}"),
        }
    }
}

/// Makes the changes in order. Returns for each whether it was accepted.
pub fn apply(side: &Side, changes: &[Change]) -> Vec<bool> {
    let mut taken = Vec::with_capacity(changes.len());
    for run in changes.chunk_by(|a, b| std::mem::discriminant(a) == std::mem::discriminant(b)) {
        let namespace = if matches!(run[0], Change::Host(_)) { &side.hosts } else { &side.router };
        taken.extend(namespace.enter(|| alike(run)).expect("entering a namespace"));
    }
    taken
}

/// Makes changes of one kind in the calling thread's namespace. Returns for each whether it was accepted.
fn alike(changes: &[Change]) -> Vec<bool> {
    let line = |change: &Change| match change {
        Change::Ip(line) | Change::Host(line) | Change::Tc(line) => line.clone(),
        _ => String::new(),
    };
    match &changes[0] {
        Change::Ip(_) | Change::Host(_) => {
            let lines: Vec<String> = changes.iter().map(line).collect();
            lines.chunk_by(|a, b| family(a).0 == family(b).0).flat_map(of_a_family).collect()
        }
        Change::Tc(_) => batch(&["tc"], changes.iter().map(line)),
        _ => changes.iter().map(one).collect(),
    }
}

/// Returns the option of `ip` that selects the family, and the rest of the line.
fn family(line: &str) -> (Option<&'static str>, &str) {
    let selected = ["-4", "-6"].into_iter().find_map(|option| Some((Some(option), line.strip_prefix(option)?)));
    selected.unwrap_or((None, line))
}

/// Makes changes by `ip` of one family, which is an option of the program: no line of a batch can have it.
fn of_a_family(lines: &[String]) -> Vec<bool> {
    let argv: Vec<&str> = ["ip"].into_iter().chain(family(&lines[0]).0).collect();
    batch(&argv, lines.iter().map(|line| family(line).1.to_owned()))
}

fn one(change: &Change) -> bool {
    match change {
        Change::Nft(text) => run(&["nft", "-f", "-"], text).0,
        Change::Sysctl(key, value) => std::fs::write(format!("/proc/sys/{key}"), value).is_ok(),
        Change::Run(line) => run(&line.split_whitespace().collect::<Vec<_>>(), "").0,
        Change::Ip(_) | Change::Host(_) | Change::Tc(_) => unreachable!("made in batches"),
    }
}

/// Runs the lines as one batch. Returns for each whether it was accepted: with `-force` a batch goes on after a
/// failure, and names the line that failed after the kernel's message. Where the tool itself refuses a line, it exits:
/// the lines behind that are another batch.
fn batch(tool: &[&str], lines: impl Iterator<Item = String>) -> Vec<bool> {
    // Fails behind each line, and so tells that the tool has come so far. A name that is too long for an interface's is
    // not looked up, nor has a module loaded for it.
    let behind = if tool[0] == "tc" {
        "qdisc show dev there-is-no-such-device"
    } else {
        "link show dev there-is-no-such-device"
    };
    let lines: Vec<String> = lines.collect();
    let mut taken = vec![];
    while taken.len() < lines.len() {
        let rest: String = lines[taken.len()..].iter().map(|line| format!("{line}\n{behind}\n")).collect();
        let said = run(&[tool, &["-force", "-batch", "-"]].concat(), &rest).1;
        let failed = said.lines().filter_map(|line| line.strip_prefix("Command failed -:"));
        let failed: BTreeSet<usize> = failed.map(|line| line.trim().parse().expect("a line number")).collect();
        let reached = failed.iter().filter(|at| **at % 2 == 0).count();
        taken.extend((0..reached).map(|line| !failed.contains(&(2 * line + 1))));
        if taken.len() < lines.len() {
            taken.push(false);
        }
    }
    taken
}

/// Runs a program to its end. Returns whether it succeeded, and its standard error.
fn run(argv: &[&str], input: &str) -> (bool, String) {
    let mut command = Command::new(argv[0]);
    command.args(&argv[1..]).env("LC_ALL", "C");
    let child = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
    let mut child = child.unwrap_or_else(|error| panic!("{argv:?}: {error}"));
    // A program that ends without reading its input is judged by its status.
    let _ = child.stdin.take().expect("a pipe").write_all(input.as_bytes());
    let output = child.wait_with_output().expect("waiting for a program");
    (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
}
