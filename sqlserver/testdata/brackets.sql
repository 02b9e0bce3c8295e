-- step 1: the outbox --
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
CREATE TABLE [a]]b[].[]]]]; -- '_meta] (
    one      int          NOT NULL DEFAULT 1,
    -- The version of this schema.
    version  int          NOT NULL,
    -- The number of lanes, the same in the checks below.
    lanes    int          NOT NULL,
    -- When done was last purged.
    purge_at datetime2(6) NOT NULL DEFAULT '1970-01-01T00:00:00',
    CONSTRAINT []]]]; -- '_meta_pk] PRIMARY KEY CLUSTERED (one) WITH (ALLOW_PAGE_LOCKS = OFF),
    CONSTRAINT []]]]; -- '_meta_one] CHECK (one = 1)
);

-- ready: messages to publish, nothing else. Producers insert, a relay's settle
-- deletes, nobody updates.
CREATE TABLE [a]]b[].[]]]]; -- '] (
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
    CONSTRAINT []]]]; -- '_pk] PRIMARY KEY CLUSTERED (lane, seq) WITH (ALLOW_PAGE_LOCKS = OFF),
    CONSTRAINT []]]]; -- '_key_has_hash] CHECK (([key] IS NULL AND key_hash IS NULL) OR ([key] IS NOT NULL AND key_hash IS NOT NULL)),
    -- Refuses a producer that counts the lanes differently.
    CONSTRAINT []]]]; -- '_lane_fits] CHECK (lane BETWEEN 0 AND 3 - 1 AND (key_hash IS NULL OR
        lane = (key_hash % 3 + 3 + CASE WHEN key_hash < 0 THEN 1 ELSE 0 END) % 3))
);

-- The same message twice is an error in the producer's transaction.
CREATE UNIQUE NONCLUSTERED INDEX []]]]; -- '_id] ON [a]]b[].[]]]]; -- '] (id) WITH (ALLOW_PAGE_LOCKS = OFF);

ALTER TABLE [a]]b[].[]]]]; -- '] SET (LOCK_ESCALATION = DISABLE);

-- parked: messages that wait for a time (scheduled, retry), for the row before them
-- (held) or for a person (dead).
CREATE TABLE [a]]b[].[]]]]; -- '_parked] (
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
    CONSTRAINT []]]]; -- '_parked_pk] PRIMARY KEY CLUSTERED (pos) WITH (ALLOW_PAGE_LOCKS = OFF),
    CONSTRAINT []]]]; -- '_parked_due] CHECK ((state IN ('scheduled', 'retry') AND available_at IS NOT NULL)
        OR (state IN ('held', 'dead') AND available_at IS NULL)),
    CONSTRAINT []]]]; -- '_parked_order] CHECK (state IN ('scheduled', 'dead') OR seq IS NOT NULL),
    CONSTRAINT []]]]; -- '_parked_head] CHECK (blocking = 0 OR
        (blocking = 1 AND key_hash IS NOT NULL AND seq IS NOT NULL AND state IN ('retry', 'dead'))),
    CONSTRAINT []]]]; -- '_parked_held] CHECK (state <> 'held' OR key_hash IS NOT NULL),
    CONSTRAINT []]]]; -- '_parked_twin] CHECK ((state = 'scheduled' AND twin = 0) OR (state <> 'scheduled' AND twin <> 0)),
    CONSTRAINT []]]]; -- '_parked_key_has_hash] CHECK (([key] IS NULL AND key_hash IS NULL) OR ([key] IS NOT NULL AND key_hash IS NOT NULL)),
    CONSTRAINT []]]]; -- '_parked_lane_fits] CHECK (lane BETWEEN 0 AND 3 - 1 AND (key_hash IS NULL OR
        lane = (key_hash % 3 + 3 + CASE WHEN key_hash < 0 THEN 1 ELSE 0 END) % 3))
);

-- What is due in a lane, by state; held and dead rows stand in it without a time, so
-- that they can be counted by state.
CREATE NONCLUSTERED INDEX []]]]; -- '_parked_due_at] ON [a]]b[].[]]]]; -- '_parked] (lane, state, available_at) WITH (ALLOW_PAGE_LOCKS = OFF);

-- The blocked keys.
CREATE NONCLUSTERED INDEX []]]]; -- '_parked_blocked] ON [a]]b[].[]]]]; -- '_parked] (blocking, lane, key_hash, seq) WITH (ALLOW_PAGE_LOCKS = OFF);

-- The rows of a key; by state, so that the first held one is found at once.
CREATE NONCLUSTERED INDEX []]]]; -- '_parked_key] ON [a]]b[].[]]]]; -- '_parked] (lane, key_hash, state, seq) WITH (ALLOW_PAGE_LOCKS = OFF);

-- The same delayed message twice is an error in the producer's transaction. Otherwise a
-- parked message may share its id with another. For operators, too.
CREATE UNIQUE NONCLUSTERED INDEX []]]]; -- '_parked_id] ON [a]]b[].[]]]]; -- '_parked] (id, twin) WITH (ALLOW_PAGE_LOCKS = OFF);

ALTER TABLE [a]]b[].[]]]]; -- '_parked] SET (LOCK_ESCALATION = DISABLE);

-- done: what was published or discarded, for the retention window. Rows are added in
-- order of time and removed from the old end.
CREATE TABLE [a]]b[].[]]]]; -- '_done] (
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
    CONSTRAINT []]]]; -- '_done_pk] PRIMARY KEY CLUSTERED (done_at, pos) WITH (ALLOW_PAGE_LOCKS = OFF),
    CONSTRAINT []]]]; -- '_done_outcome] CHECK (outcome IN ('published', 'discarded'))
);

-- For replay by id. Not unique: a replayed message is done twice.
CREATE NONCLUSTERED INDEX []]]]; -- '_done_id] ON [a]]b[].[]]]]; -- '_done] (id, done_at, pos) WITH (ALLOW_PAGE_LOCKS = OFF);

ALTER TABLE [a]]b[].[]]]]; -- '_done] SET (LOCK_ESCALATION = DISABLE);

-- lane: who may change a lane, until when. The epoch is the fence: whoever writes for a
-- lane locks its row and finds the epoch unchanged, or writes nothing.
CREATE TABLE [a]]b[].[]]]]; -- '_lane] (
    lane        int            NOT NULL,
    epoch       bigint         NOT NULL DEFAULT 0,
    owner       varbinary(255) NOT NULL DEFAULT 0x,
    lease_until datetime2(6)   NOT NULL DEFAULT '1970-01-01T00:00:00',
    served_at   datetime2(6)   NOT NULL DEFAULT '1970-01-01T00:00:00',
    CONSTRAINT []]]]; -- '_lane_pk] PRIMARY KEY CLUSTERED (lane) WITH (ALLOW_PAGE_LOCKS = OFF)
);

ALTER TABLE [a]]b[].[]]]]; -- '_lane] SET (LOCK_ESCALATION = DISABLE);

WITH digit (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM digit WHERE n < 31)
INSERT INTO [a]]b[].[]]]]; -- '_lane] (lane)
SELECT a.n * 32 + b.n FROM digit AS a CROSS JOIN digit AS b WHERE a.n * 32 + b.n < 3;

-- inbox: the messages a consumer has processed. The key is the SHA-256 of each text,
-- because the texts are longer than a key may be (900 bytes) and equal where they differ
-- in trailing zero bytes only.
CREATE TABLE [a]]b[].[]]]]; -- '_inbox] (
    consumer_hash binary(32)      NOT NULL,
    message_hash  binary(32)      NOT NULL,
    recorded_at   datetime2(6)    NOT NULL DEFAULT SYSUTCDATETIME(),
    consumer      varbinary(512)  NOT NULL,
    message_id    varbinary(2048) NOT NULL,
    CONSTRAINT []]]]; -- '_inbox_pk] PRIMARY KEY CLUSTERED (consumer_hash, message_hash) WITH (ALLOW_PAGE_LOCKS = OFF)
);

-- For the purge.
CREATE NONCLUSTERED INDEX []]]]; -- '_inbox_recorded_at] ON [a]]b[].[]]]]; -- '_inbox] (recorded_at) WITH (ALLOW_PAGE_LOCKS = OFF);

ALTER TABLE [a]]b[].[]]]]; -- '_inbox] SET (LOCK_ESCALATION = DISABLE);

INSERT INTO [a]]b[].[]]]]; -- '_meta] (version, lanes) VALUES (1, 3);

-- step 2: revisions --
-- The outbox, version 2: revisions, which count the messages of every key.
--
-- Both tables stay empty unless an outbox or an inbox uses revisions. A key is its
-- hash and its exact bytes, which have no zero byte at the end. Who needs which right is
-- what `outbox schema --grants` prints: run that again.

-- revision: the last revision of a key. A producer's transaction updates the row, and
-- so producers of one key take turns.
CREATE TABLE [a]]b[].[]]]]; -- '_revision] (
    key_hash bigint         NOT NULL,
    [key]    varbinary(512) NOT NULL,
    revision bigint         NOT NULL,
    CONSTRAINT []]]]; -- '_revision_pk] PRIMARY KEY CLUSTERED (key_hash, [key]) WITH (ALLOW_PAGE_LOCKS = OFF),
    CONSTRAINT []]]]; -- '_revision_counts] CHECK (revision >= 0)
);

ALTER TABLE [a]]b[].[]]]]; -- '_revision] SET (LOCK_ESCALATION = DISABLE);

-- progress: the last revision of a key that a consumer has handled.
CREATE TABLE [a]]b[].[]]]]; -- '_progress] (
    consumer varbinary(255) NOT NULL,
    key_hash bigint         NOT NULL,
    [key]    varbinary(512) NOT NULL,
    revision bigint         NOT NULL,
    CONSTRAINT []]]]; -- '_progress_pk] PRIMARY KEY CLUSTERED (consumer, key_hash, [key]) WITH (ALLOW_PAGE_LOCKS = OFF),
    CONSTRAINT []]]]; -- '_progress_counts] CHECK (revision >= 0)
);

