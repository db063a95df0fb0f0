//! The tests of the product's unchanged pieces.
#![allow(dead_code)] // Not all of a piece has a scenario.
#![allow(clippy::duplicate_mod)] // See `bugs`.

include!(concat!(env!("OUT_DIR"), "/product.rs"));

#[path = "scenarios/mod.rs"]
mod scenarios;

use crate::explore::holds;

#[test]
fn tickets_that_are_completed_have_the_value() {
    holds(scenarios::tickets::completed);
}

#[test]
fn tickets_that_are_abandoned_say_so() {
    holds(scenarios::tickets::abandoned);
}

#[test]
fn a_ticket_may_go_while_it_is_completed() {
    holds(scenarios::tickets::dropped);
}

#[test]
fn the_host_misses_no_task_and_no_event() {
    holds(scenarios::host::wakes_up);
}

#[test]
fn who_waits_for_a_host_that_ends_is_told() {
    holds(scenarios::host::closes);
}

#[test]
fn the_journal_writes_each_batch_once_and_all_before_it_stops() {
    holds(scenarios::journal::writes_and_stops);
}

#[test]
fn a_journal_that_fails_says_so_and_still_stops() {
    holds(scenarios::journal::fails);
}

#[test]
fn readers_take_each_read_once_and_stop() {
    holds(scenarios::readers::read_and_stop);
}

#[test]
fn readers_may_be_stopped_while_somebody_asks() {
    holds(scenarios::readers::stop_while_asked);
}

#[test]
fn entries_are_applied_in_order_by_either_thread() {
    holds(scenarios::applier::applies_in_order);
}

#[test]
fn a_feeder_hears_that_the_applying_thread_is_gone() {
    holds(scenarios::applier::ends_under_the_feeder);
}

#[test]
fn who_waits_for_a_position_is_answered_when_it_is_visible() {
    holds(scenarios::crowd::waits_for_positions);
}

#[test]
fn everybody_is_answered_once_when_the_replica_halts() {
    holds(scenarios::crowd::halts);
}

#[test]
fn whoever_waits_for_room_finds_it() {
    holds(scenarios::crowd::finds_room);
}

#[test]
fn records_of_a_client_reach_the_lane_in_order() {
    holds(scenarios::parking::keeps_the_order);
}

#[test]
fn a_view_stays_as_it_is_while_it_is_held() {
    holds(scenarios::views::stay_as_they_are);
}
