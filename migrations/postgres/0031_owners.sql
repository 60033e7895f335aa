-- Whose each row is, also where a row hangs on another one that says so: every query for somebody names them. A column with a
-- default that is known rewrites no row, so that writers stand still for a moment only.
ALTER TABLE conversation_heads ADD COLUMN owner_id text NOT NULL DEFAULT '';
ALTER TABLE events ADD COLUMN owner_id text NOT NULL DEFAULT '';
ALTER TABLE run_steps ADD COLUMN owner_id text NOT NULL DEFAULT '';
ALTER TABLE context_summaries ADD COLUMN owner_id text NOT NULL DEFAULT '';

-- Which rows of before are left, by the key of the last one that was given its owner. They get theirs piece by piece, before a server
-- of this version serves. A table without a row here has none left.
CREATE TABLE owners_left (
    of_table text PRIMARY KEY,
    id       text NOT NULL DEFAULT '',
    number   bigint NOT NULL DEFAULT -1
);
INSERT INTO owners_left (of_table)
SELECT * FROM unnest(ARRAY['conversation_heads', 'events', 'run_steps', 'context_summaries']) WHERE EXISTS (SELECT FROM conversations);

-- Servers of the version before this one go on writing during a rolling update, and name no owner. The functions are volatile:
-- they have to see what the statement that they are called from has written already.
CREATE FUNCTION own_by_conversation() RETURNS trigger LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    SELECT owner_id INTO NEW.owner_id FROM conversations WHERE id = NEW.conversation_id;
    NEW.owner_id := coalesce(NEW.owner_id, '');
    RETURN NEW;
END $$;

CREATE FUNCTION own_by_run() RETURNS trigger LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    SELECT owner_id INTO NEW.owner_id FROM runs WHERE id = NEW.run_id;
    NEW.owner_id := coalesce(NEW.owner_id, '');
    RETURN NEW;
END $$;

CREATE TRIGGER conversation_heads_owner BEFORE INSERT ON conversation_heads
    FOR EACH ROW WHEN (NEW.owner_id = '') EXECUTE FUNCTION own_by_conversation();
CREATE TRIGGER events_owner BEFORE INSERT ON events
    FOR EACH ROW WHEN (NEW.owner_id = '') EXECUTE FUNCTION own_by_conversation();
CREATE TRIGGER run_steps_owner BEFORE INSERT ON run_steps
    FOR EACH ROW WHEN (NEW.owner_id = '') EXECUTE FUNCTION own_by_run();
CREATE TRIGGER context_summaries_owner BEFORE INSERT ON context_summaries
    FOR EACH ROW WHEN (NEW.owner_id = '') EXECUTE FUNCTION own_by_conversation();
