//! N23: headers that the gateway sets, and secrets stored on a server for policies that name them.

use serde_json::{Value, json};

use crate::Case;
use crate::clients::cases;
use crate::fixture::{Done, Fixture};
use crate::home::Home;
use crate::secrets::{PRELUDE, requests, rest};

cases![
    n23_headers_are_set_only_for_their_hosts,
    n23_impostor_gets_no_header,
    flags_set_headers,
    n23_stored_secrets_reach_only_their_host,
    stored_secrets_change_in_running_sandboxes,
    stored_secrets_have_a_quota,
    n23_stored_secrets_are_sent_to_their_own_hosts,
    n23_without_hosts_a_key_reads_a_secret_of_another,
    stored_secret_with_other_hosts_ends_in_running_sandboxes,
    e2b_rules_set_headers,
];

const SPEC: &str = r#"[network]
allow = ["good.example", "other.example", "*.good.example", "impostor.example"]
[[network.headers]]
host = "good.example"
header = "Authorization"
value = "Bearer s3cret-value"
[[network.headers]]
host = "*.good.example"
header = "x-below"
value = "0ther-value"
[[network.headers]]
host = "impostor.example"
header = "x-key"
value = "1mpostor-value"
"#;

/// Runs a program for which the gateway sets headers.
fn run(fixture: &Fixture, wall: &str, code: &str) -> Done {
    let dir = fixture.dir();
    fixture.policy(&format!("ca_file = \"{}\"", dir.join("ca.pem").display()));
    std::fs::write(dir.join("spec.toml"), SPEC).unwrap();
    fixture.run_without(wall, "--spec spec.toml", &format!("{PRELUDE}\n{code}"))
}

fn n23_headers_are_set_only_for_their_hosts(fixture: &Fixture) {
    let code = "
print(https('good.example', Authorization='mine'), https('good.example'))
print(https('sub.good.example', X_Below='mine')[0], get('good.example')[:12])
print([name for name, value in os.environ.items() if 's3cret' in value or '0ther' in value])
import ssl; context = ssl.create_default_context(cafile='ca.pem'); print(tls('other.example').split()[1])
";
    let done = run(fixture, "", code);
    assert_eq!(
        done.stdout, "(200, '[redacted]') (200, '[redacted]')\n200 HTTP/1.1 200\n[]\n200\n",
        "{done:?}"
    );
    let sent: Vec<_> = requests(fixture).iter().map(|one| one["headers"].clone()).collect();
    assert_eq!(
        (&sent[0]["authorization"], &sent[1]["authorization"]),
        (&json!("Bearer s3cret-value"), &sent[0]["authorization"])
    );
    assert_eq!((&sent[2]["x-below"], &sent[2]["authorization"]), (&json!("0ther-value"), &Value::Null));
    assert_eq!((&sent[3]["x-below"], &sent[3]["authorization"]), (&Value::Null, &Value::Null));
    run(fixture, "gateway-secret-host", "https('sub.good.example')");
    assert_eq!(requests(fixture)[4]["headers"]["authorization"], "Bearer s3cret-value");
}

fn n23_impostor_gets_no_header(fixture: &Fixture) {
    let code = "print(https('impostor.example'))";
    assert_eq!(run(fixture, "", code).stdout, "(502, None)\n");
    assert!(requests(fixture).is_empty(), "{:?}", requests(fixture));
    run(fixture, "gateway-verify", code);
    assert_eq!(requests(fixture)[0]["headers"]["x-key"], "1mpostor-value");
}

