//! Tests how an outcome is shown, with data of known shape: costs that rise with the number of idle
//! connections, a variant whose server refuses connections, and a mechanism that is not available.

use pollux_lab::{
    compare,
    environment::Environment,
    experiment::{self, Form, Select, Threshold, Value},
    law::fit,
    measure::Raw,
    plan::{Cell, Point, points, rate_dimension},
    report::{
        self,
        overview::{self, Publication},
    },
    result::{Outcome, Run, Status, VariantOutcome},
    tries::Register,
    verdict::Verdict,
};
use std::{collections::BTreeMap, fs, path::PathBuf};

/// Server CPU per request with 0, 1,000 and 8,000 idle connections.
const COSTS: &[(&str, [f64; 3])] = &[
    ("select", [14.0, 31.0, f64::NAN]),
    ("poll", [13.5, 45.0, 410.0]),
    ("epoll", [16.0, 16.1, 16.9]),
    ("epoll-et", [15.0, 15.1, 15.3]),
];

fn sample() -> Outcome {
    let mut experiment = experiment::find("idle").unwrap();
    let known = |variant: &String| COSTS.iter().any(|(name, _)| name == variant);
    experiment.claim.retain(|claim| claim.each.iter().all(known));
    let mut dimensions = experiment.dimensions();
    dimensions.push(rate_dimension(&[2_000.0]));
    let mut runs = Vec::new();
    for block in 0..6 {
        for (variant, costs) in COSTS {
            for (point, cost) in points(&dimensions).into_iter().zip(costs) {
                if !cost.is_nan() || block == 0 {
                    runs.push(one(variant, point, *cost, block));
                }
            }
        }
    }
    let variant = |name: &str, unavailable: Option<&str>| VariantOutcome {
        name: name.into(),
        mechanism: name.into(),
        unavailable: unavailable.map(str::to_owned),
    };
    let mut variants: Vec<_> = COSTS.iter().map(|(name, _)| variant(name, None)).collect();
    variants.push(variant("devpoll", Some("no /dev/poll here")));
    let mut outcome = Outcome {
        quick: true,
        started_at: "2026-01-02T03:04:05Z".into(),
        elapsed_s: 77.0,
        notes: vec!["The time of 80 s was over after 6 of at most 40 blocks.".into()],
        environment: Environment { kernel: "Linux 6.18".into(), ..Environment::default() },
        variants,
        dimensions,
        runs,
        ..Outcome::new(experiment)
    };
    outcome.conclude();
    outcome
}

fn one(variant: &str, point: Point, cost: f64, block: u32) -> Run {
    let refused = cost.is_nan();
    // Blocks differ by a few per cent, as on real machines.
    let cost = cost * (1.0 + 0.03 * f64::from(block));
    let metrics = [
        ("server_cpu_us_per_request", cost),
        ("latency_p50_us", cost + 30.0),
        ("latency_with_failures_p50_us", cost + 30.0),
        ("latency_p99_us", 4.0 * cost + 60.0),
        ("throughput_rps", 2_000.0),
        ("calls_per_request", 7.0),
    ];
    Run {
        cell: Cell { variant: variant.into(), point },
        block,
        started_s: 0.0,
        window_s: 0.5,
        mechanism: variant.into(),
        status: if refused { Status::Failed } else { Status::Valid },
        reason: refused.then(|| "the server held 1013 of 8000 idle connections".to_owned()),
        metrics: if refused {
            BTreeMap::new()
        } else {
            metrics.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
        },
        raw: Raw::default(),
        commands: Vec::new(),
    }
}

#[test]
fn tables_claims_and_notes_on_a_terminal() {
    let outcome = sample();
    let text = report::terminal::tables(&outcome, 80)
        + &report::terminal::claims(&outcome, 80)
        + &report::terminal::notes(&outcome, 80);
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    insta::assert_snapshot!(text);
}

