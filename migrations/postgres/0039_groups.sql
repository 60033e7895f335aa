-- The groups that a user is in, as a JSON array of words. Servers of the version before name the column nowhere: whom they make is in none.
ALTER TABLE users ADD COLUMN groups text NOT NULL DEFAULT '[]';
