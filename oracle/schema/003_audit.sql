-- The outbox, version 3: the audit, which keeps what operators did.
--
-- Nothing here changes or deletes a row: what is older than you must keep, delete. Who
-- needs which right is what `outbox schema --grants` prints: run that again.
--
-- Never executed by the project: see version 1. A second run does what is missing.

-- audit: an action has two rows with one id, that it begins and how it ended.
CREATE TABLE {audit} (
    pos        NUMBER(19)    GENERATED ALWAYS AS IDENTITY (CACHE 20 ORDER),
    written_at TIMESTAMP(6)  DEFAULT SYS_EXTRACT_UTC(SYSTIMESTAMP) NOT NULL,
    id         RAW(16)       NOT NULL,
    -- 1: the second row.
    ended      NUMBER(1)     NOT NULL,
    who        RAW(255)      NOT NULL,
    action     RAW(32)       NOT NULL,
    -- Which messages were meant.
    selection  RAW(2000)     NOT NULL,
    -- The reason that was given, NULL without one.
    why        RAW(1000),
    -- How many messages were changed, and what ended the action early; of the second row.
    changed    NUMBER(19),
    failure    RAW(2000),
    CONSTRAINT {name:audit_pk} PRIMARY KEY (pos) USING INDEX INITRANS 8,
    CONSTRAINT {name:audit_id} UNIQUE (id, ended) USING INDEX INITRANS 8,
    CONSTRAINT {name:audit_ends} CHECK ((ended = 0 AND changed IS NULL) OR (ended = 1 AND changed IS NOT NULL))
) INITRANS 8;

UPDATE {meta} SET version = 3 WHERE one = 1 AND version = 2;

COMMIT;
