package sqlserver_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/microsoft/go-mssqldb/msdsn"

	"github.com/outbox-suite/outbox/sqlserver"
)

// TestOpenErrors shows no part of the password, whatever is wrong with the DSN.
func TestOpenErrors(t *testing.T) {
	for _, dsn := range []string{
		"sqlserver://me:s3cret@host:port?database=db",
		"sqlserver://me:s3cret%zz@host",
		"sqlserver://me:s3cret/more@host:x",
		"sqlserver://me:s3cret@host?encrypt=s3cret",
		"sqlserver://me:s3cret@host?timezone=s3cret",
		"sqlserver://me:s3cret@host?encrypt=true&Encrypt=true",
		"sqlserver://me:s3cret@host?database=db#s3cret",
		"sqlserver://me:s3cret@host?connection+timeout=s3cret",
		"server=host;user id=me;password=s3cret;encrypt=s3cret",
		"server=host;user id=me;password=s3cret;port=s3cret",
		"odbc:server=host;password={s3cret",
		"odbc:server=host;password={s3cret}x",
	} {
		db, err := sqlserver.Open(dsn)
		if err == nil {
			_ = db.Close()
			t.Errorf("%q was opened", dsn)
			continue
		}
		for e := err; e != nil; e = errors.Unwrap(e) {
			if strings.Contains(fmt.Sprintf("%v %+v %#v", e, e, e), "s3cret") {
				t.Errorf("the error for %q shows it: %+v", dsn, e)
			}
		}
	}
}

// TestOpenForms reads all forms, and encrypts and checks certificates unless the DSN
// says otherwise.
func TestOpenForms(t *testing.T) {
	for dsn, want := range map[string]string{
		"sqlserver://me:p%40%3A%2F%3F%23%5B%5D@host:1444?database=db":                           "host 1444 db me p@:/?#[] required true",
		"sqlserver://me:pass@host":                                                              "host 0  me pass required true",
		"sqlserver://me:pass@host/instance?database=db&app+name=x":                              "host 0 db me pass required true",
		"sqlserver://me:pass@host?encrypt=true&trustservercertificate=true":                     "host 0  me pass required false",
		"sqlserver://me:pass@host?Encrypt=disable":                                              "host 0  me pass disabled true",
		"sqlserver://me:pass@host?TrustServerCertificate=true":                                  "host 0  me pass required false",
		"server=host;port=1444;user id=me;password=\"p;a;s;s\";database=db":                     "host 1444 db me p;a;s;s required true",
		"server=host;user id=me;password=pass;":                                                 "host 0  me pass required true",
		"server=host;user id=me;password=pass;encrypt=strict":                                   "host 0  me pass strict true",
		"odbc:server=host;user id=me;password={p;{a}}s}":                                        "host 0  me p;{a}s required true",
		"server=tcp:host,1444;user id=me;password=pass;Initial Catalog=db;Encrypt=optional":     "host 1444 db me pass off true",
		"sqlserver://me:pass@host?database=db&connection+timeout=30&multisubnetfailover=false":  "host 0 db me pass required true",
		"sqlserver://me:pass@host?database=db&encrypt=false&hostnameincertificate=other":        "host 0 db me pass off true",
		"sqlserver://me:pass@host?database=db&ApplicationIntent=ReadOnly&failoverpartner=other": "host 0 db me pass required true",
	} {
		c, err := sqlserver.Parse(dsn)
		if err != nil {
			t.Errorf("%s: %v", dsn, err)
			continue
		}
		encryption := map[msdsn.Encryption]string{
			msdsn.EncryptionOff: "off", msdsn.EncryptionRequired: "required", msdsn.EncryptionDisabled: "disabled", msdsn.EncryptionStrict: "strict",
		}[c.Encryption]
		verifies := c.TLSConfig == nil || !c.TLSConfig.InsecureSkipVerify
		if got := fmt.Sprint(c.Host, " ", c.Port, " ", c.Database, " ", c.User, " ", c.Password, " ", encryption, " ", verifies); got != want {
			t.Errorf("%s:\n got %s\nwant %s", dsn, got, want)
		}
		db, err := sqlserver.Open(dsn)
		if err != nil {
			t.Errorf("%s: %v", dsn, err)
			continue
		}
		_ = db.Close()
	}
}
