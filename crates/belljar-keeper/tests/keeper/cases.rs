//! Every case by name.

use crate::world::Case;

macro_rules! cases {
    ($($module:ident::$case:ident),+ $(,)?) => {
        pub(crate) fn all() -> Vec<(&'static str, Case)> {
            vec![$((concat!(stringify!($module), "::", stringify!($case)), |world| Box::pin(crate::$module::$case(world)))),+]
        }
    };
}

cases![
    lifecycle::created_used_and_ended,
    lifecycle::a_gone_one_says_why,
    lifecycle::paused_stands_still_and_its_clock_too,
    lifecycle::a_use_resumes_it_if_it_may,
    lifecycle::its_time_ends_it,
    lifecycle::its_time_pauses_it,
    lifecycle::idle_ends_it_and_use_keeps_it,
    lifecycle::a_timeout_can_be_moved,
    lifecycle::one_that_ends_by_itself_is_gone,
    lifecycle::callers_that_go_away_leave_nothing_half_done,
    lifecycle::keys_of_callers_that_go_away_are_on_record,
    lifecycle::what_is_begun_is_on_record_without_its_caller,
    lifecycle::names_are_unique_and_found,
    lifecycle::labels_filter_and_pages_follow,
    lifecycle::the_pool_gives_what_was_asked_for,
    lifecycle::templates_in_use_have_pools,
    lifecycle::a_new_keeper_ends_what_is_not_there,
    lifecycle::limits_change_while_it_runs,
    lifecycle::commands_end_with_their_caller,
    lifecycle::a_session_remembers,
    lifecycle::big_input_and_output_come_through,
    built::life,
    built::refused,
    built::file,
    built::on_another,
    built::step_by_step,
    engines::a_second_engine_needs_nothing_but_its_name,
    engines::templates_are_built_where_they_can_have_a_tree,
    copies::a_snapshot_is_a_template,
    copies::a_fork_has_the_files_and_nothing_else,
    copies::forks_come_as_they_are_ready,
    copies::a_sandbox_of_odd_files_can_be_copied,
    copies::what_is_being_written_is_not_left_over,
    policy::foreign_and_missing_are_alike,
    policy::roles_hold,
    policy::tokens_open_one_sandbox_only,
    policy::a_port_needs_to_be_published,
    policy::signed_files_open_that_file_only,
    policy::what_a_tenant_may_not_ask_for,
    policy::tenants_do_not_share_the_host_tree_unasked,
    policy::the_same_key_makes_one_sandbox,
    policy::the_same_key_runs_once,
    policy::quotas_hold,
    policy::the_trail_is_whole_and_tells_who,
    policy::keys_come_and_go,
    policy::a_full_machine_says_so,
];
