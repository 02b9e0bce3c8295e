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
CREATE TABLE {meta} (
    one      NUMBER(1)    DEFAULT 1 NOT NULL CONSTRAINT {name:meta_pk} PRIMARY KEY,
    -- The version of this schema; 0 while it is being made.
    version  NUMBER(10)   NOT NULL,
    -- The number of lanes, the same in the checks below.
    lanes    NUMBER(10)   NOT NULL,
    -- When done was last purged.
    purge_at TIMESTAMP(6) DEFAULT TIMESTAMP '1970-01-01 00:00:00' NOT NULL,
    CONSTRAINT {name:meta_one} CHECK (one = 1)
);

INSERT INTO {meta} (version, lanes)
SELECT 0, {lanes} FROM DUAL WHERE NOT EXISTS (SELECT 1 FROM {meta});

COMMIT;

-- ready: messages to publish, nothing else. Producers insert, a relay's settle
-- deletes, nobody updates.
CREATE TABLE {ready} (
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
    CONSTRAINT {name:pk} PRIMARY KEY (lane, seq) USING INDEX INITRANS 8,
    -- The same message twice is an error in the producer's transaction.
    CONSTRAINT {name:id} UNIQUE (id) USING INDEX INITRANS 8,
    CONSTRAINT {name:empty} CHECK (payload_empty IN (0, 1)),
    -- The hash of the empty key is -2039914840885289964.
    CONSTRAINT {name:key_has_hash} CHECK (
        (key IS NULL AND (key_hash IS NULL OR key_hash = -2039914840885289964)) OR (key IS NOT NULL AND key_hash IS NOT NULL)),
    -- Refuses a producer that counts the lanes differently.
    CONSTRAINT {name:lane_fits} CHECK (lane BETWEEN 0 AND {lanes} - 1 AND (key_hash IS NULL OR
        lane = MOD(MOD(key_hash, {lanes}) + {lanes} + CASE WHEN key_hash < 0 THEN {wrap} ELSE 0 END, {lanes})))
) INITRANS 8;

-- parked: messages that wait for a time (scheduled, retry), for the row before them
-- (held) or for a person (dead). Rows change and grow here, so blocks keep room.
CREATE TABLE {parked} (
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
    CONSTRAINT {name:parked_pk} PRIMARY KEY (pos) USING INDEX INITRANS 8,
    CONSTRAINT {name:parked_empty} CHECK (payload_empty IN (0, 1)),
    CONSTRAINT {name:parked_state} CHECK (state IN (1, 2, 3, 4)),
    CONSTRAINT {name:parked_due} CHECK (
        (state IN (1, 2) AND available_at IS NOT NULL) OR (state IN (3, 4) AND available_at IS NULL)),
    CONSTRAINT {name:parked_order} CHECK (state IN (1, 4) OR seq IS NOT NULL),
    CONSTRAINT {name:parked_head} CHECK (blocking = 0 OR
        (blocking = 1 AND key_hash IS NOT NULL AND seq IS NOT NULL AND state IN (2, 4))),
    CONSTRAINT {name:parked_held} CHECK (state <> 3 OR key_hash IS NOT NULL),
    CONSTRAINT {name:parked_key_has_hash} CHECK (
        (key IS NULL AND (key_hash IS NULL OR key_hash = -2039914840885289964)) OR (key IS NOT NULL AND key_hash IS NOT NULL)),
    CONSTRAINT {name:parked_lane_fits} CHECK (lane BETWEEN 0 AND {lanes} - 1 AND (key_hash IS NULL OR
        lane = MOD(MOD(key_hash, {lanes}) + {lanes} + CASE WHEN key_hash < 0 THEN {wrap} ELSE 0 END, {lanes})))
) INITRANS 8 PCTFREE 20;

-- What is due in a lane, by state; held and dead rows stand in it without a time, so
-- that they can be counted by state.
CREATE INDEX {index:parked_due_at} ON {parked} (state, lane, available_at, pos) INITRANS 8;

-- The blocked keys.
CREATE INDEX {index:parked_blocked} ON {parked} (blocking, lane, key_hash, seq) INITRANS 8;

-- The rows of a key; by state, so that the first held one is found at once.
CREATE INDEX {index:parked_key} ON {parked} (lane, key_hash, state, seq) INITRANS 8;

-- For operators. Not unique: a parked message may share its id with another.
CREATE INDEX {index:parked_id} ON {parked} (id) INITRANS 8;

-- The same delayed message twice is an error in the producer's transaction. Rows for
-- which the expression is NULL are not in the index.
CREATE UNIQUE INDEX {index:parked_scheduled_id} ON {parked} (CASE WHEN state = 1 THEN id END) INITRANS 8;

-- done: what was published or discarded, for the retention window. Rows are added in
-- order of time and removed from the old end.
CREATE TABLE {done} (
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
    CONSTRAINT {name:done_pk} PRIMARY KEY (done_at, pos) USING INDEX INITRANS 8,
    CONSTRAINT {name:done_outcome} CHECK (outcome IN ('published', 'discarded'))
) INITRANS 8;

-- Names a row.
CREATE INDEX {index:done_pos} ON {done} (pos) INITRANS 8;

-- For replay by id. Not unique: a replayed message is done twice.
CREATE INDEX {index:done_id} ON {done} (id) INITRANS 8;

-- lane: who may change a lane, until when. The epoch is the fence: whoever writes for
-- a lane locks its row and finds the epoch unchanged, or writes nothing. Few rows, all
-- of them busy: a few in a block, with room for the transactions that change them.
CREATE TABLE {lane} (
    lane        NUMBER(10)    NOT NULL CONSTRAINT {name:lane_pk} PRIMARY KEY,
    epoch       NUMBER(19)    DEFAULT 0 NOT NULL,
    -- NULL without an owner.
    owner       RAW(255),
    lease_until TIMESTAMP(6)  DEFAULT TIMESTAMP '1970-01-01 00:00:00' NOT NULL,
    served_at   TIMESTAMP(6)  DEFAULT TIMESTAMP '1970-01-01 00:00:00' NOT NULL
) INITRANS 8 PCTFREE 90 PCTUSED 5;

INSERT INTO {lane} (lane)
SELECT n.lane FROM (SELECT LEVEL - 1 AS lane FROM DUAL CONNECT BY LEVEL <= {lanes}) n
WHERE NOT EXISTS (SELECT 1 FROM {lane} l WHERE l.lane = n.lane);

COMMIT;

-- inbox: the messages a consumer has processed.
CREATE TABLE {inbox} (
    consumer    RAW(255)      NOT NULL,
    message_id  RAW(255)      NOT NULL,
    recorded_at TIMESTAMP(6)  DEFAULT SYS_EXTRACT_UTC(SYSTIMESTAMP) NOT NULL,
    CONSTRAINT {name:inbox_pk} PRIMARY KEY (consumer, message_id) USING INDEX INITRANS 8
) INITRANS 8;

-- For the purge.
CREATE INDEX {index:inbox_recorded_at} ON {inbox} (recorded_at) INITRANS 8;

UPDATE {meta} SET version = 1 WHERE one = 1 AND version = 0;

COMMIT;
