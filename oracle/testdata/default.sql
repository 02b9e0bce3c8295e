-- step 1: the outbox --
-- The outbox, version 1.
--
-- A message is in exactly one of three tables: ready (may go), parked (must wait, or
-- needs a person) and done (went, or was discarded). The schema, a user, exists before
-- this file runs. Whoever runs it needs CREATE TABLE and CREATE SEQUENCE (for the
-- identity columns) and space. Who needs which right is what `outbox schema --grants` prints.
--
-- Never executed by the project, for no server could be had there: its statements were
-- parsed by a grammar and read against the reference.
--
-- Text is kept as RAW, the bytes of its UTF-8: no character set, no NLS_COMP and no
-- NLS_SORT changes or compares it, and no number of characters is in question.
-- UTL_RAW.CAST_TO_VARCHAR2(topic) shows it. Times are UTC, whatever the session's time
-- zone. An empty value is NULL here, so an empty payload and an empty key have marks of
-- their own, below.
--
-- Each statement ends with a semicolon at the end of a line and has no empty line in
-- it, as SQL*Plus wants. DDL commits by itself: the version in meta stays 0 until all
-- is there. A second run reports ORA-00955 for what is there and does the rest.

-- meta: one row.
CREATE TABLE "OUTBOX_META" (
    one      NUMBER(1)    DEFAULT 1 NOT NULL CONSTRAINT "OUTBOX_META_PK" PRIMARY KEY,
    -- The version of this schema; 0 while it is being made.
    version  NUMBER(10)   NOT NULL,
    -- The number of lanes, the same in the checks below.
    lanes    NUMBER(10)   NOT NULL,
    -- When done was last purged.
    purge_at TIMESTAMP(6) DEFAULT TIMESTAMP '1970-01-01 00:00:00' NOT NULL,
    CONSTRAINT "OUTBOX_META_ONE" CHECK (one = 1)
);

INSERT INTO "OUTBOX_META" (version, lanes)
SELECT 0, 16 FROM DUAL WHERE NOT EXISTS (SELECT 1 FROM "OUTBOX_META");

COMMIT;

-- ready: messages to publish, nothing else. Producers insert, a relay's settle
-- deletes, nobody updates.
CREATE TABLE "OUTBOX" (
    lane          NUMBER(10)    NOT NULL,
    -- The order within a lane. Assigned here and nowhere else. ORDER, because the
    -- instances of a cluster would take ranges of their own otherwise.
    seq           NUMBER(19)    GENERATED ALWAYS AS IDENTITY (CACHE 1000 ORDER),
    id            RAW(16)       NOT NULL,
    topic         RAW(255)      NOT NULL,
    -- NULL where there is no key, and where the key is empty: then key_hash is not NULL.
    key           RAW(512),
    -- The first 8 bytes of SHA-256 of the key, big-endian, signed. A message without
    -- one has no key.
    key_hash      NUMBER(19),
    type          RAW(255)      NOT NULL,
    -- application/json
    content_type  RAW(255)      DEFAULT HEXTORAW('6170706C69636174696F6E2F6A736F6E'),
    created_at    TIMESTAMP(6)  DEFAULT SYS_EXTRACT_UTC(SYSTIMESTAMP) NOT NULL,
    -- The producer's version of what the key names; optional.
    revision      NUMBER(19),
    -- How often an operator replayed the message.
    replay        NUMBER(10)    DEFAULT 0 NOT NULL,
    -- When the message became ready: its insert, its surfacing, its replay.
    ready_at      TIMESTAMP(6)  DEFAULT SYS_EXTRACT_UTC(SYSTIMESTAMP) NOT NULL,
    -- 1 where the payload is empty; 0 where it has bytes or there is none.
    payload_empty NUMBER(1)     DEFAULT 0 NOT NULL,
    -- A JSON object of strings, kept as it was written; NULL stands for {}.
    headers       BLOB,
    payload       BLOB,
    -- The only order messages are read in. A heap with an index, not an
    -- index-organized table: rows with a payload would leave the index anyway.
    CONSTRAINT "OUTBOX_PK" PRIMARY KEY (lane, seq) USING INDEX INITRANS 8,
    -- The same message twice is an error in the producer's transaction.
    CONSTRAINT "OUTBOX_ID" UNIQUE (id) USING INDEX INITRANS 8,
    CONSTRAINT "OUTBOX_EMPTY" CHECK (payload_empty IN (0, 1)),
    -- The hash of the empty key is -2039914840885289964.
    CONSTRAINT "OUTBOX_KEY_HAS_HASH" CHECK (
        (key IS NULL AND (key_hash IS NULL OR key_hash = -2039914840885289964)) OR (key IS NOT NULL AND key_hash IS NOT NULL)),
    -- Refuses a producer that counts the lanes differently.
    CONSTRAINT "OUTBOX_LANE_FITS" CHECK (lane BETWEEN 0 AND 16 - 1 AND (key_hash IS NULL OR
        lane = MOD(MOD(key_hash, 16) + 16 + CASE WHEN key_hash < 0 THEN 0 ELSE 0 END, 16)))
) INITRANS 8;

-- parked: messages that wait for a time (scheduled, retry), for the row before them
-- (held) or for a person (dead). Rows change and grow here, so blocks keep room.
CREATE TABLE "OUTBOX_PARKED" (
    -- Names a parked row.
    pos           NUMBER(19)    GENERATED ALWAYS AS IDENTITY (CACHE 1000 ORDER),
    lane          NUMBER(10)    NOT NULL,
    -- The place in the order; a message that was never ready has none.
    seq           NUMBER(19),
    id            RAW(16)       NOT NULL,
    topic         RAW(255)      NOT NULL,
    key           RAW(512),
    key_hash      NUMBER(19),
    type          RAW(255)      NOT NULL,
    content_type  RAW(255)      DEFAULT HEXTORAW('6170706C69636174696F6E2F6A736F6E'),
    created_at    TIMESTAMP(6)  DEFAULT SYS_EXTRACT_UTC(SYSTIMESTAMP) NOT NULL,
    revision      NUMBER(19),
    replay        NUMBER(10)    DEFAULT 0 NOT NULL,
    -- 1 scheduled, 2 retry, 3 held, 4 dead. A number, because comparing text is up
    -- to NLS_COMP, which would also keep statements from the indexes.
    state         NUMBER(1)     DEFAULT 1 NOT NULL,
    -- 1: this row holds back the newer messages of its key.
    blocking      NUMBER(1)     DEFAULT 0 NOT NULL,
    -- Publish attempts that failed.
    attempts      NUMBER(10)    DEFAULT 0 NOT NULL,
    -- When a scheduled or retry message is due.
    available_at  TIMESTAMP(6),
    -- The last error.
    reason        RAW(2000),
    parked_at     TIMESTAMP(6)  DEFAULT SYS_EXTRACT_UTC(SYSTIMESTAMP) NOT NULL,
    payload_empty NUMBER(1)     DEFAULT 0 NOT NULL,
    headers       BLOB,
    payload       BLOB,
    CONSTRAINT "OUTBOX_PARKED_PK" PRIMARY KEY (pos) USING INDEX INITRANS 8,
    CONSTRAINT "OUTBOX_PARKED_EMPTY" CHECK (payload_empty IN (0, 1)),
    CONSTRAINT "OUTBOX_PARKED_STATE" CHECK (state IN (1, 2, 3, 4)),
    CONSTRAINT "OUTBOX_PARKED_DUE" CHECK (
        (state IN (1, 2) AND available_at IS NOT NULL) OR (state IN (3, 4) AND available_at IS NULL)),
    CONSTRAINT "OUTBOX_PARKED_ORDER" CHECK (state IN (1, 4) OR seq IS NOT NULL),
    CONSTRAINT "OUTBOX_PARKED_HEAD" CHECK (blocking = 0 OR
        (blocking = 1 AND key_hash IS NOT NULL AND seq IS NOT NULL AND state IN (2, 4))),
    CONSTRAINT "OUTBOX_PARKED_HELD" CHECK (state <> 3 OR key_hash IS NOT NULL),
    CONSTRAINT "OUTBOX_PARKED_KEY_HAS_HASH" CHECK (
        (key IS NULL AND (key_hash IS NULL OR key_hash = -2039914840885289964)) OR (key IS NOT NULL AND key_hash IS NOT NULL)),
    CONSTRAINT "OUTBOX_PARKED_LANE_FITS" CHECK (lane BETWEEN 0 AND 16 - 1 AND (key_hash IS NULL OR
        lane = MOD(MOD(key_hash, 16) + 16 + CASE WHEN key_hash < 0 THEN 0 ELSE 0 END, 16)))
) INITRANS 8 PCTFREE 20;

