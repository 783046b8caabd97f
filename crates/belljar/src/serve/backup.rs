//! `belljar backup` and `belljar restore`: what a server keeps, in one file.
//!
//! The file is a tar of the database, of archived audit records and of the files of templates and snapshots. Its last entry lists the
//! others with their digests, so a file that was cut or changed is refused before anything of the home is touched. Disks of machines are mostly
//! empty: runs of zeros take no space on the disk, neither in the backup nor in what is restored.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read, Seek as _, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Component, Path, PathBuf};

use belljar_store::{KeyFile, Store, StoreError, StoreUrl};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::home::{Home, HomeError};
use super::parts::{self, PartError};
use crate::cli::{BackupArgs, RestoreArgs};
use crate::config::{LoadError, Loaded, Sources};
use crate::message::{Quit, say};
use crate::progress::Progress;
use crate::run::runtime;
use crate::signals::{self, Signals};
use crate::units::bytes;

/// Version of the format.
const SCHEMA: u32 = 1;

/// Entry that lists the others; the last one.
const LIST: &str = "backup.json";

/// Maximum size of [`LIST`], in bytes.
const MAX_LIST_BYTES: u64 = 64 << 20;

/// Entry of the database.
const DATABASE: &str = "belljar.db";

/// Entry of the store's key.
const KEY: &str = "store.key";

/// Directories of entries: archived audit records, and files of templates and snapshots.
const AUDIT: &str = "audit";
const TEMPLATES: &str = "templates";

/// Directory of a home in which layouts of images are unpacked while they are pulled.
const PULLS: &str = "images";

/// Files that belong to a database of SQLite, by what follows its name: its log, its index, and the journal of the audit log.
const BESIDE_DATABASE: [&str; 3] = ["-wal", "-shm", ".audit"];

/// Error from backing a server up or restoring it.
#[derive(Debug, thiserror::Error)]
enum BackupError {
    #[error("cannot {action} {path:?}")]
    File { action: &'static str, path: PathBuf, source: io::Error },
    #[error(
        "the store of this server is in PostgreSQL; use pg_dump and pg_restore for it, and tar for {home:?}: see {}/blob/main/docs/operating/backup.md", env!("CARGO_PKG_REPOSITORY")
    )]
    Postgres { home: PathBuf },
    #[error("{path:?} is no database of a server; give the home of one with --home")]
    NoServer { path: PathBuf },
    #[error("{path:?} is in the home of the server; give a file on another disk")]
    Inside { path: PathBuf },
    #[error("{path:?} exists, and backups do not replace each other; give another name")]
    There { path: PathBuf },
    #[error("{path:?} is no backup, or only a part of one: {why}")]
    Broken { path: PathBuf, why: String },
    #[error(
        "{path:?} is a backup in format {found}, and this version reads {SCHEMA}; restore it with the version that made it, {version}"
    )]
    Schema { path: PathBuf, found: u32, version: String },
    #[error("{path:?} exists; give --replace to put it aside as {aside:?}")]
    Exists { path: PathBuf, aside: PathBuf },
    #[error(
        "{path:?} is missing, and the backup has no key; put the key of that server back first: without it, what the store has sealed is lost"
    )]
    NoKey { path: PathBuf },
    #[error("{path:?} is not the key in the backup; move it away")]
    OtherKey { path: PathBuf },
    #[error("the database of the backup cannot be used with {key:?}")]
    Unusable { key: PathBuf, source: StoreError },
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error(transparent)]
    Part(#[from] PartError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Home(#[from] HomeError),
}

type Result<T, E = BackupError> = std::result::Result<T, E>;

