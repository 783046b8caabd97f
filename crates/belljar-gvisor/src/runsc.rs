//! The program `runsc`.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use belljar_model::{EngineName, GvisorPlatform, GvisorSettings};

/// Name of the engine.
pub(crate) const GVISOR: EngineName = EngineName::known("gvisor");

/// The first release that is used, as a date: later than the platform systrap, and sockets of the machine that programs inside make.
const OLDEST: u32 = 20_240_729;

/// How to get it.
pub(crate) const INSTALL: &str = "install runsc: Debian's package of that name, from 13 on or from the backports of 12, or gVisor's own; or name \
     the program by the setting engines.gvisor.runsc";

/// A program that was found.
#[derive(Debug, Clone)]
pub(crate) struct Runsc {
    path: PathBuf,
    platform: GvisorPlatform,
    /// Its version, in its own words.
    pub(crate) version: String,
}

impl Runsc {
    /// Finds the program, and asks it for its version.
    ///
    /// # Errors
    /// The reason why there is none that can be used.
    pub(crate) fn find(settings: &GvisorSettings) -> Result<Self, String> {
        let path = match &settings.runsc {
            Some(path) => path.clone(),
            None => {
                let search = std::env::var_os("PATH").unwrap_or_default();
                let mut candidates = std::env::split_paths(&search).map(|dir| dir.join("runsc"));
                candidates.find(|path| path.is_file()).ok_or("there is no runsc in the search path")?
            }
        };
        let shown = path.display();
        if !path.is_absolute() {
            return Err(format!("{shown} is not an absolute path"));
        }
        let asked = Command::new(&path).arg("--version").stdin(Stdio::null()).output();
        let asked = asked.map_err(|error| format!("cannot run {shown}: {error}"))?;
        let text = String::from_utf8_lossy(&asked.stdout);
        let version = text.lines().next().unwrap_or_default().trim_start_matches("runsc version ").to_owned();
        match release(&version) {
            None => Err(format!("{shown} does not tell its version, but {version:?}")),
            Some(date) if date < OLDEST => {
                Err(format!("{shown} is of the release {date}, and the oldest that works is {OLDEST}"))
            }
            Some(_) => Ok(Self { path, platform: settings.platform, version }),
        }
    }

    /// Returns what runs a bundle, in whose directory all is kept. With a network, the sentry uses that of the namespace that it is started in.
    pub(crate) fn command(&self, bundle: &Path, name: &str, has_network: bool) -> Command {
        let mut command = Command::new(&self.path);
        command.env_clear().current_dir(bundle).arg("--root").arg(bundle.join("state"));
        command.arg(format!("--platform={}", self.platform));
        command.arg(if has_network { "--network=host" } else { "--network=none" });
        // Groups are made here; a socket is all that a program makes outside.
        command.args(["--ignore-cgroups", "--host-uds=create", "--overlay2=none", "run"]);
        command.arg("--bundle").arg(bundle).arg(name);
        command
    }

    /// Returns how it intercepts system calls.
    pub(crate) const fn platform(&self) -> GvisorPlatform {
        self.platform
    }

    /// Returns the version and the platform, as text.
    pub(crate) fn describe(&self) -> String {
        format!("{} with {}", self.version, self.platform)
    }
}

/// Returns the date of a release, which is a part of its version: `release-20240729.0`, and `0.0~20240729.0` from Debian.
fn release(version: &str) -> Option<u32> {
    let mut numbers = version.split(|letter: char| !letter.is_ascii_digit());
    numbers.find(|number| number.len() == 8)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_dates() {
        assert_eq!(release("0.0~20240729.0"), Some(20_240_729));
        assert_eq!(release("release-20221219.0-12-gabcdef"), Some(20_221_219));
        assert_eq!(release("VERSION_MISSING"), None);
    }

    #[test]
    fn programs_that_are_missing_or_no_runsc_are_refused() {
        let find = |path: &str| {
            Runsc::find(&GvisorSettings { runsc: Some(path.into()), ..GvisorSettings::default() })
                .map(|found| found.version)
        };
        assert_eq!(find("runsc").unwrap_err(), "runsc is not an absolute path");
        assert!(find("/no/such").unwrap_err().starts_with("cannot run /no/such: "));
        assert!(find("/bin/true").unwrap_err().starts_with("/bin/true does not tell its version"));
    }
}
