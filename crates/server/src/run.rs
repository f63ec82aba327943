//! The server as a process: signals and output.

mod announce;
mod redirect;
mod reload;
mod service_manager;
mod upgrade;

use crate::{
    Reload, Server, Settings, Statistics,
    admin::OperatorTask,
    config::Accepting,
    sandbox,
    upgrade::{
        launcher,
        predecessor::{Predecessor, TransferSocket},
    },
};
use announce::Announcement;
use anyhow::Context;
use pollux_sys as sys;
use serde::Serialize;
use std::{io::Write, time::Duration};

/// The output of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Report {
    /// Sentences on standard error.
    Human,
    /// Lines of JSON on standard output: one when it listens, one with the statistics at each
    /// SIGUSR1 and one at the end.
    Json,
}

/// The signal that notifies the main thread that a worker has ended or that an operator has sent a
/// task. Nothing else sends it: no socket has an owner.
const ATTENTION: libc::c_int = libc::SIGURG;
const SIGNALS: [libc::c_int; 7] = [
    libc::SIGTERM,
    libc::SIGINT,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGHUP,
    libc::SIGALRM,
    ATTENTION,
];

/// Blocks the signals that [`run`] waits for. Call it before any function that starts a thread,
/// such as opening a cache with a directory. Otherwise a signal to the process could be delivered
/// to that thread, and would end the process.
///
/// # Errors
/// The errors of pthread_sigmask(3).
pub fn hold_signals() -> std::io::Result<()> {
    sys::block_signals(&SIGNALS)
}

/// Requests a SIGALRM after the interval of the service manager's watchdog, if there is one. A
/// timer's signal is used instead of a thread because it also works for processes that are forked,
/// and because the watchdog is not notified if this thread hangs.
fn await_watchdog() {
    if let Some(seconds) = service_manager::watchdog_interval_s() {
        sys::alarm(seconds);
    }
}

/// Runs a server until SIGTERM or SIGINT, then stops it within the grace time; a second such signal
/// stops it at once. SIGUSR1 prints the statistics. SIGHUP reads the configuration and the
/// certificates again and reopens the access log; so the server does not end when its terminal is
/// closed. SIGUSR2 starts the program again and hands the service over to the new process. The
/// caller must be the only thread of the process, except for threads that were started after
/// [`hold_signals`].
///
/// # Errors
/// The errors of [`Server::start`], and the error that ended a worker.
pub fn run(config: Settings, report: Report) -> anyhow::Result<Statistics> {
    run_with(config, report, None)
}

