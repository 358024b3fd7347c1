//! Properties that hold for any configuration file, shared by the fuzz target and the test that replays its findings.

use bywash_config::{Config, Draft, HIDDEN};

/// Name of a property and its check.
pub type Target = (&'static str, fn(&[u8]));

/// All properties, by the names of their fuzz targets.
pub const TARGETS: [Target; 1] = [("config", config)];

/// Shortest secret that is looked for: others occur by chance.
const SECRET: usize = 8;

/// Checks that a file is refused with a message that has a position in it, or is the same after it is printed and read
/// again, and that no secret is printed.
pub fn config(data: &[u8]) {
    // No file of this machine is named.
    let Ok(text) = std::str::from_utf8(data).map(|text| text.replace(['/', '\\'], "_")) else { return };
    let config = match read(&text) {
        Ok(config) => config,
        Err(why) => {
            assert!(!why.trim().is_empty());
            return;
        }
    };
    let printed = toml::to_string(&config).expect("a configuration can be printed");
    let memif = config.ports.iter().filter_map(|port| Some(port.memif.as_ref()?.secret.expose()));
    for secret in memif.chain([config.api.metrics_token.expose()]).filter(|secret| secret.len() >= SECRET) {
        let told = format!("{config:?}\n{printed}");
        assert!(text.matches(secret.as_str()).count() > 1 || !told.contains(secret.as_str()), "{secret:?} in {told}");
    }
    if !printed.contains(HIDDEN) {
        let again = read(&printed).unwrap_or_else(|why| panic!("{text}\nis printed as\n{printed}\n{why}"));
        assert!(again == config, "{text}\nis printed as\n{printed}");
    }
}

fn read(text: &str) -> Result<Config, String> {
    Draft::text("fuzz.toml", text.into()).finish(None).map_err(|why| why.to_string())
}
