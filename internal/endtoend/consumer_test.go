package endtoend

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/outbox-suite/outbox/inbox"
	"github.com/outbox-suite/outbox/relay"
)

// subscription is how the consumer reads from a broker: one message at a time, which
// comes again, before any later one of its key, unless it is acknowledged.
type subscription interface {
	// next waits for a message. After an error the consumer subscribes anew.
	next(ctx context.Context) (delivery, error)
	close()
}

// delivery is a message in the consumer's hands.
type delivery struct {
	relay.Message
	ack func() error
	// again gives the message back. An error means: subscribe anew.
	again func() error
	// late tells that the broker hands it out again, for want of an answer in time.
	late bool
}

// errAgain is an again by which all that is in the consumer's hands is given back.
var errAgain = errors.New("given back with the subscription")

// runConsumer is the consumer process. It goes on through every outage of the broker
// and of its database.
func runConsumer(ctx context.Context, p *parent, s spec) error {
	e := engineNamed(s.Engine)
	db, err := e.open(s.DSN)
	if err != nil {
		return err
	}
	defer db.Close()
	in, err := inbox.New(e.dialect(), inbox.Config{})
	if err != nil {
		return err
	}
	c := &consumer{parent: p, topic: s.Topic, db: db, inbox: in, blind: s.Broken == noInbox}
	p.say("ready", "", "")
	for ctx.Err() == nil {
		sub, err := brokerNamed(s.Broker).subscribe(ctx, s.URL, s.Topic)
		if err == nil {
			err = c.consume(ctx, sub)
			sub.close()
		}
		if ctx.Err() == nil && !errors.Is(err, errAgain) {
			p.fault("subscription", err)
			pause(ctx)
		}
	}
	return nil
}

func pause(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-time.After(50 * time.Millisecond):
	}
}

type consumer struct {
	*parent
	topic string
	db    *sql.DB
	inbox *inbox.Inbox
	blind bool // knows no inbox
}

var errHandler = errors.New("the handler fails")

// consume goes on until the subscription breaks.
func (c *consumer) consume(ctx context.Context, sub subscription) error {
	for {
		d, err := sub.next(ctx)
		if err != nil {
			return err
		}
		if d.late {
			c.fault("acknowledgement", nil)
		}
		handled, err := c.handle(ctx, d.Message)
		if err != nil {
			c.fault("handler", err)
			if !errors.Is(err, errHandler) {
				pause(ctx) // the database is away
			}
			if err := d.again(); err != nil {
				return err
			}
			continue
		}
		kind := "duplicate"
		if handled {
			kind = "applied"
		}
		c.say(kind, d.ID.String(), "")
		if handled && c.take(tellDie) {
			die()
		}
		if err := d.ack(); err != nil {
			return err
		}
	}
}

// handle applies a message in one transaction with the record of its id.
func (c *consumer) handle(ctx context.Context, m relay.Message) (bool, error) {
	var about struct{ Order, Revision int }
	if err := json.Unmarshal(m.Payload, &about); err != nil {
		return false, err
	}
	if m.Topic != c.topic || m.Key != key(about.Order) || m.Type != "order.changed" {
		return false, fmt.Errorf("message is %+v", m)
	}
	handle := func(ctx context.Context, tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, fmt.Sprintf("UPDATE copies SET changes = changes + 1 WHERE id = %d", about.Order)); err != nil {
			return err
		}
		var place int
		if err := tx.QueryRowContext(ctx, fmt.Sprintf("SELECT changes FROM copies WHERE id = %d", about.Order)).Scan(&place); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, fmt.Sprintf("INSERT INTO effects (message_id, order_id, revision, place) VALUES ('%s', %d, %d, %d)",
			m.ID, about.Order, about.Revision, place)); err != nil {
			return err
		}
		if c.take(tellFail) {
			return errHandler
		}
		return nil
	}
	if c.blind {
		tx, err := c.db.BeginTx(ctx, nil)
		if err != nil {
			return false, err
		}
		defer tx.Rollback()
		if err := handle(ctx, tx); err != nil {
			return false, err
		}
		return true, tx.Commit()
	}
	return c.inbox.Handle(ctx, c.db, "billing", m.ID.String(), handle)
}
