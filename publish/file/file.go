// Package file is a publisher that appends messages to a file, or writes them
// to a stream such as standard output, as CloudEvents 1.0 JSON, one a line; see
// package cloudevents for the mapping.
package file

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/outbox-suite/outbox/publish/cloudevents"
	"github.com/outbox-suite/outbox/relay"
)

// Config configures a publisher. The zero value works.
type Config struct {
	// Source is the source attribute of every event. Default:
	// [cloudevents.DefaultSource].
	Source string
}

func (c Config) withDefaults() (Config, error) {
	if c.Source == "" {
		c.Source = cloudevents.DefaultSource
	}
	if err := cloudevents.CheckSource(c.Source); err != nil {
		return c, fmt.Errorf("file publisher: %w", err)
	}
	return c, nil
}

// Publisher appends to a file on a local disk that any number of relays, in any
// number of processes, may share. It is safe for concurrent use and keeps
// order. It holds no file open between calls: the file may be moved away, and
// the next call makes a new one.
type Publisher struct {
	path   string
	source string
	// turn is taken by the one call of this process that has the file or waits
	// for its lock.
	turn chan struct{}
}

// New returns a publisher that appends to the file at path. A file that does
// not exist is made, for its owner only; make it beforehand to give it other
// permissions.
func New(path string, cfg Config) (*Publisher, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	p := &Publisher{path: path, source: cfg.Source, turn: make(chan struct{}, 1)}
	f, err := p.open()
	if err != nil {
		return nil, fmt.Errorf("file publisher: %w", err)
	}
	return p, f.Close()
}

// KeepsOrder returns true: the messages of a call are written in order, and all
// of them are accepted or none.
func (p *Publisher) KeepsOrder() bool { return true }

// Publish appends the messages and accepts them when they are on disk: all of
// them or none. Under the file's lock it first removes a line that a killed
// process left unfinished, which nobody accepted. Every error is
// [relay.Unavailable], since it is the file's and not a message's. What was
// written before it is taken back if the file lets it be, and is otherwise
// repeated by the next attempt.
func (p *Publisher) Publish(ctx context.Context, messages []relay.Message) []error {
	return results(len(messages), p.publish(ctx, encode(p.source, messages)))
}

func (p *Publisher) publish(ctx context.Context, lines []byte) error {
	f, unlock, err := p.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	size, err := repair(f)
	if err != nil {
		return err
	}
	if _, err = f.WriteAt(lines, size); err == nil {
		err = f.Sync()
	}
	if err == nil && size == 0 {
		// The file may be new: its name must be on disk too. Whoever writes first
		// sees to it, since whoever made the file may be behind us.
		err = syncFolder(filepath.Dir(p.path))
	}
	if err != nil {
		return errors.Join(err, f.Truncate(size))
	}
	return nil
}

// lock waits for the file and its lock until ctx ends.
func (p *Publisher) lock(ctx context.Context) (f *os.File, unlock func(), err error) {
	select {
	case p.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, nil, waited(ctx)
	}
	for {
		f, err := p.open()
		if err != nil {
			<-p.turn
			return nil, nil, err
		}
		unlock := func() {
			_ = f.Close() // what counts was synced; closing gives the lock up
			<-p.turn
		}
		locked := make(chan error, 1)
		go func() { locked <- lockFile(f) }() // no context ends that wait
		select {
		case err = <-locked:
		case <-ctx.Done():
			go func() {
				<-locked //nolint:errcheck // nobody waits for it any more
				unlock()
			}()
			return nil, nil, waited(ctx)
		}
		var same bool
		switch {
		case err != nil:
		case ctx.Err() != nil: // both were ready
			err = waited(ctx)
		default:
			same, err = p.is(f)
		}
		switch {
		case err != nil:
			unlock()
			return nil, nil, err
		case same:
			return f, unlock, nil
		}
		_ = f.Close() // it was moved away while we waited
	}
}

func waited(ctx context.Context) error {
	return fmt.Errorf("wait for the file's lock: %w", context.Cause(ctx))
}

func (p *Publisher) open() (*os.File, error) {
	f, err := os.OpenFile(p.path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file: write to a stream instead", p.path)
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// is tells whether f is still the file at the path.
func (p *Publisher) is(f *os.File) (bool, error) {
	ours, err := f.Stat()
	if err != nil {
		return false, err
	}
	there, err := os.Stat(p.path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return os.SameFile(ours, there), err
}

// repair removes an unfinished last line and returns the size of the file.
func repair(f *os.File) (int64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	size := info.Size()
	keep, block := size, make([]byte, 4096)
	var start []byte // the first bytes of the last line
	for keep > 0 {
		n := min(int64(len(block)), keep)
		if _, err := f.ReadAt(block[:n], keep-n); err != nil {
			return 0, err
		}
		i := int64(bytes.LastIndexByte(block[:n], '\n')) + 1
		start = append(bytes.Clone(block[i:n]), start...)
		start = start[:min(len(start), len(cloudevents.Start))]
		keep += i - n
		if i > 0 {
			break
		}
	}
	if keep == size {
		return size, nil
	}
	// A machine that fails may leave zeros where text was not on disk yet.
	for i, b := range start {
		if b != cloudevents.Start[i] && b != 0 {
			return 0, fmt.Errorf("%s ends in an unfinished line that no relay wrote: end it, or choose another file", f.Name())
		}
	}
	return keep, f.Truncate(keep)
}

// Stream writes to a stream. It is safe for concurrent use and keeps order.
type Stream struct {
	w      io.Writer
	sync   func() error
	source string
	turn   chan struct{}
}

// NewStream returns a publisher that writes to w, which nobody else may write
// to at the same time.
func NewStream(w io.Writer, cfg Config) (*Stream, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	s := &Stream{w: w, source: cfg.Source, turn: make(chan struct{}, 1), sync: func() error { return nil }}
	if f, ok := w.(*os.File); ok {
		if info, err := f.Stat(); err == nil && info.Mode().IsRegular() {
			s.sync = f.Sync
		}
	}
	return s, nil
}

// KeepsOrder returns true, as for [Publisher.KeepsOrder].
func (s *Stream) KeepsOrder() bool { return true }

// Publish writes the messages and accepts them when the stream has taken them
// all; if it is a regular file, when they are on disk. What a reader at the
// other end of a pipe does with them is not known. Every error is
// [relay.Unavailable].
func (s *Stream) Publish(ctx context.Context, messages []relay.Message) []error {
	lines := encode(s.source, messages)
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return results(len(messages), fmt.Errorf("wait for the stream: %w", context.Cause(ctx)))
	}
	if ctx.Err() != nil { // both were ready
		return results(len(messages), fmt.Errorf("wait for the stream: %w", context.Cause(ctx)))
	}
	_, err := s.w.Write(lines)
	if err == nil {
		err = s.sync()
	}
	return results(len(messages), err)
}

func encode(source string, messages []relay.Message) []byte {
	size := 0
	for i := range messages {
		size += 512 + len(messages[i].Payload)*4/3
	}
	lines := make([]byte, 0, size)
	for i := range messages {
		lines = append(cloudevents.Append(lines, source, &messages[i]), '\n')
	}
	return lines
}

// results is the same result for every message.
func results(n int, err error) []error {
	if err == nil {
		return nil
	}
	errs := make([]error, n)
	for i := range errs {
		errs[i] = relay.Unavailable(fmt.Errorf("file publisher: %w", err))
	}
	return errs
}
