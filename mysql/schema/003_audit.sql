-- The outbox, version 3: the audit, which keeps what operators did.
--
-- Nothing here changes or deletes a row: what is older than you must keep, delete. Who
-- needs which right is what `outbox schema --grants` prints: run that again. An interruption is
-- completed by running this file again.

-- audit: an action has two rows with one id, that it begins and how it ended.
CREATE TABLE IF NOT EXISTS {audit} (
    pos        BIGINT          NOT NULL AUTO_INCREMENT PRIMARY KEY,
    written_at DATETIME(6)     NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    id         BINARY(16)      NOT NULL,
    -- 1: the second row.
    ended      TINYINT         NOT NULL,
    who        VARBINARY(255)  NOT NULL,
    action     VARBINARY(32)   NOT NULL,
    -- Which messages were meant.
    selection  VARBINARY(2000) NOT NULL,
    -- The reason that was given.
    why        VARBINARY(1000) NOT NULL,
    -- How many messages were changed, and what ended the action early; of the second row.
    changed    BIGINT,
    failure    VARBINARY(2000),
    UNIQUE KEY {name:audit_id} (id, ended),
    CONSTRAINT {name:audit_ends} CHECK ((ended = 0 AND changed IS NULL) OR (ended = 1 AND changed IS NOT NULL))
) ENGINE = InnoDB;

UPDATE {meta} SET version = 3 WHERE one = 1 AND version = 2;

-- For a session with autocommit=0.
COMMIT;
