//! A push server: subscribers, and updates that a generator publishes while it checks every delivery.
//!
//! `pollux idle --subscribe` holds the subscribers that no update reaches; they have their own topic. The
//! other subscribers belong to the generator, which checks each delivery. The generator leaves a quiet time
//! before the first update and after the last delivery. The server's figures are read in these times, so
//! that they cover only the updates, and neither the opening nor the closing of streams.

use super::{
    idle::{FillMeter, Holder, last_word},
    *,
};
use crate::{
    experiment::{Push, PushLoad},
    measure::PushRaw,
    memory::{HoldCost, LEAST_CONNECTIONS},
    run::server::HoldShortfall,
};
use serde_json::Value as Json;

/// The number of subscribers that are held before the memory is first read: memory that the server
/// allocates only once does not belong to the other subscribers.
const FIRST: u64 = 64;
/// The path of the hub, with the topic of subscribers that no update reaches.
const QUIET: &str = "/.well-known/mercure?match=quiet";
/// How much longer than `LOAD_GRACE` the generator may take to open its subscribers, for each subscriber.
const OPEN_EACH: Duration = Duration::from_millis(1);
/// How long the last delivery may take if there are few.
const DELIVERY_GRACE: Duration = Duration::from_secs(10);
/// The deliveries per second that server and generator make at the least; on one CPU each they make some 75,000.
const DELIVERIES_LEAST: f64 = 20_000.0;

/// An event that the generator announces, or its result, if it ended before the event.
enum Announcement {
    At(Instant),
    Ended(Json),
}

impl Bench<'_> {
    /// Measures updates to the subscribers of one server.
    pub(super) fn measure_push(
        &self,
        push: &Push,
        variant: &Variant,
        phase: &LoadPhase<'_>,
        seed: u64,
        trial: &mut Trial,
    ) -> anyhow::Result<()> {
        let load = push.load_at(&phase.cell.point, phase.window_s)?;
        let server = self.start_push_server(variant, phase.cell)?;
        trial.commands.push(server.command().to_owned());
        trial.mechanism.clone_from(&server.mechanism);
        trial.raw.listening = server.listening.clone();
        same_server(variant, &server)?;
        let PushLoad { subscribers, recipients, .. } = load;
        let (holders, held) = self.hold_quiet(&server, subscribers - recipients, trial)?;
        let counters = self.counters(&server)?;
        let program = self.push_load(push, load, &server, phase, seed);
        let mut generator =
            Process::spawn_with("the generator", &program, self.generator_scheduling)?;
        trial.commands.push(generator.command().to_owned());
        let mut misread = None;
        let quiet = Duration::from_secs_f64(push.quiet_seconds);
        let opening = LOAD_GRACE + OPEN_EACH * u32::try_from(recipients).unwrap_or(u32::MAX);
        let Announcement::At(held_at) =
            self.announced(&mut generator, "holding", opening).map_err(|error| {
                shortfall(error, &server, &mut generator, self.interrupt, subscribers)
            })?
        else {
            anyhow::bail!("{}", generator.complaint("did not announce that it holds subscribers"));
        };
        let earlier = self.reading(&server, &counters)?;
        check_read(held_at, quiet, &mut misread);
        let window = Duration::from_secs_f64(phase.window_s);
        let patience = quiet + window + delivery_time(&load, window) + LOAD_GRACE;
        match self.announced(&mut generator, "delivered", patience)? {
            Announcement::At(delivered_at) => {
                let later = self.reading(&server, &counters)?;
                check_read(delivered_at, quiet, &mut misread);
                earlier.until(&later, &mut trial.raw);
                trial.raw.load = result_of(&mut generator, phase.window_s, self.interrupt)?;
            }
            Announcement::Ended(result) => {
                let later = self.reading(&server, &counters)?;
                earlier.until(&later, &mut trial.raw);
                trial.raw.load = result;
                misread = Some("the generator ended before all deliveries had come".into());
            }
        }
        trial.raw.push = Some(PushRaw { subscribers, recipients, held, misread });
        // An error in the deliveries explains more than the fact that they are incomplete.
        if let Some(push) = &mut trial.raw.push
            && trial.raw.load["deliveries"]["lost"].as_u64().is_some_and(|lost| lost > 0)
        {
            push.misread = None;
        }
        for mut holder in holders {
            trial.raw.idle_lost = trial.raw.idle_lost.take().or(self.quiet_lost(&mut holder)?);
        }
        Ok(())
    }

    fn start_push_server(&self, variant: &Variant, cell: &Cell) -> anyhow::Result<Server> {
        if variant.floor_of.is_some() {
            let mut flags = variant.floor.clone();
            flags.insert("push".into(), Value::Flag(true));
            let program = with_flags(&self.programs.floor, &flags);
            return Server::start_floor(&program, self.cpus.server, self.interrupt);
        }
        let around = Around { origin: None, request: None };
        Server::start(&self.serve(variant, cell, &around)?, self.interrupt)
    }

    /// Holds `count` subscribers that no update reaches. If there are many, measures the resources that all
    /// but the first [`FIRST`] take.
    fn hold_quiet(
        &self,
        server: &Server,
        count: u64,
        trial: &mut Trial,
    ) -> anyhow::Result<(Vec<Holder>, Option<HoldCost>)> {
        if count < LEAST_CONNECTIONS + FIRST {
            let all = (count > 0).then(|| self.hold_subscribers(server, count, count, trial));
            return Ok((all.transpose()?.into_iter().collect(), None));
        }
        let first = self.hold_subscribers(server, FIRST, FIRST, trial)?;
        let before = FillMeter::look(server)?;
        let rest = self.hold_subscribers(server, count - FIRST, count, trial)?;
        let after = FillMeter::look(server)?;
        Ok((vec![first, rest], Some(before.until(&after, count - FIRST))))
    }

    /// Opens `count` streams and waits until all are subscribed and the server has `open` connections.
    fn hold_subscribers(
        &self,
        server: &Server,
        count: u64,
        open: u64,
        trial: &mut Trial,
    ) -> anyhow::Result<Holder> {
        let mut flags = self.idle_flags();
        flags.insert("connections".into(), Value::Number(count as f64));
        flags.insert("subscribe".into(), Value::Flag(true));
        let mut program = with_flags(&self.programs.idle, &flags);
        program.push(server.url(QUIET).into());
        let mut process = Process::spawn_with("the holder", &program, self.generator_scheduling)?;
        trial.commands.push(process.command().to_owned());
        server.await_open(open, &mut process, self.interrupt)?;
        // An open connection may not be a subscriber yet.
        if server.has_statistics() && process.line(LOAD_GRACE, self.interrupt)?.is_none() {
            process.drain_stderr();
            anyhow::bail!("{}", process.complaint("ended before it held all subscribers"));
        }
        Ok(Holder { process, wanted: count })
    }

    /// Returns why some of the holder's subscribers were lost before the end, if so.
    fn quiet_lost(&self, holder: &mut Holder) -> anyhow::Result<Option<String>> {
        if let Some(lost) = holder.ended() {
            return Ok(Some(lost));
        }
        let wanted = holder.wanted;
        let left = last_word(&holder.process, self.interrupt)?;
        Ok((left < wanted).then(|| {
            format!("of {wanted} quiet subscribers {left} were left at the end of the measurement")
        }))
    }

    fn push_load(
        &self,
        push: &Push,
        load: PushLoad,
        server: &Server,
        phase: &LoadPhase<'_>,
        seed: u64,
    ) -> Vec<OsString> {
        let mut flags = self.load_flags();
        flags.extend(self.flags_of_axes(phase.cell, |axis| &axis.load_flag));
        flags.insert("subscribe".into(), Value::Number(load.recipients as f64));
        flags.insert("rate".into(), Value::Number(load.rate_rps));
        flags.insert("duration".into(), seconds(phase.window_s));
        flags.insert("quiet-time".into(), seconds(push.quiet_seconds));
        flags.insert("seed".into(), Value::Word(seed.to_string()));
        let window = Duration::from_secs_f64(phase.window_s);
        flags.insert("timeout".into(), seconds(delivery_time(&load, window).as_secs_f64()));
        let mut program = with_flags(&self.programs.load, &flags);
        // Without a path the URL is that of a hub, and the generator chooses its own topic.
        program.push(server.url("/").into());
        program
    }

    /// Waits for the generator's announcement of `event`.
    ///
    /// # Errors
    /// When it ends without a result or does not announce it in time; on Ctrl-C.
    fn announced(
        &self,
        generator: &mut Process,
        event: &str,
        limit: Duration,
    ) -> anyhow::Result<Announcement> {
        let Some(line) = generator.line(limit, self.interrupt)? else {
            generator.drain_stderr();
            anyhow::bail!("{}", generator.complaint("ended without a result"));
        };
        let announced_at = Instant::now();
        let json: Json = serde_json::from_str(&line)
            .with_context(|| generator.complaint("did not write a JSON document"))?;
        match json["event"].as_str() {
            Some(found) if found == event => Ok(Announcement::At(announced_at)),
            Some(found) => anyhow::bail!("the generator announced {found:?} before {event:?}"),
            None => Ok(Announcement::Ended(json)),
        }
    }
}

