-- A message is hidden if its own field says so. Arguments of a tool call may say `"internal":true` as well, and then the answer that
-- made the call was never found. JSON is taken apart only where those words stand somewhere.
DROP TRIGGER message_has_words;
DROP VIEW searched_messages;

-- The first 50,000 characters count.
CREATE VIEW searched_messages AS
SELECT m.id, m.owner_id, substr(group_concat(part.value ->> '$.text', ' '), 1, 50000) AS words
FROM messages m JOIN json_each(m.body, '$.parts') AS part
WHERE m.role <> 'tool' AND (instr(m.body, '"internal":true') = 0 OR coalesce(m.body ->> '$.internal', 0) = 0)
  AND part.value ->> '$.type' = 'text'
GROUP BY m.id;

-- Whatever writes a message, and wherever it is copied from. What clients hide is not found.
CREATE TRIGGER message_has_words AFTER INSERT ON messages
WHEN NEW.role <> 'tool' AND (instr(NEW.body, '"internal":true') = 0 OR coalesce(NEW.body ->> '$.internal', 0) = 0)
BEGIN
    INSERT INTO message_words_of (message_id)
    SELECT NEW.id WHERE EXISTS (SELECT 1 FROM json_each(NEW.body, '$.parts') AS part WHERE part.value ->> '$.type' = 'text');
    INSERT INTO message_words (rowid, owner, words)
    SELECT w.number, s.owner_id, s.words FROM searched_messages s JOIN message_words_of w ON w.message_id = s.id WHERE s.id = NEW.id;
END;

-- All messages of before are gone through once more, piece by piece; those that have their words keep them.
DELETE FROM message_words_left;
INSERT INTO message_words_left SELECT '~' WHERE EXISTS (SELECT 1 FROM messages);
