package nats_test

import (
	"fmt"
	"testing"

	natsgo "github.com/nats-io/nats.go"

	"github.com/outbox-suite/outbox/publish/nats"
)

func ExampleDecode() {
	m := natsgo.Msg{
		Data: []byte(`{"total":7}`),
		Header: natsgo.Header{
			"ce-specversion": {"1.0"}, "ce-id": {"0199d3c5-6a4e-7c1e-9a53-0d5b8a3f9a11"}, "ce-source": {"/shop"},
			"ce-type": {"order.placed"}, "ce-subject": {"Gr%C3%BC%C3%9Fe"}, "ce-topic": {"orders"}, "ce-attempt": {"2"},
			"ce-datacontenttype": {"application/json"}, "ce-traceparent": {"00-0af7-b7ad-01"}, "ce-headers": {`{%22X-Tenant%22:%22acme%22}`},
		},
	}
	got, err := nats.Decode(m.Header, m.Data)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(got.ID, got.Key, got.Type, got.Attempt, got.Headers)
	fmt.Printf("%s\n", got.Payload)
	// Output:
	// 0199d3c5-6a4e-7c1e-9a53-0d5b8a3f9a11 Grüße order.placed 2 map[X-Tenant:acme traceparent:00-0af7-b7ad-01]
	// {"total":7}
}

func TestDecodeForeign(t *testing.T) {
	for _, h := range []natsgo.Header{
		nil,
		{"ce-specversion": {"0.3"}},
		{"ce-specversion": {"1.0"}, "ce-id": {"7"}},
		{"ce-specversion": {"1.0"}, "ce-sequence": {"x"}},
		{"ce-specversion": {"1.0"}, "ce-time": {"yesterday"}},
		{"ce-specversion": {"1.0"}, "ce-headers": {"["}},
	} {
		if _, err := nats.Decode(h, nil); err == nil {
			t.Errorf("%v is decoded", h)
		}
	}
}
