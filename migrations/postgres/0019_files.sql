-- Files that people have uploaded. One counts when all of its pieces are stored.
CREATE TABLE files (
    id         text PRIMARY KEY,
    owner_id   text NOT NULL,
    name       text NOT NULL,
    media_type text NOT NULL,
    size       bigint NOT NULL,
    sha256     text NOT NULL,
    created_at bigint NOT NULL,
    is_whole   boolean NOT NULL DEFAULT false,
    -- Characters of the text below; NULL if there is none.
    text_chars bigint,
    -- Whether there is more text in the file.
    text_cut   boolean NOT NULL DEFAULT false,
    text       text
);
CREATE INDEX files_by_owner ON files (owner_id, id);
CREATE INDEX files_by_age ON files (created_at);

-- The bytes, in pieces of 1 MiB.
CREATE TABLE file_chunks (
    file_id text NOT NULL,
    number  integer NOT NULL,
    bytes   bytea NOT NULL,
    PRIMARY KEY (file_id, number)
);
-- What is compressed already is not compressed again.
ALTER TABLE file_chunks ALTER COLUMN bytes SET STORAGE EXTERNAL;

-- Which conversations have a file in one of their messages.
CREATE TABLE file_uses (
    file_id         text NOT NULL,
    conversation_id text NOT NULL,
    PRIMARY KEY (file_id, conversation_id)
);
CREATE INDEX file_uses_by_conversation ON file_uses (conversation_id);

CREATE FUNCTION note_file_uses() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO file_uses (file_id, conversation_id)
    SELECT DISTINCT f.id, NEW.conversation_id
    FROM jsonb_array_elements(NEW.body::jsonb -> 'parts') AS part JOIN files f ON f.id = part ->> 'file_id'
    WHERE f.owner_id = NEW.owner_id
    ON CONFLICT DO NOTHING;
    RETURN NULL;
END $$;
-- Whatever writes a message, and wherever it is copied from.
CREATE TRIGGER message_uses_files AFTER INSERT ON messages FOR EACH ROW
    WHEN (NEW.role = 'user' AND strpos(NEW.body, '"file_id":"file_') > 0) EXECUTE FUNCTION note_file_uses();

CREATE FUNCTION drop_files_of_conversation() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM files f USING file_uses own WHERE own.conversation_id = OLD.id AND f.id = own.file_id
        AND NOT EXISTS (SELECT FROM file_uses u WHERE u.file_id = f.id AND u.conversation_id <> OLD.id);
    DELETE FROM file_uses WHERE conversation_id = OLD.id;
    RETURN NULL;
END $$;
-- A file goes with the last conversation that has it.
CREATE TRIGGER conversation_drops_files AFTER DELETE ON conversations
    FOR EACH ROW EXECUTE FUNCTION drop_files_of_conversation();

CREATE FUNCTION drop_chunks_of_file() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM file_chunks WHERE file_id = OLD.id;
    DELETE FROM file_uses WHERE file_id = OLD.id;
    RETURN NULL;
END $$;
CREATE TRIGGER file_drops_chunks AFTER DELETE ON files FOR EACH ROW EXECUTE FUNCTION drop_chunks_of_file();
