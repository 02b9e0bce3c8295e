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
CREATE TABLE IF NOT EXISTS {meta} (
    one      TINYINT     NOT NULL PRIMARY KEY DEFAULT 1,
    -- The version of this schema; 0 while it is being made.
    version  INT         NOT NULL,
    -- The number of lanes, the same in the checks below.
    lanes    INT         NOT NULL,
    -- When done was last purged.
    purge_at DATETIME(6) NOT NULL DEFAULT '1970-01-01 00:00:00',
    CONSTRAINT {name:meta_one} CHECK (one = 1)
) ENGINE = InnoDB;

INSERT INTO {meta} (version, lanes)
SELECT n.version, {lanes} FROM (SELECT 0 AS version) AS n
WHERE NOT EXISTS (SELECT 1 FROM {meta} AS m);

-- ready: messages to publish, nothing else. Producers insert, a relay's settle
-- deletes, nobody updates.
CREATE TABLE IF NOT EXISTS {ready} (
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
    KEY {name:seq} (seq),
    -- The same message twice is an error in the producer's transaction.
    UNIQUE KEY {name:id} (id),
    CONSTRAINT {name:key_has_hash} CHECK ((`key` IS NULL) = (key_hash IS NULL)),
    -- Refuses a producer that counts the lanes differently.
    CONSTRAINT {name:lane_fits} CHECK (lane BETWEEN 0 AND {lanes} - 1 AND (key_hash IS NULL OR
        lane = (key_hash % {lanes} + {lanes} + CASE WHEN key_hash < 0 THEN {wrap} ELSE 0 END) % {lanes}))
) ENGINE = InnoDB;

-- parked: messages that wait for a time (scheduled, retry), for the row before them
-- (held) or for a person (dead).
CREATE TABLE IF NOT EXISTS {parked} (
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
    KEY {name:parked_due_at} (lane, state, available_at),
    -- The blocked keys.
    KEY {name:parked_blocked} (blocking, lane, key_hash, seq),
    -- The rows of a key; by state, so that the first held one is found at once.
    KEY {name:parked_key} (lane, key_hash, state, seq),
    -- For operators. Not unique: a parked message may share its id with another.
    KEY {name:parked_id} (id),
    -- The same delayed message twice is an error in the producer's transaction.
    UNIQUE KEY {name:parked_scheduled_id} (scheduled_id),
    CONSTRAINT {name:parked_state} CHECK (state IN ('scheduled', 'retry', 'held', 'dead')),
    CONSTRAINT {name:parked_due} CHECK ((state IN ('scheduled', 'retry')) = (available_at IS NOT NULL)),
    CONSTRAINT {name:parked_order} CHECK (state IN ('scheduled', 'dead') OR seq IS NOT NULL),
    CONSTRAINT {name:parked_head} CHECK (blocking = 0 OR
        (blocking = 1 AND key_hash IS NOT NULL AND seq IS NOT NULL AND state IN ('retry', 'dead'))),
    CONSTRAINT {name:parked_held} CHECK (state <> 'held' OR key_hash IS NOT NULL),
    CONSTRAINT {name:parked_key_has_hash} CHECK ((`key` IS NULL) = (key_hash IS NULL)),
    CONSTRAINT {name:parked_lane_fits} CHECK (lane BETWEEN 0 AND {lanes} - 1 AND (key_hash IS NULL OR
        lane = (key_hash % {lanes} + {lanes} + CASE WHEN key_hash < 0 THEN {wrap} ELSE 0 END) % {lanes}))
) ENGINE = InnoDB;

-- done: what was published or discarded, for the retention window. Rows are added in
-- order of time and removed from the old end.
CREATE TABLE IF NOT EXISTS {done} (
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
    KEY {name:done_pos} (pos),
    -- For replay by id. Not unique: a replayed message is done twice.
    KEY {name:done_id} (id),
    CONSTRAINT {name:done_outcome} CHECK (outcome IN ('published', 'discarded'))
) ENGINE = InnoDB;

-- lane: who may change a lane, until when. The epoch is the fence: whoever writes
-- for a lane locks its row and finds the epoch unchanged, or writes nothing.
CREATE TABLE IF NOT EXISTS {lane} (
    lane        INT            NOT NULL PRIMARY KEY,
    epoch       BIGINT         NOT NULL DEFAULT 0,
    owner       VARBINARY(255) NOT NULL DEFAULT '',
    lease_until DATETIME(6)    NOT NULL DEFAULT '1970-01-01 00:00:00',
    served_at   DATETIME(6)    NOT NULL DEFAULT '1970-01-01 00:00:00'
) ENGINE = InnoDB;

INSERT INTO {lane} (lane)
WITH RECURSIVE digit (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM digit WHERE n < 31)
SELECT a.n * 32 + b.n FROM digit AS a CROSS JOIN digit AS b
WHERE a.n * 32 + b.n < {lanes} AND NOT EXISTS (SELECT 1 FROM {lane} AS l WHERE l.lane = a.n * 32 + b.n);

-- inbox: the messages a consumer has processed.
CREATE TABLE IF NOT EXISTS {inbox} (
    consumer    VARBINARY(512)  NOT NULL,
    message_id  VARBINARY(2048) NOT NULL,
    recorded_at DATETIME(6)     NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    PRIMARY KEY (consumer, message_id),
    -- For the purge.
    KEY {name:inbox_recorded_at} (recorded_at)
) ENGINE = InnoDB;

UPDATE {meta} SET version = 1 WHERE one = 1 AND version = 0;

-- For a session with autocommit=0.
COMMIT;
