-- The outbox, version 2: revisions, which count the messages of every key.
--
-- Both tables stay empty unless an outbox or an inbox uses revisions. A key is its
-- hash and its exact bytes. Who needs which right is what `outbox schema --grants` prints: run
-- that again.

-- revision: the last revision of a key. A producer's transaction updates the row, and
-- so producers of one key take turns.
CREATE TABLE {revision} (
    key_hash bigint NOT NULL,
    revision bigint NOT NULL CHECK (revision >= 0),
    key      text   COLLATE "C" NOT NULL,
    PRIMARY KEY (key_hash, key)
) WITH (
    -- Updated in a column without an index: with room on the page the new version
    -- stays there (HOT) and the old one is soon reused.
    fillfactor = 80,
    autovacuum_vacuum_cost_delay = 0
);

-- progress: the last revision of a key that a consumer has handled.
CREATE TABLE {progress} (
    key_hash bigint NOT NULL,
    revision bigint NOT NULL CHECK (revision >= 0),
    consumer text   COLLATE "C" NOT NULL,
    key      text   COLLATE "C" NOT NULL,
    PRIMARY KEY (consumer, key_hash, key)
) WITH (
    fillfactor = 80,
    autovacuum_vacuum_cost_delay = 0
);

UPDATE {meta} SET version = 2;
