//! A control for the claims of `zerohttpd-table`: the paper's own table is used as data, once unchanged and
//! once with exchanged architectures. The verdicts must differ.

use super::*;
use crate::{experiment::find, plan};

/// The noise between the blocks of one cell.
const NOISE: [f64; 6] = [0.99, 1.01, 1.0, 1.015, 0.985, 1.0];

/// Returns an outcome of the full form in which each cell has the value that `measured` returns for it.
fn planted(
    experiment: &Experiment,
    metric: &str,
    measured: impl Fn(&str, &Point) -> Option<f64>,
) -> Outcome {
    let dimensions = experiment.dimensions();
    let names: Vec<String> =
        experiment.variant.iter().map(|variant| variant.name.clone()).collect();
    let cells = plan::cells(names.iter().map(String::as_str), &dimensions).unwrap();
    let runs = cells.iter().flat_map(|cell| {
        let value = measured(&cell.variant, &cell.point);
        NOISE.iter().enumerate().filter_map(move |(block, noise)| {
            let metrics = [(metric.to_owned(), value? * noise)].into();
            Some(made::run(cell.clone(), block as u32, metrics))
        })
    });
    let mut experiment = experiment.clone();
    experiment.budget.blocks = NOISE.len() as u32;
    made::outcome(experiment, false, dimensions, &names, runs.collect())
}

/// With the paper's own table as data, its claims hold. If two architectures are exchanged in the table,
/// the claims about these two do not hold.
#[test]
fn the_papers_own_table_bears_its_claims_out_and_a_changed_one_does_not() {
    let experiment = find("zerohttpd-table").unwrap();
    let lines = &experiment.figure.iter().find(|figure| !figure.paper.is_empty()).unwrap().paper;
    // Beyond the end of a column, where the paper has "wide variations", the last figure of the column
    // is used.
    let in_table = |variant: &str, clients: f64| {
        let line = lines.iter().find(|line| line.variant == variant)?;
        let upto = line.points.iter().rev().find(|[at, _]| *at <= clients);
        upto.map(|[_, rps]| *rps)
    };
    let verdicts = |renamed: &dyn Fn(&str) -> String| -> BTreeMap<String, Verdict> {
        let outcome = planted(&experiment, "throughput_rps", |variant, point| {
            in_table(&renamed(variant), point["concurrency"].number()?)
        });
        let judged = judge(&outcome).into_iter();
        judged.map(|claim| (claim.id.clone(), claim.verdict)).collect()
    };
    let own = verdicts(&|name| name.to_owned());
    let about_the_table = "Z1-processes Z1-threads Z1-processes-many Z1-threads-many Z1-threads-8000 \
        Z1-threads-far Z1-rise Z1-fall Z2-level Z2-collapses Z2-far Z2-threads Z2-pool Z3 Z3-far Z4-flat Z4-low Z5-published";
    for id in about_the_table.split(' ') {
        assert_eq!(own[id], Verdict::Holds, "{id}");
    }
    // These cells were not measured.
    assert_eq!(own["Z5-equal"], Verdict::NotTestable);
    let changed = |a: &'static str, b: &'static str| {
        verdicts(&move |name| {
            let in_place = [(a, b), (b, a)].into_iter().find(|(of, _)| *of == name);
            in_place.map_or(name, |(_, other)| other).to_owned()
        })
    };
    for (a, b, id) in [
        ("forking", "preforked", "Z1-processes"),
        ("threaded", "prethreaded", "Z1-threads"),
        ("prethreaded", "iterative", "Z1-threads-far"),
        ("prethreaded", "threaded", "Z1-threads-8000"),
        ("poll", "forking", "Z2-level"),
        ("poll", "epoll", "Z2-collapses"),
        ("poll", "epoll", "Z2-far"),
        ("poll", "epoll", "Z3"),
        ("poll", "epoll", "Z3-far"),
        ("iterative", "forking", "Z4-flat"),
        ("iterative", "epoll", "Z4-low"),
        ("preforked", "epoll", "Z5-published"),
        ("forking", "preforked", "Z1-rise"),
        ("threaded", "prethreaded", "Z1-fall"),
        ("poll", "threaded", "Z2-threads"),
        ("poll", "prethreaded", "Z2-pool"),
    ] {
        let verdict = changed(a, b)[id];
        assert_eq!(verdict, Verdict::DoesNotHold, "{id} with {a} and {b} changed round");
    }
}
