//! Messages between guest and kernel (`kernels/PROTOCOL.md`). Messages of a kernel are controlled by user code: they
//! are validated and bounded.

mod lazy;

use base64::Engine as _;
use belljar_proto::v1;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use self::lazy::{FirstForms, FirstTexts, ValidJson};
use super::marks::Token;

/// Maximum size of a frame, in bytes.
const MAX_FRAME_BYTES: usize = 32 << 20;

/// Minimum room for one read of a control socket, in bytes.
const READ_BYTES: usize = 4 * 1024;

/// Maximum length of texts, in bytes.
const MAX_NAME_BYTES: usize = 1024;
const MAX_VALUE_BYTES: usize = 64 * 1024;
const MAX_TRACEBACK_BYTES: usize = 256 * 1024;
const MAX_PROMPT_BYTES: usize = 4096;
const MAX_VERSION_BYTES: usize = 64;
const MAX_MESSAGE_BYTES: usize = 2048;
const MAX_DISPLAY_ID_BYTES: usize = 256;
const MAX_METADATA_BYTES: usize = 64 * 1024;
const MAX_CUT_BYTES: usize = 512;
const MAX_ARGUMENTS_BYTES: usize = 256 * 1024;

/// Maximum number of forms of one result, and of notes on what was cut.
const MAX_FORMS: usize = 64;

/// Maximum length of a MIME type, in bytes.
const MAX_MIME_BYTES: usize = 128;

/// Maximum size of a form as the kernel sends it, in bytes.
const MAX_FORM_BYTES: usize = 8 << 20;

/// Maximum total size, in bytes, and number of the results of one execution.
const MAX_SHOWN_BYTES: usize = 24 << 20;
const MAX_RESULTS: usize = 1000;

/// A message of a kernel.
#[derive(Debug, PartialEq)]
pub(super) enum KernelMessage {
    Ready {
        version: String,
    },
    /// A pre-warmed interpreter has entered the sandbox with this pid.
    Born {
        pid: i32,
    },
    Failed {
        message: String,
    },
    /// A result, with the number of its marks in the streams; 0 if there are none.
    Result {
        id: u64,
        mark: u32,
        result: Box<v1::CodeResult>,
    },
    Error {
        id: u64,
        error: v1::CodeError,
    },
    Input {
        id: u64,
        request: v1::InputRequested,
    },
    /// A call of a tool, with the kernel's number for it, or the reason why it is none; and whether more calls follow at once, or when
    /// others are answered.
    Tool {
        id: u64,
        call: u64,
        name: String,
        arguments: Result<Bytes, String>,
        more: bool,
    },
    Done {
        id: u64,
        status: v1::CodeStatus,
        exiting: bool,
    },
    /// A message without meaning for this guest.
    Nothing,
}

/// Assembles the frames of one kernel from the bytes read.
#[derive(Debug, Default)]
pub(super) struct Frames {
    buffer: Vec<u8>,
}

/// A raw message. Parts that may contain many values are only parsed as far as needed: as a tree of values, a frame
/// would take thirty times its size.
#[derive(Deserialize)]
struct Raw<'a> {
    op: String,
    #[serde(default)]
    id: u64,
    #[serde(default)]
    pid: i32,
    #[serde(default)]
    version: String,
    #[serde(default)]
    message: String,
    #[serde(default)]
    main: bool,
    #[serde(default)]
    mark: u32,
    #[serde(borrow)]
    data: Option<&'a RawValue>,
    #[serde(borrow)]
    metadata: Option<&'a RawValue>,
    #[serde(default)]
    display_id: String,
    #[serde(default)]
    update: bool,
    #[serde(borrow)]
    cut: Option<&'a RawValue>,
    #[serde(default)]
    name: String,
    #[serde(default)]
    value: String,
    #[serde(default)]
    traceback: String,
    #[serde(default)]
    prompt: String,
    #[serde(default)]
    password: bool,
    #[serde(default)]
    call: u64,
    #[serde(borrow)]
    arguments: Option<&'a RawValue>,
    #[serde(default)]
    more: bool,
    #[serde(default)]
    status: String,
    #[serde(default)]
    exiting: bool,
}

