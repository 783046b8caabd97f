-- Accounts of tenants at registries of images. The password is sealed.
CREATE TABLE registry_logins (
    tenant TEXT NOT NULL,
    registry TEXT NOT NULL,
    account TEXT NOT NULL,
    password TEXT NOT NULL,
    key_id TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    PRIMARY KEY (tenant, registry)
) STRICT;
