-- The last archived record of the audit, if any: the chain in this database begins after it. Records up to it may be removed.
CREATE TABLE audit_base (
    id INTEGER NOT NULL PRIMARY KEY CHECK (id = 1),
    seq INTEGER NOT NULL,
    hash BLOB NOT NULL,
    mac BLOB NOT NULL
) STRICT;

DROP TRIGGER audit_no_delete;

CREATE TRIGGER audit_no_delete BEFORE DELETE ON audit
WHEN OLD.seq > COALESCE((SELECT seq FROM audit_base WHERE id = 1), 0)
BEGIN
    SELECT RAISE(ABORT, 'records of the audit are never removed, except archived ones');
END;
