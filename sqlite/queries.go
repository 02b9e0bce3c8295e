package sqlite

// The statements, in the placeholders of dialect.Expand. Their text never
// depends on how many rows they name: lists travel as one JSON array, which
// json_each turns into rows, so there is no limit of variables to mind.
//
// Locks: SQLite has one, and a file has one writer at a time. A transaction that
// writes begins with its write, mostly that of the lane row. It then takes the
// writer's place and its snapshot together, waiting for up to busy_timeout, and
// can never be refused for having read first (SQLITE_BUSY_SNAPSHOT).
//
// +column is the column without its indexes: rows that are named are found by name,
// whatever the optimizer believes of the lane. TestPlansReadNoTable checks all plans.
//
// A rowid table's index ends in the rowid: the index on ready (lane) is in truth
// (lane, seq), and the one on done (done_at) is (done_at, pos).

// now is the database's clock in Unix microseconds. SQLite counts milliseconds
// and stops the clock for the length of one statement.
const now = `(CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000)`

// once is now as a subquery, which a statement over many rows asks once instead of for
// each of them.
const once = `(SELECT ` + now + `)`

// content are the columns that ready, parked and done share.
const content = `lane, seq, id, topic, key, key_hash, type, content_type, headers, created_at, revision, replay, payload`

// Schema.

// lockSchemaSQL and unlockSchemaSQL take the writer's place before there is any
// table to write to. Nothing of it remains at commit.
const lockSchemaSQL = `CREATE TABLE {name:migration} (lock INTEGER)`

const unlockSchemaSQL = `DROP TABLE {name:migration}`

// findObjectsSQL tells which of the named tables and indexes exist. Names are
// equal regardless of ASCII case, as SQLite sees them.
const findObjectsSQL = `
SELECT lower(name) FROM sqlite_schema
WHERE type IN ('table', 'index') AND lower(name) IN (SELECT value FROM json_each(?1))`

const metaSQL = `SELECT version, lanes FROM {meta}`

const countLanesSQL = `SELECT count(*) FROM {lane} WHERE lane BETWEEN 0 AND {lanes} - 1`

// probeWriteSQL changes nothing; it is rolled back, too.
const probeWriteSQL = `UPDATE {meta} SET version = version`

// Producer.

// insertReadySQL and insertScheduledSQL are followed by one row of values a
// message, rows separated by commas. Rows get their seq in the order of the list.
const insertReadySQL = `
INSERT INTO {ready} (lane, id, topic, key, key_hash, type, content_type, headers, revision, replay, payload)
VALUES `

const readyValuesSQL = `(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`

const insertScheduledSQL = `
INSERT INTO {parked} (lane, id, topic, key, key_hash, type, content_type, headers, revision, replay, payload, available_at)
VALUES `

const scheduledValuesSQL = `(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ` + now + ` + ?)`

// Lanes.

// dueSQL tells whether a parked message of the lane is due, by at most two entries of
// parked_due.
const dueSQL = `EXISTS (SELECT 1 FROM {parked} AS p
               WHERE p.lane = l.lane AND p.state IN ('scheduled', 'retry') AND p.available_at <= ` + now + `)`

// pollSQL orders a lane served at a time ahead of now as one that never was: the
// clock was set back. It reads the lane table, and for each lane at most one entry of
// ready_lane and two of parked_due.
const pollSQL = `
SELECT l.lane, l.epoch, ` + dueSQL + ` FROM {lane} AS l
WHERE (l.lease_until <= ` + now + ` OR l.owner = ?1)
  AND (EXISTS (SELECT 1 FROM {ready} AS r WHERE r.lane = l.lane)
    OR ` + dueSQL + `)
ORDER BY iif(l.served_at <= ` + now + `, l.served_at, 0), l.lane
LIMIT ?2`

// pendingSQL costs what pollSQL does.
const pendingSQL = `
SELECT
  EXISTS (SELECT 1 FROM {lane} AS l
          WHERE EXISTS (SELECT 1 FROM {ready} AS r WHERE r.lane = l.lane)
             OR ` + dueSQL + `),
  EXISTS (SELECT 1 FROM {lane} AS l WHERE l.lease_until > ` + now + ` AND l.owner <> ?1)`

