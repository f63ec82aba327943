//! `pollux serve`. Its flags are in one file per topic.

mod cache;
mod cannot_listen;
mod examples;
mod files;
mod guestbook;
mod hub;
mod limits;
mod listen;
mod origins;
mod output;
mod tls;
mod value;
mod workers;

use crate::{sys::own_file_tables, terminal, usage::UsageError};
use anyhow::Context;
use pollux_server::{
    Config, Report,
    config::{Listen, LogTarget},
};
use std::{
    net::{Ipv4Addr, SocketAddr},
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

/// Port that is listened on where no address is given.
const DEFAULT_PORT: u16 = 8080;

/// Time for a server that stopped to write what it still has for --cache-dir.
const FLUSH_PATIENCE: Duration = Duration::from_secs(10);

/// The command's arguments.
#[derive(clap::Args)]
#[command(after_help = examples::EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    files: files::FileArgs,
    #[command(flatten)]
    listen: listen::ListenArgs,
    #[command(flatten)]
    tls: tls::TlsArgs,
    #[command(flatten)]
    workers: workers::WorkerArgs,
    #[command(flatten)]
    limits: limits::LimitArgs,
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
}

/// Runs the command.
pub(crate) fn run(args: Box<Args>) -> anyhow::Result<ExitCode> {
    let report = args.output.report();
    // The cache's folder has a thread of its own, which must not be the one that a signal ends.
    pollux_server::hold_signals().context("signals")?;
    let config = config(*args)?;
    // A fault in a file is no error of usage.
    if let Some(guestbook) = &config.guestbook {
        guestbook.load()?;
    }
    config.check().map_err(|error| UsageError::new(format!("{error:#}")))?;
    if report == Report::Json && config.access_log == Some(LogTarget::Stdout) {
        let both = "--json and --access-log - would both write to standard output: \
                    name a file for the log";
        return Err(UsageError::new(both).into());
    }
    let listens = config.listen.clone();
    let store = config.frontend.as_ref().and_then(|frontend| frontend.cache.clone());
    let outcome = pollux_server::run(config, report);
    if store.is_some_and(|store| !store.flush(FLUSH_PATIENCE)) {
        tracing::warn!("--cache-dir: not all was written within {FLUSH_PATIENCE:?}");
    }
    outcome.map_err(|error| match cannot_listen::advice(&error, &listens) {
        Some(advice) => {
            let advice = terminal::wrap(&advice, terminal::WIDTH, "  ");
            anyhow::anyhow!("{error:#}\n{advice}")
        }
        None => error,
    })?;
    Ok(ExitCode::SUCCESS)
}

/// The configuration that the flags ask for.
fn config(args: Args) -> anyhow::Result<Config> {
    let mut config = Config::new("");
    config.site.directory = None;
    config.listen = vec![Listen::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, DEFAULT_PORT)))];
    config.own_file_tables = Some(own_file_tables());
    args.files.apply(&mut config);
    args.listen.apply(&mut config);
    args.workers.apply(&mut config);
    args.limits.apply(&mut config);
    if let Some(mut frontend) = args.origins.frontend() {
        args.cache.apply(&mut frontend, config.architecture)?;
        config.frontend = Some(Arc::new(frontend));
    }
    args.guestbook.apply(&mut config)?;
    args.hub.apply(&mut config);
    args.output.apply(&mut config);
    args.tls.apply(&mut config)?;
    Ok(config)
}
