package mysql

import (
	"strings"

	"github.com/outbox-suite/outbox/dialect"
)

// Rules all statements keep:
//
//   - Lists travel as one JSON array of ASCII, which JSON_TABLE turns into rows, so
//     that no statement's text or number of placeholders depends on a list. Each is the
//     first table of a STRAIGHT_JOIN: the rows named are found one by one by a key,
//     whatever the optimizer believes of a table that was full a minute ago.
//   - FORCE INDEX names the index relied on, for the same reason.
//   - What asks whether there is a row is a subquery with LIMIT: EXISTS may become a
//     join of whole tables.
//   - Where such a subquery wants the first row by an index, ORDER BY names the index's
//     columns but for those that are compared with literals: without the others MySQL
//     sorts all that a correlated one finds, and with those MariaDB 10.11 does.
//   - Durations are whole microseconds; times leave the server as microseconds since
//     1970. UTC_TIMESTAMP stands still within a statement, also while it waits for a
//     lock, so what is written under a lock is written by the next statement.
//   - {key} is the quoted column key, a reserved word.

// epoch is the beginning of the microseconds that times leave the server as.
const epoch = `TIMESTAMP'1970-01-01 00:00:00'`

// The lists. A [dialect.Ref] is its place and its id; where the place is what finds
// the row, the id is only compared.
const (
	refList     = `JSON_TABLE(?, '$[*]' COLUMNS (nth FOR ORDINALITY, place BIGINT PATH '$[0]', id CHAR(32) PATH '$[1]')) AS n`
	posList     = `JSON_TABLE(?, '$[*]' COLUMNS (nth FOR ORDINALITY, pos BIGINT PATH '$')) AS n`
	keyList     = `JSON_TABLE(?, '$[*]' COLUMNS (key_hash BIGINT PATH '$')) AS n`
	failureList = `JSON_TABLE(?, '$[*]' COLUMNS (
    place BIGINT PATH '$[0]', id CHAR(32) PATH '$[1]', attempts INT PATH '$[2]', dead INT PATH '$[3]', blocking INT PATH '$[4]',
    delay BIGINT PATH '$[5]', reason VARCHAR(4000) PATH '$[6]')) AS f`
)

// readyRefs and parkedRefs are the rows that a list of references names.
const (
	readyRefs = refList + `
STRAIGHT_JOIN {ready} AS r FORCE INDEX (PRIMARY) ON r.lane = ? AND r.seq = n.place AND r.id = UNHEX(n.id)`
	parkedRefs = refList + `
STRAIGHT_JOIN {parked} AS p FORCE INDEX (PRIMARY) ON p.pos = n.place AND p.id = UNHEX(n.id)`
)

// dueSQL tells whether a lane has a parked row that is due, by the first entries of
// parked_due_at.
const dueSQL = `((SELECT p.available_at FROM {parked} AS p FORCE INDEX ({name:parked_due_at})
         WHERE p.lane = l.lane AND p.state = 'retry' ORDER BY p.lane, p.available_at LIMIT 1) <= UTC_TIMESTAMP(6)
    OR (SELECT p.available_at FROM {parked} AS p FORCE INDEX ({name:parked_due_at})
         WHERE p.lane = l.lane AND p.state = 'scheduled' ORDER BY p.lane, p.available_at LIMIT 1) <= UTC_TIMESTAMP(6))`

// readySomeSQL is the newest ready row of a lane, by the primary key.
const readySomeSQL = `(SELECT r.seq FROM {ready} AS r FORCE INDEX (PRIMARY)
         WHERE r.lane = l.lane ORDER BY r.lane DESC, r.seq DESC LIMIT 1)`

// Where rows were deleted that InnoDB has not purged, because an old snapshot could
// still see them, a scan that finds no more rows of a lane goes on over those of the
// next lanes, to the end of the table: the end of a range is compared with rows only,
// not with what is left of them. So what is ready is first looked for by the index on
// seq, over which it is once through for all lanes, and above a floor nearly nothing.

const readyAboveSQL = `
-- The first ready rows above a floor, one range of the index on seq.
` + firstReady

// freeSQL is a lane that is free, servedSQL when it was last served: a time ahead of now
// is from before the clock was set back.
const (
	freeSQL   = `(l.lease_until <= UTC_TIMESTAMP(6) OR l.owner = ?)`
	servedSQL = `CASE WHEN l.served_at <= UTC_TIMESTAMP(6) THEN l.served_at ELSE ` + epoch + ` END`
)

const lookSQL = `
-- What a poll wants to know, in one round trip where it needs no transaction: of the
-- first ready rows above a floor, one range of the index on seq, how many there are of
-- each lane; and of each free lane whether a parked row is due, by two entries of
-- parked_due_at, and when it was served. Locks nothing.
SELECT @@autocommit, m.lane, 0, COUNT(*), 0, NULL
FROM (` + firstReady + `) AS m
GROUP BY m.lane
UNION ALL
SELECT @@autocommit, l.lane, l.epoch, 0, COALESCE(` + dueSQL + `, 0), TIMESTAMPDIFF(MICROSECOND, ` + epoch + `, ` + servedSQL + `)
FROM {lane} AS l
WHERE ` + freeSQL

const pollSQL = `
-- When there are more ready rows than were looked at: reads the lane rows, and of each
-- lane one entry of ready's primary key, the newest, because rows deleted but not yet
-- purged lie at the other end, and two of parked_due_at. Locks nothing.
SELECT l.lane, l.epoch, COALESCE(` + dueSQL + `, 0)
FROM {lane} AS l
WHERE ` + freeSQL + `
  AND (` + readySomeSQL + ` IS NOT NULL
    OR ` + dueSQL + `)
ORDER BY ` + servedSQL + `, l.lane
LIMIT ?`

const newestSQL = `
-- The number that the next ready row will get stands in it. The information schema
-- knows it too, but on MySQL as it was up to a day ago.
SHOW CREATE TABLE {ready}`

const lockWaitSQL = `
-- Seconds that a statement waits for a lock, unless its session has its own.
SELECT @@GLOBAL.innodb_lock_wait_timeout`

// oldestSQL is the oldest ready row of a lane above a floor, by the primary key, where
// a row stands before any other index has it. Lane and floor are literals, for there
// is one of these a lane, joined by UNION ALL: see oldest.
const oldestSQL = `(SELECT r.seq FROM {ready} AS r FORCE INDEX (PRIMARY) WHERE r.lane = %d AND r.seq > %d ORDER BY r.seq LIMIT 1)`

