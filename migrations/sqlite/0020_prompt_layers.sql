-- What a conversation adds to the system prompt of its runs.
ALTER TABLE conversations ADD COLUMN system_prompt text;
ALTER TABLE conversations ADD COLUMN instructions text;
