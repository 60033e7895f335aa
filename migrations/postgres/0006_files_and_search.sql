-- Files with the conversations that use them, and the full-text search over messages.

CREATE TABLE files (
    id         text COLLATE "C" PRIMARY KEY,
    owner_id   text COLLATE "C" NOT NULL,
    name       text NOT NULL,
    media_type text NOT NULL,
    size       bigint NOT NULL,
    sha256     text COLLATE "C" NOT NULL,
    -- 'upload', or 'content': binary content of a tool result. Each has a limit of its own for each owner.
    origin     text COLLATE "C" NOT NULL DEFAULT 'upload',
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
CREATE INDEX files_by_origin ON files (owner_id, origin);

CREATE TABLE file_chunks (
    file_id text COLLATE "C" NOT NULL,
    number  bigint NOT NULL,
    bytes   bytea NOT NULL,
    PRIMARY KEY (file_id, number)
);

-- The conversations that use a file. A file without one is removed after a while.
CREATE TABLE file_uses (
    file_id         text COLLATE "C" NOT NULL,
    conversation_id text COLLATE "C" NOT NULL,
    PRIMARY KEY (file_id, conversation_id)
);
CREATE INDEX file_uses_by_conversation ON file_uses (conversation_id);

ALTER TABLE file_chunks ALTER COLUMN bytes SET STORAGE EXTERNAL;

-- Notes the files of a new message. A file must not go in the moment in which a message comes to have it: the reader holds its row until
-- the message is stored; a removal waits for that, and looks again for uses.
--
-- References are found by their text, which costs less than reading a whole result as jsonb. Inside a JSON string each quote has a
-- backslash, so no words of a tool or a user are taken for a reference.
CREATE FUNCTION note_file_uses() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    WITH used AS (
        SELECT f.id FROM files f
        WHERE f.owner_id = NEW.owner_id AND f.is_whole
            AND f.id IN (SELECT hit[1] FROM regexp_matches(NEW.body, '"file_id":"(file_[0-9a-f-]+)"', 'g') AS hit)
        ORDER BY f.id FOR KEY SHARE
    )
    INSERT INTO file_uses (file_id, conversation_id) SELECT id, NEW.conversation_id FROM used ON CONFLICT DO NOTHING;
    RETURN NULL;
END $$;
CREATE TRIGGER message_uses_files AFTER INSERT ON messages FOR EACH ROW
    WHEN (strpos(NEW.body, '"file_id":"file_') > 0) EXECUTE FUNCTION note_file_uses();

-- Notes the files of a tool call. The message with the results comes when all calls of its step are over, which may take days: an outcome
-- holds its files from the moment in which it is stored.
CREATE FUNCTION note_file_uses_of_call() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    WITH used AS (
        SELECT f.id FROM files f
        WHERE f.owner_id = NEW.owner_id AND f.is_whole
            AND f.id IN (SELECT hit[1] FROM regexp_matches(NEW.outcome, '"file_id":"(file_[0-9a-f-]+)"', 'g') AS hit)
        ORDER BY f.id FOR KEY SHARE
    )
    INSERT INTO file_uses (file_id, conversation_id)
    SELECT used.id, r.conversation_id FROM used JOIN runs r ON r.id = NEW.run_id ON CONFLICT DO NOTHING;
    RETURN NULL;
END $$;
CREATE TRIGGER new_call_uses_files AFTER INSERT ON tool_calls FOR EACH ROW
    WHEN (strpos(NEW.outcome, '"file_id":"file_') > 0) EXECUTE FUNCTION note_file_uses_of_call();
CREATE TRIGGER call_uses_files AFTER UPDATE OF outcome ON tool_calls FOR EACH ROW
    WHEN (OLD.outcome IS NULL AND strpos(NEW.outcome, '"file_id":"file_') > 0) EXECUTE FUNCTION note_file_uses_of_call();

-- Removes the files that only this conversation used.
CREATE FUNCTION drop_files_of_conversation() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM files f WHERE f.id IN (SELECT file_id FROM file_uses WHERE conversation_id = OLD.id) ORDER BY f.id FOR UPDATE;
    DELETE FROM files f USING file_uses own WHERE own.conversation_id = OLD.id AND f.id = own.file_id
        AND NOT EXISTS (SELECT FROM file_uses u WHERE u.file_id = f.id AND u.conversation_id <> OLD.id);
    DELETE FROM file_uses WHERE conversation_id = OLD.id;
    RETURN NULL;
END $$;
CREATE TRIGGER conversation_drops_files AFTER DELETE ON conversations FOR EACH ROW EXECUTE FUNCTION drop_files_of_conversation();

CREATE FUNCTION drop_chunks_of_file() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM file_chunks WHERE file_id = OLD.id;
    DELETE FROM file_uses WHERE file_id = OLD.id;
    RETURN NULL;
END $$;
CREATE TRIGGER file_drops_chunks AFTER DELETE ON files FOR EACH ROW EXECUTE FUNCTION drop_chunks_of_file();

-- The words of users and models, for a full-text search.
CREATE TABLE message_words (
    message_id text COLLATE "C" PRIMARY KEY,
    owner_id   text COLLATE "C" NOT NULL,
    -- With the owner as one of the words, so that the index alone leaves out the messages of other owners.
    words      tsvector NOT NULL
);
CREATE INDEX message_words_by_word ON message_words USING gin (words);

-- Returns the word for an owner; no word of a text or of a query begins with a space.
CREATE FUNCTION owner_word(owner text) RETURNS text LANGUAGE sql IMMUTABLE AS $$ SELECT ' ' || owner $$;

-- Returns the words of a message, or NULL if it has none. Only the signs by which the parser holds words together, as in `example.com`, are
-- replaced; the parser drops the others itself. The first 50,000 characters count: a list of words has a limit, and a message must never
-- fail for it. JSON can name a character that no text can hold.
CREATE FUNCTION words_of_message(owner text, body text) RETURNS tsvector LANGUAGE plpgsql STABLE AS $$
DECLARE
    said text;
    sign text;
BEGIN
    IF strpos(body, '\u0000') > 0 THEN
        RETURN NULL;
    END IF;
    SELECT left(string_agg(part ->> 'text', ' '), 50000) INTO said
    FROM json_array_elements(body::json -> 'parts') AS part WHERE part ->> 'type' = 'text';
    FOREACH sign IN ARRAY ARRAY['.', '/', '-', '@', '+', '<', '&', '_', '~'] LOOP
        said := replace(said, sign, ' ');
    END LOOP;
    RETURN array_to_tsvector(ARRAY[owner_word(owner)]) || to_tsvector('simple', said);
END $$;

-- Returns whether a message is hidden from clients, which its own field says. Arguments of a tool call may say `"internal":true` as well.
-- JSON is parsed only where those words occur, and never where it names a character that no text can hold, at which parsing fails: such a
-- message has no words anyway.
CREATE FUNCTION is_hidden(body text) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT CASE
        WHEN strpos(body, '"internal":true') = 0 THEN false
        WHEN strpos(body, '\u0000') > 0 THEN true
        ELSE coalesce(body::json ->> 'internal', '') = 'true'
    END
$$;

CREATE FUNCTION note_words() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO message_words (message_id, owner_id, words)
    SELECT NEW.id, NEW.owner_id, words FROM words_of_message(NEW.owner_id, NEW.body) AS words WHERE words IS NOT NULL
    ON CONFLICT DO NOTHING;
    RETURN NULL;
END $$;
CREATE TRIGGER message_has_words AFTER INSERT ON messages FOR EACH ROW
    WHEN (NEW.role <> 'tool' AND NOT is_hidden(NEW.body)) EXECUTE FUNCTION note_words();

CREATE FUNCTION drop_words() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM message_words WHERE message_id IN (SELECT id FROM gone);
    RETURN NULL;
END $$;
CREATE TRIGGER message_drops_words AFTER DELETE ON messages REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION drop_words();
