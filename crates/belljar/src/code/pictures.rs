//! Pictures: shown inline in terminals that support it, and saved otherwise.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Write as _};
use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use belljar_model::CodeResult;

use crate::message::Quit;

/// Magic bytes of a PNG file.
const PNG: &[u8] = b"\x89PNG\r\n\x1a\n";
/// Magic bytes of a JPEG file.
const JPEG: &[u8] = b"\xff\xd8\xff";

/// Kinds of pictures, the preferred ones first, and their file extensions.
const KINDS: [(&str, &str); 4] =
    [("image/png", "png"), ("image/jpeg", "jpeg"), ("image/svg+xml", "svg"), ("application/pdf", "pdf")];

/// Maximum payload of one chunk of the kitty protocol, in base64 characters.
const KITTY_CHARS: usize = 4096;

/// Maximum number of file names that are tried for a picture.
const MAX_NUMBER: u32 = 100_000;

/// A picture in a result.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Picture {
    extension: &'static str,
    bytes: Vec<u8>,
}

/// The best picture of a result.
pub(super) fn first(result: &CodeResult) -> Option<Picture> {
    KINDS.iter().find_map(|(mime, extension)| Some(Picture { extension, bytes: result.bytes(mime)? }))
}

/// Protocol for pictures in a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Protocol {
    /// The kitty graphics protocol.
    Kitty,
    /// The inline images protocol of iTerm2.
    Iterm,
}

/// Destination of pictures.
#[derive(Debug)]
pub(super) struct Pictures {
    protocol: Option<Protocol>,
    dir: PathBuf,
    last: u32,
}

impl Pictures {
    /// Shows pictures in this terminal if it announces support, and saves the others to `dir`.
    pub(super) fn new(dir: PathBuf) -> Self {
        let is_terminal = rustix::termios::isatty(rustix::stdio::stdout());
        let protocol = protocol(|name| std::env::var(name).ok()).filter(|_| is_terminal);
        Self { protocol, dir, last: 0 }
    }

    /// Returns the escape sequence that shows the picture in this terminal, if supported.
    pub(super) fn inline(&self, picture: &Picture) -> Option<String> {
        let is_png = picture.bytes.starts_with(PNG);
        let is_jpeg = picture.bytes.starts_with(JPEG);
        match self.protocol? {
            Protocol::Kitty if is_png => Some(kitty(&picture.bytes)),
            Protocol::Iterm if is_png || is_jpeg => Some(iterm(&picture.bytes)),
            _ => None,
        }
    }

    /// Saves the picture under an unused name, and returns its path. Nothing is overwritten, and no link is followed.
    pub(super) fn save(&mut self, picture: &Picture) -> Result<PathBuf, Quit> {
        while self.last < MAX_NUMBER {
            self.last += 1;
            let path = self.dir.join(format!("belljar-{}.{}", self.last, picture.extension));
            let failed = |error| anyhow::Error::new(error).context(format!("out: cannot write {path:?}"));
            match OpenOptions::new().write(true).create_new(true).open(&path) {
                Ok(mut file) => {
                    file.write_all(&picture.bytes).map_err(failed)?;
                    return Ok(path.strip_prefix(".").map(PathBuf::from).unwrap_or(path));
                }
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return Err(failed(error).into()),
            }
        }
        Err(anyhow::anyhow!("out: {:?} has {MAX_NUMBER} pictures already; give another directory", self.dir)
            .into())
    }
}

/// Detects the terminal's protocol from the environment, which inside tmux and screen may describe another terminal.
fn protocol(variable: impl Fn(&str) -> Option<String>) -> Option<Protocol> {
    let is_set = |name| variable(name).is_some_and(|value| !value.is_empty());
    let term = variable("TERM").unwrap_or_default();
    if is_set("TMUX") || term.starts_with("screen") || term.starts_with("tmux") {
        return None;
    }
    match variable("TERM_PROGRAM").as_deref() {
        Some("iTerm.app" | "WezTerm") => Some(Protocol::Iterm),
        Some("ghostty") => Some(Protocol::Kitty),
        _ if is_set("KITTY_WINDOW_ID") || term == "xterm-kitty" || term == "xterm-ghostty" => {
            Some(Protocol::Kitty)
        }
        _ => None,
    }
}

