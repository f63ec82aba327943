//! `pollux load` and `pollux idle` by several ranks, under the launchers of Open MPI and MPICH.
//!
//! Where a launcher is not installed, its tests are skipped with a message; with POLLUX_MPI_REQUIRED
//! set, as in `make test-all`, they fail.

mod killed;
mod network;
mod several;

use pollux_testkit::ended_within;
use serde_json::Value;
use std::{
    io::Read,
    process::{Child, Command, Output, Stdio},
    time::Duration,
};

/// The longest that a run of several ranks may take.
const PATIENCE: Duration = Duration::from_secs(120);

/// A launcher under test.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Launcher {
    OpenMpi,
    Mpich,
}

impl Launcher {
    /// Returns the name of its mpirun in Debian.
    fn program(self) -> &'static str {
        match self {
            Self::OpenMpi => "mpirun.openmpi",
            Self::Mpich => "mpirun.mpich",
        }
    }

    fn is_installed(self) -> bool {
        pollux_sys::find_program(self.program()).is_some()
    }

    /// Returns the environment variable with which the launcher tells a process its rank.
    fn rank_variable(self) -> &'static str {
        match self {
            Self::OpenMpi => "OMPI_COMM_WORLD_RANK",
            Self::Mpich => "PMI_RANK",
        }
    }

    /// Starts `count` ranks of pollux on this host.
    fn start(self, count: usize, tag: &str, arguments: &[&str]) -> Child {
        let mut command = Command::new(self.program());
        if self == Self::OpenMpi {
            command.args(["--oversubscribe", "--bind-to", "none"]);
        }
        command.args(["-n", &count.to_string(), env!("CARGO_BIN_EXE_pollux")]).args(arguments);
        command.env("POLLUX_TEST_TAG", tag);
        spawn(command)
    }
}

/// Starts the command. Root may run Open MPI in tests; no test has the CPUs for itself.
pub(crate) fn spawn(mut command: Command) -> Child {
    command
        .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
        .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

/// Waits for the end of `child`, which is killed when it takes too long.
pub(crate) fn finish(mut child: Child) -> Output {
    let reader = |mut from: Box<dyn Read + Send>| {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            let _ = from.read_to_end(&mut bytes);
            bytes
        })
    };
    let stdout = reader(Box::new(child.stdout.take().unwrap()));
    let stderr = reader(Box::new(child.stderr.take().unwrap()));
    let Some(status) = ended_within(PATIENCE, &mut child) else {
        child.kill().unwrap();
        let _ = child.wait();
        let errors = String::from_utf8_lossy(&stderr.join().unwrap()).into_owned();
        panic!("it took longer than {PATIENCE:?}: {errors}");
    };
    Output { status, stdout: stdout.join().unwrap(), stderr: stderr.join().unwrap() }
}

/// Restores a report that Open MPI 5 has divided. It forwards output in pieces of 4 KiB: when a rank
/// was killed, mpirun prints the first piece of another rank's standard output on its standard error
/// (5.0.7, Debian 13). Returns the complete report in that case.
fn misled(text: &str, errors: &str) -> Option<String> {
    const PIECE: usize = 4096;
    let begin = errors.find("{\"valid\"")?;
    let first = &errors[begin..];
    // In one case the piece was a byte shorter, with the program's own message directly after it.
    let end = first.find("pollux: ").unwrap_or(PIECE).min(PIECE);
    Some(first.get(..end)?.to_owned() + text.lines().next()?)
}

/// Returns the one JSON document on standard output, which also has the launcher's own output.
pub(crate) fn document(output: &Output) -> Value {
    let (text, errors) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let misled = misled(&text, &errors);
    let reports: Vec<_> =
        text.lines().chain(misled.as_deref()).filter(|l| l.starts_with('{')).collect();
    assert_eq!(reports.len(), 1, "one report: {text}\n{errors}");
    serde_json::from_str(reports[0]).unwrap_or_else(|error| panic!("{error}: {text}\n{errors}"))
}

/// Returns whether the tests of this launcher can run, and prints the reason if not. With
/// POLLUX_MPI_REQUIRED set, a missing launcher is a failure.
fn can_run(launcher: Launcher, needs_root: bool) -> bool {
    let program = launcher.program();
    if !launcher.is_installed() {
        let required = std::env::var_os("POLLUX_MPI_REQUIRED").is_some();
        assert!(!required, "{program} is not installed: `scripts/setup mpi`");
        eprintln!("skipped: {program} is not installed: `scripts/setup mpi`");
        return false;
    }
    // Only root may create network namespaces; no package changes that.
    if needs_root && !rustix::process::geteuid().is_root() {
        eprintln!("skipped: needs root");
        return false;
    }
    true
}

macro_rules! with_launchers {
    ($($module:ident: $launcher:expr => { $($name:ident($root:literal): $test:path),+ $(,)? })+) => {
        $(mod $module {
            use super::{Launcher, can_run, killed, several};

            $(
                #[test]
                #[ignore = "slow: several ranks under an MPI launcher"]
                fn $name() {
                    if can_run($launcher, $root) {
                        $test($launcher);
                    }
                }
            )+
        })+
    };
}

with_launchers! {
    open_mpi: Launcher::OpenMpi => {
        four_hosts_make_one_report(true): several::four_hosts,
        ranks_started_unlike_are_refused(false): several::unlike,
        a_killed_rank_is_named(false): killed::a_rank,
        an_interrupt_ends_the_run_with_a_report(false): killed::an_interrupt,
        four_hosts_hold_60000(true): several::four_hosts_hold,
        two_ranks_share_subscribers(false): several::subscribers,
    }
    mpich: Launcher::Mpich => {
        four_hosts_make_one_report(true): several::four_hosts,
        ranks_started_unlike_are_refused(false): several::unlike,
        a_killed_rank_is_named(false): killed::a_rank,
        an_interrupt_ends_the_run_with_a_report(false): killed::an_interrupt,
        a_killed_stand_in_is_named(false): killed::a_stand_in,
        two_ranks_share_subscribers(false): several::subscribers,
    }
}

#[test]
fn a_launcher_that_cannot_be_used_is_reported() {
    several::a_launcher_that_cannot_be_used_is_reported();
}

#[test]
fn a_report_in_two_pieces_is_put_together() {
    let whole = format!("{{\"valid\":false,\"text\":\"{}\"}}", "x".repeat(5_000));
    for length in [4_095, 4_096] {
        let (first, rest) = whole.split_at(length);
        let errors = format!("a rank is lost\n{first}pollux: invalid run: rank 2\n");
        assert_eq!(misled(rest, &errors).as_ref(), Some(&whole), "{length}");
    }
}

#[test]
fn without_the_others_a_rank_runs_alone() {
    several::without_the_others_a_rank_runs_alone();
}
