//! E2B's metadata as labels.
//!
//! A pair that is a valid label becomes one. Any other pair (with an empty or long key, a long value, control
//! characters) is stored in labels that begin with [`PREFIX`]: the pair as JSON in base64, in pieces, under the digest
//! of the pair. So a filter matches it too.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use belljar_keeper::{Labels, MAX_LABEL_VALUE_BYTES};
use percent_encoding::percent_decode_str;
use sha2::{Digest as _, Sha256};

use crate::problem::Problem;

const PREFIX: &str = "e2b:";

/// Characters of a digest in a label.
const DIGEST_CHARS: usize = 22;

/// Converts metadata to labels.
///
/// # Errors
/// Fails if the metadata exceeds the limits of labels.
pub(super) fn to_labels(metadata: &BTreeMap<String, String>) -> Result<Labels, Problem> {
    let labels = metadata.iter().flat_map(|(key, value)| pair_to_labels(key, value)).collect();
    Labels::new(labels).map_err(|error| {
        Problem::field("metadata", format!("too large for the labels of a sandbox: {error}"))
    })
}

fn pair_to_labels(key: &str, value: &str) -> Vec<(String, String)> {
    let plain = BTreeMap::from([(key.to_owned(), value.to_owned())]);
    if !key.starts_with(PREFIX) && Labels::new(plain).is_ok() {
        return vec![(key.to_owned(), value.to_owned())];
    }
    let json = serde_json::to_vec(&(key, value)).unwrap_or_default();
    let digest: String = URL_SAFE_NO_PAD.encode(Sha256::digest(&json)).chars().take(DIGEST_CHARS).collect();
    let text = URL_SAFE_NO_PAD.encode(json);
    // Base64 is ASCII: it can be cut anywhere.
    let pieces = text.as_bytes().chunks(MAX_LABEL_VALUE_BYTES).map(String::from_utf8_lossy);
    pieces
        .enumerate()
        .map(|(index, piece)| (format!("{PREFIX}{digest}{index:03}"), piece.into_owned()))
        .collect()
}

/// Converts labels back to metadata.
pub(super) fn from_labels(labels: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let mut metadata = BTreeMap::new();
    let mut cut: BTreeMap<&str, String> = BTreeMap::new();
    for (key, value) in labels {
        match key.strip_prefix(PREFIX).and_then(|rest| rest.split_at_checked(DIGEST_CHARS)) {
            // Labels are ordered by key, so pieces are in order too.
            Some((digest, _)) => cut.entry(digest).or_default().push_str(value),
            None => drop(metadata.insert(key.clone(), value.clone())),
        }
    }
    for text in cut.into_values() {
        let pair = URL_SAFE_NO_PAD.decode(text).ok();
        let pair = pair.and_then(|json| serde_json::from_slice::<(String, String)>(&json).ok());
        metadata.extend(pair);
    }
    metadata
}

/// Parses a filter into the labels that it selects. A filter is a query within the query: keys and values are
/// percent-encoded twice.
///
/// # Errors
/// Fails if the filter is malformed.
pub(super) fn filter(text: &str) -> Result<BTreeMap<String, String>, Problem> {
    let decoded = |text: &str| {
        let once = percent_decode_str(&text.replace('+', " ")).decode_utf8().ok()?.into_owned();
        Some(percent_decode_str(&once).decode_utf8().ok()?.into_owned())
    };
    let mut labels = BTreeMap::new();
    for pair in text.split('&').filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        let (key, value) = decoded(key)
            .zip(decoded(value))
            .ok_or_else(|| Problem::field("metadata", "it is not UTF-8 in percent-encoding"))?;
        labels.extend(pair_to_labels(&key, &value));
    }
    Ok(labels)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn metadata_round_trip() {
        let long = "ü".repeat(2000);
        let cases = [
            map(&[]),
            map(&[("a", "1"), ("b c", "")]),
            map(&[("", "empty"), ("a=b", "c"), ("tab\t", "line\n"), ("e2b:x", "y")]),
            map(&[("long", &long), (&"k".repeat(300), "v")]),
        ];
        for metadata in cases {
            let labels = to_labels(&metadata).unwrap();
            assert_eq!(from_labels(labels.get()), metadata);
        }
        assert_eq!(to_labels(&map(&[("a", "1")])).unwrap().get(), &map(&[("a", "1")]));
        assert!(to_labels(&map(&[("a", &"x".repeat(20_000))])).is_err());
    }

    proptest::proptest! {
        #[test]
        fn metadata_within_limits_round_trips_and_matches_its_filter(metadata: BTreeMap<String, String>) {
            if let Ok(labels) = to_labels(&metadata) {
                proptest::prop_assert_eq!(from_labels(labels.get()), metadata.clone());
                let encode = |text: &str| {
                    let once = percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC);
                    percent_encoding::utf8_percent_encode(&once.to_string(), percent_encoding::NON_ALPHANUMERIC)
                        .to_string()
                };
                let pairs = metadata.iter().map(|(key, value)| format!("{}={}", encode(key), encode(value)));
                let query = pairs.collect::<Vec<_>>().join("&");
                proptest::prop_assert_eq!(&filter(&query).unwrap(), labels.get());
            }
        }

        #[test]
        fn arbitrary_filters_are_parsed_or_refused(text: String) {
            let _ = filter(&text);
        }
    }

    #[test]
    fn filter_selects_the_labels_of_its_pairs() {
        // The outer query has been decoded already.
        assert_eq!(filter("a%2520b=c%2526d").unwrap(), map(&[("a b", "c&d")]));
        assert_eq!(filter("a=b&c=d").unwrap(), map(&[("a", "b"), ("c", "d")]));
        assert_eq!(filter("").unwrap(), map(&[]));
        assert!(filter("%25FF=1").is_err());
        let line = map(&[("line", "a\nb")]);
        assert_eq!(&filter("line=a%250Ab").unwrap(), to_labels(&line).unwrap().get());
    }
}
