-- Where this database is served: a copy that is put somewhere else still says where it was.
CREATE TABLE lineage (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    -- The cluster's identifier, and the ids of the database and of this table in it.
    place    text NOT NULL
);
