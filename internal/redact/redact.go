// Package redact keeps addresses, which may hold a password, out of errors.
package redact

import (
	"errors"
	"net/url"
	"strings"
)

// URL is err without the URL that package net/url or net/http puts into it.
func URL(err error) error {
	if e := (*url.Error)(nil); errors.As(err, &e) {
		return e.Err
	}
	return err
}

// Torn tells whether the password in a URL seems to hold a character that ends it: then
// an @ is left in what comes behind, and a part of the password would be looked up as a
// host, or shown as a path or an option.
func Torn(dsn string) bool {
	_, rest, ok := strings.Cut(dsn, "://")
	if !ok {
		return false
	}
	rest, fragment, _ := strings.Cut(rest, "#")
	rest, query, _ := strings.Cut(rest, "?")
	host, path, _ := strings.Cut(rest, "/")
	for option := range strings.SplitSeq(query, "&") {
		if name, _, _ := strings.Cut(option, "="); strings.Contains(name, "@") {
			return true
		}
	}
	return strings.Count(host, "@") > 1 || strings.Contains(path, "@") || strings.Contains(fragment, "@")
}
