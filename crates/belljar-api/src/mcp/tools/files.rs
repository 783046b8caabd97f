//! `read_file`, `write_file` and `list_directory`.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use belljar_engine::v1;
use belljar_keeper::operation::Write;
use belljar_model::is_directional;
use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream;
use rmcp::model::ContentBlock;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::guard::Held;
use crate::mcp::call::{Call, Hints, Reply, Tool};
use crate::problem::{Code, Problem};
use crate::rest::types::{EncodedBytes, FileKind, check_path, decode_base64, to_text};

/// Maximum number of bytes of a file in one answer. Source: docs/spec.md; held by `mcp::files_are_read_in_parts`.
pub(crate) const MAX_READ_BYTES: u64 = 1 << 20;

/// Maximum number of entries of a directory in one answer. Source: docs/spec.md.
const MAX_ENTRIES: u32 = 1000;

/// Maximum depth of a listing.
const MAX_DEPTH: u32 = 16;

/// Reads a file.
pub(crate) struct ReadFile;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReadFileInput {
    /// The file: absolute, or below the home directory.
    path: String,
    /// Byte to begin at; 0 if not given.
    offset: Option<u64>,
    /// Bytes to read, at most 1 MiB, which it is if not given.
    #[schemars(range(min = 1, max = 1_048_576))]
    limit: Option<u64>,
    /// Id or name of the sandbox; the default one if not given.
    sandbox: Option<String>,
}

/// A file, or a part of it.
#[derive(Serialize, JsonSchema)]
pub(crate) struct ReadFileOutput {
    /// Id of the sandbox.
    sandbox: String,
    /// Whether the sandbox was created for this call.
    sandbox_created: bool,
    /// The file.
    path: String,
    /// Its length in bytes; 0 for files whose length the system does not know.
    size: u64,
    /// Byte at which this part begins.
    offset: u64,
    /// Bytes of this part.
    bytes: u64,
    /// Whether the file goes on after this part.
    truncated: bool,
    /// Encoding of the content: `utf-8` or `base64`; `image` if it is a picture in the answer's content.
    encoding: String,
    /// The content, unless it is a picture.
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<String>,
}

/// Content of a file.
pub(crate) struct Content {
    /// Length of the file, in bytes.
    pub(crate) size: u64,
    /// The bytes.
    pub(crate) bytes: Vec<u8>,
    /// Whether the file goes on.
    pub(crate) truncated: bool,
    /// Counts the bytes while they are used.
    _held: Vec<Held>,
}

/// Reads at most `limit` bytes of a file.
pub(crate) async fn read(
    call: &Call,
    sandbox: &str,
    path: &str,
    offset: u64,
    limit: u64,
) -> Result<Content, Problem> {
    check_path("path", path.as_bytes())?;
    // One byte more shows whether the file goes on, also where it has no known length.
    let path = Bytes::copy_from_slice(path.as_bytes());
    let request = v1::ReadRequest { path, offset, length: limit + 1, ..Default::default() };
    let mut download = call.shared.keeper.begin(&call.caller, sandbox, request).await?;
    let size = download.get().entry.size;
    let (mut bytes, mut held) = (Vec::new(), Vec::new());
    while let Some(piece) = download.next().await? {
        held.push(call.hold(piece.len())?);
        bytes.extend_from_slice(&piece);
        if u64::try_from(bytes.len()).is_ok_and(|length| length > limit) {
            break;
        }
    }
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let truncated = bytes.len() > limit;
    bytes.truncate(limit);
    Ok(Content { size, bytes, truncated, _held: held })
}

/// Returns the MIME type of a picture that clients show, by its first bytes.
pub(crate) fn picture(bytes: &[u8]) -> Option<&'static str> {
    let signatures: [(&[u8], &str); 4] = [
        (b"\x89PNG\r\n\x1a\n", "image/png"),
        (b"\xff\xd8\xff", "image/jpeg"),
        (b"GIF8", "image/gif"),
        (b"RIFF", "image/webp"),
    ];
    let found = signatures.iter().find(|(signature, _)| bytes.starts_with(signature))?;
    (found.1 != "image/webp" || bytes.get(8..12) == Some(b"WEBP")).then_some(found.1)
}

/// Maximum length of a picture that is shown, in bytes, which is that of Anthropic's API.
const MAX_PICTURE_BYTES: usize = 5 << 20;

/// Checks that a picture is not too large to be shown. `field` names it.
pub(super) fn check_picture(field: &'static str, length: usize) -> Result<(), Problem> {
    if length <= MAX_PICTURE_BYTES {
        return Ok(());
    }
    let detail = format!(
        "{field}: the picture has {length} bytes; at most {MAX_PICTURE_BYTES} are shown, so make it smaller"
    );
    Err(Problem::new(Code::TooLarge, detail).with_field(field))
}

impl Tool for ReadFile {
    const NAME: &'static str = "read_file";
    const TITLE: &'static str = "Read a file";
    const DESCRIPTION: &'static str = "Reads a file of a sandbox, at most 1 MiB at once. Pictures are returned as such, other binary files in base64.";
    const HINTS: Hints = Hints::READ;
    type Input = ReadFileInput;
    type Output = ReadFileOutput;

