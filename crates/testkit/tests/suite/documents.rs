//! Requirements for the documents: a README that can be read in a minute, a book whose table of
//! contents is complete, links that are not dead, and decisions in one form.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// README and ARCHITECTURE.md are read as a whole, so each has a maximum length.
const MOST_LINES: usize = 150;
/// Readers skip longer paragraphs of the README.
const MOST_LINES_OF_A_PARAGRAPH: usize = 5;
/// Editors and reviews show a line of this length whole.
const MOST_CHARACTERS_OF_A_LINE: usize = 120;
/// Pages that `pollux lab report` writes.
const GENERATED: [&str; 2] = ["docs/results.md", "docs/papers.md"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the repository")
}

fn read(name: &str) -> String {
    fs::read_to_string(root().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Collects the Markdown files below `directory`, without the published runs, which are data.
fn pages(directory: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).expect("a directory of documents") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            if !path.ends_with("docs/runs") {
                pages(&path, into);
            }
        } else if path.extension().is_some_and(|end| end == "md") {
            into.push(path);
        }
    }
}

/// Returns the first lines of paragraphs that are too long. Tables, lists, quotations and code do not
/// count as paragraphs.
fn long_paragraphs(text: &str) -> Vec<&str> {
    let (mut long, mut paragraph, mut is_code) = (Vec::new(), Vec::new(), false);
    for line in text.lines().chain([""]) {
        if line.starts_with("```") {
            is_code = !is_code;
        }
        let is_text = !is_code
            && line.starts_with(|first: char| !"|-#<`>".contains(first) && !first.is_whitespace());
        if is_text {
            paragraph.push(line);
        } else {
            if paragraph.len() > MOST_LINES_OF_A_PARAGRAPH {
                long.push(paragraph[0]);
            }
            paragraph.clear();
        }
    }
    long
}

/// Returns the numbers of the lines that are too long. Tables, pictures, comments and code cannot be broken.
fn long_lines(text: &str) -> Vec<usize> {
    let mut is_code = false;
    let mut long = Vec::new();
    for (index, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        }
        let is_text = !is_code && !["|", "![", "<!--"].iter().any(|start| line.starts_with(start));
        if is_text && line.chars().count() > MOST_CHARACTERS_OF_A_LINE {
            long.push(index + 1);
        }
    }
    long
}

/// Returns the anchor that a forge and mdBook give to a heading.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().to_lowercase();
    let kept = kept.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// Returns the links in `text`, the content of `file`, to headings that do not exist.
fn dead_anchors(file: &Path, text: &str) -> Vec<String> {
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
    let with_anchor = targets.filter_map(|(target, _)| target.split_once('#'));
    let mut dead = Vec::new();
    for (path, wanted) in with_anchor.filter(|(path, _)| !path.contains("://")) {
        let page = if path.is_empty() {
            text.to_owned()
        } else {
            fs::read_to_string(file.parent().expect("a directory").join(path)).unwrap_or_default()
        };
        let mut headings = page.lines().filter(|line| line.starts_with('#'));
        if !headings.any(|line| anchor(line.trim_start_matches('#')) == wanted) {
            dead.push(format!("{}: {path}#{wanted}", file.display()));
        }
    }
    dead
}

/// Returns the parts that a page about a decision lacks.
fn faults_of_decision(text: &str) -> Vec<&'static str> {
    ["# ", "Date: ", "**Context.**", "**Decision.**", "**Consequences.**"]
        .into_iter()
        .filter(|part| !text.lines().any(|line| line.starts_with(part)))
        .collect()
}

/// Returns whether the list of decisions has a line with the title of this page.
fn lists_decision(list: &str, name: &str, page: &str) -> bool {
    let title = page.lines().next().and_then(|line| line.strip_prefix("# ")).unwrap_or_default();
    list.lines().any(|line| line == format!("- [{title}]({name})"))
}

#[test]
fn the_readme_and_the_map_are_short() {
    for name in ["README.md", "ARCHITECTURE.md"] {
        let lines = read(name).lines().count();
        assert!(lines <= MOST_LINES, "{name} has {lines} lines, at most {MOST_LINES} are allowed");
    }
    let long = long_paragraphs(&read("README.md")).join("\n");
    assert!(long.is_empty(), "README paragraphs of more than five lines begin with:\n{long}");
}

#[test]
fn no_line_of_a_document_is_too_long() {
    let names = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"];
    let mut files: Vec<PathBuf> = names.iter().map(|name| root().join(name)).collect();
    pages(&root().join("docs"), &mut files);
    let long: Vec<String> = files
        .iter()
        .filter(|file| !GENERATED.iter().any(|name| file.ends_with(name)))
        .flat_map(|file| {
            let text = fs::read_to_string(file).expect("a page");
            long_lines(&text).into_iter().map(move |line| format!("{}:{line}", file.display()))
        })
        .collect();
    let most = MOST_CHARACTERS_OF_A_LINE;
    assert!(long.is_empty(), "lines of more than {most} characters:\n{}", long.join("\n"));
}

