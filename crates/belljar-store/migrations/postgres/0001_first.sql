-- Times are microseconds since 1970-01-01T00:00:00Z. What is JSON is checked by the program, not by the database.

CREATE TABLE meta (
    name TEXT NOT NULL PRIMARY KEY,
    value BYTEA NOT NULL
);

CREATE TABLE sandboxes (
    id TEXT NOT NULL PRIMARY KEY,
    tenant TEXT NOT NULL,
    key_id TEXT NOT NULL,
    keeper TEXT NOT NULL,
    name TEXT,
    state TEXT NOT NULL,
    reason TEXT,
    template TEXT NOT NULL,
    spec TEXT NOT NULL,
    settings TEXT NOT NULL,
    labels TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    started_at BIGINT,
    deadline_at BIGINT,
    paused_at BIGINT,
    ended_at BIGINT,
    generation BIGINT NOT NULL
);

-- A name is free again when its sandbox is gone.
CREATE UNIQUE INDEX sandboxes_name ON sandboxes (tenant, name) WHERE name IS NOT NULL AND state <> 'gone';
CREATE INDEX sandboxes_page ON sandboxes (tenant, created_at, id);
CREATE INDEX sandboxes_live ON sandboxes (keeper) WHERE state <> 'gone';
CREATE INDEX sandboxes_gone ON sandboxes (ended_at) WHERE state = 'gone';

CREATE TABLE ports (
    sandbox TEXT NOT NULL REFERENCES sandboxes (id) ON DELETE CASCADE,
    port BIGINT NOT NULL,
    visibility TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (sandbox, port)
);

CREATE TABLE templates (
    id TEXT NOT NULL PRIMARY KEY,
    tenant TEXT NOT NULL,
    name TEXT,
    kind TEXT NOT NULL,
    source_sandbox TEXT,
    digest TEXT NOT NULL,
    bytes BIGINT NOT NULL,
    spec TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    note TEXT NOT NULL
);

CREATE UNIQUE INDEX templates_name ON templates (tenant, name) WHERE name IS NOT NULL;

CREATE TABLE keys (
    id TEXT NOT NULL PRIMARY KEY,
    hash BYTEA NOT NULL UNIQUE,
    hint TEXT NOT NULL,
    name TEXT NOT NULL,
    tenant TEXT NOT NULL,
    role TEXT NOT NULL,
    quotas TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    expires_at BIGINT,
    revoked_at BIGINT,
    last_used_at BIGINT
);

CREATE INDEX keys_tenant ON keys (tenant, created_at);

CREATE TABLE idempotency (
    scope TEXT NOT NULL,
    name TEXT NOT NULL,
    request BYTEA NOT NULL,
    owner TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    expires_at BIGINT NOT NULL,
    -- Empty until the request has been answered.
    response BYTEA,
    PRIMARY KEY (scope, name)
);

CREATE INDEX idempotency_expiry ON idempotency (expires_at);

-- The body is what is hashed. The columns beside it repeat what is searched for.
CREATE TABLE audit (
    seq BIGINT NOT NULL PRIMARY KEY,
    at BIGINT NOT NULL,
    tenant TEXT NOT NULL,
    key_id TEXT,
    action TEXT NOT NULL,
    sandbox TEXT,
    body TEXT NOT NULL,
    hash BYTEA NOT NULL
);

CREATE INDEX audit_tenant ON audit (tenant, seq);
CREATE INDEX audit_sandbox ON audit (sandbox, seq) WHERE sandbox IS NOT NULL;

CREATE TABLE audit_head (
    id BIGINT NOT NULL PRIMARY KEY CHECK (id = 1),
    seq BIGINT NOT NULL,
    hash BYTEA NOT NULL,
    mac BYTEA NOT NULL
);

CREATE FUNCTION belljar_audit_is_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'records of the audit are never changed or removed';
END
$$;

CREATE TRIGGER audit_no_change BEFORE UPDATE OR DELETE ON audit
    FOR EACH ROW EXECUTE FUNCTION belljar_audit_is_append_only();

CREATE TRIGGER audit_no_truncate BEFORE TRUNCATE ON audit
    FOR EACH STATEMENT EXECUTE FUNCTION belljar_audit_is_append_only();
