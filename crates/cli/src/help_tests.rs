//! Snapshots of every `--help` at 80 columns, so that a review shows each change.

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
