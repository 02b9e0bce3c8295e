package sqlserver

import (
	"strings"

	"github.com/outbox-suite/outbox/dialect"
)

// Rules all statements keep. What they rest on is Microsoft's reference, by the titles
// of its pages; none has been executed.
//
//   - Every statement runs in a READ COMMITTED transaction, because READPAST is refused
//     at SNAPSHOT and SERIALIZABLE, which a pooled session may be left at.
//   - READPAST stands in what looks for work (poll, stats, recorded), in claim, in
//     purge and where messages surface, never where messages are read to be delivered:
//     to skip an older row that is locked would publish a newer one of its key.
//     READCOMMITTEDLOCK stands with each, because READPAST is refused without it where
//     READ_COMMITTED_SNAPSHOT is ON; ROWLOCK, because only row locks are passed by
//     ("Table hints"). That page puts both in a group of which a table may have one; the
//     server takes both, as Rebus.SqlServer's lease transport and others have them.
//   - READUNCOMMITTED stands in one place, which asks whether an id has been inserted and
//     not committed. Nothing it sees is kept.
//   - UPDLOCK keeps the lock to the end of the transaction. It locks one row by primary
//     key, or as many as TOP takes from the front of an index in its order: no sort
//     stands between, which would lock all before TOP cuts.
//   - FORCESEEK, INDEX and LOOP JOIN name the way to the rows, whatever the optimizer
//     believes of a table that was full a minute ago. A scan would wait for, and lock,
//     the rows of producers. INDEX (1) is the clustered index.
//   - A list is one parameter, JSON in ASCII, which OPENJSON makes rows of: no
//     statement's text or number of parameters (2,100 at most) depends on a list. A
//     table-valued parameter would do too, but needs a type in the schema that cannot be
//     altered. Elements are objects, bytes are hexadecimal, and n is the place in the
//     list, which OPENJSON does not tell beside WITH.
//   - Parameters have the type of the column they meet: int, bigint and varbinary, and
//     literals where the column is varchar. id meets binary(16).
//   - No OUTPUT, which fails on a table with triggers, and no count of changed rows,
//     which triggers add to and NOCOUNT takes away: what matters is selected, under the
//     lock, before it is changed.
//   - SYSUTCDATETIME stands still within a statement, also while it waits for a lock, so
//     what is written under a lock is written by the next statement. It has seven
//     digits; all times here have six, rounded the same way everywhere.
//   - Binary values that differ in trailing zero bytes only are equal to the server.
//     DATALENGTH tells them apart where a user's text is compared.

const (
	// now is the server's time.
	now = `CAST(SYSUTCDATETIME() AS datetime2(6))`
	// epoch is the beginning of the microseconds that times leave the server as.
	epoch = `CAST('1970-01-01T00:00:00' AS datetime2(6))`
)

// after is a time plus microseconds, an expression of type bigint. DATEADD takes an
// int, which microseconds outgrow after 36 minutes: hence days, seconds of the day and
// microseconds of the second.
func after(time, micros string) string {
	return `DATEADD(microsecond, CAST(` + micros + ` % 1000000 AS int), DATEADD(second, CAST(` + micros +
		` / 1000000 % 86400 AS int), DATEADD(day, CAST(` + micros + ` / 1000000 / 86400 AS int), ` + time + `)))`
}

// since is the time so many microseconds after the epoch.
func since(micros string) string { return `CAST(` + after(epoch, micros) + ` AS datetime2(6))` }

// micros1970 is a time in microseconds since the epoch.
func micros1970(time string) string { return `DATEDIFF_BIG(microsecond, ` + epoch + `, ` + time + `)` }

// age is how many microseconds ago a time was.
func age(time string) string { return `DATEDIFF_BIG(microsecond, ` + time + `, ` + now + `)` }

// hexID is an id in hexadecimal as the column has it.
func hexID(text string) string { return `CONVERT(binary(16), ` + text + `, 2)` }

// hexBytes is text in hexadecimal as bytes of any length, so that what is too long for
// its column is an error and not cut.
func hexBytes(text string) string { return `CONVERT(varbinary(max), ` + text + `, 2)` }

// The hints.
const (
	seekPK    = `WITH (FORCESEEK, INDEX (1))`
	probePK   = `WITH (FORCESEEK, INDEX (1), READPAST, ROWLOCK, READCOMMITTEDLOCK)`
	lockOne   = `WITH (FORCESEEK, INDEX (1), UPDLOCK, ROWLOCK, READCOMMITTEDLOCK)`
	lockPast  = `UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK`
	probePast = `READPAST, ROWLOCK, READCOMMITTEDLOCK`
)

// seek goes along an index.
func seek(index string) string { return `WITH (FORCESEEK, INDEX ({name:` + index + `}))` }

// probe goes along an index, past locked rows.
func probe(index string) string {
	return `WITH (FORCESEEK, INDEX ({name:` + index + `}), ` + probePast + `)`
}

// dirty goes along an index and sees what is not committed.
func dirty(index string) string {
	return `WITH (FORCESEEK, INDEX ({name:` + index + `}), READUNCOMMITTED)`
}

// The lists.
const (
	refList     = `OPENJSON(@p1) WITH (nth int '$.n', place bigint '$.p', id varchar(32) '$.i')`
	keyList     = `OPENJSON(@p1) WITH (key_hash bigint '$.k')`
	failureList = `OPENJSON(@p1) WITH (nth int '$.n', place bigint '$.p', id varchar(32) '$.i', attempts int '$.a',
    dead int '$.d', blocking int '$.b', delay bigint '$.w', reason varchar(max) '$.r')`
	messageList = `OPENJSON(CAST(@p1 AS nvarchar(max))) WITH (nth int '$.n', lane int '$.lane', id varchar(32) '$.id', topic varchar(max) '$.topic',
    message_key varchar(max) '$.key', key_hash bigint '$.hash', type varchar(max) '$.type', content_type varchar(max) '$.content_type',
    payload varchar(max) '$.payload', headers varchar(max) '$.headers', revision bigint '$.revision', replay int '$.replay', delay bigint '$.delay')`
)

