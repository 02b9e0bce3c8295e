package webhook_test

import (
	"context"
	"testing"

	"github.com/outbox-suite/outbox/publish/publishtest"
	"github.com/outbox-suite/outbox/publish/webhook"
	"github.com/outbox-suite/outbox/relay"
)

func TestPublisher(t *testing.T) {
	for name, mode := range map[string]webhook.Mode{"structured": webhook.Structured, "binary": webhook.Binary} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newEndpoint(t)
			dial := func(_ context.Context, addr string) (relay.Publisher, error) {
				return webhook.New("http://"+addr+"/?token="+token, webhook.Config{
					Mode: mode, Allow: loopback, Secrets: []string{secretNew, secretOld},
				})
			}
			target := publishtest.Target{
				New:     func(ctx context.Context) (relay.Publisher, error) { return dial(ctx, e.Address) },
				Topic:   newTopic,
				Consume: e.consume,
				Kill:    e.kill, Start: e.start,
				Pause: e.pause, Resume: e.resume,
				Network:  &publishtest.Network{Address: e.Address, New: dial},
				TooLarge: mostBody + 1,
				Unknown:  nowhere, Remedy: "correct the url",
				KeepsNil: true, Secret: token,
			}
			if mode == webhook.Structured {
				target.Known = map[string]string{"Accept/PayloadIsExact": "an event in JSON keeps the value of JSON data, not the space between its tokens"}
			}
			publishtest.Run(t, target)
		})
	}
}
