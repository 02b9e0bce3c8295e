package postgres

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"database/sql/driver"
	"encoding/hex"
	"time"

	"github.com/outbox-suite/outbox/dialect"
)

// channel is the name on which relays of the same tables are woken. Tables of
// the same name in different schemas of the search path share one, which costs
// a needless look.
func channel(t dialect.Tables) string {
	name := "outbox " + t.Prefix
	if t.Schema != "" {
		name = "outbox " + t.Schema + "." + t.Prefix
	}
	if len(name) <= longestName {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	return "outbox " + hex.EncodeToString(sum[:16])
}

// Wake notifies. It runs in a transaction of its own: a commit that notifies
// takes a lock of the whole cluster, which producers had better not wait for.
func (s *store) Wake(ctx context.Context, db dialect.DB) error {
	_, err := exec(ctx, db, wakeSQL, s.channel)
	return err
}

// Listen listens on a connection of its own and closes it in the end: a
// connection that still listens must not go back to the pool. Behind a pooler
// in transaction mode no signal arrives.
func (s *store) Listen(ctx context.Context, db *sql.DB, wake func()) error {
	conn, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	_ = conn.Raw(func(driverConn any) error {
		err = s.listen(ctx, driverConn, wake)
		return driver.ErrBadConn // has the pool let go of it
	})
	return err
}

func (s *store) listen(ctx context.Context, driverConn any, wake func()) error {
	c, err := native(driverConn)
	if err != nil {
		return err
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = c.Close(closing)
	}()
	if _, err := c.Exec(ctx, "LISTEN "+quote(s.channel)); err != nil {
		return err
	}
	for {
		if _, err := c.WaitForNotification(ctx); err != nil {
			return err
		}
		wake()
	}
}
