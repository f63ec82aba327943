//! `docs/statistics.md` explains every member of the statistics line, and no other.

use super::*;
use pollux_event::{AnyMechanism, Error, MechanismSpec, registry};
use pollux_sys::Call;
use std::{collections::BTreeSet, fs, time::Duration};

/// Mechanisms with an option that adds figures.
const WITH_MORE_FIGURES: [&str; 2] = ["poll:hints=on", "rtsig:overflow=handoff"];

/// Names of members, by the object that contains them; the line itself has an empty name.
type Names<'a> = BTreeMap<&'a str, BTreeSet<&'a str>>;

/// Returns the names between backticks.
fn names(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// Returns the names in the first column of the tables. The heading above a table names the object.
fn explained(page: &str) -> Names<'_> {
    let (mut all, mut object) = (Names::new(), "");
    for line in page.lines() {
        if let Some(heading) = line.strip_prefix("## ") {
            object = names(heading).next().unwrap_or_default();
        } else if let Some(row) = line.strip_prefix("| `") {
            let end = row.find(" |").unwrap_or(row.len());
            all.entry(object).or_default().extend(names(&line[..end + "| `".len()]));
        }
    }
    all
}

/// Returns the names of the members of an object.
fn members(object: &Value) -> BTreeSet<&str> {
    object.as_object().into_iter().flat_map(|object| object.keys()).map(String::as_str).collect()
}

/// Returns the members of a line. All system calls have the same members.
fn printed(line: &Value) -> Names<'_> {
    let mut all = Names::from([("", members(line))]);
    for (name, value) in line.as_object().into_iter().flatten() {
        let value = if name == "system_calls" { &value["recvfrom"] } else { value };
        if value.is_object() {
            all.insert(name, members(value));
        }
    }
    all
}

/// Returns the figures of all mechanisms that this kernel has.
fn figures() -> BTreeMap<&'static str, u64> {
    let mut all = BTreeMap::new();
    let names = registry::ALL.iter().map(|description| description.name);
    for spec in names.chain(WITH_MORE_FIGURES) {
        let spec: MechanismSpec = spec.parse().unwrap();
        match AnyMechanism::open(&spec.name, &spec.options()) {
            Ok(mechanism) => all.extend(mechanism.statistics()),
            Err(Error::Unavailable { .. }) => {}
            Err(error) => panic!("{spec}: {error}"),
        }
    }
    all
}

#[test]
fn the_page_explains_every_member() {
    let mut calls = CallCounters::default();
    calls.add(Call::Recv, 1, Duration::ZERO);
    let store = Some(HubStoreStatistics::default());
    let statistics = Statistics {
        counts: Counts::default(),
        cache: Some(pollux_cache::Statistics::default()),
        hub: Some(HubStatistics { store, ..HubStatistics::default() }),
        system_calls: calls,
        mechanism: figures(),
    };
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/statistics.md");
    let page = fs::read_to_string(page).expect("the page");
    let line: Value = serde_json::from_str(&statistics.to_json("epoll")).unwrap();
    let (mut explained, mut printed) = (explained(&page), printed(&line));
    // The page has the figures of all mechanisms, also of those that this kernel lacks.
    let explained_figures = explained.remove("details").expect("a table of the details");
    let printed_figures = printed.remove("details").expect("an object of the line");
    let missing: Vec<_> = printed_figures.difference(&explained_figures).collect();
    assert!(missing.is_empty(), "the details do not have {missing:?}");
    assert_eq!(explained, printed);
}

#[test]
fn the_check_of_the_page_can_fail() {
    let page = "| `a` | `x` |\n## `b`\n| field |\n|---|\n| `c`, `d` | with `e` |\n";
    let b = BTreeSet::from(["c", "d"]);
    let expected = Names::from([("", BTreeSet::from(["a"])), ("b", b.clone())]);
    assert_eq!(explained(page), expected);
    let line = json!({ "a": 1, "b": { "c": 1, "d": 2 } });
    let expected = Names::from([("", BTreeSet::from(["a", "b"])), ("b", b)]);
    assert_eq!(printed(&line), expected);
}
