-- step 1: the outbox --
-- The outbox, version 1.
--
-- A message is in exactly one of three tables: ready (may go), parked (must wait, or
-- needs a person) and done (went, or was discarded). The database exists before this
-- file runs. Who needs which right is what `outbox schema --grants` prints.
--
-- Text is kept in binary columns, as the bytes of its UTF-8: no character set, no
-- collation and no padding changes or compares it. (The mysql client shows such
-- columns as text with --skip-binary-as-hex.) Times are UTC, whatever the session's
-- time zone. Each statement ends with a semicolon at the end of a line and can be run
-- again after an interruption: DDL commits by itself here, so that the version in
-- meta stays 0 until all is there.

-- meta: one row.
CREATE TABLE IF NOT EXISTS `outbox_meta` (
    one      TINYINT     NOT NULL PRIMARY KEY DEFAULT 1,
    -- The version of this schema; 0 while it is being made.
    version  INT         NOT NULL,
    -- The number of lanes, the same in the checks below.
    lanes    INT         NOT NULL,
    -- When done was last purged.
    purge_at DATETIME(6) NOT NULL DEFAULT '1970-01-01 00:00:00',
    CONSTRAINT `outbox_meta_one` CHECK (one = 1)
) ENGINE = InnoDB;

INSERT INTO `outbox_meta` (version, lanes)
SELECT n.version, 16 FROM (SELECT 0 AS version) AS n
WHERE NOT EXISTS (SELECT 1 FROM `outbox_meta` AS m);

-- ready: messages to publish, nothing else. Producers insert, a relay's settle
-- deletes, nobody updates.
CREATE TABLE IF NOT EXISTS `outbox` (
    lane         INT            NOT NULL,
    -- The order within a lane. Assigned here and nowhere else.
    seq          BIGINT         NOT NULL AUTO_INCREMENT,
    id           BINARY(16)     NOT NULL,
    topic        VARBINARY(255) NOT NULL,
    `key`        VARBINARY(512),
    -- The first 8 bytes of SHA-256 of the key, big-endian, signed.
    key_hash     BIGINT,
    type         VARBINARY(255) NOT NULL,
    content_type VARBINARY(255) NOT NULL DEFAULT 'application/json',
    -- A JSON object of strings, kept as it was written.
    headers      MEDIUMBLOB     NOT NULL DEFAULT ('{}'),
    created_at   DATETIME(6)    NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    -- The producer's version of what the key names; optional.
    revision     BIGINT,
    -- How often an operator replayed the message.
    replay       INT            NOT NULL DEFAULT 0,
    -- When the message became ready: its insert, its surfacing, its replay.
    ready_at     DATETIME(6)    NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    payload      LONGBLOB,
    -- The only order messages are read in, and the one they are stored in.
    PRIMARY KEY (lane, seq),
    -- What AUTO_INCREMENT asks for.
    KEY `outbox_seq` (seq),
    -- The same message twice is an error in the producer's transaction.
    UNIQUE KEY `outbox_id` (id),
    CONSTRAINT `outbox_key_has_hash` CHECK ((`key` IS NULL) = (key_hash IS NULL)),
    -- Refuses a producer that counts the lanes differently.
    CONSTRAINT `outbox_lane_fits` CHECK (lane BETWEEN 0 AND 16 - 1 AND (key_hash IS NULL OR
        lane = (key_hash % 16 + 16 + CASE WHEN key_hash < 0 THEN 0 ELSE 0 END) % 16))
) ENGINE = InnoDB;

-- parked: messages that wait for a time (scheduled, retry), for the row before them
-- (held) or for a person (dead).
CREATE TABLE IF NOT EXISTS `outbox_parked` (
    -- Names a parked row.
    pos          BIGINT          NOT NULL AUTO_INCREMENT PRIMARY KEY,
    lane         INT             NOT NULL,
    -- The place in the order; a message that was never ready has none.
    seq          BIGINT,
    id           BINARY(16)      NOT NULL,
    topic        VARBINARY(255)  NOT NULL,
    `key`        VARBINARY(512),
    key_hash     BIGINT,
    type         VARBINARY(255)  NOT NULL,
    content_type VARBINARY(255)  NOT NULL DEFAULT 'application/json',
    headers      MEDIUMBLOB      NOT NULL DEFAULT ('{}'),
    created_at   DATETIME(6)     NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    revision     BIGINT,
    replay       INT             NOT NULL DEFAULT 0,
    state        VARBINARY(9)    NOT NULL DEFAULT 'scheduled',
    -- This row holds back the newer messages of its key.
    blocking     TINYINT         NOT NULL DEFAULT 0,
    -- Publish attempts that failed.
    attempts     INT             NOT NULL DEFAULT 0,
    -- When a scheduled or retry message is due.
    available_at DATETIME(6),
    -- The last error.
    reason       VARBINARY(2000),
    parked_at    DATETIME(6)     NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    payload      LONGBLOB,
    -- The id while the message is scheduled, for the unique key below.
    scheduled_id BINARY(16)      GENERATED ALWAYS AS (CASE WHEN state = 'scheduled' THEN id END) STORED,
    -- What is due in a lane, by state; held and dead rows stand in it without a
    -- time, so that they can be counted by state.
    KEY `outbox_parked_due_at` (lane, state, available_at),
    -- The blocked keys.
    KEY `outbox_parked_blocked` (blocking, lane, key_hash, seq),
    -- The rows of a key; by state, so that the first held one is found at once.
    KEY `outbox_parked_key` (lane, key_hash, state, seq),
    -- For operators. Not unique: a parked message may share its id with another.
    KEY `outbox_parked_id` (id),
    -- The same delayed message twice is an error in the producer's transaction.
    UNIQUE KEY `outbox_parked_scheduled_id` (scheduled_id),
    CONSTRAINT `outbox_parked_state` CHECK (state IN ('scheduled', 'retry', 'held', 'dead')),
    CONSTRAINT `outbox_parked_due` CHECK ((state IN ('scheduled', 'retry')) = (available_at IS NOT NULL)),
    CONSTRAINT `outbox_parked_order` CHECK (state IN ('scheduled', 'dead') OR seq IS NOT NULL),
    CONSTRAINT `outbox_parked_head` CHECK (blocking = 0 OR
        (blocking = 1 AND key_hash IS NOT NULL AND seq IS NOT NULL AND state IN ('retry', 'dead'))),
    CONSTRAINT `outbox_parked_held` CHECK (state <> 'held' OR key_hash IS NOT NULL),
    CONSTRAINT `outbox_parked_key_has_hash` CHECK ((`key` IS NULL) = (key_hash IS NULL)),
    CONSTRAINT `outbox_parked_lane_fits` CHECK (lane BETWEEN 0 AND 16 - 1 AND (key_hash IS NULL OR
        lane = (key_hash % 16 + 16 + CASE WHEN key_hash < 0 THEN 0 ELSE 0 END) % 16))
) ENGINE = InnoDB;

-- done: what was published or discarded, for the retention window. Rows are added in
-- order of time and removed from the old end.
CREATE TABLE IF NOT EXISTS `outbox_done` (
    done_at      DATETIME(6)    NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    pos          BIGINT         NOT NULL AUTO_INCREMENT,
    lane         INT            NOT NULL,
    seq          BIGINT,
    id           BINARY(16)     NOT NULL,
    topic        VARBINARY(255) NOT NULL,
    `key`        VARBINARY(512),
    key_hash     BIGINT,
    type         VARBINARY(255) NOT NULL,
    content_type VARBINARY(255) NOT NULL,
    headers      MEDIUMBLOB     NOT NULL,
    created_at   DATETIME(6)    NOT NULL,
    revision     BIGINT,
    replay       INT            NOT NULL,
    -- Publish attempts, the successful one included.
    attempts     INT            NOT NULL,
    outcome      VARBINARY(9)   NOT NULL,
    reason       VARBINARY(2000),
    payload      LONGBLOB,
    -- Begins with the time, so that the table can be partitioned by it.
    PRIMARY KEY (done_at, pos),
    -- What AUTO_INCREMENT asks for.
    KEY `outbox_done_pos` (pos),
    -- For replay by id. Not unique: a replayed message is done twice.
    KEY `outbox_done_id` (id),
    CONSTRAINT `outbox_done_outcome` CHECK (outcome IN ('published', 'discarded'))
) ENGINE = InnoDB;