ALTER TABLE [a]]b[].[]]]]; -- '_progress] SET (LOCK_ESCALATION = DISABLE);

UPDATE [a]]b[].[]]]]; -- '_meta] SET version = 2 WHERE version = 1;

-- step 3: the audit --
-- The outbox, version 3: the audit, which keeps what operators did.
--
-- Nothing here changes or deletes a row: what is older than you must keep, delete. Who
-- needs which right is what `outbox schema --grants` prints: run that again.

-- audit: an action has two rows with one id, that it begins and how it ended.
CREATE TABLE [a]]b[].[]]]]; -- '_audit] (
    pos        bigint          IDENTITY (1, 1) NOT NULL,
    written_at datetime2(6)    NOT NULL DEFAULT SYSUTCDATETIME(),
    id         binary(16)      NOT NULL,
    -- 1: the second row.
    ended      int             NOT NULL,
    who        varbinary(255)  NOT NULL,
    action     varbinary(32)   NOT NULL,
    -- Which messages were meant.
    selection  varbinary(2000) NOT NULL,
    -- The reason that was given.
    why        varbinary(1000) NOT NULL,
    -- How many messages were changed, and what ended the action early; of the second row.
    changed    bigint          NULL,
    failure    varbinary(2000) NULL,
    CONSTRAINT []]]]; -- '_audit_pk] PRIMARY KEY CLUSTERED (pos) WITH (ALLOW_PAGE_LOCKS = OFF),
    CONSTRAINT []]]]; -- '_audit_id] UNIQUE NONCLUSTERED (id, ended) WITH (ALLOW_PAGE_LOCKS = OFF),
    CONSTRAINT []]]]; -- '_audit_ends] CHECK ((ended = 0 AND changed IS NULL) OR (ended = 1 AND changed IS NOT NULL))
);

ALTER TABLE [a]]b[].[]]]]; -- '_audit] SET (LOCK_ESCALATION = DISABLE);

UPDATE [a]]b[].[]]]]; -- '_meta] SET version = 3 WHERE version = 2;

-- grants --
-- The least privileges of four roles on one outbox, to be run after migrate by a
-- user who may grant them, in the database of the tables. The roles are there before;
-- users are made members of one or more of them. A user of the same name does as well:
--
--     CREATE ROLE outbox_producer;
--     CREATE ROLE outbox_relay;
--     CREATE ROLE outbox_operator;
--     CREATE ROLE outbox_consumer;
--     ALTER ROLE outbox_relay ADD MEMBER the_relays_user;
--
-- A lock that a SELECT takes by a hint asks for no more than SELECT. VIEW DEFINITION
-- lets a role see that a table and its indexes are there, which Check looks at: without
-- any privilege on a table it does not exist.
--
-- To migrate takes CREATE TABLE in the database and ALTER on the schema, and CREATE
-- SCHEMA for a schema that is not there yet.

-- producer: services that enqueue, with the library or with a plain INSERT. What it
-- reads are the number of lanes and, to check the schema at its start, the lanes.
GRANT INSERT ON OBJECT::[a]]b[].[]]]]; -- '] TO outbox_producer;
GRANT INSERT ON OBJECT::[a]]b[].[]]]]; -- '_parked] TO outbox_producer;
GRANT SELECT ON OBJECT::[a]]b[].[]]]]; -- '_meta] TO outbox_producer;
GRANT SELECT ON OBJECT::[a]]b[].[]]]]; -- '_lane] TO outbox_producer;
GRANT VIEW DEFINITION ON OBJECT::[a]]b[].[]]]]; -- '_done] TO outbox_producer;
GRANT VIEW DEFINITION ON OBJECT::[a]]b[].[]]]]; -- '_inbox] TO outbox_producer;
-- Only with revisions, but for the definition.
GRANT SELECT, INSERT, UPDATE ON OBJECT::[a]]b[].[]]]]; -- '_revision] TO outbox_producer;
GRANT VIEW DEFINITION ON OBJECT::[a]]b[].[]]]]; -- '_progress] TO outbox_producer;
GRANT VIEW DEFINITION ON OBJECT::[a]]b[].[]]]]; -- '_audit] TO outbox_producer;

-- relay: claims, publishes, settles, surfaces what is due, and purges done.
GRANT SELECT ON OBJECT::[a]]b[].[]]]]; -- '_meta] TO outbox_relay;
GRANT UPDATE (purge_at) ON OBJECT::[a]]b[].[]]]]; -- '_meta] TO outbox_relay;
GRANT SELECT, INSERT, DELETE ON OBJECT::[a]]b[].[]]]]; -- '] TO outbox_relay;
GRANT SELECT, INSERT, UPDATE, DELETE ON OBJECT::[a]]b[].[]]]]; -- '_parked] TO outbox_relay;
GRANT SELECT, INSERT, DELETE ON OBJECT::[a]]b[].[]]]]; -- '_done] TO outbox_relay;
GRANT SELECT, UPDATE ON OBJECT::[a]]b[].[]]]]; -- '_lane] TO outbox_relay;
GRANT VIEW DEFINITION ON OBJECT::[a]]b[].[]]]]; -- '_inbox] TO outbox_relay;
GRANT VIEW DEFINITION ON OBJECT::[a]]b[].[]]]]; -- '_revision] TO outbox_relay;
GRANT VIEW DEFINITION ON OBJECT::[a]]b[].[]]]]; -- '_progress] TO outbox_relay;
GRANT VIEW DEFINITION ON OBJECT::[a]]b[].[]]]]; -- '_audit] TO outbox_relay;

-- operator: status, parked, requeue, discard, replay, purge, audit, ui.
GRANT SELECT ON OBJECT::[a]]b[].[]]]]; -- '_meta] TO outbox_operator;
GRANT SELECT, INSERT ON OBJECT::[a]]b[].[]]]]; -- '] TO outbox_operator;
GRANT SELECT, UPDATE, DELETE ON OBJECT::[a]]b[].[]]]]; -- '_parked] TO outbox_operator;
GRANT SELECT, INSERT, DELETE ON OBJECT::[a]]b[].[]]]]; -- '_done] TO outbox_operator;
GRANT SELECT ON OBJECT::[a]]b[].[]]]]; -- '_lane] TO outbox_operator;
-- What was written is not changed.
GRANT SELECT, INSERT ON OBJECT::[a]]b[].[]]]]; -- '_audit] TO outbox_operator;
GRANT VIEW DEFINITION ON OBJECT::[a]]b[].[]]]]; -- '_inbox] TO outbox_operator;
GRANT VIEW DEFINITION ON OBJECT::[a]]b[].[]]]]; -- '_revision] TO outbox_operator;
GRANT VIEW DEFINITION ON OBJECT::[a]]b[].[]]]]; -- '_progress] TO outbox_operator;

-- consumer: the inbox, and its purge.
GRANT SELECT, INSERT, DELETE ON OBJECT::[a]]b[].[]]]]; -- '_inbox] TO outbox_consumer;
-- Only with revisions.
GRANT SELECT, INSERT, UPDATE ON OBJECT::[a]]b[].[]]]]; -- '_progress] TO outbox_consumer;

-- poll --
-- Reads the lane rows, and of each lane one entry of ready's primary key and two of
-- parked_due_at. The newest ready row is looked for first, because the ghosts of deleted
-- rows lie at the other end. What is locked is passed by: a lane whose owner is settling
-- is not free, and a row that is not committed is not ready. A time ahead of now is from
-- before the clock was set back.
SELECT TOP (@p2) l.lane, l.epoch, CASE WHEN (SELECT TOP (1) p.available_at FROM [a]]b[].[]]]]; -- '_parked] AS p WITH (FORCESEEK, INDEX ([]]]]; -- '_parked_due_at]), READPAST, ROWLOCK, READCOMMITTEDLOCK)
         WHERE p.lane = l.lane AND p.state = 'retry' ORDER BY p.available_at) <= CAST(SYSUTCDATETIME() AS datetime2(6))
    OR (SELECT TOP (1) p.available_at FROM [a]]b[].[]]]]; -- '_parked] AS p WITH (FORCESEEK, INDEX ([]]]]; -- '_parked_due_at]), READPAST, ROWLOCK, READCOMMITTEDLOCK)
         WHERE p.lane = l.lane AND p.state = 'scheduled' ORDER BY p.available_at) <= CAST(SYSUTCDATETIME() AS datetime2(6)) THEN 1 ELSE 0 END
FROM [a]]b[].[]]]]; -- '_lane] AS l WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
WHERE (l.lease_until <= CAST(SYSUTCDATETIME() AS datetime2(6)) OR l.owner = @p1)
  AND ((SELECT TOP (1) r.seq FROM [a]]b[].[]]]]; -- '] AS r WITH (FORCESEEK, INDEX (1), READPAST, ROWLOCK, READCOMMITTEDLOCK)
         WHERE r.lane = l.lane ORDER BY r.seq DESC) > 0
    OR (SELECT TOP (1) p.available_at FROM [a]]b[].[]]]]; -- '_parked] AS p WITH (FORCESEEK, INDEX ([]]]]; -- '_parked_due_at]), READPAST, ROWLOCK, READCOMMITTEDLOCK)
         WHERE p.lane = l.lane AND p.state = 'retry' ORDER BY p.available_at) <= CAST(SYSUTCDATETIME() AS datetime2(6))
    OR (SELECT TOP (1) p.available_at FROM [a]]b[].[]]]]; -- '_parked] AS p WITH (FORCESEEK, INDEX ([]]]]; -- '_parked_due_at]), READPAST, ROWLOCK, READCOMMITTEDLOCK)
         WHERE p.lane = l.lane AND p.state = 'scheduled' ORDER BY p.available_at) <= CAST(SYSUTCDATETIME() AS datetime2(6)))