#[test]
fn the_page_shows_verdicts_refusals_and_what_is_not_there() {
    let outcome = sample();
    let directory = tempfile::tempdir().unwrap();
    let page = report::write(&outcome, directory.path()).unwrap();
    let page = fs::read_to_string(page).unwrap();
    for expected in [
        "✓ holds",
        "the server held 1013 of 8000 idle connections",
        "no /dev/poll here",
        "The time of 80 s was over",
        "server CPU per request (µs)",
        "idle connections held",
    ] {
        assert!(page.contains(expected), "{expected}");
    }
    assert_eq!(page.matches("<svg").count(), outcome.experiment.figure.len() + 1, "and the claims");
    for anchor in ["claim-I3", "cpu", "cells-cpu"] {
        assert!(page.contains(&format!("id=\"{anchor}\"")), "{anchor}");
    }
    let parts = ["asked", "result", "figures", "claims", "cells", "ran", "machine", "runs"];
    let places = parts.map(|part| page.find(&format!("id=\"{part}\"")).expect(part));
    assert!(places.is_sorted(), "first figures, then tables, then the raw runs: {places:?}");
    let forest = page.find("class=\"forest\"").unwrap();
    assert!((places[1]..places[2]).contains(&forest), "all claims stand on top");
    let csv = fs::read_to_string(directory.path().join("runs.csv")).unwrap();
    assert_eq!(csv.lines().count(), 1 + outcome.runs.len());
    let svg = fs::read_to_string(directory.path().join("figures/cpu.svg")).unwrap();
    for (name, _) in COSTS {
        assert!(svg.contains(&format!("\n{name}\n")) || svg.contains(name), "{name} is named");
    }
    assert!(!svg.contains("devpoll"), "what did not run has no line");
    let (style, picture) = svg.split_once("</style>").expect("a style sheet for dark pages");
    let colours: Vec<&str> =
        picture.match_indices("=\"#").map(|(at, _)| &picture[at..at + 10]).collect();
    assert!(colours.len() > 10, "{colours:?}");
    for colour in colours {
        assert!(style.contains(colour), "{colour} has no counterpart on a dark page");
    }
}

/// Each link to a file leads to an existing file, in a result's directory and in an archive.
#[test]
fn links_to_files_are_not_dead() {
    let links = |text: &str, before: &str, after: char| -> Vec<String> {
        let targets = text.split(before).skip(1).filter_map(|rest| rest.split(after).next());
        targets.filter(|target| !target.starts_with('#')).map(str::to_owned).collect()
    };
    let outcome = sample();
    let (plain, kept) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    outcome.write(plain.path()).unwrap();
    fs::write(kept.path().join("mine.toml"), "").unwrap();
    report::keep(&outcome, kept.path()).unwrap();
    let readme = fs::read_to_string(kept.path().join("README.md")).unwrap();
    let of_readme = links(&readme, "](", ')');
    assert!(of_readme.iter().any(|link| link == "mine.toml"), "{of_readme:?}");
    for (directory, data) in [(plain.path(), "result.json"), (kept.path(), "result.json.gz")] {
        let page = fs::read_to_string(report::write(&outcome, directory).unwrap()).unwrap();
        let of_page = links(&page, "href=\"", '"');
        assert!(of_page.iter().any(|link| link == "runs.csv"), "{of_page:?}");
        assert!(of_page.iter().any(|link| link == data), "{of_page:?}");
        let of_readme = of_readme.iter().filter(|_| directory == kept.path());
        for link in of_page.iter().chain(of_readme) {
            assert!(directory.join(link).exists(), "{link} in {}", directory.display());
        }
    }
}

