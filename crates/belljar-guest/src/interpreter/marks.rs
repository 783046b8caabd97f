//! The order of output and results. They arrive over different descriptors, so before a kernel sends a result it writes a mark to
//! each stream (`kernels/PROTOCOL.md`): what comes after a mark waits for its result. Streams are controlled by user code: a mark that
//! has no result holds back output of that code only, until the execution ends or is interrupted.

use bytes::{Buf as _, Bytes};

/// First byte of a mark: the record separator of ASCII, which is rare in output.
const FIRST: u8 = 0x1e;

/// Length of a kernel's token, in bytes.
const TOKEN_BYTES: usize = 16;

/// Length of a result's number, in bytes.
const NUMBER_BYTES: usize = 8;

/// Length of a mark, in bytes.
const MARK_BYTES: usize = 1 + TOKEN_BYTES + NUMBER_BYTES;

/// Maximum length of the rest of a mark that has begun, in bytes.
pub(super) const MAX_MARK_REST: usize = MARK_BYTES - 1;

/// Token of a kernel's marks: random, so that no output has a mark by chance.
#[derive(Debug, Clone, Copy)]
pub(super) struct Token([u8; TOKEN_BYTES]);

impl Token {
    pub(super) fn random() -> Self {
        let mut bytes = [0; TOKEN_BYTES / 2];
        // Cannot fail: the kernel's generator was already initialized for this process's memory layout.
        let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
        Self::from_number(u64::from_ne_bytes(bytes))
    }

    fn from_number(number: u64) -> Self {
        let mut token = [0; TOKEN_BYTES];
        for (byte, digit) in token.iter_mut().zip(format!("{number:016x}").bytes()) {
            *byte = digit;
        }
        Self(token)
    }

    /// Returns it as a kernel gets it.
    pub(super) fn as_str(&self) -> &str {
        str::from_utf8(&self.0).unwrap_or_default()
    }
}

/// Extent of the output that is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Until {
    /// Up to the mark of a result that has not arrived.
    Mark,
    /// Everything, at the end of an execution: its results have arrived.
    End,
}

/// The bytes of one stream, which are passed on up to the mark of a result that has not arrived.
pub(super) struct MarkedStream {
    token: Token,
    /// Bytes read and not passed on.
    rest: Bytes,
    /// The result that `rest` comes after, if it has not arrived.
    awaited: Option<u32>,
    /// The last result that has arrived.
    arrived: u32,
}

impl MarkedStream {
    pub(super) const fn new(token: Token) -> Self {
        Self { token, rest: Bytes::new(), awaited: None, arrived: 0 }
    }

    pub(super) const fn token(&self) -> &Token {
        &self.token
    }

    /// Reports whether the rest waits for a result, so that no more is to be read.
    pub(super) const fn is_waiting(&self) -> bool {
        self.awaited.is_some()
    }

    /// Reports whether the rest ends within what may be a mark.
    pub(super) const fn is_within_mark(&self) -> bool {
        !self.is_waiting() && !self.rest.is_empty()
    }

    /// Adds bytes that were read.
    pub(super) fn push(&mut self, data: Bytes) {
        self.rest = if self.rest.is_empty() { data } else { [&self.rest[..], &data].concat().into() };
    }

    /// Returns the next output, without marks.
    pub(super) fn take(&mut self, until: Until) -> Option<Bytes> {
        loop {
            if until == Until::End {
                self.stop_waiting();
            }
            if self.is_waiting() || self.rest.is_empty() {
                return None;
            }
            let output = match self.find_mark() {
                Found::Mark(at, number) => {
                    let output = self.rest.split_to(at);
                    self.rest.advance(MARK_BYTES);
                    self.awaited = Some(number).filter(|number| *number > self.arrived);
                    output
                }
                Found::Begin(0) => return None,
                Found::Begin(at) => self.rest.split_to(at),
                Found::Nothing => std::mem::take(&mut self.rest),
            };
            if !output.is_empty() {
                return Some(output);
            }
        }
    }

    /// Returns what could have been the beginning of a mark, at the end of the output.
    pub(super) fn take_rest(&mut self) -> Option<Bytes> {
        Some(std::mem::take(&mut self.rest)).filter(|rest| !rest.is_empty())
    }

    /// Releases what waits, without its result.
    pub(super) const fn stop_waiting(&mut self) {
        self.awaited = None;
    }

    /// Releases what waits for a result that has now arrived.
    pub(super) fn release(&mut self, number: u32) {
        self.arrived = self.arrived.max(number);
        self.awaited = self.awaited.filter(|awaited| *awaited > self.arrived);
    }

