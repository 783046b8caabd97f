-- Files that outlive sandboxes.
CREATE TABLE volumes (
    id TEXT NOT NULL PRIMARY KEY,
    tenant TEXT NOT NULL,
    key_id TEXT NOT NULL,
    keeper TEXT NOT NULL,
    name TEXT NOT NULL,
    bytes BIGINT NOT NULL,
    created_at BIGINT NOT NULL
);

CREATE UNIQUE INDEX volumes_name ON volumes (tenant, name);
