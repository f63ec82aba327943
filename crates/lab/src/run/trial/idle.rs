//! Idle connections beside a load: they are opened before it and held until after it.

use super::*;
use crate::memory::{HoldCost, Memory};
use rustix::process::Signal;
use serde_json::Value as Json;

/// How long the holder may take to report its connections after SIGTERM.
const LAST_WORD: Duration = Duration::from_secs(30);

/// The process that holds idle connections.
pub(super) struct Holder {
    pub(super) process: Process,
    pub(super) wanted: u64,
}

impl Holder {
    /// Returns why the holder has ended, if it has.
    pub(super) fn ended(&mut self) -> Option<String> {
        let status = self.process.ended()?;
        self.process.drain_stderr();
        Some(self.process.complaint(&format!("ended before the measurement did ({status})")))
    }
}

impl Bench<'_> {
    /// Opens the cell's idle connections and waits until the server has them all.
    pub(super) fn hold_idle(
        &self,
        server: &Server,
        cell: &Cell,
        trials: &mut [Trial],
    ) -> anyhow::Result<Option<Holder>> {
        let number = |axis| cell.point.get(axis).and_then(Value::number);
        let wanted = match (Where::at(&cell.point), &self.experiment.clients) {
            (Where::Idle, Some(clients)) => {
                let requests = self.experiment.load.get(SESSION).and_then(Value::number);
                number(RATE).zip(requests).map(|(rps, requests)| clients.kept_open(rps, requests))
            }
            _ => number(IDLE),
        };
        let wanted = wanted.unwrap_or(0.0) as u64;
        if wanted == 0 {
            return Ok(None);
        }
        let mut flags = self.idle_flags();
        flags.insert("connections".into(), Value::Number(wanted as f64));
        tls::trust(&mut flags, server);
        let mut program = with_flags(&self.programs.idle, &flags);
        program.push(if server.is_tls { server.url("/") } else { server.address.clone() }.into());
        // The one-time cost of the first request of its kind, such as a document that a front end has to
        // fetch, does not belong to any connection.
        if let Some(path) = self.experiment.idle.get("path").and_then(Value::word) {
            server.request(path)?;
        }
        let kernel_moved_bytes = match trials.first() {
            Some(trial) if self.shows_kernel_memory(wanted) => self.await_rest(trial.window_s)?,
            _ => None,
        };
        let before = FillMeter::look(server)?;
        let mut process =
            Process::spawn_with("the idle holder", &program, self.generator_scheduling)?;
        for trial in &mut *trials {
            trial.commands.push(process.command().to_owned());
        }
        server.await_open(wanted, &mut process, self.interrupt)?;
        let after = FillMeter::look(server)?;
        for trial in trials {
            trial.raw.held = Some(HoldCost { kernel_moved_bytes, ..before.until(&after, wanted) });
        }
        Ok(Some(Holder { process, wanted }))
    }

    /// Returns why some idle connections were lost before the end of the `trials`, if so. A run with fewer
    /// idle connections is another measurement: a scan of a hundred connections costs as little with `poll`
    /// as with `epoll`.
    ///
    /// Call it after the loads, because the server counts their connections among its open ones.
    ///
    /// # Errors
    /// When the server has ended; on Ctrl-C.
    pub(super) fn idle_lost(
        &self,
        holder: &mut Holder,
        server: &Server,
        trials: &[Trial],
    ) -> anyhow::Result<Option<String>> {
        if let Some(lost) = holder.ended() {
            return Ok(Some(lost));
        }
        let wanted = holder.wanted;
        let left = if server.has_statistics() {
            let now = server.statistics(self.interrupt)?;
            let at_ends = trials.iter().map(|trial| &trial.raw.after).chain([&now]);
            at_ends.filter_map(|figures| figures["connections"]["open"].as_u64()).min()
        } else {
            Some(last_word(&holder.process, self.interrupt)?)
        };
        Ok(left.filter(|&left| left < wanted).map(|left| {
            format!("of {wanted} idle connections {left} were left at the end of the measurement")
        }))
    }
}

/// Returns the number of connections that the holder reports at the end, after SIGTERM; zero without a
/// report.
pub(super) fn last_word(holder: &Process, interrupt: &Interrupt) -> anyhow::Result<u64> {
    holder.signal(Signal::TERM)?;
    while let Some(line) = holder.line(LAST_WORD, interrupt)? {
        let report: Json = serde_json::from_str(&line).unwrap_or_default();
        if report["event"] == "statistics" {
            return Ok(report["held"].as_u64().unwrap_or(0));
        }
    }
    Ok(0)
}

/// The readings before and after the idle connections are opened.
pub(super) struct FillMeter {
    at: Instant,
    cpu: measure::CpuTime,
    memory: Memory,
}

impl FillMeter {
    pub(super) fn look(server: &Server) -> anyhow::Result<Self> {
        let cpu = measure::cpu_time(server.pid())?;
        let memory = memory::now(&measure::processes(server.pid())?)?;
        Ok(Self { at: Instant::now(), cpu, memory })
    }

    pub(super) fn until(&self, after: &Self, connections: u64) -> HoldCost {
        HoldCost {
            connections,
            fill_ns: (after.at - self.at).as_nanos() as u64,
            fill_cpu_ns: (after.cpu - self.cpu).run_ns,
            memory: after.memory - self.memory,
            kernel_moved_bytes: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str) -> Process {
        let words = ["sh", "-c", script].map(OsString::from);
        Process::spawn("the idle holder", &words).unwrap()
    }

    #[test]
    fn a_holder_says_at_its_end_what_it_held() {
        let holder = sh(r#"trap 'echo "{\"event\":\"statistics\",\"held\":3}"; exit 0' TERM
                           echo "{\"event\":\"holding\",\"held\":5}"
                           while :; do sleep 0.05; done"#);
        let interrupt = Interrupt::never();
        assert!(holder.line(LAST_WORD, &interrupt).unwrap().is_some(), "it listens for the end");
        assert_eq!(last_word(&holder, &interrupt).unwrap(), 3);
        assert_eq!(last_word(&sh("exec sleep 60"), &interrupt).unwrap(), 0, "without a word");
    }
}
