//! Environment variables of programs in a sandbox, which engines share.

use std::path::Path;

use belljar_model::{Limits, SandboxId, SandboxSpec, placeholder};

/// Environment of the programs of one sandbox: each name once, and later values replace earlier ones.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Environment(Vec<(String, String)>);

impl Environment {
    /// Returns the variables that each sandbox has. `path` is the search path without the user's own programs.
    #[must_use]
    pub fn new(id: &SandboxId, home: &Path, path: &str) -> Self {
        let home = home.to_string_lossy();
        // Programs that packages of the user's bring along come first, as on Debian.
        let path = format!("{}/bin:{path}", local(&home));
        let own = [
            ("PATH", path.as_str()),
            ("HOME", &home),
            ("USER", "user"),
            ("LOGNAME", "user"),
            ("SHELL", "/bin/sh"),
            ("LANG", "C.UTF-8"),
            ("BELLJAR_SANDBOX", id.as_str()),
        ];
        Self(own.map(|(name, value)| (name.to_owned(), value.to_owned())).into())
    }

    /// Sets a variable.
    pub fn set(&mut self, name: impl Into<String>, value: impl Into<String>) {
        let name = name.into();
        self.0.retain(|(other, _)| *other != name);
        self.0.push((name, value.into()));
    }

    /// Adds variables.
    pub fn extend(&mut self, variables: impl IntoIterator<Item = (String, String)>) {
        variables.into_iter().for_each(|(name, value)| self.set(name, value));
    }

    /// Adds the settings with which package managers install below the home what they could otherwise not install at all: the system's
    /// own directories are read-only, and its Python refuses other packages (PEP 668), which protects nobody in a sandbox. Without a home only
    /// the latter.
    pub fn add_installers(&mut self, home: Option<&Path>) {
        self.set("PIP_BREAK_SYSTEM_PACKAGES", "1");
        self.set("PIP_DISABLE_PIP_VERSION_CHECK", "1");
        if let Some(home) = home {
            self.set("NPM_CONFIG_PREFIX", local(&home.to_string_lossy()));
        }
    }

    /// Adds the variables for programs that find their limits in no file: OpenMP and the numeric libraries, coreutils' `nproc`, Go, and
    /// Java. The command that runs code in Java (`languages/java.toml`) removes Java's by its first option.
    pub fn add_limits(&mut self, limits: &Limits) {
        let processors = visible_processors(limits);
        // A heap of half the memory leaves room for the threads, classes and code of a JVM, and its compiler.
        let java = format!(
            "-XX:MaxRAM={} -XX:MaxRAMPercentage=50 -XX:ActiveProcessorCount={processors}",
            limits.memory.bytes()
        );
        self.set("OMP_NUM_THREADS", processors.to_string());
        self.set("GOMAXPROCS", processors.to_string());
        self.set("JDK_JAVA_OPTIONS", java);
    }

    /// Adds the variables in which programs find the placeholders of their secrets.
    pub fn add_placeholders(&mut self, spec: &SandboxSpec) {
        spec.network.secrets().keys().for_each(|name| self.set(name, placeholder(name)));
    }

    /// Adds the variables of the specification.
    pub fn add_requested(&mut self, spec: &SandboxSpec) {
        spec.env.iter().for_each(|variable| self.set(variable.name(), variable.value()));
    }

    /// Returns the variables.
    #[must_use]
    pub fn into_variables(self) -> Vec<(String, String)> {
        self.0
    }
}

/// Returns the directory of what users install.
fn local(home: &str) -> String {
    format!("{home}/.local")
}

/// Returns the number of processors that programs see: the limit, rounded up, and at most those of the machine.
#[must_use]
pub fn visible_processors(limits: &Limits) -> usize {
    let machine = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    usize::try_from(limits.cpus.millis().div_ceil(1000)).unwrap_or(machine).clamp(1, machine)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_are_rounded_up_and_those_of_the_machine() {
        let processors =
            |cpus: &str| visible_processors(&Limits { cpus: cpus.parse().unwrap(), ..Limits::default() });
        let machine = std::thread::available_parallelism().unwrap().get();
        assert_eq!((processors("0.01"), processors("1")), (1, 1));
        assert_eq!(processors("1.001"), machine.min(2));
        assert_eq!(processors("1024"), machine.min(1024));
    }

    #[test]
    fn later_values_replace_earlier_ones() {
        let id = SandboxId::from_entropy([0; SandboxId::LEN]);
        let mut env = Environment::new(&id, Path::new("/home/user"), "/bin");
        let spec = SandboxSpec { env: vec!["LANG=de".parse().unwrap()], ..SandboxSpec::default() };
        env.add_limits(&spec.limits);
        env.add_requested(&spec);
        let all = env.into_variables();
        assert_eq!(all[0], ("PATH".to_owned(), "/home/user/.local/bin:/bin".to_owned()));
        let langs: Vec<_> = all.iter().filter(|(name, _)| name == "LANG").collect();
        assert_eq!(langs, [&("LANG".to_owned(), "de".to_owned())]);
    }
}
