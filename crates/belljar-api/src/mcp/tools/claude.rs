//! The profile `claude`: tools whose names, arguments and limits are those of Anthropic's agent toolset, which its models know.

use std::collections::HashMap;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use belljar_engine::v1;
use belljar_keeper::{CodeRequest, KeeperError};
use belljar_model::{CodeExecution, CodeStatus, HintReader};
use bytes::Bytes;
use rmcp::model::ContentBlock;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::code::{join_lines, run_code};
use super::files::{Content, check_picture, picture, read, shown, write};
use crate::mcp::call::{Call, Hints, Place, Reply, Tool, output_text};
use crate::problem::{Code, Problem};
use crate::rest::types::check_path;

/// Context of the shell.
const SHELL: &str = "bash";

/// Timeout of a command that names none.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(120);

/// Maximum length of a file that is read without a range, in bytes.
const MAX_READ_BYTES: u64 = 256 << 10;

/// Maximum length of a file that is edited, or read with a range, in bytes.
const MAX_TEXT_BYTES: u64 = 16 << 20;

/// Maximum number of files that a pattern finds, and maximum number of lines of a search.
const MAX_FOUND: usize = 200;

/// Number of entries among which the newest are looked for.
const MAX_SEARCHED: u32 = 10_000;

/// Maximum length of the matches of a search, in bytes.
const MAX_MATCH_BYTES: usize = 100 << 10;

/// Result with the sandbox that was used.
#[derive(Serialize, JsonSchema)]
pub(crate) struct PlacedOutput {
    /// Id of the sandbox, to use in further calls.
    sandbox: String,
    /// Whether the sandbox was created for this call.
    sandbox_created: bool,
}

pub(super) fn placed(place: &Place, mut content: Vec<ContentBlock>, is_error: bool) -> Reply<PlacedOutput> {
    content.extend(place.note());
    let output = PlacedOutput { sandbox: place.id.clone(), sandbox_created: place.created };
    Reply { output, content, is_error }
}

/// Runs commands in one shell.
pub(crate) struct Bash;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct BashInput {
    /// The command. Directory and variables of the shell are kept for the next one.
    command: Option<String>,
    /// Whether to start the shell anew; then there is no command.
    restart: Option<bool>,
    /// Milliseconds after which the command is stopped; 120000 if not given.
    #[schemars(range(min = 1))]
    timeout_ms: Option<u64>,
    /// Id or name of the sandbox; the default one if not given.
    sandbox: Option<String>,
}

impl Tool for Bash {
    const NAME: &'static str = "bash";
    const TITLE: &'static str = "Shell";
    const DESCRIPTION: &'static str = "Runs a command in a shell that is kept, with its directory and variables, for the next command. There is \
         no standard input.";
    const HINTS: Hints = Hints::RUN;
    type Input = BashInput;
    type Output = PlacedOutput;

    async fn run(call: &Call, input: BashInput) -> Result<Reply<PlacedOutput>, Problem> {
        let command = match (input.command, input.restart.unwrap_or(false)) {
            (Some(_), true) => return Err(Problem::field("restart", "give either command or restart")),
            (None, false) => return Err(Problem::field("command", "it is missing; give command or restart")),
            (command, _) => command,
        };
        let place = call.place(input.sandbox).await?;
        let Some(command) = command else {
            match call.shared.keeper.restart_context(&call.caller, &place.id, SHELL).await {
                // A shell that was never used needs no restart.
                Ok(_) | Err(KeeperError::NotFound { what: "context", .. }) => {}
                Err(error) => return Err(error.into()),
            }
            return Ok(placed(&place, vec![ContentBlock::text("the shell was restarted")], false));
        };
        let request = CodeRequest {
            code: command.into(),
            language: Some(SHELL.to_owned()),
            timeout: Some(input.timeout_ms.map_or(DEFAULT_TIMEOUT, |ms| Duration::from_millis(ms.max(1)))),
            hint_reader: HintReader::Model { timeout: "timeout_ms", create: None },
            ..CodeRequest::default()
        };
        let done = run_code(call, &place.id, request).await?;
        let is_error = done.exit_status() != 0;
        Ok(placed(&place, vec![ContentBlock::text(command_text(&done))], is_error))
    }
}

