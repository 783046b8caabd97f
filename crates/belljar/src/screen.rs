//! `belljar screen`: reads code, and reports what it seems to do. Nothing is run, and no server is needed.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::Write as _;

use belljar_screen::{Finding, Language, Modules, Report, Request, ScreenError, screen_in_jail};
use serde::Serialize;

use crate::cli::ScreenArgs;
use crate::input::Program;
use crate::message::{Quit, clean, one_line, without_controls};
use crate::output::write_failed;

/// Longest name that is shown, in characters.
const MAX_NAME_CHARS: usize = 60;

/// Runs `belljar screen`. The status does not depend on what is found.
pub(crate) fn screen(args: &ScreenArgs) -> Result<u8, Quit> {
    let several = args.files.len() > 1;
    // All are read before the first one is printed.
    let mut programs = Vec::new();
    for file in &args.files {
        programs.push((file.to_string_lossy(), read(args, std::slice::from_ref(file))?));
    }
    if args.files.is_empty() {
        programs.push(("".into(), read(args, &[])?));
    }
    for (file, request) in programs {
        let report = screen_in_jail(&request).map_err(|error| match error {
            ScreenError::Modules { .. } | ScreenError::TooLarge { .. } => Quit::Usage(error.to_string()),
            error => error.into(),
        })?;
        let text = match (args.format.is_json(), several) {
            (true, false) => without_controls(&serde_json::to_string_pretty(&report)?) + "\n",
            // One value a line, with its file.
            (true, true) => without_controls(&serde_json::to_string(&Named { file: &file, report })?) + "\n",
            (false, false) => format_report(&report),
            (false, true) => format!("{}:\n{}", clean(&file), format_report(&report)),
        };
        std::io::stdout().write_all(text.as_bytes()).map_err(write_failed)?;
    }
    Ok(0)
}

/// A report of one of several files.
#[derive(Serialize)]
struct Named<'a> {
    file: &'a str,
    #[serde(flatten)]
    report: Report,
}

/// Reads what is screened: the code, or the file.
fn read(args: &ScreenArgs, words: &[OsString]) -> Result<Request, Quit> {
    let program = Program::read(args.code.as_deref(), words, args.language.as_deref())?;
    let program =
        program.ok_or_else(|| Quit::Usage("nothing to read: give a file, - or -c CODE".to_owned()))?;
    let name = &program.language.name;
    let language = Language::by_name(name).ok_or_else(|| {
        let known = Language::ALL.map(Language::as_str).join(", ");
        Quit::Usage(format!("language: {name} cannot be screened; {known} can"))
    })?;
    let modules = Modules {
        allow: (!args.allow_module.is_empty()).then(|| args.allow_module.clone()),
        deny: args.deny_module.clone(),
    };
    Ok(Request { language, code: String::from_utf8(program.source.into())?, modules })
}

fn format_report(report: &Report) -> String {
    let mut text = String::new();
    for finding in &report.findings {
        let Finding { rule, severity, line, column, name, inside, meaning, walls, .. } = finding;
        let place = format!("{line}:{column}");
        let _ = write!(text, "{place:<8} {:<6} {rule}", severity.as_str());
        if !name.is_empty() {
            let _ = write!(text, "  {}", one_line(name, MAX_NAME_CHARS));
        }
        if let Some(inside) = inside {
            let _ = write!(text, "  (in {inside})");
        }
        let _ = write!(text, "\n         {meaning}\n         walls: {walls}\n");
    }
    let (count, left_out) = (report.findings.len(), report.left_out);
    let _ = write!(text, "risk: {}, ", report.risk.as_str());
    let _ = match (count, left_out) {
        (0, _) => write!(text, "nothing found"),
        (1, 0) => write!(text, "1 finding"),
        (count, 0) => write!(text, "{count} findings"),
        (count, more) => write!(text, "{count} findings and {more} more"),
    };
    let _ = writeln!(
        text,
        "{}\n{}",
        if report.complete { "" } else { "; not all of the code was read" },
        report.advice
    );
    clean(&text) + "\n"
}
