//! The measurements of `make bench`. Each function measures its variants in turn, and adds its goals, tables and raw
//! data to the report.

use crate::{
    Setup, generator,
    goal::Goal,
    peer::{self, DOCUMENTS, H2O, LIGHTTPD, NGINX, Peer},
    wrk,
};
use anyhow::{Context, ensure};
use pollux_lab::{
    measure, memory,
    run::server::Server,
    statistics::{Compare, Estimate, estimate, median, paired},
};
use serde_json::{Map, Value, json};
use std::{
    collections::BTreeMap,
    thread,
    time::{Duration, Instant},
};

/// Keep-alive connections of the saturating generator.
pub(crate) const CONNECTIONS: usize = 64;
/// Idle connections held beside them.
const IDLE: usize = 10_000;
/// The number of measurements of the memory of idle connections, for the server that has a goal for it.
const MEMORY_ROUNDS: u32 = 6;

/// A server's memory is read when it has not changed for `STANDS_STILL`. It is checked every `LOOK`, for at most
/// `SETTLES`.
const STANDS_STILL: Duration = Duration::from_millis(300);
const LOOK: Duration = Duration::from_millis(20);
const SETTLES: Duration = Duration::from_secs(60);

/// Measured values by variant, one a round, in the order of the rounds.
type Samples = BTreeMap<&'static str, Vec<f64>>;

/// The paired ratio `a / b` with its interval.
fn ratio(samples: &Samples, a: &str, b: &str) -> anyhow::Result<Estimate> {
    let get = |name| samples.get(name).with_context(|| format!("{name} was not measured"));
    let pairs = get(a)?.iter().zip(get(b)?).map(|(&a, &b)| (Some(a), Some(b)));
    paired(pairs, Compare::Ratio).with_context(|| format!("no round has both {a} and {b}"))
}

/// The median of values of which there is at least one.
fn middle(values: &[f64]) -> f64 {
    median(values).expect("every variant was measured at least once")
}

/// Calls `measure` for every variant in every round, odd rounds in reverse (A B B A).
fn interleave<T: Copy>(
    rounds: u32,
    variants: &[T],
    mut measure: impl FnMut(u32, T) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    for round in 0..rounds {
        let mut order = variants.to_vec();
        if round % 2 == 1 {
            order.reverse();
        }
        for variant in order {
            measure(round, variant)?;
        }
    }
    Ok(())
}

/// Runs wrk once. Returns the server's CPU-µs per request and the requests per second.
fn drive(setup: &Setup, server: &Server, document: &str) -> anyhow::Result<(f64, f64)> {
    let before = measure::cpu_time(server.pid())?;
    let run = wrk_on(setup, server, document)?;
    let cpu = measure::cpu_time(server.pid())? - before;
    Ok((cpu.run_ns as f64 / 1000.0 / run.requests as f64, run.requests_per_s))
}

/// One run of wrk.
fn wrk_on(setup: &Setup, server: &Server, document: &str) -> anyhow::Result<wrk::WrkRun> {
    let Setup { testbed, duration, generator_cpu, .. } = setup;
    wrk::run(testbed, server, document, CONNECTIONS, *duration, *generator_cpu)
}

/// The user memory of the server's processes in bytes (heap and stacks, without files), as soon as it has not changed
/// for a while. It may still change at first: h2o answers while one of its processes starts, and the server may still
/// be sending the last replies when all connections are open.
fn user_bytes(setup: &Setup, server: &Server) -> anyhow::Result<f64> {
    let now = || anyhow::Ok(memory::now(&measure::processes(server.pid())?)?.user_bytes);
    let started_at = Instant::now();
    let (mut bytes, mut since) = (now()?, started_at);
    while since.elapsed() < STANDS_STILL {
        setup.testbed.interrupt.check()?;
        ensure!(started_at.elapsed() < SETTLES, "its memory did not stand still for {SETTLES:?}");
        thread::sleep(LOOK);
        let earlier = std::mem::replace(&mut bytes, now()?);
        if bytes != earlier {
            since = Instant::now();
        }
    }
    Ok(bytes as f64)
}

