package inbox_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/outbox-suite/outbox"
	"github.com/outbox-suite/outbox/inbox"
	"github.com/outbox-suite/outbox/sqlite"
)

// consumer opens a consumer's database in memory.
func consumer(ctx context.Context) (*sql.DB, *inbox.Inbox) {
	db, err := sqlite.Open(":memory:")
	if err != nil {
		log.Fatal(err)
	}
	o, err := outbox.New(db, sqlite.New(), outbox.Config{}) // for its migration
	if err != nil {
		log.Fatal(err)
	}
	if _, err := o.Migrate(ctx); err != nil {
		log.Fatal(err)
	}
	if _, err := db.ExecContext(ctx, "CREATE TABLE balance (cents INTEGER); INSERT INTO balance VALUES (0)"); err != nil {
		log.Fatal(err)
	}
	in, err := inbox.New(sqlite.New(), inbox.Config{})
	if err != nil {
		log.Fatal(err)
	}
	return db, in
}

// A message that arrives twice has its effect once.
func ExampleInbox_Handle() {
	ctx := context.Background()
	db, in := consumer(ctx)
	defer db.Close()
	for _, id := range []string{"m1", "m2", "m1"} {
		handled, err := in.Handle(ctx, db, "billing", id, func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, "UPDATE balance SET cents = cents + 500")
			return err
		})
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(id, handled)
	}
	var cents int
	if err := db.QueryRowContext(ctx, "SELECT cents FROM balance").Scan(&cents); err != nil {
		log.Fatal(err)
	}
	fmt.Println("balance:", cents)
	// Output:
	// m1 true
	// m2 true
	// m1 false
	// balance: 1000
}

// A consumer with a transaction of its own records the message in it.
func ExampleInbox_Record() {
	ctx := context.Background()
	db, in := consumer(ctx)
	defer db.Close()
	for range 2 {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			log.Fatal(err)
		}
		fresh, err := in.Record(ctx, tx, "billing", "m1")
		if err != nil {
			log.Fatal(errors.Join(err, tx.Rollback()))
		}
		if fresh {
			fmt.Println("apply the effect")
		} else {
			fmt.Println("handled before")
		}
		if err := tx.Commit(); err != nil {
			log.Fatal(err)
		}
	}
	// Output:
	// apply the effect
	// handled before
}

// What was handled is kept for as long as it may come again.
func ExampleInbox_Purge() {
	ctx := context.Background()
	db, in := consumer(ctx)
	defer db.Close()
	_, err := in.Purge(ctx, db, time.Hour, 0)
	fmt.Println("an hour is refused:", errors.Is(err, outbox.ErrInvalid))
	_, err = in.Purge(ctx, db, 30*24*time.Hour, 0)
	fmt.Println("the consumer has just started:", errors.Is(err, inbox.ErrResuming))
	// Output:
	// an hour is refused: true
	// the consumer has just started: true
}
