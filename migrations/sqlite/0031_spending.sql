-- What runs have spent on a day that have a budget of their conversation or of the day, and what their call under way may come to:
-- tokens, and trillionths of a US dollar. A reservation counts as long as its run is at the head of its conversation under the
-- epoch that it was made under: whoever ends that fence ends the reservation. A conversation that is deleted leaves its rows; the
-- owner's next reservation removes those of days gone by.
CREATE TABLE spending (
    owner_id        text NOT NULL,
    day             integer NOT NULL,
    run_id          text NOT NULL,
    conversation_id text NOT NULL,
    tokens          integer NOT NULL DEFAULT 0,
    cost            integer NOT NULL DEFAULT 0,
    held_tokens     integer NOT NULL DEFAULT 0,
    held_cost       integer NOT NULL DEFAULT 0,
    held_epoch      integer,
    PRIMARY KEY (owner_id, day, run_id)
) STRICT, WITHOUT ROWID;
