-- step 1: the outbox --
-- The outbox, version 1.
--
-- A message is in exactly one of three tables: ready (may go), parked (must
-- wait, or needs a person) and done (went, or was discarded). The schema, if it
-- is named, exists before this file runs. Who needs which right is in grants.sql
-- beside it.
--
-- Text is compared byte by byte (collation C), and headers are text, not json:
-- what a producer stores comes back unchanged.

-- ready: messages to publish, nothing else. Producers insert, a relay's settle
-- deletes, nobody updates.
CREATE TABLE "outbox" (
    -- When the message became ready: its insert, its surfacing, its replay. Before seq,
    -- so that a transaction has its number when it is given a seq, and whoever looks for
    -- those that may still insert one below finds it.
    ready_at     timestamptz NOT NULL DEFAULT CASE WHEN txid_current() > 0 THEN clock_timestamp() END,
    -- The order within a lane. Assigned here and nowhere else; a cache above 1
    -- would hand out numbers out of order.
    seq          bigint      GENERATED ALWAYS AS IDENTITY (CACHE 1),
    -- The first 8 bytes of SHA-256 of the key, big-endian, signed.
    key_hash     bigint,
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- The producer's version of what the key names; optional.
    revision     bigint,
    id           uuid        NOT NULL,
    lane         integer     NOT NULL,
    -- How often an operator replayed the message.
    replay       integer     NOT NULL DEFAULT 0,
    topic        text        COLLATE "C" NOT NULL,
    key          text        COLLATE "C",
    type         text        COLLATE "C" NOT NULL,
    content_type text        COLLATE "C" NOT NULL DEFAULT 'application/json',
    headers      text        COLLATE "C" NOT NULL DEFAULT '{}',
    payload      bytea,
    -- The only order messages are read in.
    PRIMARY KEY (lane, seq),
    -- The same message twice is an error in the producer's transaction.
    CONSTRAINT "outbox_id" UNIQUE (id),
    CONSTRAINT "outbox_key_has_hash" CHECK ((key IS NULL) = (key_hash IS NULL)),
    -- 'infinity' is a time that no program could read.
    CONSTRAINT "outbox_times" CHECK (isfinite(created_at) AND isfinite(ready_at)),
    -- Refuses a producer that counts the lanes differently.
    CONSTRAINT "outbox_lane_fits" CHECK (lane = coalesce(key_hash & 15, lane & 15))
) WITH (
    -- Every message dies here. Vacuum by count, not by a share of a table that
    -- is nearly always empty, and without pauses: it is soon done.
    -- The fill factor stays at 100, because no row is ever updated.
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_cost_delay = 0,
    toast.autovacuum_vacuum_scale_factor = 0,
    toast.autovacuum_vacuum_threshold = 5000,
    toast.autovacuum_vacuum_cost_delay = 0
);

-- parked: messages that wait for a time (scheduled, retry), for the row before
-- them (held) or for a person (dead).
CREATE TABLE "outbox_parked" (
    -- Names a parked row.
    pos          bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    -- The place in the order; a scheduled message has none before it is due.
    seq          bigint,
    key_hash     bigint,
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- When a scheduled or retry message is due.
    available_at timestamptz,
    parked_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    revision     bigint,
    id           uuid        NOT NULL,
    lane         integer     NOT NULL,
    replay       integer     NOT NULL DEFAULT 0,
    -- Publish attempts that failed.
    attempts     integer     NOT NULL DEFAULT 0,
    -- This row holds back the newer messages of its key.
    blocking     boolean     NOT NULL DEFAULT false,
    state        text        COLLATE "C" NOT NULL DEFAULT 'scheduled',
    topic        text        COLLATE "C" NOT NULL,
    key          text        COLLATE "C",
    type         text        COLLATE "C" NOT NULL,
    content_type text        COLLATE "C" NOT NULL DEFAULT 'application/json',
    headers      text        COLLATE "C" NOT NULL DEFAULT '{}',
    -- The last error.
    reason       text        COLLATE "C",
    payload      bytea,
    CONSTRAINT "outbox_parked_state" CHECK (state IN ('scheduled', 'retry', 'held', 'dead')),
    CONSTRAINT "outbox_parked_due" CHECK ((state IN ('scheduled', 'retry')) = (available_at IS NOT NULL)),
    CONSTRAINT "outbox_parked_order" CHECK (state = 'scheduled' OR seq IS NOT NULL),
    CONSTRAINT "outbox_parked_head" CHECK (NOT blocking OR (key_hash IS NOT NULL AND state IN ('retry', 'dead'))),
    CONSTRAINT "outbox_parked_held" CHECK (state <> 'held' OR key_hash IS NOT NULL),
    CONSTRAINT "outbox_parked_times" CHECK (isfinite(created_at) AND isfinite(available_at) AND isfinite(parked_at)),
    CONSTRAINT "outbox_parked_key_has_hash" CHECK ((key IS NULL) = (key_hash IS NULL)),
    CONSTRAINT "outbox_parked_lane_fits" CHECK (lane = coalesce(key_hash & 15, lane & 15))
) WITH (
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_cost_delay = 0
);

-- What is due in a lane, by state; held and dead rows stand in it without a
-- time, so that they can be counted by state.
CREATE INDEX "outbox_parked_due_at" ON "outbox_parked" (lane, state, available_at);
-- The blocked keys, one entry a key.
CREATE INDEX "outbox_parked_blocked" ON "outbox_parked" (lane, key_hash, seq) WHERE blocking;
-- The rows of a key; by state, so that the first held one is found at once.
CREATE INDEX "outbox_parked_key" ON "outbox_parked" (lane, key_hash, state, seq);
-- For operators. Not unique: a parked message may share its id with another.
CREATE INDEX "outbox_parked_id" ON "outbox_parked" (id);
-- The same delayed message twice is an error in the producer's transaction.
CREATE UNIQUE INDEX "outbox_parked_scheduled_id" ON "outbox_parked" (id) WHERE state = 'scheduled';

-- done: what was published or discarded, for the retention window. Rows are
-- added in order of time and removed from the old end.
CREATE TABLE "outbox_done" (
    done_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    pos          bigint      GENERATED ALWAYS AS IDENTITY,
    seq          bigint,
    key_hash     bigint,
    created_at   timestamptz NOT NULL,
    revision     bigint,
    id           uuid        NOT NULL,
    lane         integer     NOT NULL,
    replay       integer     NOT NULL,
    -- Publish attempts, the successful one included.
    attempts     integer     NOT NULL,
    outcome      text        COLLATE "C" NOT NULL CHECK (outcome IN ('published', 'discarded')),
    topic        text        COLLATE "C" NOT NULL,
    key          text        COLLATE "C",
    type         text        COLLATE "C" NOT NULL,
    content_type text        COLLATE "C" NOT NULL,
    headers      text        COLLATE "C" NOT NULL,
    reason       text        COLLATE "C",
    payload      bytea,
    -- Begins with the time, so that the table can be partitioned by it.
    PRIMARY KEY (done_at, pos)
);

-- For replay by id. Not unique: a replayed message is done twice.
CREATE INDEX "outbox_done_id" ON "outbox_done" (id);

