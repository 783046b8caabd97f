//! Validates the layers and fills in the defaults.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use belljar_model::{
    ByteSize, Cidr, DockerSettings, EVENT_KINDS, EngineName, EnvVar, GvisorPlatform, GvisorSettings,
    Hostname, ImageReference, ImageRegistry, LimitScope, LimitsFile, LimitsGrade, MAX_VOLUME_BYTES,
    MIN_VOLUME_BYTES, ModelError, NetworkCeiling, NetworkFile, NetworkMode, Preset, Rule, SpecFile,
    UpstreamProxy, WebhookSecret,
};

use crate::config::{
    ApprovalsConfig, AuditConfig, Config, HeadRoomConfig, ImagesConfig, LogConfig, LogFormat, LogLevel,
    MetricsConfig, MountsConfig, OnExit, OtlpConfig, QuotasConfig, SandboxesConfig, ServerConfig,
    StoreConfig, StoreDurability, TlsConfig, VolumesConfig, WebhooksConfig,
};
use crate::error::{ConfigError, ConfigErrors};
use crate::layers::ConfigLayers;
use crate::read::{Reader, one_of};
use crate::secret::Secret;

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);

/// Longest lifetime that an operator can allow.
const MAX_LIFETIME: Duration = Duration::from_secs(365 * 24 * 3600);

impl Config {
    /// Validates all layers, and fills in the defaults. `home` is the service's home, an absolute path.
    ///
    /// # Errors
    /// Returns all mistakes, each with its origin.
    pub fn resolve(layers: &ConfigLayers, home: &Path) -> Result<Self, ConfigErrors> {
        let (config, errors) = Self::resolve_all(layers, home);
        ConfigErrors::check(errors)?;
        Ok(config)
    }

    /// Validates all layers as [`Config::resolve`] does, but replaces each invalid value by its default, so that a caller can
    /// look for further errors.
    #[must_use]
    pub fn resolve_all(layers: &ConfigLayers, home: &Path) -> (Self, Vec<ConfigError>) {
        let mut reader = Reader::new(layers, home);
        let sandboxes = sandboxes(&mut reader);
        let images = images(&mut reader);
        let config = Self {
            server: server(&mut reader),
            store: store(&mut reader, home),
            template: template(&mut reader, sandboxes.engine),
            sandboxes,
            docker: docker(&mut reader, &images),
            gvisor: gvisor(&mut reader),
            images,
            head_room: head_room(&mut reader),
            quotas: quotas(&mut reader),
            log: log(&mut reader),
            metrics: MetricsConfig { open: reader.flag("metrics.open") },
            otlp: otlp(&mut reader),
            webhooks: webhooks(&mut reader),
            audit: audit(&mut reader, home),
        };
        (config, reader.errors)
    }
}

