-- Sessions of people in browsers, and one-time links that begin one, which have no token. Only hashes are stored.
CREATE TABLE sessions (
    hash BYTEA NOT NULL PRIMARY KEY,
    token BYTEA,
    key_id TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    expires_at BIGINT NOT NULL
);

CREATE INDEX sessions_of_key ON sessions (key_id, created_at);
CREATE INDEX sessions_expiring ON sessions (expires_at);
