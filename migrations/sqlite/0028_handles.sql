-- The name under which the server of a call works on it, so that whoever takes the call up asks for that.
ALTER TABLE tool_calls ADD COLUMN handle text;
