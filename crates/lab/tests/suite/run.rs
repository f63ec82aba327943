//! Runs a small experiment with scripts instead of server, load generator and idle holder.

use pollux_lab::{
    archive, compare,
    experiment::Experiment,
    report,
    result::{Look, Outcome, Status},
    run::{Settings, interrupt::Interrupt, journal, progress::Progress, run, trial::Programs},
    verdict::Verdict,
};
use pollux_testkit::becomes_true;
use std::{
    ffi::OsString,
    fs,
    os::unix::fs::symlink,
    path::Path,
    thread::{self, JoinHandle},
    time::Duration,
};

const SMALL: &str = r#"
id = "small"
title = "A small <experiment>"
source = "no paper"
summary = "Two mechanisms & two points."
workload = "one-byte"
[[variant]]
name = "level"
mechanism = "epoll"
[[variant]]
name = "edge"
mechanism = "epoll-et"
[[axis]]
name = "idle"
label = "idle connections"
values = [0, 5]
[rate]
fractions = [0.5]
paper-rps = [500, 600]
saturation-connections = 8
[budget]
seconds = 600
blocks = 6
min-window-seconds = 0.1
max-window-seconds = 0.1
saturation-seconds = 0.1
[[figure]]
id = "latency"
title = "Latency"
x = "idle"
y = "latency_p50_us"
log-y = true
[[claim]]
id = "T1"
statement = "idle connections cost nothing"
source = "no paper"
paper = "no figure"
metric = "latency_p50_us"
compare = "ratio"
each = ["level", "edge"]
a = { at = { idle = "max" } }
b = { at = { idle = "min" } }
holds = { below = 1.5 }
"#;

/// Returns the scripts, with variables that control their behaviour.
fn programs(variables: &[&str]) -> Programs {
    let command = |script: &str| -> Vec<OsString> {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fake").join(script);
        let words = ["env"].into_iter().chain(variables.iter().copied()).chain(["sh"]);
        words.map(OsString::from).chain([path.into_os_string()]).collect()
    };
    Programs {
        serve: command("serve.sh"),
        load: command("load.sh"),
        idle: command("idle.sh"),
        // No experiment of this file measures waits.
        wait: vec!["false".into()],
        // No experiment of this file has a floor.
        floor: vec!["false".into()],
    }
}

fn settings<'a>(experiment: &'a Experiment, variables: &[&str]) -> Settings<'a> {
    Settings {
        experiment,
        quick: true,
        paper_rates: false,
        rates: None,
        seed: 1,
        programs: programs(variables),
        interrupt: Interrupt::never(),
        progress: Progress::hidden(),
        keep_in: None,
        resume: None,
        built: None,
    }
}

/// Returns the small experiment with `blocks` blocks.
fn of_blocks(blocks: u32) -> Experiment {
    Experiment::parse(&SMALL.replace("blocks = 6", &format!("blocks = {blocks}"))).unwrap()
}

/// Returns the small experiment with idle connections in all runs, in one block.
fn with_idle() -> Experiment {
    let (text, _) = SMALL.split_once("[[figure]]").unwrap();
    let text = text.replace("values = [0, 5]", "values = [5]").replace("blocks = 6", "blocks = 1");
    Experiment::parse(&text).unwrap()
}

/// Raises `interrupt` as soon as `is_time` returns true, but at the latest after two minutes, so that a
/// test ends.
fn interrupt_when(
    interrupt: &Interrupt,
    is_time: impl Fn() -> bool + Send + 'static,
) -> JoinHandle<()> {
    let interrupt = interrupt.clone();
    thread::spawn(move || {
        becomes_true(Duration::from_secs(120), is_time);
        interrupt.raise();
    })
}

/// Returns a function that tests whether the journal in `directory` has at least `lines` lines.
fn has_lines(directory: &Path, lines: usize) -> impl Fn() -> bool + Send + use<> {
    let path = directory.join(journal::FILE);
    move || fs::read_to_string(&path).unwrap_or_default().lines().count() >= lines
}

