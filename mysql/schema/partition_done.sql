-- done in partitions, a day (UTC) each, so that what is past the retention is dropped
-- whole and its space returned. To be run behind the versions of the schema, while done
-- is empty or nobody uses it: a table with rows is written anew, and settles wait. The
-- partitions of days are made by relays and `outbox purge`; what none of them takes goes
-- to the rest.
ALTER TABLE {done} PARTITION BY RANGE COLUMNS (done_at) (PARTITION p_rest VALUES LESS THAN (MAXVALUE));
