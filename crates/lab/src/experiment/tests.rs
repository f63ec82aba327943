//! Valid experiments, and the error messages of invalid ones.

use super::{built_in::BUILT_IN, *};
use crate::statistics::Compare;

#[test]
fn every_built_in_experiment_is_right_and_named_as_its_file() {
    for (id, text) in BUILT_IN {
        let experiment = Experiment::parse(text).unwrap_or_else(|error| panic!("{id}: {error:#}"));
        assert_eq!(experiment.id, *id);
        assert!(!experiment.figure.is_empty() && !experiment.claim.is_empty(), "{id}");
        // `frontend` stores documents before some of its windows.
        let most_s = if *id == "frontend" { 150.0 } else { 90.0 };
        assert!(
            form(id, Machine::Host, true).budget.seconds <= most_s,
            "{id}: the quick form is for CI"
        );
    }
}

fn form(id: &str, machine: Machine, quick: bool) -> Experiment {
    find(id)
        .unwrap()
        .form(Form { machine, quick })
        .unwrap_or_else(|error| panic!("{id}: {error:#}"))
}

fn in_deterministic_guest(id: &str) -> Experiment {
    form(id, Machine::DeterministicGuest, false)
}

/// Asserts that a built-in experiment is refused with one passage replaced: the passage, its replacement, and a
/// part of the message.
pub(super) fn assert_mistakes(id: &str, mistakes: &[(&str, &str, &str)]) {
    let text = text(id).unwrap();
    for (old, new, expected) in mistakes {
        assert!(text.contains(old), "{id}.toml has no {old:?}");
        let error = Experiment::parse(&text.replacen(old, new, 1)).unwrap_err();
        let message = format!("{error:#}");
        assert!(message.contains(expected), "{id}: {new}: {message}");
    }
}

/// Returns every claim of every built-in experiment, with the experiment's id.
fn all_claims() -> impl Iterator<Item = (&'static str, Claim)> {
    ids().flat_map(|id| find(id).unwrap().claim.into_iter().map(move |claim| (id, claim)))
}

