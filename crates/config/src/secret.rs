//! Secrets in the configuration: given in the file, or named there and read from elsewhere; never printed.

use crate::key::Section;
use crate::keys::{SECRET_FROM, SECTIONS};
use crate::problem::Problem;
use crate::text::HIDDEN;
use serde::{Deserialize, Serialize, Serializer};
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Value that `Debug` and serialization hide.
#[derive(Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Secret<T>(T);

impl<T> Secret<T> {
    /// Creates a secret.
    pub fn new(value: T) -> Self {
        Self(value)
    }

    /// Returns the value, which must not be printed.
    pub fn expose(&self) -> &T {
        &self.0
    }
}

impl<T> fmt::Debug for Secret<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HIDDEN)
    }
}

impl<T> Serialize for Secret<T> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(HIDDEN)
    }
}

/// Returns true if a secret text is empty.
pub fn is_empty(secret: &Secret<String>) -> bool {
    secret.0.is_empty()
}

/// Replaces each secret that names a file or a credential by its contents, without a newline at their end. Adds a
/// problem for each that cannot be read or is not in the format of its key. Returns the files that were read.
pub fn resolve(file: &mut toml::Table, problems: &mut Vec<Problem>) -> Vec<PathBuf> {
    let mut sources = vec![];
    for section in SECTIONS {
        match file.get_mut(section.name()) {
            Some(toml::Value::Array(tables)) => {
                for (at, table) in tables.iter_mut().enumerate().filter_map(|(at, it)| Some((at, it.as_table_mut()?))) {
                    sources.extend(resolve_in(section, &format!("{}.{at}", section.name()), table, problems));
                }
            }
            Some(toml::Value::Table(table)) => sources.extend(resolve_in(section, section.name(), table, problems)),
            _ => {}
        }
    }
    sources
}

fn resolve_in(section: &Section, path: &str, table: &mut toml::Table, problems: &mut Vec<Problem>) -> Vec<PathBuf> {
    let mut sources = vec![];
    for key in section.keys {
        let Some(format) = key.takes.secret() else { continue };
        let Some(value) = table.get_mut(key.name) else { continue };
        let toml::Value::Table(from) = value else { continue };
        let directory = std::env::var_os("CREDENTIALS_DIRECTORY");
        match read(from, directory.as_deref().map(Path::new)) {
            // An empty secret would count as no secret.
            Ok((name, text)) if text.is_empty() => {
                let what = format!("{} is empty", name.display());
                problems.push(Problem::at(format!("{path}.{}", key.name), what, "expected a secret in its first line"));
            }
            Ok((name, text)) => match (format.check)(&text) {
                Ok(()) => {
                    *value = text.into();
                    sources.push(name);
                }
                Err(expected) => {
                    let what = format!("{} does not hold a valid `{}`", name.display(), key.name);
                    problems.push(Problem::at(format!("{path}.{}", key.name), what, expected));
                }
            },
            Err((what, expected)) => problems.push(Problem::at(format!("{path}.{}", key.name), what, expected)),
        }
    }
    sources
}

/// Returns the file that a secret comes from, and its text. Errors with what is wrong and what was expected.
fn read(from: &toml::Table, credentials: Option<&Path>) -> Result<(PathBuf, String), (String, String)> {
    let text = |key: &str| from.get(key).and_then(toml::Value::as_str);
    let path = match (text("file"), text("credential"), credentials) {
        (Some(file), None, _) => PathBuf::from(file),
        (None, Some(name), Some(directory)) => directory.join(name),
        (None, Some(name), None) => {
            let what = format!("no credential \"{name}\": $CREDENTIALS_DIRECTORY is not set");
            return Err((what, format!("run by systemd with LoadCredential={name}:PATH, or set it for a check")));
        }
        _ => return Err(("a secret comes from one place".into(), "expected either `file` or `credential`".into())),
    };
    match bywash_port::broker::read_to_string(&path) {
        Ok(text) => Ok((path, text.trim_end_matches(['\n', '\r']).to_owned())),
        Err(why) => Err((format!("cannot read {}", path.display()), why.to_string())),
    }
}

/// Returns the text of a configuration file with the secrets at `spans` masked, without changing any position.
pub fn masked(text: &str, spans: &[Range<usize>]) -> String {
    let mut bytes = text.as_bytes().to_vec();
    for span in spans {
        let hidden = bytes[span.clone()].iter_mut();
        // Every byte of a character, and no line break, so that lines keep their numbers.
        hidden.filter(|byte| !matches!(byte, b'\n' | b'\r' | b'"' | b'\'')).for_each(|byte| *byte = b'*');
    }
    String::from_utf8(bytes).unwrap_or_default()
}

/// Returns the positions of all values in a file that is not TOML, in which a secret could be anywhere; none if no key
/// of a secret is in it.
pub fn anywhere(text: &str) -> Vec<Range<usize>> {
    let secrets = SECTIONS.iter().flat_map(|section| section.keys).filter(|key| key.takes.secret().is_some());
    if !secrets.map(|key| key.name).any(|name| has_key(text, name)) {
        return vec![];
    }
    let mut start = 0;
    let value = |line: &str| {
        let (at, end) = (start, start + line.len());
        start = end;
        let table = line.trim_start().starts_with('[') && !line.contains('=');
        // A line without a key may be one of several of a string.
        (!table).then(|| at + line.find('=').map_or(0, |key| key + 1)..end)
    };
    text.split_inclusive('\n').filter_map(value).collect()
}

