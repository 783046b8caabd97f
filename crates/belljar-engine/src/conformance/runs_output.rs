//! Contents of a run's result: long streams, binary output, changed files, hints.

use belljar_model::{ChangeKind, RunResult};

use super::case::{Case, Checked, Stop, cases, ensure, equal};
use super::context::Context;
use super::program::sh;
use super::runs::{execute, python_language, request, sh_language, text};
use super::streams::{pattern, pattern_code};
use crate::run::Silent;

pub(super) const CASES: &[Case] = cases![
    run_keeps_head_and_tail_and_logs_the_rest [],
    run_logs_no_more_than_allowed [],
    run_keeps_binary_output [],
    run_lists_changed_files [],
    run_bounds_the_list_of_changed_files [],
    run_hints_at_the_missing_network [OwnNetwork],
    run_hints_at_the_full_disk [DiskQuota],
    run_result_is_stable_json [],
];

async fn run_keeps_head_and_tail_and_logs_the_rest(context: &Context) -> Checked {
    const SIZE: usize = 3_000_000;
    let mut spec = context.spec();
    spec.limits.output = "64k".parse()?;
    let sandbox = context.sandbox_with(&spec).await?;
    let language = python_language()?;
    let source =
        format!("import sys\n{}sys.stdout.buffer.write(data)\nsys.stderr.write('short')", pattern_code(SIZE));
    let flood = request(&language, &source).log_dir(context.scratch().join("logs"));
    let result = crate::run::run(&sandbox, &spec, flood, &mut Silent).await?;
    equal!((result.stdout.total_bytes, result.stdout.truncated), (SIZE as u64, true));
    let kept = result.stdout.decode().unwrap_or_default();
    let half = 32 * 1024;
    let all = pattern(SIZE);
    ensure!(kept.len() == 2 * half, "{} bytes were kept", kept.len());
    ensure!(kept.starts_with(&all[..half]) && kept.ends_with(&all[SIZE - half..]), "other bytes were kept");
    equal!(result.stdout.omitted_bytes(), (SIZE - 2 * half) as u64);
    let log = result.stdout.log.ok_or_else(|| Stop::Failed("the result names no log".to_owned()))?;
    ensure!(std::fs::read(&log)? == all, "the log is not what was written");
    equal!((result.stderr.truncated, result.stderr.log.is_some()), (false, false));
    context.stop(sandbox).await
}

async fn run_logs_no_more_than_allowed(context: &Context) -> Checked {
    let mut spec = context.spec();
    spec.limits.output = "4k".parse()?;
    spec.limits.log = "100k".parse()?;
    let sandbox = context.sandbox_with(&spec).await?;
    let language = python_language()?;
    let source = format!("import sys\n{}sys.stderr.buffer.write(data)", pattern_code(1_000_000));
    let flood = request(&language, &source).log_dir(context.scratch().join("logs"));
    let result = crate::run::run(&sandbox, &spec, flood, &mut Silent).await?;
    equal!(result.stderr.total_bytes, 1_000_000);
    let log = result.stderr.log.ok_or_else(|| Stop::Failed("the result names no log".to_owned()))?;
    ensure!(std::fs::read(&log)? == pattern(100 * 1024), "the log is not the first 100 KiB");
    context.stop(sandbox).await
}

async fn run_keeps_binary_output(context: &Context) -> Checked {
    let spec = context.spec();
    let sandbox = context.sandbox_with(&spec).await?;
    let source = "import sys; sys.stdout.buffer.write(bytes(range(256))); print('\u{e9}', file=sys.stderr)";
    let result = execute(&sandbox, &spec, &python_language()?, source).await?;
    let all: Vec<u8> = (0..=255).collect();
    equal!(result.stdout.decode().unwrap_or_default(), all);
    equal!((result.stdout.text.is_some(), result.stdout.base64.is_some()), (false, true));
    equal!(result.stderr.text.as_deref(), Some("\u{e9}\n"));
    context.stop(sandbox).await
}

fn changes(result: &RunResult) -> Vec<(String, ChangeKind, u64)> {
    let path = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let mut all: Vec<_> =
        result.files.iter().map(|file| (path(file.path.as_bytes()), file.kind, file.size)).collect();
    all.sort_by(|one, other| one.0.cmp(&other.0));
    all
}

