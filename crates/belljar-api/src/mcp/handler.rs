//! The methods of the protocol.

use std::sync::Arc;

use belljar_keeper::{Caller, KeeperError, ToolInfo};
use futures::FutureExt as _;
use http::request::Parts;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, CancelTaskParams, CreateTaskResult,
    CustomRequest, CustomResult, DiscoverResult, ElicitationCapability, ErrorCode, ErrorData, GetTaskParams,
    GetTaskResult, Implementation, InitializeRequestParams, InitializeResult, ListToolsResult,
    PaginatedRequestParams, ProtocolVersion, ServerCapabilities, ServerConfig, UpdateTaskParams,
};
use rmcp::service::RequestContext;
use rmcp::{RoleServer, ServerHandler};
use serde_json::json;
use tokio::sync::mpsc;

use super::call::{Call, Progress, Sessions, Table, to_error};
use super::offer::{Offer, Profile};
use super::parked::Parked;
use super::tools::{self, stored};
use crate::api::Shared;
use crate::guard::Peer;
use crate::problem::{Code, Problem};
use crate::rest;

/// Returns how a model is to use the tools that it is offered: others are not named.
fn instructions(offer: &Offer) -> &'static str {
    match offer.profile {
        Profile::Default => {
            "Tools that run code and commands in sandboxes, which are isolated from the machine. Files, variables of run_code and installed \
             packages of a sandbox are kept between calls. Calls without `sandbox` share one default sandbox, whose id is in the answer; use \
             create_sandbox for one with other settings, and give its id to the other tools."
        }
        Profile::Claude => {
            "Tools that run commands and change files in a sandbox, which is isolated from the machine. Its files, and directory and \
             variables of the shell of bash, are kept between calls. Calls without `sandbox` share one default sandbox, whose id is in the \
             answer."
        }
        Profile::Codex => {
            "Tools that run commands and change files in a sandbox, which is isolated from the machine. Its files are kept between calls. \
             Calls without `sandbox` share one default sandbox, whose id is in the answer."
        }
        Profile::None => {
            "Tools that run code in sandboxes, which are isolated from the machine. Each says what it is for; its languages, and the longest \
             time of a call, are in the schema of its arguments."
        }
        Profile::Conformance => "",
    }
}

/// Returns what the connection of a request is offered.
fn offer(context: &RequestContext<RoleServer>) -> Offer {
    let parts = context.extensions.get::<Parts>();
    parts.and_then(|parts| parts.extensions.get::<Offer>()).cloned().unwrap_or_default()
}

/// Methods with parameters of a certain form. Requests whose parameters have another one arrive as custom ones.
const KNOWN_METHODS: [&str; 8] = [
    "initialize",
    "server/discover",
    "ping",
    "tools/list",
    "tools/call",
    "tasks/get",
    "tasks/update",
    "tasks/cancel",
];

/// Maximum number of tools that an error names.
const MAX_NAMED_TOOLS: usize = 32;

/// The server's side of the protocol.
#[derive(Clone)]
pub(super) struct Handler {
    shared: Shared,
    sessions: Arc<Sessions>,
    parked: Arc<Parked>,
}

impl Handler {
    pub(super) fn new(shared: Shared) -> Self {
        Self { shared, sessions: Arc::default(), parked: Arc::default() }
    }

    fn call(&self, context: &RequestContext<RoleServer>) -> Result<Call, ErrorData> {
        let parts = context.extensions.get::<Parts>();
        let caller = parts.and_then(|parts| parts.extensions.get::<Caller>());
        let (Some(parts), Some(caller)) = (parts, caller) else {
            return Err(ErrorData::invalid_request("missing or invalid key", None));
        };
        let offer = offer(context);
        let by_socket = parts.extensions.get::<Peer>().is_some_and(|peer| peer.unix);
        let own = || (!by_socket).then(|| rest::base_url(&self.shared, &parts.headers, &parts.extensions));
        let progress =
            context.meta.get_progress_token().map(|token| Progress::new(context.peer.clone(), token));
        Ok(Call {
            shared: self.shared.clone(),
            caller: caller.clone(),
            base_url: offer.base_url.clone().or_else(own),
            offer,
            progress,
            waiting: None,
            sessions: Arc::clone(&self.sessions),
        })
    }
}

impl Handler {
    /// Runs a call until it ends, the key is revoked or the server shuts down.
    async fn run(self, call: Call, request: CallToolRequestParams) -> Result<CallToolResult, ErrorData> {
        let slot = match self.shared.streams.take(&call.caller) {
            Ok(slot) => slot,
            Err(problem) => return Ok(to_error(&problem)),
        };
        // Killing is possible however many answers are unread.
        if request.name != tools::KILL
            && let Err(problem) = self.shared.answers.admit(&call.caller.key)
        {
            return Ok(to_error(&problem));
        }
        let arguments = request.arguments.unwrap_or_default();
        let run = async {
            match built_in(call.offer.profile).iter().find(|tool| tool.name == request.name) {
                Some(tool) => Ok(tool.run(&call, arguments).await),
                None => match self.stored_tool(&call, &request.name).await? {
                    Some(named) => Ok(stored::run(&call, &named, arguments).await),
                    None => Err(self.unknown_tool(&call, &request.name).await),
                },
            }
        };
        tokio::select! {
            biased;
            result = run => result,
            problem = slot.wait_for_end() => Ok(to_error(&problem)),
        }
    }