/// Does the same as [`run`], with a configuration that `reload` reads again after SIGHUP and for
/// `pollux ctl reload`.
///
/// # Errors
/// The errors of [`run`].
pub fn run_with(
    mut config: Settings,
    report: Report,
    mut reload: Option<&mut dyn Reload>,
) -> anyhow::Result<Statistics> {
    // The workers inherit the blocked signals, so no signal ever interrupts them.
    hold_signals()?;
    sys::ignore_sigpipe();
    // The path is read now. Later another file may have replaced the program, and an upgrade must
    // start that file.
    let program = std::env::current_exe();
    let predecessor = Predecessor::find()?;
    if predecessor.is_some() {
        // Before the listeners are opened: the former server still has their addresses.
        Settings::check_upgrade(config.architecture)?;
    }
    if let Some(most) = config.signal_queue {
        limit_signal_queue(most)?;
    }
    let at_start = (config.grace, config.drain);
    // A reload may have changed these times.
    let times =
        |server: &Server| server.config().map_or(at_start, |config| (config.grace, config.drain));
    let announcement = Announcement::new(&config);
    let redirect = redirect::take(&mut config);
    let mut server = Server::start_watched(config, Some(|| sys::signal_self(ATTENTION)))?;
    let mut redirect = redirect.map(|config| redirect::start(&server, config)).transpose()?;
    if let Some(predecessor) = predecessor {
        server.check_can_be_succeeded()?;
        let mut channels = 0..;
        predecessor.succeed(|given| match given {
            TransferSocket::Channel(channel) => server.adopt(channel, channels.next().unwrap_or(0)),
            TransferSocket::Hub(socket) => server.take_over_hub(socket),
        })?;
        server.release_hub();
    }
    match report {
        Report::Json => println_json(&listening(&server)?)?,
        Report::Human => announcement.print(&server),
    }
    let mechanism = server.mechanism().name.clone();
    let print = |statistics: &Statistics| match report {
        Report::Json => println_json(&statistics.to_json(&mechanism)),
        Report::Human => {
            say(statistics.to_text().trim_end());
            Ok(())
        }
    };
    // A failed write to standard output is no reason to stop serving.
    let print_now = |server: &Server| {
        if let Err(error) = print(&server.statistics()) {
            tracing::warn!("the statistics cannot be printed: {error:#}");
        }
    };
    #[cfg(debug_assertions)]
    sandbox::attempt::run();
    service_manager::ready();
    await_watchdog();
    let mut renew = |server: &mut Server, redirect: Option<&mut Server>| {
        reload::renew(server, redirect, reload.as_deref_mut())
    };
    let upgrade = |server: &mut Server, redirect: Option<&mut Server>| {
        let program =
            program.as_ref().map_err(|error| anyhow::anyhow!("/proc/self/exe: {error}"))?;
        let (_, drain) = times(server);
        upgrade::upgrade(server, redirect, program, drain)
    };
    let mut is_succeeded = false;
    while !is_succeeded {
        match server.next_signal(&SIGNALS)? {
            Some(libc::SIGUSR1) => print_now(&server),
            // The result is in the log.
            Some(libc::SIGUSR2) => {
                is_succeeded = upgrade(&mut server, redirect.as_mut()).is_ok();
            }
            Some(libc::SIGHUP) => {
                // The result is in the log.
                let _ = renew(&mut server, redirect.as_mut());
            }
            Some(libc::SIGALRM) => {
                if server.is_alive() && redirect.as_ref().is_none_or(Server::is_alive) {
                    service_manager::alive();
                }
                await_watchdog();
            }
            Some(libc::SIGTERM | libc::SIGINT) => {
                service_manager::stopping();
                let (grace, _) = times(&server);
                server.begin_stop(grace);
                // It would go on sending clients to a port that is closed.
                if let Some(redirect) = &mut redirect {
                    redirect.begin_stop(grace);
                }
                break;
            }
            Some(ATTENTION) => {
                let replaced = server.replace_lost_workers().and_then(|()| match &mut redirect {
                    Some(redirect) => redirect.replace_lost_workers().context("--redirect-http"),
                    None => Ok(()),
                });
                if let Err(error) = replaced {
                    server.begin_stop(Duration::ZERO);
                    print(&server.wait()?)?;
                    return Err(error);
                }
                while let Some((task, outcome)) = server.next_task() {
                    let done = match task {
                        OperatorTask::Reload => renew(&mut server, redirect.as_mut()),
                        OperatorTask::Upgrade if is_succeeded => {
                            Err(anyhow::anyhow!("another process has taken over already"))
                        }
                        OperatorTask::Upgrade => {
                            upgrade(&mut server, redirect.as_mut()).inspect(|_| is_succeeded = true)
                        }
                    };
                    // The operator may have given up waiting.
                    let _ = outcome.send(done.map_err(|error| format!("{error:#}")));
                }
            }
            // No worker should end before a stop is requested; `wait` returns the reason.
            _ => {
                server.begin_stop(Duration::ZERO);
                let statistics = server.wait()?;
                print(&statistics)?;
                anyhow::bail!("a worker ended by itself");
            }
        }
    }
    // An upgrade ends the loop above without a request to stop.
    let mut is_stopping = !is_succeeded;
    while server.running() > 0 || redirect.as_ref().is_some_and(|redirect| redirect.running() > 0) {
        refuse_tasks(&server);
        match server.next_signal(&SIGNALS)? {
            Some(ATTENTION) | None => {}
            // The successor is the main process now. The service manager would log each notification of this one as
            // one that it does not accept.
            Some(libc::SIGALRM) if is_succeeded => {}
            // During a stop the service manager's time limit for stopping applies.
            Some(libc::SIGALRM) => {
                service_manager::alive();
                await_watchdog();
            }
            Some(libc::SIGHUP) => {
                server.reopen_log();
                if let Some(redirect) = &redirect {
                    redirect.reopen_log();
                }
            }
            Some(libc::SIGUSR2) => tracing::info!("no upgrade: this process is about to end"),
            Some(libc::SIGUSR1) => print_now(&server),
            Some(_) => {
                let is_second = std::mem::replace(&mut is_stopping, true);
                let grace = if is_second { Duration::ZERO } else { times(&server).0 };
                server.begin_stop(grace);
                if let Some(redirect) = &mut redirect {
                    redirect.begin_stop(grace);
                }
            }
        }
    }
    if is_succeeded {
        server.await_operators();
    }
    let statistics = server.wait()?;
    if let Some(redirect) = redirect
        && let Err(error) = redirect.wait()
    {
        tracing::warn!("--redirect-http: {error:#}");
    }
    launcher::end();
    print(&statistics)?;
    Ok(statistics)
}

/// Refuses all tasks of operators, because the process is about to end: they would wait for nothing, for as long
/// as the last response takes.
fn refuse_tasks(server: &Server) {
    while let Some((_, outcome)) = server.next_task() {
        // The operator may have given up waiting.
        let _ = outcome.send(Err("this process is about to end".to_owned()));
    }
}

/// Sets the limit. Must be called before the workers start, because it decides how many signals
/// their mechanism can queue.
fn limit_signal_queue(most: u64) -> anyhow::Result<()> {
    let (_, hard) = sys::signal_queue_limit().context("RLIMIT_SIGPENDING")?;
    anyhow::ensure!(
        most <= hard,
        "--signal-queue {most}: the hard limit is {hard} (ulimit -Hi): set a value up to that"
    );
    sys::set_signal_queue_limit(most).context("--signal-queue: setrlimit(RLIMIT_SIGPENDING)")
}

fn listening(server: &Server) -> anyhow::Result<String> {
    #[derive(Serialize)]
    struct Line<'a> {
        event: &'static str,
        addresses: Vec<String>,
        architecture: &'static str,
        mechanism: &'a str,
        mechanism_spec: String,
        accept: Option<&'static str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        admin: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        sandbox: Option<&'static sandbox::InForce>,
        pid: u32,
        workers: &'a [crate::WorkerInfo],
    }
    Ok(serde_json::to_string(&Line {
        event: "listening",
        addresses: server.addresses().iter().map(ToString::to_string).collect(),
        architecture: server.architecture().name(),
        mechanism: &server.mechanism().name,
        mechanism_spec: server.mechanism().to_string(),
        accept: server.accepting().map(Accepting::name),
        admin: server.admin_address().map(ToString::to_string),
        sandbox: sandbox::in_force(),
        pid: std::process::id(),
        workers: server.workers(),
    })?)
}

/// Writes lines to standard error. A failed write is no reason to stop serving; eprintln! would
/// panic.
fn say(lines: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{lines}");
}

/// Writes a line and flushes it, because its reader waits for it.
fn println_json(line: &str) -> anyhow::Result<()> {
    // One write: during an upgrade two processes write to the same standard output, and their lines must not mix.
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(format!("{line}\n").as_bytes())?;
    stdout.flush()?;
    Ok(())
}
