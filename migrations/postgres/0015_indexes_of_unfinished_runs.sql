-- These indexes are nearly empty whenever they are analyzed, so the planner believes that reading all of one costs nothing. But while a
-- session holds a snapshot, they keep an entry for each run since then. The second condition lets only those statements use an index
-- that name its column: a look-up of a run by its id then reads the primary key.
--
-- The old indexes would still be chosen, so they do not stay for older servers. Those count unfinished runs more slowly.
CREATE INDEX IF NOT EXISTS runs_unfinished_by_conversation ON runs (conversation_id, first_seq)
    WHERE finished_at IS NULL AND conversation_id IS NOT NULL;
CREATE INDEX IF NOT EXISTS runs_unfinished_by_owner ON runs (owner_id) WHERE finished_at IS NULL AND owner_id IS NOT NULL;
DROP INDEX runs_open;
DROP INDEX runs_unfinished;
