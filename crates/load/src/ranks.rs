//! One run by many processes, on one host or many, started by a launcher of MPI programs.
//!
//! # How it works
//! The launcher's own MPI library, loaded at run time, gives each process its rank, and all of them
//! rank 0's address and a secret; then MPI ends (`sys`, `launcher`). From then on each rank has a
//! TCP connection to rank 0 (`leader`, `member`, `message`). MPI is not used during the run for three
//! reasons: a rank that dies would end all of MPI; MPI's waiting uses CPU that the generator needs; and
//! the end of a TCP connection is a sufficient notice of a dead rank.
//!
//! The arguments describe what all ranks do together. Ranks share the schedule as threads do
//! (`share`), the connections and the idle connections. All begin at the same instant of rank 0's
//! clock (`clock`).

mod clock;
mod idle;
mod launcher;
mod leader;
mod load;
mod member;
mod message;
mod push;
mod report;
mod share;
mod supervisor;
mod sys;

pub use idle::{IdleTotals, hold_idle, idle_task};
pub use launcher::{MAX_RANKS, MpiChoice};
pub use load::{run, task};
pub use message::Heartbeat;
pub use push::{push_task, run_push};
pub use report::{ClockComparison, RankReport, RanksReport};

use anyhow::{Context, Result, bail, ensure};
use clock::ClockOffset;
use launcher::Launcher;
use leader::{Leader, Peer};
use member::Member;
use message::{Identity, Secret};
use serde::{Deserialize, Serialize};
use std::{
    hash::{DefaultHasher, Hasher},
    net::{IpAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc::{self, RecvTimeoutError},
    },
    time::Duration,
};
use supervisor::Supervisor;

/// How long the MPI library may take to connect the ranks and to end.
const MPI_PATIENCE: Duration = Duration::from_secs(120);

/// The most addresses of rank 0 to try.
const MAX_ADDRESSES: usize = 24;

/// The size of the message that MPI broadcasts from rank 0.
const RENDEZVOUS_BYTES: usize = 1024;

/// How to reach rank 0.
#[derive(Debug, Serialize, Deserialize)]
struct Rendezvous {
    secret: Secret,
    port: u16,
    host: String,
    addresses: Vec<IpAddr>,
}

/// This process as one of the ranks of a run. Rank 0 drops it after it has written its report: until then
/// the other ranks do not end.
pub struct Ranks {
    launcher: Launcher,
    /// The name and version of the MPI library.
    library: String,
    host: String,
    /// A number that all ranks of this run have, and hardly any other run.
    run_number: u32,
    supervisor: Arc<Supervisor>,
    role: Role,
}

enum Role {
    Leader(Leader),
    Member(Member),
}

/// The results that rank 0 collected from the other ranks.
struct PeerResults {
    peers: Vec<Peer>,
    fault: Option<String>,
}

/// Runs as the supervisor of a rank, if the launcher kills all ranks without warning when one dies:
/// starts the rank, waits for it and returns its exit status. Otherwise returns `None` at once.
/// Must be called before anything else.
///
/// # Errors
/// The launcher cannot be used, or the rank cannot be started.
pub fn supervise(choice: &MpiChoice) -> Result<Option<u8>> {
    match find(choice)? {
        Some(launcher) if launcher.kills_at_once => supervisor::supervise(),
        _ => Ok(None),
    }
}

fn find(choice: &MpiChoice) -> Result<Option<Launcher>> {
    let found = match choice {
        MpiChoice::Off => return Ok(None),
        _ => launcher::find(|name| std::env::var(name).ok())?,
    };
    match (found, choice) {
        (None, MpiChoice::Library(library)) => bail!(
            "--ranks {library}: no launcher started this process; start it with mpirun or srun"
        ),
        // A single rank works alone.
        (found, _) => Ok(found.filter(|launcher| launcher.size > 1)),
    }
}

