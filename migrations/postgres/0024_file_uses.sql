-- A file must not go in the moment in which a message comes to have it. Whoever uses it holds its row until the message is stored;
-- whoever removes it waits for that, and looks again at who uses it.
CREATE OR REPLACE FUNCTION note_file_uses() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    WITH used AS (
        SELECT f.id FROM files f
        WHERE f.owner_id = NEW.owner_id AND f.is_whole
            AND f.id IN (SELECT part ->> 'file_id' FROM jsonb_array_elements(NEW.body::jsonb -> 'parts') AS part)
        ORDER BY f.id FOR KEY SHARE
    )
    INSERT INTO file_uses (file_id, conversation_id) SELECT id, NEW.conversation_id FROM used ON CONFLICT DO NOTHING;
    RETURN NULL;
END $$;

CREATE OR REPLACE FUNCTION drop_files_of_conversation() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM files f WHERE f.id IN (SELECT file_id FROM file_uses WHERE conversation_id = OLD.id) ORDER BY f.id FOR UPDATE;
    DELETE FROM files f USING file_uses own WHERE own.conversation_id = OLD.id AND f.id = own.file_id
        AND NOT EXISTS (SELECT FROM file_uses u WHERE u.file_id = f.id AND u.conversation_id <> OLD.id);
    DELETE FROM file_uses WHERE conversation_id = OLD.id;
    -- A version that knows no summaries may delete a conversation that has one.
    DELETE FROM context_summaries WHERE conversation_id = OLD.id;
    RETURN NULL;
END $$;