-- lane: who may change a lane, until when. The epoch is the fence: whoever writes
-- for a lane locks its row and finds the epoch unchanged, or writes nothing.
CREATE TABLE IF NOT EXISTS `outbox_lane` (
    lane        INT            NOT NULL PRIMARY KEY,
    epoch       BIGINT         NOT NULL DEFAULT 0,
    owner       VARBINARY(255) NOT NULL DEFAULT '',
    lease_until DATETIME(6)    NOT NULL DEFAULT '1970-01-01 00:00:00',
    served_at   DATETIME(6)    NOT NULL DEFAULT '1970-01-01 00:00:00'
) ENGINE = InnoDB;

INSERT INTO `outbox_lane` (lane)
WITH RECURSIVE digit (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM digit WHERE n < 31)
SELECT a.n * 32 + b.n FROM digit AS a CROSS JOIN digit AS b
WHERE a.n * 32 + b.n < 16 AND NOT EXISTS (SELECT 1 FROM `outbox_lane` AS l WHERE l.lane = a.n * 32 + b.n);

-- inbox: the messages a consumer has processed.
CREATE TABLE IF NOT EXISTS `outbox_inbox` (
    consumer    VARBINARY(512)  NOT NULL,
    message_id  VARBINARY(2048) NOT NULL,
    recorded_at DATETIME(6)     NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    PRIMARY KEY (consumer, message_id),
    -- For the purge.
    KEY `outbox_inbox_recorded_at` (recorded_at)
) ENGINE = InnoDB;

UPDATE `outbox_meta` SET version = 1 WHERE one = 1 AND version = 0;

-- For a session with autocommit=0.
COMMIT;

-- step 2: revisions --
-- The outbox, version 2: revisions, which count the messages of every key.
--
-- Both tables stay empty unless an outbox or an inbox uses revisions. A key is its
-- hash and its exact bytes. Who needs which right is what `outbox schema --grants` prints: run that
-- again. An interruption is completed by running this file again.

-- revision: the last revision of a key. A producer's transaction updates the row, and
-- so producers of one key take turns.
CREATE TABLE IF NOT EXISTS `outbox_revision` (
    key_hash BIGINT         NOT NULL,
    `key`    VARBINARY(512) NOT NULL,
    revision BIGINT         NOT NULL,
    PRIMARY KEY (key_hash, `key`),
    CONSTRAINT `outbox_revision_counts` CHECK (revision >= 0)
) ENGINE = InnoDB;

-- progress: the last revision of a key that a consumer has handled.
CREATE TABLE IF NOT EXISTS `outbox_progress` (
    consumer VARBINARY(512) NOT NULL,
    key_hash BIGINT         NOT NULL,
    `key`    VARBINARY(512) NOT NULL,
    revision BIGINT         NOT NULL,
    PRIMARY KEY (consumer, key_hash, `key`),
    CONSTRAINT `outbox_progress_counts` CHECK (revision >= 0)
) ENGINE = InnoDB;

UPDATE `outbox_meta` SET version = 2 WHERE one = 1 AND version = 1;

-- For a session with autocommit=0.
COMMIT;

-- step 3: the audit --
-- The outbox, version 3: the audit, which keeps what operators did.
--
-- Nothing here changes or deletes a row: what is older than you must keep, delete. Who
-- needs which right is what `outbox schema --grants` prints: run that again. An interruption is
-- completed by running this file again.

-- audit: an action has two rows with one id, that it begins and how it ended.
CREATE TABLE IF NOT EXISTS `outbox_audit` (
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
    UNIQUE KEY `outbox_audit_id` (id, ended),
    CONSTRAINT `outbox_audit_ends` CHECK ((ended = 0 AND changed IS NULL) OR (ended = 1 AND changed IS NOT NULL))
) ENGINE = InnoDB;

UPDATE `outbox_meta` SET version = 3 WHERE one = 1 AND version = 2;

-- For a session with autocommit=0.
COMMIT;

-- poll --
-- When there are more ready rows than were looked at: reads the lane rows, and of each
-- lane one entry of ready's primary key, the newest, because rows deleted but not yet
-- purged lie at the other end, and two of parked_due_at. Locks nothing.
SELECT l.lane, l.epoch, COALESCE(((SELECT p.available_at FROM `outbox_parked` AS p FORCE INDEX (`outbox_parked_due_at`)
         WHERE p.lane = l.lane AND p.state = 'retry' ORDER BY p.lane, p.available_at LIMIT 1) <= UTC_TIMESTAMP(6)
    OR (SELECT p.available_at FROM `outbox_parked` AS p FORCE INDEX (`outbox_parked_due_at`)
         WHERE p.lane = l.lane AND p.state = 'scheduled' ORDER BY p.lane, p.available_at LIMIT 1) <= UTC_TIMESTAMP(6)), 0)
FROM `outbox_lane` AS l
WHERE (l.lease_until <= UTC_TIMESTAMP(6) OR l.owner = ?)
  AND ((SELECT r.seq FROM `outbox` AS r FORCE INDEX (PRIMARY)
         WHERE r.lane = l.lane ORDER BY r.lane DESC, r.seq DESC LIMIT 1) IS NOT NULL
    OR ((SELECT p.available_at FROM `outbox_parked` AS p FORCE INDEX (`outbox_parked_due_at`)
         WHERE p.lane = l.lane AND p.state = 'retry' ORDER BY p.lane, p.available_at LIMIT 1) <= UTC_TIMESTAMP(6)
    OR (SELECT p.available_at FROM `outbox_parked` AS p FORCE INDEX (`outbox_parked_due_at`)
         WHERE p.lane = l.lane AND p.state = 'scheduled' ORDER BY p.lane, p.available_at LIMIT 1) <= UTC_TIMESTAMP(6)))
ORDER BY CASE WHEN l.served_at <= UTC_TIMESTAMP(6) THEN l.served_at ELSE TIMESTAMP'1970-01-01 00:00:00' END, l.lane
LIMIT ?

-- look --
-- What a poll wants to know, in one round trip where it needs no transaction: of the
-- first ready rows above a floor, one range of the index on seq, how many there are of
-- each lane; and of each free lane whether a parked row is due, by two entries of
-- parked_due_at, and when it was served. Locks nothing.
SELECT @@autocommit, m.lane, 0, COUNT(*), 0, NULL
FROM (SELECT r.lane, r.seq FROM `outbox` AS r FORCE INDEX (`outbox_seq`) WHERE r.seq > ? ORDER BY r.seq LIMIT ?) AS m
GROUP BY m.lane
UNION ALL
SELECT @@autocommit, l.lane, l.epoch, 0, COALESCE(((SELECT p.available_at FROM `outbox_parked` AS p FORCE INDEX (`outbox_parked_due_at`)
         WHERE p.lane = l.lane AND p.state = 'retry' ORDER BY p.lane, p.available_at LIMIT 1) <= UTC_TIMESTAMP(6)
    OR (SELECT p.available_at FROM `outbox_parked` AS p FORCE INDEX (`outbox_parked_due_at`)
         WHERE p.lane = l.lane AND p.state = 'scheduled' ORDER BY p.lane, p.available_at LIMIT 1) <= UTC_TIMESTAMP(6)), 0), TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'1970-01-01 00:00:00', CASE WHEN l.served_at <= UTC_TIMESTAMP(6) THEN l.served_at ELSE TIMESTAMP'1970-01-01 00:00:00' END)
FROM `outbox_lane` AS l
WHERE (l.lease_until <= UTC_TIMESTAMP(6) OR l.owner = ?)