    fn find_mark(&self) -> Found {
        for at in memchr::memchr_iter(FIRST, &self.rest) {
            let Some((_, tail)) = self.rest[at..].split_first() else { break };
            let (token, number) = tail.split_at(tail.len().min(TOKEN_BYTES));
            if !self.token.0.starts_with(token) {
                continue;
            }
            let Some(number) = number.get(..NUMBER_BYTES) else { return Found::Begin(at) };
            let digits = str::from_utf8(number).ok().filter(|_| number.iter().all(u8::is_ascii_hexdigit));
            if let Some(number) = digits.and_then(|digits| u32::from_str_radix(digits, 16).ok()) {
                return Found::Mark(at, number);
            }
        }
        Found::Nothing
    }
}

/// The first mark in bytes.
enum Found {
    /// Its position, and the result's number.
    Mark(usize, u32),
    /// The position of what may be the beginning of one.
    Begin(usize),
    Nothing,
}

#[cfg(feature = "fuzzing")]
pub(crate) fn marked_output(parts: &[&[u8]], waits: bool) -> Vec<u8> {
    let mut stream = MarkedStream::new(Token::from_number(0x0123_4567_89ab_cdef));
    let until = if waits { Until::Mark } else { Until::End };
    let mut output = Vec::new();
    for part in parts {
        stream.push(Bytes::copy_from_slice(part));
        loop {
            output.extend(std::iter::from_fn(|| stream.take(until)).flatten());
            if !stream.is_waiting() {
                break;
            }
            stream.stop_waiting();
        }
    }
    output.extend(stream.take_rest().into_iter().flatten());
    output
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream() -> MarkedStream {
        MarkedStream::new(Token::from_number(0xab))
    }

    fn mark(number: u32) -> String {
        format!("\x1e{:016x}{number:08x}", 0xab)
    }

    fn push(stream: &mut MarkedStream, text: &str) {
        stream.push(Bytes::copy_from_slice(text.as_bytes()));
    }

    fn text(stream: &mut MarkedStream) -> String {
        let all: Vec<u8> = std::iter::from_fn(|| stream.take(Until::Mark)).flatten().collect();
        String::from_utf8(all).unwrap()
    }

    #[test]
    fn output_after_a_mark_waits_for_its_result() {
        let mut stream = stream();
        assert_eq!(stream.token().as_str(), "00000000000000ab");
        push(&mut stream, &format!("a{}b{}{}c", mark(1), mark(2), mark(3)));
        assert_eq!((text(&mut stream).as_str(), stream.is_waiting()), ("a", true));
        stream.release(1);
        assert_eq!((text(&mut stream).as_str(), stream.is_waiting()), ("b", true));
        stream.release(2);
        assert_eq!((text(&mut stream).as_str(), stream.is_waiting()), ("", true));
        stream.release(3);
        assert_eq!((text(&mut stream).as_str(), stream.is_waiting()), ("c", false));
        // The result came first: its kernel could not write to this stream before it.
        stream.release(4);
        push(&mut stream, &format!("d{}e", mark(4)));
        assert_eq!(text(&mut stream), "de");
    }

    #[test]
    fn marks_may_arrive_in_parts() {
        let whole = format!("a\x1eb{}c", mark(0x1234_5678));
        for at in 1..whole.len() {
            let mut stream = stream();
            push(&mut stream, &whole[..at]);
            let mut seen = text(&mut stream);
            push(&mut stream, &whole[at..]);
            seen.push_str(&text(&mut stream));
            assert_eq!((seen.as_str(), stream.is_waiting()), ("a\x1eb", true), "{at}");
            stream.release(0x1234_5678);
            assert_eq!(text(&mut stream), "c", "{at}");
        }
    }

    #[test]
    fn similar_output_is_no_mark() {
        let other = format!("\x1e{:016x}{:08x}", 0xac, 1);
        for almost in [
            "\x1e",
            "\x1e\x1e0",
            &other,
            &format!("\x1e{:016x}1234567x", 0xab),
            &format!("\x1e{:016x}+1234567", 0xab),
        ] {
            let mut stream = stream();
            push(&mut stream, almost);
            push(&mut stream, "rest of a line that is longer than a mark");
            assert_eq!(text(&mut stream), format!("{almost}rest of a line that is longer than a mark"));
        }
    }

    #[test]
    fn last_output_waits_for_nothing() {
        let mut stream = stream();
        push(&mut stream, &format!("a{}{}b{}c{}", mark(7), mark(8), mark(u32::MAX), &mark(9)[..20]));
        assert_eq!((text(&mut stream).as_str(), stream.is_within_mark()), ("a", false));
        let last: Vec<u8> = std::iter::from_fn(|| stream.take(Until::End)).flatten().collect();
        assert_eq!((last.as_slice(), stream.is_within_mark()), (b"bc".as_slice(), true));
        assert_eq!(stream.take_rest().unwrap(), mark(9)[..20]);
        assert!(!stream.is_waiting() && stream.take_rest().is_none());
    }

    #[test]
    fn tokens_are_random() {
        assert_ne!(Token::random().as_str(), Token::random().as_str());
    }
}
