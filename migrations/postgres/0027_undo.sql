-- The call that a call takes back. The index is for looking whether one has been taken back: few calls ever are.
ALTER TABLE tool_calls ADD COLUMN undoes text;
CREATE INDEX tool_calls_undone ON tool_calls (undoes) WHERE undoes IS NOT NULL;
