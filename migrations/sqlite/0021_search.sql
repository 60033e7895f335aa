-- The words of what people and models have said, for a full-text search. The index knows its rows by numbers, which are kept here
-- because those of `messages` itself may change.
CREATE TABLE message_words_of (
    number     integer PRIMARY KEY,
    message_id text NOT NULL UNIQUE
) STRICT;
-- With the owner as a column of its own, so that the index alone leaves out what is somebody else's.
CREATE VIRTUAL TABLE message_words USING fts5 (
    owner, words, content = '', contentless_delete = 1, tokenize = 'unicode61 remove_diacritics 0'
);

-- The first 50,000 characters count.
CREATE VIEW searched_messages AS
SELECT m.id, m.owner_id, substr(group_concat(part.value ->> '$.text', ' '), 1, 50000) AS words
FROM messages m JOIN json_each(m.body, '$.parts') AS part
WHERE m.role <> 'tool' AND instr(m.body, '"internal":true') = 0 AND part.value ->> '$.type' = 'text'
GROUP BY m.id;

-- Whatever writes a message, and wherever it is copied from. What clients hide is not found.
CREATE TRIGGER message_has_words AFTER INSERT ON messages
WHEN NEW.role <> 'tool' AND instr(NEW.body, '"internal":true') = 0
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

-- Messages of before are taken in piece by piece, newest first, while the server runs: those whose ids are below this one are left. No
-- row, and all have been.
CREATE TABLE message_words_left (below text NOT NULL) STRICT;
INSERT INTO message_words_left SELECT '~' WHERE EXISTS (SELECT 1 FROM messages);
