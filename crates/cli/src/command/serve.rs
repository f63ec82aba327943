//! `pollux serve`. Its flags are in one file per topic.

mod acme;
mod cache;
mod cannot_listen;
mod clients;
mod configuration;
mod examples;
mod files;
mod guestbook;
mod hub;
mod limits;
mod listen;
mod origins;
mod output;
mod reload;
mod rules;
mod security;
mod source;
mod tls;
mod value;
mod workers;

pub(crate) use configuration::{Configuration, describe};

use crate::{sys::own_file_tables, terminal, usage::UsageError};
use anyhow::Context;
use pollux_server::{
    Report, Settings,
    config::{Config, Listen, LogTarget},
    settings::Tls,
};
use std::{process::ExitCode, sync::Arc};

/// The command's arguments.
#[derive(clap::Args)]
#[command(after_help = examples::EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    files: files::FileArgs,
    #[command(flatten)]
    rules: rules::RuleArgs,
    #[command(flatten)]
    source: source::SourceArgs,
    #[command(flatten)]
    listen: listen::ListenArgs,
    #[command(flatten)]
    tls: tls::TlsArgs,
    #[command(flatten)]
    acme: acme::AcmeArgs,
    #[command(flatten)]
    workers: workers::WorkerArgs,
    #[command(flatten)]
    limits: limits::LimitArgs,
    #[command(flatten)]
    clients: clients::ClientArgs,
    #[command(flatten)]
    origins: origins::OriginArgs,
    #[command(flatten)]
    cache: cache::CacheArgs,
    #[command(flatten)]
    guestbook: guestbook::GuestbookArgs,
    #[command(flatten)]
    hub: hub::HubArgs,
    #[command(flatten)]
    output: output::OutputArgs,
    #[command(flatten)]
    security: security::SecurityArgs,
}

/// Runs the command. For a reload, `args_again` reads its arguments from the command line once more;
/// `None` if it cannot.
pub(crate) fn run(args: Args, args_again: fn() -> Option<Args>) -> anyhow::Result<ExitCode> {
    // If a running server waits for this process to succeed it, that server prints the reason.
    serve(args, args_again).inspect_err(pollux_server::report_failure)
}

fn serve(args: Args, args_again: fn() -> Option<Args>) -> anyhow::Result<ExitCode> {
    let report = args.output.report();
    // The cache's directory has its own thread. The signals must not be delivered to that thread.
    pollux_server::hold_signals().context("signals")?;
    let configuration = Configuration::of(args)?;
    configuration.validate()?;
    let listens: Vec<_> =
        configuration.file.listen.iter().map(|listen| listen.value.clone()).collect();
    let advise = |error| with_advice(error, &listens);
    if configuration.file.has_tls_keys()
        && let Err(error) = pollux_server::sandbox::exclude_memory_from_core_dumps()
    {
        tracing::warn!(
            "core dumps of this server can contain keys of TLS: /proc/self/coredump_filter: {error}"
        );
    }
    let early = security::enter(&configuration).map_err(advise)?;
    let config = open(&configuration, &early)?;
    let slow = config.log.slow.as_ref().map(|slow| &slow.target);
    if report == Report::Json
        && [config.log.access.as_ref(), slow].contains(&Some(&LogTarget::Stdout))
    {
        let both = "--json and --access-log - (or --slow-log -) would both write to standard output: \
                    name a file for the log";
        return Err(UsageError::new(both).into());
    }
    if config.has_readable_passwords() {
        tracing::warn!(
            "--basic-auth: passwords come over plain HTTP, where others can read them: add TLS (--tls-cert), \
             or listen on a loopback address behind a proxy that has TLS"
        );
    }
    let mut reloader = reload::Reloader::new(args_again, configuration.file);
    pollux_server::run_with(config, report, Some(&mut reloader)).map_err(advise)?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the error with advice, if it is about an address of `listens`.
fn with_advice(error: anyhow::Error, listens: &[Listen]) -> anyhow::Error {
    match cannot_listen::advice(&error, listens) {
        Some(advice) => {
            let advice = terminal::wrap(&advice, terminal::WIDTH, "  ");
            anyhow::anyhow!("{error:#}\n{advice}")
        }
        None => error,
    }
}

/// Opens caches and returns the configuration that the server runs with. The certificates are those
/// of `early`, which were read with root's rights.
fn open(configuration: &Configuration, early: &Settings) -> anyhow::Result<Settings> {
    finish(configuration, configuration.file.open(guestbook::default_store)?, Some(early))
}

/// Completes `config`. The certificates are those of `current`, if it is given.
fn finish(
    configuration: &Configuration,
    mut config: Settings,
    current: Option<&Settings>,
) -> anyhow::Result<Settings> {
    config.own_file_tables = Some(own_file_tables());
    open_tls(&configuration.file, &mut config, current.and_then(|current| current.tls.clone()))?;
    config.check().map_err(|error| UsageError::new(format!("{error:#}")))?;
    Ok(config)
}

/// Reads the certificates into `config`, unless they are in `present`.
fn open_tls(file: &Config, config: &mut Settings, present: Option<Arc<Tls>>) -> anyhow::Result<()> {
    file.prepare_acme(config).map_err(|error| UsageError::new(format!("{error:#}")))?;
    file.open_tls(config, present)
}
