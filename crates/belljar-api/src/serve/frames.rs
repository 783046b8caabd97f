//! Counts the HTTP/2 frames that cost a client nothing and carry no request, so that a connection that sends nothing else is closed. The
//! HTTP/2 library answers each SETTINGS and PING, however many there are.

use std::time::Duration;

use tokio::time::Instant;

/// Maximum number of such frames in a second. Clients send a few in a connection's life; those that measure the bandwidth of a
/// connection send at most one PING per round trip while data flows.
pub(super) const MAX_CONTROL_FRAMES: u32 = 1_000;

const SECOND: Duration = Duration::from_secs(1);

/// What a client sends first on an HTTP/2 connection (RFC 9113, 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Length of a frame's header, in bytes: length (3), type, flags, stream (4) (RFC 9113, 4.1).
const HEADER_BYTES: usize = 9;

/// Types of frames that belong to requests or to their flow control (RFC 9113, 6): DATA, HEADERS, RST_STREAM, WINDOW_UPDATE,
/// CONTINUATION. All others are counted, unknown ones too.
const OF_REQUESTS: [u8; 5] = [0, 1, 3, 8, 9];

/// Position in what a client sends.
enum Position {
    /// After this many bytes of the preface.
    Preface(usize),
    /// Not HTTP/2.
    Other,
    /// In a frame's header, of which this many bytes have arrived.
    Header([u8; HEADER_BYTES], usize),
    /// In a frame's payload, of which this many bytes are left.
    Payload(usize),
}

/// Counter of one connection.
pub(super) struct ControlFrames {
    position: Position,
    since: Instant,
    count: u32,
}

impl ControlFrames {
    pub(super) fn new() -> Self {
        Self { position: Position::Preface(0), since: Instant::now(), count: 0 }
    }

    /// Follows the bytes that a client has sent. Reports whether they are acceptable; after that it is not called again.
    pub(super) fn accept(&mut self, mut bytes: &[u8]) -> bool {
        while let Some((first, rest)) = bytes.split_first() {
            match &mut self.position {
                Position::Other => return true,
                Position::Preface(at) => {
                    if PREFACE.get(*at) != Some(first) {
                        self.position = Position::Other;
                        return true;
                    }
                    *at += 1;
                    if *at == PREFACE.len() {
                        self.position = Position::Header([0; HEADER_BYTES], 0);
                    }
                    bytes = rest;
                }
                Position::Header(header, have) => {
                    let taken = bytes.len().min(HEADER_BYTES - *have);
                    header[*have..*have + taken].copy_from_slice(&bytes[..taken]);
                    *have += taken;
                    bytes = &bytes[taken..];
                    if *have == HEADER_BYTES {
                        let [high, middle, low, kind, ..] = *header;
                        let length = usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
                        self.position = match length {
                            0 => Position::Header([0; HEADER_BYTES], 0),
                            length => Position::Payload(length),
                        };
                        if !OF_REQUESTS.contains(&kind) && !self.count() {
                            return false;
                        }
                    }
                }
                Position::Payload(left) => {
                    let taken = bytes.len().min(*left);
                    *left -= taken;
                    bytes = &bytes[taken..];
                    if *left == 0 {
                        self.position = Position::Header([0; HEADER_BYTES], 0);
                    }
                }
            }
        }
        true
    }

    /// Counts a frame; reports whether the limit is kept.
    fn count(&mut self) -> bool {
        if self.since.elapsed() >= SECOND {
            (self.since, self.count) = (Instant::now(), 0);
        }
        self.count += 1;
        self.count <= MAX_CONTROL_FRAMES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        let mut bytes = length[1..].to_vec();
        bytes.extend([kind, 0, 0, 0, 0, 0]);
        bytes.extend(payload);
        bytes
    }

    /// Returns the number of frames that are accepted of many equal ones, sent in pieces of this length.
    async fn accepted(kind: u8, payload: &[u8], piece: usize) -> u32 {
        let mut frames = ControlFrames::new();
        assert!(frames.accept(&PREFACE[..7]) && frames.accept(&PREFACE[7..]));
        for number in 0..3 * MAX_CONTROL_FRAMES {
            if !frame(kind, payload).chunks(piece).all(|bytes| frames.accept(bytes)) {
                return number;
            }
        }
        u32::MAX
    }

    #[tokio::test(start_paused = true)]
    async fn frames_without_requests_are_bounded() {
        for kind in [2, 4, 5, 6, 7, 10, 255] {
            for piece in [1, 5, 9, 17, 64] {
                assert_eq!(accepted(kind, &[0; 8], piece).await, MAX_CONTROL_FRAMES, "{kind}");
                assert_eq!(accepted(kind, &[], piece).await, MAX_CONTROL_FRAMES, "{kind}");
            }
        }
        for kind in OF_REQUESTS {
            assert_eq!(accepted(kind, &[6; 300], 50).await, u32::MAX, "{kind}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn each_second_has_its_own_count() {
        let mut frames = ControlFrames::new();
        assert!(frames.accept(PREFACE));
        for _ in 0..3 {
            for _ in 0..MAX_CONTROL_FRAMES {
                assert!(frames.accept(&frame(6, &[0; 8])));
            }
            tokio::time::advance(SECOND).await;
        }
    }

    #[tokio::test]
    async fn other_protocols_are_not_counted() {
        let mut frames = ControlFrames::new();
        assert!(frames.accept(b"PRI * HTTP/1.1\r\n"));
        for _ in 0..2 * MAX_CONTROL_FRAMES {
            assert!(frames.accept(&frame(6, &[0; 8])));
        }
    }
}