ORDER BY CASE WHEN l.served_at <= CAST(SYSUTCDATETIME() AS datetime2(6)) THEN l.served_at ELSE CAST('1970-01-01T00:00:00' AS datetime2(6)) END, l.lane

-- pending --
-- As poll, over all lanes, but waits for locked rows: what is about to be settled may
-- still be there after.
SELECT COALESCE(MAX(w.work), 0), COALESCE(MAX(w.held), 0)
FROM (
    SELECT
        CASE WHEN (SELECT TOP (1) r.seq FROM [a]]b[].[]]]]; -- '] AS r WITH (FORCESEEK, INDEX (1))
         WHERE r.lane = l.lane ORDER BY r.seq DESC) > 0
    OR (SELECT TOP (1) p.available_at FROM [a]]b[].[]]]]; -- '_parked] AS p WITH (FORCESEEK, INDEX ([]]]]; -- '_parked_due_at]))
         WHERE p.lane = l.lane AND p.state = 'retry' ORDER BY p.available_at) <= CAST(SYSUTCDATETIME() AS datetime2(6))
    OR (SELECT TOP (1) p.available_at FROM [a]]b[].[]]]]; -- '_parked] AS p WITH (FORCESEEK, INDEX ([]]]]; -- '_parked_due_at]))
         WHERE p.lane = l.lane AND p.state = 'scheduled' ORDER BY p.available_at) <= CAST(SYSUTCDATETIME() AS datetime2(6)) THEN 1 ELSE 0 END AS work,
        CASE WHEN l.lease_until > CAST(SYSUTCDATETIME() AS datetime2(6)) AND l.owner <> @p1 THEN 1 ELSE 0 END AS held
    FROM [a]]b[].[]]]]; -- '_lane] AS l
) AS w

-- claim --
-- Locks one lane row by primary key, or passes by when another session has it.
SELECT l.epoch FROM [a]]b[].[]]]]; -- '_lane] AS l WITH (FORCESEEK, INDEX (1), UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK)
WHERE l.lane = @p1 AND (l.lease_until <= CAST(SYSUTCDATETIME() AS datetime2(6)) OR l.owner = @p2)

-- own --
-- Under the lock of claim.
UPDATE [a]]b[].[]]]]; -- '_lane]
SET owner = @p1, epoch = epoch + 1, served_at = CAST(SYSUTCDATETIME() AS datetime2(6)), lease_until = DATEADD(microsecond, CAST(@p2 % 1000000 AS int), DATEADD(second, CAST(@p2 / 1000000 % 86400 AS int), DATEADD(day, CAST(@p2 / 1000000 / 86400 AS int), CAST(SYSUTCDATETIME() AS datetime2(6)))))
WHERE lane = @p3

-- fence --
-- The fence: waits for the lane row's lock, then finds the lease in its newest version,
-- also where READ_COMMITTED_SNAPSHOT is ON. A row is the lease.
SELECT l.epoch FROM [a]]b[].[]]]]; -- '_lane] AS l WITH (FORCESEEK, INDEX (1), UPDLOCK, ROWLOCK, READCOMMITTEDLOCK)
WHERE l.lane = @p1 AND l.owner = @p2 AND l.epoch = @p3

-- extend --
-- Behind the fence.
UPDATE [a]]b[].[]]]]; -- '_lane] SET lease_until = DATEADD(microsecond, CAST(@p1 % 1000000 AS int), DATEADD(second, CAST(@p1 / 1000000 % 86400 AS int), DATEADD(day, CAST(@p1 / 1000000 / 86400 AS int), CAST(SYSUTCDATETIME() AS datetime2(6))))) WHERE lane = @p2

-- release --
-- Behind the fence. Without an owner the epoch alone opens no fence.
UPDATE [a]]b[].[]]]]; -- '_lane] SET owner = 0x, lease_until = CAST(SYSUTCDATETIME() AS datetime2(6)) WHERE lane = @p1

-- insert --
-- seq follows the list: "INSERT queries that use SELECT with ORDER BY to populate rows
-- guarantees how identity values are computed" (INSERT, limitations). NULL stays NULL
-- through CONVERT, and empty stays empty.
INSERT INTO [a]]b[].[]]]]; -- '] (lane, id, topic, [key], key_hash, type, content_type, payload, headers, revision, replay)
SELECT m.lane, CONVERT(binary(16), m.id, 2), CONVERT(varbinary(max), m.topic, 2), CONVERT(varbinary(max), m.message_key, 2), m.key_hash,
    CONVERT(varbinary(max), m.type, 2), CONVERT(varbinary(max), m.content_type, 2), CONVERT(varbinary(max), m.payload, 2), CONVERT(varbinary(max), m.headers, 2), m.revision, m.replay
FROM OPENJSON(CAST(@p1 AS nvarchar(max))) WITH (nth int '$.n', lane int '$.lane', id varchar(32) '$.id', topic varchar(max) '$.topic',
    message_key varchar(max) '$.key', key_hash bigint '$.hash', type varchar(max) '$.type', content_type varchar(max) '$.content_type',
    payload varchar(max) '$.payload', headers varchar(max) '$.headers', revision bigint '$.revision', replay int '$.replay', delay bigint '$.delay') AS m
ORDER BY m.nth

-- schedule --
-- As insert.
INSERT INTO [a]]b[].[]]]]; -- '_parked] (lane, id, topic, [key], key_hash, type, content_type, payload, headers, revision, replay, available_at)
SELECT m.lane, CONVERT(binary(16), m.id, 2), CONVERT(varbinary(max), m.topic, 2), CONVERT(varbinary(max), m.message_key, 2), m.key_hash,
    CONVERT(varbinary(max), m.type, 2), CONVERT(varbinary(max), m.content_type, 2), CONVERT(varbinary(max), m.payload, 2), CONVERT(varbinary(max), m.headers, 2), m.revision, m.replay,
    DATEADD(microsecond, CAST(m.delay % 1000000 AS int), DATEADD(second, CAST(m.delay / 1000000 % 86400 AS int), DATEADD(day, CAST(m.delay / 1000000 / 86400 AS int), CAST(SYSUTCDATETIME() AS datetime2(6)))))
FROM OPENJSON(CAST(@p1 AS nvarchar(max))) WITH (nth int '$.n', lane int '$.lane', id varchar(32) '$.id', topic varchar(max) '$.topic',
    message_key varchar(max) '$.key', key_hash bigint '$.hash', type varchar(max) '$.type', content_type varchar(max) '$.content_type',
    payload varchar(max) '$.payload', headers varchar(max) '$.headers', revision bigint '$.revision', replay int '$.replay', delay bigint '$.delay') AS m
ORDER BY m.nth

-- dueScheduled --
-- Along parked_due_at, past rows that are not committed; whether the id is ready already,
-- or is in the hands of an open transaction, are two looks at one entry of ready's index
-- on id a row. Waits for nobody: the lane row is locked.
SELECT TOP (@p2) p.pos, p.id,
    CASE WHEN (SELECT TOP (1) r.seq FROM [a]]b[].[]]]]; -- '] AS r WITH (FORCESEEK, INDEX ([]]]]; -- '_id]), READPAST, ROWLOCK, READCOMMITTEDLOCK) WHERE r.id = p.id) IS NULL THEN 0 ELSE 1 END,
    CASE WHEN (SELECT TOP (1) r.seq FROM [a]]b[].[]]]]; -- '] AS r WITH (FORCESEEK, INDEX ([]]]]; -- '_id]), READUNCOMMITTED) WHERE r.id = p.id) IS NULL THEN 0 ELSE 1 END
FROM [a]]b[].[]]]]; -- '_parked] AS p WITH (FORCESEEK, INDEX ([]]]]; -- '_parked_due_at]), READPAST, ROWLOCK, READCOMMITTEDLOCK)
WHERE p.lane = @p1 AND p.state = 'scheduled' AND p.available_at <= CAST(SYSUTCDATETIME() AS datetime2(6))
ORDER BY p.available_at, p.pos

-- surface --
-- By parked's primary key, in the order of the list.
INSERT INTO [a]]b[].[]]]]; -- '] (lane, id, topic, [key], key_hash, type, content_type, payload, headers, created_at, revision, replay)
SELECT p.lane, p.id, p.topic, p.[key], p.key_hash, p.type, p.content_type, p.payload, p.headers, p.created_at, p.revision, p.replay
FROM OPENJSON(@p1) WITH (nth int '$.n', place bigint '$.p', id varchar(32) '$.i') AS n
INNER LOOP JOIN [a]]b[].[]]]]; -- '_parked] AS p WITH (FORCESEEK, INDEX (1))
   ON p.pos = n.place AND p.id = CONVERT(binary(16), n.id, 2) AND p.lane = @p2
ORDER BY n.nth

-- surfacedTwice --
-- By parked's primary key.
UPDATE p
SET state = 'dead', available_at = NULL, reason = @p3, twin = -p.pos
FROM OPENJSON(@p1) WITH (nth int '$.n', place bigint '$.p', id varchar(32) '$.i') AS n
INNER LOOP JOIN [a]]b[].[]]]]; -- '_parked] AS p WITH (FORCESEEK, INDEX (1))
   ON p.pos = n.place AND p.id = CONVERT(binary(16), n.id, 2) AND p.lane = @p2

-- deleteParked --
-- By parked's primary key.
DELETE p
FROM OPENJSON(@p1) WITH (nth int '$.n', place bigint '$.p', id varchar(32) '$.i') AS n
INNER LOOP JOIN [a]]b[].[]]]]; -- '_parked] AS p WITH (FORCESEEK, INDEX (1))
   ON p.pos = n.place AND p.id = CONVERT(binary(16), n.id, 2) AND p.lane = @p2

-- boundReady --
-- One range of ready's primary key.
SELECT MAX(b.seq) FROM (
    SELECT TOP (@p3) r.seq FROM [a]]b[].[]]]]; -- '] AS r WITH (FORCESEEK, INDEX (1))
    WHERE r.lane = @p1 AND r.seq > @p2
    ORDER BY r.seq
) AS b

