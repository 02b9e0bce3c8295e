package relay

import (
	"context"
	"errors"
	"log/slog"
	"strings"

	"github.com/outbox-suite/outbox"
	"github.com/outbox-suite/outbox/dialect"
)

// LogConfig configures a [Log]. The zero value works.
type LogConfig struct {
	// Logger is written to. Default: [slog.Default], as it is when the log is made.
	Logger *slog.Logger
	// Keys puts the keys of messages that failed into the log; they may be personal
	// data. Default: their hashes, which the tables have too.
	Keys bool
}

// Log is an [Observer] that writes a relay's events into a log: its life at info,
// failures at warn, what needs a person at error, such as a panic of the publisher with its
// stack, and the rest at debug. A line about a
// message has its id, topic, lane, epoch, seq and attempt, and of its headers those that
// connect logs (traceparent, correlation-id). Payloads and other headers are never
// logged. An error is logged as the publisher or the driver words it.
//
// It is safe for concurrent use, as its logger's handler is.
type Log struct {
	log      *slog.Logger
	keys     bool
	engine   string
	classify func(error) dialect.Class
}

// NewLog returns a log for the relays of an outbox.
func NewLog(o *outbox.Outbox, cfg LogConfig) *Log {
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	return &Log{log: cfg.Logger, keys: cfg.Keys, engine: o.Dialect().Name(), classify: o.Dialect().Classify}
}

// Observe implements [Observer].
func (l *Log) Observe(e Event) {
	log := func(level slog.Level, message string, args ...any) {
		l.log.Log(context.Background(), level, message, args...)
	}
	switch e := e.(type) {
	case Started:
		log(slog.LevelInfo, "relay started", "engine", l.engine, "owner", e.Owner)
	case Polled:
		log(slog.LevelDebug, "polled", "lanes", e.Lanes, "took", e.Took)
	case Claimed:
		log(slog.LevelDebug, "lane claimed", "lane", e.Lane, "epoch", e.Epoch)
	case Surfaced:
		log(slog.LevelDebug, "scheduled messages are due", "lane", e.Lane, "messages", e.Messages)
	case Attempted:
		log(slog.LevelDebug, "published", "lane", e.Lane, "messages", len(e.Messages), "took", e.Took)
		for _, err := range e.Errors { // once a call, though all its messages have the error
			if p, ok := errors.AsType[*PanicError](err); ok {
				log(slog.LevelError, "publisher panicked", "lane", e.Lane, "messages", len(e.Messages), "error", err, "stack", string(p.Stack))
				break
			}
		}
	case Failed:
		log(slog.LevelWarn, "message failed, will be tried again", append(l.message(e.Message),
			"counted", e.Counted, "delay", e.Delay, "kind", ErrorKind(e.Err), "error", e.Err)...)
	case Died:
		log(slog.LevelError, "message is dead", append(l.message(e.Message), "kind", ErrorKind(e.Err), "error", e.Err)...)
	case Settled:
		log(slog.LevelDebug, "settled", "lane", e.Lane, "published", e.Published, "held", e.Held, "failed", e.Failed,
			"dead", e.Died, "took", e.Took, "latency", e.Latency)
	case SettleRetried:
		log(l.level(e.Err), "settle failed, will be tried again", "lane", e.Lane, "try", e.Try, "error", e.Err)
	case ArchiveFailed:
		log(slog.LevelError, "messages were published but not kept in done", "lane", e.Lane, "messages", e.Messages, "error", e.Err)
	case LeaseLost:
		log(slog.LevelWarn, "lease lost", "lane", e.Lane, "epoch", e.Epoch, "accepted", e.Accepted)
	case Released:
		log(slog.LevelDebug, "lane released", "lane", e.Lane, "epoch", e.Epoch, "published", e.Published, "took", e.Took)
	case BreakerOpened:
		if e.Topic != "" {
			log(slog.LevelWarn, "topic is left alone", "topic", e.Topic, "wait", e.Wait, "error", e.Err)
			return
		}
		log(slog.LevelWarn, "destination is left alone", append(named(e.Destination), "wait", e.Wait, "error", e.Err)...)
	case BreakerClosed:
		if e.Topic != "" {
			log(slog.LevelInfo, "topic is tried again", "topic", e.Topic)
			return
		}
		log(slog.LevelInfo, "destination is back", named(e.Destination)...)
	case Purged:
		level := slog.LevelInfo
		if e.Messages+e.Partitions == 0 {
			level = slog.LevelDebug
		}
		log(level, "purged", "messages", e.Messages, "partitions", e.Partitions, "took", e.Took)
	case Erred:
		log(l.level(e.Err), "database operation failed", "op", e.Op, "error", e.Err)
	case Stopping:
		log(slog.LevelInfo, "relay is stopping")
	}
}

// level is that of a database error: what goes away by itself is a warning, and what
// needs a person, as a missing right or table does, an error.
func (l *Log) level(err error) slog.Level {
	switch l.classify(err) {
	case dialect.Other, dialect.Missing, dialect.Duplicate:
		return slog.LevelError
	default:
		return slog.LevelWarn
	}
}

// message says which one an event is about. Its key is in the log as the hash that the
// tables have, and as itself only where that was asked for. What connects the message
// with others' logs is in its headers, of which no other is logged.
func (l *Log) message(m Message) []any {
	args := []any{"id", m.ID, "topic", m.Topic, "lane", m.Lane, "epoch", m.Epoch, "seq", m.Seq, "attempt", m.Attempt}
	if m.HasKey() {
		args = append(args, "key_hash", dialect.KeyHash(m.Key))
		if l.keys {
			args = append(args, "key", m.Key)
		}
	}
	for _, name := range correlations {
		for header, value := range m.Headers {
			if strings.EqualFold(header, name) {
				args = append(args, name, clip(value))
			}
		}
	}
	return args
}

// correlations are the headers by which logs of several programs are connected.
var correlations = []string{"traceparent", "correlation-id", "correlationid", "x-correlation-id"}

// named is a destination, where a publisher has several.
func named(destination string) []any {
	if destination == "" {
		return nil
	}
	return []any{"destination", destination}
}

// clip shortens what others wrote.
func clip(s string) string {
	const most = 128
	if r := []rune(s); len(r) > most {
		return string(r[:most-1]) + "…"
	}
	return s
}