/// Contents of [`LIST`].
#[derive(Debug, Serialize, Deserialize)]
struct List {
    schema: u32,
    /// Version of Belljar that made the backup.
    version: String,
    /// Time, as RFC 3339.
    created_at: String,
    entries: Vec<Entry>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Entry {
    name: String,
    bytes: u64,
    /// Hexadecimal.
    sha256: String,
}

fn failed<'a>(action: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> BackupError + 'a {
    move |source| BackupError::File { action, path: path.to_owned(), source }
}

/// Runs `belljar backup`.
pub(crate) fn backup(args: &BackupArgs) -> Result<u8, Quit> {
    if args.file == Path::new("-") {
        let text =
            "FILE: a backup is not written to standard output; name a file, or ./- for one of that name";
        return Err(Quit::Usage(text.to_owned()));
    }
    let loaded = Sources::new(&args.service).load()?;
    let to = absolute(&args.file)?;
    if to.starts_with(&loaded.home) {
        return Err(BackupError::Inside { path: to }.into());
    }
    if to.symlink_metadata().is_ok() {
        return Err(BackupError::There { path: to }.into());
    }
    let database = database(&loaded)?;
    if !database.1.exists() {
        return Err(BackupError::NoServer { path: database.1 }.into());
    }
    let progress = Progress::new("copying the database", args.quiet);
    let runtime = runtime()?;
    let list = runtime.block_on(async {
        let mut signals = Signals::catch()?;
        let work = write_backup(&loaded, &database, &to, args.with_key, &progress);
        tokio::select! {
            done = work => Ok(done?),
            signal = signals.next() => Err(Quit::Status(signals::status(signal))),
            never = progress.keep_moving() => match never {},
        }
    });
    progress.clear();
    // A copy that was interrupted ends with this process.
    runtime.shutdown_background();
    let list = list?;
    if !args.quiet {
        let sum = list.entries.iter().map(|entry| entry.bytes).sum();
        let (files, are) = if list.entries.len() == 1 { ("file", "is") } else { ("files", "are") };
        say(&format!("{} {files}, {}, {are} in {}", list.entries.len(), bytes(sum), to.display()));
        let mut missing = Vec::new();
        if !args.with_key {
            let key = loaded.config.store.key_file.display();
            missing.push(format!(
                "the store's key, {key}, without which it cannot be restored: keep a copy of it elsewhere"
            ));
        }
        if loaded.home.join("volumes").read_dir().is_ok_and(|mut volumes| volumes.next().is_some()) {
            let volumes = loaded.home.join("volumes");
            missing.push(format!(
                "volumes: end the sandboxes that mount them and the server, and copy {} with tar --sparse",
                volumes.display()
            ));
        }
        for what in missing {
            say(&format!("not in it: {what}"));
        }
    }
    Ok(0)
}

/// Returns the store's address and file.
fn database(loaded: &Loaded) -> Result<(StoreUrl, PathBuf)> {
    let url = parts::store_url(loaded)?;
    let path = url.path().ok_or_else(|| BackupError::Postgres { home: loaded.home.clone() })?.to_owned();
    Ok((url, path))
}

fn absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).map_err(failed("use", path))
}

/// A file that is removed unless it is kept.
struct Partial(PathBuf);

impl Drop for Partial {
    fn drop(&mut self) {
        // A failure leaves it, which is not worse than the error that is returned.
        let _ = std::fs::remove_file(&self.0);
    }
}

async fn write_backup(
    loaded: &Loaded,
    (url, _): &(StoreUrl, PathBuf),
    to: &Path,
    with_key: bool,
    progress: &Progress,
) -> Result<List> {
    let partial = Partial(with_end(to, ".partial"));
    let mut open = OpenOptions::new();
    let file = open.write(true).create_new(true).mode(0o600).open(&partial.0);
    let file = file.map_err(failed("create", &partial.0))?;
    let copy = Partial(with_end(to, ".partial.db"));
    belljar_store::copy_database(url, &copy.0).await?;
    let audit = loaded.config.audit.archive_dir.clone();
    let (templates, key) = (loaded.home.join(TEMPLATES), loaded.config.store.key_file.clone());
    let mut list = List {
        schema: SCHEMA,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        created_at: format!("{:.0}", jiff::Timestamp::now()),
        entries: Vec::new(),
    };
    let path = partial.0.clone();
    // Files come after the database: one without a record is removed by the next server, a record without its file is of no use.
    let mut sources = vec![(DATABASE.to_owned(), copy.0.clone())];
    if with_key {
        sources.push((KEY.to_owned(), key));
    }
    progress.message("copying archived audit records, templates and snapshots");
    let list = tokio::task::spawn_blocking(move || {
        let mut tar = tar::Builder::new(io::BufWriter::with_capacity(1 << 20, Sparse::new(file)));
        files_of(&audit, AUDIT, &[], &mut sources)?;
        files_of(&templates, TEMPLATES, &[PULLS], &mut sources)?;
        for (name, from) in sources {
            if let Some(entry) = append(&mut tar, &path, name, &from)? {
                list.entries.push(entry);
            }
        }
        let text = serde_json::to_vec(&list).map_err(io::Error::from).map_err(failed("write", &path))?;
        let mut header = header(text.len() as u64);
        tar.append_data(&mut header, LIST, &*text).map_err(failed("write", &path))?;
        let buffered = tar.into_inner().map_err(failed("write", &path))?;
        let file = buffered.into_inner().map_err(io::IntoInnerError::into_error);
        file.and_then(Sparse::finish).map_err(failed("write", &path))?;
        Ok::<_, BackupError>(list)
    });
    let list = list.await.map_err(io::Error::other).map_err(failed("write", to))??;
    std::fs::rename(&partial.0, to).map_err(failed("create", to))?;
    sync_directory(to)?;
    Ok(list)
}