// claimSQL, extendSQL and releaseSQL each find their row by primary key and
// commit by themselves.
const claimSQL = `
UPDATE {lane} SET epoch = epoch + 1, owner = ?2, lease_until = ` + now + ` + ?3, served_at = ` + now + `
WHERE lane = ?1 AND (lease_until <= ` + now + ` OR owner = ?2)
RETURNING epoch`

const extendSQL = `
UPDATE {lane} SET lease_until = ` + now + ` + ?4
WHERE lane = ?1 AND owner = ?2 AND epoch = ?3`

const releaseSQL = `
UPDATE {lane} SET owner = '', lease_until = 0
WHERE lane = ?1 AND owner = ?2 AND epoch = ?3`

// Turn.

// surfaceNeededSQL finds out without the writer's place whether there is a lease
// and anything to surface, by parked_due.
const surfaceNeededSQL = `
SELECT
  EXISTS (SELECT 1 FROM {lane} WHERE lane = ?1 AND owner = ?2 AND epoch = ?3),
  EXISTS (SELECT 1 FROM {parked} WHERE lane = ?1 AND state = 'scheduled' AND available_at <= ` + now + `)`

// fenceSQL is the fence of a transaction that leaves the lease as it is: no row,
// no lease.
const fenceSQL = `
UPDATE {lane} SET epoch = epoch
WHERE lane = ?1 AND owner = ?2 AND epoch = ?3`

// dueScheduledSQL reads parked_due in its order, and ready_id for each row.
const dueScheduledSQL = `
SELECT p.pos, EXISTS (SELECT 1 FROM {ready} AS r WHERE r.id = p.id)
FROM {parked} AS p
WHERE p.lane = ?1 AND p.state = 'scheduled' AND p.available_at <= ` + now + `
ORDER BY p.available_at, p.pos
LIMIT ?2`

const surfaceSQL = `
INSERT INTO {ready} (lane, id, topic, key, key_hash, type, content_type, headers, created_at, revision, replay, payload)
SELECT lane, id, topic, key, key_hash, type, content_type, headers, created_at, revision, replay, payload
FROM {parked}
WHERE pos IN (SELECT value FROM json_each(?1))
ORDER BY available_at, pos`

const deleteParkedSQL = `
DELETE FROM {parked} WHERE +lane = ?1 AND pos IN (SELECT value FROM json_each(?2))
RETURNING key_hash`

const scheduledIsReadySQL = `
UPDATE {parked} SET state = 'dead', available_at = NULL,
  reason = 'when it became due, a message of the same id was already ready'
WHERE pos IN (SELECT value FROM json_each(?1))`

// parkedColumns are what a parked row is read by: the content with its age, then
// what only parked rows have. A driver's time goes by the column, so that small ones
// are one: four times the replays, 2 if the key is blocked, 1 if there is no payload.
const parkedColumns = `
  ifnull(p.seq, 0), p.id, p.topic, p.key, p.key_hash, p.type, p.content_type, p.headers,
  p.created_at, ifnull(p.revision, 0), max(0, ` + once + ` - p.created_at),
  4 * p.replay + (p.payload IS NULL), p.payload,
  p.lane, p.pos, p.attempts`

// dueHeadsSQL reads parked_due in its order.
const dueHeadsSQL = `
SELECT` + parkedColumns + `
FROM {parked} AS p
WHERE p.lane = ?1 AND p.state = 'retry' AND p.available_at <= ` + now + `
ORDER BY p.available_at, p.pos
LIMIT ?2`

// dueHeldSQL reads the held rows of a key in the order of parked_key, up to the
// next row that blocks the key by itself (parked_blocked).
const dueHeldSQL = `
SELECT` + parkedColumns + `
FROM {parked} AS p
WHERE p.lane = ?1 AND p.key_hash = ?2 AND p.state = 'held'
  AND p.seq < ifnull((SELECT min(b.seq) FROM {parked} AS b
                      WHERE b.lane = ?1 AND b.key_hash = ?2 AND b.blocking = 1 AND b.seq > ?3), 9223372036854775807)
ORDER BY p.seq
LIMIT ?4`

