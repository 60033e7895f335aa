-- Where the title comes from: 'words' of the first message; 'asked': the same, until the model has said another one that was asked, once.
-- NULL: somebody's own, or one of before.
ALTER TABLE conversations ADD COLUMN title_by text;
-- What asking has used: JSON. It is nobody's run.
ALTER TABLE conversations ADD COLUMN title_usage text;
ALTER TABLE conversations ADD COLUMN title_model text;
ALTER TABLE conversations ADD COLUMN title_at integer;
CREATE INDEX conversations_titled ON conversations (title_at) WHERE title_at IS NOT NULL;
