package endtoend

import (
	"context"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/outbox-suite/outbox/publish/kafka"
	"github.com/outbox-suite/outbox/relay"
)

// kfake speaks Kafka's protocol and keeps topics and committed offsets in files.
func serveKafka(ctx context.Context, s spec, ready func()) error {
	k, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.Ports(s.Port), kfake.DataDir(s.Store))
	if err != nil {
		return err
	}
	ready()
	<-ctx.Done()
	k.Close()
	return nil
}

func prepareKafka(ctx context.Context, address, topic string) error {
	k, err := kgo.NewClient(kgo.SeedBrokers(address))
	if err != nil {
		return err
	}
	defer k.Close()
	req := kmsg.NewPtrCreateTopicsRequest()
	t := kmsg.NewCreateTopicsRequestTopic()
	t.Topic, t.NumPartitions, t.ReplicationFactor = topic, 3, 1
	req.Topics = append(req.Topics, t)
	resp, err := req.RequestWith(ctx, k)
	if err != nil {
		return err
	}
	return kerr.ErrorForCode(resp.Topics[0].ErrorCode)
}

func publishKafka(address string) (relay.Publisher, error) {
	return kafka.Connect(address, kafka.Config{})
}

type subscriptionKafka struct{ client *kgo.Client }

func subscribeKafka(_ context.Context, address, topic string) (subscription, error) {
	// A static member that comes back gets its partitions at once.
	k, err := kgo.NewClient(
		kgo.SeedBrokers(address), kgo.ConsumerGroup("billing"), kgo.InstanceID("billing-1"), kgo.ConsumeTopics(topic),
		kgo.DisableAutoCommit(), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchMaxWait(100*time.Millisecond),
		kgo.MetadataMinAge(50*time.Millisecond), kgo.RetryBackoffFn(func(int) time.Duration { return 50 * time.Millisecond }),
	)
	return &subscriptionKafka{k}, err
}

func (s *subscriptionKafka) next(ctx context.Context) (delivery, error) {
	for {
		f := s.client.PollRecords(ctx, 1)
		switch {
		case ctx.Err() != nil:
			return delivery{}, ctx.Err()
		case f.Err() != nil:
			return delivery{}, f.Err()
		case f.NumRecords() == 0:
			continue
		}
		r := f.Records()[0]
		m, err := kafka.Decode(r)
		return delivery{m, func() error {
			ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
			defer cancel()
			return s.client.CommitRecords(ctx, r)
		}, func() error { return errAgain }, false}, err
	}
}

// close leaves the group to the next subscription, as a static member does.
func (s *subscriptionKafka) close() { s.client.CloseAllowingRebalance() }
