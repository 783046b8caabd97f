//! Runs every case of the store on SQLite and on PostgreSQL.
//!
//! PostgreSQL is a server started by the test (Debian's package `postgresql`). Without the package its cases are skipped.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test that cannot continue has failed, and prints what it skips"
)]

#[path = "store/approvals.rs"]
mod approvals;
#[path = "store/archive.rs"]
mod archive;
#[path = "store/audit.rs"]
mod audit;
#[path = "store/backup.rs"]
mod backup;
#[path = "store/concurrency.rs"]
mod concurrency;
#[path = "store/crash.rs"]
mod crash;
#[path = "store/fixture.rs"]
mod fixture;
#[path = "store/full.rs"]
mod full;
#[path = "store/idempotency.rs"]
mod idempotency;
#[path = "store/journal.rs"]
mod journal;
#[path = "store/keys.rs"]
mod keys;
#[path = "store/meta.rs"]
mod meta;
#[path = "store/mirror.rs"]
mod mirror;
#[path = "store/ports.rs"]
mod ports;
#[path = "store/postgres.rs"]
mod postgres;
#[path = "store/registry_logins.rs"]
mod registry_logins;
#[path = "store/samples.rs"]
mod samples;
#[path = "store/sandboxes.rs"]
mod sandboxes;
#[path = "store/schema.rs"]
mod schema;
#[path = "store/sealing.rs"]
mod sealing;
#[path = "store/secrets.rs"]
mod secrets;
#[path = "store/sessions.rs"]
mod sessions;
#[path = "store/templates.rs"]
mod templates;
#[path = "store/tls.rs"]
mod tls;
#[path = "store/tools.rs"]
mod tools;
#[path = "store/volumes.rs"]
mod volumes;
#[path = "store/wait.rs"]
mod wait;

use std::future::Future;
use std::io::Write as _;
use std::pin::Pin;
use std::process::ExitCode;

use libtest_mimic::{Arguments, Completion, Failed, Trial};

use fixture::{Backend, Fixture};

type Run = fn(Fixture) -> Pin<Box<dyn Future<Output = ()>>>;

/// Lists functions that take a [`Fixture`], with their names.
macro_rules! cases {
    ($($module:ident::$name:ident,)*) => {
        &[$((concat!(stringify!($module), "::", stringify!($name)), |fixture| Box::pin($module::$name(fixture))),)*]
    };
}

/// Cases for every database.
const CASES: &[(&str, Run)] = cases![
    approvals::decisions_are_made_once,
    approvals::budgets_are_counted,
    approvals::old_ones_are_removed,
    approvals::approvers_are_other_persons,
    sandboxes::row_round_trip,
    sandboxes::update_of_stale_generation_conflicts,
    sandboxes::name_is_reusable_once_sandbox_is_gone,
    sandboxes::list_filters,
    sandboxes::pages_list_each_sandbox_once,
    sandboxes::live_sandboxes_are_listed_by_keeper,
    sandboxes::old_gone_sandboxes_are_deleted,
    sandboxes::hostile_strings_are_stored_verbatim,
    volumes::volume_belongs_to_its_tenant,
    keys::key_round_trip,
    keys::second_revocation_changes_nothing,
    keys::changes_of_different_fields_all_apply,
    keys::touch_many_updates_last_use,
    keys::tenants_of_expired_and_revoked_keys_are_not_live,
    meta::set_replaces_value,
    meta::server_secret_is_stable,
    schema::newer_schema_is_refused,
    schema::edited_migration_is_refused,
    schema::concurrent_opens_succeed,
    schema::rows_survive_close,
    concurrency::concurrent_inserts_take_name_once,
    concurrency::one_concurrent_update_wins,
    concurrency::concurrent_callers_get_same_secret,
    concurrency::touch_many_in_any_order_does_not_deadlock,
    concurrency::states_are_in_order_beside_transactions_and_readers,
    concurrency::abandoned_writes_are_whole_or_absent,
    audit::records_round_trip_in_order,
    audit::tail_filters,
    audit::documented_program_verifies_export,
    audit::export_is_verified_without_database,
    audit::hostile_strings_stay_one_record,
    audit::database_tampering_is_detected,
    audit::records_cannot_be_updated_or_deleted,
    audit::append_to_forged_head_is_refused,
    audit::removal_of_the_whole_chain_is_noticed,
    audit::head_changed_under_writer_is_detected,
    audit::noted_head_reveals_rewritten_chain,
    archive::records_move_to_files,
    archive::interrupted_archive_is_finished,
    archive::files_of_another_history_are_put_aside,
    archive::tampering_with_the_base_is_detected,
    archive::only_archived_records_can_be_deleted,
    archive::broken_log_is_not_archived,
    archive::broken_files_are_named,
    archive::archived_heads_are_compared_with_files,
    archive::overtaken_export_fails,
    archive::mirror_continues_after_an_archive,
    mirror::file_equals_export,
    mirror::stale_file_catches_up,
    mirror::files_rotate_at_max_size,
    mirror::moved_file_is_recreated,
    mirror::file_of_another_database_is_put_aside,
    mirror::unwritable_file_is_reported,
    sealing::secrets_are_nowhere_in_plain_text,
    sealing::plain_values_are_sealed_and_scrubbed,
    sealing::sealed_values_are_bound_to_their_rows,
    sealing::missing_or_wrong_key_is_refused,
    sealing::only_one_keeper_creates_the_key,
    templates::template_round_trip,
    templates::own_template_takes_precedence_over_builtin,
    secrets::secret_round_trip,
    secrets::secrets_of_other_tenants_are_not_found,
    secrets::secrets_are_listed_by_name,
    secrets::secret_names_and_numbers_are_bounded,
    secrets::concurrent_inserts_of_a_secret_take_its_name_once,
    registry_logins::logins_are_of_one_tenant_and_registry,
    tools::tools_have_versions,
    sessions::sessions_end_once,
    sessions::sessions_of_a_key_are_bounded,
    ports::ports_are_published_and_withdrawn,
    ports::ports_are_deleted_with_their_sandbox,
    idempotency::request_is_answered_once,
    idempotency::claims_of_others_are_not_settled,
    idempotency::claims_are_abandoned,
    idempotency::newest_answers_are_kept,
    idempotency::one_concurrent_claim_wins,
    idempotency::claims_race_with_abandon,
    backup::documented_backup_and_restore_work,
    crash::acknowledged_writes_survive_sigkill,
    crash::archive_survives_sigkill,
    full::writes_resume_when_space_is_freed,
    full::audit_resumes_when_space_is_freed,
    full::audit_file_catches_up_when_space_is_freed,
];