const pendingSQL = `
-- As poll, over all lanes.
SELECT
    COALESCE(MAX(` + readySomeSQL + ` IS NOT NULL
    OR COALESCE(` + dueSQL + `, 0)), 0),
    COALESCE(MAX(l.lease_until > UTC_TIMESTAMP(6) AND l.owner <> ?), 0)
FROM {lane} AS l`

const claimSQL = `
-- Locks one lane row by primary key, or passes by when another session has it.
SELECT epoch FROM {lane}
WHERE lane = ? AND (lease_until <= UTC_TIMESTAMP(6) OR owner = ?)
FOR UPDATE SKIP LOCKED`

const ownSQL = `
-- Under the lock of claim.
UPDATE {lane}
SET owner = ?, epoch = epoch + 1, served_at = UTC_TIMESTAMP(6), lease_until = UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND
WHERE lane = ?`

const fenceSQL = `
-- The fence: waits for the lane row's lock, then finds the lease in its newest
-- version. A row is the lease; a number of changed rows would not tell.
SELECT epoch FROM {lane} WHERE lane = ? AND owner = ? AND epoch = ? FOR UPDATE`

const extendSQL = `
-- Behind the fence.
UPDATE {lane} SET lease_until = UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND WHERE lane = ?`

const endSQL = `
-- Behind the fence. Without an owner the epoch alone opens no fence.
UPDATE {lane} SET owner = '', lease_until = UTC_TIMESTAMP(6) WHERE lane = ?`

// releaseSQL is a transaction by itself. It passes by a lane row that another session has
// locked, for a statement that waits would go on when its caller has given up; one that
// goes on all the same ends the lease that it names and no other. It tells by its last
// insert id whether it found its row, and if so whether it has committed.
const releaseSQL = `
-- One lane row by primary key, with the fence: the inner query locks it, or passes by.
UPDATE (
    SELECT c.lane FROM {lane} AS c FORCE INDEX (PRIMARY)
    WHERE c.lane = ? AND c.owner = ? AND c.epoch = ?
    LIMIT 1 FOR UPDATE SKIP LOCKED
) AS n
STRAIGHT_JOIN {lane} AS l FORCE INDEX (PRIMARY) ON l.lane = n.lane
SET l.owner = '', l.epoch = LAST_INSERT_ID(l.epoch * 2 + @@autocommit) DIV 2, l.lease_until = UTC_TIMESTAMP(6)`

// insertSQL and scheduleSQL are followed by one row of values a message, rows
// separated by commas. Rows get their seq in the order of the list.

const insertSQL = `
INSERT INTO {ready} (lane, id, topic, {key}, key_hash, type, content_type, payload, headers, revision, replay)
VALUES `

const insertRow = `(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`

const scheduleSQL = `
INSERT INTO {parked} (lane, id, topic, {key}, key_hash, type, content_type, payload, headers, revision, replay, available_at)
VALUES `

const scheduleRow = `(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND)`

// Revisions. All find their row by the primary key. That a row was changed is told by a
// number that clientFoundRows leaves alone only where what is found is always changed.

// nextRevisionSQL is followed by one nextRevisionRow a key, rows separated by commas.
const nextRevisionSQL = `
-- Waits for another producer of the key. The rows are taken in the order of the list.
INSERT INTO {revision} (key_hash, {key}, revision)
VALUES `

const (
	nextRevisionRow = `(?, ?, ?)`
	nextRevisionEnd = `
ON DUPLICATE KEY UPDATE revision = revision + VALUES(revision)`
)

const beginRevisionSQL = `
-- Makes and locks the row of a key. Without it the next statement, where it finds no row,
-- would lock the gap in which the row of another producer is to be.
INSERT INTO {revision} (key_hash, {key}, revision) VALUES (?, ?, 0)
ON DUPLICATE KEY UPDATE revision = revision`

const givenRevisionSQL = `
UPDATE {revision} SET revision = revision + ? WHERE key_hash = ? AND {key} = ? AND revision = ? - 1`

const giveBackSQL = `
UPDATE {revision} SET revision = revision - ? WHERE key_hash = ? AND {key} = ?`

const lastRevisionSQL = `
-- FOR UPDATE reads what is there, whatever the transaction's snapshot.
SELECT revision FROM {revision} WHERE key_hash = ? AND {key} = ? FOR UPDATE`

// revisedRow is a row of insertSQL behind one of the above: the revision is that many
// below the last one of the key.
const revisedRow = `(?, ?, ?, ?, ?, ?, ?, ?, ?, (SELECT k.revision FROM {revision} AS k WHERE k.key_hash = ? AND k.{key} = ?) - ?, ?)`

const beginProgressSQL = `
-- As beginRevision.
INSERT INTO {progress} (consumer, key_hash, {key}, revision) VALUES (?, ?, ?, 0)
ON DUPLICATE KEY UPDATE revision = revision`

const advanceSQL = `
-- Waits for another transaction of the consumer and the key.
UPDATE {progress} SET revision = revision + 1 WHERE consumer = ? AND key_hash = ? AND {key} = ? AND revision = ? - 1`

const lastProgressSQL = `
-- As lastRevision.
SELECT revision FROM {progress} WHERE consumer = ? AND key_hash = ? AND {key} = ? FOR UPDATE`

const progressSQL = `
SELECT revision FROM {progress} WHERE consumer = ? AND key_hash = ? AND {key} = ?`

const setProgressSQL = `
INSERT INTO {progress} (consumer, key_hash, {key}, revision) VALUES (?, ?, ?, ?)
ON DUPLICATE KEY UPDATE revision = VALUES(revision)`

const largestPacketSQL = `SELECT @@max_allowed_packet`

const leaseSQL = `
-- Whether there is a lease. Locks nothing.
SELECT COUNT(*) FROM {lane} WHERE lane = ? AND owner = ? AND epoch = ?`

// The statements of Surface run behind the fence, dueScheduled before it as well.

const dueScheduledSQL = `
-- Along parked_due_at; whether the id is ready already is one entry of ready's
-- index on id a row.
SELECT p.pos, p.id, (SELECT 1 FROM {ready} AS r FORCE INDEX ({name:id}) WHERE r.id = p.id LIMIT 1) IS NOT NULL
FROM {parked} AS p FORCE INDEX ({name:parked_due_at})
WHERE p.lane = ? AND p.state = 'scheduled' AND p.available_at <= UTC_TIMESTAMP(6)
ORDER BY p.available_at, p.pos
LIMIT ?`

