-- What was mended in a call of a tool before it was judged: JSON; NULL for nothing.
ALTER TABLE tool_calls ADD COLUMN repair text;
