-- The standing answer that has let a call through, if nobody was asked about that very call.
ALTER TABLE tool_calls ADD COLUMN grant_id text;
ALTER TABLE tool_audit ADD COLUMN grant_id text;
