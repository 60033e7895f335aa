-- What became of every call of a tool, written with its outcome. It outlives the conversation, and no row is ever changed.
CREATE TABLE tool_audit (
    call_id         text PRIMARY KEY,
    owner_id        text NOT NULL,
    conversation_id text NOT NULL,
    run_id          text NOT NULL,
    agent           text NOT NULL,
    name            text NOT NULL,
    server          text,
    arguments_hash  text NOT NULL,
    -- 'success', 'error', 'denied', 'skipped' or 'unknown'.
    outcome         text NOT NULL,
    -- Who allowed or denied it.
    decided_by      text,
    duration_ms     bigint NOT NULL,
    at              bigint NOT NULL
);
CREATE INDEX tool_audit_by_owner ON tool_audit (owner_id, at DESC, call_id DESC);
CREATE INDEX tool_audit_by_age ON tool_audit (at, call_id);
CREATE INDEX tool_audit_by_run ON tool_audit (run_id);