impl Frames {
    /// Returns the buffer to append received bytes to, with room for them.
    pub(super) fn spare(&mut self) -> &mut Vec<u8> {
        self.buffer.reserve(READ_BYTES);
        &mut self.buffer
    }

    /// Returns the next complete frame.
    ///
    /// # Errors
    /// Returns the reason if the frame is invalid; later frames must not be trusted then.
    pub(super) fn next(&mut self) -> Result<Option<KernelMessage>, String> {
        let Some((length, rest)) = self.buffer.split_first_chunk::<4>() else { return Ok(None) };
        let length = u32::from_be_bytes(*length) as usize;
        if length > MAX_FRAME_BYTES {
            return Err(format!(
                "it announced a frame of {length} bytes; at most {MAX_FRAME_BYTES} are allowed"
            ));
        }
        let Some(text) = rest.get(..length) else { return Ok(None) };
        let message = serde_json::from_slice::<Raw<'_>>(text)
            .and_then(Raw::into_message)
            .map_err(|error| format!("it sent an invalid message: {error}"));
        self.buffer.drain(..4 + length);
        if self.buffer.is_empty() && self.buffer.capacity() > 1 << 20 {
            self.buffer = Vec::new();
        }
        message.map(Some)
    }
}

impl Raw<'_> {
    fn into_message(self) -> serde_json::Result<KernelMessage> {
        let id = self.id;
        Ok(match self.op.as_str() {
            "ready" => KernelMessage::Ready { version: truncate(self.version, MAX_VERSION_BYTES) },
            "born" => KernelMessage::Born { pid: self.pid },
            "failed" => KernelMessage::Failed { message: truncate(self.message, MAX_MESSAGE_BYTES) },
            "result" => KernelMessage::Result { id, mark: self.mark, result: Box::new(self.result()?) },
            "error" => {
                let error = v1::CodeError {
                    name: truncate(self.name, MAX_NAME_BYTES),
                    value: truncate(self.value, MAX_VALUE_BYTES),
                    traceback: truncate(self.traceback, MAX_TRACEBACK_BYTES),
                    ..Default::default()
                };
                KernelMessage::Error { id, error }
            }
            "input" => {
                let prompt = truncate(self.prompt, MAX_PROMPT_BYTES);
                let request = v1::InputRequested { prompt, password: self.password, ..Default::default() };
                KernelMessage::Input { id, request }
            }
            "tool" => KernelMessage::Tool {
                id,
                call: self.call,
                name: truncate(self.name, MAX_NAME_BYTES),
                arguments: arguments(self.arguments),
                more: self.more,
            },
            "done" => {
                let status = match self.status.as_str() {
                    "ok" => v1::CodeStatus::CODE_STATUS_OK,
                    "interrupted" => v1::CodeStatus::CODE_STATUS_INTERRUPTED,
                    _ => v1::CodeStatus::CODE_STATUS_ERROR,
                };
                KernelMessage::Done { id, status, exiting: self.exiting }
            }
            _ => KernelMessage::Nothing,
        })
    }

    fn result(self) -> serde_json::Result<v1::CodeResult> {
        let cut: FirstTexts = self.cut.map_or_else(|| Ok(Default::default()), read)?;
        let forms: FirstForms<'_> = self.data.map_or_else(|| Ok(Default::default()), read)?;
        let mut more = Vec::new();
        let mut data = Vec::new();
        for (mime, value) in forms.forms {
            match decode_form(&mime, value) {
                Ok(bytes) => data.push(v1::MimeData { mime, data: bytes, ..Default::default() }),
                Err(why) => more.push(format!("{}: {why}", truncate(mime, MAX_MIME_BYTES))),
            }
        }
        if forms.omitted > 0 {
            more.push(format!("{} forms over the limit of {MAX_FORMS} per result", forms.omitted));
        }
        let metadata = match self.metadata.map(RawValue::get).filter(|text| text.starts_with('{')) {
            Some(text) if text.len() > MAX_METADATA_BYTES => {
                more.push(format!(
                    "the metadata: too large: {} bytes > limit {MAX_METADATA_BYTES}",
                    text.len()
                ));
                Bytes::new()
            }
            Some(text) => match serde_json::from_str::<Map<String, Value>>(text) {
                Ok(metadata) if metadata.is_empty() => Bytes::new(),
                Ok(metadata) => Value::Object(metadata).to_string().into(),
                Err(error) => {
                    more.push(format!("the metadata: invalid: {error}"));
                    Bytes::new()
                }
            },
            None => Bytes::new(),
        };
        let mut result = v1::CodeResult {
            main: self.main,
            data,
            display_id: truncate(self.display_id, MAX_DISPLAY_ID_BYTES),
            update: self.update,
            metadata,
            cut: cut.0,
            ..Default::default()
        };
        add_cut(&mut result, more);
        Ok(result)
    }
}

