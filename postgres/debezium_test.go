package postgres_test

import (
	"context"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pglogrepl"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outbox-suite/outbox/dialect"
	"github.com/outbox-suite/outbox/publish/kafka"
)

// TestDebeziumFindsItsColumns reads the server's logical stream as Debezium does, with
// the publication and the configuration that docs/debezium.md gives, and makes records as
// its outbox event router would: what package kafka reads in them must be what was
// enqueued.
func TestDebeziumFindsItsColumns(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		publication, config := debezium(t)
		name := `"debezium ` + random() + `"`
		publication = strings.NewReplacer("outbox_debezium", name, "TABLE outbox", "TABLE "+f.sql("{ready}")).Replace(publication)
		f.exec(publication)
		everything := `"everything ` + random() + `"`
		f.exec("CREATE PUBLICATION " + everything + " FOR TABLE {ready}, {parked}, {done}, {lane}")
		t.Cleanup(func() {
			if _, err := f.db.ExecContext(context.Background(), "DROP PUBLICATION "+name+", "+everything); err != nil {
				t.Error(err)
			}
		})
		log := f.logical()

		full := message("orders", keyIn(0))
		full.Headers, full.ContentType, full.Revision = `{"traceparent":"00-1","X":"é"}`, "text/plain", 7
		full.Payload = []byte("\x00\x01 é \\x41")
		plain := message("orders", "")
		plain.Payload = []byte{}
		f.insert(full, plain)
		later := message("orders", keyIn(1))
		later.Delay = time.Microsecond
		f.insert(later)
		lease := f.claim(1, "housekeeper")
		moved, ok, err := f.store.Surface(t.Context(), f.db, lease, 10) // due for a while
		f.ok(err)
		f.is("moved", []any{moved, ok}, []any{1, true})
		rows, err := f.store.Ready(t.Context(), f.db, 1, 0, dialect.Limit{Rows: 10})
		f.ok(err)
		var all []dialect.Ref
		for i := range rows {
			all = append(all, rows[i].Ref())
		}
		f.settle(lease, dialect.Settlement{Archive: true, Published: all})

		enqueued := []dialect.Message{full, plain, later}
		changes := log.read(name)
		if len(changes) != len(enqueued) {
			t.Fatalf("the publication has %d changes, and there are %d messages: %+v", len(changes), len(enqueued), changes)
		}
		for i, c := range changes {
			f.is("operation", c.op+" "+c.table, "insert outbox")
			record := route(t, config, c.columns)
			got, err := kafka.Decode(record)
			f.ok(err)
			want := enqueued[i]
			f.is("topic of the record", record.Topic, want.Topic)
			f.is("key of the record", string(record.Key), want.Key.V)
			f.is("null key", record.Key == nil, !want.Key.Valid)
			f.is("id", got.ID, uuid.UUID(want.ID))
			f.is("topic, key, type, content type", []string{got.Topic, got.Key, got.Type, got.ContentType},
				[]string{want.Topic, want.Key.V, want.Type, want.ContentType})
			f.is("payload", got.Payload, want.Payload)
			f.is("lane", got.Lane, want.Lane)
			headers := map[string]string{}
			f.ok(json.Unmarshal([]byte(want.Headers), &headers))
			for header, value := range headers {
				f.is("header "+header, got.Headers[header], value)
			}
			if age := time.Since(got.CreatedAt); age < -time.Minute || age > time.Hour {
				t.Errorf("time is %v", got.CreatedAt)
			}
			f.is("header id, which the inbox takes", header(record, "id"), got.ID)
		}
		f.is("revision", header(route(t, config, changes[0].columns), "revision"), 7)

		// What the table in the document says of the log.
		var seen []string
		for _, c := range log.read(everything) {
			seen = append(seen, c.op+" "+c.table)
		}
		f.is("changes", slices.Compact(seen), []string{
			"insert outbox", "insert outbox_parked",
			"update outbox_lane",
			"delete outbox_parked", "insert outbox",
			"update outbox_lane", "delete outbox", "insert outbox_done",
		})
	})
}

