//! Loading of a configuration from a file, or from interfaces given on the command line.

use crate::check::check;
use crate::host::Host;
use crate::keys;
use crate::model::{Config, PoolConfig};
use crate::problem::{ConfigErrors, Problem, Source, nearest};
use crate::reader::Notes;
use crate::secret;
use std::path::Path;
use toml::de::{DeTable, DeValue};

/// Unchecked configuration, with the source of its values.
#[derive(Default)]
pub struct Draft {
    config: Config,
    source: Option<Source>,
    notes: Notes,
}

impl Draft {
    /// Returns the default configuration with a port on each interface.
    pub fn interfaces(interfaces: &[String]) -> Self {
        Self { config: Config::for_interfaces(interfaces), ..Self::default() }
    }

    /// Reads a configuration file.
    ///
    /// Errors if the file cannot be read; errors in its contents are reported by [`Draft::finish`].
    pub fn read(path: &Path) -> Result<Self, ConfigErrors> {
        let name = path.display().to_string();
        match bywash_port::broker::read_to_string(path) {
            Ok(text) => {
                let mut draft = Self::text(&name, text);
                draft.config.sources.push(path.into());
                Ok(draft)
            }
            Err(why) => {
                let what = format!("cannot read the configuration file {name}: {why}");
                Err(ConfigErrors::new(None, Default::default(), vec![Problem::at("", what, "")]))
            }
        }
    }

    /// Parses the text of a configuration file; `name` is its name in error messages.
    pub fn text(name: &str, text: String) -> Self {
        let mut notes = Notes::default();
        let (root, errors) = DeTable::parse_recoverable(&text);
        for error in &errors {
            let mut lines = error.message().lines();
            let what = lines.next().unwrap_or("not TOML").to_string();
            let span = error.span().or(Some(0..0));
            notes.problems.push(Problem { span, ..Problem::at("", what, lines.collect::<Vec<_>>().join(", ")) });
        }
        // The recovered part of a file with a syntax error would only cause spurious errors.
        if errors.is_empty() {
            document(root.get_ref(), &mut notes);
        }
        let config =
            if notes.problems.is_empty() { Self::values(&text, &mut notes.problems) } else { Config::default() };
        let secrets = if errors.is_empty() { notes.secrets.clone() } else { secret::anywhere(&text) };
        let text = secret::masked(&text, &secrets);
        Self { config, source: Some(Source { name: name.into(), text }), notes }
    }

    /// Returns the configuration of a file whose values are valid; the default if something that it refers to is not.
    fn values(text: &str, problems: &mut Vec<Problem>) -> Config {
        let config = toml::from_str(text).and_then(|mut file| {
            let sources = secret::resolve(&mut file, problems);
            if problems.is_empty() { Ok(Config { sources, ..Config::of(file)? }) } else { Ok(Config::default()) }
        });
        config.unwrap_or_else(|why| {
            problems.push(Problem::at("", format!("cannot read the configuration: {}", why.message()), ""));
            Config::default()
        })
    }

    /// Overrides a value from the command line; errors in it no longer refer to the file. `path` is the path of the
    /// value, such as `pool.frames`.
    pub fn set(&mut self, path: &str, change: impl FnOnce(&mut Config)) {
        change(&mut self.config);
        self.notes.spans.insert(path.into(), None);
    }

    /// Overrides a key of every pool from the command line.
    pub fn set_pools(&mut self, key: &str, change: impl Fn(&mut PoolConfig)) {
        for at in 0..self.config.pools.len() {
            self.set(&self.config.pool_path(at, key), |config| change(&mut config.pools[at]));
        }
    }

    /// Checks the configuration, also against `host` if there is one, and returns it.
    ///
    /// Errors with all problems found.
    pub fn finish(mut self, host: Option<&Host>) -> Result<Config, ConfigErrors> {
        // Other processes, with other working directories, learn these paths.
        let api = &mut self.config.api;
        for socket in [Some(&mut api.socket), api.read_socket.as_mut()].into_iter().flatten() {
            // Fails for an empty path, which is refused below.
            *socket = std::path::absolute(&*socket).unwrap_or_default();
        }
        // Checking a partially read configuration would report what the reader already has.
        let Notes { spans, mut problems, misfits, .. } = self.notes;
        let read = problems.is_empty();
        problems.extend(misfits);
        if read {
            check(&self.config, host, &mut problems);
        }
        if problems.is_empty() { Ok(self.config) } else { Err(ConfigErrors::new(self.source, spans, problems)) }
    }
}

/// Checks the tables and values of a document one by one.
fn document(root: &DeTable<'_>, notes: &mut Notes) {
    for (key, value) in root {
        let name = key.get_ref().as_ref();
        notes.spans.insert(name.into(), Some(value.span()));
        if let Some(key) = keys::TOP.key(name) {
            notes.value(name, &keys::TOP, key, &key.takes, value);
            continue;
        }
        let tables = || keys::SECTIONS.iter().filter(|section| !section.header.is_empty());
        let (what, expected) = match (tables().find(|section| section.name() == name), value.get_ref()) {
            (Some(section), DeValue::Table(table)) if !section.many() => {
                notes.table(name, section, table);
                continue;
            }
            (Some(section), DeValue::Array(list))
                if (section.many() || section.one_or_many()) && list.iter().all(|it| it.get_ref().is_table()) =>
            {
                for (at, (value, table)) in
                    list.iter().filter_map(|it| Some((it, it.get_ref().as_table()?))).enumerate()
                {
                    let single = section.one_or_many() && list.len() == 1;
                    let path = if single { name.into() } else { format!("{name}.{at}") };
                    notes.spans.insert(path.clone(), Some(value.span()));
                    notes.table(&path, section, table);
                }
                continue;
            }
            (Some(section), _) => {
                (format!("`{name}` is not a value but a table"), format!("write `{}`", section.header))
            }
            (None, _) => {
                let keys = keys::TOP.keys.iter().map(|key| key.name);
                let expected = match nearest(name, keys.chain(tables().map(|section| section.name()))) {
                    Some(name) => format!("did you mean `{name}`?"),
                    None => "not part of the configuration".into(),
                };
                (format!("unknown key or table `{name}`"), expected)
            }
        };
        let list = tables().map(|section| section.header).collect::<Vec<_>>().join(", ");
        let problem = Problem { span: Some(key.span()), ..Problem::at("", what, expected) };
        notes.problems.push(problem.help(format!("tables of the configuration: {list}")));
    }
}
