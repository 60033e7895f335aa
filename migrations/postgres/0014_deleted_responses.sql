-- The numbers of the run's responses that a client of /v1/responses has deleted, with commas between them. NULL for none.
ALTER TABLE runs ADD COLUMN deleted_responses text;
