-- Times are microseconds since 1970-01-01T00:00:00Z. What is JSON is checked by the program, not by the database.

CREATE TABLE meta (
    name TEXT NOT NULL PRIMARY KEY,
    value BLOB NOT NULL
) STRICT, WITHOUT ROWID;

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
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    started_at INTEGER,
    deadline_at INTEGER,
    paused_at INTEGER,
    ended_at INTEGER,
    generation INTEGER NOT NULL
) STRICT;

-- A name is free again when its sandbox is gone.
CREATE UNIQUE INDEX sandboxes_name ON sandboxes (tenant, name) WHERE name IS NOT NULL AND state <> 'gone';
CREATE INDEX sandboxes_page ON sandboxes (tenant, created_at, id);
CREATE INDEX sandboxes_live ON sandboxes (keeper) WHERE state <> 'gone';
CREATE INDEX sandboxes_gone ON sandboxes (ended_at) WHERE state = 'gone';

CREATE TABLE ports (
    sandbox TEXT NOT NULL REFERENCES sandboxes (id) ON DELETE CASCADE,
    port INTEGER NOT NULL,
    visibility TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    PRIMARY KEY (sandbox, port)
) STRICT, WITHOUT ROWID;

CREATE TABLE templates (
    id TEXT NOT NULL PRIMARY KEY,
    tenant TEXT NOT NULL,
    name TEXT,
    kind TEXT NOT NULL,
    source_sandbox TEXT,
    digest TEXT NOT NULL,
    bytes INTEGER NOT NULL,
    spec TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    note TEXT NOT NULL
) STRICT;

CREATE UNIQUE INDEX templates_name ON templates (tenant, name) WHERE name IS NOT NULL;

CREATE TABLE keys (
    id TEXT NOT NULL PRIMARY KEY,
    hash BLOB NOT NULL UNIQUE,
    hint TEXT NOT NULL,
    name TEXT NOT NULL,
    tenant TEXT NOT NULL,
    role TEXT NOT NULL,
    quotas TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    expires_at INTEGER,
    revoked_at INTEGER,
    last_used_at INTEGER
) STRICT;

CREATE INDEX keys_tenant ON keys (tenant, created_at);

CREATE TABLE idempotency (
    scope TEXT NOT NULL,
    name TEXT NOT NULL,
    request BLOB NOT NULL,
    owner TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    -- Empty until the request has been answered.
    response BLOB,
    PRIMARY KEY (scope, name)
) STRICT, WITHOUT ROWID;

CREATE INDEX idempotency_expiry ON idempotency (expires_at);

-- The body is what is hashed. The columns beside it repeat what is searched for.
CREATE TABLE audit (
    seq INTEGER NOT NULL PRIMARY KEY,
    at INTEGER NOT NULL,
    tenant TEXT NOT NULL,
    key_id TEXT,
    action TEXT NOT NULL,
    sandbox TEXT,
    body TEXT NOT NULL,
    hash BLOB NOT NULL
) STRICT;

CREATE INDEX audit_tenant ON audit (tenant, seq);
CREATE INDEX audit_sandbox ON audit (sandbox, seq) WHERE sandbox IS NOT NULL;

CREATE TABLE audit_head (
    id INTEGER NOT NULL PRIMARY KEY CHECK (id = 1),
    seq INTEGER NOT NULL,
    hash BLOB NOT NULL,
    mac BLOB NOT NULL
) STRICT;

CREATE TRIGGER audit_no_update BEFORE UPDATE ON audit
BEGIN
    SELECT RAISE(ABORT, 'records of the audit are never changed');
END;

CREATE TRIGGER audit_no_delete BEFORE DELETE ON audit
BEGIN
    SELECT RAISE(ABORT, 'records of the audit are never removed');
END;
