//! Searches a tree by name and content, as a stream. Memory is bounded by the length of a line and of a name, time by a
//! deadline; both tree and pattern may be hostile.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::ffi::CStr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use belljar_files::{Found, Glob, NO_FOLLOW, Walk, kind, open_dir, show, stat_open};
use belljar_proto::{ConnectError, v1};
use bytes::Bytes;
use futures::Stream;
use memchr::{memchr, memchr_iter, memrchr};
use regex_lite::RegexBuilder;
use rustix::fs::{CWD, FileType, Mode, OFlags, StatxFlags};
use rustix::io::{Errno, read, retry_on_intr};

use super::entry::entry;
use super::path::{failure, resolve};
use super::read::check_regular;

/// Maximum duration of a search.
const SEARCH_TIMEOUT: Duration = Duration::from_secs(60);

const DEFAULT_RESULTS: u32 = 1000;
const MAX_RESULTS: u32 = 10_000;
const DEFAULT_FILE_BYTES: u64 = 16 << 20;

/// Maximum length of the text or expression to search for, in bytes.
const MAX_CONTENT_BYTES: usize = 1024;

/// Maximum size of a compiled expression, in bytes: it bounds the time per line.
const MAX_EXPRESSION_BYTES: usize = 64 * 1024;

/// Maximum length of a line in a match, in bytes.
const MAX_SHOWN_BYTES: usize = 1024;

/// Length of a line that is searched, in bytes.
const MAX_LINE_BYTES: usize = 64 * 1024;

/// Maximum size of one read from a file, in bytes.
const READ_BYTES: usize = 64 * 1024;

/// Runs the search in the request.
pub(super) fn search(
    home: &Path,
    request: &v1::SearchRequest,
) -> Result<impl Stream<Item = Result<v1::SearchMatch, ConnectError>> + use<>, ConnectError> {
    let path = resolve(home, "path", &request.path)?;
    let invalid = |why: String| Err(ConnectError::invalid_argument(why));
    if request.max_results > MAX_RESULTS {
        return invalid(format!(
            "max_results: {} is not allowed; at most {MAX_RESULTS} is",
            request.max_results
        ));
    }
    let glob = match request.name_glob.as_ref() {
        b"" => None,
        pattern => match Glob::new(pattern) {
            Ok(glob) => Some(glob),
            Err(why) => return invalid(format!("name_glob: {}: {why}", show(pattern))),
        },
    };
    let content = parse_content(request)?;
    let fail = |errno| failure("search", &request.path, errno);
    let stat = rustix::fs::statx(CWD, &path, rustix::fs::AtFlags::empty(), StatxFlags::TYPE).map_err(fail)?;
    let mut search = Search {
        walk: None,
        file: None,
        glob,
        content,
        hidden: request.include_hidden,
        left: if request.max_results == 0 { DEFAULT_RESULTS } else { request.max_results },
        max_file_bytes: if request.max_file_bytes == 0 { DEFAULT_FILE_BYTES } else { request.max_file_bytes },
        deadline: Instant::now() + SEARCH_TIMEOUT,
        found: VecDeque::new(),
        summary: v1::SearchSummary::default(),
        is_done: false,
        is_summary_sent: false,
    };
    if kind(&stat) == FileType::Directory {
        let dir = open_dir(CWD, &path, true).map_err(fail)?;
        search.walk = Some(Walk::new(dir, b"", false).map_err(fail)?);
    } else {
        check_regular(&stat, "search", &request.path)?;
        let file = rustix::fs::open(&path, OPEN_FLAGS, Mode::empty()).map_err(fail)?;
        check_regular(&stat_open(&file).map_err(fail)?, "search", &request.path)?;
        search.file = search.content.is_some().then(|| TextFile::new(file, Vec::new()));
        search.summary.searched = 1;
    }
    Ok(futures::stream::unfold(search, |mut search| async move {
        let message = search.next().await?;
        Some((Ok(message), search))
    }))
}

/// Flags for opening a file, which may have been replaced by one whose `open` blocks.
const OPEN_FLAGS: OFlags =
    OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::NOCTTY).union(OFlags::CLOEXEC);

