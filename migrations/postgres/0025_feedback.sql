-- What its user thinks of an answer; it goes with the message.
ALTER TABLE messages ADD COLUMN rating text, ADD COLUMN comment text, ADD COLUMN rated_at bigint;
CREATE INDEX messages_rated_by_owner ON messages (owner_id, rated_at, id) WHERE rated_at IS NOT NULL;
