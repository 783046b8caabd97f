//! The messages by which a guest without HTTP/2 starts one program, and reports its end.
//!
//! ```text
//! host  → guest   StartRequest, with the program's standard output and error, and its standard input before them if it has one
//! guest → host    refusal, or ProcessEvent.started and later ProcessEvent.exited
//! host  → guest   SignalRequest, any number
//! ```
//!
//! Each is its length, as 4 bytes in network order, and its bytes. A message of the guest begins with a code of gRPC, 0 before an
//! event; after another one is the reason. A connection that begins with HTTP/2's preface speaks HTTP/2 from the beginning, and one on
//! which a program has ended may do so from then on.

use crate::{ConnectError, ErrorCode, Message as _, v1};

/// First byte of HTTP/2's preface (RFC 9113, section 3.4). The length of a message begins with 0.
pub const HTTP2_FIRST: u8 = b'P';

/// Number of bytes of a message's length.
pub const LENGTH_BYTES: usize = 4;

/// Maximum length of a message to the guest: its length begins with 0.
pub const MAX_DIRECT_BYTES: usize = crate::MAX_MESSAGE_BYTES;

/// Maximum length of a message of the guest, in bytes.
pub const MAX_ANSWER_BYTES: usize = 16 << 10;

/// Returns a message with its length.
#[must_use]
pub fn direct_message(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
    [&length.to_be_bytes(), message].concat()
}

/// Returns a message of the guest with its length.
#[must_use]
pub fn direct_answer(answer: &Result<v1::ProcessEvent, ConnectError>) -> Vec<u8> {
    let message = match answer {
        Ok(event) => [&[0], event.encode_to_vec().as_slice()].concat(),
        Err(error) => {
            let code = u8::try_from(error.code.grpc_code()).unwrap_or(0);
            let text = error.message.as_deref().unwrap_or_default();
            let text = text.get(..text.floor_char_boundary(MAX_ANSWER_BYTES - 1)).unwrap_or_default();
            [&[code], text.as_bytes()].concat()
        }
    };
    direct_message(&message)
}

/// Parses a message of the guest, without its length. `None` if it is none.
#[must_use]
pub fn parse_direct_answer(message: &[u8]) -> Option<Result<v1::ProcessEvent, ConnectError>> {
    let (code, rest) = message.split_first()?;
    if *code == 0 {
        return v1::ProcessEvent::decode_from_slice(rest).ok().map(Ok);
    }
    let code = ErrorCode::from_grpc_code((*code).into())?;
    Some(Err(ConnectError::new(code, String::from_utf8_lossy(rest))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(
        answer: &Result<v1::ProcessEvent, ConnectError>,
    ) -> Option<Result<v1::ProcessEvent, ConnectError>> {
        let message = direct_answer(answer);
        let (length, message) = message.split_at(LENGTH_BYTES);
        assert_eq!(u32::from_be_bytes(length.try_into().unwrap()) as usize, message.len());
        assert!(message.len() <= MAX_ANSWER_BYTES);
        parse_direct_answer(message)
    }

    #[test]
    fn answers_arrive_as_they_were_sent() {
        let started = v1::Started { id: 1, pid: 2, ..Default::default() };
        let event = v1::ProcessEvent { event: Some(started.into()), ..Default::default() };
        assert_eq!(parse(&Ok(event.clone())).unwrap().unwrap(), event);
        let refused = parse(&Err(ConnectError::not_found("no such program"))).unwrap().unwrap_err();
        assert_eq!(
            (refused.code, refused.message.as_deref()),
            (ErrorCode::NotFound, Some("no such program"))
        );
        let long = "ä".repeat(MAX_ANSWER_BYTES);
        let refused = parse(&Err(ConnectError::not_found(long.clone()))).unwrap().unwrap_err();
        assert!(long.starts_with(&refused.message.unwrap()));
    }

    #[test]
    fn other_messages_are_refused() {
        assert!(parse_direct_answer(b"").is_none());
        assert!(parse_direct_answer(b"\0\xff\xff").is_none());
        assert!(parse_direct_answer(&[200, b'x']).is_none(), "an unknown code");
    }

    #[test]
    fn no_message_begins_as_http2_does() {
        let longest = u32::try_from(MAX_DIRECT_BYTES).unwrap().to_be_bytes();
        assert_eq!(longest[0], 0);
        assert_ne!(HTTP2_FIRST, 0);
    }
}
