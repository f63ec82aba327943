//! The appearance of each variant: a colour, a mark and dashes, the same in every report.

use crate::result::VariantOutcome;
use plotters::style::RGBColor;

/// The colours of M. Okabe and K. Ito, "Color Universal Design" (2008), and further ones; yellow is
/// darkened for a white page.
pub(super) const COLOURS: [RGBColor; 14] = [
    RGBColor(0, 0, 0),
    RGBColor(213, 94, 0),
    RGBColor(0, 114, 178),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(148, 120, 0),
    RGBColor(86, 160, 233),
    RGBColor(110, 75, 160),
    RGBColor(140, 86, 75),
    RGBColor(0, 95, 95),
    RGBColor(130, 130, 130),
    RGBColor(110, 150, 0),
    RGBColor(170, 0, 60),
    RGBColor(30, 40, 130),
];
/// The lengths of dashes and gaps in pixels; empty for a solid line.
const DASHES: [&[i32]; 5] = [&[], &[9, 4], &[2, 3], &[9, 3, 2, 3], &[14, 3]];
/// The number of marks ([`super::pen::mark`]).
const MARKS: usize = 10;

/// The properties that distinguish a line from the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Appearance {
    colour: usize,
    /// The number of the mark ([`super::pen::mark`]).
    pub(super) mark: usize,
    dashes: usize,
}

impl Appearance {
    const fn new(colour: usize, mark: usize, dashes: usize) -> Self {
        Self { colour, mark, dashes }
    }

    pub(super) fn colour(self) -> RGBColor {
        COLOURS[self.colour]
    }

    pub(super) fn dashes(self) -> &'static [i32] {
        DASHES[self.dashes]
    }

    /// Returns whether two lines are too similar. Ideally a reader can distinguish lines by the marks
    /// alone or by the colours alone, but there are more variants than colours.
    fn is_like(self, other: Self) -> bool {
        self.colour == other.colour && (self.mark == other.mark || self.dashes == other.dashes)
    }
}

/// The appearances of mechanisms, each with its options as an experiment writes them.
const MECHANISMS: &[(&str, Appearance)] = &[
    ("select", Appearance::new(0, 0, 0)),
    ("select:descriptors=32768", Appearance::new(0, 0, 0)),
    ("poll", Appearance::new(1, 1, 1)),
    ("devpoll", Appearance::new(2, 2, 2)),
    ("epoll", Appearance::new(3, 3, 3)),
    ("epoll-et", Appearance::new(4, 4, 4)),
    ("epoll2", Appearance::new(5, 5, 0)),
    ("epoll-ctlv", Appearance::new(6, 6, 1)),
    ("uring-poll", Appearance::new(7, 7, 2)),
    ("rtsig", Appearance::new(8, 8, 3)),
    ("hybrid", Appearance::new(9, 9, 4)),
    ("poll:hints=on", Appearance::new(12, 0, 2)),
    ("devpoll:hints=off", Appearance::new(10, 9, 3)),
    ("devpoll:scan=table", Appearance::new(5, 6, 4)),
    ("devpoll:results=mmap", Appearance::new(6, 7, 0)),
    ("devpoll:update=combined", Appearance::new(11, 4, 1)),
    ("rtsig:dequeue=one", Appearance::new(12, 5, 0)),
    // The same variant with the default option written out.
    ("rtsig:dequeue=one,overflow=inplace", Appearance::new(12, 5, 0)),
    ("rtsig:dequeue=one,overflow=handoff", Appearance::new(7, 6, 3)),
    ("hybrid:partner=devpoll", Appearance::new(12, 7, 1)),
];

