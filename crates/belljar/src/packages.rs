//! Packages that code needs: `--with`, and the header of a script (PEP 723). They are installed in the sandbox before the code runs.

use std::time::Duration;

use belljar_engine::{ErrorCode, GuestClient, GuestError, ProcessEvent, STOP_GRACE, v1};
use belljar_model::{Language, NetworkPolicy};
use bytes::Bytes;
use serde::Deserialize;

use crate::message::{Quit, one_line};

/// The preset of network policies with the hosts of Python's package index.
const PRESET: &str = "pip";

/// Language of the packages.
const LANGUAGE: &str = "python";

/// First line of a header, and its last one.
const BEGIN: &str = "# /// script";
const END: &str = "# ///";

/// Maximum number of packages.
const MAX_PACKAGES: usize = 200;

/// Maximum length of one package's name, version and source, in bytes.
const MAX_PACKAGE_BYTES: usize = 1000;

/// Time limit of an installation.
const INSTALL_TIMEOUT: Duration = Duration::from_secs(600);

/// End of the installer's output that is kept for its error, in bytes.
const KEEP_BYTES: usize = 64 << 10;

/// Maximum length of the installer's own error in a message, in characters.
const ERROR_CHARS: usize = 300;

/// Maximum length of a path that the installer prints, in bytes.
const MAX_PATH_BYTES: usize = 4096;

/// The installer. A virtual environment that cannot be changed gets packages in the home directory, whose path is printed then.
const INSTALL: &str = include_str!("packages.py");

/// Exit statuses of the installer.
const NO_PIP: i32 = 121;
const INVALID_VERSION: i32 = 122;
const WRONG_VERSION: i32 = 123;

/// What pip prints if it reaches no index.
const NO_NETWORK: &[&str] = &[
    "NewConnectionError",
    "NameResolutionError",
    "ConnectTimeoutError",
    "ReadTimeoutError",
    "ProxyError",
    "SSLError",
    "Connection aborted",
    "Connection broken",
    "connection broken by",
    "Could not fetch URL",
];

/// Packages to install, and the version of Python that the code needs.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Packages {
    /// Requirements as of PEP 508, such as `pandas>=2`.
    names: Vec<String>,
    requires_python: Option<String>,
    /// What they come from, for messages.
    origin: &'static str,
}

/// The keys of a header. `tool` belongs to other programs.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Header {
    requires_python: Option<String>,
    dependencies: Option<Vec<String>>,
}

impl Packages {
    /// Returns the packages of the flags `--with` and of the header of `source`.
    pub(crate) fn find(with: &[String], language: &Language, source: &str) -> Result<Self, Quit> {
        if language.name != LANGUAGE {
            return match with {
                [] => Ok(Self::default()),
                _ => Err(Quit::Usage(format!(
                    "--with: packages are those of Python, and the code is in {}; leave it out",
                    language.name
                ))),
            };
        }
        let header = header(source)?.unwrap_or_default();
        let listed = header.dependencies.unwrap_or_default();
        let origin = if with.is_empty() { "the script's header" } else { "--with" };
        Self::check(with)?;
        for name in &listed {
            check(name).map_err(|reason| Quit::Usage(format!("script: dependencies: {name:?} {reason}")))?;
        }
        let names = [with, listed.as_slice()].concat();
        if names.len() > MAX_PACKAGES {
            let text = format!(
                "{origin}: {} packages are too many; at most {MAX_PACKAGES} are installed",
                names.len()
            );
            return Err(Quit::Usage(text));
        }
        Ok(Self { names, requires_python: header.requires_python, origin })
    }

    /// Checks the packages of the flags `--with`.
    pub(crate) fn check(with: &[String]) -> Result<(), Quit> {
        with.iter().try_for_each(|name| {
            check(name).map_err(|reason| Quit::Usage(format!("--with: {name:?} {reason}")))
        })
    }

    /// Reports whether nothing has to be installed or checked.
    pub(crate) fn is_empty(&self) -> bool {
        self.names.is_empty() && self.requires_python.is_none()
    }