const surfaceSQL = `
-- By parked's primary key, in the order of the list.
INSERT INTO {ready} (lane, id, topic, {key}, key_hash, type, content_type, payload, headers, created_at, revision, replay)
SELECT p.lane, p.id, p.topic, p.{key}, p.key_hash, p.type, p.content_type, p.payload, p.headers, p.created_at, p.revision, p.replay
FROM ` + posList + `
STRAIGHT_JOIN {parked} AS p FORCE INDEX (PRIMARY) ON p.pos = n.pos
ORDER BY n.nth`

const surfacedTwiceSQL = `
-- By parked's primary key.
UPDATE ` + posList + `
STRAIGHT_JOIN {parked} AS p FORCE INDEX (PRIMARY) ON p.pos = n.pos
SET p.state = 'dead', p.available_at = NULL, p.reason = ?`

const deleteParkedSQL = `
-- By parked's primary key.
DELETE p FROM ` + parkedRefs + `
WHERE p.lane = ?`

// What a turn reads of a message is asked for in a form that takes little memory to
// read, for each value that is not NULL or a small number costs the driver some: see
// unpack. Headers and payload come along where both together are within what a row may
// bring; where not, their size does, and they are read by themselves, for the driver must
// read to its end whatever the server has begun to send.
const (
	// What is usual comes as NULL. The size is that of the headers, which are below 16 MiB,
	// and that of the payload times 16 Mi.
	packed = `CASE WHEN ` + bodyFits + ` THEN NULL ELSE LENGTH(m.headers) + COALESCE(LENGTH(m.payload), 0) * 16777216 END,
    CASE WHEN ` + bodyFits + ` THEN NULLIF(m.headers, '{}') END, CASE WHEN ` + bodyFits + ` THEN m.payload END,
    CONCAT(m.id, m.topic), m.{key}, m.key_hash, m.type, NULLIF(m.content_type, 'application/json'), COALESCE(m.revision, 0), m.replay,
    TIMESTAMPDIFF(MICROSECOND, ` + epoch + `, m.created_at)`
	bodyFits = `LENGTH(m.headers) + COALESCE(LENGTH(m.payload), 0) <= ?`
)

const readyCountSQL = `
-- The time, and how many the first ready rows above a floor are, one range of the index on
-- seq.
SELECT TIMESTAMPDIFF(MICROSECOND, ` + epoch + `, UTC_TIMESTAMP(6)), COUNT(*)
FROM (` + firstReady + `) AS m`

// readyColumns are what a ready message is read by. Whether the key is blocked is one
// entry of parked_blocked a row, where the lane has a blocked key at all.
const readyColumns = `m.seq,
    CASE WHEN (SELECT 1 FROM {parked} AS p FORCE INDEX ({name:parked_blocked})
               WHERE p.blocking = 1 AND p.lane = ? LIMIT 1) IS NULL
    THEN 0
    ELSE (SELECT 1 FROM {parked} AS p FORCE INDEX ({name:parked_blocked})
          WHERE p.blocking = 1 AND p.lane = m.lane AND p.key_hash = m.key_hash LIMIT 1) IS NOT NULL
    END,
    ` + packed + `, TIMESTAMPDIFF(MICROSECOND, m.created_at, m.ready_at)`

const readySQL = `
-- One range of ready's primary key.
SELECT ` + readyColumns + `
FROM {ready} AS m FORCE INDEX (PRIMARY)
WHERE m.lane = ? AND m.seq >= ?
ORDER BY m.seq
LIMIT ?`

const readyFewSQL = `
-- The lane's among the first ready rows above a floor, each by ready's primary key, with the
-- time and with how many there are of all lanes.
SELECT ` + readyColumns + `,
    TIMESTAMPDIFF(MICROSECOND, ` + epoch + `, UTC_TIMESTAMP(6)), (SELECT COUNT(*) FROM (` + firstReady + `) AS a)
FROM (` + firstReady + `) AS f
STRAIGHT_JOIN {ready} AS m FORCE INDEX (PRIMARY) ON m.lane = f.lane AND m.seq = f.seq
WHERE f.lane = ?
ORDER BY f.seq
LIMIT ?`

// firstReady are the first ready rows above a floor, one range of the index on seq.
const firstReady = `SELECT r.lane, r.seq FROM {ready} AS r FORCE INDEX ({name:seq}) WHERE r.seq > ? ORDER BY r.seq LIMIT ?`

// bodyList are rows whose headers and, where wanted, payload are read by themselves.
const bodyList = `JSON_TABLE(?, '$[*]' COLUMNS (place BIGINT PATH '$[0]', wanted INT PATH '$[1]')) AS n`

const readyBodiesSQL = `
-- By ready's primary key.
SELECT n.place, r.headers, CASE WHEN n.wanted = 1 THEN r.payload END
FROM ` + bodyList + `
STRAIGHT_JOIN {ready} AS r FORCE INDEX (PRIMARY) ON r.lane = ? AND r.seq = n.place`

const parkedBodiesSQL = `
-- By parked's primary key.
SELECT n.place, p.headers, CASE WHEN n.wanted = 1 THEN p.payload END
FROM ` + bodyList + `
STRAIGHT_JOIN {parked} AS p FORCE INDEX (PRIMARY) ON p.lane = ? AND p.pos = n.place`

const dueHeadsSQL = `
-- Along parked_due_at.
SELECT p.pos, p.seq, p.key_hash, p.blocking, LENGTH(p.headers) + COALESCE(LENGTH(p.payload), 0)
FROM {parked} AS p FORCE INDEX ({name:parked_due_at})
WHERE p.lane = ? AND p.state = 'retry' AND p.available_at <= UTC_TIMESTAMP(6)
ORDER BY p.available_at, p.pos
LIMIT ?`

const dueBarrierSQL = `
-- The next row that blocks the key by itself, should there be one, by parked_blocked.
SELECT b.seq FROM {parked} AS b FORCE INDEX ({name:parked_blocked})
WHERE b.blocking = 1 AND b.lane = ? AND b.key_hash = ? AND b.seq > ?
ORDER BY b.seq LIMIT 1`

const dueHeldSQL = `
-- The first held rows of a key, along parked_key.
SELECT p.pos, p.seq, p.key_hash, p.blocking, LENGTH(p.headers) + COALESCE(LENGTH(p.payload), 0)
FROM {parked} AS p FORCE INDEX ({name:parked_key})
WHERE p.lane = ? AND p.key_hash = ? AND p.state = 'held' AND p.seq < ?
ORDER BY p.seq
LIMIT ?`

