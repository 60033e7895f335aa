-- When a process last had the server of these tokens in its configuration: those that nobody has any more are forgotten.
ALTER TABLE mcp_tokens ADD COLUMN seen_at bigint NOT NULL DEFAULT now_ms();
