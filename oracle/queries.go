package oracle

import (
	"regexp"
	"strconv"
	"strings"

	"github.com/outbox-suite/outbox/dialect"
)

// Rules all statements keep:
//
//   - A bind is written ? here and gets its number when the statement is rendered. go-ora
//     takes one argument for each occurrence, so each number occurs once, in order.
//   - Who changes rows names them one at a time, by a key: the statement runs once for
//     each row of an array, in one round trip, and its text is the same for any number
//     (see array). What reads rows that are named has a list, {list}, of at most mostInList.
//   - A statement that locks rows names them by a key as well. It has no ROWNUM, no FETCH
//     FIRST, no DISTINCT and no inline view: ORA-02014, or rows locked and not returned.
//   - INDEX hints name the columns of the index relied on: statistics may be from a moment
//     at which a table was full or empty. NO_UNNEST keeps a subquery from becoming a join
//     of whole tables.
//   - A subquery refers to nothing but the query around it, not to one further out.
//   - now is UTC. Bare SYSTIMESTAMP compared with a column would convert the column by
//     the session's time zone. It stands still within a statement, also while that waits
//     for a lock, so what is written under a lock is written by the next statement.
//   - Durations are whole microseconds; {micros x} is an interval as such. Times leave the
//     server the same way, since 1970, and no argument is a time: go-ora would send it
//     with a zone, and label what it reads with the zone of the server.
//   - Nothing compares text with text: NLS_COMP and NLS_SORT would decide.
//   - There is no RETURNING: go-ora finds the clause by a pattern, takes one row at most,
//     and takes none for an error.
//   - There is no ';' at the end. Comments stay in this file: go-ora looks for words in
//     the text it sends.

// now is the time in UTC, epoch the beginning of the microseconds that times leave the
// server as.
const (
	now   = `SYS_EXTRACT_UTC(SYSTIMESTAMP)`
	epoch = `TIMESTAMP '1970-01-01 00:00:00'`
)

// later and ago are now and a number of microseconds, instant is microseconds since
// 1970. A NULL makes them NULL. NUMTODSINTERVAL takes seconds below 2^31 only, which would
// reach from 1970 to 2038: instant counts them from 2000, to 2068.
const (
	interval = `NUMTODSINTERVAL(? / 1000000, 'SECOND')`
	later    = now + ` + ` + interval
	ago      = now + ` - ` + interval
	instant  = `TIMESTAMP '2000-01-01 00:00:00' + NUMTODSINTERVAL((? - 946684800000000) / 1000000, 'SECOND')`
)

// Whoever waits for a lock gives up after ten seconds (ORA-30006): a process that has
// been stopped in the middle of a transaction would be waited for without end.
const waitForLock = `
FOR UPDATE WAIT 10`

// readCommittedSQL begins each transaction that locks rows. BeginTx takes no isolation
// level from its options, and the session's may be SERIALIZABLE, at which whoever has
// waited for a row that was changed fails (ORA-08177).
const readCommittedSQL = `SET TRANSACTION ISOLATION LEVEL READ COMMITTED`

// SET TRANSACTION READ ONLY, which would give several queries one snapshot, is not used:
// at a table that was made or changed in the second before, its queries may fail with
// ORA-01466. What is read by more than one query is checked instead; see Ready and Due.

// workSQL tells whether a lane has a ready row or a parked one that is due. The newest
// ready row is looked for, from the right end of the index: entries of rows that are
// deleted lie at the other. Each subquery is one entry of an index.
const workSQL = `((SELECT /*+ NO_UNNEST INDEX(r (lane seq)) */ MAX(r.seq) FROM {ready} r
         WHERE r.lane = l.lane) IS NOT NULL
    OR ` + dueSQL + `)`

// dueSQL tells whether a parked row of a lane is due.
const dueSQL = `(SELECT /*+ NO_UNNEST INDEX(p (state lane available_at)) */ MIN(p.available_at) FROM {parked} p
         WHERE p.state = 2 AND p.lane = l.lane) <= ` + now + `
    OR (SELECT /*+ NO_UNNEST INDEX(p (state lane available_at)) */ MIN(p.available_at) FROM {parked} p
         WHERE p.state = 1 AND p.lane = l.lane) <= ` + now + ``

// pollSQL reads the lane rows, and of each at most one entry of ready's primary key and
// two of parked_due_at. A time ahead of now is from before the clock was set back.
const pollSQL = `
SELECT c.lane, c.epoch, c.due FROM (
  SELECT l.lane, l.epoch, CASE WHEN ` + dueSQL + ` THEN 1 ELSE 0 END AS due FROM {lane} l
  WHERE (l.lease_until <= ` + now + ` OR l.owner = ?)
    AND ` + workSQL + `
  ORDER BY CASE WHEN l.served_at <= ` + now + ` THEN l.served_at ELSE ` + epoch + ` END, l.lane
) c
WHERE ROWNUM <= ?`

// pendingSQL is poll over all lanes.
const pendingSQL = `
SELECT NVL(MAX(c.work), 0), NVL(MAX(c.held), 0) FROM (
  SELECT
    CASE WHEN ` + workSQL + ` THEN 1 ELSE 0 END AS work,
    CASE WHEN l.lease_until > ` + now + ` AND (l.owner IS NULL OR l.owner <> ?) THEN 1 ELSE 0 END AS held
  FROM {lane} l
) c`

// claimSQL locks one lane row by primary key, or passes by when another session has it.
const claimSQL = `
SELECT l.lane FROM {lane} l
WHERE l.lane = ? AND (l.lease_until <= ` + now + ` OR l.owner = ?)
FOR UPDATE SKIP LOCKED`

