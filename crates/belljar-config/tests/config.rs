//! Tests of configurations, and of the errors in invalid ones.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use belljar_config::{
    Config, ConfigErrors, ConfigLayers, LogFormat, OnExit, Origin, SETTINGS, Setting, SettingChange,
    ValueKind, example, show,
};
use proptest::prelude::*;

const HOME: &str = "/srv/belljar";

fn file(text: &str) -> Result<ConfigLayers, ConfigErrors> {
    let mut layers = ConfigLayers::default();
    layers.engines = ["local", "process", "none"].map(belljar_model::EngineName::known).into();
    layers.add_file(Path::new("belljar.toml"), text).map(|()| layers)
}

fn resolve(text: &str) -> Result<Config, ConfigErrors> {
    Config::resolve(&file(text)?, Path::new(HOME))
}

fn environment(variables: &[(&str, &str)]) -> Result<ConfigLayers, ConfigErrors> {
    let mut layers = ConfigLayers::default();
    let variables = variables.iter().map(|(name, value)| (OsString::from(name), OsString::from(value)));
    layers.add_environment(variables).map(|()| layers)
}

#[test]
fn example_lists_the_defaults() {
    let defaults = resolve("").unwrap();
    assert_eq!(resolve(&example()).unwrap(), defaults);
    // Uncommenting every setting changes nothing, so each default is listed correctly.
    assert_eq!(example().matches("\n#:").count(), SETTINGS.len());
    let mut all = example().replace("\n#:", "\n");
    // The default of this setting depends on the home.
    let (written, own) = ("url = \"\"", "url = \"sqlite:/srv/belljar/belljar.db\"");
    assert!(all.contains(written));
    all = all.replacen(written, own, 1);
    let layers = file(&all).unwrap();
    let mut every = Config::resolve(&layers, Path::new(HOME)).unwrap();
    // A template with explicit defaults is not equal, but resolves to the same specification.
    assert_eq!(every.template.clone().resolve().unwrap(), defaults.template.clone().resolve().unwrap());
    every.template = defaults.template.clone();
    assert_eq!(every, defaults);
}

#[test]
fn example_file() {
    insta::assert_snapshot!(example());
}

#[test]
fn every_setting_can_be_set_by_variable_and_flag() {
    for setting in SETTINGS.iter() {
        let text = match setting.kind {
            ValueKind::Flag => "true",
            ValueKind::List => "x,y",
            ValueKind::Table => "a=b,c=d",
            ValueKind::Text | ValueKind::Number => "7",
        };
        let layers = environment(&[(&setting.variable(), text)]).unwrap();
        assert_eq!(layers.origin(setting.key), Origin::Variable(setting.variable()));
        let mut layers = ConfigLayers::default();
        layers.add_flag("--set", setting.key, &[text.to_owned()]).unwrap();
        assert_eq!(layers.origin(setting.key), Origin::Flag("--set".to_owned()));
        let changed = ConfigLayers::default().changes(&layers);
        assert_eq!(changed, [SettingChange { key: setting.key, reload: setting.reload }]);
    }
}

#[test]
fn every_setting_is_read() {
    // Settings of telemetry are read only with an endpoint.
    let with = |changes: &[(&str, &str)]| {
        let mut layers = file("[otlp]\nendpoint = 'http://127.0.0.1:4318'\n").unwrap();
        for (key, value) in changes {
            layers.add_flag("--set", key, &[(*value).to_owned()]).unwrap();
        }
        Config::resolve(&layers, Path::new(HOME))
    };
    let defaults = with(&[]).unwrap();
    for setting in SETTINGS.iter() {
        let value = match setting.kind {
            ValueKind::Flag if setting.default == "true" => "false",
            ValueKind::Flag => "true",
            ValueKind::Table => "A=1",
            ValueKind::List | ValueKind::Text | ValueKind::Number => "?",
        };
        match with(&[(setting.key, value)]) {
            Ok(config) => assert_ne!(config, defaults, "{} is not read", setting.key),
            Err(errors) => assert!(errors.to_string().contains(setting.key), "{}: {errors}", setting.key),
        }
    }
}

