package mysql

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

// Steps returns the DDL. A named schema is not part of it: it must exist.
func (s *store) Steps() []dialect.Step {
	steps := make([]dialect.Step, len(versions))
	for i, v := range versions {
		steps[i] = dialect.Step{Version: i + 1, Name: v.name, SQL: s.name(text(i + 1))}
	}
	return steps
}

// statementsOf are the statements of a version. The text is cut before names are
// filled in, which may hold anything.
func (s *store) statementsOf(version int) (list []string) {
	for part := range strings.SplitSeq(text(version), ";\n") {
		if strings.TrimSpace(part) != "" {
			list = append(list, s.name(part))
		}
	}
	return list
}

// name fills names into a text.
func (s *store) name(text string) string { return expand(text, s.tables) }

// migrateWait is how long Migrate waits for another process that migrates.
const migrateWait = time.Minute

// Migrate runs the missing versions under a lock of the server that lets one process
// migrate at a time. DDL commits by itself: an interruption leaves a schema of version
// 0, which the next call completes. It needs the right to create tables, and a
// database if the schema is named and missing.
func (s *store) Migrate(ctx context.Context, db dialect.DB) (applied []int, err error) {
	// The lock belongs to a session, and a transaction is what keeps one. Its context
	// does not end, so that the lock is released before the session goes back to the
	// pool; the statements' does.
	tx, err := db.BeginTx(context.WithoutCancel(ctx), &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return nil, err
	}
	defer func() {
		undone := tx.Rollback()
		if err == nil {
			err = undone
		}
	}()
	free, err := lockMigration(ctx, tx, migrateWait)
	if err != nil {
		return nil, err
	}
	defer free()
	return s.migrate(ctx, tx)
}

var errMigrating = errors.New("another process has been migrating")

// lockMigration takes the lock for the session that tx keeps.
func lockMigration(ctx context.Context, tx *sql.Tx, wait time.Duration) (free func(), err error) {
	var locked sql.Null[bool]
	if _, err := query1(ctx, tx, []any{&locked}, takeMigrateLockSQL, int(wait.Seconds())); err != nil {
		return nil, err
	}
	if !locked.V {
		return nil, fmt.Errorf("%w for %v: wait for it and try again", errMigrating, wait)
	}
	return func() {
		released, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		// Where the session is lost, so is the lock.
		_ = exec(released, tx, dropMigrateLockSQL)
	}, nil
}

func (s *store) migrate(ctx context.Context, tx *sql.Tx) (applied []int, err error) {
	found, err := s.standing(ctx, tx)
	if err != nil {
		return nil, err
	}
	if err := s.check(found); err != nil {
		return nil, err
	}
	if found.version == 0 && s.tables.Schema != "" {
		var exists bool
		if _, err := query1(ctx, tx, []any{&exists}, schemaExistsSQL, s.tables.Schema); err != nil {
			return nil, err
		}
		if !exists {
			if err := exec(ctx, tx, s.sql.createSchema); err != nil {
				return nil, err
			}
		}
	}
	for version := found.version + 1; version <= len(versions); version++ {
		for _, statement := range s.statementsOf(version) {
			if err := exec(ctx, tx, statement); err != nil {
				return applied, fmt.Errorf("schema version %d: %w", version, err)
			}
		}
		applied = append(applied, version)
	}
	return applied, nil
}

// tableNames are the placeholders of the tables that each version brings; meta, the
// first to be made, is last of its version.
var tableNames = [][]string{
	{"{ready}", "{parked}", "{done}", "{lane}", "{inbox}", "{meta}"},
	{"{revision}", "{progress}"},
	{"{audit}"},
}

// tablesOf are the tables of a version; what has none is on its way to the first.
func tablesOf(version int) []string {
	return slices.Concat(tableNames[:min(max(version, 1), len(tableNames))]...)
}

// indexNames are the placeholders of the indexes that statements force, by table.
var indexNames = map[string][]string{
	"{ready}":  {"{name:id}", "{name:seq}"},
	"{parked}": {"{name:parked_due_at}", "{name:parked_blocked}", "{name:parked_key}", "{name:parked_id}", "{name:parked_scheduled_id}"},
	"{done}":   {"{name:done_pos}", "{name:done_id}"},
	"{inbox}":  {"{name:inbox_recorded_at}"},
	"{audit}":  {"{name:audit_id}"},
}

// standing is what stands in the database of the schema.
type standing struct {
	server string // VERSION()
	// engines are the storage engines of the tables that there are, by placeholder.
	engines map[string]string
	// described tells that meta has its row; version and lanes are from it.
	described      bool
	version, lanes int
}