-- readyAbove --
-- The first ready rows above a floor, one range of the index on seq.
SELECT r.lane, r.seq FROM `outbox` AS r FORCE INDEX (`outbox_seq`) WHERE r.seq > ? ORDER BY r.seq LIMIT ?

-- newest --
-- The number that the next ready row will get stands in it. The information schema
-- knows it too, but on MySQL as it was up to a day ago.
SHOW CREATE TABLE `outbox`

-- pending --
-- As poll, over all lanes.
SELECT
    COALESCE(MAX((SELECT r.seq FROM `outbox` AS r FORCE INDEX (PRIMARY)
         WHERE r.lane = l.lane ORDER BY r.lane DESC, r.seq DESC LIMIT 1) IS NOT NULL
    OR COALESCE(((SELECT p.available_at FROM `outbox_parked` AS p FORCE INDEX (`outbox_parked_due_at`)
         WHERE p.lane = l.lane AND p.state = 'retry' ORDER BY p.lane, p.available_at LIMIT 1) <= UTC_TIMESTAMP(6)
    OR (SELECT p.available_at FROM `outbox_parked` AS p FORCE INDEX (`outbox_parked_due_at`)
         WHERE p.lane = l.lane AND p.state = 'scheduled' ORDER BY p.lane, p.available_at LIMIT 1) <= UTC_TIMESTAMP(6)), 0)), 0),
    COALESCE(MAX(l.lease_until > UTC_TIMESTAMP(6) AND l.owner <> ?), 0)
FROM `outbox_lane` AS l

-- lease --
-- Whether there is a lease. Locks nothing.
SELECT COUNT(*) FROM `outbox_lane` WHERE lane = ? AND owner = ? AND epoch = ?

-- claim --
-- Locks one lane row by primary key, or passes by when another session has it.
SELECT epoch FROM `outbox_lane`
WHERE lane = ? AND (lease_until <= UTC_TIMESTAMP(6) OR owner = ?)
FOR UPDATE SKIP LOCKED

-- own --
-- Under the lock of claim.
UPDATE `outbox_lane`
SET owner = ?, epoch = epoch + 1, served_at = UTC_TIMESTAMP(6), lease_until = UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND
WHERE lane = ?

-- fence --
-- The fence: waits for the lane row's lock, then finds the lease in its newest
-- version. A row is the lease; a number of changed rows would not tell.
SELECT epoch FROM `outbox_lane` WHERE lane = ? AND owner = ? AND epoch = ? FOR UPDATE

-- extend --
-- Behind the fence.
UPDATE `outbox_lane` SET lease_until = UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND WHERE lane = ?

-- release --
-- One lane row by primary key, with the fence: the inner query locks it, or passes by.
UPDATE (
    SELECT c.lane FROM `outbox_lane` AS c FORCE INDEX (PRIMARY)
    WHERE c.lane = ? AND c.owner = ? AND c.epoch = ?
    LIMIT 1 FOR UPDATE SKIP LOCKED
) AS n
STRAIGHT_JOIN `outbox_lane` AS l FORCE INDEX (PRIMARY) ON l.lane = n.lane
SET l.owner = '', l.epoch = LAST_INSERT_ID(l.epoch * 2 + @@autocommit) DIV 2, l.lease_until = UTC_TIMESTAMP(6)

-- end --
-- Behind the fence. Without an owner the epoch alone opens no fence.
UPDATE `outbox_lane` SET owner = '', lease_until = UTC_TIMESTAMP(6) WHERE lane = ?

-- insert --
INSERT INTO `outbox` (lane, id, topic, `key`, key_hash, type, content_type, payload, headers, revision, replay)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?), (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- schedule --
INSERT INTO `outbox_parked` (lane, id, topic, `key`, key_hash, type, content_type, payload, headers, revision, replay, available_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND), (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND)

-- dueScheduled --
-- Along parked_due_at; whether the id is ready already is one entry of ready's
-- index on id a row.
SELECT p.pos, p.id, (SELECT 1 FROM `outbox` AS r FORCE INDEX (`outbox_id`) WHERE r.id = p.id LIMIT 1) IS NOT NULL
FROM `outbox_parked` AS p FORCE INDEX (`outbox_parked_due_at`)
WHERE p.lane = ? AND p.state = 'scheduled' AND p.available_at <= UTC_TIMESTAMP(6)
ORDER BY p.available_at, p.pos
LIMIT ?

-- surface --
-- By parked's primary key, in the order of the list.
INSERT INTO `outbox` (lane, id, topic, `key`, key_hash, type, content_type, payload, headers, created_at, revision, replay)
SELECT p.lane, p.id, p.topic, p.`key`, p.key_hash, p.type, p.content_type, p.payload, p.headers, p.created_at, p.revision, p.replay
FROM JSON_TABLE(?, '$[*]' COLUMNS (nth FOR ORDINALITY, pos BIGINT PATH '$')) AS n
STRAIGHT_JOIN `outbox_parked` AS p FORCE INDEX (PRIMARY) ON p.pos = n.pos
ORDER BY n.nth

-- surfacedTwice --
-- By parked's primary key.
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (nth FOR ORDINALITY, pos BIGINT PATH '$')) AS n
STRAIGHT_JOIN `outbox_parked` AS p FORCE INDEX (PRIMARY) ON p.pos = n.pos
SET p.state = 'dead', p.available_at = NULL, p.reason = ?

-- deleteParked --
-- By parked's primary key.
DELETE p FROM JSON_TABLE(?, '$[*]' COLUMNS (nth FOR ORDINALITY, place BIGINT PATH '$[0]', id CHAR(32) PATH '$[1]')) AS n
STRAIGHT_JOIN `outbox_parked` AS p FORCE INDEX (PRIMARY) ON p.pos = n.place AND p.id = UNHEX(n.id)
WHERE p.lane = ?

-- readyCount --
-- The time, and how many the first ready rows above a floor are, one range of the index on
-- seq.
SELECT TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'1970-01-01 00:00:00', UTC_TIMESTAMP(6)), COUNT(*)
FROM (SELECT r.lane, r.seq FROM `outbox` AS r FORCE INDEX (`outbox_seq`) WHERE r.seq > ? ORDER BY r.seq LIMIT ?) AS m

-- ready --
-- One range of ready's primary key.
SELECT m.seq,
    CASE WHEN (SELECT 1 FROM `outbox_parked` AS p FORCE INDEX (`outbox_parked_blocked`)
               WHERE p.blocking = 1 AND p.lane = ? LIMIT 1) IS NULL
    THEN 0
    ELSE (SELECT 1 FROM `outbox_parked` AS p FORCE INDEX (`outbox_parked_blocked`)
          WHERE p.blocking = 1 AND p.lane = m.lane AND p.key_hash = m.key_hash LIMIT 1) IS NOT NULL
    END,
    CASE WHEN LENGTH(m.headers) + COALESCE(LENGTH(m.payload), 0) <= ? THEN NULL ELSE LENGTH(m.headers) + COALESCE(LENGTH(m.payload), 0) * 16777216 END,
    CASE WHEN LENGTH(m.headers) + COALESCE(LENGTH(m.payload), 0) <= ? THEN NULLIF(m.headers, '{}') END, CASE WHEN LENGTH(m.headers) + COALESCE(LENGTH(m.payload), 0) <= ? THEN m.payload END,
    CONCAT(m.id, m.topic), m.`key`, m.key_hash, m.type, NULLIF(m.content_type, 'application/json'), COALESCE(m.revision, 0), m.replay,
    TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'1970-01-01 00:00:00', m.created_at), TIMESTAMPDIFF(MICROSECOND, m.created_at, m.ready_at)
FROM `outbox` AS m FORCE INDEX (PRIMARY)
WHERE m.lane = ? AND m.seq >= ?
ORDER BY m.seq
LIMIT ?