/// Runs with a journal until it has this many lines. As after a kill, no result is written at the end,
/// and the last line is incomplete.
fn killed_after(lines: usize, settings: Settings<'_>, directory: &Path) {
    let alarm = interrupt_when(&settings.interrupt, has_lines(directory, lines));
    let outcome = run(&Settings { keep_in: Some(directory), ..settings }).unwrap();
    alarm.join().unwrap();
    assert!(outcome.interrupted, "it ended before it was killed");
    let path = directory.join(journal::FILE);
    let mut cut = fs::read_to_string(&path).unwrap();
    cut.push_str("{\"variant\":\"le");
    fs::write(&path, cut).unwrap();
}

fn outcome(variables: &[&str]) -> Outcome {
    let experiment = Experiment::parse(SMALL).unwrap();
    run(&settings(&experiment, variables)).unwrap()
}

#[test]
fn a_probe_in_a_closed_loop_is_given_nothing_that_needs_a_schedule() {
    let load = "[load]\narrivals = \"poisson\"\nburst = 4\nmax-connections = 4\n[rate]";
    let text = SMALL.replace("blocks = 6", "blocks = 1").replace("[rate]", load);
    let experiment = Experiment::parse(&text).unwrap();
    let outcome = run(&settings(&experiment, &[])).unwrap();
    assert!(outcome.runs.iter().all(|run| run.status == Status::Valid), "{:?}", outcome.runs);
}

#[test]
fn every_cell_is_measured_in_every_block_and_the_claim_is_judged() {
    let outcome = outcome(&[]);
    assert_eq!(outcome.runs.len(), 2 * 2 * 6, "variants × points × blocks");
    assert!(outcome.runs.iter().all(|run| run.status == Status::Valid), "{:?}", outcome.runs);
    assert!(!outcome.interrupted);
    let order = |block| -> Vec<_> {
        outcome.runs.iter().filter(|run| run.block == block).map(|run| &run.cell).collect()
    };
    let mut back = order(1);
    back.reverse();
    assert_eq!(order(0), back, "A B … B A");
    assert_eq!(outcome.values("rate").unwrap()[0].number(), Some(500.0), "half of 1,000");
    let run = &outcome.runs[0];
    assert_eq!(run.metrics["throughput_rps"], 500.0);
    assert_eq!(run.metrics["waits_per_request"], 0.5, "from the statistics around the load");
    assert!(run.metrics.contains_key("server_cpu_us_per_request"));
    let claim = &outcome.claims[0];
    assert_eq!((claim.verdict, claim.value), (Verdict::Holds, Some(1.0)));
    assert_eq!(claim.parts.len(), 2);
}

