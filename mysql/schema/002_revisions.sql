-- The outbox, version 2: revisions, which count the messages of every key.
--
-- Both tables stay empty unless an outbox or an inbox uses revisions. A key is its
-- hash and its exact bytes. Who needs which right is what `outbox schema --grants` prints: run that
-- again. An interruption is completed by running this file again.

-- revision: the last revision of a key. A producer's transaction updates the row, and
-- so producers of one key take turns.
CREATE TABLE IF NOT EXISTS {revision} (
    key_hash BIGINT         NOT NULL,
    `key`    VARBINARY(512) NOT NULL,
    revision BIGINT         NOT NULL,
    PRIMARY KEY (key_hash, `key`),
    CONSTRAINT {name:revision_counts} CHECK (revision >= 0)
) ENGINE = InnoDB;

-- progress: the last revision of a key that a consumer has handled.
CREATE TABLE IF NOT EXISTS {progress} (
    consumer VARBINARY(512) NOT NULL,
    key_hash BIGINT         NOT NULL,
    `key`    VARBINARY(512) NOT NULL,
    revision BIGINT         NOT NULL,
    PRIMARY KEY (consumer, key_hash, `key`),
    CONSTRAINT {name:progress_counts} CHECK (revision >= 0)
) ENGINE = InnoDB;

UPDATE {meta} SET version = 2 WHERE one = 1 AND version = 1;

-- For a session with autocommit=0.
COMMIT;
