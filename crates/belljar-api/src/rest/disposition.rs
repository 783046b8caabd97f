//! `Content-Disposition`: the name under which a browser saves a file (RFC 6266, RFC 8187).

use http::HeaderValue;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};

/// Characters that need no escape in an extended value: the `attr-char` of RFC 8187.
const ATTR: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'!')
    .remove(b'#')
    .remove(b'$')
    .remove(b'&')
    .remove(b'+')
    .remove(b'-')
    .remove(b'.')
    .remove(b'^')
    .remove(b'_')
    .remove(b'`')
    .remove(b'|')
    .remove(b'~');

/// Returns `Content-Disposition` for the last name of `path`, whatever bytes it has.
pub(super) fn attachment(path: &[u8]) -> HeaderValue {
    let name = path.rsplit(|byte| *byte == b'/').find(|name| !name.is_empty()).unwrap_or(b"file");
    let plain: String = name.iter().map(|byte| escape(*byte)).collect();
    let text = String::from_utf8_lossy(name);
    let value = if plain.as_bytes() == name {
        format!("attachment; filename=\"{plain}\"")
    } else {
        format!(
            "attachment; filename=\"{plain}\"; filename*=UTF-8''{}",
            percent_encode(text.as_bytes(), ATTR)
        )
    };
    HeaderValue::from_str(&value).unwrap_or(HeaderValue::from_static("attachment"))
}

/// Replaces characters of a quoted string that readers could misinterpret: quotes, backslashes, percent signs.
fn escape(byte: u8) -> char {
    match byte {
        b'"' | b'\\' | b'%' => '_',
        b' '..=b'~' => char::from(byte),
        _ => '_',
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn file_names_are_encoded() {
        let cases: [(&[u8], &str); 8] = [
            (b"a.txt", "attachment; filename=\"a.txt\""),
            (b"/home/user/a b.txt", "attachment; filename=\"a b.txt\""),
            (b"dir/", "attachment; filename=\"dir\""),
            (b"/", "attachment; filename=\"file\""),
            (b"a\"b", "attachment; filename=\"a_b\"; filename*=UTF-8''a%22b"),
            ("ü.csv".as_bytes(), "attachment; filename=\"__.csv\"; filename*=UTF-8''%C3%BC.csv"),
            (b"a\r\nX: y", "attachment; filename=\"a__X: y\"; filename*=UTF-8''a%0D%0AX%3A%20y"),
            (b"\xff", "attachment; filename=\"_\"; filename*=UTF-8''%EF%BF%BD"),
        ];
        for (path, expected) in cases {
            assert_eq!(attachment(path).to_str().unwrap(), expected);
        }
    }

    proptest! {
        #[test]
        fn every_name_is_a_valid_header(path: Vec<u8>) {
            let value = attachment(&path);
            let text = value.to_str().unwrap();
            prop_assert!(text.starts_with("attachment; filename=\""), "{text}");
            prop_assert_eq!(text.matches('"').count(), 2);
        }
    }
}
