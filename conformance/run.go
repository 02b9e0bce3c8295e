package conformance

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Run runs every scenario as a subtest Area/WhatHolds of t. A few run at a
// time; those that stop the server run alone. Loads are small, so that a plain
// go test ends soon; with OUTBOX_FULL=1 in the environment they are what [Check]
// makes of them.
func Run(t *testing.T, target Target) {
	t.Helper()
	target, err := target.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	if target.Seed == 0 {
		if target.Seed, err = seed(); err != nil {
			t.Fatal(err)
		}
	}
	target.Short = target.Short || testing.Short() || os.Getenv("OUTBOX_FULL") == ""
	name, err := server(t.Context(), target)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s, seed %d", name, target.Seed)

	var areas []string
	byArea := make(map[string][]Scenario)
	for _, s := range scenarios() {
		area, _, _ := strings.Cut(s.Name, "/")
		if byArea[area] == nil {
			areas = append(areas, area)
		}
		byArea[area] = append(byArea[area], s)
	}
	slots := make(chan struct{}, defaultParallel)
	for _, area := range areas {
		t.Run(area, func(t *testing.T) {
			for _, s := range byArea[area] {
				_, what, _ := strings.Cut(s.Name, "/")
				t.Run(what, func(t *testing.T) {
					if !s.alone {
						t.Parallel()
						slots <- struct{}{}
						defer func() { <-slots }()
					}
					report(t, run(t.Context(), &target, &s), target.Seed)
				})
			}
		})
	}
}

func report(t *testing.T, res Result, seed uint64) {
	t.Helper()
	for _, n := range res.Notes {
		t.Log(n)
	}
	switch res.Status {
	case Skipped:
		t.Skip(res.Reason)
	case Known:
		t.Logf("known (%s): %s", res.Reason, res.Got)
	case Failed:
		res.Rerun = goTest(t.Name(), seed)
		t.Errorf("\n%v", res)
	case Passed:
	}
}

// goTest is the command that runs the test of that name again.
func goTest(name string, seed uint64) string {
	parts := strings.Split(name, "/")
	for i, p := range parts {
		parts[i] = "^" + regexp.QuoteMeta(p) + "$"
	}
	return fmt.Sprintf("OUTBOX_SEED=%d go test %s -run '%s'", seed, folder(), strings.Join(parts, "/"))
}

// folder is the package under test, as go test is told from the module's root.
func folder() string {
	dir, err := os.Getwd()
	if err != nil {
		return "."
	}
	for root := dir; ; root = filepath.Dir(root) {
		if _, err := os.Stat(filepath.Join(root, "go.mod")); err == nil {
			rel, err := filepath.Rel(root, dir)
			if err != nil {
				return "."
			}
			return "./" + filepath.ToSlash(rel)
		}
		if root == filepath.Dir(root) {
			return "."
		}
	}
}

// server asks the server what it is and refuses one that is not fit.
func server(ctx context.Context, target Target) (string, error) {
	db, err := target.Open(ctx)
	if err != nil {
		return "", fmt.Errorf("open: %w", err)
	}
	defer db.Close()
	store, err := target.Dialect.Bind(tablesOf(&target, "check"))
	if err != nil {
		return "", err
	}
	in, err := store.Inspect(ctx, db)
	if err != nil {
		return "", fmt.Errorf("inspect the server: %w", err)
	}
	if in.Version != 0 {
		return "", errors.New("tables of an earlier run stand in the way: remove them")
	}
	return in.Server, nil
}
