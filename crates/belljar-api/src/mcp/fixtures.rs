//! The fixtures of the protocol's conformance suite, which an administrator can run against a server: `/mcp?tools=conformance`. They
//! have nothing to do with sandboxes, but pass the same guards and the same implementation of the protocol as the tools.
//!
//! What each has to do is stated by the suite's scenarios (`@modelcontextprotocol/conformance`).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, CancelTaskParams, ClientResult,
    CompleteRequestParams, CompleteResult, ContentBlock, ErrorCode, ErrorData, GetPromptRequestParams,
    GetPromptResponse, GetPromptResult, GetTaskParams, GetTaskResult, Implementation, InitializeResult,
    InputRequiredResult, InputResponses, JsonObject, ListPromptsResult, ListResourceTemplatesResult,
    ListResourcesResult, ListToolsResult, PaginatedRequestParams, ProgressNotificationParam, Prompt,
    ReadResourceRequestParams, ReadResourceResponse, ReadResourceResult, RequestStateCodec, Resource,
    ResourceTemplate, ServerCapabilities, ServerConfig, ServerNotification, ServerRequest,
    SubscribeRequestParams, SubscriptionFilter, Tool, UnsubscribeRequestParams, UpdateTaskParams,
};
use rmcp::service::{RequestContext, SubscriptionContext};
use rmcp::task_manager::TaskManager;
use rmcp::{RoleServer, ServerHandler};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::fixture_tasks;

/// A picture of one red pixel.
const PNG: &str =
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg==";

/// A sound without samples.
const WAV: &str = "UklGRiQAAABXQVZFZm10IBAAAAABAAEAQB8AAEAfAAABAAgAZGF0YQAAAAA=";

/// Time between two notifications of a tool.
const STEP: Duration = Duration::from_millis(50);

/// Tools and what they are for, in the order in which they are listed.
const TOOLS: [(&str, &str); 25] = [
    ("test_simple_text", "Returns a text."),
    ("test_image_content", "Returns a picture."),
    ("test_audio_content", "Returns a sound."),
    ("test_embedded_resource", "Returns a resource."),
    ("test_multiple_content_types", "Returns a text, a picture and a resource."),
    ("test_error_handling", "Fails."),
    ("test_tool_with_progress", "Reports its progress."),
    ("test_tool_with_logging", "Sends messages of a log."),
    ("test_streaming_elicitation", "Needs nothing of the client, and streams."),
    ("test_sampling", "Asks the client's model."),
    ("test_elicitation", "Asks the client's user."),
    ("test_elicitation_sep1034_defaults", "Asks with defaults."),
    ("test_elicitation_sep1330_enums", "Asks with choices."),
    ("test_missing_capability", "Needs the capability sampling."),
    ("test_custom_headers", "Has parameters that are headers too."),
    ("json_schema_2020_12_tool", "Has a schema with definitions."),
    ("test_input_required_result_elicitation", "Needs a name."),
    ("test_input_required_result_sampling", "Needs an answer of a model."),
    ("test_input_required_result_list_roots", "Needs the client's roots."),
    ("test_input_required_result_request_state", "Needs its state back."),
    ("test_input_required_result_multiple_inputs", "Needs three answers."),
    ("test_input_required_result_multi_round", "Needs two rounds."),
    ("test_input_required_result_tampered_state", "Notices changes of its state."),
    ("test_input_required_result_capabilities", "Asks for what the client can do."),
    ("test_logging_tool", "Sends no messages that were not asked for."),
];

/// The fixtures.
#[derive(Clone)]
pub(super) struct Fixtures {
    /// Seals states.
    codec: Arc<RequestStateCodec>,
    tasks: TaskManager,
}

impl Fixtures {
    /// Returns fixtures whose states are sealed with `key`.
    pub(super) fn new(key: [u8; 32]) -> Self {
        Self { codec: Arc::new(RequestStateCodec::new_unchecked(key)), tasks: TaskManager::new() }
    }

