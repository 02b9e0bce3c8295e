package postgres

import (
	"context"
	"database/sql"
	"embed"
	"fmt"
	"slices"
	"strings"

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

// Steps returns the DDL. A named schema is not part of it: it must exist.
func (s *store) Steps() []dialect.Step {
	steps := make([]dialect.Step, len(versions))
	for i, v := range versions {
		text, err := files.ReadFile(v.file)
		if err != nil {
			panic(err) // embedded
		}
		whole := strings.ReplaceAll(string(text), "{lane_fits}", laneFits(s.tables.Lanes))
		steps[i] = dialect.Step{Version: i + 1, Name: v.name, SQL: s.name(whole)}
	}
	return steps
}

// laneFits is the condition that a row's lane is that of its key hash, or any one
// without a hash. The server parses a table's conditions in every statement that
// inserts, so the longer one for any number of lanes, which is right for a power of
// two as well, made an insert of one row take a quarter longer.
func laneFits(lanes int) string {
	if lanes&(lanes-1) == 0 {
		return fmt.Sprintf("lane = coalesce(key_hash & %d, lane & %d)", lanes-1, lanes-1)
	}
	return `lane BETWEEN 0 AND {lanes} - 1 AND (key_hash IS NULL OR
        lane = (key_hash % {lanes} + {lanes} + CASE WHEN key_hash < 0 THEN {wrap} ELSE 0 END) % {lanes})`
}

// name fills names into a text.
func (s *store) name(text string) string { return dialect.Expand(text, s.tables, quote) }

// Migrate runs each missing version in a transaction of its own, under a lock
// that lets one process of the database migrate at a time: IF NOT EXISTS alone
// fails when two come at once. It needs the right to create tables, and a
// schema if it is named and missing.
func (s *store) Migrate(ctx context.Context, db dialect.DB) ([]int, error) {
	var applied []int
	for _, step := range s.Steps() {
		ran, err := inTx(ctx, db, func(tx *sql.Tx) (bool, error) { return s.migrate(ctx, tx, step) })
		if err != nil {
			return applied, err
		}
		if ran {
			applied = append(applied, step.Version)
		}
	}
	return applied, nil
}

// migrate runs one step unless it is there. It returns true if it did.
func (s *store) migrate(ctx context.Context, tx *sql.Tx, step dialect.Step) (bool, error) {
	if _, err := exec(ctx, tx, migrateLockSQL); err != nil {
		return false, err
	}
	version, err := s.check(ctx, tx)
	if err != nil || version >= step.Version {
		return false, err
	}
	if step.Version == 1 && s.tables.Schema != "" {
		var exists bool
		if _, err := query1(ctx, tx, []any{&exists}, schemaExistsSQL, s.tables.Schema); err != nil {
			return false, err
		}
		if !exists {
			if _, err := exec(ctx, tx, s.sql.createSchema); err != nil {
				return false, err
			}
		}
	}
	// Without arguments pgx sends the text as it is, all statements at once.
	if _, err := exec(ctx, tx, step.SQL); err != nil {
		return false, fmt.Errorf("schema version %d: %w", step.Version, err)
	}
	_, err = exec(ctx, tx, s.sql.setVersion, step.Version)
	return true, err
}

// check returns the version found, 0 for none, and refuses a schema that this
// store cannot work with.
func (s *store) check(ctx context.Context, on querier) (int, error) {
	missing, err := s.missing(ctx, on, 1)
	switch {
	case err != nil:
		return 0, err
	case len(missing) == len(tableNames[0]):
		return 0, nil
	case len(missing) > 0:
		return 0, fmt.Errorf("schema is incomplete: %s missing: restore what is missing, or move the other tables of this prefix away and migrate again",
			strings.Join(missing, ", "))
	}
	var version, lanes int
	found, err := query1(ctx, on, []any{&version, &lanes}, s.sql.meta)
	switch {
	case err != nil:
		return 0, err
	case !found:
		return 0, fmt.Errorf("%s is empty: insert its row with the schema's version and number of lanes", s.name("{meta}"))
	case version > len(versions):
		return 0, fmt.Errorf("schema has version %d, this library knows %d: update the library", version, len(versions))
	case lanes != s.tables.Lanes:
		return 0, &dialect.LanesError{Schema: lanes, Set: s.tables.Lanes}
	}
	missing, err = s.missing(ctx, on, version)
	if err == nil && len(missing) > 0 {
		err = fmt.Errorf("schema of version %d is incomplete: %s missing: restore what is missing", version, strings.Join(missing, ", "))
	}
	return version, err
}

// tableNames are the placeholders of the tables that each version brings.
var tableNames = [][]string{
	{"{ready}", "{parked}", "{done}", "{lane}", "{inbox}", "{meta}"},
	{"{revision}", "{progress}"},
	{"{audit}"},
}

// missing returns the tables of the schema's version that are not there, quoted.
func (s *store) missing(ctx context.Context, on querier, version int) ([]string, error) {
	type table struct {
		name  string
		found bool
	}
	var names []string
	for _, n := range slices.Concat(tableNames[:min(version, len(tableNames))]...) {
		names = append(names, s.name(n))
	}
	tables, err := query(ctx, on, func(t *table) []any { return []any{&t.name, &t.found} }, tablesSQL, names)
	var missing []string
	for _, t := range tables {
		if !t.found {
			missing = append(missing, t.name)
		}
	}
	return missing, err
}

// oldest is the oldest server the statements run on, as server_version_num.
const oldest = 120000

// Inspect reads the server's settings and the schema's state, a few small
// statements.
func (s *store) Inspect(ctx context.Context, db dialect.DB) (dialect.Inspection, error) {
	var found dialect.Inspection
	problem := func(format string, args ...any) {
		found.Problems = append(found.Problems, fmt.Sprintf(format, args...))
	}

	var number int
	var version, encoding, readOnly, synchronous string
	var standby bool
	if _, err := query1(ctx, db, []any{&number, &version, &encoding, &standby, &readOnly, &synchronous}, serverSQL); err != nil {
		return found, err
	}
	found.Server = "PostgreSQL " + version
	if number < oldest {
		problem("the server is PostgreSQL %s: update it to 12 or newer", version)
	}
	if encoding != "UTF8" {
		problem("the database's encoding is %s, which does not keep every text: use a database with encoding UTF8", encoding)
	}
	if standby {
		problem("the server is a standby, which accepts no writes: connect to the primary, for example with target_session_attrs=read-write")
	} else if readOnly == "on" {
		problem("sessions are read-only (default_transaction_read_only=on): set it to off for this role")
	}
	if synchronous == "off" {
		problem("commits are not durable at once (synchronous_commit=off), so a crash can undo one whose message was published: set it to on for producers")
	}

	missing, err := s.missing(ctx, db, 1)
	if err != nil {
		return found, err
	}
	if len(missing) == len(tableNames[0]) {
		return found, nil
	}
	absent := func(placeholder string) bool {
		for _, name := range missing {
			if name == s.name(placeholder) {
				return true
			}
		}
		return false
	}
	if !absent("{meta}") {
		ok, err := query1(ctx, db, []any{&found.Version, &found.Lanes}, s.sql.meta)
		if err != nil {
			return found, err
		}
		if !ok {
			problem("table %s is empty: insert its row with the schema's version and number of lanes", s.name("{meta}"))
		}
	}
	if missing, err = s.missing(ctx, db, max(found.Version, 1)); err != nil {
		return found, err
	}
	for _, name := range missing {
		problem("table %s is missing: restore it, or migrate into an empty schema", name)
	}
	// The schema's own number of lanes, whatever the caller believes: that these
	// differ is for the caller to say.
	if !absent("{lane}") && found.Lanes > 0 {
		var without, beyond int
		if _, err := query1(ctx, db, []any{&without, &beyond}, s.sql.missingLanes, found.Lanes); err != nil {
			return found, err
		}
		if without > 0 {
			problem("%d of %d lanes have no row, so their messages wait forever: insert those missing from 0 to %d into column lane of %s",
				without, found.Lanes, found.Lanes-1, s.name("{lane}"))
		}
		if beyond > 0 {
			problem("%d rows of %s are beyond the schema's %d lanes: delete those with lane above %d",
				beyond, s.name("{lane}"), found.Lanes, found.Lanes-1)
		}
	}
	if !absent("{ready}") {
		var cache, increment int64
		var cycles bool
		ok, err := query1(ctx, db, []any{&cache, &increment, &cycles}, sequenceSQL, s.name("{ready}"))
		switch {
		case err != nil:
			return found, err
		case !ok:
			problem("column seq of %s is no identity: make it one", s.name("{ready}"))
		case cache != 1 || increment < 1 || cycles:
			problem("the sequence of %s.seq does not count in order of insert (cache %d, increment %d, cycle %t): alter it to CACHE 1 INCREMENT 1 NO CYCLE",
				s.name("{ready}"), cache, increment, cycles)
		}
	}
	return found, nil
}