    /// Returns the stored tools of a connection.
    async fn stored_tools(&self, call: &Call) -> Result<Vec<ToolInfo>, ErrorData> {
        // The token of a sandbox is for that one only.
        if call.caller.only.is_some() {
            return Ok(Vec::new());
        }
        if call.offer.stored.is_empty() {
            return self.shared.keeper.tools(&call.caller).await.map_err(to_protocol_error);
        }
        let mut tools = Vec::new();
        for named in &call.offer.stored {
            tools.push(self.shared.keeper.tool(&call.caller, named).await.map_err(to_protocol_error)?);
        }
        Ok(tools)
    }

    /// Returns the error for a tool that is not offered, with the names of some that are: models do not list tools themselves.
    async fn unknown_tool(&self, call: &Call, name: &str) -> ErrorData {
        let name: String = name.chars().take(128).collect();
        let stored = self.stored_tools(call).await.unwrap_or_default();
        let mut names: Vec<&str> = built_in(call.offer.profile).iter().map(|tool| tool.name).collect();
        names.extend(stored.iter().map(|tool| tool.tool.name.as_str()));
        names.truncate(MAX_NAMED_TOOLS);
        let offered = match names.as_slice() {
            [] => "none is offered".to_owned(),
            names => format!("there are {}", names.join(", ")),
        };
        ErrorData::invalid_params(format!("unknown tool {name:?}; {offered}"), Some(json!({"tool": name})))
    }

    /// Returns how the keeper finds the stored tool of this name: with the version of the connection, if it names one.
    async fn stored_tool(&self, call: &Call, name: &str) -> Result<Option<String>, ErrorData> {
        if call.caller.only.is_some() {
            return Ok(None);
        }
        let is_it = |named: &&String| named.split('@').next() == Some(name);
        let named = match call.offer.stored.iter().find(is_it) {
            Some(named) => named.as_str(),
            None if call.offer.stored.is_empty() && !name.contains('@') => name,
            None => return Ok(None),
        };
        match self.shared.keeper.tool(&call.caller, named).await {
            Ok(_) => Ok(Some(named.to_owned())),
            Err(KeeperError::NotFound { .. }) => Ok(None),
            Err(error) => Err(to_protocol_error(error)),
        }
    }
}

/// Returns an error of the keeper as one of the protocol.
fn to_protocol_error(error: KeeperError) -> ErrorData {
    let problem = Problem::from(error);
    let data = json!({"code": problem.code().as_str()});
    match problem.code().status().is_server_error() {
        true => ErrorData::internal_error(problem.detail().to_owned(), Some(data)),
        false => ErrorData::invalid_params(problem.detail().to_owned(), Some(data)),
    }
}

/// Returns the built-in tools of a profile, in the order in which they are listed.
fn built_in(profile: Profile) -> Table {
    match profile {
        Profile::Default => tools::DEFAULT,
        Profile::Claude => tools::CLAUDE,
        Profile::Codex => tools::CODEX,
        Profile::None | Profile::Conformance => &[],
    }
}