// packedSQL reads what readySQL does, as one row, for a driver's time goes by the value: of
// all messages the fields of packed with U+0000 between them, the ids and the payloads, one
// behind the other, and the time. The first column is 0 if a message is larger than ?4, whose
// fields are left out, or if the database's texts are not UTF-8. A text may hold a U+0000
// itself; then there are too many.
const packedSQL = `
SELECT count(*) = count(m.fields) AND octet_length(' ') = 1, ` + now + `, group_concat(m.fields, char(0)),
  CAST(group_concat(m.id, '') AS BLOB), CAST(group_concat(m.payload, '') AS BLOB)
FROM (
  SELECT r.id, CASE WHEN octet_length(r.payload) <= ?4 AND NOT ` + blocked + ` THEN r.payload END AS payload,
    CASE WHEN octet_length(r.headers) + ifnull(octet_length(r.payload), 0) <= ?4 THEN concat_ws(char(0),
      r.seq, r.created_at, r.ready_at, ifnull(r.revision, 0), 4 * r.replay + 2 * ` + blocked + ` + (r.payload IS NULL),
      ifnull(octet_length(r.payload), 0), ifnull(r.key_hash, ''), ifnull(r.key, ''),
      r.topic, r.type, r.content_type, r.headers) END AS fields
  FROM {ready} AS r
  WHERE r.lane = ?1 AND r.seq > ?2
  ORDER BY r.seq
  LIMIT ?3) AS m`

// readySQL reads one range of ready_lane, and parked_blocked for each row with a
// key, if it has an entry of the lane at all. The payload of a blocked row stays
// where it is.
const readySQL = `
SELECT
  r.seq, r.id, r.topic, r.key, r.key_hash, r.type, r.content_type, r.headers,
  r.created_at, ifnull(r.revision, 0), max(0, ` + once + ` - r.ready_at),
  4 * r.replay + 2 * ` + blocked + ` + (r.payload IS NULL),
  CASE WHEN ` + blocked + ` THEN NULL ELSE r.payload END
FROM {ready} AS r
WHERE r.lane = ?1 AND r.seq > ?2
ORDER BY r.seq
LIMIT ?3`

// blocked tells whether the key of the ready row r is blocked.
const blocked = `(EXISTS (SELECT 1 FROM {parked} AS p WHERE p.lane = ?1 AND p.blocking = 1)
    AND EXISTS (SELECT 1 FROM {parked} AS p
                WHERE p.lane = ?1 AND p.key_hash = r.key_hash AND p.blocking = 1))`

// settleSQL is the fence of a settlement.
const settleSQL = `
UPDATE {lane} SET lease_until = ` + now + ` + ?4, served_at = ` + now + `
WHERE lane = ?1 AND owner = ?2 AND epoch = ?3`

// The statements of a settlement find their rows by primary key.

// takenReadySQL and takenParkedSQL tell which places of a list hold another message
// than the one named. ?2 is the ids, 16 bytes each, in the order of the list.
const takenReadySQL = `
SELECT k.value FROM json_each(?1) AS k CROSS JOIN {ready} AS r
WHERE r.seq = k.value AND +r.id <> substr(?2, 1 + 16 * k.key, 16)`

const takenParkedSQL = `
SELECT k.value FROM json_each(?1) AS k CROSS JOIN {parked} AS p
WHERE p.pos = k.value AND +p.id <> substr(?2, 1 + 16 * k.key, 16)`

const archiveReadySQL = `
INSERT INTO {done} (` + content + `, attempts, outcome)
SELECT ` + content + `, 1, 'published'
FROM {ready}
WHERE +lane = ?1 AND seq IN (SELECT value FROM json_each(?2))
ORDER BY seq`

// The statements of a settlement of all the messages in a range of a lane, where the
// transaction, as the file's writer, keeps others from coming between: messagesSQL finds
// out whether it is one. They read and write one range of ready_lane.

// messagesSQL are the ids of a range, one behind the other, and behind them the places, with
// commas between, at most ?4 of both.
const messagesSQL = `
SELECT CAST(group_concat(id, '') || group_concat(seq) AS BLOB) FROM (
  SELECT id, seq FROM {ready} WHERE lane = ?1 AND seq BETWEEN ?2 AND ?3 ORDER BY seq LIMIT ?4) AS m`

const archiveRangeSQL = `
INSERT INTO {done} (` + content + `, attempts, outcome)
SELECT ` + content + `, 1, 'published'
FROM {ready}
WHERE lane = ?1 AND seq BETWEEN ?2 AND ?3
ORDER BY seq`

const deleteRangeSQL = `
DELETE FROM {ready} WHERE lane = ?1 AND seq BETWEEN ?2 AND ?3`

