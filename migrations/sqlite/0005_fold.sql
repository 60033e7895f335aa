-- When the deltas of a run that ended long ago were folded. The index is the list of what is left to do.
ALTER TABLE runs ADD COLUMN folded_at integer;
CREATE INDEX runs_to_fold ON runs (finished_at, id) WHERE folded_at IS NULL AND finished_at IS NOT NULL;