impl ServerHandler for Handler {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder().enable_tools().enable_tasks().build();
        InitializeResult::new(capabilities)
            .with_server_info(Implementation::new("belljar", env!("CARGO_PKG_VERSION")))
    }

    async fn initialize(
        &self,
        request: InitializeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<InitializeResult, ErrorData> {
        context.peer.set_peer_info(request.clone());
        let instructions = instructions(&offer(&context));
        Ok(self.negotiate_initialize(&request)?.with_instructions(instructions))
    }

    async fn discover(&self, context: RequestContext<RoleServer>) -> Result<DiscoverResult, ErrorData> {
        let info = self.get_info().with_instructions(instructions(&offer(&context)));
        Ok(DiscoverResult::from_server_info(self.supported_protocol_versions().into_owned(), info))
    }

    async fn on_custom_request(
        &self,
        request: CustomRequest,
        _context: RequestContext<RoleServer>,
    ) -> Result<CustomResult, ErrorData> {
        let method = request.method;
        if KNOWN_METHODS.contains(&method.as_str()) {
            let reason = format!("the parameters are not those of {method}");
            return Err(ErrorData::invalid_params(reason, Some(json!({"method": method}))));
        }
        Err(ErrorData::new(ErrorCode::METHOD_NOT_FOUND, method, None))
    }

    async fn list_tools(
        &self,
        _request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let call = self.call(&context)?;
        let reaches_network = self.shared.keeper.may_reach_network(&call.caller);
        let mut tools: Vec<_> =
            built_in(call.offer.profile).iter().map(|tool| tool.info(reaches_network)).collect();
        tools.extend(self.stored_tools(&call).await?.iter().map(stored::info));
        Ok(ListToolsResult::with_all_items(tools))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let mut call = self.call(&context)?;
        let key = call.caller.key.clone();
        let parking = Parking::of(&context);
        let (waits, mut waiting) = mpsc::channel(1);
        let has_begun = match &request.request_state {
            Some(approval) => has_begun(&call, approval).await,
            None => false,
        };
        let mut running = match &request.request_state {
            Some(state) => match self.parked.resume(&key, &request, state, has_begun)? {
                Some(ended) => async move { ended.await.unwrap_or_else(|_| Err(cancelled())) }.boxed(),
                None => {
                    return Ok(to_error(&Problem::new(
                        Code::NotApproved,
                        "the caller does not want to wait",
                    ))
                    .into());
                }
            },
            None => {
                call.waiting = (parking != Parking::None).then_some(waits);
                self.clone().run(call, request.clone()).boxed()
            }
        };
        // What is dropped here is ended by the keeper.
        let waiting = tokio::select! {
            biased;
            result = &mut running => return result.map(Into::into),
            Some(waiting) = waiting.recv() => waiting,
            () = context.ct.cancelled() => return Err(cancelled()),
        };
        let parked = match parking {
            Parking::Task => {
                let task = self.parked.to_task(&key, &waiting, running);
                task.map(|task| CreateTaskResult::new(task).into())
            }
            Parking::Round | Parking::None => {
                self.parked.to_round(&key, &request, &waiting, running).map(Into::into)
            }
        };
        match parked {
            Ok(answer) => Ok(answer),
            Err(running) => tokio::select! {
                biased;
                result = running => result.map(Into::into),
                () = context.ct.cancelled() => Err(cancelled()),
            },
        }
    }

    async fn get_task(
        &self,
        request: GetTaskParams,
        context: RequestContext<RoleServer>,
    ) -> Result<GetTaskResult, ErrorData> {
        let call = self.call(&context)?;
        let (key, id) = (&call.caller.key, &request.task_id);
        let (task, fetched) = self.parked.task(key, id)?;
        if let Some(approval) = fetched
            && has_begun(&call, &approval).await
        {
            self.parked.note_fetched(key, id);
        }
        Ok(GetTaskResult::new(task))
    }

    async fn update_task(
        &self,
        request: UpdateTaskParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        // No task asks for input, and answers to other questions are to be ignored.
        self.parked.check_task(&self.call(&context)?.caller.key, &request.task_id)
    }

    async fn cancel_task(
        &self,
        request: CancelTaskParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        self.parked.cancel_task(&self.call(&context)?.caller.key, &request.task_id)
    }
}

/// Reports whether a call that waited for an approval has begun.
async fn has_begun(call: &Call, approval: &str) -> bool {
    let asked = call.shared.keeper.approval(&call.caller, approval).await;
    asked.is_ok_and(|asked| asked.started_at.is_some())
}

/// How a client can wait for approval beyond its request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Parking {
    /// It cannot.
    None,
    /// By asking about a task.
    Task,
    /// By repeating the call, after its user has agreed.
    Round,
}

impl Parking {
    fn of(context: &RequestContext<RoleServer>) -> Self {
        let is_new = context
            .protocol_version()
            .is_some_and(|version| version.as_str() >= ProtocolVersion::V_2026_07_28.as_str());
        let can = context.client_capabilities().filter(|_| is_new).unwrap_or_default();
        let has_form = |one: &ElicitationCapability| one.form.is_some() || one.url.is_none();
        match can.supports_tasks() {
            true => Self::Task,
            false if can.elicitation.as_ref().is_some_and(has_form) => Self::Round,
            false => Self::None,
        }
    }
}

fn cancelled() -> ErrorData {
    ErrorData::internal_error("the call was cancelled", None)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use belljar_keeper::BUILT_IN_TOOLS;

    use super::*;

    /// A model looks for each tool that is named to it.
    #[test]
    fn instructions_name_offered_tools_only() {
        for profile in [Profile::Default, Profile::Claude, Profile::Codex, Profile::None] {
            let text = instructions(&Offer { profile, ..Offer::default() });
            let words: BTreeSet<_> =
                text.split(|one: char| !(one.is_ascii_lowercase() || one == '_')).collect();
            let offered = built_in(profile);
            for name in BUILT_IN_TOOLS.iter().filter(|name| name.contains('_') || **name == "bash") {
                assert!(
                    !words.contains(name) || offered.iter().any(|tool| tool.name == *name),
                    "{name}: {text}"
                );
            }
            assert!(!text.contains("  "), "{text}");
        }
        assert!(instructions(&Offer::default()).contains("create_sandbox"));
    }

    #[test]
    fn stored_tools_cannot_have_names_of_built_in_ones() {
        let profiles = [Profile::Default, Profile::Claude, Profile::Codex];
        let names: BTreeSet<_> =
            profiles.into_iter().flat_map(|profile| built_in(profile).iter().map(|tool| tool.name)).collect();
        assert_eq!(names, BTreeSet::from(BUILT_IN_TOOLS));
    }
}