-- What is due in a lane, by state; held and dead rows stand in it without a time, so
-- that they can be counted by state.
CREATE INDEX "OUTBOX_PARKED_DUE_AT" ON "OUTBOX_PARKED" (state, lane, available_at, pos) INITRANS 8;

-- The blocked keys.
CREATE INDEX "OUTBOX_PARKED_BLOCKED" ON "OUTBOX_PARKED" (blocking, lane, key_hash, seq) INITRANS 8;

-- The rows of a key; by state, so that the first held one is found at once.
CREATE INDEX "OUTBOX_PARKED_KEY" ON "OUTBOX_PARKED" (lane, key_hash, state, seq) INITRANS 8;

-- For operators. Not unique: a parked message may share its id with another.
CREATE INDEX "OUTBOX_PARKED_ID" ON "OUTBOX_PARKED" (id) INITRANS 8;

-- The same delayed message twice is an error in the producer's transaction. Rows for
-- which the expression is NULL are not in the index.
CREATE UNIQUE INDEX "OUTBOX_PARKED_SCHEDULED_ID" ON "OUTBOX_PARKED" (CASE WHEN state = 1 THEN id END) INITRANS 8;

-- done: what was published or discarded, for the retention window. Rows are added in
-- order of time and removed from the old end.
CREATE TABLE "OUTBOX_DONE" (
    done_at       TIMESTAMP(6)  DEFAULT SYS_EXTRACT_UTC(SYSTIMESTAMP) NOT NULL,
    pos           NUMBER(19)    GENERATED ALWAYS AS IDENTITY (CACHE 1000 ORDER),
    lane          NUMBER(10)    NOT NULL,
    seq           NUMBER(19),
    id            RAW(16)       NOT NULL,
    topic         RAW(255)      NOT NULL,
    key           RAW(512),
    key_hash      NUMBER(19),
    type          RAW(255)      NOT NULL,
    content_type  RAW(255),
    created_at    TIMESTAMP(6)  NOT NULL,
    revision      NUMBER(19),
    replay        NUMBER(10)    NOT NULL,
    -- Publish attempts, the successful one included.
    attempts      NUMBER(10)    NOT NULL,
    outcome       VARCHAR2(9)   NOT NULL,
    reason        RAW(2000),
    payload_empty NUMBER(1)     DEFAULT 0 NOT NULL,
    headers       BLOB,
    payload       BLOB,
    -- Begins with the time, so that the table can be partitioned by it.
    CONSTRAINT "OUTBOX_DONE_PK" PRIMARY KEY (done_at, pos) USING INDEX INITRANS 8,
    CONSTRAINT "OUTBOX_DONE_OUTCOME" CHECK (outcome IN ('published', 'discarded'))
) INITRANS 8;

-- Names a row.
CREATE INDEX "OUTBOX_DONE_POS" ON "OUTBOX_DONE" (pos) INITRANS 8;

-- For replay by id. Not unique: a replayed message is done twice.
CREATE INDEX "OUTBOX_DONE_ID" ON "OUTBOX_DONE" (id) INITRANS 8;

-- lane: who may change a lane, until when. The epoch is the fence: whoever writes for
-- a lane locks its row and finds the epoch unchanged, or writes nothing. Few rows, all
-- of them busy: a few in a block, with room for the transactions that change them.
CREATE TABLE "OUTBOX_LANE" (
    lane        NUMBER(10)    NOT NULL CONSTRAINT "OUTBOX_LANE_PK" PRIMARY KEY,
    epoch       NUMBER(19)    DEFAULT 0 NOT NULL,
    -- NULL without an owner.
    owner       RAW(255),
    lease_until TIMESTAMP(6)  DEFAULT TIMESTAMP '1970-01-01 00:00:00' NOT NULL,
    served_at   TIMESTAMP(6)  DEFAULT TIMESTAMP '1970-01-01 00:00:00' NOT NULL
) INITRANS 8 PCTFREE 90 PCTUSED 5;

INSERT INTO "OUTBOX_LANE" (lane)
SELECT n.lane FROM (SELECT LEVEL - 1 AS lane FROM DUAL CONNECT BY LEVEL <= 16) n
WHERE NOT EXISTS (SELECT 1 FROM "OUTBOX_LANE" l WHERE l.lane = n.lane);

COMMIT;

-- inbox: the messages a consumer has processed.
CREATE TABLE "OUTBOX_INBOX" (
    consumer    RAW(255)      NOT NULL,
    message_id  RAW(255)      NOT NULL,
    recorded_at TIMESTAMP(6)  DEFAULT SYS_EXTRACT_UTC(SYSTIMESTAMP) NOT NULL,
    CONSTRAINT "OUTBOX_INBOX_PK" PRIMARY KEY (consumer, message_id) USING INDEX INITRANS 8
) INITRANS 8;

-- For the purge.
CREATE INDEX "OUTBOX_INBOX_RECORDED_AT" ON "OUTBOX_INBOX" (recorded_at) INITRANS 8;

UPDATE "OUTBOX_META" SET version = 1 WHERE one = 1 AND version = 0;

COMMIT;

-- step 2: revisions --
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
CREATE TABLE "OUTBOX_REVISION" (
    key_hash NUMBER(19) NOT NULL,
    key      RAW(512),
    revision NUMBER(19) NOT NULL,
    CONSTRAINT "OUTBOX_REVISION_KEY" UNIQUE (key_hash, key) USING INDEX INITRANS 8,
    CONSTRAINT "OUTBOX_REVISION_COUNTS" CHECK (revision >= 0)
) INITRANS 8;

-- progress: the last revision of a key that a consumer has handled.
CREATE TABLE "OUTBOX_PROGRESS" (
    consumer RAW(255)   NOT NULL,
    key_hash NUMBER(19) NOT NULL,
    key      RAW(512),
    revision NUMBER(19) NOT NULL,
    CONSTRAINT "OUTBOX_PROGRESS_KEY" UNIQUE (consumer, key_hash, key) USING INDEX INITRANS 8,
    CONSTRAINT "OUTBOX_PROGRESS_COUNTS" CHECK (revision >= 0)
) INITRANS 8;

UPDATE "OUTBOX_META" SET version = 2 WHERE one = 1 AND version = 1;

COMMIT;

-- step 3: the audit --
-- The outbox, version 3: the audit, which keeps what operators did.
--
-- Nothing here changes or deletes a row: what is older than you must keep, delete. Who
-- needs which right is what `outbox schema --grants` prints: run that again.
--
-- Never executed by the project: see version 1. A second run does what is missing.

-- audit: an action has two rows with one id, that it begins and how it ended.
CREATE TABLE "OUTBOX_AUDIT" (
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
    CONSTRAINT "OUTBOX_AUDIT_PK" PRIMARY KEY (pos) USING INDEX INITRANS 8,
    CONSTRAINT "OUTBOX_AUDIT_ID" UNIQUE (id, ended) USING INDEX INITRANS 8,
    CONSTRAINT "OUTBOX_AUDIT_ENDS" CHECK ((ended = 0 AND changed IS NULL) OR (ended = 1 AND changed IS NOT NULL))
) INITRANS 8;

UPDATE "OUTBOX_META" SET version = 3 WHERE one = 1 AND version = 2;

COMMIT;

-- readCommitted --
SET TRANSACTION ISOLATION LEVEL READ COMMITTED

-- poll --
SELECT c.lane, c.epoch, c.due FROM (
  SELECT l.lane, l.epoch, CASE WHEN (SELECT /*+ NO_UNNEST INDEX(p (state lane available_at)) */ MIN(p.available_at) FROM "OUTBOX_PARKED" p
         WHERE p.state = 2 AND p.lane = l.lane) <= SYS_EXTRACT_UTC(SYSTIMESTAMP)
    OR (SELECT /*+ NO_UNNEST INDEX(p (state lane available_at)) */ MIN(p.available_at) FROM "OUTBOX_PARKED" p
         WHERE p.state = 1 AND p.lane = l.lane) <= SYS_EXTRACT_UTC(SYSTIMESTAMP) THEN 1 ELSE 0 END AS due FROM "OUTBOX_LANE" l
  WHERE (l.lease_until <= SYS_EXTRACT_UTC(SYSTIMESTAMP) OR l.owner = :1)
    AND ((SELECT /*+ NO_UNNEST INDEX(r (lane seq)) */ MAX(r.seq) FROM "OUTBOX" r
         WHERE r.lane = l.lane) IS NOT NULL
    OR (SELECT /*+ NO_UNNEST INDEX(p (state lane available_at)) */ MIN(p.available_at) FROM "OUTBOX_PARKED" p
         WHERE p.state = 2 AND p.lane = l.lane) <= SYS_EXTRACT_UTC(SYSTIMESTAMP)
    OR (SELECT /*+ NO_UNNEST INDEX(p (state lane available_at)) */ MIN(p.available_at) FROM "OUTBOX_PARKED" p
         WHERE p.state = 1 AND p.lane = l.lane) <= SYS_EXTRACT_UTC(SYSTIMESTAMP))
  ORDER BY CASE WHEN l.served_at <= SYS_EXTRACT_UTC(SYSTIMESTAMP) THEN l.served_at ELSE TIMESTAMP '1970-01-01 00:00:00' END, l.lane
) c
WHERE ROWNUM <= :2