// content are the columns that all three tables of messages share, but for seq, and
// contentOf the same of one table.
const content = `lane, id, topic, [key], key_hash, type, content_type, payload, headers, created_at, revision, replay`

func contentOf(t string) string { return t + `.` + strings.ReplaceAll(content, `, `, `, `+t+`.`) }

// readyOf and parkedOf join the rows that a list names, in lane @p2, each by place and
// id, by primary key.
var (
	readyOf = `INNER LOOP JOIN {ready} AS r ` + seekPK + `
   ON r.lane = @p2 AND r.seq = n.place AND r.id = ` + hexID(`n.id`)
	parkedOf = `INNER LOOP JOIN {parked} AS p ` + seekPK + `
   ON p.pos = n.place AND p.id = ` + hexID(`n.id`) + ` AND p.lane = @p2`
)

// someDue tells whether a lane has a parked row that is due, by the first entries of
// parked_due_at; someReady is the newest ready row of a lane.
func someDue(hints string) string {
	first := func(state string) string {
		return `(SELECT TOP (1) p.available_at FROM {parked} AS p ` + hints + `
         WHERE p.lane = l.lane AND p.state = '` + state + `' ORDER BY p.available_at) <= ` + now
	}
	return first(dialect.Retry) + `
    OR ` + first(dialect.Scheduled)
}

func someReady(hints string) string {
	return `(SELECT TOP (1) r.seq FROM {ready} AS r ` + hints + `
         WHERE r.lane = l.lane ORDER BY r.seq DESC)`
}

var pollSQL = `
-- Reads the lane rows, and of each lane one entry of ready's primary key and two of
-- parked_due_at. The newest ready row is looked for first, because the ghosts of deleted
-- rows lie at the other end. What is locked is passed by: a lane whose owner is settling
-- is not free, and a row that is not committed is not ready. A time ahead of now is from
-- before the clock was set back.
SELECT TOP (@p2) l.lane, l.epoch, CASE WHEN ` + someDue(probe("parked_due_at")) + ` THEN 1 ELSE 0 END
FROM {lane} AS l WITH (` + probePast + `)
WHERE (l.lease_until <= ` + now + ` OR l.owner = @p1)
  AND (` + someReady(probePK) + ` > 0
    OR ` + someDue(probe("parked_due_at")) + `)
ORDER BY CASE WHEN l.served_at <= ` + now + ` THEN l.served_at ELSE ` + epoch + ` END, l.lane`

var pendingSQL = `
-- As poll, over all lanes, but waits for locked rows: what is about to be settled may
-- still be there after.
SELECT COALESCE(MAX(w.work), 0), COALESCE(MAX(w.held), 0)
FROM (
    SELECT
        CASE WHEN ` + someReady(seekPK) + ` > 0
    OR ` + someDue(seek("parked_due_at")) + ` THEN 1 ELSE 0 END AS work,
        CASE WHEN l.lease_until > ` + now + ` AND l.owner <> @p1 THEN 1 ELSE 0 END AS held
    FROM {lane} AS l
) AS w`

const claimSQL = `
-- Locks one lane row by primary key, or passes by when another session has it.
SELECT l.epoch FROM {lane} AS l WITH (FORCESEEK, INDEX (1), ` + lockPast + `)
WHERE l.lane = @p1 AND (l.lease_until <= ` + now + ` OR l.owner = @p2)`

var ownSQL = `
-- Under the lock of claim.
UPDATE {lane}
SET owner = @p1, epoch = epoch + 1, served_at = ` + now + `, lease_until = ` + after(now, `@p2`) + `
WHERE lane = @p3`

const fenceSQL = `
-- The fence: waits for the lane row's lock, then finds the lease in its newest version,
-- also where READ_COMMITTED_SNAPSHOT is ON. A row is the lease.
SELECT l.epoch FROM {lane} AS l ` + lockOne + `
WHERE l.lane = @p1 AND l.owner = @p2 AND l.epoch = @p3`

var extendSQL = `
-- Behind the fence.
UPDATE {lane} SET lease_until = ` + after(now, `@p1`) + ` WHERE lane = @p2`

const releaseSQL = `
-- Behind the fence. Without an owner the epoch alone opens no fence.
UPDATE {lane} SET owner = 0x, lease_until = ` + now + ` WHERE lane = @p1`

const lockLaneSQL = `
-- Waits for whoever is changing the lane, and keeps others from it.
SELECT l.lane FROM {lane} AS l ` + lockOne + ` WHERE l.lane = @p1`

// messageColumns are the columns of messageList as insert and schedule take them.
var messageColumns = `m.lane, ` + hexID(`m.id`) + `, ` + hexBytes(`m.topic`) + `, ` + hexBytes(`m.message_key`) + `, m.key_hash,
    ` + hexBytes(`m.type`) + `, ` + hexBytes(`m.content_type`) + `, ` + hexBytes(`m.payload`) + `, ` + hexBytes(`m.headers`) + `, m.revision, m.replay`

