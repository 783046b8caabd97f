//! JSON bodies. An empty body is `{}`, so that missing fields are reported by name as usual.

use axum::extract::{FromRequest, Request};
use belljar_keeper::Idempotency;
use http::{HeaderMap, header};
use serde::de::DeserializeOwned;
use sha2::{Digest as _, Sha256};

use super::body::RawBody;
use super::idempotency::IDEMPOTENCY_KEY;
use crate::problem::{Code, Problem};
use crate::rest::types::Object;

/// Maximum length of a JSON body: 2 MiB.
const MAX_JSON_BYTES: usize = 2 << 20;

/// A JSON body, of at most `MAX_BYTES` bytes.
pub(crate) struct Json<T, const MAX_BYTES: usize = MAX_JSON_BYTES>(pub(crate) T);

impl<S: Sync, T: DeserializeOwned, const MAX_BYTES: usize> FromRequest<S> for Json<T, MAX_BYTES> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let bytes = json_bytes(request, state, MAX_BYTES).await?;
        Ok(Self(parse(&bytes)?))
    }
}

/// A JSON body, of at most `MAX_BYTES` bytes, of a request that may have the header `Idempotency-Key`.
pub(crate) struct IdempotentJson<T, const MAX_BYTES: usize = MAX_JSON_BYTES> {
    pub(crate) value: T,
    pub(crate) idempotency: Option<Idempotency>,
}

impl<S: Sync, T: DeserializeOwned, const MAX_BYTES: usize> FromRequest<S> for IdempotentJson<T, MAX_BYTES> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let key = idempotency_key(request.headers())?;
        let mut digest = Sha256::new();
        digest.update(request.method().as_str());
        digest.update([0]);
        digest.update(request.uri().path());
        digest.update([0]);
        let bytes = json_bytes(request, state, MAX_BYTES).await?;
        let value = parse(&bytes)?;
        let idempotency = match key {
            Some(key) => {
                digest.update(canonical(&bytes));
                Some(Idempotency { key, request_digest: digest.finalize().into() })
            }
            None => None,
        };
        Ok(Self { value, idempotency })
    }
}

/// Returns the body in canonical form: sorted keys, no whitespace.
fn canonical(bytes: &[u8]) -> Vec<u8> {
    let value: serde_json::Value = serde_json::from_slice(bytes).unwrap_or_default();
    serde_json::to_vec(&value).unwrap_or_default()
}

fn idempotency_key(headers: &HeaderMap) -> Result<Option<String>, Problem> {
    let mut values = headers.get_all(IDEMPOTENCY_KEY).iter();
    let (Some(value), rest) = (values.next(), values.next()) else { return Ok(None) };
    let allowed = |byte: &u8| byte.is_ascii_alphanumeric() || b"_.:-".contains(byte);
    let fits = (1..=255).contains(&value.len()) && value.as_bytes().iter().all(allowed);
    match value.to_str() {
        Ok(text) if fits && rest.is_none() => Ok(Some(text.to_owned())),
        _ => Err(Problem::field(
            IDEMPOTENCY_KEY,
            "it is not allowed; give one key of 1 to 255 letters, digits, _ . : or -",
        )),
    }
}

async fn json_bytes<S: Sync>(request: Request, state: &S, max: usize) -> Result<Vec<u8>, Problem> {
    let max = if belljar_keeper::ServiceWall::BodyBounds.is_down() { usize::MAX } else { max };
    let is_json = is_json(request.headers());
    let body = RawBody::from_request(request, state).await?.read(max).await?;
    if body.is_empty() {
        return Ok(b"{}".to_vec());
    }
    if !is_json {
        let detail = "unsupported body; send JSON with Content-Type: application/json";
        return Err(Problem::new(Code::UnsupportedMediaType, detail).with_field("Content-Type"));
    }
    Ok(body.into())
}

fn is_json(headers: &HeaderMap) -> bool {
    let Some(value) = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()) else {
        return false;
    };
    let essence = value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    essence == "application/json" || (essence.starts_with("application/") && essence.ends_with("+json"))
}

/// Parses a JSON object into `T`.
///
/// # Errors
/// Fails if the text is not JSON, or with the path of a field that is not allowed.
pub(crate) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
    if let Err(error) = std::str::from_utf8(bytes) {
        let detail = format!("the body is not UTF-8 from byte {} on", error.valid_up_to());
        return Err(Problem::new(Code::InvalidJson, detail));
    }
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    let Object(value) = serde_path_to_error::deserialize(&mut deserializer).map_err(|error| {
        let path = error.path().to_string();
        refusal(&path, error.inner(), bytes)
    })?;
    deserializer.end().map_err(|error| refusal(".", &error, bytes))?;
    Ok(value)
}