-- pending --
SELECT NVL(MAX(c.work), 0), NVL(MAX(c.held), 0) FROM (
  SELECT
    CASE WHEN ((SELECT /*+ NO_UNNEST INDEX(r (lane seq)) */ MAX(r.seq) FROM "OUTBOX" r
         WHERE r.lane = l.lane) IS NOT NULL
    OR (SELECT /*+ NO_UNNEST INDEX(p (state lane available_at)) */ MIN(p.available_at) FROM "OUTBOX_PARKED" p
         WHERE p.state = 2 AND p.lane = l.lane) <= SYS_EXTRACT_UTC(SYSTIMESTAMP)
    OR (SELECT /*+ NO_UNNEST INDEX(p (state lane available_at)) */ MIN(p.available_at) FROM "OUTBOX_PARKED" p
         WHERE p.state = 1 AND p.lane = l.lane) <= SYS_EXTRACT_UTC(SYSTIMESTAMP)) THEN 1 ELSE 0 END AS work,
    CASE WHEN l.lease_until > SYS_EXTRACT_UTC(SYSTIMESTAMP) AND (l.owner IS NULL OR l.owner <> :1) THEN 1 ELSE 0 END AS held
  FROM "OUTBOX_LANE" l
) c

-- claim --
SELECT l.lane FROM "OUTBOX_LANE" l
WHERE l.lane = :1 AND (l.lease_until <= SYS_EXTRACT_UTC(SYSTIMESTAMP) OR l.owner = :2)
FOR UPDATE SKIP LOCKED

-- free --
SELECT l.epoch FROM "OUTBOX_LANE" l
WHERE l.lane = :1 AND (l.lease_until <= SYS_EXTRACT_UTC(SYSTIMESTAMP) OR l.owner = :2)

-- own --
UPDATE "OUTBOX_LANE"
SET owner = :1, epoch = epoch + 1, served_at = SYS_EXTRACT_UTC(SYSTIMESTAMP), lease_until = SYS_EXTRACT_UTC(SYSTIMESTAMP) + NUMTODSINTERVAL(:2 / 1000000, 'SECOND')
WHERE lane = :3

-- fence --
SELECT l.epoch FROM "OUTBOX_LANE" l
WHERE l.lane = :1 AND l.owner = :2 AND l.epoch = :3
FOR UPDATE WAIT 10

-- extend --
UPDATE "OUTBOX_LANE" SET lease_until = SYS_EXTRACT_UTC(SYSTIMESTAMP) + NUMTODSINTERVAL(:1 / 1000000, 'SECOND') WHERE lane = :2

-- release --
UPDATE "OUTBOX_LANE" SET owner = NULL, lease_until = SYS_EXTRACT_UTC(SYSTIMESTAMP) WHERE lane = :1

-- insert --
INSERT INTO "OUTBOX" (lane, id, topic, key, key_hash, type, content_type, revision, replay, payload_empty, headers, payload)
VALUES (:1, :2, :3, :4, :5, :6, :7, :8, :9, :10, :11, :12)

-- schedule --
INSERT INTO "OUTBOX_PARKED" (lane, id, topic, key, key_hash, type, content_type, revision, replay, payload_empty, available_at, headers, payload)
VALUES (:1, :2, :3, :4, :5, :6, :7, :8, :9, :10, SYS_EXTRACT_UTC(SYSTIMESTAMP) + NUMTODSINTERVAL(:11 / 1000000, 'SECOND'), :12, :13)

-- dueScheduled --
SELECT c.pos, c.id, c.taken FROM (
  SELECT /*+ INDEX(p (state lane available_at)) */ p.pos, p.id,
    CASE WHEN EXISTS (SELECT /*+ NO_UNNEST INDEX(r (id)) */ 1 FROM "OUTBOX" r WHERE r.id = p.id) THEN 1 ELSE 0 END AS taken
  FROM "OUTBOX_PARKED" p
  WHERE p.state = 1 AND p.lane = :1 AND p.available_at <= SYS_EXTRACT_UTC(SYSTIMESTAMP)
  ORDER BY p.available_at, p.pos
) c
WHERE ROWNUM <= :2

-- surface --
INSERT INTO "OUTBOX" (lane, id, topic, key, key_hash, type, content_type, created_at, revision, replay, payload_empty, headers, payload)
SELECT p.lane, p.id, p.topic, p.key, p.key_hash, p.type, p.content_type, p.created_at, p.revision, p.replay, p.payload_empty, p.headers, p.payload
FROM "OUTBOX_PARKED" p
WHERE p.pos = :1

-- surfacedTwice --
UPDATE "OUTBOX_PARKED" SET state = 4, available_at = NULL, reason = :1 WHERE pos = :2

-- deleteParked --
DELETE FROM "OUTBOX_PARKED" WHERE lane = :1 AND pos = :2 AND id = :3

-- chooseReady --
SELECT c.seq, c.weight FROM (
  SELECT /*+ INDEX(r (lane seq)) */ r.seq,
    NVL(DBMS_LOB.GETLENGTH(r.headers), 2) + NVL(DBMS_LOB.GETLENGTH(r.payload), 0) AS weight
  FROM "OUTBOX" r
  WHERE r.lane = :1 AND r.seq > :2
  ORDER BY r.seq
) c
WHERE ROWNUM <= :3

-- ready --
SELECT /*+ INDEX(r (lane seq)) */ r.seq, 0, 0, r.lane, r.id, r.topic, r.key, r.key_hash, r.type, r.content_type,
    (EXTRACT(DAY FROM (r.created_at - TIMESTAMP '1970-01-01 00:00:00')) * 86400000000 + EXTRACT(HOUR FROM (r.created_at - TIMESTAMP '1970-01-01 00:00:00')) * 3600000000 + EXTRACT(MINUTE FROM (r.created_at - TIMESTAMP '1970-01-01 00:00:00')) * 60000000 + TRUNC(EXTRACT(SECOND FROM (r.created_at - TIMESTAMP '1970-01-01 00:00:00')) * 1000000)),
    NVL(r.revision, 0), r.replay,
    (EXTRACT(DAY FROM (SYS_EXTRACT_UTC(SYSTIMESTAMP) - r.ready_at)) * 86400000000 + EXTRACT(HOUR FROM (SYS_EXTRACT_UTC(SYSTIMESTAMP) - r.ready_at)) * 3600000000 + EXTRACT(MINUTE FROM (SYS_EXTRACT_UTC(SYSTIMESTAMP) - r.ready_at)) * 60000000 + TRUNC(EXTRACT(SECOND FROM (SYS_EXTRACT_UTC(SYSTIMESTAMP) - r.ready_at)) * 1000000)),
    r.headers,
    CASE WHEN EXISTS (SELECT /*+ NO_UNNEST INDEX(p (blocking lane key_hash)) */ 1 FROM "OUTBOX_PARKED" p
      WHERE p.blocking = 1 AND p.lane = r.lane AND p.key_hash = r.key_hash) THEN 1 ELSE 0 END,
    CASE WHEN r.payload_empty = 1 OR DBMS_LOB.GETLENGTH(r.payload) = 0 THEN 1 ELSE 0 END, r.payload
FROM "OUTBOX" r
WHERE r.lane = :1 AND r.seq > :2 AND r.seq <= :3
ORDER BY r.seq

-- dueHeads --
SELECT c.pos, c.seq, c.key_hash, c.weight, c.followed FROM (
  SELECT /*+ INDEX(p (state lane available_at)) */ p.pos, p.seq, p.key_hash, NVL(DBMS_LOB.GETLENGTH(p.headers), 2) + NVL(DBMS_LOB.GETLENGTH(p.payload), 0) AS weight,
    CASE WHEN EXISTS (SELECT /*+ NO_UNNEST INDEX(h (lane key_hash state)) */ 1 FROM "OUTBOX_PARKED" h
      WHERE h.lane = p.lane AND h.key_hash = p.key_hash AND h.state = 3) THEN 1 ELSE 0 END AS followed
  FROM "OUTBOX_PARKED" p
  WHERE p.state = 2 AND p.lane = :1 AND p.available_at <= SYS_EXTRACT_UTC(SYSTIMESTAMP)
  ORDER BY p.available_at, p.pos
) c
WHERE ROWNUM <= :2

