package discard_test

import (
	"testing"

	"github.com/outbox-suite/outbox/publish/discard"
	"github.com/outbox-suite/outbox/relay"
)

func TestAcceptsEverythingInOrder(t *testing.T) {
	p := discard.New()
	if errs := p.Publish(t.Context(), make([]relay.Message, 3)); errs != nil {
		t.Errorf("Publish = %v, want all accepted", errs)
	}
	if o, ok := p.(relay.Orderer); !ok || !o.KeepsOrder() {
		t.Error("does not keep order: the relay would hand over one message a key")
	}
}
