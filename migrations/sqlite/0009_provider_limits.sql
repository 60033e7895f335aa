-- How long calls of a provider may take, and how its chat completions differ from OpenAI's own: JSON.
ALTER TABLE providers ADD COLUMN limits text NOT NULL DEFAULT '{}';
ALTER TABLE providers ADD COLUMN accent text;
-- Where a URL may lead is kept by the role of whoever gave it alone; what the settings allow members holds as long as they do.
UPDATE providers SET reach = 'public' WHERE owner_id IN (SELECT id FROM users WHERE role <> 'admin');
-- SHA-256 of the key that a login was begun with, whose end is also that of the login; NULL on a server without keys.
ALTER TABLE provider_logins ADD COLUMN key_hash text;