const archiveParkedSQL = `
INSERT INTO {done} (` + content + `, attempts, outcome, reason)
SELECT ` + content + `, attempts + 1, 'published', reason
FROM {parked}
WHERE +lane = ?1 AND pos IN (SELECT value FROM json_each(?2))
ORDER BY seq`

// failureRows turns a JSON array of objects into rows, see failure.
const failureRows = `(
  SELECT value ->> 'row' AS row, value ->> 'state' AS state, value ->> 'blocking' AS blocking,
    value ->> 'attempts' AS attempts, value ->> 'delay' AS delay, value ->> 'reason' AS reason
  FROM json_each(?2))`

// parkFailedSQL keeps the array in the outer loop: CROSS JOIN is not reordered.
const parkFailedSQL = `
INSERT INTO {parked} (` + content + `, state, blocking, attempts, available_at, reason)
SELECT ` + content + `,
  f.state, CASE WHEN key_hash IS NULL THEN 0 ELSE f.blocking END, f.attempts, ` + now + ` + f.delay, f.reason
FROM ` + failureRows + ` AS f CROSS JOIN {ready} ON seq = f.row
WHERE +lane = ?1
ORDER BY seq
RETURNING key_hash`

const failParkedSQL = `
UPDATE {parked} SET
  state = f.state, blocking = CASE WHEN key_hash IS NULL THEN 0 ELSE f.blocking END, attempts = f.attempts,
  available_at = ` + now + ` + f.delay, reason = f.reason
FROM ` + failureRows + ` AS f
WHERE pos = f.row AND +lane = ?1
RETURNING key_hash`

const holdSQL = `
INSERT INTO {parked} (` + content + `, state)
SELECT ` + content + `, 'held'
FROM {ready}
WHERE +lane = ?1 AND seq IN (SELECT value FROM json_each(?2))
ORDER BY seq
RETURNING key_hash`

const deleteReadySQL = `
DELETE FROM {ready} WHERE +lane = ?1 AND seq IN (SELECT value FROM json_each(?2))`

// demoteSQL and promoteSQL, in this order, give each of the keys one head: of
// its parked rows in retry and held, and those dead that block, the first by seq.
//
// demoteSQL makes a blocking retry row wait that has another one before it. It
// reads the few entries of parked_blocked, and at most one of parked_key for each.
const demoteSQL = `
UPDATE {parked} SET state = 'held', blocking = 0, available_at = NULL
WHERE pos IN (
  SELECT b.pos FROM json_each(?2) AS k CROSS JOIN {parked} AS b
  WHERE b.lane = ?1 AND b.key_hash = k.value AND b.blocking = 1 AND +b.state = 'retry'
    AND (EXISTS (SELECT 1 FROM {parked} AS o
                 WHERE o.lane = ?1 AND o.key_hash = k.value AND o.blocking = 1 AND o.seq < b.seq)
      OR EXISTS (SELECT 1 FROM {parked} AS o
                 WHERE o.lane = ?1 AND o.key_hash = k.value AND o.state = 'held' AND o.seq < b.seq)))`

// promoteSQL makes the first held row the head when no blocking row stands before
// it. It reads one entry of parked_key and one of parked_blocked for each key.
const promoteSQL = `
UPDATE {parked} SET state = 'retry', blocking = 1, available_at = ` + now + `
WHERE pos IN (
  SELECT h.pos FROM json_each(?2) AS k CROSS JOIN {parked} AS h
  WHERE h.pos = (SELECT f.pos FROM {parked} AS f
                 WHERE f.lane = ?1 AND f.key_hash = k.value AND f.state = 'held' ORDER BY f.seq LIMIT 1)
    AND NOT EXISTS (SELECT 1 FROM {parked} AS b
                    WHERE b.lane = ?1 AND b.key_hash = k.value AND b.blocking = 1 AND b.seq < h.seq))`

// Operator.

