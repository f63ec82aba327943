//! Documents that a front end stores before it is measured, and the memory that they take.

use super::*;
use crate::memory::StoreCost;
use std::fs;

/// The number of documents that are stored before the memory is first read: memory that the server
/// allocates once, or for each connection to it and to the origin, does not belong to a document.
const FIRST: u32 = 4_000;
/// The longest time for each document, on average.
const EACH: Duration = Duration::from_millis(1);

impl Bench<'_> {
    /// Makes the server store each document of the current request, if that request is to be stored.
    ///
    /// # Errors
    /// When the server fails, or has not stored all documents at the end.
    pub(super) fn store(
        &self,
        server: &Server,
        around: &Around<'_>,
        trial: &mut Trial,
    ) -> anyhow::Result<()> {
        let Some(request) = around.request.filter(|request| request.stored) else { return Ok(()) };
        let origin = around.origin.context("what is stored comes from an origin")?;
        let site = self.site()?;
        let list = site.distinct(request.distinct, &request.name)?;
        self.request_all(server, &site.distinct(FIRST, "first")?, FIRST, trial)?;
        let had = self.documents(server, around)?;
        let before = memory::now(&measure::processes(server.pid())?)?;
        let begun_at = Instant::now();
        self.request_all(server, &list, request.distinct, trial)?;
        let fill_ns = begun_at.elapsed().as_nanos() as u64;
        let memory = memory::now(&measure::processes(server.pid())?)? - before;
        let objects = self.documents(server, around)?.saturating_sub(had);
        anyhow::ensure!(
            objects == u64::from(request.distinct),
            "of {} documents the server has stored {objects}",
            request.distinct
        );
        let paths = fs::read_to_string(&list).with_context(|| list.display().to_string())?;
        let first = paths.lines().next().context("a list of documents")?;
        let of_each = "http://".len() + server.address.len();
        let urls = paths.lines().map(|path| (of_each + path.len()) as u64).sum::<u64>();
        let own_bytes = urls + objects * origin.reply(first)?.own_bytes();
        trial.raw.stored = Some(StoreCost { objects, own_bytes, fill_ns, memory });
        Ok(())
    }

    /// Requests each document of the `list` once, over as many connections as the load has.
    fn request_all(
        &self,
        server: &Server,
        list: &Path,
        number: u32,
        trial: &mut Trial,
    ) -> anyhow::Result<()> {
        let mut flags = self.load_flags();
        flags.remove("rate");
        without_schedule(&mut flags);
        flags.insert("url-file".into(), Value::Word(list.display().to_string()));
        flags.insert("in-turn".into(), Value::Flag(true));
        flags.insert("requests".into(), Value::Number(f64::from(number)));
        // This load is not a measurement, so it does not matter if it waits for a CPU.
        flags.insert("max-starved".into(), Value::Word("100%".into()));
        let mut program = with_flags(&self.programs.load, &flags);
        program.push(server.url(self.site()?.path()).into());
        let mut process = Process::spawn("the generator that stores documents", &program)?;
        trial.commands.push(process.command().to_owned());
        let result = result_of(&mut process, (EACH * number).as_secs_f64(), self.interrupt)?;
        let answered = &result["requests"]["completed"];
        anyhow::ensure!(answered == number, "of {number} requests {answered} were answered");
        Ok(())
    }

    /// The number of documents that the server reports in its cache; for a server without statistics, the
    /// number of requests that reached the origin.
    fn documents(&self, server: &Server, around: &Around<'_>) -> anyhow::Result<u64> {
        let entries = server.statistics(self.interrupt)?["cache"]["entries"].as_u64();
        match entries {
            Some(entries) => Ok(entries),
            None if server.has_statistics() => anyhow::bail!("the server has no cache"),
            None => Ok(around.origin_requests(self.interrupt)?.unwrap_or(0)),
        }
    }
}
