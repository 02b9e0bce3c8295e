-- done in partitions, a day (UTC) each, so that what is past the retention is dropped
-- whole and its space returned. To be run in one transaction by the owner of the tables,
-- behind the versions of the schema and before the grants, which are those of a table.
--
-- What is in done stays in it, as the partition of all days up to this one. To attach
-- it the server reads it once, and nothing is archived meanwhile: settles wait. With
-- millions of rows do it in a quiet hour, or purge first.

LOCK TABLE {done} IN ACCESS EXCLUSIVE MODE;
ALTER TABLE {done} RENAME TO {name:done_before};

-- The names of the indexes are the server's choice: nothing goes by them.
CREATE TABLE {done} (
    LIKE {before} INCLUDING ALL EXCLUDING INDEXES,
    PRIMARY KEY (done_at, pos)
) PARTITION BY RANGE (done_at);

-- For replay by id: an index in each partition.
CREATE INDEX ON {done} (id);

ALTER TABLE {before} ALTER COLUMN pos DROP IDENTITY;
ALTER TABLE {done} ATTACH PARTITION {before}
    FOR VALUES FROM (MINVALUE) TO ((date_trunc('day', now() AT TIME ZONE 'UTC') + interval '1 day') AT TIME ZONE 'UTC');

-- What no day's partition takes. Relays and `outbox purge` make those of the days to
-- come; should they not, archiving goes on here.
CREATE TABLE {rest} PARTITION OF {done} DEFAULT;
