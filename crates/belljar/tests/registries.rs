//! Unmodified package managers against their registries: each installs a package under its preset, and fails without it.
//!
//! Part of `make long`, as it needs external services.

#![allow(clippy::unwrap_used, reason = "a test that cannot continue has failed")]
#![allow(clippy::print_stdout, reason = "reports skipped tests")]

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr, ToSocketAddrs as _};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

fn belljar(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_belljar"));
    command.args(args).stdin(Stdio::null()).env_remove("BELLJAR_ENGINE").env_remove("BELLJAR_POLICY");
    command
}

/// Returns the addresses of a preset's hosts, as far as this machine can resolve them.
fn addresses(preset: &str) -> BTreeSet<Ipv4Addr> {
    let shown = belljar(&["net", "presets", preset, "--json"]).output().unwrap();
    let preset: Value = serde_json::from_slice(&shown.stdout).unwrap();
    let names = preset["hosts"].as_array().unwrap().iter().filter_map(|host| host["name"].as_str());
    let known = names.filter_map(|name| (name.trim_start_matches("*."), 443).to_socket_addrs().ok());
    known
        .flatten()
        .filter_map(|address| match address {
            SocketAddr::V4(address) => Some(*address.ip()),
            SocketAddr::V6(_) => None,
        })
        .collect()
}

/// Checks that `code` succeeds in a sandbox under a preset, and fails under an unrelated policy.
fn check_install(preset: &str, tool: Option<&Path>, code: &str) {
    let addresses = addresses(preset);
    if addresses.is_empty() {
        println!("SKIPPED {preset}: no host of its registry has an address here");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let policy = dir.path().join("policy.toml");
    // The mirror of a build machine may be in a range that is denied by default.
    let exceptions: Vec<String> = addresses.iter().map(|address| format!("\"{address}/32\"")).collect();
    std::fs::write(&policy, format!("[network]\nexceptions = [{}]\n", exceptions.join(", "))).unwrap();
    let done = |flags: &[&str]| -> Output {
        let mut command =
            belljar(&["run", "-l", "bash", "--timeout", "5m", "--memory", "1g", "--disk", "1g"]);
        command.arg("--policy").arg(&policy).args(flags);
        if let Some(tool) = tool {
            command.arg("-f").arg(tool);
        }
        command.args(["-c", code]).current_dir(&dir).output().unwrap()
    };
    let with = done(&["--preset", preset]);
    assert!(with.status.success() && with.stdout.ends_with(b"installed\n"), "with {preset}: {with:?}");
    let without = done(&["--allow", "unrelated.example"]);
    assert!(!without.status.success() && !without.stdout.ends_with(b"installed\n"), "without: {without:?}");
}

#[test]
fn pip_installs_under_its_preset() {
    let code = "set -e; python3 -m venv v; v/bin/pip install -q --retries 0 six==1.16.0; v/bin/python -c 'import six'; echo installed";
    check_install("pip", None, code);
}

#[test]
fn npm_installs_under_its_preset() {
    if Command::new("npm").arg("--version").output().is_err() {
        println!("SKIPPED npm: it is not installed");
        return;
    }
    let code = "set -e; npm install --silent --fetch-retries 0 is-number@7.0.0; node -e \"require('is-number')\"; echo installed";
    check_install("npm", None, code);
}

#[test]
fn cargo_fetches_under_its_preset() {
    let sysroot = Command::new("rustc").args(["--print", "sysroot"]).output().unwrap();
    let cargo = Path::new(String::from_utf8(sysroot.stdout).unwrap().trim()).join("bin/cargo");
    let code = "set -e; export CARGO_HOME=$PWD/.cargo CARGO_NET_RETRY=0; mkdir -p p/src; cd p; touch src/lib.rs
printf '[package]\\nname=\"p\"\\nversion=\"0.1.0\"\\nedition=\"2021\"\\n[dependencies]\\nitoa=\"1\"\\n' > Cargo.toml
../cargo vendor -q; grep -q itoa vendor/itoa/Cargo.toml; echo installed";
    check_install("cargo", Some(&cargo), code);
}

#[test]
fn apt_downloads_under_its_preset() {
    let release = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    let Some(name) = release.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME=")) else {
        println!("SKIPPED apt: this is no Debian");
        return;
    };
    if !release.contains("\nID=debian\n") {
        println!("SKIPPED apt: this is no Debian");
        return;
    }
    let code = format!(
        "set -e; mkdir -p lists/partial cache/archives/partial; : > status
echo 'deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian {name} main' > sources
o=\"-qq -o Dir::State=$PWD -o Dir::State::status=$PWD/status -o Dir::Cache=$PWD/cache -o Dir::Etc::sourcelist=$PWD/sources \\
-o Dir::Etc::sourceparts=/dev/null -o APT::Sandbox::User= -o Acquire::Languages=none -o Acquire::Retries=0 -o Debug::NoLocking=1 \\
-o APT::Update::Error-Mode=any\"
apt-get $o update; apt-get $o download hostname; ls hostname_*.deb; echo installed"
    );
    check_install("apt", None, &code);
}
