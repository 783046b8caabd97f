//! `belljar tool`: stored tools, which models call by their names.

use std::io::Write as _;
use std::path::Path;

use belljar_client::{ClientError, Method, RestBody};
use belljar_keeper::ToolVerdict;
use belljar_model::{
    Approval, CodeError, CodeResult, LimitsFile, ModelError, NetworkFile, StreamOutput, ToolFile, nearest,
};
use jiff::Timestamp;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::build::in_path;
use super::link::{Link, say_waiting};
use super::network::lost;
use super::show::{Table, away, print};
use super::tool_args::{ToolCallArgs, ToolCommand, ToolDefinitionArgs};
use super::tool_files;
use super::values;
use crate::message::{Quit, clean};
use crate::net::policy_message;
use crate::output::write_failed;

/// Exit status if a call would be refused.
const REFUSED: u8 = 1;

/// A stored tool, as the server describes it.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Tool {
    name: String,
    version: i64,
    current: bool,
    digest: String,
    description: String,
    languages: Vec<String>,
    template: Option<String>,
    timeout_s: f64,
    session: bool,
    #[serde(default)]
    approval: Approval,
    limits: LimitsFile,
    network: Option<NetworkFile>,
    key: String,
    created_at: Timestamp,
}

#[derive(Deserialize)]
struct Tools {
    tools: Vec<Tool>,
}

/// The form of files.
#[derive(Serialize)]
struct ToolsFile {
    tool: Vec<ToolFile>,
}

impl Tool {
    /// Returns the definition.
    fn file(self) -> Result<ToolFile, ModelError> {
        Ok(ToolFile {
            timeout: self.timeout_s.to_string().parse()?,
            name: self.name,
            description: self.description,
            languages: self.languages,
            template: self.template,
            session: self.session,
            approval: self.approval,
            limits: self.limits,
            network: self.network,
        })
    }
}

/// Runs a command of `belljar tool`.
pub(crate) async fn tools(link: &Link, command: &ToolCommand) -> Result<u8, Quit> {
    match command {
        ToolCommand::Add { name, definition } => {
            let languages = definition.languages.clone();
            if languages.is_empty() {
                return Err(Quit::Usage("--language: give at least one".to_owned()));
            }
            let new = ToolFile {
                name: name.clone(),
                description: format!("Runs code in a sandbox: {}.", languages.join(", ")),
                languages,
                template: None,
                timeout: Default::default(),
                session: false,
                approval: Approval::Never,
                limits: LimitsFile::default(),
                network: None,
            };
            match link.client.send(Method::POST, "/v1/tools", &apply(new, definition)?).await {
                Ok(created) => named(link, &created)?,
                Err(error) if error.is("name_taken") => {
                    let text = format!("tool {name:?} already exists; belljar tool edit {name} changes it");
                    return Err(anyhow::anyhow!(text).into());
                }
                Err(error) => return Err(error.into()),
            }
        }
        ToolCommand::Edit { name, definition } => {
            if definition.is_empty()? {
                let text = "nothing to change; give what is to be changed, such as --timeout 1m";
                return Err(Quit::Usage(text.to_owned()));
            }
            let known: Tool = find(link, name).await?;
            let current = find::<Tool>(link, &known.name).await?.version;
            let policy = |network: &Option<NetworkFile>| policy_message(network.clone().unwrap_or_default());
            let before = policy(&known.network);
            let changed = apply(known.file()?, definition)?;
            let stored: Tool = link.client.send(Method::PUT, &path(&changed.name), &changed).await?;
            if stored.version == current {
                link.remark(&format!("{}@{current} is unchanged", stored.name));
            }
            if let Some(lost) = lost(&before, &policy(&stored.network)) {
                link.remark(&format!(
                    "network flags replace the whole policy: {}@{} no longer has {lost}",
                    stored.name, stored.version
                ));
            }
            named(link, &stored)?;
        }
        ToolCommand::Ls => table(link, link.client.fetch::<Tools>("/v1/tools").await?.tools)?,
        ToolCommand::Show { name } => show(link, find(link, name).await?)?,
        ToolCommand::Rm { name } => {
            link.client.value::<()>(Method::DELETE, &path(name), RestBody::Empty).await?;
        }
        ToolCommand::Export { names } => export(link, names).await?,
        ToolCommand::Import { file } => import(link, file).await?,
        ToolCommand::Schema { name, dialect } => {
            let path = format!("{}/schema?for={}", path(name), dialect.as_str());
            let schema: Value = link.client.fetch(&path).await?;
            print(&format!("{schema:#}\n"))?;
        }
        ToolCommand::Test { name, call } => return test(link, name, call).await,
        ToolCommand::Call { name, call, out } => return run(link, name, call, out.as_deref()).await,
    }
    Ok(0)
}

