-- How many more runs of an owner may be claimed now, if at most `cap` of them may have a lease. Nobody else gets a number for the
-- same owner before this transaction has ended: then it is 0, without waiting. A function of its own, because the statement that
-- calls it sees leases as they were when it began; this sees them as they are once it has the lock.
CREATE FUNCTION owner_room(owner text, cap bigint) RETURNS bigint LANGUAGE plpgsql VOLATILE AS '
BEGIN
    IF NOT pg_try_advisory_xact_lock(1128353614, hashtext(owner)) THEN
        RETURN 0;
    END IF;
    RETURN greatest(cap - (SELECT count(*) FROM run_leases WHERE owner_id = owner), 0);
END';