var insertSQL = `
-- seq follows the list: "INSERT queries that use SELECT with ORDER BY to populate rows
-- guarantees how identity values are computed" (INSERT, limitations). NULL stays NULL
-- through CONVERT, and empty stays empty.
INSERT INTO {ready} (lane, id, topic, [key], key_hash, type, content_type, payload, headers, revision, replay)
SELECT ` + messageColumns + `
FROM ` + messageList + ` AS m
ORDER BY m.nth`

var scheduleSQL = `
-- As insert.
INSERT INTO {parked} (lane, id, topic, [key], key_hash, type, content_type, payload, headers, revision, replay, available_at)
SELECT ` + messageColumns + `,
    ` + after(now, `m.delay`) + `
FROM ` + messageList + ` AS m
ORDER BY m.nth`

// The statements of Surface run behind the fence.

var dueScheduledSQL = `
-- Along parked_due_at, past rows that are not committed; whether the id is ready already,
-- or is in the hands of an open transaction, are two looks at one entry of ready's index
-- on id a row. Waits for nobody: the lane row is locked.
SELECT TOP (@p2) p.pos, p.id,
    CASE WHEN (SELECT TOP (1) r.seq FROM {ready} AS r ` + probe("id") + ` WHERE r.id = p.id) IS NULL THEN 0 ELSE 1 END,
    CASE WHEN (SELECT TOP (1) r.seq FROM {ready} AS r ` + dirty("id") + ` WHERE r.id = p.id) IS NULL THEN 0 ELSE 1 END
FROM {parked} AS p ` + probe("parked_due_at") + `
WHERE p.lane = @p1 AND p.state = 'scheduled' AND p.available_at <= ` + now + `
ORDER BY p.available_at, p.pos`

var surfaceSQL = `
-- By parked's primary key, in the order of the list.
INSERT INTO {ready} (` + content + `)
SELECT ` + contentOf(`p`) + `
FROM ` + refList + ` AS n
` + parkedOf + `
ORDER BY n.nth`

var surfacedTwiceSQL = `
-- By parked's primary key.
UPDATE p
SET state = 'dead', available_at = NULL, reason = @p3, twin = -p.pos
FROM ` + refList + ` AS n
` + parkedOf

var deleteParkedSQL = `
-- By parked's primary key.
DELETE p
FROM ` + refList + ` AS n
` + parkedOf

// Ready reads in five steps. Where READ_COMMITTED_SNAPSHOT is OFF, a statement sees no
// one moment: a scan might have passed the place of message n when that was not yet
// there, and still come to n + 1. So boundReady first finds the last seq to go to. Rows
// up to there had their seq before boundReady saw the last of them; whichever row of a
// key chooseReady then finds, the one before it was committed when that one began. What
// is blocked is asked under the lane row's lock, which all hold who change parked rows
// of the lane, scheduled ones aside: otherwise the head of a key might move behind the
// reader's back. The lock comes after chooseReady, which may wait for producers.

const boundReadySQL = `
-- One range of ready's primary key.
SELECT MAX(b.seq) FROM (
    SELECT TOP (@p3) r.seq FROM {ready} AS r ` + seekPK + `
    WHERE r.lane = @p1 AND r.seq > @p2
    ORDER BY r.seq
) AS b`

const chooseReadySQL = `
-- One range of ready's primary key.
SELECT TOP (@p4) r.seq, r.id, r.key_hash, DATALENGTH(r.headers), COALESCE(DATALENGTH(r.payload), 0)
FROM {ready} AS r ` + seekPK + `
WHERE r.lane = @p1 AND r.seq > @p2 AND r.seq <= @p3
ORDER BY r.seq`

var blockedSQL = `
-- One entry of parked_blocked a key.
SELECT n.key_hash
FROM ` + keyList + ` AS n
WHERE (SELECT TOP (1) p.seq FROM {parked} AS p ` + seek("parked_blocked") + `
       WHERE p.blocking = 1 AND p.lane = @p2 AND p.key_hash = n.key_hash ORDER BY p.seq) IS NOT NULL`

var readySQL = `
-- By ready's primary key. The payload of a blocked row stays where it is.
SELECT r.seq, 0, 0, r.lane, r.id, r.topic, r.[key], r.key_hash, r.type, r.content_type,
    CASE WHEN n.blocked = 0 THEN r.payload END, r.headers,
    ` + micros1970(`r.created_at`) + `, COALESCE(r.revision, 0), r.replay,
    ` + age(`r.ready_at`) + `, n.blocked
FROM OPENJSON(@p1) WITH (nth int '$.n', place bigint '$.p', id varchar(32) '$.i', blocked int '$.b') AS n
` + readyOf + `
ORDER BY n.nth`

// The statements of Due run under the lane row's lock.

const placeColumns = `p.pos, p.id, p.seq, p.key_hash, p.blocking, DATALENGTH(p.headers) + COALESCE(DATALENGTH(p.payload), 0)`

var dueHeadsSQL = `
-- Along parked_due_at.
SELECT TOP (@p2) ` + placeColumns + `
FROM {parked} AS p ` + seek("parked_due_at") + `
WHERE p.lane = @p1 AND p.state = 'retry' AND p.available_at <= ` + now + `
ORDER BY p.available_at, p.pos`

var dueBarrierSQL = `
-- The next row that blocks the key by itself, should there be one, by parked_blocked.
SELECT TOP (1) p.seq
FROM {parked} AS p ` + seek("parked_blocked") + `
WHERE p.blocking = 1 AND p.lane = @p1 AND p.key_hash = @p2 AND p.seq > @p3
ORDER BY p.seq`

var dueHeldSQL = `
-- The first held rows of a key, along parked_key.
SELECT TOP (@p4) ` + placeColumns + `
FROM {parked} AS p ` + seek("parked_key") + `
WHERE p.lane = @p1 AND p.key_hash = @p2 AND p.state = 'held' AND p.seq < @p3
ORDER BY p.seq`