// debezium reads the publication and the connector's configuration from the document.
func debezium(t *testing.T) (publication string, config map[string]string) {
	t.Helper()
	text, err := os.ReadFile("../docs/debezium.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, ok := strings.Cut(string(text), "\n## PostgreSQL\n")
	section, _, end := strings.Cut(section, "\n## ")
	block := func(language string) string {
		m := regexp.MustCompile("(?s)```" + language + "\n(.*?)```").FindStringSubmatch(section)
		if m == nil {
			t.Fatalf("docs/debezium.md has no block of %s for PostgreSQL", language)
		}
		return m[1]
	}
	if !ok || !end {
		t.Fatal("docs/debezium.md has no section on PostgreSQL")
	}
	if err := json.Unmarshal([]byte(block("json")), &config); err != nil {
		t.Fatalf("docs/debezium.md: the configuration: %v", err)
	}
	if config["publication.name"] != "outbox_debezium" || config["plugin.name"] != "pgoutput" {
		t.Errorf("the connector reads %s through %s, which this test does not", config["publication.name"], config["plugin.name"])
	}
	return block("sql"), config
}

// route makes the record that the outbox event router makes of an inserted row, in the
// forms that Debezium gives its columns. A column that the configuration names and the row
// lacks fails the test.
func route(t *testing.T, config map[string]string, columns map[string]*string) *kgo.Record {
	t.Helper()
	column := func(name string) []byte {
		value, ok := columns[name]
		switch {
		case !ok:
			t.Fatalf("the configuration names column %s, which the stream does not have", name)
		case value == nil:
			return nil
		case name == "payload": // bytes
			b, err := hex.DecodeString(strings.TrimPrefix(*value, `\x`))
			if err != nil {
				t.Fatal(err)
			}
			return b
		case strings.HasSuffix(name, "_at"): // a ZonedTimestamp
			at, err := time.Parse("2006-01-02 15:04:05.999999-07", *value)
			if err != nil {
				t.Fatal(err)
			}
			return []byte(at.UTC().Format(time.RFC3339Nano))
		}
		return []byte(*value)
	}
	option := func(name string) string { return config["transforms.outbox."+name] }
	topic := regexp.MustCompile("^"+option("route.topic.regex")+"$").
		ReplaceAllString(string(column(option("route.by.field"))), option("route.topic.replacement"))
	r := &kgo.Record{Topic: topic, Key: column(option("table.field.event.key")), Value: column(option("table.field.event.payload"))}
	r.Headers = append(r.Headers, kgo.RecordHeader{Key: "id", Value: column(option("table.field.event.id"))})
	for placed := range strings.SplitSeq(option("table.fields.additional.placement"), ",") {
		part := strings.Split(placed, ":")
		if len(part) != 3 || part[1] != "header" {
			t.Fatalf("placement %q", placed)
		}
		r.Headers = append(r.Headers, kgo.RecordHeader{Key: part[2], Value: column(part[0])})
	}
	for transform := range strings.SplitSeq(config["transforms"], ",") {
		if name := config["transforms."+transform+".header"]; name != "" {
			r.Headers = append(r.Headers, kgo.RecordHeader{Key: name, Value: []byte(config["transforms."+transform+".value.literal"])})
		}
	}
	return r
}

func header(r *kgo.Record, name string) string {
	i := slices.IndexFunc(r.Headers, func(h kgo.RecordHeader) bool { return h.Key == name })
	if i < 0 {
		return "none"
	}
	return string(r.Headers[i].Value)
}

// logical is the stream of a slot that ends with the test.
type logical struct {
	f    *fixture
	conn *sql.Conn
	slot string
}

// change is one change of a row in the stream; columns are the new ones, as text.
type change struct {
	op, table string
	columns   map[string]*string
}

func (f *fixture) logical() *logical {
	f.Helper()
	conn, err := f.db.Conn(f.Context())
	f.ok(err)
	f.Cleanup(func() { _ = conn.Close() })
	l := &logical{f, conn, "outbox_test_" + random()}
	if _, err := conn.ExecContext(f.Context(), `SET TimeZone = 'UTC'`); err != nil {
		f.Fatal(err)
	}
	if _, err := conn.ExecContext(f.Context(), `SELECT pg_create_logical_replication_slot($1, 'pgoutput', true)`, l.slot); err != nil {
		f.Fatal(err)
	}
	return l
}

// read returns all changes so far of one publication.
func (l *logical) read(publication string) (changes []change) {
	l.f.Helper()
	rows, err := l.conn.QueryContext(l.f.Context(),
		`SELECT data FROM pg_logical_slot_peek_binary_changes($1, NULL, NULL, 'proto_version', '1', 'publication_names', $2)`, l.slot, publication)
	l.f.ok(err)
	defer func() { _ = rows.Close() }()
	tables := map[uint32]*pglogrepl.RelationMessage{}
	for rows.Next() {
		var data []byte
		l.f.ok(rows.Scan(&data))
		m, err := pglogrepl.Parse(data)
		l.f.ok(err)
		switch m := m.(type) {
		case *pglogrepl.RelationMessage:
			tables[m.RelationID] = m
		case *pglogrepl.InsertMessage:
			c := change{op: "insert", table: tables[m.RelationID].RelationName, columns: map[string]*string{}}
			for i, value := range m.Tuple.Columns {
				name := tables[m.RelationID].Columns[i].Name
				if c.columns[name] = nil; value.DataType == pglogrepl.TupleDataTypeText {
					text := string(value.Data)
					c.columns[name] = &text
				}
			}
			changes = append(changes, c)
		case *pglogrepl.UpdateMessage:
			changes = append(changes, change{op: "update", table: tables[m.RelationID].RelationName})
		case *pglogrepl.DeleteMessage:
			changes = append(changes, change{op: "delete", table: tables[m.RelationID].RelationName})
		}
	}
	l.f.ok(rows.Err())
	return changes
}
