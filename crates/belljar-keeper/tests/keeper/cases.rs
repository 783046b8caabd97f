//! List of all cases by name.

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
    engines::second_engine_is_selected_by_name,
    engines::template_build_needs_own_tree,
    copies::snapshot_creates_template,
    copies::fork_copies_files_only,
    copies::forks_are_returned_as_they_become_ready,
    copies::snapshot_of_odd_files,
    copies::collect_ignores_snapshots_in_progress,
    policy::foreign_and_missing_sandboxes_are_indistinguishable,
    policy::roles_are_enforced,
    policy::tokens_open_one_sandbox_only,
    policy::unpublished_port_is_not_found,
    policy::signed_files_open_that_file_only,
    policy::tenant_requests_are_restricted,
    policy::tenants_do_not_share_the_host_tree_unasked,
    policy::the_same_key_makes_one_sandbox,
    policy::the_same_key_runs_once,
    policy::quotas_are_enforced,
    policy::audit_log_is_complete_and_names_the_caller,
    policy::key_lifecycle,
    policy::a_full_machine_says_so,
];