fn command_text(done: &CodeExecution) -> String {
    let (stdout, stderr) = (output_text(&done.stdout), output_text(&done.stderr));
    let ended = match (done.status, done.exit_code) {
        (CodeStatus::Ok, _) => None,
        (CodeStatus::Error | CodeStatus::Died, Some(code)) => Some(format!("exit status {code}")),
        (status, _) => Some(status.as_str().to_owned()),
    };
    let ended = ended.map(|ended| format!("[{ended}]"));
    let parts = [Some(stdout), Some(stderr), ended, done.reason.clone(), done.hint.clone()];
    let text = join_lines(parts.iter().flatten().map(String::as_str));
    if text.is_empty() { "[no output]".to_owned() } else { text }
}

/// Reads a file.
pub(crate) struct Read;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReadInput {
    /// The file.
    file_path: String,
    /// First and last line, from 1; a last one of -1 is the end of the file. All lines if not given.
    view_range: Option<[i64; 2]>,
    /// Id or name of the sandbox; the default one if not given.
    sandbox: Option<String>,
}

impl Tool for Read {
    const NAME: &'static str = "read";
    const TITLE: &'static str = "Read a file";
    const DESCRIPTION: &'static str =
        "Reads a file of text, of at most 256 KiB unless a range of lines is given, or a picture.";
    const HINTS: Hints = Hints::READ;
    type Input = ReadInput;
    type Output = PlacedOutput;

    async fn run(call: &Call, input: ReadInput) -> Result<Reply<PlacedOutput>, Problem> {
        let place = call.place(input.sandbox).await?;
        let mut content = read(call, &place.id, &input.file_path, 0, MAX_TEXT_BYTES).await?;
        if let Some(mime) = picture(&content.bytes).filter(|_| !content.truncated) {
            check_picture("file_path", content.bytes.len())?;
            let block = ContentBlock::image(STANDARD.encode(&content.bytes), mime);
            return Ok(placed(&place, vec![block], false));
        }
        let is_long = content.bytes.len() as u64 > MAX_READ_BYTES;
        let text = to_text(&input.file_path, &mut content)?;
        let text = match input.view_range {
            Some(range) => lines(&text, range)?,
            None if is_long => {
                let detail = format!(
                    "file_path: {} has {} bytes; at most {MAX_READ_BYTES} are read at once, so give view_range",
                    input.file_path,
                    text.len()
                );
                return Err(Problem::new(Code::TooLarge, detail).with_field("file_path"));
            }
            None => text,
        };
        Ok(placed(&place, vec![ContentBlock::text(text)], false))
    }
}

/// Takes the text of a file.
pub(super) fn to_text(path: &str, content: &mut Content) -> Result<String, Problem> {
    if content.truncated {
        let detail = format!("{path} has more than {MAX_TEXT_BYTES} bytes; use a command for it");
        return Err(Problem::new(Code::TooLarge, detail));
    }
    String::from_utf8(std::mem::take(&mut content.bytes))
        .map_err(|_| Problem::new(Code::InvalidField, format!("{path} is no text in UTF-8")))
}

/// Returns a range of lines.
fn lines(text: &str, [first, last]: [i64; 2]) -> Result<String, Problem> {
    let skip = usize::try_from(first).ok().and_then(|first| first.checked_sub(1));
    let count = match last {
        -1 => Some(usize::MAX),
        last => usize::try_from(last - first.min(last)).ok().filter(|_| last >= first).map(|more| more + 1),
    };
    let (Some(skip), Some(count)) = (skip, count) else {
        let reason =
            format!("[{first}, {last}] is not allowed; give the first line, from 1, and the last one or -1");
        return Err(Problem::field("view_range", reason));
    };
    let text: String = text.split_inclusive('\n').skip(skip).take(count).collect();
    match u64::try_from(text.len()).is_ok_and(|length| length <= MAX_READ_BYTES) {
        true => Ok(text),
        false => Err(Problem::field("view_range", format!("it has {} bytes; give fewer lines", text.len()))),
    }
}