// freeSQL runs under the lock of claim, and reads the row as it is then. Whether a
// statement that skips locked rows evaluates its condition again on a row that was
// changed and committed a moment before, as one that waits does, is not documented.
const freeSQL = `
SELECT l.epoch FROM {lane} l
WHERE l.lane = ? AND (l.lease_until <= ` + now + ` OR l.owner = ?)`

// ownSQL runs under the lock of claim.
const ownSQL = `
UPDATE {lane}
SET owner = ?, epoch = epoch + 1, served_at = ` + now + `, lease_until = ` + later + `
WHERE lane = ?`

// fenceSQL is the fence. It waits for the lane row's lock; when the row was changed
// meanwhile, in a column of the condition, the server evaluates the condition again on
// the newest version, and the row is gone from the result: Oracle Database Concepts,
// "Read Committed Isolation Level", and what is known as restart or write consistency. A row is
// the lease.
const fenceSQL = `
SELECT l.epoch FROM {lane} l
WHERE l.lane = ? AND l.owner = ? AND l.epoch = ?` + waitForLock

// extendSQL runs behind the fence.
const extendSQL = `
UPDATE {lane} SET lease_until = ` + later + ` WHERE lane = ?`

// releaseSQL runs behind the fence. Without an owner the epoch alone opens no fence.
const releaseSQL = `
UPDATE {lane} SET owner = NULL, lease_until = ` + now + ` WHERE lane = ?`

// insertSQL and scheduleSQL run once a message: rows get their seq in the order of the
// array.

const insertSQL = `
INSERT INTO {ready} (lane, id, topic, key, key_hash, type, content_type, revision, replay, payload_empty, headers, payload)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`

const scheduleSQL = `
INSERT INTO {parked} (lane, id, topic, key, key_hash, type, content_type, revision, replay, payload_empty, available_at, headers, payload)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ` + later + `, ?, ?)`

// The statements of Surface run behind the fence.

// dueScheduledSQL goes along parked_due_at; whether the id is ready already is one entry
// of ready's index on id a row.
const dueScheduledSQL = `
SELECT c.pos, c.id, c.taken FROM (
  SELECT /*+ INDEX(p (state lane available_at)) */ p.pos, p.id,
    CASE WHEN EXISTS (SELECT /*+ NO_UNNEST INDEX(r (id)) */ 1 FROM {ready} r WHERE r.id = p.id) THEN 1 ELSE 0 END AS taken
  FROM {parked} p
  WHERE p.state = 1 AND p.lane = ? AND p.available_at <= ` + now + `
  ORDER BY p.available_at, p.pos
) c
WHERE ROWNUM <= ?`

// A row is copied with its content, whose columns follow each other in all statements.
const (
	content       = `lane, id, topic, key, key_hash, type, content_type, created_at, revision, replay, payload_empty, headers, payload`
	readyContent  = `r.lane, r.id, r.topic, r.key, r.key_hash, r.type, r.content_type, r.created_at, r.revision, r.replay, r.payload_empty, r.headers, r.payload`
	parkedContent = `p.lane, p.id, p.topic, p.key, p.key_hash, p.type, p.content_type, p.created_at, p.revision, p.replay, p.payload_empty, p.headers, p.payload`
)

// surfaceSQL finds its row by parked's primary key.
const surfaceSQL = `
INSERT INTO {ready} (` + content + `)
SELECT ` + parkedContent + `
FROM {parked} p
WHERE p.pos = ?`

// surfacedTwiceSQL finds its row by parked's primary key.
const surfacedTwiceSQL = `
UPDATE {parked} SET state = 4, available_at = NULL, reason = ? WHERE pos = ?`

// deleteParkedSQL finds its row by parked's primary key.
const deleteParkedSQL = `
DELETE FROM {parked} WHERE lane = ? AND pos = ? AND id = ?`

// What a turn reads is chosen first, by size, and then read, by one statement that tells
// all that decides.

// chooseReadySQL is one range of ready's primary key.
const chooseReadySQL = `
SELECT c.seq, c.weight FROM (
  SELECT /*+ INDEX(r (lane seq)) */ r.seq,
    NVL(DBMS_LOB.GETLENGTH(r.headers), 2) + NVL(DBMS_LOB.GETLENGTH(r.payload), 0) AS weight
  FROM {ready} r
  WHERE r.lane = ? AND r.seq > ?
  ORDER BY r.seq
) c
WHERE ROWNUM <= ?`

// readyColumns and parkedColumns are what rows are read by; see rowColumns and
// parkedOf. A LOB comes last.
const (
	readyColumns = `r.seq, 0, 0, r.lane, r.id, r.topic, r.key, r.key_hash, r.type, r.content_type,
    {micros r.created_at - ` + epoch + `},
    NVL(r.revision, 0), r.replay,
    {micros ` + now + ` - r.ready_at},
    r.headers`
	parkedColumns = `NVL(p.seq, 0), p.pos, p.attempts, p.lane, p.id, p.topic, p.key, p.key_hash, p.type, p.content_type,
    {micros p.created_at - ` + epoch + `},
    NVL(p.revision, 0), p.replay,
    {micros ` + now + ` - p.created_at},
    p.headers,
    p.state, p.blocking, p.reason,
    {micros p.available_at - ` + now + `},
    {micros p.parked_at - ` + epoch + `},
    CASE WHEN p.payload_empty = 1 OR DBMS_LOB.GETLENGTH(p.payload) = 0 THEN 1 ELSE 0 END, p.payload`
)

