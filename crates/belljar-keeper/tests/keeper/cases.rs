//! List of all cases by name.

use crate::fixture::Case;

macro_rules! cases {
    ($($module:ident::$case:ident),+ $(,)?) => {
        pub(crate) fn all() -> Vec<(&'static str, Case)> {
            vec![$((concat!(stringify!($module), "::", stringify!($case)), |fixture| Box::pin(crate::$module::$case(fixture)))),+]
        }
    };
}

cases![
    lifecycle::sandbox_lifecycle,
    lifecycle::gone_sandbox_has_a_reason,
    lifecycle::pause_freezes_processes_and_the_timeout,
    lifecycle::time_limits_stop_while_paused,
    lifecycle::use_resumes_a_sandbox_unless_disabled,
    lifecycle::timeout_ends_a_sandbox,
    lifecycle::timeout_pauses_a_sandbox,
    lifecycle::idle_timeout_is_reset_by_use,
    lifecycle::timeout_can_be_changed,
    lifecycle::silent_guest_ends_its_sandbox,
    lifecycle::sandbox_that_ends_by_itself_is_gone,
    lifecycle::cancelled_calls_leave_nothing_half_done,
    lifecycle::keys_of_cancelled_calls_are_audited,
    lifecycle::actions_of_cancelled_calls_are_audited,
    lifecycle::names_are_unique_and_can_be_looked_up,
    lifecycle::list_is_filtered_by_label_and_paginated,
    lifecycle::pooled_sandbox_matches_the_request,
    lifecycle::recently_used_templates_are_pre_warmed,
    lifecycle::missing_sandboxes_are_ended_at_start,
    lifecycle::limits_can_be_changed_while_running,
    lifecycle::commands_of_cancelled_calls_are_ended,
    lifecycle::session_keeps_its_state,
    lifecycle::large_input_and_output_are_complete,
    built::template_lifecycle,
    built::invalid_builds_are_refused,
    built::template_round_trips_through_a_file,
    built::template_based_on_another_inherits_from_it,
    built::template_is_built_step_by_step,
    built::builds_are_queued_followed_and_cancelled,
    engines::second_engine_is_selected_by_name,
    engines::template_build_needs_own_tree,
    copies::snapshot_creates_template,
    copies::default_template_is_the_operators_choice,
    copies::fork_copies_files_only,
    copies::snapshots_have_the_names_that_clients_make,
    copies::forks_are_returned_as_they_become_ready,
    copies::snapshot_of_odd_files,
    copies::collect_ignores_snapshots_in_progress,
    policy::foreign_and_missing_sandboxes_are_indistinguishable,
    policy::roles_are_enforced,
    policy::tokens_open_one_sandbox_only,
    policy::access_tokens_act_as_the_key_that_asked,
    policy::unpublished_port_is_not_found,
    policy::signed_files_open_that_file_only,
    policy::tenant_requests_are_restricted,
    policy::host_tree_is_shared_by_tenants_only_on_request,
    policy::idempotent_create_makes_one_sandbox,
    policy::idempotent_execution_runs_once,
    policy::quotas_are_enforced,
    policy::audit_log_is_complete_and_names_the_caller,
    policy::archived_audit_records_are_recorded,
    policy::old_audit_records_are_archived,
    policy::key_lifecycle,
    policy::full_machine_is_reported,
];