    /// Returns the network policy for the time of the installation: `policy`, and the package index.
    pub(crate) fn widen(&self, policy: &NetworkPolicy) -> NetworkPolicy {
        if self.names.is_empty() { policy.clone() } else { policy.with_preset(PRESET) }
    }

    /// Refuses packages if the user has disabled the network by `mode`.
    pub(crate) fn check_network(&self, mode: Option<&str>) -> Result<(), Quit> {
        if self.names.is_empty() || mode != Some("disabled") {
            return Ok(());
        }
        Err(Quit::Usage(format!(
            "{}: {} cannot be installed, because the network is set to disabled; leave that out, and only the preset {PRESET} is allowed, \
             until the code starts; or use a template that has it",
            self.origin,
            self.shown()
        )))
    }

    /// Returns the remark about the network before an installation, if it is opened for it.
    pub(crate) fn remark(&self, policy: &NetworkPolicy) -> Option<String> {
        (self.widen(policy) != *policy).then(|| {
            format!(
                "installing {} ({}): the network preset {PRESET} is allowed until the code starts",
                self.shown(),
                self.origin
            )
        })
    }

    /// Text of the progress indicator.
    pub(crate) fn progress(&self) -> String {
        if self.names.is_empty() {
            "checking the version of Python".to_owned()
        } else {
            format!("installing {}", self.shown())
        }
    }

    fn shown(&self) -> String {
        one_line(&self.names.join(", "), ERROR_CHARS)
    }