#[test]
fn mistakes_are_named() {
    let mistakes = [
        ("id = \"idle\"", "id = \"Idle runs\"", "lower-case letters"),
        ("workload = \"one-byte\"", "workload = \"two-byte\"", "unknown variant `two-byte`"),
        ("workload = \"one-byte\"", "wordload = \"one-byte\"", "unknown field `wordload`"),
        ("\nrps = [200]", "\nrps = [0]", "[rate]: rps: 0.01 to 100,000,000"),
        ("rate.rps = [1500]", "rate.rps = [0]", "[quick]: [rate]: rps: 0.01 to 100,000,000"),
        ("rate.rps = [1500]", "rate.rps = []", "[quick]: [rate]: fractions is empty"),
        ("\nrps = [200]\n", "\n", "[rate]: fractions is empty"),
        ("\nrps = [200]", "\nfractions = [50]", "50 is not a share of the saturation"),
        ("values = [0, 1000, 8000]", "values = [0, -1]", "[[axis]] \"idle\": expected numbers"),
        ("values = [0, 1000, 8000]", "values = []", "values is empty"),
        ("blocks = 16", "blocks = 0", "[quick]: [budget]: blocks: 1 to 100"),
        ("x = \"idle\"", "x = \"idel\"", "[[figure]] \"cpu\": no axis \"idel\""),
        ("y = \"server_cpu_us_per_request\"", "y = \"cost\"", "no metric \"cost\"; there are"),
        ("each = [\"epoll-et\"]", "each = [\"epol-et\"]", "each: no variant \"epol-et\""),
        ("each = [\"epoll-et\"]", "each = []", "each is empty"),
        ("at = { idle = 1000 }", "at = { idle = 1001 }", "the axis has no such value"),
        ("a = { at = { idle = \"max\" } }", "a = { }", "axis \"idle\" has several values"),
        (
            "each = [\"epoll-et\"]",
            "each = [\"epoll-et\"]\ncompare = \"value\"",
            "\"value\" has no side b",
        ),
        ("b = { at = { idle = \"min\" } }\n", "", "b is missing"),
        ("id = \"I5\"", "id = \"I4\"", "[[claim]] \"I4\" is there twice"),
        ("name = \"idle\"", "name = \"rate\"", "the rate has a table of its own"),
        ("name = \"idle\"", "name = \"busy\"", "it changes nothing"),
        ("workload = \"one-byte\"\n", "", "workload is missing"),
        ("label = \"idle connections held\"", "label = \"\"\nwait-flag = \"n\"", "[wait] and"),
        ("within = [0.9, 1.1]", "within = [1.1, 0.9]", "the lower limit comes first"),
        ("[budget]\n", "[budget]\nwarmup-seconds = 1000\n", "duplicate key"),
    ];
    assert_mistakes("idle", &mistakes);
    let mistakes = [
        ("distinct = 20000", "distinct = 999", "stored: at least 1000 distinct ones"),
        ("floor-of = \"epoll-et\"", "floor-of = \"nginx\"", "floor-of: no variant \"nginx\" with"),
        ("floor-of = ", "mechanism = \"poll\"\nfloor-of = ", "expected one of mechanism"),
        (
            "floor-of = \"epoll-et\"",
            "peer = \"nginx\"\nfloor = { threads = 2 }",
            "floor is for floor-of",
        ),
    ];
    assert_mistakes("frontend", &mistakes);
    let mistakes = [
        ("[wait]\n", "workload = \"6-kb\"\n[wait]\n", "has no server"),
        ("[wait]\n", "[load]\n", "has no server"),
        ("wait-flag = \"watched\"", "load-flag = \"n\"", "give wait-flag"),
    ];
    assert_mistakes("wait-cost", &mistakes);
    let b = "b = { variant = \"epoll\", over = [\"rate\"], take = \"max\" }";
    let mistakes = [
        (b, &*b.replace("max", "each"), "is for side a"),
        ("source = \"gammo fig. 1\"", "source = \"ours\"", "primary stands for a figure"),
    ];
    assert_mistakes("gammo-fig1-2", &mistakes);
    let many = format!("kernel-calls = [{}]", "\"sock_poll\", ".repeat(9));
    let few = "kernel-calls = [\"tcp_poll\"]";
    assert_mistakes("mail-hints", &[(few, &many, "kernel-calls: at most 8")]);
}

/// A server that lets one request in fifty time out has the better percentiles of its replies.
#[test]
fn no_claim_is_about_the_latency_of_replies_alone() {
    for (id, claim) in all_claims() {
        let own = claim.sides().filter_map(|side| side.metric.as_ref());
        for metric in own.chain([&claim.metric]) {
            let of_replies = metric.starts_with("latency_") || metric.starts_with("service_");
            let all = metric.starts_with("latency_with_failures_");
            assert!(all || !of_replies, "{id}, {}: {metric}", claim.id);
        }
    }
}

/// A report has one claim a line, and a reader may start at any line.
#[test]
fn statements_can_be_read_alone() {
    let leans = |statement: &str| {
        let of_control =
            statement.split_once(": ").filter(|(of, _)| of.starts_with("control for "));
        let text = of_control.map_or(statement, |(_, text)| text);
        let first = text.split([' ', ',']).next().unwrap_or_default();
        let of_others = ["and", "so", "nor", "it", "they", "that", "one", "too"];
        let back =
            [", too", "cost poll as much", "epoll2 as much", "so does", "so is", "of them fail"];
        of_others.contains(&first)
            || back.iter().any(|words| text.ends_with(words) || text.contains(&format!("{words} ")))
            || text.len() < 30
    };
    // Examples of earlier statements.
    for (statement, expected) in [
        ("and so is poll's", true),
        ("above saturation, too", true),
        ("they cost epoll2 as much of its best reply rate", true),
        ("with 501 idle connections more of them fail than with 251, at the highest rate", true),
        ("epoll2 at most 81", true),
        ("without idle connections poll's best reply rate is as good as epoll's", false),
    ] {
        assert_eq!(leans(statement), expected, "{statement}");
    }
    for (id, claim) in all_claims() {
        assert!(!leans(&claim.statement), "{id}, {}: {}", claim.id, claim.statement);
    }
}