fn refusal(path: &str, error: &serde_json::Error, bytes: &[u8]) -> Problem {
    let text = error.to_string();
    // A number where a name is expected counts as a syntax error, though the body is JSON.
    if !error.is_data() && serde_json::from_slice::<serde_json::Value>(bytes).is_err() {
        return Problem::new(Code::InvalidJson, format!("the body is not JSON: {text}"));
    }
    // The position is not needed: the field is named.
    let text = text.rsplit_once(" at line ").map_or(text.as_str(), |(text, _)| text);
    field_problem(path, text)
}

/// Converts an error of serde to a problem that names the field.
pub(crate) fn field_problem(path: &str, text: &str) -> Problem {
    let quoted = |prefix: &str| text.strip_prefix(prefix)?.split_once('`').map(|(name, _)| name);
    let name = quoted("unknown field `")
        .or_else(|| quoted("missing field `"))
        .or_else(|| quoted("duplicate field `"));
    let field = match (path, name) {
        ("." | "", Some(name)) => name.to_owned(),
        ("." | "", None) => {
            return Problem::new(Code::InvalidField, format!("invalid body: {text}"));
        }
        (path, Some(name)) if path == name || path.ends_with(&format!(".{name}")) => path.to_owned(),
        (path, Some(name)) => format!("{path}.{name}"),
        (path, None) => path.to_owned(),
    };
    let unit = match path.rsplit('.').next() {
        Some("timeout") => " of seconds",
        Some(name) if name.ends_with("_ms") => " of milliseconds",
        _ => "",
    };
    // What is named already is not named again.
    let own = path.rsplit('.').next().and_then(|name| text.strip_prefix(name)?.strip_prefix(": "));
    let text = plain_types(own.unwrap_or(text))
        .replace("a whole number from", &format!("a whole number{unit} from"));
    Problem::field(field, text)
}