-- chooseReady --
-- One range of ready's primary key.
SELECT TOP (@p4) r.seq, r.id, r.key_hash, DATALENGTH(r.headers), COALESCE(DATALENGTH(r.payload), 0)
FROM [a]]b[].[]]]]; -- '] AS r WITH (FORCESEEK, INDEX (1))
WHERE r.lane = @p1 AND r.seq > @p2 AND r.seq <= @p3
ORDER BY r.seq

-- blocked --
-- One entry of parked_blocked a key.
SELECT n.key_hash
FROM OPENJSON(@p1) WITH (key_hash bigint '$.k') AS n
WHERE (SELECT TOP (1) p.seq FROM [a]]b[].[]]]]; -- '_parked] AS p WITH (FORCESEEK, INDEX ([]]]]; -- '_parked_blocked]))
       WHERE p.blocking = 1 AND p.lane = @p2 AND p.key_hash = n.key_hash ORDER BY p.seq) IS NOT NULL

-- ready --
-- By ready's primary key. The payload of a blocked row stays where it is.
SELECT r.seq, 0, 0, r.lane, r.id, r.topic, r.[key], r.key_hash, r.type, r.content_type,
    CASE WHEN n.blocked = 0 THEN r.payload END, r.headers,
    DATEDIFF_BIG(microsecond, CAST('1970-01-01T00:00:00' AS datetime2(6)), r.created_at), COALESCE(r.revision, 0), r.replay,
    DATEDIFF_BIG(microsecond, r.ready_at, CAST(SYSUTCDATETIME() AS datetime2(6))), n.blocked
FROM OPENJSON(@p1) WITH (nth int '$.n', place bigint '$.p', id varchar(32) '$.i', blocked int '$.b') AS n
INNER LOOP JOIN [a]]b[].[]]]]; -- '] AS r WITH (FORCESEEK, INDEX (1))
   ON r.lane = @p2 AND r.seq = n.place AND r.id = CONVERT(binary(16), n.id, 2)
ORDER BY n.nth

-- dueHeads --
-- Along parked_due_at.
SELECT TOP (@p2) p.pos, p.id, p.seq, p.key_hash, p.blocking, DATALENGTH(p.headers) + COALESCE(DATALENGTH(p.payload), 0)
FROM [a]]b[].[]]]]; -- '_parked] AS p WITH (FORCESEEK, INDEX ([]]]]; -- '_parked_due_at]))
WHERE p.lane = @p1 AND p.state = 'retry' AND p.available_at <= CAST(SYSUTCDATETIME() AS datetime2(6))
ORDER BY p.available_at, p.pos

-- dueBarrier --
-- The next row that blocks the key by itself, should there be one, by parked_blocked.
SELECT TOP (1) p.seq
FROM [a]]b[].[]]]]; -- '_parked] AS p WITH (FORCESEEK, INDEX ([]]]]; -- '_parked_blocked]))
WHERE p.blocking = 1 AND p.lane = @p1 AND p.key_hash = @p2 AND p.seq > @p3
ORDER BY p.seq

-- dueHeld --
-- The first held rows of a key, along parked_key.
SELECT TOP (@p4) p.pos, p.id, p.seq, p.key_hash, p.blocking, DATALENGTH(p.headers) + COALESCE(DATALENGTH(p.payload), 0)
FROM [a]]b[].[]]]]; -- '_parked] AS p WITH (FORCESEEK, INDEX ([]]]]; -- '_parked_key]))
WHERE p.lane = @p1 AND p.key_hash = @p2 AND p.state = 'held' AND p.seq < @p3
ORDER BY p.seq

-- readParked --
-- By parked's primary key, in the order of the list.
SELECT COALESCE(p.seq, 0), p.pos, p.attempts, p.lane, p.id, p.topic, p.[key], p.key_hash, p.type, p.content_type,
    p.payload, p.headers,
    DATEDIFF_BIG(microsecond, CAST('1970-01-01T00:00:00' AS datetime2(6)), p.created_at), COALESCE(p.revision, 0), p.replay,
    DATEDIFF_BIG(microsecond, p.created_at, CAST(SYSUTCDATETIME() AS datetime2(6))), 0
FROM OPENJSON(@p1) WITH (nth int '$.n', place bigint '$.p', id varchar(32) '$.i') AS n
INNER LOOP JOIN [a]]b[].[]]]]; -- '_parked] AS p WITH (FORCESEEK, INDEX (1))
   ON p.pos = n.place AND p.id = CONVERT(binary(16), n.id, 2) AND p.lane = @p2
ORDER BY n.nth

-- settle --
-- Behind the fence.
UPDATE [a]]b[].[]]]]; -- '_lane] SET lease_until = DATEADD(microsecond, CAST(@p1 % 1000000 AS int), DATEADD(second, CAST(@p1 / 1000000 % 86400 AS int), DATEADD(day, CAST(@p1 / 1000000 / 86400 AS int), CAST(SYSUTCDATETIME() AS datetime2(6))))), served_at = CAST(SYSUTCDATETIME() AS datetime2(6)) WHERE lane = @p2

-- keysOfReady --
SELECT DISTINCT r.key_hash
FROM OPENJSON(@p1) WITH (nth int '$.n', place bigint '$.p', id varchar(32) '$.i') AS n
INNER LOOP JOIN [a]]b[].[]]]]; -- '] AS r WITH (FORCESEEK, INDEX (1))
   ON r.lane = @p2 AND r.seq = n.place AND r.id = CONVERT(binary(16), n.id, 2)
WHERE r.key_hash IS NOT NULL

-- keysOfParked --
SELECT DISTINCT p.key_hash
FROM OPENJSON(@p1) WITH (nth int '$.n', place bigint '$.p', id varchar(32) '$.i') AS n
INNER LOOP JOIN [a]]b[].[]]]]; -- '_parked] AS p WITH (FORCESEEK, INDEX (1))
   ON p.pos = n.place AND p.id = CONVERT(binary(16), n.id, 2) AND p.lane = @p2
WHERE p.key_hash IS NOT NULL

-- archiveReady --
INSERT INTO [a]]b[].[]]]]; -- '_done] (seq, lane, id, topic, [key], key_hash, type, content_type, payload, headers, created_at, revision, replay, attempts, outcome)
SELECT r.seq, r.lane, r.id, r.topic, r.[key], r.key_hash, r.type, r.content_type, r.payload, r.headers, r.created_at, r.revision, r.replay, 1, 'published'
FROM OPENJSON(@p1) WITH (nth int '$.n', place bigint '$.p', id varchar(32) '$.i') AS n
INNER LOOP JOIN [a]]b[].[]]]]; -- '] AS r WITH (FORCESEEK, INDEX (1))
   ON r.lane = @p2 AND r.seq = n.place AND r.id = CONVERT(binary(16), n.id, 2)
ORDER BY r.seq

-- archiveParked --
INSERT INTO [a]]b[].[]]]]; -- '_done] (seq, lane, id, topic, [key], key_hash, type, content_type, payload, headers, created_at, revision, replay, attempts, outcome, reason)
SELECT p.seq, p.lane, p.id, p.topic, p.[key], p.key_hash, p.type, p.content_type, p.payload, p.headers, p.created_at, p.revision, p.replay, p.attempts + 1, 'published', p.reason
FROM OPENJSON(@p1) WITH (nth int '$.n', place bigint '$.p', id varchar(32) '$.i') AS n
INNER LOOP JOIN [a]]b[].[]]]]; -- '_parked] AS p WITH (FORCESEEK, INDEX (1))
   ON p.pos = n.place AND p.id = CONVERT(binary(16), n.id, 2) AND p.lane = @p2
ORDER BY n.nth

-- fail --
INSERT INTO [a]]b[].[]]]]; -- '_parked] (seq, lane, id, topic, [key], key_hash, type, content_type, payload, headers, created_at, revision, replay, attempts, reason, blocking, state, available_at, twin)
SELECT r.seq, r.lane, r.id, r.topic, r.[key], r.key_hash, r.type, r.content_type, r.payload, r.headers, r.created_at, r.revision, r.replay, n.attempts, CONVERT(varbinary(max), n.reason, 2),
    CASE WHEN n.blocking = 1 AND r.key_hash IS NOT NULL THEN 1 ELSE 0 END,
    CASE WHEN n.dead = 1 THEN 'dead' ELSE 'retry' END,
    CASE WHEN n.dead = 0 THEN DATEADD(microsecond, CAST(n.delay % 1000000 AS int), DATEADD(second, CAST(n.delay / 1000000 % 86400 AS int), DATEADD(day, CAST(n.delay / 1000000 / 86400 AS int), CAST(SYSUTCDATETIME() AS datetime2(6))))) END, r.seq
FROM OPENJSON(@p1) WITH (nth int '$.n', place bigint '$.p', id varchar(32) '$.i', attempts int '$.a',
    dead int '$.d', blocking int '$.b', delay bigint '$.w', reason varchar(max) '$.r') AS n
INNER LOOP JOIN [a]]b[].[]]]]; -- '] AS r WITH (FORCESEEK, INDEX (1))
   ON r.lane = @p2 AND r.seq = n.place AND r.id = CONVERT(binary(16), n.id, 2)
ORDER BY r.seq

-- failParked --
UPDATE p
SET attempts = n.attempts, reason = CONVERT(varbinary(max), n.reason, 2),
    blocking = CASE WHEN n.blocking = 1 AND p.key_hash IS NOT NULL THEN 1 ELSE 0 END,
    state = CASE WHEN n.dead = 1 THEN 'dead' ELSE 'retry' END,
    available_at = CASE WHEN n.dead = 0 THEN DATEADD(microsecond, CAST(n.delay % 1000000 AS int), DATEADD(second, CAST(n.delay / 1000000 % 86400 AS int), DATEADD(day, CAST(n.delay / 1000000 / 86400 AS int), CAST(SYSUTCDATETIME() AS datetime2(6))))) END
