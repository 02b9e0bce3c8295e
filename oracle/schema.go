package oracle

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sijms/go-ora/v2/network"

	"github.com/outbox-suite/outbox/dialect"
)

//go:embed schema/*.sql
var files embed.FS

// versions are the schema's files, the version being the place plus one.
var versions = []struct{ name, file string }{
	{"the outbox", "schema/001_outbox.sql"},
	{"revisions", "schema/002_revisions.sql"},
	{"the audit", "schema/003_audit.sql"},
}

// text is the text of a version's file.
func text(version int) string {
	b, err := files.ReadFile(versions[version-1].file)
	if err != nil {
		panic(err) // embedded
	}
	return string(b)
}

// Steps returns the DDL. The schema's user is not part of it: it must exist.
func (s *store) Steps() []dialect.Step {
	steps := make([]dialect.Step, len(versions))
	for i, v := range versions {
		steps[i] = dialect.Step{Version: i + 1, Name: v.name, SQL: s.name(text(i + 1))}
	}
	return steps
}

// statementsOf are the statements of a version, without comments. The text is cut before
// names are filled in, which may hold anything.
func (s *store) statementsOf(version int) (list []string) {
	var b strings.Builder
	for line := range strings.Lines(text(version)) {
		if !strings.HasPrefix(strings.TrimSpace(line), "--") {
			b.WriteString(line)
		}
	}
	for part := range strings.SplitSeq(b.String(), ";\n") {
		if part = strings.TrimSpace(part); part != "" {
			list = append(list, s.name(part))
		}
	}
	return list
}

// name fills names into a text.
func (s *store) name(text string) string { return expand(text, s.tables) }

// Migrate tries a statement that others keep from running so often, with pauses, about a
// minute in all.
const (
	migrateTries = 600
	migratePause = 100 * time.Millisecond
)

// Migrate runs the missing versions. Nothing locks other processes out: DDL commits, and
// so ends any lock of the session that runs it, and DBMS_LOCK needs a grant that few
// have. Instead each statement is one that a second process may run at the same time:
// whoever comes late finds the table, the index or the row there (ORA-00955, ORA-01408,
// ORA-00001) and goes on. The version is set last, by one of them, and only when all is
// there; until then it is 0, and the next call completes what was interrupted.
//
// It needs the rights to create tables and sequences. It makes no user.
func (s *store) Migrate(ctx context.Context, db dialect.DB) (applied []int, err error) {
	found, err := s.standing(ctx, db)
	if err != nil {
		return nil, err
	}
	if err := s.check(found); err != nil {
		return nil, err
	}
	for version := found.version + 1; version <= len(versions); version++ {
		last := ""
		for _, statement := range s.statementsOf(version) {
			switch word, _, _ := strings.Cut(statement, " "); word {
			case "COMMIT": // for those who run the text by hand
			case "UPDATE":
				last = statement
			default:
				if err := s.make(ctx, db, statement); err != nil {
					return applied, fmt.Errorf("schema version %d: %w", version, err)
				}
			}
		}
		found, err := s.standing(ctx, db)
		if err != nil {
			return applied, err
		}
		found.version = version // what it must have before it says so
		if missing := append(s.missing(found), s.missingIndexes(found)...); found.sees && len(missing) > 0 {
			return applied, fmt.Errorf("schema version %d: %s could not be made, because something else has the name: remove or rename that, and migrate again",
				version, strings.Join(missing, ", "))
		}
		var changed int64
		_, err = s.inTx(ctx, db, func(tx *sql.Tx) (bool, error) {
			result, err := tx.ExecContext(ctx, last)
			if err != nil {
				return false, err
			}
			changed, err = result.RowsAffected()
			return changed > 0, err
		})
		if err != nil {
			return applied, fmt.Errorf("schema version %d: %w", version, err)
		}
		if changed > 0 {
			applied = append(applied, version)
		}
	}
	return applied, nil
}

// make runs a statement of the schema, until what it makes is there.
func (s *store) make(ctx context.Context, db dialect.DB, statement string) error {
	for try := 1; ; try++ {
		// DDL commits; the transaction is for the rows.
		_, err := s.inTx(ctx, db, func(tx *sql.Tx) (bool, error) { return true, exec(ctx, tx, statement) })
		server := new(network.OracleError)
		switch {
		case err == nil:
			return nil
		case errors.As(err, &server) && (server.ErrCode == 955 || server.ErrCode == 1408 || server.ErrCode == 1):
			return nil
		case (engine{}).Classify(err) != dialect.Conflict || try == migrateTries:
			return err
		}
		// Another process changes the same table (ORA-00054).
		select {
		case <-ctx.Done():
			return err
		case <-time.After(migratePause):
		}
	}
}