    fn seal(&self, step: &str) -> String {
        self.codec.seal(step.as_bytes())
    }

    /// Returns the step of a state that this server has sealed.
    fn open(&self, state: Option<&str>) -> Result<Option<Vec<u8>>, ErrorData> {
        let open = |state: &str| self.codec.open(state);
        let opened = state.map(open).transpose();
        opened.map_err(|_| ErrorData::invalid_params("requestState: it was changed; begin again", None))
    }
}

/// Converts a value that is known to fit.
fn from_json<T: DeserializeOwned>(value: Value) -> Result<T, ErrorData> {
    serde_json::from_value(value).map_err(|error| ErrorData::internal_error(error.to_string(), None))
}

fn text(text: impl Into<String>) -> Result<CallToolResponse, ErrorData> {
    Ok(CallToolResult::success(vec![ContentBlock::text(text)]).into())
}

fn content(blocks: Value) -> Result<CallToolResponse, ErrorData> {
    Ok(CallToolResult::success(from_json(blocks)?).into())
}

fn resource(uri: &str, mime: &str, text: &str) -> Value {
    json!({"type": "resource", "resource": {"uri": uri, "mimeType": mime, "text": text}})
}

fn elicitation(message: &str, properties: Value) -> Value {
    let required: Vec<_> =
        properties.as_object().into_iter().flatten().map(|(name, _)| name.clone()).collect();
    let schema = json!({"type": "object", "properties": properties, "required": required});
    json!({"method": "elicitation/create", "params": {"mode": "form", "message": message, "requestedSchema": schema}})
}

fn sampling(prompt: &str, max_tokens: u32) -> Value {
    let message = json!({"role": "user", "content": {"type": "text", "text": prompt}});
    json!({"method": "sampling/createMessage", "params": {"messages": [message], "maxTokens": max_tokens}})
}

fn roots() -> Value {
    json!({"method": "roots/list", "params": {}})
}

fn input_required(requests: Value, state: Option<String>) -> Result<InputRequiredResult, ErrorData> {
    Ok(InputRequiredResult::new(Some(from_json(requests)?), state))
}

/// Returns the content of an accepted form.
fn accepted<'a>(responses: &'a InputResponses, key: &str) -> Option<&'a JsonObject> {
    let response = responses.get(key)?;
    (response["action"] == "accept").then(|| response["content"].as_object()).flatten()
}

fn schema_of(tool: &str) -> Value {
    match tool {
        "test_sampling" => {
            json!({"type": "object", "properties": {"prompt": {"type": "string"}}, "required": ["prompt"]})
        }
        "test_elicitation" => {
            json!({"type": "object", "properties": {"message": {"type": "string"}}, "required": ["message"]})
        }
        "test_custom_headers" => json!({
            "type": "object",
            "properties": {
                "region": {"type": "string", "x-mcp-header": "Region"},
                "query": {"type": "string"},
            },
            "required": ["region"],
        }),
        "json_schema_2020_12_tool" => json!({
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "type": "object",
            "$defs": {
                "address": {
                    "$anchor": "addressDef",
                    "type": "object",
                    "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
                },
            },
            "properties": {
                "name": {"type": "string"},
                "address": {"$ref": "#/$defs/address"},
                "contactMethod": {"type": "string", "enum": ["phone", "email"]},
                "phone": {"type": "string"},
                "email": {"type": "string"},
            },
            "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
            "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
            "then": {"required": ["phone"]},
            "else": {"required": ["email"]},
            "additionalProperties": false,
        }),
        _ => json!({"type": "object", "properties": {}}),
    }
}

