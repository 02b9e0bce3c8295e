-- The outbox, version 3: the audit, which keeps what operators did.
--
-- Nothing here changes or deletes a row: what is older than you must keep, delete. Who
-- needs which right is what `outbox schema --grants` prints: run that again.

-- audit: an action has two rows with one id, that it begins and how it ended.
CREATE TABLE {audit} (
    pos        bigint          IDENTITY (1, 1) NOT NULL,
    written_at datetime2(6)    NOT NULL DEFAULT SYSUTCDATETIME(),
    id         binary(16)      NOT NULL,
    -- 1: the second row.
    ended      int             NOT NULL,
    who        varbinary(255)  NOT NULL,
    action     varbinary(32)   NOT NULL,
    -- Which messages were meant.
    selection  varbinary(2000) NOT NULL,
    -- The reason that was given.
    why        varbinary(1000) NOT NULL,
    -- How many messages were changed, and what ended the action early; of the second row.
    changed    bigint          NULL,
    failure    varbinary(2000) NULL,
    CONSTRAINT {name:audit_pk} PRIMARY KEY CLUSTERED (pos) WITH (ALLOW_PAGE_LOCKS = OFF),
    CONSTRAINT {name:audit_id} UNIQUE NONCLUSTERED (id, ended) WITH (ALLOW_PAGE_LOCKS = OFF),
    CONSTRAINT {name:audit_ends} CHECK ((ended = 0 AND changed IS NULL) OR (ended = 1 AND changed IS NOT NULL))
);

ALTER TABLE {audit} SET (LOCK_ESCALATION = DISABLE);

UPDATE {meta} SET version = 3 WHERE version = 2;
