//! Fixtures of the conformance suite for the extension tasks: tools whose calls become tasks.

use std::time::Duration;

use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ClientCapabilities, ContentBlock,
    CreateTaskResult, ErrorData, InputRequest, JsonObject,
};
use rmcp::task_manager::{TaskContext, TaskExit, TaskManager, TaskOptions};
use serde_json::{Value, json};

/// Tools and what they are for. All but the first are for clients with the extension, which `failing_job` requires.
pub(super) const TOOLS: [(&str, &str); 6] = [
    ("greet", "Greets."),
    ("slow_compute", "Takes a number of seconds."),
    ("failing_job", "Fails, as a task only."),
    ("protocol_error_job", "Ends with an error of the protocol."),
    ("confirm_delete", "Asks the client's user once."),
    ("multi_input", "Asks the client's user twice at the same time."),
];

/// Longest time of a tool, in seconds.
const MAX_SECONDS: f64 = 60.0;

/// Calls a tool, as a task if the client can.
pub(super) async fn call(
    tasks: &TaskManager,
    request: &CallToolRequestParams,
    can: &ClientCapabilities,
) -> Result<CallToolResponse, ErrorData> {
    let name = request.name.to_string();
    let arguments = request.arguments.clone().unwrap_or_default();
    if name == "greet" {
        let who = arguments.get("name").and_then(Value::as_str).unwrap_or_default();
        return Ok(text(format!("Hello, {who}!")).into());
    }
    if can.supports_tasks() {
        let task = tasks.spawn(TaskOptions::new(), |context| {
            Box::pin(async move { run(&name, &arguments, Some(context)).await })
        });
        return Ok(CreateTaskResult::new(task).into());
    }
    if name == "failing_job" {
        return Err(ErrorData::missing_required_client_capability(
            ClientCapabilities::builder().enable_tasks().build(),
        ));
    }
    match run(&name, &arguments, None).await {
        Ok(result) => Ok(result.into()),
        Err(TaskExit::Error(error)) => Err(error),
        Err(TaskExit::Cancelled) => Err(ErrorData::internal_error("the call was cancelled", None)),
    }
}

/// Does the work of a tool.
async fn run(
    name: &str,
    arguments: &JsonObject,
    context: Option<TaskContext>,
) -> Result<CallToolResult, TaskExit> {
    match (name, context) {
        ("slow_compute", context) => {
            let seconds = arguments.get("seconds").and_then(Value::as_f64).unwrap_or_default();
            let working = tokio::time::sleep(Duration::from_secs_f64(seconds.clamp(0.0, MAX_SECONDS)));
            let cancelled = async {
                match &context {
                    Some(context) => context.cancelled().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = working => Ok(text(format!("computed for {seconds} s"))),
                () = cancelled => Err(TaskExit::Cancelled),
            }
        }
        ("failing_job", _) => {
            tokio::time::sleep(Duration::from_secs(1)).await;
            Ok(CallToolResult::error(vec![ContentBlock::text("the job has failed")]))
        }
        ("confirm_delete", Some(context)) => {
            context.request_input("confirm", question("Delete the file?")?).await?;
            Ok(text("deleted"))
        }
        ("multi_input", Some(context)) => {
            let (first, second) = (question("First?")?, question("Second?")?);
            futures::try_join!(
                context.request_input("first", first),
                context.request_input("second", second)
            )?;
            Ok(text("both answers are here"))
        }
        _ => Err(ErrorData::internal_error("this tool ends with an error of the protocol", None).into()),
    }
}

fn text(text: impl Into<String>) -> CallToolResult {
    CallToolResult::success(vec![ContentBlock::text(text)])
}

fn question(message: &str) -> Result<InputRequest, ErrorData> {
    let schema = json!({"type": "object", "properties": {"ok": {"type": "boolean"}}});
    let params = json!({"mode": "form", "message": message, "requestedSchema": schema});
    serde_json::from_value(json!({"method": "elicitation/create", "params": params}))
        .map_err(|error| ErrorData::internal_error(error.to_string(), None))
}
