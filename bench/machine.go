package bench

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
)

// Machine is where the run was. The server may be another one.
type Machine struct {
	System    string `json:"system"`
	Processor string `json:"processor,omitempty"`
	Cores     int    `json:"cores"`
	Memory    string `json:"memory,omitempty"`
}

// String describes it in one line.
func (m Machine) String() string {
	s := fmt.Sprintf("%s, %d cores", m.System, m.Cores)
	if m.Processor != "" {
		s += " of " + m.Processor
	}
	if m.Memory != "" {
		s += ", " + m.Memory
	}
	return s
}

// thisMachine asks the system, where it is one that has files to ask.
func thisMachine() Machine {
	m := Machine{System: runtime.GOOS + "/" + runtime.GOARCH, Cores: runtime.NumCPU()}
	if release := firstLine("/proc/sys/kernel/osrelease", ""); release != "" {
		m.System += " " + release
	}
	m.Processor = firstLine("/proc/cpuinfo", "model name")
	if total := firstLine("/proc/meminfo", "MemTotal"); total != "" {
		var kib float64
		if _, err := fmt.Sscan(total, &kib); err == nil {
			m.Memory = fmt.Sprintf("%.1f GiB", kib/(1<<20))
		}
	}
	return m
}

// firstLine is the first line of a file that begins with name, without name and
// colon.
func firstLine(path, name string) string {
	text, err := os.ReadFile(path) //nolint:gosec // fixed names
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, name); ok {
			return strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(rest), ":"))
		}
	}
	return ""
}

// program says what runs.
func program() string {
	const module = "github.com/outbox-suite/outbox"
	version, modified := "(unknown version)", ""
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range append(info.Deps, &info.Main) {
			if m.Path == module && m.Version != "" {
				version = m.Version
			}
		}
		for _, s := range info.Settings {
			switch {
			case s.Key == "vcs.revision" && len(s.Value) >= 12:
				version = s.Value[:12]
			case s.Key == "vcs.modified" && s.Value == "true":
				modified = " with changes"
			}
		}
	}
	return fmt.Sprintf("%s %s%s, %s", module, version, modified, runtime.Version())
}