-- dueHeld --
SELECT c.pos, c.seq, c.key_hash, c.weight, 0 FROM (
  SELECT /*+ INDEX(p (lane key_hash state seq)) */ p.pos, p.seq, p.key_hash, NVL(DBMS_LOB.GETLENGTH(p.headers), 2) + NVL(DBMS_LOB.GETLENGTH(p.payload), 0) AS weight
  FROM "OUTBOX_PARKED" p
  WHERE p.lane = :1 AND p.key_hash = :2 AND p.state = 3
    AND p.seq < NVL((SELECT /*+ INDEX(b (blocking lane key_hash seq)) */ MIN(b.seq) FROM "OUTBOX_PARKED" b
      WHERE b.blocking = 1 AND b.lane = :3 AND b.key_hash = :4 AND b.seq > :5), 9223372036854775807)
  ORDER BY p.seq
) c
WHERE ROWNUM <= :6

-- settle --
UPDATE "OUTBOX_LANE" SET lease_until = SYS_EXTRACT_UTC(SYSTIMESTAMP) + NUMTODSINTERVAL(:1 / 1000000, 'SECOND'), served_at = SYS_EXTRACT_UTC(SYSTIMESTAMP) WHERE lane = :2

-- archiveReady --
INSERT INTO "OUTBOX_DONE" (seq, attempts, outcome, lane, id, topic, key, key_hash, type, content_type, created_at, revision, replay, payload_empty, headers, payload)
SELECT r.seq, 1, 'published', r.lane, r.id, r.topic, r.key, r.key_hash, r.type, r.content_type, r.created_at, r.revision, r.replay, r.payload_empty, r.headers, r.payload
FROM "OUTBOX" r
WHERE r.lane = :1 AND r.seq = :2 AND r.id = :3

-- archiveParked --
INSERT INTO "OUTBOX_DONE" (seq, attempts, outcome, reason, lane, id, topic, key, key_hash, type, content_type, created_at, revision, replay, payload_empty, headers, payload)
SELECT p.seq, p.attempts + 1, 'published', p.reason, p.lane, p.id, p.topic, p.key, p.key_hash, p.type, p.content_type, p.created_at, p.revision, p.replay, p.payload_empty, p.headers, p.payload
FROM "OUTBOX_PARKED" p
WHERE p.lane = :1 AND p.pos = :2 AND p.id = :3

-- fail --
INSERT INTO "OUTBOX_PARKED" (attempts, reason, state, available_at, blocking, seq, lane, id, topic, key, key_hash, type, content_type, created_at, revision, replay, payload_empty, headers, payload)
SELECT :1, :2, :3, SYS_EXTRACT_UTC(SYSTIMESTAMP) + NUMTODSINTERVAL(:4 / 1000000, 'SECOND'), CASE WHEN r.key_hash IS NULL THEN 0 ELSE :5 END, r.seq, r.lane, r.id, r.topic, r.key, r.key_hash, r.type, r.content_type, r.created_at, r.revision, r.replay, r.payload_empty, r.headers, r.payload
FROM "OUTBOX" r
WHERE r.lane = :6 AND r.seq = :7 AND r.id = :8

-- failParked --
UPDATE "OUTBOX_PARKED"
SET attempts = :1, reason = :2, state = :3, available_at = SYS_EXTRACT_UTC(SYSTIMESTAMP) + NUMTODSINTERVAL(:4 / 1000000, 'SECOND'), blocking = CASE WHEN key_hash IS NULL THEN 0 ELSE :5 END
WHERE lane = :6 AND pos = :7 AND id = :8

-- hold --
INSERT INTO "OUTBOX_PARKED" (state, seq, lane, id, topic, key, key_hash, type, content_type, created_at, revision, replay, payload_empty, headers, payload)
SELECT 3, r.seq, r.lane, r.id, r.topic, r.key, r.key_hash, r.type, r.content_type, r.created_at, r.revision, r.replay, r.payload_empty, r.headers, r.payload
FROM "OUTBOX" r
WHERE r.lane = :1 AND r.seq = :2 AND r.id = :3

-- deleteReady --
DELETE FROM "OUTBOX" WHERE lane = :1 AND seq = :2 AND id = :3

-- demote --
UPDATE /*+ INDEX(b (blocking lane key_hash)) */ "OUTBOX_PARKED" b
SET b.state = 3, b.blocking = 0, b.available_at = NULL
WHERE b.blocking = 1 AND b.lane = :1 AND b.key_hash = :2 AND b.state = 2
  AND (EXISTS (SELECT /*+ NO_UNNEST INDEX(o (blocking lane key_hash seq)) */ 1 FROM "OUTBOX_PARKED" o
         WHERE o.blocking = 1 AND o.lane = b.lane AND o.key_hash = b.key_hash AND o.seq < b.seq)
    OR EXISTS (SELECT /*+ NO_UNNEST INDEX(h (lane key_hash state seq)) */ 1 FROM "OUTBOX_PARKED" h
         WHERE h.state = 3 AND h.lane = b.lane AND h.key_hash = b.key_hash AND h.seq < b.seq))

-- promote --
UPDATE "OUTBOX_PARKED" h
SET h.state = 2, h.blocking = 1, h.available_at = SYS_EXTRACT_UTC(SYSTIMESTAMP)
WHERE h.pos = (SELECT /*+ INDEX(o (lane key_hash state seq)) */ MIN(o.pos) FROM "OUTBOX_PARKED" o
         WHERE o.lane = :1 AND o.key_hash = :2 AND o.state = 3
           AND o.seq = (SELECT /*+ INDEX(f (lane key_hash state seq)) */ MIN(f.seq) FROM "OUTBOX_PARKED" f
             WHERE f.lane = :3 AND f.key_hash = :4 AND f.state = 3))
  AND NOT EXISTS (SELECT /*+ NO_UNNEST INDEX(b (blocking lane key_hash seq)) */ 1 FROM "OUTBOX_PARKED" b
         WHERE b.blocking = 1 AND b.lane = h.lane AND b.key_hash = h.key_hash AND b.seq < h.seq)

-- stats --
SELECT
    (SELECT COUNT(*) FROM "OUTBOX" r WHERE ROWNUM <= :1),
    (SELECT /*+ INDEX(p (state lane available_at)) */ COUNT(*) FROM "OUTBOX_PARKED" p WHERE ROWNUM <= :2 AND p.state = 1),
    (SELECT /*+ INDEX(p (state lane available_at)) */ COUNT(*) FROM "OUTBOX_PARKED" p WHERE ROWNUM <= :3 AND p.state = 2),
    (SELECT /*+ INDEX(p (state lane available_at)) */ COUNT(*) FROM "OUTBOX_PARKED" p WHERE ROWNUM <= :4 AND p.state = 3),
    (SELECT /*+ INDEX(p (state lane available_at)) */ COUNT(*) FROM "OUTBOX_PARKED" p WHERE ROWNUM <= :5 AND p.state = 4),
    (SELECT COUNT(*) FROM (
        SELECT /*+ INDEX(p (blocking lane key_hash)) */ p.lane, p.key_hash FROM "OUTBOX_PARKED" p
        WHERE p.blocking = 1 GROUP BY p.lane, p.key_hash) c
     WHERE ROWNUM <= :6),
    (SELECT MAX((EXTRACT(DAY FROM (SYS_EXTRACT_UTC(SYSTIMESTAMP) - r.ready_at)) * 86400000000 + EXTRACT(HOUR FROM (SYS_EXTRACT_UTC(SYSTIMESTAMP) - r.ready_at)) * 3600000000 + EXTRACT(MINUTE FROM (SYS_EXTRACT_UTC(SYSTIMESTAMP) - r.ready_at)) * 60000000 + TRUNC(EXTRACT(SECOND FROM (SYS_EXTRACT_UTC(SYSTIMESTAMP) - r.ready_at)) * 1000000))) FROM "OUTBOX_LANE" l, "OUTBOX" r
     WHERE r.lane = l.lane AND r.seq = (SELECT /*+ NO_UNNEST INDEX(f (lane seq)) */ MIN(f.seq) FROM "OUTBOX" f WHERE f.lane = l.lane)),
    (SELECT MAX((EXTRACT(DAY FROM (SYS_EXTRACT_UTC(SYSTIMESTAMP) - c.due)) * 86400000000 + EXTRACT(HOUR FROM (SYS_EXTRACT_UTC(SYSTIMESTAMP) - c.due)) * 3600000000 + EXTRACT(MINUTE FROM (SYS_EXTRACT_UTC(SYSTIMESTAMP) - c.due)) * 60000000 + TRUNC(EXTRACT(SECOND FROM (SYS_EXTRACT_UTC(SYSTIMESTAMP) - c.due)) * 1000000))) FROM (
        SELECT (SELECT /*+ NO_UNNEST INDEX(p (state lane available_at)) */ MIN(p.available_at) FROM "OUTBOX_PARKED" p
                WHERE p.state = 2 AND p.lane = l.lane) AS due
        FROM "OUTBOX_LANE" l) c),
    (SELECT COUNT(*) FROM "OUTBOX_LANE" l WHERE l.owner IS NOT NULL AND l.lease_until > SYS_EXTRACT_UTC(SYSTIMESTAMP)),
    (SELECT COUNT(*) FROM "OUTBOX_LANE" l WHERE l.owner IS NOT NULL AND l.lease_until <= SYS_EXTRACT_UTC(SYSTIMESTAMP)),
    (SELECT COUNT(*) FROM "OUTBOX_LANE")