/// Returns the arguments of a call, as JSON.
fn arguments(given: Option<&RawValue>) -> Result<Bytes, String> {
    let text = given.map_or("{}", RawValue::get);
    if text.len() > MAX_ARGUMENTS_BYTES {
        return Err(format!(
            "the arguments have {} bytes as JSON; at most {MAX_ARGUMENTS_BYTES} are allowed",
            text.len()
        ));
    }
    if !text.starts_with('{') {
        return Err("the arguments are no object".to_owned());
    }
    // Kernels also write what is no JSON to others: halves of surrogate pairs, numbers beyond 64 bits, and any depth.
    if let Err(error) = serde_json::from_str::<serde_json::Value>(text) {
        return Err(format!("the arguments are no JSON that every caller can read: {error}"));
    }
    Ok(Bytes::copy_from_slice(text.as_bytes()))
}

fn read<'a, T: Deserialize<'a>>(text: &'a RawValue) -> serde_json::Result<T> {
    serde_json::from_str(text.get())
}

/// Adds notes on what was cut. The number of notes is bounded; later ones take precedence.
fn add_cut(result: &mut v1::CodeResult, mut more: Vec<String>) {
    more.truncate(MAX_FORMS);
    result.cut.truncate(MAX_FORMS - more.len());
    result.cut.append(&mut more);
}

/// Reports whether values of a MIME type are JSON.
fn is_json(mime: &str) -> bool {
    mime == "application/json" || mime.ends_with("+json")
}

/// Reports whether values of a MIME type are text.
fn is_text(mime: &str) -> bool {
    mime.starts_with("text/")
        || mime.ends_with("+xml")
        || matches!(mime, "application/javascript" | "application/xml")
}

/// Decodes the value of a form.
fn decode_form(mime: &str, value: &RawValue) -> Result<Bytes, String> {
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$&-^_.+/;= ".contains(&byte);
    if mime.is_empty() || mime.len() > MAX_MIME_BYTES || !mime.bytes().all(is_name) {
        return Err("not a MIME type".to_owned());
    }
    if is_json(mime) {
        let text = value.get();
        check_form_size(text.len())?;
        return match read::<ValidJson>(value) {
            Ok(ValidJson) => Ok(Bytes::copy_from_slice(text.as_bytes())),
            Err(error) => Err(format!("invalid JSON: {error}")),
        };
    }
    let text: String = read(value).map_err(|_| "the value is not a string".to_owned())?;
    check_form_size(text.len())?;
    if is_text(mime) {
        return Ok(text.into());
    }
    let engine = base64::engine::general_purpose::STANDARD;
    engine
        .decode(text.trim_end())
        .map(Bytes::from)
        .map_err(|error| format!("the value is not base64: {error}"))
}

fn check_form_size(bytes: usize) -> Result<(), String> {
    if bytes > MAX_FORM_BYTES {
        return Err(format!("too large: {bytes} bytes > limit {MAX_FORM_BYTES}"));
    }
    Ok(())
}

