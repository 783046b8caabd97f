//! `belljar doctor --self-test`: attacks the walls of this machine with the quick cases of the hostile suite.

use std::ffi::OsStr;
use std::io::Write as _;
use std::process::Command;

use belljar_hostile::{
    Binary, Report, Scope, Suite, Verdict, adopt_orphans, by_wall, summary, table, unpack_self_test,
};

use crate::message::{Quit, clean};
use crate::output::write_failed;

/// Grades of limits to try, the strongest first, whatever `BELLJAR_LIMITS` says. An ordinary user may have no control groups.
const GRADES: [&str; 2] = ["cgroup", WATCHED];

/// The grade without control groups.
const WATCHED: &str = "watched";

/// Flags of every run, which select the tested engine whatever the default is.
const FLAGS: [&str; 2] = ["--engine", "local"];

/// The result, as printed.
#[derive(Debug, serde::Serialize)]
struct SelfTestReport {
    /// Version of the JSON form.
    schema: u32,
    kernel: String,
    /// How limits are enforced in the sandboxes: `cgroup` or `watched`.
    grade: &'static str,
    is_contained: bool,
    cases: Vec<Report>,
}

/// Runs the cases with this program. The status is 0 if all attacks were contained, else 1.
pub(crate) fn self_test(is_json: bool) -> Result<u8, Quit> {
    let program = std::env::current_exe().map_err(|error| {
        anyhow::Error::new(error).context("cannot find Belljar's own program to run it again")
    })?;
    let (held, grade) = match find_flags(program.as_os_str()) {
        Ok(found) => found,
        Err(reason) => {
            return Err(anyhow::anyhow!(
                "no sandbox can be made here, so there is nothing to test; belljar doctor says what to do: {reason}"
            )
            .into());
        }
    };
    let corpus = unpack_self_test()?;
    adopt_orphans()?;
    let suite = Suite {
        lib: corpus.lib.clone(),
        intact: Binary { program, flags: held },
        mutated: None,
        scope: Scope::Own,
        is_watched: grade == WATCHED,
    };
    let mut reports = Vec::new();
    let mut out = std::io::stdout();
    for case in &corpus.cases {
        let report = suite.check(case);
        if !is_json {
            let text = clean(&table(std::slice::from_ref(&report)));
            // Printed case by case; only the first has the header.
            let text =
                if reports.is_empty() { &text } else { text.split_once('\n').map_or("", |(_, rest)| rest) };
            writeln!(out, "{text}").and_then(|()| out.flush()).map_err(write_failed)?;
        }
        reports.push(report);
    }
    let is_contained = !reports.iter().any(|report| matches!(report.verdict, Verdict::Failed(_)));
    let kernel = rustix::system::uname().release().to_string_lossy().into_owned();
    let tested = SelfTestReport { schema: 1, kernel, grade, is_contained, cases: reports };
    let text = if is_json {
        serde_json::to_string_pretty(&tested)? + "\n"
    } else {
        clean(&format_summary(&tested)) + "\n"
    };
    out.write_all(text.as_bytes()).map_err(write_failed)?;
    Ok(u8::from(!is_contained))
}

/// Returns the flags with which a sandbox can be created and their grade of limits, or the reason why none can.
fn find_flags(program: &OsStr) -> Result<(Vec<String>, &'static str), String> {
    let mut reason = String::new();
    for grade in GRADES {
        let flags: Vec<String> =
            FLAGS.iter().chain(&["--limits", grade]).map(|flag| (*flag).to_owned()).collect();
        let tried = Command::new(program)
            .args(["run", "--quiet"])
            .args(&flags)
            .args(["-l", "sh", "-c", "exit 0"])
            .stdin(std::process::Stdio::null())
            .output()
            .map_err(|error| format!("{}: {error}", program.display()))?;
        if tried.status.success() {
            return Ok((flags, grade));
        }
        reason = String::from_utf8_lossy(&tried.stderr).trim().to_owned();
    }
    Err(reason)
}

fn format_summary(tested: &SelfTestReport) -> String {
    let limits = match tested.grade {
        "cgroup" => "limits held by control groups",
        _ => "limits only watched (--limits watched)",
    };
    let mut text = format!("\nThis machine: Linux {}, {limits}\n", tested.kernel);
    for (wall, cases) in by_wall(&tested.cases) {
        text.push_str(&format!("  {wall:<15} held against {}\n", cases.join(" ")));
    }
    text.push_str(&summary(&tested.cases));
    text
}