FROM DUAL

-- lockLane --
SELECT l.lane FROM "OUTBOX_LANE" l WHERE l.lane = :1
FOR UPDATE WAIT 10

-- requeueWaiting --
UPDATE "OUTBOX_PARKED" SET available_at = SYS_EXTRACT_UTC(SYSTIMESTAMP) WHERE pos = :1

-- requeueUnplaced --
UPDATE "OUTBOX_PARKED" SET state = 1, available_at = SYS_EXTRACT_UTC(SYSTIMESTAMP), attempts = 0 WHERE pos = :1

-- requeueKeyless --
UPDATE "OUTBOX_PARKED" SET state = 2, available_at = SYS_EXTRACT_UTC(SYSTIMESTAMP), attempts = 0 WHERE pos = :1

-- requeueKeyed --
UPDATE "OUTBOX_PARKED" SET state = 3, blocking = 0, available_at = NULL, attempts = 0 WHERE pos = :1

-- discard --
INSERT INTO "OUTBOX_DONE" (seq, attempts, outcome, reason, lane, id, topic, key, key_hash, type, content_type, created_at, revision, replay, payload_empty, headers, payload)
SELECT p.seq, p.attempts, 'discarded', p.reason, p.lane, p.id, p.topic, p.key, p.key_hash, p.type, p.content_type, p.created_at, p.revision, p.replay, p.payload_empty, p.headers, p.payload
FROM "OUTBOX_PARKED" p
WHERE p.pos = :1

-- clock --
SELECT (EXTRACT(DAY FROM (SYS_EXTRACT_UTC(SYSTIMESTAMP) - TIMESTAMP '1970-01-01 00:00:00')) * 86400000000 + EXTRACT(HOUR FROM (SYS_EXTRACT_UTC(SYSTIMESTAMP) - TIMESTAMP '1970-01-01 00:00:00')) * 3600000000 + EXTRACT(MINUTE FROM (SYS_EXTRACT_UTC(SYSTIMESTAMP) - TIMESTAMP '1970-01-01 00:00:00')) * 60000000 + TRUNC(EXTRACT(SECOND FROM (SYS_EXTRACT_UTC(SYSTIMESTAMP) - TIMESTAMP '1970-01-01 00:00:00')) * 1000000)) FROM DUAL

-- replay --
INSERT INTO "OUTBOX" (lane, id, topic, key, key_hash, type, content_type, created_at, revision, replay, payload_empty, headers, payload)
SELECT d.lane, d.id, d.topic, d.key, d.key_hash, d.type, d.content_type, d.created_at, d.revision,
    1 + (SELECT MAX(o.replay) FROM "OUTBOX_DONE" o WHERE o.id = d.id),
    d.payload_empty, d.headers, d.payload
FROM "OUTBOX_DONE" d
WHERE d.pos = :1

-- choosePurge --
SELECT c.settled, c.pos FROM (
  SELECT (EXTRACT(DAY FROM (d.done_at - TIMESTAMP '1970-01-01 00:00:00')) * 86400000000 + EXTRACT(HOUR FROM (d.done_at - TIMESTAMP '1970-01-01 00:00:00')) * 3600000000 + EXTRACT(MINUTE FROM (d.done_at - TIMESTAMP '1970-01-01 00:00:00')) * 60000000 + TRUNC(EXTRACT(SECOND FROM (d.done_at - TIMESTAMP '1970-01-01 00:00:00')) * 1000000)) AS settled, d.pos
  FROM "OUTBOX_DONE" d
  WHERE d.done_at >= TIMESTAMP '2000-01-01 00:00:00' + NUMTODSINTERVAL((:1 - 946684800000000) / 1000000, 'SECOND') AND (d.done_at > TIMESTAMP '2000-01-01 00:00:00' + NUMTODSINTERVAL((:2 - 946684800000000) / 1000000, 'SECOND') OR d.pos > :3) AND d.done_at <= SYS_EXTRACT_UTC(SYSTIMESTAMP) - NUMTODSINTERVAL(:4 / 1000000, 'SECOND')
  ORDER BY d.done_at, d.pos
) c
WHERE ROWNUM <= :5

-- purge --
DELETE FROM "OUTBOX_DONE" WHERE pos = :1

-- purgeDue --
SELECT m.one FROM "OUTBOX_META" m
WHERE m.one = 1 AND m.purge_at <= SYS_EXTRACT_UTC(SYSTIMESTAMP) - NUMTODSINTERVAL(:1 / 1000000, 'SECOND')
FOR UPDATE WAIT 10

-- claimPurge --
UPDATE "OUTBOX_META" SET purge_at = SYS_EXTRACT_UTC(SYSTIMESTAMP) WHERE one = 1

-- purgeable --
SELECT COUNT(*) FROM (
  SELECT 1 AS old FROM "OUTBOX_DONE" d WHERE d.done_at <= SYS_EXTRACT_UTC(SYSTIMESTAMP) - NUMTODSINTERVAL(:1 / 1000000, 'SECOND') AND ROWNUM <= :2
) c

-- record --
INSERT INTO "OUTBOX_INBOX" (consumer, message_id) VALUES (:1, :2)

-- recorded --
SELECT COUNT(*) FROM "OUTBOX_INBOX" i WHERE i.consumer = :1 AND i.message_id = :2

-- choosePurgeInbox --
SELECT c.consumer, c.message_id FROM (
  SELECT /*+ INDEX(i (recorded_at)) */ i.consumer, i.message_id FROM "OUTBOX_INBOX" i
  WHERE i.recorded_at <= SYS_EXTRACT_UTC(SYSTIMESTAMP) - NUMTODSINTERVAL(:1 / 1000000, 'SECOND')
  ORDER BY i.recorded_at
) c
WHERE ROWNUM <= :2

-- purgeInbox --
DELETE FROM "OUTBOX_INBOX" WHERE consumer = :1 AND message_id = :2

-- beginRevision --
INSERT INTO "OUTBOX_REVISION" (key_hash, key, revision)
SELECT :1, :2, 0 FROM DUAL
WHERE NOT EXISTS (SELECT 1 FROM "OUTBOX_REVISION" k WHERE k.key_hash = :3 AND (k.key = :4 OR k.key IS NULL AND :5 IS NULL))

-- raiseRevision --
UPDATE "OUTBOX_REVISION" SET revision = revision + :1
WHERE key_hash = :2 AND (key = :3 OR key IS NULL AND :4 IS NULL)

-- lastRevision --
SELECT k.revision FROM "OUTBOX_REVISION" k
WHERE k.key_hash = :1 AND (k.key = :2 OR k.key IS NULL AND :3 IS NULL)
FOR UPDATE WAIT 10

-- revise --
INSERT INTO "OUTBOX" (lane, id, topic, key, key_hash, type, content_type, revision, replay, payload_empty, headers, payload)
VALUES (:1, :2, :3, :4, :5, :6, :7,
    (SELECT k.revision FROM "OUTBOX_REVISION" k WHERE k.key_hash = :8 AND (k.key = :9 OR k.key IS NULL AND :10 IS NULL)) - :11,
    :12, :13, :14, :15)