-- readyFew --
-- The lane's among the first ready rows above a floor, each by ready's primary key, with the
-- time and with how many there are of all lanes.
SELECT m.seq,
    CASE WHEN (SELECT 1 FROM `outbox_parked` AS p FORCE INDEX (`outbox_parked_blocked`)
               WHERE p.blocking = 1 AND p.lane = ? LIMIT 1) IS NULL
    THEN 0
    ELSE (SELECT 1 FROM `outbox_parked` AS p FORCE INDEX (`outbox_parked_blocked`)
          WHERE p.blocking = 1 AND p.lane = m.lane AND p.key_hash = m.key_hash LIMIT 1) IS NOT NULL
    END,
    CASE WHEN LENGTH(m.headers) + COALESCE(LENGTH(m.payload), 0) <= ? THEN NULL ELSE LENGTH(m.headers) + COALESCE(LENGTH(m.payload), 0) * 16777216 END,
    CASE WHEN LENGTH(m.headers) + COALESCE(LENGTH(m.payload), 0) <= ? THEN NULLIF(m.headers, '{}') END, CASE WHEN LENGTH(m.headers) + COALESCE(LENGTH(m.payload), 0) <= ? THEN m.payload END,
    CONCAT(m.id, m.topic), m.`key`, m.key_hash, m.type, NULLIF(m.content_type, 'application/json'), COALESCE(m.revision, 0), m.replay,
    TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'1970-01-01 00:00:00', m.created_at), TIMESTAMPDIFF(MICROSECOND, m.created_at, m.ready_at),
    TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'1970-01-01 00:00:00', UTC_TIMESTAMP(6)), (SELECT COUNT(*) FROM (SELECT r.lane, r.seq FROM `outbox` AS r FORCE INDEX (`outbox_seq`) WHERE r.seq > ? ORDER BY r.seq LIMIT ?) AS a)
FROM (SELECT r.lane, r.seq FROM `outbox` AS r FORCE INDEX (`outbox_seq`) WHERE r.seq > ? ORDER BY r.seq LIMIT ?) AS f
STRAIGHT_JOIN `outbox` AS m FORCE INDEX (PRIMARY) ON m.lane = f.lane AND m.seq = f.seq
WHERE f.lane = ?
ORDER BY f.seq
LIMIT ?

-- readyBodies --
-- By ready's primary key.
SELECT n.place, r.headers, CASE WHEN n.wanted = 1 THEN r.payload END
FROM JSON_TABLE(?, '$[*]' COLUMNS (place BIGINT PATH '$[0]', wanted INT PATH '$[1]')) AS n
STRAIGHT_JOIN `outbox` AS r FORCE INDEX (PRIMARY) ON r.lane = ? AND r.seq = n.place

-- parkedBodies --
-- By parked's primary key.
SELECT n.place, p.headers, CASE WHEN n.wanted = 1 THEN p.payload END
FROM JSON_TABLE(?, '$[*]' COLUMNS (place BIGINT PATH '$[0]', wanted INT PATH '$[1]')) AS n
STRAIGHT_JOIN `outbox_parked` AS p FORCE INDEX (PRIMARY) ON p.lane = ? AND p.pos = n.place

-- dueHeads --
-- Along parked_due_at.
SELECT p.pos, p.seq, p.key_hash, p.blocking, LENGTH(p.headers) + COALESCE(LENGTH(p.payload), 0)
FROM `outbox_parked` AS p FORCE INDEX (`outbox_parked_due_at`)
WHERE p.lane = ? AND p.state = 'retry' AND p.available_at <= UTC_TIMESTAMP(6)
ORDER BY p.available_at, p.pos
LIMIT ?

-- dueBarrier --
-- The next row that blocks the key by itself, should there be one, by parked_blocked.
SELECT b.seq FROM `outbox_parked` AS b FORCE INDEX (`outbox_parked_blocked`)
WHERE b.blocking = 1 AND b.lane = ? AND b.key_hash = ? AND b.seq > ?
ORDER BY b.seq LIMIT 1

-- dueHeld --
-- The first held rows of a key, along parked_key.
SELECT p.pos, p.seq, p.key_hash, p.blocking, LENGTH(p.headers) + COALESCE(LENGTH(p.payload), 0)
FROM `outbox_parked` AS p FORCE INDEX (`outbox_parked_key`)
WHERE p.lane = ? AND p.key_hash = ? AND p.state = 'held' AND p.seq < ?
ORDER BY p.seq
LIMIT ?

-- readParked --
-- By parked's primary key, in the order of the list.
SELECT COALESCE(m.seq, 0), 0,
    CASE WHEN LENGTH(m.headers) + COALESCE(LENGTH(m.payload), 0) <= ? THEN NULL ELSE LENGTH(m.headers) + COALESCE(LENGTH(m.payload), 0) * 16777216 END,
    CASE WHEN LENGTH(m.headers) + COALESCE(LENGTH(m.payload), 0) <= ? THEN NULLIF(m.headers, '{}') END, CASE WHEN LENGTH(m.headers) + COALESCE(LENGTH(m.payload), 0) <= ? THEN m.payload END,
    CONCAT(m.id, m.topic), m.`key`, m.key_hash, m.type, NULLIF(m.content_type, 'application/json'), COALESCE(m.revision, 0), m.replay,
    TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'1970-01-01 00:00:00', m.created_at), TIMESTAMPDIFF(MICROSECOND, m.created_at, UTC_TIMESTAMP(6)), m.pos, m.attempts
FROM JSON_TABLE(?, '$[*]' COLUMNS (nth FOR ORDINALITY, pos BIGINT PATH '$')) AS n
STRAIGHT_JOIN `outbox_parked` AS m FORCE INDEX (PRIMARY) ON m.pos = n.pos
ORDER BY n.nth

-- settle --
-- The fence of a settle, which renews the lease. The time is that from before a wait for
-- the lock, which is what the lease's owner counts from. A renewal that began later and
-- had the lock first stays; what is further ahead is from before the clock was set back.
UPDATE `outbox_lane`
SET lease_until = IF(lease_until BETWEEN UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND AND UTC_TIMESTAMP(6) + INTERVAL 2 * ? MICROSECOND,
        lease_until, UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND),
    served_at = UTC_TIMESTAMP(6)
WHERE lane = ? AND owner = ? AND epoch = ?

-- keysOfReady --
SELECT DISTINCT r.key_hash
FROM JSON_TABLE(?, '$[*]' COLUMNS (nth FOR ORDINALITY, place BIGINT PATH '$[0]', id CHAR(32) PATH '$[1]')) AS n
STRAIGHT_JOIN `outbox` AS r FORCE INDEX (PRIMARY) ON r.lane = ? AND r.seq = n.place AND r.id = UNHEX(n.id)
WHERE r.key_hash IS NOT NULL

-- keysOfParked --
SELECT DISTINCT p.key_hash
FROM JSON_TABLE(?, '$[*]' COLUMNS (nth FOR ORDINALITY, place BIGINT PATH '$[0]', id CHAR(32) PATH '$[1]')) AS n
STRAIGHT_JOIN `outbox_parked` AS p FORCE INDEX (PRIMARY) ON p.pos = n.place AND p.id = UNHEX(n.id)
WHERE p.lane = ? AND p.key_hash IS NOT NULL

-- archiveReady --
INSERT INTO `outbox_done` (lane, seq, id, topic, `key`, key_hash, type, content_type, payload, headers, created_at, revision, replay, attempts, outcome)
SELECT r.lane, r.seq, r.id, r.topic, r.`key`, r.key_hash, r.type, r.content_type, r.payload, r.headers, r.created_at, r.revision, r.replay, 1, 'published'
FROM JSON_TABLE(?, '$[*]' COLUMNS (nth FOR ORDINALITY, place BIGINT PATH '$[0]', id CHAR(32) PATH '$[1]')) AS n
STRAIGHT_JOIN `outbox` AS r FORCE INDEX (PRIMARY) ON r.lane = ? AND r.seq = n.place AND r.id = UNHEX(n.id)
ORDER BY r.seq

