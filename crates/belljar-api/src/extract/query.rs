//! Queries. Unknown, repeated and invalid parameters are refused by name.

use axum::extract::FromRequestParts;
use http::request::Parts;
use percent_encoding::percent_decode_str;
use serde::de::DeserializeOwned;

use super::json::field_problem;
use crate::problem::Problem;

/// Maximum length of a query, in bytes.
const MAX_QUERY_BYTES: usize = 16 * 1024;

/// The parameters of a query.
pub(crate) struct Query<T>(pub(crate) T);

impl<S: Sync, T: DeserializeOwned> FromRequestParts<S> for Query<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        parse(parts.uri.query().unwrap_or_default()).map(Self)
    }
}

/// Parses a query into `T`.
///
/// # Errors
/// Returns the problem with the invalid parameter, and why.
pub(crate) fn parse<T: DeserializeOwned>(query: &str) -> Result<T, Problem> {
    if query.len() > MAX_QUERY_BYTES {
        return Err(Problem::field("query", format!("it is longer than {MAX_QUERY_BYTES} bytes")));
    }
    for pair in query.split('&') {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let decoded = percent_decode_str(name).decode_utf8().map_err(|_| {
            Problem::field("query", "the name of a parameter is not UTF-8 in percent-encoding")
        })?;
        if percent_decode_str(value).decode_utf8().is_err() {
            return Err(Problem::field(decoded, "it is not UTF-8 in percent-encoding"));
        }
    }
    let deserializer = serde_html_form::Deserializer::from_bytes(query.as_bytes());
    serde_path_to_error::deserialize(deserializer).map_err(|error| {
        let path = error.path().to_string();
        field_problem(&path, &error.inner().to_string())
    })
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize, PartialEq, Eq)]
    #[serde(deny_unknown_fields)]
    struct TestQuery {
        #[serde(default)]
        label: Vec<String>,
        #[serde(default)]
        limit: Option<u32>,
        #[serde(default)]
        follow: Option<bool>,
        #[serde(default)]
        path: Option<String>,
    }

    #[test]
    fn parameters_are_parsed() {
        let query: TestQuery = parse("label=a=b&label=c%3Dd&limit=7&follow=true&path=a%20b+c").unwrap();
        let expected = TestQuery {
            label: vec!["a=b".into(), "c=d".into()],
            limit: Some(7),
            follow: Some(true),
            path: Some("a b c".into()),
        };
        assert_eq!(query, expected);
        assert_eq!(parse::<TestQuery>("").unwrap().label, Vec::<String>::new());
        // As with null in a body, an empty value counts as missing.
        assert_eq!(parse::<TestQuery>("limit=").unwrap().limit, None);
    }

    #[test]
    fn refusals_name_the_parameter() {
        let cases = [
            ("limti=1", "limti"),
            ("limit=x", "limit"),
            ("limit=-1", "limit"),
            ("limit=1&limit=2", "limit"),
            ("follow=maybe", "follow"),
            ("path=%ff", "path"),
            ("%ff=1", "query"),
        ];
        for (query, field) in cases {
            let problem = parse::<TestQuery>(query).unwrap_err().body("r");
            assert_eq!(
                (problem.code, problem.field.as_deref()),
                ("invalid_field", Some(field)),
                "{query}: {problem:?}"
            );
        }
    }
}
