package main

import (
	"context"
	"flag"
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"
)

var versionCommand = command{
	name: "version", summary: "print the version of this program",
	help: `
Prints the module's version, the commit it was built from, and the Go release.

Example:
  outbox version --json`,
	setup: func(fs *flag.FlagSet) action {
		asJSON := fs.Bool("json", false, "print a JSON object: version, commit, go, platform")
		return func(_ context.Context, p *process) error {
			version, commit := build()
			if *asJSON {
				return writeJSON(p.stdout, map[string]string{
					"version": version, "commit": commit, "go": runtime.Version(), "platform": runtime.GOOS + "/" + runtime.GOARCH,
				})
			}
			_, err := fmt.Fprintf(p.stdout, "outbox %s (commit %s, %s, %s/%s)\n", version, commit, runtime.Version(), runtime.GOOS, runtime.GOARCH)
			return err
		}
	},
}

// build tells what the linker wrote into the program.
func build() (version, commit string) {
	version, commit = "unknown", "unknown"
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return version, commit
	}
	version = info.Main.Version
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			commit = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			commit += " with changes"
		}
	}
	return version, commit
}

// builtFrom is the day of the commit that the program was built from, empty if it is
// not known.
func builtFrom() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.time" {
				day, _, _ := strings.Cut(s.Value, "T")
				return day
			}
		}
	}
	return ""
}
