-- schema version 1: the outbox

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
CREATE TABLE "outbox" (
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
    CONSTRAINT "outbox_ready_id_has_sixteen_bytes" CHECK (length(id) = 16),
    CONSTRAINT "outbox_ready_lane_exists" CHECK (lane BETWEEN 0 AND 16 - 1),
    CONSTRAINT "outbox_ready_key_has_hash" CHECK ((key IS NULL) = (key_hash IS NULL)),
    CONSTRAINT "outbox_ready_lane_fits_key" CHECK (key_hash IS NULL OR
        lane = ((key_hash % 16) + 16 + (CASE WHEN key_hash < 0 THEN 0 ELSE 0 END)) % 16)
) STRICT;

-- The order within a lane: seq is the rowid, which ends every index entry.
CREATE INDEX "outbox_ready_lane" ON "outbox" (lane);

-- An id waits once.
CREATE UNIQUE INDEX "outbox_ready_id" ON "outbox" (id);

-- Messages that must wait or need a person. Producers insert delayed ones (state
-- scheduled, the default), the relay and operators do the rest. pos names a row;
-- seq is its place in the order, which a scheduled message has not got yet.
CREATE TABLE "outbox_parked" (
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
    CONSTRAINT "outbox_parked_id_has_sixteen_bytes" CHECK (length(id) = 16),
    CONSTRAINT "outbox_parked_lane_exists" CHECK (lane BETWEEN 0 AND 16 - 1),
    CONSTRAINT "outbox_parked_key_has_hash" CHECK ((key IS NULL) = (key_hash IS NULL)),
    CONSTRAINT "outbox_parked_lane_fits_key" CHECK (key_hash IS NULL OR
        lane = ((key_hash % 16) + 16 + (CASE WHEN key_hash < 0 THEN 0 ELSE 0 END)) % 16),
    CONSTRAINT "outbox_parked_state" CHECK (state IN ('scheduled', 'retry', 'held', 'dead')),
    CONSTRAINT "outbox_parked_due_has_time" CHECK ((state IN ('scheduled', 'retry')) = (available_at IS NOT NULL)),
    CONSTRAINT "outbox_parked_has_place" CHECK (seq IS NOT NULL OR state IN ('scheduled', 'dead')),
    CONSTRAINT "outbox_parked_head" CHECK (blocking = 0 OR
        (blocking = 1 AND key_hash IS NOT NULL AND seq IS NOT NULL AND state IN ('retry', 'dead')))
) STRICT;

-- What is due, and how many there are of a state. Held and dead rows have no time.
CREATE INDEX "outbox_parked_due" ON "outbox_parked" (lane, state, available_at);

-- The rows that hold a key back: one entry a blocked key.
CREATE INDEX "outbox_parked_blocked" ON "outbox_parked" (lane, key_hash, seq) WHERE blocking = 1;

-- The held rows of a key in order, and the messages of a key for operators.
CREATE INDEX "outbox_parked_key" ON "outbox_parked" (lane, key_hash, state, seq) WHERE key_hash IS NOT NULL;

-- A message by its id. Not unique: one that was sent again may be parked twice.
CREATE INDEX "outbox_parked_id" ON "outbox_parked" (id);

-- A delayed id waits once.
CREATE UNIQUE INDEX "outbox_parked_scheduled_id" ON "outbox_parked" (id) WHERE state = 'scheduled';

