-- How many messages have ever joined a run of the conversation that was under way. A run cannot end before its worker has
-- heard them all: the end names the number that it has heard.
ALTER TABLE conversation_heads ADD COLUMN joined INTEGER NOT NULL DEFAULT 0;
