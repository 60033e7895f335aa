-- The words of what people and models have said, for a full-text search.
CREATE TABLE message_words (
    message_id text PRIMARY KEY,
    owner_id   text NOT NULL,
    -- With the owner as one of the words, so that the index alone leaves out what is somebody else's.
    words      tsvector NOT NULL
);
CREATE INDEX message_words_by_word ON message_words USING gin (words);

-- The word for an owner; no word of a text, or of what is looked for, begins with a space.
CREATE FUNCTION owner_word(owner text) RETURNS text LANGUAGE sql IMMUTABLE AS $$ SELECT ' ' || owner $$;

-- Signs are taken out, because the parser would make one word of what they hold together, such as `example.com`. The first 50,000
-- characters count: a list of words has a limit, and a message must never fail for it. JSON can name a character that no text can hold.
CREATE FUNCTION words_of_message(owner text, body text) RETURNS tsvector LANGUAGE sql STABLE AS $$
    SELECT array_to_tsvector(ARRAY[owner_word(owner)]) || to_tsvector('simple', translate(left(string_agg(part ->> 'text', ' '), 50000),
        '!"#$%&''()*+,-./:;<=>?@[\]^_`{|}~', repeat(' ', 32)))
    FROM json_array_elements(body::json -> 'parts') AS part
    WHERE strpos(body, '\u0000') = 0 AND part ->> 'type' = 'text'
$$;

CREATE FUNCTION note_words() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO message_words (message_id, owner_id, words)
    SELECT NEW.id, NEW.owner_id, words FROM words_of_message(NEW.owner_id, NEW.body) AS words WHERE words IS NOT NULL
    ON CONFLICT DO NOTHING;
    RETURN NULL;
END $$;
-- Whatever writes a message, and wherever it is copied from. What clients hide is not found.
CREATE TRIGGER message_has_words AFTER INSERT ON messages FOR EACH ROW
    WHEN (NEW.role <> 'tool' AND strpos(NEW.body, '"internal":true') = 0) EXECUTE FUNCTION note_words();

CREATE FUNCTION drop_words() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM message_words WHERE message_id IN (SELECT id FROM gone);
    RETURN NULL;
END $$;
CREATE TRIGGER message_drops_words AFTER DELETE ON messages REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION drop_words();

-- Messages of before are taken in piece by piece, newest first, while the server runs: those whose ids are below this one are left. No
-- row, and all have been.
CREATE TABLE message_words_left (below text NOT NULL);
INSERT INTO message_words_left SELECT '~' WHERE EXISTS (SELECT FROM messages);
