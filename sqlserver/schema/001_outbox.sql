-- The outbox, version 1.
--
-- A message is in exactly one of three tables: ready (may go), parked (must wait, or
-- needs a person) and done (went, or was discarded). The schema, if it is named, exists
-- before this file runs. Who needs which right is what `outbox schema --grants` prints.
--
-- Never executed by the project, for no server could be had there: its statements were
-- parsed by a grammar and read against the reference.
--
-- Run by hand, it belongs in one transaction, between SET XACT_ABORT ON, BEGIN
-- TRANSACTION and COMMIT. Each statement ends with a semicolon at the end of a line.
--
-- Text is kept as the bytes of its UTF-8, which no collation, code page or case rule
-- touches and no trailing space is lost from. To read it: SELECT CAST(topic AS
-- varchar(255)), CAST([key] AS varchar(512)), CAST(headers AS varchar(max)), where more
-- than ASCII shows right in a database whose collation is a UTF-8 one. Two binary values
-- that differ in trailing zero bytes only are equal here; where that could matter, a hash
-- or the length is compared as well. Times are UTC.
--
-- There are no filtered indexes and no computed columns: each would refuse every insert
-- from a session without QUOTED_IDENTIFIER ON, sqlcmd's default for one. No lock is
-- larger than a row, because READPAST passes by rows only and a lock on a page or table
-- would stop producers.

-- meta: one row.
CREATE TABLE {meta} (
    one      int          NOT NULL DEFAULT 1,
    -- The version of this schema.
    version  int          NOT NULL,
    -- The number of lanes, the same in the checks below.
    lanes    int          NOT NULL,
    -- When done was last purged.
    purge_at datetime2(6) NOT NULL DEFAULT '1970-01-01T00:00:00',
    CONSTRAINT {name:meta_pk} PRIMARY KEY CLUSTERED (one) WITH (ALLOW_PAGE_LOCKS = OFF),
    CONSTRAINT {name:meta_one} CHECK (one = 1)
);

-- ready: messages to publish, nothing else. Producers insert, a relay's settle
-- deletes, nobody updates.
CREATE TABLE {ready} (
    lane         int            NOT NULL,
    -- The order within a lane. Assigned here and nowhere else; gaps mean nothing.
    seq          bigint         IDENTITY (1, 1) NOT NULL,
    id           binary(16)     NOT NULL,
    topic        varbinary(255) NOT NULL,
    [key]        varbinary(512) NULL,
    -- The first 8 bytes of SHA-256 of the key, big-endian, signed.
    key_hash     bigint         NULL,
    type         varbinary(255) NOT NULL,
    content_type varbinary(255) NOT NULL DEFAULT (CAST('application/json' AS varbinary(255))),
    -- A JSON object of strings, kept as it was written; {} by default.
    headers      varbinary(max) NOT NULL DEFAULT 0x7B7D,
    created_at   datetime2(6)   NOT NULL DEFAULT SYSUTCDATETIME(),
    -- The producer's version of what the key names; optional.
    revision     bigint         NULL,
    -- How often an operator replayed the message.
    replay       int            NOT NULL DEFAULT 0,
    -- When the message became ready: its insert, its surfacing, its replay.
    ready_at     datetime2(6)   NOT NULL DEFAULT SYSUTCDATETIME(),
    payload      varbinary(max) NULL,
    -- The only order messages are read in, and the one they are stored in.
    CONSTRAINT {name:pk} PRIMARY KEY CLUSTERED (lane, seq) WITH (ALLOW_PAGE_LOCKS = OFF),
    CONSTRAINT {name:key_has_hash} CHECK (([key] IS NULL AND key_hash IS NULL) OR ([key] IS NOT NULL AND key_hash IS NOT NULL)),
    -- Refuses a producer that counts the lanes differently.
    CONSTRAINT {name:lane_fits} CHECK (lane BETWEEN 0 AND {lanes} - 1 AND (key_hash IS NULL OR
        lane = (key_hash % {lanes} + {lanes} + CASE WHEN key_hash < 0 THEN {wrap} ELSE 0 END) % {lanes}))
);

-- The same message twice is an error in the producer's transaction.
CREATE UNIQUE NONCLUSTERED INDEX {name:id} ON {ready} (id) WITH (ALLOW_PAGE_LOCKS = OFF);