/// The threshold of a claim that requires half of the paper's effect.
fn half_of(paper: f64, compare: Compare) -> f64 {
    match compare {
        Compare::Ratio => (1.0 + paper) / 2.0,
        Compare::Difference | Compare::Value => paper / 2.0,
    }
}

/// The threshold is half of the paper's effect, and each primary claim with a number of the paper requires
/// it. A number that means "equal" or "none" has a margin instead.
#[test]
fn thresholds_are_half_of_the_papers_effect() {
    let mut checked = 0;
    for (id, claim) in all_claims() {
        let is_of_paper = claim.paper_key().is_some();
        let Some(paper) = claim.paper_value.filter(|_| is_of_paper) else { continue };
        let (Threshold::Above(limit) | Threshold::Below(limit)) = claim.holds else { continue };
        let says_half = claim.statement.contains("half of");
        let none = match claim.compare {
            Compare::Ratio => 1.0,
            Compare::Difference | Compare::Value => 0.0,
        };
        let place = format!("{id}, {}: {limit} beside {paper}", claim.id);
        assert!(says_half || !claim.primary || paper == none, "{place}");
        if says_half {
            let half = half_of(paper, claim.compare);
            assert!((limit - half).abs() <= 0.025 * half.abs(), "{place}, half is {half}");
            checked += 1;
        }
    }
    assert!(checked > 20, "{checked}");
    // Examples: half of a fall to 0.21, and half of an error of 0.6; 0.75 is not half of 0.474.
    assert!((half_of(0.21, Compare::Ratio) - 0.605).abs() < 1e-9);
    assert!((half_of(0.6, Compare::Value) - 0.3).abs() < 1e-9);
    assert!((0.75 - half_of(0.474, Compare::Ratio)).abs() > 0.01);
}

#[test]
fn quick_forms_have_fewer_variants_and_fixed_rates() {
    let idle = find("idle").unwrap();
    let quick = form("idle", Machine::Host, true);
    assert!(quick.variant.len() >= 3 && quick.variant.len() < 6);
    assert!(idle.claim.iter().any(|claim| claim.id == "I3-select"));
    assert!(quick.claim.iter().all(|claim| claim.id != "I3-select"), "it does not run");
    assert!(quick.claim.iter().any(|claim| claim.id == "I3"));
    // Fixed rates require no measurement; in a guest, which is ten times slower, they are shares again.
    assert_eq!(idle.rate.as_ref().unwrap().rps, [200.0]);
    assert!(form("idle", Machine::Guest, true).rate.unwrap().rps.is_empty());
    for (id, _) in BUILT_IN {
        let experiment = find(id).unwrap();
        assert!(experiment.budget.blocks >= 6, "{id}: the full form decides");
    }
}

#[test]
fn phases_and_rates_are_not_mixed() {
    let mistakes = [
        ("[rate]\n", "[rate]\nfractions = [0.5]\n", "[rate] has rates, and so has [[phase]]"),
        ("fraction = 1.3", "fraction = 13", "[[phase]] \"overload\": 13 is not a share"),
        ("name = \"busy\"", "name = \"quiet\"", "[[phase]] \"quiet\" is there twice"),
        ("name = \"busy\"", "name = \"max\"", "the first or the last phase"),
        ("seconds = 1.5", "seconds = 0", "[[phase]] \"quiet-again\": seconds: 0.1 to 3600"),
        ("settle-seconds = 0.6", "settle-seconds = 0", "\"busy\": settle-seconds: 0.1 to 3600"),
        ("phase = \"quiet\" } }", "phase = \"quite\" } }", "at.phase = quite: the axis has no"),
        ("at = { phase = \"quiet\" }", "", "axis \"phase\" has several values"),
        ("name = \"idle\"", "name = \"phase\"", "phases have a table of their own"),
        ("x = \"phase\"", "x = \"rate\"", "no axis \"rate\""),
    ];
    assert_mistakes("provos-hybrid", &mistakes);
}