async fn run_lists_changed_files(context: &Context) -> Checked {
    let spec = context.spec();
    let sandbox = context.sandbox_with(&spec).await?;
    sh(
        &sandbox,
        "mkdir old; echo 1 > old/kept; echo 2 > old/grown; echo 3 > old/gone; echo 4 > old/same-size",
    )
    .await?
    .expect_success()?;
    let language = sh_language()?;
    let source = "echo more >> old/grown; rm old/gone; echo 5 > old/same-size; mkdir new; printf abc > new/made; cat old/kept";
    let tracked = request(&language, source).track_files(true);
    let result = crate::run::run(&sandbox, &spec, tracked, &mut Silent).await?;
    let expected = [
        ("new/made", ChangeKind::Created, 3),
        ("old/gone", ChangeKind::Removed, 0),
        ("old/grown", ChangeKind::Changed, 7),
        ("old/same-size", ChangeKind::Changed, 2),
    ];
    let expected: Vec<_> =
        expected.into_iter().map(|(path, kind, size)| (path.to_owned(), kind, size)).collect();
    equal!(changes(&result), expected);
    ensure!(!result.files_truncated, "four changes were too many to list");
    let result = crate::run::run(&sandbox, &spec, request(&language, source), &mut Silent).await?;
    equal!(result.files.len(), 0);
    context.stop(sandbox).await
}

async fn run_bounds_the_list_of_changed_files(context: &Context) -> Checked {
    let spec = context.spec();
    let sandbox = context.sandbox_with(&spec).await?;
    let language = python_language()?;
    let many = request(&language, "for number in range(12000): open(f'f{number:05}', 'w').close()")
        .track_files(true);
    let result = crate::run::run(&sandbox, &spec, many, &mut Silent).await?;
    ensure!(result.files_truncated, "12,000 changes were listed as all");
    ensure!(!result.files.is_empty() && result.files.len() <= 10_000, "{} are listed", result.files.len());
    context.stop(sandbox).await
}

async fn run_hints_at_the_missing_network(context: &Context) -> Checked {
    let spec = context.spec();
    let sandbox = context.sandbox_with(&spec).await?;
    let source = "import socket\nsocket.create_connection(('example.org', 443), 5)";
    let result = execute(&sandbox, &spec, &python_language()?, source).await?;
    equal!(result.exit_code, Some(1));
    let hint = result.hint.clone().unwrap_or_default();
    ensure!(hint.contains("network"), "the hint is {hint:?}; the program wrote {}", text(&result.stderr));
    let source = "import socket\nsocket.create_connection(('1.1.1.1', 443), 5)";
    let result = execute(&sandbox, &spec, &python_language()?, source).await?;
    ensure!(result.hint.unwrap_or_default().contains("network"), "no hint for an address");
    context.stop(sandbox).await
}

async fn run_hints_at_the_full_disk(context: &Context) -> Checked {
    let mut spec = context.spec();
    spec.limits.disk = "2m".parse()?;
    let sandbox = context.sandbox_with(&spec).await?;
    let source = "open('big', 'wb').write(b'x' * (4 << 20))";
    let result = execute(&sandbox, &spec, &python_language()?, source).await?;
    equal!(result.exit_code, Some(1));
    let hint = result.hint.clone().unwrap_or_default();
    ensure!(hint.contains("limits.disk"), "the hint is {hint:?}; the program wrote {}", text(&result.stderr));
    context.stop(sandbox).await
}

async fn run_result_is_stable_json(context: &Context) -> Checked {
    let spec = context.spec();
    let sandbox = context.sandbox_with(&spec).await?;
    let result = execute(&sandbox, &spec, &sh_language()?, "printf 'a\\377'; exit 3").await?;
    let json = serde_json::to_value(&result)?;
    let at = |pointer: &str| json.pointer(pointer).cloned().unwrap_or_default();
    equal!(at("/outcome"), serde_json::json!({ "kind": "exited", "code": 3 }));
    equal!((at("/stdout/encoding"), at("/stdout/data")), ("base64".into(), "Yf8=".into()));
    equal!(at("/schema"), belljar_model::RESULT_SCHEMA);
    equal!(serde_json::from_value::<RunResult>(json)?, result);
    context.stop(sandbox).await
}
