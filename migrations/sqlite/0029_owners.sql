-- Whose each row is, also where a row hangs on another one that says so: every query for somebody names them.
ALTER TABLE conversation_heads ADD COLUMN owner_id text NOT NULL DEFAULT '';
UPDATE conversation_heads SET owner_id = c.owner_id FROM conversations AS c WHERE c.id = conversation_heads.conversation_id;

ALTER TABLE events ADD COLUMN owner_id text NOT NULL DEFAULT '';
UPDATE events SET owner_id = c.owner_id FROM conversations AS c WHERE c.id = events.conversation_id;

ALTER TABLE run_steps ADD COLUMN owner_id text NOT NULL DEFAULT '';
UPDATE run_steps SET owner_id = r.owner_id FROM runs AS r WHERE r.id = run_steps.run_id;

ALTER TABLE context_summaries ADD COLUMN owner_id text NOT NULL DEFAULT '';
UPDATE context_summaries SET owner_id = c.owner_id FROM conversations AS c WHERE c.id = context_summaries.conversation_id;
