package oracle

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"net"

	"github.com/sijms/go-ora/v2/network"

	"github.com/outbox-suite/outbox/dialect"
)

// Classify says what an error means; see [dialect.Class]. Numbers are those of the
// server's error reference.
func (engine) Classify(err error) dialect.Class {
	if err == nil {
		return dialect.Other
	}
	if errors.Is(err, errSurfaceWaits) || errors.Is(err, errUnseen) {
		return dialect.Conflict
	}
	if server := new(network.OracleError); errors.As(err, &server) {
		return classifyServer(server.ErrCode)
	}
	dial := new(net.OpError)
	switch {
	case errors.Is(err, sql.ErrConnDone):
		return dialect.Transient
	case errors.As(err, &dial) && dial.Op == "dial":
		return dialect.Transient // no connection, so nothing was sent
	// The driver says ErrBadConn for a commit and for a query also after it was sent.
	case errors.Is(err, driver.ErrBadConn), errors.Is(err, network.ErrConnReset),
		errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded),
		errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, net.ErrClosed),
		errors.As(err, new(net.Error)):
		return dialect.OutcomeUnknown
	}
	return dialect.Other
}

// classifyServer classifies what the server or its listener has reported.
func classifyServer(code int) dialect.Class {
	switch code {
	case 1: // unique constraint violated
		return dialect.Duplicate
	case 54, // resource busy and acquire with NOWAIT specified or timeout expired
		60,    // deadlock detected while waiting for resource
		1453,  // SET TRANSACTION must be first: the rollback ends what somebody has left open
		1466,  // unable to read data, definition has changed
		1555,  // snapshot too old
		2049,  // timeout: distributed transaction waiting for lock
		4020,  // deadlock detected while trying to lock object
		4021,  // timeout occurred while waiting to lock object
		4061,  // existing state of package has been invalidated
		4068,  // existing state of packages has been discarded
		8176,  // consistent read failure; rollback data not available
		8177,  // can't serialize access for this transaction
		30006, // resource busy; acquire with WAIT timeout expired
		63300, // rolled back, because a transaction of higher priority waited (since 23)
		63302: // transaction must roll back, for that reason
		return dialect.Conflict
	case 372, // file cannot be modified at this time: its tablespace is read-only
		1456,  // may not perform insert, delete, update operation inside a READ ONLY transaction
		1647,  // tablespace is read-only, cannot allocate space in it
		16000, // database or pluggable database open for read-only access
		28194: // can perform read operations only (a user or session that is read-only, since 23)
		return dialect.ReadOnly
	case 904, // invalid identifier
		942,   // table or view does not exist; also where a privilege is missing
		1435,  // user does not exist
		1918,  // user does not exist
		2289,  // sequence does not exist
		8103,  // object no longer exists
		14400: // inserted partition key does not map to any partition
		return dialect.Missing
	case 18, // maximum number of sessions exceeded
		20,                     // maximum number of processes exceeded
		257,                    // archiver error, connect AS SYSDBA only until resolved
		1033,                   // initialization or shutdown in progress
		1034,                   // not available
		1090,                   // shutdown in progress - connection is not permitted
		1109,                   // database not open
		1536,                   // space quota exceeded for tablespace
		1591,                   // lock held by in-doubt distributed transaction; so are queries
		1652, 1653, 1654, 1655, // unable to extend a segment in a tablespace
		1658, 1659, // unable to create a segment, which the first row does
		1688, 1691, 1692, // unable to extend a partition or a LOB segment
		2391,       // exceeded simultaneous SESSIONS_PER_USER limit
		2396,       // exceeded maximum idle time, connect again
		2399,       // exceeded maximum connect time, you are being logged off
		4030, 4031, // out of process memory, unable to allocate shared memory
		12505, 12514, 12521, // listener does not know of the SID, service or instance given
		12516, 12518, 12519, 12520, // listener could not find or hand off to a handler
		12526, 12527, 12528, // listener: instances are restricted or block new connections
		12541, 12543, 12545, // no listener, destination host unreachable, target host unknown
		12564, // connection refused
		30036: // unable to extend segment in undo tablespace
		return dialect.Transient
	case 28, // your session has been killed
		603,              // session terminated by fatal error
		1012,             // not logged on
		1013,             // user requested cancel of current operation: the context ended
		1089,             // immediate shutdown in progress - no operations are permitted
		1092,             // instance terminated, disconnection forced
		2050, 2051, 2054, // distributed transaction: rolled back or in doubt
		3113, 3114, 3135, // end-of-file on communication channel, not connected, lost contact
		12152, 12170, 12537, // unable to send break, connect timeout, connection closed
		12547, 12570, 12571, // lost contact, packet reader and writer failure
		25402, 25405, 25408: // failover: transaction status unknown
		return dialect.OutcomeUnknown
	}
	return dialect.Other
}

// isDuplicate tells whether a unique key was violated.
func isDuplicate(err error) bool {
	server := new(network.OracleError)
	return errors.As(err, &server) && classifyServer(server.ErrCode) == dialect.Duplicate
}