/// Regression test: the links to the figures and their cells once led nowhere if there was nothing to draw.
#[test]
fn links_within_the_page_are_not_dead() {
    let (dimensions, cells, runs) = (Vec::new(), Vec::new(), Vec::new());
    let nothing = Outcome { dimensions, cells, runs, ..sample() };
    for (outcome, has_figures) in [(sample(), true), (nothing, false)] {
        let directory = tempfile::tempdir().unwrap();
        let page = fs::read_to_string(report::write(&outcome, directory.path()).unwrap()).unwrap();
        let links = page.split("href=\"#").skip(1).map(|rest| rest.split('"').next().unwrap());
        for part in links {
            assert!(page.contains(&format!("id=\"{part}\"")), "{part}");
        }
        for part in ["figures", "cells"] {
            assert_eq!(page.contains(&format!("href=\"#{part}\"")), has_figures, "{part}");
        }
    }
}

#[test]
fn the_page_of_an_archive_has_the_same_order() {
    let directory = tempfile::tempdir().unwrap();
    report::keep(&sample(), directory.path()).unwrap();
    let page = fs::read_to_string(directory.path().join("README.md")).unwrap();
    let parts = [
        "## Question",
        "## Result",
        "(figures/forest.svg)",
        "## Figures",
        "(figures/cpu.svg)",
        "## Claims",
        "| I3 |",
        "## Cells",
        "## Notes",
        "## Every run",
    ];
    let places = parts.map(|part| page.find(part).expect(part));
    assert!(places.is_sorted(), "{page}");
}

/// docs/papers.md shows only a picture that is a file, because code hosting sites show nothing else; and
/// it shows the panel that the claim is about.
#[test]
fn ours_stands_beside_the_papers_picture() {
    let directory = tempfile::tempdir().unwrap();
    let given = directory.path().join("runs/mine");
    let published = |outcome: Outcome| {
        let directory = PathBuf::from("runs/mine");
        [Publication { given: given.clone(), directory, outcome }]
    };
    let shown = |runs: &[Publication]| {
        let text = overview::markdown(runs, &Register::default()).unwrap();
        let pictures = text.split("](").filter_map(|rest| rest.split_once(".svg)"));
        pictures.map(|(file, _)| format!("{file}.svg")).collect::<Vec<_>>()
    };
    let runs = published(sample());
    assert!(shown(&runs).is_empty(), "there is no file yet");
    report::keep(&runs[0].outcome, &given).unwrap();
    let files = shown(&runs);
    assert_eq!(files, ["runs/mine/figures/cpu.svg"]);
    assert!(directory.path().join(&files[0]).exists());
    let page = overview::page(&runs, &Register::default()).unwrap();
    assert!(page.contains("Ours: ") && page.contains("aria-label=\"Server CPU"), "{page}");
    assert!(page.contains("<h3 id=\"gammo-figures-2-4-and-6\">"));

    // At two rates, each figure has two panels.
    let mut outcome = sample();
    outcome.dimensions.last_mut().unwrap().values.push(Value::Number(3_000.0));
    for claim in &mut outcome.experiment.claim {
        claim.a.at.insert("rate".into(), Select(Value::Word("max".into())));
    }
    report::keep(&outcome, &given).unwrap();
    let runs = published(outcome);
    assert_eq!(shown(&runs), ["runs/mine/figures/cpu-2.svg"]);
    let page = overview::page(&runs, &Register::default()).unwrap();
    assert_eq!(page.matches("<figcaption>Ours: ").count(), 2, "both rates");
}

#[test]
fn every_run_has_a_line_to_the_end_of_the_page() {
    let directory = tempfile::tempdir().unwrap();
    let mut outcome = sample();
    let listed = |outcome: &Outcome| {
        let page = fs::read_to_string(report::write(outcome, directory.path()).unwrap()).unwrap();
        let (_, runs) = page.split_once("<details class=\"runs\">").expect("a folded table");
        (runs.matches("<tr><td").count(), runs.to_owned())
    };
    let (lines, runs) = listed(&outcome);
    assert_eq!(lines, outcome.runs.len());
    let count = format!("All {lines} runs");
    for expected in [&*count, "failed<small>the server held 1013", "reply rate (replies/s)"] {
        assert!(runs.contains(expected), "{expected}: {runs}");
    }
    let one_run = outcome.runs[0].clone();
    outcome.runs.resize(1_234, one_run);
    let (lines, runs) = listed(&outcome);
    assert_eq!(lines, 500);
    assert!(
        runs.contains("The first 500 of 1,234 runs") && runs.contains("other 734 are in runs.csv")
    );
}

