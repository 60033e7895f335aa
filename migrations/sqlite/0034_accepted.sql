-- What the file beside the database said when a copy was accepted, until it says the new word: nobody is asked twice.
ALTER TABLE lineage ADD COLUMN accepted text;

-- Sums of days gone by are removed.
CREATE INDEX spending_by_day ON spending (day);