/// Schema with all kinds of choices.
fn choices() -> Value {
    let titled = |one: &str, two: &str, three: &str| json!([{"const": "value1", "title": one}, {"const": "value2", "title": two}, {"const": "value3", "title": three}]);
    let plain = json!(["option1", "option2", "option3"]);
    json!({
        "untitledSingle": {"type": "string", "enum": plain},
        "titledSingle": {"type": "string", "oneOf": titled("First Option", "Second Option", "Third Option")},
        "legacyEnum": {
            "type": "string", "enum": ["opt1", "opt2", "opt3"], "enumNames": ["Option One", "Option Two", "Option Three"],
        },
        "untitledMulti": {"type": "array", "items": {"type": "string", "enum": plain}},
        "titledMulti": {"type": "array", "items": {"anyOf": titled("First Choice", "Second Choice", "Third Choice")}},
    })
}

/// Sends a request to the client of a session, and returns its answer.
async fn ask(context: &RequestContext<RoleServer>, request: Value) -> Result<Value, ErrorData> {
    let request: ServerRequest = from_json(request)?;
    let answer: ClientResult = context
        .peer
        .send_request(request)
        .await
        .map_err(|error| ErrorData::invalid_request(error.to_string(), None))?;
    serde_json::to_value(answer).map_err(|error| ErrorData::internal_error(error.to_string(), None))
}

async fn ask_user(
    context: &RequestContext<RoleServer>,
    request: Value,
    what: &str,
) -> Result<CallToolResponse, ErrorData> {
    let answer = ask(context, request).await?;
    let action = answer["action"].as_str().unwrap_or_default();
    text(format!("{what}: action={action}, content={}", answer["content"]))
}

async fn report_progress(context: &RequestContext<RoleServer>) {
    let token = context.meta.get_progress_token();
    for (index, progress) in [0.0, 50.0, 100.0].into_iter().enumerate() {
        if index > 0 {
            tokio::time::sleep(STEP).await;
        }
        if let Some(token) = &token {
            let param = ProgressNotificationParam::new(token.clone(), progress).with_total(100.0);
            let _ = context.peer.notify_progress(param).await;
        }
    }
}

async fn send_log(context: &RequestContext<RoleServer>) -> Result<(), ErrorData> {
    for (index, line) in
        ["Tool execution started", "Tool processing data", "Tool execution completed"].into_iter().enumerate()
    {
        if index > 0 {
            tokio::time::sleep(STEP).await;
        }
        let notification: ServerNotification =
            from_json(json!({"method": "notifications/message", "params": {"level": "info", "data": line}}))?;
        let _ = context.peer.send_notification(notification).await;
    }
    Ok(())
}

fn missing_capability() -> ErrorData {
    let data = json!({"requiredCapabilities": {"sampling": {}}});
    let what = "this tool needs a client with the capability sampling";
    ErrorData::new(ErrorCode::MISSING_REQUIRED_CLIENT_CAPABILITY, what, Some(data))
}

