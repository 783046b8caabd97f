//! `belljar net`: presets of the network policy, and the decisions of a policy. Nothing is run, and no name is resolved.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;

use belljar_client::v1;
use belljar_model::{
    Decision, Destination, Matcher, ModelError, NetworkFile, NetworkPolicy, Preset, PresetHost, SecretFile,
    TlsMode, presets, presets_version,
};
use serde::Deserialize;
use serde_json::json;

use crate::cli::{NetArgs, NetCheckArgs, NetCommand, NetPolicyArgs};
use crate::input::read_text;
use crate::message::{Quit, clean};
use crate::output::write_failed;
use crate::service::args::Format;
use crate::spec::read_spec;

/// Exit status if a connection is denied.
const DENIED: u8 = 1;

/// Maximum size in bytes of a file with a secret.
pub(crate) const MAX_SECRET_BYTES: u64 = 64 << 10;

/// What a policy says of a destination.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Verdict {
    /// The destination, as `HOST:PORT`.
    pub(crate) host: String,
    pub(crate) allowed: bool,
    /// The rule or mode that decides.
    #[serde(rename = "rule")]
    pub(crate) by: String,
    pub(crate) reason: String,
}

/// Runs `belljar net`.
pub(crate) fn net(command: &NetCommand) -> Result<u8, Quit> {
    match command {
        NetCommand::Presets { names, format } => list(names, format.is_json()),
        NetCommand::Check(args) => check(args),
        NetCommand::Probe(args) => crate::service::net_probe(args),
    }
}

fn print(text: &str) -> Result<(), Quit> {
    std::io::stdout().write_all(text.as_bytes()).map_err(write_failed)
}

/// Lists presets: all, or only the named ones.
fn list(names: &[String], as_json: bool) -> Result<u8, Quit> {
    // An unknown name is refused as in a policy.
    let asked = NetworkFile { presets: Some(names.to_vec()), ..NetworkFile::default() };
    let policy = asked.resolve()?;
    let shown =
        presets().iter().filter(|preset| names.is_empty() || policy.presets().contains(&preset.name()));
    let mut text = String::new();
    for preset in shown {
        if as_json {
            let hosts: Vec<_> = preset.hosts().iter().map(host_json).collect();
            let preset = json!({
                "name": preset.name(), "purpose": preset.purpose(), "version": presets_version(), "tls": preset.tls().to_string(),
                "hosts": hosts,
            });
            let _ = writeln!(text, "{preset}");
            continue;
        }
        format_preset(preset, &mut text);
    }
    print(&text)?;
    Ok(0)
}

fn host_json(host: &PresetHost) -> serde_json::Value {
    json!({"name": host.name(), "ports": host.ports(), "purpose": host.purpose(), "risk": host.risk()})
}

fn format_preset(preset: &Preset, text: &mut String) {
    if !text.is_empty() {
        text.push('\n');
    }
    let _ = writeln!(text, "{}: {}", preset.name(), preset.purpose());
    if preset.tls() == TlsMode::Terminate {
        let _ = writeln!(text, "  TLS to its hosts is terminated by the gateway");
    }
    for host in preset.hosts() {
        let rules: Vec<String> = host.rules().map(|rule| rule.to_string()).collect();
        let _ = writeln!(text, "  {:<40}  {}", rules.join(" "), host.purpose());
        if let Some(risk) = host.risk() {
            let _ = writeln!(text, "      risk: {risk}");
        }
    }
}

/// Reads a destination of a connection.
fn read(text: &str) -> Result<Destination, Quit> {
    text.parse().map_err(|error| match error {
        ModelError::NotAllowed { allowed, .. } => {
            Quit::Usage(format!("{text:?} is not allowed; give {allowed}"))
        }
        other => other.into(),
    })
}

/// Prints for each destination whether the policy allows it, and by which rule. The exit status is 1 if one is denied.
fn check(args: &NetCheckArgs) -> Result<u8, Quit> {
    let destinations = args.hosts.iter().map(|host| read(host)).collect::<Result<Vec<_>, _>>()?;
    let verdicts = match &args.sandbox {
        Some(sandbox) => crate::service::net_check(args, sandbox)?,
        None if args.server.server.is_some() => {
            let text = "--server: give --sandbox, too; the policy of flags and files is checked here";
            return Err(Quit::Usage(text.to_owned()));
        }
        None => verdicts(args, &destinations)?,
    };
    let mut text = String::new();
    for Verdict { host, allowed, by, reason } in &verdicts {
        let _ = if args.server.format() == Format::Json {
            writeln!(text, "{}", json!({"host": host, "allowed": allowed, "by": by, "reason": reason}))
        } else if *allowed {
            writeln!(text, "allowed  {}  ({})", clean(host), clean(by))
        } else {
            writeln!(text, "denied   {}", clean(reason))
        };
    }
    print(&text)?;
    Ok(if verdicts.iter().all(|verdict| verdict.allowed) { 0 } else { DENIED })
}

