package demo

import (
	"context"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-suite/outbox"
	"github.com/outbox-suite/outbox/dialect"
)

// The statements here are the application's. They hold numbers and ids only, in
// the text, so that they are the same on every engine.

// table is one of the application's tables.
type table struct {
	db            *sql.DB
	name, columns string
}

func (d *demo) tables() []table {
	shop, far := d.shop.DB(), d.far.DB()
	return []table{
		// What the writers are to do.
		{shop, d.prefix + "_plan", "message_id varchar(36) PRIMARY KEY, order_id integer NOT NULL, fate varchar(8) NOT NULL"},
		// The business state: how often each order was changed.
		{shop, d.prefix + "_orders", "id integer PRIMARY KEY, revision integer NOT NULL"},
		// The business's own record of every change.
		{shop, d.prefix + "_journal", "message_id varchar(36) PRIMARY KEY, order_id integer NOT NULL, revision integer NOT NULL"},
		// What the consumer made of the messages. Nothing but the inbox keeps an
		// effect from being here twice.
		{far, d.prefix + "_effects", "applied integer PRIMARY KEY, message_id varchar(36) NOT NULL, order_id integer NOT NULL, revision integer NOT NULL"},
	}
}

// fate is what becomes of a writer's transaction.
type fate string

const (
	commits   fate = "commit"
	late      fate = "late" // commits after a pause with the message written
	rollsBack fate = "rollback"
)

// planned is one transaction of a writer.
type planned struct {
	id    uuid.UUID // of its message
	order int
	fate  fate
}

// perOrder is how often an order is changed.
const perOrder = 5

// plan makes the transactions from the seed.
func (d *demo) plan() []planned {
	random := rand.New(rand.NewPCG(d.Seed, 0))
	var plan []planned
	add := func(order int, f fate) {
		var id uuid.UUID
		binary.BigEndian.PutUint64(id[:8], random.Uint64())
		binary.BigEndian.PutUint64(id[8:], random.Uint64())
		id[6], id[8] = id[6]&0x0f|0x40, id[8]&0x3f|0x80 // version 4
		plan = append(plan, planned{id, order, f})
	}
	for range perOrder {
		for order := 1; order <= d.Orders; order++ {
			switch random.IntN(20) {
			case 0, 1:
				add(order, rollsBack)
			case 2:
				add(order, late)
				continue
			}
			add(order, commits)
		}
	}
	// Neighbours of one order, too, so that writers meet on it.
	random.Shuffle(len(plan), func(i, j int) { plan[i], plan[j] = plan[j], plan[i] })
	// At least one of each, however few there are.
	add(1, rollsBack)
	add(1, late)
	return plan
}

// fill writes the plan down and makes the orders.
func (d *demo) fill(ctx context.Context, plan []planned) error {
	tx, err := d.shop.DB().BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() //nolint:errcheck // after a commit it does nothing, after an error that one counts
	for order := 1; order <= d.Orders; order++ {
		if _, err := tx.ExecContext(ctx, fmt.Sprintf("INSERT INTO %s_orders (id, revision) VALUES (%d, 0)", d.prefix, order)); err != nil {
			return err
		}
	}
	for _, p := range plan {
		if _, err := tx.ExecContext(ctx, fmt.Sprintf("INSERT INTO %s_plan (message_id, order_id, fate) VALUES ('%s', %d, '%s')",
			d.prefix, p.id, p.order, p.fate)); err != nil {
			return err
		}
	}
	return tx.Commit()
}

// write is one writer.
func (d *demo) write(ctx context.Context, items <-chan planned) error {
	for item := range items {
		for try := 1; ; try++ {
			err := d.shop.InTx(ctx, nil, func(ctx context.Context, tx *sql.Tx) error { return d.change(ctx, tx, item) })
			if err == nil || errors.Is(err, errRollsBack) && item.fate == rollsBack {
				break
			}
			if try == 20 || d.shop.Dialect().Classify(err) != dialect.Conflict || !pause(ctx, rand.N(time.Duration(try)*10*time.Millisecond)) {
				return err
			}
		}
		// A shop's customers take their time, and leave the relays some.
		if !pause(ctx, rand.N(10*time.Millisecond)) {
			return context.Cause(ctx)
		}
	}
	return nil
}

