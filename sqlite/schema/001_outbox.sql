-- Version 1: the tables of the outbox.
--
-- Times are Unix microseconds in UTC, set by SQLite's clock, which counts
-- milliseconds. A key's lane is its hash, without a sign, modulo the number of lanes:
-- where that is no power of two, 2^64 modulo it is added to a negative one. Run it in
-- one transaction.
--
-- All tables are STRICT: a value of the wrong type is refused instead of kept.
-- The payload is the last column, so that reading the others of a row never
-- walks through the pages of a large one.

-- Messages that are ready to go, and nothing else. Producers insert, the relay
-- deletes. AUTOINCREMENT, because without it SQLite gives the number of a deleted
-- row to the next one, and seq is what order is kept by.
CREATE TABLE {ready} (
    seq          INTEGER PRIMARY KEY AUTOINCREMENT,
    lane         INTEGER NOT NULL,
    id           BLOB    NOT NULL,
    topic        TEXT    NOT NULL,
    key          TEXT,
    key_hash     INTEGER,
    type         TEXT    NOT NULL,
    content_type TEXT    NOT NULL DEFAULT 'application/json',
    headers      TEXT    NOT NULL DEFAULT '{}',
    created_at   INTEGER NOT NULL DEFAULT (CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000),
    revision     INTEGER,
    replay       INTEGER NOT NULL DEFAULT 0,
    ready_at     INTEGER NOT NULL DEFAULT (CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000),
    payload      BLOB,
    CONSTRAINT {name:ready_id_has_sixteen_bytes} CHECK (length(id) = 16),
    CONSTRAINT {name:ready_lane_exists} CHECK (lane BETWEEN 0 AND {lanes} - 1),
    CONSTRAINT {name:ready_key_has_hash} CHECK ((key IS NULL) = (key_hash IS NULL)),
    CONSTRAINT {name:ready_lane_fits_key} CHECK (key_hash IS NULL OR
        lane = ((key_hash % {lanes}) + {lanes} + (CASE WHEN key_hash < 0 THEN {wrap} ELSE 0 END)) % {lanes})
) STRICT;

-- The order within a lane: seq is the rowid, which ends every index entry.
CREATE INDEX {name:ready_lane} ON {ready} (lane);

-- An id waits once.
CREATE UNIQUE INDEX {name:ready_id} ON {ready} (id);

-- Messages that must wait or need a person. Producers insert delayed ones (state
-- scheduled, the default), the relay and operators do the rest. pos names a row;
-- seq is its place in the order, which a scheduled message has not got yet.
CREATE TABLE {parked} (
    pos          INTEGER PRIMARY KEY AUTOINCREMENT,
    lane         INTEGER NOT NULL,
    seq          INTEGER,
    id           BLOB    NOT NULL,
    topic        TEXT    NOT NULL,
    key          TEXT,
    key_hash     INTEGER,
    type         TEXT    NOT NULL,
    content_type TEXT    NOT NULL DEFAULT 'application/json',
    headers      TEXT    NOT NULL DEFAULT '{}',
    created_at   INTEGER NOT NULL DEFAULT (CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000),
    revision     INTEGER,
    replay       INTEGER NOT NULL DEFAULT 0,
    state        TEXT    NOT NULL DEFAULT 'scheduled',
    blocking     INTEGER NOT NULL DEFAULT 0,
    attempts     INTEGER NOT NULL DEFAULT 0,
    available_at INTEGER,
    reason       TEXT,
    parked_at    INTEGER NOT NULL DEFAULT (CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000),
    payload      BLOB,
    CONSTRAINT {name:parked_id_has_sixteen_bytes} CHECK (length(id) = 16),
    CONSTRAINT {name:parked_lane_exists} CHECK (lane BETWEEN 0 AND {lanes} - 1),
    CONSTRAINT {name:parked_key_has_hash} CHECK ((key IS NULL) = (key_hash IS NULL)),
    CONSTRAINT {name:parked_lane_fits_key} CHECK (key_hash IS NULL OR
        lane = ((key_hash % {lanes}) + {lanes} + (CASE WHEN key_hash < 0 THEN {wrap} ELSE 0 END)) % {lanes}),
    CONSTRAINT {name:parked_state} CHECK (state IN ('scheduled', 'retry', 'held', 'dead')),
    CONSTRAINT {name:parked_due_has_time} CHECK ((state IN ('scheduled', 'retry')) = (available_at IS NOT NULL)),
    CONSTRAINT {name:parked_has_place} CHECK (seq IS NOT NULL OR state IN ('scheduled', 'dead')),
    CONSTRAINT {name:parked_head} CHECK (blocking = 0 OR
        (blocking = 1 AND key_hash IS NOT NULL AND seq IS NOT NULL AND state IN ('retry', 'dead')))
) STRICT;

