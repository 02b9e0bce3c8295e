package engine

// statements are the store's, rendered once, in Bind. A list of rows or keys is handed to
// a statement as one JSON text, which json_each takes apart.
type statements struct {
	schema, tableThere, meta, countLanes string

	insertReady, insertScheduled string

	poll, pending, claim, extend, release string

	ready, dueHeads, parkedRow, heldBehind string

	surfaceable, surfaceTwins, surfaceReady, surfaceGone string

	fence, keysOfReady, keysOfParked                                        string
	archiveReady, deleteReady, archiveParked, deleteParked, park, failAgain string

	promote, demote string

	stats, parkedWhere, chosenWhere                       string
	requeueScheduled, requeue, discard, remove            string
	clock, doneWhere, replay, purge, purgeable, takePurge string

	record, recorded, purgeInbox string
}

// content are the columns that a message has in every table.
const content = "lane, id, topic, key, key_hash, type, content_type, headers, revision, replay, created_at, payload"

// contentOfM is content, of the table named m.
const contentOfM = "m.lane, m.id, m.topic, m.key, m.key_hash, m.type, m.content_type, m.headers, m.revision, m.replay, m.created_at, m.payload"

// row is what scanRow reads, of the table named m; a statement adds seq, pos, attempts,
// age and blocked before it, and payload behind it.
const row = "m.lane, m.id, m.topic, m.key, m.key_hash, m.type, m.content_type, m.headers, m.revision, m.replay, m.created_at"

// blocked tells of a row of the table named m that a parked row blocks its key.
const blocked = `EXISTS (SELECT 1 FROM {parked} AS b WHERE b.lane = m.lane AND b.key_hash = m.key_hash AND b.blocking = 1)`

// named is the list of rows that a settle names, as [place, id, …].
const named = `WITH named AS (
  SELECT value ->> 0 AS place, unhex(value ->> 1) AS id, value ->> 2 AS state, value ->> 3 AS attempts,
         value ->> 4 AS delay, value ->> 5 AS blocking, value ->> 6 AS reason
  FROM json_each(?1))
`

// positions and keys are lists of pos and of [lane, key_hash].
const (
	positions = "(SELECT value FROM json_each(?1))"
	keys      = "(SELECT value ->> 0 AS lane, value ->> 1 AS key_hash FROM json_each(?1))"
)

