//! Bytes in JSON.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::Serialize;
use utoipa::ToSchema;

use crate::problem::Problem;

/// Maximum length of a path, in bytes (PATH_MAX, path_resolution(7)).
const MAX_PATH_BYTES: usize = 4096;

/// Bytes: as text if they are UTF-8, in base64 if not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct EncodedBytes {
    /// Encoding of `data`: `utf-8` or `base64`.
    #[schema(example = "utf-8")]
    pub(crate) encoding: &'static str,
    /// The bytes.
    #[schema(example = "hello\n")]
    pub(crate) data: String,
}

impl EncodedBytes {
    pub(crate) fn new(bytes: &[u8]) -> Self {
        match std::str::from_utf8(bytes) {
            Ok(text) => Self { encoding: "utf-8", data: text.to_owned() },
            Err(_) => Self { encoding: "base64", data: STANDARD.encode(bytes) },
        }
    }
}

/// Decodes base64.
///
/// # Errors
/// Fails, naming the field, if the text is not base64.
pub(crate) fn decode_base64(field: &str, text: &str) -> Result<Bytes, Problem> {
    let bytes = STANDARD
        .decode(text)
        .map_err(|_| Problem::field(field, "it is not base64 (with + and /, padded)"))?;
    Ok(bytes.into())
}

/// Returns the path from the two parameters that may contain it.
///
/// # Errors
/// Fails if both or neither are given, or if the path is invalid.
pub(crate) fn parse_path(
    path: Option<String>,
    base64: Option<&str>,
    default: Option<&str>,
) -> Result<Bytes, Problem> {
    let path = match (path, base64) {
        (Some(_), Some(_)) => return Err(Problem::field("path_base64", "give either path or path_base64")),
        (Some(path), None) => Bytes::from(path),
        (None, Some(text)) => decode_base64("path_base64", text)?,
        (None, None) => match default {
            Some(default) => Bytes::copy_from_slice(default.as_bytes()),
            None => {
                return Err(Problem::field(
                    "path",
                    "it is missing; give a path, absolute or below the home directory",
                ));
            }
        },
    };
    check_path("path", &path)?;
    Ok(path)
}

/// Validates a path.
///
/// # Errors
/// Fails if the path is empty, too long, or contains a NUL.
pub(crate) fn check_path(field: &str, path: &[u8]) -> Result<(), Problem> {
    let reason = if path.is_empty() {
        "it is empty; give a path, absolute or below the home directory"
    } else if path.len() > MAX_PATH_BYTES {
        "it is longer than 4096 bytes"
    } else if path.contains(&0) {
        "a NUL byte is not allowed"
    } else {
        return Ok(());
    };
    Err(Problem::field(field, reason))
}

/// Returns bytes as text for display, and in base64 if the text is lossy.
pub(crate) fn to_text(bytes: &[u8]) -> (String, Option<String>) {
    match std::str::from_utf8(bytes) {
        Ok(text) => (text.to_owned(), None),
        Err(_) => (String::from_utf8_lossy(bytes).into_owned(), Some(STANDARD.encode(bytes))),
    }
}
