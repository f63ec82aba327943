//! `pollux generate`: files that a package installs in addition to the program. The command is
//! hidden; `make install` runs it.

use crate::print::print_all;
use anyhow::Context as _;
use clap_complete::Shell;
use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

/// The command's arguments.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  pollux generate completions bash > /etc/bash_completion.d/pollux
  pollux generate man man1")]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand)]
enum What {
    /// Print what completes the command line in a shell
    #[command(after_help = "Example:\n  pollux generate completions fish")]
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Write the man pages, one a command, into a directory
    #[command(after_help = "Example:\n  pollux generate man man1")]
    Man {
        /// The directory; it is created when it does not exist
        directory: PathBuf,
    },
}

/// Runs the command. `whole` is the command line with all commands.
pub(crate) fn run(args: Args, mut whole: clap::Command) -> anyhow::Result<ExitCode> {
    match args.what {
        What::Completions { shell } => {
            let mut text = Vec::new();
            clap_complete::generate(shell, &mut whole, "pollux", &mut text);
            print_all(&String::from_utf8(text)?)?;
        }
        What::Man { directory } => man(&directory, whole)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn man(directory: &Path, whole: clap::Command) -> anyhow::Result<()> {
    fs::create_dir_all(directory).with_context(|| directory.display().to_string())?;
    // The `help` command of clap gets no man page.
    let command = whole.disable_help_subcommand(true);
    clap_mangen::generate_to(command, directory).with_context(|| directory.display().to_string())
}
