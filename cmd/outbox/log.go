package main

import (
	"context"
	"flag"
	"io"
	"log/slog"
	"sync/atomic"

	"github.com/outbox-suite/outbox/dialect"
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
	fs.BoolVar(&f.keys, "log-keys", false, "log the keys of messages that failed; they may be personal data")
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

// tally logs a relay's events and counts outcomes.
type tally struct {
	log                     *slog.Logger
	keys                    bool
	classify                func(error) dialect.Class
	published, failed, died atomic.Int64
}

// Observe logs lifecycle at info, failures at warn, what needs a person at
// error and the rest at debug. It never logs a payload or a header.
func (t *tally) Observe(e relay.Event) {
	log := func(level slog.Level, message string, args ...any) {
		t.log.Log(context.Background(), level, message, args...)
	}
	switch e := e.(type) {
	case relay.Polled:
		log(slog.LevelDebug, "polled", "lanes", e.Lanes, "took", e.Took)
	case relay.Claimed:
		log(slog.LevelDebug, "lane claimed", "lane", e.Lane, "epoch", e.Epoch)
	case relay.Surfaced:
		log(slog.LevelDebug, "scheduled messages are due", "lane", e.Lane, "messages", e.Messages)
	case relay.Attempted:
		log(slog.LevelDebug, "published", "lane", e.Lane, "messages", len(e.Messages), "took", e.Took)
		t.attempted(e)
	case relay.Failed:
		t.failed.Add(1)
		log(slog.LevelWarn, "message failed, will be tried again", "id", e.ID, "topic", e.Topic, "lane", e.Lane,
			"attempt", e.Attempt, "counted", e.Counted, "delay", e.Delay, "error", e.Err)
	case relay.Died:
		t.died.Add(1)
		log(slog.LevelError, "message is dead", "id", e.ID, "topic", e.Topic, "lane", e.Lane, "attempt", e.Attempt, "error", e.Err)
	case relay.Settled:
		t.published.Add(int64(e.Published))
		log(slog.LevelDebug, "settled", "lane", e.Lane, "published", e.Published, "held", e.Held, "failed", e.Failed,
			"dead", e.Died, "took", e.Took, "latency", e.Latency)
	case relay.SettleRetried:
		log(t.level(e.Err), "settle failed, will be tried again", "lane", e.Lane, "try", e.Try, "error", e.Err)
	case relay.ArchiveFailed:
		log(slog.LevelError, "messages were published but not kept in done", "lane", e.Lane, "messages", e.Messages, "error", e.Err)
	case relay.LeaseLost:
		log(slog.LevelWarn, "lease lost", "lane", e.Lane, "epoch", e.Epoch, "accepted", e.Accepted)
	case relay.Released:
		log(slog.LevelDebug, "lane released", "lane", e.Lane, "epoch", e.Epoch, "published", e.Published, "took", e.Took)
	case relay.BreakerOpened:
		log(slog.LevelWarn, "destination is left alone", "destination", e.Destination, "wait", e.Wait, "error", e.Err)
	case relay.BreakerClosed:
		log(slog.LevelInfo, "destination is back", "destination", e.Destination)
	case relay.Purged:
		level := slog.LevelInfo
		if e.Messages == 0 {
			level = slog.LevelDebug
		}
		log(level, "purged", "messages", e.Messages, "took", e.Took)
	case relay.Erred:
		log(t.level(e.Err), "database operation failed", "op", e.Op, "error", e.Err)
	case relay.Stopping:
		log(slog.LevelInfo, "relay is stopping")
	}
}

// level is that of a database error: what goes away by itself is a warning, and what
// needs a person, as a missing right or table does, an error.
func (t *tally) level(err error) slog.Level {
	switch t.classify(err) {
	case dialect.Other, dialect.Missing, dialect.Duplicate:
		return slog.LevelError
	default:
		return slog.LevelWarn
	}
}

// attempted names the keys of messages that were not accepted.
func (t *tally) attempted(e relay.Attempted) {
	if !t.keys {
		return
	}
	for i, err := range e.Errors {
		if m := e.Messages[i]; err != nil && m.HasKey() {
			t.log.Warn("key failed", "id", m.ID, "topic", m.Topic, "key", m.Key, "seq", m.Seq, "attempt", m.Attempt)
		}
	}
}