fn sync_directory(of: &Path) -> Result<()> {
    let dir = of.parent().unwrap_or(Path::new("/"));
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(failed("sync", dir))
}

fn header(len: u64) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_mode(0o600);
    header.set_size(len);
    header
}

/// Adds the regular files below a directory, in order, each with its name in the backup. A directory that is missing has none.
fn files_of(dir: &Path, name: &str, but: &[&str], files: &mut Vec<(String, PathBuf)>) -> Result<()> {
    let entries = match dir.read_dir() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries.map_err(failed("read", dir))?,
    };
    let mut entries = entries.collect::<io::Result<Vec<_>>>().map_err(failed("read", dir))?;
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries {
        let (path, kind) = (entry.path(), entry.file_type().map_err(failed("read", dir))?);
        let Some(own) = entry.file_name().to_str().map(str::to_owned) else { continue };
        if kind.is_dir() && !but.contains(&&*own) {
            files_of(&path, &format!("{name}/{own}"), &[], files)?;
        } else if kind.is_file() {
            files.push((format!("{name}/{own}"), path));
        }
    }
    Ok(())
}

/// Appends a file. Returns nothing if it is gone.
fn append(
    tar: &mut tar::Builder<impl io::Write>,
    to: &Path,
    name: String,
    from: &Path,
) -> Result<Option<Entry>> {
    let file = match File::open(from) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file.map_err(failed("read", from))?,
    };
    let len = file.metadata().map_err(failed("read", from))?.len();
    let mut reader = Digested { inner: file.take(len), digest: Sha256::new(), failed: false, read: 0 };
    let result = tar.append_data(&mut header(len), &name, &mut reader);
    match result {
        Err(error) if reader.failed => return Err(failed("read", from)(error)),
        Err(error) => return Err(failed("write", to)(error)),
        Ok(()) if reader.read != len => {
            let error = io::Error::other("it became shorter meanwhile; make the backup again");
            return Err(failed("read", from)(error));
        }
        Ok(()) => {}
    }
    Ok(Some(Entry { name, bytes: len, sha256: hex::encode(reader.digest.finalize()) }))
}

/// A new file in which whole blocks of zeros are left out.
struct Sparse {
    file: File,
    /// Number of zeros since the last byte that was written.
    zeros: u64,
}

impl Sparse {
    /// Size of the blocks that are left out, in bytes: that of a file system's blocks.
    const BLOCK: usize = 4096;

    fn new(file: File) -> Self {
        Self { file, zeros: 0 }
    }

    /// Gives the file its length, and waits until it is on the disk.
    fn finish(mut self) -> io::Result<()> {
        let end = self.file.stream_position()? + self.zeros;
        self.file.set_len(end)?;
        self.file.sync_all()
    }
}

impl Write for Sparse {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let is_empty = |block: &[u8]| block.len() == Self::BLOCK && block.iter().all(|byte| *byte == 0);
        let mut rest = bytes;
        while !rest.is_empty() {
            let empty = rest.chunks(Self::BLOCK).take_while(|block| is_empty(block)).count() * Self::BLOCK;
            self.zeros += empty as u64;
            rest = &rest[empty..];
            let full: usize =
                rest.chunks(Self::BLOCK).take_while(|block| !is_empty(block)).map(<[u8]>::len).sum();
            if full > 0 {
                self.file.seek(SeekFrom::Current(self.zeros.cast_signed()))?;
                self.zeros = 0;
                self.file.write_all(&rest[..full])?;
                rest = &rest[full..];
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Digests what is read.
struct Digested<R> {
    inner: R,
    digest: Sha256,
    read: u64,
    /// Whether an error came from here, and not from where the bytes went.
    failed: bool,
}

impl<R: Read> Read for Digested<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer).inspect_err(|_| self.failed = true)?;
        self.digest.update(&buffer[..count]);
        self.read += count as u64;
        Ok(count)
    }
}

