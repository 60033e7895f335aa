//! Charges a reserved model call to the budgets of its owner: the text for each database. The log writer executes it, in the transaction of
//! the run's other changes.
//!
//! Sums stop at `MOST` of `store/runs/budget.rs`. A charge ends the reservation. Must not know what a budget allows.

/// A part of the statement that writes a merged batch. Its rows are one JSON list.
pub const POSTGRES: &str = "charged AS (
    UPDATE spending s SET tokens = least(s.tokens + p.tokens, p.most), cost = least(s.cost + p.cost, p.most),
        held_tokens = 0, held_cost = 0, held_epoch = NULL
    FROM json_to_recordset({list}) AS p (ord int, day bigint, tokens bigint, cost bigint, most bigint)
    JOIN head h ON h.ord = p.ord JOIN runs r ON r.id = h.run_id
    WHERE s.owner_id = r.owner_id AND s.day = p.day AND s.run_id = h.run_id
)";

/// One statement of a batch. Its parameters: tokens, `MOST`, cost, `MOST`, run, day, run.
pub const SQLITE: &str =
    "UPDATE spending SET tokens = min(tokens + ?, ?), cost = min(cost + ?, ?), held_tokens = 0, held_cost = 0, held_epoch = NULL
     WHERE owner_id = (SELECT owner_id FROM runs WHERE id = ?) AND day = ? AND run_id = ?";
