-- Keys and values of the client, as a JSON object. NULL for none.
ALTER TABLE conversations ADD COLUMN metadata text;