ALTER TABLE {ready} SET (LOCK_ESCALATION = DISABLE);

-- parked: messages that wait for a time (scheduled, retry), for the row before them
-- (held) or for a person (dead).
CREATE TABLE {parked} (
    -- Names a parked row.
    pos          bigint          IDENTITY (1, 1) NOT NULL,
    lane         int             NOT NULL,
    -- The place in the order; a message that was never ready has none.
    seq          bigint          NULL,
    id           binary(16)      NOT NULL,
    topic        varbinary(255)  NOT NULL,
    [key]        varbinary(512)  NULL,
    key_hash     bigint          NULL,
    type         varbinary(255)  NOT NULL,
    content_type varbinary(255)  NOT NULL DEFAULT (CAST('application/json' AS varbinary(255))),
    headers      varbinary(max)  NOT NULL DEFAULT 0x7B7D,
    created_at   datetime2(6)    NOT NULL DEFAULT SYSUTCDATETIME(),
    revision     bigint          NULL,
    replay       int             NOT NULL DEFAULT 0,
    state        varchar(9)      COLLATE Latin1_General_BIN2 NOT NULL DEFAULT 'scheduled',
    -- 1: this row holds back the newer messages of its key.
    blocking     int             NOT NULL DEFAULT 0,
    -- Publish attempts that failed.
    attempts     int             NOT NULL DEFAULT 0,
    -- When a scheduled or retry message is due.
    available_at datetime2(6)    NULL,
    -- The last error.
    reason       varbinary(2000) NULL,
    parked_at    datetime2(6)    NOT NULL DEFAULT SYSUTCDATETIME(),
    -- Tells rows with the same id apart for the unique index below: 0 while scheduled,
    -- then seq, or -pos where there is none.
    twin         bigint          NOT NULL DEFAULT 0,
    payload      varbinary(max)  NULL,
    CONSTRAINT {name:parked_pk} PRIMARY KEY CLUSTERED (pos) WITH (ALLOW_PAGE_LOCKS = OFF),
    CONSTRAINT {name:parked_due} CHECK ((state IN ('scheduled', 'retry') AND available_at IS NOT NULL)
        OR (state IN ('held', 'dead') AND available_at IS NULL)),
    CONSTRAINT {name:parked_order} CHECK (state IN ('scheduled', 'dead') OR seq IS NOT NULL),
    CONSTRAINT {name:parked_head} CHECK (blocking = 0 OR
        (blocking = 1 AND key_hash IS NOT NULL AND seq IS NOT NULL AND state IN ('retry', 'dead'))),
    CONSTRAINT {name:parked_held} CHECK (state <> 'held' OR key_hash IS NOT NULL),
    CONSTRAINT {name:parked_twin} CHECK ((state = 'scheduled' AND twin = 0) OR (state <> 'scheduled' AND twin <> 0)),
    CONSTRAINT {name:parked_key_has_hash} CHECK (([key] IS NULL AND key_hash IS NULL) OR ([key] IS NOT NULL AND key_hash IS NOT NULL)),
    CONSTRAINT {name:parked_lane_fits} CHECK (lane BETWEEN 0 AND {lanes} - 1 AND (key_hash IS NULL OR
        lane = (key_hash % {lanes} + {lanes} + CASE WHEN key_hash < 0 THEN {wrap} ELSE 0 END) % {lanes}))
);

-- What is due in a lane, by state; held and dead rows stand in it without a time, so
-- that they can be counted by state.
CREATE NONCLUSTERED INDEX {name:parked_due_at} ON {parked} (lane, state, available_at) WITH (ALLOW_PAGE_LOCKS = OFF);

-- The blocked keys.
CREATE NONCLUSTERED INDEX {name:parked_blocked} ON {parked} (blocking, lane, key_hash, seq) WITH (ALLOW_PAGE_LOCKS = OFF);

-- The rows of a key; by state, so that the first held one is found at once.
CREATE NONCLUSTERED INDEX {name:parked_key} ON {parked} (lane, key_hash, state, seq) WITH (ALLOW_PAGE_LOCKS = OFF);