/// Writes a file.
pub(crate) struct Write;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct WriteInput {
    /// The file. Missing directories are created, and an existing file is replaced.
    file_path: String,
    /// Its content.
    content: String,
    /// Id or name of the sandbox; the default one if not given.
    sandbox: Option<String>,
}

impl Tool for Write {
    const NAME: &'static str = "write";
    const TITLE: &'static str = "Write a file";
    const DESCRIPTION: &'static str = "Writes a file of text.";
    const HINTS: Hints = Hints::WRITE;
    type Input = WriteInput;
    type Output = PlacedOutput;

    async fn run(call: &Call, input: WriteInput) -> Result<Reply<PlacedOutput>, Problem> {
        let place = call.place(input.sandbox).await?;
        let size = write(call, &place.id, &input.file_path, input.content.into(), false).await?;
        Ok(placed(
            &place,
            vec![ContentBlock::text(format!("wrote {}, {size} bytes", input.file_path))],
            false,
        ))
    }
}

/// Edits a file.
pub(crate) struct Edit;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct EditInput {
    /// The file.
    file_path: String,
    /// The text to replace, which occurs once in the file.
    old_string: String,
    /// The text to replace it with.
    new_string: String,
    /// Whether to replace every occurrence; false if not given.
    replace_all: Option<bool>,
    /// Id or name of the sandbox; the default one if not given.
    sandbox: Option<String>,
}

impl Tool for Edit {
    const NAME: &'static str = "edit";
    const TITLE: &'static str = "Edit a file";
    const DESCRIPTION: &'static str =
        "Replaces a text in a file. It must occur exactly once, unless every occurrence is replaced.";
    const HINTS: Hints = Hints { repeats: false, ..Hints::WRITE };
    type Input = EditInput;
    type Output = PlacedOutput;

    async fn run(call: &Call, input: EditInput) -> Result<Reply<PlacedOutput>, Problem> {
        let place = call.place(input.sandbox.clone()).await?;
        let mut content = read(call, &place.id, &input.file_path, 0, MAX_TEXT_BYTES).await?;
        let text = to_text(&input.file_path, &mut content)?;
        let count = occurrences(&text, &input.old_string, input.replace_all.unwrap_or(false))?;
        let length = edited_length(&text, &input, count)?;
        let _held = call.hold(length)?;
        let text = text.replace(&input.old_string, &input.new_string);
        write(call, &place.id, &input.file_path, text.into(), false).await?;
        let text = format!("edited {}, {count} replaced", input.file_path);
        Ok(placed(&place, vec![ContentBlock::text(text)], false))
    }
}

/// Returns the length of an edited text, which is bounded before it is made.
fn edited_length(text: &str, input: &EditInput, count: usize) -> Result<usize, Problem> {
    let removed = input.old_string.len().saturating_mul(count);
    let length =
        text.len().saturating_sub(removed).saturating_add(input.new_string.len().saturating_mul(count));
    match u64::try_from(length).is_ok_and(|length| length <= MAX_TEXT_BYTES) {
        true => Ok(length),
        false => {
            let detail = format!(
                "new_string: with {count} replaced, {} has {length} bytes; at most {MAX_TEXT_BYTES} are allowed",
                input.file_path
            );
            Err(Problem::new(Code::TooLarge, detail).with_field("new_string"))
        }
    }
}

