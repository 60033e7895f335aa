-- Sets of tools are kept once per content, and removed when no run names them any more: whether one does is asked for each of them.
CREATE INDEX runs_tools ON runs (tools_hash) WHERE tools_hash IS NOT NULL;
