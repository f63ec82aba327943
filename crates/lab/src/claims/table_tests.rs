//! A control for the claims of `zerohttpd-table`: the paper's own table is planted as data, as it is and with
//! architectures changed round in it, and the verdicts must tell the two apart.

use super::*;
use crate::{
    environment::Environment,
    experiment::{Experiment, find},
    plan::{self, Point},
    result::{FORMAT, Run, Status, VariantOutcome},
};

/// What differs between the blocks of one cell.
const NOISE: [f64; 6] = [0.99, 1.01, 1.0, 1.015, 0.985, 1.0];

/// An outcome of the full form in which each cell has the value that `measured` gives of it.
fn planted(
    experiment: &Experiment,
    metric: &str,
    measured: impl Fn(&str, &Point) -> Option<f64>,
) -> Outcome {
    let dimensions = experiment.dimensions(false);
    let names = experiment.variant.iter().map(|variant| variant.name.as_str());
    let cells = plan::cells(names.clone(), &dimensions).unwrap();
    let runs = cells.iter().flat_map(|cell| {
        let value = measured(&cell.variant, &cell.point);
        NOISE.iter().enumerate().filter_map(move |(block, noise)| {
            Some(Run {
                cell: cell.clone(),
                block: block as u32,
                started_s: 0.0,
                window_s: 1.0,
                mechanism: String::new(),
                status: Status::Valid,
                reason: None,
                metrics: [(metric.to_owned(), value? * noise)].into(),
                raw: Default::default(),
                commands: Vec::new(),
            })
        })
    });
    let mut experiment = experiment.clone();
    experiment.full.blocks = NOISE.len() as u32;
    Outcome {
        format: FORMAT.into(),
        runs: runs.collect(),
        variants: names
            .map(|name| VariantOutcome {
                name: name.into(),
                mechanism: String::new(),
                unavailable: None,
            })
            .collect(),
        experiment,
        quick: false,
        paper_rates: false,
        seed: 1,
        started_at: String::new(),
        elapsed_s: 1.0,
        interrupted: false,
        decided_early: false,
        looks: Vec::new(),
        phase_rps: Vec::new(),
        warmup_s: 0.0,
        notes: Vec::new(),
        environment: Environment::default(),
        dimensions,
        saturation: Vec::new(),
        claims: Vec::new(),
        cells: Vec::new(),
    }
}

/// The paper's own table as data: what it claims holds; and with two architectures changed round in it,
/// what it claims of these two does not.
#[test]
fn the_papers_own_table_bears_its_claims_out_and_a_changed_one_does_not() {
    let experiment = find("zerohttpd-table").unwrap();
    let lines = &experiment.figure.iter().find(|figure| !figure.paper.is_empty()).unwrap().paper;
    // Beyond the end of a column, where the paper has "wide variations", its last figure.
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
    let about_the_table = [
        "Z1-processes",
        "Z1-threads",
        "Z1-processes-many",
        "Z1-threads-many",
        "Z2-level",
        "Z2-collapses",
        "Z2-far",
        "Z3",
        "Z3-far",
        "Z4-flat",
        "Z4-low",
        "Z5-published",
    ];
    for id in about_the_table {
        assert_eq!(own[id], Verdict::Holds, "{id}");
    }
    // Nobody measured these.
    assert_eq!(own["Z5-equal"], Verdict::NotApplicable);
    let changed = |a: &'static str, b: &'static str| {
        verdicts(&move |name| {
            if name == a {
                b
            } else if name == b {
                a
            } else {
                name
            }
            .to_owned()
        })
    };
    for (a, b, id) in [
        ("forking", "preforked", "Z1-processes"),
        ("threaded", "prethreaded", "Z1-threads"),
        ("poll", "forking", "Z2-level"),
        ("poll", "epoll", "Z2-collapses"),
        ("poll", "epoll", "Z2-far"),
        ("poll", "epoll", "Z3"),
        ("poll", "epoll", "Z3-far"),
        ("iterative", "forking", "Z4-flat"),
        ("iterative", "epoll", "Z4-low"),
        ("preforked", "epoll", "Z5-published"),
    ] {
        let verdict = changed(a, b)[id];
        assert_eq!(verdict, Verdict::DoesNotHold, "{id} with {a} and {b} changed round");
    }
}