/// Finds the other ranks of this run, if a launcher started several. The result of `task`, which is
/// called only then, must be the same on all ranks.
///
/// # Errors
/// The launcher cannot be used; the ranks do not find each other; they were started with different
/// arguments. There is no fallback.
pub fn join(
    choice: &MpiChoice,
    task: impl FnOnce() -> String,
    stop: &Arc<AtomicBool>,
) -> Result<Option<Ranks>> {
    let Some(launcher) = find(choice)? else { return Ok(None) };
    let supervisor = Supervisor::watch(stop)?;
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let (mut listener, mut rendezvous) = (None, vec![0; RENDEZVOUS_BYTES]);
    let version = join_job(&launcher, choice, &mut rendezvous, |buffer| {
        let (bound, rendezvous) = listen(&host)?;
        listener = Some(bound);
        postcard::to_slice(&rendezvous, buffer).context("rank 0's addresses")?;
        Ok(())
    })?;
    let (rendezvous, _) = postcard::take_from_bytes::<Rendezvous>(&rendezvous)
        .context("rank 0 published no address")?;
    supervisor.is_joined.store(true, Relaxed);
    // A hash, because the number is sent to the server.
    let mut hasher = DefaultHasher::new();
    hasher.write(&rendezvous.secret);
    let run_number = hasher.finish() as u32;
    let me = Identity {
        secret: rendezvous.secret,
        rank: launcher.rank,
        host: host.clone(),
        pid: std::process::id(),
        version: env!("CARGO_PKG_VERSION").into(),
        task: task(),
    };
    let role = match listener {
        Some(listener) => Role::Leader(Leader::new(&listener, launcher.size, me, stop)?),
        None => Role::Member(Member::new(
            &rendezvous.addresses,
            rendezvous.port,
            rendezvous.host,
            me,
            stop,
        )?),
    };
    Ok(Some(Ranks { launcher, library: version, host, run_number, supervisor, role }))
}

/// Connects to the other ranks through MPI. Returns the library's name.
fn join_job(
    launcher: &Launcher,
    choice: &MpiChoice,
    rendezvous: &mut [u8],
    make_rendezvous: impl FnOnce(&mut [u8]) -> Result<()>,
) -> Result<String> {
    let Launcher { name, rank, size, .. } = *launcher;
    let advice = "name it with --ranks FILE, or run without the other ranks with --ranks off";
    if cfg!(target_feature = "crt-static") {
        bail!(
            "{name} started this as rank {rank} of {size}, but this program is linked statically and \
             cannot load its MPI library: use one built without crt-static, or --ranks off"
        );
    }
    let chosen;
    let libraries = match choice {
        MpiChoice::Library(library) => {
            chosen = [library.as_str()];
            &chosen[..]
        }
        _ => launcher.libraries,
    };
    let mut failures = Vec::new();
    let mut make_rendezvous = Some(make_rendezvous);
    for library in libraries {
        let library_handle = match sys::MpiLibrary::open(library) {
            Ok(loaded) => loaded,
            Err(error) => {
                failures.push(format!("{error:#}"));
                continue;
            }
        };
        let make_rendezvous =
            make_rendezvous.take().expect("the first library that loads is the last");
        let seconds = MPI_PATIENCE.as_secs();
        let message = format!(
            "pollux: {name} started this as rank {rank} of {size}; {library} did not bring the ranks \
             together and end within {seconds} s: a rank has died, or MPICH hangs [docs/cluster.md]"
        );
        let late = move || {
            eprintln!("{message}");
            std::process::exit(1);
        };
        let job =
            within(MPI_PATIENCE, late, || library_handle.join_job(rendezvous, make_rendezvous))?
                .with_context(|| {
                    format!("{name} started this as rank {rank} of {size}; {library}")
                })?;
        ensure!(
            (job.rank, job.size) == (rank, size),
            "{name} says that this is rank {rank} of {size}, {} ({library}) that it is {} of {}: the \
             library is not the launcher's; {advice}",
            job.version,
            job.rank,
            job.size
        );
        return Ok(job.version);
    }
    bail!(
        "{name} started this as rank {rank} of {size}, but its MPI library cannot be loaded ({}): \
         install it on this host, {advice}",
        failures.join("; ")
    )
}

/// Does `work`; calls `late` in another thread if it takes longer than `patience`.
fn within<R>(
    patience: Duration,
    late: impl FnOnce() + Send + 'static,
    work: impl FnOnce() -> R,
) -> Result<R> {
    let (done, waiting) = mpsc::channel::<()>();
    let watch = std::thread::Builder::new()
        .name("mpi".into())
        .spawn(move || {
            // Nothing is sent: dropping the sender ends the wait.
            if waiting.recv_timeout(patience) == Err(RecvTimeoutError::Timeout) {
                late();
            }
        })
        .context("a thread that watches the MPI library")?;
    let result = work();
    drop(done);
    let _ = watch.join();
    Ok(result)
}