impl Fixtures {
    /// Calls a tool that answers at once, or not with the same request.
    fn multi_round(
        &self,
        request: &CallToolRequestParams,
        context: &RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let none = BTreeMap::new();
        let responses = request.input_responses.as_ref().unwrap_or(&none);
        let state = self.open(request.request_state.as_deref())?;
        let name = || json!({"name": {"type": "string"}});
        let needs = |requests: Value, state: Option<&str>| {
            Ok(input_required(requests, state.map(|state| self.seal(state)))?.into())
        };
        let what = request.name.strip_prefix("test_input_required_result_").unwrap_or_default();
        match what {
            "elicitation" => {
                match accepted(responses, "user_name").and_then(|form| form.get("name")?.as_str()) {
                    Some(name) => text(format!("Hello, {name}!")),
                    None => needs(json!({"user_name": elicitation("What is your name?", name())}), None),
                }
            }
            "sampling" => match responses.get("capital_question") {
                Some(answer) => text(answer["content"]["text"].as_str().unwrap_or_default()),
                None => {
                    needs(json!({"capital_question": sampling("What is the capital of France?", 100)}), None)
                }
            },
            "list_roots" => match responses.get("client_roots") {
                Some(answer) => text(format!("roots: {}", answer["roots"])),
                None => needs(json!({"client_roots": roots()}), None),
            },
            "request_state" | "tampered_state" => match (accepted(responses, "confirm"), state) {
                (Some(_), Some(_)) => text("state-ok"),
                _ => {
                    let form = elicitation("Please confirm", json!({"ok": {"type": "boolean"}}));
                    needs(json!({ "confirm": form }), Some("confirm"))
                }
            },
            "multiple_inputs" => {
                let keys = ["user_name", "greeting", "client_roots"];
                if state.is_some() && keys.iter().all(|key| responses.contains_key(*key)) {
                    return text("all answers are here");
                }
                let requests = json!({
                    "user_name": elicitation("What is your name?", name()),
                    "greeting": sampling("Generate a greeting", 50),
                    "client_roots": roots(),
                });
                needs(requests, Some("answers"))
            }
            "multi_round" => match state.as_deref() {
                Some(b"two") if accepted(responses, "step2").is_some() => text("both rounds are done"),
                Some(_) if accepted(responses, "step1").is_some() => {
                    let form = elicitation(
                        "Step 2: What is your favorite color?",
                        json!({"color": {"type": "string"}}),
                    );
                    needs(json!({ "step2": form }), Some("two"))
                }
                _ => needs(json!({"step1": elicitation("Step 1: What is your name?", name())}), Some("one")),
            },
            "capabilities" => {
                if !responses.is_empty() {
                    return text("answered");
                }
                let can = context.client_capabilities().unwrap_or_default();
                let mut requests = json!({});
                if can.sampling.is_some() {
                    requests["sample"] = sampling("Generate a greeting", 50);
                }
                if can.elicitation.is_some() {
                    requests["form"] = elicitation("What is your name?", name());
                }
                needs(requests, None)
            }
            _ => Err(unknown("tool", &request.name)),
        }
    }
}

fn unknown(what: &str, name: &str) -> ErrorData {
    ErrorData::invalid_params(format!("unknown {what} {name:?}"), None)
}

impl ServerHandler for Fixtures {
    fn get_info(&self) -> ServerConfig {
        let capabilities = json!({
            "tools": {}, "prompts": {}, "resources": {"subscribe": true}, "completions": {}, "logging": {},
        });
        let mut capabilities: ServerCapabilities = serde_json::from_value(capabilities).unwrap_or_default();
        capabilities.extensions = ServerCapabilities::builder().enable_tasks().build().extensions;
        let info = Implementation::new("belljar-conformance-fixtures", env!("CARGO_PKG_VERSION"));
        InitializeResult::new(capabilities).with_server_info(info)
    }

    async fn list_tools(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let tool = |(name, description): (&'static str, &'static str)| {
            Ok(Tool::new(name, description, from_json::<JsonObject>(schema_of(name))?))
        };
        let all = TOOLS.into_iter().chain(fixture_tasks::TOOLS);
        Ok(ListToolsResult::with_all_items(all.map(tool).collect::<Result<_, ErrorData>>()?))
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        let mut all = TOOLS.into_iter().chain(fixture_tasks::TOOLS);
        let (name, description) = all.find(|(known, _)| *known == name)?;
        Some(Tool::new(name, description, from_json::<JsonObject>(schema_of(name)).ok()?))
    }

