package redis

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/outbox-suite/outbox/relay"
)

var (
	errClosed   = errors.New("publisher is closed")
	errNoAnswer = errors.New("no answer")
)

// Publish sends the messages and waits for the answers, or for the end of ctx.
// Messages that were not answered by then fail, and may arrive all the same.
func (p *Publisher) Publish(ctx context.Context, messages []relay.Message) []error {
	errs := make([]error, len(messages))
	entries := make([]*redis.XAddArgs, 0, len(messages))
	places := make([]int, 0, len(messages))
	for i := range messages {
		entry, err := p.encode(&messages[i])
		if err != nil {
			errs[i] = err
			continue
		}
		entries, places = append(entries, entry), append(places, i)
	}
	if len(entries) == 0 {
		return errs
	}
	fail := func(err error) []error {
		for _, i := range places {
			errs[i] = err
		}
		return errs
	}
	closed := relay.Unavailable(fmt.Errorf("redis publisher: %w", errClosed))
	select {
	case <-p.closed:
		return fail(closed)
	default:
	}
	// A goroutine, because the client heeds the deadline of a context but not its
	// cancellation.
	answers := make(chan []error, 1)
	go func() { answers <- p.add(ctx, entries) }()
	select {
	case answered := <-answers:
		for n, i := range places {
			errs[i] = p.explain(ctx, answered[n], &messages[i], entries[n].Stream)
		}
		return errs
	case <-ctx.Done():
		return fail(fmt.Errorf("redis publisher: %w: %w", errNoAnswer, context.Cause(ctx)))
	case <-p.closed:
		return fail(closed)
	}
}

// replicasError is a WAIT that has found fewer replicas.
type replicasError struct{ have, want int64 }

func (e replicasError) Error() string {
	return fmt.Sprintf("%d of %d replicas have acknowledged it in time", e.have, e.want)
}

// add appends the entries, on one connection, and then waits there for replicas.
func (p *Publisher) add(ctx context.Context, entries []*redis.XAddArgs) []error {
	pipe := p.client.Pipeline()
	cmds := make([]*redis.StringCmd, len(entries))
	for i, e := range entries {
		cmds[i] = pipe.XAdd(ctx, e)
	}
	var wait *redis.IntCmd
	if p.cfg.Replicas > 0 {
		wait = redis.NewIntCmd(ctx, "wait", p.cfg.Replicas, p.cfg.ReplicaTimeout.Milliseconds())
		_ = pipe.Process(ctx, wait) // it is queued
	}
	_, failed := pipe.Exec(ctx)
	var replicas error
	if wait != nil {
		n, err := wait.Result()
		if replicas = err; err == nil && n < int64(p.cfg.Replicas) {
			replicas = replicasError{n, int64(p.cfg.Replicas)}
		}
	}
	errs := make([]error, len(entries))
	for i, cmd := range cmds {
		id, err := cmd.Result()
		switch {
		case err != nil:
			errs[i] = err
		case id == "": // it was not sent
			errs[i] = errors.Join(errNoAnswer, failed)
		default:
			errs[i] = replicas
		}
	}
	return errs
}

// away are the answers of a server that can take nothing at the moment.
var away = []string{
	"OOM", "LOADING", "MISCONF", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "NOREPLICAS", "BUSY", "UNBLOCKED",
	"NOAUTH", "WRONGPASS", "ERR max number of clients",
}

// explain says what an error means for the message.
func (p *Publisher) explain(ctx context.Context, err error, m *relay.Message, stream string) error {
	if err == nil {
		return nil
	}
	failed := fmt.Errorf("redis publisher: topic %q: %w", m.Topic, err)
	var answer redis.Error
	switch {
	case errors.Is(err, redis.Nil):
		return relay.Permanent(fmt.Errorf("redis publisher: topic %q: there is no stream %q: create it (XGROUP CREATE %s group $ MKSTREAM), then requeue the message", m.Topic, stream, stream))
	case errors.As(err, new(replicasError)):
		return relay.Unavailable(failed)
	case errors.As(err, &answer):
		text := answer.Error()
		if strings.HasPrefix(text, "WRONGTYPE") {
			return relay.Permanent(fmt.Errorf("%w: %q is not a stream: choose another topic, or map it", failed, stream))
		}
		for _, prefix := range away {
			if strings.HasPrefix(text, prefix) {
				return relay.Unavailable(failed)
			}
		}
		if strings.HasPrefix(text, "MOVED") {
			return fmt.Errorf("%w: Redis Cluster is not supported", failed)
		}
		return failed
	case ctx.Err() != nil:
		return fmt.Errorf("redis publisher: topic %q: %w: %w", m.Topic, errNoAnswer, context.Cause(ctx))
	}
	return relay.Unavailable(failed)
}
