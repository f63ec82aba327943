//! One run: starts a server, its idle connections and one or more loads in sequence, and ends all of them.

mod around;
pub(super) mod baseline;
mod flags;
mod idle;
mod push;
mod reading;
mod stored;
mod tls;

use super::{
    interrupt::Interrupt,
    process::{Process, Scheduling},
    redis,
    server::Server,
    site::{GUESTBOOK, Site},
};
use crate::{
    environment::{Cpus, patience},
    experiment::{
        Experiment, Flags, IDLE, RATE, REQUEST, RedisBenchmark, Request, SESSION, SUBSCRIBERS,
        Subject, Value, Variant, Where, Workload,
    },
    kernel_calls::KernelCalls,
    measure::{self, Raw},
    memory,
    metric::Metric,
    network::Distance,
    peer::{PeerSetup, Role},
    plan::Cell,
    switches::Switches,
};
use anyhow::Context as _;
use around::{Around, Before};
use flags::{on_cpu, seconds, with_flags, without_schedule};
use pollux_event::MechanismSpec;
use reading::ServerReading;
use std::{
    ffi::OsString,
    path::Path,
    time::{Duration, Instant},
};

/// How much longer than its window a load may take: the generator's own time-outs, and the merging of
/// histograms.
const LOAD_GRACE: Duration = Duration::from_secs(40);
/// How long Ctrl-C may go unnoticed.
const INTERRUPT_GRAIN: Duration = Duration::from_millis(20);
/// The number of samples of the open connections during a window. Each sample wakes all workers.
const OPEN_SAMPLES: u32 = 5;
/// The generator's exit code when it was the bottleneck itself.
const EXIT_INVALID: i32 = 3;
/// The generator's exit code when no request succeeded. This is a valid result.
const EXIT_NOTHING: i32 = 4;

/// The programs that a run starts: the executable and the first arguments of each.
#[derive(Clone, Debug)]
pub struct Programs {
    /// `pollux serve`.
    pub serve: Vec<OsString>,
    /// `pollux load`.
    pub load: Vec<OsString>,
    /// `pollux idle`.
    pub idle: Vec<OsString>,
    /// `pollux lab wait-cost`.
    pub wait: Vec<OsString>,
    /// `pollux lab floor`.
    pub floor: Vec<OsString>,
}

impl Programs {
    /// Returns all programs for the `pollux` executable at `executable`.
    pub fn of(executable: &Path) -> Self {
        let command = |words: &[&str]| -> Vec<OsString> {
            let words = words.iter().map(OsString::from);
            std::iter::once(executable.into()).chain(words).collect()
        };
        Self {
            // The papers' servers close no idle connection to accept a new one, and the kernel does not
            // filter their system calls.
            serve: command(&["serve", "--idle-eviction", "off", "--sandbox", "off"]),
            load: command(&["load"]),
            idle: command(&["idle"]),
            wait: command(&["lab", "wait-cost"]),
            floor: command(&["lab", "floor"]),
        }
    }
}

/// The way in which the load is generated.
#[derive(Clone, Copy, Debug)]
pub enum Drive {
    /// At the cell's rate, if it has one; otherwise as the experiment's flags specify.
    AsPlanned,
    /// At this number of requests per second: a phase.
    Rate(f64),
    /// In a closed loop with this number of connections, to find the saturation.
    Saturate(u32),
}

/// One load on a server.
#[derive(Clone, Copy, Debug)]
pub struct LoadPhase<'a> {
    /// The measured cell.
    pub cell: &'a Cell,
    /// The way in which the load is generated.
    pub drive: Drive,
    /// The length of the measured window in seconds.
    pub window_s: f64,
    /// How many seconds the load lasts before its window.
    pub warmup_s: f64,
}

/// The counters that are active while a server is measured.
struct Counters {
    calls: KernelCalls,
    switches: Option<Switches>,
}