// tableNames are the placeholders of the tables that each version brings; meta, the
// first to be made, is last of its version.
var tableNames = [][]string{
	{"{ready}", "{parked}", "{done}", "{lane}", "{inbox}", "{meta}"},
	{"{revision}", "{progress}"},
	{"{audit}"},
}

// indexNames are the placeholders of the indexes that statements rely on, and of unique
// keys, by the version that brings them.
var indexNames = [][]string{{
	"{name:pk}", "{name:id}",
	"{name:parked_pk}", "{name:parked_due_at}", "{name:parked_blocked}", "{name:parked_key}", "{name:parked_id}", "{name:parked_scheduled_id}",
	"{name:done_pk}", "{name:done_pos}", "{name:done_id}",
	"{name:lane_pk}", "{name:inbox_pk}", "{name:inbox_recorded_at}", "{name:meta_pk}",
}, {
	"{name:revision_key}", "{name:progress_key}",
}, {
	"{name:audit_pk}", "{name:audit_id}",
}}

// upTo are the names of a version and those before; what has none is on its way to the
// first.
func upTo(version int, names [][]string) []string {
	return slices.Concat(names[:min(max(version, 1), len(names))]...)
}

// standing is what stands in the database of the schema.
type standing struct {
	product, release string // of the server
	role             string // of the database
	// sees tells that a table which is not found is not there. The dictionary shows
	// nobody a table that is not granted to him, and the server calls one that is not
	// granted missing as well (ORA-00942).
	sees    bool
	tables  map[string]bool
	indexes map[string]string // the status of each, by name
	// described tells that meta has its row; version and lanes are from it.
	described      bool
	version, lanes int
}

// standing reads what stands in the database. Another process may be migrating: meta is
// read before the tables that a version promises, and its row once more where there are
// others already.
func (s *store) standing(ctx context.Context, db dialect.DB) (st standing, err error) {
	err = read(ctx, db, func(tx *sql.Tx) error {
		var owner, user string
		if _, err := query1(ctx, tx, []any{&st.product, &st.release, &st.role, &owner, &user, &st.sees}, s.sql.session); err != nil {
			return err
		}
		if s.tables.Schema != "" {
			owner = fold(s.tables.Schema)
		}
		st.sees = st.sees || owner == user
		if err := s.standingTables(ctx, tx, owner, &st); err != nil || !st.tables[s.bare("{meta}")] {
			return err
		}
		if st.described, err = query1(ctx, tx, []any{&st.version, &st.lanes}, s.sql.meta); err != nil {
			return err
		}
		if err := s.standingTables(ctx, tx, owner, &st); err != nil {
			return err
		}
		if !st.described && len(st.tables) > 1 {
			st.described, err = query1(ctx, tx, []any{&st.version, &st.lanes}, s.sql.meta)
		}
		return err
	})
	return st, err
}

// standingTables reads which tables and indexes there are.
func (s *store) standingTables(ctx context.Context, tx *sql.Tx, owner string, st *standing) error {
	st.tables, st.indexes = make(map[string]bool), make(map[string]string)
	args := []any{owner}
	for _, placeholder := range upTo(len(tableNames), tableNames) {
		args = append(args, s.bare(placeholder))
	}
	// Names are compared once more by those who look: NLS_COMP may have found some in
	// another case.
	tables, err := query(ctx, tx, one[string], s.sql.tables, args...)
	if err != nil {
		return err
	}
	for _, name := range tables {
		if slices.Contains(args, any(name)) {
			st.tables[name] = true
		}
	}
	indexes, err := query(ctx, tx, func(i *[2]string) []any { return []any{&i[0], &i[1]} }, s.sql.indexes, args...)
	for _, i := range indexes {
		st.indexes[i[0]] = i[1]
	}
	return err
}

// bare is the unquoted, unqualified name of a placeholder, as the server keeps it.
func (s *store) bare(placeholder string) string {
	return dialect.Expand(placeholder, dialect.Tables{Prefix: s.tables.Prefix, Lanes: s.tables.Lanes}, fold)
}

// missing are the tables of the schema's version that are not there, quoted. A user who may read meta and not
// all tables is not told that the others are missing.
func (s *store) missing(st standing) (names []string) {
	if !st.sees && st.described && st.version > 0 {
		return nil
	}
	for _, placeholder := range upTo(st.version, tableNames) {
		if !st.tables[s.bare(placeholder)] {
			names = append(names, s.name(placeholder))
		}
	}
	return names
}

// missingIndexes are the indexes of the schema's version that are not there, quoted.
func (s *store) missingIndexes(st standing) (names []string) {
	if !st.sees {
		return nil
	}
	for _, placeholder := range upTo(st.version, indexNames) {
		if _, ok := st.indexes[s.bare(placeholder)]; !ok {
			names = append(names, s.name(placeholder))
		}
	}
	return names
}