fn kitty(bytes: &[u8]) -> String {
    let data = STANDARD.encode(bytes);
    let mut text = String::with_capacity(data.len() + data.len() / 128 + 64);
    let mut rest = data.as_str();
    let mut keys = "a=T,f=100,";
    loop {
        let (piece, after) = rest.split_at(rest.len().min(KITTY_CHARS));
        let more = u8::from(!after.is_empty());
        text.push_str(&format!("\u{1b}_G{keys}m={more};{piece}\u{1b}\\"));
        if after.is_empty() {
            break;
        }
        (rest, keys) = (after, "");
    }
    text.push('\n');
    text
}

fn iterm(bytes: &[u8]) -> String {
    format!("\u{1b}]1337;File=inline=1;size={}:{}\u{7}\n", bytes.len(), STANDARD.encode(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn detect(pairs: &[(&str, &str)]) -> Option<Protocol> {
        let find =
            |name: &str| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        protocol(find)
    }

    #[test]
    fn protocol_is_detected_from_the_environment() {
        assert_eq!(detect(&[("TERM", "xterm-256color")]), None);
        assert_eq!(detect(&[("TERM", "xterm-kitty")]), Some(Protocol::Kitty));
        assert_eq!(detect(&[("KITTY_WINDOW_ID", "1")]), Some(Protocol::Kitty));
        assert_eq!(detect(&[("KITTY_WINDOW_ID", "1"), ("TMUX", "/tmp/x")]), None);
        assert_eq!(detect(&[("TERM_PROGRAM", "iTerm.app")]), Some(Protocol::Iterm));
        assert_eq!(detect(&[("TERM_PROGRAM", "iTerm.app"), ("TERM", "screen-256color")]), None);
        assert_eq!(detect(&[("TERM_PROGRAM", "vscode"), ("TERM", "xterm")]), None);
    }

    #[test]
    fn kitty_payload_is_chunked() {
        let mut bytes = PNG.to_vec();
        bytes.resize(5000, 0);
        let text = kitty(&bytes);
        let pieces: Vec<&str> = text.trim_end().split("\u{1b}\\").filter(|piece| !piece.is_empty()).collect();
        assert_eq!(pieces.len(), 2);
        assert!(pieces[0].starts_with("\u{1b}_Ga=T,f=100,m=1;iVBORw0KGgo"), "{}", &pieces[0][..40]);
        assert!(pieces[1].starts_with("\u{1b}_Gm=0;"), "{}", &pieces[1][..20]);
        assert!(iterm(&bytes).starts_with("\u{1b}]1337;File=inline=1;size=5000:iVBORw0KGgo"));
        // Data without the magic bytes of its kind is saved, not shown.
        let shown = Pictures { protocol: Some(Protocol::Kitty), dir: PathBuf::new(), last: 0 };
        assert_eq!(shown.inline(&Picture { extension: "png", bytes: b"no".to_vec() }), None);
        assert!(shown.inline(&Picture { extension: "png", bytes }).is_some());
    }

    #[test]
    fn saving_never_overwrites() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("belljar-1.png"), "mine").unwrap();
        std::os::unix::fs::symlink("/nonexistent/x", dir.path().join("belljar-2.png")).unwrap();
        let mut pictures = Pictures { protocol: None, dir: dir.path().to_owned(), last: 0 };
        let picture = Picture { extension: "png", bytes: PNG.to_vec() };
        assert_eq!(pictures.save(&picture).unwrap(), dir.path().join("belljar-3.png"));
        assert_eq!(pictures.save(&picture).unwrap(), dir.path().join("belljar-4.png"));
        assert_eq!(std::fs::read(dir.path().join("belljar-1.png")).unwrap(), b"mine");
        assert_eq!(std::fs::read(dir.path().join("belljar-3.png")).unwrap(), PNG);
    }

    #[test]
    fn best_picture_is_selected() {
        let mut result = CodeResult::default();
        assert_eq!(first(&result), None);
        result.add("image/svg+xml", b"<svg/>");
        assert_eq!(first(&result).map(|picture| picture.extension), Some("svg"));
        result.add("image/png", PNG);
        assert_eq!(first(&result), Some(Picture { extension: "png", bytes: PNG.to_vec() }));
    }
}
