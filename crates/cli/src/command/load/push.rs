//! `pollux load --subscribe`.

use super::{Args, EXIT_INVALID, EXIT_NOTHING, header, show, usage_error};
use crate::print::print_with;
use anyhow::{Context, Result};
use pollux_hub::topic::WELL_KNOWN;
use pollux_load::{
    output,
    push::{self, PublishOptions, PushConfig},
    ranks::{self, Ranks},
    target::Url,
};
use std::{
    fs,
    io::{self, Write},
    process::ExitCode,
    time::Duration,
};

/// The default number of updates per second.
const DEFAULT_RATE_RPS: f64 = 10.0;

/// The flags of a run with subscribers.
#[derive(clap::Args)]
pub(crate) struct PushArgs {
    /// Hold N subscribers of a push server (server-sent events) and publish updates by the
    /// schedule; --rate is then the number of updates per second [default: 10]. The URL is the
    /// subscription, or a Mercure hub. Each event is checked at each subscriber; --header is for
    /// the subscriptions
    #[arg(long, value_name = "N", help_heading = "Push", conflicts_with_all = [
        "url_file", "in_turn", "client", "connections", "max_connections", "at_limit",
        "requests_per_connection", "keep_alive", "session_requests", "close", "idle", "method", "body",
        "expect_length", "expect_status", "max_lag_share", "max_starved",
    ])]
    pub(super) subscribe: Option<usize>,
    /// The topic of the hub [default: load]
    #[arg(long, value_name = "TOPIC", requires = "subscribe", help_heading = "Push")]
    topic: Option<String>,
    /// Content of each update
    #[arg(
        long,
        default_value_t = 100,
        value_name = "BYTES",
        requires = "subscribe",
        help_heading = "Push"
    )]
    update_size: usize,
    /// Where updates are posted to [default: the hub]
    #[arg(long, value_name = "URL", requires = "subscribe", help_heading = "Push")]
    publish_url: Option<Url>,
    /// A field of the requests that publish, such as 'Authorization: Bearer …'; may be given several times
    #[arg(long, value_parser = header, value_name = "FIELD", requires = "subscribe", help_heading = "Push")]
    publish_header: Vec<(String, String)>,
    /// The content of these requests, with {data} for that of the update, which then may be anywhere in
    /// an event's data [default: topic=TOPIC&data={data}, and the data is the content]
    #[arg(long, value_name = "TEXT", requires = "subscribe", help_heading = "Push")]
    publish_body: Option<String>,
    /// Close all streams at once, so long after the start, and open them again with Last-Event-ID
    #[arg(long, value_parser = crate::duration::parse, value_name = "TIME", requires = "subscribe", help_heading = "Push")]
    reconnect_at: Option<Duration>,
    /// Publish nothing for so long after all streams are open, and again after the last delivery. With
    /// --json each begins with a line, {"event":"holding"} and {"event":"delivered"}, so that another
    /// program can read the server's figures in between
    #[arg(long, value_parser = crate::duration::parse, value_name = "TIME", requires = "subscribe", help_heading = "Push")]
    quiet_time: Option<Duration>,
}

/// Runs the command with `subscribers`.
pub(super) fn run(mut args: Args, subscribers: usize) -> Result<ExitCode> {
    args.rate = args.rate.or(Some(DEFAULT_RATE_RPS));
    let config = match config(&args, subscribers).and_then(|config| {
        config.check()?;
        Ok(config)
    }) {
        Ok(config) => config,
        Err(error) => return Ok(usage_error(&error)),
    };
    let stop = pollux_load::stop_on_signals()?;
    let mut ranks = ranks::join(&args.ranks, || ranks::push_task(&config), &stop)?;
    let log = match &args.hdr {
        Some(path) if ranks.as_ref().is_none_or(Ranks::is_first) => {
            let file =
                fs::File::create(path).with_context(|| format!("--hdr {}", path.display()))?;
            Some((path, file))
        }
        _ => None,
    };
    let report = match &mut ranks {
        None => push::run(&config, &stop, |moment| {
            if args.json {
                // A lost standard output does not end the run; the error is reported with the
                // report.
                let _ = print_with(|out| writeln!(out, r#"{{"event":"{}"}}"#, moment.name()));
            }
        })?,
        Some(ranks) => match ranks::run_push(&config, ranks, &stop)? {
            Some(report) => report,
            // Rank 0 reports for all ranks.
            None => return Ok(ExitCode::SUCCESS),
        },
    };
    // As in `pollux load`, neither failure loses the other output.
    let shown = show(args.json, report.invalid_reason.as_deref(), |out| match args.json {
        true => output::json::write(&report, out),
        false => output::text::push(&report, out),
    });
    if let Some((path, file)) = log {
        output::hdr::write_push(&report, io::BufWriter::new(file))
            .with_context(|| format!("--hdr {}", path.display()))?;
    }
    shown?;
    Ok(match (report.valid, report.deliveries.delivered) {
        (false, _) => ExitCode::from(EXIT_INVALID),
        (true, 0) if report.publications.sent > 0 => ExitCode::from(EXIT_NOTHING),
        (true, _) => ExitCode::SUCCESS,
    })
}

fn config(args: &Args, subscribers: usize) -> Result<PushConfig> {
    let push = &args.push;
    let base = args.config()?;
    let topic: String =
        url::form_urlencoded::byte_serialize(push.topic.as_deref().unwrap_or("load").as_bytes())
            .collect();
    // A URL without a path is that of a hub.
    let given = args.urls.first().context("no URL is given")?;
    let mut hub = given.clone();
    if hub.path == "/" {
        hub.path = WELL_KNOWN.into();
    }
    let mut url = hub.clone();
    if !url.path.contains('?') {
        url.path = format!("{}?match={topic}", url.path);
    }
    let publish = PublishOptions {
        url: push.publish_url.clone().unwrap_or_else(|| {
            let path = hub.path.split('?').next().unwrap_or_default();
            Url { path: path.into(), ..hub.clone() }
        }),
        headers: push.publish_header.clone(),
        body: push
            .publish_body
            .clone()
            .unwrap_or_else(|| format!("topic={topic}&data={}", push::DATA)),
    };
    let config = PushConfig::new(&base, subscribers, publish)?;
    Ok(PushConfig {
        url,
        update_bytes: push.update_size,
        is_exact: push.publish_body.is_none(),
        reconnect_at: push.reconnect_at,
        quiet_time: push.quiet_time,
        ..config
    })
}
