-- What a built template's tree is, as JSON; nothing for the others.
ALTER TABLE templates ADD COLUMN built TEXT NOT NULL DEFAULT '';
