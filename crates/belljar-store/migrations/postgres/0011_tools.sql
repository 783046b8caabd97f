-- Tools of tenants, one row for each version. The row of a removed version stays, so that its number is not used again.
CREATE TABLE tools (
    tenant TEXT NOT NULL,
    name TEXT NOT NULL,
    version BIGINT NOT NULL,
    definition TEXT NOT NULL,
    digest TEXT NOT NULL,
    key_id TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    removed_at BIGINT,
    PRIMARY KEY (tenant, name, version)
);