-- archiveOne --
INSERT INTO `outbox_done` (lane, seq, id, topic, `key`, key_hash, type, content_type, payload, headers, created_at, revision, replay, attempts, outcome)
SELECT r.lane, r.seq, r.id, r.topic, r.`key`, r.key_hash, r.type, r.content_type, r.payload, r.headers, r.created_at, r.revision, r.replay, 1, 'published'
FROM `outbox` AS r
WHERE r.lane = ? AND r.seq = ? AND r.id = ?

-- archiveParked --
INSERT INTO `outbox_done` (lane, seq, id, topic, `key`, key_hash, type, content_type, payload, headers, created_at, revision, replay, attempts, outcome, reason)
SELECT p.lane, p.seq, p.id, p.topic, p.`key`, p.key_hash, p.type, p.content_type, p.payload, p.headers, p.created_at, p.revision, p.replay,
    p.attempts + 1, 'published', p.reason
FROM JSON_TABLE(?, '$[*]' COLUMNS (nth FOR ORDINALITY, place BIGINT PATH '$[0]', id CHAR(32) PATH '$[1]')) AS n
STRAIGHT_JOIN `outbox_parked` AS p FORCE INDEX (PRIMARY) ON p.pos = n.place AND p.id = UNHEX(n.id)
WHERE p.lane = ?
ORDER BY n.nth

-- fail --
INSERT INTO `outbox_parked` (lane, seq, id, topic, `key`, key_hash, type, content_type, payload, headers, created_at, revision, replay,
    attempts, reason, blocking, state, available_at)
SELECT r.lane, r.seq, r.id, r.topic, r.`key`, r.key_hash, r.type, r.content_type, r.payload, r.headers, r.created_at, r.revision, r.replay,
    f.attempts, UNHEX(f.reason), f.blocking = 1 AND r.key_hash IS NOT NULL,
    CASE WHEN f.dead = 1 THEN 'dead' ELSE 'retry' END,
    CASE WHEN f.dead = 0 THEN UTC_TIMESTAMP(6) + INTERVAL f.delay MICROSECOND END
FROM JSON_TABLE(?, '$[*]' COLUMNS (
    place BIGINT PATH '$[0]', id CHAR(32) PATH '$[1]', attempts INT PATH '$[2]', dead INT PATH '$[3]', blocking INT PATH '$[4]',
    delay BIGINT PATH '$[5]', reason VARCHAR(4000) PATH '$[6]')) AS f
STRAIGHT_JOIN `outbox` AS r FORCE INDEX (PRIMARY) ON r.lane = ? AND r.seq = f.place AND r.id = UNHEX(f.id)
ORDER BY r.seq

-- failParked --
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (
    place BIGINT PATH '$[0]', id CHAR(32) PATH '$[1]', attempts INT PATH '$[2]', dead INT PATH '$[3]', blocking INT PATH '$[4]',
    delay BIGINT PATH '$[5]', reason VARCHAR(4000) PATH '$[6]')) AS f
STRAIGHT_JOIN `outbox_parked` AS p FORCE INDEX (PRIMARY) ON p.pos = f.place AND p.id = UNHEX(f.id)
SET p.attempts = f.attempts, p.reason = UNHEX(f.reason), p.blocking = (f.blocking = 1 AND p.key_hash IS NOT NULL),
    p.state = CASE WHEN f.dead = 1 THEN 'dead' ELSE 'retry' END,
    p.available_at = CASE WHEN f.dead = 0 THEN UTC_TIMESTAMP(6) + INTERVAL f.delay MICROSECOND END
WHERE p.lane = ?

-- hold --
INSERT INTO `outbox_parked` (lane, seq, id, topic, `key`, key_hash, type, content_type, payload, headers, created_at, revision, replay, state)
SELECT r.lane, r.seq, r.id, r.topic, r.`key`, r.key_hash, r.type, r.content_type, r.payload, r.headers, r.created_at, r.revision, r.replay, 'held'
FROM JSON_TABLE(?, '$[*]' COLUMNS (nth FOR ORDINALITY, place BIGINT PATH '$[0]', id CHAR(32) PATH '$[1]')) AS n
STRAIGHT_JOIN `outbox` AS r FORCE INDEX (PRIMARY) ON r.lane = ? AND r.seq = n.place AND r.id = UNHEX(n.id)
ORDER BY r.seq

-- deleteReady --
DELETE r FROM JSON_TABLE(?, '$[*]' COLUMNS (nth FOR ORDINALITY, place BIGINT PATH '$[0]', id CHAR(32) PATH '$[1]')) AS n
STRAIGHT_JOIN `outbox` AS r FORCE INDEX (PRIMARY) ON r.lane = ? AND r.seq = n.place AND r.id = UNHEX(n.id)

-- deleteOne --
DELETE FROM `outbox` WHERE lane = ? AND seq = ? AND id = ?

-- demote --
-- A retry that blocks and is not the first waits. By parked_blocked, and the first
-- held row by parked_key.
UPDATE (
    SELECT DISTINCT b.pos
    FROM JSON_TABLE(?, '$[*]' COLUMNS (key_hash BIGINT PATH '$')) AS n
    STRAIGHT_JOIN `outbox_parked` AS b FORCE INDEX (`outbox_parked_blocked`)
       ON b.blocking = 1 AND b.lane = ? AND b.key_hash = n.key_hash
    WHERE b.state = 'retry'
      AND ((SELECT o.seq FROM `outbox_parked` AS o FORCE INDEX (`outbox_parked_blocked`)
            WHERE o.blocking = 1 AND o.lane = b.lane AND o.key_hash = b.key_hash ORDER BY o.lane, o.key_hash, o.seq LIMIT 1) < b.seq
        OR (SELECT o.seq FROM `outbox_parked` AS o FORCE INDEX (`outbox_parked_key`)
            WHERE o.lane = b.lane AND o.key_hash = b.key_hash AND o.state = 'held' ORDER BY o.lane, o.key_hash, o.seq LIMIT 1) < b.seq)
) AS d
STRAIGHT_JOIN `outbox_parked` AS p FORCE INDEX (PRIMARY) ON p.pos = d.pos
SET p.state = 'held', p.blocking = 0, p.available_at = NULL

-- promote --
-- The first held row becomes the head when no row that blocks stands before it. By
-- parked_key and parked_blocked, one entry each a key.
UPDATE (
    SELECT DISTINCT h.pos
    FROM JSON_TABLE(?, '$[*]' COLUMNS (key_hash BIGINT PATH '$')) AS n
    STRAIGHT_JOIN `outbox_parked` AS h FORCE INDEX (PRIMARY)
       ON h.pos = (SELECT o.pos FROM `outbox_parked` AS o FORCE INDEX (`outbox_parked_key`)
                   WHERE o.lane = ? AND o.key_hash = n.key_hash AND o.state = 'held' ORDER BY o.lane, o.key_hash, o.seq LIMIT 1)
    WHERE COALESCE((SELECT o.seq FROM `outbox_parked` AS o FORCE INDEX (`outbox_parked_blocked`)
                    WHERE o.blocking = 1 AND o.lane = h.lane AND o.key_hash = h.key_hash
                    ORDER BY o.lane, o.key_hash, o.seq LIMIT 1) > h.seq, 1) = 1
) AS d
STRAIGHT_JOIN `outbox_parked` AS p FORCE INDEX (PRIMARY) ON p.pos = d.pos
SET p.state = 'retry', p.blocking = 1, p.available_at = UTC_TIMESTAMP(6)

