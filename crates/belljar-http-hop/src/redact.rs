//! Replacement of secrets in what a host sends back.

use std::ops::Range;

use base64::Engine as _;
use base64::engine::general_purpose::{GeneralPurpose, STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use http::header::{CONTENT_LENGTH, HeaderMap, HeaderValue};
use memchr::memmem::Finder;

use crate::names::remove_all;

/// Minimum length of a value, or of a form of it, that is searched for in more than the plain text of header values: shorter ones
/// occur by chance.
pub const MIN_SEARCHED_BYTES: usize = 4;

/// Maximum number of layers of percent-encoding that are decoded.
const MAX_LAYERS: usize = 3;

/// Replaces values in headers and trailers, in plain text, in Base64 and percent-encoded, whatever the case of letters.
pub struct Redactor {
    needles: Vec<Needle>,
    shown: String,
}

/// A form of a value, in lower case.
struct Needle {
    finder: Finder<'static>,
    form: Form,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// The value itself, if it is too short for other forms.
    Short,
    Plain,
    /// The part of Base64 that depends on the value alone, and not on what precedes and follows it.
    Base64,
}

impl Redactor {
    /// Derives the forms of these values, which are shown as `shown`: printable ASCII.
    pub fn new<'a>(values: impl IntoIterator<Item = &'a [u8]>, shown: &str) -> Self {
        let mut forms = Vec::new();
        for value in values.into_iter().filter(|value| !value.is_empty()) {
            if value.len() < MIN_SEARCHED_BYTES {
                forms.push((value.to_ascii_lowercase(), Form::Short));
                continue;
            }
            forms.push((value.to_ascii_lowercase(), Form::Plain));
            // In forms, a space is a plus.
            let spaced: Vec<u8> = value.iter().map(|byte| if *byte == b' ' { b'+' } else { *byte }).collect();
            forms.push((spaced.to_ascii_lowercase(), Form::Plain));
            for engine in [STANDARD_NO_PAD, URL_SAFE_NO_PAD] {
                forms.extend((0..3).map(|before| (within_base64(&engine, value, before), Form::Base64)));
            }
        }
        forms.sort_by(|(one, _), (other, _)| one.cmp(other));
        forms.dedup_by(|(one, _), (other, _)| one == other);
        forms.retain(|(text, form)| *form == Form::Short || text.len() >= MIN_SEARCHED_BYTES);
        let needle = |(text, form): (Vec<u8>, Form)| Needle { finder: Finder::new(&text).into_owned(), form };
        Self { needles: forms.into_iter().map(needle).collect(), shown: shown.to_owned() }
    }

    /// Replaces the values in header values, and removes headers with a name that contains one.
    pub fn redact(&self, headers: &mut HeaderMap) {
        remove_all(headers, |name| !self.find(name.as_str().as_bytes(), false).is_empty());
        for (name, value) in headers.iter_mut() {
            // A number, which frames the message.
            if name == CONTENT_LENGTH {
                continue;
            }
            if let Some(text) = self.redact_text(value.as_bytes()) {
                *value = HeaderValue::from_bytes(&text).unwrap_or(HeaderValue::from_static(""));
            }
        }
    }

    /// Returns the text with its values replaced, or `None` if it contains none.
    pub fn redact_text(&self, text: &[u8]) -> Option<Vec<u8>> {
        let found = self.find(text, true);
        if found.is_empty() {
            return None;
        }
        let mut redacted = Vec::with_capacity(text.len());
        let mut end = 0;
        for range in found {
            redacted.extend_from_slice(&text[end..range.start]);
            redacted.extend_from_slice(self.shown.as_bytes());
            end = range.end;
        }
        redacted.extend_from_slice(&text[end..]);
        Some(redacted)
    }

    /// Returns the parts of a text that contain values, in order and apart from each other.
    fn find(&self, text: &[u8], with_short: bool) -> Vec<Range<usize>> {
        let mut found: Vec<Range<usize>> = Vec::new();
        let mut view = View::new(text);
        for layer in 0..=MAX_LAYERS {
            if layer > 0 && !view.decode() {
                break;
            }
            for Needle { finder, form } in &self.needles {
                if *form == Form::Short && !(with_short && layer == 0) {
                    continue;
                }
                for at in finder.find_iter(&view.bytes) {
                    let part = at..at + finder.needle().len();
                    let part = if *form == Form::Base64 { view.widen_base64(part) } else { part };
                    found.push(view.source(part));
                }
            }
        }
        found.sort_by_key(|range| (range.start, range.end));
        let mut apart: Vec<Range<usize>> = Vec::with_capacity(found.len());
        for range in found {
            match apart.last_mut().filter(|last| range.start < last.end) {
                Some(last) => last.end = last.end.max(range.end),
                None => apart.push(range),
            }
        }
        apart
    }
}

/// Returns the part of the Base64 of a value with `before` bytes before it that is the same for all of them, in lower case.
fn within_base64(engine: &GeneralPurpose, value: &[u8], before: usize) -> Vec<u8> {
    let mut bytes = vec![0; before];
    bytes.extend_from_slice(value);
    let text = engine.encode(&bytes).into_bytes();
    // Each character has six bits.
    let (start, end) = ((8 * before).div_ceil(6), 8 * bytes.len() / 6);
    text.get(start..end).unwrap_or_default().to_ascii_lowercase()
}

