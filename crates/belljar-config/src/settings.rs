//! Every setting of the service, in the order of the example file.

use std::sync::LazyLock;

use belljar_model::{LimitInfo, LimitScope, LimitsFile};

use crate::setting::{Setting, ValueKind, Visibility};

const fn text(key: &'static str, default: &'static str, text: &'static str) -> Setting {
    Setting::new(key, ValueKind::Text, default, text)
}

const fn number(key: &'static str, default: &'static str, text: &'static str) -> Setting {
    Setting::new(key, ValueKind::Number, default, text)
}

const fn flag(key: &'static str, default: &'static str, text: &'static str) -> Setting {
    Setting::new(key, ValueKind::Flag, default, text)
}

const fn list(key: &'static str, default: &'static str, text: &'static str) -> Setting {
    Setting::new(key, ValueKind::List, default, text)
}

/// Returns the setting with this key.
#[must_use]
pub fn setting(key: &str) -> Option<&'static Setting> {
    SETTINGS.iter().find(|setting| setting.key == key)
}

/// Every setting of the service.
pub static SETTINGS: LazyLock<Vec<Setting>> = LazyLock::new(|| {
    let limits: Vec<_> = LimitsFile::table(LimitScope::Create).map(template_limit).collect();
    [BEFORE_LIMITS, &limits, AFTER_LIMITS].concat()
});

fn template_limit(limit: &LimitInfo) -> Setting {
    number(limit.setting, limit.default, limit.help)
}