fn flags_set_headers(fixture: &Fixture) {
    let dir = fixture.dir();
    fixture.policy(&format!("ca_file = \"{}\"", dir.join("ca.pem").display()));
    std::fs::write(dir.join("key"), "s3cret-value\n").unwrap();
    let code = format!("{PRELUDE}\nprint(https('good.example')[0])");
    let done = fixture.run("--allow good.example --header good.example:authorization:file=key", &code);
    assert_eq!(done.stdout, "200\n");
    assert_eq!(requests(fixture)[0]["headers"]["authorization"], "s3cret-value");
    for (flags, text) in [
        ("--header good.example:authorization", "HOST:HEADER:env=VARIABLE"),
        ("--header good.example:authorization:s3cret", "HOST:HEADER:env=VARIABLE"),
        ("--header good.example:host:file=key", "does not frame or route"),
        ("--header good.example:authorization:secret=key", "secrets are stored on servers only"),
        ("--secret KEY=good.example:authorization:secret=key", "secrets are stored on servers only"),
        ("--header good.example:x:file=key --header good.example:X:file=key", "each header of a host once"),
    ] {
        let output = fixture.command(&format!("--allow good.example {flags}"), "").output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && said.contains(text), "{flags}: {said}");
        assert!(!said.contains("s3cret"), "{said}");
    }
}

/// Creates a home whose server trusts the simulated hosts.
pub(crate) fn home(fixture: &Fixture, more: &str) -> Home {
    Home::configured(&format!(
        "[server]\nlinger = '1s'\n{more}\n[sandboxes.network]\nresolvers = ['9.9.9.9:53']\nca_file = '{}'\n",
        fixture.dir().join("ca.pem").display()
    ))
}

/// Sends requests to two hosts with everything that a sandbox has.
fn send_requests(home: &Home, sandbox: &str) -> String {
    let code = "
KEY = os.environ.get('KEY', '')
print([https(host, X_Key=KEY)[0] for host in ['good.example', 'other.example']])
";
    let code = format!("{}\n{PRELUDE}\n{code}", crate::fixture::PRELUDE);
    home.run_args(&["sandbox", "exec", sandbox, "--", "python3", "-c", &code]).good()
}

/// Returns the headers of a request that may contain secrets.
fn secrets_of(request: &Value) -> (Option<String>, Option<String>) {
    let text = |name: &str| request["headers"][name].as_str().map(str::to_owned);
    (text("authorization"), text("x-key"))
}

const POLICY: &str = "--allow good.example --allow other.example --secret KEY=good.example:x-key:secret=openai \
                      --header good.example:authorization:secret=openai --header other.example:x-other:file=other";

fn some(text: &str) -> Option<String> {
    Some(text.to_owned())
}

fn n23_stored_secrets_reach_only_their_host(fixture: &Fixture) {
    let home = home(fixture, "");
    home.write("other", "0ther-value");
    home.run(&format!("sandbox create {POLICY}")).refused(2, &["network.secrets", "\"openai\""]);
    let made = home.feed("secret create openai --metadata owner=me", b"s3cret-value\n").good();
    assert_eq!(made, "openai\n");
    let id = home.create(POLICY);
    assert_eq!(send_requests(&home, &id), "[200, 200]\n");
    let sent = requests(fixture);
    assert_eq!(secrets_of(&sent[0]), (some("s3cret-value"), some("s3cret-value")));
    assert_eq!(secrets_of(&sent[1]), (None, some("belljar-secret-KEY")));
    assert_eq!(sent[1]["headers"]["x-other"], "0ther-value");
    // Responses contain the name of the secret, and not its value.
    let policy = home.json(&format!("sandbox net {id} get"));
    let kept = "${secrets.openai}";
    assert_eq!(policy["secrets"]["KEY"], json!({"host": "good.example", "header": "x-key", "value": kept}));
    let headers = json!([
        {"host": "good.example", "header": "authorization", "value": kept},
        {"host": "other.example", "header": "x-other"},
    ]);
    assert_eq!(policy["headers"], headers);
    let secret = home.json("secret info openai");
    assert_eq!((&secret["version"], &secret["metadata"]["owner"]), (&json!(1), &json!("me")));
    let texts = [
        &format!("sandbox info {id} --format json"),
        &format!("sandbox net {id} log"),
        "secret ls --format json",
        "audit tail -n 100 --format json",
    ];
    let texts: Vec<String> = texts.iter().map(|line| home.good(line)).collect();
    assert!(texts.iter().all(|text| !text.contains("s3cret") && !text.contains("0ther")), "{texts:?}");
    assert!(texts[3].contains("\"secret.create\""), "{}", texts[3]);
    let mut left = vec![home.path()];
    while let Some(path) = left.pop() {
        if path.is_dir() {
            left.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        } else if path.is_file() {
            let content = std::fs::read(&path).unwrap();
            assert!(
                !content.windows(6).any(|part| part == b"s3cret" || part == b"0ther-"),
                "{}",
                path.display()
            );
        }
    }
    // A fork has the secret too; a template has not.
    let fork = home.good(&format!("sandbox fork {id}"));
    send_requests(&home, fork.trim());
    assert_eq!(secrets_of(&requests(fixture)[2]), (some("s3cret-value"), some("s3cret-value")));
    home.good("sandbox kill --all");
}