    async fn run(call: &Call, input: ReadFileInput) -> Result<Reply<ReadFileOutput>, Problem> {
        let offset = input.offset.unwrap_or(0);
        let limit = input.limit.unwrap_or(MAX_READ_BYTES);
        if !(1..=MAX_READ_BYTES).contains(&limit) {
            return Err(Problem::field(
                "limit",
                format!("{limit} is not allowed; give 1 to {MAX_READ_BYTES}"),
            ));
        }
        let place = call.place(input.sandbox).await?;
        let read = read(call, &place.id, &input.path, offset, limit).await?;
        let Content { size, bytes, truncated, .. } = &read;
        let (size, truncated) = (*size, *truncated);
        let length = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        let (encoding, content, block) = match picture(bytes).filter(|_| offset == 0 && !truncated) {
            Some(mime) => ("image", None, ContentBlock::image(STANDARD.encode(bytes), mime)),
            None => {
                let EncodedBytes { encoding, data } = EncodedBytes::new(whole_characters(bytes, truncated));
                (encoding, Some(data.clone()), ContentBlock::text(data))
            }
        };
        let mut blocks = vec![block];
        if truncated {
            let next = offset.saturating_add(length);
            blocks.push(ContentBlock::text(format!("[{size} bytes in all; go on with offset {next}]")));
        }
        blocks.extend(place.note());
        let output = ReadFileOutput {
            sandbox: place.id,
            sandbox_created: place.created,
            path: input.path,
            size,
            offset,
            bytes: length,
            truncated,
            encoding: encoding.to_owned(),
            content,
        };
        Ok(Reply { output, content: blocks, is_error: false })
    }
}

/// Returns the bytes without the character that the end of a part has split.
fn whole_characters(bytes: &[u8], truncated: bool) -> &[u8] {
    match std::str::from_utf8(bytes) {
        Err(error) if truncated && error.error_len().is_none() => {
            bytes.get(..error.valid_up_to()).unwrap_or(bytes)
        }
        _ => bytes,
    }
}

/// Writes a file.
pub(crate) struct WriteFile;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct WriteFileInput {
    /// The file: absolute, or below the home directory. Missing directories are created.
    path: String,
    /// Its content.
    content: String,
    /// Encoding of `content`; utf-8 if not given.
    encoding: Option<ContentEncoding>,
    /// Whether to add to the end of the file instead of replacing it; false if not given.
    append: Option<bool>,
    /// Id or name of the sandbox; the default one if not given.
    sandbox: Option<String>,
}

/// Encoding of content in arguments.
#[derive(Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
pub(crate) enum ContentEncoding {
    /// Text.
    #[serde(rename = "utf-8")]
    Utf8,
    /// Base64.
    #[serde(rename = "base64")]
    Base64,
}

/// A written file.
#[derive(Serialize, JsonSchema)]
pub(crate) struct WriteFileOutput {
    /// Id of the sandbox.
    sandbox: String,
    /// Whether the sandbox was created for this call.
    sandbox_created: bool,
    /// The file.
    path: String,
    /// Its length in bytes.
    size: u64,
}

/// Writes a file, and returns its length.
pub(crate) async fn write(
    call: &Call,
    sandbox: &str,
    path: &str,
    content: Bytes,
    append: bool,
) -> Result<u64, Problem> {
    check_path("path", path.as_bytes())?;
    let open = v1::WriteOpen {
        path: Bytes::copy_from_slice(path.as_bytes()),
        make_parents: true,
        append,
        ..Default::default()
    };
    let content = stream::iter([Ok(content)]).boxed();
    Ok(call.shared.keeper.perform(&call.caller, sandbox, Write::new(open, content)).await?.size)
}

impl Tool for WriteFile {
    const NAME: &'static str = "write_file";
    const TITLE: &'static str = "Write a file";
    const DESCRIPTION: &'static str = "Writes a file of a sandbox, or adds to its end. Missing directories are created, and an existing file is replaced.";
    const HINTS: Hints = Hints::WRITE;
    type Input = WriteFileInput;
    type Output = WriteFileOutput;

    async fn run(call: &Call, input: WriteFileInput) -> Result<Reply<WriteFileOutput>, Problem> {
        let content = match input.encoding {
            Some(ContentEncoding::Base64) => decode_base64("content", &input.content)?,
            Some(ContentEncoding::Utf8) | None => input.content.into(),
        };
        let place = call.place(input.sandbox).await?;
        let size = write(call, &place.id, &input.path, content, input.append.unwrap_or(false)).await?;
        let mut content = vec![ContentBlock::text(format!("{}: {size} bytes", input.path))];
        content.extend(place.note());
        let output =
            WriteFileOutput { sandbox: place.id, sandbox_created: place.created, path: input.path, size };
        Ok(Reply { output, content, is_error: false })
    }
}

/// Lists a directory.
pub(crate) struct ListDirectory;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ListDirectoryInput {
    /// The directory: absolute, or below the home directory, which it is if not given.
    path: Option<String>,
    /// Levels to list; 1, the directory's own entries, if not given.
    #[schemars(range(min = 1, max = 16))]
    depth: Option<u32>,
    /// Id or name of the sandbox; the default one if not given.
    sandbox: Option<String>,
}