-- lane: who may change a lane, until when. The epoch is the fence: whoever
-- writes for a lane locks its row and finds the epoch unchanged, or writes
-- nothing.
CREATE TABLE "outbox_lane" (
    lane        integer     PRIMARY KEY,
    epoch       bigint      NOT NULL DEFAULT 0,
    owner       text        COLLATE "C" NOT NULL DEFAULT '',
    lease_until timestamptz NOT NULL DEFAULT 'epoch',
    served_at   timestamptz NOT NULL DEFAULT 'epoch'
) WITH (
    -- Updated at every settle, in columns without an index: with room on the
    -- page the new version stays there (HOT) and the old one is soon reused.
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0
);

-- inbox: the messages a consumer has processed.
CREATE TABLE "outbox_inbox" (
    consumer    text        COLLATE "C" NOT NULL,
    message_id  text        COLLATE "C" NOT NULL,
    recorded_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (consumer, message_id)
);

-- For the purge.
CREATE INDEX "outbox_inbox_recorded_at" ON "outbox_inbox" (recorded_at);

-- meta: one row.
CREATE TABLE "outbox_meta" (
    one      boolean     PRIMARY KEY DEFAULT true CHECK (one),
    -- The version of this schema.
    version  integer     NOT NULL,
    -- The number of lanes, the same in the checks above.
    lanes    integer     NOT NULL,
    -- When done was last purged.
    purge_at timestamptz NOT NULL DEFAULT 'epoch'
);

INSERT INTO "outbox_lane" (lane) SELECT generate_series(0, 16 - 1);
INSERT INTO "outbox_meta" (version, lanes) VALUES (1, 16);

-- step 2: revisions --
-- The outbox, version 2: revisions, which count the messages of every key.
--
-- Both tables stay empty unless an outbox or an inbox uses revisions. A key is its
-- hash and its exact bytes. Who needs which right is what `outbox schema --grants` prints: run
-- that again.

-- revision: the last revision of a key. A producer's transaction updates the row, and
-- so producers of one key take turns.
CREATE TABLE "outbox_revision" (
    key_hash bigint NOT NULL,
    revision bigint NOT NULL CHECK (revision >= 0),
    key      text   COLLATE "C" NOT NULL,
    PRIMARY KEY (key_hash, key)
) WITH (
    -- Updated in a column without an index: with room on the page the new version
    -- stays there (HOT) and the old one is soon reused.
    fillfactor = 80,
    autovacuum_vacuum_cost_delay = 0
);

-- progress: the last revision of a key that a consumer has handled.
CREATE TABLE "outbox_progress" (
    key_hash bigint NOT NULL,
    revision bigint NOT NULL CHECK (revision >= 0),
    consumer text   COLLATE "C" NOT NULL,
    key      text   COLLATE "C" NOT NULL,
    PRIMARY KEY (consumer, key_hash, key)
) WITH (
    fillfactor = 80,
    autovacuum_vacuum_cost_delay = 0
);

UPDATE "outbox_meta" SET version = 2;

-- step 3: the audit --
-- The outbox, version 3: the audit, which keeps what operators did.
--
-- Nothing here changes or deletes a row: what is older than you must keep, delete. Who
-- needs which right is what `outbox schema --grants` prints: run that again.

-- audit: an action has two rows with one id, that it begins and how it ended.
CREATE TABLE "outbox_audit" (
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
    CONSTRAINT "outbox_audit_id" UNIQUE (id, ended),
    CONSTRAINT "outbox_audit_ends" CHECK (ended = (changed IS NOT NULL))
);

UPDATE "outbox_meta" SET version = 3;

-- poll --
-- Reads the lane rows, and of each lane one entry of ready's primary key and
-- of parked_due_at. The newest row is looked for first, because the dead
-- entries of an old snapshot lie at the other end; the floor, $3, keeps the look
-- above them when there is no row. Locks nothing.
SELECT l.lane, l.epoch, ((SELECT p.pos FROM "outbox_parked" AS p WHERE p.lane = l.lane AND p.state = 'retry'
          AND p.available_at <= statement_timestamp()
        ORDER BY p.available_at LIMIT 1) IS NOT NULL
    OR (SELECT p.pos FROM "outbox_parked" AS p WHERE p.lane = l.lane AND p.state = 'scheduled'
          AND p.available_at <= statement_timestamp()
        ORDER BY p.available_at LIMIT 1) IS NOT NULL)
FROM "outbox_lane" AS l
WHERE (l.lease_until <= statement_timestamp() OR l.owner = $1::text)
  AND ((SELECT r.seq FROM "outbox" AS r WHERE r.lane = l.lane AND r.seq > $3::bigint
        ORDER BY r.lane DESC, r.seq DESC LIMIT 1) IS NOT NULL
    OR ((SELECT p.pos FROM "outbox_parked" AS p WHERE p.lane = l.lane AND p.state = 'retry'
          AND p.available_at <= statement_timestamp()
        ORDER BY p.available_at LIMIT 1) IS NOT NULL
    OR (SELECT p.pos FROM "outbox_parked" AS p WHERE p.lane = l.lane AND p.state = 'scheduled'
          AND p.available_at <= statement_timestamp()
        ORDER BY p.available_at LIMIT 1) IS NOT NULL))
-- A time ahead of now is from before the clock was set back.
ORDER BY CASE WHEN l.served_at <= statement_timestamp() THEN l.served_at ELSE 'epoch' END, l.lane
LIMIT $2::bigint

-- lastSeq --
-- The newest number that ready.seq was given, by anybody, committed or not.
SELECT coalesce(pg_sequence_last_value(pg_get_serial_sequence($1::text, 'seq')::regclass), 0)

-- horizon --
-- A transaction that writes has a number; those that only read have none, so
-- that a reader's old snapshot holds nothing back. This statement's snapshot
-- tells the oldest that still runs (xmin), and everything that ended before it
-- is visible here. The next number to be given is above xmax, which only counts
-- those that have ended; age knows it, in 32 bits. The txid functions are there
-- since version 8.3, their successors since 13.
-- Then the oldest row of each lane above the floor, by ready's primary key.
SELECT s.xmax + ((age('3'::xid)::bigint + 3 - s.xmax) & 4294967295), s.xmin, o.seq
FROM (SELECT txid_snapshot_xmin(txid_current_snapshot()) AS xmin, txid_snapshot_xmax(txid_current_snapshot()) AS xmax) AS s,
    (SELECT coalesce(min((SELECT r.seq FROM "outbox" AS r WHERE r.lane = l.lane AND r.seq > $1::bigint
        ORDER BY r.lane, r.seq LIMIT 1)), 0) AS seq
     FROM "outbox_lane" AS l) AS o

-- pending --
-- As poll, over all lanes.
SELECT
    coalesce(bool_or(
        (SELECT r.seq FROM "outbox" AS r WHERE r.lane = l.lane
         ORDER BY r.lane DESC, r.seq DESC LIMIT 1) IS NOT NULL
     OR (SELECT p.pos FROM "outbox_parked" AS p WHERE p.lane = l.lane AND p.state = 'retry'
           AND p.available_at <= statement_timestamp()
         ORDER BY p.available_at LIMIT 1) IS NOT NULL
     OR (SELECT p.pos FROM "outbox_parked" AS p WHERE p.lane = l.lane AND p.state = 'scheduled'
           AND p.available_at <= statement_timestamp()
         ORDER BY p.available_at LIMIT 1) IS NOT NULL), false) AS work,
    coalesce(bool_or(l.lease_until > statement_timestamp() AND l.owner <> $1::text), false) AS held
FROM "outbox_lane" AS l