/// Text or expression that a line must contain.
enum Content {
    Text(Box<memchr::memmem::Finder<'static>>),
    Expression(Box<regex_lite::Regex>),
}

fn parse_content(request: &v1::SearchRequest) -> Result<Option<Content>, ConnectError> {
    let invalid = |why: &str| Err(ConnectError::invalid_argument(format!("content: {why}")));
    let needle = request.content.as_ref();
    if needle.len() > MAX_CONTENT_BYTES {
        return invalid("it is longer than 1,024 bytes");
    }
    if needle.contains(&b'\n') {
        return invalid("it contains a line break, and lines are searched one by one");
    }
    if needle.is_empty() {
        return if request.regex { invalid("it is empty; give an expression") } else { Ok(None) };
    }
    if !request.regex && !request.ignore_case {
        return Ok(Some(Content::Text(Box::new(memchr::memmem::Finder::new(needle).into_owned()))));
    }
    let Ok(text) = std::str::from_utf8(needle) else { return invalid("it is not UTF-8") };
    let expression = if request.regex { Cow::Borrowed(text) } else { regex_lite::escape(text).into() };
    let built = RegexBuilder::new(&expression)
        .case_insensitive(request.ignore_case)
        .size_limit(MAX_EXPRESSION_BYTES)
        .build();
    match built {
        Ok(expression) => Ok(Some(Content::Expression(Box::new(expression)))),
        Err(error) => invalid(&error.to_string()),
    }
}

struct Search {
    walk: Option<Walk>,
    file: Option<TextFile>,
    glob: Option<Glob>,
    content: Option<Content>,
    hidden: bool,
    left: u32,
    max_file_bytes: u64,
    deadline: Instant,
    found: VecDeque<v1::SearchMatch>,
    summary: v1::SearchSummary,
    is_done: bool,
    is_summary_sent: bool,
}

impl Search {
    async fn next(&mut self) -> Option<v1::SearchMatch> {
        loop {
            if let Some(found) = self.found.pop_front() {
                if self.left == 0 {
                    self.summary.more = true;
                    self.is_done = true;
                    self.found.clear();
                    continue;
                }
                self.left -= 1;
                return Some(found);
            }
            if self.is_summary_sent {
                return None;
            }
            if self.is_done {
                self.is_summary_sent = true;
                let summary = self.summary.clone().into();
                return Some(v1::SearchMatch { summary, ..Default::default() });
            }
            // Lets other tasks of the guest run while a large tree is searched.
            tokio::task::yield_now().await;
            if Instant::now() >= self.deadline {
                self.summary.timed_out = true;
                self.is_done = true;
            } else if let Some(file) = self.file.take() {
                self.read(file);
            } else {
                self.walk();
            }
        }
    }

    fn walk(&mut self) {
        let Some(mut walk) = self.walk.take() else {
            self.is_done = true;
            return;
        };
        match walk.step() {
            Found::Nothing => {}
            Found::End => {
                self.summary.skipped += walk.missed;
                self.is_done = true;
                return;
            }
            Found::Unreadable(_) => self.summary.skipped += 1,
            _ if !self.hidden && is_hidden(walk.path()) => {}
            Found::Directory => {
                self.visit(&walk, None);
                walk.enter();
            }
            Found::Other(name) => self.visit(&walk, Some(&name)),
        }
        self.walk = Some(walk);
    }

    /// Reports a matching entry, or starts reading it. Without a name, the entry is the directory that the walk found.
    fn visit(&mut self, walk: &Walk, name: Option<&CStr>) {
        if self.glob.as_ref().is_some_and(|glob| !glob.matches(walk.path())) {
            return;
        }
        let Some(dir) = walk.dir() else { return };
        match (&self.content, name) {
            (None, _) => {
                self.summary.searched += 1;
                let stat = match name {
                    Some(name) => rustix::fs::statx(dir, name, NO_FOLLOW, StatxFlags::BASIC_STATS),
                    None => walk.found_dir().ok_or(Errno::NOENT).and_then(stat_open),
                };
                // It may have been removed meanwhile.
                if let Ok(stat) = stat {
                    let entry = entry(&stat, walk.path());
                    let (path, kind) = (entry.path, entry.kind);
                    self.found.push_back(v1::SearchMatch { path, kind, ..Default::default() });
                }
            }
            (Some(_), Some(name)) => match self.open(dir, name) {
                Ok(Some(file)) => {
                    self.summary.searched += 1;
                    self.file = Some(TextFile::new(file, walk.path().to_vec()));
                }
                Ok(None) => {}
                Err(_) => self.summary.skipped += 1,
            },
            (Some(_), None) => {}
        }
    }

    fn open(&mut self, dir: BorrowedFd<'_>, name: &CStr) -> Result<Option<OwnedFd>, Errno> {
        // Checked before opening, because opening a device or a FIFO has side effects.
        let stat = rustix::fs::statx(dir, name, NO_FOLLOW, StatxFlags::TYPE)?;
        if kind(&stat) != FileType::RegularFile {
            return Ok(None);
        }
        let file = rustix::fs::openat(dir, name, OPEN_FLAGS | OFlags::NOFOLLOW, Mode::empty())?;
        let stat = stat_open(&file)?;
        if kind(&stat) != FileType::RegularFile {
            return Ok(None);
        }
        if stat.stx_size > self.max_file_bytes {
            self.summary.skipped += 1;
            return Ok(None);
        }
        Ok(Some(file))
    }