#[test]
fn later_layers_override_earlier_ones() {
    let mut layers =
        file("[sandboxes]\npool = 1\nmax_waiting = 5\n[template.env]\nA = '1'\nB = '2'\n").unwrap();
    layers
        .add_environment(
            [
                ("BELLJAR_SANDBOXES_POOL", "2"),
                ("BELLJAR_TEMPLATE_ENV", "B=3,C=4"),
                ("BELLJAR_LOG_LEVEL", ""),
                ("HOME", "/x"),
            ]
            .map(|(name, value)| (name.into(), value.into())),
        )
        .unwrap();
    assert_eq!(Config::resolve(&layers, Path::new(HOME)).unwrap().sandboxes.pool, 2);
    layers.add_flag("--pool", "sandboxes.pool", &["3".to_owned()]).unwrap();
    layers.add_flag("--set", "template.env.D", &["a,b=c".to_owned()]).unwrap();
    let config = Config::resolve(&layers, Path::new(HOME)).unwrap();
    assert_eq!((config.sandboxes.pool, config.sandboxes.max_waiting), (3, 5));
    let env: Vec<_> = config.template.env.unwrap().into_iter().collect();
    let expected = [("A", "1"), ("B", "3"), ("C", "4"), ("D", "a,b=c")];
    assert_eq!(env, expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
}

#[test]
fn variables_of_a_run_apply_to_the_service() {
    let layers = environment(&[("BELLJAR_LIMITS", "watched"), ("BELLJAR_ENGINE", "process")]).unwrap();
    let config = Config::resolve(&layers, Path::new(HOME)).unwrap();
    assert_eq!(config.template.grade.as_deref(), Some("watched"));
    assert_eq!(config.sandboxes.engine.to_string(), "process");
    let layers = environment(&[("BELLJAR_LIMITS", "weak")]).unwrap();
    assert!(Config::resolve(&layers, Path::new(HOME)).is_err());
}

#[test]
fn variables_override_those_with_older_names() {
    let layers = environment(&[("BELLJAR_CGROUP", "/sys/fs/cgroup/a")]).unwrap();
    let config = Config::resolve(&layers, Path::new(HOME)).unwrap();
    assert_eq!(config.sandboxes.cgroup, Some(PathBuf::from("/sys/fs/cgroup/a")));
    for order in
        [["BELLJAR_SANDBOXES_CGROUP", "BELLJAR_CGROUP"], ["BELLJAR_CGROUP", "BELLJAR_SANDBOXES_CGROUP"]]
    {
        let layers =
            environment(&order.map(|name| (name, if name.len() > 16 { "/new" } else { "/old" }))).unwrap();
        assert_eq!(
            Config::resolve(&layers, Path::new(HOME)).unwrap().sandboxes.cgroup,
            Some(PathBuf::from("/new"))
        );
    }
}

#[test]
fn values_are_resolved() {
    let config = resolve(
        "[server]\nlisten = ['0.0.0.0:1', '[::1]:2']\nsocket = ''\ndomain = 'Box.Example'\ndrain = '1.5s'\n\
         tls_certificate = '/c.pem'\ntls_key = '$BELLJAR_HOME/k.pem'\n\
         [sandboxes]\nmax_timeout = '7d'\non_exit = 'end'\nmax_starts = 3\nengine = 'process'\n\
         [template.limits]\nmemory = '1g'\ncpus = 0.5\npids = 9\n\
         [quotas]\nsandboxes = 5\nmemory = '2g'\n[log]\nformat = 'json'\nfile = '/var/log/b'\n\
         [otlp]\nendpoint = 'http://c:4318/'\nsampling = 0.25\nheaders = { authorization = 'Bearer x' }\n\
         [webhooks]\nurl = 'http://10.0.0.5:9000/hook?a=b'\nallowed_hosts = ['http://10.0.0.5:9000']\n\
         secret = 'whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw'\n",
    )
    .unwrap();
    let webhooks = config.webhooks.unwrap();
    assert_eq!(
        (webhooks.url.as_str(), webhooks.events),
        ("http://10.0.0.5:9000/hook?a=b", vec!["approval".to_owned()])
    );
    assert_eq!((webhooks.secret.reveal().len(), webhooks.allowed_hosts.len()), (24, 1));
    assert_eq!(config.server.listen, ["0.0.0.0:1".parse().unwrap(), "[::1]:2".parse().unwrap()]);
    assert_eq!((config.server.socket, config.server.domain.as_deref()), (None, Some("box.example")));
    assert_eq!(config.server.drain, Duration::from_millis(1500));
    assert_eq!(config.server.tls.unwrap().key, Path::new("/srv/belljar/k.pem"));
    assert_eq!(config.sandboxes.max_timeout, Duration::from_secs(7 * 86_400));
    assert_eq!((config.sandboxes.on_exit, config.sandboxes.max_starts), (OnExit::End, Some(3)));
    let spec = config.template.resolve().unwrap();
    assert_eq!(
        (spec.limits.memory.bytes(), spec.limits.cpus.millis(), spec.limits.pids.get()),
        (1 << 30, 500, 9)
    );
    assert_eq!(spec.engine, belljar_model::EngineName::known("process"));
    assert_eq!(
        (config.quotas.sandboxes, config.quotas.memory_bytes, config.quotas.disk_bytes),
        (Some(5), Some(2 << 30), None)
    );
    assert_eq!(config.log.format, LogFormat::Json);
    let otlp = config.otlp.unwrap();
    assert_eq!(
        (otlp.endpoint.as_str(), otlp.sampling, otlp.headers[0].1.reveal()),
        ("http://c:4318", 0.25, "Bearer x")
    );
}

/// Each message has the line, the column and the path of the key.
#[test]
fn invalid_files_are_refused_with_line_and_column() {
    let cases = [
        ("syntax", "[server]\nlisten = [\n"),
        ("syntax in a line", "[server]\ndrain == 3\n"),
        ("a key that is unknown", "\n[server]\n  listn = []\n"),
        ("a section that is unknown", "[servr]\nlisten = []\n"),
        ("a key in no section", "listen = []\n"),
        ("a key below a section", "[template.limits]\nmemroy = '1g'\n[template]\nenvironment = {}\n"),
        ("a dotted key", "server.lisen = []\n"),
        ("a key twice", "[log]\nlevel = 'info'\nlevel = 'warn'\n"),
        ("a section twice", "[log]\n[log]\n"),
        ("a text for a list", "[server]\nlisten = '127.0.0.1:1'\n"),
        ("a number in a list", "[server]\nlisten = ['127.0.0.1:1', 7]\n"),
        ("a number for a text", "[server]\ndomain = 7\n"),
        ("a text for a flag", "[metrics]\nopen = 'yes'\n"),
        ("a list for a section", "server = []\n"),
        ("a number in a table", "[template]\nenv = { A = 1 }\n"),
        ("a name that no variable has", "[template.env]\n'A=B' = 'secret value'\n"),
        ("addresses", "[server]\nlisten = ['127.0.0.1:1', 'localhost:2',\n  '0.0.0.0']\n"),
        ("sizes", "[template.limits]\nmemory = '1m'\ndisk = '12 parsecs'\n[head_room]\nmemory = -1\n"),
        (
            "numbers",
            "[sandboxes]\npool = -1\nmax_starts = 1.5\nmax_sandboxes = 0\n[head_room]\ninodes_percent = 100\n",
        ),
        ("times", "[sandboxes]\ndefault_timeout = '2d'\nkeep_gone = 'for ever'\n[server]\ndrain = '2h'\n"),
        (
            "words",
            "[sandboxes]\non_exit = 'stay'\nengine = 'docker'\n[log]\nlevel = 'debug'\n[template]\ngrade = 'none'\n",
        ),
        ("paths", "[server]\nsocket = 'run/belljar.sock'\n[sandboxes.mounts]\nread = ['/data', 'data']\n"),
        ("half of TLS", "[server]\ntls_certificate = '/c.pem'\n"),
        ("nowhere to listen", "[server]\nlisten = []\nsocket = ''\n"),
        (
            "names",
            "[server]\ndomain = 'a..b'\nallowed_hosts = ['h:1']\nallowed_origins = ['example.com', 'https://e/x']\n",
        ),
        ("a store", "[store]\nurl = 'mysql://user:secret@host/x'\nkeeper = 'a b'\n"),
        (
            "a collector",
            "[otlp]\nendpoint = 'http://user:secret@host'\nsampling = 2\nheaders = { 'a b' = 'secret' }\n",
        ),
        (
            "webhooks",
            "[webhooks]\nurl = 'http://hooks.example.com/secret'\nsecret = 'whsec_c2VjcmV0'\nevents = ['Approval', '', 'approval', 'approvals', 'foo']\nallowed_hosts = ['*', 'a/b']\n",
        ),
        ("a webhook with an account", "[webhooks]\nurl = 'https://user:secret@hooks.example.com/'\n"),
        ("a webhook without a scheme", "[webhooks]\nurl = 'hooks.example.com/secret'\n"),
        ("characters that a terminal acts on", "[log]\nlevel = \"\\u001b[31m\"\n"),
        ("a character of several bytes before it", "[log]\n'ä' = 1\n"),
    ];
    let mut found = String::new();
    for (name, text) in cases {
        let errors = resolve(text).map(|_| ()).unwrap_err();
        found.push_str(&format!("== {name}\n{errors}\n"));
    }
    let values = found.replace("webhooks.secret", "").replace("this secret", "");
    assert!(!values.contains("secret") && !found.contains('\u{1b}'), "{found}");
    insta::assert_snapshot!(found);
}

#[test]
fn invalid_variables_and_flags_are_reported() {
    let mut found = String::new();
    let cases: [&[(&str, &str)]; 5] = [
        &[("BELLJAR_SERVER_LISTN", "1")],
        &[("BELLJAR_OTLP_HEADERS", "secret")],
        &[("BELLJAR_SERVER_LISTEN", "127.0.0.1:1, x")],
        &[("BELLJAR_SANDBOXES_POOL", "many")],
        &[("BELLJAR_METRICS_OPEN", "1")],
    ];
    for variables in cases {
        let refused =
            environment(variables).and_then(|layers| Config::resolve(&layers, Path::new(HOME)).map(|_| ()));
        found.push_str(&format!("{}\n", refused.unwrap_err()));
    }
    for (key, value) in [("server.listn", "1"), ("template.env", "A"), ("sandboxes.pool", "x"), ("pool", "1")]
    {
        let mut layers = ConfigLayers::default();
        let refused = layers
            .add_flag(&format!("--set {key}"), key, &[value.to_owned()])
            .and_then(|()| Config::resolve(&layers, Path::new(HOME)).map(|_| ()));
        found.push_str(&format!("{}\n", refused.unwrap_err()));
    }
    assert!(!found.contains("secret"), "{found}");
    insta::assert_snapshot!(found);
    // Other variables of Belljar are not errors.
    environment(&[("BELLJAR_HOME", "/x"), ("BELLJAR_API_KEY", "x"), ("BELLJAR_POLICY", "/p")]).unwrap();
}

#[test]
fn effective_configuration_is_shown_without_secrets() {
    let mut layers = file(
        "[server]\nlisten = ['0.0.0.0:80']\n[store]\nurl = 'postgres://u:hush@h/d?password=hush'\n\
         [otlp]\nheaders = { authorization = 'hush' }\nendpoint = 'http://c'\n[template.env]\nTOKEN = 'hush'\n\
         [webhooks]\nurl = 'https://h/'\nsecret = 'whsec_hushhushhushhushhushhushhushhush'\n",
    )
    .unwrap();
    layers.add_environment([(OsString::from("BELLJAR_SANDBOXES_POOL"), OsString::from("9"))]).unwrap();
    layers.add_flag("--set", "metrics.open", &["true".to_owned()]).unwrap();
    let config = Config::resolve(&layers, Path::new(HOME)).unwrap();
    let shown = show(&layers);
    for text in [&shown, &format!("{layers:?}"), &format!("{config:?}")] {
        assert!(!text.contains("hush"), "{text}");
    }
    insta::assert_snapshot!(shown);
}

#[test]
fn changes_are_detected_and_marked_reloadable() {
    let old = file("[sandboxes]\npool = 1\n[server]\nlisten = ['127.0.0.1:1']\n").unwrap();
    let moved = file("\n\n[server]\nlisten = ['127.0.0.1:1']\n\n[sandboxes]\npool = 1\n").unwrap();
    assert_eq!(old.changes(&moved), []);
    let new = file("[sandboxes]\npool = 2\n[server]\nlisten = ['127.0.0.1:2']\n").unwrap();
    let expected = [("server.listen", false), ("sandboxes.pool", true)]
        .map(|(key, reload)| SettingChange { key, reload });
    assert_eq!(old.changes(&new), expected);
}

#[test]
fn too_long_file_is_refused() {
    let errors = resolve(&" ".repeat((1 << 20) + 1)).unwrap_err();
    assert_eq!(errors.to_string(), "belljar.toml: the file has 1048577 bytes; at most 1048576 are allowed");
}

fn key() -> impl Strategy<Value = String> {
    let known: Vec<&str> = SETTINGS.iter().map(|setting: &Setting| setting.key).collect();
    prop_oneof![proptest::sample::select(known).prop_map(str::to_owned), "[a-z_.]{0,20}"]
}

proptest! {
    #[test]
    fn arbitrary_files_do_not_panic(text in "\\PC{0,200}") {
        let _ = resolve(&text);
    }

    #[test]
    fn arbitrary_values_do_not_panic(key in key(), value in "(\"\\PC{0,20}\"|[0-9.eE+-]{1,12}|true|\\[\\]|\\{\\}|\\['\\PC{0,9}'\\]|1979-05-27)") {
        let _ = resolve(&format!("{key} = {value}\n"));
        let mut layers = ConfigLayers::default();
        let _ = layers.add_flag("--set", &key, &[value]);
        let _ = Config::resolve(&layers, Path::new(HOME));
    }
}