// parkedColumns are what a parked row is read by.
var parkedColumns = `COALESCE(p.seq, 0), p.pos, p.attempts, p.lane, p.id, p.topic, p.[key], p.key_hash, p.type, p.content_type,
    p.payload, p.headers,
    ` + micros1970(`p.created_at`) + `, COALESCE(p.revision, 0), p.replay,
    ` + age(`p.created_at`) + `, 0`

var readParkedSQL = `
-- By parked's primary key, in the order of the list.
SELECT ` + parkedColumns + `
FROM ` + refList + ` AS n
` + parkedOf + `
ORDER BY n.nth`

var settleSQL = `
-- Behind the fence.
UPDATE {lane} SET lease_until = ` + after(now, `@p1`) + `, served_at = ` + now + ` WHERE lane = @p2`

// The statements below run behind the fence in its transaction, and find their rows
// by primary key.

var keysOfReadySQL = `
SELECT DISTINCT r.key_hash
FROM ` + refList + ` AS n
` + readyOf + `
WHERE r.key_hash IS NOT NULL`

var keysOfParkedSQL = `
SELECT DISTINCT p.key_hash
FROM ` + refList + ` AS n
` + parkedOf + `
WHERE p.key_hash IS NOT NULL`

var archiveReadySQL = `
INSERT INTO {done} (seq, ` + content + `, attempts, outcome)
SELECT r.seq, ` + contentOf(`r`) + `, 1, 'published'
FROM ` + refList + ` AS n
` + readyOf + `
ORDER BY r.seq`

var archiveParkedSQL = `
INSERT INTO {done} (seq, ` + content + `, attempts, outcome, reason)
SELECT p.seq, ` + contentOf(`p`) + `, p.attempts + 1, 'published', p.reason
FROM ` + refList + ` AS n
` + parkedOf + `
ORDER BY n.nth`

var failSQL = `
INSERT INTO {parked} (seq, ` + content + `, attempts, reason, blocking, state, available_at, twin)
SELECT r.seq, ` + contentOf(`r`) + `, n.attempts, ` + hexBytes(`n.reason`) + `,
    CASE WHEN n.blocking = 1 AND r.key_hash IS NOT NULL THEN 1 ELSE 0 END,
    CASE WHEN n.dead = 1 THEN 'dead' ELSE 'retry' END,
    CASE WHEN n.dead = 0 THEN ` + after(now, `n.delay`) + ` END, r.seq
FROM ` + failureList + ` AS n
` + readyOf + `
ORDER BY r.seq`

var failParkedSQL = `
UPDATE p
SET attempts = n.attempts, reason = ` + hexBytes(`n.reason`) + `,
    blocking = CASE WHEN n.blocking = 1 AND p.key_hash IS NOT NULL THEN 1 ELSE 0 END,
    state = CASE WHEN n.dead = 1 THEN 'dead' ELSE 'retry' END,
    available_at = CASE WHEN n.dead = 0 THEN ` + after(now, `n.delay`) + ` END
FROM ` + failureList + ` AS n
` + parkedOf

var holdSQL = `
INSERT INTO {parked} (seq, ` + content + `, state, twin)
SELECT r.seq, ` + contentOf(`r`) + `, 'held', r.seq
FROM ` + refList + ` AS n
` + readyOf + `
ORDER BY r.seq`

var deleteReadySQL = `
DELETE r
FROM ` + refList + ` AS n
` + readyOf

// firstRows, demote and promote make the first row of each key its head again. They run
// under the lane row's lock, in every transaction that changed parked rows of these
// keys.

var firstRowsSQL = `
-- The first row of each key that blocks, by parked_blocked, and the first that is held,
-- by parked_key.
SELECT n.key_hash, b.seq, h.seq, h.pos, h.id
FROM ` + keyList + ` AS n
OUTER APPLY (
    SELECT TOP (1) p.seq FROM {parked} AS p ` + seek("parked_blocked") + `
    WHERE p.blocking = 1 AND p.lane = @p2 AND p.key_hash = n.key_hash ORDER BY p.seq) AS b
OUTER APPLY (
    SELECT TOP (1) p.seq, p.pos, p.id FROM {parked} AS p ` + seek("parked_key") + `
    WHERE p.lane = @p2 AND p.key_hash = n.key_hash AND p.state = 'held' ORDER BY p.seq) AS h`

var demoteSQL = `
-- A retry that blocks and is not the first waits.
UPDATE p
SET state = 'held', blocking = 0, available_at = NULL
FROM OPENJSON(@p1) WITH (key_hash bigint '$.k', head bigint '$.h') AS n
INNER LOOP JOIN {parked} AS p ` + seek("parked_blocked") + `
   ON p.blocking = 1 AND p.lane = @p2 AND p.key_hash = n.key_hash AND p.seq > n.head
WHERE p.state = 'retry'`

var promoteSQL = `
-- By parked's primary key.
UPDATE p
SET state = 'retry', blocking = 1, available_at = ` + now + `
FROM ` + refList + ` AS n
` + parkedOf

// countParked counts the parked rows of a state along parked_due_at, lane by lane, up
// to the limit.
func countParked(state string) string {
	return `(SELECT COUNT_BIG(*) FROM (
        SELECT TOP (@p1) p.pos FROM {lane} AS l INNER LOOP JOIN {parked} AS p ` + probe("parked_due_at") + `
           ON p.lane = l.lane AND p.state = '` + state + `') AS c)`
}

