//! Ranges of files (RFC 9110, section 14).

use http::HeaderValue;

/// Requested bytes of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RequestedRange {
    /// The whole file. Also used for several ranges or another unit, which servers may ignore.
    Whole,
    /// A part of the file, never empty.
    Part {
        /// Offset of the first byte.
        start: u64,
        /// Number of bytes.
        length: u64,
    },
    /// The range is beyond the end of the file.
    Nothing,
}

/// Parses the header `Range`, for a file of `size` bytes.
pub(super) fn parse_range(range: Option<&HeaderValue>, size: u64) -> RequestedRange {
    let Some(range) = range else { return RequestedRange::Whole };
    range.to_str().ok().and_then(|text| parse(text, size)).unwrap_or(RequestedRange::Whole)
}

fn parse(text: &str, size: u64) -> Option<RequestedRange> {
    let (unit, range) = text.split_once('=')?;
    if !unit.trim().eq_ignore_ascii_case("bytes") || range.contains(',') {
        return None;
    }
    let (first, last) = range.trim().split_once('-')?;
    if first.is_empty() {
        let length = parse_number(last)?.min(size);
        return Some(if length == 0 {
            RequestedRange::Nothing
        } else {
            RequestedRange::Part { start: size - length, length }
        });
    }
    let first = parse_number(first)?;
    let last = if last.is_empty() { u64::MAX } else { parse_number(last)? };
    if last < first {
        return None;
    }
    if first >= size {
        return Some(RequestedRange::Nothing);
    }
    let end = last.saturating_add(1).min(size);
    Some(RequestedRange::Part { start: first, length: end - first })
}

/// Parses digits only. A number beyond 64 bits is beyond every file.
fn parse_number(text: &str) -> Option<u64> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().unwrap_or(u64::MAX))
}

/// Parses `Content-Range: bytes FIRST-LAST/*` of an upload: its offset and number of bytes.
pub(super) fn upload_range(value: &HeaderValue) -> Option<(u64, u64)> {
    let range = value.to_str().ok()?.trim().strip_prefix("bytes ")?;
    let (range, total) = range.split_once('/')?;
    let (first, last) = range.split_once('-')?;
    let (first, last) = (first.parse::<u64>().ok()?, last.parse::<u64>().ok()?);
    let fits = total == "*" || total.parse::<u64>().is_ok_and(|total| last < total);
    let length = last.checked_sub(first)?.checked_add(1)?;
    (fits && range.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-')).then_some((first, length))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ranges_are_parsed() {
        let part = |start, length| RequestedRange::Part { start, length };
        let cases = [
            ("bytes=0-0", 10, part(0, 1)),
            ("bytes=0-", 10, part(0, 10)),
            ("bytes=2-5", 10, part(2, 4)),
            ("bytes=2-99", 10, part(2, 8)),
            ("bytes=9-", 10, part(9, 1)),
            ("bytes=-3", 10, part(7, 3)),
            ("bytes=-99", 10, part(0, 10)),
            ("Bytes = 1-2", 10, part(1, 2)),
            ("bytes=10-", 10, RequestedRange::Nothing),
            ("bytes=-0", 10, RequestedRange::Nothing),
            ("bytes=0-", 0, RequestedRange::Nothing),
            ("bytes=-1", 0, RequestedRange::Nothing),
            ("bytes=0-99999999999999999999999", 10, part(0, 10)),
            ("bytes=99999999999999999999999-", 10, RequestedRange::Nothing),
            ("bytes=5-2", 10, RequestedRange::Whole),
            ("bytes=a-b", 10, RequestedRange::Whole),
            ("bytes=+1-2", 10, RequestedRange::Whole),
            ("bytes=-", 10, RequestedRange::Whole),
            ("bytes=", 10, RequestedRange::Whole),
            ("bytes=0-1,3-4", 10, RequestedRange::Whole),
            ("lines=0-1", 10, RequestedRange::Whole),
            ("", 10, RequestedRange::Whole),
        ];
        for (text, size, expected) in cases {
            let value = HeaderValue::from_str(text).unwrap();
            assert_eq!(parse_range(Some(&value), size), expected, "{text} of {size}");
        }
        assert_eq!(parse_range(None, 10), RequestedRange::Whole);
    }

    #[test]
    fn upload_ranges_are_parsed() {
        let cases = [
            ("bytes 0-9/*", Some((0, 10))),
            ("bytes 5-5/6", Some((5, 1))),
            ("bytes 5-5/5", None),
            ("bytes 6-5/*", None),
            ("bytes 0-18446744073709551615/*", None),
            ("bytes */10", None),
            ("bytes +0-1/*", None),
            ("0-9/*", None),
            ("", None),
        ];
        for (text, expected) in cases {
            assert_eq!(upload_range(&HeaderValue::from_str(text).unwrap()), expected, "{text}");
        }
    }

    proptest! {
        #[test]
        fn parts_are_within_the_file(text in "bytes=[0-9]{0,20}-[0-9]{0,20}", size: u64) {
            let value = HeaderValue::from_str(&text).unwrap();
            if let RequestedRange::Part { start, length } = parse_range(Some(&value), size) {
                prop_assert!(length > 0 && start.checked_add(length).is_some_and(|end| end <= size));
            }
        }
    }
}
