-- Lists show what is not gone, of a tenant or of all. Without these a page took time in proportion to the ended sandboxes.
CREATE INDEX sandboxes_page_live ON sandboxes (tenant, created_at, id) WHERE state <> 'gone';
CREATE INDEX sandboxes_all_live ON sandboxes (created_at, id) WHERE state <> 'gone';
CREATE INDEX sandboxes_all ON sandboxes (created_at, id);

CREATE INDEX keys_page ON keys (created_at, id);
CREATE INDEX keys_valid ON keys (tenant, expires_at) WHERE revoked_at IS NULL;
