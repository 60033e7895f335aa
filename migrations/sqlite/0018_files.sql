-- Files that people have uploaded. One counts when all of its pieces are stored.
CREATE TABLE files (
    id         text PRIMARY KEY,
    owner_id   text NOT NULL,
    name       text NOT NULL,
    media_type text NOT NULL,
    size       integer NOT NULL,
    sha256     text NOT NULL,
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

-- The bytes, in pieces of 1 MiB.
CREATE TABLE file_chunks (
    file_id text NOT NULL,
    number  integer NOT NULL,
    bytes   blob NOT NULL,
    PRIMARY KEY (file_id, number)
) STRICT;

-- Which conversations have a file in one of their messages.
CREATE TABLE file_uses (
    file_id         text NOT NULL,
    conversation_id text NOT NULL,
    PRIMARY KEY (file_id, conversation_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX file_uses_by_conversation ON file_uses (conversation_id);

-- Whatever writes a message, and wherever it is copied from.
CREATE TRIGGER message_uses_files AFTER INSERT ON messages
WHEN NEW.role = 'user' AND instr(NEW.body, '"file_id":"file_') > 0
BEGIN
    INSERT INTO file_uses (file_id, conversation_id)
    SELECT DISTINCT f.id, NEW.conversation_id
    FROM json_each(NEW.body, '$.parts') AS part JOIN files f ON f.id = part.value ->> '$.file_id'
    WHERE f.owner_id = NEW.owner_id
    ON CONFLICT DO NOTHING;
END;

-- A file goes with the last conversation that has it.
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
