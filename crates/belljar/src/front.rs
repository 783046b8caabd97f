//! What `belljar` does by itself: runs that need nothing of the service. Its start touches none of that.

use std::ffi::{CString, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Instant;

use belljar_local::CStringArray;
use belljar_model::NetworkMode;

use crate::cli::{RunArgs, parse_run};
use crate::input::Program;
use crate::message::{FAILED, Quit, say};
use crate::packages::Packages;
use crate::run::run_here;
use crate::spec::UncheckedSpec;
use crate::timings::Timings;

/// The program that has the whole command line.
const SERVICE_PROGRAM: &str = "belljar-service";

/// Runs the command line.
pub(crate) fn main(begin: Instant) -> u8 {
    let words: Vec<OsString> = std::env::args_os().collect();
    match parse_run(&words).and_then(|args| run_without_service(&args, begin)) {
        Some(done) => done.unwrap_or_else(Quit::report),
        None => become_service(&words),
    }
}

/// Runs `belljar run` if that needs nothing of the service: the default engine, without a network. `None` otherwise; nothing is done then.
fn run_without_service(args: &RunArgs, begin: Instant) -> Option<Result<u8, Quit>> {
    let is_plain = args.code.is_some() || args.words.first().is_some_and(|word| word != "-");
    let has_more = args.rich
        || args.save.is_some()
        || args.pictures.is_some()
        || args.template.is_some()
        || args.image.is_some()
        || !args.with.is_empty()
        || !args.tools.is_empty()
        || (args.events && args.is_json())
        || crate::code::notebook_path(args).is_some();
    if !is_plain
        || has_more
        || !UncheckedSpec::is_default_engine(&args.sandbox)
        || !belljar_local::has_guest()
    {
        return None;
    }
    let prepare = || {
        let timings = Timings::new(begin);
        let unchecked = UncheckedSpec::from_args(&args.sandbox)?;
        let Some(program) = Program::read(args.code.as_deref(), &args.words, args.language.as_deref())?
        else {
            return Ok(None);
        };
        let source = std::str::from_utf8(&program.source).unwrap_or_default();
        let packages = Packages::find(&[], program.language, source)?;
        let checked = unchecked.resolve(Some(program.language), args.sandbox.policy.as_deref())?;
        let is_alone = packages.is_empty() && checked.spec.network.mode() == NetworkMode::Disabled;
        Ok(is_alone.then_some((timings, program, packages, checked)))
    };
    match prepare() {
        Ok(None) => None,
        Err(quit) => Some(Err(quit)),
        Ok(Some((timings, program, packages, checked))) => {
            let network = checked.spec.network.clone();
            Some(run_here(args, &checked, network, program, packages, timings))
        }
    }
}

/// Becomes the program of the service, which is beside this one. Returns the exit status if it cannot be started.
fn become_service(words: &[OsString]) -> u8 {
    let own = match std::fs::read_link("/proc/self/exe") {
        Ok(own) => own,
        Err(error) => {
            say(&format!(
                "cannot find the directory of this program, in which {SERVICE_PROGRAM} is: {error}"
            ));
            return FAILED;
        }
    };
    let path = own.with_file_name(SERVICE_PROGRAM);
    let advice = format!(
        "put the programs belljar, {SERVICE_PROGRAM} and belljar-guest of one build into one directory"
    );
    // It would become itself, again and again.
    if own == path || is_same_file(&own, &path) {
        say(&format!("{} is the program belljar; {advice}", path.display()));
        return FAILED;
    }
    if path.exists()
        && let Err(why) = belljar_local::check_beside(&path)
    {
        say(&format!("cannot start {}: {why}; {advice}", path.display()));
        return FAILED;
    }
    let error = exec(&path, words);
    let is_missing = [io::ErrorKind::NotFound, io::ErrorKind::PermissionDenied].contains(&error.kind());
    let advice = if is_missing || error.raw_os_error() == Some(ENOEXEC) {
        format!("; {advice}")
    } else {
        String::new()
    };
    say(&format!("cannot start {}: {error}{advice}", path.display()));
    FAILED
}

/// Error number of a file that is no program (errno(3)).
const ENOEXEC: i32 = 8;

fn is_same_file(one: &Path, other: &Path) -> bool {
    let id = |path| std::fs::metadata(path).map(|found: std::fs::Metadata| (found.dev(), found.ino()));
    matches!((id(one), id(other)), (Ok(one), Ok(other)) if one == other)
}

/// Becomes a program. Returns only on failure. Unlike execvp(3) it does not take a file that is no program for a shell's script.
fn exec(path: &Path, words: &[OsString]) -> io::Error {
    let variables = std::env::vars_os().map(|(name, value)| {
        let mut line = name;
        line.push("=");
        line.push(value);
        line
    });
    let array = |texts: Vec<OsString>| {
        texts
            .into_iter()
            .map(|text| CString::new(text.into_vec()))
            .collect::<Result<Vec<_>, _>>()
            .map(CStringArray::new)
    };
    let all = CString::new(path.as_os_str().as_bytes())
        .and_then(|path| Ok((path, array(words.to_vec())?, array(variables.collect())?)));
    match all {
        Ok((path, words, variables)) => belljar_local::exec_path(&path, &words, &variables).into(),
        Err(error) => error.into(),
    }
}