/// The growth of a fresh server's memory, in bytes per connection, after `count` keep-alive connections have each
/// made one request and are idle.
fn bytes_per_idle(setup: &Setup, peer: Peer, count: usize) -> anyhow::Result<f64> {
    let server = peer::start(peer, &setup.testbed)?;
    let before = user_bytes(setup, &server)?;
    let _held = generator::hold(&setup.testbed, &server, count)?;
    Ok((user_bytes(setup, &server)? - before) / count as f64)
}

/// The results of several servers under the same load.
struct ServerSamples {
    cpu_us_per_request: Samples,
    requests_per_s: Samples,
}

impl ServerSamples {
    /// Starts the `peers` and puts load on one at a time, with requests for `document`.
    fn of(setup: &Setup, document: &str, peers: &[Peer]) -> anyhow::Result<Self> {
        let servers: Vec<Server> = peers
            .iter()
            .map(|&peer| peer::start(peer, &setup.testbed))
            .collect::<Result<_, _>>()?;
        let (mut cpu, mut throughput) = (Samples::new(), Samples::new());
        let indices: Vec<usize> = (0..peers.len()).collect();
        // The first round warms up caches and congestion windows, and its results are dropped.
        interleave(1, &indices, |_, index| {
            setup.progress.set_message(format!("{document}: warming {}", peers[index].name()));
            drive(setup, &servers[index], document).map(drop)
        })?;
        interleave(setup.rounds, &indices, |round, index| {
            let name = peers[index].name();
            let of = setup.rounds;
            setup.progress.set_message(format!("{document}: round {}/{of} {name}", round + 1));
            let (cpu_us, rps) = drive(setup, &servers[index], document)?;
            cpu.entry(name).or_default().push(cpu_us);
            throughput.entry(name).or_default().push(rps);
            Ok(())
        })?;
        Ok(Self { cpu_us_per_request: cpu, requests_per_s: throughput })
    }

    /// Returns a table with a row for each of the `peers`, and the raw data. All are compared with the first.
    fn shown(&self, title: String, peers: &[Peer]) -> anyhow::Result<(comfy_table::Table, Value)> {
        let Self { cpu_us_per_request: cpu, requests_per_s: throughput } = self;
        let floor = peers[0].name();
        let mut table = comfy_table::Table::new();
        table.load_style(comfy_table::presets::UTF8_HORIZONTAL_ONLY);
        table.set_header([
            title,
            "server CPU-µs/request".into(),
            "requests/s".into(),
            format!("CPU beside {floor}"),
        ]);
        let mut summary = Map::new();
        for peer in peers {
            let name = peer.name();
            let beside = ratio(cpu, name, floor)?;
            summary.insert(
                name.into(),
                json!({
                    "cpu_us_per_request": middle(&cpu[name]),
                    "requests_per_s": middle(&throughput[name]),
                    "cpu_beside_floor": beside,
                }),
            );
            table.add_row([
                name.into(),
                format!("{:.2}", middle(&cpu[name])),
                format!("{:.0}", middle(&throughput[name])),
                match (beside.low.zip(beside.high), beside.range) {
                    (Some((low, high)), _) => format!("{:.3} ({low:.3} – {high:.3})", beside.value),
                    (None, Some(seen)) => {
                        format!("{:.3} (seen {:.3} to {:.3})", beside.value, seen.low, seen.high)
                    }
                    (None, None) => format!("{:.3}", beside.value),
                },
            ]);
        }
        let raw =
            json!({ "cpu_us_per_request": cpu, "requests_per_s": throughput, "summary": summary });
        Ok((table, raw))
    }
}

/// Compares the server's CPU per request with that of the floor and of other servers, for small and 6 KiB documents.
pub(crate) fn server(
    setup: &Setup,
    goals: &mut Vec<Goal>,
    tables: &mut Vec<comfy_table::Table>,
    raw: &mut Map<String, Value>,
) -> anyhow::Result<()> {
    for (document, length) in DOCUMENTS {
        let floor = if length == 1 { Peer::Floor } else { Peer::Floor6k };
        let peers = [floor, Peer::Pollux, LIGHTTPD, H2O, NGINX];
        let measured = ServerSamples::of(setup, document, &peers)?;
        let title = format!("{length}-byte document, {CONNECTIONS} keep-alive");
        let (table, data) = measured.shown(title, &peers)?;
        tables.push(table);
        raw.insert(format!("server-{length}"), data);
        let cpu = &measured.cpu_us_per_request;
        let better =
            if middle(&cpu["h2o"]) < middle(&cpu["lighttpd"]) { "h2o" } else { "lighttpd" };
        for (other, limit) in [(floor.name(), 1.10), ("nginx", 0.75), (better, 1.0)] {
            goals.push(Goal::at_most(
                format!("{length}-byte document: CPU per request, epoll-et / {other}"),
                limit,
                ratio(cpu, "pollux", other)?,
                "",
            ));
        }
    }
    Ok(())
}