-- claim --
-- Locks one lane row by primary key, or passes by when another session has it.
UPDATE "outbox_lane"
SET owner = $2::text, epoch = epoch + 1, served_at = clock_timestamp(),
    lease_until = clock_timestamp() + $3::bigint * interval '1 microsecond'
WHERE lane = (
    SELECT lane FROM "outbox_lane"
    WHERE lane = $1::int AND (lease_until <= clock_timestamp() OR owner = $2::text)
    FOR UPDATE SKIP LOCKED)
RETURNING epoch

-- extend --
-- Waits for the lane row's lock, then finds the lease in its newest version.
UPDATE "outbox_lane"
SET lease_until = clock_timestamp() + $4::bigint * interval '1 microsecond'
WHERE lane = $1::int AND owner = $2::text AND epoch = $3::bigint

-- release --
-- As extend. Without an owner the epoch alone opens no fence. Nobody waits for the
-- disk: if a crash takes the release, the lane is free when the lease ends. A claim or
-- a renewal must not be taken, or two relays would have the lane at a time.
UPDATE "outbox_lane"
SET owner = '', lease_until = clock_timestamp()
WHERE lane = $1::int AND owner = $2::text AND epoch = $3::bigint
  AND set_config('synchronous_commit', 'off', true) = 'off'

-- insert --
-- One ready message.
INSERT INTO "outbox" (lane, id, topic, key, key_hash, type, content_type, payload, headers, revision, replay)
VALUES ($1::int, $2::text::uuid, $3::text, $4::text, $5::bigint, $6::text, $7::text, $8::bytea, $9::text, $10::bigint, $11::int)

-- insertMany --
-- Many ready messages. The identity takes its numbers after the sort, so seq
-- follows the order of the arrays.
INSERT INTO "outbox" (lane, id, topic, key, key_hash, type, content_type, payload, headers, revision, replay)
SELECT m.lane, m.id::uuid, m.topic, m.key, m.key_hash, m.type, m.content_type, m.payload, m.headers, m.revision, m.replay
FROM unnest($1::int[], $2::text[], $3::text[], $4::text[], $5::bigint[], $6::text[], $7::text[], $8::bytea[], $9::text[], $10::bigint[], $11::int[])
    WITH ORDINALITY AS m(lane, id, topic, key, key_hash, type, content_type, payload, headers, revision, replay, place)
ORDER BY m.place

-- schedule --
-- Delayed messages; $12 holds the delays.
INSERT INTO "outbox_parked" (lane, id, topic, key, key_hash, type, content_type, payload, headers, revision, replay, state, available_at)
SELECT m.lane, m.id::uuid, m.topic, m.key, m.key_hash, m.type, m.content_type, m.payload, m.headers, m.revision, m.replay,
    'scheduled', clock_timestamp() + m.delay * interval '1 microsecond'
FROM unnest($1::int[], $2::text[], $3::text[], $4::text[], $5::bigint[], $6::text[], $7::text[], $8::bytea[], $9::text[], $10::bigint[], $11::int[], $12::bigint[])
    WITH ORDINALITY AS m(lane, id, topic, key, key_hash, type, content_type, payload, headers, revision, replay, delay, place)
ORDER BY m.place

-- surfaceDue --
-- Whether there is a lease and anything to surface, by parked_due_at. Locks
-- nothing.
SELECT
    EXISTS (SELECT FROM "outbox_lane" WHERE lane = $1::int AND owner = $2::text AND epoch = $3::bigint),
    (SELECT p.pos FROM "outbox_parked" AS p WHERE p.lane = $1::int AND p.state = 'scheduled'
        AND p.available_at <= statement_timestamp() ORDER BY p.available_at LIMIT 1) IS NOT NULL

-- surface --
-- Locks the lane row; without it nothing below happens. Due rows come by
-- parked_due_at. A message whose id is ready already keeps a place of its own
-- in the order, so that it can be requeued like any dead one.
WITH fence AS MATERIALIZED (
    SELECT lane FROM "outbox_lane" WHERE lane = $1::int AND owner = $2::text AND epoch = $3::bigint FOR UPDATE
), due AS (
    DELETE FROM "outbox_parked"
    WHERE pos = ANY (ARRAY(
        SELECT p.pos FROM "outbox_parked" AS p
        WHERE p.lane = $1::int AND p.state = 'scheduled' AND p.available_at <= statement_timestamp()
        ORDER BY p.available_at, p.pos LIMIT $4::bigint))
      AND EXISTS (SELECT FROM fence)
    RETURNING *
), moved AS (
    INSERT INTO "outbox" (lane, id, topic, key, key_hash, type, content_type, payload, headers, created_at, revision, replay)
    SELECT lane, id, topic, key, key_hash, type, content_type, payload, headers, created_at, revision, replay
    FROM due ORDER BY available_at, pos
    ON CONFLICT (id) DO NOTHING
    RETURNING id
), refused AS (
    INSERT INTO "outbox_parked" (lane, seq, id, topic, key, key_hash, type, content_type, payload, headers, created_at, revision, replay, state, reason)
    SELECT lane, nextval(pg_get_serial_sequence($5::text, 'seq')::regclass),
        id, topic, key, key_hash, type, content_type, payload, headers, created_at, revision, replay, 'dead', $6::text
    FROM (SELECT * FROM due WHERE id NOT IN (SELECT id FROM moved) ORDER BY available_at, pos) AS twice
)
SELECT (SELECT count(*) FROM moved), EXISTS (SELECT FROM fence)

-- ready --
-- One range of ready's primary key. Whether a key is blocked is asked only where
-- the lane has a blocked key at all, and is then one entry of parked_blocked a
-- row: a subquery with LIMIT, so that it stays that and does not become a hash of
-- all blocked keys. The payload of a blocked row is not even read.
-- How many rows there are within $4 bytes is found by their running sum, which is
-- dear, and so only where they are not all within it. Sizes come from the row
-- header of a payload stored out of line.
-- Each column of each row is written by a call, but not a NULL: hence what is
-- usually 0 or false comes as that.
SELECT seq, id, topic, key, key_hash, type, content_type,
    CASE WHEN blocked THEN NULL ELSE payload END AS payload, headers, created_at, revision, nullif(replay, 0) AS replay,
    (date_part('epoch', statement_timestamp() - ready_at) * 1000000)::bigint AS age, nullif(blocked, false) AS blocked
FROM (
    SELECT m.*, CASE WHEN (
        SELECT true FROM "outbox_parked" AS p WHERE p.lane = $1::int AND p.blocking
        ORDER BY p.lane, p.key_hash, p.seq LIMIT 1) IS NULL
    THEN false
    ELSE (
        SELECT true FROM "outbox_parked" AS p
        WHERE p.lane = m.lane AND p.key_hash = m.key_hash AND p.blocking
        LIMIT 1) IS NOT NULL
    END AS blocked
    FROM "outbox" AS m
    WHERE m.lane = $1::int AND m.seq > $2::bigint
    ORDER BY m.lane, m.seq
    LIMIT CASE WHEN (
        SELECT sum(octet_length(a.headers) + coalesce(octet_length(a.payload), 0))
        FROM (
            SELECT m.headers, m.payload FROM "outbox" AS m
            WHERE m.lane = $1::int AND m.seq > $2::bigint
            ORDER BY m.lane, m.seq
            LIMIT $3::bigint
        ) AS a) < $4::bigint
    THEN $3::bigint
    ELSE (
        SELECT count(*)
        FROM (
            SELECT sum(s.size) OVER (ORDER BY s.seq ROWS UNBOUNDED PRECEDING) - s.size AS before
            FROM (
                SELECT m.seq, octet_length(m.headers) +
                    CASE WHEN CASE WHEN (
        SELECT true FROM "outbox_parked" AS p WHERE p.lane = $1::int AND p.blocking
        ORDER BY p.lane, p.key_hash, p.seq LIMIT 1) IS NULL
    THEN false
    ELSE (
        SELECT true FROM "outbox_parked" AS p
        WHERE p.lane = m.lane AND p.key_hash = m.key_hash AND p.blocking
        LIMIT 1) IS NOT NULL
    END THEN 0 ELSE coalesce(octet_length(m.payload), 0) END AS size
                FROM "outbox" AS m
                WHERE m.lane = $1::int AND m.seq > $2::bigint
                ORDER BY m.lane, m.seq
                LIMIT $3::bigint
            ) AS s
        ) AS r
        WHERE r.before < $4::bigint
    ) END
) AS b
ORDER BY seq