-- The same delayed message twice is an error in the producer's transaction. Otherwise a
-- parked message may share its id with another. For operators, too.
CREATE UNIQUE NONCLUSTERED INDEX {name:parked_id} ON {parked} (id, twin) WITH (ALLOW_PAGE_LOCKS = OFF);

ALTER TABLE {parked} SET (LOCK_ESCALATION = DISABLE);

-- done: what was published or discarded, for the retention window. Rows are added in
-- order of time and removed from the old end.
CREATE TABLE {done} (
    done_at      datetime2(6)    NOT NULL DEFAULT SYSUTCDATETIME(),
    pos          bigint          IDENTITY (1, 1) NOT NULL,
    lane         int             NOT NULL,
    seq          bigint          NULL,
    id           binary(16)      NOT NULL,
    topic        varbinary(255)  NOT NULL,
    [key]        varbinary(512)  NULL,
    key_hash     bigint          NULL,
    type         varbinary(255)  NOT NULL,
    content_type varbinary(255)  NOT NULL,
    headers      varbinary(max)  NOT NULL,
    created_at   datetime2(6)    NOT NULL,
    revision     bigint          NULL,
    replay       int             NOT NULL,
    -- Publish attempts, the successful one included.
    attempts     int             NOT NULL,
    outcome      varchar(9)      COLLATE Latin1_General_BIN2 NOT NULL,
    reason       varbinary(2000) NULL,
    payload      varbinary(max)  NULL,
    -- Begins with the time, so that the table can be partitioned by it.
    CONSTRAINT {name:done_pk} PRIMARY KEY CLUSTERED (done_at, pos) WITH (ALLOW_PAGE_LOCKS = OFF),
    CONSTRAINT {name:done_outcome} CHECK (outcome IN ('published', 'discarded'))
);

-- For replay by id. Not unique: a replayed message is done twice.
CREATE NONCLUSTERED INDEX {name:done_id} ON {done} (id, done_at, pos) WITH (ALLOW_PAGE_LOCKS = OFF);

ALTER TABLE {done} SET (LOCK_ESCALATION = DISABLE);

-- lane: who may change a lane, until when. The epoch is the fence: whoever writes for a
-- lane locks its row and finds the epoch unchanged, or writes nothing.
CREATE TABLE {lane} (
    lane        int            NOT NULL,
    epoch       bigint         NOT NULL DEFAULT 0,
    owner       varbinary(255) NOT NULL DEFAULT 0x,
    lease_until datetime2(6)   NOT NULL DEFAULT '1970-01-01T00:00:00',
    served_at   datetime2(6)   NOT NULL DEFAULT '1970-01-01T00:00:00',
    CONSTRAINT {name:lane_pk} PRIMARY KEY CLUSTERED (lane) WITH (ALLOW_PAGE_LOCKS = OFF)
);

ALTER TABLE {lane} SET (LOCK_ESCALATION = DISABLE);

WITH digit (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM digit WHERE n < 31)
INSERT INTO {lane} (lane)
SELECT a.n * 32 + b.n FROM digit AS a CROSS JOIN digit AS b WHERE a.n * 32 + b.n < {lanes};

-- inbox: the messages a consumer has processed. The key is the SHA-256 of each text,
-- because the texts are longer than a key may be (900 bytes) and equal where they differ
-- in trailing zero bytes only.
CREATE TABLE {inbox} (
    consumer_hash binary(32)      NOT NULL,
    message_hash  binary(32)      NOT NULL,
    recorded_at   datetime2(6)    NOT NULL DEFAULT SYSUTCDATETIME(),
    consumer      varbinary(512)  NOT NULL,
    message_id    varbinary(2048) NOT NULL,
    CONSTRAINT {name:inbox_pk} PRIMARY KEY CLUSTERED (consumer_hash, message_hash) WITH (ALLOW_PAGE_LOCKS = OFF)
);

-- For the purge.
CREATE NONCLUSTERED INDEX {name:inbox_recorded_at} ON {inbox} (recorded_at) WITH (ALLOW_PAGE_LOCKS = OFF);

ALTER TABLE {inbox} SET (LOCK_ESCALATION = DISABLE);

INSERT INTO {meta} (version, lanes) VALUES (1, {lanes});