const readParkedSQL = `
-- By parked's primary key, in the order of the list.
SELECT COALESCE(m.seq, 0), 0,
    ` + packed + `, TIMESTAMPDIFF(MICROSECOND, m.created_at, UTC_TIMESTAMP(6)), m.pos, m.attempts
FROM ` + posList + `
STRAIGHT_JOIN {parked} AS m FORCE INDEX (PRIMARY) ON m.pos = n.pos
ORDER BY n.nth`

const settleSQL = `
-- The fence of a settle, which renews the lease. The time is that from before a wait for
-- the lock, which is what the lease's owner counts from. A renewal that began later and
-- had the lock first stays; what is further ahead is from before the clock was set back.
UPDATE {lane}
SET lease_until = IF(lease_until BETWEEN UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND AND UTC_TIMESTAMP(6) + INTERVAL 2 * ? MICROSECOND,
        lease_until, UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND),
    served_at = UTC_TIMESTAMP(6)
WHERE lane = ? AND owner = ? AND epoch = ?`

// The statements below run behind the fence in its transaction, and find their rows
// by primary key.

const keysOfReadySQL = `
SELECT DISTINCT r.key_hash
FROM ` + readyRefs + `
WHERE r.key_hash IS NOT NULL`

const keysOfParkedSQL = `
SELECT DISTINCT p.key_hash
FROM ` + parkedRefs + `
WHERE p.lane = ? AND p.key_hash IS NOT NULL`

// archiveReady are the messages that archiveReadySQL and archiveOneSQL move.
const archiveReady = `
INSERT INTO {done} (lane, seq, id, topic, {key}, key_hash, type, content_type, payload, headers, created_at, revision, replay, attempts, outcome)
SELECT r.lane, r.seq, r.id, r.topic, r.{key}, r.key_hash, r.type, r.content_type, r.payload, r.headers, r.created_at, r.revision, r.replay, 1, 'published'`

const archiveReadySQL = archiveReady + `
FROM ` + readyRefs + `
ORDER BY r.seq`

// archiveOneSQL and deleteOneSQL name one row by the whole primary key, which leaves an
// optimizer no choice and takes it half the time of a list of one.
const archiveOneSQL = archiveReady + `
FROM {ready} AS r
WHERE r.lane = ? AND r.seq = ? AND r.id = ?`

const archiveParkedSQL = `
INSERT INTO {done} (lane, seq, id, topic, {key}, key_hash, type, content_type, payload, headers, created_at, revision, replay, attempts, outcome, reason)
SELECT p.lane, p.seq, p.id, p.topic, p.{key}, p.key_hash, p.type, p.content_type, p.payload, p.headers, p.created_at, p.revision, p.replay,
    p.attempts + 1, 'published', p.reason
FROM ` + parkedRefs + `
WHERE p.lane = ?
ORDER BY n.nth`

const failSQL = `
INSERT INTO {parked} (lane, seq, id, topic, {key}, key_hash, type, content_type, payload, headers, created_at, revision, replay,
    attempts, reason, blocking, state, available_at)
SELECT r.lane, r.seq, r.id, r.topic, r.{key}, r.key_hash, r.type, r.content_type, r.payload, r.headers, r.created_at, r.revision, r.replay,
    f.attempts, UNHEX(f.reason), f.blocking = 1 AND r.key_hash IS NOT NULL,
    CASE WHEN f.dead = 1 THEN 'dead' ELSE 'retry' END,
    CASE WHEN f.dead = 0 THEN UTC_TIMESTAMP(6) + INTERVAL f.delay MICROSECOND END
FROM ` + failureList + `
STRAIGHT_JOIN {ready} AS r FORCE INDEX (PRIMARY) ON r.lane = ? AND r.seq = f.place AND r.id = UNHEX(f.id)
ORDER BY r.seq`

const failParkedSQL = `
UPDATE ` + failureList + `
STRAIGHT_JOIN {parked} AS p FORCE INDEX (PRIMARY) ON p.pos = f.place AND p.id = UNHEX(f.id)
SET p.attempts = f.attempts, p.reason = UNHEX(f.reason), p.blocking = (f.blocking = 1 AND p.key_hash IS NOT NULL),
    p.state = CASE WHEN f.dead = 1 THEN 'dead' ELSE 'retry' END,
    p.available_at = CASE WHEN f.dead = 0 THEN UTC_TIMESTAMP(6) + INTERVAL f.delay MICROSECOND END
WHERE p.lane = ?`

const holdSQL = `
INSERT INTO {parked} (lane, seq, id, topic, {key}, key_hash, type, content_type, payload, headers, created_at, revision, replay, state)
SELECT r.lane, r.seq, r.id, r.topic, r.{key}, r.key_hash, r.type, r.content_type, r.payload, r.headers, r.created_at, r.revision, r.replay, 'held'
FROM ` + readyRefs + `
ORDER BY r.seq`

const deleteReadySQL = `
DELETE r FROM ` + readyRefs

const deleteOneSQL = `
DELETE FROM {ready} WHERE lane = ? AND seq = ? AND id = ?`

// demoteSQL and promoteSQL, in this order, make the first row of each key its head
// again. They run under the lane row's lock, in every transaction that changed parked
// rows of these keys. DISTINCT keeps the inner query apart from the update, which
// could not read the table it changes otherwise.

const demoteSQL = `
-- A retry that blocks and is not the first waits. By parked_blocked, and the first
-- held row by parked_key.
UPDATE (
    SELECT DISTINCT b.pos
    FROM ` + keyList + `
    STRAIGHT_JOIN {parked} AS b FORCE INDEX ({name:parked_blocked})
       ON b.blocking = 1 AND b.lane = ? AND b.key_hash = n.key_hash
    WHERE b.state = 'retry'
      AND ((SELECT o.seq FROM {parked} AS o FORCE INDEX ({name:parked_blocked})
            WHERE o.blocking = 1 AND o.lane = b.lane AND o.key_hash = b.key_hash ORDER BY o.lane, o.key_hash, o.seq LIMIT 1) < b.seq
        OR (SELECT o.seq FROM {parked} AS o FORCE INDEX ({name:parked_key})
            WHERE o.lane = b.lane AND o.key_hash = b.key_hash AND o.state = 'held' ORDER BY o.lane, o.key_hash, o.seq LIMIT 1) < b.seq)
) AS d
STRAIGHT_JOIN {parked} AS p FORCE INDEX (PRIMARY) ON p.pos = d.pos
SET p.state = 'held', p.blocking = 0, p.available_at = NULL`