-- due --
-- Heads by parked_due_at; behind a blocking one the held rows of its key by
-- parked_key, up to the next blocking row of the key, should there be one. The
-- held rows share what the heads leave of the limit.
WITH head AS MATERIALIZED (
    SELECT h.pos, h.key_hash, h.blocking, row_number() OVER (ORDER BY h.available_at, h.pos) AS place
    FROM (
        SELECT p.pos, p.key_hash, p.blocking, p.available_at FROM "outbox_parked" AS p
        WHERE p.lane = $1::int AND p.state = 'retry' AND p.available_at <= statement_timestamp()
        ORDER BY p.available_at, p.pos
        LIMIT $2::bigint
    ) AS h
), share AS MATERIALIZED (
    SELECT $2::bigint - count(*) AS rest,
        greatest(1, ($2::bigint - count(*)) / greatest(1, count(*) FILTER (WHERE blocking))) AS each
    FROM head
), behind AS MATERIALIZED (
    SELECT q.pos, h.place, q.seq
    FROM head AS h
    CROSS JOIN LATERAL (
        SELECT p.pos, p.seq FROM "outbox_parked" AS p
        WHERE p.lane = $1::int AND p.key_hash = h.key_hash AND p.state = 'held'
          AND p.seq < coalesce((
            SELECT n.seq FROM "outbox_parked" AS n
            WHERE n.lane = $1::int AND n.key_hash = h.key_hash AND n.blocking AND n.pos <> h.pos
            ORDER BY n.seq LIMIT 1), 9223372036854775807)
        ORDER BY p.seq
        LIMIT (SELECT each FROM share)
    ) AS q
    WHERE h.blocking
    ORDER BY h.place, q.seq
    LIMIT (SELECT rest FROM share)
)
SELECT seq, id, topic, key, key_hash, type, content_type, payload, headers, created_at, revision, replay, age, pos, attempts
FROM (
    SELECT p.seq, p.id, p.topic, p.key, p.key_hash, p.type, p.content_type, p.payload, p.headers,
        p.created_at, p.revision, p.replay, p.pos, p.attempts,
        (date_part('epoch', statement_timestamp() - p.created_at) * 1000000)::bigint AS age,
        d.place, d.nth,
        sum(octet_length(p.headers) + coalesce(octet_length(p.payload), 0))
            OVER (ORDER BY d.place, d.nth ROWS UNBOUNDED PRECEDING)
            - octet_length(p.headers) - coalesce(octet_length(p.payload), 0) AS before
    FROM (
        SELECT pos, place, 0::bigint AS nth FROM head
        UNION ALL
        SELECT pos, place, seq FROM behind
    ) AS d
    CROSS JOIN LATERAL (SELECT * FROM "outbox_parked" AS f WHERE f.pos = d.pos LIMIT 1) AS p
) AS r
WHERE before < $3::bigint
ORDER BY place, nth

-- settle --
-- The fence: the lane row is locked and renewed before a row is touched, in
-- its newest version even if this statement waited for it. Rows are found by
-- ready's primary key. If this is a transaction's first statement and the network
-- cuts it off, the server must not wait for the next with the lane locked.
-- $7 and $8 are the least and the greatest place. The planner is not to know them: it
-- would take statistics that are older than the rows for a reason to plan anew for
-- each settle.
WITH fence AS (
    UPDATE "outbox_lane"
    SET lease_until = clock_timestamp() + $4::bigint * interval '1 microsecond', served_at = clock_timestamp()
    WHERE lane = $1::int AND owner = $2::text AND epoch = $3::bigint
    RETURNING lane
), gone AS (
    DELETE FROM "outbox"
    WHERE lane = $1::int AND EXISTS (SELECT FROM fence)
      AND seq BETWEEN (SELECT $7::bigint) AND (SELECT $8::bigint)
      AND ((seq, id) IN (SELECT unnest($5::bigint[]), unnest($6::uuid[]))) IS TRUE
)
SELECT EXISTS (SELECT FROM fence), set_config('idle_in_transaction_session_timeout', '30s', true)

-- settleArchive --
-- As settle; what is deleted is what is archived, nothing else.
WITH fence AS (
    UPDATE "outbox_lane"
    SET lease_until = clock_timestamp() + $4::bigint * interval '1 microsecond', served_at = clock_timestamp()
    WHERE lane = $1::int AND owner = $2::text AND epoch = $3::bigint
    RETURNING lane
), gone AS (
    DELETE FROM "outbox"
    WHERE lane = $1::int AND EXISTS (SELECT FROM fence)
      AND seq BETWEEN (SELECT $7::bigint) AND (SELECT $8::bigint)
      AND ((seq, id) IN (SELECT unnest($5::bigint[]), unnest($6::uuid[]))) IS TRUE
    RETURNING *
), kept AS (
    INSERT INTO "outbox_done" (lane, seq, id, topic, key, key_hash, type, content_type, payload, headers, created_at, revision, replay, attempts, outcome)
    SELECT lane, seq, id, topic, key, key_hash, type, content_type, payload, headers, created_at, revision, replay, 1, 'published'
    FROM gone ORDER BY seq
)
SELECT EXISTS (SELECT FROM fence), set_config('idle_in_transaction_session_timeout', '30s', true)

-- publishParked --
-- By parked's primary key.
WITH gone AS (
    DELETE FROM "outbox_parked"
    WHERE lane = $1::int AND pos = ANY (ARRAY(SELECT unnest($2::bigint[])))
      AND ((pos, id) IN (SELECT unnest($2::bigint[]), unnest($3::uuid[]))) IS TRUE
    RETURNING key_hash
)
SELECT DISTINCT key_hash FROM gone WHERE key_hash IS NOT NULL

-- publishParkedArchive --
-- By parked's primary key.
WITH gone AS (
    DELETE FROM "outbox_parked"
    WHERE lane = $1::int AND pos = ANY (ARRAY(SELECT unnest($2::bigint[])))
      AND ((pos, id) IN (SELECT unnest($2::bigint[]), unnest($3::uuid[]))) IS TRUE
    RETURNING *
), kept AS (
    INSERT INTO "outbox_done" (lane, seq, id, topic, key, key_hash, type, content_type, payload, headers, created_at, revision, replay, attempts, outcome, reason)
    SELECT lane, seq, id, topic, key, key_hash, type, content_type, payload, headers, created_at, revision, replay, attempts + 1, 'published', reason
    FROM gone ORDER BY seq, pos
)
SELECT DISTINCT key_hash FROM gone WHERE key_hash IS NOT NULL

