-- Binary content of tool results, and pictures inside messages, are files as well. They have a limit of their own for each owner.
ALTER TABLE files ADD COLUMN origin text NOT NULL DEFAULT 'upload';
CREATE INDEX files_by_origin ON files (owner_id, origin);

-- Finds the references by their text, which costs less than reading a whole result as jsonb. Inside a JSON string each quote has a
-- backslash, so no words of a tool or a user are taken for a reference.
CREATE OR REPLACE FUNCTION note_file_uses() RETURNS trigger LANGUAGE plpgsql AS $$
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
CREATE TRIGGER tool_message_uses_files AFTER INSERT ON messages FOR EACH ROW
    WHEN (NEW.role = 'tool' AND strpos(NEW.body, '"file_id":"file_') > 0) EXECUTE FUNCTION note_file_uses();

-- The message with the results comes when all calls of its step are over, which may take days. An outcome holds its files from the moment
-- in which it is stored.
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