// statsSQL counts by index ranges that end at the limit: parked_due for the
// states, parked_blocked for the keys, one entry a lane for the ages.
const statsSQL = `
SELECT
  (SELECT count(*) FROM (SELECT 1 FROM {ready} LIMIT ?1)),
  (SELECT count(*) FROM (SELECT 1 FROM {lane} AS l CROSS JOIN {parked} AS p
                         WHERE p.lane = l.lane AND p.state = 'scheduled' LIMIT ?1)),
  (SELECT count(*) FROM (SELECT 1 FROM {lane} AS l CROSS JOIN {parked} AS p
                         WHERE p.lane = l.lane AND p.state = 'retry' LIMIT ?1)),
  (SELECT count(*) FROM (SELECT 1 FROM {lane} AS l CROSS JOIN {parked} AS p
                         WHERE p.lane = l.lane AND p.state = 'held' LIMIT ?1)),
  (SELECT count(*) FROM (SELECT 1 FROM {lane} AS l CROSS JOIN {parked} AS p
                         WHERE p.lane = l.lane AND p.state = 'dead' LIMIT ?1)),
  (SELECT count(*) FROM (SELECT DISTINCT lane, key_hash FROM {parked} WHERE blocking = 1 LIMIT ?1)),
  max(0, ifnull(max(` + now + ` - (SELECT r.ready_at FROM {ready} AS r
                                   WHERE r.lane = l.lane ORDER BY r.seq LIMIT 1)), 0),
         ifnull(max(` + now + ` - (SELECT min(p.available_at) FROM {parked} AS p
                                   WHERE p.lane = l.lane AND p.state = 'retry')), 0),
         ifnull(max(` + now + ` - (SELECT min(p.available_at) FROM {parked} AS p
                                   WHERE p.lane = l.lane AND p.state = 'scheduled')), 0)),
  ifnull(sum(l.lease_until > ` + now + `), 0),
  ifnull(sum(l.lease_until <= ` + now + ` AND l.owner <> ''), 0),
  count(*)
FROM {lane} AS l`

// The conditions of a filter are appended to the statements below, each with its
// arguments. By id and by key there are indexes.
const (
	hasIDSQL       = ` AND id IN (SELECT unhex(value) FROM json_each(?))`
	hasKeySQL      = ` AND lane = ? AND key_hash = ? AND key = ?`
	hasTopicSQL    = ` AND topic = ?`
	hasTypeSQL     = ` AND type = ?`
	hasStateSQL    = ` AND state IN (SELECT value FROM json_each(?))`
	requeueableSQL = ` AND (state = 'dead' OR (state IN ('scheduled', 'retry') AND available_at > ` + now + `))`
)

const parkedSQL = `
SELECT` + parkedColumns + `,
  p.state, p.blocking, ifnull(p.reason, ''), p.available_at - ` + now + `, p.parked_at
FROM {parked} AS p
WHERE p.pos > ?`

const parkedOrderSQL = `
ORDER BY p.pos LIMIT ?`

// lanesOfIDsSQL and lanesOfSQL tell which lanes a filter concerns: the one by
// parked_id, the other by what is parked in each lane.
const lanesOfIDsSQL = `
SELECT DISTINCT lane FROM {parked} WHERE true`

const lanesOfSQL = `
SELECT l.lane FROM {lane} AS l
WHERE EXISTS (SELECT 1 FROM {parked} AS p WHERE p.lane = l.lane`

// lockLaneSQL begins every operator's transaction, so that no settlement comes
// between.
const lockLaneSQL = `UPDATE {lane} SET epoch = epoch WHERE lane = ?1`

// selectParkedOfIDsSQL and selectParkedSQL name the rows of one lane that a filter
// matches, in order, so that a limit cuts the run of a key at its end.
const selectParkedOfIDsSQL = `
SELECT pos FROM {parked} WHERE +lane = ?`

const selectParkedSQL = `
SELECT pos FROM {parked} WHERE lane = ?`

const selectOrderSQL = `
ORDER BY seq IS NULL, seq, pos LIMIT ?`

// The steps of Requeue, over the rows selected. A row without a place in the order
// becomes scheduled again, which is what it was; one whose id is scheduled anew in
// the meantime stays dead.
const requeueUnplacedSQL = `
UPDATE OR IGNORE {parked} SET state = 'scheduled', available_at = ` + now + `, attempts = 0
WHERE pos IN (SELECT value FROM json_each(?1)) AND seq IS NULL`

const requeueKeylessSQL = `
UPDATE {parked} SET
  state = 'retry', available_at = ` + now + `, attempts = CASE state WHEN 'dead' THEN 0 ELSE attempts END
WHERE pos IN (SELECT value FROM json_each(?1)) AND seq IS NOT NULL AND key_hash IS NULL`