// readySQL reads a range of ready's primary key; whether a key is blocked is one entry of
// parked_blocked a row. The payload of a blocked row comes along: a second statement, or
// one that returns a LOB from a CASE, is not worth it.
const readySQL = `
SELECT /*+ INDEX(r (lane seq)) */ ` + readyColumns + `,
    CASE WHEN EXISTS (SELECT /*+ NO_UNNEST INDEX(p (blocking lane key_hash)) */ 1 FROM {parked} p
      WHERE p.blocking = 1 AND p.lane = r.lane AND p.key_hash = r.key_hash) THEN 1 ELSE 0 END,
    CASE WHEN r.payload_empty = 1 OR DBMS_LOB.GETLENGTH(r.payload) = 0 THEN 1 ELSE 0 END, r.payload
FROM {ready} r
WHERE r.lane = ? AND r.seq > ? AND r.seq <= ?
ORDER BY r.seq`

// placeColumns are what parked rows are chosen by.
const placeColumns = `p.pos, p.seq, p.key_hash, NVL(DBMS_LOB.GETLENGTH(p.headers), 2) + NVL(DBMS_LOB.GETLENGTH(p.payload), 0) AS weight`

// dueHeadsSQL goes along parked_due_at, and looks for a held row of each key by
// parked_key.
const dueHeadsSQL = `
SELECT c.pos, c.seq, c.key_hash, c.weight, c.followed FROM (
  SELECT /*+ INDEX(p (state lane available_at)) */ ` + placeColumns + `,
    CASE WHEN EXISTS (SELECT /*+ NO_UNNEST INDEX(h (lane key_hash state)) */ 1 FROM {parked} h
      WHERE h.lane = p.lane AND h.key_hash = p.key_hash AND h.state = 3) THEN 1 ELSE 0 END AS followed
  FROM {parked} p
  WHERE p.state = 2 AND p.lane = ? AND p.available_at <= ` + now + `
  ORDER BY p.available_at, p.pos
) c
WHERE ROWNUM <= ?`

// dueHeldSQL reads the first held rows of a key along parked_key, up to the next row that
// blocks the key by itself, should there be one, by parked_blocked.
const dueHeldSQL = `
SELECT c.pos, c.seq, c.key_hash, c.weight, 0 FROM (
  SELECT /*+ INDEX(p (lane key_hash state seq)) */ ` + placeColumns + `
  FROM {parked} p
  WHERE p.lane = ? AND p.key_hash = ? AND p.state = 3
    AND p.seq < NVL((SELECT /*+ INDEX(b (blocking lane key_hash seq)) */ MIN(b.seq) FROM {parked} b
      WHERE b.blocking = 1 AND b.lane = ? AND b.key_hash = ? AND b.seq > ?), 9223372036854775807)
  ORDER BY p.seq
) c
WHERE ROWNUM <= ?`

// readParkedSQL finds its rows by parked's primary key.
const readParkedSQL = `
SELECT ` + parkedColumns + `
FROM {parked} p
WHERE p.pos IN ({list})`

// settleSQL runs behind the fence.
const settleSQL = `
UPDATE {lane} SET lease_until = ` + later + `, served_at = ` + now + ` WHERE lane = ?`

// The statements below run behind the fence in its transaction, and find their rows by
// primary key. The id tells a row from another one that has taken its place.

const keysOfReadySQL = `
SELECT r.seq, r.id, r.key_hash FROM {ready} r
WHERE r.lane = ? AND r.seq IN ({list})`

const keysOfParkedSQL = `
SELECT p.pos, p.id, p.key_hash FROM {parked} p
WHERE p.lane = ? AND p.pos IN ({list})`

const archiveReadySQL = `
INSERT INTO {done} (seq, attempts, outcome, ` + content + `)
SELECT r.seq, 1, 'published', ` + readyContent + `
FROM {ready} r
WHERE r.lane = ? AND r.seq = ? AND r.id = ?`

const archiveParkedSQL = `
INSERT INTO {done} (seq, attempts, outcome, reason, ` + content + `)
SELECT p.seq, p.attempts + 1, 'published', p.reason, ` + parkedContent + `
FROM {parked} p
WHERE p.lane = ? AND p.pos = ? AND p.id = ?`

const failSQL = `
INSERT INTO {parked} (attempts, reason, state, available_at, blocking, seq, ` + content + `)
SELECT ?, ?, ?, ` + later + `, CASE WHEN r.key_hash IS NULL THEN 0 ELSE ? END, r.seq, ` + readyContent + `
FROM {ready} r
WHERE r.lane = ? AND r.seq = ? AND r.id = ?`

const failParkedSQL = `
UPDATE {parked}
SET attempts = ?, reason = ?, state = ?, available_at = ` + later + `, blocking = CASE WHEN key_hash IS NULL THEN 0 ELSE ? END
WHERE lane = ? AND pos = ? AND id = ?`

const holdSQL = `
INSERT INTO {parked} (state, seq, ` + content + `)
SELECT 3, r.seq, ` + readyContent + `
FROM {ready} r
WHERE r.lane = ? AND r.seq = ? AND r.id = ?`

const deleteReadySQL = `
DELETE FROM {ready} WHERE lane = ? AND seq = ? AND id = ?`

// demoteSQL and promoteSQL, in this order, make the first row of a key its head again.
// They run under the lane row's lock, in every transaction that changed parked rows of
// the key, once for each key.

// demoteSQL makes a retry that blocks and is not the first wait. By parked_blocked, and
// the first held row by parked_key.
const demoteSQL = `
UPDATE /*+ INDEX(b (blocking lane key_hash)) */ {parked} b
SET b.state = 3, b.blocking = 0, b.available_at = NULL
WHERE b.blocking = 1 AND b.lane = ? AND b.key_hash = ? AND b.state = 2
  AND (EXISTS (SELECT /*+ NO_UNNEST INDEX(o (blocking lane key_hash seq)) */ 1 FROM {parked} o
         WHERE o.blocking = 1 AND o.lane = b.lane AND o.key_hash = b.key_hash AND o.seq < b.seq)
    OR EXISTS (SELECT /*+ NO_UNNEST INDEX(h (lane key_hash state seq)) */ 1 FROM {parked} h
         WHERE h.state = 3 AND h.lane = b.lane AND h.key_hash = b.key_hash AND h.seq < b.seq))`

