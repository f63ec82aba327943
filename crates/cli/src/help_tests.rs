//! Snapshots of every `--help` at 80 columns, so that a review shows each change.

use crate::Cli;
use clap::{Command, CommandFactory, Parser};

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
        // Makes files for packagers, and has a help of its own.
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
    // The others are no keys, and the keys of the hub are in a table of their own.
    let keys = shown
        .filter_map(clap::Arg::get_long)
        .filter(|flag| !["config", "json", "help", "version", "hub"].contains(flag))
        .map(|flag| flag.strip_prefix("hub-").unwrap_or(flag));
    let (all, missing): (Vec<&str>, Vec<&str>) =
        keys.partition(|key| page.contains(&format!("`{key}`")));
    assert!(all.len() > 80, "only {} keys", all.len());
    assert!(missing.is_empty(), "docs/configuration.md does not have {missing:?}");
}

/// Splits a command as a shell does, up to a comment, a pipe or a redirection. Variables stay as they are.
fn words(command: &str) -> Vec<String> {
    let (mut words, mut quote) = (vec![String::new()], None);
    for c in command.chars() {
        match quote {
            Some(end) if c == end => quote = None,
            None if c == '"' || c == '\'' => quote = Some(c),
            None if c == ' ' => words.push(String::new()),
            _ => words.last_mut().expect("there is always a word").push(c),
        }
    }
    let is_end = |word: &str| ["#", "|", ">", ">>", "&&"].contains(&word);
    let words = words.into_iter().filter(|word| !word.is_empty());
    words.take_while(|word| !is_end(word)).collect()
}

/// Returns the commands of this program in the code of a page.
fn commands(page: &str) -> Vec<String> {
    let (mut is_code, mut all) = (false, Vec::new());
    for line in page.replace("\\\n", " ").lines() {
        if line.starts_with("```") {
            is_code = !is_code;
        }
        let prompt = ["$ ", "# "].iter().find_map(|prompt| line.strip_prefix(prompt));
        let command = prompt.unwrap_or(line);
        if is_code && command.starts_with("pollux ") {
            all.push(command.to_owned());
        }
    }
    all
}

#[test]
fn the_program_understands_the_commands_of_the_book() {
    let readme = concat!(env!("CARGO_MANIFEST_DIR"), "/../../README.md");
    let text = std::fs::read_to_string(readme).expect("the README") + &pages();
    let commands = commands(&text);
    assert!(commands.len() > 40, "only {} commands", commands.len());
    for command in commands {
        if let Err(error) = Cli::try_parse_from(words(&command)) {
            panic!("{command}: {error}");
        }
    }
}

#[test]
fn the_check_of_commands_can_fail() {
    let page =
        "pollux a\n```\n$ pollux serve site \\\n  --header 'A: b' >> c\n# pollux no  # d\n```\n";
    let commands = commands(page);
    assert_eq!(words(&commands[0]), ["pollux", "serve", "site", "--header", "A: b"]);
    assert_eq!(words(&commands[1]), ["pollux", "no"]);
    assert_eq!(commands.len(), 2);
    assert!(Cli::try_parse_from(words(&commands[0])).is_ok());
    assert!(Cli::try_parse_from(words(&commands[1])).is_err());
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