fn server(reader: &mut Reader<'_>) -> ServerConfig {
    let listen = reader.list("server.listen", |text| {
        text.parse().map_err(|_| "an IP address and a port, such as 127.0.0.1:8787 or [::]:8787".to_owned())
    });
    let socket = reader.path("server.socket");
    if listen.is_empty() && socket.is_none() {
        reader.refuse_combination(
            "server.listen",
            "neither an address nor a socket is configured; give one of them",
        );
    }
    let domain = reader.value("server.domain", |text| match text {
        "" => Ok(None),
        text if is_domain(text) => Ok(Some(text.to_ascii_lowercase())),
        _ => Err("a domain name, such as sandboxes.example.com".to_owned()),
    });
    ServerConfig {
        listen,
        socket,
        operator_socket: reader.flag("server.operator_socket"),
        domain,
        allowed_hosts: reader.list("server.allowed_hosts", |text| {
            let is_host = is_domain(text) || text.parse::<std::net::IpAddr>().is_ok();
            is_host.then(|| text.to_ascii_lowercase()).ok_or_else(|| "a host name without port".to_owned())
        }),
        allowed_origins: reader.list("server.allowed_origins", |text| {
            let rest = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
            let is_origin =
                rest.is_some_and(|rest| !rest.is_empty() && !rest.contains(['/', '?', '#', '@', '*', ' ']));
            is_origin.then(|| text.to_ascii_lowercase()).ok_or_else(|| {
                "scheme and host without a path, such as https://console.example.com".to_owned()
            })
        }),
        trusted_proxies: reader.list("server.trusted_proxies", |text| {
            text.parse().map_err(|_| "an IP address, such as 10.0.0.2".to_owned())
        }),
        tls: tls(reader),
        max_connections: reader.count("server.max_connections", 1, 1_000_000),
        max_connections_per_client: reader.count("server.max_connections_per_client", 1, 1_000_000),
        max_requests_per_connection: reader.count("server.max_requests_per_connection", 1, 1_000_000_000),
        max_streams_per_key: reader.count("server.max_streams_per_key", 1, 1_000_000),
        max_failed_attempts: reader.count("server.max_failed_attempts", 1, 1_000_000),
        drain: reader.span("server.drain", Duration::ZERO, HOUR),
        linger: reader.span("server.linger", SECOND, DAY),
        open_docs: reader.flag("server.open_docs"),
        e2b: reader.flag("server.e2b"),
        e2b_internet: reader.flag("server.e2b_internet"),
        e2b_public_ports: reader.flag("server.e2b_public_ports"),
    }
}

fn tls(reader: &mut Reader<'_>) -> Option<TlsConfig> {
    let certificate = reader.path("server.tls_certificate");
    let key = reader.path("server.tls_key");
    match (certificate, key) {
        (Some(certificate), Some(key)) => Some(TlsConfig { certificate, key }),
        (None, None) => None,
        (Some(_), None) => {
            reader.refuse_combination(
                "server.tls_certificate",
                "a certificate needs its key; give server.tls_key too",
            );
            None
        }
        (None, Some(_)) => {
            reader.refuse_combination(
                "server.tls_key",
                "a key needs its certificate; give server.tls_certificate too",
            );
            None
        }
    }
}

fn store(reader: &mut Reader<'_>, home: &Path) -> StoreConfig {
    let own = format!("sqlite:{}", home.join("belljar.db").display());
    let mut url = reader.optional("store.url").unwrap_or_else(|| own.clone());
    let schemes = ["sqlite:", "postgres://", "postgresql://"];
    if !schemes.iter().any(|scheme| url.starts_with(scheme)) {
        url = own;
        let allowed = "sqlite:/PATH or postgres://USER:PASSWORD@HOST/DATABASE".to_owned();
        reader.refuse("store.url", "this address".to_owned(), allowed);
    }
    let words = [("process", StoreDurability::Process), ("power", StoreDurability::Power)];
    StoreConfig {
        url: Secret::new(url),
        durability: reader.word("store.durability", &words),
        key_file: reader.path("store.key_file").unwrap_or_else(|| home.join("store.key")),
        keeper: reader.value("store.keeper", |text| {
            let fits = (1..=63).contains(&text.len())
                && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
            fits.then(|| text.to_owned())
                .ok_or_else(|| "1 to 63 letters, digits, hyphens and dots".to_owned())
        }),
    }
}

/// Maximum length of a template's name in bytes, with a tag.
const MAX_TEMPLATE_NAME_BYTES: usize = 256;