-- beginProgress --
INSERT INTO "OUTBOX_PROGRESS" (consumer, key_hash, key, revision)
SELECT :1, :2, :3, 0 FROM DUAL
WHERE NOT EXISTS (SELECT 1 FROM "OUTBOX_PROGRESS" k WHERE k.consumer = :4 AND k.key_hash = :5 AND (k.key = :6 OR k.key IS NULL AND :7 IS NULL))

-- lastProgress --
SELECT k.revision FROM "OUTBOX_PROGRESS" k
WHERE k.consumer = :1 AND k.key_hash = :2 AND (k.key = :3 OR k.key IS NULL AND :4 IS NULL)
FOR UPDATE WAIT 10

-- setProgress --
UPDATE "OUTBOX_PROGRESS" SET revision = :1
WHERE consumer = :2 AND key_hash = :3 AND (key = :4 OR key IS NULL AND :5 IS NULL)

-- progress --
SELECT k.revision FROM "OUTBOX_PROGRESS" k
WHERE k.consumer = :1 AND k.key_hash = :2 AND (k.key = :3 OR k.key IS NULL AND :4 IS NULL)

-- writeAudit --
INSERT INTO "OUTBOX_AUDIT" (id, ended, who, action, selection, why, changed, failure) VALUES (:1, :2, :3, :4, :5, :6, :7, :8)

-- audit --
SELECT b.pos, b.id, b.who, b.action, b.selection, b.why, b.begun, (EXTRACT(DAY FROM (e.written_at - TIMESTAMP '1970-01-01 00:00:00')) * 86400000000 + EXTRACT(HOUR FROM (e.written_at - TIMESTAMP '1970-01-01 00:00:00')) * 3600000000 + EXTRACT(MINUTE FROM (e.written_at - TIMESTAMP '1970-01-01 00:00:00')) * 60000000 + TRUNC(EXTRACT(SECOND FROM (e.written_at - TIMESTAMP '1970-01-01 00:00:00')) * 1000000)), NVL(e.changed, 0), e.failure
FROM (
  SELECT c.pos, c.id, c.who, c.action, c.selection, c.why, c.begun FROM (
    SELECT /*+ INDEX_DESC(a (pos)) */ a.pos, a.id, a.who, a.action, a.selection, a.why, (EXTRACT(DAY FROM (a.written_at - TIMESTAMP '1970-01-01 00:00:00')) * 86400000000 + EXTRACT(HOUR FROM (a.written_at - TIMESTAMP '1970-01-01 00:00:00')) * 3600000000 + EXTRACT(MINUTE FROM (a.written_at - TIMESTAMP '1970-01-01 00:00:00')) * 60000000 + TRUNC(EXTRACT(SECOND FROM (a.written_at - TIMESTAMP '1970-01-01 00:00:00')) * 1000000)) AS begun
    FROM "OUTBOX_AUDIT" a
    WHERE a.pos < :1 AND a.ended = 0
    ORDER BY a.pos DESC
  ) c
  WHERE ROWNUM <= :2
) b LEFT JOIN "OUTBOX_AUDIT" e ON e.id = b.id AND e.ended = 1
ORDER BY b.pos DESC

-- viewLanes --
SELECT l.lane, l.owner, l.epoch, (EXTRACT(DAY FROM (l.lease_until - SYS_EXTRACT_UTC(SYSTIMESTAMP))) * 86400000000 + EXTRACT(HOUR FROM (l.lease_until - SYS_EXTRACT_UTC(SYSTIMESTAMP))) * 3600000000 + EXTRACT(MINUTE FROM (l.lease_until - SYS_EXTRACT_UTC(SYSTIMESTAMP))) * 60000000 + TRUNC(EXTRACT(SECOND FROM (l.lease_until - SYS_EXTRACT_UTC(SYSTIMESTAMP))) * 1000000)),
    CASE WHEN l.served_at > TIMESTAMP '1970-01-01 00:00:00' THEN (EXTRACT(DAY FROM (SYS_EXTRACT_UTC(SYSTIMESTAMP) - l.served_at)) * 86400000000 + EXTRACT(HOUR FROM (SYS_EXTRACT_UTC(SYSTIMESTAMP) - l.served_at)) * 3600000000 + EXTRACT(MINUTE FROM (SYS_EXTRACT_UTC(SYSTIMESTAMP) - l.served_at)) * 60000000 + TRUNC(EXTRACT(SECOND FROM (SYS_EXTRACT_UTC(SYSTIMESTAMP) - l.served_at)) * 1000000)) END
FROM "OUTBOX_LANE" l
ORDER BY l.lane

-- viewDone --
SELECT c.pos, c.ago, c.took, c.first_time FROM (
  SELECT /*+ INDEX_DESC(d (done_at pos)) */ d.pos, (EXTRACT(DAY FROM (SYS_EXTRACT_UTC(SYSTIMESTAMP) - d.done_at)) * 86400000000 + EXTRACT(HOUR FROM (SYS_EXTRACT_UTC(SYSTIMESTAMP) - d.done_at)) * 3600000000 + EXTRACT(MINUTE FROM (SYS_EXTRACT_UTC(SYSTIMESTAMP) - d.done_at)) * 60000000 + TRUNC(EXTRACT(SECOND FROM (SYS_EXTRACT_UTC(SYSTIMESTAMP) - d.done_at)) * 1000000)) AS ago, (EXTRACT(DAY FROM (d.done_at - d.created_at)) * 86400000000 + EXTRACT(HOUR FROM (d.done_at - d.created_at)) * 3600000000 + EXTRACT(MINUTE FROM (d.done_at - d.created_at)) * 60000000 + TRUNC(EXTRACT(SECOND FROM (d.done_at - d.created_at)) * 1000000)) AS took,
    CASE WHEN d.outcome = 'published' AND d.replay = 0 THEN 1 ELSE 0 END AS first_time
  FROM "OUTBOX_DONE" d
  ORDER BY d.done_at DESC, d.pos DESC
) c
WHERE ROWNUM <= :1

-- viewReasons --
SELECT c.state, c.topic, c.reason FROM (
  SELECT /*+ INDEX_DESC(p (pos)) */ p.state, p.topic, p.reason
  FROM "OUTBOX_PARKED" p
  ORDER BY p.pos DESC
) c
WHERE ROWNUM <= :1

-- viewMessage --
SELECT 'ready', r.lane, r.seq, r.topic, r.key, CASE WHEN r.key_hash IS NULL THEN 0 ELSE 1 END, r.type, 0, r.replay, CAST(NULL AS RAW(2000)),
  (EXTRACT(DAY FROM (SYS_EXTRACT_UTC(SYSTIMESTAMP) - r.created_at)) * 86400000000 + EXTRACT(HOUR FROM (SYS_EXTRACT_UTC(SYSTIMESTAMP) - r.created_at)) * 3600000000 + EXTRACT(MINUTE FROM (SYS_EXTRACT_UTC(SYSTIMESTAMP) - r.created_at)) * 60000000 + TRUNC(EXTRACT(SECOND FROM (SYS_EXTRACT_UTC(SYSTIMESTAMP) - r.created_at)) * 1000000)), (EXTRACT(DAY FROM (SYS_EXTRACT_UTC(SYSTIMESTAMP) - r.ready_at)) * 86400000000 + EXTRACT(HOUR FROM (SYS_EXTRACT_UTC(SYSTIMESTAMP) - r.ready_at)) * 3600000000 + EXTRACT(MINUTE FROM (SYS_EXTRACT_UTC(SYSTIMESTAMP) - r.ready_at)) * 60000000 + TRUNC(EXTRACT(SECOND FROM (SYS_EXTRACT_UTC(SYSTIMESTAMP) - r.ready_at)) * 1000000)), CAST(NULL AS NUMBER)
