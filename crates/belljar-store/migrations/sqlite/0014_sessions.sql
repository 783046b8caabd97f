-- Sessions of people in browsers, and one-time links that begin one, which have no token. Only hashes are stored.
CREATE TABLE sessions (
    hash BLOB NOT NULL PRIMARY KEY,
    token BLOB,
    key_id TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL
) STRICT;

CREATE INDEX sessions_of_key ON sessions (key_id, created_at);
CREATE INDEX sessions_expiring ON sessions (expires_at);
