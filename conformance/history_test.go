package conformance

import (
	"slices"
	"testing"

	"github.com/google/uuid"

	"github.com/outbox-suite/outbox"
)

func TestJudge(t *testing.T) {
	id := func(n byte) uuid.UUID { return uuid.UUID{15: n} }
	wrote := func(n byte, key string, revision int64, f fate) written {
		return written{id: id(n), key: key, keyed: key != "", revision: revision, fate: f}
	}
	took := func(n byte) accepted { return accepted{id: id(n), relay: "r"} }
	history := []written{
		wrote(1, "a", 1, committed), wrote(2, "a", 2, committed), wrote(3, "b", 1, committed),
		wrote(4, "", 0, committed), wrote(5, "b", 2, rolledBack), wrote(6, "c", 1, inDoubt),
	}
	all := []accepted{took(1), took(2), took(3), took(4)}
	altered := took(3)
	altered.sum[0]++
	replayed := took(1)
	replayed.replay = 1
	for _, c := range []struct {
		name string
		took []accepted
		may  map[uuid.UUID]int
		want findings // lengths and numbers count
	}{
		{name: "everything once", took: all},
		{name: "keys in any order", took: []accepted{took(4), took(3), took(1), took(2)}},
		{name: "lost", took: all[1:], want: findings{lost: one}},
		{name: "nothing published", want: findings{lost: make([]string, 4)}},
		{name: "rolled back", took: append(slices.Clone(all), took(5)), want: findings{unexpected: one}},
		{name: "never enqueued", took: append(slices.Clone(all), took(9)), want: findings{unexpected: one}},
		{name: "in doubt and delivered", took: append(slices.Clone(all), took(6)), want: findings{recovered: 1}},
		{name: "duplicated", took: append(slices.Clone(all), took(4)), want: findings{duplicated: one}},
		{name: "duplicated by a fault", took: append(slices.Clone(all), took(4)), may: map[uuid.UUID]int{id(4): 1}, want: findings{explained: 1}},
		{name: "duplicated once more than by a fault", took: append(slices.Clone(all), took(4), took(4)), may: map[uuid.UUID]int{id(4): 1}, want: findings{duplicated: one}},
		{name: "replayed", took: append(slices.Clone(all), replayed)},
		{name: "replayed twice", took: append(slices.Clone(all), replayed, replayed), want: findings{duplicated: one}},
		{name: "out of order", took: []accepted{took(2), took(1), took(3), took(4)}, want: findings{disordered: one}},
		{name: "an old duplicate is not out of order", took: append(slices.Clone(all), took(1)), may: map[uuid.UUID]int{id(1): 1}, want: findings{explained: 1}},
		{name: "altered", took: []accepted{took(1), took(2), altered, took(4)}, want: findings{altered: one}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := judge(history, c.took, c.may)
			for _, g := range []struct {
				what      string
				got, want []string
			}{
				{"lost", got.lost, c.want.lost},
				{"unexpected", got.unexpected, c.want.unexpected},
				{"duplicated", got.duplicated, c.want.duplicated},
				{"disordered", got.disordered, c.want.disordered},
				{"altered", got.altered, c.want.altered},
			} {
				if len(g.got) != len(g.want) {
					t.Errorf("%s: got %d %q, want %d", g.what, len(g.got), g.got, len(g.want))
				}
			}
			if got.recovered != c.want.recovered || got.explained != c.want.explained {
				t.Errorf("got %d recovered and %d explained, want %d and %d", got.recovered, got.explained, c.want.recovered, c.want.explained)
			}
			if broken, want := len(got.broken()) > 0, len(c.want.broken()) > 0; broken != want {
				t.Errorf("broken: got %v, want %v", broken, want)
			}
		})
	}
}

var one = make([]string, 1)

func TestSumTellsApart(t *testing.T) {
	base := outbox.Message{ID: uuid.UUID{1}, Topic: "t", Key: "k", Type: "y", ContentType: "c", Payload: []byte("p"), Headers: map[string]string{"a": "b"}, Revision: 1}
	same := base
	same.Payload, same.Headers = []byte("p"), map[string]string{"a": "b"}
	if sumOf(&base) != sumOf(&same) {
		t.Fatal("equal messages have different sums")
	}
	seen := map[[32]byte]string{sumOf(&base): "base"}
	for name, change := range map[string]func(m *outbox.Message){
		"id":                    func(m *outbox.Message) { m.ID[0]++ },
		"topic":                 func(m *outbox.Message) { m.Topic = "T" },
		"key's case":            func(m *outbox.Message) { m.Key = "K" },
		"key's trailing space":  func(m *outbox.Message) { m.Key = "k " },
		"no key":                func(m *outbox.Message) { m.Key = "" },
		"empty key":             func(m *outbox.Message) { m.Key, m.EmptyKey = "", true },
		"type":                  func(m *outbox.Message) { m.Type = "Y" },
		"content type":          func(m *outbox.Message) { m.ContentType = "C" },
		"default content type":  func(m *outbox.Message) { m.ContentType = "" },
		"payload":               func(m *outbox.Message) { m.Payload = []byte("q") },
		"nil payload":           func(m *outbox.Message) { m.Payload = nil },
		"empty payload":         func(m *outbox.Message) { m.Payload = []byte{} },
		"no headers":            func(m *outbox.Message) { m.Headers = nil },
		"header's value":        func(m *outbox.Message) { m.Headers = map[string]string{"a": "c"} },
		"header's name":         func(m *outbox.Message) { m.Headers = map[string]string{"A": "b"} },
		"revision":              func(m *outbox.Message) { m.Revision = 2 },
		"key moved to the type": func(m *outbox.Message) { m.Key, m.Type = "", "ky" },
	} {
		m := base
		change(&m)
		sum := sumOf(&m)
		if other, ok := seen[sum]; ok {
			t.Errorf("%q has the same sum as %q", name, other)
		}
		seen[sum] = name
	}
}