-- stats --
-- Counts go along ready's primary key, parked_due_at and parked_blocked, and stop at
-- the limit.
SELECT
    (SELECT COUNT(*) FROM (SELECT 1 FROM `outbox` AS r LIMIT ?) AS c),
    (SELECT COUNT(*) FROM (
        SELECT 1 FROM `outbox_lane` AS l STRAIGHT_JOIN `outbox_parked` AS p FORCE INDEX (`outbox_parked_due_at`)
        ON p.lane = l.lane AND p.state = 'scheduled' LIMIT ?) AS c),
    (SELECT COUNT(*) FROM (
        SELECT 1 FROM `outbox_lane` AS l STRAIGHT_JOIN `outbox_parked` AS p FORCE INDEX (`outbox_parked_due_at`)
        ON p.lane = l.lane AND p.state = 'retry' LIMIT ?) AS c),
    (SELECT COUNT(*) FROM (
        SELECT 1 FROM `outbox_lane` AS l STRAIGHT_JOIN `outbox_parked` AS p FORCE INDEX (`outbox_parked_due_at`)
        ON p.lane = l.lane AND p.state = 'held' LIMIT ?) AS c),
    (SELECT COUNT(*) FROM (
        SELECT 1 FROM `outbox_lane` AS l STRAIGHT_JOIN `outbox_parked` AS p FORCE INDEX (`outbox_parked_due_at`)
        ON p.lane = l.lane AND p.state = 'dead' LIMIT ?) AS c),
    (SELECT COUNT(*) FROM (
        SELECT DISTINCT p.lane, p.key_hash FROM `outbox_parked` AS p FORCE INDEX (`outbox_parked_blocked`)
        WHERE p.blocking = 1 LIMIT ?) AS c),
    (SELECT COALESCE(GREATEST(0,
        COALESCE(MAX(TIMESTAMPDIFF(MICROSECOND, (
            SELECT r.ready_at FROM `outbox` AS r FORCE INDEX (PRIMARY)
            WHERE r.lane = l.lane ORDER BY r.lane, r.seq LIMIT 1), UTC_TIMESTAMP(6))), 0),
        COALESCE(MAX(TIMESTAMPDIFF(MICROSECOND, (
            SELECT p.available_at FROM `outbox_parked` AS p FORCE INDEX (`outbox_parked_due_at`)
            WHERE p.lane = l.lane AND p.state = 'retry' ORDER BY p.lane, p.available_at LIMIT 1), UTC_TIMESTAMP(6))), 0)), 0)
     FROM `outbox_lane` AS l),
    (SELECT COUNT(*) FROM `outbox_lane` WHERE owner <> '' AND lease_until > UTC_TIMESTAMP(6)),
    (SELECT COUNT(*) FROM `outbox_lane` WHERE owner <> '' AND lease_until <= UTC_TIMESTAMP(6)),
    (SELECT COUNT(*) FROM `outbox_lane`)

-- lockLane --
-- Waits for whoever is changing the lane, and keeps others from it.
SELECT lane FROM `outbox_lane` WHERE lane = ? FOR UPDATE

-- requeueWaiting --
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (nth FOR ORDINALITY, pos BIGINT PATH '$')) AS n
STRAIGHT_JOIN `outbox_parked` AS p FORCE INDEX (PRIMARY) ON p.pos = n.pos
SET p.available_at = UTC_TIMESTAMP(6)

-- requeueUnplaced --
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (nth FOR ORDINALITY, pos BIGINT PATH '$')) AS n
STRAIGHT_JOIN `outbox_parked` AS p FORCE INDEX (PRIMARY) ON p.pos = n.pos
SET p.state = 'scheduled', p.available_at = UTC_TIMESTAMP(6), p.attempts = 0

-- requeueKeyless --
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (nth FOR ORDINALITY, pos BIGINT PATH '$')) AS n
STRAIGHT_JOIN `outbox_parked` AS p FORCE INDEX (PRIMARY) ON p.pos = n.pos
SET p.state = 'retry', p.available_at = UTC_TIMESTAMP(6), p.attempts = 0

-- requeueKeyed --
-- The rows wait for demote and promote, which find the head of each key.
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (nth FOR ORDINALITY, pos BIGINT PATH '$')) AS n
STRAIGHT_JOIN `outbox_parked` AS p FORCE INDEX (PRIMARY) ON p.pos = n.pos
SET p.state = 'held', p.blocking = 0, p.available_at = NULL, p.attempts = 0

-- discard --
-- By parked's primary key, under the lane row's lock.
INSERT INTO `outbox_done` (lane, seq, id, topic, `key`, key_hash, type, content_type, payload, headers, created_at, revision, replay, attempts, outcome, reason)
SELECT p.lane, p.seq, p.id, p.topic, p.`key`, p.key_hash, p.type, p.content_type, p.payload, p.headers, p.created_at, p.revision, p.replay,
    p.attempts, 'discarded', p.reason
FROM JSON_TABLE(?, '$[*]' COLUMNS (nth FOR ORDINALITY, pos BIGINT PATH '$')) AS n
STRAIGHT_JOIN `outbox_parked` AS p FORCE INDEX (PRIMARY) ON p.pos = n.pos
WHERE p.lane = ?
ORDER BY n.nth

-- replay --
-- By done's primary key. Inserts as a producer does, and locks no lane. The count is
-- above that of all done rows of the id, so that a second replay differs from the first.
INSERT INTO `outbox` (lane, id, topic, `key`, key_hash, type, content_type, payload, headers, created_at, revision, replay)
SELECT d.lane, d.id, d.topic, d.`key`, d.key_hash, d.type, d.content_type, d.payload, d.headers, d.created_at, d.revision,
    1 + (SELECT MAX(o.replay) FROM `outbox_done` AS o FORCE INDEX (`outbox_done_id`) WHERE o.id = d.id)
FROM JSON_TABLE(?, '$[*]' COLUMNS (nth FOR ORDINALITY, done_at BIGINT PATH '$[0]', pos BIGINT PATH '$[1]')) AS n
STRAIGHT_JOIN `outbox_done` AS d FORCE INDEX (PRIMARY) ON d.done_at = TIMESTAMP'1970-01-01 00:00:00' + INTERVAL n.done_at MICROSECOND AND d.pos = n.pos
ORDER BY n.nth

-- choosePurge --
-- From the old end of done's primary key.
SELECT TIMESTAMPDIFF(MICROSECOND, d.done_at, TIMESTAMP'2100-01-01 00:00:00'), d.pos FROM `outbox_done` AS d FORCE INDEX (PRIMARY)
WHERE d.done_at <= UTC_TIMESTAMP(6) - INTERVAL ? MICROSECOND
ORDER BY d.done_at, d.pos
LIMIT ?
FOR UPDATE SKIP LOCKED

-- purge --
-- By done's primary key, for a place alone may be several rows' where done was put into
-- partitions. The rows are locked.
DELETE d FROM JSON_TABLE(?, '$[*]' COLUMNS (before_then BIGINT PATH '$[0]', pos BIGINT PATH '$[1]')) AS n
STRAIGHT_JOIN `outbox_done` AS d FORCE INDEX (PRIMARY) ON d.done_at = TIMESTAMP'2100-01-01 00:00:00' - INTERVAL n.before_then MICROSECOND AND d.pos = n.pos

-- purgeable --
-- From the old end of done's primary key.
SELECT COUNT(*) FROM (
    SELECT 1 FROM `outbox_done` AS d FORCE INDEX (PRIMARY)
    WHERE d.done_at <= UTC_TIMESTAMP(6) - INTERVAL ? MICROSECOND
    LIMIT ?) AS c

-- purgeDue --
-- Whoever waited for the row finds it changed.
SELECT one FROM `outbox_meta`
WHERE one = 1 AND purge_at <= UTC_TIMESTAMP(6) - INTERVAL ? MICROSECOND
FOR UPDATE

-- claimPurge --
-- Under the lock of purgeDue.
UPDATE `outbox_meta` SET purge_at = UTC_TIMESTAMP(6) WHERE one = 1

-- record --
-- Waits for another transaction that has inserted the same, by the primary key. Not
-- INSERT IGNORE, which would cut short what is too long.
INSERT INTO `outbox_inbox` (consumer, message_id) VALUES (?, ?)

-- recorded --
-- By the primary key.
SELECT COUNT(*) FROM `outbox_inbox` WHERE consumer = ? AND message_id = ?

