-- Tools of tenants, one row for each version. The row of a removed version stays, so that its number is not used again.
CREATE TABLE tools (
    tenant TEXT NOT NULL,
    name TEXT NOT NULL,
    version INTEGER NOT NULL,
    definition TEXT NOT NULL,
    digest TEXT NOT NULL,
    key_id TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    removed_at INTEGER,
    PRIMARY KEY (tenant, name, version)
) STRICT;