// requeueKeyedSQL makes the rows wait; demoteSQL and promoteSQL then choose the
// head.
const requeueKeyedSQL = `
UPDATE {parked} SET
  state = 'held', blocking = 0, available_at = NULL, attempts = CASE state WHEN 'dead' THEN 0 ELSE attempts END
WHERE pos IN (SELECT value FROM json_each(?1)) AND seq IS NOT NULL AND key_hash IS NOT NULL
RETURNING key_hash`

const discardSQL = `
INSERT INTO {done} (` + content + `, attempts, outcome, reason)
SELECT ` + content + `, attempts, 'discarded', reason
FROM {parked}
WHERE +lane = ?1 AND pos IN (SELECT value FROM json_each(?2))
ORDER BY seq, pos`

const nowSQL = `SELECT ` + now

// selectDoneOfIDsSQL and selectDoneSQL name done rows that a filter matches, oldest
// first, and tell whether their messages wait: the one by done_id and a sort, the other
// by done_at. Of an id that was done several times only the newest row counts (done_id),
// or one call would replay it once a row; and none that was done again since the replay
// began.
const selectDoneOfIDsSQL = `
SELECT done_at, pos, ` + doneWaits + ` FROM {done} AS d
WHERE (+done_at, +pos) > (?1, ?2) AND +done_at < ?3 AND ` + newestDone

const selectDoneSQL = `
SELECT done_at, pos, ` + doneWaits + ` FROM {done} AS d
WHERE (done_at, pos) > (?1, ?2) AND done_at < ?3 AND ` + newestDone

const doneWaits = `EXISTS (SELECT 1 FROM {ready} AS r WHERE r.id = d.id) OR EXISTS (SELECT 1 FROM {parked} AS p WHERE p.id = d.id)`

const newestDone = `NOT EXISTS (
  SELECT 1 FROM {done} AS n WHERE n.id = d.id AND (+n.done_at, +n.pos) > (d.done_at, d.pos) AND (+n.done_at < ?3 OR +n.done_at >= ?4))`

const selectDoneOrderSQL = `
ORDER BY done_at, pos LIMIT ?`

// replaySQL counts replays by the newest done row of the id, so that a second
// replay differs from the first.
const replaySQL = `
INSERT INTO {ready} (lane, id, topic, key, key_hash, type, content_type, headers, created_at, revision, replay, payload)
SELECT lane, id, topic, key, key_hash, type, content_type, headers, created_at, revision,
  1 + (SELECT max(o.replay) FROM {done} AS o WHERE o.id = d.id), payload
FROM {done} AS d
WHERE pos IN (SELECT value FROM json_each(?1))
  AND NOT EXISTS (SELECT 1 FROM {parked} AS p WHERE p.id = d.id)
ORDER BY done_at, pos
ON CONFLICT (id) DO NOTHING`

// purgeNeededSQL and purgeDoneSQL read done_at from its old end.
const purgeNeededSQL = `
SELECT EXISTS (SELECT 1 FROM {done} WHERE done_at <= ` + now + ` - ?1)`

const purgeDoneSQL = `
DELETE FROM {done} WHERE pos IN (
  SELECT pos FROM {done} WHERE done_at <= ` + now + ` - ?1 ORDER BY done_at, pos LIMIT ?2)`

const purgeableSQL = `
SELECT count(*) FROM (SELECT 1 FROM {done} WHERE done_at <= ` + now + ` - ?1 LIMIT ?2)`

const claimPurgeNeededSQL = `
SELECT EXISTS (SELECT 1 FROM {meta} WHERE purge_at <= ` + now + `)`

const claimPurgeSQL = `
UPDATE {meta} SET purge_at = ` + now + ` + ?1 WHERE purge_at <= ` + now

// Inbox.

const recordSQL = `
INSERT INTO {inbox} (consumer, message_id) VALUES (?1, ?2)
ON CONFLICT (consumer, message_id) DO NOTHING`

const recordedSQL = `
SELECT EXISTS (SELECT 1 FROM {inbox} WHERE consumer = ?1 AND message_id = ?2)`

const purgeInboxNeededSQL = `
SELECT EXISTS (SELECT 1 FROM {inbox} WHERE recorded_at <= ` + now + ` - ?1)`

const purgeInboxSQL = `
DELETE FROM {inbox} WHERE (consumer, message_id) IN (
  SELECT consumer, message_id FROM {inbox} WHERE recorded_at <= ` + now + ` - ?1
  ORDER BY recorded_at LIMIT ?2)`