FROM OPENJSON(@p1) WITH (nth int '$.n', place bigint '$.p', id varchar(32) '$.i', attempts int '$.a',
    dead int '$.d', blocking int '$.b', delay bigint '$.w', reason varchar(max) '$.r') AS n
INNER LOOP JOIN [a]]b[].[]]]]; -- '_parked] AS p WITH (FORCESEEK, INDEX (1))
   ON p.pos = n.place AND p.id = CONVERT(binary(16), n.id, 2) AND p.lane = @p2

-- hold --
INSERT INTO [a]]b[].[]]]]; -- '_parked] (seq, lane, id, topic, [key], key_hash, type, content_type, payload, headers, created_at, revision, replay, state, twin)
SELECT r.seq, r.lane, r.id, r.topic, r.[key], r.key_hash, r.type, r.content_type, r.payload, r.headers, r.created_at, r.revision, r.replay, 'held', r.seq
FROM OPENJSON(@p1) WITH (nth int '$.n', place bigint '$.p', id varchar(32) '$.i') AS n
INNER LOOP JOIN [a]]b[].[]]]]; -- '] AS r WITH (FORCESEEK, INDEX (1))
   ON r.lane = @p2 AND r.seq = n.place AND r.id = CONVERT(binary(16), n.id, 2)
ORDER BY r.seq

-- deleteReady --
DELETE r
FROM OPENJSON(@p1) WITH (nth int '$.n', place bigint '$.p', id varchar(32) '$.i') AS n
INNER LOOP JOIN [a]]b[].[]]]]; -- '] AS r WITH (FORCESEEK, INDEX (1))
   ON r.lane = @p2 AND r.seq = n.place AND r.id = CONVERT(binary(16), n.id, 2)

-- firstRows --
-- The first row of each key that blocks, by parked_blocked, and the first that is held,
-- by parked_key.
SELECT n.key_hash, b.seq, h.seq, h.pos, h.id
FROM OPENJSON(@p1) WITH (key_hash bigint '$.k') AS n
OUTER APPLY (
    SELECT TOP (1) p.seq FROM [a]]b[].[]]]]; -- '_parked] AS p WITH (FORCESEEK, INDEX ([]]]]; -- '_parked_blocked]))
    WHERE p.blocking = 1 AND p.lane = @p2 AND p.key_hash = n.key_hash ORDER BY p.seq) AS b
OUTER APPLY (
    SELECT TOP (1) p.seq, p.pos, p.id FROM [a]]b[].[]]]]; -- '_parked] AS p WITH (FORCESEEK, INDEX ([]]]]; -- '_parked_key]))
    WHERE p.lane = @p2 AND p.key_hash = n.key_hash AND p.state = 'held' ORDER BY p.seq) AS h

-- demote --
-- A retry that blocks and is not the first waits.
UPDATE p
SET state = 'held', blocking = 0, available_at = NULL
FROM OPENJSON(@p1) WITH (key_hash bigint '$.k', head bigint '$.h') AS n
INNER LOOP JOIN [a]]b[].[]]]]; -- '_parked] AS p WITH (FORCESEEK, INDEX ([]]]]; -- '_parked_blocked]))
   ON p.blocking = 1 AND p.lane = @p2 AND p.key_hash = n.key_hash AND p.seq > n.head
WHERE p.state = 'retry'

-- promote --
-- By parked's primary key.
UPDATE p
SET state = 'retry', blocking = 1, available_at = CAST(SYSUTCDATETIME() AS datetime2(6))
FROM OPENJSON(@p1) WITH (nth int '$.n', place bigint '$.p', id varchar(32) '$.i') AS n
INNER LOOP JOIN [a]]b[].[]]]]; -- '_parked] AS p WITH (FORCESEEK, INDEX (1))
   ON p.pos = n.place AND p.id = CONVERT(binary(16), n.id, 2) AND p.lane = @p2

-- stats --
-- Counts go along ready's primary key, parked_due_at and parked_blocked, and stop at the
-- limit. Messages that are locked are passed by: a health check must not wait for a
-- producer.
SELECT
    (SELECT COUNT_BIG(*) FROM (
        SELECT TOP (@p1) r.seq FROM [a]]b[].[]]]]; -- '_lane] AS l INNER LOOP JOIN [a]]b[].[]]]]; -- '] AS r WITH (FORCESEEK, INDEX (1), READPAST, ROWLOCK, READCOMMITTEDLOCK) ON r.lane = l.lane) AS c),
    (SELECT COUNT_BIG(*) FROM (
        SELECT TOP (@p1) p.pos FROM [a]]b[].[]]]]; -- '_lane] AS l INNER LOOP JOIN [a]]b[].[]]]]; -- '_parked] AS p WITH (FORCESEEK, INDEX ([]]]]; -- '_parked_due_at]), READPAST, ROWLOCK, READCOMMITTEDLOCK)
           ON p.lane = l.lane AND p.state = 'scheduled') AS c),
    (SELECT COUNT_BIG(*) FROM (
        SELECT TOP (@p1) p.pos FROM [a]]b[].[]]]]; -- '_lane] AS l INNER LOOP JOIN [a]]b[].[]]]]; -- '_parked] AS p WITH (FORCESEEK, INDEX ([]]]]; -- '_parked_due_at]), READPAST, ROWLOCK, READCOMMITTEDLOCK)
           ON p.lane = l.lane AND p.state = 'retry') AS c),
    (SELECT COUNT_BIG(*) FROM (
        SELECT TOP (@p1) p.pos FROM [a]]b[].[]]]]; -- '_lane] AS l INNER LOOP JOIN [a]]b[].[]]]]; -- '_parked] AS p WITH (FORCESEEK, INDEX ([]]]]; -- '_parked_due_at]), READPAST, ROWLOCK, READCOMMITTEDLOCK)
           ON p.lane = l.lane AND p.state = 'held') AS c),
    (SELECT COUNT_BIG(*) FROM (
        SELECT TOP (@p1) p.pos FROM [a]]b[].[]]]]; -- '_lane] AS l INNER LOOP JOIN [a]]b[].[]]]]; -- '_parked] AS p WITH (FORCESEEK, INDEX ([]]]]; -- '_parked_due_at]), READPAST, ROWLOCK, READCOMMITTEDLOCK)
           ON p.lane = l.lane AND p.state = 'dead') AS c),
    (SELECT COUNT_BIG(*) FROM (
        SELECT DISTINCT TOP (@p1) p.lane, p.key_hash FROM [a]]b[].[]]]]; -- '_parked] AS p WITH (FORCESEEK, INDEX ([]]]]; -- '_parked_blocked]), READPAST, ROWLOCK, READCOMMITTEDLOCK) WHERE p.blocking = 1) AS c),
    (SELECT COALESCE(MAX(o.age), 0) FROM (
        SELECT DATEDIFF_BIG(microsecond, (SELECT TOP (1) r.ready_at FROM [a]]b[].[]]]]; -- '] AS r WITH (FORCESEEK, INDEX (1), READPAST, ROWLOCK, READCOMMITTEDLOCK) WHERE r.lane = l.lane ORDER BY r.seq), CAST(SYSUTCDATETIME() AS datetime2(6))) AS age
        FROM [a]]b[].[]]]]; -- '_lane] AS l
        UNION ALL
        SELECT DATEDIFF_BIG(microsecond, (SELECT TOP (1) p.available_at FROM [a]]b[].[]]]]; -- '_parked] AS p WITH (FORCESEEK, INDEX ([]]]]; -- '_parked_due_at]), READPAST, ROWLOCK, READCOMMITTEDLOCK)
            WHERE p.lane = l.lane AND p.state = 'retry' ORDER BY p.available_at), CAST(SYSUTCDATETIME() AS datetime2(6)))
        FROM [a]]b[].[]]]]; -- '_lane] AS l) AS o
     WHERE o.age > 0),
    (SELECT COUNT(*) FROM [a]]b[].[]]]]; -- '_lane] AS l WHERE l.owner <> 0x AND l.lease_until > CAST(SYSUTCDATETIME() AS datetime2(6))),
    (SELECT COUNT(*) FROM [a]]b[].[]]]]; -- '_lane] AS l WHERE l.owner <> 0x AND l.lease_until <= CAST(SYSUTCDATETIME() AS datetime2(6))),
    (SELECT COUNT(*) FROM [a]]b[].[]]]]; -- '_lane] AS l)

-- lockLane --
-- Waits for whoever is changing the lane, and keeps others from it.
SELECT l.lane FROM [a]]b[].[]]]]; -- '_lane] AS l WITH (FORCESEEK, INDEX (1), UPDLOCK, ROWLOCK, READCOMMITTEDLOCK) WHERE l.lane = @p1

-- requeueWaiting --
UPDATE p
SET available_at = CAST(SYSUTCDATETIME() AS datetime2(6))
FROM OPENJSON(@p1) WITH (nth int '$.n', place bigint '$.p', id varchar(32) '$.i') AS n
INNER LOOP JOIN [a]]b[].[]]]]; -- '_parked] AS p WITH (FORCESEEK, INDEX (1))
   ON p.pos = n.place AND p.id = CONVERT(binary(16), n.id, 2) AND p.lane = @p2

-- requeueUnplaced --
UPDATE p
SET state = 'scheduled', twin = 0, available_at = CAST(SYSUTCDATETIME() AS datetime2(6)), attempts = 0
FROM OPENJSON(@p1) WITH (nth int '$.n', place bigint '$.p', id varchar(32) '$.i') AS n
INNER LOOP JOIN [a]]b[].[]]]]; -- '_parked] AS p WITH (FORCESEEK, INDEX (1))
   ON p.pos = n.place AND p.id = CONVERT(binary(16), n.id, 2) AND p.lane = @p2