/// One limit determines the rates of every variant at every number of idle connections, in every form.
#[test]
fn the_rates_of_provos_are_multiples_of_polls_limit_with_one_idle_connection() {
    for id in ["provos-fig4-9", "provos-fig10", "provos-fig11-13", "provos-fig14"] {
        for form in [find(id).unwrap(), in_deterministic_guest(id)] {
            let rate = form.rate.unwrap();
            assert!(rate.rps.is_empty() && rate.limit_step.is_none_or(|step| step > 0.0), "{id}");
            assert_eq!(rate.fractions, [0.5, 0.7, 0.85, 0.95, 1.0, 1.05, 1.15, 1.3], "{id}");
            let reference = rate.reference.unwrap();
            assert_eq!((reference.variant.as_str(), reference.at.len()), ("poll", 1), "{id}");
        }
    }
    let (one, two) = ("at = { idle = 1 } }\n", "at = { idle = 2 } }\n");
    assert_mistakes("provos-fig4-9", &[(one, two, "[rate]: reference: idle: no value 2")]);
    let paper = in_deterministic_guest("mail-hints");
    assert_eq!(
        paper.rate.unwrap().rps,
        [650.0],
        "the paper's own rate, where there is no reference"
    );
}

/// Two windows of Poisson arrivals differ by a fiftieth, which is more than the difference between the
/// compared limits.
#[test]
fn where_limits_are_sought_each_second_has_as_many_requests_as_the_next() {
    let step = |experiment: &Experiment| experiment.rate.as_ref().and_then(|rate| rate.limit_step);
    for id in ["provos-fig4-9", "provos-fig11-13", "gammo-fig1-2", "gammo-fig3-4", "gammo-fig7"] {
        let here = find(id).unwrap();
        assert_eq!(step(&here), None, "{id}: on the host all have the same rates");
        let there = in_deterministic_guest(id);
        assert!(step(&there).is_some(), "{id}");
        assert_eq!(there.load["arrivals"], Value::Word("binomial".into()), "{id}");
    }
    let latency = in_deterministic_guest("provos-fig14");
    assert_eq!(latency.load["arrivals"], Value::Word("poisson".into()));
    let (step, none) = ("limit-step = 0.0125", "limit-step = 0.0");
    assert_mistakes("provos-fig4-9", &[(step, none, "limit-step: 0.002 to 0.1")]);
}

#[test]
fn windows_of_the_deterministic_guest_outlast_the_clients_patience() {
    for (id, patience_s) in [("provos-fig14", 2.0), ("provos-fig4-9", 1.0), ("mail-hints", 2.0)] {
        for (quick, times) in [(false, 2.0), (true, 1.0)] {
            let budget = form(id, Machine::DeterministicGuest, quick).budget;
            assert!(
                budget.warmup_seconds > patience_s,
                "{id}: the window includes clients that give up"
            );
            assert_eq!(budget.min_window_seconds, times * patience_s, "{id}");
            assert_eq!(budget.max_window_seconds, times * patience_s, "{id}: all are as long");
        }
    }
    // Its clients time out in waves, one time-out apart: a window covers several of them.
    for quick in [false, true] {
        let budget = form("provos-fig10", Machine::DeterministicGuest, quick).budget;
        assert_eq!((budget.min_window_seconds, budget.max_window_seconds), (3.0, 3.0));
        assert_eq!(budget.warmup_seconds, 3.0, "the queue of an overloaded server fills");
    }
    // Its phases follow each other without a pause.
    let there = in_deterministic_guest("provos-hybrid");
    assert_eq!((there.budget.min_window_seconds, there.budget.warmup_seconds), (2.0, 0.0));
    // The effects of a phase are over when the next one is measured; the clients have a time-out of one
    // second there.
    let settles: Vec<_> = there.phase.iter().map(|phase| phase.settle_seconds).collect();
    assert_eq!(settles, [None, Some(1.2), Some(1.2), None]);
}

