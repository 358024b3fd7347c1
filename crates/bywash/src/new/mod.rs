//! `bywash new`: creates a project based on Bywash's crates.

use crate::cli::new::{NewAppArgs, NewArgs};
use crate::stdout::stdout;
use anyhow::{Context as _, bail};
use std::io::Write;
use std::path::{Path, PathBuf};

/// Source of the new application; the workspace also builds and runs it as an example.
const MAIN: &str = include_str!("app.rs");
const MANIFEST: &str = include_str!("Cargo.toml.in");
const IGNORED: &str = "/target\n";
const VENDORED: &str = "\
# Bywash's dependencies are installed with it: building needs no network. Without this file they, and those that you add,
# come from crates.io.
[source.crates-io]
replace-with = \"bywash\"
[source.bywash]
directory = {{vendor}}
";

/// Crates that a new application uses, with their directories in the sources.
const CRATES: [(&str, &str); 4] =
    [("engine", "crates/engine"), ("frame", "crates/frame"), ("kit", "crates/kit"), ("lab", "lab")];

/// Installed sources, from the directory of the program; the build leaves them at the same place.
const INSTALLED: &str = "../share/bywash/src";

pub fn run(args: &NewArgs) -> anyhow::Result<()> {
    match args {
        NewArgs::App(args) => app(args),
    }
}

fn app(args: &NewAppArgs) -> anyhow::Result<()> {
    let directory = PathBuf::from(&args.name);
    let sources = match &args.crates {
        Some(sources) => sources.clone(),
        None => installed(&std::env::current_exe().context("cannot find this program")?)?,
    };
    let files = files(&args.name, &std::path::absolute(sources)?)?;
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
    let mut out = stdout();
    writeln!(out, "{}: created; its stages are in src/main.rs", args.name)?;
    writeln!(out, "  cd {} && cargo build && sudo target/debug/{}", args.name, args.name)?;
    Ok(writeln!(out, "builds it and runs it between two hosts in a lab of network namespaces")?)
}

/// Returns the sources installed with `program`.
fn installed(program: &Path) -> anyhow::Result<PathBuf> {
    let sources = program.parent().map(|bin| bin.join(INSTALLED)).unwrap_or_default();
    sources.canonicalize().map_err(|_| {
        anyhow::anyhow!(
            "no sources of Bywash's crates in {}: build with `make`, install with `make install` or the Debian package, or \
             name a checkout by --crates",
            sources.display()
        )
    })
}

/// Returns the files of a new project that takes Bywash's crates from the directory `sources`.
fn files(name: &str, sources: &Path) -> anyhow::Result<Vec<(&'static str, String)>> {
    let mut crates = String::new();
    for (name, place) in CRATES {
        let path = sources.join(place);
        if !path.join("Cargo.toml").is_file() {
            bail!("{} has no {place}: --crates expects a directory with Bywash's sources", sources.display());
        }
        crates += &format!("bywash-{name} = {{ path = {:?} }}\n", path.display().to_string());
    }
    let manifest = MANIFEST.replace("{{name}}", name).replace("{{crates}}\n", &crates);
    let mut files = vec![("Cargo.toml", manifest), ("src/main.rs", MAIN.into()), (".gitignore", IGNORED.into())];
    // The versions that Bywash was built with.
    if let Ok(lock) = std::fs::read_to_string(sources.join("Cargo.lock")) {
        files.push(("Cargo.lock", lock));
    }
    let vendor = sources.join("vendor");
    if vendor.is_dir() {
        files.push((
            ".cargo/config.toml",
            VENDORED.replace("{{vendor}}", &format!("{:?}", vendor.display().to_string())),
        ));
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crates_come_from_a_directory() {
        let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let files = files("hello", &repository).unwrap();
        let (name, manifest) = &files[0];
        assert_eq!(*name, "Cargo.toml");
        assert!(manifest.contains("name = \"hello\"") && manifest.contains("bywash-lab = { path = \"/"), "{manifest}");
        assert!(files.iter().all(|(_, text)| !text.contains("git = ")), "{files:?}");
        assert!(files.iter().any(|(name, _)| *name == "Cargo.lock"), "{files:?}");
    }

    #[test]
    fn no_crates_are_an_error() {
        let wrong = super::files("hello", Path::new("/nosuch")).unwrap_err().to_string();
        assert!(wrong.contains("/nosuch has no crates/engine"), "{wrong}");
        let wrong = installed(Path::new("/nosuch/bin/bywash")).unwrap_err().to_string();
        assert!(wrong.contains("/nosuch/bin/../share/bywash/src") && wrong.contains("make install"), "{wrong}");
    }
}
