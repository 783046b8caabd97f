//! Code to run: what may be asked for, and how the guest is asked.

use std::collections::BTreeMap;
use std::time::Duration;

use belljar_engine::v1;
use belljar_model::HintReader;
use bytes::Bytes;

use crate::error::KeeperError;
use crate::keeper::{Entered, Result};
use crate::program::{SHELL, may_have_kernel, to_program};
use crate::request::Idempotency;
use crate::tools::{CodeTools, OfferedTools};

/// Maximum size of code in bytes: that of one message to a guest, without what is sent along with it.
pub const MAX_CODE_BYTES: usize = (4 << 20) - MAX_BESIDE_CODE_BYTES;

/// Maximum size in bytes of the environment and names that are sent with code.
const MAX_BESIDE_CODE_BYTES: usize = 128 << 10;

/// Time between the interrupt of code that exceeds its timeout and the kill of its interpreter.
pub(crate) const CODE_GRACE: Duration = Duration::from_secs(5);

/// Maximum number of bytes of each stream in a result; of longer output, head and tail are kept.
pub(crate) const MAX_KEPT_BYTES: u64 = 1 << 20;

/// Code to run in a context.
#[derive(Debug, Clone, Default)]
pub struct CodeRequest {
    /// UTF-8 without NUL, at most [`MAX_CODE_BYTES`]. It may be empty.
    pub code: Bytes,
    /// The context; the language's default one if not given.
    pub context: Option<String>,
    /// The language if no context is given; Python if neither is. In a language without contexts, each execution is a program.
    pub language: Option<String>,
    /// Working directory of this execution only.
    pub cwd: Option<Bytes>,
    /// Environment of this execution only.
    pub env: BTreeMap<String, String>,
    /// Timeout; the sandbox's timeout of an execution if not given, none if zero.
    pub timeout: Option<Duration>,
    /// Time between the interrupt at the timeout and the kill of the interpreter; 5 seconds if not given.
    pub grace: Option<Duration>,
    /// Whether the caller answers requests for input.
    pub allow_input: bool,
    /// What the code may call.
    pub tools: CodeTools,
    /// What happens if the caller disconnects before the end.
    pub on_disconnect: OnDisconnect,
    /// Number of bytes kept of each stream.
    pub keep_bytes: Option<u64>,
    /// Who reads the hint of the result.
    pub hint_reader: HintReader,
    /// Idempotency key: the same request with the same key runs once.
    pub idempotency: Option<Idempotency>,
}

/// What happens to code whose caller disconnects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnDisconnect {
    /// It runs to its end.
    #[default]
    Continue,
    /// It is interrupted, and its interpreter is killed if that does not end it.
    Kill,
}

/// Checks a request as far as possible without the sandbox.
pub(crate) fn check_code(request: &CodeRequest) -> Result<()> {
    if let Some(asked) = request.keep_bytes.filter(|asked| *asked > MAX_KEPT_BYTES) {
        let reason =
            format!("{asked} bytes are too many; a result keeps at most {MAX_KEPT_BYTES} of each stream");
        return Err(KeeperError::field("output", reason));
    }
    let code = &request.code;
    if code.len() > MAX_CODE_BYTES {
        let reason = format!("it has {} bytes; at most {MAX_CODE_BYTES} are allowed", code.len());
        return Err(KeeperError::field("code", reason));
    }
    if let Err(error) = std::str::from_utf8(code) {
        let reason = format!("it is not UTF-8, from byte {} on", error.valid_up_to());
        return Err(KeeperError::field("code", reason));
    }
    if let Some(at) = code.iter().position(|byte| *byte == 0) {
        return Err(KeeperError::field("code", format!("a NUL byte, at {at}, is not allowed")));
    }
    if request.context.is_some() && request.language.is_some() {
        return Err(KeeperError::field("language", "context and language are both given; give one of them"));
    }
    if let Some(context) =
        request.context.as_deref().filter(|context| check_name("context", Some(context)).is_err())
    {
        return match context.is_empty() {
            true => check_name("context", Some(context)),
            false => Err(no_context(context)),
        };
    }
    request.tools.check()?;
    check_name("language", request.language.as_deref())
}

/// Checks the form of a name that is resolved by the guest.
pub(crate) fn check_name(field: &'static str, name: Option<&str>) -> Result<()> {
    const MAX_NAME_BYTES: usize = 64;
    match name {
        Some("") => Err(KeeperError::field(field, "it is empty; give a name or leave it out")),
        Some(name) if name.len() > MAX_NAME_BYTES || name.chars().any(char::is_control) => {
            Err(KeeperError::field(
                field,
                format!("invalid name: give at most {MAX_NAME_BYTES} bytes without control characters"),
            ))
        }
        _ => Ok(()),
    }
}

/// Returns the sandbox's own environment, which the guest of a pre-warmed one does not have, overridden by the requested one.
pub(crate) fn environment(entered: &Entered, asked: &BTreeMap<String, String>) -> Result<Vec<v1::EnvVar>> {
    let own = entered.spec().env.iter().map(|variable| (variable.name(), variable.value()));
    variables(own.chain(asked.iter().map(|(name, value)| (name.as_str(), value.as_str()))))
}