const BEFORE_LIMITS: &[Setting] = &[
    list("server.listen", "[\"127.0.0.1:8787\"]", "Addresses to listen on. An address other than loopback needs TLS here or a proxy in front of it.").flag("listen", "IP:PORT"),
    text("server.socket", "\"$BELLJAR_HOME/belljar.sock\"", "Unix socket to listen on; \"\" is none.").flag("socket", "PATH"),
    flag("server.operator_socket", "true", "Treat every process that can open the socket (of this server's own user, or root) as the operator, who needs no key."),
    text("server.domain", "\"\"", "Domain of the host names {port}-{id}.DOMAIN for ports of sandboxes. Without it ports are reached by path only.").flag("domain", "DOMAIN"),
    list("server.allowed_hosts", "[]", "Names of this server, in addition to loopback and the address that a client connected to. Others are refused.").reloadable(),
    list("server.allowed_origins", "[]", "Origins of web pages that may use the server from a browser, such as \"https://console.example.com\".").reloadable(),
    list("server.trusted_proxies", "[]", "Addresses of reverse proxies whose X-Forwarded-For and X-Forwarded-Proto are trusted."),
    text("server.tls_certificate", "\"\"", "PEM file with the certificate chain, read again on SIGHUP. With it the addresses above accept only TLS."),
    text("server.tls_key", "\"\"", "PEM file with its private key, read again on SIGHUP."),
    number("server.max_connections", "2048", "Maximum number of concurrent connections, on all listeners together; 1 in 64 is reserved for the socket."),
    number("server.max_connections_per_client", "512", "Maximum number of concurrent connections from one address."),
    number("server.max_requests_per_connection", "100000", "Maximum number of requests on one connection, after which it is closed."),
    number("server.max_streams_per_key", "256", "Maximum number of concurrent event streams, WebSockets and tunnels of one key."),
    number("server.max_failed_attempts", "30", "Maximum number of wrong keys and tokens from one address in a minute, after which further wrong ones are told to wait. Valid ones are always served."),
    number("server.drain", "\"10s\"", "Time for requests to finish on shutdown."),
    number("server.linger", "\"60s\"", "Time after which a server that a command has started in the background exits without a sandbox and a connection.").reloadable(),
    flag("server.open_docs", "true", "Serve /openapi.json and /docs without a key."),
    flag("server.e2b", "false", "Serve E2B's clients as well, on the same addresses. See docs/e2b.md.").flag("e2b", ""),
    flag("server.e2b_internet", "true", "Give sandboxes of E2B's clients an open network by default, as E2B does."),
    flag("server.e2b_public_ports", "true", "Let everyone reach the ports of sandboxes of E2B's clients, as E2B does, unless a sandbox has allowPublicTraffic: false."),
    text("store.url", "\"\"", "sqlite:/PATH or postgres://USER:PASSWORD@HOST/DATABASE; \"\" is sqlite in $BELLJAR_HOME.").visibility(Visibility::Address).flag("store", "URL"),
    text("store.durability", "\"process\"", "Durability of an acknowledged write: process (it survives the end of the server) or power (a loss of power, too)."),
    text("store.key_file", "\"$BELLJAR_HOME/store.key\"", "File with the key that seals the store. Servers that share a store need copies of the same key."),
    text("store.keeper", "\"local\"", "This server's name in the store. Servers that share a PostgreSQL store need different names."),
    text("sandboxes.engine", "\"local\"", "Default engine: local; process isolates less, none not at all.").alias("BELLJAR_ENGINE").flag("engine", "ENGINE"),
    list("sandboxes.engines", "[]", "Further engines that a sandbox may name, for every key."),
    text("sandboxes.default_template", "\"default\"", "Template of a sandbox whose request names none, such as \"code-interpreter\". The template default is an empty home on this machine's own tree.").reloadable(),
    number("sandboxes.default_timeout", "\"5m\"", "Default timeout of a sandbox.").reloadable(),
    number("sandboxes.max_timeout", "\"24h\"", "Maximum timeout that a request can set.").reloadable(),
    number("sandboxes.pool", "4", "Number of pre-warmed sandboxes; 0 disables pre-warming, also of other templates.").reloadable().flag("pool", "NUMBER"),
    number(
        "sandboxes.template_pool",
        "1",
        "Number of pre-warmed sandboxes of each other template that was used in the last ten minutes; 0 is none.",
    )
    .reloadable(),
    flag(
        "sandboxes.warm_interpreters",
        "true",
        "Fork Python contexts from a warm interpreter, one for each tenant and template.",
    )
    .reloadable(),
    list("sandboxes.warm_imports", "[]", "Python modules that warm interpreters on the machine's own tree import in advance; templates name their own.").reloadable(),
    number("sandboxes.max_starts", "0", "Maximum number of concurrent starts; 0 is two for each processor.").reloadable(),
    number("sandboxes.max_waiting", "1000", "Maximum number of requests waiting for a start.").reloadable(),
    number("sandboxes.max_sandboxes", "2000", "Maximum number of sandboxes, of all keys together.").reloadable(),
    number("sandboxes.max_secrets", "1000", "Maximum number of secrets that a tenant can store on the server for network policies.").reloadable(),
    flag("sandboxes.machines", "false", "Let keys without the role admin make machines, with root inside, of templates that are none. See docs/machines.md.").reloadable(),
    flag("sandboxes.share_host_tree", "false", "Let several tenants share this machine's own tree read-only, and so its page cache. See docs/threat-model.md.").reloadable(),
    text("sandboxes.on_exit", "\"keep\"", "Sandboxes on shutdown: keep (they keep running, and the next server adopts them) or end.").reloadable().flag("on-exit", "WHAT"),
    text("sandboxes.cgroup", "\"\"", "Delegated control group to make groups in; \"\" is the server's own.").alias("BELLJAR_CGROUP"),
    number("sandboxes.keep_gone", "\"7d\"", "Retention of the record of an ended sandbox.").reloadable(),
    number("sandboxes.keep_steps", "\"30d\"", "Retention of the result of a template's build step after its last use.").reloadable(),
    number("sandboxes.keep_idempotency", "\"24h\"", "Retention of an Idempotency-Key.").reloadable(),
    list("sandboxes.mounts.read", "[]", "Host paths that may be mounted for reading, by keys with the role admin."),
    list("sandboxes.mounts.write", "[]", "Host paths that may be mounted for writing, by keys with the role admin."),
    list("sandboxes.mounts.forbidden", "[]", "Host paths that are never mounted, in addition to those that are always forbidden."),
    number("sandboxes.volumes.size", "\"1g\"", "Default size of a volume. A volume reserves its whole size on the disk.").reloadable(),
    number("sandboxes.volumes.max_count", "100", "Maximum number of volumes of one tenant.").reloadable(),
    number("sandboxes.volumes.max_bytes", "\"64g\"", "Maximum total size of one tenant's volumes. A key's disk quota also limits the volumes of its tenant.").reloadable(),
    number("sandboxes.approvals.timeout", "\"5m\"", "Time after which a call that waits for approval is refused.").reloadable(),
    number("sandboxes.approvals.max_pending", "100", "Maximum number of calls of one tenant that wait for approval.").reloadable(),
    number("sandboxes.approvals.keep", "\"7d\"", "Retention of the record of an approval after its end.").reloadable(),
    text("sandboxes.network.most", "\"open\"", "Most permissive network mode of sandboxes, except for keys with the role admin: disabled, whitelist or open.").reloadable(),
    list("sandboxes.network.most_presets", "[]", "Presets for policies of keys without the role admin. If this or most_allow is not empty, they may name only hosts of these two lists.").reloadable(),
    list("sandboxes.network.most_allow", "[]", "Rules for the same policies, such as \"*.corp.example:443\"; see most_presets.").reloadable(),
    list("sandboxes.network.exceptions", "[]", "Ranges such as \"10.0.0.0/8\" that are denied in every mode by default, but that policies may allow."),
    list("sandboxes.network.resolvers", "[]", "Resolvers for names, such as \"10.0.0.53:53\"; if empty, those of /etc/resolv.conf."),
    text("sandboxes.network.proxy", "\"\"", "Proxy through which networks connect, as http://USER:PASSWORD@HOST:PORT (CONNECT) or socks5://HOST:PORT; \"\" is none.").visibility(Visibility::Address),
    flag("sandboxes.network.proxy_resolves", "false", "Let the proxy resolve names. Then it is not checked whether a name leads to an address that is denied."),
    text("sandboxes.network.ca_file", "\"\"", "PEM file of certificates that gateways trust in addition to those of the system, where they verify hosts; \"\" is none."),
    list("images.registries", "[\"docker.io\", \"ghcr.io\", \"quay.io\", \"gcr.io\", \"registry.k8s.io\", \"mcr.microsoft.com\", \"public.ecr.aws\"]", "Registries from which images may be pulled: hosts with an optional port, http:// and one without TLS, or \"*\" for all with public addresses.").reloadable(),
    number("images.max_size", "\"8g\"", "Maximum size of an image, compressed.").reloadable(),
    text("engines.docker.host", "\"\"", "Docker daemon of the engine docker, such as \"unix:///run/podman/podman.sock\"; \"\" is that of DOCKER_HOST, else of Docker's current context."),
    text("engines.docker.runtime", "\"\"", "Runtime of its containers, such as \"runsc\"; \"\" is the daemon's default."),
    text("engines.docker.image", "\"\"", "Image of its sandboxes that name none; \"\" is none."),
    text("engines.gvisor.runsc", "\"\"", "Program of the engine gvisor; \"\" is the runsc of the server's search path."),
    text("engines.gvisor.platform", "\"systrap\"", "How it intercepts system calls: systrap, or ptrace where that does not work."),
    text("template.grade", "\"cgroup\"", "Enforcement of limits: cgroup, or watched, which is weaker and needs no control groups.").alias("BELLJAR_LIMITS"),
    text("template.hostname", "\"belljar\"", "Host name inside."),
    Setting::new("template.env", ValueKind::Table, "{}", "Environment variables of each sandbox.").visibility(Visibility::Names),
];