/// Entries of a directory.
#[derive(Serialize, JsonSchema)]
pub(crate) struct ListDirectoryOutput {
    /// Id of the sandbox.
    sandbox: String,
    /// Whether the sandbox was created for this call.
    sandbox_created: bool,
    /// The directory.
    path: String,
    /// Its entries, in the order of their paths.
    entries: Vec<DirectoryEntry>,
    /// Whether it has more than the 1000 entries that are listed.
    truncated: bool,
}

/// An entry of a directory.
#[derive(Serialize, JsonSchema)]
pub(crate) struct DirectoryEntry {
    /// Path, relative to the directory.
    path: String,
    /// `file`, `directory`, `symlink`, `fifo`, `socket` or `device`.
    kind: String,
    /// Its length in bytes.
    size: u64,
}

impl Tool for ListDirectory {
    const NAME: &'static str = "list_directory";
    const TITLE: &'static str = "List a directory";
    const DESCRIPTION: &'static str = "Lists the files and directories in a directory of a sandbox.";
    const HINTS: Hints = Hints::READ;
    type Input = ListDirectoryInput;
    type Output = ListDirectoryOutput;

    async fn run(call: &Call, input: ListDirectoryInput) -> Result<Reply<ListDirectoryOutput>, Problem> {
        let path = input.path.unwrap_or_else(|| ".".to_owned());
        check_path("path", path.as_bytes())?;
        let depth = input.depth.unwrap_or(1);
        if !(1..=MAX_DEPTH).contains(&depth) {
            return Err(Problem::field("depth", format!("{depth} is not allowed; give 1 to {MAX_DEPTH}")));
        }
        let place = call.place(input.sandbox).await?;
        let request = v1::ListRequest {
            path: Bytes::copy_from_slice(path.as_bytes()),
            depth,
            limit: MAX_ENTRIES,
            ..Default::default()
        };
        let listed = call.shared.keeper.perform(&call.caller, &place.id, request).await?;
        let truncated = !listed.next.is_empty();
        let entries: Vec<_> = listed.entries.into_iter().map(to_entry).collect();
        let line = |entry: &DirectoryEntry| match entry.kind.as_str() {
            "directory" => format!("{}/\n", shown(&entry.path)),
            "file" => format!("{} ({} bytes)\n", shown(&entry.path), entry.size),
            kind => format!("{} ({kind})\n", shown(&entry.path)),
        };
        let mut text: String = entries.iter().map(line).collect();
        if entries.is_empty() {
            text.push_str("[empty]");
        }
        if truncated {
            text.push_str("[more entries; list a directory below]");
        }
        let mut content = vec![ContentBlock::text(text)];
        content.extend(place.note());
        let output = ListDirectoryOutput {
            sandbox: place.id,
            sandbox_created: place.created,
            path,
            entries,
            truncated,
        };
        Ok(Reply { output, content, is_error: false })
    }
}

/// Returns a name of a file as one line that a model cannot take for anything else: what a terminal interprets, line ends and marks of
/// direction are replaced. Lists of names have them as they are in their structured part.
pub(super) fn shown(name: &str) -> String {
    let replace = |one: char| match one.is_control() || is_directional(one) {
        true => char::REPLACEMENT_CHARACTER,
        false => one,
    };
    name.chars().map(replace).collect()
}

fn to_entry(entry: v1::Entry) -> DirectoryEntry {
    let kind = match FileKind::from(entry.kind.as_known().unwrap_or_default()) {
        FileKind::File => "file",
        FileKind::Directory => "directory",
        FileKind::Symlink => "symlink",
        FileKind::Fifo => "fifo",
        FileKind::Socket => "socket",
        FileKind::Device => "device",
    };
    DirectoryEntry { path: to_text(&entry.path).0, kind: kind.to_owned(), size: entry.size }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_end_with_whole_characters() {
        for (bytes, truncated, expected) in [
            (b"a\xc3\xbc".as_slice(), true, b"a\xc3\xbc".as_slice()),
            (b"a\xc3", true, b"a"),
            (b"a\xc3", false, b"a\xc3"),
            (b"a\xffb\xc3", true, b"a\xffb\xc3"),
        ] {
            assert_eq!(whole_characters(bytes, truncated), expected);
        }
    }

    #[test]
    fn names_are_one_line() {
        assert_eq!(
            shown("a\nb\u{1b}[2J\u{202e}c\u{85}\u{fc}"),
            "a\u{fffd}b\u{fffd}[2J\u{fffd}c\u{fffd}\u{fc}"
        );
    }

    #[test]
    fn pictures_are_recognized() {
        assert_eq!(picture(b"\x89PNG\r\n\x1a\n..."), Some("image/png"));
        assert_eq!(picture(b"RIFF0000WEBP"), Some("image/webp"));
        assert_eq!(picture(b"RIFF0000WAVE"), None);
        assert_eq!(picture(b"text"), None);
    }
}