var statsSQL = `
-- Counts go along ready's primary key, parked_due_at and parked_blocked, and stop at the
-- limit. Messages that are locked are passed by: a health check must not wait for a
-- producer.
SELECT
    (SELECT COUNT_BIG(*) FROM (
        SELECT TOP (@p1) r.seq FROM {lane} AS l INNER LOOP JOIN {ready} AS r ` + probePK + ` ON r.lane = l.lane) AS c),
    ` + countParked(dialect.Scheduled) + `,
    ` + countParked(dialect.Retry) + `,
    ` + countParked(dialect.Held) + `,
    ` + countParked(dialect.Dead) + `,
    (SELECT COUNT_BIG(*) FROM (
        SELECT DISTINCT TOP (@p1) p.lane, p.key_hash FROM {parked} AS p ` + probe("parked_blocked") + ` WHERE p.blocking = 1) AS c),
    (SELECT COALESCE(MAX(o.age), 0) FROM (
        SELECT ` + age(`(SELECT TOP (1) r.ready_at FROM {ready} AS r `+probePK+` WHERE r.lane = l.lane ORDER BY r.seq)`) + ` AS age
        FROM {lane} AS l
        UNION ALL
        SELECT ` + age(`(SELECT TOP (1) p.available_at FROM {parked} AS p `+probe("parked_due_at")+`
            WHERE p.lane = l.lane AND p.state = 'retry' ORDER BY p.available_at)`) + `
        FROM {lane} AS l) AS o
     WHERE o.age > 0),
    (SELECT COUNT(*) FROM {lane} AS l WHERE l.owner <> 0x AND l.lease_until > ` + now + `),
    (SELECT COUNT(*) FROM {lane} AS l WHERE l.owner <> 0x AND l.lease_until <= ` + now + `),
    (SELECT COUNT(*) FROM {lane} AS l)`

// In the operators' statements {filter} stands for the conditions of a
// [dialect.Filter]; see filter. Their parameters follow the statement's own.

var parkedSQL = `
-- Along parked's primary key, or the index that serves the filter.
SELECT TOP (@p2) ` + parkedColumns + `,
    p.state, p.blocking, COALESCE(p.reason, 0x),
    DATEDIFF_BIG(microsecond, ` + now + `, p.available_at),
    ` + micros1970(`p.parked_at`) + `
FROM {parked} AS p
WHERE p.pos > @p1{filter}
ORDER BY p.pos`

// requeueable are the rows that Requeue changes. A message that was never ready
// becomes scheduled again, which its id may be once.
const requeueable = `
      AND (p.state = 'dead' OR (p.state IN ('scheduled', 'retry') AND p.available_at > ` + now + `))
      AND (p.seq IS NOT NULL OR p.state = 'scheduled' OR NOT EXISTS (
        SELECT 1 FROM {parked} AS o
        WHERE o.id = p.id AND o.seq IS NULL AND (o.state = 'scheduled' OR o.pos < p.pos)))`

const requeueLanesSQL = `
-- The lanes in which there is something to requeue.
SELECT l.lane FROM {lane} AS l
WHERE EXISTS (SELECT 1 FROM {parked} AS p WHERE p.lane = l.lane` + requeueable + `{filter})
ORDER BY l.lane`

const discardLanesSQL = `
-- The lanes in which there is something to discard.
SELECT l.lane FROM {lane} AS l
WHERE EXISTS (SELECT 1 FROM {parked} AS p WHERE p.lane = l.lane{filter})
ORDER BY l.lane`

// chosenColumns are what an operator's row is chosen by.
const chosenColumns = `p.pos, p.id, CASE WHEN p.seq IS NULL THEN 0 ELSE 1 END, p.key_hash, CASE WHEN p.state = 'dead' THEN 1 ELSE 0 END`

const chooseRequeueSQL = `
-- Under the lane row's lock. In order, so that a limit cuts the run of a key at its end.
SELECT TOP (@p2) ` + chosenColumns + `
FROM {parked} AS p
WHERE p.lane = @p1` + requeueable + `{filter}
ORDER BY CASE WHEN p.seq IS NULL THEN 1 ELSE 0 END, p.seq, p.pos`

const chooseDiscardSQL = `
-- As for a requeue.
SELECT TOP (@p2) ` + chosenColumns + `
FROM {parked} AS p
WHERE p.lane = @p1{filter}
ORDER BY CASE WHEN p.seq IS NULL THEN 1 ELSE 0 END, p.seq, p.pos`

// The steps of Requeue run under the lane row's lock, by parked's primary key.

var requeueWaitingSQL = `
UPDATE p
SET available_at = ` + now + `
FROM ` + refList + ` AS n
` + parkedOf

var requeueUnplacedSQL = `
UPDATE p
SET state = 'scheduled', twin = 0, available_at = ` + now + `, attempts = 0
FROM ` + refList + ` AS n
` + parkedOf

var requeueKeylessSQL = `
UPDATE p
SET state = 'retry', available_at = ` + now + `, attempts = 0
FROM ` + refList + ` AS n
` + parkedOf

var requeueKeyedSQL = `
-- The rows wait for demote and promote, which find the head of each key.
UPDATE p
SET state = 'held', blocking = 0, available_at = NULL, attempts = 0
FROM ` + refList + ` AS n
` + parkedOf

var discardSQL = `
-- By parked's primary key, under the lane row's lock.
INSERT INTO {done} (seq, ` + content + `, attempts, outcome, reason)
SELECT p.seq, ` + contentOf(`p`) + `, p.attempts, 'discarded', p.reason
FROM ` + refList + ` AS n
` + parkedOf + `
ORDER BY n.nth`