/// Returns a tool by its name, or one version by `NAME@VERSION`.
pub(super) async fn find<T: DeserializeOwned>(link: &Link, name: &str) -> Result<T, Quit> {
    match link.client.fetch(&path(name)).await {
        Ok(tool) => Ok(tool),
        Err(error) => Err(explain(link, name, error).await),
    }
}

/// Adds to the error of a tool that does not exist which there are.
async fn explain(link: &Link, name: &str, error: ClientError) -> Quit {
    if !error.is("tool_not_found") {
        return error.into();
    }
    let Ok(Tools { tools }) = link.client.fetch("/v1/tools").await else { return error.into() };
    let name = name.split('@').next().unwrap_or_default();
    let names: Vec<_> = tools.iter().map(|tool| tool.name.as_str()).collect();
    if names.contains(&name) {
        // It is one of its versions that does not exist, and the error has those that do.
        return error.into();
    }
    let advice = match (nearest(name, names.iter().copied()), names.as_slice()) {
        (Some(near), _) => format!("did you mean {near}? belljar tool ls lists tools"),
        (None, []) => "there is none; belljar tool add makes one".to_owned(),
        (None, _) => "belljar tool ls lists tools".to_owned(),
    };
    anyhow::anyhow!("{error}; {advice}").into()
}

fn path(name: &str) -> String {
    // The version is a part of the name, and @ needs no escape in a path.
    let escaped = name.split('@').map(in_path).collect::<Vec<_>>().join("@");
    format!("/v1/tools/{escaped}")
}

/// Applies the flags to a definition.
fn apply(mut tool: ToolFile, flags: &ToolDefinitionArgs) -> Result<ToolFile, Quit> {
    let given = flags.limits.file()?;
    tool.limits = tool.limits.merge(given);
    if let Some(description) = &flags.description {
        tool.description.clone_from(description);
    }
    if !flags.languages.is_empty() {
        tool.languages.clone_from(&flags.languages);
    }
    if flags.template.is_some() {
        tool.template.clone_from(&flags.template);
    }
    if let Some(timeout) = &flags.timeout {
        tool.timeout = timeout.parse().map_err(|error| values::usage_error("timeout", &error))?;
    }
    if let Some(session) = flags.session {
        tool.session = session;
    }
    if let Some(approval) = &flags.approval {
        tool.approval = approval.parse().map_err(|error| values::usage_error("approval", &error))?;
    }
    if let Some(network) = flags.net.file()? {
        tool.network = Some(network);
    }
    Ok(tool.check()?)
}

/// Prints the name of a stored version.
fn named(link: &Link, tool: &Tool) -> Result<(), Quit> {
    if link.json(tool)? { Ok(()) } else { print(&format!("{}@{}\n", tool.name, tool.version)) }
}

fn network_text(network: Option<&NetworkFile>) -> String {
    let policy = network.cloned().unwrap_or_default().resolve();
    policy.map_or_else(|error| error.to_string(), |policy| policy.to_string())
}

