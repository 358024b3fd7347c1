//! Pages of the documentation, and the command lines in them.

use std::path::{Path, PathBuf};

pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// A page, by its path from the root.
pub struct Page {
    pub name: String,
    pub text: String,
}

/// Returns the pages in the root, `docs`, `crates` and `bench`, in the order of their names.
pub fn pages() -> Vec<Page> {
    let mut pages = vec![];
    for (directory, deep) in [("", false), ("docs", true), ("crates", true), ("bench", true)] {
        collect(&root().join(directory), deep, &mut pages);
    }
    pages.sort_by(|a, b| a.name.cmp(&b.name));
    pages
}

fn collect(directory: &Path, deep: bool, pages: &mut Vec<Page>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let entry = entry.unwrap();
        let path = entry.path();
        // Symbolic links are not followed.
        if entry.file_type().unwrap().is_dir() {
            if deep {
                collect(&path, deep, pages);
            }
        } else if path.extension().is_some_and(|extension| extension == "md") {
            let name = path.strip_prefix(root()).unwrap().to_str().unwrap().to_owned();
            pages.push(Page { name, text: std::fs::read_to_string(&path).unwrap() });
        }
    }
}

/// A page's text without fenced blocks, and the blocks with their languages.
pub fn blocks(text: &str) -> (String, Vec<(&str, String)>) {
    let (mut prose, mut blocks) = (String::new(), vec![]);
    let mut block: Option<(&str, String)> = None;
    for line in text.lines() {
        match (&mut block, line.trim_start().strip_prefix("```")) {
            (None, Some(language)) => block = Some((language, String::new())),
            (Some(_), Some(_)) => blocks.extend(block.take()),
            (Some((_, code)), None) => *code += &format!("{line}\n"),
            (None, None) => prose += &format!("{line}\n"),
        }
    }
    assert!(block.is_none(), "a block has no end:\n{text}");
    (prose, blocks)
}

/// The text without code spans, and the spans. A span ends with its paragraph at the latest.
pub fn spans(prose: &str) -> (String, Vec<String>) {
    let (mut rest, mut spans) = (String::new(), vec![]);
    for paragraph in prose.split("\n\n") {
        let mut parts = paragraph.split('`');
        rest += parts.next().unwrap_or_default();
        while let (Some(code), after) = (parts.next(), parts.next()) {
            spans.push(code.split_whitespace().collect::<Vec<_>>().join(" "));
            rest += after.unwrap_or_default();
        }
        rest += "\n\n";
    }
    (rest, spans)
}

/// Splits a command line into the words of its commands, as a shell does: quotes, comments, pipes, lists, `$(..)`.
pub fn commands(line: &str) -> Vec<Vec<String>> {
    let mut commands = vec![vec![]];
    let mut word: Option<String> = None;
    let mut quote = None;
    for c in line.chars().chain(['\n']) {
        match (quote, c) {
            (Some(open), _) if c == open => quote = None,
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, '#') if word.is_none() => break,
            (None, _) if c.is_whitespace() || "|;&()".contains(c) => {
                commands.last_mut().unwrap().extend(word.take());
                if !c.is_whitespace() {
                    commands.push(vec![]);
                }
            }
            _ => word.get_or_insert_default().push(c),
        }
    }
    commands.retain(|command| !command.is_empty());
    commands
}

/// Command line of the program in a page: its words after the program's name.
pub struct Documented {
    pub page: String,
    pub words: Vec<String>,
    /// True for a line of an example, false for one that the text mentions.
    pub example: bool,
}

/// Returns the command lines of the program in all pages except the list of changes.
pub fn documented() -> Vec<Documented> {
    let mut all = vec![];
    for Page { name, text } in pages().into_iter().filter(|page| page.name != "CHANGELOG.md") {
        let mut add = |words: &[&str], example| {
            if let ["bywash", words @ ..] = words {
                let words = words.iter().map(|word| (*word).to_owned()).collect();
                all.push(Documented { page: name.clone(), words, example });
            }
        };
        let (prose, blocks) = blocks(&text);
        for (_, code) in blocks.into_iter().filter(|(language, _)| *language == "console") {
            let code = code.replace("\\\n", " ");
            for command in code.lines().filter_map(|line| line.strip_prefix("$ ")).flat_map(commands) {
                let words: Vec<&str> = command.iter().map(String::as_str).skip_while(|word| *word == "sudo").collect();
                add(&words, true);
            }
        }
        for span in spans(&prose).1 {
            let span = span.replace(['[', ']'], " ");
            if span.contains(['\'', '"']) {
                for command in commands(&span) {
                    add(&command.iter().map(String::as_str).collect::<Vec<_>>(), false);
                }
            } else {
                add(&span.split_whitespace().collect::<Vec<_>>(), false);
            }
        }
    }
    all
}

/// Returns whether a word stands for others.
pub fn is_placeholder(word: &str) -> bool {
    word.contains(|c: char| c.is_uppercase() || "|[<*.…".contains(c))
}