var clockSQL = `
-- The server's time in microseconds since 1970.
SELECT ` + micros1970(now)

var chooseReplaySQL = `
-- One range of done's primary key, or its index on id. Of an id that was done several
-- times only the newest row, or one call would replay it once a row; and none that was
-- done again since the replay began.
SELECT TOP (@p4) ` + micros1970(`d.done_at`) + `, d.pos, d.id,
    CASE WHEN (SELECT TOP (1) r.seq FROM {ready} AS r ` + seek("id") + ` WHERE r.id = d.id) IS NULL
      AND (SELECT TOP (1) p.pos FROM {parked} AS p ` + seek("parked_id") + ` WHERE p.id = d.id) IS NULL THEN 0 ELSE 1 END
FROM {done} AS d
WHERE d.done_at >= ` + since(`@p1`) + `
  AND (d.done_at > ` + since(`@p1`) + ` OR d.pos > @p2)
  AND d.done_at < ` + since(`@p3`) + `{filter}
  AND NOT EXISTS (
    SELECT 1 FROM {done} AS n ` + seek("done_id") + `
    WHERE n.id = d.id AND (n.done_at < ` + since(`@p3`) + ` OR n.done_at >= ` + since(`@p5`) + `)
      AND (n.done_at > d.done_at OR (n.done_at = d.done_at AND n.pos > d.pos)))
ORDER BY d.done_at, d.pos`

// doneList names done rows by their primary key.
const doneList = `OPENJSON(@p1) WITH (nth int '$.n', done_at bigint '$.t', pos bigint '$.p')`

var doneOf = `INNER LOOP JOIN {done} AS d ` + seekPK + `
   ON d.done_at = ` + since(`n.done_at`) + ` AND d.pos = n.pos`

var replaySQL = `
-- By done's primary key. Inserts as a producer does, and locks no lane. The count is
-- above that of all done rows of the id, so that a second replay differs from the first.
INSERT INTO {ready} (` + content + `)
SELECT ` + strings.TrimSuffix(contentOf(`d`), ` d.replay`) + `
    1 + (SELECT MAX(o.replay) FROM {done} AS o ` + seek("done_id") + ` WHERE o.id = d.id)
FROM ` + doneList + ` AS n
` + doneOf + `
ORDER BY n.nth`

var choosePurgeSQL = `
-- From the old end of done's primary key, in its order, so that TOP locks what it takes.
SELECT TOP (@p2) ` + micros1970(`d.done_at`) + `, d.pos
FROM {done} AS d WITH (FORCESEEK, INDEX (1), ` + lockPast + `)
WHERE d.done_at <= ` + after(now, `@p1`) + `
ORDER BY d.done_at, d.pos`

var purgeSQL = `
-- By done's primary key; the rows are locked.
DELETE d
FROM ` + doneList + ` AS n
` + doneOf

var purgeableSQL = `
-- From the old end of done's primary key.
SELECT COUNT(*) FROM (
    SELECT TOP (@p2) d.pos FROM {done} AS d WITH (FORCESEEK, INDEX (1))
    WHERE d.done_at <= ` + after(now, `@p1`) + `) AS c`

var purgeDueSQL = `
-- Whoever waited for the row finds it changed.
SELECT m.one FROM {meta} AS m ` + lockOne + `
WHERE m.one = 1 AND m.purge_at <= ` + after(now, `@p1`)

const claimPurgeSQL = `
-- Under the lock of purgeDue.
UPDATE {meta} SET purge_at = ` + now + ` WHERE one = 1`

// Revisions. The rows are found by the primary key. An exact number is read under the
// row's lock, and what is written behind it is written to the same row.

const beginRevisionSQL = `
-- Makes the row of a key. That another transaction has made it since is an error of this
-- statement alone: see record.
SET XACT_ABORT OFF;
INSERT INTO {revision} (key_hash, [key], revision)
SELECT @p1, @p2, 0
WHERE NOT EXISTS (SELECT 1 FROM {revision} AS k ` + seekPK + ` WHERE k.key_hash = @p1 AND k.[key] = @p2)`

const raiseRevisionSQL = `
-- Waits for another producer of the key.
UPDATE {revision} SET revision = revision + @p3 WHERE key_hash = @p1 AND [key] = @p2`

const lastRevisionSQL = `
-- As raiseRevision, and keeps the lock.
SELECT k.revision FROM {revision} AS k ` + lockOne + ` WHERE k.key_hash = @p1 AND k.[key] = @p2`

var reviseSQL = `
-- As insert, behind raiseRevision: the list's revision is how many messages of the key
-- come after this one.
INSERT INTO {ready} (lane, id, topic, [key], key_hash, type, content_type, payload, headers, revision, replay)
SELECT ` + strings.Replace(messageColumns, `m.revision`, `
    (SELECT k.revision FROM {revision} AS k `+seekPK+`
     WHERE k.key_hash = m.key_hash AND k.[key] = CAST(`+hexBytes(`m.message_key`)+` AS varbinary(512))) - m.revision`, 1) + `
FROM ` + messageList + ` AS m
ORDER BY m.nth`

const beginProgressSQL = `
-- As beginRevision.
SET XACT_ABORT OFF;
INSERT INTO {progress} (consumer, key_hash, [key], revision)
SELECT @p1, @p2, @p3, 0
WHERE NOT EXISTS (SELECT 1 FROM {progress} AS k ` + seekPK + ` WHERE k.consumer = @p1 AND k.key_hash = @p2 AND k.[key] = @p3)`

const lastProgressSQL = `
-- Waits for another transaction of the consumer and the key.
SELECT k.revision FROM {progress} AS k ` + lockOne + ` WHERE k.consumer = @p1 AND k.key_hash = @p2 AND k.[key] = @p3`