// check refuses a schema that this store cannot work with or complete.
func (s *store) check(st standing) error {
	missing := s.missing(st)
	meta := st.tables[s.bare("{meta}")]
	switch {
	case len(missing) == len(tableNames[0]) && st.version == 0:
		return nil
	case !meta, !st.described && len(missing) < len(tableNames[0])-1, st.version > 0 && len(missing) > 0:
		if len(missing) == 0 {
			return fmt.Errorf("%s is empty: insert its row with the schema's version and number of lanes", s.name("{meta}"))
		}
		return fmt.Errorf("schema is incomplete: %s missing: restore what is missing, or move the other tables of this prefix away and migrate again",
			strings.Join(missing, ", "))
	case st.version > len(versions):
		return fmt.Errorf("schema has version %d, this library knows %d: update the library", st.version, len(versions))
	case st.described && st.lanes != s.tables.Lanes:
		return &dialect.LanesError{Schema: st.lanes, Set: s.tables.Lanes}
	}
	return nil
}

// Inspect reads the server's version and role and the schema's state, a few small
// statements.
func (s *store) Inspect(ctx context.Context, db dialect.DB) (found dialect.Inspection, err error) {
	problem := func(format string, args ...any) {
		found.Problems = append(found.Problems, fmt.Sprintf(format, args...))
	}
	st, err := s.standing(ctx, db)
	if err != nil {
		return found, err
	}
	found.Server = strings.TrimSpace(strings.TrimSpace(st.product) + " " + st.release)
	found.Version, found.Lanes = st.version, st.lanes
	if text := tooOld(st.release); text != "" {
		problem("%s", text)
	}
	if st.role != "" && st.role != "PRIMARY" {
		problem("the database accepts no writes (its role is %s): connect to the primary", st.role)
	}
	if len(st.tables) == 0 {
		return found, nil
	}
	if st.described && st.version == 0 {
		problem("the schema is not complete, because its migration was interrupted: migrate again")
		return found, nil
	}
	for _, name := range s.missing(st) {
		problem("table %s is missing: restore it, or migrate into an empty schema", name)
	}
	s.inspectIndexes(st, problem)
	if st.tables[s.bare("{meta}")] && !st.described {
		problem("table %s is empty: insert its row with the schema's version and number of lanes", s.name("{meta}"))
	}
	if st.tables[s.bare("{lane}")] && st.described {
		err = s.inspectLanes(ctx, db, st.lanes, problem)
	}
	return found, err
}

// numbers finds the version.
var numbers = regexp.MustCompile(`^(\d+)\.`)

// tooOld says what is wrong with the server's version, or nothing.
func tooOld(version string) string {
	match := numbers.FindStringSubmatch(version)
	if match == nil {
		return ""
	}
	if major, _ := strconv.Atoi(match[1]); major < 19 {
		return fmt.Sprintf("the server is Oracle %s, for which nothing here was written: update it to 19c or newer", version)
	}
	return ""
}

// inspectIndexes looks at the indexes of the tables that are there.
func (s *store) inspectIndexes(st standing, problem func(string, ...any)) {
	for _, placeholder := range upTo(st.version, indexNames) {
		// An index goes with its table, whose absence is told.
		table := "{ready}"
		for _, t := range upTo(st.version, tableNames) {
			if prefix := "{name:" + strings.Trim(t, "{}") + "_"; strings.HasPrefix(placeholder, prefix) {
				table = t
			}
		}
		if !st.tables[s.bare(table)] {
			continue
		}
		switch status, ok := st.indexes[s.bare(placeholder)]; {
		case !ok:
			problem("table %s has no index %s: make it as in the text of the schema", s.name(table), s.name(placeholder))
		case status == "UNUSABLE":
			problem("index %s is unusable: rebuild it", s.name(placeholder))
		}
	}
}

// inspectLanes looks at the lanes. The number is the schema's own, whatever the caller
// believes: that these differ is for the caller to say.
func (s *store) inspectLanes(ctx context.Context, db dialect.DB, lanes int, problem func(string, ...any)) error {
	var there, beyond int
	err := read(ctx, db, func(tx *sql.Tx) error {
		_, err := query1(ctx, tx, []any{&there, &beyond}, s.sql.lanes, lanes, lanes)
		return err
	})
	if err != nil {
		return err
	}
	if there < lanes {
		problem("%d of %d lanes have no row, so their messages wait forever: insert those missing from 0 to %d into column lane of %s",
			lanes-there, lanes, lanes-1, s.name("{lane}"))
	}
	if beyond > 0 {
		problem("%d rows of %s are beyond the schema's %d lanes: delete those with lane above %d",
			beyond, s.name("{lane}"), lanes, lanes-1)
	}
	return nil
}
