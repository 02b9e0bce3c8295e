package main

import (
	"bytes"
	"encoding/json"
	"path/filepath"
	"slices"
	"testing"
)

func TestRun(t *testing.T) {
	path := filepath.Join(t.TempDir(), "orders.db")
	types := map[string][]string{}
	for range 2 { // the second start publishes nothing again
		var out bytes.Buffer
		if err := run(t.Context(), path, 3, &out); err != nil {
			t.Fatal(err)
		}
		for line := range bytes.Lines(out.Bytes()) {
			var event struct{ Source, Subject, Type string }
			if err := json.Unmarshal(line, &event); err != nil {
				t.Fatalf("%v: %s", err, line)
			}
			if event.Source != "/examples/orders" {
				t.Errorf("source is %s", event.Source)
			}
			types[event.Subject] = append(types[event.Subject], event.Type)
		}
	}
	if len(types) != 6 {
		t.Errorf("events of %d orders", len(types))
	}
	for order, got := range types {
		if !slices.Equal(got, []string{"order.placed", "order.paid"}) {
			t.Errorf("order %s: %q", order, got)
		}
	}
}
