//! Command lines of steps.

use crate::definition::{Step, StepKind};

pub(crate) const FINISH: &str = include_str!("scripts/finish.sh");
pub(crate) const COMPILE: &str = include_str!("scripts/compile.sh");
pub(crate) const APT: &str = include_str!("scripts/apt.sh");
pub(crate) const PIP: &str = include_str!("scripts/pip.sh");
pub(crate) const NPM: &str = include_str!("scripts/npm.sh");
pub(crate) const DEBIAN: &str = include_str!("scripts/debian.sh");
pub(crate) const CONFIGURE: &str = include_str!("scripts/configure.sh");
pub(crate) const LAYER: &str = include_str!("scripts/layer.sh");
pub(crate) const SQUASH: &str = include_str!("scripts/squash.sh");
pub(crate) const UNSQUASH: &str = include_str!("scripts/unsquash.sh");

/// Returns one command line that runs a built-in script with arguments.
pub(crate) fn script(text: &str, arguments: &[&str]) -> String {
    let words: Vec<String> = arguments.iter().map(|word| quote(word)).collect();
    format!("set -- {}\n{text}", words.join(" "))
}

/// Quotes a word so that the shell takes it literally.
pub(crate) fn quote(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Returns the command line of a step; `None` for steps that only change settings, and for `copy`, whose files are
/// written through
/// the guest.
pub(crate) fn command(step: &Step, on_host: bool) -> Option<String> {
    let packages = if step.has_network() { "network" } else { "mirror" };
    let with = |text: &str, place: Option<&str>, words: &[String]| {
        let first = std::iter::once(packages).chain(place);
        script(text, &first.chain(words.iter().map(String::as_str)).collect::<Vec<_>>())
    };
    let place = |host: &'static str, own: &'static str| if on_host { host } else { own };
    match &step.kind {
        StepKind::Apt(words) => Some(with(APT, None, words)),
        StepKind::Pip(words) => Some(with(PIP, Some(place("/opt/template", "")), words)),
        StepKind::Npm(words) => Some(with(NPM, Some(place("/opt/template", "/usr/local")), words)),
        StepKind::Run(line) => Some(line.clone()),
        StepKind::Copy(_) | StepKind::Env(_) | StepKind::User(_) | StepKind::Workdir(_) => None,
    }
}

/// Directories to which a step may have added Python modules.
pub(crate) fn python_dirs(kind: &StepKind, on_host: bool) -> &'static str {
    match (on_host, kind) {
        (true, _) => "/opt/template/lib",
        (false, StepKind::Apt(_)) => "/usr/lib/python3 /usr/lib/python3.*",
        (false, _) => "/usr/local/lib/python3.*",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_quoted_literally() {
        let line = script("printf '%s|' \"$@\"", &["a b", "it's", "$(id)", "", "-x"]);
        let output = std::process::Command::new("sh").arg("-c").arg(line).output().unwrap();
        assert_eq!(output.stdout, b"a b|it's|$(id)||-x|");
    }
}