/// A server that is measured.
struct Target<'a> {
    server: &'a Server,
    counters: &'a Counters,
    before_load: Option<Before>,
}

/// The settings that all runs of an experiment share.
#[derive(Debug)]
pub struct Bench<'a> {
    /// The experiment.
    pub experiment: &'a Experiment,
    /// The programs.
    pub programs: &'a Programs,
    /// The CPUs on which the programs run.
    pub cpus: Cpus,
    /// The served files, if there are any.
    pub site: Option<&'a Site>,
    /// The Redis behind the guestbook.
    pub redis: Option<&'a redis::RedisServer>,
    /// Ctrl-C.
    pub interrupt: &'a Interrupt,
    /// The scheduling of the generator and the idle holder, which may share a CPU with the server.
    pub generator_scheduling: Scheduling,
    /// Millions of instructions per second, in a guest whose clock counts them.
    pub mips: Option<u32>,
}

/// The data of one run.
#[derive(Debug, Default)]
pub struct Trial {
    /// The start in seconds from the start of the experiment.
    pub started_s: f64,
    /// The requested length of the measured window.
    pub window_s: f64,
    /// The raw data.
    pub raw: Raw,
    /// The mechanism that the server reports.
    pub mechanism: String,
    /// The command lines of the programs.
    pub commands: Vec<String>,
}