/// Returns how often a text is to be replaced: once, or all that there are.
fn occurrences(text: &str, old: &str, all: bool) -> Result<usize, Problem> {
    if old.is_empty() {
        return Err(Problem::field("old_string", "it is empty; use write to make a file"));
    }
    match text.matches(old).count() {
        0 => Err(Problem::field(
            "old_string",
            "it is not in the file; read the file, and give it exactly as it is there",
        )),
        count if count > 1 && !all => {
            let reason =
                format!("it is in the file {count} times; give more of its surroundings, or replace_all");
            Err(Problem::field("old_string", reason))
        }
        count => Ok(count),
    }
}

/// Finds files by name.
pub(crate) struct Glob;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct GlobInput {
    /// The pattern, such as `*.py` or `src/**/*.rs`.
    pattern: String,
    /// The directory to search; the home directory if not given.
    path: Option<String>,
    /// Id or name of the sandbox; the default one if not given.
    sandbox: Option<String>,
}

impl Tool for Glob {
    const NAME: &'static str = "glob";
    const TITLE: &'static str = "Find files";
    const DESCRIPTION: &'static str =
        "Finds files by a pattern of their paths, the newest first, at most 200.";
    const HINTS: Hints = Hints::READ;
    type Input = GlobInput;
    type Output = PlacedOutput;

    async fn run(call: &Call, input: GlobInput) -> Result<Reply<PlacedOutput>, Problem> {
        if input.pattern.is_empty() {
            return Err(Problem::field("pattern", "it is empty; give one such as *.py"));
        }
        let path = directory(input.path)?;
        let place = call.place(input.sandbox).await?;
        let request = v1::SearchRequest {
            path: path.clone(),
            name_glob: input.pattern.into(),
            max_results: MAX_SEARCHED,
            ..Default::default()
        };
        let (found, more) = search(call, &place, request, usize::MAX).await?;
        let times = times(call, &place, path).await?;
        let mut files: Vec<_> = found
            .into_iter()
            .filter(|found| found.kind.as_known() == Some(v1::FileKind::FILE_KIND_FILE))
            .map(|found| (times.get(&found.path).copied().unwrap_or(i64::MIN), found.path))
            .collect();
        files.sort_by(|(one, name), (other, next)| other.cmp(one).then_with(|| name.cmp(next)));
        let more = more || files.len() > MAX_FOUND;
        files.truncate(MAX_FOUND);
        let paths: Vec<_> = files.iter().map(|(_, path)| shown(&String::from_utf8_lossy(path))).collect();
        let mut text = paths.join("\n");
        if text.is_empty() {
            text.push_str("no files found");
        }
        if more {
            text.push_str("\n[more files; give a narrower pattern]");
        }
        Ok(placed(&place, vec![ContentBlock::text(text)], false))
    }
}

fn directory(path: Option<String>) -> Result<Bytes, Problem> {
    let path = path.unwrap_or_else(|| ".".to_owned());
    check_path("path", path.as_bytes())?;
    Ok(path.into())
}

/// Returns what a search finds, of at most `max_bytes`, and whether there is more.
async fn search(
    call: &Call,
    place: &Place,
    request: v1::SearchRequest,
    max_bytes: usize,
) -> Result<(Vec<v1::SearchMatch>, bool), Problem> {
    let mut search = call.shared.keeper.begin(&call.caller, &place.id, request).await?;
    let (mut matches, mut bytes) = (Vec::new(), 0);
    while let Some(found) = search.next().await? {
        bytes += found.path.len() + found.line.len();
        if bytes > max_bytes {
            return Ok((matches, true));
        }
        matches.push(found);
    }
    let more = search.get().summary().is_some_and(|summary| summary.more || summary.timed_out);
    Ok((matches, more))
}

/// Returns the times of change of the files below a directory.
async fn times(call: &Call, place: &Place, path: Bytes) -> Result<HashMap<Bytes, i64>, Problem> {
    const MAX_DEPTH: u32 = 64;
    let request = v1::ListRequest { path, depth: MAX_DEPTH, limit: MAX_SEARCHED, ..Default::default() };
    let listed = call.shared.keeper.perform(&call.caller, &place.id, request).await?;
    Ok(listed.entries.into_iter().map(|entry| (entry.path, entry.modified_ns)).collect())
}