fn stored_secrets_change_in_running_sandboxes(fixture: &Fixture) {
    let home = home(fixture, "");
    home.write("other", "0ther-value");
    home.feed("secret create openai", b"s3cret-value").good();
    let id = home.create(POLICY);
    let sent = |number: usize| {
        send_requests(&home, &id);
        secrets_of(&requests(fixture)[2 * number])
    };
    assert_eq!(sent(0), (some("s3cret-value"), some("s3cret-value")));
    assert_eq!(
        home.feed("secret set openai --format json", b"s3cret-later").good().matches("\"version\":2").count(),
        1
    );
    assert_eq!(sent(1), (some("s3cret-later"), some("s3cret-later")));
    let removed = home.run("secret rm openai");
    assert!(removed.stderr.contains(&format!("requests of {id} no longer get openai")), "{removed:?}");
    assert_eq!(sent(2), (None, some("belljar-secret-KEY")));
    home.run("secret rm openai").refused(125, &["openai"]);
    home.feed("secret create openai", b"s3cret-again").good();
    assert_eq!(sent(3), (some("s3cret-again"), some("s3cret-again")));
    // Other policies: without the headers, and with them again. Hosts without termination at the sandbox's start get none.
    home.good(&format!("sandbox net {id} set --allow *.example"));
    assert_eq!(sent(4), (None, some("belljar-secret-KEY")));
    let header = "--header good.example:authorization:secret=openai";
    home.good(&format!("sandbox net {id} set --allow *.example {header}"));
    assert_eq!(sent(5), (some("s3cret-again"), some("belljar-secret-KEY")));
    for (flags, text) in [
        ("--header sub.good.example:x:secret=openai", "network.headers"),
        ("--header good.example:x:secret=none-such", "\"none-such\""),
    ] {
        home.run(&format!("sandbox net {id} set --allow *.example {flags}")).refused(2, &[text]);
    }
    home.good("sandbox kill --all");
}

fn stored_secrets_have_a_quota(fixture: &Fixture) {
    let home = home(fixture, "[sandboxes]\nmax_secrets = 2");
    for name in ["one", "two"] {
        home.feed(&format!("secret create {name}"), b"s3cret-value").good();
    }
    home.feed("secret create three", b"s3cret-value").refused(125, &["secrets: 2 of 2 are in use"]);
    home.feed("secret create one", b"s3cret-value").refused(125, &["already"]);
    for (name, value) in
        [("Three", "v"), ("sec_0", "v"), ("four", ""), ("four", "two\nlines"), ("four", &"v".repeat(8193))]
    {
        let done = home.feed(&format!("secret create {name}"), value.as_bytes());
        assert!(value.len() < 2 || !done.stderr.contains(value), "{}", done.stderr);
        done.refused(2, &[if value.is_empty() { "standard input is empty" } else { "not allowed" }]);
    }
    home.run_args(&["secret", "create", "four", "--env", "NONE_SUCH"]).refused(2, &["NONE_SUCH is not set"]);
    let listed: Vec<Value> = home
        .good("secret ls --format json")
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(listed.iter().map(|secret| &secret["name"]).collect::<Vec<_>>(), ["one", "two"]);
}

