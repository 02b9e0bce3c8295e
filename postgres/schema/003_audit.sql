-- The outbox, version 3: the audit, which keeps what operators did.
--
-- Nothing here changes or deletes a row: what is older than you must keep, delete. Who
-- needs which right is what `outbox schema --grants` prints: run that again.

-- audit: an action has two rows with one id, that it begins and how it ended.
CREATE TABLE {audit} (
    pos        bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    written_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    id         uuid        NOT NULL,
    -- The second row.
    ended      boolean     NOT NULL,
    who        text        COLLATE "C" NOT NULL,
    action     text        COLLATE "C" NOT NULL,
    -- Which messages were meant.
    selection  text        COLLATE "C" NOT NULL,
    -- The reason that was given.
    why        text        COLLATE "C" NOT NULL,
    -- How many messages were changed, and what ended the action early; of the second row.
    changed    bigint,
    failure    text        COLLATE "C",
    CONSTRAINT {name:audit_id} UNIQUE (id, ended),
    CONSTRAINT {name:audit_ends} CHECK (ended = (changed IS NOT NULL))
);

UPDATE {meta} SET version = 3;
