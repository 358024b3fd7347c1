//! Links and commands of the documentation: targets exist, and the program knows the options.

#[path = "docs/page.rs"]
mod page;

use page::{Documented, Page, blocks, commands, documented, is_placeholder, pages, root, spans};
use std::collections::BTreeMap;
use std::process::{Command, Stdio};

/// Returns the anchors that GitHub gives the headings of a page.
fn anchors(text: &str) -> Vec<String> {
    let mut used: BTreeMap<String, u32> = BTreeMap::new();
    let (prose, _) = blocks(text);
    let headings = prose.lines().filter_map(|line| {
        let heading = line.trim_start_matches('#');
        (heading.len() < line.len()).then(|| heading.strip_prefix(' ')).flatten()
    });
    let anchor = |heading: &str| {
        let kept = heading.trim().chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        let slug = kept.collect::<String>().to_lowercase().replace(' ', "-");
        let before = used.entry(slug.clone()).or_default();
        *before += 1;
        if *before == 1 { slug } else { format!("{slug}-{}", *before - 1) }
    };
    headings.map(anchor).collect()
}

/// Returns the targets of all links and images of a page.
fn targets(text: &str) -> Vec<String> {
    let (prose, _) = spans(&blocks(text).0);
    let inline = prose.split("](").skip(1).filter_map(|rest| rest.split([')', ' ']).next());
    let defined = prose.lines().filter(|line| line.starts_with('[')).filter_map(|line| line.split_once("]: "));
    inline.chain(defined.map(|(_, target)| target)).map(str::to_owned).collect()
}

/// Returns an error if a relative link leads nowhere.
fn follow(from: &str, target: &str) -> Result<(), &'static str> {
    if target.contains("://") || target.starts_with("mailto:") {
        return Ok(());
    }
    let (path, anchor) = target.split_once('#').map_or((target, None), |(path, anchor)| (path, Some(anchor)));
    let page = root().join(from);
    let file = if path.is_empty() { page } else { page.parent().unwrap().join(path) };
    let file = file.canonicalize().map_err(|_| "there is no such file")?;
    let Some(anchor) = anchor else {
        return file.starts_with(root()).then_some(()).ok_or("it leads out of the repository");
    };
    let text = std::fs::read_to_string(&file).map_err(|_| "only a page has anchors")?;
    anchors(&text).iter().any(|other| other == anchor).then_some(()).ok_or("there is no such heading")
}

#[test]
fn links_lead_somewhere() {
    let mut broken = vec![];
    for Page { name, text } in pages() {
        for target in targets(&text) {
            if let Err(why) = follow(&name, &target) {
                broken.push(format!("{name}: {target}: {why}"));
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn the_book_has_every_page_once() {
    let pages = pages();
    let summary = pages.iter().find(|page| page.name == "docs/SUMMARY.md").expect("a table of contents");
    let mut listed: Vec<String> = targets(&summary.text).iter().map(|target| format!("docs/{target}")).collect();
    listed.sort();
    let names = pages.iter().map(|page| page.name.clone()).filter(|name| name.starts_with("docs/"));
    let expected: Vec<String> = names.filter(|name| *name != summary.name).collect();
    assert_eq!(listed, expected);
}

#[test]
fn the_page_of_benchmarks_gives_ratios_with_their_ranges() {
    let mut python = Command::new("python3");
    let tests = python.args(["-B", "-m", "unittest", "test_page"]).current_dir(root().join("bench"));
    let done = tests.stdin(Stdio::null()).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

#[test]
fn counters_are_explained() {
    let text = std::fs::read_to_string(root().join("docs/counters.md")).unwrap();
    let reasons = bywash_engine::DROP_REASONS.iter().map(|reason| reason.name());
    let events = bywash_engine::EVENTS.iter().map(|event| event.name());
    let verdicts = bywash_port::af_xdp::REASONS.into_iter();
    let losses = bywash_api_server::answers::LOSSES.into_iter();
    for name in reasons.chain(events).chain(verdicts).chain(losses) {
        assert!(text.contains(&format!("\n| `{name}` | ")), "docs/counters.md lacks {name}");
    }
}

/// Returns what the program prints for a command line followed by `--help`, if it accepts the line.
fn help(args: &[&str]) -> Result<String, String> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bywash"));
    let out = command.args(args).arg("--help").stdin(Stdio::null()).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    if out.status.success() { Ok(text(out.stdout)) } else { Err(text(out.stderr)) }
}

/// Returns an error if the program does not know the subcommand or an option of these words, which follow its name. Of
/// an example, which has no placeholders, all words are parsed.
fn known(words: &[&str], example: bool) -> Result<(), String> {
    let is_option = |word: &&&str| word.starts_with('-') && word.len() > 1;
    let path = words.iter().take_while(|word| !is_option(word) && !is_placeholder(word)).count();
    let help = help(if example { words } else { &words[..path] })?;
    for option in words.iter().filter(is_option) {
        let option = option.split('=').next().unwrap();
        if !help.split(|c: char| c.is_whitespace() || ",[]=<>".contains(c)).any(|word| word == option) {
            return Err(format!("its help has no {option}"));
        }
    }
    Ok(())
}

#[test]
fn commands_have_options_that_the_program_knows() {
    let all = documented();
    let check = |line: &Documented| {
        let words: Vec<&str> = line.words.iter().map(String::as_str).collect();
        known(&words, line.example).err().map(|why| format!("{}: {words:?}: {why}", line.page))
    };
    let wrong: Vec<String> = all.iter().filter_map(check).collect();
    let examples = all.iter().filter(|line| line.example).count();
    let mentions = all.len() - examples;
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(examples > 30 && mentions > 50, "only {examples} examples and {mentions} mentions were found");
}

#[test]
fn what_is_wrong_is_found() {
    assert_eq!(anchors("# A `b`, c\n## a b c\n"), ["a-b-c", "a-b-c-1"]);
    assert!(follow("README.md", "docs/config.md#pool").is_ok());
    for target in ["docs/no.md", "docs/config.md#no", "#no", "../"] {
        assert!(follow("README.md", target).is_err(), "{target}");
    }
    assert_eq!(commands("a 'b c'|d; e # f"), [vec!["a", "b c"], vec!["d"], vec!["e"]]);
    assert!(known(&["show", "ports", "--watch", "1"], true).is_ok());
    for words in [&["shows"][..], &["show", "--wash"], &["run", "--mode", "swatch"]] {
        assert!(known(words, true).is_err(), "{words:?}");
    }
    assert!(known(&["show", "WHAT", "--schema"], false).is_ok());
    assert!(known(&["show", "WHAT", "--wash"], false).is_err());
}
