-- One record and the head that follows it, in one statement: a row that is put into this view is put into both tables, if the
-- head is still the one that the record was made after. Otherwise nothing is written.
CREATE VIEW audit_append AS
    SELECT seq, at, tenant, key_id, action, sandbox, body, hash, hash AS mac, hash AS after_hash, hash AS after_mac
    FROM audit WHERE 0;

CREATE TRIGGER audit_append_one INSTEAD OF INSERT ON audit_append
BEGIN
    SELECT RAISE(ABORT, 'the head of the audit is another one')
        WHERE NOT EXISTS (
            SELECT 1 FROM audit_head
            WHERE id = 1 AND seq = NEW.seq - 1 AND hash = NEW.after_hash AND mac = NEW.after_mac
        );
    INSERT INTO audit (seq, at, tenant, key_id, action, sandbox, body, hash)
        VALUES (NEW.seq, NEW.at, NEW.tenant, NEW.key_id, NEW.action, NEW.sandbox, NEW.body, NEW.hash);
    UPDATE audit_head SET seq = NEW.seq, hash = NEW.hash, mac = NEW.mac WHERE id = 1;
END;