/// The appearances of variants that are not mechanisms, or are mechanisms in a special setting, by the
/// variant's name.
const OTHERS: &[(&str, Appearance)] = &[
    ("iterative", Appearance::new(0, 7, 1)),
    ("iterative-equal", Appearance::new(9, 0, 0)),
    ("forking", Appearance::new(5, 0, 3)),
    ("preforked", Appearance::new(2, 1, 0)),
    ("preforked-equal", Appearance::new(13, 5, 2)),
    ("preforked-exclusive", Appearance::new(6, 3, 2)),
    ("preforked-reuseport", Appearance::new(13, 4, 1)),
    ("preforked-mutex", Appearance::new(9, 5, 3)),
    ("threaded", Appearance::new(8, 6, 4)),
    ("prethreaded", Appearance::new(11, 2, 2)),
    ("poll-instances", Appearance::new(1, 8, 3)),
    ("apache-prefork", Appearance::new(12, 3, 3)),
    ("apache-worker", Appearance::new(12, 8, 4)),
    ("apache-event", Appearance::new(12, 6, 1)),
    ("apache", Appearance::new(12, 6, 1)),
    ("nginx", Appearance::new(9, 1, 1)),
    ("nginx-kernel", Appearance::new(13, 2, 0)),
    ("plain", Appearance::new(1, 4, 2)),
    ("varnish", Appearance::new(2, 0, 3)),
    ("haproxy", Appearance::new(6, 5, 2)),
    ("squid", Appearance::new(8, 3, 1)),
    ("traffic-server", Appearance::new(13, 8, 4)),
    ("h2o", Appearance::new(11, 7, 3)),
    ("lighttpd", Appearance::new(0, 3, 4)),
    ("floor", Appearance::new(10, 7, 0)),
    ("floor-epoll", Appearance::new(10, 7, 0)),
    ("floor-push", Appearance::new(10, 5, 0)),
    ("floor-threads", Appearance::new(10, 8, 2)),
    ("from-folder", Appearance::new(5, 8, 1)),
    ("write+wait", Appearance::new(7, 8, 0)),
    // epoll in ways that no paper's server uses it: level-triggered with eager writes, edge-triggered
    // per state.
    ("epoll-eager", Appearance::new(9, 7, 1)),
    ("epoll-et-per-state", Appearance::new(13, 9, 2)),
    // The workers that very many subscribers need.
    ("epoll-et-63", Appearance::new(11, 6, 1)),
    // The signal queue with enough room.
    ("handoff-long", Appearance::new(11, 8, 1)),
    // Connections to Redis.
    ("epoll-et-pooled", Appearance::new(12, 2, 0)),
    ("pooled", Appearance::new(12, 2, 0)),
    ("one", Appearance::new(6, 0, 0)),
    ("redis-benchmark", Appearance::new(10, 1, 1)),
    ("redis-benchmark-unpipelined", Appearance::new(13, 6, 3)),
];

fn find(table: &[(&str, Appearance)], name: &str) -> Option<Appearance> {
    table.iter().find(|(known, _)| *known == name).map(|(_, appearance)| *appearance)
}

/// Returns the mechanism without its options, or the name of an architecture.
fn base(variant: &VariantOutcome) -> &str {
    let name = variant.mechanism.split(':').next().unwrap_or("");
    name.strip_prefix("architecture ").unwrap_or(name)
}

/// The ways to find the appearance of a variant, in the order in which they are tried. If several
/// variants are the same mechanism, the variant that has the mechanism's name gets the mechanism's
/// appearance.
const KNOWN_BY: [fn(&VariantOutcome) -> Option<Appearance>; 4] = [
    |variant| find(OTHERS, &variant.name),
    |variant| find(MECHANISMS, &variant.mechanism).filter(|_| variant.name == variant.mechanism),
    |variant| find(MECHANISMS, &variant.mechanism),
    |variant| find(MECHANISMS, base(variant)).or_else(|| find(OTHERS, base(variant))),
];

/// Returns all appearances, in rounds of all colours.
fn all() -> impl Iterator<Item = Appearance> {
    (0..MARKS).flat_map(|turn| {
        (0..COLOURS.len()).map(move |colour| {
            Appearance::new(colour, (colour + turn) % MARKS, (colour + turn) % DASHES.len())
        })
    })
}

