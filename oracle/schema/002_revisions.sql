-- The outbox, version 2: revisions, which count the messages of every key.
--
-- Both tables stay empty unless an outbox or an inbox uses revisions. A key is its
-- hash and its exact bytes; an empty one is NULL, and the hash alone then. Hence unique
-- keys and not primary ones, to which one NULL equals another where the rest is equal.
-- Who needs which right is what `outbox schema --grants` prints: run that again.
--
-- Never executed by the project: see version 1. A second run does what is missing.

-- revision: the last revision of a key. A producer's transaction updates the row, and
-- so producers of one key take turns.
CREATE TABLE {revision} (
    key_hash NUMBER(19) NOT NULL,
    key      RAW(512),
    revision NUMBER(19) NOT NULL,
    CONSTRAINT {name:revision_key} UNIQUE (key_hash, key) USING INDEX INITRANS 8,
    CONSTRAINT {name:revision_counts} CHECK (revision >= 0)
) INITRANS 8;

-- progress: the last revision of a key that a consumer has handled.
CREATE TABLE {progress} (
    consumer RAW(255)   NOT NULL,
    key_hash NUMBER(19) NOT NULL,
    key      RAW(512),
    revision NUMBER(19) NOT NULL,
    CONSTRAINT {name:progress_key} UNIQUE (consumer, key_hash, key) USING INDEX INITRANS 8,
    CONSTRAINT {name:progress_counts} CHECK (revision >= 0)
) INITRANS 8;

UPDATE {meta} SET version = 2 WHERE one = 1 AND version = 1;

COMMIT;
