-- Definitions of tools that were seen. The first one of a tool is accepted, and so is one that somebody has looked at; another one
-- is 'changed', and its tool not offered to new runs. A tool has one changed definition at most: the newest.
CREATE TABLE tool_pins (
    id              text PRIMARY KEY,
    -- Whose server it is; '' for one of everybody.
    owner_id        text NOT NULL,
    server          text NOT NULL,
    tool            text NOT NULL,
    definition_hash text NOT NULL,
    description     text NOT NULL,
    parameters      text NOT NULL,
    hints           text NOT NULL,
    -- 'accepted' or 'changed'.
    status          text NOT NULL,
    seen_at         integer NOT NULL,
    accepted_by     text,
    accepted_at     integer
) STRICT;
CREATE UNIQUE INDEX tool_pins_once ON tool_pins (owner_id, server, tool, definition_hash);
