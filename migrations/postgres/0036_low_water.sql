-- Counting leases passes whatever is left of those that have ended. While somebody holds a snapshot nothing of them can be cleaned
-- away, so what is older than every lease there is must not be passed at all.
CREATE INDEX run_leases_claimed ON run_leases (claimed_at);

-- `owner_room` of migration 5 for a process that knows since when all leases were claimed that there are.
CREATE FUNCTION owner_room(owner text, cap bigint, since bigint) RETURNS bigint LANGUAGE plpgsql VOLATILE AS '
BEGIN
    IF NOT pg_try_advisory_xact_lock(1128353614, hashtext(owner)) THEN
        RETURN 0;
    END IF;
    RETURN greatest(cap - (SELECT count(*) FROM run_leases WHERE owner_id = owner AND claimed_at >= since), 0);
END';

-- The queue in the order of time: whose runs wait is found in the little that has become claimable lately.
CREATE INDEX runs_waiting ON runs (claimable_at) WHERE claimable_at IS NOT NULL;
