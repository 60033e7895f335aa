-- What a file beside the database says too: a copy that is put in its place does not go with it.
CREATE TABLE lineage (
    only_row integer PRIMARY KEY CHECK (only_row = 1),
    -- By chance, and another one after each copy that was accepted.
    word     text NOT NULL,
    -- Only ever rises. The file is written after it, so it never says more than the database has reached.
    mark     integer NOT NULL
) STRICT;