/// The papers' bars: a window of several seconds has a smallest and a largest second, a window of one
/// second has neither.
#[test]
fn reply_rates_have_bars_where_windows_have_several_seconds() {
    let drawn = |outcome: &Outcome, id: &str| {
        let panels = report::panels(outcome);
        let panel = panels.iter().find(|panel| panel.id == id).unwrap();
        (report::figure::draw(outcome, panel).unwrap(), report::figure::note(outcome, panel))
    };
    let without = sample();
    let mut with = sample();
    for run in with.runs.iter_mut().filter(|run| run.cell.variant == "poll") {
        run.metrics.insert("reply_rate_min_rps".into(), 1_500.0);
        run.metrics.insert("reply_rate_max_rps".into(), 2_600.0);
    }
    with.conclude();
    let (plain, none) = drawn(&without, "throughput");
    let (svg, note) = drawn(&with, "throughput");
    assert_eq!(none, None);
    let note = note.expect("they are named");
    assert!(note.contains("least and most replies of a second") && svg.contains(note), "{svg}");
    let pale = |svg: &str| svg.matches("opacity=\"0.45\"").count();
    assert!(!plain.contains("of a second"));
    // A bar and its two caps at each of the three points of one variant.
    assert_eq!(pale(&svg) - pale(&plain), 9);
    assert_eq!(drawn(&with, "cpu").1, None, "no bars but of reply rates");
    let directory = tempfile::tempdir().unwrap();
    let page = |outcome: &Outcome| {
        fs::read_to_string(report::write(outcome, directory.path()).unwrap()).unwrap()
    };
    assert_eq!(page(&with).matches(&format!("{note}, means")).count(), 1);
    assert!(!page(&without).contains("of a second in the window"));
}

/// A claim's paper number is drawn as a mark with its source; without a number, neither is drawn.
#[test]
fn the_papers_own_number_is_a_mark_with_its_source() {
    let drawn = |paper: Option<f64>| {
        let mut outcome = sample();
        for claim in &mut outcome.experiment.claim {
            claim.paper_value = paper.filter(|_| claim.id == "I3");
            claim.source = "gammo fig. 99".into();
        }
        let panels = report::panels(&outcome);
        let panel = panels.iter().find(|panel| panel.id == "cpu").unwrap();
        report::figure::draw(&outcome, panel).unwrap()
    };
    let (with, without) = (drawn(Some(20.0)), drawn(None));
    assert!(
        with.contains("hollow: the paper&apos;s own (gammo fig. 99)")
            || with.contains("hollow: the paper's own (gammo fig. 99)"),
        "{with}"
    );
    assert!(!without.contains("gammo fig. 99"));
    // The only new shape is the mark.
    let shapes = |svg: &str| svg.matches("<polyline").count();
    assert_eq!(shapes(&with), shapes(&without) + 1);
}

