//! Framing of the requests on a connection, as their bytes arrive: a request that is framed in two ways is spoiled before it is parsed.
//!
//! A server that finds both `Transfer-Encoding` and `Content-Length` in a request may go by the first and drop the second (RFC 9112,
//! 6.3), so that its handlers cannot refuse the request any more, and an intermediary before it may have gone by the other.

/// Maximum length in bytes of a line that is looked at. Heads of this length are refused by what parses them.
const MAX_LINE_BYTES: usize = 64 << 10;

/// Follows the requests of one connection of HTTP/1.
#[derive(Debug, Default)]
pub struct FramingScan {
    /// Whether a tunnel follows the method CONNECT, and another protocol a request with `Upgrade`.
    has_tunnels: bool,
    state: State,
    /// The line that is being read.
    line: Vec<u8>,
    head: Head,
}

#[derive(Debug, Default)]
enum State {
    /// Lines of a head, or empty ones before it.
    #[default]
    Head,
    /// Bytes of a body.
    Body(u64),
    /// The size of a chunk.
    ChunkSize,
    /// Bytes of a chunk, and the end of its line.
    Chunk(u64),
    Trailers,
    /// Another protocol, or nothing that would be a request.
    Opaque,
}

/// What is known of a head.
#[derive(Debug, Default)]
struct Head {
    has_lines: bool,
    is_chunked: bool,
    length: Option<u64>,
    /// Another protocol may follow it.
    switches: bool,
}

impl FramingScan {
    /// Follows a connection to a proxy, where a tunnel follows the method CONNECT. A server refuses that, and reads on. It knows itself when it
    /// has switched to another protocol, and need not ask any more then.
    #[must_use]
    pub fn with_tunnels() -> Self {
        Self { has_tunnels: true, ..Self::default() }
    }

    /// Looks at the next bytes of the connection. In a request that has both headers, the end of the second one's line is replaced by a byte
    /// with which no parser accepts the request: it is answered with 400, and the connection is closed.
    pub fn spoil(&mut self, bytes: &mut [u8]) {
        let mut rest = bytes.iter_mut();
        while let Some(byte) = rest.next() {
            match &mut self.state {
                State::Opaque => return,
                State::Body(left) | State::Chunk(left) => {
                    let others = usize::try_from(*left - 1).unwrap_or(usize::MAX).min(rest.len());
                    if others > 0 {
                        rest.nth(others - 1);
                    }
                    *left -= 1 + others as u64;
                    if *left == 0 {
                        let is_body = matches!(self.state, State::Body(_));
                        self.state = if is_body { State::Head } else { State::ChunkSize };
                    }
                }
                State::Head | State::ChunkSize | State::Trailers if *byte != b'\n' => {
                    if self.line.len() < MAX_LINE_BYTES {
                        self.line.push(*byte);
                    }
                }
                State::Head | State::ChunkSize | State::Trailers => {
                    let line = std::mem::take(&mut self.line);
                    if self.end_line(line.strip_suffix(b"\r").unwrap_or(&line)) {
                        *byte = 0;
                        self.state = State::Opaque;
                    }
                }
            }
        }
    }

    /// Follows a line. Reports whether it is the second of the two headers.
    fn end_line(&mut self, line: &[u8]) -> bool {
        match self.state {
            State::Head if line.is_empty() && !self.head.has_lines => {}
            State::Head if line.is_empty() => self.state = std::mem::take(&mut self.head).followed_by(),
            State::Head => return self.head.add(line, self.has_tunnels),
            State::ChunkSize => {
                let digits = line.split(|byte| *byte == b';').next().unwrap_or_default();
                let digits = std::str::from_utf8(digits.trim_ascii()).unwrap_or_default();
                self.state = match u64::from_str_radix(digits, 16) {
                    Ok(0) => State::Trailers,
                    Ok(size) => State::Chunk(size.saturating_add(2)),
                    Err(_) => State::Opaque,
                };
            }
            State::Trailers if line.is_empty() => self.state = State::Head,
            State::Trailers | State::Body(_) | State::Chunk(_) | State::Opaque => {}
        }
        false
    }
}