// standing reads what stands in the database.
func (s *store) standing(ctx context.Context, tx *sql.Tx) (standing, error) {
	st := standing{engines: make(map[string]string)}
	var current sql.Null[string]
	var folds int
	if _, err := query1(ctx, tx, []any{&st.server, &current, &folds}, sessionSQL); err != nil {
		return st, err
	}
	if !current.Valid {
		return st, errNoDatabase
	}
	type table struct{ name, engine string }
	tables, err := query(ctx, tx, func(t *table) []any { return []any{&t.name, &t.engine} }, tablesSQL, s.names()...)
	if err != nil {
		return st, err
	}
	for _, placeholder := range tablesOf(len(tableNames)) {
		name := s.bare(placeholder)
		for _, t := range tables {
			// A server may keep table names in lower case.
			if t.name == name || folds != 0 && strings.EqualFold(t.name, name) {
				st.engines[placeholder] = t.engine
			}
		}
	}
	if _, ok := st.engines["{meta}"]; ok {
		st.described, err = query1(ctx, tx, []any{&st.version, &st.lanes}, s.sql.meta)
	}
	return st, err
}

// errNoDatabase also refuses a session whose tables are all named with their schema:
// without a database MySQL runs no update that joins a JSON_TABLE.
var errNoDatabase = errors.New("no database is selected: name one in the DSN, the schema's or another")

// bare is the unquoted, unqualified name of a placeholder.
func (s *store) bare(placeholder string) string {
	return dialect.Expand(placeholder, dialect.Tables{Prefix: s.tables.Prefix, Lanes: s.tables.Lanes},
		func(name string) string { return name })
}

// names are the schema, NULL for the session's, and the names of the tables.
func (s *store) names() []any {
	args := []any{sql.Null[string]{V: s.tables.Schema, Valid: s.tables.Schema != ""}}
	for _, placeholder := range tablesOf(len(tableNames)) {
		args = append(args, s.bare(placeholder))
	}
	return args
}

// missing are the tables of the schema's version that are not there, quoted.
func (s *store) missing(st standing) (names []string) {
	for _, placeholder := range tablesOf(st.version) {
		if _, ok := st.engines[placeholder]; !ok {
			names = append(names, s.name(placeholder))
		}
	}
	return names
}

