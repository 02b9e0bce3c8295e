package postgres_test

import (
	"context"
	"database/sql/driver"
)

// foreign hides which driver a connection belongs to.
type foreign struct{ driver.Connector }

func (f foreign) Connect(ctx context.Context) (driver.Conn, error) {
	c, err := f.Connector.Connect(ctx)
	return struct{ driver.Conn }{c}, err
}
