//! Captured output of a stream.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::encoding::Encoding;

/// Captured output of a stream: all of it, or its head and its tail.
///
/// Exactly one of `text` and `base64` is set. The JSON form is
/// `{"encoding","data","bytes","truncated","omitted_bytes","head_bytes","log"}`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamOutput {
    /// Captured text, if it is valid UTF-8.
    pub text: Option<String>,
    /// Captured bytes in base64, if they are not valid UTF-8.
    pub base64: Option<String>,
    /// Number of bytes written to the stream.
    pub total_bytes: u64,
    /// Whether bytes between head and tail were omitted.
    pub truncated: bool,
    /// Number of bytes kept of the beginning; all captured bytes if nothing was omitted.
    pub kept_head_bytes: u64,
    /// Number of bytes kept of the end; 0 if nothing was omitted.
    pub kept_tail_bytes: u64,
    /// Path of the file with the whole stream, up to the limit `log`.
    pub log: Option<String>,
}

/// JSON form.
#[derive(Serialize, Deserialize)]
struct Wire<Text> {
    encoding: Encoding,
    data: Text,
    bytes: u64,
    truncated: bool,
    omitted_bytes: u64,
    head_bytes: u64,
    log: Option<Text>,
}

impl StreamOutput {
    /// Creates an output from the kept head, the kept tail, and the total number of bytes written.
    ///
    /// If bytes were omitted, the cut may have split a character on each side. If nothing else is invalid UTF-8, the rest of
    /// those characters is omitted too and counted as such; otherwise every byte is kept.
    pub fn new(head: &[u8], tail: &[u8], total_bytes: u64) -> Self {
        let total_bytes = total_bytes.max(count(head).saturating_add(count(tail)));
        let truncated = total_bytes > count(head) + count(tail);
        let (head, tail) = if truncated { trim_split_characters(head, tail) } else { (head, tail) };
        let (encoding, data) = Encoding::encode(&[head, tail].concat());
        let (text, base64) = match encoding {
            Encoding::Utf8 => (Some(data), None),
            Encoding::Base64 => (None, Some(data)),
        };
        let (kept_head_bytes, kept_tail_bytes) =
            if truncated { (count(head), count(tail)) } else { (total_bytes, 0) };
        Self { text, base64, total_bytes, truncated, kept_head_bytes, kept_tail_bytes, log: None }
    }

    /// Sets the file with the whole stream.
    #[must_use]
    pub fn with_log(mut self, path: impl Into<String>) -> Self {
        self.log = Some(path.into());
        self
    }

    /// Returns the encoding of `data` in JSON.
    pub const fn encoding(&self) -> Encoding {
        if self.base64.is_some() { Encoding::Base64 } else { Encoding::Utf8 }
    }

    /// Returns the captured bytes, head and tail joined; none if `base64` was set to something invalid.
    pub fn decode(&self) -> Option<Vec<u8>> {
        self.encoding().decode(self.data())
    }

    /// Returns the number of bytes omitted between head and tail.
    pub const fn omitted_bytes(&self) -> u64 {
        self.total_bytes.saturating_sub(self.kept_head_bytes).saturating_sub(self.kept_tail_bytes)
    }

    fn data(&self) -> &str {
        self.base64.as_deref().or(self.text.as_deref()).unwrap_or_default()
    }
}

impl Default for StreamOutput {
    /// Returns the output of a program that wrote nothing.
    fn default() -> Self {
        Self::new(b"", b"", 0)
    }
}

impl Serialize for StreamOutput {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let wire = Wire {
            encoding: self.encoding(),
            data: self.data(),
            bytes: self.total_bytes,
            truncated: self.truncated,
            omitted_bytes: self.omitted_bytes(),
            head_bytes: self.kept_head_bytes,
            log: self.log.as_deref(),
        };
        wire.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for StreamOutput {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let wire = Wire::<String>::deserialize(deserializer)?;
        let kept =
            wire.encoding.decode(&wire.data).ok_or_else(|| D::Error::custom("data is not valid base64"))?;
        let kept_tail_bytes = count(&kept).checked_sub(wire.head_bytes);
        let sum = count(&kept).checked_add(wire.omitted_bytes);
        let (Some(kept_tail_bytes), true) = (kept_tail_bytes, sum == Some(wire.bytes)) else {
            return Err(D::Error::custom(
                "bytes, omitted_bytes and head_bytes do not fit the length of data",
            ));
        };
        if wire.truncated != (wire.omitted_bytes > 0) || (!wire.truncated && kept_tail_bytes > 0) {
            return Err(D::Error::custom("truncated does not fit omitted_bytes and head_bytes"));
        }
        let (text, base64) = match wire.encoding {
            Encoding::Utf8 => (Some(wire.data), None),
            Encoding::Base64 => (None, Some(wire.data)),
        };
        Ok(Self {
            text,
            base64,
            total_bytes: wire.bytes,
            truncated: wire.truncated,
            kept_head_bytes: wire.head_bytes,
            kept_tail_bytes,
            log: wire.log,
        })
    }
}