    /// Installs the packages. Returns the directory that has to be added to Python's path, if any.
    ///
    /// Everything that the installer has started is ended with it.
    pub(crate) async fn install(&self, guest: &GuestClient) -> Result<Option<String>, Quit> {
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let words = ["python3", "-I", "-c", INSTALL, self.requires_python.as_deref().unwrap_or_default()];
        let words = words.into_iter().chain(self.names.iter().map(String::as_str));
        let request = v1::StartRequest {
            argv: words.map(|word| Bytes::copy_from_slice(word.as_bytes())).collect(),
            // Modules of the code itself are not those of the installer.
            cwd: Bytes::from_static(b"/"),
            timeout_ms: millis(INSTALL_TIMEOUT),
            grace_ms: millis(STOP_GRACE),
            kill_rest: true,
            on_disconnect: v1::OnDisconnect::ON_DISCONNECT_KILL.into(),
            ..Default::default()
        };
        let mut execution = match guest.start(request).await {
            Err(GuestError::Refused { code: ErrorCode::NotFound, .. }) => {
                return Err(self.failed("python3 is not in the sandbox").into());
            }
            started => started?,
        };
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        loop {
            match execution.next().await? {
                Some(ProcessEvent::Started { .. }) => {}
                Some(ProcessEvent::Output { stream, data, .. }) => {
                    let is_error = stream == v1::Stream::STREAM_STDERR;
                    let kept = if is_error { &mut stderr } else { &mut stdout };
                    kept.extend_from_slice(&data);
                    kept.drain(..kept.len().saturating_sub(KEEP_BYTES));
                }
                Some(ProcessEvent::Exited(exited)) => {
                    let (stdout, stderr) =
                        (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
                    return match self.reason(&exited, &stdout, &stderr) {
                        Some(reason) => Err(self.failed(&reason).into()),
                        None => Ok(directory(&stdout)),
                    };
                }
                None => return Err(self.failed("the sandbox has ended").into()),
            }
        }
    }

    fn failed(&self, reason: &str) -> anyhow::Error {
        match self.names.is_empty() {
            true => anyhow::anyhow!("script: requires-python: {reason}"),
            false => anyhow::anyhow!("{}: cannot install {}: {reason}", self.origin, self.shown()),
        }
    }

    /// Returns the reason why an installation failed; `None` if it did not.
    fn reason(&self, exited: &v1::Exited, stdout: &str, stderr: &str) -> Option<String> {
        let wanted = || one_line(self.requires_python.as_deref().unwrap_or_default(), ERROR_CHARS);
        match exited.cause.as_known().unwrap_or_default() {
            v1::Cause::CAUSE_TIMED_OUT => {
                return Some(format!("it took longer than {} s", INSTALL_TIMEOUT.as_secs()));
            }
            v1::Cause::CAUSE_MEMORY => {
                return Some("memory ran out; raise the limit with --memory".to_owned());
            }
            _ if exited.signal == SIGKILL => {
                return Some("it was killed; raise the limit with --memory".to_owned());
            }
            _ => {}
        }
        Some(match exited.code {
            0 if exited.signal == 0 => return None,
            NO_PIP => "pip is not in the sandbox; install it here with apt-get install python3-pip, or give the template a step pip".to_owned(),
            INVALID_VERSION => format!("{:?} is no version specifier, such as \">=3.11\"", wanted()),
            WRONG_VERSION => format!("{} is required, and the sandbox has Python {}", wanted(), one_line(stdout, 20)),
            _ => pip_error(stderr),
        })
    }
}

/// Number of the signal `SIGKILL`, which ends a process when memory runs out.
const SIGKILL: i32 = 9;

/// Returns the reason that pip gives for its failure.
fn pip_error(stderr: &str) -> String {
    if stderr.contains("No space left on device") || stderr.contains("Disk quota exceeded") {
        return "the disk is full; raise the limit with --disk".to_owned();
    }
    if NO_NETWORK.iter().any(|name| stderr.contains(name)) {
        return "the package index cannot be reached".to_owned();
    }
    let errors = || stderr.lines().filter_map(|line| line.trim_start().strip_prefix("ERROR: "));
    let missing = errors().find_map(|line| line.strip_prefix("No matching distribution found for "));
    if let Some(name) = missing {
        let name = one_line(name, ERROR_CHARS);
        // So says pip, too, where the index answers nothing at all.
        return match stderr.contains("(from versions: none)") {
            true => format!("the package index has no {name}, or cannot be reached"),
            false => format!("the package index has no {name}"),
        };
    }
    let last = errors().next_back().or_else(|| stderr.lines().rfind(|line| !line.trim().is_empty()));
    one_line(last.unwrap_or("pip failed"), ERROR_CHARS)
}

/// Returns the directory that the installer prints.
fn directory(stdout: &str) -> Option<String> {
    let line = stdout.lines().next()?.trim();
    (line.starts_with('/') && line.len() <= MAX_PATH_BYTES).then(|| line.to_owned())
}

/// Checks that a package is one, cannot be taken for an option, and can be shown. Its version is left to the installer.
fn check(name: &str) -> Result<(), &'static str> {
    if name.trim().is_empty() || name.starts_with('-') || name.chars().any(char::is_control) {
        return Err("is not a package; give a name, such as pandas or 'pandas>=2'");
    }
    if name.len() > MAX_PACKAGE_BYTES {
        return Err("is too long for a package");
    }
    if name.starts_with(['.', '~']) {
        return Err("is a path, not a package; put a directory in with -f, and import it from there");
    }
    let is_place = name.starts_with('/') || name.contains("://");
    let in_name = |character: char| character.is_ascii_alphanumeric() || "._-".contains(character);
    let rest = name.trim().trim_start_matches(in_name).trim_start();
    if !is_place && !rest.is_empty() && !rest.starts_with(['[', '(', '<', '>', '=', '!', '~', ';', '@']) {
        return Err("is not one package; give each its own, as in --with pandas --with 'rich>=13'");
    }
    Ok(())
}

