//! PostgreSQL server for this process, or for all tests of a run. It is stopped when that ends, for whatever reason.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::chown;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const START_TIMEOUT: Duration = Duration::from_secs(60);

/// Script that creates a cluster, starts the server, and stops it when a process exits.
const KEEP: &str = r#"
bin=$1 dir=$2 tls_port=$3 until=$4
cd "$dir"
"$bin/initdb" --pgdata=data --no-sync --auth=trust --username=postgres --encoding=UTF8 --locale=C >log 2>&1 || exit 1
set -- -c listen_addresses=
if [ "$tls_port" != none ]; then
    set -- -c listen_addresses=127.0.0.1 -c port="$tls_port" -c ssl=on -c ssl_cert_file="$dir/server.pem" -c ssl_key_file="$dir/server.key"
    printf 'local all all trust\nhostssl all all 127.0.0.1/32 trust\n' >data/pg_hba.conf
fi
"$bin/postgres" -D data -k "$dir" "$@" -c fsync=off -c shared_buffers=16MB -c max_connections=200 >>log 2>&1 &
server=$!
tail --pid="$until" -f /dev/null
kill -QUIT "$server"
wait "$server"
cd /
rm -rf "$dir"
"#;

/// Running server, reached by a socket in its own directory, or by TLS on loopback if started that way.
pub(crate) struct Server {
    dir: PathBuf,
}

impl Server {
    /// Starts a server. Fails with the reason if PostgreSQL is not installed.
    pub(crate) fn start() -> Result<Self, String> {
        let (bin, dir) = (programs()?, short_dir()?);
        start_in(&dir, &bin, None, std::process::id())?;
        Ok(Self { dir })
    }

    /// Returns the server shared by all tests of a nextest run, as starting one takes a second. Each test creates its own
    /// databases.
    pub(crate) fn shared() -> Result<Self, String> {
        let (Ok(run), Some(nextest)) = (std::env::var("NEXTEST_RUN_ID"), rustix::process::getppid()) else {
            return Self::start();
        };
        let (bin, dir) = (programs()?, PathBuf::from(format!("/tmp/bj-pg-{run}")));
        match fs::create_dir(&dir) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error.to_string()),
            _ => {}
        }
        // The first caller starts it while the others wait.
        let turn = fs::File::open(&dir).map_err(|error| error.to_string())?;
        turn.lock().map_err(|error| error.to_string())?;
        if !is_ready(&dir, None) {
            start_in(&dir, &bin, None, nextest.as_raw_nonzero().get().unsigned_abs())?;
        }
        Ok(Self { dir })
    }

    /// Starts a server that accepts only TLS, on `127.0.0.1:port`. Its certificate is for `localhost`; it, and another one for
    /// the same name, are in [`Server::dir`] as `server.pem` and `other.pem`.
    pub(crate) fn start_with_tls(port: u16) -> Result<Self, String> {
        let (bin, dir) = (programs()?, short_dir()?);
        certificate(&dir, "server")?;
        certificate(&dir, "other")?;
        start_in(&dir, &bin, Some(port), std::process::id())?;
        Ok(Self { dir })
    }

    /// Returns the directory with its files.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(crate) fn address(&self, database: &str) -> String {
        format!("postgres:///{database}?host={}&user=postgres", self.dir.display())
    }
}

/// Creates a directory with a short name, as the path of a socket holds 107 bytes.
fn short_dir() -> Result<PathBuf, String> {
    let dir = tempfile::Builder::new().prefix("bj-pg-").tempdir_in("/tmp");
    dir.map(tempfile::TempDir::keep).map_err(|error| error.to_string())
}

/// Starts a server in a directory. It is stopped when the process `until` exits.
fn start_in(dir: &Path, bin: &Path, tls_port: Option<u16>, until: u32) -> Result<(), String> {
    let mut keep = Command::new("/bin/sh");
    if rustix::process::geteuid().is_root() {
        // The server refuses to run as root.
        let (uid, gid) =
            account("postgres").or_else(|| account("nobody")).ok_or("there is no account to run as")?;
        let files = fs::read_dir(dir).into_iter().flatten().flatten().map(|file| file.path());
        for path in files.chain([dir.to_owned()]) {
            chown(path, Some(uid), Some(gid)).map_err(|error| error.to_string())?;
        }
        keep.uid(uid).gid(gid);
    }
    // In its own process group, so that whatever kills the test leaves it time to clean up.
    keep.args(["-c", KEEP, "keep"]).arg(bin).arg(dir).process_group(0);
    keep.arg(tls_port.map_or("none".to_owned(), |port| port.to_string())).arg(until.to_string());
    keep.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut keeper = keep.spawn().map_err(|error| error.to_string())?;
    let deadline = Instant::now() + START_TIMEOUT;
    while !is_ready(dir, tls_port) {
        let ended = keeper.try_wait().map_err(|error| error.to_string())?;
        assert!(ended.is_none(), "PostgreSQL does not start: {}", log(dir));
        assert!(Instant::now() < deadline, "PostgreSQL does not come up: {}", log(dir));
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// Reports whether the server answers. It listens some time before that.
fn is_ready(dir: &Path, tls_port: Option<u16>) -> bool {
    let socket = dir.join(format!(".s.PGSQL.{}", tls_port.unwrap_or(5432)));
    UnixStream::connect(&socket).is_ok() && log(dir).contains("ready to accept connections")
}

fn log(dir: &Path) -> String {
    fs::read_to_string(dir.join("log")).unwrap_or_default()
}

/// Creates a certificate for `localhost` with the program openssl.
fn certificate(dir: &Path, name: &str) -> Result<(), String> {
    let done = Command::new("openssl")
        .args([
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-days",
            "2",
        ])
        .args(["-subj", &format!("/CN={name}"), "-addext", "subjectAltName=DNS:localhost"])
        .args(["-addext", "basicConstraints=critical,CA:FALSE"])
        .arg("-out")
        .arg(dir.join(format!("{name}.pem")))
        .arg("-keyout")
        .arg(dir.join(format!("{name}.key")))
        .output();
    match done {
        Ok(done) if done.status.success() => Ok(()),
        Ok(done) => Err(String::from_utf8_lossy(&done.stderr).into_owned()),
        Err(error) => Err(format!("there is no program openssl: {error}")),
    }
}

fn programs() -> Result<PathBuf, String> {
    let installed = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut debian: Vec<_> = installed.map(|entry| entry.path().join("bin")).collect();
    debian.sort();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let usual: Vec<_> = std::env::split_paths(&path).collect();
    let complete = |dir: &PathBuf| dir.join("initdb").exists() && dir.join("postgres").exists();
    let found = debian.into_iter().rev().chain(usual).find(complete);
    found.ok_or_else(|| "PostgreSQL is not installed (Debian's package postgresql)".to_owned())
}

fn account(name: &str) -> Option<(u32, u32)> {
    let accounts = fs::read_to_string(Path::new("/etc/passwd")).ok()?;
    let line = accounts.lines().find(|line| line.split(':').next() == Some(name))?;
    let mut fields = line.split(':').skip(2);
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}
