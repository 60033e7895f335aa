-- When a process last had the server of these tokens in its configuration: those that nobody has any more are forgotten.
ALTER TABLE mcp_tokens ADD COLUMN seen_at integer NOT NULL DEFAULT 0;
UPDATE mcp_tokens SET seen_at = CAST(unixepoch('subsec') * 1000 AS INTEGER);
