-- The fields of requests of /v1/responses that continued the run: JSON, by the numbers of their responses. NULL for none.
ALTER TABLE runs ADD COLUMN continued_requests text;
