package mysql

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"net"
	"strings"

	"github.com/go-sql-driver/mysql"

	"github.com/outbox-suite/outbox/dialect"
)

// Classify says what an error means; see [dialect.Class]. Numbers are those of the
// servers' error references; where only one server has them, that is said.
func (engine) Classify(err error) dialect.Class {
	if err == nil {
		return dialect.Other
	}
	if server := new(mysql.MySQLError); errors.As(err, &server) {
		return classifyServer(server)
	}
	dial := new(net.OpError)
	switch {
	// The driver says ErrBadConn only where nothing was sent, and, with
	// rejectReadOnly, where the server refused to write.
	case errors.Is(err, driver.ErrBadConn), errors.Is(err, sql.ErrConnDone):
		return dialect.Transient
	case errors.As(err, &dial) && dial.Op == "dial":
		return dialect.Transient // no connection, so nothing was sent
	case errors.Is(err, mysql.ErrInvalidConn), errors.Is(err, mysql.ErrMalformPkt),
		errors.Is(err, mysql.ErrPktSync), errors.Is(err, mysql.ErrPktSyncMul), errors.Is(err, mysql.ErrBusyBuffer),
		errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded),
		errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, net.ErrClosed),
		errors.As(err, new(net.Error)):
		return dialect.OutcomeUnknown
	}
	return dialect.Other
}

// classifyServer classifies what the server, or a proxy in its place, has reported.
func classifyServer(err *mysql.MySQLError) dialect.Class {
	switch err.Number {
	case 1062, // ER_DUP_ENTRY
		1586: // ER_DUP_ENTRY_WITH_KEY_NAME
		return dialect.Duplicate
	case 1213, // ER_LOCK_DEADLOCK
		1205, // ER_LOCK_WAIT_TIMEOUT; MariaDB also for NOWAIT
		1020, // ER_CHECKREAD: MariaDB, a snapshot that is too old to write
		1613, // ER_XA_RBTIMEOUT
		1614, // ER_XA_RBDEADLOCK
		3058, // ER_USER_LOCK_DEADLOCK
		3101, // ER_TRANSACTION_ROLLBACK_DURING_COMMIT: group replication
		3572: // ER_LOCK_NOWAIT: MySQL
		return dialect.Conflict
	case 1792, // ER_CANT_EXECUTE_IN_READ_ONLY_TRANSACTION
		1836: // ER_READ_ONLY_MODE
		return dialect.ReadOnly
	case 1290: // ER_OPTION_PREVENTS_STATEMENT: of many options one
		if strings.Contains(err.Message, "read-only") || strings.Contains(err.Message, "read_only") {
			return dialect.ReadOnly
		}
	case 1051, // ER_BAD_TABLE_ERROR
		1054, // ER_BAD_FIELD_ERROR
		1146, // ER_NO_SUCH_TABLE
		1176, // ER_KEY_DOES_NOT_EXITS: an index that a statement forces
		1526: // ER_NO_PARTITION_FOR_GIVEN_VALUE
		return dialect.Missing
	case 1021, // ER_DISK_FULL
		1037, // ER_OUTOFMEMORY
		1038, // ER_OUT_OF_SORTMEMORY
		1040, // ER_CON_COUNT_ERROR
		1041, // ER_OUT_OF_RESOURCES
		1047, // ER_UNKNOWN_COM_ERROR: Galera, a node that is not part of the cluster
		1114, // ER_RECORD_FILE_FULL
		1129, // ER_HOST_IS_BLOCKED
		1203, // ER_TOO_MANY_USER_CONNECTIONS
		1206, // ER_LOCK_TABLE_FULL
		1226, // ER_USER_LIMIT_REACHED
		1317, // ER_QUERY_INTERRUPTED
		1969, // ER_STATEMENT_TIMEOUT: MariaDB
		3024, // ER_QUERY_TIMEOUT: MySQL
		3100, // ER_RUN_HOOK_ERROR: group replication, before the commit
		4031, // ER_CLIENT_INTERACTION_TIMEOUT: MySQL; it was idle, so nothing ran
		9001: // ProxySQL: no server in time
		return dialect.Transient
	case 1053, // ER_SERVER_SHUTDOWN
		1152, 1184, // ER_ABORTING_CONNECTION, ER_NEW_ABORTING_CONNECTION
		1158, 1159, 1160, 1161, // ER_NET_*: reading and writing packets
		1180,       // ER_ERROR_DURING_COMMIT
		1927,       // ER_CONNECTION_KILLED: MariaDB
		2006, 2013, // a proxy that lost its server
		3169: // ER_SESSION_WAS_KILLED: MySQL
		return dialect.OutcomeUnknown
	}
	return dialect.Other
}

// isDuplicate tells whether a unique key was violated.
func isDuplicate(err error) bool {
	server := new(mysql.MySQLError)
	return errors.As(err, &server) && classifyServer(server) == dialect.Duplicate
}

// isOvertaken tells whether the server undid a statement because another session was
// faster.
func isOvertaken(err error) bool {
	server := new(mysql.MySQLError)
	return errors.As(err, &server) && (server.Number == 1213 || server.Number == 1020) // a deadlock; MariaDB, an old snapshot
}

// isDenied tells whether the user lacks a privilege on a table.
func isDenied(err error) bool {
	server := new(mysql.MySQLError)
	return errors.As(err, &server) && (server.Number == 1142 || server.Number == 1143) // of a table, of a column
}
