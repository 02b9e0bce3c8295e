-- The outbox, version 2: revisions, which count the messages of every key.
--
-- Both tables stay empty unless an outbox or an inbox uses revisions. A key is its
-- hash and its exact bytes, which have no zero byte at the end. Who needs which right is
-- what `outbox schema --grants` prints: run that again.

-- revision: the last revision of a key. A producer's transaction updates the row, and
-- so producers of one key take turns.
CREATE TABLE {revision} (
    key_hash bigint         NOT NULL,
    [key]    varbinary(512) NOT NULL,
    revision bigint         NOT NULL,
    CONSTRAINT {name:revision_pk} PRIMARY KEY CLUSTERED (key_hash, [key]) WITH (ALLOW_PAGE_LOCKS = OFF),
    CONSTRAINT {name:revision_counts} CHECK (revision >= 0)
);

ALTER TABLE {revision} SET (LOCK_ESCALATION = DISABLE);

-- progress: the last revision of a key that a consumer has handled.
CREATE TABLE {progress} (
    consumer varbinary(255) NOT NULL,
    key_hash bigint         NOT NULL,
    [key]    varbinary(512) NOT NULL,
    revision bigint         NOT NULL,
    CONSTRAINT {name:progress_pk} PRIMARY KEY CLUSTERED (consumer, key_hash, [key]) WITH (ALLOW_PAGE_LOCKS = OFF),
    CONSTRAINT {name:progress_counts} CHECK (revision >= 0)
);

ALTER TABLE {progress} SET (LOCK_ESCALATION = DISABLE);

UPDATE {meta} SET version = 2 WHERE version = 1;
