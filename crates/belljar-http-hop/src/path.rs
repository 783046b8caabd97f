//! A grammar of paths that all servers read alike.

/// Characters that some servers convert to `/`, `\`, `;`, `?`, `#` or `%`: those whose compatibility form (NFKC) contains one, and
/// those that Windows maps to one where a character set lacks them.
const SEPARATORS: [char; 27] = [
    '\u{37e}', '\u{2044}', '\u{2047}', '\u{2048}', '\u{2049}', '\u{2100}', '\u{2101}', '\u{2105}',
    '\u{2106}', '\u{2215}', '\u{2216}', '\u{29f5}', '\u{29f8}', '\u{29f9}', '\u{fe14}', '\u{fe16}',
    '\u{fe54}', '\u{fe56}', '\u{fe5f}', '\u{fe68}', '\u{fe6a}', '\u{ff03}', '\u{ff05}', '\u{ff0f}',
    '\u{ff1b}', '\u{ff1f}', '\u{ff3c}',
];

/// The dot, and characters whose compatibility form consists of dots.
const DOTS: [char; 8] =
    ['.', '\u{2024}', '\u{2025}', '\u{2026}', '\u{fe19}', '\u{fe30}', '\u{fe52}', '\u{ff0e}'];

/// Returns the first part of a path that servers read differently, as the object of a sentence; `None` if there is none.
///
/// A path that passes begins with `/` and consists of the characters that RFC 3986 (3.3) allows. Its percent-encoded bytes are UTF-8,
/// and no separator (`/ \ ; ? # %`), no character that resembles one, and no control character. No segment within it is empty, and none consists of dots,
/// whatever is done to it first: decoding, removal of parameters (`;…`), or removal of spaces.
pub fn find_ambiguity(path: &str) -> Option<&'static str> {
    let Some(segments) = path.strip_prefix('/') else { return Some("no / at its beginning") };
    let mut segments = segments.split('/').peekable();
    while let Some(segment) = segments.next() {
        let decoded = match decode(segment) {
            Ok(decoded) => decoded,
            Err(what) => return Some(what),
        };
        let name = decoded.split(';').next().unwrap_or_default().trim();
        let is_end = segment.is_empty() && segments.peek().is_none();
        if name.is_empty() && !is_end {
            return Some("an empty segment");
        }
        if !name.is_empty() && name.chars().all(|char| DOTS.contains(&char) || char.is_whitespace()) {
            return Some("a segment of dots");
        }
    }
    None
}

/// Decodes a segment.
fn decode(segment: &str) -> Result<String, &'static str> {
    // Sources: RFC 3986, 2.1 and 3.3 (pchar).
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:@".contains(&byte);
    let mut bytes = Vec::with_capacity(segment.len());
    let mut rest = segment.as_bytes();
    while let [first, more @ ..] = rest {
        rest = more;
        if *first != b'%' {
            if !is_plain(*first) {
                return Err("a character that has to be percent-encoded");
            }
            bytes.push(*first);
            continue;
        }
        let (Some(high), Some(low)) = (more.first().and_then(hex), more.get(1).and_then(hex)) else {
            return Err("a % that encodes no byte");
        };
        let byte = high << 4 | low;
        if b"/\\;?#%".contains(&byte) {
            return Err("an encoded separator");
        }
        bytes.push(byte);
        rest = &more[2..];
    }
    let text = String::from_utf8(bytes).map_err(|_| "percent-encoded bytes that are not UTF-8")?;
    if text.chars().any(char::is_control) {
        return Err("a control character");
    }
    if text.chars().any(|char| SEPARATORS.contains(&char)) {
        return Err("a character that resembles a separator");
    }
    Ok(text)
}

fn hex(digit: &u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        b'A'..=b'F' => Some(digit - b'A' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_with_one_reading_pass() {
        for path in [
            "/",
            "/v1/models",
            "/v1/models/",
            "/v1/chat:complete",
            "/~me/a+b,c=d;e@f",
            "/a/%7Eme/my%20file.txt",
            "/%E2%82%AC/%C3%BC",
            "/.well-known/x",
            "/a..b/..c/d..",
            "/a;x=1/b",
            "/%41",
            "/to%20be%E2%80%A6/%E3%80%82",
        ] {
            assert_eq!(find_ambiguity(path), None, "{path}");
        }
    }

    #[test]
    fn ambiguous_paths_are_found() {
        for path in [
            "",
            "*",
            "a",
            "/v1//b",
            "//",
            "/./a",
            "/..",
            "/v1/../b",
            "/v1/%2e%2e/b",
            "/v1/.%2E/b",
            "/v1/..;x=y/b",
            "/v1/.%2E;/b",
            "/v1/;/b",
            "/;",
            "/v1/;x",
            "/v1/...",
            "/v1/a%2fb",
            "/v1/a%2Fb",
            "/v1/a%5Cb",
            "/v1/a\\b",
            "/v1/%252e%252e/b",
            "/v1/%00",
            "/v1/..%3b/b",
            "/v1/%u002e%u002e/b",
            "/v1/%c0%ae%c0%ae/b",
            "/v1/..%0d%0a/b",
            "/v1/..%09/b",
            "/v1/..%20/b",
            "/v1/%20../b",
            "/v1/%20/b",
            "/v1/..%3f/b",
            "/v1/..%23/b",
            "/v1/%EF%BC%8E%EF%BC%8E/b",
            "/v1/..%C2%85/b",
            "/v1/..%7f/b",
            "/v1/%",
            "/v1/%2",
            "/v1/%zz",
            "/v1/%ff",
            "/v1/a b",
            "/v1/a\"b",
            "/v1/<b>",
            "/v1/{b}",
            "/v1/ü",
            "/v1/a?b",
            "/v1/a#b",
            "/v1/..%C2%A0/b",
            "/v1/a%E2%88%95b",
        ] {
            assert!(find_ambiguity(path).is_some(), "{path}");
        }
    }
}