-- fail --
-- By ready's primary key.
WITH failure AS MATERIALIZED (
    SELECT seq, attempts, dead, delay, blocking, reason FROM unnest($2::bigint[], $4::int[], $5::bool[], $6::bigint[], $7::bool[], $8::text[])
        AS f(seq, attempts, dead, delay, blocking, reason)
), gone AS (
    DELETE FROM "outbox"
    WHERE lane = $1::int AND seq = ANY (ARRAY(SELECT unnest($2::bigint[])))
      AND ((seq, id) IN (SELECT unnest($2::bigint[]), unnest($3::uuid[]))) IS TRUE
    RETURNING *
), kept AS (
    INSERT INTO "outbox_parked" (lane, seq, id, topic, key, key_hash, type, content_type, payload, headers, created_at, revision, replay,
        attempts, reason, blocking, state, available_at)
    SELECT g.lane, g.seq, g.id, g.topic, g.key, g.key_hash, g.type, g.content_type, g.payload, g.headers, g.created_at, g.revision, g.replay,
        f.attempts, f.reason, f.blocking AND g.key_hash IS NOT NULL,
        CASE WHEN f.dead THEN 'dead' ELSE 'retry' END,
        CASE WHEN NOT f.dead THEN clock_timestamp() + f.delay * interval '1 microsecond' END
    FROM gone AS g JOIN failure AS f ON f.seq = g.seq
    ORDER BY g.seq
)
SELECT DISTINCT key_hash FROM gone WHERE key_hash IS NOT NULL

-- failParked --
-- By parked's primary key.
WITH changed AS (
    UPDATE "outbox_parked" AS p
    SET attempts = f.attempts, reason = f.reason, blocking = f.blocking AND p.key_hash IS NOT NULL,
        state = CASE WHEN f.dead THEN 'dead' ELSE 'retry' END,
        available_at = CASE WHEN NOT f.dead THEN clock_timestamp() + f.delay * interval '1 microsecond' END
    FROM unnest($2::bigint[], $3::uuid[], $4::int[], $5::bool[], $6::bigint[], $7::bool[], $8::text[])
        AS f(pos, id, attempts, dead, delay, blocking, reason)
    WHERE p.lane = $1::int AND p.pos = f.pos AND p.pos = ANY (ARRAY(SELECT unnest($2::bigint[])))
      AND (p.id = f.id) IS TRUE
    RETURNING p.key_hash
)
SELECT DISTINCT key_hash FROM changed WHERE key_hash IS NOT NULL

-- hold --
-- By ready's primary key.
WITH gone AS (
    DELETE FROM "outbox"
    WHERE lane = $1::int AND seq = ANY (ARRAY(SELECT unnest($2::bigint[])))
      AND ((seq, id) IN (SELECT unnest($2::bigint[]), unnest($3::uuid[]))) IS TRUE
    RETURNING *
), kept AS (
    INSERT INTO "outbox_parked" (lane, seq, id, topic, key, key_hash, type, content_type, payload, headers, created_at, revision, replay, state)
    SELECT lane, seq, id, topic, key, key_hash, type, content_type, payload, headers, created_at, revision, replay, 'held'
    FROM gone ORDER BY seq
)
SELECT DISTINCT key_hash FROM gone WHERE key_hash IS NOT NULL

-- promote --
-- Makes the first row of each key its head again. Two rows a key are looked
-- at: the first that blocks, by parked_blocked, and the first that is held, by
-- parked_key. Runs under the lane row's lock, in every transaction that changed
-- parked rows of these keys.
WITH first AS MATERIALIZED (
    SELECT k.key_hash, b.seq AS blocking_seq, h.pos AS held_pos, h.seq AS held_seq
    FROM unnest($2::bigint[]) AS k(key_hash)
    LEFT JOIN LATERAL (
        SELECT p.seq FROM "outbox_parked" AS p
        WHERE p.lane = $1::int AND p.key_hash = k.key_hash AND p.blocking
        ORDER BY p.seq LIMIT 1) AS b ON true
    LEFT JOIN LATERAL (
        SELECT p.pos, p.seq FROM "outbox_parked" AS p
        WHERE p.lane = $1::int AND p.key_hash = k.key_hash AND p.state = 'held'
        ORDER BY p.seq LIMIT 1) AS h ON true
), promoted AS (
    UPDATE "outbox_parked" AS p
    SET state = 'retry', blocking = true, available_at = clock_timestamp()
    FROM first AS f
    WHERE p.pos = f.held_pos AND p.pos = ANY (ARRAY(SELECT held_pos FROM first))
      AND (f.blocking_seq IS NULL OR f.held_seq < f.blocking_seq)
)
-- A retry that is not the first waits behind the first.
UPDATE "outbox_parked" AS p
SET state = 'held', blocking = false, available_at = NULL
FROM first AS f
WHERE p.lane = $1::int AND p.key_hash = f.key_hash AND p.key_hash = ANY (ARRAY(SELECT key_hash FROM first))
  AND p.blocking AND p.state = 'retry' AND p.seq > least(f.blocking_seq, f.held_seq)

-- stats --
-- Counts go lane by lane along ready's primary key, parked_due_at and
-- parked_blocked, and stop at the limit.
SELECT
    (SELECT count(*) FROM (SELECT FROM "outbox_lane" AS l JOIN "outbox" AS r ON r.lane = l.lane LIMIT $1::bigint) AS c),
    (SELECT count(*) FROM (SELECT FROM "outbox_lane" AS l JOIN "outbox_parked" AS p ON p.lane = l.lane AND p.state = 'scheduled' LIMIT $1::bigint) AS c),
    (SELECT count(*) FROM (SELECT FROM "outbox_lane" AS l JOIN "outbox_parked" AS p ON p.lane = l.lane AND p.state = 'retry' LIMIT $1::bigint) AS c),
    (SELECT count(*) FROM (SELECT FROM "outbox_lane" AS l JOIN "outbox_parked" AS p ON p.lane = l.lane AND p.state = 'held' LIMIT $1::bigint) AS c),
    (SELECT count(*) FROM (SELECT FROM "outbox_lane" AS l JOIN "outbox_parked" AS p ON p.lane = l.lane AND p.state = 'dead' LIMIT $1::bigint) AS c),
    (SELECT count(*) FROM (SELECT DISTINCT p.lane, p.key_hash FROM "outbox_parked" AS p WHERE p.blocking LIMIT $1::bigint) AS c),
    (SELECT coalesce((extract(epoch FROM statement_timestamp() - min(o.since)) * 1000000)::bigint, 0)
     FROM "outbox_lane" AS l
     CROSS JOIN LATERAL (
        (SELECT r.ready_at AS since FROM "outbox" AS r WHERE r.lane = l.lane ORDER BY r.lane, r.seq LIMIT 1)
        UNION ALL
        (SELECT p.available_at FROM "outbox_parked" AS p WHERE p.lane = l.lane AND p.state = 'retry'
           AND p.available_at <= statement_timestamp()
         ORDER BY p.available_at LIMIT 1)) AS o),
    (SELECT count(*) FROM "outbox_lane" WHERE owner <> '' AND lease_until > statement_timestamp()),
    (SELECT count(*) FROM "outbox_lane" WHERE owner <> '' AND lease_until <= statement_timestamp()),
    (SELECT count(*) FROM "outbox_lane")

