//! Checks of style: the length of files, names of types, dead links, figures in the documents that are
//! in no published run, and paths of one machine.

use std::{
    collections::BTreeMap,
    fs,
    io::Read as _,
    path::{Path, PathBuf},
    process::Command,
    sync::{Arc, LazyLock, Mutex, PoisonError},
};

/// The maximum number of lines of a source file; longer files contain more than one idea.
const MAX_LINES: usize = 600;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().to_owned()
}

/// Returns every file that git tracks or would add, relative to the root.
fn files() -> Vec<PathBuf> {
    let output = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard", "-z"])
        .current_dir(root())
        .output()
        .expect("git lists the files");
    let names = String::from_utf8(output.stdout).expect("names are UTF-8");
    let files: Vec<_> = names
        .split_terminator('\0')
        .map(PathBuf::from)
        .filter(|file| root().join(file).is_file())
        .collect();
    assert!(files.len() > 20, "git listed only {} files: is this a checkout?", files.len());
    files
}

fn with_extension(extension: &str) -> impl Iterator<Item = (PathBuf, String)> + use<> {
    let extension = extension.to_owned();
    files().into_iter().filter_map(move |file| {
        (file.extension()? == extension.as_str()).then_some(())?;
        let text = fs::read_to_string(root().join(&file)).ok()?;
        Some((file, text))
    })
}

#[test]
fn no_source_file_holds_more_than_one_idea() {
    let mut long = Vec::new();
    for extension in ["rs", "c", "h"] {
        for (file, text) in with_extension(extension) {
            let lines = text.lines().count();
            if lines > MAX_LINES {
                long.push(format!("{} has {lines} lines", file.display()));
            }
        }
    }
    assert!(long.is_empty(), "split these (limit {MAX_LINES}):\n{}", long.join("\n"));
}

/// Words that no type may have as its name, each with the term of the field.
const OTHER_TERMS: [(&str, &str); 35] = [
    ("Ask", "command"),
    ("Asker", "command"),
    ("Bell", "notifier"),
    ("Board", "scoreboard"),
    ("Books", "accounting"),
    ("Desk", "resolver"),
    ("Door", "acceptor"),
    ("Errand", "background task"),
    ("Flight", "request coalescing"),
    ("Flights", "request coalescing"),
    ("Guard", "what it limits or protects"),
    ("Host", "handler"),
    ("Latecomers", "new registrations"),
    ("Letter", "upstream request"),
    ("Link", "upstream connection"),
    ("Local", "worker state"),
    ("Octet", "byte"),
    ("Outside", "reactor"),
    ("Place", "index, slot, position or location"),
    ("Places", "indices, slots, positions or locations"),
    ("Rope", "wakeup descriptor"),
    ("Seat", "slot"),
    ("Shelf", "memory tier"),
    ("Stage", "adapter"),
    ("Stamp", "timestamp or version"),
    ("Step", "phase"),
    ("Terms", "exchange terms"),
    ("Trouble", "error"),
    ("Troubles", "errors"),
    ("Turn", "request context or iteration"),
    ("Turns", "rotation"),
    ("Unit", "worker, or the quantity that it is a unit of"),
    ("Units", "workers"),
    ("Wake", "target"),
    ("World", "service context"),
];

/// Participles that were names of types. A noun says what a value of the type is.
const PARTICIPLES: [&str; 52] = [
    "Admitted",
    "Asked",
    "Built",
    "Counted",
    "Drawn",
    "Ended",
    "Entered",
    "Established",
    "Expected",
    "Given",
    "Held",
    "Inherited",
    "Interrupted",
    "Kept",
    "Known",
    "Laid",
    "Launched",
    "Lost",
    "Made",
    "Malformed",
    "Measured",
    "Missing",
    "NotTaken",
    "Observed",
    "Offered",
    "Ongoing",
    "Opened",
    "Opening",
    "Passed",
    "Passing",
    "Pending",
    "Planted",
    "Played",
    "Prepared",
    "Received",
    "Refused",
    "Reloaded",
    "Running",
    "Said",
    "Scripted",
    "Sealed",
    "Sealing",
    "Seen",
    "Sent",
    "Served",
    "Shared",
    "Shown",
    "Taken",
    "Timed",
    "Told",
    "Waiting",
    "Written",
];

