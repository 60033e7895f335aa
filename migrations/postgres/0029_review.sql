-- That an administrator has looked at feedback; it goes with the message.
ALTER TABLE messages ADD COLUMN reviewed_at bigint, ADD COLUMN reviewed_by text;
