//! Every setting of the service, in the order of the example file.

use crate::setting::{Form, Setting, Showing};

const fn text(key: &'static str, default: &'static str, text: &'static str) -> Setting {
    Setting::new(key, Form::Text, default, text)
}

const fn number(key: &'static str, default: &'static str, text: &'static str) -> Setting {
    Setting::new(key, Form::Number, default, text)
}

const fn flag(key: &'static str, default: &'static str, text: &'static str) -> Setting {
    Setting::new(key, Form::Flag, default, text)
}

const fn list(key: &'static str, default: &'static str, text: &'static str) -> Setting {
    Setting::new(key, Form::List, default, text)
}

/// The setting with this key.
#[must_use]
pub fn setting(key: &str) -> Option<&'static Setting> {
    SETTINGS.iter().find(|setting| setting.key == key)
}

/// Every setting of the service.
pub const SETTINGS: &[Setting] = &[
    list("server.listen", "[\"127.0.0.1:8787\"]", "Addresses to listen on. One that is no loopback address needs TLS here or a proxy before it."),
    text("server.socket", "\"$BELLJAR_HOME/belljar.sock\"", "Unix socket to listen on; \"\" is none."),
    flag("server.operator_socket", "true", "Whether whoever can open the socket (this server's own user, and root) is the operator and needs no key."),
    text("server.domain", "\"\"", "Ports of sandboxes have the host names {port}-{id}.DOMAIN. Without a domain they are reached by path only."),
    list("server.allowed_hosts", "[]", "Names of this server besides loopback and the address that a client connected to. Others are refused.").reloaded(),
    list("server.allowed_origins", "[]", "Origins of web pages that may use the server from a browser, such as \"https://console.example.com\".").reloaded(),
    list("server.trusted_proxies", "[]", "Addresses of reverse proxies whose X-Forwarded-For and X-Forwarded-Proto are believed."),
    text("server.tls_certificate", "\"\"", "PEM file with the certificate chain, read again on SIGHUP. With it the addresses above speak TLS only."),
    text("server.tls_key", "\"\"", "PEM file with its private key, read again on SIGHUP."),
    number("server.max_connections", "2048", "Connections at once, on all listeners together; 1 in 64 is kept for the socket."),
    number("server.max_connections_per_client", "512", "Connections at once from one address."),
    number("server.max_requests_per_connection", "100000", "Requests on one connection, after which it is closed."),
    number("server.max_streams_per_key", "256", "Event streams, WebSockets and tunnels at once of one key."),
    number("server.max_failed_attempts", "30", "Wrong keys from one address in a minute, after which it has to wait."),
    number("server.drain", "\"10s\"", "How long requests may take to finish once the server is told to stop."),
    number("server.linger", "\"60s\"", "How long a server that a command has started in the background stays without a sandbox and a connection.").reloaded(),
    flag("server.open_docs", "true", "Whether /openapi.json and /docs need no key."),
    flag("server.e2b", "false", "Whether E2B's clients are served as well, on the same addresses. See docs/e2b.md."),
    flag("server.e2b_internet", "true", "Whether sandboxes of E2B's clients have an open network unless they say something else, as there."),
    text("store.url", "\"\"", "sqlite:/PATH or postgres://USER:PASSWORD@HOST/DATABASE; \"\" is sqlite in $BELLJAR_HOME.").showing(Showing::Address),
    text("store.durability", "\"process\"", "What an acknowledged write survives: process (the end of the server) or power (its loss, too)."),
    text("store.key_file", "\"$BELLJAR_HOME/store.key\"", "The key that the store is sealed with. Servers that share a store have copies of one."),
    text("store.keeper", "\"local\"", "This server's name in the store. Servers that share a PostgreSQL store need one each."),
    text("sandboxes.engine", "\"local\"", "What builds the walls: local; process and none have fewer and none.").alias("BELLJAR_ENGINE"),
    list("sandboxes.engines", "[]", "Further engines that a sandbox may name, for every key."),
    number("sandboxes.default_timeout", "\"5m\"", "Life of a sandbox for which none was asked.").reloaded(),
    number("sandboxes.max_timeout", "\"24h\"", "Longest life that can be asked for.").reloaded(),
    number("sandboxes.pool", "4", "Sandboxes that are made ahead; 0 is none, of other templates neither.").reloaded(),
    number(
        "sandboxes.template_pool",
        "1",
        "Sandboxes that are made ahead of each other template that was used in the last ten minutes; 0 is none.",
    )
    .reloaded(),
    flag(
        "sandboxes.warm_interpreters",
        "true",
        "Whether contexts of Python are forked from an interpreter that is ready, one for each tenant and template.",
    )
    .reloaded(),
    list("sandboxes.warm_imports", "[]", "Python modules that warm interpreters on the machine's own tree have imported; templates name their own.").reloaded(),
    number("sandboxes.max_starts", "0", "Sandboxes that start at once; 0 is two for each processor.").reloaded(),
    number("sandboxes.max_waiting", "1000", "Requests that may wait for a start.").reloaded(),
    number("sandboxes.max_sandboxes", "2000", "Sandboxes at once, of all keys together.").reloaded(),
    flag("sandboxes.share_host_tree", "false", "Whether several tenants may share this machine's own tree read-only, and so its page cache. See docs/threat-model.md.").reloaded(),
    text("sandboxes.on_exit", "\"keep\"", "What becomes of sandboxes when the server stops: keep (the next one takes them over) or end.").reloaded(),
    text("sandboxes.cgroup", "\"\"", "Delegated control group to make groups in; \"\" is the server's own.").alias("BELLJAR_CGROUP"),
    number("sandboxes.keep_gone", "\"7d\"", "How long the record of a sandbox that is gone is kept.").reloaded(),
    number("sandboxes.keep_steps", "\"30d\"", "How long what came of a step of a template's build is kept after its last use.").reloaded(),
    number("sandboxes.keep_idempotency", "\"24h\"", "How long an Idempotency-Key is remembered.").reloaded(),
    list("sandboxes.mounts.read", "[]", "Host paths that may be mounted for reading, by keys with the role admin."),
    list("sandboxes.mounts.write", "[]", "Host paths that may be mounted for writing, by keys with the role admin."),
    list("sandboxes.mounts.forbidden", "[]", "Host paths that are never mounted, besides those that are always forbidden."),
    text("sandboxes.network.most", "\"open\"", "The most that a sandbox's network may be, but for keys with the role admin: disabled, whitelist or open.").reloaded(),
    list("sandboxes.network.most_presets", "[]", "With this or most_allow, policies of such keys name hosts of these presets and of most_allow alone.").reloaded(),
    list("sandboxes.network.most_allow", "[]", "Rules such as \"*.corp.example:443\", as policies allow them; see most_presets.").reloaded(),
    list("sandboxes.network.exceptions", "[]", "Ranges such as \"10.0.0.0/8\" that are denied in every mode, and that policies may allow all the same."),
    list("sandboxes.network.resolvers", "[]", "Resolvers such as \"10.0.0.53:53\" that are asked for names; none are those of /etc/resolv.conf."),
    text("sandboxes.network.proxy", "\"\"", "Proxy through which networks connect, as http://USER:PASSWORD@HOST:PORT (CONNECT) or socks5://HOST:PORT; \"\" is none.").showing(Showing::Address),
    flag("sandboxes.network.proxy_resolves", "false", "Whether the proxy looks names up. Then nobody checks that a name does not lead to an address that is denied."),
    text("sandboxes.network.ca_file", "\"\"", "File of certificates in PEM that gateways trust beside those of the system, where they check hosts; \"\" is none."),
    text("template.grade", "\"cgroup\"", "How limits are held: cgroup, or watched, which is weaker."),
    text("template.hostname", "\"belljar\"", "Host name inside."),
    Setting::new("template.env", Form::Table, "{}", "Environment variables of each sandbox.").showing(Showing::Names),
    number("template.limits.memory", "\"512m\"", "Memory and swap of everything in a sandbox."),
    number("template.limits.cpus", "1", "Processors, such as 0.5."),
    number("template.limits.timeout", "\"60s\"", "Time of an execution that names none."),
    number("template.limits.pids", "128", "Processes and threads at once."),
    number("template.limits.tmp", "\"100m\"", "Size of /tmp."),
    number("template.limits.disk", "\"1g\"", "Size of the home directory."),
    number("template.limits.inodes", "65536", "Files and directories in each writable file system."),
    number("template.limits.output", "\"8m\"", "What a result keeps of each output stream."),
    number("template.limits.open_files", "1024", "Descriptors of each process."),
    number("head_room.memory", "\"512m\"", "Memory of the machine that no sandbox is started into.").reloaded(),
    number("head_room.disk", "\"1g\"", "Free room on the disk of $BELLJAR_HOME, likewise.").reloaded(),
    number("head_room.inodes_percent", "5", "Free inodes there, in percent.").reloaded(),
    number("head_room.pids", "1000", "Processes and threads, likewise.").reloaded(),
    number("quotas.sandboxes", "\"none\"", "Quotas of new keys that name none of their own. Sandboxes at once.").reloaded(),
    number("quotas.memory", "\"none\"", "Sum of the memory limits of a key's sandboxes.").reloaded(),
    number("quotas.disk", "\"none\"", "Sum of the disk limits of its sandboxes and of its templates.").reloaded(),
    number("quotas.cpu_seconds_per_hour", "\"none\"", "Processor seconds in any hour.").reloaded(),
    number("quotas.executions_per_minute", "\"none\"", "Executions in any minute.").reloaded(),
    text("log.format", "\"text\"", "text, or json with one object a line."),
    text("log.level", "\"info\"", "error, warn or info.").reloaded(),
    text("log.file", "\"\"", "File to write the log to, opened again on SIGHUP; \"\" is standard error.").reloaded(),
    flag("metrics.open", "false", "Whether /metrics needs no key."),
    text("otlp.endpoint", "\"\"", "OpenTelemetry collector that takes OTLP over HTTP, such as \"http://127.0.0.1:4318\"; \"\" is none.").showing(Showing::Address),
    Setting::new("otlp.headers", Form::Table, "{}", "Headers of each request to the collector.").showing(Showing::Names),
    number("otlp.sampling", "1", "Share of the requests that are traced, from 0 to 1. A caller's own traceparent decides where there is one."),
    flag("otlp.logs", "true", "Whether log lines are sent as well."),
    text("otlp.service_name", "\"belljar\"", "Name of the service in traces."),
    text("audit.file", "\"$BELLJAR_HOME/audit.jsonl\"", "The audit trail as JSON lines, besides the store; \"\" is none."),
    number("audit.rotate_size", "\"64m\"", "Size at which a new file is begun."),
    number("audit.keep", "16", "Files that are kept."),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn keys_and_variables_are_unique_and_sections_stand_together() {
        let keys: BTreeSet<_> = SETTINGS.iter().map(|setting| setting.key).collect();
        let variables: BTreeSet<_> = SETTINGS.iter().map(Setting::variable).collect();
        assert_eq!((keys.len(), variables.len()), (SETTINGS.len(), SETTINGS.len()));
        let mut sections: Vec<_> = SETTINGS.iter().map(Setting::section).collect();
        sections.dedup();
        let distinct: BTreeSet<_> = sections.iter().collect();
        assert_eq!(distinct.len(), sections.len(), "{sections:?}");
    }
}
