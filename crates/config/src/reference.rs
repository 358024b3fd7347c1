//! Markdown reference of all keys: docs/config.md.

use crate::keys::SECTIONS;
use std::fmt::Write;

const INTRODUCTION: &str = "\
# Configuration

<!-- Written by `bywash config reference`; a test compares the two. -->

`bywash run --config FILE` reads a TOML file; there is no default file. `bywash run IFACE...` is the same as a file
with one `[[port]]` for each interface and nothing else. Options of `bywash run` override the file.
`bywash config check FILE` reports every error in a file with line and column; `bywash show config` prints the
configuration of the running instance as a file that can be read again once its secrets, which are hidden, are
filled in.

```toml
[[port]]
interface = \"eth0\"

[[port]]
interface = \"eth1\"
```

Unknown keys, wrong types and invalid values are errors. `bywash reload` applies changes of ports, pools, `[kernel]`,
and `idle` and `cpus` of `[workers]`. All others take effect at the next start, and a reload refuses them: `mode`,
`sandbox`, `[api]`, `[router]`, `[switch]`, `count` and `counters` of `[workers]`, `cell`, `pages` and `reserve` of
`[pool]`, and most of a cable downstream ([user guide](user-guide.md#changing-the-configuration-while-it-runs)).
";

/// Returns the Markdown text of docs/config.md.
pub fn reference() -> String {
    let mut out = INTRODUCTION.to_string();
    for section in SECTIONS {
        let heading =
            if section.header.is_empty() { "Top of the file".into() } else { format!("`{}`", section.header) };
        // Writing to a String cannot fail.
        let _ = write!(out, "\n## {heading}\n\n{}\n", section.doc);
        for key in section.keys {
            let code = |text: &str| if text.starts_with('(') { text.to_string() } else { format!("`{text}`") };
            let _ = write!(out, "\n### `{}`\n\n{}\n\n", key.name, key.doc);
            let _ = writeln!(out, "- values: {}", key.takes);
            let _ = writeln!(out, "- default: {}", code(key.default));
            let _ = writeln!(out, "- example: `{} = {}`", key.name, key.example);
            if !key.unit.is_empty() {
                let _ = writeln!(out, "- unit: {}", key.unit);
            }
            if let Some(mode) = key.mode {
                let _ = writeln!(out, "- only with `mode = \"{}\"`", mode.name());
            }
            if !key.kinds.is_empty() {
                let kinds: Vec<_> = key.kinds.iter().map(|kind| format!("`{}`", kind.name())).collect();
                let _ = writeln!(out, "- only in ports of kind {}", kinds.join(", "));
            }
        }
    }
    out
}
