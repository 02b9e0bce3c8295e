package sqlite_test

import (
	"bytes"
	"database/sql"
	"strings"
	"testing"

	"github.com/outbox-suite/outbox/dialect"
	"github.com/outbox-suite/outbox/sqlite"
)

// samples are messages that differ in all that a message can differ in.
func samples(e *env) []dialect.Message {
	all := e.messages("a", "", "b", "a\tb\n|", "\x1f\x1e,", "ключ 🔑 e\u0301 \uffff", "broken \xff\xc3 text", "a", "", "c")
	all[0].Payload = nil
	all[1].Payload = []byte{}
	all[2].Payload = []byte("\x00\x00")
	all[3].Topic, all[3].Type, all[3].ContentType, all[3].Headers = "Ä\xff", "\xf0\x9f", "", `{"x":"\u0000"}`
	all[4].Payload = bytes.Repeat([]byte{0, 0xff}, 512)
	all[5].Revision, all[5].Replay = 1<<62, 7
	all[6].Topic, all[6].Headers = "other", ""
	all[8].Key, all[8].KeyHash = sql.Null[string]{Valid: true}, sql.Null[int64]{V: dialect.KeyHash(""), Valid: true}
	for i := range all {
		all[i].Lane = 0
	}
	return all
}

// TestReadPacked: what is read packed is what its columns are, byte for byte.
func TestReadPacked(t *testing.T) {
	e := fresh(t, 1)
	want := samples(e)
	e.insert(want...)
	e.exec(`UPDATE {ready} SET ready_at = ready_at - 60000000 * seq`)
	lease := e.claim(0)
	for _, limit := range []dialect.Limit{{Rows: 100}, {Rows: 3}, {Rows: 100, Bytes: 1}, {Rows: 100, Bytes: 1030}} {
		compare(e, 0, limit, true)
		compare(e, 4, limit, true)
		compare(e, 99, limit, true)
	}
	rows := e.ready(0)
	for i := range want {
		e.equal(rows[i].Message, want[i], "message")
	}
	e.settle(lease, dialect.Settlement{Failed: []dialect.Failure{retry(e.at(1)[0])}})
	compare(e, 0, dialect.Limit{Rows: 100}, true)
	if rows := e.ready(0); !rows[6].Blocked || rows[6].Payload != nil {
		t.Errorf("blocked: %+v", rows[6])
	}
}

// compare reads both ways.
func compare(e *env, after int64, limit dialect.Limit, packs bool) {
	e.Helper()
	byColumns, err := sqlite.ReadByColumns(e.ctx, e.store, e.db, 0, after, limit)
	e.must(err)
	rows, ok, err := sqlite.ReadPacked(e.ctx, e.store, e.db, 0, after, limit)
	e.must(err)
	e.equal(ok, packs, "packed")
	if !packs {
		e.equal(len(rows), 0, "rows that are not packed")
		rows, err = e.store.Ready(e.ctx, e.db, 0, after, limit)
		e.must(err)
	}
	e.equal(len(rows), len(byColumns), "rows")
	for i := range rows {
		age := rows[i].Age - byColumns[i].Age // the reads are not at the same time
		rows[i].Age = byColumns[i].Age
		e.equal(rows[i], byColumns[i], "row")
		e.equal(rows[i].Payload == nil, byColumns[i].Payload == nil, "payload is NULL")
		if age > 1e9 || age < -1e9 {
			e.Errorf("ages differ by %v", age)
		}
	}
}

// TestReadUnpacked: where a message cannot be read packed, all are read by their columns.
func TestReadUnpacked(t *testing.T) {
	for name, change := range map[string]string{
		"U+0000 in a key":       `UPDATE {ready} SET key = 'a' || char(0) || 'b' WHERE seq = 3`,
		"U+0000 in a topic":     `UPDATE {ready} SET topic = char(0) WHERE seq = 1`,
		"U+0000 in the headers": `UPDATE {ready} SET headers = '{}' || char(0) WHERE seq = 10`,
		"a large payload":       `UPDATE {ready} SET payload = randomblob(100000) WHERE seq = 10`,
		"large headers":         `UPDATE {ready} SET headers = '{"a":"` + strings.Repeat("b", 3000) + `"}' WHERE seq = 1`,
		"both large":            `UPDATE {ready} SET headers = '` + strings.Repeat("b", 1500) + `', payload = randomblob(1500) WHERE seq = 2`,
		// As many U+0000 too many as are missing with the fields of the large one.
		"large, and U+0000": `UPDATE {ready} SET payload = iif(seq = 2, randomblob(100000), payload),
			key = iif(seq = 1, replace(hex(zeroblob(6)), '0', char(0)), key)`,
	} {
		t.Run(name, func(t *testing.T) {
			e := fresh(t, 1)
			e.insert(samples(e)...)
			e.exec(change)
			compare(e, 0, dialect.Limit{Rows: 100}, false)
		})
	}
	t.Run("UTF-16", func(t *testing.T) {
		e := unmigrated(t, 1)
		e.exec(`PRAGMA encoding = 'UTF-16'`)
		e.db.SetMaxOpenConns(1)
		e.must2(e.store.Migrate(e.ctx, e.db))
		e.equal(e.one(`PRAGMA encoding`), "UTF-16le", "encoding")
		want := e.messages("a", "", "ключ 🔑")
		e.insert(want...)
		compare(e, 0, dialect.Limit{Rows: 100}, false)
		for i, row := range e.ready(0) {
			e.equal(row.Message, want[i], "message")
		}
	})
}

// TestUnpackableIsRemembered: after a read that could not be packed, sixteen do not try.
func TestUnpackableIsRemembered(t *testing.T) {
	e := fresh(t, 1)
	large := samples(e)[:2]
	large[1].Payload = make([]byte, 4096)
	e.insert(large...)
	for left := int64(16); left >= 0; left-- {
		e.equal(len(e.ready(0)), 2, "messages")
		e.equal(sqlite.Unpackable(e.store), left, "reads by columns to come")
	}
	e.exec(`UPDATE {ready} SET payload = x'' WHERE octet_length(payload) = 4096`)
	e.equal(len(e.ready(0)), 2, "messages")
	e.equal(sqlite.Unpackable(e.store) < 0, true, "reads are packed again")
}