fn sandboxes(reader: &mut Reader<'_>) -> SandboxesConfig {
    let engines = reader.engines();
    let engine = |text: &str| {
        let named = text.parse::<EngineName>().map_err(|_| one_of(engines.iter().map(EngineName::as_str)))?;
        let is_known = engines.is_empty() || engines.contains(&named);
        is_known.then_some(named).ok_or_else(|| one_of(engines.iter().map(EngineName::as_str)))
    };
    let default_timeout = reader.span("sandboxes.default_timeout", SECOND, MAX_LIFETIME);
    let max_timeout = reader.span("sandboxes.max_timeout", SECOND, MAX_LIFETIME);
    if default_timeout > max_timeout {
        let key = if reader.text("sandboxes.default_timeout").is_some() {
            "default_timeout"
        } else {
            "max_timeout"
        };
        let reason = "sandboxes.default_timeout is longer than sandboxes.max_timeout";
        reader.refuse_combination(&format!("sandboxes.{key}"), reason);
    }
    SandboxesConfig {
        engine: reader.value("sandboxes.engine", engine),
        engines: reader.list("sandboxes.engines", engine),
        default_template: reader.value("sandboxes.default_template", |text| {
            let fits =
                (1..=MAX_TEMPLATE_NAME_BYTES).contains(&text.len()) && !text.chars().any(char::is_control);
            fits.then(|| text.to_owned()).ok_or_else(|| "the name of a template".to_owned())
        }),
        default_timeout,
        max_timeout,
        pool: reader.count("sandboxes.pool", 0, 10_000),
        template_pool: reader.count("sandboxes.template_pool", 0, 1000),
        warm_interpreters: reader.flag("sandboxes.warm_interpreters"),
        warm_imports: reader.list("sandboxes.warm_imports", |text| {
            let allowed = || "names of Python modules, of at most 128 letters, digits, _ and .".to_owned();
            let letters = |byte: u8| byte.is_ascii_alphanumeric() || b"._".contains(&byte);
            let fits = (1..=128).contains(&text.len()) && text.bytes().all(letters) && !text.starts_with('.');
            fits.then(|| text.to_owned()).ok_or_else(allowed)
        }),
        max_starts: Some(reader.count("sandboxes.max_starts", 0, 10_000)).filter(|starts| *starts > 0),
        max_waiting: reader.count("sandboxes.max_waiting", 0, 1_000_000),
        max_sandboxes: reader.count("sandboxes.max_sandboxes", 1, 1_000_000),
        max_secrets: reader.count("sandboxes.max_secrets", 0, 100_000),
        share_host_tree: reader.flag("sandboxes.share_host_tree"),
        machines: reader.flag("sandboxes.machines"),
        on_exit: reader.word("sandboxes.on_exit", &[("keep", OnExit::Keep), ("end", OnExit::End)]),
        cgroup: reader.path("sandboxes.cgroup"),
        keep_gone: reader.span("sandboxes.keep_gone", Duration::ZERO, 10 * MAX_LIFETIME),
        keep_steps: reader.span("sandboxes.keep_steps", Duration::ZERO, 10 * MAX_LIFETIME),
        keep_idempotency: reader.span("sandboxes.keep_idempotency", Duration::from_secs(60), MAX_LIFETIME),
        mounts: MountsConfig {
            read: reader.paths("sandboxes.mounts.read"),
            write: reader.paths("sandboxes.mounts.write"),
            forbidden: reader.paths("sandboxes.mounts.forbidden"),
        },
        volumes: volumes(reader),
        approvals: ApprovalsConfig {
            timeout: reader.span("sandboxes.approvals.timeout", SECOND, DAY),
            max_pending: reader.count("sandboxes.approvals.max_pending", 0, 10_000),
            keep: reader.span("sandboxes.approvals.keep", Duration::ZERO, 10 * MAX_LIFETIME),
        },
        network_ceiling: network_ceiling(reader),
        network_exceptions: reader.list("sandboxes.network.exceptions", |text| {
            text.parse::<Cidr>().map_err(|_| "a range such as 10.0.0.0/8".to_owned())
        }),
        network_resolvers: reader.list("sandboxes.network.resolvers", |text| {
            text.parse::<SocketAddr>().map_err(|_| "an address with a port, such as 10.0.0.53:53".to_owned())
        }),
        network_proxy: network_proxy(reader),
        network_proxy_resolves: reader.flag("sandboxes.network.proxy_resolves"),
        network_ca_file: reader.path("sandboxes.network.ca_file"),
    }
}

