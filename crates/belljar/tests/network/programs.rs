//! Common programs through the gateway: what a policy allows works, and what it denies fails at once with the reason.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::Case;
use crate::clients::cases;
use crate::fixture::Fixture;

cases![
    git_clones_over_https,
    git_clones_over_ssh,
    psql_connects_to_postgresql,
    redis_cli_connects_to_redis,
    curl_speaks_http_1_and_2,
    curl_opens_a_websocket,
    node_fetch_works,
    python_requests_works,
    python_httpx_works,
    python_aiohttp_works,
    aiohttp_opens_a_websocket,
];

/// Sets the variables that name trusted authorities. The gateway's own variables have the same names.
const TRUST: &str =
    "for name in SSL_CERT_FILE REQUESTS_CA_BUNDLE CURL_CA_BUNDLE GIT_SSL_CAINFO NODE_EXTRA_CA_CERTS; do
  export $name=$PWD/ca.pem
done
";

/// Servers of servers.py, until dropped.
struct Servers(Child);

impl Servers {
    /// Starts the servers. Returns `None`, and prints why, if this machine lacks a requirement.
    fn start(fixture: &Fixture, names: &[&str]) -> Option<Self> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/network/servers.py");
        let mut command = Command::new("python3");
        command.arg(script).args(names).current_dir(fixture.dir());
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let servers = Self(process);
        for line in lines.take(names.len()) {
            let line: Value = serde_json::from_str(&line.unwrap()).unwrap();
            if let Some(lack) = line["lacks"].as_str() {
                skip(lack);
                return None;
            }
        }
        Some(servers)
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

fn skip(reason: &str) {
    // Not with the macro, whose output the harness captures.
    let _ = writeln!(std::io::stdout(), "SKIPPED: {reason}");
}

/// Reports whether this machine, whose programs sandboxes use, has a program.
fn has(program: &str) -> bool {
    let found = Command::new("sh").args(["-c", &format!("command -v {program} >/dev/null")]).status();
    let found = found.unwrap().success();
    if !found {
        skip(&format!("{program} is not installed"));
    }
    found
}

/// Result of a line of Bash.
#[derive(Debug)]
struct Ran {
    status: Option<i32>,
    stdout: String,
    stderr: String,
}

impl Ran {
    /// Checks that the program itself failed with this reason, and not because of a timeout, an error of Belljar or a lack of memory.
    #[track_caller]
    fn failed(&self, reason: &str) {
        assert!(!matches!(self.status, None | Some(0 | 124 | 125 | 137)), "{self:?}");
        let said = format!("{}{}", self.stdout, self.stderr);
        assert!(said.contains(reason), "{reason:?}: {self:?}");
    }

