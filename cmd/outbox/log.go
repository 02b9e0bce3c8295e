package main

import (
	"flag"
	"io"
	"log/slog"
	"sync/atomic"

	"github.com/outbox-suite/outbox/relay"
)

// logFlags say how the log looks.
type logFlags struct {
	format, level string
	keys          bool
}

func (f *logFlags) flags(fs *flag.FlagSet) {
	fs.StringVar(&f.format, "log-format", "text", "the log's `format`: text or json")
	fs.StringVar(&f.level, "log-level", "info", "the least `level` that is logged: debug, info, warn or error")
	fs.BoolVar(&f.keys, "log-keys", false, "log the keys of messages that failed, not only their hashes; they may be personal data")
}

func (f *logFlags) logger(w io.Writer) (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(f.level)); err != nil {
		return nil, usagef("log-level %s is unknown: use debug, info, warn or error", shown(f.level))
	}
	options := &slog.HandlerOptions{Level: level}
	switch f.format {
	case "text":
		return slog.New(slog.NewTextHandler(w, options)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, options)), nil
	}
	return nil, usagef("log-format %s is unknown: use text or json", shown(f.format))
}

// tally counts outcomes.
type tally struct{ published, failed, died atomic.Int64 }

// Observe counts.
func (t *tally) Observe(e relay.Event) {
	switch e := e.(type) {
	case relay.Failed:
		t.failed.Add(1)
	case relay.Died:
		t.died.Add(1)
	case relay.Settled:
		t.published.Add(int64(e.Published))
	}
}
