-- Of a message that is not part of its conversation any more: the run that takes its place. It is kept, and neither listed nor
-- sent to a model.
ALTER TABLE messages ADD COLUMN superseded_by text;
-- The key that a call's tool is given, of a call that is made once more; NULL for its own id.
ALTER TABLE tool_calls ADD COLUMN key text;