/// Rewrites the types in an error of serde in the words of JSON: the names of Rust's say nothing to callers.
fn plain_types(text: &str) -> String {
    let Some((found, expected)) = text.split_once(", expected ") else { return text.to_owned() };
    let plain = match expected {
        "u16" => "a whole number from 0 to 65535",
        "u8" | "u32" | "u64" | "usize" | "nonzero u32" | "nonzero u64" => "a whole number from 0, such as 30",
        "i8" | "i16" | "i32" | "i64" | "isize" => "a whole number, such as 30",
        "f32" | "f64" => "a number, such as 1.5",
        "a boolean" => "true or false",
        "a string" | "a borrowed string" => "a text",
        "a sequence" => "a list",
        "a map" => "an object",
        _ if expected.starts_with("struct ") => "an object",
        _ if expected.starts_with("enum ") => "one of its texts",
        _ => return text.to_owned(),
    };
    let found = ["invalid type: ", "invalid value: "]
        .iter()
        .find_map(|prefix| found.strip_prefix(prefix))
        .map_or_else(|| found.to_owned(), |found| format!("{found} is not allowed"));
    let found = found
        .replace("floating point", "number")
        .replace("sequence", "a list")
        .replace("map is", "an object is");
    format!("{found}; give {plain}")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Deserialize;

    use super::*;
    use crate::rest::types::{UniqueMap, object, objects};

    #[derive(Debug, Deserialize, Default)]
    #[serde(deny_unknown_fields)]
    struct Inner {
        #[serde(default)]
        memory: Option<u32>,
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Outer {
        #[expect(dead_code, reason = "only its presence is of interest")]
        name: String,
        #[serde(default, deserialize_with = "object")]
        limits: Option<Inner>,
        #[serde(default)]
        env: Option<UniqueMap<String>>,
        #[serde(default, deserialize_with = "objects")]
        list: Option<Vec<Inner>>,
        #[serde(default)]
        #[expect(dead_code, reason = "only its refusal is of interest")]
        way: Option<Way>,
        #[serde(default)]
        #[expect(dead_code, reason = "only its refusal is of interest")]
        plain: Option<Inner>,
    }

    #[derive(Debug, Deserialize)]
    #[serde(rename_all = "snake_case")]
    enum Way {
        Up,
    }

    #[test]
    fn refusals_name_the_field() {
        let deep = format!("{{\"name\":{}1{}}}", "[".repeat(200), "]".repeat(200));
        let cases: &[(&[u8], &str, Option<&str>)] = &[
            (br#"{}"#, "invalid_field", Some("name")),
            (br#"{"name":1}"#, "invalid_field", Some("name")),
            (br#"{"name":null}"#, "invalid_field", Some("name")),
            (br#"{"name":"a","nmae":1}"#, "invalid_field", Some("nmae")),
            (br#"{"name":"a","name":"b"}"#, "invalid_field", Some("name")),
            (br#"{"name":"a","limits":{"memory":"x"}}"#, "invalid_field", Some("limits.memory")),
            (br#"{"name":"a","limits":{"memory":-1}}"#, "invalid_field", Some("limits.memory")),
            (br#"{"name":"a","limits":{"memory":5000000000}}"#, "invalid_field", Some("limits.memory")),
            (br#"{"name":"a","limits":{"memroy":1}}"#, "invalid_field", Some("limits.memroy")),
            (br#"{"name":"a","limits":7}"#, "invalid_field", Some("limits")),
            (br#"{"name":"a","env":{"A":"1","A":"2"}}"#, "invalid_field", Some("env.A")),
            (br#"{"name":"a","env":{"A":1}}"#, "invalid_field", Some("env.A")),
            (br#"{"name":"a","list":[{},{"memory":true}]}"#, "invalid_field", Some("list[1].memory")),
            (br#"{"name":"a","way":7}"#, "invalid_field", Some("way")),
            (br#"{"name":"a","limits":[null]}"#, "invalid_field", Some("limits")),
            (br#"{"name":"a","list":[[null]]}"#, "invalid_field", Some("list[0]")),
            (br#"["a"]"#, "invalid_field", None),
            (br#"[]"#, "invalid_field", None),
            (br#"7"#, "invalid_field", None),
            (br#"{"name":NaN}"#, "invalid_json", None),
            (br#"{"name":1e999}"#, "invalid_json", None),
            (br#"{"name":"a"} x"#, "invalid_json", None),
            (br#"{"name":"a"#, "invalid_json", None),
            (br#"{"name":"\ud800"}"#, "invalid_json", None),
            (b"{\"name\":\"\xff\"}", "invalid_json", None),
            (b"", "invalid_json", None),
        ];
        for (body, code, field) in cases {
            let problem = parse::<Outer>(body).unwrap_err();
            let found = problem.body("r");
            assert_eq!(
                (found.code, found.field.as_deref()),
                (*code, *field),
                "{}: {found:?}",
                body.escape_ascii()
            );
        }
        // Either the type or the depth is refused; the stack does not overflow in either case.
        assert_eq!(parse::<serde_json::Value>(deep.as_bytes()).unwrap_err().code(), Code::InvalidJson);
        let _: BTreeMap<String, String> = UniqueMap::default().0;
    }

    #[test]
    fn types_are_those_of_json() {
        for (body, detail) in [
            (&br#"{"name":1}"#[..], "name: integer `1` is not allowed; give a text"),
            (
                br#"{"name":"a","limits":{"memory":"1s"}}"#,
                "limits.memory: string \"1s\" is not allowed; give a whole number from 0, such as 30",
            ),
            (br#"{"name":"a","list":7}"#, "list: integer `7` is not allowed; give a list"),
            (br#"{"name":"a","plain":"open"}"#, "plain: string \"open\" is not allowed; give an object"),
        ] {
            assert_eq!(parse::<Outer>(body).unwrap_err().body("r").detail, detail);
        }
    }

    #[test]
    fn null_counts_as_missing() {
        let outer: Outer = parse(br#"{"name":"a","limits":null,"env":null,"list":null}"#).unwrap();
        assert!(outer.limits.is_none() && outer.env.is_none() && outer.list.is_none());
        let outer: Outer = parse(br#"{"name":"a","limits":{"memory":null}}"#).unwrap();
        assert_eq!(outer.limits.unwrap_or_default().memory, None);
    }

    #[test]
    fn idempotency_keys_are_checked() {
        let cases = [
            ("a-b_c.d:1", true),
            ("", false),
            ("a b", false),
            ("ü", false),
            (&"x".repeat(255), true),
            (&"x".repeat(256), false),
        ];
        for (key, fits) in cases {
            let mut headers = HeaderMap::new();
            headers.insert("idempotency-key", http::HeaderValue::from_bytes(key.as_bytes()).unwrap());
            let found = idempotency_key(&headers);
            assert_eq!(found.is_ok_and(|found| found.as_deref() == Some(key)), fits, "{key}");
        }
        let mut twice = HeaderMap::new();
        twice.append("idempotency-key", http::HeaderValue::from_static("a"));
        twice.append("idempotency-key", http::HeaderValue::from_static("b"));
        assert!(idempotency_key(&twice).is_err());
    }

    #[test]
    fn key_order_does_not_change_the_request() {
        assert_eq!(canonical(br#"{"b":1, "a":2}"#), canonical(br#"{"a":2,"b":1}"#));
        assert_ne!(canonical(br#"{"b":1}"#), canonical(br#"{"b":2}"#));
    }
}
