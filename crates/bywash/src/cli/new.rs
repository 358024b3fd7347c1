//! Arguments of `bywash new`.

use clap::{Args, Subcommand};
use std::path::PathBuf;

#[derive(Debug, Subcommand)]
pub enum NewArgs {
    /// Create an application: a program that builds and forwards packets in a lab
    App(NewAppArgs),
}

/// `bywash new app`
#[derive(Debug, Args)]
pub struct NewAppArgs {
    /// Name of the project and of the directory created for it
    #[arg(value_name = "NAME", value_parser = name)]
    pub name: String,

    /// Directory with Bywash's sources to build against  [default: those installed with this program]
    #[arg(long, value_name = "DIR")]
    pub crates: Option<PathBuf>,
}

/// Maximum length of a project name in bytes.
const LONGEST: usize = 64;

/// Validates a project name: accepted by cargo as a package name, and not beginning with `bywash`.
fn name(text: &str) -> Result<String, String> {
    let good = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '-' || letter == '_';
    let begins = text.starts_with(|first: char| first.is_ascii_lowercase());
    if !begins || !text.chars().all(good) || text.len() > LONGEST || text.starts_with("bywash") {
        return Err(format!(
            "a name must begin with a lower-case letter and consist of lower-case letters, digits, `-` and `_`, at most {LONGEST}; \
             names beginning with `bywash` are reserved"
        ));
    }
    Ok(text.into())
}
