package sqlite

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/outbox-suite/outbox/dialect"
)

//go:embed schema/*.sql
var files embed.FS

// versions are the schema's files, in order, with the tables and indexes that each
// makes, as placeholders.
var versions = []struct {
	name, file string
	objects    []string
}{
	{"the outbox", "schema/001_outbox.sql", []string{
		"{ready}", "{name:ready_lane}", "{name:ready_id}",
		"{parked}", "{name:parked_due}", "{name:parked_blocked}", "{name:parked_key}", "{name:parked_id}", "{name:parked_scheduled_id}",
		"{done}", "{name:done_at}", "{name:done_id}",
		"{lane}",
		"{inbox}", "{name:inbox_recorded_at}",
		"{meta}",
	}},
	{"revisions", "schema/002_revisions.sql", []string{"{revision}", "{progress}"}},
	{"the audit", "schema/003_audit.sql", []string{"{audit}", "{name:audit_id}"}},
}

// objects are those of the newest schema.
func objects() (all []string) {
	for _, v := range versions {
		all = append(all, v.objects...)
	}
	return all
}

// Steps implements [dialect.Schema]. Each text ends by writing its version.
func (s *store) Steps() []dialect.Step {
	steps := make([]dialect.Step, len(versions))
	for i, v := range versions {
		text, err := files.ReadFile(v.file)
		if err != nil {
			panic(fmt.Sprintf("sqlite: an embedded file is always there: %v", err))
		}
		steps[i] = dialect.Step{Version: i + 1, Name: v.name, SQL: dialect.Expand(string(text), s.tables, quote)}
	}
	return steps
}

// standing is what stands in the database of the schema.
type standing struct {
	version, lanes int
	// missing are the objects of the version, or of any when it is 0, that are not there.
	missing []string
	// none tells that no object is there.
	none bool
}

// standing reads what stands in the database. Without a meta table the version is 0.
func (s *store) standing(ctx context.Context, q queryer) (standing, error) {
	var folded []string
	bare := func(object string) string {
		return dialect.Expand(object, s.tables, func(name string) string { return name })
	}
	for _, object := range objects() {
		folded = append(folded, fold(bare(object)))
	}
	found, err := values[string](ctx, q, s.sql.findObjects, texts(folded))
	if err != nil {
		return standing{}, err
	}
	there := make(map[string]bool, len(found))
	for _, name := range found {
		there[name] = true
	}
	st := standing{none: len(found) == 0}
	if there[fold(s.tables.Prefix+"_meta")] {
		err = query(ctx, q, func(rows *sql.Rows) (bool, error) {
			return true, rows.Scan(&st.version, &st.lanes)
		}, s.sql.meta)
	}
	for i, v := range versions {
		for _, object := range v.objects {
			if name := bare(object); !there[fold(name)] && (st.version == 0 || i < st.version) {
				st.missing = append(st.missing, name)
			}
		}
	}
	return st, err
}

// fold is lower(name) as SQLite has it: for ASCII only.
func fold(name string) string {
	return strings.Map(func(r rune) rune {
		if 'A' <= r && r <= 'Z' {
			return r + 'a' - 'A'
		}
		return r
	}, name)
}

// check tells what keeps the schema from being used or brought to the newest
// version.
func (s *store) check(st standing) error {
	newest := len(versions)
	switch {
	case st.version > newest:
		return fmt.Errorf("the schema of %q has version %d and this library knows %d: use a newer library",
			s.tables.Prefix, st.version, newest)
	case st.version > 0 && st.lanes != s.tables.Lanes:
		return &dialect.LanesError{Schema: st.lanes, Set: s.tables.Lanes}
	case st.version == 0 && !st.none:
		return fmt.Errorf("some of the tables and indexes of %q exist without the schema's version in %s_meta: "+
			"choose another prefix, or remove what a broken set-up left; missing are %s",
			s.tables.Prefix, s.tables.Prefix, strings.Join(st.missing, ", "))
	case st.version > 0 && len(st.missing) > 0:
		return fmt.Errorf("the schema of %q has version %d and lacks %s: restore them from a backup or from the "+
			"text of the schema", s.tables.Prefix, st.version, strings.Join(st.missing, ", "))
	}
	return nil
}

// errRaced undoes a migration that another process was faster with. It does not
// leave the package.
var errRaced = errors.New("the schema is there")

// Migrate implements [dialect.Schema]. All missing versions are one transaction,
// which is the file's writer from its first statement on. A schema that is up to
// date is only read.
func (s *store) Migrate(ctx context.Context, db dialect.DB) ([]int, error) {
	st, err := s.standing(ctx, db)
	if err != nil {
		return nil, err
	}
	if err := s.check(st); err != nil || st.version == len(versions) {
		return nil, err
	}
	var applied []int
	err = s.write(ctx, db, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, s.sql.lockSchema); err != nil {
			return err
		}
		st, err := s.standing(ctx, tx)
		if err != nil {
			return err
		}
		if err := s.check(st); err != nil {
			return err
		}
		if st.version == len(versions) {
			return errRaced
		}
		for _, step := range s.Steps()[st.version:] {
			if _, err := tx.ExecContext(ctx, step.SQL); err != nil {
				return fmt.Errorf("schema version %d: %w", step.Version, err)
			}
			applied = append(applied, step.Version)
		}
		_, err = tx.ExecContext(ctx, s.sql.unlockSchema)
		return err
	})
	if errors.Is(err, errRaced) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return applied, nil
}