-- choosePurgeInbox --
-- From the old end of inbox_recorded_at.
SELECT i.consumer, i.message_id FROM `outbox_inbox` AS i FORCE INDEX (`outbox_inbox_recorded_at`)
WHERE i.recorded_at <= UTC_TIMESTAMP(6) - INTERVAL ? MICROSECOND
ORDER BY i.recorded_at
LIMIT ?
FOR UPDATE SKIP LOCKED

-- purgeInbox --
-- By the primary key; the rows are locked.
DELETE i FROM JSON_TABLE(?, '$[*]' COLUMNS (consumer VARCHAR(1024) PATH '$[0]', message_id VARCHAR(4096) PATH '$[1]')) AS n
STRAIGHT_JOIN `outbox_inbox` AS i FORCE INDEX (PRIMARY)
   ON i.consumer = UNHEX(n.consumer) AND i.message_id = UNHEX(n.message_id)

-- nextRevision --
-- Waits for another producer of the key. The rows are taken in the order of the list.
INSERT INTO `outbox_revision` (key_hash, `key`, revision)
VALUES (?, ?, ?), (?, ?, ?)
ON DUPLICATE KEY UPDATE revision = revision + VALUES(revision)

-- beginRevision --
-- Makes and locks the row of a key. Without it the next statement, where it finds no row,
-- would lock the gap in which the row of another producer is to be.
INSERT INTO `outbox_revision` (key_hash, `key`, revision) VALUES (?, ?, 0)
ON DUPLICATE KEY UPDATE revision = revision

-- givenRevision --
UPDATE `outbox_revision` SET revision = revision + ? WHERE key_hash = ? AND `key` = ? AND revision = ? - 1

-- giveBack --
UPDATE `outbox_revision` SET revision = revision - ? WHERE key_hash = ? AND `key` = ?

-- lastRevision --
-- FOR UPDATE reads what is there, whatever the transaction's snapshot.
SELECT revision FROM `outbox_revision` WHERE key_hash = ? AND `key` = ? FOR UPDATE

-- revised --
(?, ?, ?, ?, ?, ?, ?, ?, ?, (SELECT k.revision FROM `outbox_revision` AS k WHERE k.key_hash = ? AND k.`key` = ?) - ?, ?)

-- beginProgress --
-- As beginRevision.
INSERT INTO `outbox_progress` (consumer, key_hash, `key`, revision) VALUES (?, ?, ?, 0)
ON DUPLICATE KEY UPDATE revision = revision

-- advance --
-- Waits for another transaction of the consumer and the key.
UPDATE `outbox_progress` SET revision = revision + 1 WHERE consumer = ? AND key_hash = ? AND `key` = ? AND revision = ? - 1

-- lastProgress --
-- As lastRevision.
SELECT revision FROM `outbox_progress` WHERE consumer = ? AND key_hash = ? AND `key` = ? FOR UPDATE

-- progress --
SELECT revision FROM `outbox_progress` WHERE consumer = ? AND key_hash = ? AND `key` = ?

-- setProgress --
INSERT INTO `outbox_progress` (consumer, key_hash, `key`, revision) VALUES (?, ?, ?, ?)
ON DUPLICATE KEY UPDATE revision = VALUES(revision)

-- writeAudit --
INSERT INTO `outbox_audit` (id, ended, who, action, selection, why, changed, failure) VALUES (?, ?, ?, ?, ?, ?, ?, ?)

-- audit --
-- Backwards along audit's primary key; the second row is one entry of audit_id.
SELECT b.pos, b.id, b.who, b.action, b.selection, b.why, TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'1970-01-01 00:00:00', b.written_at),
    TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'1970-01-01 00:00:00', e.written_at), COALESCE(e.changed, 0), COALESCE(e.failure, '')
FROM `outbox_audit` AS b FORCE INDEX (PRIMARY)
LEFT JOIN `outbox_audit` AS e FORCE INDEX (`outbox_audit_id`) ON e.id = b.id AND e.ended = 1
WHERE b.pos < ? AND b.ended = 0
ORDER BY b.pos DESC
LIMIT ?

-- viewLanes --
SELECT lane, owner, epoch, TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), lease_until),
    CASE WHEN served_at > TIMESTAMP'1970-01-01 00:00:00' THEN TIMESTAMPDIFF(MICROSECOND, served_at, UTC_TIMESTAMP(6)) END
FROM `outbox_lane`
ORDER BY lane

-- viewDone --
-- Backwards along done's primary key.
SELECT pos, TIMESTAMPDIFF(MICROSECOND, done_at, UTC_TIMESTAMP(6)), TIMESTAMPDIFF(MICROSECOND, created_at, done_at),
    outcome = 'published' AND replay = 0
FROM `outbox_done` FORCE INDEX (PRIMARY)
ORDER BY done_at DESC, pos DESC
LIMIT ?

-- viewReasons --
-- Backwards along parked's primary key.
SELECT state, topic, COALESCE(reason, '')
FROM `outbox_parked` FORCE INDEX (PRIMARY)
ORDER BY pos DESC
LIMIT ?

-- viewMessage --
-- By the three indexes on id.
SELECT 'ready', lane, seq, topic, `key`, type, 0, replay, '',
    TIMESTAMPDIFF(MICROSECOND, created_at, UTC_TIMESTAMP(6)), TIMESTAMPDIFF(MICROSECOND, ready_at, UTC_TIMESTAMP(6)), NULL
FROM `outbox` FORCE INDEX (`outbox_id`) WHERE id = ?
UNION ALL
SELECT state, lane, COALESCE(seq, 0), topic, `key`, type, attempts, replay, COALESCE(reason, ''),
    TIMESTAMPDIFF(MICROSECOND, created_at, UTC_TIMESTAMP(6)), TIMESTAMPDIFF(MICROSECOND, parked_at, UTC_TIMESTAMP(6)),
    TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), available_at)
FROM `outbox_parked` FORCE INDEX (`outbox_parked_id`) WHERE id = ?
UNION ALL
SELECT outcome, lane, COALESCE(seq, 0), topic, `key`, type, attempts, replay, COALESCE(reason, ''),
    TIMESTAMPDIFF(MICROSECOND, created_at, UTC_TIMESTAMP(6)), TIMESTAMPDIFF(MICROSECOND, done_at, UTC_TIMESTAMP(6)), NULL
FROM `outbox_done` FORCE INDEX (`outbox_done_id`) WHERE id = ?

-- createSchema --
CREATE DATABASE IF NOT EXISTS ``

-- meta --
SELECT version, lanes FROM `outbox_meta`

-- lanes --
-- How many rows are lanes, and how many are none.
SELECT COALESCE(SUM(lane BETWEEN 0 AND ? - 1), 0), COALESCE(SUM(lane NOT BETWEEN 0 AND ? - 1), 0) FROM `outbox_lane`

-- parked --
-- Along parked's primary key, or the index that serves the filter.
SELECT COALESCE(p.seq, 0), p.pos, p.attempts, p.lane, p.id, p.topic, p.`key`, p.key_hash, p.type, p.content_type,
    p.payload, p.headers,
    TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'1970-01-01 00:00:00', p.created_at), COALESCE(p.revision, 0), p.replay,
    TIMESTAMPDIFF(MICROSECOND, p.created_at, UTC_TIMESTAMP(6)), 0,
    p.state, p.blocking, COALESCE(p.reason, ''),
    TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), p.available_at),
    TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'1970-01-01 00:00:00', p.parked_at)
FROM `outbox_parked` AS p
WHERE p.pos > ?
      AND p.id IN (x'00000000000000000000000000000000')
      AND p.lane = ?
      AND p.key_hash = ?
      AND p.`key` = ?
      AND p.topic = ?
      AND p.type = ?
      AND p.state IN (?)
ORDER BY p.pos
LIMIT ?

