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
CREATE TABLE {ready} (
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
    CONSTRAINT {name:id} UNIQUE (id),
    CONSTRAINT {name:key_has_hash} CHECK ((key IS NULL) = (key_hash IS NULL)),
    -- 'infinity' is a time that no program could read.
    CONSTRAINT {name:times} CHECK (isfinite(created_at) AND isfinite(ready_at)),
    -- Refuses a producer that counts the lanes differently.
    CONSTRAINT {name:lane_fits} CHECK ({lane_fits})
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
CREATE TABLE {parked} (
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
    CONSTRAINT {name:parked_state} CHECK (state IN ('scheduled', 'retry', 'held', 'dead')),
    CONSTRAINT {name:parked_due} CHECK ((state IN ('scheduled', 'retry')) = (available_at IS NOT NULL)),
    CONSTRAINT {name:parked_order} CHECK (state = 'scheduled' OR seq IS NOT NULL),
    CONSTRAINT {name:parked_head} CHECK (NOT blocking OR (key_hash IS NOT NULL AND state IN ('retry', 'dead'))),
    CONSTRAINT {name:parked_held} CHECK (state <> 'held' OR key_hash IS NOT NULL),
    CONSTRAINT {name:parked_times} CHECK (isfinite(created_at) AND isfinite(available_at) AND isfinite(parked_at)),
    CONSTRAINT {name:parked_key_has_hash} CHECK ((key IS NULL) = (key_hash IS NULL)),
    CONSTRAINT {name:parked_lane_fits} CHECK ({lane_fits})
) WITH (
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_cost_delay = 0
);

-- What is due in a lane, by state; held and dead rows stand in it without a
-- time, so that they can be counted by state.
CREATE INDEX {name:parked_due_at} ON {parked} (lane, state, available_at);
-- The blocked keys, one entry a key.
CREATE INDEX {name:parked_blocked} ON {parked} (lane, key_hash, seq) WHERE blocking;
-- The rows of a key; by state, so that the first held one is found at once.
CREATE INDEX {name:parked_key} ON {parked} (lane, key_hash, state, seq);
-- For operators. Not unique: a parked message may share its id with another.
CREATE INDEX {name:parked_id} ON {parked} (id);
-- The same delayed message twice is an error in the producer's transaction.
CREATE UNIQUE INDEX {name:parked_scheduled_id} ON {parked} (id) WHERE state = 'scheduled';

-- done: what was published or discarded, for the retention window. Rows are
-- added in order of time and removed from the old end.
CREATE TABLE {done} (
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
CREATE INDEX {name:done_id} ON {done} (id);

-- lane: who may change a lane, until when. The epoch is the fence: whoever
-- writes for a lane locks its row and finds the epoch unchanged, or writes
-- nothing.
CREATE TABLE {lane} (
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
CREATE TABLE {inbox} (
    consumer    text        COLLATE "C" NOT NULL,
    message_id  text        COLLATE "C" NOT NULL,
    recorded_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (consumer, message_id)
);

-- For the purge.
CREATE INDEX {name:inbox_recorded_at} ON {inbox} (recorded_at);

-- meta: one row.
CREATE TABLE {meta} (
    one      boolean     PRIMARY KEY DEFAULT true CHECK (one),
    -- The version of this schema.
    version  integer     NOT NULL,
    -- The number of lanes, the same in the checks above.
    lanes    integer     NOT NULL,
    -- When done was last purged.
    purge_at timestamptz NOT NULL DEFAULT 'epoch'
);

INSERT INTO {lane} (lane) SELECT generate_series(0, {lanes} - 1);
INSERT INTO {meta} (version, lanes) VALUES (1, {lanes});