/// Compares the event loop with pools that have a thread or process for each keep-alive connection. Also compares a
/// bare event loop with bare threads, whose cost no such pool can avoid.
pub(crate) fn pools(
    setup: &Setup,
    tables: &mut Vec<comfy_table::Table>,
    raw: &mut Map<String, Value>,
) -> anyhow::Result<()> {
    let peers = [Peer::Floor, Peer::FloorThreads, Peer::Pollux, Peer::Prethreaded, Peer::Preforked];
    let measured = ServerSamples::of(setup, DOCUMENTS[0].0, &peers)?;
    let title = format!("a pool, {CONNECTIONS} keep-alive");
    let (table, data) = measured.shown(title, &peers)?;
    tables.push(table);
    raw.insert("pools".into(), data);
    Ok(())
}

/// Compares the server's CPU per request with that of another build. No other server runs, so that there is time for
/// many short rounds.
pub(crate) fn against(
    setup: &Setup,
    goals: &mut Vec<Goal>,
    raw: &mut Map<String, Value>,
) -> anyhow::Result<()> {
    for (document, length) in DOCUMENTS {
        let builds = [Peer::Pollux, Peer::PolluxBefore];
        let servers =
            [peer::start(builds[0], &setup.testbed)?, peer::start(builds[1], &setup.testbed)?];
        let mut cpu = Samples::new();
        // The first round is a warm-up, and its results are dropped.
        interleave(1, &[0, 1], |_, index| drive(setup, &servers[index], document).map(drop))?;
        interleave(setup.rounds, &[0, 1], |round, index| {
            let name = builds[index].name();
            let of = setup.rounds;
            setup.progress.set_message(format!("{document}: round {}/{of} {name}", round + 1));
            let (cpu_us, _) = drive(setup, &servers[index], document)?;
            cpu.entry(name).or_default().push(cpu_us);
            Ok(())
        })?;
        goals.push(Goal::no_dearer(
            format!("{length}-byte document: CPU per request beside the other build"),
            1.03,
            ratio(&cpu, builds[0].name(), builds[1].name())?,
        ));
        raw.insert(format!("against-{length}"), json!({ "cpu_us_per_request": cpu }));
    }
    Ok(())
}

/// Measures the cost of 10,000 idle connections: throughput, CPU and user memory.
pub(crate) fn idle(
    setup: &Setup,
    goals: &mut Vec<Goal>,
    raw: &mut Map<String, Value>,
) -> anyhow::Result<()> {
    setup.progress.set_message("memory of idle connections");
    let mut memory = Samples::new();
    // Not lighttpd: it accepts at most half as many connections as it has descriptors, which is too few here.
    for peer in [Peer::Pollux, NGINX, H2O] {
        let rounds = if peer == Peer::Pollux { MEMORY_ROUNDS } else { 1 };
        for _ in 0..rounds {
            let bytes = bytes_per_idle(setup, peer, IDLE)?;
            memory.entry(peer.name()).or_default().push(bytes);
        }
    }

    let quiet = peer::start(Peer::Pollux, &setup.testbed)?;
    let holding = peer::start(Peer::Pollux, &setup.testbed)?;
    let pool = generator::hold(&setup.testbed, &holding, IDLE)?;
    let mut cpu = Samples::new();
    let mut throughput = Samples::new();
    let document = DOCUMENTS[0].0;
    interleave(setup.rounds, &[false, true], |round, with_idle| {
        let name = if with_idle { "with-idle" } else { "without" };
        setup.progress.set_message(format!("idle: round {}/{} {name}", round + 1, setup.rounds));
        let server = if with_idle { &holding } else { &quiet };
        let (cpu_us, rps) = drive(setup, server, document)?;
        cpu.entry(name).or_default().push(cpu_us);
        throughput.entry(name).or_default().push(rps);
        Ok(())
    })?;
    drop(pool);
    goals.push(Goal::at_most(
        format!("{IDLE} idle connections: throughput without / with"),
        1.02,
        ratio(&throughput, "without", "with-idle")?,
        "",
    ));
    goals.push(Goal::at_most(
        format!("user memory per idle keep-alive connection (over {IDLE})"),
        64.0,
        estimate(&memory["pollux"]).context("no measurement")?,
        " B",
    ));
    raw.insert(
        "idle".into(),
        json!({
            "connections": IDLE,
            "anonymous_bytes_per_connection": memory,
            "cpu_us_per_request": cpu,
            "requests_per_s": throughput,
        }),
    );
    Ok(())
}