/// In a drawing of more than six lines, a reader cannot find a line.
#[test]
fn a_figure_of_many_lines_has_several_drawings() {
    let mut outcome = sample();
    let (runs, variant) = (outcome.runs.clone(), outcome.variants[1].clone());
    for copy in 0..5 {
        let name = format!("poll-{copy}");
        outcome.variants.push(VariantOutcome { name: name.clone(), ..variant.clone() });
        let of_poll = runs.iter().filter(|run| run.cell.variant == "poll").cloned();
        outcome.runs.extend(of_poll.map(|mut run| {
            run.cell.variant.clone_from(&name);
            run
        }));
    }
    outcome.conclude();
    let panels = report::panels(&outcome);
    let of_cpu: Vec<_> = panels.iter().filter(|panel| panel.figure.id == "cpu").collect();
    let ids: Vec<&str> = of_cpu.iter().map(|panel| panel.id.as_str()).collect();
    assert_eq!(ids, ["cpu", "cpu-part-2"]);
    // There are nine lines; devpoll is not available and has no line.
    let names = |index: usize| of_cpu[index].variants.iter().map(|it| it.name.as_str());
    assert_eq!(
        names(0).collect::<Vec<_>>(),
        ["select", "poll", "epoll", "epoll-et", "devpoll", "poll-0"]
    );
    assert_eq!(names(1).count(), 4);
    let svg = report::figure::draw(&outcome, of_cpu[1]).unwrap();
    assert!(svg.contains("poll-4") && !svg.contains("epoll-et"));
}

