-- Binary content of tool results, and pictures inside messages, are files as well. They have a limit of their own for each owner.
ALTER TABLE files ADD COLUMN origin text NOT NULL DEFAULT 'upload';
CREATE INDEX files_by_origin ON files (owner_id, origin);

CREATE TRIGGER tool_message_uses_files AFTER INSERT ON messages
WHEN NEW.role = 'tool' AND instr(NEW.body, '"file_id":"file_') > 0
BEGIN
    INSERT INTO file_uses (file_id, conversation_id)
    SELECT DISTINCT f.id, NEW.conversation_id
    FROM json_tree(NEW.body, '$.parts') AS node JOIN files f ON f.id = node.value
    WHERE node.key = 'file_id' AND node.type = 'text' AND f.owner_id = NEW.owner_id AND f.is_whole
    ON CONFLICT DO NOTHING;
END;

-- The message with the results comes when all calls of its step are over, which may take days. An outcome holds its files from the moment
-- in which it is stored.
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
