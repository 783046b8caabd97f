//! `create_sandbox`, `list_sandboxes`, `kill_sandbox` and `publish_port`.

use std::collections::BTreeMap;
use std::time::Duration;

use belljar_keeper::{CreateSandbox, Labels, Lifetime, ListSandboxes, PortSettings, SandboxInfo};
use belljar_model::{LimitsFile, NetworkFile, SpecFile};
use rmcp::model::ContentBlock;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

use crate::mcp::call::{Call, Hints, Reply, Tool};
use crate::problem::Problem;
use crate::rest::PortAddresses;
use crate::rest::types::{TextOr, UniqueMap, parse_env, text_or};

/// Maximum and default number of sandboxes in one answer.
const MAX_LISTED: u32 = 100;

/// Creates a sandbox.
pub(crate) struct Create;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CreateInput {
    /// Template to start from; the server's default if not given.
    template: Option<String>,
    /// Name, which can be used instead of the id: a to z, 0 to 9 and hyphens, at most 63.
    name: Option<String>,
    /// Seconds after which it ends; the server's default if not given.
    #[schemars(range(min = 1))]
    timeout: Option<u32>,
    /// Environment variables of all programs in it.
    env: Option<BTreeMap<String, String>>,
    /// Memory limit, such as 512m or 2g.
    memory: Option<String>,
    /// Network policy. Without one, the template's, which usually reaches nothing.
    network: Option<NetworkInput>,
}

/// A network policy, as a mode or in full.
#[derive(JsonSchema)]
#[serde(untagged)]
pub(crate) enum NetworkInput {
    /// `disabled`, `whitelist` or `open`.
    Mode(String),
    /// The policy in full.
    Policy(NetworkPolicyInput),
}

impl<'de> Deserialize<'de> for NetworkInput {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(match text_or(deserializer, "a mode or an object")? {
            TextOr::Text(mode) => Self::Mode(mode),
            TextOr::Object(policy) => Self::Policy(policy),
        })
    }
}

/// A network policy in full.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NetworkPolicyInput {
    /// `disabled`, `whitelist` or `open`; whitelist if presets or hosts are given.
    mode: Option<String>,
    /// Presets of package managers, such as pip, npm, apt or cargo.
    presets: Option<Vec<String>>,
    /// Allowed hosts, each as HOST, HOST:PORT or *.SUFFIX.
    allow: Option<Vec<String>>,
}

/// A sandbox.
#[derive(Serialize, JsonSchema)]
pub(crate) struct SandboxOutput {
    /// Id, to use in further calls.
    sandbox: String,
    /// Name.
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    /// `creating`, `running`, `paused`, …
    state: String,
    /// Template.
    template: String,
    /// Mode of its network policy: `disabled`, `whitelist` or `open`.
    network: String,
    /// Home directory, to which relative paths refer.
    home: String,
    /// Time at which it ends unless it is extended.
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_at: Option<String>,
    /// Published ports.
    ports: Vec<u16>,
}

impl From<SandboxInfo> for SandboxOutput {
    fn from(info: SandboxInfo) -> Self {
        Self {
            sandbox: info.id.to_string(),
            name: info.name,
            state: info.state.as_str().to_owned(),
            template: info.template,
            network: info.spec.network.mode().to_string(),
            home: info.home,
            expires_at: info.expires_at.map(|time| time.to_string()),
            ports: info.ports,
        }
    }
}

impl Tool for Create {
    const NAME: &'static str = "create_sandbox";
    const TITLE: &'static str = "Create a sandbox";
    const DESCRIPTION: &'static str = "Creates a sandbox with settings of its own, such as another template or access to the network, and \
         returns its id for the other tools. Without it, they share a default sandbox.";
    const HINTS: Hints = Hints::ADD;
    type Input = CreateInput;
    type Output = SandboxOutput;

    async fn run(call: &Call, input: CreateInput) -> Result<Reply<SandboxOutput>, Problem> {
        let memory = input.memory.map(|memory| memory.parse()).transpose()?;
        let network = input.network.map(|network| match network {
            NetworkInput::Mode(mode) => NetworkFile { mode: Some(mode), ..NetworkFile::default() },
            NetworkInput::Policy(NetworkPolicyInput { mode, presets, allow }) => {
                NetworkFile { mode, presets, allow, ..NetworkFile::default() }
            }
        });
        let env = parse_env(input.env.map(UniqueMap))?;
        let timeout = input.timeout.map(|seconds| Duration::from_secs(seconds.into()));
        let request = CreateSandbox {
            template: input.template,
            name: input.name.map(|name| name.parse()).transpose()?,
            return_existing: false,
            spec: SpecFile {
                limits: LimitsFile { memory, ..LimitsFile::default() },
                network,
                env: Some(env).filter(|env| !env.is_empty()),
                ..SpecFile::default()
            },
            lifetime: Lifetime {
                timeout: timeout.unwrap_or_else(|| call.shared.keeper.default_lifetime()),
                ..Lifetime::default()
            },
            labels: Labels::default(),
            files: Vec::new(),
            idempotency: None,
            ports: PortSettings::default(),
        };
        let output = SandboxOutput::from(call.shared.keeper.create(&call.caller, request).await?.info);
        let text = format!("sandbox {} of template {}", output.sandbox, output.template);
        Ok(Reply::text(output, text))
    }
}

