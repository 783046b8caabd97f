//! The program to run: its source text and its language.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Seek as _, SeekFrom};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use belljar_model::{ImageReference, Language, Languages, ModelError};
use bytes::Bytes;
use rustix::fs::{FileType, OFlags};

/// Maximum length of a script, in bytes: 64 MiB.
pub(crate) const MAX_SCRIPT_BYTES: u64 = 64 << 20;

/// Language of code that has neither a file name nor a `#!` line.
const DEFAULT_LANGUAGE: &str = "python";

/// Error from reading a file or a script.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InputError {
    /// The file cannot be opened or read.
    #[error("{what}: cannot read {path:?}")]
    Read { what: &'static str, path: PathBuf, source: io::Error },
    /// The file is missing, and has the name of a language.
    #[error(
        "script: there is no file {name:?}; code in that language is run with belljar run -l {name} -c CODE"
    )]
    IsLanguage { name: String },
    /// The file is missing, and its name looks like code.
    #[error("script: there is no file {name:?}; code is run with belljar run -c {}", quote(.name))]
    IsCode { name: String },
    /// The file is missing, and its name looks like that of an image.
    #[error("script: there is no file {name:?}; an image is named with belljar run --image {name}")]
    IsImage { name: String },
    /// The path is not a regular file.
    #[error("{what}: {path:?} is {kind}; give a regular file")]
    NotAFile { what: &'static str, path: PathBuf, kind: &'static str },
    /// The file is too long.
    #[error("{what}: {path:?} has {bytes} bytes; at most {most} are allowed")]
    TooLong { what: &'static str, path: PathBuf, bytes: u64, most: u64 },
    /// Standard input is too long.
    #[error("{what}: standard input has more than {most} bytes, which is the most that is allowed")]
    StreamTooLong { what: &'static str, most: u64 },
    /// The content is not UTF-8.
    #[error("{what}: byte {offset} of {name} is not UTF-8; give text in UTF-8")]
    NotUtf8 { what: &'static str, name: String, offset: usize },
    /// Neither the name nor the first line tells the language.
    #[error(
        "language: {path:?} has no known extension and no known #! line; name it with -l; known are {known}"
    )]
    NoLanguage { path: PathBuf, known: String },
    /// See [`Languages::by_name`].
    #[error("{0}")]
    Language(#[from] ModelError),
}

/// A program with everything that is needed to run it.
#[derive(Debug)]
pub(crate) struct Program {
    pub(crate) language: &'static Language,
    /// The source's file name in the sandbox.
    pub(crate) source_name: PathBuf,
    pub(crate) source: Bytes,
    pub(crate) args: Vec<String>,
    /// Whether the source was read from standard input, which leaves none for the program.
    pub(crate) took_stdin: bool,
}

impl Program {
    /// Reads the program that the command line names: `code`, or else the first of `words`; the rest are arguments.
    /// Returns `None` if the command line names none.
    pub(crate) fn read(
        code: Option<&str>,
        words: &[OsString],
        language: Option<&str>,
    ) -> Result<Option<Self>, InputError> {
        // Cheap checks first: nothing long is read for a command that fails anyway.
        let named = language.map(by_name).transpose()?;
        let (script, args) = match (code, words.split_first()) {
            (Some(_), _) => (None, words),
            (None, Some((script, args))) => (Some(script.as_os_str()), args),
            (None, None) => (None, words),
        };
        let args = arguments(args)?;
        let (path, source, took_stdin) = match (code, script) {
            (Some(code), _) => (None, code.to_owned(), false),
            (None, Some(script)) if script != OsStr::new("-") => {
                let path = Path::new(script);
                let bytes = read_regular("script", path, MAX_SCRIPT_BYTES).map_err(|error| {
                    match (&error, path.to_str()) {
                        (InputError::Read { source, .. }, Some(name))
                            if source.kind() == io::ErrorKind::NotFound && by_name(name).is_ok() =>
                        {
                            InputError::IsLanguage { name: name.to_owned() }
                        }
                        (InputError::Read { source, .. }, Some(name))
                            if source.kind() == io::ErrorKind::NotFound
                                && name.contains(':')
                                && name.parse::<ImageReference>().is_ok() =>
                        {
                            InputError::IsImage { name: name.to_owned() }
                        }
                        (InputError::Read { source, .. }, Some(name))
                            if source.kind() == io::ErrorKind::NotFound && looks_like_code(name) =>
                        {
                            InputError::IsCode { name: name.to_owned() }
                        }
                        _ => error,
                    }
                })?;
                (Some(path), text("script", &format!("{path:?}"), bytes)?, false)
            }
            (None, script) => {
                if script.is_none() && rustix::termios::isatty(rustix::stdio::stdin()) {
                    return Ok(None);
                }
                (None, text("script", "standard input", read_stdin()?)?, true)
            }
        };
        let language = match named {
            Some(language) => language,
            None => recognise(path, &source)?,
        };
        let source_name = source_name(language, path);
        Ok(Some(Self { language, source_name, source: source.into(), args, took_stdin }))
    }
}

/// Reports whether a word in place of a script's name is code: a call, an assignment or a statement.
fn looks_like_code(word: &str) -> bool {
    const MAX_LENGTH: usize = 200;
    word.len() <= MAX_LENGTH && !word.contains('\n') && word.contains(['(', '=', ' ', ';'])
}

/// Quotes code for a shell, if that needs no escape.
fn quote(code: &str) -> String {
    if code.contains('\'') { "CODE".to_owned() } else { format!("'{code}'") }
}

/// Returns the built-in languages that a lookup of `word` can find. A process usually looks up one word, so the languages
/// read for it are cached; any other word gets all of them.
fn few(word: &str) -> &'static Languages {
    static FEW: OnceLock<(String, Languages)> = OnceLock::new();
    let (read_for, languages) = FEW.get_or_init(|| (word.to_owned(), Languages::builtin_mentioning(word)));
    if read_for == word { languages } else { Languages::builtin() }
}