/// Opens the port on which rank 0 accepts the other ranks.
fn listen(host: &str) -> Result<(TcpListener, Rendezvous)> {
    // [::] accepts IPv4 as well, if the host has IPv6 at all.
    let listener = TcpListener::bind("[::]:0")
        .or_else(|_| TcpListener::bind("0.0.0.0:0"))
        .context("a port for the other ranks")?;
    let mut addresses: Vec<IpAddr> = if_addrs::get_if_addrs()
        .context("this host's addresses")?
        .into_iter()
        .map(|interface| interface.ip())
        // Link-local addresses need an interface's name, which differs by host.
        .filter(|address| match address {
            IpAddr::V4(v4) => !v4.is_link_local(),
            IpAddr::V6(v6) => !v6.is_unicast_link_local(),
        })
        .collect();
    // Loopback connects ranks on the same host if there is no other address.
    addresses.sort_by_key(|address| (address.is_loopback(), address.is_ipv6()));
    addresses.truncate(MAX_ADDRESSES);
    let rendezvous = Rendezvous {
        secret: rand::random(),
        port: listener.local_addr()?.port(),
        host: host.chars().take(64).collect(),
        addresses,
    };
    Ok((listener, rendezvous))
}

/// Detects a host that vanishes, and sends small messages without delay.
fn keep_alive(stream: &TcpStream) -> Result<()> {
    use rustix::net::sockopt;
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, Duration::from_secs(5))?;
    sockopt::set_tcp_keepintvl(stream, Duration::from_secs(2))?;
    sockopt::set_tcp_keepcnt(stream, 4)?;
    Ok(())
}

impl Ranks {
    /// Whether this is rank 0, which reports.
    pub fn is_first(&self) -> bool {
        matches!(self.role, Role::Leader(_))
    }

    /// This rank, from 0.
    pub fn rank(&self) -> u32 {
        self.launcher.rank
    }

    /// The number of ranks.
    pub fn size(&self) -> u32 {
        self.launcher.size
    }

    /// The part of the report about the ranks.
    fn report(&self, members: Vec<RankReport>, fault: Option<String>) -> RanksReport {
        RanksReport {
            launcher: self.launcher.name,
            library: self.library.clone(),
            count: self.size(),
            fault,
            members,
        }
    }

    /// From now on, sends `heartbeat` to rank 0 once a second.
    fn heartbeat(&self, heartbeat: impl Fn() -> Heartbeat + Send + 'static) {
        if let Role::Member(member) = &self.role {
            member.heartbeat(heartbeat);
        }
    }

    /// Waits until all ranks are set up. Returns the start by this host's monotonic clock and, at
    /// rank 0, the progress of the other ranks.
    fn ready(&self, heartbeat: Heartbeat) -> Result<(Vec<Heartbeat>, i64)> {
        match &self.role {
            Role::Leader(leader) => leader.ready(),
            Role::Member(member) => Ok((Vec::new(), member.ready(heartbeat)?)),
        }
    }

    /// Ends the run for all; only rank 0 can.
    fn stop_all(&self) {
        if let Role::Leader(leader) = &self.role {
            leader.stop_all();
        }
    }

    /// Sends `measured` to rank 0; at rank 0, returns the results of the others.
    fn finish(&mut self, interrupted: bool, measured: Vec<u8>) -> Result<Option<PeerResults>> {
        let gone_ns = self.supervisor.gone_ns();
        match &mut self.role {
            Role::Member(member) => {
                member.hand_over(interrupted, gone_ns, measured)?;
                Ok(None)
            }
            Role::Leader(leader) => {
                let peers = leader.collect_results();
                let fault = fault(&peers, gone_ns, &self.host);
                Ok(Some(PeerResults { peers, fault }))
            }
        }
    }

    /// Ends the run because of `error`. Returns the error to print here; `None` if rank 0 prints
    /// it.
    fn give_up(&mut self, error: anyhow::Error) -> Result<()> {
        match &mut self.role {
            Role::Leader(leader) => {
                let error = match leader.fault() {
                    Some(fault) => anyhow::anyhow!(fault),
                    None => error,
                };
                leader.abort(&format!("{error:#}"));
                Err(error)
            }
            Role::Member(member) => {
                if member.aborted().is_some() {
                    return Ok(());
                }
                member.fail(&format!("{error:#}"));
                if member.aborted().is_some() { Ok(()) } else { Err(error) }
            }
        }
    }
}