/// Cases for SQLite only.
const SQLITE_CASES: &[(&str, Run)] = cases![
    schema::files_are_private_to_their_owner,
    idempotency::database_file_shrinks,
    archive::database_file_shrinks_after_an_archive,
    journal::journal_outlives_an_archive,
    schema::special_characters_in_paths,
    backup::backup_is_consistent_during_writes,
    backup::backup_does_not_overwrite,
    journal::acknowledged_records_are_recovered,
    journal::long_log_passes_through_the_journal,
    journal::journal_of_a_newer_database_is_put_aside,
    journal::journal_of_a_different_database_is_put_aside,
    journal::truncated_journal_is_allocated_again,
    journal::second_server_is_refused,
    full::journalled_audit_resumes_when_space_is_freed,
];

/// Cases for PostgreSQL only.
const POSTGRES_CASES: &[(&str, Run)] = cases![
    audit::concurrent_appends_form_one_chain,
    audit::alternating_writers_form_one_chain,
    archive::servers_take_turns_to_archive,
    mirror::only_one_process_writes_the_file,
    mirror::each_keeper_writes_a_complete_file,
    backup::postgres_backup_refers_to_pg_dump,
    tls::server_certificate_is_verified,
];

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    match words.next().as_deref() {
        Some(crash::FLAG) => return crash::child(&words.collect::<Vec<_>>()),
        Some(crash::ARCHIVE_FLAG) => return crash::archiving_child(&words.collect::<Vec<_>>()),
        _ => {}
    }
    let arguments = Arguments::from_args();
    let on = |backend: Backend, name: &str, run: Run| {
        let name = format!("{backend}::{name}");
        Trial::ignorable_test(name.clone(), move || run_case(&name, backend, run))
    };
    let mut trials: Vec<Trial> = Vec::new();
    for (name, run) in CASES {
        trials.push(on(Backend::Sqlite, name, *run));
        trials.push(on(Backend::Postgres, name, *run));
    }
    trials.extend(SQLITE_CASES.iter().map(|(name, run)| on(Backend::Sqlite, name, *run)));
    trials.extend(POSTGRES_CASES.iter().map(|(name, run)| on(Backend::Postgres, name, *run)));
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn run_case(name: &str, backend: Backend, run: Run) -> Result<Completion, Failed> {
    let fixture = match Fixture::new(backend) {
        Ok(fixture) => fixture,
        Err(reason) => {
            writeln!(std::io::stdout(), "SKIPPED {name}: {reason}")?;
            return Ok(Completion::ignored_with(reason));
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(run(fixture));
    Ok(Completion::Completed)
}