/// A text in lower case, decoded so far, with the position of each byte in the source.
struct View {
    bytes: Vec<u8>,
    at: Vec<Range<usize>>,
}

impl View {
    fn new(text: &[u8]) -> Self {
        Self { bytes: text.to_ascii_lowercase(), at: (0..text.len()).map(|at| at..at + 1).collect() }
    }

    /// Decodes one layer of percent-encoding. Returns whether there was one.
    fn decode(&mut self) -> bool {
        let (mut bytes, mut at) = (Vec::with_capacity(self.bytes.len()), Vec::with_capacity(self.at.len()));
        let digit = |place: usize| self.bytes.get(place).and_then(|byte| char::from(*byte).to_digit(16));
        let mut place = 0;
        while let Some(byte) = self.bytes.get(place) {
            let encoded = digit(place + 1).zip(digit(place + 2)).filter(|_| *byte == b'%');
            let length = if encoded.is_some() { 3 } else { 1 };
            let decoded = encoded.and_then(|(high, low)| u8::try_from(high << 4 | low).ok());
            bytes.push(decoded.unwrap_or(*byte).to_ascii_lowercase());
            at.push(self.at[place].start..self.at[place + length - 1].end);
            place += length;
        }
        let is_decoded = bytes.len() < self.bytes.len();
        (self.bytes, self.at) = (bytes, at);
        is_decoded
    }

    /// Widens a part of Base64 to all of it: the characters at its ends contain bits of the value, too.
    fn widen_base64(&self, part: Range<usize>) -> Range<usize> {
        let is_base64 = |byte: &u8| byte.is_ascii_alphanumeric() || b"+/-_=".contains(byte);
        let before = self.bytes[..part.start].iter().rev().take_while(|byte| is_base64(byte)).count();
        let after = self.bytes[part.end..].iter().take_while(|byte| is_base64(byte)).count();
        part.start - before..part.end + after
    }

    fn source(&self, part: Range<usize>) -> Range<usize> {
        self.at[part.start].start..self.at[part.end - 1].end
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base64::engine::general_purpose::{STANDARD, URL_SAFE};
    use http::HeaderName;

    const SECRET: &str = "s3cret/VALUE+1=";

    fn redact(text: &str) -> Option<String> {
        let redactor = Redactor::new([SECRET.as_bytes()], "KEY");
        redactor.redact_text(text.as_bytes()).map(|text| String::from_utf8(text).unwrap())
    }

    #[test]
    fn values_are_replaced_in_every_form() {
        for (text, expected) in [
            (SECRET.to_owned(), "KEY"),
            (format!("Bearer {SECRET}, {SECRET}."), "Bearer KEY, KEY."),
            (SECRET.to_lowercase(), "KEY"),
            ("/?k=s3cret%2FVALUE%2B1%3D&a=%20".to_owned(), "/?k=KEY&a=%20"),
            ("/?k=s3cret%2fvalue%2b1%3d".to_owned(), "/?k=KEY"),
            ("/?k=%733cret/VALUE+1%3D".to_owned(), "/?k=KEY"),
            ("/?u=%2F%3Fk%3Ds3cret%252FVALUE%252B1%253D".to_owned(), "/?u=%2F%3Fk%3DKEY"),
        ] {
            assert_eq!(redact(&text).as_deref(), Some(expected), "{text}");
        }
        for before in ["", "m", "me", "me:", "user:"] {
            for after in ["", ":", ":x"] {
                let both = format!("{before}{SECRET}{after}");
                for text in [STANDARD.encode(&both), URL_SAFE.encode(&both), STANDARD_NO_PAD.encode(&both)] {
                    assert_eq!(redact(&format!("Basic {text};")).as_deref(), Some("Basic KEY;"), "{both}");
                    let encoded = text.replace('=', "%3D").replace('/', "%2F").replace('+', "%2B");
                    assert_eq!(redact(&encoded).as_deref(), Some("KEY"), "{both}");
                }
            }
        }
        for other in ["", "s3cret", "s3cret/VALUE+2=", "%", "%2", "a%zzb"] {
            assert_eq!(redact(other), None, "{other}");
        }
        let two = Redactor::new(["a b c d".as_bytes(), b"b c d e"], "KEY");
        assert_eq!(two.redact_text(b"xa b c d ey a+b+c+d").unwrap(), b"xKEYy KEY");
    }

    #[test]
    fn names_and_short_values() {
        let redactor = Redactor::new(["s3cret-value".as_bytes(), b"12"], "KEY");
        let header =
            |name: &'static str, value: &str| (HeaderName::from_static(name), value.parse().unwrap());
        let mut headers = HeaderMap::from_iter([
            header("s3cret-value", "1"),
            header("x-s3cret%2dvalue", "1"),
            header("x-12", "it is 12"),
            header("content-length", "12"),
            header("x-forms", "MTI= %31%32"),
        ]);
        redactor.redact(&mut headers);
        let expected =
            [header("x-12", "it is KEY"), header("content-length", "12"), header("x-forms", "MTI= %31%32")];
        assert_eq!(headers, HeaderMap::from_iter(expected));
        let mut nothing = HeaderMap::from_iter([header("x", "y")]);
        Redactor::new([b"".as_slice()], "KEY").redact(&mut nothing);
        assert_eq!(nothing["x"], "y");
    }
}