-- requeueKeyless --
UPDATE p
SET state = 'retry', available_at = CAST(SYSUTCDATETIME() AS datetime2(6)), attempts = 0
FROM OPENJSON(@p1) WITH (nth int '$.n', place bigint '$.p', id varchar(32) '$.i') AS n
INNER LOOP JOIN [a]]b[].[]]]]; -- '_parked] AS p WITH (FORCESEEK, INDEX (1))
   ON p.pos = n.place AND p.id = CONVERT(binary(16), n.id, 2) AND p.lane = @p2

-- requeueKeyed --
-- The rows wait for demote and promote, which find the head of each key.
UPDATE p
SET state = 'held', blocking = 0, available_at = NULL, attempts = 0
FROM OPENJSON(@p1) WITH (nth int '$.n', place bigint '$.p', id varchar(32) '$.i') AS n
INNER LOOP JOIN [a]]b[].[]]]]; -- '_parked] AS p WITH (FORCESEEK, INDEX (1))
   ON p.pos = n.place AND p.id = CONVERT(binary(16), n.id, 2) AND p.lane = @p2

-- discard --
-- By parked's primary key, under the lane row's lock.
INSERT INTO [a]]b[].[]]]]; -- '_done] (seq, lane, id, topic, [key], key_hash, type, content_type, payload, headers, created_at, revision, replay, attempts, outcome, reason)
SELECT p.seq, p.lane, p.id, p.topic, p.[key], p.key_hash, p.type, p.content_type, p.payload, p.headers, p.created_at, p.revision, p.replay, p.attempts, 'discarded', p.reason
FROM OPENJSON(@p1) WITH (nth int '$.n', place bigint '$.p', id varchar(32) '$.i') AS n
INNER LOOP JOIN [a]]b[].[]]]]; -- '_parked] AS p WITH (FORCESEEK, INDEX (1))
   ON p.pos = n.place AND p.id = CONVERT(binary(16), n.id, 2) AND p.lane = @p2
ORDER BY n.nth

-- clock --
-- The server's time in microseconds since 1970.
SELECT DATEDIFF_BIG(microsecond, CAST('1970-01-01T00:00:00' AS datetime2(6)), CAST(SYSUTCDATETIME() AS datetime2(6)))

-- replay --
-- By done's primary key. Inserts as a producer does, and locks no lane. The count is
-- above that of all done rows of the id, so that a second replay differs from the first.
INSERT INTO [a]]b[].[]]]]; -- '] (lane, id, topic, [key], key_hash, type, content_type, payload, headers, created_at, revision, replay)
SELECT d.lane, d.id, d.topic, d.[key], d.key_hash, d.type, d.content_type, d.payload, d.headers, d.created_at, d.revision,
    1 + (SELECT MAX(o.replay) FROM [a]]b[].[]]]]; -- '_done] AS o WITH (FORCESEEK, INDEX ([]]]]; -- '_done_id])) WHERE o.id = d.id)
FROM OPENJSON(@p1) WITH (nth int '$.n', done_at bigint '$.t', pos bigint '$.p') AS n
INNER LOOP JOIN [a]]b[].[]]]]; -- '_done] AS d WITH (FORCESEEK, INDEX (1))
   ON d.done_at = CAST(DATEADD(microsecond, CAST(n.done_at % 1000000 AS int), DATEADD(second, CAST(n.done_at / 1000000 % 86400 AS int), DATEADD(day, CAST(n.done_at / 1000000 / 86400 AS int), CAST('1970-01-01T00:00:00' AS datetime2(6))))) AS datetime2(6)) AND d.pos = n.pos
ORDER BY n.nth

-- choosePurge --
-- From the old end of done's primary key, in its order, so that TOP locks what it takes.
SELECT TOP (@p2) DATEDIFF_BIG(microsecond, CAST('1970-01-01T00:00:00' AS datetime2(6)), d.done_at), d.pos
FROM [a]]b[].[]]]]; -- '_done] AS d WITH (FORCESEEK, INDEX (1), UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK)
WHERE d.done_at <= DATEADD(microsecond, CAST(@p1 % 1000000 AS int), DATEADD(second, CAST(@p1 / 1000000 % 86400 AS int), DATEADD(day, CAST(@p1 / 1000000 / 86400 AS int), CAST(SYSUTCDATETIME() AS datetime2(6)))))
ORDER BY d.done_at, d.pos

-- purge --
-- By done's primary key; the rows are locked.
DELETE d
FROM OPENJSON(@p1) WITH (nth int '$.n', done_at bigint '$.t', pos bigint '$.p') AS n
INNER LOOP JOIN [a]]b[].[]]]]; -- '_done] AS d WITH (FORCESEEK, INDEX (1))
   ON d.done_at = CAST(DATEADD(microsecond, CAST(n.done_at % 1000000 AS int), DATEADD(second, CAST(n.done_at / 1000000 % 86400 AS int), DATEADD(day, CAST(n.done_at / 1000000 / 86400 AS int), CAST('1970-01-01T00:00:00' AS datetime2(6))))) AS datetime2(6)) AND d.pos = n.pos

-- purgeDue --
-- Whoever waited for the row finds it changed.
SELECT m.one FROM [a]]b[].[]]]]; -- '_meta] AS m WITH (FORCESEEK, INDEX (1), UPDLOCK, ROWLOCK, READCOMMITTEDLOCK)
WHERE m.one = 1 AND m.purge_at <= DATEADD(microsecond, CAST(@p1 % 1000000 AS int), DATEADD(second, CAST(@p1 / 1000000 % 86400 AS int), DATEADD(day, CAST(@p1 / 1000000 / 86400 AS int), CAST(SYSUTCDATETIME() AS datetime2(6)))))

-- claimPurge --
-- Under the lock of purgeDue.
UPDATE [a]]b[].[]]]]; -- '_meta] SET purge_at = CAST(SYSUTCDATETIME() AS datetime2(6)) WHERE one = 1

-- purgeable --
-- From the old end of done's primary key.
SELECT COUNT(*) FROM (
    SELECT TOP (@p2) d.pos FROM [a]]b[].[]]]]; -- '_done] AS d WITH (FORCESEEK, INDEX (1))
    WHERE d.done_at <= DATEADD(microsecond, CAST(@p1 % 1000000 AS int), DATEADD(second, CAST(@p1 / 1000000 % 86400 AS int), DATEADD(day, CAST(@p1 / 1000000 / 86400 AS int), CAST(SYSUTCDATETIME() AS datetime2(6)))))) AS c

-- record --
-- Waits for another transaction that has inserted the same, by the primary key, and
-- locks nothing else: a check before it would lock the range around the key. That the
-- key is there is an error of this statement alone, whatever the session's XACT_ABORT,
-- which is as it was once sp_executesql returns ("SET statements").
SET XACT_ABORT OFF;
INSERT INTO [a]]b[].[]]]]; -- '_inbox] (consumer_hash, message_hash, consumer, message_id) VALUES (@p1, @p2, @p3, @p4)

-- recorded --
-- By the primary key. What is not committed is passed by.
SELECT COUNT(*) FROM [a]]b[].[]]]]; -- '_inbox] AS i WITH (FORCESEEK, INDEX (1), READPAST, ROWLOCK, READCOMMITTEDLOCK)
WHERE i.consumer_hash = CAST(@p1 AS binary(32)) AND i.message_hash = CAST(@p2 AS binary(32))

-- choosePurgeInbox --
-- From the old end of inbox_recorded_at, in its order.
SELECT TOP (@p2) i.consumer_hash, i.message_hash
FROM [a]]b[].[]]]]; -- '_inbox] AS i WITH (FORCESEEK, INDEX ([]]]]; -- '_inbox_recorded_at]), UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK)
WHERE i.recorded_at <= DATEADD(microsecond, CAST(@p1 % 1000000 AS int), DATEADD(second, CAST(@p1 / 1000000 % 86400 AS int), DATEADD(day, CAST(@p1 / 1000000 / 86400 AS int), CAST(SYSUTCDATETIME() AS datetime2(6)))))
ORDER BY i.recorded_at

-- purgeInbox --
-- By the primary key; the rows are locked.
DELETE i
FROM OPENJSON(@p1) WITH (consumer varchar(64) '$.c', message varchar(64) '$.m') AS n
INNER LOOP JOIN [a]]b[].[]]]]; -- '_inbox] AS i WITH (FORCESEEK, INDEX (1))
   ON i.consumer_hash = CONVERT(binary(32), n.consumer, 2) AND i.message_hash = CONVERT(binary(32), n.message, 2)

-- beginRevision --
-- Makes the row of a key. That another transaction has made it since is an error of this
-- statement alone: see record.
SET XACT_ABORT OFF;
INSERT INTO [a]]b[].[]]]]; -- '_revision] (key_hash, [key], revision)
SELECT @p1, @p2, 0
WHERE NOT EXISTS (SELECT 1 FROM [a]]b[].[]]]]; -- '_revision] AS k WITH (FORCESEEK, INDEX (1)) WHERE k.key_hash = @p1 AND k.[key] = @p2)

-- raiseRevision --
-- Waits for another producer of the key.
UPDATE [a]]b[].[]]]]; -- '_revision] SET revision = revision + @p3 WHERE key_hash = @p1 AND [key] = @p2

-- lastRevision --
-- As raiseRevision, and keeps the lock.
SELECT k.revision FROM [a]]b[].[]]]]; -- '_revision] AS k WITH (FORCESEEK, INDEX (1), UPDLOCK, ROWLOCK, READCOMMITTEDLOCK) WHERE k.key_hash = @p1 AND k.[key] = @p2

-- revise --
-- As insert, behind raiseRevision: the list's revision is how many messages of the key
-- come after this one.
INSERT INTO [a]]b[].[]]]]; -- '] (lane, id, topic, [key], key_hash, type, content_type, payload, headers, revision, replay)
SELECT m.lane, CONVERT(binary(16), m.id, 2), CONVERT(varbinary(max), m.topic, 2), CONVERT(varbinary(max), m.message_key, 2), m.key_hash,
    CONVERT(varbinary(max), m.type, 2), CONVERT(varbinary(max), m.content_type, 2), CONVERT(varbinary(max), m.payload, 2), CONVERT(varbinary(max), m.headers, 2), 
    (SELECT k.revision FROM [a]]b[].[]]]]; -- '_revision] AS k WITH (FORCESEEK, INDEX (1))
     WHERE k.key_hash = m.key_hash AND k.[key] = CAST(CONVERT(varbinary(max), m.message_key, 2) AS varbinary(512))) - m.revision, m.replay