/// In overload on the host, one table of 20,000 descriptors was the limit: requests of some windows never
/// reached the server.
#[test]
fn overload_has_tables_of_descriptors_enough_and_the_one_cpu_of_a_guest_one_thread() {
    for id in ["gammo-fig1-2", "gammo-fig3-4", "gammo-specweb99", "provos-hybrid"] {
        let here = find(id).unwrap();
        assert!(here.load.contains_key("threads"), "{id}");
        let there = in_deterministic_guest(id);
        assert!(!there.load.contains_key("threads"), "{id}");
    }
}

/// Half of figures 5 and 6 required 100,000 connections and never ran: the generator does not have enough
/// descriptors.
#[test]
fn no_more_connections_at_once_than_a_generator_has_descriptors_for() {
    const A_TABLE: f64 = 16_000.0;
    let mut seen = 0;
    for (id, _) in BUILT_IN {
        let experiment = find(id).unwrap();
        let threads = match experiment.load.get("threads") {
            Some(Value::Number(threads)) => *threads,
            _ => 1.0,
        };
        let fixed = experiment.load.get("max-connections").into_iter();
        let of_axes = experiment
            .axis
            .iter()
            .filter(|axis| axis.load_flag.as_deref() == Some("max-connections"))
            .flat_map(|axis| &axis.values);
        for most in fixed.chain(of_axes) {
            let Value::Number(most) = most else { panic!("{id}: {most:?}") };
            assert!(*most <= threads * A_TABLE, "{id}: {most} on {threads} threads");
            seen += 1;
        }
    }
    assert!(seen >= 2, "figures 5 and 6 have two values");
}

#[test]
fn a_guest_has_its_own_limits_and_fewer_variants() {
    let idle = find("idle").unwrap();
    assert!(idle.variant.is_empty() && !idle.load.contains_key("max-lag"));
    let there = form("idle", Machine::Guest, false);
    let names: Vec<&str> = there.variant.iter().map(|variant| variant.name.as_str()).collect();
    assert!(names.contains(&"poll") && names.contains(&"devpoll"), "{names:?}");
    assert!(names.len() < 6, "{names:?}");
    assert_eq!(there.load["max-lag"], Value::Word("1s".into()));
    assert_eq!(there.load["arrivals"], idle.load["arrivals"], "what is not named stays");
    let most = |experiment: &Experiment| experiment.dimensions()[0].values.last().cloned();
    assert_eq!(most(&there), Some(Value::Number(2000.0)));
    assert_eq!(most(&idle), Some(Value::Number(8000.0)));
    let seconds = |machine| form("idle", machine, true).budget.seconds;
    assert!(seconds(Machine::Guest) > seconds(Machine::Host));
    for claim in &there.claim {
        assert!(claim.each.iter().all(|name| names.contains(&name.as_str())), "{}", claim.id);
        let known = idle.find_claim(&claim.id).unwrap();
        assert_eq!((&claim.a, &claim.b, claim.holds), (&known.a, &known.b, known.holds));
    }
    assert!(idle.claim.iter().any(|claim| claim.id == "I3-select"));
    assert!(there.claim.iter().all(|claim| claim.id != "I3-select"), "there is no select");
    assert!(there.claim.iter().any(|claim| claim.id == "I1"));

    for (id, _) in BUILT_IN {
        assert!(!form(id, Machine::Guest, false).claim.is_empty(), "{id}");
        assert!(form(id, Machine::Guest, true).budget.seconds <= 150.0, "{id}");
    }
}

