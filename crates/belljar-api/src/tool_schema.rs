//! Descriptions of stored tools for models, in the forms of several interfaces, from the same data.

use belljar_model::ToolFile;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

/// Whose form a description has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Dialect {
    /// OpenAI: a function of the Responses interface.
    Openai,
    /// Anthropic: a tool of the Messages interface.
    Anthropic,
    /// The Model Context Protocol.
    Mcp,
}

/// Returns the JSON schema of a tool's arguments.
pub(crate) fn input_schema(tool: &ToolFile) -> Map<String, Value> {
    let seconds = tool.timeout.duration().as_secs_f64();
    let languages = &tool.languages;
    let first = languages.first().map(String::as_str).unwrap_or_default();
    let schema = json!({
        "type": "object",
        "properties": {
            "code": {"type": "string", "description": "The code to run."},
            "language": {
                "type": "string", "enum": languages,
                "description": format!("Language of the code; {first} if not given."),
            },
            "timeout": {
                "type": "number", "exclusiveMinimum": 0, "maximum": seconds,
                "description": format!("Seconds after which the code is stopped; {seconds} if not given."),
            },
            "files": {
                "type": "object", "additionalProperties": {"type": "string"},
                "description": "Files to write before the code runs: their content by their path below the home directory.",
            },
        },
        "required": ["code"],
        "additionalProperties": false,
    });
    match schema {
        Value::Object(schema) => schema,
        _ => Map::new(),
    }
}

/// Returns the description of a tool in a form.
pub(crate) fn schema_for(tool: &ToolFile, dialect: Dialect) -> Value {
    let (name, description, schema) = (&tool.name, &tool.description, input_schema(tool));
    match dialect {
        // Strict schemas would need every argument in each call.
        Dialect::Openai => json!({
            "type": "function", "name": name, "description": description, "parameters": schema, "strict": false,
        }),
        Dialect::Anthropic => json!({"name": name, "description": description, "input_schema": schema}),
        Dialect::Mcp => json!({"name": name, "description": description, "inputSchema": schema}),
    }
}