    #[track_caller]
    fn good(&self, stdout: &str) {
        assert!(self.status == Some(0) && self.stdout == stdout, "{stdout:?}: {self:?}");
    }
}

/// Runs Bash in a sandbox with these flags.
fn bash(fixture: &Fixture, flags: &[&str], code: &str) -> Ran {
    let mut command = Command::new(env!("CARGO_BIN_EXE_belljar"));
    command.args(["run", "-q", "--policy", "policy.toml", "-f", "ca.pem"]).args(flags);
    command.args(["-l", "bash", "-c", code]).current_dir(fixture.dir()).stdin(Stdio::null());
    let output = command.env_remove("BELLJAR_ENGINE").output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Ran { status: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
}

/// A program that asks good.example over HTTPS and prints what it says, `LACKS` if it is not installed, and fails with one of `reasons`:
/// where the name is not resolved, and where the connection is refused.
fn check_https(fixture: &Fixture, code: &str, reasons: [&str; 2]) {
    let trusting = format!("{TRUST}{code}");
    let hello = "hello from 93.184.216.34 as good.example\n";
    let allowed = bash(fixture, &["--allow", "good.example"], &trusting);
    if let Some(lack) = allowed.stdout.trim().strip_prefix("LACKS ") {
        return skip(lack);
    }
    allowed.good(hello);
    // By the gateway's certificate, which it trusts by the variables that sandboxes have.
    fixture.policy(&format!("ca_file = \"{}\"", fixture.dir().join("ca.pem").display()));
    let bound = ["--allow", "good.example", "--request", "good.example=GET /*"];
    bash(fixture, &bound, code).good(hello);
    let reached = || fixture.said().iter().filter(|said| said["connected"] == "93.184.216.34").count();
    let before = reached();
    bash(fixture, &["--allow", "other.example"], &trusting).failed(reasons[0]);
    bash(fixture, &["--allow", "good.example:80"], &trusting).failed(reasons[1]);
    assert_eq!(reached(), before, "{:?}", fixture.said());
}

fn git_clones_over_https(fixture: &Fixture) {
    let Some(_servers) = Servers::start(fixture, &["web"]) else { return };
    let clone = "git clone -q https://git.example/repo.git && cat repo/README";
    let trusting = format!("{TRUST}{clone}");
    bash(fixture, &["--allow", "git.example"], &trusting).good("hello from git\n");
    bash(fixture, &["--allow", "good.example"], &trusting).failed("Could not resolve host: git.example");
    bash(fixture, &["--allow", "git.example:80"], &trusting).failed("denied");
    // It may fetch, and not push.
    fixture.policy(&format!("ca_file = \"{}\"", fixture.dir().join("ca.pem").display()));
    let rules = ["git.example=GET /repo.git/*", "git.example=POST /repo.git/git-upload-pack"];
    let bound = ["--allow", "git.example", "--request", rules[0], "--request", rules[1]];
    bash(fixture, &bound, clone).good("hello from git\n");
    let push = format!("{clone}; cd repo; git push -q origin HEAD:refs/heads/other");
    bash(fixture, &bound, &push).failed("403");
}

fn git_clones_over_ssh(fixture: &Fixture) {
    let Some(_servers) = Servers::start(fixture, &["sshd"]) else { return };
    let flags = |allow| ["--allow", allow, "-f", "id", "-f", "known_hosts"];
    let clone = "chmod 600 id
export GIT_SSH_COMMAND='ssh -o BatchMode=yes -o StrictHostKeyChecking=yes -o UserKnownHostsFile=known_hosts -i id'
git clone -q ssh://root@git.example/repo.git && cat repo/README";
    bash(fixture, &flags("git.example:22"), clone).good("hello from git\n");
    bash(fixture, &flags("git.example"), clone).failed("Connection reset by");
    bash(fixture, &flags("good.example:22"), clone).failed("Could not resolve hostname git.example");
}

fn psql_connects_to_postgresql(fixture: &Fixture) {
    let Some(_servers) = Servers::start(fixture, &["postgres"]) else { return };
    let ask = "export PGSSLMODE=verify-full PGSSLROOTCERT=$PWD/ca.pem
psql -h good.example -p 5433 -U postgres -Atc 'SELECT sum(n), sum(length(repeat(n::text, 100))) FROM generate_series(1, 10000) n'";
    bash(fixture, &["--allow", "good.example:5433"], ask).good("50005000|3889400\n");
    bash(fixture, &["--allow", "good.example"], ask).failed("(198.18.1.0), port 5433 failed");
    bash(fixture, &["--allow", "other.example:5433"], ask)
        .failed("could not translate host name \"good.example\"");
}

fn redis_cli_connects_to_redis(fixture: &Fixture) {
    let Some(_servers) = Servers::start(fixture, &["redis"]) else { return };
    // It says why it cannot connect, and ends well.
    let ask = "printf 'SET key hello\\nGET key\\n' | redis-cli -h good.example >out 2>&1; cat out; ! grep -q -e Error -e 'Could not' out";
    bash(fixture, &["--allow", "good.example:6379"], ask).good("OK\nhello\n");
    bash(fixture, &["--allow", "good.example"], ask).failed("Connection reset by peer");
    bash(fixture, &["--allow", "other.example:6379"], ask)
        .failed("Could not connect to Redis at good.example:6379");
}

fn curl_speaks_http_1_and_2(fixture: &Fixture) {
    if !has("curl") {
        return;
    }
    let curl = |words: &str| format!("curl -sS --max-time 20 -w '%{{http_version}}\\n' {words}");
    let code = |words: &str| format!("{TRUST}{}", curl(words));
    let hello = "hello from 93.184.216.34 as good.example\n1.1\n";
    bash(fixture, &["--allow", "good.example"], &code("--http1.1 https://good.example/")).good(hello);
    let both = code("https://http2.example/a https://http2.example/b");
    bash(fixture, &["--allow", "http2.example"], &both).good("hello over 2\n2\nhello over 2\n2\n");
    let denied = |allow, reason| bash(fixture, &["--allow", allow], &both).failed(reason);
    denied("http2.example:80", "access denied");
    denied("good.example", "Could not resolve host: http2.example");
    // Without TLS the answer is the gateway's.
    let plain = "curl -sS --max-time 20 -f http://other.example/";
    bash(fixture, &["--allow", "good.example", "--allow", "other.example:443"], plain).failed("403");
}

fn curl_opens_a_websocket(fixture: &Fixture) {
    let Some(_servers) = Servers::start(fixture, &["web"]) else { return };
    let open = "curl -sS --max-time 20 --http1.1 -i -H 'Connection: Upgrade' -H 'Upgrade: websocket' -H 'Sec-WebSocket-Version: 13' \
                -H 'Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==' 'https://git.example/ws?greeting' | tr -cd '[:print:]\\n' | grep -e 101 -e Accept -e hello";
    fixture.policy(&format!("ca_file = \"{}\"", fixture.dir().join("ca.pem").display()));
    // RFC 6455, 1.3 has this key and the answer to it.
    let greeting = "HTTP/1.1 101 Switching Protocols\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\n";
    for (flags, trust) in [
        (&["--allow", "git.example"][..], TRUST),
        (&["--allow", "git.example", "--request", "git.example=GET /ws"], ""),
    ] {
        let ran = bash(fixture, flags, &format!("set -o pipefail\n{trust}{open}"));
        assert!(ran.status == Some(0) && ran.stdout.starts_with(greeting), "{ran:?}");
        assert!(ran.stdout.ends_with("hello over a WebSocket\n"), "{ran:?}");
    }
    let bound = ["--allow", "git.example", "--request", "git.example=GET /other"];
    bash(fixture, &bound, &open.replace(" | tr", " -f | tr")).failed("403");
}

fn node_fetch_works(fixture: &Fixture) {
    if !has("node") {
        return;
    }
    let code = "node -e \"fetch('https://good.example/a').then(answer => answer.text()).then(text => process.stdout.write(text))\"";
    check_https(fixture, code, ["ENOTFOUND", "fetch failed"]);
}

/// A program of Python that needs a module.
fn python(module: &str, code: &str) -> String {
    format!(
        "cat >program.py <<'END'
try: import {module}
except ImportError: raise SystemExit(print('LACKS {module} of Python is not installed'))
{code}
END
python3 program.py"
    )
}

fn python_requests_works(fixture: &Fixture) {
    let code = python("requests", "print(end=requests.get('https://good.example/a', timeout=20).text)");
    check_https(fixture, &code, ["requests.exceptions.ConnectionError", "requests.exceptions.SSLError"]);
}

fn python_httpx_works(fixture: &Fixture) {
    let code = python("httpx", "print(end=httpx.get('https://good.example/a', timeout=20).text)");
    check_https(fixture, &code, ["httpx.ConnectError", "httpx.ConnectError"]);
}

fn python_aiohttp_works(fixture: &Fixture) {
    let code = "import asyncio
async def main():
    async with aiohttp.ClientSession() as session, session.get('https://good.example/a') as answer:
        print(end=await answer.text())
asyncio.run(main())";
    let name = "aiohttp.client_exceptions.ClientConnector";
    check_https(fixture, &python("aiohttp", code), [name, name]);
}

fn aiohttp_opens_a_websocket(fixture: &Fixture) {
    let Some(_servers) = Servers::start(fixture, &["web"]) else { return };
    let code = "import asyncio
async def main():
    async with aiohttp.ClientSession() as session, session.ws_connect('wss://git.example/ws') as socket:
        print(end=await socket.receive_str())
        await socket.send_str('over and over')
        print(await socket.receive_str())
asyncio.run(main())";
    let code = python("aiohttp", code);
    let said = "hello over a WebSocket\nover and over\n";
    let allowed = bash(fixture, &["--allow", "git.example"], &format!("{TRUST}{code}"));
    if let Some(lack) = allowed.stdout.trim().strip_prefix("LACKS ") {
        return skip(lack);
    }
    allowed.good(said);
    fixture.policy(&format!("ca_file = \"{}\"", fixture.dir().join("ca.pem").display()));
    bash(fixture, &["--allow", "git.example", "--request", "git.example=GET /ws"], &code).good(said);
    let bound = ["--allow", "git.example", "--request", "git.example=GET /other"];
    bash(fixture, &bound, &code).failed("403");
}