/// Creates a key of an ordinary user.
fn user(home: &Home) -> String {
    home.json("key create --role user")["key"].as_str().unwrap().to_owned()
}

fn n23_stored_secrets_are_sent_to_their_own_hosts(fixture: &Fixture) {
    let home = home(fixture, "");
    let (ann, bob) = (user(&home), user(&home));
    let feed = |line: &str| home.feed(line, b"s3cret-value").good();
    feed("secret create scoped --host good.example --host *.good.example --header Authorization");
    feed(&format!("secret create free --api-key {ann}"));
    let create = |key: &str, words: &str| {
        home.run(&format!("sandbox create --allow *.example {words} --api-key {key}"))
    };
    let good = create(&bob, "--header good.example:authorization:secret=scoped").good();
    create(&bob, "--secret KEY=good.example:authorization:secret=scoped").good();
    create(&bob, "--header *.good.example:authorization:secret=scoped").good();
    let beyond = "secret \"scoped\" is for good.example, *.good.example (header authorization), and not for ";
    for (words, place) in [
        ("--header other.example:authorization:secret=scoped", "other.example (header authorization)"),
        ("--header *.example:authorization:secret=scoped", "*.example (header authorization)"),
        ("--header good.example:x-any:secret=scoped", "good.example (header x-any)"),
        ("--secret KEY=other.example:authorization:secret=scoped", "other.example (header authorization)"),
    ] {
        create(&bob, words).refused(125, &[beyond, place]);
    }
    // In a running sandbox, for a host that has a header already.
    let words = "--allow *.example --header good.example:x-any:secret=scoped";
    home.run(&format!("sandbox net {} set {words} --api-key {bob}", good.trim()))
        .refused(125, &[beyond, "good.example (header x-any)"]);
    // Without hosts it is for the key that stored it, and for administrators.
    let words = "--header other.example:x-any:secret=free";
    create(&bob, words).refused(125, &["secret \"free\" has no hosts"]);
    let own = create(&ann, words).good();
    home.run(&format!("sandbox fork {} --api-key {bob}", own.trim()))
        .refused(125, &["secret \"free\" has no hosts"]);
    home.good(&format!("sandbox create --allow *.example {words}"));
    // Who replaces the value knows it, and may use it; the previous one is gone.
    home.feed(&format!("secret set free --api-key {bob}"), b"0ther-value").good();
    create(&bob, words).good();
    create(&ann, words).refused(125, &["secret \"free\" has no hosts"]);
    // A key may be without all of them.
    let key = home.json("key create --role user --stored-secrets false");
    let (kim, kim_id) = (key["key"].as_str().unwrap().to_owned(), key["id"].as_str().unwrap());
    let words = "--header good.example:authorization:secret=scoped";
    create(&kim, words).refused(125, &["this key may not use secrets that are stored on the server"]);
    create(&kim, "--allow good.example").good();
    home.good(&format!("key set {kim_id} --stored-secrets true"));
    create(&kim, words).good();
    for words in ["--host https://x/", "--host *", "--host a.example --header host"] {
        home.feed(&format!("secret create wrong {words}"), b"v").refused(2, &["host"]);
    }
    home.good("sandbox kill --all");
}

fn n23_without_hosts_a_key_reads_a_secret_of_another(fixture: &Fixture) {
    let home = home(fixture, "");
    let run = |line: &str, input: &[u8]| {
        let args: Vec<_> = line.split(' ').collect();
        let mut command = home.belljar(&args);
        command.env("BELLJAR_TEST_WITHOUT", "service:secret-scope");
        home.feed_command(command, input)
    };
    if !cfg!(feature = "mutation") {
        return;
    }
    run("secret create scoped --host good.example", b"s3cret-value").good();
    let bob = user(&home);
    let words = "--allow *.example --header other.example:authorization:secret=scoped";
    let id = run(&format!("sandbox create {words} --api-key {bob}"), b"").good();
    send_requests(&home, id.trim());
    let sent: Vec<_> = requests(fixture).iter().map(|request| secrets_of(request).0).collect();
    assert_eq!(sent, [some("s3cret-value")]);
    home.good("sandbox kill --all");
}

