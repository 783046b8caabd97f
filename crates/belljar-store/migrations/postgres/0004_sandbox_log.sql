-- What happened to a sandbox that has ended, as JSON, sealed; nothing while it lives.
ALTER TABLE sandboxes ADD COLUMN log TEXT NOT NULL DEFAULT '';