// promoteSQL makes the first held row the head when no row that blocks stands before it.
// One entry of parked_key and one of parked_blocked. The subquery that finds the row
// refers to nothing outside: it runs once, not for each held row.
const promoteSQL = `
UPDATE {parked} h
SET h.state = 2, h.blocking = 1, h.available_at = ` + now + `
WHERE h.pos = (SELECT /*+ INDEX(o (lane key_hash state seq)) */ MIN(o.pos) FROM {parked} o
         WHERE o.lane = ? AND o.key_hash = ? AND o.state = 3
           AND o.seq = (SELECT /*+ INDEX(f (lane key_hash state seq)) */ MIN(f.seq) FROM {parked} f
             WHERE f.lane = ? AND f.key_hash = ? AND f.state = 3))
  AND NOT EXISTS (SELECT /*+ NO_UNNEST INDEX(b (blocking lane key_hash seq)) */ 1 FROM {parked} b
         WHERE b.blocking = 1 AND b.lane = h.lane AND b.key_hash = h.key_hash AND b.seq < h.seq)`

// countParked counts the parked rows of a state along parked_due_at, up to the limit.
const countParked = `(SELECT /*+ INDEX(p (state lane available_at)) */ COUNT(*) FROM {parked} p WHERE ROWNUM <= ? AND p.state = `

// statsSQL counts along ready's primary key, parked_due_at and parked_blocked, each up
// to the limit. Ages are of the first ready row of each lane and of its first retry.
const statsSQL = `
SELECT
    (SELECT COUNT(*) FROM {ready} r WHERE ROWNUM <= ?),
    ` + countParked + `1),
    ` + countParked + `2),
    ` + countParked + `3),
    ` + countParked + `4),
    (SELECT COUNT(*) FROM (
        SELECT /*+ INDEX(p (blocking lane key_hash)) */ p.lane, p.key_hash FROM {parked} p
        WHERE p.blocking = 1 GROUP BY p.lane, p.key_hash) c
     WHERE ROWNUM <= ?),
    (SELECT MAX({micros ` + now + ` - r.ready_at}) FROM {lane} l, {ready} r
     WHERE r.lane = l.lane AND r.seq = (SELECT /*+ NO_UNNEST INDEX(f (lane seq)) */ MIN(f.seq) FROM {ready} f WHERE f.lane = l.lane)),
    (SELECT MAX({micros ` + now + ` - c.due}) FROM (
        SELECT (SELECT /*+ NO_UNNEST INDEX(p (state lane available_at)) */ MIN(p.available_at) FROM {parked} p
                WHERE p.state = 2 AND p.lane = l.lane) AS due
        FROM {lane} l) c),
    (SELECT COUNT(*) FROM {lane} l WHERE l.owner IS NOT NULL AND l.lease_until > ` + now + `),
    (SELECT COUNT(*) FROM {lane} l WHERE l.owner IS NOT NULL AND l.lease_until <= ` + now + `),
    (SELECT COUNT(*) FROM {lane})
FROM DUAL`

// In the operators' statements {filter} stands for the conditions of a [dialect.Filter];
// see filtered.

// parkedSQL goes along parked's primary key, or the index that serves the filter, and
// back to the rows by the primary key, so that no LOB passes through the inner queries.
const parkedSQL = `
SELECT ` + parkedColumns + `
FROM (
  SELECT c.pos FROM (
    SELECT p.pos FROM {parked} p
    WHERE p.pos > ?{filter}
    ORDER BY p.pos
  ) c
  WHERE ROWNUM <= ?
) n, {parked} p
WHERE p.pos = n.pos
ORDER BY p.pos`

// requeueable are the rows that Requeue changes. A message that was never ready becomes
// scheduled again, which its id may be once.
const requeueable = `
    AND (p.state = 4 OR (p.state IN (1, 2) AND p.available_at > ` + now + `))
    AND (p.seq IS NOT NULL OR p.state = 1 OR NOT EXISTS (
      SELECT /*+ NO_UNNEST INDEX(o (id)) */ 1 FROM {parked} o
      WHERE o.id = p.id AND o.seq IS NULL AND (o.state = 1 OR o.pos < p.pos)))`

// requeueLanesSQL finds the lanes in which there is something to requeue. It locks
// nothing.
const requeueLanesSQL = `
SELECT l.lane FROM {lane} l
WHERE EXISTS (SELECT 1 FROM {parked} p
    WHERE p.lane = l.lane` + requeueable + `{filter})
ORDER BY l.lane`

// discardLanesSQL finds the lanes in which there is something to discard. It locks
// nothing.
const discardLanesSQL = `
SELECT l.lane FROM {lane} l
WHERE EXISTS (SELECT 1 FROM {parked} p
    WHERE p.lane = l.lane{filter})
ORDER BY l.lane`

// lockLaneSQL waits for whoever is changing the lane, and keeps others from it.
const lockLaneSQL = `
SELECT l.lane FROM {lane} l WHERE l.lane = ?` + waitForLock

// chosenColumns are what rows to change are chosen by.
const chosenColumns = `p.pos, p.id, p.key_hash, CASE WHEN p.seq IS NULL THEN 0 ELSE 1 END AS placed, CASE WHEN p.state = 4 THEN 1 ELSE 0 END AS dead`

// chooseRequeueSQL is in order, so that a limit cuts the run of a key at its end.
const chooseRequeueSQL = `
SELECT c.pos, c.id, c.key_hash, c.placed, c.dead FROM (
  SELECT ` + chosenColumns + `
  FROM {parked} p
  WHERE p.lane = ?` + requeueable + `{filter}
  ORDER BY p.seq NULLS LAST, p.pos
) c
WHERE ROWNUM <= ?`