    /// Searches the next chunk of a file.
    fn read(&mut self, mut file: TextFile) {
        let Some(content) = &self.content else { return };
        match file.fill(self.max_file_bytes) {
            Ok(Filled::Lines(length)) => {
                file.search(length, content, &mut self.found);
                self.file = Some(file);
            }
            Ok(Filled::Nothing) => {}
            Ok(Filled::Binary) | Err(_) => self.summary.skipped += 1,
        }
    }
}

fn is_hidden(path: &[u8]) -> bool {
    let name = memrchr(b'/', path).map_or(path, |slash| &path[slash + 1..]);
    name.starts_with(b".")
}

/// A file whose lines are searched.
struct TextFile {
    file: OwnedFd,
    path: Vec<u8>,
    buffer: Vec<u8>,
    /// Number of lines before the buffer.
    lines: u64,
    bytes: u64,
    /// True while the rest of an overlong line is skipped.
    is_skipping: bool,
    is_at_end: bool,
}

enum Filled {
    /// Number of bytes in the buffer that are complete lines.
    Lines(usize),
    Nothing,
    Binary,
}

impl TextFile {
    fn new(file: OwnedFd, path: Vec<u8>) -> Self {
        Self { file, path, buffer: Vec::new(), lines: 0, bytes: 0, is_skipping: false, is_at_end: false }
    }

    /// Reads the next chunk, and reports whether the buffer has complete lines or an overlong part of one.
    fn fill(&mut self, max_bytes: u64) -> Result<Filled, Errno> {
        if !self.is_at_end {
            self.buffer.reserve(READ_BYTES);
            let length =
                retry_on_intr(|| read(&self.file, rustix::buffer::spare_capacity(&mut self.buffer)))?;
            if self.bytes == 0 && memchr(0, &self.buffer).is_some() {
                return Ok(Filled::Binary);
            }
            self.bytes += length as u64;
            // Bounded, also for a file that grows while it is read.
            self.is_at_end = length == 0 || self.bytes > max_bytes;
        }
        if self.is_skipping {
            self.skip_line();
        }
        match memrchr(b'\n', &self.buffer) {
            Some(last) => Ok(Filled::Lines(last + 1)),
            None if self.is_at_end && self.buffer.is_empty() => Ok(Filled::Nothing),
            None if self.is_at_end || self.buffer.len() >= MAX_LINE_BYTES => {
                Ok(Filled::Lines(self.buffer.len()))
            }
            // Less than a line so far; there is more.
            None => Ok(Filled::Lines(0)),
        }
    }

    fn skip_line(&mut self) {
        match memchr(b'\n', &self.buffer) {
            Some(end) => {
                self.buffer.drain(..=end);
                self.lines += 1;
                self.is_skipping = false;
            }
            None => self.buffer.clear(),
        }
    }

    /// Searches the first `length` bytes of the buffer and removes them.
    fn search(&mut self, length: usize, content: &Content, found: &mut VecDeque<v1::SearchMatch>) {
        let block = &self.buffer[..length];
        let mut at = 0;
        while at < block.len() {
            let Some((begin, end, column)) = content.find(block, at) else { break };
            let lines = self.lines + memchr_iter(b'\n', &block[..begin]).count() as u64;
            found.push_back(v1::SearchMatch {
                path: Bytes::copy_from_slice(&self.path),
                kind: v1::FileKind::FILE_KIND_FILE.into(),
                line_number: lines + 1,
                line: Bytes::copy_from_slice(&block[begin..end.min(begin + MAX_SHOWN_BYTES)]),
                column: column as u64 + 1,
                ..Default::default()
            });
            at = end + 1;
        }
        self.lines += memchr_iter(b'\n', block).count() as u64;
        self.is_skipping |= !self.is_at_end && length > 0 && !block.ends_with(b"\n");
        self.buffer.drain(..length);
    }
}

impl Content {
    /// Returns the first matching line from `at` on: its start, its end without the line break, and the column of the
    /// match.
    fn find(&self, block: &[u8], at: usize) -> Option<(usize, usize, usize)> {
        let line_end = |from: usize| memchr(b'\n', &block[from..]).map_or(block.len(), |end| from + end);
        match self {
            Self::Text(finder) => {
                let hit = at + finder.find(&block[at..])?;
                let begin = memrchr(b'\n', &block[..hit]).map_or(0, |end| end + 1);
                Some((begin, line_end(hit), hit - begin))
            }
            Self::Expression(expression) => {
                let mut begin = at;
                while begin < block.len() {
                    let end = line_end(begin);
                    let searched = &block[begin..end.min(begin + MAX_LINE_BYTES)];
                    if let Some(hit) = expression.find(&String::from_utf8_lossy(searched)) {
                        return Some((begin, end, hit.start()));
                    }
                    begin = end + 1;
                }
                None
            }
        }
    }
}