-- What is due, and how many there are of a state. Held and dead rows have no time.
CREATE INDEX {name:parked_due} ON {parked} (lane, state, available_at);

-- The rows that hold a key back: one entry a blocked key.
CREATE INDEX {name:parked_blocked} ON {parked} (lane, key_hash, seq) WHERE blocking = 1;

-- The held rows of a key in order, and the messages of a key for operators.
CREATE INDEX {name:parked_key} ON {parked} (lane, key_hash, state, seq) WHERE key_hash IS NOT NULL;

-- A message by its id. Not unique: one that was sent again may be parked twice.
CREATE INDEX {name:parked_id} ON {parked} (id);

-- A delayed id waits once.
CREATE UNIQUE INDEX {name:parked_scheduled_id} ON {parked} (id) WHERE state = 'scheduled';

-- What was published or discarded. Settling appends, purging deletes by age.
CREATE TABLE {done} (
    pos          INTEGER PRIMARY KEY AUTOINCREMENT,
    lane         INTEGER NOT NULL,
    seq          INTEGER,
    id           BLOB    NOT NULL,
    topic        TEXT    NOT NULL,
    key          TEXT,
    key_hash     INTEGER,
    type         TEXT    NOT NULL,
    content_type TEXT    NOT NULL,
    headers      TEXT    NOT NULL,
    created_at   INTEGER NOT NULL,
    revision     INTEGER,
    replay       INTEGER NOT NULL,
    attempts     INTEGER NOT NULL,
    outcome      TEXT    NOT NULL CHECK (outcome IN ('published', 'discarded')),
    reason       TEXT,
    done_at      INTEGER NOT NULL DEFAULT (CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000),
    payload      BLOB
) STRICT;

-- The age of done messages: pos is the rowid, which ends every index entry.
CREATE INDEX {name:done_at} ON {done} (done_at);

-- A message by its id.
CREATE INDEX {name:done_id} ON {done} (id);

-- One row a lane: who owns it, until when, and the epoch, which is the fence.
CREATE TABLE {lane} (
    lane        INTEGER PRIMARY KEY,
    epoch       INTEGER NOT NULL DEFAULT 0,
    owner       TEXT    NOT NULL DEFAULT '',
    lease_until INTEGER NOT NULL DEFAULT 0,
    served_at   INTEGER NOT NULL DEFAULT 0
) STRICT;

INSERT INTO {lane} (lane)
WITH RECURSIVE numbers (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM numbers WHERE n + 1 < {lanes})
SELECT n FROM numbers;

-- What consumers have processed.
CREATE TABLE {inbox} (
    consumer    TEXT    NOT NULL,
    message_id  TEXT    NOT NULL,
    recorded_at INTEGER NOT NULL DEFAULT (CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000),
    PRIMARY KEY (consumer, message_id)
) STRICT, WITHOUT ROWID;

-- The age of inbox entries.
CREATE INDEX {name:inbox_recorded_at} ON {inbox} (recorded_at);

-- One row about the schema itself.
CREATE TABLE {meta} (
    id       INTEGER PRIMARY KEY CHECK (id = 1),
    version  INTEGER NOT NULL,
    lanes    INTEGER NOT NULL,
    purge_at INTEGER NOT NULL DEFAULT 0
) STRICT;

INSERT INTO {meta} (id, version, lanes) VALUES (1, 1, {lanes});