// chooseDiscardSQL is as for a requeue.
const chooseDiscardSQL = `
SELECT c.pos, c.id, c.key_hash, c.placed, c.dead FROM (
  SELECT ` + chosenColumns + `
  FROM {parked} p
  WHERE p.lane = ?{filter}
  ORDER BY p.seq NULLS LAST, p.pos
) c
WHERE ROWNUM <= ?`

// The steps of Requeue run under the lane row's lock, by parked's primary key.

const requeueWaitingSQL = `
UPDATE {parked} SET available_at = ` + now + ` WHERE pos = ?`

const requeueUnplacedSQL = `
UPDATE {parked} SET state = 1, available_at = ` + now + `, attempts = 0 WHERE pos = ?`

const requeueKeylessSQL = `
UPDATE {parked} SET state = 2, available_at = ` + now + `, attempts = 0 WHERE pos = ?`

// requeueKeyedSQL makes the rows wait for demote and promote, which find the head of each
// key.
const requeueKeyedSQL = `
UPDATE {parked} SET state = 3, blocking = 0, available_at = NULL, attempts = 0 WHERE pos = ?`

// discardSQL runs under the lane row's lock, by parked's primary key.
const discardSQL = `
INSERT INTO {done} (seq, attempts, outcome, reason, ` + content + `)
SELECT p.seq, p.attempts, 'discarded', p.reason, ` + parkedContent + `
FROM {parked} p
WHERE p.pos = ?`

// clockSQL is the server's time in microseconds since 1970.
const clockSQL = `
SELECT {micros ` + now + ` - ` + epoch + `} FROM DUAL`

// chooseReplaySQL is one range of done's primary key, or its index on id. Of an id that
// was done several times it takes only the newest row, or one call would replay it once
// a row.
const chooseReplaySQL = `
SELECT c.settled, c.pos, c.taken FROM (
  SELECT {micros d.done_at - ` + epoch + `} AS settled, d.pos,
    CASE WHEN EXISTS (SELECT /*+ NO_UNNEST INDEX(r (id)) */ 1 FROM {ready} r WHERE r.id = d.id)
      OR EXISTS (SELECT /*+ NO_UNNEST INDEX(p (id)) */ 1 FROM {parked} p WHERE p.id = d.id) THEN 1 ELSE 0 END AS taken
  FROM {done} d
  WHERE d.done_at >= ` + instant + ` AND (d.done_at > ` + instant + ` OR d.pos > ?) AND d.done_at < ` + instant + `{filter}
    AND NOT EXISTS (SELECT /*+ NO_UNNEST INDEX(n (id)) */ 1 FROM {done} n
      WHERE n.id = d.id AND (n.done_at > d.done_at OR (n.done_at = d.done_at AND n.pos > d.pos))
        AND (n.done_at < ` + instant + ` OR n.done_at >= ` + instant + `))
  ORDER BY d.done_at, d.pos
) c
WHERE ROWNUM <= ?`

// replaySQL finds its row by done_pos. It inserts as a producer does, and locks no lane.
// The count is above that of all done rows of the id (by done_id), so that a second
// replay differs from the first.
const replaySQL = `
INSERT INTO {ready} (lane, id, topic, key, key_hash, type, content_type, created_at, revision, replay, payload_empty, headers, payload)
SELECT d.lane, d.id, d.topic, d.key, d.key_hash, d.type, d.content_type, d.created_at, d.revision,
    1 + (SELECT MAX(o.replay) FROM {done} o WHERE o.id = d.id),
    d.payload_empty, d.headers, d.payload
FROM {done} d
WHERE d.pos = ?`

// choosePurgeSQL reads from the old end of done's primary key, without locks: a limit
// under a lock would count rows before it skips them.
const choosePurgeSQL = `
SELECT c.settled, c.pos FROM (
  SELECT {micros d.done_at - ` + epoch + `} AS settled, d.pos
  FROM {done} d
  WHERE d.done_at >= ` + instant + ` AND (d.done_at > ` + instant + ` OR d.pos > ?) AND d.done_at <= ` + ago + `
  ORDER BY d.done_at, d.pos
) c
WHERE ROWNUM <= ?`

// lockPurgeSQL locks what is chosen, by done_pos, but for what others have locked.
const lockPurgeSQL = `
SELECT d.pos FROM {done} d
WHERE d.pos IN ({list})
FOR UPDATE SKIP LOCKED`

// purgeSQL runs under the lock.
const purgeSQL = `
DELETE FROM {done} WHERE pos = ?`

// purgeableSQL counts from the old end of done's primary key.
const purgeableSQL = `
SELECT COUNT(*) FROM (
  SELECT 1 AS old FROM {done} d WHERE d.done_at <= ` + ago + ` AND ROWNUM <= ?
) c`

// purgeDueSQL locks meta's row; whoever waited for it finds it changed.
const purgeDueSQL = `
SELECT m.one FROM {meta} m
WHERE m.one = 1 AND m.purge_at <= ` + ago + waitForLock

// claimPurgeSQL runs under the lock of purgeDue.
const claimPurgeSQL = `
UPDATE {meta} SET purge_at = ` + now + ` WHERE one = 1`

// Revisions. An empty key is NULL, which only IS NULL finds: hence two binds for a key,
// behind its hash, which is the front of the constraint's index. What is read under the
// row's lock is written behind it.

// beginRevisionSQL makes the row of a key. That another transaction has made it since is
// an error of this statement alone (ORA-00001).
const beginRevisionSQL = `
INSERT INTO {revision} (key_hash, key, revision)
SELECT ?, ?, 0 FROM DUAL
WHERE NOT EXISTS (SELECT 1 FROM {revision} k WHERE k.key_hash = ? AND (k.key = ? OR k.key IS NULL AND ? IS NULL))`

