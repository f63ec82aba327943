//! Snapshots of every `--help` at 80 columns, so that a review shows each change; and tests that
//! the book has every flag and every key.

use crate::Cli;
use clap::{Command, CommandFactory};

/// The examples of these commands have longer lines, which clap breaks.
const GENERATOR: [&str; 2] = ["pollux-load", "pollux-idle"];

/// Calls `visit` for `command` and all commands below it, with the full name.
fn each(command: &mut Command, name: &str, visit: &mut impl FnMut(&str, &mut Command)) {
    visit(name, command);
    for subcommand in command.get_subcommands_mut() {
        if subcommand.get_name() != "help" {
            let name = format!("{name}-{}", subcommand.get_name());
            each(subcommand, &name, visit);
        }
    }
}

/// Returns the pages of the book as one text. Published runs and decisions, which are below them, explain no flags.
fn pages() -> String {
    let docs = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs");
    let mut text = String::new();
    for entry in std::fs::read_dir(docs).expect("the book") {
        let path = entry.expect("an entry").path();
        if path.extension().is_some_and(|end| end == "md") {
            text.push_str(&std::fs::read_to_string(&path).expect("a page"));
        }
    }
    text
}

/// Returns whether the text has this flag, and not only longer ones that begin with it.
fn names(text: &str, flag: &str) -> bool {
    text.match_indices(flag).any(|(at, _)| {
        let next = text[at + flag.len()..].chars().next();
        !next.is_some_and(|c| c.is_ascii_alphanumeric() || c == '-')
    })
}

#[test]
fn the_book_has_every_flag() {
    let text = pages();
    let (mut count, mut missing) = (0, Vec::new());
    each(&mut Cli::command(), "pollux", &mut |name, command| {
        // This command makes files for packagers, and has a help of its own.
        if name.starts_with("pollux-generate") {
            return;
        }
        for argument in command.get_arguments().filter(|argument| !argument.is_hide_set()) {
            let Some(flag) = argument.get_long() else { continue };
            count += 1;
            if !["help", "version"].contains(&flag) && !names(&text, &format!("--{flag}")) {
                missing.push(format!("{name} --{flag}"));
            }
        }
    });
    assert!(count > 150, "only {count} flags");
    assert!(missing.is_empty(), "no page of docs/ has {missing:?}");
}

#[test]
fn the_page_about_configuration_files_has_every_key() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/configuration.md");
    let page = std::fs::read_to_string(page).expect("the page");
    let root = Cli::command();
    let serve = root.find_subcommand("serve").expect("the command");
    let shown = serve.get_arguments().filter(|argument| !argument.is_hide_set());
    // The flags that are left out here are no keys. The keys of the hub are in a table of their own.
    let keys = shown
        .filter_map(clap::Arg::get_long)
        .filter(|flag| !["config", "json", "help", "version", "hub"].contains(flag))
        .map(|flag| flag.strip_prefix("hub-").unwrap_or(flag));
    let (all, missing): (Vec<&str>, Vec<&str>) =
        keys.partition(|key| page.contains(&format!("`{key}`")));
    assert!(all.len() > 80, "only {} keys", all.len());
    assert!(missing.is_empty(), "docs/configuration.md does not have {missing:?}");
}

#[test]
fn the_check_of_flags_can_fail() {
    assert!(names("`--hub-url URL` and `--hub`", "--hub"));
    assert!(!names("`--hub-url URL`", "--hub"));
}

#[test]
fn every_help_is_as_reviewed_and_fits_80_columns() {
    let mut count = 0;
    let mut root = Cli::command().term_width(80);
    root.build();
    each(&mut root, "pollux", &mut |name, command| {
        let written = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        let wide: Vec<&str> = written.lines().filter(|line| line.chars().count() > 80).collect();
        assert!(
            wide.is_empty() || GENERATOR.contains(&name),
            "{name}: clap would break these lines: {wide:#?}"
        );
        let help = command.clone().term_width(80).render_long_help().to_string();
        let wide: Vec<&str> = help.lines().filter(|line| line.chars().count() > 80).collect();
        assert!(wide.is_empty(), "{name}: {wide:#?}");
        insta::assert_snapshot!(name, help);
        count += 1;
    });
    assert!(count >= 11, "only {count} commands");
}