fn images(reader: &mut Reader<'_>) -> ImagesConfig {
    ImagesConfig {
        registries: reader.list("images.registries", |text| text.parse().map_err(str::to_owned)),
        max_bytes: reader.size("images.max_size", ByteSize::mib(1), ByteSize::mib(1 << 20)),
    }
}

fn docker(reader: &mut Reader<'_>, images: &ImagesConfig) -> DockerSettings {
    DockerSettings {
        host: reader.optional("engines.docker.host"),
        runtime: reader.optional("engines.docker.runtime"),
        image: reader.value("engines.docker.image", |text| match text {
            "" => Ok(None),
            name => name
                .parse()
                .map(Some)
                .map_err(|_| "the name of an image, such as python:3.12-slim".to_owned()),
        }),
        registries: Some(images.registries.clone()),
    }
}

fn gvisor(reader: &mut Reader<'_>) -> GvisorSettings {
    GvisorSettings {
        runsc: reader.path("engines.gvisor.runsc"),
        platform: reader.word(
            "engines.gvisor.platform",
            &GvisorPlatform::ALL.map(|platform| (platform.as_str(), platform)),
        ),
    }
}

fn volumes(reader: &mut Reader<'_>) -> VolumesConfig {
    let (min, max) = (ByteSize::new(MIN_VOLUME_BYTES), ByteSize::new(MAX_VOLUME_BYTES));
    VolumesConfig {
        size_bytes: reader.size("sandboxes.volumes.size", min, max),
        max_count: reader.count("sandboxes.volumes.max_count", 0, 100_000),
        max_bytes: reader.size("sandboxes.volumes.max_bytes", ByteSize::new(0), max),
    }
}

/// Reads the proxy of networks. Its text may contain a password, and is not shown.
fn network_proxy(reader: &mut Reader<'_>) -> Option<UpstreamProxy> {
    const KEY: &str = "sandboxes.network.proxy";
    match reader.optional(KEY)?.parse() {
        Ok(proxy) => Some(proxy),
        Err(ModelError::NotAllowed { allowed, value, .. }) => {
            reader.refuse(KEY, value, allowed);
            None
        }
        Err(error) => {
            reader.refuse_combination(KEY, error.to_string());
            None
        }
    }
}

/// Reads the ceiling of networks: a mode, and lists that restrict it if they are not empty.
fn network_ceiling(reader: &mut Reader<'_>) -> NetworkCeiling {
    const ALLOW: &str = "sandboxes.network.most_allow";
    let modes = NetworkMode::ALL.map(|mode| (mode.as_str(), mode));
    let mode = reader.word("sandboxes.network.most", &modes);
    let presets = reader.list("sandboxes.network.most_presets", |name| match Preset::find(name) {
        Some(_) => Ok(name.to_owned()),
        None => Err("a preset; belljar net presets lists them".to_owned()),
    });
    let allow = reader.list(ALLOW, |text| match Rule::parse_allow(text) {
        Ok(_) => Ok(text.to_owned()),
        Err(ModelError::NotAllowed { allowed, .. }) => Err(allowed),
        Err(error) => Err(error.to_string()),
    });
    if mode == NetworkMode::Disabled || (presets.is_empty() && allow.is_empty()) {
        return mode.into();
    }
    let file = NetworkFile { presets: Some(presets), allow: Some(allow), ..NetworkFile::default() };
    NetworkCeiling::try_from(file).unwrap_or_else(|error| {
        reader.refuse_combination(ALLOW, error.to_string());
        NetworkMode::Disabled.into()
    })
}