/// Runs `belljar restore`.
pub(crate) fn restore(args: &RestoreArgs) -> Result<u8, Quit> {
    let loaded = Sources::new(&args.service).load()?;
    let from = absolute(&args.file)?;
    let file = File::open(&from).map_err(failed("read", &from))?;
    let (_, database) = database(&loaded)?;
    // No server may use the home, now and until the end.
    let home = Home::take(&loaded.home, false).map_err(BackupError::from)?;
    let progress = Progress::new("unpacking and checking the backup", args.quiet);
    let list = runtime()?.block_on(async {
        let work = read_backup(&loaded, database, (&from, file), args.replace);
        tokio::select! {
            done = work => done,
            never = progress.keep_moving() => match never {},
        }
    });
    progress.clear();
    drop(home);
    let (list, aside) = list?;
    if !args.quiet {
        for path in aside {
            say(&format!("what was there is in {}", path.display()));
        }
        say(&format!(
            "restored {}, as of {}; start the server, and check the audit log: belljar audit verify",
            if list.entries.len() == 1 {
                "1 file".to_owned()
            } else {
                format!("{} files", list.entries.len())
            },
            list.created_at
        ));
    }
    Ok(0)
}

/// A directory that is removed in the end.
struct Staging(PathBuf);

impl Drop for Staging {
    fn drop(&mut self) {
        // What cannot be removed is in the way of nothing.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

async fn read_backup(
    loaded: &Loaded,
    database: PathBuf,
    (from, file): (&Path, File),
    replace: bool,
) -> Result<(List, Vec<PathBuf>)> {
    let staging = Staging(loaded.home.join(format!(".restore-{}", std::process::id())));
    DirBuilder::new().mode(0o700).create(&staging.0).map_err(failed("create", &staging.0))?;
    let (dir, backup) = (staging.0.clone(), from.to_owned());
    let list = tokio::task::spawn_blocking(move || unpack(file, &backup, &dir)).await;
    let list = list.map_err(io::Error::other).map_err(failed("read", from))??;
    let key = check_key(&staging.0, &loaded.config.store.key_file)?;
    // A server makes the changes of its version to the database, too.
    let staged = staging.0.join(DATABASE);
    let unusable = |source| BackupError::Unusable { key: key.clone(), source };
    Store::open(&StoreUrl::sqlite(&staged)?, &KeyFile::at(&key)).await.map_err(unusable)?.close().await;
    let old = aside(&database);
    let mut moves: Vec<Move> = [""]
        .into_iter()
        .chain(BESIDE_DATABASE)
        .map(|end| {
            let named = |path: &Path| with_end(path, end);
            Move { from: named(&staged), to: named(&database), aside: named(&old) }
        })
        .collect();
    let mut whole = |from: PathBuf, to: PathBuf| moves.push(Move { from, aside: aside(&to), to });
    whole(staging.0.join(AUDIT), loaded.config.audit.archive_dir.clone());
    whole(staging.0.join(TEMPLATES), loaded.home.join(TEMPLATES));
    if key.starts_with(&staging.0) {
        whole(key, loaded.config.store.key_file.clone());
    }
    let asides = put_in_place(&moves, replace)?;
    Ok((list, asides))
}

/// Unpacks and checks a backup. Names are those that [`backup`] writes; nothing else is created.
fn unpack(file: File, from: &Path, dir: &Path) -> Result<List> {
    let broken = |why: String| BackupError::Broken { path: from.to_owned(), why };
    let unread = |error: io::Error| broken(error.to_string());
    let mut archive = tar::Archive::new(io::BufReader::with_capacity(1 << 20, file));
    let (mut found, mut list) = (Vec::new(), None);
    for entry in archive.entries().map_err(unread)? {
        let mut entry = entry.map_err(unread)?;
        let name = entry.path().map_err(unread)?.into_owned();
        let text = name.to_str().filter(|_| is_known(&name)).map(str::to_owned);
        let Some(text) = text.filter(|_| entry.header().entry_type().is_file() && list.is_none()) else {
            return Err(broken(format!("{name:?} is in it, which no backup has")));
        };
        if text == LIST {
            let mut content = Vec::new();
            entry.by_ref().take(MAX_LIST_BYTES).read_to_end(&mut content).map_err(unread)?;
            list = Some(read_list(&content, from)?);
            continue;
        }
        let path = dir.join(&name);
        let parent = path.parent().unwrap_or(dir);
        DirBuilder::new().mode(0o700).recursive(true).create(parent).map_err(failed("create", parent))?;
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
        let mut file = Sparse::new(file.map_err(failed("create", &path))?);
        let mut reader = Digested { inner: &mut entry, digest: Sha256::new(), failed: false, read: 0 };
        if let Err(error) = io::copy(&mut reader, &mut file).and_then(|_| file.finish()) {
            return Err(if reader.failed { unread(error) } else { failed("write", &path)(error) });
        }
        let sha256 = hex::encode(reader.digest.finalize());
        found.push((text, reader.read, sha256));
    }
    let list = list.ok_or_else(|| broken("its end is missing".to_owned()))?;
    let listed = list.entries.iter().map(|entry| (&entry.name, entry.bytes, &entry.sha256));
    if !listed.eq(found.iter().map(|(name, bytes, sha256)| (name, *bytes, sha256))) {
        return Err(broken("what is in it is not what was put into it".to_owned()));
    }
    if !dir.join(DATABASE).exists() {
        return Err(broken("it has no database".to_owned()));
    }
    Ok(list)
}

fn read_list(content: &[u8], from: &Path) -> Result<List> {
    let broken =
        |error: serde_json::Error| BackupError::Broken { path: from.to_owned(), why: error.to_string() };
    let list: List = serde_json::from_slice(content).map_err(broken)?;
    if list.schema != SCHEMA {
        return Err(BackupError::Schema { path: from.to_owned(), found: list.schema, version: list.version });
    }
    Ok(list)
}

/// Whether an entry can have this name.
fn is_known(name: &Path) -> bool {
    let plain = name.components().all(|part| matches!(part, Component::Normal(_)));
    let alone = [LIST, DATABASE, KEY].iter().any(|one| name == Path::new(one));
    let below = [AUDIT, TEMPLATES].iter().any(|one| name.starts_with(one) && name != Path::new(one));
    plain && (alone || below)
}

/// Returns the key with which the database is opened: that of the backup, or the one that is there.
fn check_key(staging: &Path, there: &Path) -> Result<PathBuf> {
    let staged = staging.join(KEY);
    let read = |path: &Path| match std::fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        content => content.map(Some).map_err(failed("read", path)),
    };
    match (read(&staged)?, read(there)?) {
        (Some(_), None) => Ok(staged),
        (None, None) => Err(BackupError::NoKey { path: there.to_owned() }),
        (Some(one), Some(other)) if one != other => Err(BackupError::OtherKey { path: there.to_owned() }),
        (_, Some(_)) => Ok(there.to_owned()),
    }
}

/// A restored file or directory, its place, and where that is put aside which is there.
struct Move {
    from: PathBuf,
    to: PathBuf,
    aside: PathBuf,
}

/// Puts what was restored in its place. Returns where that is which was there.
fn put_in_place(moves: &[Move], replace: bool) -> Result<Vec<PathBuf>> {
    let is_full = |to: &Path| match to.read_dir() {
        Ok(mut entries) => entries.next().is_some(),
        Err(_) => to.symlink_metadata().is_ok(),
    };
    let full: Vec<&Move> = moves.iter().filter(|one| is_full(&one.to)).collect();
    if let Some(Move { to, aside, .. }) = full.first().filter(|_| !replace) {
        return Err(BackupError::Exists { path: to.clone(), aside: aside.clone() });
    }
    for Move { to, aside, .. } in &full {
        std::fs::rename(to, aside).map_err(failed("put aside", to))?;
    }
    // A directory replaces an empty one (rename(2)).
    for Move { from, to, .. } in moves.iter().filter(|one| one.from.exists()) {
        let parent = to.parent().unwrap_or(Path::new("/"));
        DirBuilder::new().mode(0o700).recursive(true).create(parent).map_err(failed("create", parent))?;
        std::fs::rename(from, to).map_err(failed("put a restored file at", to))?;
        sync_directory(to)?;
    }
    Ok(full.into_iter().map(|one| one.aside.clone()).collect())
}

/// Returns a path beside this one where nothing is.
fn aside(path: &Path) -> PathBuf {
    let mut number = 0_u32;
    loop {
        let name = with_end(path, &if number == 0 { ".old".to_owned() } else { format!(".old-{number}") });
        if name.symlink_metadata().is_err() {
            return name;
        }
        number += 1;
    }
}

/// Returns the path with something after its name.
fn with_end(path: &Path, end: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(end);
    name.into()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    #[test]
    fn zeros_take_no_space() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let mut content = vec![0; 8 << 20];
        content[5 << 20] = 1;
        content.extend([0; 100]);
        let mut file = Sparse::new(File::create(&path).unwrap());
        // In pieces that end within blocks, too.
        for piece in content.chunks(100_000) {
            file.write_all(piece).unwrap();
        }
        file.finish().unwrap();
        assert!(std::fs::read(&path).unwrap() == content);
        let used = path.metadata().unwrap().blocks() * 512;
        assert!(used < 1 << 20, "{used} bytes");
    }
}