const promoteSQL = `
-- The first held row becomes the head when no row that blocks stands before it. By
-- parked_key and parked_blocked, one entry each a key.
UPDATE (
    SELECT DISTINCT h.pos
    FROM ` + keyList + `
    STRAIGHT_JOIN {parked} AS h FORCE INDEX (PRIMARY)
       ON h.pos = (SELECT o.pos FROM {parked} AS o FORCE INDEX ({name:parked_key})
                   WHERE o.lane = ? AND o.key_hash = n.key_hash AND o.state = 'held' ORDER BY o.lane, o.key_hash, o.seq LIMIT 1)
    WHERE COALESCE((SELECT o.seq FROM {parked} AS o FORCE INDEX ({name:parked_blocked})
                    WHERE o.blocking = 1 AND o.lane = h.lane AND o.key_hash = h.key_hash
                    ORDER BY o.lane, o.key_hash, o.seq LIMIT 1) > h.seq, 1) = 1
) AS d
STRAIGHT_JOIN {parked} AS p FORCE INDEX (PRIMARY) ON p.pos = d.pos
SET p.state = 'retry', p.blocking = 1, p.available_at = UTC_TIMESTAMP(6)`

// countParked counts the parked rows of a state along parked_due_at, lane by lane, up
// to the limit.
const countParked = `(SELECT COUNT(*) FROM (
        SELECT 1 FROM {lane} AS l STRAIGHT_JOIN {parked} AS p FORCE INDEX ({name:parked_due_at})
        ON p.lane = l.lane AND p.state = `

const statsSQL = `
-- Counts go along ready's primary key, parked_due_at and parked_blocked, and stop at
-- the limit.
SELECT
    (SELECT COUNT(*) FROM (SELECT 1 FROM {ready} AS r LIMIT ?) AS c),
    ` + countParked + `'scheduled' LIMIT ?) AS c),
    ` + countParked + `'retry' LIMIT ?) AS c),
    ` + countParked + `'held' LIMIT ?) AS c),
    ` + countParked + `'dead' LIMIT ?) AS c),
    (SELECT COUNT(*) FROM (
        SELECT DISTINCT p.lane, p.key_hash FROM {parked} AS p FORCE INDEX ({name:parked_blocked})
        WHERE p.blocking = 1 LIMIT ?) AS c),
    (SELECT COALESCE(GREATEST(0,
        COALESCE(MAX(TIMESTAMPDIFF(MICROSECOND, (
            SELECT r.ready_at FROM {ready} AS r FORCE INDEX (PRIMARY)
            WHERE r.lane = l.lane ORDER BY r.lane, r.seq LIMIT 1), UTC_TIMESTAMP(6))), 0),
        COALESCE(MAX(TIMESTAMPDIFF(MICROSECOND, (
            SELECT p.available_at FROM {parked} AS p FORCE INDEX ({name:parked_due_at})
            WHERE p.lane = l.lane AND p.state = 'retry' ORDER BY p.lane, p.available_at LIMIT 1), UTC_TIMESTAMP(6))), 0)), 0)
     FROM {lane} AS l),
    (SELECT COUNT(*) FROM {lane} WHERE owner <> '' AND lease_until > UTC_TIMESTAMP(6)),
    (SELECT COUNT(*) FROM {lane} WHERE owner <> '' AND lease_until <= UTC_TIMESTAMP(6)),
    (SELECT COUNT(*) FROM {lane})`

// In the operators' statements {filter} stands for the conditions of a
// [dialect.Filter]; see filter.

// parkedColumns are what a parked row is listed by.
const parkedColumns = `COALESCE(p.seq, 0), p.pos, p.attempts, p.lane, p.id, p.topic, p.{key}, p.key_hash, p.type, p.content_type,
    p.payload, p.headers,
    TIMESTAMPDIFF(MICROSECOND, ` + epoch + `, p.created_at), COALESCE(p.revision, 0), p.replay,
    TIMESTAMPDIFF(MICROSECOND, p.created_at, UTC_TIMESTAMP(6)), 0`

const parkedSQL = `
-- Along parked's primary key, or the index that serves the filter.
SELECT ` + parkedColumns + `,
    p.state, p.blocking, COALESCE(p.reason, ''),
    TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), p.available_at),
    TIMESTAMPDIFF(MICROSECOND, ` + epoch + `, p.parked_at)
FROM {parked} AS p
WHERE p.pos > ?{filter}
ORDER BY p.pos
LIMIT ?`

// requeueable are the rows that Requeue changes. A message that was never ready
// becomes scheduled again, which its id may be once.
const requeueable = `
      AND (p.state = 'dead' OR (p.state IN ('scheduled', 'retry') AND p.available_at > UTC_TIMESTAMP(6)))
      AND (p.seq IS NOT NULL OR p.state = 'scheduled' OR (
        SELECT 1 FROM {parked} AS o FORCE INDEX ({name:parked_id})
        WHERE o.id = p.id AND o.seq IS NULL AND (o.state = 'scheduled' OR o.pos < p.pos) LIMIT 1) IS NULL)`

const requeueLanesSQL = `
-- The lanes in which there is something to requeue. Locks nothing.
SELECT l.lane FROM {lane} AS l
WHERE (SELECT 1 FROM {parked} AS p WHERE p.lane = l.lane` + requeueable + `{filter} LIMIT 1) IS NOT NULL
ORDER BY l.lane`

const discardLanesSQL = `
-- The lanes in which there is something to discard. Locks nothing.
SELECT l.lane FROM {lane} AS l
WHERE (SELECT 1 FROM {parked} AS p WHERE p.lane = l.lane{filter} LIMIT 1) IS NOT NULL
ORDER BY l.lane`

const lockLaneSQL = `
-- Waits for whoever is changing the lane, and keeps others from it.
SELECT lane FROM {lane} WHERE lane = ? FOR UPDATE`

const chooseRequeueSQL = `
-- In order, so that a limit cuts the run of a key at its end.
SELECT p.pos, p.id, p.seq IS NOT NULL, p.key_hash, p.state = 'dead'
FROM {parked} AS p
WHERE p.lane = ?` + requeueable + `{filter}
ORDER BY p.seq IS NULL, p.seq, p.pos
LIMIT ?`

const chooseDiscardSQL = `
-- As for a requeue.
SELECT p.pos, p.id, p.seq IS NOT NULL, p.key_hash, p.state = 'dead'
FROM {parked} AS p
WHERE p.lane = ?{filter}
ORDER BY p.seq IS NULL, p.seq, p.pos
LIMIT ?`

// The steps of Requeue run under the lane row's lock, by parked's primary key.

