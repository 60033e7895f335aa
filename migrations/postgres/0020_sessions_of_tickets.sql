-- The session of the browser that requested the ticket, by its hash. NULL for other clients.
ALTER TABLE stream_tickets ADD COLUMN session_hash text;