const setProgressSQL = `
UPDATE {progress} SET revision = @p4 WHERE consumer = @p1 AND key_hash = @p2 AND [key] = @p3`

const progressSQL = `
SELECT k.revision FROM {progress} AS k ` + seekPK + ` WHERE k.consumer = @p1 AND k.key_hash = @p2 AND k.[key] = @p3`

const recordSQL = `
-- Waits for another transaction that has inserted the same, by the primary key, and
-- locks nothing else: a check before it would lock the range around the key. That the
-- key is there is an error of this statement alone, whatever the session's XACT_ABORT,
-- which is as it was once sp_executesql returns ("SET statements").
SET XACT_ABORT OFF;
INSERT INTO {inbox} (consumer_hash, message_hash, consumer, message_id) VALUES (@p1, @p2, @p3, @p4)`

const recordedSQL = `
-- By the primary key. What is not committed is passed by.
SELECT COUNT(*) FROM {inbox} AS i ` + probePK + `
WHERE i.consumer_hash = CAST(@p1 AS binary(32)) AND i.message_hash = CAST(@p2 AS binary(32))`

var choosePurgeInboxSQL = `
-- From the old end of inbox_recorded_at, in its order.
SELECT TOP (@p2) i.consumer_hash, i.message_hash
FROM {inbox} AS i WITH (FORCESEEK, INDEX ({name:inbox_recorded_at}), ` + lockPast + `)
WHERE i.recorded_at <= ` + after(now, `@p1`) + `
ORDER BY i.recorded_at`

var purgeInboxSQL = `
-- By the primary key; the rows are locked.
DELETE i
FROM OPENJSON(@p1) WITH (consumer varchar(64) '$.c', message varchar(64) '$.m') AS n
INNER LOOP JOIN {inbox} AS i ` + seekPK + `
   ON i.consumer_hash = CONVERT(binary(32), n.consumer, 2) AND i.message_hash = CONVERT(binary(32), n.message, 2)`

// The audit, and what people look at.

const writeAuditSQL = `
INSERT INTO {audit} (id, ended, who, action, selection, why, changed, failure)
VALUES (@p1, @p2, @p3, @p4, @p5, @p6, @p7, @p8)`

var auditSQL = `
-- Backwards along audit's primary key; the second row is one entry of audit_id.
SELECT TOP (@p2) b.pos, b.id, b.who, b.action, b.selection, b.why, ` + micros1970(`b.written_at`) + `,
    ` + micros1970(`e.written_at`) + `, COALESCE(e.changed, 0), COALESCE(e.failure, 0x)
FROM {audit} AS b ` + seekPK + `
OUTER APPLY (
    SELECT a.written_at, a.changed, a.failure FROM {audit} AS a ` + seek("audit_id") + `
    WHERE a.id = b.id AND a.ended = 1) AS e
WHERE b.pos < @p1 AND b.ended = 0
ORDER BY b.pos DESC`

var viewLanesSQL = `
-- Waits for who is changing a lane.
SELECT l.lane, l.owner, l.epoch, DATEDIFF_BIG(microsecond, ` + now + `, l.lease_until),
    CASE WHEN l.served_at > ` + epoch + ` THEN ` + age(`l.served_at`) + ` END
FROM {lane} AS l
ORDER BY l.lane`

var viewDoneSQL = `
-- Backwards along done's primary key, past locked rows.
SELECT TOP (@p1) d.pos, ` + age(`d.done_at`) + `, DATEDIFF_BIG(microsecond, d.created_at, d.done_at),
    CASE WHEN d.outcome = 'published' AND d.replay = 0 THEN 1 ELSE 0 END
FROM {done} AS d ` + probePK + `
WHERE d.done_at > ` + epoch + `
ORDER BY d.done_at DESC, d.pos DESC`

const viewReasonsSQL = `
-- Backwards along parked's primary key, past locked rows.
SELECT TOP (@p1) p.state, p.topic, COALESCE(p.reason, 0x)
FROM {parked} AS p ` + probePK + `
WHERE p.pos > 0
ORDER BY p.pos DESC`

var viewMessageSQL = `
-- By the three indexes on id.
SELECT 'ready', r.lane, r.seq, r.topic, r.[key], r.type, 0, r.replay, 0x, ` + age(`r.created_at`) + `, ` + age(`r.ready_at`) + `, CAST(NULL AS bigint)
FROM {ready} AS r ` + seek("id") + ` WHERE r.id = @p1
UNION ALL
SELECT p.state, p.lane, COALESCE(p.seq, 0), p.topic, p.[key], p.type, p.attempts, p.replay, COALESCE(p.reason, 0x), ` + age(`p.created_at`) + `, ` + age(`p.parked_at`) + `, DATEDIFF_BIG(microsecond, ` + now + `, p.available_at)
FROM {parked} AS p ` + seek("parked_id") + ` WHERE p.id = @p1
UNION ALL
SELECT d.outcome, d.lane, COALESCE(d.seq, 0), d.topic, d.[key], d.type, d.attempts, d.replay, COALESCE(d.reason, 0x), ` + age(`d.created_at`) + `, ` + age(`d.done_at`) + `, CAST(NULL AS bigint)
FROM {done} AS d ` + seek("done_id") + ` WHERE d.id = @p1`

const migrateLockSQL = `
-- One migration at a time in this database. The lock ends with the transaction, so that
-- it needs no session of its own. Below 0 is no lock.
DECLARE @result int;
EXEC @result = sp_getapplock @Resource = 'outbox_migrate', @LockMode = 'Exclusive', @LockOwner = 'Transaction', @LockTimeout = 60000;
SELECT @result`

