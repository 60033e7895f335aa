-- Questions are listed by their owner, newest first.
CREATE INDEX input_requests_by_owner ON input_requests (owner_id, created_at, id);