const requeueWaitingSQL = `
UPDATE ` + posList + `
STRAIGHT_JOIN {parked} AS p FORCE INDEX (PRIMARY) ON p.pos = n.pos
SET p.available_at = UTC_TIMESTAMP(6)`

const requeueUnplacedSQL = `
UPDATE ` + posList + `
STRAIGHT_JOIN {parked} AS p FORCE INDEX (PRIMARY) ON p.pos = n.pos
SET p.state = 'scheduled', p.available_at = UTC_TIMESTAMP(6), p.attempts = 0`

const requeueKeylessSQL = `
UPDATE ` + posList + `
STRAIGHT_JOIN {parked} AS p FORCE INDEX (PRIMARY) ON p.pos = n.pos
SET p.state = 'retry', p.available_at = UTC_TIMESTAMP(6), p.attempts = 0`

const requeueKeyedSQL = `
-- The rows wait for demote and promote, which find the head of each key.
UPDATE ` + posList + `
STRAIGHT_JOIN {parked} AS p FORCE INDEX (PRIMARY) ON p.pos = n.pos
SET p.state = 'held', p.blocking = 0, p.available_at = NULL, p.attempts = 0`

const discardSQL = `
-- By parked's primary key, under the lane row's lock.
INSERT INTO {done} (lane, seq, id, topic, {key}, key_hash, type, content_type, payload, headers, created_at, revision, replay, attempts, outcome, reason)
SELECT p.lane, p.seq, p.id, p.topic, p.{key}, p.key_hash, p.type, p.content_type, p.payload, p.headers, p.created_at, p.revision, p.replay,
    p.attempts, 'discarded', p.reason
FROM ` + posList + `
STRAIGHT_JOIN {parked} AS p FORCE INDEX (PRIMARY) ON p.pos = n.pos
WHERE p.lane = ?
ORDER BY n.nth`

const clockSQL = `
-- The server's time in microseconds since 1970.
SELECT TIMESTAMPDIFF(MICROSECOND, ` + epoch + `, UTC_TIMESTAMP(6))`

const chooseReplaySQL = `
-- One range of done's primary key, or its index on id. Of an id that was done several
-- times only the newest row, or one call would replay it once a row; and none that was
-- done again since the replay began.
SELECT TIMESTAMPDIFF(MICROSECOND, ` + epoch + `, d.done_at), d.pos,
    (SELECT 1 FROM {ready} AS r FORCE INDEX ({name:id}) WHERE r.id = d.id LIMIT 1) IS NOT NULL
 OR (SELECT 1 FROM {parked} AS p FORCE INDEX ({name:parked_id}) WHERE p.id = d.id LIMIT 1) IS NOT NULL
FROM {done} AS d
WHERE d.done_at >= ` + epoch + ` + INTERVAL ? MICROSECOND
  AND (d.done_at > ` + epoch + ` + INTERVAL ? MICROSECOND OR d.pos > ?)
  AND d.done_at < ` + epoch + ` + INTERVAL ? MICROSECOND
  AND (SELECT 1 FROM {done} AS n FORCE INDEX ({name:done_id})
    WHERE n.id = d.id AND (n.done_at > d.done_at OR n.done_at = d.done_at AND n.pos > d.pos)
      AND (n.done_at < ` + epoch + ` + INTERVAL ? MICROSECOND OR n.done_at >= ` + epoch + ` + INTERVAL ? MICROSECOND)
    LIMIT 1) IS NULL{filter}
ORDER BY d.done_at, d.pos
LIMIT ?`

// doneList are done rows by their primary key: where done is partitioned, it tells the
// one partition to look in.
const doneList = `JSON_TABLE(?, '$[*]' COLUMNS (nth FOR ORDINALITY, done_at BIGINT PATH '$[0]', pos BIGINT PATH '$[1]')) AS n
STRAIGHT_JOIN {done} AS d FORCE INDEX (PRIMARY) ON d.done_at = ` + epoch + ` + INTERVAL n.done_at MICROSECOND AND d.pos = n.pos`

const replaySQL = `
-- By done's primary key. Inserts as a producer does, and locks no lane. The count is
-- above that of all done rows of the id, so that a second replay differs from the first.
INSERT INTO {ready} (lane, id, topic, {key}, key_hash, type, content_type, payload, headers, created_at, revision, replay)
SELECT d.lane, d.id, d.topic, d.{key}, d.key_hash, d.type, d.content_type, d.payload, d.headers, d.created_at, d.revision,
    1 + (SELECT MAX(o.replay) FROM {done} AS o FORCE INDEX ({name:done_id}) WHERE o.id = d.id)
FROM ` + doneList + `
ORDER BY n.nth`

// farAhead is what a purge counts the times of done rows from, backwards: an instant goes
// to the server in no other form than as what it has told itself, and this one looks like
// no clock's.
const farAhead = `TIMESTAMP'2100-01-01 00:00:00'`

const choosePurgeSQL = `
-- From the old end of done's primary key.
SELECT TIMESTAMPDIFF(MICROSECOND, d.done_at, ` + farAhead + `), d.pos FROM {done} AS d FORCE INDEX (PRIMARY)
WHERE d.done_at <= UTC_TIMESTAMP(6) - INTERVAL ? MICROSECOND
ORDER BY d.done_at, d.pos
LIMIT ?
FOR UPDATE SKIP LOCKED`

const purgeSQL = `
-- By done's primary key, for a place alone may be several rows' where done was put into
-- partitions. The rows are locked.
DELETE d FROM JSON_TABLE(?, '$[*]' COLUMNS (before_then BIGINT PATH '$[0]', pos BIGINT PATH '$[1]')) AS n
STRAIGHT_JOIN {done} AS d FORCE INDEX (PRIMARY) ON d.done_at = ` + farAhead + ` - INTERVAL n.before_then MICROSECOND AND d.pos = n.pos`

const purgeableSQL = `
-- From the old end of done's primary key.
SELECT COUNT(*) FROM (
    SELECT 1 FROM {done} AS d FORCE INDEX (PRIMARY)
    WHERE d.done_at <= UTC_TIMESTAMP(6) - INTERVAL ? MICROSECOND
    LIMIT ?) AS c`

const purgeDueSQL = `
-- Whoever waited for the row finds it changed.
SELECT one FROM {meta}
WHERE one = 1 AND purge_at <= UTC_TIMESTAMP(6) - INTERVAL ? MICROSECOND
FOR UPDATE`

const claimPurgeSQL = `
-- Under the lock of purgeDue.
UPDATE {meta} SET purge_at = UTC_TIMESTAMP(6) WHERE one = 1`

