//! The contract: the promises of every mechanism, as written at `pollux_event::Mechanism`.
//!
//! Each case is generic over the mechanism. The harness runs it for every entry of the registry, with
//! each of the entry's own options, so that a new mechanism is tested as soon as it is listed:
//! `contract::edge_after_partial_read::epoll_et`. The expected behaviour of a mechanism follows from
//! its capabilities, never from its name. Cases that a mechanism or this machine cannot run are shown
//! as ignored, with the reason.
//!
//! Cases run one after the other, each in a thread of its own: descriptor limits, descriptor
//! numbers and signals belong to the process.

#![allow(
    unreachable_pub,
    reason = "nothing is reachable in a test; `pub` marks what other files use"
)]

mod canary;
mod changes;
mod closing;
mod endings;
mod fixture;
mod fork;
mod instances;
mod kinds;
mod model;
mod readiness;
mod reuse;
mod scale;
mod subject;
mod timing;
mod traffic;
mod waking;

use pollux_event::{Capabilities, Mechanism, registry};
use std::process::ExitCode;
use subject::{Case, Outcome, Run, Subject};

/// Lists the cases, a line a subject. A case after `if edge` or `if level` is for mechanisms with
/// or without [`Capabilities::EDGE`] only.
macro_rules! cases {
    ($($module:ident: $($case:ident $(if $need:ident)?),+;)+) => {
        fn cases() -> Vec<Case> {
            vec![$($({
                struct Visit<'a>(&'a Subject);
                impl registry::Visitor for Visit<'_> {
                    type Output = Outcome;
                    fn visit<M: Mechanism>(self) -> Outcome {
                        $module::$case::<M>(self.0).into()
                    }
                }
                let run: Run = |subject| {
                    registry::with_mechanism(&subject.spec.name, Visit(subject))
                        .expect("the name comes from the registry")
                };
                Case { name: stringify!($case), applies: applies!($($need)?), run }
            }),+),+]
        }
    };
}

macro_rules! applies {
    () => {
        |_| Ok(())
    };
    (edge) => {
        |capabilities| match capabilities.contains(Capabilities::EDGE) {
            true => Ok(()),
            false => Err("level-triggered"),
        }
    };
    (level) => {
        |capabilities| match capabilities.contains(Capabilities::EDGE) {
            true => Err("edge-triggered"),
            false => Ok(()),
        }
    };
}

cases! {
    readiness: ready_when_added, silent_until_data, data_after_add,
        level_reports_again if level, edge_reports_once if edge, edge_reports_new_data if edge,
        edge_after_partial_read if edge, level_after_partial_read if level,
        writable_when_added, only_the_interest_is_reported, writable_after_full_buffer_drains,
        both_directions, undrained_events_are_not_lost;
    endings: half_close, own_shutdown, close_by_peer, data_before_close, reset,
        reset_with_empty_interest, refused_connection, connection_made, pipe_writer_gone,
        pipe_reader_gone, pipe_ends_with_empty_interest;
    changes: modify_to_write, modify_reports_if_ready, modify_to_empty_and_back,
        modify_before_the_event_is_taken, remove_silences, remove_before_the_event_is_taken,
        remove_and_add_again, add_twice, unknown_tokens, length;
    reuse: number_reused_within_a_batch, number_reused_across_batches,
        number_reused_after_remove, number_reused_before_any_wait, closed_within_a_batch,
        every_event_of_a_batch_closed, number_reused_over_and_over;
    closing: close_ends_the_connection, close_of_many, close_with_unread_data,
        close_of_an_unknown_token, closed_before_its_removal;
    waking: wake_a_running_wait, wake_the_next_wait, wake_before_the_events_are_taken,
        wake_comes_to_rest, many_wakers, wake_does_not_hide_events;
    timing: zero_does_not_wait, finite_is_never_early, infinite_waits_for_data,
        longest_time_is_accepted, interrupted_wait_returns_early, busy_set_keeps_the_zero;
    scale: one_of_many, half_of_many, all_of_many, no_descriptor_starves,
        no_descriptor_starves_unread if level, refusal_of_large_numbers;
    fork: child_reopens, child_changes_are_its_own, waker_of_the_parent_is_its_own;
    instances: two_in_one_thread, one_descriptor_in_two_sets, two_descriptors_of_one_file,
        one_outlives_the_other, one_a_thread;
    kinds: unix_stream, pipe, eventfd, datagram, listener, regular_file,
        device_without_a_wait_queue;
    traffic: level_after_a_send_unasked if level, answers_to_a_busy_tcp_peer, answers_to_a_busy_unix_peer;
    model: random_sequences;
}

fn main() -> ExitCode {
    pollux_testkit::raise_descriptor_limit();
    let mut arguments = libtest_mimic::Arguments::from_args();
    arguments.test_threads = Some(1);
    // On standard error: standard output belongs to the harness, and may be JSON.
    let (many, sequences) = (scale::many(), model::sequences());
    eprintln!("contract: many descriptors are {many}, random sequences {sequences}");
    canary::silence();
    let mut trials = canary::trials();
    for subject in subject::all() {
        for case in cases() {
            trials.push(case.trial(&subject));
        }
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}
