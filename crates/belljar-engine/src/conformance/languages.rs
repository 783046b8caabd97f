//! The built-in languages: each installed one runs its `hello` program.

use std::borrow::Cow;
use std::path::PathBuf;

use belljar_model::{Language, Languages, Outcome};

use super::case::{Body, Case, Checked, Stop, ensure, equal};
use super::context::Context;
use super::program::sh;
use super::runs::text;
use crate::engine::Sandbox;
use crate::run::{RunRequest, Silent};

/// Returns one case per language.
pub(super) fn cases() -> Vec<Case> {
    Languages::builtin()
        .iter()
        .map(|language| Case {
            name: Cow::Owned(format!("language_{}_greets", language.name)),
            needs: &[],
            body: Body::Language(&language.name),
        })
        .collect()
}

/// Runs the language's `hello` program.
pub(super) async fn run_hello(context: &Context, name: &'static str) -> Checked {
    let language = Languages::builtin().by_name(name)?;
    let program = hello(context, language)?;
    let source = std::fs::read(&program)?;
    let mut spec = context.spec();
    // Raises limits to the language's minimum.
    let limits = &language.limits;
    if let Some(memory) = limits.memory {
        spec.limits.memory = spec.limits.memory.max(memory);
    }
    if let Some(pids) = limits.pids {
        spec.limits.pids = spec.limits.pids.max(pids);
    }
    let sandbox = context.sandbox_with(&spec).await?;
    if let Some(missing) = find_missing(&sandbox, language).await? {
        context.stop(sandbox).await?;
        return Err(Stop::Skipped(format!(
            "{missing} is not installed; the package is {}",
            language.package
        )));
    }
    let hello = RunRequest::new(language, source);
    let result = crate::run::run(&sandbox, &spec, hello, &mut Silent).await?;
    let compile = result.compile.as_ref().map(|phase| (phase.outcome.clone(), text(&phase.stderr)));
    ensure!(
        result.outcome == Outcome::Exited { code: 0 },
        "it ended with {:?} and wrote {:?} {:?}; the compiler: {compile:?}",
        result.outcome,
        text(&result.stdout),
        text(&result.stderr)
    );
    let stdout = text(&result.stdout);
    equal!(stdout, format!("hello from {name}\n"));
    context.stop(sandbox).await
}

fn hello(context: &Context, language: &Language) -> Checked<PathBuf> {
    let dir = context.programs().join(&language.name);
    let entries = std::fs::read_dir(&dir)
        .map_err(|error| Stop::Failed(format!("no program for the language: {}: {error}", dir.display())))?;
    let found = entries
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.file_stem().is_some_and(|stem| stem == "hello"));
    found.ok_or_else(|| Stop::Failed(format!("{} has no hello", dir.display())))
}

/// Returns the first program of the language that is missing inside.
async fn find_missing(sandbox: &Sandbox, language: &Language) -> Checked<Option<String>> {
    for program in language.programs() {
        let found = sh(sandbox, &format!("command -v '{program}' >/dev/null")).await?;
        if found.end() != (0, 0) {
            return Ok(Some(program.to_owned()));
        }
    }
    Ok(None)
}
