-- Version 3: the audit, which keeps what operators did.
--
-- Nothing here changes or deletes a row: what is older than you must keep, delete. Run
-- it in one transaction.

-- An action has two rows with one id: that it begins, and how it ended.
CREATE TABLE {audit} (
    pos        INTEGER PRIMARY KEY AUTOINCREMENT,
    written_at INTEGER NOT NULL DEFAULT (CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000),
    id         BLOB    NOT NULL,
    -- 1: the second row.
    ended      INTEGER NOT NULL,
    who        TEXT    NOT NULL,
    action     TEXT    NOT NULL,
    -- Which messages were meant.
    selection  TEXT    NOT NULL,
    -- The reason that was given.
    why        TEXT    NOT NULL,
    -- How many messages were changed, and what ended the action early; of the second row.
    changed    INTEGER,
    failure    TEXT,
    CONSTRAINT {name:audit_ends} CHECK (ended = 0 AND changed IS NULL OR ended = 1 AND changed IS NOT NULL)
) STRICT;

CREATE UNIQUE INDEX {name:audit_id} ON {audit} (id, ended);

UPDATE {meta} SET version = 3;
