-- The record of the model request of a step, as JSON, and the attempt of the step that wrote it. An older version begins a step again without a
-- record: the attempts then differ, and the record is out of date.
ALTER TABLE run_steps ADD COLUMN request text;
ALTER TABLE run_steps ADD COLUMN request_attempt integer;
