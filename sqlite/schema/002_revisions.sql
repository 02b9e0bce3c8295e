-- Version 2: revisions, which count the messages of every key.
--
-- Both tables stay empty unless an outbox or an inbox uses revisions. A key is its
-- hash and its exact bytes. Run it in one transaction.

-- The last revision of a key. A producer's transaction updates the row, and so
-- producers of one key take turns.
CREATE TABLE {revision} (
    key_hash INTEGER NOT NULL,
    key      TEXT    NOT NULL,
    revision INTEGER NOT NULL,
    PRIMARY KEY (key_hash, key),
    CONSTRAINT {name:revision_counts} CHECK (revision >= 0)
) STRICT, WITHOUT ROWID;

-- The last revision of a key that a consumer has handled.
CREATE TABLE {progress} (
    consumer TEXT    NOT NULL,
    key_hash INTEGER NOT NULL,
    key      TEXT    NOT NULL,
    revision INTEGER NOT NULL,
    PRIMARY KEY (consumer, key_hash, key),
    CONSTRAINT {name:progress_counts} CHECK (revision >= 0)
) STRICT, WITHOUT ROWID;

UPDATE {meta} SET version = 2;