func render(r func(text string) string) statements {
	return statements{
		schema:     r(schemaSQL),
		tableThere: "SELECT EXISTS (SELECT 1 FROM sqlite_master WHERE type = 'table' AND lower(name) = lower(?))",
		meta:       r("SELECT version, lanes FROM {meta}"),
		countLanes: r("SELECT COUNT(*) FROM {lane}"),

		insertReady: r(`INSERT INTO {ready} (` + content + `, ready_at)
			VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, {now}, ?, {now})`),
		insertScheduled: r(`INSERT INTO {parked} (` + content + `, state, blocking, attempts, available_at, reason, parked_at)
			VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, {now}, ?, 'scheduled', 0, 0, {now} + ?, '', {now})`),

		// One entry of ready_by_lane and two of parked_by_time for each lane.
		poll: r(`SELECT l.lane, l.epoch, ` + due + ` FROM {lane} AS l
			WHERE (l.lease_until <= {now} OR l.owner = ?1) AND (` + work + `)
			ORDER BY l.served_at, l.lane LIMIT ?2`),
		pending: r(`SELECT EXISTS (SELECT 1 FROM {lane} AS l WHERE ` + work + `),
			EXISTS (SELECT 1 FROM {lane} WHERE lease_until > {now} AND owner <> ?1)`),
		claim: r(`UPDATE {lane} SET epoch = epoch + 1, owner = ?2, lease_until = {now} + ?3, served_at = {now}
			WHERE lane = ?1 AND (lease_until <= {now} OR owner = ?2) RETURNING epoch`),
		extend: r(`UPDATE {lane} SET lease_until = {now} + ?4
			WHERE lane = ?1 AND owner = ?2 AND epoch = ?3`),
		release: r(`UPDATE {lane} SET lease_until = 0, owner = ''
			WHERE lane = ?1 AND owner = ?2 AND epoch = ?3`),

		// Along ready_by_lane, and for each row one look at parked_heads. Of a row that is
		// blocked nobody needs the payload.
		ready: r(`SELECT m.seq, 0, 0, {now} - m.ready_at, ` + blocked + `, ` + row + `, iif(` + blocked + `, NULL, m.payload)
			FROM {ready} AS m WHERE m.lane = ?1 AND m.seq > ?2 ORDER BY m.seq LIMIT ?3`),
		// Along parked_by_time.
		dueHeads: r(`SELECT pos, key_hash FROM {parked}
			WHERE lane = ?1 AND state = 'retry' AND available_at <= {now}
			ORDER BY available_at, pos LIMIT ?2`),
		parkedRow: r(`SELECT ifnull(m.seq, 0), m.pos, m.attempts, {now} - m.created_at, 0, ` + row + `, m.payload
			FROM {parked} AS m WHERE m.pos = ?1`),
		// Along parked_by_key. A second row that blocks the key, as a dead one behind the
		// head, holds what is behind it.
		heldBehind: r(`SELECT m.seq, m.pos, m.attempts, {now} - m.created_at, 0, ` + row + `, m.payload
			FROM {parked} AS m
			WHERE m.lane = ?1 AND m.key_hash = ?2 AND m.state = 'held'
			  AND NOT EXISTS (SELECT 1 FROM {parked} AS b
			                  WHERE b.lane = ?1 AND b.key_hash = ?2 AND b.blocking = 1 AND b.pos <> ?3 AND b.seq < m.seq)
			ORDER BY m.seq LIMIT ?4`),

		surfaceable: r(`SELECT pos FROM {parked}
			WHERE lane = ?1 AND state = 'scheduled' AND available_at <= {now}
			ORDER BY available_at, pos LIMIT ?2`),
		// It has had no place in the order, so it gets the first one.
		surfaceTwins: r(`UPDATE {parked} SET state = 'dead', seq = 0, available_at = NULL, parked_at = {now},
				reason = 'when it was due a message with its id was ready'
			WHERE pos IN ` + positions + ` AND EXISTS (SELECT 1 FROM {ready} AS r WHERE r.id = {parked}.id)`),
		surfaceReady: r(`INSERT INTO {ready} (` + content + `, ready_at)
			SELECT ` + contentOfM + `, {now} FROM {parked} AS m
			WHERE m.pos IN ` + positions + ` AND m.state = 'scheduled' ORDER BY m.available_at, m.pos`),
		surfaceGone: r(`DELETE FROM {parked} WHERE pos IN ` + positions + ` AND state = 'scheduled'`),

		fence: r(`UPDATE {lane} SET lease_until = iif(?4 > 0, {now} + ?4, lease_until), served_at = {now}
			WHERE lane = ?1 AND owner = ?2 AND epoch = ?3`),
		keysOfReady: r(named + `SELECT DISTINCT m.key_hash FROM named CROSS JOIN {ready} AS m ON m.seq = named.place
			WHERE m.id = named.id AND m.lane = ?2 AND m.key_hash IS NOT NULL`),
		keysOfParked: r(named + `SELECT DISTINCT m.key_hash FROM named CROSS JOIN {parked} AS m ON m.pos = named.place
			WHERE m.id = named.id AND m.lane = ?2 AND m.key_hash IS NOT NULL`),
		archiveReady: r(named + `INSERT INTO {done} (` + content + `, done_at, outcome, attempts, reason)
			SELECT ` + contentOfM + `, {now}, 'published', 0, ''
			FROM named CROSS JOIN {ready} AS m ON m.seq = named.place
			WHERE m.id = named.id AND m.lane = ?2 ORDER BY m.seq`),
		deleteReady: r(named + `DELETE FROM {ready} WHERE seq IN (
			SELECT m.seq FROM named CROSS JOIN {ready} AS m ON m.seq = named.place
			WHERE m.id = named.id AND m.lane = ?2)`),
		archiveParked: r(named + `INSERT INTO {done} (` + content + `, done_at, outcome, attempts, reason)
			SELECT ` + contentOfM + `, {now}, 'published', m.attempts, m.reason
			FROM named CROSS JOIN {parked} AS m ON m.pos = named.place
			WHERE m.id = named.id AND m.lane = ?2 ORDER BY m.seq`),
		deleteParked: r(named + `DELETE FROM {parked} WHERE pos IN (
			SELECT m.pos FROM named CROSS JOIN {parked} AS m ON m.pos = named.place
			WHERE m.id = named.id AND m.lane = ?2)`),
		park: r(named + `INSERT INTO {parked} (` + content + `, seq, state, blocking, attempts, available_at, reason, parked_at)
			SELECT ` + contentOfM + `, m.seq, named.state, named.blocking AND m.key IS NOT NULL, named.attempts,
			       iif(named.state = 'retry', {now} + named.delay, NULL), named.reason, {now}
			FROM named CROSS JOIN {ready} AS m ON m.seq = named.place
			WHERE m.id = named.id AND m.lane = ?2 ORDER BY m.seq`),
		failAgain: r(named + `UPDATE {parked} AS m SET state = named.state, blocking = named.blocking AND m.key IS NOT NULL,
				attempts = named.attempts, available_at = iif(named.state = 'retry', {now} + named.delay, NULL),
				reason = named.reason, parked_at = {now}
			FROM named WHERE m.pos = named.place AND m.id = named.id AND m.lane = ?2`),

		// The first held row of each key becomes its head, unless a row blocks the key
		// before it.
		promote: r(`UPDATE {parked} AS h SET state = 'retry', blocking = 1, available_at = {now}
			WHERE h.pos IN (SELECT (SELECT f.pos FROM {parked} AS f
			                        WHERE f.lane = k.lane AND f.key_hash = k.key_hash AND f.state = 'held'
			                        ORDER BY f.seq LIMIT 1)
			                FROM ` + keys + ` AS k)
			  AND NOT EXISTS (SELECT 1 FROM {parked} AS b
			                  WHERE b.lane = h.lane AND b.key_hash = h.key_hash AND b.blocking = 1 AND b.seq < h.seq)`),
		// A retry that is no longer the first one to block its key waits like the others.
		demote: r(`UPDATE {parked} AS h SET state = 'held', blocking = 0, available_at = NULL
			WHERE h.pos IN (SELECT b.pos FROM ` + keys + ` AS k CROSS JOIN {parked} AS b
			                ON b.lane = k.lane AND b.key_hash = k.key_hash AND b.blocking = 1 WHERE b.state = 'retry')
			  AND EXISTS (SELECT 1 FROM {parked} AS b
			              WHERE b.lane = h.lane AND b.key_hash = h.key_hash AND b.blocking = 1 AND b.seq < h.seq)`),

		// Lane by lane, so that each count goes along an index and ends at the limit. The
		// oldest ready message of a lane is its first one.
		stats: r(`SELECT
			(SELECT COUNT(*) FROM (SELECT 1 FROM {ready} LIMIT ?1)),
			(SELECT COUNT(*) FROM (SELECT 1 FROM {lane} AS l CROSS JOIN {parked} AS p ON p.lane = l.lane AND p.state = 'scheduled' LIMIT ?1)),
			(SELECT COUNT(*) FROM (SELECT 1 FROM {lane} AS l CROSS JOIN {parked} AS p ON p.lane = l.lane AND p.state = 'retry' LIMIT ?1)),
			(SELECT COUNT(*) FROM (SELECT 1 FROM {lane} AS l CROSS JOIN {parked} AS p ON p.lane = l.lane AND p.state = 'held' LIMIT ?1)),
			(SELECT COUNT(*) FROM (SELECT 1 FROM {lane} AS l CROSS JOIN {parked} AS p ON p.lane = l.lane AND p.state = 'dead' LIMIT ?1)),
			(SELECT COUNT(*) FROM (SELECT DISTINCT lane, key_hash FROM {parked} WHERE blocking = 1 LIMIT ?1)),
			max(0,
			    ifnull((SELECT max({now} - (SELECT r.ready_at FROM {ready} AS r WHERE r.lane = l.lane ORDER BY r.seq LIMIT 1)) FROM {lane} AS l), 0),
			    ifnull((SELECT max({now} - (SELECT min(p.available_at) FROM {parked} AS p WHERE p.lane = l.lane AND p.state = 'retry')) FROM {lane} AS l), 0)),
			(SELECT COUNT(*) FROM {lane} WHERE lease_until > {now}),
			(SELECT COUNT(*) FROM {lane} WHERE lease_until <= {now} AND owner <> ''),
			(SELECT COUNT(*) FROM {lane})`),
		// The statements whose names end in Where are followed by a filter.
		parkedWhere: r(`SELECT ifnull(m.seq, 0), m.pos, m.attempts, {now} - m.created_at, 0, ` + row + `, m.payload,
			m.state, m.blocking, m.reason, m.available_at - {now}, m.parked_at FROM {parked} AS m WHERE `),
		chosenWhere: r(`SELECT m.pos, m.lane, m.key_hash FROM {parked} AS m WHERE `),
		requeueScheduled: r(`UPDATE {parked} SET available_at = {now}
			WHERE pos IN ` + positions + ` AND state = 'scheduled'`),
		// What has a key is held first; promote makes heads.
		requeue: r(`UPDATE {parked} SET state = iif(key_hash IS NULL, 'retry', 'held'), blocking = 0,
				available_at = iif(key_hash IS NULL, {now}, NULL), attempts = iif(state = 'dead', 0, attempts)
			WHERE pos IN ` + positions + ` AND state <> 'scheduled'`),
		discard: r(`INSERT INTO {done} (` + content + `, done_at, outcome, attempts, reason)
			SELECT ` + contentOfM + `, {now}, 'discarded', m.attempts, m.reason
			FROM {parked} AS m WHERE m.pos IN ` + positions + ` ORDER BY m.seq, m.pos`),
		remove: r(`DELETE FROM {parked} WHERE pos IN ` + positions),

		clock: r("SELECT {now}"),
		// Of an id that was done several times only the newest row within the bounds.
		doneWhere: r(`SELECT m.done_at, m.pos, EXISTS (SELECT 1 FROM {ready} AS w WHERE w.id = m.id)
			    OR EXISTS (SELECT 1 FROM {parked} AS w WHERE w.id = m.id)
			    OR EXISTS (SELECT 1 FROM {done} AS n WHERE n.id = m.id
			               AND (n.done_at, n.pos) > (m.done_at, m.pos) AND (n.done_at < ? OR n.done_at >= ?))
			FROM {done} AS m WHERE `),
		replay: r(`INSERT INTO {ready} (` + content + `, ready_at)
			SELECT m.lane, m.id, m.topic, m.key, m.key_hash, m.type, m.content_type, m.headers, m.revision,
			       (SELECT max(d.replay) + 1 FROM {done} AS d WHERE d.id = m.id), m.created_at, m.payload, {now}
			FROM {done} AS m WHERE m.pos IN ` + positions + ` ORDER BY m.done_at, m.pos
			ON CONFLICT (id) DO NOTHING`),
		purge: r(`DELETE FROM {done} WHERE pos IN (
			SELECT pos FROM {done} WHERE done_at <= {now} - ?1 ORDER BY done_at, pos LIMIT ?2)`),
		purgeable: r("SELECT count(*) FROM (SELECT 1 FROM {done} WHERE done_at <= {now} - ?1 LIMIT ?2)"),
		takePurge: r("UPDATE {meta} SET purge_at = {now} + ?1 WHERE purge_at <= {now}"),

		record: r(`INSERT INTO {inbox} (consumer, message_id, recorded_at) VALUES (?1, ?2, {now})
			ON CONFLICT (consumer, message_id) DO NOTHING`),
		recorded: r("SELECT EXISTS (SELECT 1 FROM {inbox} WHERE consumer = ?1 AND message_id = ?2)"),
		purgeInbox: r(`DELETE FROM {inbox} WHERE rowid IN (
			SELECT rowid FROM {inbox} WHERE recorded_at <= {now} - ?1 ORDER BY recorded_at LIMIT ?2)`),
	}
}

// work tells of a lane named l that something is ready or due there.
const work = `EXISTS (SELECT 1 FROM {ready} AS r WHERE r.lane = l.lane) OR ` + due

// due tells whether a parked message of a lane is due.
const due = `(EXISTS (SELECT 1 FROM {parked} AS p WHERE p.lane = l.lane AND p.state = 'retry' AND p.available_at <= {now})
	OR EXISTS (SELECT 1 FROM {parked} AS p WHERE p.lane = l.lane AND p.state = 'scheduled' AND p.available_at <= {now}))`
