-- Whose each row is, also where a row hangs on another one that says so: every query for somebody names them.
ALTER TABLE conversation_heads ADD COLUMN owner_id text NOT NULL DEFAULT '';
UPDATE conversation_heads h SET owner_id = c.owner_id FROM conversations c WHERE c.id = h.conversation_id;

ALTER TABLE events ADD COLUMN owner_id text NOT NULL DEFAULT '';
UPDATE events e SET owner_id = c.owner_id FROM conversations c WHERE c.id = e.conversation_id;

ALTER TABLE run_steps ADD COLUMN owner_id text NOT NULL DEFAULT '';
UPDATE run_steps s SET owner_id = r.owner_id FROM runs r WHERE r.id = s.run_id;

ALTER TABLE context_summaries ADD COLUMN owner_id text NOT NULL DEFAULT '';
UPDATE context_summaries s SET owner_id = c.owner_id FROM conversations c WHERE c.id = s.conversation_id;

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