impl Bench<'_> {
    /// Measures the `phases` on one server, one after the other without a gap. When a load other than the
    /// last has sent its last request, the next load begins while the earlier one receives its last
    /// replies. `trials` has one entry for each phase; data collected before an error remains in it.
    ///
    /// # Errors
    /// When the server, the idle holder or a generator fails; when the server uses another mechanism than
    /// the requested one; on Ctrl-C.
    pub fn measure(
        &self,
        variant: &Variant,
        phases: &[LoadPhase<'_>],
        seed: u64,
        trials: &mut [Trial],
    ) -> anyhow::Result<()> {
        let first = phases.first().context("a run has at least one phase")?;
        trials.iter_mut().for_each(|trial| trial.raw.mips = self.mips);
        if self.experiment.subject == Subject::Wait {
            return self.measure_wait(variant, first.cell, first.window_s, seed, &mut trials[0]);
        }
        if let Some(benchmark) = &variant.redis_benchmark {
            return self.benchmark_redis(benchmark, &mut trials[0]);
        }
        if let Some(push) = &self.experiment.push {
            return self.measure_push(push, variant, first, seed, &mut trials[0]);
        }
        self.measure_server(variant, phases, seed, trials)
    }

    /// Returns the served files.
    fn site(&self) -> anyhow::Result<&Site> {
        self.site.context("an experiment with a server has a site")
    }

    fn measure_server(
        &self,
        variant: &Variant,
        phases: &[LoadPhase<'_>],
        seed: u64,
        trials: &mut [Trial],
    ) -> anyhow::Result<()> {
        let first = &phases[0];
        let _distance = match (Where::at(&first.cell.point), &self.experiment.clients) {
            (Where::Far, Some(clients)) => Some(Distance::put(clients)?),
            _ => None,
        };
        let request = first.cell.point.get(REQUEST).and_then(|name| self.experiment.request(name));
        let origin = self.start_origin(request)?;
        let around = Around { origin: origin.as_ref(), request };
        let before_load = self.before_load(first)?;
        let scratch = self.site()?.scratch("peer-")?;
        let server = self.start_server(variant, first.cell, &around, scratch.path())?;
        for trial in &mut *trials {
            trial.commands.push(server.command().to_owned());
            trial.mechanism.clone_from(&server.mechanism);
            trial.raw.listening = server.listening.clone();
        }
        same_server(variant, &server)?;
        if request.is_some_and(|request| request.prepared) && variant.floor_of.is_none() {
            server.request(self.site()?.path())?;
        }
        self.store(&server, &around, &mut trials[0])?;
        let mut holder = self.hold_idle(&server, first.cell, trials)?;
        let queue = variant.signal_queue_when_held.or(self.experiment.signal_queue_when_held);
        if let Some(length) = queue {
            server.limit_signal_queue(length)?;
        }
        let counters = &self.counters(&server)?;
        let storm = self.storm(&server, &around, first, &mut trials[0])?;
        trials[0].raw.is_beside_others = storm.is_some();
        let origin_requests_before = around.origin_requests(self.interrupt)?;
        let target = Target { server: &server, counters, before_load };
        self.run_loads(&target, &around, phases, seed, trials)?;
        drop(storm);
        if let Some(holder) = &mut holder {
            let lost = self.idle_lost(holder, &server, trials)?;
            trials.iter_mut().for_each(|trial| trial.raw.idle_lost.clone_from(&lost));
        }
        if let (Some(before), Some(after)) =
            (origin_requests_before, around.origin_requests(self.interrupt)?)
        {
            trials[0].raw.origin_requests = Some(after.saturating_sub(before));
        }
        Ok(())
    }

    /// Runs the loads one after the other, and reads the server's figures before and after each of them.
    fn run_loads(
        &self,
        target: &Target<'_>,
        around: &Around<'_>,
        phases: &[LoadPhase<'_>],
        seed: u64,
        trials: &mut [Trial],
    ) -> anyhow::Result<()> {
        let Target { server, counters, before_load } = *target;
        let held_s = around.request.and_then(|request| request.origin_held_seconds);
        let held_origin = around.origin.zip(held_s);
        if let Some((origin, _)) = held_origin {
            origin.hold(true)?;
        }
        let mut earlier = self.reading(server, counters)?;
        let mut generators = Vec::with_capacity(phases.len());
        for (phase, trial) in phases.iter().zip(&mut *trials) {
            let window = Duration::from_secs_f64(phase.window_s);
            let load = self.load(server, phase, seed, around.request)?;
            let mut generator =
                Process::spawn_with("the generator", &load, self.generator_scheduling)?;
            trial.commands.push(generator.command().to_owned());
            if let Some((origin, held_s)) = held_origin {
                self.sleep_until(Instant::now() + Duration::from_secs_f64(held_s))?;
                origin.hold(false)?;
            }
            if self.settle_s(phase) > 0.0 {
                self.wait_until_steady(server, &earlier, &mut generator, phase)?;
                earlier = self.reading(server, counters)?;
                if before_load.is_some() {
                    trial.raw.loaded = self.loaded(server, before_load, earlier.at, phase)?;
                } else if self.experiment.looks_at(Metric::OpenConnections) {
                    trial.raw.open = self.open_until(server, earlier.at, phase.window_s)?;
                }
                self.sleep_until(earlier.at + window)?;
            } else if generators.len() + 1 < phases.len() {
                self.sleep_until(earlier.at + window)?;
            } else {
                trial.raw.loaded = self.loaded(server, before_load, earlier.at, phase)?;
                trial.raw.load = result_of(&mut generator, phase.window_s, self.interrupt)?;
            }
            generators.push(generator);
            let later = self.reading(server, counters)?;
            earlier.until(&later, &mut trial.raw);
            earlier = later;
        }
        for ((generator, trial), phase) in generators.iter_mut().zip(trials).zip(phases) {
            if trial.raw.load.is_null() {
                trial.raw.load = result_of(generator, phase.window_s, self.interrupt)?;
            }
        }
        Ok(())
    }

    /// Starts the counters that the experiment requires for this server.
    fn counters(&self, server: &Server) -> anyhow::Result<Counters> {
        let counts_switches = self.experiment.context_switches;
        Ok(Counters {
            calls: KernelCalls::of_process(&self.experiment.kernel_calls, server.pid())?,
            switches: counts_switches.then(|| Switches::of(server.pid())).transpose()?,
        })
    }

    /// Waits until a load is steady and can be measured.
    fn wait_until_steady(
        &self,
        server: &Server,
        before: &ServerReading,
        generator: &mut Process,
        phase: &LoadPhase<'_>,
    ) -> anyhow::Result<()> {
        self.await_requests(server, before, generator)?;
        self.sleep_until(Instant::now() + Duration::from_secs_f64(self.settle_s(phase)))
    }

    /// Returns how long a load lasts before it is measured: until it is steady, distant clients have opened
    /// all the connections that they keep open, and the effects of the previous phase are over.
    fn settle_s(&self, phase: &LoadPhase<'_>) -> f64 {
        match (phase.drive, &self.experiment.clients) {
            (Drive::AsPlanned, Some(clients)) => clients.settle_seconds.max(phase.warmup_s),
            (Drive::AsPlanned, None) | (Drive::Rate(_), _) => phase.warmup_s,
            (Drive::Saturate(_), _) => 0.0,
        }
    }

    /// Reads the server's current figures. The server's own statistics arrive with a delay, so the other
    /// figures are read after them. The cost of these statistics belongs to the interval that ends with
    /// this reading.
    fn reading(&self, server: &Server, counters: &Counters) -> anyhow::Result<ServerReading> {
        let statistics = server.statistics(self.interrupt)?;
        let (at, cpu) = (Instant::now(), measure::cpu_time(server.pid())?);
        let idle_ns = measure::idle_ns(self.cpus.server);
        let kernel_calls = counters.calls.read()?;
        let switches = counters.switches.as_ref().map(Switches::read).transpose()?;
        let redis_cpu_ns = self.redis.map(redis::RedisServer::cpu_ns).transpose()?;
        Ok(ServerReading {
            at,
            cpu,
            idle_ns,
            statistics,
            kernel_calls,
            switches,
            redis_cpu_ns,
            packets_dropped: measure::dropped_packets(),
        })
    }

    /// Waits until the load has begun, which means that the server has received its first request. A
    /// generator that rejects its flags has ended before that, and its output explains why.
    fn await_requests(
        &self,
        server: &Server,
        before: &ServerReading,
        generator: &mut Process,
    ) -> anyhow::Result<()> {
        let deadline = Instant::now() + LOAD_GRACE;
        loop {
            // Checked before the server is: a generator that ends after its requests has not failed.
            let has_ended = generator.ended().is_some();
            if server.statistics(self.interrupt)?["requests"] != before.statistics["requests"] {
                break;
            }
            if has_ended {
                generator.drain_stderr();
                anyhow::bail!("{}", generator.complaint("ended before its first request"));
            }
            anyhow::ensure!(Instant::now() < deadline, "no request came within {LOAD_GRACE:?}");
            self.sleep_until(Instant::now() + INTERRUPT_GRAIN)?;
        }
        Ok(())
    }

    /// Samples the number of open connections during a window that began at `start`.
    fn open_until(
        &self,
        server: &Server,
        start: Instant,
        window_s: f64,
    ) -> anyhow::Result<Vec<u64>> {
        let mut open = Vec::with_capacity(OPEN_SAMPLES as usize);
        for sample in 1..=OPEN_SAMPLES {
            let share = f64::from(sample) / f64::from(OPEN_SAMPLES);
            self.sleep_until(start + Duration::from_secs_f64(window_s * share))?;
            let statistics = server.statistics(self.interrupt)?;
            open.extend(statistics["connections"]["open"].as_u64());
        }
        Ok(open)
    }

    fn sleep_until(&self, instant: Instant) -> anyhow::Result<()> {
        loop {
            self.interrupt.check()?;
            let left = instant.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(left.min(INTERRUPT_GRAIN));
        }
    }

    /// Measures the wait call of the mechanism alone.
    fn measure_wait(
        &self,
        variant: &Variant,
        cell: &Cell,
        window_s: f64,
        seed: u64,
        trial: &mut Trial,
    ) -> anyhow::Result<()> {
        let mut flags = self.experiment.wait.clone();
        flags.extend(variant.wait.clone());
        if !self.experiment.kernel_calls.is_empty() {
            let functions = self.experiment.kernel_calls.join(",");
            flags.insert("kernel-calls".into(), Value::Word(functions));
        }
        flags.extend(self.flags_of_axes(cell, |axis| &axis.wait_flag));
        flags.insert("mechanism".into(), Value::Word(variant.mechanism.clone()));
        flags.insert("duration".into(), seconds(window_s));
        flags.insert("seed".into(), Value::Word(seed.to_string()));
        flags.insert("pin".into(), Value::Number(f64::from(self.cpus.server)));
        let program = with_flags(&self.programs.wait, &flags);
        let mut process = Process::spawn("the measurement", &program)?;
        trial.commands.push(process.command().to_owned());
        let limit = Duration::from_secs_f64(window_s) + LOAD_GRACE;
        let (status, text) = process.output(limit, self.interrupt)?;
        if !status.success() {
            process.drain_stderr();
            anyhow::bail!("{}", process.complaint(&format!("failed ({status})")));
        }
        trial.raw.load = serde_json::from_str(&text)
            .with_context(|| process.complaint("did not write a JSON document"))?;
        let ran = trial.raw.load["mechanism_spec"].as_str().unwrap_or_default();
        ran.clone_into(&mut trial.mechanism);
        same_mechanism(variant, &trial.mechanism)
    }

    fn serve(
        &self,
        variant: &Variant,
        cell: &Cell,
        around: &Around<'_>,
    ) -> anyhow::Result<Vec<OsString>> {
        let mut flags: Flags = self.experiment.server.clone();
        flags.extend(variant.server.clone());
        flags.extend(self.flags_of_axes(cell, |axis| &axis.server_flag));
        if let Some(most) = self.experiment.connections_per_worker {
            let held = [IDLE, SUBSCRIBERS].iter().find_map(|axis| cell.point.get(*axis)?.number());
            let workers = (held.unwrap_or(0.0) / f64::from(most)).ceil().max(1.0);
            // A variant may have more workers than its subscribers need.
            flags.entry("workers".into()).or_insert(Value::Number(workers));
        }
        match &variant.architecture {
            Some(name) => flags.insert("architecture".into(), Value::Word(name.clone())),
            None => flags.insert("mechanism".into(), Value::Word(variant.mechanism.clone())),
        };
        flags.insert("listen".into(), Value::Word("127.0.0.1:0".into()));
        flags.extend(on_cpu(self.cpus.server));
        if self.experiment.workload == Some(Workload::Guestbook) {
            flags.insert("guestbook".into(), Value::Word(GUESTBOOK.into()));
        }
        let flags = self.filled_in(&flags, cell, around)?;
        let mut program = with_flags(&self.programs.serve, &flags);
        // A front end without its own files requests everything from the origin.
        if !flags.contains_key("origin") {
            program.push(self.site()?.root().into());
        }
        Ok(program)
    }

    fn load(
        &self,
        server: &Server,
        phase: &LoadPhase<'_>,
        seed: u64,
        request: Option<&Request>,
    ) -> anyhow::Result<Vec<OsString>> {
        let site = self.site()?;
        let LoadPhase { cell, drive, window_s, .. } = *phase;
        let mut flags = self.load_flags();
        if let Some(request) = request {
            flags.extend(request.load.clone());
            if request.distinct > 1 {
                let urls = site.distinct(request.distinct, &request.name)?;
                flags.insert("url-file".into(), Value::Word(urls.display().to_string()));
            }
        }
        flags.extend(self.flags_of_axes(cell, |axis| &axis.load_flag));
        if let Some(urls) = site.urls() {
            flags.insert("url-file".into(), Value::Word(urls.display().to_string()));
        }
        match drive {
            Drive::Saturate(connections) => {
                // A closed loop has no sessions that start by a schedule. It sends the same number of
                // requests on each connection.
                if let Some(requests) = flags.remove(SESSION) {
                    flags.remove("think-time");
                    flags.insert("requests-per-connection".into(), requests);
                }
                // A closed loop opens all its connections at the beginning, so a limit becomes their
                // number.
                let connections = match flags.remove("max-connections") {
                    Some(Value::Number(most)) => most.min(f64::from(connections)),
                    _ => f64::from(connections),
                };
                flags.insert("connections".into(), Value::Number(connections));
                // Each connection waits for its own reply, so no request finds them in use.
                flags.remove("at-limit");
                // More threads provide more descriptor tables. On one CPU they wait for each other, and a
                // closed loop would count that as a lack of CPU time.
                flags.remove("threads");
            }
            Drive::Rate(rps) => {
                flags.insert("rate".into(), Value::Number(rps));
            }
            Drive::AsPlanned => {
                if let Some(rate) = cell.point.get(RATE) {
                    flags.insert("rate".into(), rate.clone());
                }
            }
        }
        let has_schedule = flags.get("rate").is_some_and(|rate| *rate != Value::Flag(false));
        if flags.contains_key("connections") && !has_schedule {
            without_schedule(&mut flags);
        }
        let settle_s = self.settle_s(phase);
        if settle_s > 0.0 {
            // The warm-up is measured from the first request that the server receives.
            let way_s = self.experiment.clients.map_or(0.0, |clients| 2.0 * clients.delay_ms / 1e3);
            flags.insert("warmup".into(), seconds(settle_s + way_s));
        }
        flags.insert("duration".into(), seconds(window_s));
        flags.insert("seed".into(), Value::Word(seed.to_string()));
        tls::trust(&mut flags, server);
        let mut program = with_flags(&self.programs.load, &flags);
        program.push(server.url(site.path()).into());
        Ok(program)
    }
}

/// Returns the result that `pollux load` writes at its end, expected after `window_s` seconds of load. A
/// result in which the generator was the bottleneck or no request succeeded is also returned.
///
/// # Errors
/// When the generator fails otherwise, does not end in time, or writes no JSON document; on Ctrl-C.
pub fn result_of(
    generator: &mut Process,
    window_s: f64,
    interrupt: &Interrupt,
) -> anyhow::Result<serde_json::Value> {
    let limit = Duration::from_secs_f64(window_s) + patience(LOAD_GRACE);
    let (status, text) = generator.output(limit, interrupt)?;
    if !matches!(status.code(), Some(0 | EXIT_INVALID | EXIT_NOTHING)) {
        generator.drain_stderr();
        anyhow::bail!("{}", generator.complaint(&format!("failed ({status})")));
    }
    serde_json::from_str(&text)
        .with_context(|| generator.complaint("did not write a JSON document"))
}

/// Checks the mechanism or architecture that the server reports.
///
/// # Errors
/// When it is not the requested one.
fn same_server(variant: &Variant, server: &Server) -> anyhow::Result<()> {
    if let Some(wanted) = &variant.architecture {
        let ran = &server.listening["architecture"];
        anyhow::ensure!(ran == wanted, "requested architecture {wanted}, but {ran} runs");
    } else if server.has_statistics() {
        same_mechanism(variant, &server.mechanism)?;
    }
    Ok(())
}

/// Checks the mechanism that ran.
///
/// # Errors
/// When it is not the requested one.
fn same_mechanism(variant: &Variant, ran: &str) -> anyhow::Result<()> {
    // Formatting the parsed spec puts its options in the same order as in `ran`.
    let wanted = variant.mechanism.parse::<MechanismSpec>()?.to_string();
    anyhow::ensure!(ran == wanted, "requested mechanism {wanted}, but {ran} runs");
    Ok(())
}