#[test]
fn a_result_of_another_format_is_refused_with_its_name() {
    let directory = tempfile::tempdir().unwrap();
    let error = format!("{:#}", Outcome::read(directory.path()).unwrap_err());
    assert!(
        error.contains("result.json") && error.contains("is it a result directory?"),
        "{error}"
    );
    let path = directory.path().join("result.json");
    fs::write(&path, r#"{"format": "pollux-lab-result/0"}"#).unwrap();
    let error = format!("{:#}", Outcome::read(directory.path()).unwrap_err());
    assert!(error.contains("has format \"pollux-lab-result/0\""), "{error}");
}

#[test]
fn points_of_figures_follow_the_file() {
    let outcome = sample();
    let panels = report::panels(&outcome);
    assert_eq!(panels.len(), outcome.experiment.figure.len(), "one rate: one panel a figure");
    assert_eq!(panels[0].subtitle(&outcome), "offered rate (requests/s): 2,000");
    let point = panels[0].point(&Value::Number(1000.0));
    assert_eq!(outcome.cell("epoll", &point).unwrap().valid, 6);
}

/// An older version counted such a run, and counted requests that the generator could not send as
/// failed.
#[test]
fn a_kept_run_whose_generator_ran_short_does_not_count() {
    for (kind, counts) in [("timeout", true), ("no_descriptors", false), ("no_ports", false)] {
        let mut kept = sample();
        kept.runs[0].raw.load = serde_json::json!({ "valid": true, "errors": { kind: 3 } });
        let directory = tempfile::tempdir().unwrap();
        kept.write(directory.path()).unwrap();
        let read = Outcome::read(directory.path()).unwrap();
        assert_eq!(read.runs[0].status == Status::Valid, counts, "{kind}");
        assert_eq!(read.runs[1].status, Status::Valid, "the others count");
        let reason = read.runs[0].reason.clone().unwrap_or_default();
        assert_eq!(reason.contains("no descriptor or port for 3"), !counts, "{reason}");
    }
}

/// A generator without free descriptors or ports lacks them on a quiet machine, too: its report says
/// nothing about the machine.
#[test]
fn a_machine_is_not_quiet_where_the_generator_was_kept_from_its_work() {
    for (errors, is_noise) in
        [(serde_json::json!({}), true), (serde_json::json!({ "no_ports": 3 }), false)]
    {
        let mut outcome = sample();
        assert_eq!(report::noise(&outcome), None);
        for run in &mut outcome.runs {
            run.status = Status::Invalid;
            run.raw.load = serde_json::json!({ "valid": false, "errors": errors });
        }
        let note = report::noise(&outcome);
        assert_eq!(note.is_some_and(|note| note.contains("This machine was not quiet")), is_noise);
    }
}

/// If a claim was too weak, it is corrected in its experiment's file, and stored runs are judged by the
/// new claim.
#[test]
fn what_is_kept_is_judged_by_todays_claims() {
    let quick = Form { quick: true, ..Form::default() };
    let today = experiment::find("idle").unwrap().form(quick).unwrap();
    let mut kept = sample();
    kept.experiment = today.clone();
    for claim in &mut kept.experiment.claim {
        claim.metric = "latency_p50_us".into();
        claim.holds = Threshold::Below(0.1);
    }
    kept.experiment.budget.seconds += 5.0;
    kept.runs[0].raw.load = serde_json::json!({ "reply_rate_rps": { "mean": 7.0 } });
    kept.conclude();
    assert_eq!(kept.claims[0].verdict, Verdict::DoesNotHold);

    let directory = tempfile::tempdir().unwrap();
    let reread = |kept: &Outcome| {
        kept.write(directory.path()).unwrap();
        let path = directory.path().join("result.json");
        let mut text: serde_json::Value =
            serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        // Files of an older version do not have this field.
        text.as_object_mut().unwrap().remove("looks").unwrap();
        fs::write(&path, text.to_string()).unwrap();
        Outcome::read(directory.path()).unwrap()
    };
    let read = reread(&kept);
    assert_eq!(read.experiment.claim, today.claim);
    assert_eq!(read.claims.len(), today.claim.len());
    let g3 = read.claims.iter().find(|claim| claim.id == "I3").unwrap();
    assert_eq!(g3.verdict, Verdict::Holds, "{g3:?}");
    assert_eq!(read.notes, kept.notes);
    assert_eq!(read.runs[0].metrics["throughput_rps"], 7.0, "from the raw data");
    assert_eq!(read.runs[1].metrics, kept.runs[1].metrics, "which others do not have here");

    // A user's own file has its own claims.
    kept.environment.command = "pollux lab run my-idle.toml --quick".into();
    assert_eq!(reread(&kept).experiment.claim, kept.experiment.claim);
    kept.environment.command = "pollux lab run idle --quick".into();

    // An experiment that needs other data has other claims.
    kept.experiment.load.insert("session-requests".into(), Value::Number(3.0));
    let read = reread(&kept);
    assert_eq!(read.experiment.claim, kept.experiment.claim);
    assert_eq!(read.claims[0].verdict, Verdict::DoesNotHold);
    let notes = |outcome: &Outcome| {
        outcome.notes.iter().filter(|note| note.contains("stored with it")).count()
    };
    assert_eq!((notes(&read), notes(&reread(&read))), (1, 1));
}

/// Regression test: the runs of any experiment were once added, and the law predicted cells that nothing had measured.
#[test]
fn the_law_takes_a_second_result_of_the_same_experiment_only() {
    let mut outcome = sample();
    let runs = outcome.runs.len();
    let mut refusal = |rest| fit::add(&mut outcome, rest).unwrap_err().to_string();
    let other = Outcome { experiment: experiment::find("capacity").unwrap(), ..sample() };
    assert!(refusal(other).contains("idle and capacity are different experiments"));
    let mut other = sample();
    for run in &mut other.runs {
        run.cell.point.insert("rate".into(), Value::Number(2_001.0));
    }
    assert!(refusal(other).contains("no cell of the first"));
    fit::add(&mut outcome, sample()).unwrap();
    assert_eq!(outcome.runs.len(), 2 * runs);
}

/// Regression test: two results of one block were once said to have no cell in common, even a result and itself.
#[test]
fn a_comparison_names_what_is_missing() {
    let refusal = |a: &Outcome, b: &Outcome| compare::rows(a, b).unwrap_err().to_string();
    let mut once = sample();
    once.runs.retain(|run| run.block == 0);
    once.conclude();
    assert!(refusal(&once, &once).contains("more --blocks"), "{}", refusal(&once, &once));
    let mut other = sample();
    for cell in &mut other.cells {
        cell.cell.point.insert("rate".into(), Value::Number(2_001.0));
    }
    assert!(refusal(&once, &other).contains("no cell in common"), "{}", refusal(&once, &other));
    assert!(!compare::rows(&sample(), &sample()).unwrap().is_empty());
}