// raiseRevisionSQL waits for another producer of the key, without end but that of the
// context.
const raiseRevisionSQL = `
UPDATE {revision} SET revision = revision + ?
WHERE key_hash = ? AND (key = ? OR key IS NULL AND ? IS NULL)`

const lastRevisionSQL = `
SELECT k.revision FROM {revision} k
WHERE k.key_hash = ? AND (k.key = ? OR k.key IS NULL AND ? IS NULL)` + waitForLock

// reviseSQL is insertSQL behind raiseRevisionSQL: the revision is that many below the last
// one of the key.
const reviseSQL = `
INSERT INTO {ready} (lane, id, topic, key, key_hash, type, content_type, revision, replay, payload_empty, headers, payload)
VALUES (?, ?, ?, ?, ?, ?, ?,
    (SELECT k.revision FROM {revision} k WHERE k.key_hash = ? AND (k.key = ? OR k.key IS NULL AND ? IS NULL)) - ?,
    ?, ?, ?, ?)`

// beginProgressSQL is as beginRevisionSQL.
const beginProgressSQL = `
INSERT INTO {progress} (consumer, key_hash, key, revision)
SELECT ?, ?, ?, 0 FROM DUAL
WHERE NOT EXISTS (SELECT 1 FROM {progress} k WHERE k.consumer = ? AND k.key_hash = ? AND (k.key = ? OR k.key IS NULL AND ? IS NULL))`

const lastProgressSQL = `
SELECT k.revision FROM {progress} k
WHERE k.consumer = ? AND k.key_hash = ? AND (k.key = ? OR k.key IS NULL AND ? IS NULL)` + waitForLock

const setProgressSQL = `
UPDATE {progress} SET revision = ?
WHERE consumer = ? AND key_hash = ? AND (key = ? OR key IS NULL AND ? IS NULL)`

const progressSQL = `
SELECT k.revision FROM {progress} k
WHERE k.consumer = ? AND k.key_hash = ? AND (k.key = ? OR k.key IS NULL AND ? IS NULL)`

// recordSQL waits for another transaction that has inserted the same, by the primary
// key. A violation undoes the statement alone.
const recordSQL = `
INSERT INTO {inbox} (consumer, message_id) VALUES (?, ?)`

// recordedSQL is one entry of the primary key.
const recordedSQL = `
SELECT COUNT(*) FROM {inbox} i WHERE i.consumer = ? AND i.message_id = ?`

// choosePurgeInboxSQL reads from the old end of inbox_recorded_at.
const choosePurgeInboxSQL = `
SELECT c.consumer, c.message_id FROM (
  SELECT /*+ INDEX(i (recorded_at)) */ i.consumer, i.message_id FROM {inbox} i
  WHERE i.recorded_at <= ` + ago + `
  ORDER BY i.recorded_at
) c
WHERE ROWNUM <= ?`

// lockPurgeInboxSQL locks what is chosen, by the primary key, but for what others have
// locked.
const lockPurgeInboxSQL = `
SELECT i.consumer, i.message_id FROM {inbox} i
WHERE (i.consumer, i.message_id) IN ({list})
FOR UPDATE SKIP LOCKED`

// purgeInboxSQL runs under the lock.
const purgeInboxSQL = `
DELETE FROM {inbox} WHERE consumer = ? AND message_id = ?`

// The audit, and what people look at.

const writeAuditSQL = `
INSERT INTO {audit} (id, ended, who, action, selection, why, changed, failure) VALUES (?, ?, ?, ?, ?, ?, ?, ?)`

// auditSQL goes backwards along audit's primary key; the second row is one entry of
// audit_id.
const auditSQL = `
SELECT b.pos, b.id, b.who, b.action, b.selection, b.why, b.begun, {micros e.written_at - ` + epoch + `}, NVL(e.changed, 0), e.failure
FROM (
  SELECT c.pos, c.id, c.who, c.action, c.selection, c.why, c.begun FROM (
    SELECT /*+ INDEX_DESC(a (pos)) */ a.pos, a.id, a.who, a.action, a.selection, a.why, {micros a.written_at - ` + epoch + `} AS begun
    FROM {audit} a
    WHERE a.pos < ? AND a.ended = 0
    ORDER BY a.pos DESC
  ) c
  WHERE ROWNUM <= ?
) b LEFT JOIN {audit} e ON e.id = b.id AND e.ended = 1
ORDER BY b.pos DESC`

const viewLanesSQL = `
SELECT l.lane, l.owner, l.epoch, {micros l.lease_until - ` + now + `},
    CASE WHEN l.served_at > ` + epoch + ` THEN {micros ` + now + ` - l.served_at} END
FROM {lane} l
ORDER BY l.lane`

// viewDoneSQL goes backwards along done's primary key.
const viewDoneSQL = `
SELECT c.pos, c.ago, c.took, c.first_time FROM (
  SELECT /*+ INDEX_DESC(d (done_at pos)) */ d.pos, {micros ` + now + ` - d.done_at} AS ago, {micros d.done_at - d.created_at} AS took,
    CASE WHEN d.outcome = 'published' AND d.replay = 0 THEN 1 ELSE 0 END AS first_time
  FROM {done} d
  ORDER BY d.done_at DESC, d.pos DESC
) c
WHERE ROWNUM <= ?`

// viewReasonsSQL goes backwards along parked's primary key.
const viewReasonsSQL = `
SELECT c.state, c.topic, c.reason FROM (
  SELECT /*+ INDEX_DESC(p (pos)) */ p.state, p.topic, p.reason
  FROM {parked} p
  ORDER BY p.pos DESC
) c
WHERE ROWNUM <= ?`