// Inspect implements [dialect.Schema]. Of a pool it looks at one connection; that
// the file takes writes is tried with one, which is rolled back.
func (s *store) Inspect(ctx context.Context, db dialect.DB) (dialect.Inspection, error) {
	var in dialect.Inspection
	err := s.read(ctx, db, func(tx *sql.Tx) error {
		if err := s.inspectSession(ctx, tx, &in); err != nil {
			return err
		}
		return s.inspectSchema(ctx, tx, &in)
	})
	if err != nil {
		return dialect.Inspection{}, hint(err)
	}
	if in.Version > 0 {
		err := s.write(ctx, db, func(tx *sql.Tx) error {
			if _, err := tx.ExecContext(ctx, s.sql.probeWrite); err != nil {
				return err
			}
			return errProbed
		})
		switch class := (Dialect{}).Classify(err); {
		case errors.Is(err, errProbed), class == dialect.Conflict: // somebody else writes: so it can be done
		case class == dialect.ReadOnly:
			in.Problems = append(in.Problems, "the file or the session is read-only: "+
				"give this process the right to write the file and its directory, and unset query_only and mode=ro")
		default:
			return dialect.Inspection{}, err
		}
	}
	return in, nil
}

// errProbed undoes a write that was only tried. It does not leave the package.
var errProbed = errors.New("it can be written")

// inspectSession looks at the library and at the settings of the connection.
func (s *store) inspectSession(ctx context.Context, tx *sql.Tx, in *dialect.Inspection) error {
	var version, file, journal string
	var timeout, synchronous int
	for _, setting := range []struct {
		statement string
		value     any
	}{
		{`SELECT sqlite_version()`, &version},
		{`SELECT file FROM pragma_database_list WHERE name = 'main'`, &file},
		{`PRAGMA journal_mode`, &journal},
		{`PRAGMA busy_timeout`, &timeout},
		{`PRAGMA synchronous`, &synchronous},
	} {
		if err := tx.QueryRowContext(ctx, setting.statement).Scan(setting.value); err != nil {
			return err
		}
	}
	in.Server = "SQLite " + version
	if older(version, 3, 44) {
		in.Problems = append(in.Problems, fmt.Sprintf(
			"SQLite %s is older than 3.44, whose concat_ws reads a batch: use a newer driver", version))
	}
	if file != "" && journal != "wal" {
		in.Problems = append(in.Problems, fmt.Sprintf(
			"journal_mode is %s, in which readers and the writer lock each other out: run PRAGMA journal_mode = WAL once", journal))
	}
	// In WAL mode NORMAL syncs at checkpoints only.
	if names := []string{"OFF", "NORMAL"}; file != "" && synchronous < len(names) {
		in.Problems = append(in.Problems, fmt.Sprintf("commits are not durable at once (synchronous is %s), "+
			"so the loss of power can undo one whose message was published: set _synchronous=FULL in the DSN, for producers too", names[synchronous]))
	}
	if timeout == 0 {
		in.Problems = append(in.Problems,
			"busy_timeout is 0, so that whoever meets another writer fails at once: set _busy_timeout in the DSN, for example to 10000")
	}
	return nil
}

// older tells whether a version of SQLite is below major.minor.
func older(version string, major, minor int) bool {
	var have [2]int
	for i, part := range strings.SplitN(version, ".", 3)[:2] {
		have[i], _ = strconv.Atoi(part)
	}
	return have[0] < major || have[0] == major && have[1] < minor
}

// inspectSchema looks at tables and lanes.
func (s *store) inspectSchema(ctx context.Context, tx *sql.Tx, in *dialect.Inspection) error {
	st, err := s.standing(ctx, tx)
	if err != nil {
		return err
	}
	in.Version, in.Lanes = st.version, st.lanes
	if st.version == 0 && st.none {
		return nil
	}
	if st.version > len(versions) || st.version > 0 && st.lanes != s.tables.Lanes {
		return nil // for the caller to say, who sees both numbers
	}
	if err := s.check(st); err != nil {
		in.Problems = append(in.Problems, err.Error())
		return nil // it is the finding
	}
	lanes, err := values[int](ctx, tx, s.sql.countLanes)
	if err != nil {
		return err
	}
	if lanes[0] != s.tables.Lanes {
		in.Problems = append(in.Problems, fmt.Sprintf(
			"%s_lane has %d of its %d rows, and messages of the other lanes never leave: insert the missing ones",
			s.tables.Prefix, lanes[0], s.tables.Lanes))
	}
	return nil
}