/// Truncates a text to at most `max_bytes`, with a note at its end.
pub(super) fn truncate(mut text: String, max_bytes: usize) -> String {
    if text.len() > max_bytes {
        let note = format!("… [cut: {} bytes]", text.len());
        text.truncate(text.floor_char_boundary(max_bytes.saturating_sub(note.len())));
        text.push_str(&note);
    }
    text
}

/// Size of the results of one execution so far, for its limits.
#[derive(Debug, Default)]
pub(super) struct ResultBudget {
    results: usize,
    bytes: usize,
}

impl ResultBudget {
    /// Removes the forms of a result that exceed the limits. Returns `None` once no more results are allowed.
    pub(super) fn apply(&mut self, mut result: v1::CodeResult) -> Option<v1::CodeResult> {
        self.results += 1;
        if self.results > MAX_RESULTS {
            return None;
        }
        let mut cut = Vec::new();
        result.data.retain(|form| {
            let fits = self.bytes + form.data.len() <= MAX_SHOWN_BYTES;
            if fits {
                self.bytes += form.data.len();
            } else {
                let bytes = form.data.len();
                cut.push(format!(
                    "{}: its {bytes} bytes exceed the rest of the {MAX_SHOWN_BYTES} of one execution",
                    form.mime
                ));
            }
            fits
        });
        if self.results == MAX_RESULTS {
            cut.insert(0, format!("this is result {MAX_RESULTS}, the last of one execution"));
        }
        add_cut(&mut result, cut);
        Some(result)
    }
}

fn frame(message: &Value) -> Vec<u8> {
    encode(&message.to_string())
}

fn encode(text: &str) -> Vec<u8> {
    let length = u32::try_from(text.len()).unwrap_or(u32::MAX);
    [length.to_be_bytes().as_slice(), text.as_bytes()].concat()
}

/// Encodes the request to run code, with the token of the kernel's marks.
pub(super) fn execute(id: u64, code: &str, token: &Token, request: &v1::ExecuteCodeRequest) -> Vec<u8> {
    let mut message = json!({
        "op": "execute", "id": id, "code": code, "mark": token.as_str(), "input": request.allow_input,
    });
    let text = |bytes: &Bytes| String::from_utf8_lossy(bytes).into_owned();
    if !request.env.is_empty() {
        let env: Map<String, Value> =
            request.env.iter().map(|variable| (text(&variable.name), text(&variable.value).into())).collect();
        message["env"] = Value::Object(env);
    }
    if !request.cwd.is_empty() {
        message["cwd"] = text(&request.cwd).into();
    }
    let tools: Vec<&String> = request.tools.iter().chain(&request.functions).collect();
    if !tools.is_empty() {
        message["tools"] = json!(tools);
    }
    frame(&message)
}

/// Encodes what differs in a context from what a pre-warmed interpreter has: the environment as `NAME=value`, and the directory.
pub(super) fn adopt(env: Option<&[&[u8]]>, cwd: Option<&[u8]>) -> Vec<u8> {
    let encode = |bytes: &[u8]| base64::engine::general_purpose::STANDARD.encode(bytes);
    let mut message = json!({"op": "adopt"});
    if let Some(env) = env {
        message["env"] = env.iter().map(|pair| encode(pair)).collect();
    }
    if let Some(cwd) = cwd {
        message["cwd"] = encode(cwd).into();
    }
    frame(&message)
}

/// Encodes input; `None` is an end of file.
pub(super) fn answer(id: u64, value: Option<&str>) -> Vec<u8> {
    frame(&match value {
        Some(value) => json!({"op": "input", "id": id, "value": value}),
        None => json!({"op": "input", "id": id, "eof": true}),
    })
}