pub(crate) fn by_name(name: &str) -> Result<&'static Language, ModelError> {
    // For an unknown name, the error lists all languages.
    few(name).by_name(name).or_else(|_| Languages::builtin().by_name(name))
}

/// Detects the language of a script by its name, else by its first line, else uses the default if there is no name.
fn recognise(path: Option<&Path>, source: &str) -> Result<&'static Language, InputError> {
    let extension = path.and_then(Path::extension).and_then(OsStr::to_str);
    if let Some(language) = extension.and_then(|extension| few(extension).by_extension(extension)) {
        return Ok(language);
    }
    if path.is_none() && !source.starts_with("#!") {
        return Ok(by_name(DEFAULT_LANGUAGE)?);
    }
    let languages = Languages::builtin();
    let first_line = source.lines().next().unwrap_or_default();
    if let Some(language) = languages.by_shebang(first_line) {
        return Ok(language);
    }
    match path {
        None => Ok(by_name(DEFAULT_LANGUAGE)?),
        Some(path) => {
            let known: Vec<&str> = languages.iter().map(|language| language.name.as_str()).collect();
            Err(InputError::NoLanguage { path: path.to_owned(), known: known.join(", ") })
        }
    }
}

/// Returns the file name in the sandbox. A script keeps its own where the extension fits its language, because programs show
/// it in their messages.
fn source_name(language: &Language, path: Option<&Path>) -> PathBuf {
    let own = path.and_then(Path::file_name).and_then(OsStr::to_str).filter(|name| {
        let extension = Path::new(name).extension().and_then(OsStr::to_str);
        extension.is_some_and(|extension| language.extensions.iter().any(|known| known == extension))
    });
    PathBuf::from(own.unwrap_or(&language.file))
}

fn arguments(words: &[OsString]) -> Result<Vec<String>, InputError> {
    let argument = |(index, word): (usize, &OsString)| {
        let bytes = word.as_bytes().to_vec();
        text("arguments", &format!("argument {}", index + 1), bytes)
    };
    words.iter().enumerate().map(argument).collect()
}

fn text(what: &'static str, name: &str, bytes: Vec<u8>) -> Result<String, InputError> {
    String::from_utf8(bytes).map_err(|error| InputError::NotUtf8 {
        what,
        name: name.to_owned(),
        offset: error.utf8_error().valid_up_to(),
    })
}