FROM OPENJSON(CAST(@p1 AS nvarchar(max))) WITH (nth int '$.n', lane int '$.lane', id varchar(32) '$.id', topic varchar(max) '$.topic',
    message_key varchar(max) '$.key', key_hash bigint '$.hash', type varchar(max) '$.type', content_type varchar(max) '$.content_type',
    payload varchar(max) '$.payload', headers varchar(max) '$.headers', revision bigint '$.revision', replay int '$.replay', delay bigint '$.delay') AS m
ORDER BY m.nth

-- beginProgress --
-- As beginRevision.
SET XACT_ABORT OFF;
INSERT INTO [a]]b[].[]]]]; -- '_progress] (consumer, key_hash, [key], revision)
SELECT @p1, @p2, @p3, 0
WHERE NOT EXISTS (SELECT 1 FROM [a]]b[].[]]]]; -- '_progress] AS k WITH (FORCESEEK, INDEX (1)) WHERE k.consumer = @p1 AND k.key_hash = @p2 AND k.[key] = @p3)

-- lastProgress --
-- Waits for another transaction of the consumer and the key.
SELECT k.revision FROM [a]]b[].[]]]]; -- '_progress] AS k WITH (FORCESEEK, INDEX (1), UPDLOCK, ROWLOCK, READCOMMITTEDLOCK) WHERE k.consumer = @p1 AND k.key_hash = @p2 AND k.[key] = @p3

-- setProgress --
UPDATE [a]]b[].[]]]]; -- '_progress] SET revision = @p4 WHERE consumer = @p1 AND key_hash = @p2 AND [key] = @p3

-- progress --
SELECT k.revision FROM [a]]b[].[]]]]; -- '_progress] AS k WITH (FORCESEEK, INDEX (1)) WHERE k.consumer = @p1 AND k.key_hash = @p2 AND k.[key] = @p3

-- writeAudit --
INSERT INTO [a]]b[].[]]]]; -- '_audit] (id, ended, who, action, selection, why, changed, failure)
VALUES (@p1, @p2, @p3, @p4, @p5, @p6, @p7, @p8)

-- audit --
-- Backwards along audit's primary key; the second row is one entry of audit_id.
SELECT TOP (@p2) b.pos, b.id, b.who, b.action, b.selection, b.why, DATEDIFF_BIG(microsecond, CAST('1970-01-01T00:00:00' AS datetime2(6)), b.written_at),
    DATEDIFF_BIG(microsecond, CAST('1970-01-01T00:00:00' AS datetime2(6)), e.written_at), COALESCE(e.changed, 0), COALESCE(e.failure, 0x)
FROM [a]]b[].[]]]]; -- '_audit] AS b WITH (FORCESEEK, INDEX (1))
OUTER APPLY (
    SELECT a.written_at, a.changed, a.failure FROM [a]]b[].[]]]]; -- '_audit] AS a WITH (FORCESEEK, INDEX ([]]]]; -- '_audit_id]))
    WHERE a.id = b.id AND a.ended = 1) AS e
WHERE b.pos < @p1 AND b.ended = 0
ORDER BY b.pos DESC

-- viewLanes --
-- Waits for who is changing a lane.
SELECT l.lane, l.owner, l.epoch, DATEDIFF_BIG(microsecond, CAST(SYSUTCDATETIME() AS datetime2(6)), l.lease_until),
    CASE WHEN l.served_at > CAST('1970-01-01T00:00:00' AS datetime2(6)) THEN DATEDIFF_BIG(microsecond, l.served_at, CAST(SYSUTCDATETIME() AS datetime2(6))) END
FROM [a]]b[].[]]]]; -- '_lane] AS l
ORDER BY l.lane

-- viewDone --
-- Backwards along done's primary key, past locked rows.
SELECT TOP (@p1) d.pos, DATEDIFF_BIG(microsecond, d.done_at, CAST(SYSUTCDATETIME() AS datetime2(6))), DATEDIFF_BIG(microsecond, d.created_at, d.done_at),
    CASE WHEN d.outcome = 'published' AND d.replay = 0 THEN 1 ELSE 0 END
FROM [a]]b[].[]]]]; -- '_done] AS d WITH (FORCESEEK, INDEX (1), READPAST, ROWLOCK, READCOMMITTEDLOCK)
WHERE d.done_at > CAST('1970-01-01T00:00:00' AS datetime2(6))
ORDER BY d.done_at DESC, d.pos DESC

-- viewReasons --
-- Backwards along parked's primary key, past locked rows.
SELECT TOP (@p1) p.state, p.topic, COALESCE(p.reason, 0x)
FROM [a]]b[].[]]]]; -- '_parked] AS p WITH (FORCESEEK, INDEX (1), READPAST, ROWLOCK, READCOMMITTEDLOCK)
WHERE p.pos > 0
ORDER BY p.pos DESC

-- viewMessage --
-- By the three indexes on id.
SELECT 'ready', r.lane, r.seq, r.topic, r.[key], r.type, 0, r.replay, 0x, DATEDIFF_BIG(microsecond, r.created_at, CAST(SYSUTCDATETIME() AS datetime2(6))), DATEDIFF_BIG(microsecond, r.ready_at, CAST(SYSUTCDATETIME() AS datetime2(6))), CAST(NULL AS bigint)
FROM [a]]b[].[]]]]; -- '] AS r WITH (FORCESEEK, INDEX ([]]]]; -- '_id])) WHERE r.id = @p1
UNION ALL
SELECT p.state, p.lane, COALESCE(p.seq, 0), p.topic, p.[key], p.type, p.attempts, p.replay, COALESCE(p.reason, 0x), DATEDIFF_BIG(microsecond, p.created_at, CAST(SYSUTCDATETIME() AS datetime2(6))), DATEDIFF_BIG(microsecond, p.parked_at, CAST(SYSUTCDATETIME() AS datetime2(6))), DATEDIFF_BIG(microsecond, CAST(SYSUTCDATETIME() AS datetime2(6)), p.available_at)
FROM [a]]b[].[]]]]; -- '_parked] AS p WITH (FORCESEEK, INDEX ([]]]]; -- '_parked_id])) WHERE p.id = @p1
UNION ALL
SELECT d.outcome, d.lane, COALESCE(d.seq, 0), d.topic, d.[key], d.type, d.attempts, d.replay, COALESCE(d.reason, 0x), DATEDIFF_BIG(microsecond, d.created_at, CAST(SYSUTCDATETIME() AS datetime2(6))), DATEDIFF_BIG(microsecond, d.done_at, CAST(SYSUTCDATETIME() AS datetime2(6))), CAST(NULL AS bigint)
FROM [a]]b[].[]]]]; -- '_done] AS d WITH (FORCESEEK, INDEX ([]]]]; -- '_done_id])) WHERE d.id = @p1

-- migrateLock --
-- One migration at a time in this database. The lock ends with the transaction, so that
-- it needs no session of its own. Below 0 is no lock.
DECLARE @result int;
EXEC @result = sp_getapplock @Resource = 'outbox_migrate', @LockMode = 'Exclusive', @LockOwner = 'Transaction', @LockTimeout = 60000;
SELECT @result

-- tables --
-- Which of the tables there are: OBJECT_ID finds a name as statements do.
SELECT OBJECT_ID(@p1, N'U'), OBJECT_ID(@p2, N'U'), OBJECT_ID(@p3, N'U'), OBJECT_ID(@p4, N'U'), OBJECT_ID(@p5, N'U'), OBJECT_ID(@p6, N'U'),
    OBJECT_ID(@p7, N'U'), OBJECT_ID(@p8, N'U'), OBJECT_ID(@p9, N'U')

-- indexes --
-- The indexes of a table, and what keeps them from taking row locks.
SELECT i.name, i.allow_row_locks FROM sys.indexes AS i
WHERE i.object_id = OBJECT_ID(@p1, N'U') AND i.name IS NOT NULL AND i.is_disabled = 0

-- identity --
-- How ready.seq counts.
SELECT CAST(c.increment_value AS bigint) FROM sys.identity_columns AS c
WHERE c.object_id = OBJECT_ID(@p1, N'U') AND c.name = N'seq'

-- schemaExists --
SELECT SCHEMA_ID(@p1)

-- createSchema --
CREATE SCHEMA [a]]b[]

-- meta --
SELECT m.version, m.lanes FROM [a]]b[].[]]]]; -- '_meta] AS m

-- server --
-- What the server and this database are set to.
SELECT CAST(SERVERPROPERTY('ProductVersion') AS nvarchar(128)), CAST(SERVERPROPERTY('EngineEdition') AS int),
    d.compatibility_level, d.delayed_durability,
    CAST(DATABASEPROPERTYEX(DB_NAME(), 'Updateability') AS nvarchar(128))
FROM sys.databases AS d
WHERE d.database_id = DB_ID()

-- lanes --
-- How many rows are lanes, and how many are none.
SELECT COALESCE(SUM(CASE WHEN l.lane BETWEEN 0 AND @p1 - 1 THEN 1 ELSE 0 END), 0),
    COALESCE(SUM(CASE WHEN l.lane BETWEEN 0 AND @p1 - 1 THEN 0 ELSE 1 END), 0)
FROM [a]]b[].[]]]]; -- '_lane] AS l