const tablesSQL = `
-- Which of the tables there are: OBJECT_ID finds a name as statements do.
SELECT OBJECT_ID(@p1, N'U'), OBJECT_ID(@p2, N'U'), OBJECT_ID(@p3, N'U'), OBJECT_ID(@p4, N'U'), OBJECT_ID(@p5, N'U'), OBJECT_ID(@p6, N'U'),
    OBJECT_ID(@p7, N'U'), OBJECT_ID(@p8, N'U'), OBJECT_ID(@p9, N'U')`

const indexesSQL = `
-- The indexes of a table, and what keeps them from taking row locks.
SELECT i.name, i.allow_row_locks FROM sys.indexes AS i
WHERE i.object_id = OBJECT_ID(@p1, N'U') AND i.name IS NOT NULL AND i.is_disabled = 0`

const identitySQL = `
-- How ready.seq counts.
SELECT CAST(c.increment_value AS bigint) FROM sys.identity_columns AS c
WHERE c.object_id = OBJECT_ID(@p1, N'U') AND c.name = N'seq'`

const schemaExistsSQL = `
SELECT SCHEMA_ID(@p1)`

const createSchemaSQL = `CREATE SCHEMA {schema}`

const metaSQL = `
SELECT m.version, m.lanes FROM {meta} AS m`

const serverSQL = `
-- What the server and this database are set to.
SELECT CAST(SERVERPROPERTY('ProductVersion') AS nvarchar(128)), CAST(SERVERPROPERTY('EngineEdition') AS int),
    d.compatibility_level, d.delayed_durability,
    CAST(DATABASEPROPERTYEX(DB_NAME(), 'Updateability') AS nvarchar(128))
FROM sys.databases AS d
WHERE d.database_id = DB_ID()`

const lanesSQL = `
-- How many rows are lanes, and how many are none.
SELECT COALESCE(SUM(CASE WHEN l.lane BETWEEN 0 AND @p1 - 1 THEN 1 ELSE 0 END), 0),
    COALESCE(SUM(CASE WHEN l.lane BETWEEN 0 AND @p1 - 1 THEN 0 ELSE 1 END), 0)
FROM {lane} AS l`

// statements are the statements rendered for one set of tables, under the names of
// their constants.
type statements struct {
	poll, pending, claim, own, fence, extend, release  string
	insert, schedule                                   string
	dueScheduled, surface, surfacedTwice, deleteParked string
	boundReady, chooseReady, blocked, ready            string
	dueHeads, dueBarrier, dueHeld, readParked          string
	settle, keysOfReady, keysOfParked                  string
	archiveReady, archiveParked                        string
	fail, failParked, hold, deleteReady                string
	firstRows, demote, promote                         string
	stats, lockLane                                    string
	requeueWaiting, requeueUnplaced                    string
	requeueKeyless, requeueKeyed, discard              string
	clock, replay, choosePurge, purge                  string
	purgeDue, claimPurge, purgeable                    string
	record, recorded, choosePurgeInbox, purgeInbox     string
	beginRevision, raiseRevision, lastRevision, revise string
	beginProgress, lastProgress, setProgress, progress string
	writeAudit, audit                                  string
	viewLanes, viewDone, viewReasons, viewMessage      string
	migrateLock, tables, indexes, identity             string
	schemaExists, createSchema, meta, server, lanes    string
	parked, requeueLanes, discardLanes                 filtered
	chooseRequeue, chooseDiscard, chooseReplay         filtered
}

func render(t dialect.Tables) statements {
	x := func(text string) string { return dialect.Expand(text, t, quote) }
	f := func(text string) filtered {
		head, tail, _ := strings.Cut(text, "{filter}")
		return filtered{x(head), x(tail)}
	}
	return statements{
		poll: x(pollSQL), pending: x(pendingSQL), claim: x(claimSQL), own: x(ownSQL),
		fence: x(fenceSQL), extend: x(extendSQL), release: x(releaseSQL),
		insert: x(insertSQL), schedule: x(scheduleSQL),
		dueScheduled: x(dueScheduledSQL), surface: x(surfaceSQL), surfacedTwice: x(surfacedTwiceSQL), deleteParked: x(deleteParkedSQL),
		boundReady: x(boundReadySQL), chooseReady: x(chooseReadySQL), blocked: x(blockedSQL), ready: x(readySQL),
		dueHeads: x(dueHeadsSQL), dueBarrier: x(dueBarrierSQL), dueHeld: x(dueHeldSQL), readParked: x(readParkedSQL),
		settle: x(settleSQL), keysOfReady: x(keysOfReadySQL), keysOfParked: x(keysOfParkedSQL),
		archiveReady: x(archiveReadySQL), archiveParked: x(archiveParkedSQL),
		fail: x(failSQL), failParked: x(failParkedSQL), hold: x(holdSQL), deleteReady: x(deleteReadySQL),
		firstRows: x(firstRowsSQL), demote: x(demoteSQL), promote: x(promoteSQL),
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
		migrateLock: migrateLockSQL, tables: tablesSQL, indexes: indexesSQL, identity: identitySQL,
		schemaExists: schemaExistsSQL, createSchema: x(createSchemaSQL), meta: x(metaSQL), server: serverSQL, lanes: x(lanesSQL),
		parked: f(parkedSQL), requeueLanes: f(requeueLanesSQL), discardLanes: f(discardLanesSQL),
		chooseRequeue: f(chooseRequeueSQL), chooseDiscard: f(chooseDiscardSQL), chooseReplay: f(chooseReplaySQL),
	}
}
