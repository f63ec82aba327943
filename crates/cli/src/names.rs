//! Names on the command line that must be one of a list: suggestions for a mistyped name, and
//! values that a shell may complete.

use crate::terminal;
use clap::{
    Arg, Command,
    builder::{PossibleValue, StyledStr, TypedValueParser},
    error::{ContextKind, ContextValue, Error, ErrorKind},
};
use pollux_event::registry;
use pollux_lab::experiment;
use std::{error, ffi::OsStr, marker::PhantomData, str::FromStr};

/// Names that are less similar than this are not suggested (Jaro similarity, from 0 to 1; clap uses
/// the same).
const ALIKE: f64 = 0.7;
/// A name is not suggested if it is less similar than the best name by more than this.
const CLOSE: f64 = 0.05;
/// The maximum number of names that are suggested.
const MAX_SUGGESTIONS: usize = 3;

/// Returns the names that are most similar to `wrong`, the best first.
fn alike<'a>(wrong: &str, names: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut scored: Vec<(f64, &str)> = names
        .map(|name| {
            // "gammo" and "fig14" are not typing errors, but parts of names.
            let score = if name.contains(wrong) { 1.0 } else { strsim::jaro(wrong, name) };
            (score, name)
        })
        .filter(|(score, _)| *score > ALIKE)
        .collect();
    scored.sort_by(|a, b| b.0.total_cmp(&a.0));
    let best = scored.first().map_or(0.0, |(score, _)| *score);
    scored.retain(|(score, _)| best - score < CLOSE);
    scored.into_iter().take(MAX_SUGGESTIONS).map(|(_, name)| name.to_owned()).collect()
}

/// Returns clap's error for a value that is not in `names`; `hint` says where all names are listed.
fn unknown<'a>(
    (command, arg, wrong): (&Command, Option<&Arg>, &str),
    names: impl Iterator<Item = &'a str>,
    hint: String,
) -> Error {
    let mut error = Error::new(ErrorKind::InvalidValue).with_cmd(command);
    if let Some(arg) = arg {
        error.insert(ContextKind::InvalidArg, ContextValue::String(arg.to_string()));
    }
    error.insert(ContextKind::InvalidValue, ContextValue::String(wrong.to_owned()));
    let name = wrong.split(':').next().unwrap_or(wrong);
    let meant = match &alike(name, names)[..] {
        [] => None,
        [one] => Some(format!("did you mean '{one}'?")),
        several => Some(format!("did you mean one of '{}'?", several.join("', '"))),
    };
    let tips = meant.into_iter().chain([hint]).map(StyledStr::from).collect();
    error.insert(ContextKind::Suggested, ContextValue::StyledStrs(tips));
    error
}

/// A parser for NAME[:KEY=VALUE,…], a mechanism with its options.
pub(crate) struct Mechanism<T> {
    takes_auto: bool,
    value: PhantomData<fn() -> T>,
}

// A derived implementation would require `T: Clone`, too.
impl<T> Clone for Mechanism<T> {
    fn clone(&self) -> Self {
        Self { ..*self }
    }
}

/// Returns a parser for a mechanism of the registry.
pub(crate) fn mechanism<T>() -> Mechanism<T> {
    Mechanism { takes_auto: false, value: PhantomData }
}

/// Returns a parser for a mechanism of the registry, or `auto`.
pub(crate) fn mechanism_or_auto<T>() -> Mechanism<T> {
    Mechanism { takes_auto: true, value: PhantomData }
}

impl<T> Mechanism<T> {
    fn names(&self) -> impl Iterator<Item = &'static str> {
        let auto = self.takes_auto.then_some("auto");
        auto.into_iter().chain(registry::ALL.iter().map(|entry| entry.name))
    }
}

impl<T> TypedValueParser for Mechanism<T>
where
    T: FromStr + Clone + Send + Sync + 'static,
    T::Err: Into<Box<dyn error::Error + Send + Sync>>,
{
    type Value = T;

    fn parse_ref(
        &self,
        command: &Command,
        arg: Option<&Arg>,
        value: &OsStr,
    ) -> Result<Self::Value, Error> {
        if let Some(text) = value.to_str() {
            let name = text.split(':').next().unwrap_or(text);
            if !self.names().any(|known| known == name) {
                let list = self.names().collect::<Vec<_>>().join(", ");
                let list = terminal::wrap(&list, terminal::WIDTH, "       ");
                let hint = format!("there are\n{list}");
                return Err(unknown((command, arg, text), self.names(), hint));
            }
        }
        (|text: &str| text.parse::<T>()).parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let auto = self.takes_auto.then(|| PossibleValue::new("auto").help("the best that works"));
        let all = registry::ALL.iter().map(|e| PossibleValue::new(e.name).help(e.summary));
        Some(Box::new(auto.into_iter().chain(all)))
    }
}

/// A parser for the name of a built-in experiment, or a path that ends in `.toml`.
#[derive(Clone)]
pub(crate) struct Experiment;

impl TypedValueParser for Experiment {
    type Value = String;

    fn parse_ref(
        &self,
        command: &Command,
        arg: Option<&Arg>,
        value: &OsStr,
    ) -> Result<Self::Value, Error> {
        if let Some(text) = value.to_str()
            && experiment::ids().all(|id| id != text)
            && !text.ends_with(".toml")
        {
            let hint = "`pollux lab list` names all; a path that ends in .toml works too";
            return Err(unknown((command, arg, text), experiment::ids(), hint.into()));
        }
        clap::builder::StringValueParser::new().parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(experiment::ids().map(PossibleValue::new)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistyped_name_finds_the_one_that_was_meant() {
        let names = || ["poll", "epoll", "epoll-et", "gammo-fig1-2", "gammo-fig7"].into_iter();
        assert_eq!(alike("epol-et", names())[0], "epoll-et");
        assert_eq!(alike("gammo", names()), ["gammo-fig1-2", "gammo-fig7"]);
        assert!(alike("kqueue", names()).is_empty());
    }
}