fn template(reader: &mut Reader<'_>, engine: EngineName) -> SpecFile {
    let env = reader.table("template.env", |name, value| {
        EnvVar::new(name, value).map(|_| ()).map_err(|error| match error {
            belljar_model::ModelError::NotAllowed { allowed, .. } => allowed,
            other => other.to_string(),
        })
    });
    let mut limits = LimitsFile::default();
    for limit in LimitsFile::table(LimitScope::Create) {
        reader.limit(limit.setting, limit.name, &mut limits);
    }
    SpecFile {
        engine: Some(engine.to_string()),
        grade: reader.model::<LimitsGrade>("template.grade"),
        hostname: reader.model::<Hostname>("template.hostname"),
        env: Some(env.into_iter().collect::<BTreeMap<_, _>>()).filter(|env| !env.is_empty()),
        limits,
        ..SpecFile::default()
    }
}

fn head_room(reader: &mut Reader<'_>) -> HeadRoomConfig {
    let (min, max) = (ByteSize::new(0), ByteSize::mib(1 << 24));
    HeadRoomConfig {
        memory_bytes: reader.size("head_room.memory", min, max),
        disk_bytes: reader.size("head_room.disk", min, max),
        inodes_percent: reader.count("head_room.inodes_percent", 0, 99),
        pids: reader.count("head_room.pids", 0, 4_194_304),
    }
}

fn quotas(reader: &mut Reader<'_>) -> QuotasConfig {
    let number = "a whole number";
    let bytes = |text: &str| text.parse().ok().map(ByteSize::bytes);
    QuotasConfig {
        sandboxes: reader.quota("quotas.sandboxes", |text| text.parse().ok(), number),
        memory_bytes: reader.quota("quotas.memory", bytes, "a size, such as 4g"),
        disk_bytes: reader.quota("quotas.disk", bytes, "a size, such as 20g"),
        cpu_seconds_per_hour: reader.quota("quotas.cpu_seconds_per_hour", |text| text.parse().ok(), number),
        executions_per_minute: reader.quota("quotas.executions_per_minute", |text| text.parse().ok(), number),
    }
}

fn log(reader: &mut Reader<'_>) -> LogConfig {
    let formats = [("text", LogFormat::Text), ("json", LogFormat::Json)];
    let levels = [("error", LogLevel::Error), ("warn", LogLevel::Warn), ("info", LogLevel::Info)];
    LogConfig {
        format: reader.word("log.format", &formats),
        level: reader.word("log.level", &levels),
        file: reader.path("log.file"),
        rotate_bytes: reader.size("log.rotate_size", ByteSize::new(1 << 20), ByteSize::new(1 << 40)),
    }
}

fn otlp(reader: &mut Reader<'_>) -> Option<OtlpConfig> {
    let endpoint = reader.optional("otlp.endpoint").map(|text| {
        let address = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
        if address.is_none_or(|address| address.is_empty() || address.contains(['@', '?', '#', ' '])) {
            // It may contain a password, so it is not shown.
            let allowed =
                "an address such as http://127.0.0.1:4318; credentials go into otlp.headers".to_owned();
            reader.refuse("otlp.endpoint", "this address".to_owned(), allowed);
        }
        text.trim_end_matches('/').to_owned()
    });
    let headers = reader.table("otlp.headers", |name, value| {
        let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        let fits = !name.is_empty()
            && name.bytes().all(is_token)
            && value.bytes().all(|byte| (b' '..=b'~').contains(&byte));
        if fits { Ok(()) } else { Err("a header's name, with a value of printable ASCII".to_owned()) }
    });
    let sampling = reader.value("otlp.sampling", |text| {
        let share = text.parse::<f64>().ok().filter(|share| (0.0..=1.0).contains(share));
        share.ok_or_else(|| "a number from 0 to 1, such as 0.1".to_owned())
    });
    let logs = reader.flag("otlp.logs");
    let service_name = reader.value("otlp.service_name", |text| Ok(text.to_owned()));
    Some(OtlpConfig {
        endpoint: endpoint?,
        headers: headers.into_iter().map(|(name, value)| (name, Secret::new(value))).collect(),
        sampling,
        logs,
        service_name,
    })
}

