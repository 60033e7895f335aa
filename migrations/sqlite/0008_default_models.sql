-- The default models of users.

-- The model of runs for which nothing names a model; null for the model of the settings.
ALTER TABLE users ADD COLUMN default_model text;