/// Reads a text file of at most `most` bytes.
pub(crate) fn read_text(what: &'static str, path: &Path, most: u64) -> Result<String, InputError> {
    text(what, &format!("{path:?}"), read_regular(what, path, most)?)
}

/// Opens a regular file. Other kinds are refused without blocking, also a FIFO without a writer.
pub(crate) fn open_regular(what: &'static str, path: &Path) -> Result<(File, u64), InputError> {
    let failed = |source| InputError::Read { what, path: path.to_owned(), source };
    // Opening a device may have side effects, so its type is checked first.
    let check_kind = |metadata: &std::fs::Metadata| {
        kind_name(metadata)
            .map_or(Ok(()), |kind| Err(InputError::NotAFile { what, path: path.to_owned(), kind }))
    };
    check_kind(&std::fs::metadata(path).map_err(failed)?)?;
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    let flags = i32::try_from(flags.bits()).unwrap_or(0);
    let file = File::options().read(true).custom_flags(flags).open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    check_kind(&metadata)?;
    Ok((file, metadata.len()))
}

/// Reads a regular file of at most `most` bytes. A longer one is not read at all.
fn read_regular(what: &'static str, path: &Path, most: u64) -> Result<Vec<u8>, InputError> {
    let (mut file, bytes) = open_regular(what, path)?;
    let too_long = |bytes| InputError::TooLong { what, path: path.to_owned(), bytes, most };
    if bytes > most {
        return Err(too_long(bytes));
    }
    let failed = |source| InputError::Read { what, path: path.to_owned(), source };
    let content = read_up_to(&mut file, most).map_err(failed)?;
    match content {
        Some(content) => Ok(content),
        // The file has grown in the meantime.
        None => Err(too_long(file.seek(SeekFrom::End(0)).map_err(failed)?)),
    }
}

pub(crate) fn read_stdin() -> Result<Vec<u8>, InputError> {
    let (what, most) = ("script", MAX_SCRIPT_BYTES);
    let failed = |source| InputError::Read { what, path: PathBuf::from("/dev/stdin"), source };
    read_up_to(&mut io::stdin().lock(), most).map_err(failed)?.ok_or(InputError::StreamTooLong { what, most })
}

/// Reads everything up to the end, or returns `None` if that is more than `most` bytes.
fn read_up_to(source: &mut impl Read, most: u64) -> io::Result<Option<Vec<u8>>> {
    let mut content = Vec::new();
    source.take(most + 1).read_to_end(&mut content)?;
    Ok((content.len() as u64 <= most).then_some(content))
}

/// Name of a file's type, or `None` for a regular file.
pub(crate) fn kind_name(metadata: &std::fs::Metadata) -> Option<&'static str> {
    kind_of(FileType::from_raw_mode(metadata.mode()))
}

/// Name of the type of a directory.
pub(crate) const A_DIRECTORY: &str = "a directory";

/// Name of a file type, or `None` for a regular file.
pub(crate) fn kind_of(kind: FileType) -> Option<&'static str> {
    match kind {
        FileType::RegularFile => None,
        FileType::Directory => Some(A_DIRECTORY),
        FileType::Symlink => Some("a symbolic link"),
        FileType::Fifo => Some("a FIFO"),
        FileType::Socket => Some("a socket"),
        _ => Some("a device"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_utf8_is_reported_at_its_first_byte() {
        for (bytes, expected) in [
            (&b"print(1)\n"[..], Ok("print(1)\n")),
            (b"ab\xff", Err("script: byte 2 of x is not UTF-8; give text in UTF-8")),
            (b"\xc3", Err("script: byte 0 of x is not UTF-8; give text in UTF-8")),
        ] {
            let found = text("script", "x", bytes.to_vec()).map_err(|error| error.to_string());
            assert_eq!(found, expected.map(str::to_owned).map_err(str::to_owned));
        }
    }

    #[test]
    fn stream_is_read_up_to_its_limit() {
        for (most, expected) in [(2, None), (3, Some(b"abc".to_vec())), (4, Some(b"abc".to_vec()))] {
            assert_eq!(read_up_to(&mut &b"abc"[..], most).unwrap(), expected);
        }
    }
}