// viewMessageSQL looks into the three indexes on id.
const viewMessageSQL = `
SELECT 'ready', r.lane, r.seq, r.topic, r.key, CASE WHEN r.key_hash IS NULL THEN 0 ELSE 1 END, r.type, 0, r.replay, CAST(NULL AS RAW(2000)),
  {micros ` + now + ` - r.created_at}, {micros ` + now + ` - r.ready_at}, CAST(NULL AS NUMBER)
FROM {ready} r WHERE r.id = ?
UNION ALL
SELECT CASE p.state WHEN 1 THEN 'scheduled' WHEN 2 THEN 'retry' WHEN 3 THEN 'held' ELSE 'dead' END,
  p.lane, NVL(p.seq, 0), p.topic, p.key, CASE WHEN p.key_hash IS NULL THEN 0 ELSE 1 END, p.type, p.attempts, p.replay, p.reason,
  {micros ` + now + ` - p.created_at}, {micros ` + now + ` - p.parked_at}, {micros p.available_at - ` + now + `}
FROM {parked} p WHERE p.id = ?
UNION ALL
SELECT d.outcome, d.lane, NVL(d.seq, 0), d.topic, d.key, CASE WHEN d.key_hash IS NULL THEN 0 ELSE 1 END, d.type, d.attempts, d.replay, d.reason,
  {micros ` + now + ` - d.created_at}, {micros ` + now + ` - d.done_at}, CAST(NULL AS NUMBER)
FROM {done} d WHERE d.id = ?`

// sessionSQL is what the server and the session are. A privilege on V$ views is not
// needed.
const sessionSQL = `
SELECT v.product, v.version, SYS_CONTEXT('USERENV', 'DATABASE_ROLE'), SYS_CONTEXT('USERENV', 'CURRENT_SCHEMA'),
    SYS_CONTEXT('USERENV', 'SESSION_USER'), (SELECT COUNT(*) FROM session_privs p WHERE p.privilege = 'SELECT ANY TABLE')
FROM product_component_version v
WHERE v.product LIKE 'Oracle%'`

// tablesSQL tells which of the tables there are.
const tablesSQL = `
SELECT t.table_name FROM all_tables t
WHERE t.owner = ? AND t.table_name IN (?, ?, ?, ?, ?, ?, ?, ?, ?)`

// indexesSQL reads the indexes of the tables.
const indexesSQL = `
SELECT i.index_name, i.status FROM all_indexes i
WHERE i.table_owner = ? AND i.table_name IN (?, ?, ?, ?, ?, ?, ?, ?, ?)`

// metaSQL reads meta's row.
const metaSQL = `
SELECT m.version, m.lanes FROM {meta} m`

// lanesSQL counts the rows that are lanes, and those that are none.
const lanesSQL = `
SELECT NVL(SUM(CASE WHEN l.lane BETWEEN 0 AND ? - 1 THEN 1 ELSE 0 END), 0), NVL(SUM(CASE WHEN l.lane BETWEEN 0 AND ? - 1 THEN 0 ELSE 1 END), 0)
FROM {lane} l`

// statements are the statements rendered for one set of tables, under the names of their
// constants.
type statements struct {
	readCommitted                                           string
	poll, pending, claim, free, own, fence, extend, release string
	insert, schedule                                        string
	dueScheduled, surface, surfacedTwice, deleteParked      string
	chooseReady, ready                                      string
	dueHeads, dueHeld                                       string
	settle                                                  string
	archiveReady, archiveParked, fail, failParked, hold     string
	deleteReady, demote, promote                            string
	stats, lockLane                                         string
	requeueWaiting, requeueUnplaced                         string
	requeueKeyless, requeueKeyed, discard                   string
	clock, replay, choosePurge, purge                       string
	purgeDue, claimPurge, purgeable                         string
	record, recorded, choosePurgeInbox, purgeInbox          string
	beginRevision, raiseRevision, lastRevision, revise      string
	beginProgress, lastProgress, setProgress, progress      string
	writeAudit, audit, viewLanes, viewDone, viewReasons     string
	viewMessage                                             string
	session, tables, indexes, meta, lanes                   string
	parked, requeueLanes, discardLanes                      filtered
	chooseRequeue, chooseDiscard, chooseReplay              filtered
	readParked, keysOfReady, keysOfParked                   listed
	lockPurge, lockPurgeInbox                               listed
}