/// Lists sandboxes.
pub(crate) struct List;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ListInput {
    /// Sandboxes in the answer, 1 to 100, which it is if not given.
    #[schemars(range(min = 1, max = 100))]
    limit: Option<u32>,
    /// Value of next_cursor in the previous answer.
    cursor: Option<String>,
}

/// Sandboxes.
#[derive(Serialize, JsonSchema)]
pub(crate) struct ListOutput {
    /// The sandboxes, newest first.
    sandboxes: Vec<SandboxOutput>,
    /// Cursor of the next page, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

impl Tool for List {
    const NAME: &'static str = "list_sandboxes";
    const TITLE: &'static str = "List sandboxes";
    const DESCRIPTION: &'static str = "Lists the sandboxes that have not ended.";
    const HINTS: Hints = Hints::READ;
    type Input = ListInput;
    type Output = ListOutput;

    async fn run(call: &Call, input: ListInput) -> Result<Reply<ListOutput>, Problem> {
        let limit = crate::rest::check_limit("limit", input.limit, MAX_LISTED, MAX_LISTED)?;
        let query = ListSandboxes { limit, cursor: input.cursor, ..ListSandboxes::default() };
        let page = call.shared.keeper.list(&call.caller, query).await?;
        let sandboxes: Vec<_> = page.items.into_iter().map(SandboxOutput::from).collect();
        let line = |one: &SandboxOutput| {
            let name = one.name.as_deref().unwrap_or("-");
            format!("{} {name} {} {}\n", one.sandbox, one.state, one.template)
        };
        let text = match sandboxes.is_empty() {
            true => "[no sandboxes]".to_owned(),
            false => sandboxes.iter().map(line).collect(),
        };
        Ok(Reply::text(ListOutput { sandboxes, next_cursor: page.next_cursor }, text))
    }
}

/// Ends a sandbox.
pub(crate) struct Kill;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct KillInput {
    /// Id or name of the sandbox.
    sandbox: String,
}

/// An ended sandbox.
#[derive(Serialize, JsonSchema)]
pub(crate) struct KillOutput {
    /// The sandbox as named.
    sandbox: String,
    /// Whether it has ended.
    killed: bool,
}

impl Tool for Kill {
    const NAME: &'static str = "kill_sandbox";
    const TITLE: &'static str = "End a sandbox";
    const DESCRIPTION: &'static str = "Ends a sandbox and removes everything in it.";
    const HINTS: Hints = Hints::WRITE;
    type Input = KillInput;
    type Output = KillOutput;

    async fn run(call: &Call, input: KillInput) -> Result<Reply<KillOutput>, Problem> {
        call.shared.keeper.kill(&call.caller, &input.sandbox).await?;
        let text = format!("sandbox {} has ended", input.sandbox);
        Ok(Reply::text(KillOutput { sandbox: input.sandbox, killed: true }, text))
    }
}

/// Publishes a port.
pub(crate) struct PublishPort;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct PublishPortInput {
    /// Port on which a program in the sandbox listens.
    #[schemars(range(min = 1, max = 65535))]
    port: u16,
    /// Whether everyone may reach it; if false, the default, a key or token is needed.
    public: Option<bool>,
    /// Id or name of the sandbox; the default one if not given.
    sandbox: Option<String>,
}

/// A published port.
#[derive(Serialize, JsonSchema)]
pub(crate) struct PublishPortOutput {
    /// Id of the sandbox.
    sandbox: String,
    /// Whether the sandbox was created for this call.
    sandbox_created: bool,
    /// The port.
    port: u16,
    /// Whether everyone may reach it.
    public: bool,
    /// Its URL; none if the server has no address but a socket.
    #[serde(skip_serializing_if = "Option::is_none")]
    url: Option<String>,
}

impl Tool for PublishPort {
    const NAME: &'static str = "publish_port";
    const TITLE: &'static str = "Publish a port";
    const DESCRIPTION: &'static str = "Makes a port of a sandbox, on which a program listens, reachable under a URL. On a server without an address it has none: the \
         result has the command with which the user reaches it.";
    const HINTS: Hints = Hints::ADD;
    type Input = PublishPortInput;
    type Output = PublishPortOutput;

    async fn run(call: &Call, input: PublishPortInput) -> Result<Reply<PublishPortOutput>, Problem> {
        if input.port == 0 {
            return Err(Problem::field("port", "0 is not allowed; give 1 to 65535"));
        }
        let place = call.place(input.sandbox).await?;
        let keeper = &call.shared.keeper;
        let published =
            keeper.publish_port(&call.caller, &place.id, input.port, input.public.unwrap_or(false)).await?;
        // Host names contain only the id.
        let id = keeper.get(&call.caller, &place.id).await?.id;
        let url = call.base_url.as_deref().map(|base| {
            PortAddresses { domain: call.shared.config.domain.as_deref(), base }.url(id.as_str(), input.port)
        });
        let text = match &url {
            Some(url) => format!("port {} is at {url}", input.port),
            None => format!(
                "port {port} is published, but the server has no address, and so the port no URL; whoever runs the server brings it to \
                 http://127.0.0.1:{port} with the command: belljar sandbox port-forward {id} {port}",
                port = input.port
            ),
        };
        let mut content = vec![ContentBlock::text(text)];
        content.extend(place.note());
        let output = PublishPortOutput {
            sandbox: id.to_string(),
            sandbox_created: place.created,
            port: published.port,
            public: published.public,
            url,
        };
        Ok(Reply { output, content, is_error: false })
    }
}