/// The reason why the run ended early: the first rank whose connection ended, or whose launched process
/// was killed.
fn fault(peers: &[Peer], own_gone_ns: Option<i64>, own_host: &str) -> Option<String> {
    let lost = peers.iter().filter_map(|peer| {
        let (why, at_ns) = peer.lost.as_ref()?;
        Some((
            *at_ns,
            peer.identity.rank,
            peer.identity.host.as_str(),
            peer.identity.pid,
            why.clone(),
        ))
    });
    let ended = "the process that the launcher started for it was ended".to_owned();
    let orphaned = peers.iter().filter_map(|peer| {
        Some((
            peer.orphaned_ns?,
            peer.identity.rank,
            peer.identity.host.as_str(),
            peer.identity.pid,
            ended.clone(),
        ))
    });
    let own = own_gone_ns.map(|at_ns| (at_ns, 0, own_host, std::process::id(), ended.clone()));
    let (_, rank, host, pid, why) =
        lost.chain(orphaned).chain(own).min_by_key(|(at_ns, ..)| *at_ns)?;
    Some(format!("rank {rank} ({host}, process {pid}) was lost: {why}"))
}

/// Rank 0's clocks are the reference.
const OWN_CLOCK: (ClockOffset, ClockOffset) = (ClockOffset::NONE, ClockOffset::NONE);

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs `work` as two ranks, each in a thread of its own, that have found each other without MPI.
    pub(super) fn two_ranks<R: Send>(
        task: &str,
        work: impl Fn(&mut Ranks, &AtomicBool) -> R + Sync,
    ) -> [R; 2] {
        let stop = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let rank = |rank: u32| {
            let launcher = launcher::find(|name| match name {
                "OMPI_COMM_WORLD_RANK" => Some(rank.to_string()),
                "OMPI_COMM_WORLD_SIZE" => Some("2".into()),
                _ => None,
            });
            let stop = &stop[rank as usize];
            let me = Identity {
                secret: [7; 16],
                rank,
                host: format!("host{rank}"),
                pid: std::process::id(),
                version: "test".into(),
                task: task.into(),
            };
            let role = match rank {
                0 => Role::Leader(Leader::new(&listener, 2, me, stop).unwrap()),
                _ => {
                    let (ip, port) = (address.ip(), address.port());
                    Role::Member(Member::new(&[ip], port, "host0".into(), me, stop).unwrap())
                }
            };
            let (host, supervisor) = (format!("host{rank}"), Arc::default());
            let launcher = launcher.unwrap().unwrap();
            let (library, run_number) = ("none".into(), 7);
            work(&mut Ranks { launcher, library, host, run_number, supervisor, role }, stop)
        };
        std::thread::scope(|scope| {
            let second = scope.spawn(|| rank(1));
            [rank(0), second.join().unwrap()]
        })
    }

    /// Regression test: after a signal `mpirun` of Open MPI kills all ranks of a host as soon as one has ended,
    /// and rank 0 then wrote no report.
    #[test]
    fn the_other_ranks_do_not_end_before_the_report_is_written() {
        let has_ended = AtomicBool::new(false);
        let results = two_ranks("a run", |ranks, _| {
            let results = ranks.finish(true, vec![1]).unwrap();
            let Some(PeerResults { peers, .. }) = results else {
                has_ended.store(true, Relaxed);
                return 0;
            };
            // Here rank 0 writes the report.
            let patience = Duration::from_millis(100);
            assert!(pollux_testkit::stays_true(patience, || !has_ended.load(Relaxed)));
            peers.len()
        });
        assert_eq!(results, [1, 0]);
        assert!(has_ended.load(Relaxed));
    }

    #[test]
    fn an_mpi_library_that_hangs_is_reported() {
        let (sender, receiver) = mpsc::channel();
        let late = move || sender.send("late").unwrap();
        // The work must not end before `late` was called.
        let outcome = within(Duration::from_millis(1), late, || receiver.recv()).unwrap();
        assert_eq!(outcome, Ok("late"));
    }

    #[test]
    fn one_that_ends_in_time_is_not() {
        let late = || panic!("it was in time");
        assert_eq!(within(Duration::from_secs(3600), late, || 7).unwrap(), 7);
    }
}