func render(t dialect.Tables) statements {
	x := func(text string) string {
		text, _ = number(strings.TrimSpace(text), 0)
		return expand(text, t)
	}
	f := func(text string) filtered {
		head, tail, _ := strings.Cut(strings.TrimSpace(text), "{filter}")
		head, binds := number(head, 0)
		q := filtered{head: expand(head, t), binds: binds}
		for part := range strings.SplitSeq(tail, "?") {
			q.tail = append(q.tail, expand(part, t))
		}
		return q
	}
	l := func(text string, width int) listed {
		head, tail, _ := strings.Cut(strings.TrimSpace(text), "{list}")
		head, binds := number(head, 0)
		return listed{head: expand(head, t), tail: expand(tail, t), binds: binds, width: width}
	}
	return statements{
		readCommitted: x(readCommittedSQL),
		poll:          x(pollSQL), pending: x(pendingSQL), claim: x(claimSQL), free: x(freeSQL), own: x(ownSQL),
		fence: x(fenceSQL), extend: x(extendSQL), release: x(releaseSQL),
		insert: x(insertSQL), schedule: x(scheduleSQL),
		dueScheduled: x(dueScheduledSQL), surface: x(surfaceSQL), surfacedTwice: x(surfacedTwiceSQL), deleteParked: x(deleteParkedSQL),
		chooseReady: x(chooseReadySQL), ready: x(readySQL),
		dueHeads: x(dueHeadsSQL), dueHeld: x(dueHeldSQL),
		settle:       x(settleSQL),
		archiveReady: x(archiveReadySQL), archiveParked: x(archiveParkedSQL), fail: x(failSQL), failParked: x(failParkedSQL), hold: x(holdSQL),
		deleteReady: x(deleteReadySQL), demote: x(demoteSQL), promote: x(promoteSQL),
		stats: x(statsSQL), lockLane: x(lockLaneSQL),
		requeueWaiting: x(requeueWaitingSQL), requeueUnplaced: x(requeueUnplacedSQL),
		requeueKeyless: x(requeueKeylessSQL), requeueKeyed: x(requeueKeyedSQL), discard: x(discardSQL),
		clock: x(clockSQL), replay: x(replaySQL), choosePurge: x(choosePurgeSQL), purge: x(purgeSQL),
		purgeDue: x(purgeDueSQL), claimPurge: x(claimPurgeSQL), purgeable: x(purgeableSQL),
		record: x(recordSQL), recorded: x(recordedSQL), choosePurgeInbox: x(choosePurgeInboxSQL), purgeInbox: x(purgeInboxSQL),
		beginRevision: x(beginRevisionSQL), raiseRevision: x(raiseRevisionSQL), lastRevision: x(lastRevisionSQL), revise: x(reviseSQL),
		beginProgress: x(beginProgressSQL), lastProgress: x(lastProgressSQL), setProgress: x(setProgressSQL), progress: x(progressSQL),
		writeAudit: x(writeAuditSQL), audit: x(auditSQL),
		viewLanes: x(viewLanesSQL), viewDone: x(viewDoneSQL), viewReasons: x(viewReasonsSQL), viewMessage: x(viewMessageSQL),
		session: x(sessionSQL), tables: x(tablesSQL), indexes: x(indexesSQL), meta: x(metaSQL), lanes: x(lanesSQL),
		parked: f(parkedSQL), requeueLanes: f(requeueLanesSQL), discardLanes: f(discardLanesSQL),
		chooseRequeue: f(chooseRequeueSQL), chooseDiscard: f(chooseDiscardSQL), chooseReplay: f(chooseReplaySQL),
		readParked: l(readParkedSQL, 1), keysOfReady: l(keysOfReadySQL, 1), keysOfParked: l(keysOfParkedSQL, 1),
		lockPurge: l(lockPurgeSQL, 1), lockPurgeInbox: l(lockPurgeInboxSQL, 2),
	}
}

// number writes the binds of a text, which follow the first n of its statement, and
// returns how many there are with them. It runs before names are filled in, which may
// hold a question mark.
func number(text string, n int) (string, int) {
	first, rest, _ := strings.Cut(text, "?")
	if len(first) == len(text) {
		return text, n
	}
	var b strings.Builder
	b.WriteString(first)
	for part := range strings.SplitSeq(rest, "?") {
		n++
		b.WriteString(":" + strconv.Itoa(n) + part)
	}
	return b.String(), n
}

// expand fills names into a text.
func expand(text string, t dialect.Tables) string {
	text = intervals.ReplaceAllString(text, `(EXTRACT(DAY FROM ($1)) * 86400000000 + EXTRACT(HOUR FROM ($1)) * 3600000000`+
		` + EXTRACT(MINUTE FROM ($1)) * 60000000 + TRUNC(EXTRACT(SECOND FROM ($1)) * 1000000))`)
	// An index that is not qualified is made in the session's schema, not in that of its
	// table.
	qualifier := ""
	if t.Schema != "" {
		qualifier = "{schema}."
	}
	text = strings.ReplaceAll(text, "{index:", qualifier+"{name:")
	return dialect.Expand(text, t, quote)
}

var intervals = regexp.MustCompile(`\{micros ([^{}]+)\}`)

// filtered is a statement around the conditions of a filter. It is cut before names are
// filled in, so that no name can be taken for the place.
type filtered struct {
	head  string
	binds int      // of head
	tail  []string // between its binds
}

// with renders the statement with f's conditions.
func (q filtered) with(f *conditions) string {
	var b strings.Builder
	b.WriteString(q.head)
	n := q.binds
	for _, c := range f.list {
		var text string
		text, n = number(c.text, n)
		b.WriteString("\n    AND " + text)
	}
	for i, part := range q.tail {
		if i > 0 {
			n++
			b.WriteString(":" + strconv.Itoa(n))
		}
		b.WriteString(part)
	}
	return b.String()
}

// listed is a statement around a list of binds, or of tuples of binds.
type listed struct {
	head, tail string
	binds      int // of head
	width      int // of a tuple
}

// mostInList is the most elements of a list: Oracle allows 1,000 up to version 21
// (ORA-01795).
const mostInList = 1000

// lengths are how many elements a list has: few texts, which the server keeps parsed. A
// list is filled up with its last element.
var lengths = []int{1, 10, 100, 500, mostInList}

// most is the most elements that a list of q takes.
func (q listed) most() int { return mostInList / q.width }

// with renders the statement for at least n elements, at most most, and returns for how
// many it is.
func (q listed) with(n int) (string, int) {
	for _, length := range lengths {
		if length >= n {
			n = length
			break
		}
	}
	var b strings.Builder
	b.WriteString(q.head)
	bind := q.binds
	for i := range n {
		if i > 0 {
			b.WriteString(", ")
		}
		if q.width > 1 {
			b.WriteString("(")
		}
		for j := range q.width {
			if j > 0 {
				b.WriteString(", ")
			}
			bind++
			b.WriteString(":" + strconv.Itoa(bind))
		}
		if q.width > 1 {
			b.WriteString(")")
		}
	}
	b.WriteString(q.tail)
	return b.String(), n
}