/// Removes the parts of a character on each side of the cut, if both sides are UTF-8 then.
fn trim_split_characters<'a>(head: &'a [u8], tail: &'a [u8]) -> (&'a [u8], &'a [u8]) {
    let head_end = match std::str::from_utf8(head) {
        Ok(_) => head.len(),
        // No error length means that the text ends within a character.
        Err(error) if error.error_len().is_none() => error.valid_up_to(),
        Err(_) => return (head, tail),
    };
    // A character has at most three bytes after its first, each of the form 10xxxxxx.
    let tail_start = tail.iter().take(3).take_while(|byte| **byte & 0b1100_0000 == 0b1000_0000).count();
    if std::str::from_utf8(&tail[tail_start..]).is_err() {
        return (head, tail);
    }
    (&head[..head_end], &tail[tail_start..])
}

/// Returns a length as `u64`, which is lossless on every supported machine.
fn count(bytes: &[u8]) -> u64 {
    u64::try_from(bytes.len()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn head_and_tail_are_captured() {
        // Head, tail, total; expected captured bytes, whether base64, omitted bytes, head bytes.
        type Case = (&'static [u8], &'static [u8], u64, &'static [u8], bool, u64, u64);
        let cases: &[Case] = &[
            (b"", b"", 0, b"", false, 0, 0),
            (b"hello", b"", 5, b"hello", false, 0, 5),
            (b"hel", b"lo", 5, b"hello", false, 0, 5),
            (b"he", b"lo", 9, b"helo", false, 5, 2),
            (b"\xff", b"", 1, b"\xff", true, 0, 1),
            // A character split between head and tail is complete if nothing was omitted.
            (b"\xc3", b"\xbc", 2, "ü".as_bytes(), false, 0, 2),
            // Split characters are removed if something was omitted.
            (b"a\xc3", b"\xbcb", 9, b"ab", false, 7, 1),
            (b"a\xf0\x9f\x98", b"\x9f\x98\x80b", 20, b"ab", false, 18, 1),
            // Output that is not UTF-8 anyway is kept to the byte.
            (b"\xffa\xc3", b"b", 9, b"\xffa\xc3b", true, 5, 3),
            (b"a\xc3", b"b\xff", 9, b"a\xc3b\xff", true, 5, 2),
            (b"a", b"\x80\x80\x80\x80", 9, b"a\x80\x80\x80\x80", true, 4, 1),
            // A total that is too small is corrected.
            (b"abc", b"def", 2, b"abcdef", false, 0, 6),
        ];
        for (head, tail, total, kept, in_base64, omitted, head_bytes) in cases {
            let output = StreamOutput::new(head, tail, *total);
            assert_eq!(output.decode().as_deref(), Some(*kept));
            assert_eq!(
                (output.base64.is_some(), output.text.is_none()),
                (*in_base64, *in_base64),
                "{output:?}"
            );
            assert_eq!((output.omitted_bytes(), output.truncated), (*omitted, *omitted > 0), "{output:?}");
            assert_eq!(output.kept_head_bytes, *head_bytes, "{output:?}");
        }
    }

    #[test]
    fn json_form_is_stable() {
        let whole = StreamOutput::new(b"hi\n", b"", 3);
        let cut = StreamOutput::new(b"\xff", b"\xfe", 10).with_log("/var/log/x");
        let cases = [
            (
                whole,
                r#"{"encoding":"utf-8","data":"hi\n","bytes":3,"truncated":false,"omitted_bytes":0,"head_bytes":3,"log":null}"#,
            ),
            (
                cut,
                r#"{"encoding":"base64","data":"//4=","bytes":10,"truncated":true,"omitted_bytes":8,"head_bytes":1,"log":"/var/log/x"}"#,
            ),
        ];
        for (output, json) in cases {
            assert_eq!(serde_json::to_string(&output).unwrap(), json);
            assert_eq!(serde_json::from_str::<StreamOutput>(json).unwrap(), output);
        }
    }

    #[test]
    fn inconsistent_json_is_refused() {
        let good = serde_json::to_value(StreamOutput::new(b"\xff", b"\xfe", 10)).unwrap();
        for (key, bad) in [
            ("data", "*".into()),
            ("bytes", 11.into()),
            ("head_bytes", 3.into()),
            ("encoding", "utf-16".into()),
            ("truncated", false.into()),
        ] {
            let mut value = good.clone();
            value[key] = bad;
            assert!(serde_json::from_value::<StreamOutput>(value).is_err(), "{key}");
        }
    }

    proptest! {
        #[test]
        fn truncated_text_stays_text(text: String, a: prop::sample::Index, b: prop::sample::Index) {
            let bytes = text.as_bytes();
            let (a, b) = (a.index(bytes.len() + 1), b.index(bytes.len() + 1));
            let output = StreamOutput::new(&bytes[..a.min(b)], &bytes[a.max(b)..], count(bytes));
            prop_assert!(output.text.is_some());
        }
    }
}
