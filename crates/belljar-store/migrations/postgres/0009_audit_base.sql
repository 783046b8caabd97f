-- The last archived record of the audit, if any: the chain in this database begins after it. Records up to it may be removed.
CREATE TABLE audit_base (
    id BIGINT NOT NULL PRIMARY KEY CHECK (id = 1),
    seq BIGINT NOT NULL,
    hash BYTEA NOT NULL,
    mac BYTEA NOT NULL
);

CREATE OR REPLACE FUNCTION belljar_audit_is_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' THEN
        IF OLD.seq <= COALESCE((SELECT seq FROM audit_base WHERE id = 1), 0) THEN
            RETURN OLD;
        END IF;
    END IF;
    RAISE EXCEPTION 'records of the audit are never changed or removed, except archived ones';
END
$$;
