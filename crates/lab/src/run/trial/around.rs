//! The processes beside the server of a run: an origin, another load, a peer or a floor in place of the
//! server, Redis' benchmark.

use super::*;
use crate::{
    archive::write_into,
    memory::{HoldCost, LEAST_CONNECTIONS, Memory},
    peer::{PeerTls, TlsFiles},
};

/// How many remarks a page shows by default (`pollux serve --guestbook-shown`).
const DEFAULT_SHOWN: u32 = 100;

/// The origin behind the server, and the kind of request of this run.
pub(super) struct Around<'a> {
    pub(super) origin: Option<&'a Server>,
    pub(super) request: Option<&'a Request>,
}

impl Around<'_> {
    /// Returns how many requests the origin has received.
    pub(super) fn origin_requests(&self, interrupt: &Interrupt) -> anyhow::Result<Option<u64>> {
        let Some(origin) = self.origin else { return Ok(None) };
        Ok(origin.statistics(interrupt)?["requests"].as_u64())
    }
}

impl Bench<'_> {
    /// Starts the origin behind a front end.
    pub(super) fn start_origin(&self, request: Option<&Request>) -> anyhow::Result<Option<Server>> {
        let Some(origin) = &self.experiment.origin else { return Ok(None) };
        let mut flags = origin.server.clone();
        flags.extend(request.map(|request| request.origin.clone()).unwrap_or_default());
        flags.insert("listen".into(), Value::Word("127.0.0.1:0".into()));
        flags.extend(on_cpu(self.cpus.generator));
        let mut program = with_flags(&self.programs.serve, &flags);
        program.push(self.site()?.root().into());
        Server::start(&program, self.interrupt).context("the origin").map(Some)
    }

    /// Starts the server, peer or floor that is measured.
    pub(super) fn start_server(
        &self,
        variant: &Variant,
        cell: &Cell,
        around: &Around<'_>,
        scratch: &Path,
    ) -> anyhow::Result<Server> {
        let files = variant.tls.map(|_| TlsFiles::write(scratch)).transpose()?;
        if let Some(name) = &variant.floor_of {
            let server = self.start_floor((variant, name), cell, around, scratch)?;
            return Ok(server.with_tls(files.is_some()));
        }
        let Some(peer) = variant.peer else {
            let mut program = self.serve(variant, cell, around)?;
            if let Some(files) = &files {
                tls::serve_with(&mut program, files);
            }
            let server = Server::start(&program, self.interrupt)?;
            return Ok(server.with_tls(files.is_some()));
        };
        let role = match around.origin {
            Some(origin) => Role::Front { origin: origin.address.parse().context("the origin")? },
            None => Role::Files,
        };
        let site = self.site()?;
        let tls = files.as_ref().zip(variant.tls);
        let tls = tls.map(|(files, encryption)| PeerTls { files, encryption });
        let setup = PeerSetup { documents: &site.root(), scratch, tls };
        // The query makes this another document for a cache than the documents that are measured.
        let path = format!("{}?is-there", site.path());
        let set_up = peer.set_up(role, setup)?;
        Server::start_peer(peer.name(), &set_up, self.cpus.server, &path, self.interrupt)
    }

    /// Starts a floor for the variant of this name. The floor sends a copy of that variant's response to a
    /// second request, which a front end serves from its cache.
    fn start_floor(
        &self,
        (floor, name): (&Variant, &str),
        cell: &Cell,
        around: &Around<'_>,
        scratch: &Path,
    ) -> anyhow::Result<Server> {
        let variant = self.experiment.variant.iter().find(|variant| variant.name == name);
        let variant = variant.with_context(|| format!("no variant {name:?}"))?;
        let above = Server::start(&self.serve(variant, cell, around)?, self.interrupt)?;
        let path = self.site()?.path();
        above.request(path)?;
        let file = write_into(scratch, "reply", above.reply(path)?.bytes)?;
        drop(above);
        let mut flags = self.filled_in(&floor.floor, cell, around)?;
        if floor.tls.is_some() {
            flags.insert("tls".into(), Value::Flag(true));
        }
        let mut program = with_flags(&self.programs.floor, &flags);
        program.push(file.into());
        Server::start_floor(&program, self.cpus.server, self.interrupt)
    }

    /// Starts a second load beside the measured one, and waits until its requests reach the origin. The
    /// load ends when the returned value is dropped.
    pub(super) fn storm(
        &self,
        server: &Server,
        around: &Around<'_>,
        phase: &LoadPhase<'_>,
        trial: &mut Trial,
    ) -> anyhow::Result<Option<Process>> {
        let Some(storm) = around.request.and_then(|request| request.storm) else { return Ok(None) };
        let mut flags = self.load_flags();
        flags.insert("rate".into(), Value::Number(storm.rps));
        let site = self.site()?;
        let urls = site.distinct(storm.distinct, "storm")?;
        flags.insert("url-file".into(), Value::Word(urls.display().to_string()));
        let longest_s = phase.window_s + LOAD_GRACE.as_secs_f64();
        flags.insert("duration".into(), seconds(longest_s));
        let mut program = with_flags(&self.programs.load, &flags);
        program.push(server.url(site.path()).into());
        let process = Process::spawn_with("the storm", &program, self.generator_scheduling)?;
        trial.commands.push(process.command().to_owned());
        let before = around.origin_requests(self.interrupt)?;
        let deadline = Instant::now() + LOAD_GRACE;
        while around.origin_requests(self.interrupt)? == before {
            anyhow::ensure!(Instant::now() < deadline, "{}", process.complaint("did not begin"));
            self.sleep_until(Instant::now() + INTERRUPT_GRAIN)?;
        }
        Ok(Some(process))
    }

    /// Measures with Redis' own benchmark the commands of a page, one kind after the other. Their times
    /// together give the number of pages per second that Redis can serve.
    pub(super) fn benchmark_redis(
        &self,
        benchmark: &RedisBenchmark,
        trial: &mut Trial,
    ) -> anyhow::Result<()> {
        let redis = self.redis.context("an experiment with its benchmark has a Redis")?;
        let shown = self.experiment.server.get("guestbook-shown").and_then(Value::number);
        let shown = shown.map_or(DEFAULT_SHOWN, |shown| shown as u32);
        let started_at = Instant::now();
        let mut page_s = 0.0;
        for shown in [Some(shown), None] {
            let RedisBenchmark { connections, pipeline, requests } = *benchmark;
            let cpu = self.cpus.server;
            let program = redis.benchmark(cpu, connections, pipeline, requests.into(), shown)?;
            let mut process = Process::spawn("redis-benchmark", &program)?;
            trial.commands.push(process.command().to_owned());
            let (status, text) = process.output(LOAD_GRACE, self.interrupt)?;
            anyhow::ensure!(status.success(), "{}", process.complaint("failed"));
            page_s += 1.0 / redis::rate_rps(&text)?;
        }
        trial.raw.wall_ns = started_at.elapsed().as_nanos() as u64;
        trial.mechanism = "redis-benchmark".into();
        trial.raw.load = serde_json::json!({
            "valid": true, "mode": "closed", "reply_rate_rps": { "mean": 1.0 / page_s },
        });
        Ok(())
    }

    /// Returns the number of connections by which the server's memory is divided, if the experiment uses it
    /// and the number is at least [`LEAST_CONNECTIONS`].
    pub(super) fn memory_per(&self, cell: &Cell) -> Option<u64> {
        let number = cell.point.get(self.experiment.memory_per.as_ref()?)?.number()?;
        Some(number as u64).filter(|&connections| connections >= LEAST_CONNECTIONS)
    }

    /// Reads the kernel's memory before the server starts, if the experiment uses it.
    pub(super) fn before_load(&self, phase: &LoadPhase<'_>) -> anyhow::Result<Option<Before>> {
        if self.memory_per(phase.cell).is_none() {
            return Ok(None);
        }
        let kernel_moved_bytes = self.await_rest(phase.window_s)?;
        Ok(Some(Before { memory: memory::now(&[])?, kernel_moved_bytes }))
    }

    /// Measures the memory of the server in the middle of a window that began at `start`, less the memory
    /// that the kernel used before the server started. It includes the thread or process pool of a server
    /// that has one.
    pub(super) fn loaded(
        &self,
        server: &Server,
        before: Option<Before>,
        start: Instant,
        phase: &LoadPhase<'_>,
    ) -> anyhow::Result<Option<HoldCost>> {
        let Some((before, connections)) = before.zip(self.memory_per(phase.cell)) else {
            return Ok(None);
        };
        self.sleep_until(start + Duration::from_secs_f64(phase.window_s / 2.0))?;
        let memory = memory::now(&measure::processes(server.pid())?)? - before.memory;
        let kernel_moved_bytes = before.kernel_moved_bytes;
        Ok(Some(HoldCost { connections, memory, kernel_moved_bytes, ..HoldCost::default() }))
    }
}

/// The kernel's memory before the server starts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Before {
    memory: Memory,
    /// As [`HoldCost::kernel_moved_bytes`].
    kernel_moved_bytes: Option<u64>,
}
