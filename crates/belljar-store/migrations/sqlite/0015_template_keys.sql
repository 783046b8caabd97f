-- The key that made a template, whose holder may remove it; empty for those made before.
ALTER TABLE templates ADD COLUMN key_id TEXT NOT NULL DEFAULT '';