var errRollsBack = errors.New("this transaction was to roll back")

// change is the business transaction: the order, the record of the change and the
// message stand or fall together.
func (d *demo) change(ctx context.Context, tx *sql.Tx, item planned) error {
	// This locks the order, so that its writers take turns and its messages are in
	// the order of its revisions.
	if _, err := tx.ExecContext(ctx, fmt.Sprintf("UPDATE %s_orders SET revision = revision + 1 WHERE id = %d", d.prefix, item.order)); err != nil {
		return err
	}
	var revision int
	if err := tx.QueryRowContext(ctx, fmt.Sprintf("SELECT revision FROM %s_orders WHERE id = %d", d.prefix, item.order)).Scan(&revision); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, fmt.Sprintf("INSERT INTO %s_journal (message_id, order_id, revision) VALUES ('%s', %d, %d)",
		d.prefix, item.id, item.order, revision)); err != nil {
		return err
	}
	if _, err := d.shop.Enqueue(ctx, tx, outbox.Message{
		ID: item.id, Topic: "orders", Key: key(item.order), Type: "order.changed", Revision: int64(revision),
		Payload: fmt.Appendf(nil, `{"order":%d,"revision":%d}`, item.order, revision),
	}); err != nil {
		return err
	}
	switch item.fate {
	case rollsBack:
		return errRollsBack
	case late:
		pause(ctx, 20*time.Millisecond)
	case commits:
	}
	return nil
}

func key(order int) string { return fmt.Sprintf("order-%d", order) }

// collect reads everything back.
func (d *demo) collect(ctx context.Context) (e evidence, err error) {
	if e.file, err = os.ReadFile(d.file()); err != nil {
		return e, err
	}
	if e.left, err = d.shop.Stats(ctx); err != nil {
		return e, err
	}
	shop, far := d.shop.DB(), d.far.DB()
	read := func(db *sql.DB, query string, row func(scan func(...any) error) error) {
		if err == nil {
			err = each(ctx, db, query, row)
		}
	}
	read(shop, "SELECT message_id, order_id, fate FROM "+d.prefix+"_plan", func(scan func(...any) error) error {
		var p plannedRow
		err := scan(&p.id, &p.order, &p.fate)
		e.plan = append(e.plan, p)
		return err
	})
	read(shop, "SELECT message_id, order_id, revision FROM "+d.prefix+"_journal", func(scan func(...any) error) error {
		var c change
		err := scan(&c.id, &c.order, &c.revision)
		e.journal = append(e.journal, c)
		return err
	})
	e.orders = make(map[int]int)
	read(shop, "SELECT id, revision FROM "+d.prefix+"_orders", func(scan func(...any) error) error {
		var id, revision int
		err := scan(&id, &revision)
		e.orders[id] = revision
		return err
	})
	read(far, "SELECT message_id, order_id, revision FROM "+d.prefix+"_effects ORDER BY applied", func(scan func(...any) error) error {
		var c change
		err := scan(&c.id, &c.order, &c.revision)
		e.effects = append(e.effects, c)
		return err
	})
	return e, err
}

// each calls row for every row of a query.
func each(ctx context.Context, db *sql.DB, query string, row func(scan func(...any) error) error) error {
	rows, err := db.QueryContext(ctx, query)
	if err != nil {
		return err
	}
	defer rows.Close() //nolint:errcheck // rows.Err tells what matters
	for rows.Next() {
		if err := row(rows.Scan); err != nil {
			return err
		}
	}
	return rows.Err()
}

// file is where the relays publish to.
func (d *demo) file() string { return filepath.Join(d.folder, "messages.ndjson") }

// clean makes an id that came from outside safe inside a statement.
func clean(id string) (string, error) {
	parsed, err := uuid.Parse(id)
	return strings.ToLower(parsed.String()), err
}