fn stored_secret_with_other_hosts_ends_in_running_sandboxes(fixture: &Fixture) {
    let home = home(fixture, "");
    home.feed("secret create openai --host good.example", b"s3cret-value").good();
    let id = home.create(
        "--allow good.example --allow other.example --header good.example:authorization:secret=openai",
    );
    let code = "print(https('good.example')[0])\nprint(get('other.example')[9:12])";
    let code = format!("{}\n{PRELUDE}\n{code}", crate::fixture::PRELUDE);
    let send = || home.run_args(&["sandbox", "exec", &id, "--", "python3", "-c", &code]).good();
    assert_eq!(send(), "200\n200\n");
    assert_eq!(secrets_of(&requests(fixture)[0]).0, some("s3cret-value"));
    // The host is no longer reached, rather than without the secret, and the log says so.
    home.feed("secret set openai --host third.example", b"s3cret-value").good();
    let said = send();
    assert!(said.ends_with("\n200\n") && !said.starts_with("200"), "{said}");
    assert_eq!(requests(fixture).len(), 1);
    let log = home.good(&format!("sandbox logs {id}"));
    assert!(log.contains("good.example is denied: the secret openai is no longer for it"), "{log}");
    home.feed("secret set openai --host *.example", b"s3cret-value").good();
    assert_eq!(send(), "200\n200\n");
    home.good("sandbox kill --all");
}

/// E2B's clients set headers with network rules.
fn e2b_rules_set_headers(fixture: &Fixture) {
    let home = home(fixture, "e2b = true");
    let (server, said) = home.serve(&[]);
    let key = home.json("key create")["key"].as_str().unwrap().to_owned();
    let e2b = |method: &str, path: &str, body: &Value| rest(&said, &key, method, path, body);
    let (status, secret) = e2b("POST", "/secrets", &json!({"name": "OpenAI", "value": "s3cret-value"}));
    assert_eq!((status, &secret["name"], &secret["currentVersion"]), (201, &json!("openai"), &json!(1)));
    let rules = json!({"good.example": [{"transform": {"headers": {"Authorization": "Bearer ${e2b.secrets.OpenAI}"}}}]});
    let network =
        json!({"allowOut": ["good.example", "other.example"], "denyOut": ["0.0.0.0/0"], "rules": rules});
    let body = json!({"templateID": "base", "timeout": 600, "network": network});
    let (status, made) = e2b("POST", "/v2/sandboxes", &body);
    assert_eq!(status, 201, "{made}");
    let id = made["sandboxID"].as_str().unwrap();
    let used = || {
        let code = format!(
            "{}\n{PRELUDE}\nprint(https('good.example', Authorization='mine'))",
            crate::fixture::PRELUDE
        );
        home.run_args(&["sandbox", "exec", id, "--", "python3", "-c", &code]).good()
    };
    assert_eq!(used(), "(200, '[redacted]')\n");
    assert_eq!(requests(fixture)[0]["headers"]["authorization"], "Bearer s3cret-value");
    // In E2B's form, and without the value.
    let (_, info) = e2b("GET", &format!("/sandboxes/{id}"), &json!({}));
    let shown =
        json!({"good.example": [{"transform": {"headers": {"authorization": "…${e2b.secrets.openai}"}}}]});
    assert_eq!(info["network"]["rules"], shown);
    let (status, changed) = e2b("POST", "/secrets/openai", &json!({"value": "s3cret-later"}));
    assert_eq!((status, &changed["currentVersion"]), (200, &json!(2)));
    used();
    assert_eq!(requests(fixture)[1]["headers"]["authorization"], "Bearer s3cret-later");
    home.good("sandbox kill --all");
    crate::home::stop(server);
}