/// Returns the appearance of each variant of a report. A mechanism looks the same in every report. A
/// variant that is in neither table, such as one from a user's own file, takes an unused appearance: an
/// unused colour if there is one.
pub(super) fn appearances(variants: &[VariantOutcome]) -> Vec<Appearance> {
    let mut appearances: Vec<Option<Appearance>> = vec![None; variants.len()];
    for known in KNOWN_BY {
        for (index, variant) in variants.iter().enumerate() {
            let appearance =
                known(variant).filter(|appearance| !appearances.contains(&Some(*appearance)));
            appearances[index] = appearances[index].or(appearance);
        }
    }
    for index in 0..appearances.len() {
        let taken = || appearances.iter().flatten();
        let new_colour =
            |appearance: &Appearance| taken().all(|other| other.colour != appearance.colour);
        let unlike = |appearance: &Appearance| taken().all(|other| !other.is_like(*appearance));
        let free = all().find(new_colour).or_else(|| all().find(unlike));
        appearances[index] = appearances[index].or(free);
    }
    // There are not enough appearances for hundreds of variants.
    appearances
        .into_iter()
        .map(|appearance| appearance.unwrap_or(Appearance::new(0, 0, 0)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        experiment::{self, Form, Variant},
        run,
    };
    use pollux_event::registry;
    use std::collections::BTreeMap;

    fn of(variants: &[Variant]) -> Vec<Appearance> {
        let outcome = |variant: &Variant| VariantOutcome {
            name: variant.name.clone(),
            // The version that a peer reports depends on the machine.
            mechanism: match variant.peer {
                Some(_) => "Server version 1.2".into(),
                None => run::what_it_is(variant),
            },
            unavailable: None,
        };
        appearances(&variants.iter().map(outcome).collect::<Vec<_>>())
    }

    /// Returns the variants of every experiment in each of its forms.
    fn built_in() -> Vec<(String, Vec<Variant>)> {
        let forms = experiment::ids().flat_map(|id| {
            let whole = experiment::find(id).unwrap();
            Form::ALL.map(|form| whole.form(form).unwrap())
        });
        forms.map(|form| (form.id.clone(), run::variants(&form))).collect()
    }

    #[test]
    fn no_two_of_a_report_are_alike() {
        for (id, variants) in built_in() {
            let appearances = of(&variants);
            for (index, appearance) in appearances.iter().enumerate() {
                let like = (0..index).find(|&other| appearance.is_like(appearances[other]));
                let names = like.map(|other| (&variants[other].name, &variants[index].name));
                assert_eq!(names, None, "{id}: {appearance:?}");
                let alone = |other: &Appearance| {
                    other.colour != appearance.colour && other.mark != appearance.mark
                };
                let are_few = experiment::find(&id).unwrap().variant.len() <= MARKS;
                assert!(!are_few || appearances[..index].iter().all(alone), "{id}: {appearance:?}");
            }
        }
        // The control.
        let [appearance, other_dashes, other_mark] = [(1, 1, 1), (1, 1, 2), (1, 2, 2)]
            .map(|(colour, mark, dashes)| Appearance::new(colour, mark, dashes));
        assert!(appearance.is_like(other_dashes) && !appearance.is_like(other_mark));
    }

    #[test]
    fn a_mechanism_has_one_look_in_all_reports() {
        let mut seen: BTreeMap<String, (String, Appearance)> = BTreeMap::new();
        for (id, variants) in built_in() {
            for (variant, appearance) in variants.iter().zip(of(&variants)) {
                // In a special setting, the variant has an appearance by its name.
                let has_setting = find(OTHERS, &variant.name).is_some();
                let key = if has_setting { &variant.name } else { &variant.mechanism };
                let (first, known) = seen.entry(key.clone()).or_insert((id.clone(), appearance));
                assert_eq!(appearance, *known, "{key} in {first} and in {id}");
            }
        }
        assert!(seen.len() > 40 && seen.contains_key("rtsig") && seen.contains_key("floor"));
    }

    /// A variant that is in no table would take an unused appearance, which differs from report to
    /// report.
    #[test]
    fn every_variant_of_the_built_in_experiments_has_a_look_of_its_own() {
        for (id, variants) in built_in() {
            for Variant { name, mechanism, .. } in variants {
                let known = find(OTHERS, &name).or_else(|| find(MECHANISMS, &mechanism));
                assert!(known.is_some(), "{id}: give {name} a line in figure/appearance.rs");
            }
        }
        for entry in registry::ALL {
            assert!(find(MECHANISMS, entry.name).is_some(), "{}", entry.name);
        }
    }

    #[test]
    fn no_colour_and_mark_stand_for_two() {
        let same = [
            ("select", "select:descriptors=32768"),
            ("rtsig:dequeue=one", "rtsig:dequeue=one,overflow=inplace"),
            ("apache-event", "apache"),
            ("floor", "floor-epoll"),
            ("epoll-et-pooled", "pooled"),
        ];
        let table: Vec<_> = MECHANISMS.iter().chain(OTHERS).collect();
        for (index, (name, appearance)) in table.iter().enumerate() {
            for (other, its) in &table[..index] {
                let alike = (appearance.colour, appearance.mark) == (its.colour, its.mark);
                assert_eq!(alike, same.contains(&(*other, *name)), "{other} and {name}");
            }
        }
    }

    #[test]
    fn variants_of_a_file_have_looks_too() {
        let variant = |(name, mechanism): (&str, &str)| Variant {
            name: name.into(),
            mechanism: mechanism.into(),
            ..Variant::default()
        };
        let own =
            [("mine", "epoll"), ("epoll", "epoll"), ("other", "epoll"), ("x", "rtsig:signal=40")];
        let appearances = of(&own.map(variant));
        assert_eq!(Some(appearances[1]), find(MECHANISMS, "epoll"), "which bears its name");
        assert_eq!(Some(appearances[3]), find(MECHANISMS, "rtsig"), "an option that no table has");
        let many: Vec<Variant> =
            (0..60).map(|index| variant((&*format!("variant {index}"), "epoll"))).collect();
        for appearances in [appearances, of(&many)] {
            for (index, appearance) in appearances.iter().enumerate() {
                assert!(
                    appearances[..index].iter().all(|other| !appearance.is_like(*other)),
                    "{appearance:?}"
                );
            }
        }
    }
}
