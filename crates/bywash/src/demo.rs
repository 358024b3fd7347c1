//! `bywash demo`.

use crate::cli::DemoArgs;

/// Builds host - router - host, tries it out, and removes it.
pub fn run(args: DemoArgs) -> anyhow::Result<()> {
    anyhow::bail!("no demo of {} s: this build has no router", args.seconds)
}