// Revisions. All find their row by the primary key.

// takeSQL raises the last revision of a key by the number of its messages, ?3, unless
// ?4 is given and is not the next one: then it changes no row.
const takeSQL = `
INSERT INTO {revision} (key_hash, key, revision)
SELECT ?1, ?2, ?3
WHERE ?4 IN (0, 1) OR EXISTS (SELECT 1 FROM {revision} WHERE key_hash = ?1 AND key = ?2)
ON CONFLICT (key_hash, key) DO UPDATE SET revision = revision + excluded.revision
WHERE ?4 IN (0, revision + 1)`

// giveBackSQL is takeSQL undone.
const giveBackSQL = `
UPDATE {revision} SET revision = revision - ?3 WHERE key_hash = ?1 AND key = ?2`

const lastRevisionSQL = `
SELECT revision FROM {revision} WHERE key_hash = ?1 AND key = ?2`

// revisedValuesSQL is a row of insertReadySQL behind takeSQL: the revision is that many
// below the last one of the key.
const revisedValuesSQL = `(?, ?, ?, ?, ?, ?, ?, ?, (SELECT revision FROM {revision} WHERE key_hash = ? AND key = ?) - ?, ?, ?)`

// advanceSQL changes no row when the revision, ?4, is not the next one.
const advanceSQL = `
INSERT INTO {progress} (consumer, key_hash, key, revision)
SELECT ?1, ?2, ?3, ?4
WHERE ?4 = 1 OR EXISTS (SELECT 1 FROM {progress} WHERE consumer = ?1 AND key_hash = ?2 AND key = ?3)
ON CONFLICT (consumer, key_hash, key) DO UPDATE SET revision = excluded.revision
WHERE revision = excluded.revision - 1`

const progressSQL = `
SELECT revision FROM {progress} WHERE consumer = ?1 AND key_hash = ?2 AND key = ?3`

const setProgressSQL = `
INSERT INTO {progress} (consumer, key_hash, key, revision) VALUES (?1, ?2, ?3, ?4)
ON CONFLICT (consumer, key_hash, key) DO UPDATE SET revision = excluded.revision`

// The audit, and what people look at.

const writeAuditSQL = `
INSERT INTO {audit} (id, ended, who, action, selection, why, changed, failure) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)`

// auditSQL goes backwards along the rowid; the second row is one entry of audit_id.
const auditSQL = `
SELECT b.pos, b.id, b.who, b.action, b.selection, b.why, b.written_at, e.written_at, ifnull(e.changed, 0), ifnull(e.failure, '')
FROM {audit} AS b LEFT JOIN {audit} AS e ON e.id = b.id AND e.ended = 1
WHERE b.pos < ?1 AND b.ended = 0
ORDER BY b.pos DESC LIMIT ?2`

const viewLanesSQL = `
SELECT lane, owner, epoch, lease_until - ` + once + `, CASE WHEN served_at > 0 THEN ` + once + ` - served_at END
FROM {lane} ORDER BY lane`

// viewDoneSQL goes backwards along done_at.
const viewDoneSQL = `
SELECT pos, ` + once + ` - done_at, done_at - created_at, outcome = 'published' AND replay = 0
FROM {done} ORDER BY done_at DESC, pos DESC LIMIT ?1`

// viewReasonsSQL goes backwards along the rowid.
const viewReasonsSQL = `
SELECT state, topic, ifnull(reason, '') FROM {parked} ORDER BY pos DESC LIMIT ?1`

// viewMessageSQL looks into the three indexes on id.
const viewMessageSQL = `
SELECT 'ready', lane, seq, topic, key, type, 0, replay, '', ` + once + ` - created_at, ` + once + ` - ready_at, NULL
FROM {ready} WHERE id = ?1
UNION ALL
SELECT state, lane, ifnull(seq, 0), topic, key, type, attempts, replay, ifnull(reason, ''), ` + once + ` - created_at, ` + once + ` - parked_at, available_at - ` + once + `
FROM {parked} WHERE id = ?1
UNION ALL
SELECT outcome, lane, ifnull(seq, 0), topic, key, type, attempts, replay, ifnull(reason, ''), ` + once + ` - created_at, ` + once + ` - done_at, NULL
FROM {done} WHERE id = ?1`