#[test]
fn what_clients_far_away_need_is_checked() {
    let mistakes = [
        ("delay-ms = 100", "delay-ms = 0", "delay-ms: above 0, at most 2000"),
        ("loss = 0.01\nsettle", "loss = 1\nsettle", "loss: a share, at most 0.5"),
        ("settle-seconds = 2", "settle-seconds = 0", "settle-seconds: 0.1 to 600"),
        ("session-requests = 4", "session-requests = 1", "session-requests: at least 2"),
        ("values = [\"near\", ", "values = [\"here\", ", "here: expected near, idle or far"),
        ("name = \"clients\"", "name = \"idle\"", "belong together"),
        ("delay-ms = 150", "delay-ms = 9000", "[guest]: [clients] delay-ms"),
        ("minus = \"epoll\"", "minus = \"epol\"", "no variant \"epol\""),
    ];
    assert_mistakes("gammo-wan", &mistakes);
    let clients = find("gammo-wan").unwrap().clients.unwrap();
    assert_eq!((clients.delay_ms, clients.kept_open(1000.0, 4.0)), (100.0, 150.0));
    let claims = |variants: &str| {
        let text = text("gammo-wan").unwrap().replace("[\"poll\", \"epoll\"]\nclients", variants);
        let guest = Form { machine: Machine::Guest, quick: false };
        Experiment::parse(&text).unwrap().form(guest).unwrap().claim
    };
    let has = |claims: &[Claim], id: &str| claims.iter().any(|claim| claim.id == id);
    assert!(has(&claims("[\"poll\", \"epoll\"]\nclients"), "G12-cpu-most"));
    assert!(!has(&claims("[\"poll\"]\nclients"), "G12-cpu-most"), "nothing to take off");
}

#[test]
fn an_unknown_experiment_is_answered_with_the_known() {
    let error = find("idel").unwrap_err().to_string();
    assert!(error.starts_with("no experiment is called \"idel\"; there are idle"), "{error}");
    let error = format!("{:#}", find("/no/such.toml").unwrap_err());
    assert!(error.starts_with("cannot read /no/such.toml"), "{error}");
}

#[test]
fn what_is_drawn_or_judged_is_looked_at() {
    let wan = find("gammo-wan").unwrap();
    assert!(wan.looks_at(Metric::OpenConnections));
    assert!(!find("idle").unwrap().looks_at(Metric::OpenConnections));
    let drawn_alone = Experiment { claim: Vec::new(), ..wan };
    assert!(drawn_alone.looks_at(Metric::OpenConnections));
}

#[test]
fn flags_become_arguments() {
    let flags: Flags = [
        ("accept-limit".to_owned(), Value::Number(10.0)),
        ("interest".to_owned(), Value::Word("per-state".into())),
        ("quiet".to_owned(), Value::Flag(false)),
        ("time-system-calls".to_owned(), Value::Flag(true)),
    ]
    .into();
    let expected = ["--accept-limit", "10", "--interest", "per-state", "--time-system-calls"];
    assert_eq!(arguments(&flags), expected);
}

#[test]
fn min_and_max_go_by_the_order_in_the_file() {
    let values = [Value::Number(1.0), Value::Number(10.0), Value::Word("inf".into())];
    let select = |value: &str| Select(Value::Word(value.into()));
    assert_eq!(select("min").among(&values), Some(&values[0]));
    assert_eq!(select("max").among(&values), Some(&values[2]));
    assert_eq!(select("inf").among(&values), Some(&values[2]));
    assert_eq!(Select(Value::Number(10.0)).among(&values), Some(&values[1]));
    assert_eq!(Select(Value::Number(11.0)).among(&values), None);
}
