package sqlserver

import (
	"context"
	"database/sql"
	"embed"
	"fmt"
	"slices"
	"strconv"
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
func (s *store) name(text string) string { return dialect.Expand(text, s.tables, quote) }

// Migrate runs each missing version in a transaction of its own, under an application
// lock that lets one process of the database migrate at a time. DDL is transactional:
// an interruption leaves nothing. It needs the right to create tables, and a schema if
// it is named and missing.
func (s *store) Migrate(ctx context.Context, db dialect.DB) ([]int, error) {
	var applied []int
	for version := range versions {
		ran, err := inTx(ctx, db, func(tx *sql.Tx) (bool, error) { return s.migrate(ctx, tx, version+1) })
		if err != nil {
			return applied, err
		}
		if ran {
			applied = append(applied, version+1)
		}
	}
	return applied, nil
}

// migrate runs one version unless it is there. It returns true if it did.
func (s *store) migrate(ctx context.Context, tx *sql.Tx, version int) (bool, error) {
	var locked int
	if _, err := query1(ctx, tx, []any{&locked}, s.sql.migrateLock); err != nil {
		return false, err
	}
	if locked < 0 {
		return false, fmt.Errorf("the lock of migrations is not to be had (sp_getapplock returned %d): "+
			"another process migrates; wait for it and try again", locked)
	}
	found, err := s.check(ctx, tx)
	if err != nil || found >= version {
		return false, err
	}
	if version == 1 && s.tables.Schema != "" {
		var exists sql.Null[int]
		if _, err := query1(ctx, tx, []any{&exists}, s.sql.schemaExists, s.tables.Schema); err != nil {
			return false, err
		}
		if !exists.Valid {
			if err := exec(ctx, tx, s.sql.createSchema); err != nil {
				return false, err
			}
		}
	}
	for _, statement := range s.statementsOf(version) {
		if err := exec(ctx, tx, statement); err != nil {
			return false, fmt.Errorf("schema version %d: %w", version, err)
		}
	}
	return true, nil
}

// check returns the version found, 0 for none, and refuses a schema that this store
// cannot work with.
func (s *store) check(ctx context.Context, tx *sql.Tx) (int, error) {
	missing, err := s.missing(ctx, tx, 1)
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
	found, err := query1(ctx, tx, []any{&version, &lanes}, s.sql.meta)
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
	missing, err = s.missing(ctx, tx, version)
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

// tablesOf are the tables of a version.
func tablesOf(version int) []string {
	return slices.Concat(tableNames[:min(max(version, 1), len(tableNames))]...)
}

// indexNames are the placeholders of the indexes that statements force, by table.
var indexNames = map[string][]string{
	"{ready}":  {"{name:pk}", "{name:id}"},
	"{parked}": {"{name:parked_pk}", "{name:parked_due_at}", "{name:parked_blocked}", "{name:parked_key}", "{name:parked_id}"},
	"{done}":   {"{name:done_pk}", "{name:done_id}"},
	"{lane}":   {"{name:lane_pk}"},
	"{inbox}":  {"{name:inbox_pk}", "{name:inbox_recorded_at}"},
	"{meta}":   {"{name:meta_pk}"},

	"{revision}": {"{name:revision_pk}"},
	"{progress}": {"{name:progress_pk}"},
	"{audit}":    {"{name:audit_pk}", "{name:audit_id}"},
}

// bare is the unquoted, unqualified name of a placeholder.
func (s *store) bare(placeholder string) string {
	return dialect.Expand(placeholder, dialect.Tables{Prefix: s.tables.Prefix, Lanes: s.tables.Lanes},
		func(name string) string { return name })
}

// missing returns the tables of the schema's version that are not there, quoted.
func (s *store) missing(ctx context.Context, tx *sql.Tx, version int) ([]string, error) {
	var ids [9]sql.Null[int64]
	into, names := make([]any, len(ids)), make([]any, len(ids))
	for i, placeholder := range tablesOf(len(tableNames)) {
		into[i], names[i] = &ids[i], s.name(placeholder)
	}
	_, err := query1(ctx, tx, into, s.sql.tables, names...)
	var missing []string
	for i, placeholder := range tablesOf(version) {
		if !ids[i].Valid {
			missing = append(missing, s.name(placeholder))
		}
	}
	return missing, err
}

// server is what the server and the database are set to.
type server struct {
	version       string
	edition       int // SERVERPROPERTY('EngineEdition')
	compatibility int
	delayed       int // 2 is delayed_durability FORCED
	updateability string
}

// The engine editions that matter.
const (
	azureDatabase = 5
	azureSynapse  = 6
	azureManaged  = 8
	azureEdge     = 9
)

// name is the server's name and version.
func (v *server) name() string {
	switch v.edition {
	case azureDatabase:
		return "Azure SQL Database " + v.version
	case azureManaged:
		return "Azure SQL Managed Instance " + v.version
	case azureEdge:
		return "Azure SQL Edge " + v.version
	}
	return "SQL Server " + v.version
}

// problems are what is wrong with the server or the database. Azure's version is no
// measure: Azure SQL Database has called itself 12 for many years.
func (v *server) problems() (list []string) {
	const oldest, openJSON = 14, 130
	major, _, _ := strings.Cut(v.version, ".")
	n, err := strconv.Atoi(major)
	switch {
	case v.edition == azureSynapse || v.edition > azureEdge:
		list = append(list, fmt.Sprintf("the server is of engine edition %d, which has no row locks that this could rely on: use SQL Server, Azure SQL Database or Managed Instance", v.edition))
	case v.edition != azureDatabase && v.edition != azureManaged && err == nil && n < oldest:
		list = append(list, fmt.Sprintf("the server is SQL Server %s: update it to 2017 (14.0) or newer", v.version))
	}
	if v.compatibility < openJSON {
		list = append(list, fmt.Sprintf("the database's compatibility level is %d, which has no OPENJSON: set it to 130 or higher with ALTER DATABASE CURRENT SET COMPATIBILITY_LEVEL", v.compatibility))
	}
	if v.updateability == "READ_ONLY" {
		list = append(list, "the database accepts no writes (Updateability is READ_ONLY), as a secondary does: connect to the primary, without ApplicationIntent=ReadOnly")
	}
	if v.delayed == 2 {
		list = append(list, "commits are not durable at once (DELAYED_DURABILITY = FORCED), so a crash can undo one whose message was published: set it to DISABLED or ALLOWED")
	}
	return list
}

// Inspect reads the server's settings and the schema's state, a few small statements.
func (s *store) Inspect(ctx context.Context, db dialect.DB) (found dialect.Inspection, err error) {
	err = read(ctx, db, func(tx *sql.Tx) error {
		var v server
		if _, err := query1(ctx, tx, []any{&v.version, &v.edition, &v.compatibility, &v.delayed, &v.updateability}, s.sql.server); err != nil {
			return err
		}
		found.Server, found.Problems = v.name(), v.problems()
		missing, err := s.missing(ctx, tx, 1)
		if err != nil || len(missing) == len(tableNames[0]) {
			return err
		}
		return s.inspectTables(ctx, tx, missing, &found)
	})
	return found, err
}

// inspectTables looks at the tables, their indexes and the lanes.
func (s *store) inspectTables(ctx context.Context, tx *sql.Tx, missing []string, found *dialect.Inspection) error {
	problem := func(format string, args ...any) {
		found.Problems = append(found.Problems, fmt.Sprintf(format, args...))
	}
	absent := make(map[string]bool)
	for _, name := range missing {
		absent[name] = true
		problem("table %s is missing: restore it, or migrate into an empty schema", name)
	}
	if !absent[s.name("{meta}")] {
		described, err := query1(ctx, tx, []any{&found.Version, &found.Lanes}, s.sql.meta)
		if err != nil {
			return err
		}
		if !described {
			problem("table %s is empty: insert its row with the schema's version and number of lanes", s.name("{meta}"))
		}
	}
	all, err := s.missing(ctx, tx, found.Version)
	if err != nil {
		return err
	}
	for _, name := range all {
		if !absent[name] {
			absent[name] = true
			problem("table %s is missing: restore it", name)
		}
	}
	for _, placeholder := range tablesOf(found.Version) {
		if name := s.name(placeholder); !absent[name] {
			if err := s.inspectIndexes(ctx, tx, placeholder, problem); err != nil {
				return err
			}
		}
	}
	// The schema's own number of lanes, whatever the caller believes: that these
	// differ is for the caller to say.
	if !absent[s.name("{lane}")] && found.Lanes > 0 {
		var there, beyond int
		if _, err := query1(ctx, tx, []any{&there, &beyond}, s.sql.lanes, number(found.Lanes)); err != nil {
			return err
		}
		if there < found.Lanes {
			problem("%d of %d lanes have no row, so their messages wait forever: insert those missing from 0 to %d into column lane of %s",
				found.Lanes-there, found.Lanes, found.Lanes-1, s.name("{lane}"))
		}
		if beyond > 0 {
			problem("%d rows of %s are beyond the schema's %d lanes: delete those with lane above %d",
				beyond, s.name("{lane}"), found.Lanes, found.Lanes-1)
		}
	}
	if absent[s.name("{ready}")] {
		return nil
	}
	var increment int64
	ok, err := query1(ctx, tx, []any{&increment}, s.sql.identity, s.name("{ready}"))
	switch {
	case err != nil:
		return err
	case !ok:
		problem("column seq of %s is no identity: make the table anew as in the text of the schema", s.name("{ready}"))
	case increment < 1:
		problem("column seq of %s counts by %d, so that newer messages come first: make the table anew with IDENTITY (1, 1)", s.name("{ready}"), increment)
	}
	return nil
}

// inspectIndexes looks at the indexes of one table.
func (s *store) inspectIndexes(ctx context.Context, tx *sql.Tx, placeholder string, problem func(string, ...any)) error {
	type index struct {
		name     string
		rowLocks bool
	}
	list, err := query(ctx, tx, func(i *index) []any { return []any{&i.name, &i.rowLocks} }, s.sql.indexes, s.name(placeholder))
	if err != nil {
		return err
	}
	has := make(map[string]bool)
	for _, i := range list {
		has[strings.ToLower(i.name)] = true
		if !i.rowLocks {
			problem("index %s of %s takes no row locks, so that a claim locks what others work on: set ALLOW_ROW_LOCKS to ON", quote(i.name), s.name(placeholder))
		}
	}
	for _, name := range indexNames[placeholder] {
		if !has[strings.ToLower(s.bare(name))] {
			problem("table %s has no index %s: make it as in the text of the schema", s.name(placeholder), s.name(name))
		}
	}
	return nil
}
