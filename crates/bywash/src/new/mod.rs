//! `bywash new`: creates a project based on Bywash's crates.

use crate::cli::new::{NewAppArgs, NewArgs};
use anyhow::{Context as _, bail};
use std::io::Write;
use std::path::{Path, PathBuf};

/// Source of the new application; the workspace also builds and runs it as an example.
const MAIN: &str = include_str!("app.rs");
const MANIFEST: &str = include_str!("Cargo.toml.in");
const IGNORED: &str = "/target\n";

/// Crates that a new application uses, with their directories in the repository.
const CRATES: [(&str, &str); 4] =
    [("engine", "crates/engine"), ("frame", "crates/frame"), ("kit", "crates/kit"), ("lab", "lab")];

pub fn run(args: &NewArgs) -> anyhow::Result<()> {
    match args {
        NewArgs::App(args) => app(args),
    }
}

fn app(args: &NewAppArgs) -> anyhow::Result<()> {
    let directory = PathBuf::from(&args.name);
    let source = source(args.crates.as_deref())?;
    let files =
        [("Cargo.toml", manifest(&args.name, &source)), ("src/main.rs", MAIN.into()), (".gitignore", IGNORED.into())];
    if let Err(why) = std::fs::create_dir(&directory) {
        if why.kind() == std::io::ErrorKind::AlreadyExists {
            bail!("{} already exists: choose another name, or move it away", directory.display());
        }
        return Err(why).with_context(|| format!("cannot create {}", directory.display()));
    }
    for (name, text) in files {
        let path = directory.join(name);
        let made = path.parent().map_or(Ok(()), std::fs::create_dir_all).and_then(|()| std::fs::write(&path, text));
        made.with_context(|| format!("cannot write {}", path.display()))?;
    }
    let mut out = std::io::stdout();
    writeln!(out, "{}: created; its stages are in src/main.rs", args.name)?;
    writeln!(out, "  cd {} && cargo build && sudo target/debug/{}", args.name, args.name)?;
    Ok(writeln!(out, "builds it and runs it between two hosts in a lab of network namespaces")?)
}

/// Returns the source of each crate, as written in Cargo.toml.
fn source(crates: Option<&Path>) -> anyhow::Result<Vec<(&'static str, String)>> {
    let Some(repository) = crates else {
        let from = format!("git = \"{}\", tag = \"v{}\"", env!("CARGO_PKG_REPOSITORY"), env!("CARGO_PKG_VERSION"));
        return Ok(CRATES.map(|(name, _)| (name, from.clone())).into());
    };
    let repository = std::path::absolute(repository)?;
    let of = |(name, place): (&'static str, &str)| {
        let path = repository.join(place);
        if !path.join("Cargo.toml").is_file() {
            bail!("{} has no {place}: --crates expects a directory with Bywash's sources", repository.display());
        }
        Ok((name, format!("path = {:?}", path.display().to_string())))
    };
    CRATES.into_iter().map(of).collect()
}

fn manifest(name: &str, source: &[(&str, String)]) -> String {
    let line = |(name, from): &(&str, String)| format!("bywash-{name} = {{ {from} }}\n");
    MANIFEST.replace("{{name}}", name).replace("{{crates}}\n", &source.iter().map(line).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crates_by_path_or_by_version() {
        let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let text = manifest("hello", &source(Some(&repository)).unwrap());
        assert!(text.contains("name = \"hello\"") && text.contains("bywash-lab = { path = \"/"), "{text}");
        let text = manifest("hello", &source(None).unwrap());
        assert!(text.contains("bywash-kit = { git = \"https://") && text.contains("tag = \"v"), "{text}");
        let wrong = source(Some(Path::new("/nosuch"))).unwrap_err().to_string();
        assert!(wrong.contains("/nosuch has no crates/engine"), "{wrong}");
    }
}