/// Returns the header of a script, if it has one.
fn header(source: &str) -> Result<Option<Header>, Quit> {
    if !source.contains(BEGIN) {
        return Ok(None);
    }
    let lines: Vec<&str> = source.lines().map(|line| line.trim_end_matches('\r')).collect();
    let mut starts = lines.iter().enumerate().filter(|(_, line)| line.trim_end() == BEGIN).map(|(at, _)| at);
    let Some(start) = starts.next() else { return Ok(None) };
    let refused = |line: usize, reason: &str| {
        Quit::from(anyhow::anyhow!("script: line {}: the header (# /// script) {reason}", line + 1))
    };
    let is_comment = |line: &&&str| **line == "#" || line.starts_with("# ");
    let body: Vec<&str> = lines.iter().skip(start + 1).take_while(is_comment).copied().collect();
    let Some(end) = body.iter().rposition(|line| line.trim_end() == END) else {
        return Err(refused(
            start,
            "has no end: a line # /// closes it, and each line before it begins with #",
        ));
    };
    if let Some(second) = starts.find(|at| *at > start + end) {
        return Err(refused(second, "is there twice; a script has one"));
    }
    let content = body.get(..end).unwrap_or_default().iter();
    let content: Vec<&str> = content.map(|line| line.strip_prefix("# ").unwrap_or_default()).collect();
    let content = content.join("\n");
    toml::from_str(&content).map(Some).map_err(|error| {
        let at = error
            .span()
            .map_or(0, |span| content.get(..span.start).unwrap_or_default().matches('\n').count());
        refused(start + 1 + at, &format!("is not valid: {}", one_line(error.message(), ERROR_CHARS)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::input::by_name;

    fn find(with: &[&str], source: &str) -> Result<Packages, String> {
        let with: Vec<String> = with.iter().map(|name| (*name).to_owned()).collect();
        Packages::find(&with, by_name("python").unwrap(), source).map_err(|quit| match quit {
            Quit::Usage(text) => text,
            Quit::Error(error) => error.to_string(),
            Quit::Status(status) => status.to_string(),
        })
    }

    fn names(source: &str) -> Vec<String> {
        find(&[], source).unwrap().names
    }

    #[test]
    fn header_is_parsed() {
        let source = "#!/usr/bin/env python3\n# /// script\n# requires-python = \">=3.11\"\n# dependencies = [\n#   \"requests<3\",\n#\n#   \"rich\",\n# ]\n# [tool.uv]\n# x = 1\n# ///\nprint(1)\n";
        let found = find(&["pandas>=2"], source).unwrap();
        assert_eq!(found.names, ["pandas>=2", "requests<3", "rich"]);
        assert_eq!(found.requires_python.as_deref(), Some(">=3.11"));
        assert_eq!(names(&source.replace('\n', "\r\n")), ["requests<3", "rich"]);
        // The last end within the comment counts.
        assert_eq!(names("# /// script\n# x = '''\n# ///\n# '''\n# dependencies = ['a']\n# ///\n"), ["a"]);
        for none in [
            "",
            "print('# /// script')",
            "  # /// script\n# ///",
            "# /// script2\n# ///",
            "# /// other\n# dependencies = ['a']\n# ///",
        ] {
            assert_eq!(find(&[], none).unwrap(), find(&[], "").unwrap(), "{none:?}");
        }
        assert!(find(&[], "# /// script\n# ///\n").unwrap().is_empty());
    }

    #[test]
    fn invalid_packages_are_refused() {
        for (source, reason) in [
            (
                "x\n# /// script\n# dependencies = ['a']\nprint(1)",
                "line 2: the header (# /// script) has no end",
            ),
            ("# /// script\n#dependencies = []\n# ///", "line 1: the header (# /// script) has no end"),
            ("# /// script\n# a = 1\n# dependencies = [\n# ///\n", "is not valid"),
            (
                "# /// script\n# dependencies = 'a'\n# ///\n",
                "line 2: the header (# /// script) is not valid: invalid type",
            ),
            (
                "# /// script\n# ///\nx\n# /// script\n# ///\n",
                "line 4: the header (# /// script) is there twice",
            ),
            (
                "# /// script\n# dependencies = ['--index-url=x']\n# ///\n",
                "dependencies: \"--index-url=x\" is not a package",
            ),
        ] {
            let error = find(&[], source).unwrap_err();
            assert!(error.contains(reason), "{source:?}: {error}");
        }
        for name in ["", " ", "-r x", "a\nb"] {
            assert!(find(&[name], "").unwrap_err().contains("is not a package"), "{name:?}");
        }
        for name in ["a b", "pandas,rich"] {
            assert!(find(&[name], "").unwrap_err().contains("is not one package"), "{name:?}");
        }
        assert!(find(&["./sdk"], "").unwrap_err().contains("is a path"));
        let good = [
            "a",
            "a-b.c_d",
            "pandas >= 2, <3",
            "requests[security,socks]==2",
            "a~=1",
            "a; python_version < '3.12'",
            "a @ https://host/a.whl",
            "git+https://host/a",
            "/usr/share/a.whl",
        ];
        assert_eq!(find(&good, "").unwrap().names, good);
        assert!(find(&[&"a".repeat(1001)], "").unwrap_err().contains("too long"));
        assert!(find(&["a"; 201], "").unwrap_err().contains("at most 200"));
        let script = by_name("javascript").unwrap();
        assert!(
            matches!(Packages::find(&["a".to_owned()], script, ""), Err(Quit::Usage(text)) if text.contains("javascript"))
        );
        assert!(Packages::find(&[], script, "# /// script").unwrap().is_empty());
    }

    #[test]
    fn network_is_opened_for_the_index_alone() {
        use belljar_model::NetworkFile;
        let packages = find(&["a"], "").unwrap();
        let disabled = NetworkPolicy::default();
        let opened = NetworkFile { presets: Some(vec![PRESET.to_owned()]), ..NetworkFile::default() };
        assert_eq!(packages.widen(&disabled), opened.resolve().unwrap());
        assert!(packages.remark(&disabled).unwrap().contains("preset pip"));
        for mode in ["whitelist", "open"] {
            let same = NetworkFile {
                mode: Some(mode.to_owned()),
                presets: (mode == "whitelist").then(|| vec![PRESET.to_owned()]),
                ..NetworkFile::default()
            };
            let same = same.resolve().unwrap();
            assert_eq!((packages.widen(&same), packages.remark(&same)), (same, None));
        }
        assert!(packages.check_network(None).is_ok() && packages.check_network(Some("whitelist")).is_ok());
        assert!(packages.check_network(Some("disabled")).is_err());
        let version = find(&[], "# /// script\n# requires-python = '>=3'\n# ///").unwrap();
        assert!(version.check_network(Some("disabled")).is_ok());
        assert_eq!(version.widen(&disabled), disabled);
    }

    #[test]
    fn reason_of_a_failure_is_one_sentence() {
        let retries = "WARNING: Retrying after connection broken by 'NewConnectionError(...)': /simple/a/\nERROR: Could not find a version that satisfies the requirement a (from versions: none)\nERROR: No matching distribution found for a\n";
        for (stderr, reason) in [
            (retries, "the package index cannot be reached"),
            (
                "ERROR: Could not find a version that satisfies the requirement a (from versions: none)\nERROR: No matching distribution \
                 found for a\n",
                "the package index has no a, or cannot be reached",
            ),
            (
                "WARNING: Retrying (Retry(total=0)) after connection broken by 'ProtocolError(...)'\n",
                "the package index cannot be reached",
            ),
            (
                "ERROR: Could not find a version\nERROR: No matching distribution found for nosuch==3\n",
                "the package index has no nosuch==3",
            ),
            (
                "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device\n",
                "the disk is full; raise the limit with --disk",
            ),
            (
                "  x\n  ERROR: Failed building wheel for a\u{1b}[0m\n\n",
                "Failed building wheel for a\u{fffd}[0m",
            ),
            ("", "pip failed"),
        ] {
            assert_eq!(pip_error(stderr), reason);
        }
        assert_eq!(directory("/home/user/x\nmore\n").as_deref(), Some("/home/user/x"));
        assert_eq!(directory("x\n"), None);
    }
}