// check refuses a schema that this store cannot work with or complete.
func (s *store) check(st standing) error {
	missing := s.missing(st)
	_, meta := st.engines["{meta}"]
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

// Inspect reads the server's settings and the schema's state, a few small statements.
func (s *store) Inspect(ctx context.Context, db dialect.DB) (found dialect.Inspection, err error) {
	problem := func(format string, args ...any) {
		found.Problems = append(found.Problems, fmt.Sprintf(format, args...))
	}
	var unseen []string
	err = read(ctx, db, func(tx *sql.Tx) error {
		st, err := s.standing(ctx, tx)
		found.Server = serverName(st.server)
		if text := tooOld(st.server); text != "" {
			problem("%s", text)
		}
		if errors.Is(err, errNoDatabase) {
			problem("%v", err)
			return nil
		}
		if err != nil {
			return err
		}
		if err := s.inspectSession(ctx, tx, st.server, problem); err != nil {
			return err
		}
		found.Version, found.Lanes = st.version, st.lanes
		if len(st.engines) == 0 {
			return nil
		}
		if st.described && st.version == 0 {
			problem("the schema is not complete, because its migration was interrupted: migrate again")
			return nil
		}
		unseen = s.missing(st)
		return s.inspectTables(ctx, tx, st, problem)
	})
	if err != nil {
		return found, err
	}
	// The information schema shows nobody a table that is not granted to him.
	for _, name := range unseen {
		err := read(ctx, db, func(tx *sql.Tx) error {
			_, err := query1(ctx, tx, []any{new(int)}, "SELECT 1 FROM "+name+" LIMIT 0")
			return err
		})
		switch {
		case isDenied(err):
		case err != nil && (engine{}).Classify(err) != dialect.Missing:
			return found, err
		default:
			problem("table %s is missing: restore it, or migrate into an empty schema", name)
		}
	}
	return found, nil
}

// serverName is the server's name and version.
func serverName(version string) string {
	switch {
	case version == "":
		return ""
	case strings.Contains(version, "MariaDB"):
		return "MariaDB " + version
	case strings.Contains(version, "TiDB"):
		return "TiDB " + version
	}
	return "MySQL " + version
}

// numbers finds the version; MariaDB may put 5.5.5- before it for old replicas.
var numbers = regexp.MustCompile(`^(?:5\.5\.5-)?(\d+)\.(\d+)\.(\d+)`)

// tooOld says what is wrong with the server's version, or nothing.
func tooOld(version string) string {
	if strings.Contains(version, "TiDB") {
		return fmt.Sprintf("the server is TiDB (%s), which reads SKIP LOCKED and locks nothing, so that two relays would own a lane: "+
			"use MySQL or MariaDB", version)
	}
	match := numbers.FindStringSubmatch(version)
	if match == nil {
		return ""
	}
	var have []int
	for _, digits := range match[1:] {
		n, _ := strconv.Atoi(digits) // digits they are
		have = append(have, n)
	}
	if strings.Contains(version, "MariaDB") {
		if slices.Compare(have, []int{10, 6, 0}) < 0 {
			return fmt.Sprintf("the server is MariaDB %s, which has no SKIP LOCKED: update it to 10.6 or newer", version)
		}
	} else if slices.Compare(have, []int{8, 0, 13}) < 0 {
		return fmt.Sprintf("the server is MySQL %s, which lacks SKIP LOCKED or defaults that are expressions: update it to 8.0.13 or newer", version)
	}
	return ""
}

// inspectSession looks at the settings of the server and of the session.
func (s *store) inspectSession(ctx context.Context, tx *sql.Tx, server string, problem func(string, ...any)) error {
	variables, err := query(ctx, tx, func(v *[2]string) []any { return []any{&v[0], &v[1]} }, variablesSQL)
	if err != nil {
		return err
	}
	value := make(map[string]string)
	for _, v := range variables {
		value[strings.ToLower(v[0])] = strings.ToUpper(v[1])
	}
	mode := value["sql_mode"]
	if !strings.Contains(mode, "STRICT_TRANS_TABLES") && !strings.Contains(mode, "STRICT_ALL_TABLES") {
		problem("sql_mode is not strict, so that what is too long would be cut short: add STRICT_TRANS_TABLES, also for producers")
	}
	if strings.Contains(mode, "EMPTY_STRING_IS_NULL") {
		problem("sql_mode has EMPTY_STRING_IS_NULL, which takes an empty text for none: remove it")
	}
	if value["sql_safe_updates"] == "ON" && strings.Contains(server, "MariaDB") {
		problem("sql_safe_updates is ON, with which MariaDB refuses to update the rows of a list: set it to OFF for this user")
	}
	for _, name := range []string{"read_only", "super_read_only", "innodb_read_only"} {
		if v := value[name]; v != "" && v != "OFF" {
			problem("the server accepts no writes (%s=%s), as a replica does: connect to the primary", name, v)
			break
		}
	}
	for _, name := range []string{"transaction_read_only", "tx_read_only"} {
		if value[name] == "ON" {
			problem("sessions are read-only (%s=ON): set it to OFF for this user", name)
			break
		}
	}
	if v := value["innodb_flush_log_at_trx_commit"]; v == "0" || v == "2" {
		problem("commits are not durable at once (innodb_flush_log_at_trx_commit=%s), so a crash can undo one whose message was published: set it to 1", v)
	}
	if value["log_bin"] == "ON" && value["binlog_format"] == "STATEMENT" {
		problem("binlog_format is STATEMENT, which the server refuses at READ COMMITTED: set it to ROW or MIXED")
	}
	return nil
}

// inspectTables looks at the tables, their indexes and the lanes.
func (s *store) inspectTables(ctx context.Context, tx *sql.Tx, st standing, problem func(string, ...any)) error {
	type index struct{ table, name string }
	list, err := query(ctx, tx, func(i *index) []any { return []any{&i.table, &i.name} }, indexesSQL, s.names()...)
	if err != nil {
		return err
	}
	has := make(map[string]bool)
	for _, i := range list {
		has[strings.ToLower(i.name)] = true
	}
	for _, placeholder := range tablesOf(st.version) {
		engine, ok := st.engines[placeholder]
		if !ok {
			continue
		}
		if !strings.EqualFold(engine, "InnoDB") {
			problem("table %s is kept by %s, which has no transactions that this could rely on: alter it to ENGINE=InnoDB", s.name(placeholder), engine)
		}
		for _, name := range indexNames[placeholder] {
			if !has[strings.ToLower(s.bare(name))] {
				problem("table %s has no index %s: make it as in the text of the schema", s.name(placeholder), s.name(name))
			}
		}
	}
	if _, ok := st.engines["{meta}"]; ok && !st.described {
		problem("table %s is empty: insert its row with the schema's version and number of lanes", s.name("{meta}"))
	}
	// The schema's own number of lanes, whatever the caller believes: that these
	// differ is for the caller to say.
	if _, ok := st.engines["{lane}"]; ok && st.described {
		var there, beyond int
		if _, err := query1(ctx, tx, []any{&there, &beyond}, s.sql.lanes, st.lanes, st.lanes); err != nil {
			return err
		}
		if there < st.lanes {
			problem("%d of %d lanes have no row, so their messages wait forever: insert those missing from 0 to %d into column lane of %s",
				st.lanes-there, st.lanes, st.lanes-1, s.name("{lane}"))
		}
		if beyond > 0 {
			problem("%d rows of %s are beyond the schema's %d lanes: delete those with lane above %d",
				beyond, s.name("{lane}"), st.lanes, st.lanes-1)
		}
	}
	return nil
}