fn variables<'a>(requested: impl Iterator<Item = (&'a str, &'a str)>) -> Result<Vec<v1::EnvVar>> {
    let mut env = Vec::new();
    let mut bytes = 0;
    for (name, value) in requested {
        let checked = belljar_model::EnvVar::new(name.to_owned(), value.to_owned())?;
        bytes += name.len() + value.len() + 16;
        env.push(v1::EnvVar {
            name: Bytes::copy_from_slice(checked.name().as_bytes()),
            value: Bytes::copy_from_slice(checked.value().as_bytes()),
            ..Default::default()
        });
    }
    if bytes > MAX_BESIDE_CODE_BYTES - (16 << 10) {
        let reason = format!(
            "the variables have {bytes} bytes; at most {} are allowed here",
            MAX_BESIDE_CODE_BYTES - (16 << 10)
        );
        return Err(KeeperError::field("env", reason));
    }
    Ok(env)
}

/// Returns the timeout of the code, if it has one.
pub(crate) fn timeout(entered: &Entered, request: &CodeRequest) -> Option<Duration> {
    match request.timeout {
        Some(timeout) => Some(timeout).filter(|timeout| !timeout.is_zero()),
        None => Some(entered.spec().limits.timeout.duration()),
    }
}

/// Returns the request to the guest, and a fallback if the guest has no kernel for the language.
pub(crate) fn execute_requests(
    entered: &Entered,
    request: &CodeRequest,
    offered: &OfferedTools,
) -> Result<(v1::ExecuteCodeRequest, Option<v1::ExecuteCodeRequest>)> {
    let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX).max(1);
    let program = request.language.as_deref().and_then(|language| {
        let code = std::str::from_utf8(&request.code).ok()?;
        to_program(language, code, &entered.sandbox().home, entered.spec().limits.memory)
    });
    let asked = v1::ExecuteCodeRequest {
        context: request.context.clone().unwrap_or_default(),
        language: request.language.clone().unwrap_or_default(),
        code: request.code.clone(),
        env: variables(request.env.iter().map(|(name, value)| (name.as_str(), value.as_str())))?,
        // Every other context has it since its creation.
        context_env: match request.context {
            None => environment(entered, &BTreeMap::new())?,
            Some(_) => Vec::new(),
        },
        cwd: request.cwd.clone().unwrap_or_default(),
        timeout_ms: timeout(entered, request).map_or(0, ms),
        grace_ms: ms(request.grace.unwrap_or(CODE_GRACE)),
        allow_input: request.allow_input,
        tools: offered.names(),
        functions: request.tools.functions.clone(),
        max_tool_calls: request.tools.max_calls.unwrap_or_default(),
        on_disconnect: match request.on_disconnect {
            OnDisconnect::Continue => v1::OnDisconnect::ON_DISCONNECT_CONTINUE,
            OnDisconnect::Kill => v1::OnDisconnect::ON_DISCONNECT_KILL,
        }
        .into(),
        ..Default::default()
    };
    if !asked.tools.is_empty() || !asked.functions.is_empty() {
        // Programs call no tools, and a context that cannot refuses it.
        return Ok((asked, None));
    }
    let Some(program) = program else { return Ok((asked, None)) };
    let program =
        v1::ExecuteCodeRequest { language: SHELL.to_owned(), code: program.into(), ..asked.clone() };
    Ok(if may_have_kernel(&asked.language) { (asked, Some(program)) } else { (program, None) })
}

pub(crate) fn no_context(context: &str) -> KeeperError {
    KeeperError::NotFound { what: "context", id: context.chars().take(64).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_code_is_refused_by_name() {
        let request =
            |code: &[u8]| CodeRequest { code: Bytes::copy_from_slice(code), ..CodeRequest::default() };
        let long = vec![b' '; MAX_CODE_BYTES + 1];
        let both = CodeRequest {
            context: Some("c1".to_owned()),
            language: Some("python".to_owned()),
            ..CodeRequest::default()
        };
        let empty = CodeRequest { context: Some(String::new()), ..CodeRequest::default() };
        let control = CodeRequest { language: Some("py\n".to_owned()), ..CodeRequest::default() };
        let cases = [
            (request(&long), "code: it has 4063233 bytes; at most 4063232 are allowed"),
            (request(b"a\xff"), "code: it is not UTF-8, from byte 1 on"),
            (request(b"ab\0"), "code: a NUL byte, at 2, is not allowed"),
            (both, "language: context and language are both given; give one of them"),
            (empty, "context: it is empty; give a name or leave it out"),
            (control, "language: invalid name: give at most 64 bytes without control characters"),
        ];
        for (request, said) in cases {
            assert_eq!(check_code(&request).unwrap_err().to_string(), said);
        }
        assert!(check_code(&request(b"")).is_ok() && check_code(&request(&long[1..])).is_ok());
    }
}
