package docs_test

import (
	"regexp"
	"testing"

	"github.com/outbox-suite/outbox/conformance"
)

// TestScenariosExist: what the guarantees call proved is tried by the suite, and
// what the suite tries is said there.
func TestScenariosExist(t *testing.T) {
	exists := map[string]bool{}
	for _, s := range conformance.Scenarios() {
		exists[s.Name] = true
	}
	named := map[string]bool{}
	for _, m := range regexp.MustCompile("`([A-Z][a-z]+/[A-Z][A-Za-z]+)`").FindAllStringSubmatch(document(t, "guarantees.md"), -1) {
		if named[m[1]] = true; !exists[m[1]] {
			t.Errorf("guarantees.md names %s, which the suite does not have", m[1])
		}
	}
	for name := range exists {
		if !named[name] {
			t.Errorf("the suite has %s: name it in guarantees.md, under the promise it proves", name)
		}
	}
}
