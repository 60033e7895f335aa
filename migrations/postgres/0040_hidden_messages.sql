-- All messages of before are gone through once more, piece by piece; those that have their words keep them. First of all, because whoever
-- takes in a piece locks this row before any message.
DELETE FROM message_words_left;
INSERT INTO message_words_left SELECT '~' WHERE EXISTS (SELECT FROM messages);

-- A message is hidden if its own field says so. Arguments of a tool call may say `"internal":true` as well, and then the answer that made
-- the call was never found. JSON is taken apart only where those words stand somewhere, and never where it names a character that no text
-- can hold, at which that fails: such a message has no words anyway.
CREATE FUNCTION is_hidden(body text) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT CASE
        WHEN strpos(body, '"internal":true') = 0 THEN false
        WHEN strpos(body, '\u0000') > 0 THEN true
        ELSE coalesce(body::json ->> 'internal', '') = 'true'
    END
$$;

-- Whatever writes a message, and wherever it is copied from. What clients hide is not found.
DROP TRIGGER message_has_words ON messages;
CREATE TRIGGER message_has_words AFTER INSERT ON messages FOR EACH ROW
    WHEN (NEW.role <> 'tool' AND NOT is_hidden(NEW.body)) EXECUTE FUNCTION note_words();
