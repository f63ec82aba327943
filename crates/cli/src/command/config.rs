//! `pollux config`: checks, shows and describes configuration files.

use crate::{
    command::serve::{self, Configuration, describe},
    message::say,
    print::print_all,
    switches::Switches,
};
use anyhow::Context;
use pollux_server::config::{Config, Fault, Key, without_password};
use std::{env, path::PathBuf, process::ExitCode};

const CHECK_EXAMPLES: &str = "\
Examples:
  pollux config check /etc/pollux/pollux.toml

Every fault is shown with file, line and column, the key that was probably
meant and how to fix it.

A root or a certificate that cannot be used on this machine is a warning, and
so is a file that is missing.

Exit status: 0 when the file can be used, 1 when it cannot.";

const SHOW_EXAMPLES: &str = "\
Examples:
  pollux config show --config /etc/pollux/pollux.toml
  pollux config show --config /etc/pollux/pollux.toml --workers 4

Takes the flags of `pollux serve`, and prints all values that are in force, as a
file that could replace the flags and the files, with absolute paths. After each
value is its source: a file and line, a flag, or a default.";

const SCHEMA_EXAMPLES: &str = "\
Examples:
  pollux config schema                   JSON Schema, for editors";

/// The command's arguments.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Check a file and all that it includes
    #[command(after_help = CHECK_EXAMPLES)]
    Check {
        /// The file
        file: PathBuf,
    },
    /// Print the effective configuration, and where each value comes from
    #[command(after_help = SHOW_EXAMPLES)]
    Show(Box<Switches<serve::Args>>),
    /// Print a JSON Schema of configuration files
    #[command(after_help = SCHEMA_EXAMPLES)]
    Schema,
}

/// Runs the command.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.command {
        Command::Check { file } => check(&file),
        Command::Show(args) => show(&Configuration::of(args.0)?),
        Command::Schema => {
            print_all(&(serde_json::to_string_pretty(&Config::schema())? + "\n"))?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn check(path: &std::path::Path) -> anyhow::Result<ExitCode> {
    let (config, sources) =
        Config::load(path).map_err(|fault| error_of(&Config::all_faults(*fault)))?;
    if let Err(mut faults) = config.validate() {
        for fault in &mut faults {
            sources.point(fault);
        }
        return Err(error_of(&faults));
    }
    let mut warnings = config.file_warnings();
    for warning in &mut warnings {
        sources.point(warning);
        say(format_args!("warning: {warning}"));
    }
    let sites = config.site.len();
    let files = sources.files().count();
    let plural = |count| if count == 1 { "" } else { "s" };
    print_all(&format!(
        "{}: no faults: {sites} site{}, {files} file{}{}\n",
        path.display(),
        plural(sites),
        plural(files),
        if warnings.is_empty() { "" } else { "; the warnings are about files of this machine" }
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the error with the texts of these faults.
fn error_of(faults: &[Fault]) -> anyhow::Error {
    anyhow::anyhow!(faults.iter().map(describe).collect::<Vec<_>>().join("\n"))
}

/// Prints the values of a configuration, each with its source.
fn show(configuration: &Configuration) -> anyhow::Result<ExitCode> {
    let Configuration { file, without_flags, sources, .. } = configuration;
    let mut text = String::new();
    // The output can be a file in another folder.
    let here = env::current_dir().context("the current directory")?;
    let (now, before) = (file.to_table_below(&here), without_flags.to_table_below(&here));
    let usual = Config::default().to_table();
    let source = |key: &[Key<'_>], is_changed: bool, is_usual: bool| {
        if is_changed {
            return "flag".to_owned();
        }
        let otherwise = if is_usual { "default" } else { "flag" };
        sources.location(key).unwrap_or_else(|| otherwise.into())
    };
    for (name, value) in
        now.iter().filter(|(name, _)| !["site", "include", "hub"].contains(&name.as_str()))
    {
        let key = [Key::Name(name)];
        let is_changed = before.get(name) != Some(value);
        let source = source(&key, is_changed, usual.get(name) == Some(value));
        text.push_str(&format!("{:<40} # {source}\n", format!("{name} = {value}")));
    }
    if let Some(hub) = now.get("hub").and_then(toml::Value::as_table) {
        text.push_str("\n[hub]\n");
        let usual = toml::Value::try_from(pollux_server::config::HubSection::default())
            .context("the defaults of the hub")?;
        let before = before.get("hub").cloned();
        for (name, value) in hub {
            let key = [Key::Name("hub"), Key::Name(name)];
            let is_changed = before.as_ref().is_some_and(|hub| hub.get(name) != Some(value));
            let source = source(&key, is_changed, usual.get(name) == Some(value));
            let value = without_password(name, value);
            text.push_str(&format!("{:<40} # {source}\n", format!("{name} = {value}")));
        }
    }
    let sites = |table: &toml::Table| match table.get("site") {
        Some(toml::Value::Array(sites)) => sites.clone(),
        _ => Vec::new(),
    };
    let usual = toml::Value::try_from(pollux_server::config::SiteSection::default())
        .context("the defaults")?;
    for (index, site) in sites(&now).iter().enumerate() {
        text.push_str("\n[[site]]\n");
        let before = sites(&before).get(index).cloned();
        for (name, value) in site.as_table().into_iter().flatten() {
            let key = [Key::Name("site"), Key::Index(index), Key::Name(name)];
            let is_changed = before.as_ref().is_some_and(|site| site.get(name) != Some(value));
            let source = source(&key, is_changed, usual.get(name) == Some(value));
            let value = without_password(name, value);
            text.push_str(&format!("{:<40} # {source}\n", format!("{name} = {value}")));
        }
    }
    print_all(&format!("{}\n", text.trim_end()))?;
    Ok(ExitCode::SUCCESS)
}