impl Head {
    /// Adds a line. Reports whether the head has both headers.
    fn add(&mut self, line: &[u8], has_tunnels: bool) -> bool {
        if !self.has_lines {
            self.has_lines = true;
            self.switches =
                has_tunnels && line.starts_with(b"CONNECT ") || line.trim_ascii_end() == b"PRI * HTTP/2.0";
            return false;
        }
        let mut parts = line.splitn(2, |byte| *byte == b':');
        let name = parts.next().unwrap_or_default().trim_ascii();
        let value = parts.next().unwrap_or_default().trim_ascii();
        if name.eq_ignore_ascii_case(b"transfer-encoding") {
            self.is_chunked = true;
        } else if name.eq_ignore_ascii_case(b"content-length") {
            let length = std::str::from_utf8(value).ok().and_then(|value| value.parse().ok());
            self.length = Some(length.unwrap_or_default());
        } else if name.eq_ignore_ascii_case(b"upgrade") {
            self.switches |= has_tunnels;
        }
        self.is_chunked && self.length.is_some()
    }

    fn followed_by(self) -> State {
        match self {
            Self { switches: true, .. } => State::Opaque,
            Self { is_chunked: true, .. } => State::ChunkSize,
            Self { length: None | Some(0), .. } => State::Head,
            Self { length: Some(length), .. } => State::Body(length),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns what parts of a text become, with `!` for a byte that was replaced.
    fn scan(parts: &[&str]) -> String {
        scan_with(FramingScan::default(), parts)
    }

    fn scan_with(mut scan: FramingScan, parts: &[&str]) -> String {
        let mut whole = Vec::new();
        for part in parts {
            let mut bytes = part.as_bytes().to_vec();
            scan.spoil(&mut bytes);
            whole.extend(bytes);
        }
        String::from_utf8(whole).unwrap().replace('\0', "!")
    }

    #[test]
    fn requests_that_are_framed_in_two_ways_are_spoiled() {
        for before in [
            "",
            "\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
            "PRI /health HTTP/1.1\r\n\r\n",
            "CONNECT a:1 HTTP/1.1\r\n\r\n",
            "POST / HTTP/1.1\r\ncontent-length: 50\r\n\r\n/ HTTP/1.1\r\ncontent-length: 1\ntransfer-encoding: \n",
            "POST / HTTP/1.1\nTransfer-Encoding: chunked\n\n5;x=y\r\na\r\nb\n\r\nA\r\n0123456789\r\n0\r\nx: y\r\n\r\n",
        ] {
            for headers in [
                ["Transfer-Encoding: chunked\r", "Content-Length: 5\r"],
                ["content-length:\t5\r", "TRANSFER-ENCODING: gzip, chunked\r"],
                ["content-length: 05x", "transfer-encoding: "],
            ] {
                let [first, second] = headers;
                let text =
                    format!("{before}POST / HTTP/1.1\r\nHost: a\r\n{first}\nX: y\r\n{second}\n\r\nabc");
                let expected =
                    format!("{before}POST / HTTP/1.1\r\nHost: a\r\n{first}\nX: y\r\n{second}!\r\nabc");
                assert_eq!(scan(&[&text]), expected);
                let bytes: Vec<String> = text.chars().map(String::from).collect();
                assert_eq!(scan(&bytes.iter().map(String::as_str).collect::<Vec<_>>()), expected);
            }
        }
    }

    #[test]
    fn other_bytes_stay_as_they_are() {
        let both = "\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n";
        for text in [
            format!("PRI * HTTP/2.0\r\n\r\nSM{both}"),
            format!("POST / HTTP/1.1\r\nContent-Length: {}\r\n\r\n/{both}", both.len() + 1),
            format!("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n/{both}\r\n0\r\n\r\n", both.len() + 1),
            "GET / HTTP/1.1\r\nContent-Length: 0\r\n\r\nPOST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n".to_owned(),
        ] {
            assert_eq!(scan(&[&text]), text);
        }
        let tunnel = format!("CONNECT a:1 HTTP/1.1\r\n\r\nGET / HTTP/1.1{both}");
        assert_eq!(scan_with(FramingScan::with_tunnels(), &[&tunnel]), tunnel);
        let upgrade = format!("GET / HTTP/1.1\r\nUpgrade: websocket\r\n\r\nGET / HTTP/1.1{both}");
        assert_eq!(scan_with(FramingScan::with_tunnels(), &[&upgrade]), upgrade);
        // A server may answer it as any other request.
        assert_ne!(scan(&[&upgrade]), upgrade);
    }
}