/// A resumed run leaves the same cells out, and has the note about it once.
#[test]
fn cells_that_no_claim_reads_are_measured_in_the_first_blocks_only() {
    let text = SMALL.replace(r#"each = ["level", "edge"]"#, r#"each = ["level"]"#);
    let text = text.replace("blocks = 6", "blocks = 3\nfigure-blocks = 1");
    let experiment = Experiment::parse(&text).unwrap();
    let earlier = run(&settings(&experiment, &[])).unwrap();
    let mut half = earlier.clone();
    half.runs.retain(|run| run.block < 2);
    let resumed = Settings { resume: Some(half), ..settings(&experiment, &[]) };
    for outcome in [earlier, run(&resumed).unwrap()] {
        let blocks = |name: &str| -> Vec<u32> {
            let runs = outcome.runs.iter().filter(|run| run.cell.variant == name);
            runs.map(|run| run.block).collect()
        };
        assert_eq!((blocks("level"), blocks("edge")), (vec![0, 0, 1, 1, 2, 2], vec![0, 0]));
        let notes = outcome.notes.iter().filter(|note| note.contains("in the first block only"));
        assert_eq!(notes.count(), 1, "{:?}", outcome.notes);
    }
}

#[test]
fn the_result_comes_back_from_disk_and_renders_the_same_page() {
    let outcome = outcome(&[]);
    let directory = tempfile::tempdir().unwrap();
    outcome.write(directory.path()).unwrap();
    let page = report::write(&outcome, directory.path()).unwrap();
    let first = fs::read_to_string(&page).unwrap();
    let mut read = Outcome::read(directory.path()).unwrap();
    read.conclude();
    assert_eq!(read.claims, outcome.claims);
    report::write(&read, directory.path()).unwrap();
    assert_eq!(fs::read_to_string(&page).unwrap(), first);
    assert!(first.contains("A small &lt;experiment&gt;") && first.contains("<svg"));
    for fetched in ["src=", "http-equiv", "@import", "url(", "<script"] {
        assert!(!first.contains(fetched), "the page must not fetch: {fetched}");
    }
    assert!(directory.path().join("figures/latency.svg").exists());
}

#[test]
fn a_bottleneck_in_the_generator_makes_a_run_invalid_not_used() {
    let outcome = outcome(&["FAKE_INVALID=1"]);
    assert!(outcome.runs.iter().all(|run| run.status == Status::Invalid));
    assert_eq!(outcome.runs[0].reason.as_deref(), Some("the generator was late by 9 ms"));
    assert_eq!(outcome.claims[0].verdict, Verdict::Undecided);
    assert_eq!(outcome.claims[0].parts[0].note.as_deref(), Some("the generator was late by 9 ms"));
    assert!(
        report::terminal::notes(&outcome, 1000).contains("12 of 12 runs do not count"),
        "tried twice"
    );
}

#[test]
fn a_run_that_does_not_count_is_made_again() {
    let directory = tempfile::tempdir().unwrap();
    let once = format!("FAKE_INVALID_ONCE={}", directory.path().join("was").display());
    let outcome = outcome(&[&once]);
    let invalid = outcome.runs.iter().filter(|run| run.status == Status::Invalid).count();
    assert_eq!((outcome.runs.len(), invalid), (24 + 1, 1), "both are in the raw data");
    let blocks = |part: &pollux_lab::verdict::Part| part.estimate.unwrap().blocks;
    assert!(outcome.claims[0].parts.iter().all(|part| blocks(part) == 6), "no block is lost");
}

#[test]
fn another_mechanism_than_the_requested_one_fails_the_run() {
    let outcome = outcome(&["FAKE_SUBSTITUTED=epoll-et"]);
    for run in &outcome.runs {
        let edge = run.cell.variant == "edge";
        assert_eq!(run.status, if edge { Status::Failed } else { Status::Valid });
        if edge {
            assert_eq!(run.reason.as_deref(), Some("requested mechanism epoll-et, but poll runs"));
            assert_eq!(run.mechanism, "poll", "the result names what really ran");
        }
    }
}

#[test]
fn connections_that_the_server_cannot_hold_are_reported_once_and_not_tried_again() {
    let outcome = outcome(&["FAKE_SHORT=epoll-et"]);
    let held: Vec<_> = outcome.runs.iter().filter(|run| run.status == Status::Failed).collect();
    assert_eq!(held.len(), 1, "tried in one block only");
    assert_eq!(held[0].cell.variant, "edge");
    let why = "the server held 3 of 5 idle connections: accepting stops at 3";
    assert_eq!(held[0].reason.as_deref(), Some(why));
}

#[test]
fn a_server_that_dies_is_quoted() {
    let outcome = outcome(&["FAKE_DIES=epoll"]);
    let dead = outcome.runs.iter().find(|run| run.cell.variant == "level").unwrap();
    assert_eq!(
        dead.reason.as_deref(),
        Some("the server ended before it listened; it wrote: no ring for you")
    );
}

#[test]
fn looks_of_before_are_handed_on() {
    let earlier = outcome(&[]);
    assert_eq!(earlier.looks, [Look { blocks: 6, is_last: true }]);
    let looks = vec![Look { blocks: 3, is_last: false }];
    let mut earlier = Outcome { looks, ..earlier };
    earlier.runs.retain(|run| run.block < 3);
    let experiment = Experiment::parse(SMALL).unwrap();
    let again = Settings { resume: Some(earlier), ..settings(&experiment, &[]) };
    let looks: Vec<u32> = run(&again).unwrap().looks.iter().map(|look| look.blocks).collect();
    assert_eq!(looks, [3, 6]);
}

#[test]
fn the_papers_rates_replace_the_measured_ones() {
    let experiment = Experiment::parse(SMALL).unwrap();
    let settings = Settings { paper_rates: true, ..settings(&experiment, &[]) };
    let outcome = run(&settings).unwrap();
    let rates: Vec<_> = outcome.values("rate").unwrap().iter().map(|v| v.number()).collect();
    assert_eq!(rates, [Some(500.0), Some(600.0)]);
    assert!(outcome.saturation.is_empty(), "nothing to find");
    assert_eq!(report::panels(&outcome).len(), 2, "a figure for each rate");
}

#[test]
fn an_interrupt_keeps_what_was_measured_and_leaves_no_process() {
    let experiment = Experiment::parse(SMALL).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let settings = settings(&experiment, &["FAKE_SLOW=0.3"]);
    let alarm = interrupt_when(&settings.interrupt, has_lines(directory.path(), 1));
    let outcome = run(&Settings { keep_in: Some(directory.path()), ..settings }).unwrap();
    alarm.join().unwrap();
    assert!(outcome.interrupted);
    assert!((1..24).contains(&outcome.runs.len()), "it ended before its end");
    let page = fs::read_to_string(report::write(&outcome, directory.path()).unwrap()).unwrap();
    assert!(page.contains("Interrupted."));
    assert!(report::terminal::notes(&outcome, 1000).starts_with("INTERRUPTED"));
}

#[test]
fn what_was_measured_before_each_stop_is_kept_and_gone_on_from() {
    let experiment = of_blocks(3);
    let directory = tempfile::tempdir().unwrap();
    let slow = || settings(&experiment, &["FAKE_SLOW=0.3"]);
    killed_after(2, slow(), directory.path());
    let once = journal::read(directory.path()).unwrap();
    let made = once.runs.len();
    assert!((2..10).contains(&made), "{made}");

    let resumed = Settings { resume: Some(once.clone()), ..slow() };
    killed_after(made + 2, resumed, directory.path());
    let twice = journal::read(directory.path()).unwrap();
    assert!(twice.runs.len() >= made + 2, "the runs of both: {} and {made}", twice.runs.len());
    assert!(twice.interrupted, "so that a report of it says so");

    let again = settings(&experiment, &[]);
    let outcome = run(&Settings { resume: Some(twice.clone()), ..again }).unwrap();
    assert_eq!(outcome.runs.len(), 12, "each cell once in each block");
    for (run, earlier) in outcome.runs.iter().zip(&twice.runs) {
        assert_eq!(run.started_s, earlier.started_s, "what was there is not made again");
    }
    assert_eq!(outcome.values("rate"), once.values("rate"), "at the same rates");
    assert!(!outcome.interrupted);
    let notes = outcome.notes.concat();
    assert!(notes.contains(&format!("Resumed after {made} runs.")), "{notes}");

    let other = Settings { seed: 2, resume: Some(twice), ..settings(&experiment, &[]) };
    assert!(run(&other).unwrap_err().to_string().contains("another experiment, form or seed"));
}

#[test]
fn what_is_not_measured_as_planned_is_noted_once() {
    let left_out = "[[left-out]]\nat = { idle = [5] }\nbecause = \"the reason\"\n";
    let shown = SMALL.replace("log-y = true", "in-terminal = true");
    let text = format!("{}\n{left_out}", shown.replace("blocks = 6", "blocks = 1"));
    let experiment = Experiment::parse(&text).unwrap();
    let outcome = run(&settings(&experiment, &[])).unwrap();
    let notes = report::terminal::notes(&outcome, 1000);
    assert!(notes.contains("2 cells are not measured, as planned: the reason"), "{notes}");
    assert!(!notes.contains("do not count"), "{notes}");
    let tables = report::terminal::tables(&outcome, 1000);
    assert!(tables.contains("idle 0") && !tables.contains("idle 5"), "{tables}");
}

#[test]
fn a_journal_that_begins_with_its_result_is_read_without_one() {
    let experiment = of_blocks(1);
    let directory = tempfile::tempdir().unwrap();
    killed_after(2, settings(&experiment, &["FAKE_SLOW=0.3"]), directory.path());
    let whole = journal::read(directory.path()).unwrap();
    // As the host has it from a sealed guest that was stopped.
    let begun = serde_json::to_string(&Outcome { runs: Vec::new(), ..whole.clone() }).unwrap();
    let path = directory.path().join(journal::FILE);
    let runs = fs::read_to_string(&path).unwrap();
    fs::write(&path, format!("{begun}\n{runs}")).unwrap();
    fs::remove_file(directory.path().join(archive::FILE)).unwrap();
    let read = journal::read(directory.path()).unwrap();
    assert_eq!(read.runs.len(), whole.runs.len());
    assert!(read.interrupted && !read.runs.is_empty());
    assert_eq!(read.values("rate"), whole.values("rate"));
}

#[test]
fn a_result_keeps_its_runs_when_its_journal_cannot_be_written() {
    let outcome = run(&settings(&of_blocks(1), &[])).unwrap();
    let directory = tempfile::tempdir().unwrap();
    outcome.write(directory.path()).unwrap();
    // The disk is full when the runs move from the result into the journal.
    let path = directory.path().join(journal::FILE);
    symlink("/dev/full", &path).unwrap();
    let _ = journal::Journal::begin(directory.path(), &outcome);
    if path.is_symlink() {
        fs::remove_file(&path).unwrap();
    }
    assert_eq!(journal::read(directory.path()).unwrap().runs.len(), 4);
}

#[test]
fn what_was_stopped_before_its_rates_were_drawn_draws_them() {
    let experiment = of_blocks(1);
    let directory = tempfile::tempdir().unwrap();
    let mark = directory.path().join("probing");
    let probing = format!("FAKE_PROBING={}", mark.display());
    let stopped = settings(&experiment, &[&probing]);
    let alarm = interrupt_when(&stopped.interrupt, move || mark.exists());
    let earlier = run(&stopped).unwrap();
    alarm.join().unwrap();
    assert!(earlier.interrupted && earlier.runs.is_empty() && earlier.values("rate").is_none());

    let again = settings(&experiment, &[]);
    let outcome = run(&Settings { resume: Some(earlier), ..again }).unwrap();
    assert_eq!(outcome.values("rate").unwrap()[0].number(), Some(500.0));
    assert_eq!(outcome.runs.len(), 4);
    assert!(outcome.runs.iter().all(|run| run.offered_rps() == Some(500.0)), "{:?}", outcome.runs);
}

#[test]
fn what_was_stopped_before_its_first_run_is_warmed_up_and_keeps_its_rates() {
    let warmed = SMALL.replace("blocks = 6", "blocks = 1\nwarmup-seconds = 0.1\npilot = false");
    let experiment = Experiment::parse(&warmed).unwrap();
    let mut earlier = run(&settings(&experiment, &[])).unwrap();
    earlier.runs.clear();
    earlier.warmup_s = 0.0;
    let directory = tempfile::tempdir().unwrap();
    let mark = directory.path().join("probing");
    let probing = format!("FAKE_PROBING={}", mark.display());
    let again = settings(&experiment, &[&probing]);
    let outcome = run(&Settings { resume: Some(earlier), ..again }).unwrap();
    assert_eq!((outcome.warmup_s, outcome.runs.len()), (0.1, 4));
    assert_eq!(outcome.values("rate").unwrap()[0].number(), Some(500.0));
    assert!(!mark.exists() && outcome.saturation.len() == 2, "nothing is probed again");
}

#[test]
fn runs_of_another_kernel_are_not_gone_on_from_and_notes_are_kept() {
    let experiment = of_blocks(1);
    let mut earlier = run(&settings(&experiment, &[])).unwrap();
    earlier.notes.push("level was not steady.".into());
    earlier.paper_rates = true;
    let resumed =
        |earlier: Outcome| run(&Settings { resume: Some(earlier), ..settings(&experiment, &[]) });
    let outcome = resumed(earlier.clone()).unwrap();
    assert!(outcome.notes.contains(&"level was not steady.".into()), "{:?}", outcome.notes);
    for note in &outcome.notes {
        let count = outcome.notes.iter().filter(|other| *other == note).count();
        assert_eq!(count, 1, "{note} occurs twice");
    }
    assert!(outcome.paper_rates, "that of the runs, not of the new command line");

    earlier.environment.kernel = "Linux 1.0".into();
    let error = resumed(earlier.clone()).unwrap_err().to_string();
    assert!(error.contains("kernel: Linux 1.0 then"), "{error}");
    earlier.paper_rates = false;
    let at_papers = Settings { paper_rates: true, ..settings(&experiment, &[]) };
    let error = run(&Settings { resume: Some(earlier), ..at_papers }).unwrap_err().to_string();
    assert!(error.contains("the paper's own rates"), "{error}");
}

#[test]
fn a_probe_in_which_the_generator_was_the_bottleneck_is_made_again() {
    let experiment = of_blocks(1);
    let directory = tempfile::tempdir().unwrap();
    let once = format!("FAKE_STARVED_ONCE={}", directory.path().join("was").display());
    let outcome = run(&settings(&experiment, &[&once])).unwrap();
    assert_eq!(outcome.values("rate").unwrap()[0].number(), Some(500.0), "half of 1,000");
    assert!(!outcome.notes.concat().contains("probes"), "{:?}", outcome.notes);

    let outcome = run(&settings(&experiment, &["FAKE_STARVED=1"])).unwrap();
    assert_eq!(outcome.values("rate").unwrap()[0].number(), Some(50.0), "half of what was seen");
    let notes = outcome.notes.concat();
    assert!(notes.contains("Of 3 probes of what level can serve none was valid"), "{notes}");
}

#[test]
fn a_run_that_lost_its_idle_connections_does_not_count() {
    let experiment = with_idle();
    let outcome = run(&settings(&experiment, &["FAKE_LOSES=1"])).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let holder = format!("FAKE_IDLE_PID={}", directory.path().join("pid").display());
    let killed = run(&settings(&experiment, &[&holder])).unwrap();
    for (outcome, expected) in [
        (outcome, "of 5 idle connections 2 were left at the end of the measurement"),
        (killed, "the idle holder ended before the measurement did (signal: 9"),
    ] {
        assert!(outcome.runs.len() >= 2, "{:?}", outcome.runs);
        for run in &outcome.runs {
            assert_eq!(run.status, Status::Invalid, "{:?}", run.cell);
            assert!(run.reason.as_ref().unwrap().starts_with(expected), "{:?}", run.reason);
        }
    }
    let outcome = run(&settings(&experiment, &[])).unwrap();
    assert!(outcome.runs.iter().all(|run| run.status == Status::Valid), "{:?}", outcome.runs);
}

#[test]
fn two_results_are_compared_cell_by_cell() {
    let a = outcome(&[]);
    let mut b = a.clone();
    for run in b.runs.iter_mut().filter(|run| run.cell.variant == "edge") {
        *run.metrics.get_mut("latency_p50_us").unwrap() *= 1.5 + f64::from(run.block) / 100.0;
    }
    b.conclude();
    let rows = compare::rows(&a, &b).unwrap();
    assert_eq!(rows.len(), 4, "two variants at two points, by the one figure");
    for row in &rows {
        assert_eq!(row.changed(), row.variant == "edge", "{row:?}");
    }
    let text = compare::text(&a, &rows, Some(110));
    assert!(text.contains("worse") && text.contains("2 of 4 figures changed"), "{text}");
    assert_eq!(compare::csv(&rows).lines().count(), 5);
    assert_eq!(compare::conditions(&a, &b), "");

    // Nothing failed before, and now three of ten requests do: this change has no ratio.
    let (mut none, mut some) = (a.clone(), b.clone());
    for (outcome, share) in [(&mut none, 0.0), (&mut some, 0.3)] {
        outcome.experiment.figure[0].y = "error_share".into();
        for run in &mut outcome.runs {
            run.metrics.insert("error_share".into(), share);
        }
    }
    some.runs
        .retain(|run| run.cell.variant == "level" || run.cell.point["idle"].number() == Some(5.0));
    none.conclude();
    some.conclude();
    let rows = compare::rows(&none, &some).unwrap();
    assert!(rows.len() == 3 && rows.iter().all(compare::Row::changed), "{rows:?}");
    let text = compare::text(&none, &rows, Some(110));
    assert!(text.contains("+0.3") && text.contains("worse"), "{text}");
    assert!(text.contains("3 of 3 figures changed"), "{text}");
    assert!(compare::csv(&rows).contains(",0,0.3,,0.3,"), "{}", compare::csv(&rows));
    let conditions = compare::conditions(&none, &some);
    assert!(conditions.contains("cells that only A has, not compared: 1"), "{conditions}");
    b.experiment.id = "other".into();
    assert!(compare::rows(&a, &b).unwrap_err().to_string().contains("different experiments"));
}