    async fn get_task(
        &self,
        request: GetTaskParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<GetTaskResult, ErrorData> {
        self.tasks.get_task(&request.task_id).map(GetTaskResult::new)
    }

    async fn update_task(
        &self,
        request: UpdateTaskParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        self.tasks.update_task(&request.task_id, request.input_responses)
    }

    async fn cancel_task(
        &self,
        request: CancelTaskParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        self.tasks.cancel_task(&request.task_id)
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        if fixture_tasks::TOOLS.iter().any(|(name, _)| *name == request.name) {
            let can = context.client_capabilities().unwrap_or_default();
            return fixture_tasks::call(&self.tasks, &request, &can).await;
        }
        let argument = |name: &str| {
            let value = request.arguments.as_ref().and_then(|arguments| arguments.get(name)?.as_str());
            value.unwrap_or_default().to_owned()
        };
        match request.name.as_ref() {
            "test_simple_text" => text("This is a simple text response for testing."),
            "test_image_content" => content(json!([{"type": "image", "data": PNG, "mimeType": "image/png"}])),
            "test_audio_content" => content(json!([{"type": "audio", "data": WAV, "mimeType": "audio/wav"}])),
            "test_embedded_resource" => content(json!([resource(
                "test://embedded-resource",
                "text/plain",
                "This is an embedded resource content."
            )])),
            "test_multiple_content_types" => content(json!([
                {"type": "text", "text": "Multiple content types test:"},
                {"type": "image", "data": PNG, "mimeType": "image/png"},
                resource("test://mixed-content-resource", "application/json", r#"{"test":"data","value":123}"#),
            ])),
            "test_error_handling" => {
                let why = "This tool intentionally returns an error for testing";
                Ok(CallToolResult::error(vec![ContentBlock::text(why)]).into())
            }
            "test_tool_with_progress" => {
                report_progress(&context).await;
                text("The progress was reported.")
            }
            "test_tool_with_logging" => {
                send_log(&context).await?;
                text("The messages were sent.")
            }
            "test_streaming_elicitation"
            | "test_logging_tool"
            | "test_custom_headers"
            | "json_schema_2020_12_tool" => text("done"),
            "test_sampling" => {
                let answer = ask(&context, sampling(&argument("prompt"), 100)).await?;
                text(format!("LLM response: {}", answer["content"]["text"].as_str().unwrap_or_default()))
            }
            "test_elicitation" => {
                let text = |what: &str| json!({"type": "string", "description": what});
                let properties =
                    json!({"username": text("User's response"), "email": text("User's email address")});
                ask_user(&context, elicitation(&argument("message"), properties), "User response").await
            }
            "test_elicitation_sep1034_defaults" => {
                let properties = json!({
                    "name": {"type": "string", "default": "John Doe"},
                    "age": {"type": "integer", "default": 30},
                    "score": {"type": "number", "default": 95.5},
                    "status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
                    "verified": {"type": "boolean", "default": true},
                });
                ask_user(&context, elicitation("Defaults", properties), "Elicitation completed").await
            }
            "test_elicitation_sep1330_enums" => {
                ask_user(&context, elicitation("Choices", choices()), "Elicitation completed").await
            }
            "test_missing_capability" => match context.client_capabilities().and_then(|can| can.sampling) {
                Some(_) => text("the client has the capability"),
                None => Err(missing_capability()),
            },
            _ => self.multi_round(&request, &context),
        }
    }

    async fn list_prompts(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListPromptsResult, ErrorData> {
        let argument = |name: &str| json!({"name": name, "description": "An argument.", "required": true});
        let prompts: Vec<Prompt> = from_json(json!([
            {"name": "test_simple_prompt", "description": "A text."},
            {"name": "test_prompt_with_arguments", "description": "Two arguments.", "arguments": [argument("arg1"), argument("arg2")]},
            {"name": "test_prompt_with_embedded_resource", "description": "A resource.", "arguments": [argument("resourceUri")]},
            {"name": "test_prompt_with_image", "description": "A picture."},
            {"name": "test_input_required_result_prompt", "description": "Needs a context."},
        ]))?;
        Ok(ListPromptsResult::with_all_items(prompts))
    }

    async fn get_prompt(
        &self,
        request: GetPromptRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<GetPromptResponse, ErrorData> {
        let argument = |name: &str| {
            let value = request.arguments.as_ref().and_then(|arguments| arguments.get(name));
            value.and_then(|value| value.as_str()).unwrap_or_default().to_owned()
        };
        let text = |text: &str| json!({"type": "text", "text": text});
        let contents = match request.name.as_str() {
            "test_simple_prompt" => vec![text("This is a simple prompt for testing.")],
            "test_prompt_with_arguments" => vec![text(&format!(
                "Prompt with arguments: arg1='{}', arg2='{}'",
                argument("arg1"),
                argument("arg2")
            ))],
            "test_prompt_with_embedded_resource" => vec![
                resource(&argument("resourceUri"), "text/plain", "Embedded resource content for testing."),
                text("Please process the embedded resource above."),
            ],
            "test_prompt_with_image" => vec![
                json!({"type": "image", "data": PNG, "mimeType": "image/png"}),
                text("Please analyze the image above."),
            ],
            "test_input_required_result_prompt" => {
                let none = BTreeMap::new();
                let responses = request.input_responses.as_ref().unwrap_or(&none);
                match accepted(responses, "user_context").and_then(|form| form.get("context")?.as_str()) {
                    Some(context) => vec![text(&format!("The context is {context}."))],
                    None => {
                        let form = elicitation(
                            "What context should the prompt use?",
                            json!({"context": {"type": "string"}}),
                        );
                        return Ok(input_required(json!({ "user_context": form }), None)?.into());
                    }
                }
            }
            name => return Err(unknown("prompt", name)),
        };
        let message = |content: Value| json!({"role": "user", "content": content});
        let messages = from_json(contents.into_iter().map(message).collect())?;
        Ok(GetPromptResult::new(messages).into())
    }

    async fn list_resources(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        let resource = |uri: &str, name: &str, mime: &str| {
            Resource::new(uri, name).with_description("A fixture.").with_mime_type(mime)
        };
        Ok(ListResourcesResult::with_all_items(vec![
            resource("test://static-text", "text", "text/plain"),
            resource("test://static-binary", "picture", "image/png"),
            resource("test://watched-resource", "watched", "text/plain"),
        ]))
    }

    async fn list_resource_templates(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        let template = ResourceTemplate::new("test://template/{id}/data", "data");
        let template = template.with_description("A fixture.").with_mime_type("application/json");
        Ok(ListResourceTemplatesResult::with_all_items(vec![template]))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let uri = request.uri.as_str();
        let id = uri.strip_prefix("test://template/").and_then(|rest| rest.strip_suffix("/data"));
        let contents = match (uri, id) {
            ("test://static-text", _) => {
                json!({"uri": uri, "mimeType": "text/plain", "text": "This is the content of the static text resource."})
            }
            ("test://static-binary", _) => json!({"uri": uri, "mimeType": "image/png", "blob": PNG}),
            ("test://watched-resource", _) => {
                json!({"uri": uri, "mimeType": "text/plain", "text": "It never changes."})
            }
            (_, Some(id)) => {
                let data = json!({"id": id, "templateTest": true, "data": format!("Data for ID: {id}")});
                json!({"uri": uri, "mimeType": "application/json", "text": data.to_string()})
            }
            _ => return Err(ErrorData::resource_not_found("resource not found", Some(json!({"uri": uri})))),
        };
        Ok(ReadResourceResult::new(from_json(json!([contents]))?).into())
    }

    async fn complete(
        &self,
        _request: CompleteRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<CompleteResult, ErrorData> {
        from_json(
            json!({"resultType": "complete", "completion": {"values": ["paris", "park", "party"], "total": 3, "hasMore": false}}),
        )
    }

    #[expect(deprecated, reason = "the older revision has it")]
    async fn set_level(
        &self,
        _request: rmcp::model::SetLevelRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        Ok(())
    }

    async fn subscribe(
        &self,
        _request: SubscribeRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        Ok(())
    }

    async fn unsubscribe(
        &self,
        _request: UnsubscribeRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        Ok(())
    }

    fn accepted_subscription_filter(&self, requested: &SubscriptionFilter) -> Option<SubscriptionFilter> {
        Some(requested.clone())
    }

    async fn listen(&self, context: SubscriptionContext) -> Result<(), ErrorData> {
        // Nothing ever changes.
        context.cancelled().await;
        Ok(())
    }
}