-- lockLane --
-- Waits for whoever is changing the lane, and keeps others from it.
SELECT lane FROM "outbox_lane" WHERE lane = $1::int FOR UPDATE

-- clock --
-- The server's time in microseconds since 1970.
SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint

-- purge --
-- From the old end of done's primary key. The rows are deleted by where they
-- stand (ctid): they were locked there, and a plan that hashes the whole table
-- is out of the question. The key tells partitions apart, which may each have a
-- row in the same place.
WITH old AS MATERIALIZED (
    SELECT ctid, done_at, pos FROM "outbox_done"
    WHERE done_at <= statement_timestamp() - $1::bigint * interval '1 microsecond'
    ORDER BY done_at, pos
    LIMIT $2::bigint
    FOR UPDATE SKIP LOCKED
)
DELETE FROM "outbox_done" AS d
USING old AS o
WHERE d.ctid = ANY (ARRAY(SELECT ctid FROM old)) AND d.done_at = o.done_at AND d.pos = o.pos

-- purgeable --
-- From the old end of done's primary key.
SELECT count(*) FROM (
    SELECT FROM "outbox_done"
    WHERE done_at <= statement_timestamp() - $1::bigint * interval '1 microsecond'
    LIMIT $2::bigint) AS c

-- claimPurge --
-- Whoever waited for the row finds it changed.
UPDATE "outbox_meta" SET purge_at = clock_timestamp()
WHERE purge_at <= clock_timestamp() - $1::bigint * interval '1 microsecond'

-- record --
-- Waits for another transaction that has inserted the same, by the primary key.
INSERT INTO "outbox_inbox" (consumer, message_id) VALUES ($1::text, $2::text)
ON CONFLICT (consumer, message_id) DO NOTHING

-- recorded --
-- By the primary key.
SELECT EXISTS (SELECT FROM "outbox_inbox" WHERE consumer = $1::text AND message_id = $2::text)

-- purgeInbox --
-- By inbox_recorded_at.
DELETE FROM "outbox_inbox"
WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM "outbox_inbox"
    WHERE recorded_at <= statement_timestamp() - $1::bigint * interval '1 microsecond'
    ORDER BY recorded_at
    LIMIT $2::bigint
    FOR UPDATE SKIP LOCKED))

-- revise --
-- Takes the keys in the order of the arrays, by revision's primary key: a producer
-- of the same key waits here, and its message gets its seq after that.
WITH k AS (
    INSERT INTO "outbox_revision" AS r (key_hash, key, revision)
    SELECT n.key_hash, n.key, n.messages
    FROM unnest($12::bigint[], $13::text[], $14::bigint[]) WITH ORDINALITY AS n(key_hash, key, messages, place)
    ORDER BY n.place
    ON CONFLICT (key_hash, key) DO UPDATE SET revision = r.revision + excluded.revision
    RETURNING r.key_hash, r.key, r.revision
)
INSERT INTO "outbox" (lane, id, topic, key, key_hash, type, content_type, payload, headers, revision, replay)
SELECT m.lane, m.id::uuid, m.topic, m.key, m.key_hash, m.type, m.content_type, m.payload, m.headers, k.revision - m.behind, m.replay
FROM unnest($1::int[], $2::text[], $3::text[], $4::text[], $5::bigint[], $6::text[], $7::text[], $8::bytea[], $9::text[], $10::bigint[], $11::int[])
    WITH ORDINALITY AS m(lane, id, topic, key, key_hash, type, content_type, payload, headers, behind, replay, place)
JOIN k ON k.key_hash = m.key_hash AND k.key = m.key
ORDER BY m.place

-- reviseGiven --
-- As revise, for keys some of which have a first revision, $15, that must be the next:
-- unless all have it, and all have a row, nothing is written. The update finds the
-- rows in the versions that the lock has found.
WITH last AS (
    SELECT n.place, n.messages, n.first, r.key_hash, r.key, r.revision
    FROM unnest($12::bigint[], $13::text[], $14::bigint[], $15::bigint[]) WITH ORDINALITY AS n(key_hash, key, messages, first, place)
    JOIN "outbox_revision" AS r ON r.key_hash = n.key_hash AND r.key = n.key
    ORDER BY n.place
    FOR UPDATE OF r
), fits AS (
    SELECT count(*) FROM last
    HAVING count(*) = cardinality($12::bigint[]) AND bool_and(first IN (0, revision + 1))
), k AS (
    UPDATE "outbox_revision" AS r SET revision = l.revision + l.messages
    FROM last AS l
    WHERE r.key_hash = l.key_hash AND r.key = l.key AND EXISTS (SELECT FROM fits)
    RETURNING r.key_hash, r.key, r.revision
)
INSERT INTO "outbox" (lane, id, topic, key, key_hash, type, content_type, payload, headers, revision, replay)
SELECT m.lane, m.id::uuid, m.topic, m.key, m.key_hash, m.type, m.content_type, m.payload, m.headers, k.revision - m.behind, m.replay
FROM unnest($1::int[], $2::text[], $3::text[], $4::text[], $5::bigint[], $6::text[], $7::text[], $8::bytea[], $9::text[], $10::bigint[], $11::int[])
    WITH ORDINALITY AS m(lane, id, topic, key, key_hash, type, content_type, payload, headers, behind, replay, place)
JOIN k ON k.key_hash = m.key_hash AND k.key = m.key
ORDER BY m.place

-- take --
-- Locks the rows of the keys in the order of the arrays, and makes those that are
-- missing. A row that is there is not written.
INSERT INTO "outbox_revision" (key_hash, key, revision)
SELECT n.key_hash, n.key, 0 FROM unnest($1::bigint[], $2::text[]) WITH ORDINALITY AS n(key_hash, key, place)
ORDER BY n.place
ON CONFLICT (key_hash, key) DO UPDATE SET revision = 0 WHERE false

-- lastRevision --
-- By the primary key.
SELECT revision FROM "outbox_revision" WHERE key_hash = $1::bigint AND key = $2::text

-- unseen --
-- Fails where the row of the key is there and the transaction's snapshot does not have
-- it. Below REPEATABLE READ each statement has its own, and nothing is written.
INSERT INTO "outbox_revision" (key_hash, key, revision)
SELECT $1::bigint, $2::text, 0 WHERE current_setting('transaction_isolation') IN ('repeatable read', 'serializable')
ON CONFLICT (key_hash, key) DO NOTHING

-- doneAhead --
-- The last time in done, if it is none of the days up to today (UTC), by the end of its
-- primary key. To attach a table with such a row fails.
SELECT done_at::text FROM "outbox_done"
WHERE done_at >= (date_trunc('day', statement_timestamp() AT TIME ZONE 'UTC') + interval '1 day') AT TIME ZONE 'UTC'
ORDER BY done_at DESC LIMIT 1

-- advance --
-- By the primary key. Waits for the row, then finds the revision in its newest version.
WITH last AS (
    SELECT revision FROM "outbox_progress"
    WHERE consumer = $1::text AND key_hash = $2::bigint AND key = $3::text
    FOR UPDATE
), next AS (
    UPDATE "outbox_progress" AS p SET revision = $4::bigint FROM last
    WHERE p.consumer = $1::text AND p.key_hash = $2::bigint AND p.key = $3::text AND last.revision = $4::bigint - 1
)
SELECT revision FROM last

