//! Tests that the program accepts every command line in its help and in the documents.

mod shown;

use crate::Cli;
use clap::{Command, CommandFactory, error::ErrorKind};
use shown::{ExampleCommand, shown, words};
use std::{
    fs,
    path::{Path, PathBuf},
};

/// Parses the command, and also a `pollux` command that it runs in a guest.
fn parse(shown: &ExampleCommand) -> Result<(), clap::Error> {
    Cli::command().try_get_matches_from(&shown.words)?;
    let inner = shown.words.iter().position(|word| word == "--").map(|at| &shown.words[at + 1..]);
    match inner {
        Some(inner) if inner.first().is_some_and(|name| name == "pollux") => {
            Cli::command().try_get_matches_from(inner).map(drop)
        }
        _ => Ok(()),
    }
}

fn check(all: &[ExampleCommand], is_fault: impl Fn(ErrorKind) -> bool) {
    let faults: Vec<String> = all
        .iter()
        .filter_map(|shown| parse(shown).err().map(|error| (shown, error)))
        .filter(|(_, error)| is_fault(error.kind()))
        .map(|(shown, error)| format!("{}\n  {}", shown.source, error.render()))
        .collect();
    assert!(faults.is_empty(), "{} faults\n{}", faults.len(), faults.join("\n"));
}

/// Calls `visit` for each command that has no subcommands, with its full name.
fn each_command(command: &Command, name: &str, visit: &mut impl FnMut(&str, &Command)) {
    let name = format!("{name} {}", command.get_name());
    let mut subcommands = command.get_subcommands().filter(|c| c.get_name() != "help").peekable();
    if subcommands.peek().is_none() {
        visit(name.trim(), command);
    }
    for subcommand in subcommands {
        each_command(subcommand, &name, visit);
    }
}

#[test]
fn every_commands_help_has_examples_that_it_takes() {
    let mut count = 0;
    each_command(&Cli::command(), "", &mut |name, command| {
        let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        let examples: Vec<ExampleCommand> =
            help.lines().filter_map(|line| shown(name, line)).collect();
        assert!(!examples.is_empty(), "{name} --help has no examples");
        for example in &examples {
            // A command that runs in the guest of another command counts as an example, too.
            let line = example.words.join(" ");
            let is_own = line.starts_with(name) || line.contains(&format!(" -- {name} "));
            assert!(is_own, "an example of another command: {}", example.source);
        }
        check(&examples, |_| true);
        count += examples.len();
    });
    assert!(count >= 20, "only {count} examples were found");
}

/// Collects the pages of the book. Published runs and decisions keep the commands of their time.
fn pages(directory: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).expect("a directory of documents") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            if !path.ends_with("runs") && !path.ends_with("decisions") {
                pages(&path, into);
            }
        } else if path.extension().is_some_and(|end| end == "md") {
            into.push(path);
        }
    }
}

/// Returns whether the command is a hub that cannot start: its subscribers have no key and are not anonymous.
fn lacks_a_key(words: &[String]) -> bool {
    let has = |flags: &[&str]| words.iter().any(|word| flags.contains(&word.as_str()));
    // `pollux serve --hub` alone names the flag in a sentence.
    words.len() > 3
        && has(&["--hub"])
        && !has(&["--hub-anonymous", "--hub-jwt-key", "--hub-jwks", "--config"])
}

/// Joins each line that ends in a backslash with the line after it, as a shell does.
fn joined(text: &str) -> String {
    text.split("\\\n").map(str::trim).collect::<Vec<_>>().join(" ")
}

#[test]
fn the_documents_show_only_what_the_program_takes() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut documents = vec![
        root.join("README.md"),
        root.join("CHANGELOG.md"),
        root.join("CONTRIBUTING.md"),
        root.join("kmod/devpoll/README.md"),
        root.join("crates/cli/README.md"),
        root.join("crates/lab/README.md"),
    ];
    pages(&root.join("docs"), &mut documents);
    let (mut blocks, mut inline) = (Vec::new(), Vec::new());
    for path in documents {
        let text = joined(&fs::read_to_string(&path).expect("a document"));
        let source = path.strip_prefix(&root).unwrap_or(&path).display().to_string();
        let mut is_block = false;
        for line in text.lines() {
            if line.trim_start().starts_with("```") {
                is_block = !is_block;
            } else if is_block {
                blocks.extend(shown(&source, line));
            } else {
                // Every second piece is between backticks.
                let spans = line.split('`').skip(1).step_by(2);
                inline.extend(spans.filter_map(|span| shown(&source, span)));
            }
        }
    }
    assert!(blocks.len() >= 40, "only {blocks:?}");
    assert!(inline.len() >= 3, "only {inline:?}");
    check(&blocks, |_| true);
    // In a sentence, arguments may be omitted or stand for values (NAME).
    check(&inline, |kind| {
        matches!(kind, ErrorKind::UnknownArgument | ErrorKind::InvalidSubcommand)
    });
    let keyless = blocks.iter().chain(&inline).filter(|shown| lacks_a_key(&shown.words));
    let keyless: Vec<&str> = keyless.map(|shown| shown.source.as_str()).collect();
    assert!(keyless.is_empty(), "hubs that do not start:\n{}", keyless.join("\n"));
}

#[test]
fn what_the_program_does_not_take_is_a_fault() {
    for line in [
        "pollux serve site --no-such-flag",
        "$ ./target/release/pollux lode http://a/",
        "pollux vm -- pollux serve site --no-such-flag",
        "pollux load http://a/ --rate many   # a comment",
        "# pollux serve --listen :80 --no-such-flag",
    ] {
        let line = shown("here", line).expect("a command line");
        assert!(parse(&line).is_err(), "{line:?}");
    }
    assert!(lacks_a_key(&words("pollux serve site --hub --workers 2")));
    assert!(!lacks_a_key(&words("pollux serve site --hub --hub-jwt-key key")));
    assert!(!lacks_a_key(&words("pollux serve --hub")));
    assert!(shown("here", "polluxed").is_none());
    let line = "pollux doctor --json | jq '.a | b'   and more";
    assert_eq!(words(line), ["pollux", "doctor", "--json"]);
    assert_eq!(joined("pollux a \\\n    --b c\nd\n"), "pollux a --b c\nd");
    assert_eq!(words("a 'b  c' \"\" d  explained"), ["a", "b  c", "", "d"]);
}
