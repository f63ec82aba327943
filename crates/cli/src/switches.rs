//! Flags with a truth value.

use clap::{Arg, ArgAction, ArgMatches, Command, Error, FromArgMatches};
use std::any::TypeId;

/// Arguments whose flags of the type `Option<bool>` are switches: `--listing` is `--listing=true`, and
/// `--listing=false` turns off what a configuration file has turned on.
#[derive(Debug)]
pub(crate) struct Switches<T>(pub(crate) T);

fn as_switch(argument: Arg) -> Arg {
    let is_truth_value = matches!(argument.get_action(), ArgAction::Set)
        && argument.get_value_parser().type_id() == TypeId::of::<bool>();
    if !is_truth_value {
        return argument;
    }
    argument
        .num_args(0..=1)
        .require_equals(true)
        .default_missing_value("true")
        .value_name("BOOL")
        .hide_possible_values(true)
}

impl<T: clap::Args> clap::Args for Switches<T> {
    fn augment_args(command: Command) -> Command {
        T::augment_args(command).mut_args(as_switch)
    }

    fn augment_args_for_update(command: Command) -> Command {
        T::augment_args_for_update(command).mut_args(as_switch)
    }
}

impl<T: FromArgMatches> FromArgMatches for Switches<T> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        T::from_arg_matches(matches).map(Self)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        self.0.update_from_arg_matches(matches)
    }
}