/// Returns true if a key has this name, quoted or not.
fn has_key(text: &str, name: &str) -> bool {
    text.match_indices(name).any(|(at, _)| {
        let part_of_a_word = |c: char| c.is_alphanumeric() || c == '_' || c == '-';
        let behind = text[at + name.len()..].trim_start_matches(['"', '\'']).trim_start();
        !text[..at].ends_with(part_of_a_word) && behind.starts_with('=')
    })
}

impl crate::key::Takes {
    /// Returns the format of a secret; `None` if the key is not for one.
    pub fn secret(&self) -> Option<&'static crate::text::Format> {
        match self {
            Self::Either(Self::Text(format), Self::Table(from)) if std::ptr::eq(*from, &SECRET_FROM) => Some(format),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::Draft;

    fn errors(text: &str) -> String {
        Draft::text("a.toml", text.into()).finish(None).map(|_| String::new()).unwrap_or_else(|why| why.to_string())
    }

    fn memif(secret: &str) -> String {
        format!("[[port]]\nname = \"m\"\nkind = \"memif\"\nsocket = \"/run/m\"\nsecret = {secret}\n")
    }

    #[test]
    fn nothing_prints_a_secret() {
        let text = memif("\"sesame\"");
        let config = Draft::text("a.toml", text).finish(None).unwrap();
        assert_eq!(config.ports[0].memif.as_ref().unwrap().secret.expose(), "sesame");
        for printed in
            [format!("{config:?}"), serde_json::to_string(&config).unwrap(), toml::to_string(&config).unwrap()]
        {
            assert!(!printed.contains("sesame") && printed.contains(HIDDEN), "{printed}");
        }
        let long = "sesame-sesame-sesame-sesame";
        for wrong in [
            memif(&format!("\"{long}\"")),
            // Errors beside it, some of which make the file invalid TOML.
            memif("\"sesame\" sesame"),
            memif("\"sesame\nid = 1"),
            memif("\"\"\"\nsesame\"\"\" x"),
            memif("\"sesame\" x").replace("secret", "\"secret\""),
            memif("\"sesame\"").replace("secret", "sercet"),
            memif("{ value = \"sesame\" }"),
            format!("port = [{{ kind = \"memif\", secret = \"{long}\" }}]"),
            "port = [{ kind = \"memif\", secret = \"sesame\" ]".into(),
            "port = [{ interface = \"e0\", secret = \"sesame\" }]".into(),
        ] {
            let said = errors(&wrong);
            assert!(!said.is_empty() && !said.contains("sesame"), "{said}");
        }
        let said = errors("mode = \"cmts\"\n[[group]]\nkey = \"2b7e15\"\n");
        assert!(said.contains("expected 32 hex digits") && !said.contains("2b7e15"), "{said}");
    }

    #[test]
    fn a_secret_comes_from_a_file_or_a_credential() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("key");
        std::fs::write(&path, "sesame\n").unwrap();
        let from = |text: &str| toml::from_str::<toml::Table>(text).unwrap();
        let file = from(&format!("file = \"{}\"", path.display()));
        assert_eq!(read(&file, None).unwrap().1, "sesame");
        let credential = from("credential = \"key\"");
        assert_eq!(read(&credential, Some(directory.path())).unwrap().1, "sesame");
        assert!(read(&credential, None).unwrap_err().1.contains("LoadCredential=key:PATH"));
        assert!(read(&from(""), None).unwrap_err().1.contains("either"));
        assert!(read(&from("file = \"/nowhere\""), None).unwrap_err().0.contains("/nowhere"));
        let named = memif(&format!("{{ file = \"{}\" }}", path.display()));
        let config = Draft::text("a.toml", named.clone()).finish(None).unwrap();
        assert_eq!(config.ports[0].memif.as_ref().unwrap().secret.expose(), "sesame");
        assert_eq!(config.files().read, [path.as_path()], "a reload reads it again");
        assert_eq!(config.files().sockets.last().unwrap(), Path::new("/run/m"));
        std::fs::write(&path, "sesame-sesame-sesame-sesame").unwrap();
        let said = errors(&named);
        assert!(said.contains("expected at most 24 bytes") && !said.contains("sesame"), "{said}");
    }

    #[test]
    fn what_was_hidden_or_is_empty_is_no_secret() {
        assert!(errors(&memif("\"(secret)\"")).contains("it is hidden here"));
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("key");
        std::fs::write(&path, "\n").unwrap();
        let said = errors(&memif(&format!("{{ file = \"{}\" }}", path.display())));
        assert!(said.contains("is empty"), "{said}");
    }

    #[test]
    fn masks_keep_positions() {
        let text = "[[port]]\nkey = \"añb\"\n# x\n";
        let hidden = masked(text, &anywhere(text));
        assert_eq!(hidden, "[[port]]\nkey =*\"****\"\n***\n");
        assert_eq!(hidden.len(), text.len());
        assert!(anywhere("keys = 1\ndrive = 2\n[port]\n").is_empty());
    }
}