const AFTER_LIMITS: &[Setting] = &[
    number("head_room.memory", "\"512m\"", "Memory of the machine that must stay free for a sandbox to start.").reloadable(),
    number("head_room.disk", "\"1g\"", "Free space on the disk of $BELLJAR_HOME, likewise.").reloadable(),
    number("head_room.inodes_percent", "5", "Free inodes there, in percent.").reloadable(),
    number("head_room.pids", "1000", "Processes and threads, likewise.").reloadable(),
    number("quotas.sandboxes", "\"none\"", "Default quotas of new keys. Number of concurrent sandboxes.").reloadable(),
    number("quotas.memory", "\"none\"", "Sum of the memory limits of a key's sandboxes.").reloadable(),
    number("quotas.disk", "\"none\"", "Sum of the disk limits of its sandboxes and of its templates.").reloadable(),
    number("quotas.cpu_seconds_per_hour", "\"none\"", "Processor seconds in any hour.").reloadable(),
    number("quotas.executions_per_minute", "\"none\"", "Executions in any minute.").reloadable(),
    text("log.format", "\"text\"", "Log format: text, or json with one object per line.").flag("log-format", "FORMAT"),
    text("log.level", "\"info\"", "Log level: error, warn or info.").reloadable().flag("log-level", "LEVEL"),
    text("log.file", "\"\"", "File to write the log to, opened again on SIGHUP; \"\" is standard error.").reloadable(),
    number("log.rotate_size", "\"64m\"", "Size at which the file is renamed to FILE.1, in place of an older one, and begun anew.").reloadable(),
    flag("metrics.open", "false", "Serve /metrics without a key."),
    text("otlp.endpoint", "\"\"", "OpenTelemetry collector that accepts OTLP over HTTP, such as \"http://127.0.0.1:4318\"; \"\" is none.").visibility(Visibility::Address),
    Setting::new("otlp.headers", ValueKind::Table, "{}", "Headers of each request to the collector.").visibility(Visibility::Names),
    number("otlp.sampling", "1", "Share of the requests that are traced, from 0 to 1. A caller's own traceparent takes precedence."),
    flag("otlp.logs", "true", "Send log lines as well."),
    text("otlp.service_name", "\"belljar\"", "Name of the service in traces."),
    text("webhooks.url", "\"\"", "Address to which events are posted, such as \"https://hooks.example.com/belljar\"; \"\" is none. See docs/webhooks.md.").visibility(Visibility::Address),
    text("webhooks.secret", "\"\"", "Secret that signs them: whsec_ and 24 to 64 random bytes in base64.").visibility(Visibility::Hidden),
    list("webhooks.events", "[\"approval\"]", "Kinds of events, or beginnings of them up to a dot."),
    list("webhooks.allowed_hosts", "[]", "Hosts of the address that need not have a public one, with a port if it is another than the scheme's, and http:// if without TLS."),
    text("audit.file", "\"$BELLJAR_HOME/audit.jsonl\"", "The audit log as a file of JSON lines, in addition to the store; \"\" is none."),
    number("audit.rotate_size", "\"64m\"", "Size at which the file is rotated."),
    number("audit.keep", "16", "Number of files that are kept."),
    text("audit.archive_dir", "\"$BELLJAR_HOME/audit\"", "Directory to which records of the store are archived.").reloadable(),
    number("audit.archive_after", "\"none\"", "Age at which records of the store are archived, such as \"90d\"; \"none\" is never.").reloadable(),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn keys_and_variables_are_unique_and_sections_are_contiguous() {
        let keys: BTreeSet<_> = SETTINGS.iter().map(|setting| setting.key).collect();
        let variables: BTreeSet<_> = SETTINGS.iter().map(Setting::variable).collect();
        assert_eq!((keys.len(), variables.len()), (SETTINGS.len(), SETTINGS.len()));
        let mut sections: Vec<_> = SETTINGS.iter().map(Setting::section).collect();
        sections.dedup();
        let distinct: BTreeSet<_> = sections.iter().collect();
        assert_eq!(distinct.len(), sections.len(), "{sections:?}");
    }
}