-- parked --
-- Along parked's primary key, or the index that serves the filter.
SELECT TOP (@p2) COALESCE(p.seq, 0), p.pos, p.attempts, p.lane, p.id, p.topic, p.[key], p.key_hash, p.type, p.content_type,
    p.payload, p.headers,
    DATEDIFF_BIG(microsecond, CAST('1970-01-01T00:00:00' AS datetime2(6)), p.created_at), COALESCE(p.revision, 0), p.replay,
    DATEDIFF_BIG(microsecond, p.created_at, CAST(SYSUTCDATETIME() AS datetime2(6))), 0,
    p.state, p.blocking, COALESCE(p.reason, 0x),
    DATEDIFF_BIG(microsecond, CAST(SYSUTCDATETIME() AS datetime2(6)), p.available_at),
    DATEDIFF_BIG(microsecond, CAST('1970-01-01T00:00:00' AS datetime2(6)), p.parked_at)
FROM [a]]b[].[]]]]; -- '_parked] AS p
WHERE p.pos > @p1
      AND p.id IN (SELECT CONVERT(binary(16), i.id, 2) FROM OPENJSON(@p3) WITH (id varchar(32) '$.i') AS i)
      AND p.lane = @p4
      AND p.key_hash = @p5
      AND p.[key] = @p6 AND DATALENGTH(p.[key]) = DATALENGTH(@p6)
      AND p.topic = @p7 AND DATALENGTH(p.topic) = DATALENGTH(@p7)
      AND p.type = @p8 AND DATALENGTH(p.type) = DATALENGTH(@p8)
      AND p.state IN ('dead', 'retry')
ORDER BY p.pos

-- requeueLanes --
-- The lanes in which there is something to requeue.
SELECT l.lane FROM [a]]b[].[]]]]; -- '_lane] AS l
WHERE EXISTS (SELECT 1 FROM [a]]b[].[]]]]; -- '_parked] AS p WHERE p.lane = l.lane
      AND (p.state = 'dead' OR (p.state IN ('scheduled', 'retry') AND p.available_at > CAST(SYSUTCDATETIME() AS datetime2(6))))
      AND (p.seq IS NOT NULL OR p.state = 'scheduled' OR NOT EXISTS (
        SELECT 1 FROM [a]]b[].[]]]]; -- '_parked] AS o
        WHERE o.id = p.id AND o.seq IS NULL AND (o.state = 'scheduled' OR o.pos < p.pos)))
      AND p.id IN (SELECT CONVERT(binary(16), i.id, 2) FROM OPENJSON(@p1) WITH (id varchar(32) '$.i') AS i)
      AND p.lane = @p2
      AND p.key_hash = @p3
      AND p.[key] = @p4 AND DATALENGTH(p.[key]) = DATALENGTH(@p4)
      AND p.topic = @p5 AND DATALENGTH(p.topic) = DATALENGTH(@p5)
      AND p.type = @p6 AND DATALENGTH(p.type) = DATALENGTH(@p6)
      AND p.state IN ('dead', 'retry'))
ORDER BY l.lane

-- discardLanes --
-- The lanes in which there is something to discard.
SELECT l.lane FROM [a]]b[].[]]]]; -- '_lane] AS l
WHERE EXISTS (SELECT 1 FROM [a]]b[].[]]]]; -- '_parked] AS p WHERE p.lane = l.lane
      AND p.id IN (SELECT CONVERT(binary(16), i.id, 2) FROM OPENJSON(@p1) WITH (id varchar(32) '$.i') AS i)
      AND p.lane = @p2
      AND p.key_hash = @p3
      AND p.[key] = @p4 AND DATALENGTH(p.[key]) = DATALENGTH(@p4)
      AND p.topic = @p5 AND DATALENGTH(p.topic) = DATALENGTH(@p5)
      AND p.type = @p6 AND DATALENGTH(p.type) = DATALENGTH(@p6)
      AND p.state IN ('dead', 'retry'))
ORDER BY l.lane

-- chooseRequeue --
-- Under the lane row's lock. In order, so that a limit cuts the run of a key at its end.
SELECT TOP (@p2) p.pos, p.id, CASE WHEN p.seq IS NULL THEN 0 ELSE 1 END, p.key_hash, CASE WHEN p.state = 'dead' THEN 1 ELSE 0 END
FROM [a]]b[].[]]]]; -- '_parked] AS p
WHERE p.lane = @p1
      AND (p.state = 'dead' OR (p.state IN ('scheduled', 'retry') AND p.available_at > CAST(SYSUTCDATETIME() AS datetime2(6))))
      AND (p.seq IS NOT NULL OR p.state = 'scheduled' OR NOT EXISTS (
        SELECT 1 FROM [a]]b[].[]]]]; -- '_parked] AS o
        WHERE o.id = p.id AND o.seq IS NULL AND (o.state = 'scheduled' OR o.pos < p.pos)))
      AND p.id IN (SELECT CONVERT(binary(16), i.id, 2) FROM OPENJSON(@p3) WITH (id varchar(32) '$.i') AS i)
      AND p.lane = @p4
      AND p.key_hash = @p5
      AND p.[key] = @p6 AND DATALENGTH(p.[key]) = DATALENGTH(@p6)
      AND p.topic = @p7 AND DATALENGTH(p.topic) = DATALENGTH(@p7)
      AND p.type = @p8 AND DATALENGTH(p.type) = DATALENGTH(@p8)
      AND p.state IN ('dead', 'retry')
ORDER BY CASE WHEN p.seq IS NULL THEN 1 ELSE 0 END, p.seq, p.pos

-- chooseDiscard --
-- As for a requeue.
SELECT TOP (@p2) p.pos, p.id, CASE WHEN p.seq IS NULL THEN 0 ELSE 1 END, p.key_hash, CASE WHEN p.state = 'dead' THEN 1 ELSE 0 END
FROM [a]]b[].[]]]]; -- '_parked] AS p
WHERE p.lane = @p1
      AND p.id IN (SELECT CONVERT(binary(16), i.id, 2) FROM OPENJSON(@p3) WITH (id varchar(32) '$.i') AS i)
      AND p.lane = @p4
      AND p.key_hash = @p5
      AND p.[key] = @p6 AND DATALENGTH(p.[key]) = DATALENGTH(@p6)
      AND p.topic = @p7 AND DATALENGTH(p.topic) = DATALENGTH(@p7)
      AND p.type = @p8 AND DATALENGTH(p.type) = DATALENGTH(@p8)
      AND p.state IN ('dead', 'retry')
ORDER BY CASE WHEN p.seq IS NULL THEN 1 ELSE 0 END, p.seq, p.pos

-- chooseReplay --
-- One range of done's primary key, or its index on id. Of an id that was done several
-- times only the newest row, or one call would replay it once a row; and none that was
-- done again since the replay began.
SELECT TOP (@p4) DATEDIFF_BIG(microsecond, CAST('1970-01-01T00:00:00' AS datetime2(6)), d.done_at), d.pos, d.id,
    CASE WHEN (SELECT TOP (1) r.seq FROM [a]]b[].[]]]]; -- '] AS r WITH (FORCESEEK, INDEX ([]]]]; -- '_id])) WHERE r.id = d.id) IS NULL
      AND (SELECT TOP (1) p.pos FROM [a]]b[].[]]]]; -- '_parked] AS p WITH (FORCESEEK, INDEX ([]]]]; -- '_parked_id])) WHERE p.id = d.id) IS NULL THEN 0 ELSE 1 END
FROM [a]]b[].[]]]]; -- '_done] AS d
WHERE d.done_at >= CAST(DATEADD(microsecond, CAST(@p1 % 1000000 AS int), DATEADD(second, CAST(@p1 / 1000000 % 86400 AS int), DATEADD(day, CAST(@p1 / 1000000 / 86400 AS int), CAST('1970-01-01T00:00:00' AS datetime2(6))))) AS datetime2(6))
  AND (d.done_at > CAST(DATEADD(microsecond, CAST(@p1 % 1000000 AS int), DATEADD(second, CAST(@p1 / 1000000 % 86400 AS int), DATEADD(day, CAST(@p1 / 1000000 / 86400 AS int), CAST('1970-01-01T00:00:00' AS datetime2(6))))) AS datetime2(6)) OR d.pos > @p2)
  AND d.done_at < CAST(DATEADD(microsecond, CAST(@p3 % 1000000 AS int), DATEADD(second, CAST(@p3 / 1000000 % 86400 AS int), DATEADD(day, CAST(@p3 / 1000000 / 86400 AS int), CAST('1970-01-01T00:00:00' AS datetime2(6))))) AS datetime2(6))
      AND d.id IN (SELECT CONVERT(binary(16), i.id, 2) FROM OPENJSON(@p6) WITH (id varchar(32) '$.i') AS i)
      AND d.lane = @p7
      AND d.key_hash = @p8
      AND d.[key] = @p9 AND DATALENGTH(d.[key]) = DATALENGTH(@p9)
      AND d.topic = @p10 AND DATALENGTH(d.topic) = DATALENGTH(@p10)
      AND d.type = @p11 AND DATALENGTH(d.type) = DATALENGTH(@p11)
  AND NOT EXISTS (
    SELECT 1 FROM [a]]b[].[]]]]; -- '_done] AS n WITH (FORCESEEK, INDEX ([]]]]; -- '_done_id]))
    WHERE n.id = d.id AND (n.done_at < CAST(DATEADD(microsecond, CAST(@p3 % 1000000 AS int), DATEADD(second, CAST(@p3 / 1000000 % 86400 AS int), DATEADD(day, CAST(@p3 / 1000000 / 86400 AS int), CAST('1970-01-01T00:00:00' AS datetime2(6))))) AS datetime2(6)) OR n.done_at >= CAST(DATEADD(microsecond, CAST(@p5 % 1000000 AS int), DATEADD(second, CAST(@p5 / 1000000 % 86400 AS int), DATEADD(day, CAST(@p5 / 1000000 / 86400 AS int), CAST('1970-01-01T00:00:00' AS datetime2(6))))) AS datetime2(6)))
      AND (n.done_at > d.done_at OR (n.done_at = d.done_at AND n.pos > d.pos)))
ORDER BY d.done_at, d.pos

