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
bin=$1 dir=$2 tls_port=$3
cd "$dir"
"$bin/initdb" --pgdata=data --no-sync --auth=trust --username=postgres --encoding=UTF8 --locale=C >log 2>&1 || exit 1
set -- -c listen_addresses=
if [ "$tls_port" != none ]; then
    set -- -c listen_addresses=127.0.0.1 -c port="$tls_port" -c ssl=on -c ssl_cert_file="$dir/server.pem" -c ssl_key_file="$dir/server.key"
    printf 'local all all trust\nhostssl all all 127.0.0.1/32 trust\n' >data/pg_hba.conf
fi
"$bin/postgres" -D data -k "$dir" "$@" -c fsync=off -c shared_buffers=16MB -c max_connections=200 >>log 2>&1 &
server=$!
read -r end
kill -QUIT "$server"
wait "$server"
cd /
rm -rf "$dir"
"#;

/// A running server, reached by a socket in a directory of its own, and if it was started so by TLS on loopback.
pub(crate) struct Server {
    dir: PathBuf,
    /// Holds the pipe whose end ends the server. Nothing waits for it: this lives as long as the process.
    _keeper: Child,
}

impl Server {
    /// Says why, if there is no PostgreSQL here.
    pub(crate) fn start() -> Result<Self, String> {
        Self::start_with(None)
    }

    /// One that speaks TLS on `127.0.0.1:port`, and nothing else there. Its certificate is for `localhost`; that, and another one
    /// for the same name, are in [`Server::dir`] as `server.pem` and `other.pem`.
    pub(crate) fn start_with_tls(port: u16) -> Result<Self, String> {
        Self::start_with(Some(port))
    }

    fn start_with(tls_port: Option<u16>) -> Result<Self, String> {
        let bin = programs().ok_or("PostgreSQL is not installed (Debian's package postgresql)")?;
        // Short, as the name of a socket holds 107 bytes.
        let dir = tempfile::Builder::new()
            .prefix("bj-pg-")
            .tempdir_in("/tmp")
            .map_err(|error| error.to_string())?;
        if tls_port.is_some() {
            certificate(dir.path(), "server")?;
            certificate(dir.path(), "other")?;
        }
        let mut keep = Command::new("/bin/sh");
        if rustix::process::geteuid().is_root() {
            // The server refuses to run as root.
            let (uid, gid) =
                account("postgres").or_else(|| account("nobody")).ok_or("there is no account to run as")?;
            let files = fs::read_dir(dir.path()).into_iter().flatten().flatten().map(|file| file.path());
            for path in files.chain([dir.path().to_owned()]) {
                chown(path, Some(uid), Some(gid)).map_err(|error| error.to_string())?;
            }
            keep.uid(uid).gid(gid);
        }
        let dir = dir.keep();
        // In a group of its own, so that what ends the test from outside leaves it the time to clean up.
        keep.args(["-c", KEEP, "keep"]).arg(&bin).arg(&dir).process_group(0);
        keep.arg(tls_port.map_or("none".to_owned(), |port| port.to_string()));
        keep.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut keeper = keep.spawn().map_err(|error| error.to_string())?;
        let end = Instant::now() + PATIENCE;
        // It listens some time before it answers.
        let socket = dir.join(format!(".s.PGSQL.{}", tls_port.unwrap_or(5432)));
        while UnixStream::connect(&socket).is_err() || !log(&dir).contains("ready to accept connections") {
            let ended = keeper.try_wait().map_err(|error| error.to_string())?;
            assert!(ended.is_none(), "PostgreSQL does not start: {}", log(&dir));
            assert!(Instant::now() < end, "PostgreSQL does not come up: {}", log(&dir));
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

fn log(dir: &Path) -> String {
    fs::read_to_string(dir.join("log")).unwrap_or_default()
}

/// Makes a certificate for `localhost` with the program openssl.
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