#[test]
fn the_table_of_contents_lists_every_page() {
    let summary = read("docs/SUMMARY.md");
    let listed: BTreeSet<&str> = summary
        .split("](")
        .skip(1)
        .filter_map(|rest| rest.split_once(')'))
        .map(|it| it.0)
        .collect();
    let directory = root().join("docs");
    let mut found = Vec::new();
    pages(&directory, &mut found);
    let missing: Vec<String> = found
        .iter()
        .map(|path| path.strip_prefix(&directory).expect("below docs").display().to_string())
        // Decisions are listed on a page of their own.
        .filter(|name| !name.starts_with("decisions/") && name != "SUMMARY.md")
        .filter(|name| !listed.contains(name.as_str()))
        .collect();
    assert!(missing.is_empty(), "docs/SUMMARY.md does not list: {missing:?}");
}

#[test]
fn every_link_to_a_heading_finds_it() {
    let mut files = vec![root().join("README.md"), root().join("ARCHITECTURE.md")];
    pages(&root().join("docs"), &mut files);
    let dead: Vec<String> = files
        .iter()
        .flat_map(|file| dead_anchors(file, &fs::read_to_string(file).expect("a page")))
        .collect();
    assert!(dead.is_empty(), "dead links:\n{}", dead.join("\n"));
}

#[test]
fn every_decision_has_a_number_a_form_and_a_line_in_the_list() {
    let list = read("docs/decisions/README.md");
    let (mut numbers, mut wrong) = (BTreeSet::new(), Vec::new());
    let mut files = Vec::new();
    pages(&root().join("docs/decisions"), &mut files);
    for file in files.iter().filter(|file| !file.ends_with("README.md")) {
        let name = file.file_name().expect("a name").to_string_lossy().into_owned();
        let number = name.split('-').next().unwrap_or_default().to_owned();
        if number.len() != 4 || !numbers.insert(number) {
            wrong.push(format!("{name}: its number is not of its own, or has not four digits"));
        }
        let page = fs::read_to_string(file).expect("a page");
        if !lists_decision(&list, &name, &page) {
            wrong.push(format!("{name}: docs/decisions/README.md does not list it by its title"));
        }
        for part in faults_of_decision(&page) {
            wrong.push(format!("{name}: no line begins with {part:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Returns whether a page has this metric, and not only one whose name begins like it.
fn explains(page: &str, metric: &str) -> bool {
    page.match_indices(metric).any(|(at, _)| {
        let rest = &page[at + metric.len()..];
        let rest = rest.strip_prefix("_total").unwrap_or(rest);
        page[..at].ends_with('`') && rest.starts_with(['`', '{'])
    })
}

/// Returns the names of metrics among the texts of a source file, without its tests.
fn metrics(source: &str) -> impl Iterator<Item = &str> {
    let is_name = |text: &&str| {
        let is_ours = text.starts_with("pollux_") || text.starts_with("process_");
        is_ours && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')
    };
    let code = source.split("#[cfg(test)]").next().unwrap_or_default();
    code.split('"').filter(is_name)
}

#[test]
fn the_page_about_observing_explains_every_metric() {
    let page = read("docs/observing.md");
    let (mut folders, mut names) = (vec![root().join("crates/server/src/admin/web")], 0);
    let mut missing = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("the code of the metrics") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let source = fs::read_to_string(&path).expect("a source file");
            for name in metrics(&source) {
                names += 1;
                if !explains(&page, name) {
                    missing.push(name.to_owned());
                }
            }
        }
    }
    assert!(names > 40, "only {names} metrics were found");
    assert!(missing.is_empty(), "docs/observing.md does not explain: {missing:?}");
}

#[test]
fn the_check_of_the_books_links_can_fail() {
    let output = Command::new(root().join("scripts/book")).arg("--test").output();
    let output = output.expect("python3 is installed (apt-get install python3)");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn the_checks_of_documents_can_fail() {
    assert_eq!(long_paragraphs("a\nb\nc\nd\ne\nf\n\ng\n"), ["a"]);
    let (short, wide) = ("x".repeat(120), "ä".repeat(121));
    let text = format!("{short}\n{wide}\n| {wide}\n```\n{wide}\n```\n{wide}\n");
    assert_eq!(long_lines(&text), [2, 7]);
    let source = r#"counter("pollux_waits", "Waits.") gauge("process_x_bytes") "pollux_a 1" #[cfg(test)] "pollux_""#;
    assert_eq!(metrics(source).collect::<Vec<_>>(), ["pollux_waits", "process_x_bytes"]);
    let page = "| `pollux_waits_total`, `pollux_open{state}` |";
    assert!(explains(page, "pollux_waits") && explains(page, "pollux_open"));
    assert!(!explains(page, "pollux_wait") && !explains(page, "pollux_ope"));
    assert!(long_paragraphs("a\nb\n\n| a\n| b\n| c\n| d\n| e\n| f\n").is_empty());
    let page = "# One thing\n[a](#one-thing) [b](#another)";
    assert_eq!(dead_anchors(Path::new("docs/page.md"), page), ["docs/page.md: #another"]);
    assert_eq!(
        faults_of_decision("# 1. A\nDate: now\n**Context.** a\n**Decision.** b"),
        ["**Consequences.**"]
    );
    let list = "- [1. One thing](0001-one.md)";
    assert!(lists_decision(list, "0001-one.md", "# 1. One thing\n"));
    assert!(!lists_decision(list, "0001-one.md", "# 1. Another thing\n"));
    assert!(!lists_decision(list, "0002-two.md", "# 1. One thing\n"));
}