-- beginProgress --
-- Waits for another transaction that has inserted the same, by the primary key.
INSERT INTO "outbox_progress" (consumer, key_hash, key, revision) VALUES ($1::text, $2::bigint, $3::text, 1)
ON CONFLICT (consumer, key_hash, key) DO NOTHING

-- progress --
-- By the primary key.
SELECT revision FROM "outbox_progress" WHERE consumer = $1::text AND key_hash = $2::bigint AND key = $3::text

-- setProgress --
INSERT INTO "outbox_progress" (consumer, key_hash, key, revision) VALUES ($1::text, $2::bigint, $3::text, $4::bigint)
ON CONFLICT (consumer, key_hash, key) DO UPDATE SET revision = excluded.revision

-- writeAudit --
INSERT INTO "outbox_audit" (id, ended, who, action, selection, why, changed, failure)
VALUES ($1::uuid, $2::boolean, $3::text, $4::text, $5::text, $6::text, $7::bigint, $8::text)

-- audit --
-- Backwards along audit's primary key; the second row is one entry of audit_id.
SELECT b.pos, b.id, b.who, b.action, b.selection, b.why, b.written_at,
    e.written_at, coalesce(e.changed, 0), coalesce(e.failure, '')
FROM "outbox_audit" AS b
LEFT JOIN "outbox_audit" AS e ON e.id = b.id AND e.ended
WHERE b.pos < $1::bigint AND NOT b.ended
ORDER BY b.pos DESC
LIMIT $2::bigint

-- viewLanes --
SELECT lane, owner, epoch, (extract(epoch FROM lease_until - statement_timestamp()) * 1000000)::bigint,
    CASE WHEN served_at > 'epoch' THEN (extract(epoch FROM statement_timestamp() - served_at) * 1000000)::bigint END
FROM "outbox_lane"
ORDER BY lane

-- viewDone --
-- Backwards along done's primary key.
SELECT pos, (extract(epoch FROM statement_timestamp() - done_at) * 1000000)::bigint,
    (extract(epoch FROM done_at - created_at) * 1000000)::bigint, outcome = 'published' AND replay = 0
FROM "outbox_done"
ORDER BY done_at DESC, pos DESC
LIMIT $1::bigint

-- viewReasons --
-- Backwards along parked's primary key.
SELECT state, topic, coalesce(reason, '')
FROM "outbox_parked"
ORDER BY pos DESC
LIMIT $1::bigint

-- viewMessage --
-- By the three indexes on id.
SELECT 'ready', lane, seq, topic, key, type, 0, replay, '',
    (extract(epoch FROM statement_timestamp() - created_at) * 1000000)::bigint,
    (extract(epoch FROM statement_timestamp() - ready_at) * 1000000)::bigint, NULL::bigint
FROM "outbox" WHERE id = $1::uuid
UNION ALL
SELECT state, lane, coalesce(seq, 0), topic, key, type, attempts, replay, coalesce(reason, ''),
    (extract(epoch FROM statement_timestamp() - created_at) * 1000000)::bigint,
    (extract(epoch FROM statement_timestamp() - parked_at) * 1000000)::bigint,
    (extract(epoch FROM available_at - statement_timestamp()) * 1000000)::bigint
FROM "outbox_parked" WHERE id = $1::uuid
UNION ALL
SELECT outcome, lane, coalesce(seq, 0), topic, key, type, attempts, replay, coalesce(reason, ''),
    (extract(epoch FROM statement_timestamp() - created_at) * 1000000)::bigint,
    (extract(epoch FROM statement_timestamp() - done_at) * 1000000)::bigint, NULL::bigint
FROM "outbox_done" WHERE id = $1::uuid

-- createSchema --
CREATE SCHEMA ""

-- meta --
SELECT version, lanes FROM "outbox_meta"

-- setVersion --
UPDATE "outbox_meta" SET version = $1::int

-- missingLanes --
-- How many of the lanes have no row, and how many rows are no lane.
SELECT
    (SELECT count(*) FROM generate_series(0, $1::int - 1) AS n(lane) WHERE n.lane NOT IN (SELECT lane FROM "outbox_lane")),
    (SELECT count(*) FROM "outbox_lane" WHERE lane NOT BETWEEN 0 AND $1::int - 1)

-- missingDays --
-- The days without a partition, today and so many more. One of which there is something
-- in the rest stays there: nothing may be in two places.
SELECT to_char(d, 'YYYYMMDD'), d::text, (d + interval '1 day')::text
FROM generate_series(date_trunc('day', statement_timestamp()),
    date_trunc('day', statement_timestamp()) + $2::int * interval '1 day', interval '1 day') AS d
WHERE NOT EXISTS (SELECT FROM (
    SELECT format('%I.%I', n.nspname, c.relname) AS name,
        CASE WHEN b.text LIKE 'FOR VALUES FROM (MINVALUE)%' THEN '-infinity'
             ELSE substring(b.text FROM 'FROM \(''([^'']+)''\)')::timestamptz END AS lower,
        CASE WHEN b.text LIKE '%TO (MAXVALUE)' THEN 'infinity'
             ELSE substring(b.text FROM 'TO \(''([^'']+)''\)')::timestamptz END AS upper
    FROM pg_catalog.pg_inherits AS i
    JOIN pg_catalog.pg_class AS c ON c.oid = i.inhrelid
    JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
    CROSS JOIN LATERAL (SELECT pg_get_expr(c.relpartbound, c.oid) AS text) AS b
    WHERE i.inhparent = to_regclass($1::text)) AS p WHERE p.lower < d + interval '1 day' AND p.upper > d)
  AND NOT EXISTS (SELECT FROM "outbox_done" AS r WHERE r.done_at >= d AND r.done_at < d + interval '1 day')
ORDER BY d

-- parked --
-- Along parked's primary key, or the index that serves the filter.
SELECT p.seq, p.id, p.topic, p.key, p.key_hash, p.type, p.content_type, p.payload, p.headers,
    p.created_at, p.revision, p.replay,
    (extract(epoch FROM statement_timestamp() - p.created_at) * 1000000)::bigint,
    p.pos, p.attempts, p.lane, p.state, p.blocking, coalesce(p.reason, ''),
    (extract(epoch FROM p.available_at - statement_timestamp()) * 1000000)::bigint,
    p.parked_at
FROM "outbox_parked" AS p
WHERE p.pos > $1::bigint
      AND p.id = ANY ($3::text[]::uuid[])
      AND p.lane = $4::int
      AND p.key_hash = $5::bigint
      AND p.key = $6::text
      AND p.topic = $7::text
      AND p.type = $8::text
      AND p.state = ANY ($9::text[])
ORDER BY p.pos
LIMIT $2::bigint

-- requeueLanes --
-- The lanes in which there is something to requeue. Locks nothing.
SELECT l.lane
FROM "outbox_lane" AS l
WHERE EXISTS (
    SELECT FROM "outbox_parked" AS p
    WHERE p.lane = l.lane AND (p.state = 'dead' OR p.available_at > statement_timestamp())
      AND p.id = ANY ($1::text[]::uuid[])
      AND p.lane = $2::int
      AND p.key_hash = $3::bigint
      AND p.key = $4::text
      AND p.topic = $5::text
      AND p.type = $6::text
      AND p.state = ANY ($7::text[]))
ORDER BY l.lane