fn webhooks(reader: &mut Reader<'_>) -> Option<WebhooksConfig> {
    let allowed_hosts: Vec<ImageRegistry> = reader.list("webhooks.allowed_hosts", |text| {
        let host = text.parse().ok().filter(|host: &ImageRegistry| host.host().is_some());
        host.ok_or_else(|| {
            "a host such as hooks.corp.example or 10.0.0.5:9000, http:// and one without TLS".to_owned()
        })
    });
    let events = reader.list("webhooks.events", |text| {
        belljar_model::selects_events(text).then(|| text.to_owned()).ok_or_else(|| {
            let mut all: Vec<&str> = EVENT_KINDS.iter().filter_map(|kind| kind.split('.').next()).collect();
            all.dedup();
            format!("kinds of events: {}, or one of them alone, such as approval.requested", all.join(", "))
        })
    });
    // Both may have secrets in them, so they are not shown.
    let secret = reader.optional("webhooks.secret").map(|text| text.parse::<WebhookSecret>());
    if let Some(Err(allowed)) = &secret {
        reader.refuse("webhooks.secret", "this secret".to_owned(), (*allowed).to_owned());
    }
    let url = reader.optional("webhooks.url")?;
    if let Err(allowed) = check_webhook_url(&url, &allowed_hosts) {
        reader.refuse("webhooks.url", "this address".to_owned(), allowed.to_owned());
    }
    match secret {
        Some(Ok(secret)) => Some(WebhooksConfig { url, secret, events, allowed_hosts }),
        Some(Err(_)) => None,
        None => {
            reader.refuse_combination(
                "webhooks.secret",
                "it is missing; messages to webhooks.url are signed with it",
            );
            None
        }
    }
}

/// Checks an address of a webhook. Returns what is allowed if it is not.
fn check_webhook_url(url: &str, allowed_hosts: &[ImageRegistry]) -> Result<(), &'static str> {
    let (rest, is_plain) = match (url.strip_prefix("https://"), url.strip_prefix("http://")) {
        (Some(rest), _) => (rest, false),
        (None, Some(rest)) => (rest, true),
        (None, None) => return Err("an address such as https://hooks.example.com/belljar"),
    };
    let host = rest.split(['/', '?']).next().unwrap_or_default();
    if !ImageReference::is_host(host) || url.contains('#') || !url.bytes().all(|byte| byte.is_ascii_graphic())
    {
        return Err(
            "an address with a host and an optional port, a path and a query, such as https://hooks.example.com/belljar",
        );
    }
    let is_named = |one: &ImageRegistry| one.is_plain() && one.host() == Some(&host.to_ascii_lowercase());
    if is_plain && !allowed_hosts.iter().any(is_named) {
        return Err("https, or a host that webhooks.allowed_hosts has with http://");
    }
    Ok(())
}

fn audit(reader: &mut Reader<'_>, home: &Path) -> AuditConfig {
    let (min, max) = (ByteSize::mib(1), ByteSize::mib(1 << 20));
    let age =
        |text: &str| belljar_model::parse_span(text).filter(|age| (HOUR..=100 * MAX_LIFETIME).contains(age));
    AuditConfig {
        file: reader.path("audit.file"),
        rotate_bytes: reader.size("audit.rotate_size", min, max),
        keep: reader.count("audit.keep", 0, 100_000),
        archive_dir: reader.path("audit.archive_dir").unwrap_or_else(|| home.join("audit")),
        archive_after: reader.quota("audit.archive_after", age, "a time of at least 1h, such as 90d"),
    }
}

/// Reports whether a text is an ASCII domain name that `server.domain` may have: labels of letters, digits and hyphens.
#[must_use]
pub fn is_domain(text: &str) -> bool {
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    text.len() <= 253 && text.split('.').all(label)
}
