//! File search by name and content.

use axum::extract::State;
use belljar_engine::v1;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::types::{check_path, to_text};
use crate::api::Shared;
use crate::extract::{Auth, Id, Json};
use crate::problem::Problem;

/// Maximum number of matches in one response.
const MAX_MATCHES: u32 = 10_000;

/// Maximum total length of the names and lines in a response, in bytes. The guest decides how long they are.
const MAX_FOUND_BYTES: usize = 4 << 20;

/// Default number of matches in one response.
const DEFAULT_MATCHES: u32 = 1000;

/// Maximum length of the text to search for, in bytes.
const MAX_CONTENT_BYTES: usize = 1024;

/// A file search.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Search, example = json!({"path": "src", "name": "*.py", "content": "import numpy"}))]
pub(super) struct SearchBody {
    /// A directory or file: absolute, or below the home directory. The home directory, if not given.
    path: Option<String>,
    /// A pattern for names, such as `*.py`.
    name: Option<String>,
    /// Text or regular expression to find in lines. Without it, files are found by name alone.
    content: Option<String>,
    /// Whether `content` is a regular expression. `false` if not given.
    regex: Option<bool>,
    /// Whether the case of `content` is ignored. `false` if not given.
    ignore_case: Option<bool>,
    /// Whether hidden files, which begin with a dot, are searched. `false` if not given.
    hidden: Option<bool>,
    /// Maximum number of matches in the response.
    #[schema(minimum = 1, maximum = 10000)]
    limit: Option<u32>,
}

/// Result of a file search.
#[derive(Serialize, ToSchema)]
#[schema(as = Found)]
pub(super) struct FoundBody {
    matches: Vec<MatchBody>,
    /// Whether the result is incomplete: more matches exist than requested, or the search ran out of time.
    truncated: bool,
}

/// A match.
#[derive(Serialize, ToSchema)]
#[schema(as = Match)]
pub(super) struct MatchBody {
    /// Relative to the searched directory.
    path: String,
    /// The path in base64, when it is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    path_base64: Option<String>,
    /// Number of the line, from 1 on.
    #[serde(skip_serializing_if = "Option::is_none")]
    line_number: Option<u64>,
    /// Text of the line, at most 1024 bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<String>,
    /// Position in the line, in bytes, from 1 on.
    #[serde(skip_serializing_if = "Option::is_none")]
    column: Option<u64>,
}

/// Finds files by name and content.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/files/search", tag = "files", request_body = SearchBody,
    params(("id" = String, Path, description = "The sandbox's id or name.")),
    responses((status = 200, description = "The matches.", body = FoundBody)))]
pub(super) async fn search(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Id(id): Id,
    Json(body): Json<SearchBody>,
) -> Result<axum::Json<FoundBody>, Problem> {
    let path = body.path.unwrap_or_else(|| ".".to_owned());
    check_path("path", path.as_bytes())?;
    let limit = super::sandboxes::check_limit("limit", body.limit, DEFAULT_MATCHES, MAX_MATCHES)?;
    if body.content.as_ref().is_some_and(|content| content.len() > MAX_CONTENT_BYTES) {
        return Err(Problem::field("content", format!("it is longer than {MAX_CONTENT_BYTES} bytes")));
    }
    let request = v1::SearchRequest {
        path: path.into(),
        name_glob: body.name.unwrap_or_default().into(),
        content: body.content.unwrap_or_default().into(),
        regex: body.regex.unwrap_or(false),
        ignore_case: body.ignore_case.unwrap_or(false),
        include_hidden: body.hidden.unwrap_or(false),
        max_results: limit,
        ..Default::default()
    };
    let _slot = shared.streams.take(&caller)?;
    let mut search = shared.keeper.begin(&caller, &id, request).await?;
    let (mut matches, mut bytes) = (Vec::new(), 0);
    while let Some(found) = search.next().await? {
        bytes += found.path.len() + found.line.len();
        if bytes > MAX_FOUND_BYTES {
            return Ok(axum::Json(FoundBody { matches, truncated: true }));
        }
        matches.push(MatchBody::from(found));
    }
    let truncated = search.get().summary().is_some_and(|summary| summary.more || summary.timed_out);
    Ok(axum::Json(FoundBody { matches, truncated }))
}

impl From<v1::SearchMatch> for MatchBody {
    fn from(found: v1::SearchMatch) -> Self {
        let (path, path_base64) = to_text(&found.path);
        let is_line = found.line_number > 0;
        Self {
            path,
            path_base64,
            line_number: is_line.then_some(found.line_number),
            line: is_line.then(|| String::from_utf8_lossy(&found.line).into_owned()),
            column: is_line.then_some(found.column),
        }
    }
}