/// Finds lines.
pub(crate) struct Grep;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct GrepInput {
    /// The regular expression.
    pattern: String,
    /// The file or directory to search; the home directory if not given.
    path: Option<String>,
    /// Id or name of the sandbox; the default one if not given.
    sandbox: Option<String>,
}

impl Tool for Grep {
    const NAME: &'static str = "grep";
    const TITLE: &'static str = "Find lines";
    const DESCRIPTION: &'static str = "Finds lines of files by a regular expression.";
    const HINTS: Hints = Hints::READ;
    type Input = GrepInput;
    type Output = PlacedOutput;

    async fn run(call: &Call, input: GrepInput) -> Result<Reply<PlacedOutput>, Problem> {
        const MAX_PATTERN_BYTES: usize = 1024;
        if !(1..=MAX_PATTERN_BYTES).contains(&input.pattern.len()) {
            let reason = format!("it has {} bytes; give 1 to {MAX_PATTERN_BYTES}", input.pattern.len());
            return Err(Problem::field("pattern", reason));
        }
        let path = directory(input.path)?;
        let named = String::from_utf8_lossy(&path).into_owned();
        let place = call.place(input.sandbox).await?;
        let request = v1::SearchRequest {
            path,
            content: input.pattern.into(),
            regex: true,
            max_results: MAX_SEARCHED,
            ..Default::default()
        };
        let (found, more) = search(call, &place, request, MAX_MATCH_BYTES).await?;
        let line = |found: &v1::SearchMatch| {
            // A searched file is named by the call.
            let path = String::from_utf8_lossy(&found.path);
            let path = if path.is_empty() { named.as_str().into() } else { path };
            format!("{}:{}:{}\n", shown(&path), found.line_number, String::from_utf8_lossy(&found.line))
        };
        let mut text: String = found.iter().map(line).collect();
        if text.is_empty() {
            text.push_str("no lines found");
        }
        if more {
            text.push_str("[more lines; give a narrower pattern or path]");
        }
        Ok(placed(&place, vec![ContentBlock::text(text)], false))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_lines() {
        let lines = |range| lines("a\nb\nc", range).map_err(|problem| problem.detail().to_owned());
        assert_eq!(lines([1, 2]).as_deref(), Ok("a\nb\n"));
        assert_eq!(lines([2, -1]).as_deref(), Ok("b\nc"));
        assert_eq!(lines([3, 9]).as_deref(), Ok("c"));
        assert_eq!(lines([4, 9]).as_deref(), Ok(""));
        for range in [[0, 1], [-1, 1], [2, 1], [i64::MAX, -2], [1, -2]] {
            assert!(lines(range).unwrap_err().starts_with("view_range: "), "{range:?}");
        }
    }

    #[test]
    fn edits_are_unique() {
        let count = |old, all| occurrences("a b a", old, all).map_err(|problem| problem.detail().to_owned());
        assert_eq!(count("b", false), Ok(1));
        assert_eq!(count("a", true), Ok(2));
        assert!(count("a", false).unwrap_err().starts_with("old_string: it is in the file 2 times"));
        assert!(count("x", true).unwrap_err().starts_with("old_string: it is not in the file"));
        assert!(count("", true).unwrap_err().starts_with("old_string: it is empty"));
    }

    #[test]
    fn edited_files_are_bounded_before_they_are_made() {
        let input = |new: usize| EditInput {
            file_path: "f".to_owned(),
            old_string: "a".to_owned(),
            new_string: "b".repeat(new),
            replace_all: Some(true),
            sandbox: None,
        };
        let text = "a".repeat(1 << 20);
        assert_eq!(edited_length(&text, &input(16), 1 << 20).unwrap(), 16 << 20);
        let refused = edited_length(&text, &input(17), 1 << 20).unwrap_err();
        assert_eq!((refused.code(), refused.detail().contains("17825792 bytes")), (Code::TooLarge, true));
    }
}
