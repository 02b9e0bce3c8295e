package main

import (
	"errors"
	"flag"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-suite/outbox"
)

// filterFlags select messages.
type filterFlags struct{ outbox.Filter }

func (f *filterFlags) flags(fs *flag.FlagSet) {
	f.ids(fs)
	fs.Func("key", "messages of this `key`; '' is the empty key", func(s string) error {
		f.Key, f.EmptyKey = s, s == ""
		return nil
	})
	fs.Func("topic", "messages of this `topic`", notEmpty(&f.Topic))
	fs.Func("type", "messages of this `type`", notEmpty(&f.Type))
	fs.BoolVar(&f.All, "all", false, "all messages; where a command changes something it must be said")
}

func (f *filterFlags) ids(fs *flag.FlagSet) {
	fs.Func("id", "the message with this `id`; may be repeated", func(s string) error {
		id, err := parseID(s)
		if err == nil {
			f.IDs = append(f.IDs, id)
		}
		return err
	})
}

func (f *filterFlags) states(fs *flag.FlagSet, usage string) {
	fs.Func("state", usage, func(s string) error {
		switch s {
		case outbox.Scheduled, outbox.Retry, outbox.Held, outbox.Dead:
			f.States = append(f.States, s)
			return nil
		}
		return errors.New("use scheduled, retry, held or dead")
	})
}

// notEmpty refuses ”, which the shell makes of a variable that is not set, and
// which would silently select everything.
func notEmpty(value *string) func(string) error {
	return func(s string) error {
		if s == "" {
			return errors.New("is empty: leave the flag out to select all")
		}
		*value = s
		return nil
	}
}

func parseID(s string) (uuid.UUID, error) {
	id, err := uuid.Parse(s)
	if err != nil || len(s) != 36 {
		return uuid.UUID{}, errors.New("give a UUID, for example 0199d3c5-6a4e-7c1e-9a53-0d5b8a3f9a11")
	}
	return id, nil
}

// limitFlag bounds how many messages a command changes.
func limitFlag(fs *flag.FlagSet) *int {
	limit := fs.Int("limit", 0, "change at most this `number` of messages; 0: all that match")
	return limit
}

// since is a point in time: an age, or an instant of this machine's clock.
type since struct{ age time.Duration }

func (s *since) String() string { return "" }

func (s *since) Set(text string) error {
	d, err := time.ParseDuration(text)
	if err != nil {
		var at time.Time
		if at, err = time.Parse(time.RFC3339, text); err == nil {
			d = time.Since(at)
		}
	}
	switch {
	case err != nil:
		return errors.New("give an age such as 2h30m (a day is 24h), or an instant such as 2026-01-31T15:04:05Z")
	case d <= 0:
		return errors.New("is not in the past")
	}
	s.age = d
	return nil
}
