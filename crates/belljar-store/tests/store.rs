//! Every case of the store on SQLite and on PostgreSQL.
//!
//! PostgreSQL is a server of the test's own (Debian's package `postgresql`). Without the package its cases are skipped.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test that cannot go on has failed, wherever it stands, and says what it skips"
)]

#[path = "store/audit.rs"]
mod audit;
#[path = "store/backup.rs"]
mod backup;
#[path = "store/concurrency.rs"]
mod concurrency;
#[path = "store/crash.rs"]
mod crash;
#[path = "store/full.rs"]
mod full;
#[path = "store/ground.rs"]
mod ground;
#[path = "store/idempotency.rs"]
mod idempotency;
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
#[path = "store/samples.rs"]
mod samples;
#[path = "store/sandboxes.rs"]
mod sandboxes;
#[path = "store/schema.rs"]
mod schema;
#[path = "store/sealing.rs"]
mod sealing;
#[path = "store/templates.rs"]
mod templates;
#[path = "store/tls.rs"]
mod tls;
#[path = "store/wait.rs"]
mod wait;

use std::future::Future;
use std::io::Write as _;
use std::pin::Pin;
use std::process::ExitCode;

use libtest_mimic::{Arguments, Completion, Failed, Trial};

use ground::{Backend, Ground};

type Run = fn(Ground) -> Pin<Box<dyn Future<Output = ()>>>;

/// Lists functions that take a [`Ground`], with their names.
macro_rules! cases {
    ($($module:ident::$name:ident,)*) => {
        &[$((concat!(stringify!($module), "::", stringify!($name)), |ground| Box::pin($module::$name(ground))),)*]
    };
}

/// What holds on every database.
const CASES: &[(&str, Run)] = cases![
    sandboxes::a_row_comes_back_as_it_was,
    sandboxes::an_update_needs_the_generation_that_was_read,
    sandboxes::a_name_is_free_again_when_its_sandbox_is_gone,
    sandboxes::lists_are_filtered,
    sandboxes::pages_hold_each_sandbox_once,
    sandboxes::what_lives_is_listed_by_keeper,
    sandboxes::what_is_gone_is_forgotten,
    sandboxes::hostile_texts_are_only_texts,
    keys::a_key_comes_back_as_it_was,
    keys::a_key_is_revoked_once,
    keys::uses_are_noted_together,
    keys::live_keys_are_counted,
    meta::settings_are_replaced,
    meta::the_secret_stays,
    schema::a_newer_schema_is_refused_by_name,
    schema::an_edited_schema_is_refused,
    schema::a_store_is_opened_many_times_at_once,
    schema::rows_survive_closing,
    concurrency::one_of_many_gets_the_name,
    concurrency::one_of_many_updates_wins,
    concurrency::all_get_the_same_secret,
    concurrency::uses_noted_in_any_order_block_nobody,
    audit::records_come_back_in_order,
    audit::tails_are_filtered,
    audit::many_appends_are_one_chain,
    audit::others_can_verify_an_export,
    audit::an_export_is_verified_without_the_database,
    audit::hostile_texts_are_one_record,
    audit::tampering_with_the_database_is_found,
    audit::records_are_neither_changed_nor_removed,
    audit::nothing_is_added_to_a_forged_end,
    audit::two_writers_that_take_turns_make_one_chain,
    audit::a_head_that_changed_under_a_writer_is_seen,
    audit::a_head_that_was_noted_earlier_shows_a_chain_made_anew,
    mirror::the_file_is_an_export,
    mirror::a_file_that_was_left_behind_catches_up,
    mirror::files_are_put_by_at_a_size,
    mirror::a_file_that_is_moved_away_is_begun_anew,
    mirror::a_file_of_another_database_is_put_aside,
    mirror::one_process_writes_the_file,
    mirror::each_keeper_has_a_whole_file,
    mirror::a_file_that_cannot_be_written_is_reported,
    sealing::what_may_be_secret_is_nowhere_in_plain,
    sealing::what_is_plain_is_sealed_and_scrubbed,
    sealing::sealed_values_stay_in_their_rows,
    sealing::a_key_that_is_missing_or_wrong_is_refused,
    sealing::one_of_several_keepers_makes_the_key,
    templates::a_template_comes_back_as_it_was,
    templates::ones_own_template_comes_before_a_builtin,
    ports::ports_are_published_and_taken_back,
    ports::ports_are_forgotten_with_their_sandbox,
    idempotency::a_request_is_answered_once,
    idempotency::claims_are_given_back,
    idempotency::the_last_answers_stay,
    idempotency::one_of_many_claims_wins,
    idempotency::claims_race_with_abandoning,
    backup::the_documented_way_there_and_back_works,
    crash::what_was_acknowledged_survives_sigkill,
    full::rows_go_on_when_there_is_space_again,
    full::the_audit_goes_on_when_there_is_space_again,
    full::the_audit_file_follows_when_there_is_space_again,
];

/// What holds on SQLite only.
const SQLITE_CASES: &[(&str, Run)] = cases![
    schema::files_are_their_owners_alone,
    idempotency::the_file_shrinks,
    schema::odd_paths_are_paths,
    backup::a_backup_is_whole_while_others_write,
    backup::a_backup_replaces_nothing,
];

/// What holds on PostgreSQL only.
const POSTGRES_CASES: &[(&str, Run)] =
    cases![backup::postgres_is_copied_by_its_own_tools, tls::a_server_is_known_by_its_certificate,];

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    if words.next().as_deref() == Some(crash::FLAG) {
        return crash::child(&words.collect::<Vec<_>>());
    }
    let arguments = Arguments::from_args();
    let on = |backend: Backend, name: &str, run: Run| {
        let name = format!("{backend}::{name}");
        Trial::ignorable_test(name.clone(), move || carry_out(&name, backend, run))
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

fn carry_out(name: &str, backend: Backend, run: Run) -> Result<Completion, Failed> {
    let ground = match Ground::new(backend) {
        Ok(ground) => ground,
        Err(reason) => {
            writeln!(std::io::stdout(), "SKIPPED {name}: {reason}")?;
            return Ok(Completion::ignored_with(reason));
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(run(ground));
    Ok(Completion::Completed)
}
