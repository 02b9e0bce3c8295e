package sqlserver

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"net"
	"strings"

	mssql "github.com/microsoft/go-mssqldb"

	"github.com/outbox-suite/outbox/dialect"
)

// Classify says what an error means; see [dialect.Class]. Numbers are those of the
// server's "Database engine events and errors" and of Azure SQL Database's
// "Troubleshoot transient connection errors".
func (engine) Classify(err error) dialect.Class {
	if err == nil {
		return dialect.Other
	}
	dial := new(net.OpError)
	switch {
	case errors.Is(err, errHidden):
		return dialect.Conflict
	// The driver wraps in RetryableError what failed before a whole request was sent,
	// and says ErrBadConn when it knew before that the connection was broken.
	case errors.As(err, new(mssql.RetryableError)), errors.Is(err, driver.ErrBadConn), errors.Is(err, sql.ErrConnDone):
		return dialect.Transient
	case errors.As(err, &dial) && dial.Op == "dial":
		return dialect.Transient // no connection, so nothing was sent
	// The server broke off in the middle of a statement or commit.
	case errors.As(err, new(mssql.ServerError)), errors.As(err, new(mssql.StreamError)):
		return dialect.OutcomeUnknown
	}
	if server := new(mssql.Error); errors.As(err, server) {
		return classifyServer(server)
	}
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded),
		errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, net.ErrClosed),
		errors.As(err, new(net.Error)):
		return dialect.OutcomeUnknown
	}
	return dialect.Other
}

// classifyServer classifies what the server has reported. An error may come with
// others that follow from it, and the driver's own number is that of the last.
func classifyServer(err *mssql.Error) dialect.Class {
	for i := range err.All {
		if class := classOf(&err.All[i]); class != dialect.Other {
			return class
		}
	}
	return classOf(err)
}

func classOf(err *mssql.Error) dialect.Class {
	switch err.Number {
	case 2601, // duplicate key in a unique index
		2627: // violation of a primary key or unique constraint
		return dialect.Duplicate
	case 1205, // chosen as the victim of a deadlock
		1222,       // lock request time out
		3960, 3961, // snapshot isolation: a row or table changed since
		3966,                   // row versions gone, for want of space
		3928, 3930, 3971, 3998, // the transaction cannot be committed, or is rolled back
		41301, 41302, 41305, 41325: // memory-optimized tables: dependency and validation
		return dialect.Conflict
	case 0: // the driver, before it sends anything
		if strings.HasPrefix(err.Message, "server does not have an active transaction") {
			return dialect.Conflict // an earlier error has undone it
		}
	case 976, 978, 979, // a secondary of an availability group
		3906, // the database is read-only
		3908: // the database is in bypass recovery mode
		return dialect.ReadOnly
	case 207, // invalid column name
		208,      // invalid object name
		307, 308, // an index that a statement forces
		911,        // no such database
		1088, 4902, // cannot find the object
		2760, // no such schema
		3701: // cannot drop or alter what does not exist
		return dialect.Missing
	case 601, // a scan could not continue because data moved
		615,                        // no such database table id: the connection is stale
		701, 802, 8645, 8651, 8657, // memory
		921, 922, 924, 926, 927, 942, 945, 951, 952, 954, 983, // a database that is not up, or not yet
		1101, 1105, // no space in a filegroup
		1203, 1204, 1221, // locks cannot be taken
		4060,                // cannot open the database
		4221,                // login to a secondary that waits
		9002,                // the log is full
		10928, 10929, 10936, // Azure: limits
		17142, 18401, 18451, // paused, upgrading, shutting down: no login
		40501, 40540, 40544, 40552, 40553, // Azure: busy, quotas
		40613, 40615, // Azure: not available now; the firewall
		42108, 42109, // Azure: a database that is paused
		49918, 49919, 49920: // Azure: too many operations
		return dialect.Transient
	case 64, 121, 233, 10053, 10054, 10060, 10061, // the network, as the server or a gateway tells it
		596,              // the session is in the kill state
		6005, 6006, 6107, // shutdown
		40143, 40166, 40197, // Azure: the service failed while processing
		40549, 40550, 40551: // Azure: the session was ended
		return dialect.OutcomeUnknown
	}
	return dialect.Other
}

// isDuplicate tells whether a unique key was violated.
func isDuplicate(err error) bool {
	server := new(mssql.Error)
	return errors.As(err, server) && !errors.As(err, new(mssql.ServerError)) && classifyServer(server) == dialect.Duplicate
}
