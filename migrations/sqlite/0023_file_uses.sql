-- Only a file that is stored whole can be used.
DROP TRIGGER message_uses_files;
CREATE TRIGGER message_uses_files AFTER INSERT ON messages
WHEN NEW.role = 'user' AND instr(NEW.body, '"file_id":"file_') > 0
BEGIN
    INSERT INTO file_uses (file_id, conversation_id)
    SELECT DISTINCT f.id, NEW.conversation_id
    FROM json_each(NEW.body, '$.parts') AS part JOIN files f ON f.id = part.value ->> '$.file_id'
    WHERE f.owner_id = NEW.owner_id AND f.is_whole
    ON CONFLICT DO NOTHING;
END;