FROM "OUTBOX" r WHERE r.id = :1
UNION ALL
SELECT CASE p.state WHEN 1 THEN 'scheduled' WHEN 2 THEN 'retry' WHEN 3 THEN 'held' ELSE 'dead' END,
  p.lane, NVL(p.seq, 0), p.topic, p.key, CASE WHEN p.key_hash IS NULL THEN 0 ELSE 1 END, p.type, p.attempts, p.replay, p.reason,
  (EXTRACT(DAY FROM (SYS_EXTRACT_UTC(SYSTIMESTAMP) - p.created_at)) * 86400000000 + EXTRACT(HOUR FROM (SYS_EXTRACT_UTC(SYSTIMESTAMP) - p.created_at)) * 3600000000 + EXTRACT(MINUTE FROM (SYS_EXTRACT_UTC(SYSTIMESTAMP) - p.created_at)) * 60000000 + TRUNC(EXTRACT(SECOND FROM (SYS_EXTRACT_UTC(SYSTIMESTAMP) - p.created_at)) * 1000000)), (EXTRACT(DAY FROM (SYS_EXTRACT_UTC(SYSTIMESTAMP) - p.parked_at)) * 86400000000 + EXTRACT(HOUR FROM (SYS_EXTRACT_UTC(SYSTIMESTAMP) - p.parked_at)) * 3600000000 + EXTRACT(MINUTE FROM (SYS_EXTRACT_UTC(SYSTIMESTAMP) - p.parked_at)) * 60000000 + TRUNC(EXTRACT(SECOND FROM (SYS_EXTRACT_UTC(SYSTIMESTAMP) - p.parked_at)) * 1000000)), (EXTRACT(DAY FROM (p.available_at - SYS_EXTRACT_UTC(SYSTIMESTAMP))) * 86400000000 + EXTRACT(HOUR FROM (p.available_at - SYS_EXTRACT_UTC(SYSTIMESTAMP))) * 3600000000 + EXTRACT(MINUTE FROM (p.available_at - SYS_EXTRACT_UTC(SYSTIMESTAMP))) * 60000000 + TRUNC(EXTRACT(SECOND FROM (p.available_at - SYS_EXTRACT_UTC(SYSTIMESTAMP))) * 1000000))
FROM "OUTBOX_PARKED" p WHERE p.id = :2
UNION ALL
SELECT d.outcome, d.lane, NVL(d.seq, 0), d.topic, d.key, CASE WHEN d.key_hash IS NULL THEN 0 ELSE 1 END, d.type, d.attempts, d.replay, d.reason,
  (EXTRACT(DAY FROM (SYS_EXTRACT_UTC(SYSTIMESTAMP) - d.created_at)) * 86400000000 + EXTRACT(HOUR FROM (SYS_EXTRACT_UTC(SYSTIMESTAMP) - d.created_at)) * 3600000000 + EXTRACT(MINUTE FROM (SYS_EXTRACT_UTC(SYSTIMESTAMP) - d.created_at)) * 60000000 + TRUNC(EXTRACT(SECOND FROM (SYS_EXTRACT_UTC(SYSTIMESTAMP) - d.created_at)) * 1000000)), (EXTRACT(DAY FROM (SYS_EXTRACT_UTC(SYSTIMESTAMP) - d.done_at)) * 86400000000 + EXTRACT(HOUR FROM (SYS_EXTRACT_UTC(SYSTIMESTAMP) - d.done_at)) * 3600000000 + EXTRACT(MINUTE FROM (SYS_EXTRACT_UTC(SYSTIMESTAMP) - d.done_at)) * 60000000 + TRUNC(EXTRACT(SECOND FROM (SYS_EXTRACT_UTC(SYSTIMESTAMP) - d.done_at)) * 1000000)), CAST(NULL AS NUMBER)
FROM "OUTBOX_DONE" d WHERE d.id = :3

-- session --
SELECT v.product, v.version, SYS_CONTEXT('USERENV', 'DATABASE_ROLE'), SYS_CONTEXT('USERENV', 'CURRENT_SCHEMA'),
    SYS_CONTEXT('USERENV', 'SESSION_USER'), (SELECT COUNT(*) FROM session_privs p WHERE p.privilege = 'SELECT ANY TABLE')
FROM product_component_version v
WHERE v.product LIKE 'Oracle%'

-- tables --
SELECT t.table_name FROM all_tables t
WHERE t.owner = :1 AND t.table_name IN (:2, :3, :4, :5, :6, :7, :8, :9, :10)

-- indexes --
SELECT i.index_name, i.status FROM all_indexes i
WHERE i.table_owner = :1 AND i.table_name IN (:2, :3, :4, :5, :6, :7, :8, :9, :10)

-- meta --
SELECT m.version, m.lanes FROM "OUTBOX_META" m

-- lanes --
SELECT NVL(SUM(CASE WHEN l.lane BETWEEN 0 AND :1 - 1 THEN 1 ELSE 0 END), 0), NVL(SUM(CASE WHEN l.lane BETWEEN 0 AND :2 - 1 THEN 0 ELSE 1 END), 0)
FROM "OUTBOX_LANE" l

-- parked --
SELECT NVL(p.seq, 0), p.pos, p.attempts, p.lane, p.id, p.topic, p.key, p.key_hash, p.type, p.content_type,
    (EXTRACT(DAY FROM (p.created_at - TIMESTAMP '1970-01-01 00:00:00')) * 86400000000 + EXTRACT(HOUR FROM (p.created_at - TIMESTAMP '1970-01-01 00:00:00')) * 3600000000 + EXTRACT(MINUTE FROM (p.created_at - TIMESTAMP '1970-01-01 00:00:00')) * 60000000 + TRUNC(EXTRACT(SECOND FROM (p.created_at - TIMESTAMP '1970-01-01 00:00:00')) * 1000000)),
    NVL(p.revision, 0), p.replay,
    (EXTRACT(DAY FROM (SYS_EXTRACT_UTC(SYSTIMESTAMP) - p.created_at)) * 86400000000 + EXTRACT(HOUR FROM (SYS_EXTRACT_UTC(SYSTIMESTAMP) - p.created_at)) * 3600000000 + EXTRACT(MINUTE FROM (SYS_EXTRACT_UTC(SYSTIMESTAMP) - p.created_at)) * 60000000 + TRUNC(EXTRACT(SECOND FROM (SYS_EXTRACT_UTC(SYSTIMESTAMP) - p.created_at)) * 1000000)),
    p.headers,
    p.state, p.blocking, p.reason,
    (EXTRACT(DAY FROM (p.available_at - SYS_EXTRACT_UTC(SYSTIMESTAMP))) * 86400000000 + EXTRACT(HOUR FROM (p.available_at - SYS_EXTRACT_UTC(SYSTIMESTAMP))) * 3600000000 + EXTRACT(MINUTE FROM (p.available_at - SYS_EXTRACT_UTC(SYSTIMESTAMP))) * 60000000 + TRUNC(EXTRACT(SECOND FROM (p.available_at - SYS_EXTRACT_UTC(SYSTIMESTAMP))) * 1000000)),
    (EXTRACT(DAY FROM (p.parked_at - TIMESTAMP '1970-01-01 00:00:00')) * 86400000000 + EXTRACT(HOUR FROM (p.parked_at - TIMESTAMP '1970-01-01 00:00:00')) * 3600000000 + EXTRACT(MINUTE FROM (p.parked_at - TIMESTAMP '1970-01-01 00:00:00')) * 60000000 + TRUNC(EXTRACT(SECOND FROM (p.parked_at - TIMESTAMP '1970-01-01 00:00:00')) * 1000000)),
    CASE WHEN p.payload_empty = 1 OR DBMS_LOB.GETLENGTH(p.payload) = 0 THEN 1 ELSE 0 END, p.payload
FROM (
  SELECT c.pos FROM (
    SELECT p.pos FROM "OUTBOX_PARKED" p
    WHERE p.pos > :1
    AND (p.id IN (:2))
    AND p.lane = :3
    AND p.key_hash = :4
    AND p.key = :5
    AND p.topic = :6
    AND p.type = :7
    AND p.state IN (:8)
    ORDER BY p.pos
  ) c
  WHERE ROWNUM <= :9
) n, "OUTBOX_PARKED" p
WHERE p.pos = n.pos
ORDER BY p.pos

-- requeueLanes --
SELECT l.lane FROM "OUTBOX_LANE" l
WHERE EXISTS (SELECT 1 FROM "OUTBOX_PARKED" p
    WHERE p.lane = l.lane
    AND (p.state = 4 OR (p.state IN (1, 2) AND p.available_at > SYS_EXTRACT_UTC(SYSTIMESTAMP)))
    AND (p.seq IS NOT NULL OR p.state = 1 OR NOT EXISTS (
      SELECT /*+ NO_UNNEST INDEX(o (id)) */ 1 FROM "OUTBOX_PARKED" o
      WHERE o.id = p.id AND o.seq IS NULL AND (o.state = 1 OR o.pos < p.pos)))
    AND (p.id IN (:1))
    AND p.lane = :2
    AND p.key_hash = :3
    AND p.key = :4
    AND p.topic = :5
    AND p.type = :6
    AND p.state IN (:7))
ORDER BY l.lane

-- discardLanes --
SELECT l.lane FROM "OUTBOX_LANE" l
WHERE EXISTS (SELECT 1 FROM "OUTBOX_PARKED" p
    WHERE p.lane = l.lane
    AND (p.id IN (:1))
    AND p.lane = :2
    AND p.key_hash = :3
    AND p.key = :4
    AND p.topic = :5
    AND p.type = :6
    AND p.state IN (:7))