fn table(link: &Link, tools: Vec<Tool>) -> Result<(), Quit> {
    let mut table = Table::new(&[
        "NAME",
        "VERSION",
        "LANGUAGES",
        "TEMPLATE",
        "TIMEOUT",
        "NETWORK",
        "APPROVAL",
        "CHANGED",
    ]);
    for tool in tools {
        if link.json(&tool)? {
            continue;
        }
        table.row(vec![
            tool.name,
            tool.version.to_string(),
            tool.languages.join(" "),
            tool.template.unwrap_or_else(|| "-".to_owned()),
            format!("{} s", tool.timeout_s),
            network_text(tool.network.as_ref()),
            tool.approval.to_string(),
            away(tool.created_at),
        ]);
    }
    link.list(&table, 0)
}

fn show(link: &Link, tool: Tool) -> Result<(), Quit> {
    if link.json(&tool)? {
        return Ok(());
    }
    let current = if tool.current { "" } else { " (not the current one)" };
    print(&format!("# version {}{current}, sha256 {}\n", tool.version, tool.digest))?;
    print(&to_toml(vec![tool.file()?])?)
}

fn to_toml(tool: Vec<ToolFile>) -> Result<String, Quit> {
    let text = toml::to_string(&ToolsFile { tool });
    text.map_err(|error| anyhow::Error::new(error).context("cannot write the tools as TOML").into())
}

/// Prints the tools of these names, or all, as `import` reads them.
async fn export(link: &Link, names: &[String]) -> Result<(), Quit> {
    let mut tools = Vec::new();
    for name in names {
        tools.push(find::<Tool>(link, name).await?);
    }
    if names.is_empty() {
        tools = link.client.fetch::<Tools>("/v1/tools").await?.tools;
    }
    print(&to_toml(tools.into_iter().map(Tool::file).collect::<Result<_, _>>()?)?)
}

/// Stores the tools of a file. All of it is checked before anything is stored.
async fn import(link: &Link, file: &Path) -> Result<(), Quit> {
    let text =
        std::fs::read_to_string(file).map_err(|error| Quit::Usage(format!("{}: {error}", file.display())))?;
    let wrong = |error: belljar_model::ToolsError| Quit::Usage(format!("{}: {error}", file.display()));
    let tools = ToolFile::list_from_toml(&text).map_err(wrong)?;
    let known = link.client.fetch::<Tools>("/v1/tools").await?.tools;
    for tool in tools {
        let before = known.iter().find(|one| one.name == tool.name);
        let stored: Tool = match before {
            None => link.client.send(Method::POST, "/v1/tools", &tool).await?,
            Some(before) if is_same(before.clone().file()?, tool.clone()) => {
                link.remark(&format!("{}@{} is unchanged", before.name, before.version));
                continue;
            }
            Some(before) => link.client.send(Method::PUT, &path(&before.name), &tool).await?,
        };
        named(link, &stored)?;
    }
    Ok(())
}

/// Reports whether a definition in a file is the stored one. The server adds the network policy where the file has none.
fn is_same(stored: ToolFile, file: ToolFile) -> bool {
    let network = match &file.network {
        None => true,
        Some(network) => {
            let stored = stored.network.clone().map(NetworkFile::resolve).and_then(Result::ok);
            network.clone().resolve().ok() == stored
        }
    };
    network && ToolFile { network: None, ..stored } == ToolFile { network: None, ..file }
}

/// Returns the arguments of a call.
fn arguments(call: &ToolCallArgs) -> Result<Value, Quit> {
    let code = match (&call.code, &call.script) {
        (Some(code), _) => code.clone(),
        (None, Some(script)) => std::fs::read_to_string(script)
            .map_err(|error| Quit::Usage(format!("{}: {error}", script.display())))?,
        (None, None) => return Err(Quit::Usage("give a script, or code with -c".to_owned())),
    };
    let files = tool_files::read(&call.files)?;
    Ok(json!({"code": code, "language": call.language, "timeout": call.timeout, "files": files}))
}

/// The event of a call that waits for approval.
#[derive(Deserialize)]
struct Waiting {
    approval: String,
    expires_at: Timestamp,
}

/// Result of a call, as far as it is printed.
#[derive(Serialize, Deserialize)]
struct Called {
    exit_code: u8,
    stdout: StreamOutput,
    stderr: StreamOutput,
    hint: Option<String>,
    #[serde(flatten)]
    rest: serde_json::Map<String, Value>,
}

