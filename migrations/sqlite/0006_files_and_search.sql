-- Files with the conversations that use them, and the full-text search over messages.

CREATE TABLE files (
    id         text PRIMARY KEY,
    owner_id   text NOT NULL,
    name       text NOT NULL,
    media_type text NOT NULL,
    size       integer NOT NULL,
    sha256     text NOT NULL,
    -- 'upload', or 'content': binary content of a tool result. Each has a limit of its own for each owner.
    origin     text NOT NULL DEFAULT 'upload',
    created_at integer NOT NULL,
    is_whole   integer NOT NULL DEFAULT 0,
    -- Characters of the text below; NULL if there is none.
    text_chars integer,
    -- Whether there is more text in the file.
    text_cut   integer NOT NULL DEFAULT 0,
    text       text
) STRICT;
CREATE INDEX files_by_owner ON files (owner_id, id);
CREATE INDEX files_by_age ON files (created_at);
CREATE INDEX files_by_origin ON files (owner_id, origin);

CREATE TABLE file_chunks (
    file_id text NOT NULL,
    number  integer NOT NULL,
    bytes   blob NOT NULL,
    PRIMARY KEY (file_id, number)
) STRICT;

-- The conversations that use a file. A file without one is removed after a while.
CREATE TABLE file_uses (
    file_id         text NOT NULL,
    conversation_id text NOT NULL,
    PRIMARY KEY (file_id, conversation_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX file_uses_by_conversation ON file_uses (conversation_id);

-- Notes the files of a new message.
CREATE TRIGGER message_uses_files AFTER INSERT ON messages
WHEN NEW.role IN ('user', 'assistant') AND instr(NEW.body, '"file_id":"file_') > 0
BEGIN
    INSERT INTO file_uses (file_id, conversation_id)
    SELECT DISTINCT f.id, NEW.conversation_id
    FROM json_each(NEW.body, '$.parts') AS part JOIN files f ON f.id = part.value ->> '$.file_id'
    WHERE f.owner_id = NEW.owner_id AND f.is_whole
    ON CONFLICT DO NOTHING;
END;
CREATE TRIGGER tool_message_uses_files AFTER INSERT ON messages
WHEN NEW.role = 'tool' AND instr(NEW.body, '"file_id":"file_') > 0
BEGIN
    INSERT INTO file_uses (file_id, conversation_id)
    SELECT DISTINCT f.id, NEW.conversation_id
    FROM json_tree(NEW.body, '$.parts') AS node JOIN files f ON f.id = node.value
    WHERE node.key = 'file_id' AND node.type = 'text' AND f.owner_id = NEW.owner_id AND f.is_whole
    ON CONFLICT DO NOTHING;
END;

-- Notes the files of a tool call. The message with the results comes when all calls of its step are over, which may take days: an outcome
-- holds its files from the moment in which it is stored.
CREATE TRIGGER new_call_uses_files AFTER INSERT ON tool_calls
WHEN instr(NEW.outcome, '"file_id":"file_') > 0
BEGIN
    INSERT INTO file_uses (file_id, conversation_id)
    SELECT DISTINCT f.id, r.conversation_id
    FROM json_tree(NEW.outcome, '$.content') AS node JOIN files f ON f.id = node.value JOIN runs r ON r.id = NEW.run_id
    WHERE node.key = 'file_id' AND node.type = 'text' AND f.owner_id = NEW.owner_id AND f.is_whole
    ON CONFLICT DO NOTHING;
END;
CREATE TRIGGER call_uses_files AFTER UPDATE OF outcome ON tool_calls
WHEN OLD.outcome IS NULL AND instr(NEW.outcome, '"file_id":"file_') > 0
BEGIN
    INSERT INTO file_uses (file_id, conversation_id)
    SELECT DISTINCT f.id, r.conversation_id
    FROM json_tree(NEW.outcome, '$.content') AS node JOIN files f ON f.id = node.value JOIN runs r ON r.id = NEW.run_id
    WHERE node.key = 'file_id' AND node.type = 'text' AND f.owner_id = NEW.owner_id AND f.is_whole
    ON CONFLICT DO NOTHING;
END;

-- Removes the files that only this conversation used.
CREATE TRIGGER conversation_drops_files AFTER DELETE ON conversations
BEGIN
    DELETE FROM files WHERE id IN (SELECT file_id FROM file_uses WHERE conversation_id = OLD.id)
        AND NOT EXISTS (SELECT 1 FROM file_uses u WHERE u.file_id = files.id AND u.conversation_id <> OLD.id);
    DELETE FROM file_uses WHERE conversation_id = OLD.id;
END;
CREATE TRIGGER file_drops_chunks AFTER DELETE ON files
BEGIN
    DELETE FROM file_chunks WHERE file_id = OLD.id;
    DELETE FROM file_uses WHERE file_id = OLD.id;
END;

-- The words of users and models, for a full-text search. The index knows its rows by numbers, which are kept here because those of
-- `messages` itself may change.
CREATE TABLE message_words_of (
    number     integer PRIMARY KEY,
    message_id text NOT NULL UNIQUE
) STRICT;
-- With the owner as a column of its own, so that the index alone leaves out the messages of other owners.
CREATE VIRTUAL TABLE message_words USING fts5 (
    owner, words, content = '', contentless_delete = 1, tokenize = 'unicode61 remove_diacritics 0'
);

-- The first 50,000 characters of a message count. A message is hidden from clients if its own field says so. Arguments of a tool call may
-- say `"internal":true` as well, so JSON is parsed where those words occur.
CREATE VIEW searched_messages AS
SELECT m.id, m.owner_id, substr(group_concat(part.value ->> '$.text', ' '), 1, 50000) AS words
FROM messages m JOIN json_each(m.body, '$.parts') AS part
WHERE m.role <> 'tool' AND (instr(m.body, '"internal":true') = 0 OR coalesce(m.body ->> '$.internal', 0) = 0)
  AND part.value ->> '$.type' = 'text'
GROUP BY m.id;

CREATE TRIGGER message_has_words AFTER INSERT ON messages
WHEN NEW.role <> 'tool' AND (instr(NEW.body, '"internal":true') = 0 OR coalesce(NEW.body ->> '$.internal', 0) = 0)
BEGIN
    INSERT INTO message_words_of (message_id)
    SELECT NEW.id WHERE EXISTS (SELECT 1 FROM json_each(NEW.body, '$.parts') AS part WHERE part.value ->> '$.type' = 'text');
    INSERT INTO message_words (rowid, owner, words)
    SELECT w.number, s.owner_id, s.words FROM searched_messages s JOIN message_words_of w ON w.message_id = s.id WHERE s.id = NEW.id;
END;

CREATE TRIGGER message_drops_words AFTER DELETE ON messages
BEGIN
    DELETE FROM message_words WHERE rowid = (SELECT number FROM message_words_of WHERE message_id = OLD.id);
    DELETE FROM message_words_of WHERE message_id = OLD.id;
END;