/// The longest time that the last delivery of a window may take.
fn delivery_time(load: &PushLoad, window: Duration) -> Duration {
    let deliveries = load.rate_rps * window.as_secs_f64() * load.recipients as f64;
    DELIVERY_GRACE + Duration::from_secs_f64(deliveries / DELIVERIES_LEAST)
}

/// Records an error if a reading ended after the quiet time that began at `since`.
fn check_read(since: Instant, quiet: Duration, misread: &mut Option<String>) {
    let took = since.elapsed();
    if took >= quiet && misread.is_none() {
        *misread = Some(format!(
            "a reading of the server took {took:.1?}, longer than the quiet time of {quiet:?}: the machine is busy, \
             or [push] quiet-seconds is too low"
        ));
    }
}

/// Returns the error of a generator that could not open all its subscribers, with the number of connections
/// that the server reports, if it reports one.
fn shortfall(
    error: anyhow::Error,
    server: &Server,
    generator: &mut Process,
    interrupt: &Interrupt,
    wanted: u64,
) -> anyhow::Error {
    if error.is::<crate::run::interrupt::Interruption>() || generator.ended().is_none() {
        return error;
    }
    let statistics = server.statistics(interrupt).unwrap_or_default();
    let held = statistics["connections"]["open"].as_u64();
    HoldShortfall::new(wanted, held, generator.stderr()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reading_outside_of_the_quiet_time_is_found() {
        let mut misread = None;
        check_read(Instant::now(), Duration::from_secs(60), &mut misread);
        assert_eq!(misread, None);
        check_read(Instant::now(), Duration::ZERO, &mut misread);
        assert!(misread.is_some_and(|reason| reason.contains("longer than the quiet time")));
    }

    #[test]
    fn a_shortfall_names_no_number_that_is_not_known() {
        let text = |held| HoldShortfall::new(9, held, "so\nmore".into()).to_string();
        assert_eq!(text(Some(0)), "the server held 0 of 9 idle connections: so");
        assert_eq!(text(None), "the server did not hold all of 9 idle connections: so");
    }
}