ORDER BY l.lane

-- chooseRequeue --
SELECT c.pos, c.id, c.key_hash, c.placed, c.dead FROM (
  SELECT p.pos, p.id, p.key_hash, CASE WHEN p.seq IS NULL THEN 0 ELSE 1 END AS placed, CASE WHEN p.state = 4 THEN 1 ELSE 0 END AS dead
  FROM "OUTBOX_PARKED" p
  WHERE p.lane = :1
    AND (p.state = 4 OR (p.state IN (1, 2) AND p.available_at > SYS_EXTRACT_UTC(SYSTIMESTAMP)))
    AND (p.seq IS NOT NULL OR p.state = 1 OR NOT EXISTS (
      SELECT /*+ NO_UNNEST INDEX(o (id)) */ 1 FROM "OUTBOX_PARKED" o
      WHERE o.id = p.id AND o.seq IS NULL AND (o.state = 1 OR o.pos < p.pos)))
    AND (p.id IN (:2))
    AND p.lane = :3
    AND p.key_hash = :4
    AND p.key = :5
    AND p.topic = :6
    AND p.type = :7
    AND p.state IN (:8)
  ORDER BY p.seq NULLS LAST, p.pos
) c
WHERE ROWNUM <= :9

-- chooseDiscard --
SELECT c.pos, c.id, c.key_hash, c.placed, c.dead FROM (
  SELECT p.pos, p.id, p.key_hash, CASE WHEN p.seq IS NULL THEN 0 ELSE 1 END AS placed, CASE WHEN p.state = 4 THEN 1 ELSE 0 END AS dead
  FROM "OUTBOX_PARKED" p
  WHERE p.lane = :1
    AND (p.id IN (:2))
    AND p.lane = :3
    AND p.key_hash = :4
    AND p.key = :5
    AND p.topic = :6
    AND p.type = :7
    AND p.state IN (:8)
  ORDER BY p.seq NULLS LAST, p.pos
) c
WHERE ROWNUM <= :9

-- chooseReplay --
SELECT c.settled, c.pos, c.taken FROM (
  SELECT (EXTRACT(DAY FROM (d.done_at - TIMESTAMP '1970-01-01 00:00:00')) * 86400000000 + EXTRACT(HOUR FROM (d.done_at - TIMESTAMP '1970-01-01 00:00:00')) * 3600000000 + EXTRACT(MINUTE FROM (d.done_at - TIMESTAMP '1970-01-01 00:00:00')) * 60000000 + TRUNC(EXTRACT(SECOND FROM (d.done_at - TIMESTAMP '1970-01-01 00:00:00')) * 1000000)) AS settled, d.pos,
    CASE WHEN EXISTS (SELECT /*+ NO_UNNEST INDEX(r (id)) */ 1 FROM "OUTBOX" r WHERE r.id = d.id)
      OR EXISTS (SELECT /*+ NO_UNNEST INDEX(p (id)) */ 1 FROM "OUTBOX_PARKED" p WHERE p.id = d.id) THEN 1 ELSE 0 END AS taken
  FROM "OUTBOX_DONE" d
  WHERE d.done_at >= TIMESTAMP '2000-01-01 00:00:00' + NUMTODSINTERVAL((:1 - 946684800000000) / 1000000, 'SECOND') AND (d.done_at > TIMESTAMP '2000-01-01 00:00:00' + NUMTODSINTERVAL((:2 - 946684800000000) / 1000000, 'SECOND') OR d.pos > :3) AND d.done_at < TIMESTAMP '2000-01-01 00:00:00' + NUMTODSINTERVAL((:4 - 946684800000000) / 1000000, 'SECOND')
    AND (d.id IN (:5))
    AND d.lane = :6
    AND d.key_hash = :7
    AND d.key = :8
    AND d.topic = :9
    AND d.type = :10
    AND NOT EXISTS (SELECT /*+ NO_UNNEST INDEX(n (id)) */ 1 FROM "OUTBOX_DONE" n
      WHERE n.id = d.id AND (n.done_at > d.done_at OR (n.done_at = d.done_at AND n.pos > d.pos))
        AND (n.done_at < TIMESTAMP '2000-01-01 00:00:00' + NUMTODSINTERVAL((:11 - 946684800000000) / 1000000, 'SECOND') OR n.done_at >= TIMESTAMP '2000-01-01 00:00:00' + NUMTODSINTERVAL((:12 - 946684800000000) / 1000000, 'SECOND')))
  ORDER BY d.done_at, d.pos
) c
WHERE ROWNUM <= :13

-- readParked --
SELECT NVL(p.seq, 0), p.pos, p.attempts, p.lane, p.id, p.topic, p.key, p.key_hash, p.type, p.content_type,
    (EXTRACT(DAY FROM (p.created_at - TIMESTAMP '1970-01-01 00:00:00')) * 86400000000 + EXTRACT(HOUR FROM (p.created_at - TIMESTAMP '1970-01-01 00:00:00')) * 3600000000 + EXTRACT(MINUTE FROM (p.created_at - TIMESTAMP '1970-01-01 00:00:00')) * 60000000 + TRUNC(EXTRACT(SECOND FROM (p.created_at - TIMESTAMP '1970-01-01 00:00:00')) * 1000000)),
    NVL(p.revision, 0), p.replay,
    (EXTRACT(DAY FROM (SYS_EXTRACT_UTC(SYSTIMESTAMP) - p.created_at)) * 86400000000 + EXTRACT(HOUR FROM (SYS_EXTRACT_UTC(SYSTIMESTAMP) - p.created_at)) * 3600000000 + EXTRACT(MINUTE FROM (SYS_EXTRACT_UTC(SYSTIMESTAMP) - p.created_at)) * 60000000 + TRUNC(EXTRACT(SECOND FROM (SYS_EXTRACT_UTC(SYSTIMESTAMP) - p.created_at)) * 1000000)),
    p.headers,
    p.state, p.blocking, p.reason,
    (EXTRACT(DAY FROM (p.available_at - SYS_EXTRACT_UTC(SYSTIMESTAMP))) * 86400000000 + EXTRACT(HOUR FROM (p.available_at - SYS_EXTRACT_UTC(SYSTIMESTAMP))) * 3600000000 + EXTRACT(MINUTE FROM (p.available_at - SYS_EXTRACT_UTC(SYSTIMESTAMP))) * 60000000 + TRUNC(EXTRACT(SECOND FROM (p.available_at - SYS_EXTRACT_UTC(SYSTIMESTAMP))) * 1000000)),
    (EXTRACT(DAY FROM (p.parked_at - TIMESTAMP '1970-01-01 00:00:00')) * 86400000000 + EXTRACT(HOUR FROM (p.parked_at - TIMESTAMP '1970-01-01 00:00:00')) * 3600000000 + EXTRACT(MINUTE FROM (p.parked_at - TIMESTAMP '1970-01-01 00:00:00')) * 60000000 + TRUNC(EXTRACT(SECOND FROM (p.parked_at - TIMESTAMP '1970-01-01 00:00:00')) * 1000000)),
    CASE WHEN p.payload_empty = 1 OR DBMS_LOB.GETLENGTH(p.payload) = 0 THEN 1 ELSE 0 END, p.payload
FROM "OUTBOX_PARKED" p
WHERE p.pos IN (:1, :2, :3, :4, :5, :6, :7, :8, :9, :10)

-- keysOfReady --
SELECT r.seq, r.id, r.key_hash FROM "OUTBOX" r
WHERE r.lane = :1 AND r.seq IN (:2, :3, :4, :5, :6, :7, :8, :9, :10, :11)

-- keysOfParked --
SELECT p.pos, p.id, p.key_hash FROM "OUTBOX_PARKED" p
WHERE p.lane = :1 AND p.pos IN (:2, :3, :4, :5, :6, :7, :8, :9, :10, :11)

-- lockPurge --
SELECT d.pos FROM "OUTBOX_DONE" d
WHERE d.pos IN (:1, :2, :3, :4, :5, :6, :7, :8, :9, :10)
FOR UPDATE SKIP LOCKED

-- lockPurgeInbox --
SELECT i.consumer, i.message_id FROM "OUTBOX_INBOX" i
WHERE (i.consumer, i.message_id) IN ((:1, :2), (:3, :4), (:5, :6), (:7, :8), (:9, :10), (:11, :12), (:13, :14), (:15, :16), (:17, :18), (:19, :20))
FOR UPDATE SKIP LOCKED