/// Compares the CPU of `pollux load` with that of wrk on the floor, and measures its lag at half of saturation.
pub(crate) fn generator(
    setup: &Setup,
    goals: &mut Vec<Goal>,
    tables: &mut Vec<comfy_table::Table>,
    raw: &mut Map<String, Value>,
) -> anyhow::Result<()> {
    let floor = peer::start(Peer::Floor, &setup.testbed)?;
    let cpu = setup.generator_cpu;
    let connections = CONNECTIONS.to_string();
    let closed = ["--connections", &connections];
    let mut own = Samples::new();
    let mut saturation = Vec::new();
    interleave(setup.rounds, &["wrk", "pollux load"], |round, name| {
        let of = setup.rounds;
        setup.progress.set_message(format!("generators: round {}/{of} {name}", round + 1));
        let us_per_request = if name == "wrk" {
            let run = wrk_on(setup, &floor, DOCUMENTS[0].0)?;
            run.own_cpu_us / run.requests as f64
        } else {
            let before = generator::own_cpu_us()?;
            let report = generator::load(&setup.testbed, &floor, cpu, setup.duration, &closed)?;
            let used = generator::own_cpu_us()? - before;
            saturation.push(report["reply_rate_rps"]["mean"].as_f64().context("no reply rate")?);
            used / report["requests"]["completed"].as_f64().context("no requests")?
        };
        own.entry(name).or_default().push(us_per_request);
        Ok(())
    })?;
    goals.push(Goal::at_most(
        "generator's own CPU per request, pollux load / wrk",
        1.0,
        ratio(&own, "pollux load", "wrk")?,
        "",
    ));

    let rate = middle(&saturation) / 2.0;
    let whole = format!("{rate:.0}");
    let open = ["--rate", &whole, "--connections", &connections];
    let mut lag = Vec::new();
    let mut reports = Vec::new();
    let mut invalid = 0;
    for round in 0..setup.rounds {
        setup.progress.set_message(format!("lag: round {}/{}", round + 1, setup.rounds));
        let report = generator::load(&setup.testbed, &floor, cpu, setup.duration, &open)?;
        lag.push(report["generator"]["lag_us"]["p99"].as_f64().context("no lag")?);
        invalid += u32::from(report["valid"] != true);
        reports.push(report);
    }
    goals.push(Goal::at_most(
        format!("99th percentile lag at half of saturation ({rate:.0}/s)"),
        200.0,
        estimate(&lag).context("no round")?,
        " µs",
    ));
    goals.push(Goal::count_at_most(
        "of these, runs that the generator calls invalid",
        0,
        invalid,
        setup.rounds,
    ));
    let mut table = comfy_table::Table::new();
    table.load_style(comfy_table::presets::UTF8_HORIZONTAL_ONLY);
    table.set_header(["generator, closed loop on the floor", "own CPU-µs/request"]);
    for (name, values) in &own {
        table.add_row([(*name).into(), format!("{:.2}", middle(values))]);
    }
    tables.push(table);
    raw.insert(
        "generator".into(),
        json!({ "own_cpu_us_per_request": own, "saturation_rps": saturation, "half_rate": rate,
                "lag_p99_us": lag, "reports": reports }),
    );
    Ok(())
}