/// Encodes the answer to a call: its result as JSON, or the message of an error.
pub(super) fn tool_answer(id: u64, call: u64, answer: Result<&RawValue, &str>) -> Vec<u8> {
    #[derive(Serialize)]
    struct Answer<'a> {
        op: &'static str,
        id: u64,
        call: u64,
        #[serde(skip_serializing_if = "Option::is_none")]
        result: Option<&'a RawValue>,
        #[serde(skip_serializing_if = "Option::is_none")]
        error: Option<&'a str>,
    }
    let (result, error) = (answer.ok(), answer.err());
    // Cannot fail: numbers and text only.
    let text = serde_json::to_string(&Answer { op: "tool", id, call, result, error }).unwrap_or_default();
    encode(&text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Option<KernelMessage>, String> {
        let mut frames = Frames::default();
        frames.spare().extend(u32::try_from(text.len()).unwrap().to_be_bytes());
        frames.spare().extend(text.as_bytes());
        frames.next()
    }

    #[test]
    fn only_differences_are_sent() {
        let body = |frame: Vec<u8>| String::from_utf8(frame[4..].to_vec()).unwrap();
        assert_eq!(body(adopt(None, None)), r#"{"op":"adopt"}"#);
        let env: [&[u8]; 2] = [b"A=b", b"C=\xff"];
        let whole = body(adopt(Some(&env), Some(b"/tmp")));
        assert_eq!(
            serde_json::from_str::<Value>(&whole).unwrap(),
            json!({"op": "adopt", "env": ["QT1i", "Qz3/"], "cwd": "L3RtcA=="})
        );
    }

    #[test]
    fn frames_are_assembled() {
        let mut frames = Frames::default();
        let whole =
            [frame(&json!({"op": "ready", "version": "3.11"})), frame(&json!({"op": "later"}))].concat();
        let mut messages = Vec::new();
        for byte in whole {
            frames.spare().push(byte);
            messages.extend(frames.next().unwrap());
        }
        assert_eq!(messages, [KernelMessage::Ready { version: "3.11".to_owned() }, KernelMessage::Nothing]);
        assert!(frames.buffer.is_empty());
    }

    #[test]
    fn invalid_frames_are_errors() {
        let mut frames = Frames::default();
        frames.spare().extend(u32::MAX.to_be_bytes());
        assert!(frames.next().unwrap_err().contains("a frame of 4294967295 bytes"));
        for text in ["", "1", "[]", "{}", "{\"op\": 1}", "{\"op\": \"done\", \"id\": -1}", "\u{0}"] {
            assert!(read(text).unwrap_err().starts_with("it sent an invalid message"), "{text}");
        }
        let deep = format!("{{\"op\": \"result\", \"data\": {{\"application/json\": {}", "[".repeat(100_000));
        assert!(read(&deep).is_err());
    }

    #[test]
    fn forms_are_validated_individually() {
        let text = json!({"op": "result", "id": 3, "main": true, "metadata": {"w": 1}, "data": {
            "text/plain": "2", "image/png": "aGk=", "application/json": {"a": [1]}, "image/svg+xml": "<svg/>",
            "image/jpeg": "%%%", "text/html": 7, "bad\nname": "x", "": "y",
        }});
        let Ok(Some(KernelMessage::Result { id: 3, result, .. })) = read(&text.to_string()) else { panic!() };
        let mut forms: Vec<_> =
            result.data.iter().map(|form| (form.mime.as_str(), form.data.as_ref())).collect();
        forms.sort_unstable();
        let expected: [(&str, &[u8]); 4] = [
            ("application/json", b"{\"a\":[1]}"),
            ("image/png", b"hi"),
            ("image/svg+xml", b"<svg/>"),
            ("text/plain", b"2"),
        ];
        assert_eq!(forms, expected);
        assert_eq!(result.cut.len(), 4, "{:?}", result.cut);
        assert_eq!(result.metadata.as_ref(), b"{\"w\":1}");
    }

    #[test]
    fn json_is_passed_on_verbatim() {
        let json = r#"{"z": 1180591620717411303424, "a": [0.10, 1e400, "\u00fc"]}"#;
        let text = format!(r#"{{"op": "result", "id": 3, "data": {{"application/json": {json}}}}}"#);
        let Ok(Some(KernelMessage::Result { result, .. })) = read(&text) else { panic!() };
        assert!(result.data.is_empty(), "{result:?}");
        assert!(result.cut[0].contains("number out of range"), "{:?}", result.cut);
        let text = text.replace("1e400", "1e40");
        let Ok(Some(KernelMessage::Result { result, .. })) = read(&text) else { panic!() };
        assert_eq!(result.data[0].data, json.replace("1e400", "1e40"));
        for (wrong, why) in [
            (r#""\ud800""#, "hex escape"),
            (&*format!("{}{}", "[".repeat(200), "]".repeat(200)), "recursion"),
        ] {
            let text =
                format!(r#"{{"op": "result", "data": {{"application/json": {wrong}, "text/plain": "x"}}}}"#);
            let Ok(Some(KernelMessage::Result { result, .. })) = read(&text) else { panic!("{wrong}") };
            assert_eq!(result.data.len(), 1, "{result:?}");
            assert!(result.cut[0].contains(why), "{:?}", result.cut);
        }
    }

    #[test]
    fn excess_forms_and_notes_are_dropped_and_counted() {
        let forms: Vec<_> = (0..5000).map(|n| format!("\"a/{n}\": 7")).collect();
        let cut = vec!["\"c\""; 5000].join(",");
        let text = format!(r#"{{"op": "result", "cut": [{cut}], "data": {{{}}}}}"#, forms.join(","));
        let Ok(Some(KernelMessage::Result { result, .. })) = read(&text) else { panic!() };
        assert_eq!((result.data.len(), result.cut.len()), (0, MAX_FORMS));
        let twice = r#"{"op": "result", "data": {"text/plain": "a", "text/html": "b", "text/plain": "c"}}"#;
        let Ok(Some(KernelMessage::Result { result, .. })) = read(twice) else { panic!() };
        let forms: Vec<_> = result.data.iter().map(|form| (form.mime.as_str(), form.data.as_ref())).collect();
        assert_eq!(forms, [("text/plain", b"c".as_slice()), ("text/html", b"b")]);
        let mut result = *result;
        result.cut = vec!["c".to_owned(); MAX_FORMS];
        let mut budget = ResultBudget { results: 0, bytes: MAX_SHOWN_BYTES };
        let result = budget.apply(result).unwrap();
        assert_eq!(result.cut.len(), MAX_FORMS);
        assert!(result.cut[MAX_FORMS - 1].contains("of one execution"), "{:?}", result.cut);
        for wrong in [r#"{"op": "result", "data": 7}"#, r#"{"op": "result", "cut": [7]}"#] {
            assert!(read(wrong).unwrap_err().starts_with("it sent an invalid message"), "{wrong}");
        }
    }

    #[test]
    fn results_of_one_execution_are_bounded() {
        let result = |bytes: usize| v1::CodeResult {
            data: vec![v1::MimeData {
                mime: "text/plain".to_owned(),
                data: vec![b'x'; bytes].into(),
                ..Default::default()
            }],
            ..Default::default()
        };
        let mut budget = ResultBudget::default();
        for _ in 0..3 {
            assert!(budget.apply(result(8 << 20)).unwrap().cut.is_empty());
        }
        let fourth = budget.apply(result(1)).unwrap();
        assert!(fourth.data.is_empty() && fourth.cut[0].contains("of one execution"), "{fourth:?}");
        for _ in 4..MAX_RESULTS - 1 {
            assert!(budget.apply(result(0)).unwrap().cut.is_empty());
        }
        assert!(budget.apply(result(0)).unwrap().cut[0].contains("the last of one execution"));
        assert_eq!(budget.apply(result(0)), None);
    }

    #[test]
    fn texts_are_truncated_at_character_boundaries() {
        assert_eq!(truncate("abc".to_owned(), 3), "abc");
        let cut = truncate("ü".repeat(1000), 100);
        assert!(cut.len() <= 100 && cut.ends_with("… [cut: 2000 bytes]"), "{cut}");
    }
}
