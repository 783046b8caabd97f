-- Where a stored secret may be sent, and the key that stored it: the only one that may use it elsewhere.
ALTER TABLE secrets ADD COLUMN hosts TEXT NOT NULL DEFAULT '[]';
ALTER TABLE secrets ADD COLUMN header TEXT;
ALTER TABLE secrets ADD COLUMN key_id TEXT;