-- What was published or discarded. Settling appends, purging deletes by age.
CREATE TABLE "outbox_done" (
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
CREATE INDEX "outbox_done_at" ON "outbox_done" (done_at);

-- A message by its id.
CREATE INDEX "outbox_done_id" ON "outbox_done" (id);

-- One row a lane: who owns it, until when, and the epoch, which is the fence.
CREATE TABLE "outbox_lane" (
    lane        INTEGER PRIMARY KEY,
    epoch       INTEGER NOT NULL DEFAULT 0,
    owner       TEXT    NOT NULL DEFAULT '',
    lease_until INTEGER NOT NULL DEFAULT 0,
    served_at   INTEGER NOT NULL DEFAULT 0
) STRICT;

INSERT INTO "outbox_lane" (lane)
WITH RECURSIVE numbers (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM numbers WHERE n + 1 < 16)
SELECT n FROM numbers;

-- What consumers have processed.
CREATE TABLE "outbox_inbox" (
    consumer    TEXT    NOT NULL,
    message_id  TEXT    NOT NULL,
    recorded_at INTEGER NOT NULL DEFAULT (CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000),
    PRIMARY KEY (consumer, message_id)
) STRICT, WITHOUT ROWID;

-- The age of inbox entries.
CREATE INDEX "outbox_inbox_recorded_at" ON "outbox_inbox" (recorded_at);

-- One row about the schema itself.
CREATE TABLE "outbox_meta" (
    id       INTEGER PRIMARY KEY CHECK (id = 1),
    version  INTEGER NOT NULL,
    lanes    INTEGER NOT NULL,
    purge_at INTEGER NOT NULL DEFAULT 0
) STRICT;

INSERT INTO "outbox_meta" (id, version, lanes) VALUES (1, 1, 16);

-- schema version 2: revisions

-- Version 2: revisions, which count the messages of every key.
--
-- Both tables stay empty unless an outbox or an inbox uses revisions. A key is its
-- hash and its exact bytes. Run it in one transaction.

-- The last revision of a key. A producer's transaction updates the row, and so
-- producers of one key take turns.
CREATE TABLE "outbox_revision" (
    key_hash INTEGER NOT NULL,
    key      TEXT    NOT NULL,
    revision INTEGER NOT NULL,
    PRIMARY KEY (key_hash, key),
    CONSTRAINT "outbox_revision_counts" CHECK (revision >= 0)
) STRICT, WITHOUT ROWID;

-- The last revision of a key that a consumer has handled.
CREATE TABLE "outbox_progress" (
    consumer TEXT    NOT NULL,
    key_hash INTEGER NOT NULL,
    key      TEXT    NOT NULL,
    revision INTEGER NOT NULL,
    PRIMARY KEY (consumer, key_hash, key),
    CONSTRAINT "outbox_progress_counts" CHECK (revision >= 0)
) STRICT, WITHOUT ROWID;

UPDATE "outbox_meta" SET version = 2;

-- schema version 3: the audit

-- Version 3: the audit, which keeps what operators did.
--
-- Nothing here changes or deletes a row: what is older than you must keep, delete. Run
-- it in one transaction.

-- An action has two rows with one id: that it begins, and how it ended.
CREATE TABLE "outbox_audit" (
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
    CONSTRAINT "outbox_audit_ends" CHECK (ended = 0 AND changed IS NULL OR ended = 1 AND changed IS NOT NULL)
) STRICT;

CREATE UNIQUE INDEX "outbox_audit_id" ON "outbox_audit" (id, ended);

UPDATE "outbox_meta" SET version = 3;

-- lockSchema
CREATE TABLE "outbox_migration" (lock INTEGER);

-- unlockSchema
DROP TABLE "outbox_migration";

-- findObjects
SELECT lower(name) FROM sqlite_schema
WHERE type IN ('table', 'index') AND lower(name) IN (SELECT value FROM json_each(?1));

-- meta
SELECT version, lanes FROM "outbox_meta";

-- countLanes
SELECT count(*) FROM "outbox_lane" WHERE lane BETWEEN 0 AND 16 - 1;

-- probeWrite
UPDATE "outbox_meta" SET version = version;

-- insertReady
INSERT INTO "outbox" (lane, id, topic, key, key_hash, type, content_type, headers, revision, replay, payload)
VALUES;

-- insertScheduled
INSERT INTO "outbox_parked" (lane, id, topic, key, key_hash, type, content_type, headers, revision, replay, payload, available_at)
VALUES;

-- poll
SELECT l.lane, l.epoch, EXISTS (SELECT 1 FROM "outbox_parked" AS p
               WHERE p.lane = l.lane AND p.state IN ('scheduled', 'retry') AND p.available_at <= (CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000)) FROM "outbox_lane" AS l
WHERE (l.lease_until <= (CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000) OR l.owner = ?1)
  AND (EXISTS (SELECT 1 FROM "outbox" AS r WHERE r.lane = l.lane)
    OR EXISTS (SELECT 1 FROM "outbox_parked" AS p
               WHERE p.lane = l.lane AND p.state IN ('scheduled', 'retry') AND p.available_at <= (CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000)))
ORDER BY iif(l.served_at <= (CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000), l.served_at, 0), l.lane
LIMIT ?2;

-- pending
SELECT
  EXISTS (SELECT 1 FROM "outbox_lane" AS l
          WHERE EXISTS (SELECT 1 FROM "outbox" AS r WHERE r.lane = l.lane)
             OR EXISTS (SELECT 1 FROM "outbox_parked" AS p
               WHERE p.lane = l.lane AND p.state IN ('scheduled', 'retry') AND p.available_at <= (CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000))),
  EXISTS (SELECT 1 FROM "outbox_lane" AS l WHERE l.lease_until > (CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000) AND l.owner <> ?1);

-- claim
UPDATE "outbox_lane" SET epoch = epoch + 1, owner = ?2, lease_until = (CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000) + ?3, served_at = (CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000)
WHERE lane = ?1 AND (lease_until <= (CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000) OR owner = ?2)
RETURNING epoch;

-- extend
UPDATE "outbox_lane" SET lease_until = (CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000) + ?4
WHERE lane = ?1 AND owner = ?2 AND epoch = ?3;

-- release
UPDATE "outbox_lane" SET owner = '', lease_until = 0
WHERE lane = ?1 AND owner = ?2 AND epoch = ?3;

-- surfaceNeeded
SELECT
  EXISTS (SELECT 1 FROM "outbox_lane" WHERE lane = ?1 AND owner = ?2 AND epoch = ?3),
  EXISTS (SELECT 1 FROM "outbox_parked" WHERE lane = ?1 AND state = 'scheduled' AND available_at <= (CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000));

-- fence
UPDATE "outbox_lane" SET epoch = epoch
WHERE lane = ?1 AND owner = ?2 AND epoch = ?3;

-- dueScheduled
SELECT p.pos, EXISTS (SELECT 1 FROM "outbox" AS r WHERE r.id = p.id)
FROM "outbox_parked" AS p
WHERE p.lane = ?1 AND p.state = 'scheduled' AND p.available_at <= (CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000)
ORDER BY p.available_at, p.pos
LIMIT ?2;

-- surface
INSERT INTO "outbox" (lane, id, topic, key, key_hash, type, content_type, headers, created_at, revision, replay, payload)
SELECT lane, id, topic, key, key_hash, type, content_type, headers, created_at, revision, replay, payload
FROM "outbox_parked"
WHERE pos IN (SELECT value FROM json_each(?1))
ORDER BY available_at, pos;

-- scheduledIsReady
UPDATE "outbox_parked" SET state = 'dead', available_at = NULL,
  reason = 'when it became due, a message of the same id was already ready'
WHERE pos IN (SELECT value FROM json_each(?1));

-- dueHeads
SELECT
  ifnull(p.seq, 0), p.id, p.topic, p.key, p.key_hash, p.type, p.content_type, p.headers,
  p.created_at, ifnull(p.revision, 0), max(0, (SELECT (CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000)) - p.created_at),
  4 * p.replay + (p.payload IS NULL), p.payload,
  p.lane, p.pos, p.attempts
FROM "outbox_parked" AS p
WHERE p.lane = ?1 AND p.state = 'retry' AND p.available_at <= (CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000)
ORDER BY p.available_at, p.pos
LIMIT ?2;

-- dueHeld
SELECT
  ifnull(p.seq, 0), p.id, p.topic, p.key, p.key_hash, p.type, p.content_type, p.headers,
  p.created_at, ifnull(p.revision, 0), max(0, (SELECT (CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000)) - p.created_at),
  4 * p.replay + (p.payload IS NULL), p.payload,
  p.lane, p.pos, p.attempts
FROM "outbox_parked" AS p
WHERE p.lane = ?1 AND p.key_hash = ?2 AND p.state = 'held'
  AND p.seq < ifnull((SELECT min(b.seq) FROM "outbox_parked" AS b
                      WHERE b.lane = ?1 AND b.key_hash = ?2 AND b.blocking = 1 AND b.seq > ?3), 9223372036854775807)
ORDER BY p.seq
LIMIT ?4;

-- packed
SELECT count(*) = count(m.fields) AND octet_length(' ') = 1, (CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000), group_concat(m.fields, char(0)),
  CAST(group_concat(m.id, '') AS BLOB), CAST(group_concat(m.payload, '') AS BLOB)
FROM (
  SELECT r.id, CASE WHEN octet_length(r.payload) <= ?4 AND NOT (EXISTS (SELECT 1 FROM "outbox_parked" AS p WHERE p.lane = ?1 AND p.blocking = 1)
    AND EXISTS (SELECT 1 FROM "outbox_parked" AS p
                WHERE p.lane = ?1 AND p.key_hash = r.key_hash AND p.blocking = 1)) THEN r.payload END AS payload,
    CASE WHEN octet_length(r.headers) + ifnull(octet_length(r.payload), 0) <= ?4 THEN concat_ws(char(0),
      r.seq, r.created_at, r.ready_at, ifnull(r.revision, 0), 4 * r.replay + 2 * (EXISTS (SELECT 1 FROM "outbox_parked" AS p WHERE p.lane = ?1 AND p.blocking = 1)
    AND EXISTS (SELECT 1 FROM "outbox_parked" AS p
                WHERE p.lane = ?1 AND p.key_hash = r.key_hash AND p.blocking = 1)) + (r.payload IS NULL),
      ifnull(octet_length(r.payload), 0), ifnull(r.key_hash, ''), ifnull(r.key, ''),
      r.topic, r.type, r.content_type, r.headers) END AS fields
  FROM "outbox" AS r
  WHERE r.lane = ?1 AND r.seq > ?2
  ORDER BY r.seq
  LIMIT ?3) AS m;

-- ready
SELECT
  r.seq, r.id, r.topic, r.key, r.key_hash, r.type, r.content_type, r.headers,
  r.created_at, ifnull(r.revision, 0), max(0, (SELECT (CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000)) - r.ready_at),
  4 * r.replay + 2 * (EXISTS (SELECT 1 FROM "outbox_parked" AS p WHERE p.lane = ?1 AND p.blocking = 1)
    AND EXISTS (SELECT 1 FROM "outbox_parked" AS p
                WHERE p.lane = ?1 AND p.key_hash = r.key_hash AND p.blocking = 1)) + (r.payload IS NULL),
  CASE WHEN (EXISTS (SELECT 1 FROM "outbox_parked" AS p WHERE p.lane = ?1 AND p.blocking = 1)
    AND EXISTS (SELECT 1 FROM "outbox_parked" AS p
                WHERE p.lane = ?1 AND p.key_hash = r.key_hash AND p.blocking = 1)) THEN NULL ELSE r.payload END
FROM "outbox" AS r
WHERE r.lane = ?1 AND r.seq > ?2
ORDER BY r.seq
LIMIT ?3;

-- settle
UPDATE "outbox_lane" SET lease_until = (CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000) + ?4, served_at = (CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000)
WHERE lane = ?1 AND owner = ?2 AND epoch = ?3;

-- takenReady
SELECT k.value FROM json_each(?1) AS k CROSS JOIN "outbox" AS r
WHERE r.seq = k.value AND +r.id <> substr(?2, 1 + 16 * k.key, 16);

-- takenParked
SELECT k.value FROM json_each(?1) AS k CROSS JOIN "outbox_parked" AS p
WHERE p.pos = k.value AND +p.id <> substr(?2, 1 + 16 * k.key, 16);

-- archiveReady
INSERT INTO "outbox_done" (lane, seq, id, topic, key, key_hash, type, content_type, headers, created_at, revision, replay, payload, attempts, outcome)
SELECT lane, seq, id, topic, key, key_hash, type, content_type, headers, created_at, revision, replay, payload, 1, 'published'
FROM "outbox"
WHERE +lane = ?1 AND seq IN (SELECT value FROM json_each(?2))
ORDER BY seq;

-- archiveParked
INSERT INTO "outbox_done" (lane, seq, id, topic, key, key_hash, type, content_type, headers, created_at, revision, replay, payload, attempts, outcome, reason)
SELECT lane, seq, id, topic, key, key_hash, type, content_type, headers, created_at, revision, replay, payload, attempts + 1, 'published', reason
FROM "outbox_parked"
WHERE +lane = ?1 AND pos IN (SELECT value FROM json_each(?2))
ORDER BY seq;

-- deleteReady
DELETE FROM "outbox" WHERE +lane = ?1 AND seq IN (SELECT value FROM json_each(?2));

-- deleteParked
DELETE FROM "outbox_parked" WHERE +lane = ?1 AND pos IN (SELECT value FROM json_each(?2))
RETURNING key_hash;

-- messages
SELECT CAST(group_concat(id, '') || group_concat(seq) AS BLOB) FROM (
  SELECT id, seq FROM "outbox" WHERE lane = ?1 AND seq BETWEEN ?2 AND ?3 ORDER BY seq LIMIT ?4) AS m;

-- archiveRange
INSERT INTO "outbox_done" (lane, seq, id, topic, key, key_hash, type, content_type, headers, created_at, revision, replay, payload, attempts, outcome)
SELECT lane, seq, id, topic, key, key_hash, type, content_type, headers, created_at, revision, replay, payload, 1, 'published'
FROM "outbox"
WHERE lane = ?1 AND seq BETWEEN ?2 AND ?3
ORDER BY seq;

-- deleteRange
DELETE FROM "outbox" WHERE lane = ?1 AND seq BETWEEN ?2 AND ?3;

-- parkFailed
INSERT INTO "outbox_parked" (lane, seq, id, topic, key, key_hash, type, content_type, headers, created_at, revision, replay, payload, state, blocking, attempts, available_at, reason)
SELECT lane, seq, id, topic, key, key_hash, type, content_type, headers, created_at, revision, replay, payload,
  f.state, CASE WHEN key_hash IS NULL THEN 0 ELSE f.blocking END, f.attempts, (CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000) + f.delay, f.reason
FROM (
  SELECT value ->> 'row' AS row, value ->> 'state' AS state, value ->> 'blocking' AS blocking,
    value ->> 'attempts' AS attempts, value ->> 'delay' AS delay, value ->> 'reason' AS reason
  FROM json_each(?2)) AS f CROSS JOIN "outbox" ON seq = f.row
WHERE +lane = ?1
ORDER BY seq
RETURNING key_hash;

-- failParked
UPDATE "outbox_parked" SET
  state = f.state, blocking = CASE WHEN key_hash IS NULL THEN 0 ELSE f.blocking END, attempts = f.attempts,
  available_at = (CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000) + f.delay, reason = f.reason
FROM (
  SELECT value ->> 'row' AS row, value ->> 'state' AS state, value ->> 'blocking' AS blocking,
    value ->> 'attempts' AS attempts, value ->> 'delay' AS delay, value ->> 'reason' AS reason
  FROM json_each(?2)) AS f
WHERE pos = f.row AND +lane = ?1
RETURNING key_hash;

-- hold
INSERT INTO "outbox_parked" (lane, seq, id, topic, key, key_hash, type, content_type, headers, created_at, revision, replay, payload, state)
SELECT lane, seq, id, topic, key, key_hash, type, content_type, headers, created_at, revision, replay, payload, 'held'
FROM "outbox"
WHERE +lane = ?1 AND seq IN (SELECT value FROM json_each(?2))
ORDER BY seq
RETURNING key_hash;

-- demote
UPDATE "outbox_parked" SET state = 'held', blocking = 0, available_at = NULL
WHERE pos IN (
  SELECT b.pos FROM json_each(?2) AS k CROSS JOIN "outbox_parked" AS b
  WHERE b.lane = ?1 AND b.key_hash = k.value AND b.blocking = 1 AND +b.state = 'retry'
    AND (EXISTS (SELECT 1 FROM "outbox_parked" AS o
                 WHERE o.lane = ?1 AND o.key_hash = k.value AND o.blocking = 1 AND o.seq < b.seq)
      OR EXISTS (SELECT 1 FROM "outbox_parked" AS o
                 WHERE o.lane = ?1 AND o.key_hash = k.value AND o.state = 'held' AND o.seq < b.seq)));

-- promote
UPDATE "outbox_parked" SET state = 'retry', blocking = 1, available_at = (CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000)
WHERE pos IN (
  SELECT h.pos FROM json_each(?2) AS k CROSS JOIN "outbox_parked" AS h
  WHERE h.pos = (SELECT f.pos FROM "outbox_parked" AS f
                 WHERE f.lane = ?1 AND f.key_hash = k.value AND f.state = 'held' ORDER BY f.seq LIMIT 1)
    AND NOT EXISTS (SELECT 1 FROM "outbox_parked" AS b
                    WHERE b.lane = ?1 AND b.key_hash = k.value AND b.blocking = 1 AND b.seq < h.seq));

-- stats
SELECT
  (SELECT count(*) FROM (SELECT 1 FROM "outbox" LIMIT ?1)),
  (SELECT count(*) FROM (SELECT 1 FROM "outbox_lane" AS l CROSS JOIN "outbox_parked" AS p
                         WHERE p.lane = l.lane AND p.state = 'scheduled' LIMIT ?1)),
  (SELECT count(*) FROM (SELECT 1 FROM "outbox_lane" AS l CROSS JOIN "outbox_parked" AS p
                         WHERE p.lane = l.lane AND p.state = 'retry' LIMIT ?1)),
  (SELECT count(*) FROM (SELECT 1 FROM "outbox_lane" AS l CROSS JOIN "outbox_parked" AS p
                         WHERE p.lane = l.lane AND p.state = 'held' LIMIT ?1)),
  (SELECT count(*) FROM (SELECT 1 FROM "outbox_lane" AS l CROSS JOIN "outbox_parked" AS p
                         WHERE p.lane = l.lane AND p.state = 'dead' LIMIT ?1)),
  (SELECT count(*) FROM (SELECT DISTINCT lane, key_hash FROM "outbox_parked" WHERE blocking = 1 LIMIT ?1)),
  max(0, ifnull(max((CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000) - (SELECT r.ready_at FROM "outbox" AS r
                                   WHERE r.lane = l.lane ORDER BY r.seq LIMIT 1)), 0),
         ifnull(max((CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000) - (SELECT min(p.available_at) FROM "outbox_parked" AS p
                                   WHERE p.lane = l.lane AND p.state = 'retry')), 0),
         ifnull(max((CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000) - (SELECT min(p.available_at) FROM "outbox_parked" AS p
                                   WHERE p.lane = l.lane AND p.state = 'scheduled')), 0)),
  ifnull(sum(l.lease_until > (CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000)), 0),
  ifnull(sum(l.lease_until <= (CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000) AND l.owner <> ''), 0),
  count(*)
FROM "outbox_lane" AS l;

-- parked
SELECT
  ifnull(p.seq, 0), p.id, p.topic, p.key, p.key_hash, p.type, p.content_type, p.headers,
  p.created_at, ifnull(p.revision, 0), max(0, (SELECT (CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000)) - p.created_at),
  4 * p.replay + (p.payload IS NULL), p.payload,
  p.lane, p.pos, p.attempts,
  p.state, p.blocking, ifnull(p.reason, ''), p.available_at - (CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000), p.parked_at
FROM "outbox_parked" AS p
WHERE p.pos > ?;

-- lanesOfIDs
SELECT DISTINCT lane FROM "outbox_parked" WHERE true;

-- lanesOf
SELECT l.lane FROM "outbox_lane" AS l
WHERE EXISTS (SELECT 1 FROM "outbox_parked" AS p WHERE p.lane = l.lane;

-- lockLane
UPDATE "outbox_lane" SET epoch = epoch WHERE lane = ?1;

-- selectParkedOfIDs
SELECT pos FROM "outbox_parked" WHERE +lane = ?;

-- selectParked
SELECT pos FROM "outbox_parked" WHERE lane = ?;

-- requeueUnplaced
UPDATE OR IGNORE "outbox_parked" SET state = 'scheduled', available_at = (CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000), attempts = 0
WHERE pos IN (SELECT value FROM json_each(?1)) AND seq IS NULL;

-- requeueKeyless
UPDATE "outbox_parked" SET
  state = 'retry', available_at = (CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000), attempts = CASE state WHEN 'dead' THEN 0 ELSE attempts END
WHERE pos IN (SELECT value FROM json_each(?1)) AND seq IS NOT NULL AND key_hash IS NULL;

-- requeueKeyed
UPDATE "outbox_parked" SET
  state = 'held', blocking = 0, available_at = NULL, attempts = CASE state WHEN 'dead' THEN 0 ELSE attempts END
WHERE pos IN (SELECT value FROM json_each(?1)) AND seq IS NOT NULL AND key_hash IS NOT NULL
RETURNING key_hash;

-- discard
INSERT INTO "outbox_done" (lane, seq, id, topic, key, key_hash, type, content_type, headers, created_at, revision, replay, payload, attempts, outcome, reason)
SELECT lane, seq, id, topic, key, key_hash, type, content_type, headers, created_at, revision, replay, payload, attempts, 'discarded', reason
FROM "outbox_parked"
WHERE +lane = ?1 AND pos IN (SELECT value FROM json_each(?2))
ORDER BY seq, pos;

-- now
SELECT (CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000);

-- selectDoneOfIDs
SELECT done_at, pos, EXISTS (SELECT 1 FROM "outbox" AS r WHERE r.id = d.id) OR EXISTS (SELECT 1 FROM "outbox_parked" AS p WHERE p.id = d.id) FROM "outbox_done" AS d
WHERE (+done_at, +pos) > (?1, ?2) AND +done_at < ?3 AND NOT EXISTS (
  SELECT 1 FROM "outbox_done" AS n WHERE n.id = d.id AND (+n.done_at, +n.pos) > (d.done_at, d.pos) AND (+n.done_at < ?3 OR +n.done_at >= ?4));

-- selectDone
SELECT done_at, pos, EXISTS (SELECT 1 FROM "outbox" AS r WHERE r.id = d.id) OR EXISTS (SELECT 1 FROM "outbox_parked" AS p WHERE p.id = d.id) FROM "outbox_done" AS d
WHERE (done_at, pos) > (?1, ?2) AND done_at < ?3 AND NOT EXISTS (
  SELECT 1 FROM "outbox_done" AS n WHERE n.id = d.id AND (+n.done_at, +n.pos) > (d.done_at, d.pos) AND (+n.done_at < ?3 OR +n.done_at >= ?4));

-- replay
INSERT INTO "outbox" (lane, id, topic, key, key_hash, type, content_type, headers, created_at, revision, replay, payload)
SELECT lane, id, topic, key, key_hash, type, content_type, headers, created_at, revision,
  1 + (SELECT max(o.replay) FROM "outbox_done" AS o WHERE o.id = d.id), payload
FROM "outbox_done" AS d
WHERE pos IN (SELECT value FROM json_each(?1))
  AND NOT EXISTS (SELECT 1 FROM "outbox_parked" AS p WHERE p.id = d.id)
ORDER BY done_at, pos
ON CONFLICT (id) DO NOTHING;

-- purgeNeeded
SELECT EXISTS (SELECT 1 FROM "outbox_done" WHERE done_at <= (CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000) - ?1);

-- purgeDone
DELETE FROM "outbox_done" WHERE pos IN (
  SELECT pos FROM "outbox_done" WHERE done_at <= (CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000) - ?1 ORDER BY done_at, pos LIMIT ?2);

-- purgeable
SELECT count(*) FROM (SELECT 1 FROM "outbox_done" WHERE done_at <= (CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000) - ?1 LIMIT ?2);

-- claimPurgeNeeded
SELECT EXISTS (SELECT 1 FROM "outbox_meta" WHERE purge_at <= (CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000));

-- claimPurge
UPDATE "outbox_meta" SET purge_at = (CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000) + ?1 WHERE purge_at <= (CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000);

-- record
INSERT INTO "outbox_inbox" (consumer, message_id) VALUES (?1, ?2)
ON CONFLICT (consumer, message_id) DO NOTHING;

-- recorded
SELECT EXISTS (SELECT 1 FROM "outbox_inbox" WHERE consumer = ?1 AND message_id = ?2);

-- purgeInboxNeeded
SELECT EXISTS (SELECT 1 FROM "outbox_inbox" WHERE recorded_at <= (CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000) - ?1);

-- purgeInbox
DELETE FROM "outbox_inbox" WHERE (consumer, message_id) IN (
  SELECT consumer, message_id FROM "outbox_inbox" WHERE recorded_at <= (CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000) - ?1
  ORDER BY recorded_at LIMIT ?2);

-- take
INSERT INTO "outbox_revision" (key_hash, key, revision)
SELECT ?1, ?2, ?3
WHERE ?4 IN (0, 1) OR EXISTS (SELECT 1 FROM "outbox_revision" WHERE key_hash = ?1 AND key = ?2)
ON CONFLICT (key_hash, key) DO UPDATE SET revision = revision + excluded.revision
WHERE ?4 IN (0, revision + 1);

-- giveBack
UPDATE "outbox_revision" SET revision = revision - ?3 WHERE key_hash = ?1 AND key = ?2;

-- lastRevision
SELECT revision FROM "outbox_revision" WHERE key_hash = ?1 AND key = ?2;

-- revisedValues
(?, ?, ?, ?, ?, ?, ?, ?, (SELECT revision FROM "outbox_revision" WHERE key_hash = ? AND key = ?) - ?, ?, ?);

-- advance
INSERT INTO "outbox_progress" (consumer, key_hash, key, revision)
SELECT ?1, ?2, ?3, ?4
WHERE ?4 = 1 OR EXISTS (SELECT 1 FROM "outbox_progress" WHERE consumer = ?1 AND key_hash = ?2 AND key = ?3)
ON CONFLICT (consumer, key_hash, key) DO UPDATE SET revision = excluded.revision
WHERE revision = excluded.revision - 1;

-- progress
SELECT revision FROM "outbox_progress" WHERE consumer = ?1 AND key_hash = ?2 AND key = ?3;

-- setProgress
INSERT INTO "outbox_progress" (consumer, key_hash, key, revision) VALUES (?1, ?2, ?3, ?4)
ON CONFLICT (consumer, key_hash, key) DO UPDATE SET revision = excluded.revision;

-- writeAudit
INSERT INTO "outbox_audit" (id, ended, who, action, selection, why, changed, failure) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8);

-- audit
SELECT b.pos, b.id, b.who, b.action, b.selection, b.why, b.written_at, e.written_at, ifnull(e.changed, 0), ifnull(e.failure, '')
FROM "outbox_audit" AS b LEFT JOIN "outbox_audit" AS e ON e.id = b.id AND e.ended = 1
WHERE b.pos < ?1 AND b.ended = 0
ORDER BY b.pos DESC LIMIT ?2;

-- viewLanes
SELECT lane, owner, epoch, lease_until - (SELECT (CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000)), CASE WHEN served_at > 0 THEN (SELECT (CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000)) - served_at END
FROM "outbox_lane" ORDER BY lane;

-- viewDone
SELECT pos, (SELECT (CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000)) - done_at, done_at - created_at, outcome = 'published' AND replay = 0
FROM "outbox_done" ORDER BY done_at DESC, pos DESC LIMIT ?1;

-- viewReasons
SELECT state, topic, ifnull(reason, '') FROM "outbox_parked" ORDER BY pos DESC LIMIT ?1;

-- viewMessage
SELECT 'ready', lane, seq, topic, key, type, 0, replay, '', (SELECT (CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000)) - created_at, (SELECT (CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000)) - ready_at, NULL
FROM "outbox" WHERE id = ?1
UNION ALL
SELECT state, lane, ifnull(seq, 0), topic, key, type, attempts, replay, ifnull(reason, ''), (SELECT (CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000)) - created_at, (SELECT (CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000)) - parked_at, available_at - (SELECT (CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000))
FROM "outbox_parked" WHERE id = ?1
UNION ALL
SELECT outcome, lane, ifnull(seq, 0), topic, key, type, attempts, replay, ifnull(reason, ''), (SELECT (CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000)) - created_at, (SELECT (CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000)) - done_at, NULL
FROM "outbox_done" WHERE id = ?1;

-- readyValues
(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- scheduledValues
(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, (CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000) + ?);

-- hasID
AND id IN (SELECT unhex(value) FROM json_each(?));

-- hasKey
AND lane = ? AND key_hash = ? AND key = ?;

-- hasTopic
AND topic = ?;

-- hasType
AND type = ?;

-- hasState
AND state IN (SELECT value FROM json_each(?));

-- requeueable
AND (state = 'dead' OR (state IN ('scheduled', 'retry') AND available_at > (CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000)));

-- parkedOrder
ORDER BY p.pos LIMIT ?;

-- selectOrder
ORDER BY seq IS NULL, seq, pos LIMIT ?;

-- selectDoneOrder
ORDER BY done_at, pos LIMIT ?;

