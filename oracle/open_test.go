package oracle_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	driverpkg "github.com/sijms/go-ora/v2"

	"github.com/outbox-suite/outbox/dialect"
	"github.com/outbox-suite/outbox/oracle"
)

// TestOpenErrors shows no part of the password, whatever is wrong with the DSN.
func TestOpenErrors(t *testing.T) {
	for _, dsn := range []string{
		"oracle://me:s3cret@host:port/service",
		"oracle://me:s3cret%zz@host/service",
		"oracle://me:s3cret/more@host:x/service",
		"oracle://me:s3cret@host/service?unknown=s3cret",
		"oracle://me:s3cret@host/service?TIMEOUT=s3cret",
		"oracle://me:s3cret@host/service?LOB+FETCH=s3cret",
		"oracle://me:s3cret@host/service?FAILOVER=3",
		"oracle://me:s3cret@host/service?TIMEOUT=1;x=%zz",
		"oracle://me:s3cret@host/",
		"oracle://me:s3cret@/service",
		"oracle://me:s3cret@host/service?WALLET=/nowhere/s3cret",
		"oracle:me:s3cret@host/service",
		"oracle://me:s3cret@host/service#s3cret?x=y",
		"mysql://me:s3cret@host/service",
		"me/s3cret@host:1521/service",
		"s3cret",
	} {
		db, err := oracle.Open(dsn)
		if err == nil {
			_ = db.Close()
			t.Errorf("%q was opened", dsn)
			continue
		}
		for e := err; e != nil; e = errors.Unwrap(e) {
			if strings.Contains(fmt.Sprintf("%v %+v", e, e), "s3cret") {
				t.Errorf("the error for %q shows it: %+v", dsn, e)
			}
		}
	}
}

// TestOpenSettings sets what the DSN leaves open, and nothing else.
func TestOpenSettings(t *testing.T) {
	const password = `p@:/?#[]%'"\ ä(`
	user := url.UserPassword("me", password).String()
	for dsn, want := range map[string]struct {
		server           string
		timeout, connect time.Duration
		prefetch         int
	}{
		"oracle://" + user + "@host/service":                                                         {"host:1521", 30 * time.Second, 10 * time.Second, 1000},
		"ORACLE://" + user + "@host:1234/service?timeout=5":                                          {"host:1234", 5 * time.Second, 10 * time.Second, 1000},
		"oracle://" + user + "@[::1]/service?SOCKET+TIMEOUT=0&Connection%20Timeout=3":                {"::1:1521", 0, 3 * time.Second, 1000},
		"oracle://" + user + "@host/service?PREFETCH_ROWS=25&READ%20TIMEOUT=1&CONNECT%20TIMEOUT=100": {"host:1521", time.Second, 100 * time.Second, 25},
	} {
		full, err := oracle.Complete(dsn)
		if err != nil {
			t.Errorf("%s: %v", dsn, err)
			continue
		}
		config, err := driverpkg.ParseConfig(full)
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprintf("%s:%d", config.Servers[0].Addr, config.Servers[0].Port); got != want.server {
			t.Errorf("%s: server %s", dsn, got)
		}
		if config.Timeout != want.timeout || config.ConnectTimeout != want.connect || config.PrefetchRows != want.prefetch {
			t.Errorf("%s: timeout %v, connect timeout %v, prefetch %d", dsn, config.Timeout, config.ConnectTimeout, config.PrefetchRows)
		}
		if config.UserID != "me" || config.Password != password || config.ServiceName != "service" {
			t.Errorf("%s: user, password or service are others", dsn)
		}
	}
	db, err := oracle.Open("oracle://" + user + "@host/service")
	if err != nil {
		t.Fatal(err)
	}
	_ = db.Close()
}

// TestReadTimeoutCloses ends the connection whose answer has not come in time, which is an
// unknown outcome. That it is go-ora's sign of a broken one keeps it out of the pool.
func TestReadTimeoutCloses(t *testing.T) {
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	ended := make(chan error, 1)
	go func() {
		c, err := listener.Accept()
		if err == nil {
			_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
			_, err = io.Copy(io.Discard, c)
			_ = c.Close()
		}
		ended <- err
	}()
	db, err := oracle.Open("oracle://me:secret@" + listener.Addr().String() + "/service?TIMEOUT=1")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	err = db.PingContext(t.Context())
	if !errors.Is(err, io.EOF) || !errors.Is(err, os.ErrDeadlineExceeded) || oracle.New().Classify(err) != dialect.OutcomeUnknown {
		t.Errorf("the answer that did not come is %v", err)
	}
	if err := <-ended; err != nil {
		t.Errorf("the connection is open: %v", err)
	}
}