-- requeueLanes --
-- The lanes in which there is something to requeue. Locks nothing.
SELECT l.lane FROM `outbox_lane` AS l
WHERE (SELECT 1 FROM `outbox_parked` AS p WHERE p.lane = l.lane
      AND (p.state = 'dead' OR (p.state IN ('scheduled', 'retry') AND p.available_at > UTC_TIMESTAMP(6)))
      AND (p.seq IS NOT NULL OR p.state = 'scheduled' OR (
        SELECT 1 FROM `outbox_parked` AS o FORCE INDEX (`outbox_parked_id`)
        WHERE o.id = p.id AND o.seq IS NULL AND (o.state = 'scheduled' OR o.pos < p.pos) LIMIT 1) IS NULL)
      AND p.id IN (x'00000000000000000000000000000000')
      AND p.lane = ?
      AND p.key_hash = ?
      AND p.`key` = ?
      AND p.topic = ?
      AND p.type = ?
      AND p.state IN (?) LIMIT 1) IS NOT NULL
ORDER BY l.lane

-- discardLanes --
-- The lanes in which there is something to discard. Locks nothing.
SELECT l.lane FROM `outbox_lane` AS l
WHERE (SELECT 1 FROM `outbox_parked` AS p WHERE p.lane = l.lane
      AND p.id IN (x'00000000000000000000000000000000')
      AND p.lane = ?
      AND p.key_hash = ?
      AND p.`key` = ?
      AND p.topic = ?
      AND p.type = ?
      AND p.state IN (?) LIMIT 1) IS NOT NULL
ORDER BY l.lane

-- chooseRequeue --
-- In order, so that a limit cuts the run of a key at its end.
SELECT p.pos, p.id, p.seq IS NOT NULL, p.key_hash, p.state = 'dead'
FROM `outbox_parked` AS p
WHERE p.lane = ?
      AND (p.state = 'dead' OR (p.state IN ('scheduled', 'retry') AND p.available_at > UTC_TIMESTAMP(6)))
      AND (p.seq IS NOT NULL OR p.state = 'scheduled' OR (
        SELECT 1 FROM `outbox_parked` AS o FORCE INDEX (`outbox_parked_id`)
        WHERE o.id = p.id AND o.seq IS NULL AND (o.state = 'scheduled' OR o.pos < p.pos) LIMIT 1) IS NULL)
      AND p.id IN (x'00000000000000000000000000000000')
      AND p.lane = ?
      AND p.key_hash = ?
      AND p.`key` = ?
      AND p.topic = ?
      AND p.type = ?
      AND p.state IN (?)
ORDER BY p.seq IS NULL, p.seq, p.pos
LIMIT ?

-- chooseDiscard --
-- As for a requeue.
SELECT p.pos, p.id, p.seq IS NOT NULL, p.key_hash, p.state = 'dead'
FROM `outbox_parked` AS p
WHERE p.lane = ?
      AND p.id IN (x'00000000000000000000000000000000')
      AND p.lane = ?
      AND p.key_hash = ?
      AND p.`key` = ?
      AND p.topic = ?
      AND p.type = ?
      AND p.state IN (?)
ORDER BY p.seq IS NULL, p.seq, p.pos
LIMIT ?

-- chooseReplay --
-- One range of done's primary key, or its index on id. Of an id that was done several
-- times only the newest row, or one call would replay it once a row; and none that was
-- done again since the replay began.
SELECT TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'1970-01-01 00:00:00', d.done_at), d.pos,
    (SELECT 1 FROM `outbox` AS r FORCE INDEX (`outbox_id`) WHERE r.id = d.id LIMIT 1) IS NOT NULL
 OR (SELECT 1 FROM `outbox_parked` AS p FORCE INDEX (`outbox_parked_id`) WHERE p.id = d.id LIMIT 1) IS NOT NULL
FROM `outbox_done` AS d
WHERE d.done_at >= TIMESTAMP'1970-01-01 00:00:00' + INTERVAL ? MICROSECOND
  AND (d.done_at > TIMESTAMP'1970-01-01 00:00:00' + INTERVAL ? MICROSECOND OR d.pos > ?)
  AND d.done_at < TIMESTAMP'1970-01-01 00:00:00' + INTERVAL ? MICROSECOND
  AND (SELECT 1 FROM `outbox_done` AS n FORCE INDEX (`outbox_done_id`)
    WHERE n.id = d.id AND (n.done_at > d.done_at OR n.done_at = d.done_at AND n.pos > d.pos)
      AND (n.done_at < TIMESTAMP'1970-01-01 00:00:00' + INTERVAL ? MICROSECOND OR n.done_at >= TIMESTAMP'1970-01-01 00:00:00' + INTERVAL ? MICROSECOND)
    LIMIT 1) IS NULL
      AND d.id IN (x'00000000000000000000000000000000')
      AND d.lane = ?
      AND d.key_hash = ?
      AND d.`key` = ?
      AND d.topic = ?
      AND d.type = ?
ORDER BY d.done_at, d.pos
LIMIT ?

-- oldest --
SELECT COALESCE(MIN(o.seq), 0) FROM (
(SELECT r.seq FROM `outbox` AS r FORCE INDEX (PRIMARY) WHERE r.lane = 0 AND r.seq > 42 ORDER BY r.seq LIMIT 1)
UNION ALL (SELECT r.seq FROM `outbox` AS r FORCE INDEX (PRIMARY) WHERE r.lane = 1 AND r.seq > 42 ORDER BY r.seq LIMIT 1)
UNION ALL (SELECT r.seq FROM `outbox` AS r FORCE INDEX (PRIMARY) WHERE r.lane = 2 AND r.seq > 42 ORDER BY r.seq LIMIT 1)
UNION ALL (SELECT r.seq FROM `outbox` AS r FORCE INDEX (PRIMARY) WHERE r.lane = 3 AND r.seq > 42 ORDER BY r.seq LIMIT 1)
UNION ALL (SELECT r.seq FROM `outbox` AS r FORCE INDEX (PRIMARY) WHERE r.lane = 4 AND r.seq > 42 ORDER BY r.seq LIMIT 1)
UNION ALL (SELECT r.seq FROM `outbox` AS r FORCE INDEX (PRIMARY) WHERE r.lane = 5 AND r.seq > 42 ORDER BY r.seq LIMIT 1)
UNION ALL (SELECT r.seq FROM `outbox` AS r FORCE INDEX (PRIMARY) WHERE r.lane = 6 AND r.seq > 42 ORDER BY r.seq LIMIT 1)
UNION ALL (SELECT r.seq FROM `outbox` AS r FORCE INDEX (PRIMARY) WHERE r.lane = 7 AND r.seq > 42 ORDER BY r.seq LIMIT 1)
UNION ALL (SELECT r.seq FROM `outbox` AS r FORCE INDEX (PRIMARY) WHERE r.lane = 8 AND r.seq > 42 ORDER BY r.seq LIMIT 1)
UNION ALL (SELECT r.seq FROM `outbox` AS r FORCE INDEX (PRIMARY) WHERE r.lane = 9 AND r.seq > 42 ORDER BY r.seq LIMIT 1)
UNION ALL (SELECT r.seq FROM `outbox` AS r FORCE INDEX (PRIMARY) WHERE r.lane = 10 AND r.seq > 42 ORDER BY r.seq LIMIT 1)
UNION ALL (SELECT r.seq FROM `outbox` AS r FORCE INDEX (PRIMARY) WHERE r.lane = 11 AND r.seq > 42 ORDER BY r.seq LIMIT 1)
UNION ALL (SELECT r.seq FROM `outbox` AS r FORCE INDEX (PRIMARY) WHERE r.lane = 12 AND r.seq > 42 ORDER BY r.seq LIMIT 1)
UNION ALL (SELECT r.seq FROM `outbox` AS r FORCE INDEX (PRIMARY) WHERE r.lane = 13 AND r.seq > 42 ORDER BY r.seq LIMIT 1)
UNION ALL (SELECT r.seq FROM `outbox` AS r FORCE INDEX (PRIMARY) WHERE r.lane = 14 AND r.seq > 42 ORDER BY r.seq LIMIT 1)
UNION ALL (SELECT r.seq FROM `outbox` AS r FORCE INDEX (PRIMARY) WHERE r.lane = 15 AND r.seq > 42 ORDER BY r.seq LIMIT 1)
) AS o

