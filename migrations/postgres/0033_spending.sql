-- What runs have spent on a day that have a budget of their conversation or of the day, and what their call under way may come to:
-- tokens, and trillionths of a US dollar. What is reserved is held by others as long as its run is at the head of its conversation under
-- the epoch that it was made under, and taken to be spent after that, until whoever takes the run up settles it. A conversation that is
-- deleted leaves its rows.
CREATE TABLE spending (
    owner_id        text COLLATE "C" NOT NULL,
    day             bigint NOT NULL,
    run_id          text COLLATE "C" NOT NULL,
    conversation_id text COLLATE "C" NOT NULL,
    tokens          bigint NOT NULL DEFAULT 0,
    cost            bigint NOT NULL DEFAULT 0,
    held_tokens     bigint NOT NULL DEFAULT 0,
    held_cost       bigint NOT NULL DEFAULT 0,
    held_epoch      bigint,
    PRIMARY KEY (owner_id, day, run_id)
);
-- Those of days gone by are removed.
CREATE INDEX spending_by_day ON spending (day);