-- requeue --
-- Runs under the lane row's lock. A dead row with a key waits as a held one for
-- promote, which finds the head of each key. Rows that are due already are left
-- alone, so that repeating comes to an end.
WITH changed AS (
    UPDATE "outbox_parked" AS p
    SET state = CASE WHEN p.state <> 'dead' THEN p.state WHEN p.key_hash IS NULL THEN 'retry' ELSE 'held' END,
        available_at = CASE WHEN p.state <> 'dead' OR p.key_hash IS NULL THEN clock_timestamp() END,
        blocking = p.blocking AND p.state <> 'dead',
        attempts = CASE WHEN p.state <> 'dead' THEN p.attempts ELSE 0 END
    WHERE p.pos = ANY (ARRAY(
        SELECT p.pos FROM "outbox_parked" AS p
        WHERE p.lane = $1::int AND (p.state = 'dead' OR p.available_at > statement_timestamp())
      AND p.id = ANY ($3::text[]::uuid[])
      AND p.lane = $4::int
      AND p.key_hash = $5::bigint
      AND p.key = $6::text
      AND p.topic = $7::text
      AND p.type = $8::text
      AND p.state = ANY ($9::text[])
        ORDER BY p.seq, p.pos
        LIMIT $2::bigint))
    RETURNING p.key_hash
)
SELECT key_hash, count(*) FROM changed GROUP BY key_hash

-- discardLanes --
-- The lanes in which there is something to discard. Locks nothing.
SELECT l.lane
FROM "outbox_lane" AS l
WHERE EXISTS (SELECT FROM "outbox_parked" AS p WHERE p.lane = l.lane
      AND p.id = ANY ($1::text[]::uuid[])
      AND p.lane = $2::int
      AND p.key_hash = $3::bigint
      AND p.key = $4::text
      AND p.topic = $5::text
      AND p.type = $6::text
      AND p.state = ANY ($7::text[]))
ORDER BY l.lane

-- discard --
-- Runs under the lane row's lock.
WITH gone AS (
    DELETE FROM "outbox_parked"
    WHERE pos = ANY (ARRAY(
        SELECT p.pos FROM "outbox_parked" AS p
        WHERE p.lane = $1::int
      AND p.id = ANY ($3::text[]::uuid[])
      AND p.lane = $4::int
      AND p.key_hash = $5::bigint
      AND p.key = $6::text
      AND p.topic = $7::text
      AND p.type = $8::text
      AND p.state = ANY ($9::text[])
        ORDER BY p.pos
        LIMIT $2::bigint))
    RETURNING *
), kept AS (
    INSERT INTO "outbox_done" (lane, seq, id, topic, key, key_hash, type, content_type, payload, headers, created_at, revision, replay, attempts, outcome, reason)
    SELECT lane, seq, id, topic, key, key_hash, type, content_type, payload, headers, created_at, revision, replay, attempts, 'discarded', reason
    FROM gone ORDER BY seq, pos
)
SELECT key_hash, count(*) FROM gone GROUP BY key_hash

-- replay --
-- One range of done's primary key, or its index on id. Inserts as a producer
-- does, and locks no lane. A message that was done more than once is replayed
-- once, with a count above that of all its rows (by done_id), so that no replay
-- is taken for an earlier one. What waits already is passed over, by ready's index on
-- id and by parked_id; looked for, since a row that is leaving ready, with the count that
-- would be given here, is no conflict any more once it has left.
WITH batch AS MATERIALIZED (
    SELECT d.done_at, d.pos, d.lane, d.id, d.topic, d.key, d.key_hash, d.type, d.content_type, d.payload, d.headers, d.created_at, d.revision
    FROM "outbox_done" AS d
    WHERE (d.done_at, d.pos) > (timestamptz 'epoch' + $1::bigint * interval '1 microsecond', $2::bigint)
      AND d.done_at < timestamptz 'epoch' + $3::bigint * interval '1 microsecond'
      AND d.id = ANY ($6::text[]::uuid[])
      AND d.lane = $7::int
      AND d.key_hash = $8::bigint
      AND d.key = $9::text
      AND d.topic = $10::text
      AND d.type = $11::text
      -- Of an id that was done several times only the newest row, or one call would
      -- replay it once a row; and none that was done again since the replay began.
      AND NOT EXISTS (
        SELECT FROM "outbox_done" AS n
        WHERE n.id = d.id AND (n.done_at, n.pos) > (d.done_at, d.pos)
          AND (n.done_at < timestamptz 'epoch' + $3::bigint * interval '1 microsecond'
            OR n.done_at >= timestamptz 'epoch' + $5::bigint * interval '1 microsecond'))
    ORDER BY d.done_at, d.pos
    LIMIT $4::bigint
), replayed AS (
    INSERT INTO "outbox" (lane, id, topic, key, key_hash, type, content_type, payload, headers, created_at, revision, replay)
    SELECT b.lane, b.id, b.topic, b.key, b.key_hash, b.type, b.content_type, b.payload, b.headers, b.created_at, b.revision,
        1 + (SELECT max(o.replay) FROM "outbox_done" AS o WHERE o.id = b.id)
    FROM batch AS b
    WHERE NOT EXISTS (SELECT FROM "outbox_parked" AS p WHERE p.id = b.id)
      AND NOT EXISTS (SELECT FROM "outbox" AS r WHERE r.id = b.id)
    ORDER BY b.done_at, b.pos
    ON CONFLICT (id) DO NOTHING
    RETURNING id
), last AS (
    SELECT done_at, pos FROM batch ORDER BY done_at DESC, pos DESC LIMIT 1
)
SELECT (SELECT count(*) FROM replayed), (SELECT count(*) FROM batch),
    coalesce((SELECT (extract(epoch FROM done_at) * 1000000)::bigint FROM last), 0),
    coalesce((SELECT pos FROM last), 0)

-- replayable --
-- As replay, and counts only.
WITH batch AS MATERIALIZED (
    SELECT d.done_at, d.pos,
        NOT EXISTS (SELECT FROM "outbox" AS r WHERE r.id = d.id)
        AND NOT EXISTS (SELECT FROM "outbox_parked" AS p WHERE p.id = d.id) AS free
    FROM "outbox_done" AS d
    WHERE (d.done_at, d.pos) > (timestamptz 'epoch' + $1::bigint * interval '1 microsecond', $2::bigint)
      AND d.done_at < timestamptz 'epoch' + $3::bigint * interval '1 microsecond'
      AND d.id = ANY ($6::text[]::uuid[])
      AND d.lane = $7::int
      AND d.key_hash = $8::bigint
      AND d.key = $9::text
      AND d.topic = $10::text
      AND d.type = $11::text
      -- Of an id that was done several times only the newest row, or one call would
      -- replay it once a row; and none that was done again since the replay began.
      AND NOT EXISTS (
        SELECT FROM "outbox_done" AS n
        WHERE n.id = d.id AND (n.done_at, n.pos) > (d.done_at, d.pos)
          AND (n.done_at < timestamptz 'epoch' + $3::bigint * interval '1 microsecond'
            OR n.done_at >= timestamptz 'epoch' + $5::bigint * interval '1 microsecond'))
    ORDER BY d.done_at, d.pos
    LIMIT $4::bigint
), last AS (
    SELECT done_at, pos FROM batch ORDER BY done_at DESC, pos DESC LIMIT 1
)
SELECT (SELECT count(*) FROM batch WHERE free), (SELECT count(*) FROM batch),
    coalesce((SELECT (extract(epoch FROM done_at) * 1000000)::bigint FROM last), 0),
    coalesce((SELECT pos FROM last), 0)

