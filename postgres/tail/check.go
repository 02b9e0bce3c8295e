package tail

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outbox-suite/outbox/dialect"
)

// Publish makes the publication that the stream needs, where it is missing: of the
// inserts into the table of ready messages, and from PostgreSQL 15 on of one small column
// of them, since the log only says when to look. It takes the owner of the table and the
// right to create in the database. It may run at every start; [Tail.Check] names the
// statement, for those who run it by hand.
func Publish(ctx context.Context, db *sql.DB, tables dialect.Tables) error {
	there, _, _, err := published(ctx, db, tables)
	if err != nil || there {
		return err
	}
	statement, err := create(ctx, db, tables)
	if err != nil {
		return err
	}
	_, err = db.ExecContext(ctx, statement)
	switch code(err) {
	case "42710", "23505": // duplicate_object, unique_violation: another process was first
		return nil
	case "42501": // insufficient_privilege
		return fmt.Errorf("make the publication: %w: run as the owner of the table: %s", err, statement)
	}
	return err
}

// Check looks for what the log cannot be read without: wal_level, the publication, the
// right to replicate, and a connection that no pooler stands in. Every finding is in the
// error, with its remedy.
func (t *Tail) Check(ctx context.Context) error {
	var problems []error
	var level string
	if err := t.db.QueryRowContext(ctx, "SELECT current_setting('wal_level')").Scan(&level); err != nil {
		return fmt.Errorf("check the tail: %w", err)
	}
	if level != "logical" {
		problems = append(problems, fmt.Errorf("wal_level is %s: set it to logical in the server's configuration and restart the server", level))
	}
	if err := t.published(ctx); errors.Is(err, errUnpublished) {
		problems = append(problems, err)
	} else if err != nil {
		return fmt.Errorf("check the tail: %w", err)
	}
	conn, err := t.connect(ctx)
	if err != nil {
		problems = append(problems, hint(err))
	} else {
		hangUp(ctx, conn)
	}
	if len(problems) > 0 {
		return fmt.Errorf("the log cannot be read: %w", errors.Join(problems...))
	}
	return nil
}

// errUnpublished is a publication that does not serve.
var errUnpublished = errors.New("nothing is published to read")

// published returns nil if the publication serves.
func (t *Tail) published(ctx context.Context) error {
	there, inserts, covers, err := published(ctx, t.db, t.tables)
	if err != nil || inserts && covers {
		return err
	}
	statement, err := create(ctx, t.db, t.tables)
	if err != nil {
		return err
	}
	what := "does not exist: run"
	if there {
		what = "leaves out inserts into the outbox: drop it and run"
	}
	return fmt.Errorf("%w: publication %s %s as the owner of the table: %s", errUnpublished, quote(publication(t.tables)), what, statement)
}

// published tells whether the publication is there, whether it is of inserts, and
// whether it is of the table.
func published(ctx context.Context, db *sql.DB, tables dialect.Tables) (there, inserts, covers bool, err error) {
	err = db.QueryRowContext(ctx, publishedSQL, publication(tables), table(tables)).Scan(&inserts, &covers)
	if errors.Is(err, sql.ErrNoRows) {
		return false, false, false, nil
	}
	return err == nil, inserts, covers, err
}

// publishedSQL reads one publication.
const publishedSQL = `
SELECT p.pubinsert, EXISTS (
    SELECT FROM pg_publication_tables AS t
    JOIN pg_namespace AS n ON n.nspname = t.schemaname
    JOIN pg_class AS c ON c.relnamespace = n.oid AND c.relname = t.tablename
    WHERE t.pubname = p.pubname AND c.oid = to_regclass($2))
FROM pg_publication AS p WHERE p.pubname = $1`

// create is the statement that makes the publication, for the server's version.
func create(ctx context.Context, db *sql.DB, tables dialect.Tables) (string, error) {
	var version int
	if err := db.QueryRowContext(ctx, "SELECT current_setting('server_version_num')::int").Scan(&version); err != nil {
		return "", err
	}
	columns := ""
	if version >= 150000 {
		columns = " (lane)"
	}
	return "CREATE PUBLICATION " + quote(publication(tables)) + " FOR TABLE " + table(tables) + columns + " WITH (publish = 'insert')", nil
}

// publication names the publication of the tables, which belongs to the database and not
// to a schema.
func publication(tables dialect.Tables) string {
	name := tables.Prefix + "_tail"
	if tables.Schema != "" {
		name = tables.Schema + "." + name
	}
	if len(name) <= longestName {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	return "outbox_tail_" + hex.EncodeToString(sum[:16])
}

const longestName = 63

// table is the qualified, quoted table of ready messages.
func table(tables dialect.Tables) string {
	if tables.Schema == "" {
		return quote(tables.Prefix)
	}
	return quote(tables.Schema) + "." + quote(tables.Prefix)
}

func quote(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }

func literal(text string) string { return "'" + strings.ReplaceAll(text, "'", "''") + "'" }

// code is the server's code of an error, or "".
func code(err error) string {
	if pg := new(pgconn.PgError); errors.As(err, &pg) {
		return pg.Code
	}
	return ""
}

// hint adds the remedy.
func hint(err error) error {
	if err == nil {
		return nil
	}
	pg := new(pgconn.PgError)
	if !errors.As(err, &pg) {
		return err
	}
	remedy := ""
	switch pg.Code {
	case "42501", "28000": // insufficient_privilege, or none of pg_hba.conf's lines fits
		remedy = "give the user the right to replicate: ALTER ROLE ... REPLICATION, or what stands for it where the server is hosted"
	case "08P01": // protocol_violation: what PgBouncer says of a startup parameter
		remedy = "a pooler between here and the server passes no replication on: connect to the server itself"
	case "55000": // object_not_in_prerequisite_state
		remedy = "the server needs wal_level = logical, and not to be a standby before PostgreSQL 16"
	case "53400": // configuration_limit_exceeded
		remedy = "raise max_replication_slots: each relay that reads the log takes one"
	case "53300": // too_many_connections
		remedy = "raise max_wal_senders: each relay that reads the log takes one"
	default:
		return err
	}
	return fmt.Errorf("%w: %s", err, remedy)
}