/// What a call has shown, as far as it is printed.
#[derive(Deserialize)]
struct Shown {
    results: Vec<CodeResult>,
    error: Option<CodeError>,
    files: Vec<tool_files::Written>,
    more_files: bool,
}

/// Calls a tool, writes the files of its result below a directory if one is given, and returns the exit status of its code.
async fn run(link: &Link, name: &str, call: &ToolCallArgs, out: Option<&Path>) -> Result<u8, Quit> {
    let path = format!("{}/call", path(name));
    let events = link.client.send_for_events(Method::POST, &path, &arguments(call)?).await;
    let mut events = match events {
        Ok(events) => events,
        Err(error) => return Err(explain(link, name, error).await),
    };
    let called: Called = loop {
        match events.next().await? {
            Some((name, data)) if name == "waiting" => {
                let Waiting { approval, expires_at } = serde_json::from_slice(&data)?;
                if !link.quiet {
                    say_waiting(&approval, expires_at);
                }
            }
            Some((name, data)) if name == "ended" => break serde_json::from_slice(&data)?,
            Some(_) => {}
            None => return Err(anyhow::anyhow!("the server has ended the call without a result").into()),
        }
    };
    let shown = Shown::deserialize(Value::Object(called.rest.clone()))?;
    if let Some(dir) = out {
        tool_files::write(dir, &shown.files)?;
        if shown.more_files {
            link.remark(
                "--out: the call has written more files than its result has; write fewer, or use a volume",
            );
        }
    }
    if !link.json(&called)? {
        // Both streams are the program's own, byte for byte, as with `belljar run`.
        let bytes = |output: &StreamOutput| output.decode().unwrap_or_default();
        let mut stdout = std::io::stdout().lock();
        stdout.write_all(&bytes(&called.stdout)).and_then(|()| stdout.flush()).map_err(write_failed)?;
        drop(stdout);
        let mut stderr = std::io::stderr().lock();
        // If standard error cannot be written, nothing else can be done.
        let _ = stderr.write_all(&bytes(&called.stderr)).and_then(|()| stderr.flush());
        drop(stderr);
        let to_stderr = |text: &str| {
            let _ = writeln!(std::io::stderr(), "{}", clean(text));
        };
        let Shown { results, error, files, .. } = shown;
        let is_picture = |result: &CodeResult| result.data.keys().any(|mime| mime.starts_with("image/"));
        let mut left_out = if out.is_some() { 0 } else { files.len() };
        for result in &results {
            match result.text("text/plain").filter(|_| !is_picture(result)) {
                Some(text) => print(&format!("{}\n", clean(text)))?,
                None => left_out += 1,
            }
        }
        if let Some(CodeError { name, value, traceback }) = error {
            to_stderr(&if traceback.is_empty() { format!("{name}: {value}") } else { traceback });
        }
        if left_out > 0 {
            link.remark(&format!(
                "not shown: pictures and files of the result ({left_out}); --out DIR writes the files, --format json prints all"
            ));
        }
        if let Some(hint) = &called.hint {
            link.remark(&format!("hint: {hint}"));
        }
    }
    Ok(called.exit_code)
}

/// Shows what would be decided about a call.
async fn test(link: &Link, name: &str, call: &ToolCallArgs) -> Result<u8, Quit> {
    let path = format!("{}/test", path(name));
    let decided = link.client.send(Method::POST, &path, &arguments(call)?).await;
    let verdict: ToolVerdict = match decided {
        Ok(verdict) => verdict,
        Err(error) => return Err(explain(link, name, error).await),
    };
    if !link.json(&verdict)? {
        let ToolVerdict { rule, reason, tool, version, .. } = &verdict;
        let decided = match (verdict.allowed, rule.as_str()) {
            (true, "approval") => "would wait",
            (true, _) => "allowed",
            (false, _) => "refused",
        };
        print(&format!("{decided} by {rule} of {tool}@{version}: {reason}\n"))?;
    }
    Ok(if verdict.allowed { 0 } else { REFUSED })
}