const recordSQL = `
-- Waits for another transaction that has inserted the same, by the primary key. Not
-- INSERT IGNORE, which would cut short what is too long.
INSERT INTO {inbox} (consumer, message_id) VALUES (?, ?)`

const recordedSQL = `
-- By the primary key.
SELECT COUNT(*) FROM {inbox} WHERE consumer = ? AND message_id = ?`

const choosePurgeInboxSQL = `
-- From the old end of inbox_recorded_at.
SELECT i.consumer, i.message_id FROM {inbox} AS i FORCE INDEX ({name:inbox_recorded_at})
WHERE i.recorded_at <= UTC_TIMESTAMP(6) - INTERVAL ? MICROSECOND
ORDER BY i.recorded_at
LIMIT ?
FOR UPDATE SKIP LOCKED`

const purgeInboxSQL = `
-- By the primary key; the rows are locked.
DELETE i FROM JSON_TABLE(?, '$[*]' COLUMNS (consumer VARCHAR(1024) PATH '$[0]', message_id VARCHAR(4096) PATH '$[1]')) AS n
STRAIGHT_JOIN {inbox} AS i FORCE INDEX (PRIMARY)
   ON i.consumer = UNHEX(n.consumer) AND i.message_id = UNHEX(n.message_id)`

// The audit, and what people look at.

const writeAuditSQL = `
INSERT INTO {audit} (id, ended, who, action, selection, why, changed, failure) VALUES (?, ?, ?, ?, ?, ?, ?, ?)`

const auditSQL = `
-- Backwards along audit's primary key; the second row is one entry of audit_id.
SELECT b.pos, b.id, b.who, b.action, b.selection, b.why, TIMESTAMPDIFF(MICROSECOND, ` + epoch + `, b.written_at),
    TIMESTAMPDIFF(MICROSECOND, ` + epoch + `, e.written_at), COALESCE(e.changed, 0), COALESCE(e.failure, '')
FROM {audit} AS b FORCE INDEX (PRIMARY)
LEFT JOIN {audit} AS e FORCE INDEX ({name:audit_id}) ON e.id = b.id AND e.ended = 1
WHERE b.pos < ? AND b.ended = 0
ORDER BY b.pos DESC
LIMIT ?`

const viewLanesSQL = `
SELECT lane, owner, epoch, TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), lease_until),
    CASE WHEN served_at > ` + epoch + ` THEN TIMESTAMPDIFF(MICROSECOND, served_at, UTC_TIMESTAMP(6)) END
FROM {lane}
ORDER BY lane`

const viewDoneSQL = `
-- Backwards along done's primary key.
SELECT pos, TIMESTAMPDIFF(MICROSECOND, done_at, UTC_TIMESTAMP(6)), TIMESTAMPDIFF(MICROSECOND, created_at, done_at),
    outcome = 'published' AND replay = 0
FROM {done} FORCE INDEX (PRIMARY)
ORDER BY done_at DESC, pos DESC
LIMIT ?`

const viewReasonsSQL = `
-- Backwards along parked's primary key.
SELECT state, topic, COALESCE(reason, '')
FROM {parked} FORCE INDEX (PRIMARY)
ORDER BY pos DESC
LIMIT ?`

const viewMessageSQL = `
-- By the three indexes on id.
SELECT 'ready', lane, seq, topic, {key}, type, 0, replay, '',
    TIMESTAMPDIFF(MICROSECOND, created_at, UTC_TIMESTAMP(6)), TIMESTAMPDIFF(MICROSECOND, ready_at, UTC_TIMESTAMP(6)), NULL
FROM {ready} FORCE INDEX ({name:id}) WHERE id = ?
UNION ALL
SELECT state, lane, COALESCE(seq, 0), topic, {key}, type, attempts, replay, COALESCE(reason, ''),
    TIMESTAMPDIFF(MICROSECOND, created_at, UTC_TIMESTAMP(6)), TIMESTAMPDIFF(MICROSECOND, parked_at, UTC_TIMESTAMP(6)),
    TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), available_at)
FROM {parked} FORCE INDEX ({name:parked_id}) WHERE id = ?
UNION ALL
SELECT outcome, lane, COALESCE(seq, 0), topic, {key}, type, attempts, replay, COALESCE(reason, ''),
    TIMESTAMPDIFF(MICROSECOND, created_at, UTC_TIMESTAMP(6)), TIMESTAMPDIFF(MICROSECOND, done_at, UTC_TIMESTAMP(6)), NULL
FROM {done} FORCE INDEX ({name:done_id}) WHERE id = ?`

// migrateLock is held by the one process of the server that migrates. It belongs to
// the session and outlives the commits that DDL makes.
const (
	takeMigrateLockSQL = `SELECT GET_LOCK('outbox_migrate', ?)`
	dropMigrateLockSQL = `DO RELEASE_LOCK('outbox_migrate')`
)

const tablesSQL = `
-- Which of the tables there are.
SELECT table_name, COALESCE(engine, '') FROM information_schema.tables
WHERE table_schema = COALESCE(?, DATABASE()) AND table_name IN (?, ?, ?, ?, ?, ?, ?, ?, ?)`

const indexesSQL = `
-- The indexes of the tables.
SELECT DISTINCT table_name, index_name FROM information_schema.statistics
WHERE table_schema = COALESCE(?, DATABASE()) AND table_name IN (?, ?, ?, ?, ?, ?, ?, ?, ?)`

const partitionsSQL = `
-- The partitions of a table by ranges of a column, in order, with the days before which
-- they end. The last may end nowhere.
SELECT partition_name, COALESCE(partition_description, ''),
    CASE WHEN partition_description = 'MAXVALUE' THEN 0
         ELSE CAST(TRIM(BOTH '''' FROM partition_description) AS DATETIME(6)) <= UTC_TIMESTAMP(6) - INTERVAL ? MICROSECOND END,
    CASE WHEN partition_description = 'MAXVALUE' THEN 0
         ELSE DATEDIFF(CAST(TRIM(BOTH '''' FROM partition_description) AS DATETIME(6)), UTC_DATE()) END
FROM information_schema.partitions
WHERE table_schema = COALESCE(?, DATABASE()) AND table_name = ? AND partition_method = 'RANGE COLUMNS'
  AND REPLACE(partition_expression, CHAR(96), '') = 'done_at'
ORDER BY partition_ordinal_position`

