-- The tables of an outbox. Times are microseconds since 1970 UTC, payloads stand last in
-- a row, so that a read of what is before them does not walk over their pages.

CREATE TABLE {ready} (
  seq          INTEGER PRIMARY KEY AUTOINCREMENT, -- never given out twice
  lane         INTEGER NOT NULL,
  id           BLOB NOT NULL,
  topic        TEXT NOT NULL,
  key          TEXT,
  key_hash     INTEGER,
  type         TEXT NOT NULL,
  content_type TEXT NOT NULL,
  headers      TEXT NOT NULL,
  revision     INTEGER,
  replay       INTEGER NOT NULL,
  created_at   INTEGER NOT NULL,
  ready_at     INTEGER NOT NULL,
  payload      BLOB,
  CHECK (lane BETWEEN 0 AND {lanes} - 1),
  CHECK ((key IS NULL) = (key_hash IS NULL)),
  CHECK (key_hash IS NULL OR
         lane = ((key_hash % {lanes}) + {lanes} + iif(key_hash < 0, {wrap}, 0)) % {lanes})
) STRICT;
CREATE INDEX {name:ready_by_lane} ON {ready} (lane, seq);
CREATE UNIQUE INDEX {name:ready_by_id} ON {ready} (id);

CREATE TABLE {parked} (
  pos          INTEGER PRIMARY KEY AUTOINCREMENT,
  lane         INTEGER NOT NULL,
  seq          INTEGER,
  id           BLOB NOT NULL,
  topic        TEXT NOT NULL,
  key          TEXT,
  key_hash     INTEGER,
  type         TEXT NOT NULL,
  content_type TEXT NOT NULL,
  headers      TEXT NOT NULL,
  revision     INTEGER,
  replay       INTEGER NOT NULL,
  created_at   INTEGER NOT NULL,
  state        TEXT NOT NULL,
  blocking     INTEGER NOT NULL,
  attempts     INTEGER NOT NULL,
  available_at INTEGER, -- of scheduled and retry
  reason       TEXT NOT NULL,
  parked_at    INTEGER NOT NULL,
  payload      BLOB,
  CHECK (lane BETWEEN 0 AND {lanes} - 1),
  CHECK ((key IS NULL) = (key_hash IS NULL)),
  CHECK (key_hash IS NULL OR
         lane = ((key_hash % {lanes}) + {lanes} + iif(key_hash < 0, {wrap}, 0)) % {lanes}),
  CHECK (state IN ('scheduled', 'retry', 'held', 'dead')),
  CHECK ((available_at IS NOT NULL) = (state IN ('scheduled', 'retry')))
) STRICT;
CREATE INDEX {name:parked_by_time} ON {parked} (lane, state, available_at);
CREATE INDEX {name:parked_by_key} ON {parked} (lane, key_hash, state, seq);
CREATE INDEX {name:parked_heads} ON {parked} (lane, key_hash, seq) WHERE blocking = 1;
CREATE INDEX {name:parked_by_id} ON {parked} (id);
CREATE UNIQUE INDEX {name:parked_scheduled} ON {parked} (id) WHERE state = 'scheduled';

CREATE TABLE {done} (
  pos          INTEGER PRIMARY KEY AUTOINCREMENT,
  lane         INTEGER NOT NULL,
  id           BLOB NOT NULL,
  topic        TEXT NOT NULL,
  key          TEXT,
  key_hash     INTEGER,
  type         TEXT NOT NULL,
  content_type TEXT NOT NULL,
  headers      TEXT NOT NULL,
  revision     INTEGER,
  replay       INTEGER NOT NULL,
  created_at   INTEGER NOT NULL,
  done_at      INTEGER NOT NULL,
  outcome      TEXT NOT NULL,
  attempts     INTEGER NOT NULL,
  reason       TEXT NOT NULL,
  payload      BLOB
) STRICT;
CREATE INDEX {name:done_by_time} ON {done} (done_at, pos);
CREATE INDEX {name:done_by_id} ON {done} (id);

CREATE TABLE {lane} (
  lane        INTEGER PRIMARY KEY,
  epoch       INTEGER NOT NULL DEFAULT 0,
  owner       TEXT NOT NULL DEFAULT '', -- '' for none
  lease_until INTEGER NOT NULL DEFAULT 0,
  served_at   INTEGER NOT NULL DEFAULT 0
) STRICT;
WITH RECURSIVE n (lane) AS (SELECT 0 UNION ALL SELECT lane + 1 FROM n WHERE lane + 1 < {lanes})
INSERT INTO {lane} (lane) SELECT lane FROM n;

CREATE TABLE {inbox} (
  consumer    TEXT NOT NULL,
  message_id  TEXT NOT NULL,
  recorded_at INTEGER NOT NULL,
  PRIMARY KEY (consumer, message_id)
) STRICT;
CREATE INDEX {name:inbox_by_time} ON {inbox} (recorded_at);

CREATE TABLE {meta} (
  version  INTEGER NOT NULL,
  lanes    INTEGER NOT NULL,
  purge_at INTEGER NOT NULL
) STRICT;
INSERT INTO {meta} (version, lanes, purge_at) VALUES (1, {lanes}, 0);
