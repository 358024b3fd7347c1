//! `bywash new`, as it is asked for.

use clap::{Args, Subcommand};
use std::path::PathBuf;

#[derive(Debug, Subcommand)]
pub enum NewArgs {
    /// An application of one's own: a program that builds, and forwards in a lab
    App(NewAppArgs),
}

/// `bywash new app`
#[derive(Debug, Args)]
pub struct NewAppArgs {
    /// The project's name, and the directory that is made for it here
    #[arg(value_name = "NAME", value_parser = name)]
    pub name: String,

    /// Use the crates in this directory with Bywash's sources, instead of those of this version from its repository
    #[arg(long, value_name = "DIR")]
    pub crates: Option<PathBuf>,
}

/// Longest name of a project.
const LONGEST: usize = 64;

/// A name that cargo takes for a package.
fn name(text: &str) -> Result<String, String> {
    let good = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '-' || letter == '_';
    let begins = text.starts_with(|first: char| first.is_ascii_lowercase());
    if !begins || !text.chars().all(good) || text.len() > LONGEST || text.starts_with("bywash") {
        return Err(format!(
            "a name begins with a lower-case letter and has such letters, digits, `-` and `_`, at most {LONGEST}; \
             `bywash..` are taken"
        ));
    }
    Ok(text.into())
}