const dayNamesSQL = `
-- A day, counted from today: the name of its partition, and the begin of the next.
SELECT DATE_FORMAT(UTC_DATE() + INTERVAL ? DAY, 'p%Y%m%d'), DATE_FORMAT(UTC_DATE() + INTERVAL ? DAY + INTERVAL 1 DAY, '%Y-%m-%d')`

const tableExistsSQL = `
SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = COALESCE(?, DATABASE()) AND table_name = ?`

const schemaExistsSQL = `
SELECT COUNT(*) FROM information_schema.schemata WHERE schema_name = ?`

const createSchemaSQL = `CREATE DATABASE IF NOT EXISTS {schema}`

const sessionSQL = `SELECT VERSION(), DATABASE(), @@lower_case_table_names`

const metaSQL = `
SELECT version, lanes FROM {meta}`

const variablesSQL = `
-- What the server and this session are set to. Not every server has them all.
SHOW VARIABLES WHERE variable_name IN ('sql_mode', 'read_only', 'super_read_only', 'transaction_read_only', 'tx_read_only',
    'sql_safe_updates', 'innodb_read_only', 'innodb_flush_log_at_trx_commit', 'log_bin', 'binlog_format')`

const lanesSQL = `
-- How many rows are lanes, and how many are none.
SELECT COALESCE(SUM(lane BETWEEN 0 AND ? - 1), 0), COALESCE(SUM(lane NOT BETWEEN 0 AND ? - 1), 0) FROM {lane}`

// statements are the statements rendered for one set of tables, under the names of
// their constants.
type statements struct {
	poll, look, readyAbove, newest                      string
	pending, lease                                      string
	claim, own, fence, extend, release, end             string
	insert, schedule                                    string
	dueScheduled, surface, surfacedTwice, deleteParked  string
	readyCount, ready, readyFew                         string
	readyBodies, parkedBodies                           string
	dueHeads, dueBarrier, dueHeld, readParked           string
	settle, keysOfReady, keysOfParked                   string
	archiveReady, archiveOne, archiveParked             string
	fail, failParked, hold                              string
	deleteReady, deleteOne, demote, promote             string
	stats, lockLane                                     string
	requeueWaiting, requeueUnplaced                     string
	requeueKeyless, requeueKeyed, discard               string
	replay, choosePurge, purge, purgeable               string
	purgeDue, claimPurge                                string
	record, recorded, choosePurgeInbox, purgeInbox      string
	nextRevision, beginRevision, givenRevision          string
	giveBack, lastRevision, revised                     string
	beginProgress, advance, lastProgress                string
	progress, setProgress                               string
	writeAudit, audit, viewLanes, viewDone, viewReasons string
	viewMessage                                         string
	createSchema, meta, lanes                           string
	parked, requeueLanes, discardLanes                  filtered
	chooseRequeue, chooseDiscard, chooseReplay          filtered
}

func render(t dialect.Tables) statements {
	x := func(text string) string { return expand(text, t) }
	f := func(text string) filtered {
		head, tail, _ := strings.Cut(text, "{filter}")
		return filtered{x(head), x(tail)}
	}
	return statements{
		poll: x(pollSQL), look: x(lookSQL), readyAbove: x(readyAboveSQL), newest: x(newestSQL),
		pending: x(pendingSQL), lease: x(leaseSQL), claim: x(claimSQL), own: x(ownSQL),
		fence: x(fenceSQL), extend: x(extendSQL), release: x(releaseSQL), end: x(endSQL),
		insert: x(insertSQL), schedule: x(scheduleSQL),
		dueScheduled: x(dueScheduledSQL), surface: x(surfaceSQL), surfacedTwice: x(surfacedTwiceSQL), deleteParked: x(deleteParkedSQL),
		readyCount: x(readyCountSQL), ready: x(readySQL), readyFew: x(readyFewSQL), readyBodies: x(readyBodiesSQL), parkedBodies: x(parkedBodiesSQL),
		dueHeads: x(dueHeadsSQL), dueBarrier: x(dueBarrierSQL), dueHeld: x(dueHeldSQL), readParked: x(readParkedSQL),
		settle: x(settleSQL), keysOfReady: x(keysOfReadySQL), keysOfParked: x(keysOfParkedSQL),
		archiveReady: x(archiveReadySQL), archiveOne: x(archiveOneSQL), archiveParked: x(archiveParkedSQL), fail: x(failSQL), failParked: x(failParkedSQL), hold: x(holdSQL),
		deleteReady: x(deleteReadySQL), deleteOne: x(deleteOneSQL), demote: x(demoteSQL), promote: x(promoteSQL),
		stats: x(statsSQL), lockLane: x(lockLaneSQL),
		requeueWaiting: x(requeueWaitingSQL), requeueUnplaced: x(requeueUnplacedSQL),
		requeueKeyless: x(requeueKeylessSQL), requeueKeyed: x(requeueKeyedSQL), discard: x(discardSQL),
		replay: x(replaySQL), choosePurge: x(choosePurgeSQL), purge: x(purgeSQL), purgeable: x(purgeableSQL), purgeDue: x(purgeDueSQL), claimPurge: x(claimPurgeSQL),
		record: x(recordSQL), recorded: x(recordedSQL), choosePurgeInbox: x(choosePurgeInboxSQL), purgeInbox: x(purgeInboxSQL),
		nextRevision: x(nextRevisionSQL), beginRevision: x(beginRevisionSQL), givenRevision: x(givenRevisionSQL),
		giveBack: x(giveBackSQL), lastRevision: x(lastRevisionSQL), revised: x(revisedRow),
		beginProgress: x(beginProgressSQL), advance: x(advanceSQL), lastProgress: x(lastProgressSQL),
		progress: x(progressSQL), setProgress: x(setProgressSQL),
		writeAudit: x(writeAuditSQL), audit: x(auditSQL),
		viewLanes: x(viewLanesSQL), viewDone: x(viewDoneSQL), viewReasons: x(viewReasonsSQL), viewMessage: x(viewMessageSQL),
		createSchema: x(createSchemaSQL), meta: x(metaSQL), lanes: x(lanesSQL),
		parked: f(parkedSQL), requeueLanes: f(requeueLanesSQL), discardLanes: f(discardLanesSQL),
		chooseRequeue: f(chooseRequeueSQL), chooseDiscard: f(chooseDiscardSQL), chooseReplay: f(chooseReplaySQL),
	}
}

// expand fills names into a text. The column goes first, so that a name that looks
// like its placeholder stays a name.
func expand(text string, t dialect.Tables) string {
	return dialect.Expand(strings.ReplaceAll(text, "{key}", quote("key")), t, quote)
}