/// Decides about destinations by the policy of flags or a file.
fn verdicts(args: &NetCheckArgs, destinations: &[Destination]) -> Result<Vec<Verdict>, Quit> {
    let policy = args.policy.file()?.resolve()?;
    let exceptions = crate::policy::network(args.operator.as_deref())?.exceptions;
    let matcher = Matcher::new(&policy, &exceptions);
    let verdict = |host: &Destination| {
        let Decision { allowed, by, reason } = host.decide(&matcher);
        Verdict { host: host.to_string(), allowed, by: by.to_string(), reason }
    };
    Ok(destinations.iter().map(verdict).collect())
}

impl NetPolicyArgs {
    /// Returns the network policy of the flags if there are any, else that of the file.
    fn file(&self) -> Result<NetworkFile, Quit> {
        match self.net.file()? {
            Some(flags) => Ok(flags),
            None => {
                let file = self.spec.as_deref().map(read_spec).transpose()?;
                Ok(file.and_then(|file| file.network).unwrap_or_default())
            }
        }
    }
}

impl NetArgs {
    /// Returns the policy of the flags, if there are any. Values of secrets are not read yet.
    pub(crate) fn file(&self) -> Result<Option<NetworkFile>, ModelError> {
        let some = |texts: &[String]| Some(texts.to_vec()).filter(|texts| !texts.is_empty());
        let mut file = NetworkFile {
            mode: self.net.clone(),
            presets: some(&self.presets),
            allow: some(&self.allow),
            deny: some(&self.deny),
            ..NetworkFile::default()
        };
        self.requests.iter().try_for_each(|request| file.add_request(request))?;
        self.secrets.iter().try_for_each(|secret| file.add_secret(secret))?;
        self.headers.iter().try_for_each(|header| file.add_header(header))?;
        self.tls.iter().try_for_each(|tls| file.add_tls(tls))?;
        Ok(Some(file).filter(|file| *file != NetworkFile::default()))
    }

    /// Returns the policy for a server, with the values of secrets.
    pub(crate) fn message(&self) -> Result<Option<v1::NetworkPolicy>, Quit> {
        let Some(mut file) = self.file()? else { return Ok(None) };
        read_secrets(&mut file)?;
        Ok(Some(policy_message(file)))
    }

    /// Returns the policy, with the values of secrets.
    pub(crate) fn policy(&self) -> Result<NetworkPolicy, Quit> {
        let mut file = self.file()?.unwrap_or_default();
        read_secrets(&mut file)?;
        Ok(file.resolve()?)
    }
}

/// Converts a policy, in which the values of secrets have been read, to that of a request.
pub(crate) fn policy_message(file: NetworkFile) -> v1::NetworkPolicy {
    let NetworkFile { mode, presets, allow, deny, requests, secrets, headers, tls } = file;
    let of_host = |(host, rules)| (host, v1::NetworkRequests { rules, ..Default::default() });
    let secret = |SecretFile { host, header, value, .. }: SecretFile| {
        let [host, header, value] = [host, header, value].map(Option::unwrap_or_default);
        v1::NetworkSecret { host, header, value, ..Default::default() }
    };
    v1::NetworkPolicy {
        mode: mode.unwrap_or_default(),
        presets: presets.unwrap_or_default(),
        allow: allow.unwrap_or_default(),
        deny: deny.unwrap_or_default(),
        requests: requests.unwrap_or_default().into_iter().map(of_host).collect(),
        secrets: secrets.into_iter().flatten().map(|(name, one)| (name, secret(one))).collect(),
        headers: headers.into_iter().flatten().map(secret).collect(),
        tls: tls.into_iter().flatten().collect(),
        ..Default::default()
    }
}

/// Reads the values of secrets and headers from variables and files. Contradictory sources are refused where the policy is checked.
pub(crate) fn read_secrets(network: &mut NetworkFile) -> Result<(), Quit> {
    for (what, secret) in network.sources_mut() {
        let value = match (&secret.value, &secret.env, &secret.file) {
            (None, Some(variable), None) => read_secret_variable(&what, variable)?,
            (None, None, Some(file)) => read_secret_file("network.secrets", Path::new(file))?,
            _ => continue,
        };
        (secret.value, secret.env, secret.file) = (Some(value), None, None);
    }
    Ok(())
}

/// Reads a secret from an environment variable; `what` is its name in errors.
pub(crate) fn read_secret_variable(what: &str, variable: &str) -> Result<String, Quit> {
    let value = std::env::var(variable);
    value.map_err(|_| Quit::Usage(format!("{what}: the variable {variable} is not set, or is not UTF-8")))
}

/// Reads a secret from a file, without a newline at the end.
pub(crate) fn read_secret_file(what: &'static str, file: &Path) -> Result<String, Quit> {
    Ok(without_line_end(read_text(what, file, MAX_SECRET_BYTES)?))
}

pub(crate) fn without_line_end(mut text: String) -> String {
    if text.ends_with('\n') {
        text.pop();
    }
    text
}
