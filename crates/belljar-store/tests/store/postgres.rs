//! A PostgreSQL server for this process alone, which ends with it, however it ends.

use std::fs;
use std::os::unix::fs::chown;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);

/// Makes a cluster, starts the server, and ends it when standard input does: that is when the process of the test is gone.
const KEEP: &str = r#"
bin=$1 dir=$2
cd "$dir"
"$bin/initdb" --pgdata=data --no-sync --auth=trust --username=postgres --encoding=UTF8 --locale=C >log 2>&1 || exit 1
"$bin/postgres" -D data -k "$dir" -c listen_addresses= -c fsync=off -c shared_buffers=16MB -c max_connections=200 >>log 2>&1 &
server=$!
read -r end
kill -QUIT "$server"
wait "$server"
cd /
rm -rf "$dir"
"#;

/// A running server, reached by a socket in a directory of its own.
pub(crate) struct Server {
    dir: PathBuf,
    /// Holds the pipe whose end ends the server. Nothing waits for it: this lives as long as the process.
    _keeper: Child,
}

impl Server {
    /// Says why, if there is no PostgreSQL here.
    pub(crate) fn start() -> Result<Self, String> {
        let bin = programs().ok_or("PostgreSQL is not installed (Debian's package postgresql)")?;
        // Short, as the name of a socket holds 107 bytes.
        let dir = tempfile::Builder::new()
            .prefix("bj-pg-")
            .tempdir_in("/tmp")
            .map_err(|error| error.to_string())?;
        let mut keep = Command::new("/bin/sh");
        if rustix::process::geteuid().is_root() {
            // The server refuses to run as root.
            let (uid, gid) =
                account("postgres").or_else(|| account("nobody")).ok_or("there is no account to run as")?;
            chown(dir.path(), Some(uid), Some(gid)).map_err(|error| error.to_string())?;
            keep.uid(uid).gid(gid);
        }
        let dir = dir.keep();
        // In a group of its own, so that what ends the test from outside leaves it the time to clean up.
        keep.args(["-c", KEEP, "keep"]).arg(&bin).arg(&dir).process_group(0);
        keep.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut keeper = keep.spawn().map_err(|error| error.to_string())?;
        let end = Instant::now() + PATIENCE;
        // It listens before it answers; the store waits for the answer.
        while UnixStream::connect(dir.join(".s.PGSQL.5432")).is_err() {
            let ended = keeper.try_wait().map_err(|error| error.to_string())?;
            let log = || fs::read_to_string(dir.join("log")).unwrap_or_default();
            assert!(ended.is_none(), "PostgreSQL does not start: {}", log());
            assert!(Instant::now() < end, "PostgreSQL does not come up: {}", log());
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(Self { dir, _keeper: keeper })
    }

    /// Where its files are.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(crate) fn address(&self, database: &str) -> String {
        format!("postgres:///{database}?host={}&user=postgres", self.dir.display())
    }
}

fn programs() -> Option<PathBuf> {
    let installed = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut debian: Vec<_> = installed.map(|entry| entry.path().join("bin")).collect();
    debian.sort();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let usual: Vec<_> = std::env::split_paths(&path).collect();
    let complete = |dir: &PathBuf| dir.join("initdb").exists() && dir.join("postgres").exists();
    debian.into_iter().rev().chain(usual).find(complete)
}

fn account(name: &str) -> Option<(u32, u32)> {
    let accounts = fs::read_to_string(Path::new("/etc/passwd")).ok()?;
    let line = accounts.lines().find(|line| line.split(':').next() == Some(name))?;
    let mut fields = line.split(':').skip(2);
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}