/// Returns the name of the type that this line of Rust declares.
fn declared_type(line: &str) -> Option<&str> {
    let mut words = line.split_whitespace().skip_while(|word| {
        *word == "pub" || word.starts_with("pub(") || word.ends_with(')') || *word == "unsafe"
    });
    if !["enum", "struct", "trait", "type", "union"].contains(&words.next()?) {
        return None;
    }
    words.next()?.split(|c: char| !c.is_alphanumeric() && c != '_').next()
}

/// Returns the declarations in `text` whose names are in [`OTHER_TERMS`] or [`PARTICIPLES`].
fn misnamed(file: &Path, text: &str) -> Vec<String> {
    let advice = |name: &str| {
        let term = OTHER_TERMS.iter().find(|(other, _)| *other == name);
        let term = term.map(|(_, term)| format!("the term is {term}"));
        term.or_else(|| PARTICIPLES.contains(&name).then(|| "name it by a noun".into()))
    };
    let declarations = text.lines().enumerate().filter_map(|(index, line)| {
        let name = declared_type(line)?;
        Some(format!("{}:{}: {name}: {}", file.display(), index + 1, advice(name)?))
    });
    declarations.collect()
}

#[test]
fn types_are_named_by_nouns_of_the_field() {
    let wrong: Vec<_> =
        with_extension("rs").flat_map(|(file, text)| misnamed(&file, &text)).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_check_of_names_can_fail() {
    let misnamed = |text: &str| misnamed(Path::new("x.rs"), text).join("\n");
    let planted = "//! A file.\n\npub(crate) struct Place {\n    index: usize,\n}\n";
    assert_eq!(misnamed(planted), "x.rs:3: Place: the term is index, slot, position or location");
    let planted = "    pub(in crate::a) enum Held<T> {\n";
    assert_eq!(misnamed(planted), "x.rs:1: Held: name it by a noun");
    for planted in ["type Told = u8;", "pub unsafe trait Bell: Sized {", "union Seat {"] {
        assert_ne!(misnamed(planted), "", "{planted}");
    }
    let well_named = "struct PlaceHolder;\nlet place = Place;\n/// struct Place;\nimpl Held {}\n";
    assert_eq!(misnamed(well_named), "");
}

/// Returns the targets of `[text](target)` in `text`.
fn links(text: &str) -> impl Iterator<Item = &str> {
    text.split("](").skip(1).filter_map(|rest| rest.split_once(')').map(|(target, _)| target))
}

#[test]
fn no_link_between_the_documents_is_dead() {
    let mut dead = Vec::new();
    for (file, text) in with_extension("md") {
        for target in links(&text) {
            let path = target.split('#').next().unwrap_or("");
            if path.is_empty() || path.contains("://") {
                continue;
            }
            let directory = root().join(file.parent().unwrap_or(Path::new("")));
            if !directory.join(path).exists() {
                dead.push(format!("{}: {target}", file.display()));
            }
        }
    }
    assert!(dead.is_empty(), "dead links:\n{}", dead.join("\n"));
}

/// The keys of a run's JSON whose texts contain numbers: statements of claims, and quotations of a
/// paper with its figures.
const STATEMENTS: [&str; 4] = ["statement", "paper_says", "note", "reason"];

/// Collects all numbers in a JSON document, including those in the texts of its claims.
fn numbers(value: &serde_json::Value, into: &mut Vec<f64>) {
    match value {
        serde_json::Value::Number(number) => into.extend(number.as_f64()),
        serde_json::Value::Array(items) => items.iter().for_each(|item| numbers(item, into)),
        serde_json::Value::Object(map) => map.iter().for_each(|(key, item)| match item {
            serde_json::Value::String(text) if STATEMENTS.contains(&key.as_str()) => {
                let words = decimals(text).into_iter().map(str::to_owned).chain(wholes(text));
                into.extend(words.filter_map(|word| word.parse::<f64>().ok()));
            }
            _ => numbers(item, into),
        }),
        _ => {}
    }
}

/// Returns the numbers with a decimal point in one table row, as written.
fn decimals(row: &str) -> Vec<&str> {
    row.split(|c: char| !c.is_ascii_digit() && c != '.')
        .map(|word| word.trim_matches('.'))
        .filter(|word| word.split('.').count() == 2 && word.parse::<f64>().is_ok())
        .collect()
}

/// The server's default, which the pages name for each run and no run of an older version contains.
const DEFAULT_BACKLOG: &str = "backlog 4,096";

/// Smaller whole numbers are not checked: they count, name or number things, and every run contains
/// nearly all of them.
const MIN_WHOLE: f64 = 100.0;

/// Returns the whole numbers of at least [`MIN_WHOLE`] in one table row, without their separators of
/// thousands. Targets of links, pictures and code are no figures; nor are parts of words, dates and
/// versions.
fn wholes(row: &str) -> Vec<String> {
    visible(row)
        .split(|c: char| !c.is_alphanumeric() && !['.', ',', '-', '_'].contains(&c))
        .map(|word| word.trim_matches(['.', ',', '-', '_']))
        .filter(|word| {
            let mut groups = word.split(',');
            let is_number = |group: &str| group.bytes().all(|byte| byte.is_ascii_digit());
            groups.next().is_some_and(is_number)
                && groups.all(|group| is_number(group) && group.len() == 3)
        })
        .map(|word| word.replace(',', ""))
        .filter(|word| word.parse::<f64>().is_ok_and(|number| number >= MIN_WHOLE))
        .collect()
}

/// Returns the part of a row that is text on the page: no targets of links, no pictures, no code.
fn visible(row: &str) -> String {
    const HIDDEN: [(&str, &str); 3] = [("](", ")"), ("<img", ">"), ("`", "`")];
    let (mut text, mut rest) = (String::new(), row);
    loop {
        let first = HIDDEN.iter().filter_map(|(start, end)| Some((rest.find(start)?, start, end)));
        let Some((at, start, end)) = first.min_by_key(|(at, ..)| *at) else { break };
        let Some((_, after)) = rest[at + start.len()..].split_once(end) else { break };
        text.push_str(&rest[..at]);
        text.push(' ');
        rest = after;
    }
    text + rest
}

/// Returns whether some number of the run rounds to the written number: as it is, in thousands or, if
/// the written number has a decimal point, as a percentage. Signs are ignored, because a minus in a
/// row may also be a dash.
fn backed(written: &str, run: &[f64]) -> bool {
    let digits = written.split_once('.').map_or(0, |(_, fraction)| fraction.len());
    let Ok(wanted) = written.parse::<f64>() else { return false };
    // Nearly every whole number is a hundred times some ratio of a large run.
    let percentage = if digits == 0 { 1.0 } else { 100.0 };
    // Formatting is slow and runs are large, so numbers that are not near are skipped first.
    let near = 10_f64.powi(-i32::try_from(digits).unwrap_or(0));
    run.iter().map(|number| number.abs()).any(|number| {
        [number, number * percentage, number / 1000.0]
            .into_iter()
            .any(|number| (number - wanted).abs() < near && format!("{number:.digits$}") == written)
    })
}

/// Reads a run's JSON, which may be compressed, as `pollux lab archive` stores it.
fn read_run(path: &Path) -> Option<serde_json::Value> {
    let mut bytes = fs::read(path).ok()?;
    if path.extension()? == "gz" {
        let packed = std::mem::take(&mut bytes);
        flate2::read::GzDecoder::new(&*packed).read_to_end(&mut bytes).ok()?;
    }
    // `serde_json::from_reader` would read byte by byte, which takes a minute for all runs.
    serde_json::from_slice(&bytes).ok()
}

/// Returns the numbers of a published run. Each run is read only once, because several documents name
/// it and reading is slow.
fn numbers_of_run(name: &str) -> Option<Arc<Vec<f64>>> {
    static READ: LazyLock<Mutex<BTreeMap<String, Arc<Vec<f64>>>>> = LazyLock::new(Mutex::default);
    let mut read = READ.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(numbers) = read.get(name) {
        return Some(Arc::clone(numbers));
    }
    let mut all = Vec::new();
    numbers(&read_run(&root().join(name))?, &mut all);
    let all = Arc::new(all);
    read.insert(name.to_owned(), Arc::clone(&all));
    Some(all)
}

/// Returns the figures in `text` that no published run contains. In README and docs, the comment `<!--
/// figures: docs/runs/RUN/result.json.gz -->` precedes each table of measured figures; each number with a
/// decimal point and each whole number of at least [`MIN_WHOLE`] in the table must be in that file. A
/// table that has numbers with a decimal point, but not the comment, is also an error.
fn unbacked(file: &Path, text: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut run: Option<Vec<f64>> = None;
    let mut in_table = false;
    for (index, line) in text.lines().enumerate() {
        let at = format!("{}:{}", file.display(), index + 1);
        if let Some(name) =
            line.strip_prefix("<!-- figures: ").and_then(|rest| rest.strip_suffix(" -->"))
        {
            let mut all = Vec::new();
            for name in name.split(' ') {
                match numbers_of_run(name) {
                    Some(numbers) => all.extend_from_slice(&numbers),
                    None => wrong.push(format!("{at}: {name} is not a run's JSON")),
                }
            }
            run = Some(all);
            in_table = false;
        } else if line.starts_with('|') {
            in_table = true;
            for written in decimals(line) {
                match &run {
                    None => wrong.push(format!("{at}: {written} comes from no published run")),
                    Some(run) if !backed(written, run) => {
                        wrong.push(format!("{at}: {written} is not in the run named above it"));
                    }
                    Some(_) => {}
                }
            }
            for written in wholes(&line.replace(DEFAULT_BACKLOG, "")) {
                if run.as_ref().is_some_and(|run| !backed(&written, run)) {
                    wrong.push(format!("{at}: {written} is not in the run named above it"));
                }
            }
        } else if in_table {
            in_table = false;
            run = None;
        }
    }
    wrong
}

#[test]
fn every_figure_in_a_table_comes_from_a_published_run() {
    let wrong: Vec<String> = with_extension("md")
        // The published runs are data, the module's tables are about behaviour, and decisions quote
        // thresholds and the history of runs.
        .filter(|(file, _)| {
            !["docs/runs", "docs/decisions", "kmod"]
                .iter()
                .any(|directory| file.starts_with(directory))
        })
        .flat_map(|(file, text)| unbacked(&file, &text))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_check_of_figures_can_fail() {
    let invented = "| server | µs |\n|---|---|\n| pollux | 6.66 |\n";
    assert_eq!(unbacked(Path::new("x.md"), invented).len(), 1);
    let mut found = Vec::new();
    let claim = serde_json::json!({"paper_says": "7.15 % of the time", "command": "-z 0.25s"});
    numbers(&claim, &mut found);
    assert_eq!(found, [7.15], "the numbers of a claim without those of its command line");
    assert!(!backed("6.66", &[6.674]) && backed("6.67", &[6.674]) && backed("2.1", &[-0.0213]));
    assert!(!backed("153", &[1.53]) && backed("153", &[153_204.0]) && backed("14802", &[14_801.7]));
}

#[test]
fn whole_numbers_of_at_least_a_hundred_are_figures() {
    let row = "| [nginx 1.22.1](../2026-11-29-bench/) `--rate 500` | 14,802 B of 99 [217, 1,051] |";
    assert_eq!(wholes(row), ["14802", "217", "1051"]);
    let picture = "| <img src=\"a.svg\" width=\"200\"> 29-11-2026 x86_64 < 100 | 12,34 | > 99 |";
    assert_eq!(wholes(picture), ["100"]);
    assert_eq!(wholes("an unfinished `code 500"), ["500"]);
}

#[test]
fn a_packed_run_backs_figures_as_a_plain_one_does() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("result.json.gz");
    let file = fs::File::create(&path).unwrap();
    let mut packed = flate2::write::GzEncoder::new(file, flate2::Compression::fast());
    std::io::Write::write_all(&mut packed, br#"{"runs": [6.67, 14802]}"#).unwrap();
    packed.finish().unwrap();
    let table = |figure: &str| {
        let run = format!("<!-- figures: {} -->", path.display());
        unbacked(Path::new("x.md"), &format!("{run}\n| server |\n|---|\n| {figure} |\n"))
    };
    assert!(table("6.67").is_empty(), "{:?}", table("6.67"));
    assert_eq!(table("6.66").len(), 1);
    assert!(table("14,802 B").is_empty(), "{:?}", table("14,802 B"));
    assert_eq!(table("14,803 B"), ["x.md:4: 14803 is not in the run named above it"]);
}

#[test]
fn nothing_names_a_machine_or_a_host_of_packages() {
    let mut wrong = Vec::new();
    for file in files() {
        let Ok(text) = fs::read_to_string(root().join(&file)) else { continue };
        // Spelled in two halves, so that this file passes its own check. Cargo.lock names its
        // registry by cargo's own rule.
        let hosts = [concat!("deb.", "debian.org"), concat!("static.", "crates.io")];
        let paths = [concat!("/work", "/"), concat!("/root", "/.cargo")];
        for needle in hosts.iter().chain(&paths) {
            if text.contains(needle) {
                wrong.push(format!("{}: {needle}", file.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn make_help_lists_every_target() {
    let text = fs::read_to_string(root().join("Makefile")).unwrap();
    let output = Command::new("make").args(["-s", "help"]).current_dir(root()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let printed = String::from_utf8(output.stdout).unwrap();
    let described =
        text.lines().filter(|line| !line.starts_with(['\t', '#']) && line.contains("## "));
    let targets: Vec<_> = described.filter_map(|line| Some(line.split_once(':')?.0)).collect();
    assert!(targets.len() > 10, "{targets:?}");
    for target in targets {
        let is_listed = printed.lines().any(|line| line.split_whitespace().nth(1) == Some(target));
        assert!(is_listed, "make help does not list {target}:\n{printed}");
    }
    // Regression: the longest name reached the column of the descriptions, and its description began 24 columns later.
    for line in printed.lines() {
        let description = line["  make ".len()..].split_once(' ').unwrap().1.trim_start();
        assert_eq!(line.len() - description.len(), 26, "{line}");
    }
}

#[test]
fn make_takes_directories_whose_names_have_blanks() {
    if Command::new("make").arg("--version").output().is_err() {
        eprintln!("SKIPPED: there is no make");
        return;
    }
    const DIR: &str = "two words";
    let text = fs::read_to_string(root().join("Makefile")).unwrap();
    let mut target = "";
    let mut uses: Vec<(&str, &str)> = Vec::new();
    for line in text.lines() {
        match line.split_once(':') {
            Some((name, _)) if !line.starts_with(['\t', '#', '.']) => target = name,
            _ => {}
        }
        let taken = ["OUT", "BINARY"]
            .into_iter()
            .filter(|name| line.starts_with('\t') && line.contains(&format!("$({name})")));
        uses.extend(taken.map(|name| (target, name)));
    }
    uses.dedup();
    assert!(uses.len() > 6, "{uses:?}");
    for (target, name) in uses {
        // With `-n`, make prints the commands and does not run them.
        let mut make = Command::new("make");
        make.args(["-n", target, &format!("{name}={DIR}")]).current_dir(root());
        let output = make.output().unwrap();
        let printed = String::from_utf8(output.stdout).unwrap();
        assert!(printed.contains(DIR), "make {target} {name}=: {printed}");
        let bare = printed.replace(&format!("'{DIR}'"), "");
        assert!(!bare.contains(DIR), "make {target} {name}=: {printed}");
    }
}

/// If the marker stays, no package can start its service from then on. The script must remove the
/// marker however it ends.
#[test]
fn setup_arranges_to_take_its_marker_away_before_it_makes_it() {
    let text = fs::read_to_string(root().join("scripts/setup")).unwrap();
    let at = |part: &str| text.find(part).unwrap_or_else(|| panic!("{part} is not there"));
    assert!(at("\ntrap 'rm -f \"$log\" ${policy:-}' EXIT") < at(">$marker"));
}

/// Regression: the list lacked `image`.
#[test]
fn setup_names_every_argument_that_it_takes() {
    let text = fs::read_to_string(root().join("scripts/setup")).unwrap();
    let (_, list) = text.split_once("Possible arguments: ").unwrap();
    let (list, _) = list.split_once('"').unwrap();
    let named: Vec<_> = list.split(", ").collect();
    // The patterns of `case` have a line each.
    let is_word =
        |text: &&str| text.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-'));
    let patterns = text.lines().filter_map(|line| line.strip_prefix("        ")?.strip_suffix(')'));
    let taken: Vec<_> = patterns.filter(is_word).collect();
    assert!(taken.len() > 10, "{taken:?}");
    for argument in taken {
        assert!(named.contains(&argument), "{argument} is not in {named:?}");
    }
}

/// Regression: if the rules had a fault, the script ended before it had a server, and its directory stayed.
#[test]
fn test_metrics_leaves_no_directory() {
    let directory = tempfile::tempdir().unwrap();
    let (programs, temporary) = (directory.path().join("bin"), directory.path().join("tmp"));
    fs::create_dir(&programs).unwrap();
    fs::create_dir(&temporary).unwrap();
    let promtool = programs.join("promtool");
    pollux_testkit::write_program(&promtool, "#!/bin/sh\nexit 1\n");
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
    let mut script = Command::new(root().join("scripts/test-metrics"));
    let output = script.arg("true").env("PATH", path).env("TMPDIR", &temporary).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(fs::read_dir(&temporary).unwrap().count(), 0);
}
