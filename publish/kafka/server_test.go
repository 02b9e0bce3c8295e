package kafka_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl/plain"

	"github.com/outbox-suite/outbox/publish/kafka"
	"github.com/outbox-suite/outbox/publish/publishtest"
)

// kfake, which speaks Kafka's protocol, in a process of its own so that it can be
// killed: this test binary, told so by the environment.

const (
	serverEnv = "OUTBOX_TEST_KAFKA_SERVER"
	user      = "app"
	password  = "hunter2"
)

type serverConfig struct {
	Port  int
	Store string
}

func TestMain(m *testing.M) {
	if text := os.Getenv(serverEnv); text != "" {
		if err := serve(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// serve runs a server until standard input ends, so that it does not outlive
// the test.
func serve(text string) error {
	var c serverConfig
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		return err
	}
	s, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.Ports(c.Port), kfake.DataDir(c.Store),
		kfake.EnableSASL(), kfake.Superuser("PLAIN", user, password))
	if err != nil {
		return err
	}
	fmt.Println("ready")
	_, _ = io.Copy(io.Discard, os.Stdin)
	s.Close()
	return nil
}

// broker is a server that can be killed and started.
type broker struct {
	serverConfig
	cmd   *exec.Cmd
	stdin io.WriteCloser
}

func newBroker(tb testing.TB) *broker {
	tb.Helper()
	b := &broker{serverConfig: serverConfig{Port: freePort(tb), Store: tb.TempDir()}}
	if err := b.start(tb.Context()); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = b.kill(context.Background()) })
	return b
}

func freePort(tb testing.TB) int {
	tb.Helper()
	var lc net.ListenConfig
	l, err := lc.Listen(tb.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

func (b *broker) start(context.Context) error {
	text, err := json.Marshal(b.serverConfig)
	if err != nil {
		return err
	}
	b.cmd = exec.CommandContext(context.Background(), os.Args[0]) // the broker outlives a scenario
	b.cmd.Env = append(os.Environ(), serverEnv+"="+string(text))
	b.cmd.Stderr = os.Stderr
	if b.stdin, err = b.cmd.StdinPipe(); err != nil {
		return err
	}
	out, err := b.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := b.cmd.Start(); err != nil {
		return err
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "ready\n" {
		return fmt.Errorf("the server said %q: %w", line, err)
	}
	return nil
}

// kill is kill -9.
func (b *broker) kill(context.Context) error {
	if b.cmd == nil {
		return nil
	}
	_ = b.cmd.Process.Kill()
	_ = b.cmd.Wait() // it was killed
	b.cmd = nil
	return nil
}

func (b *broker) address() string { return fmt.Sprintf("127.0.0.1:%d", b.Port) }

func auth() kgo.Opt { return kgo.SASL(plain.Auth{User: user, Pass: password}.AsMechanism()) }

// reader is a client of the test's own.
type reader struct {
	addr    string
	options []kgo.Opt
}

// committed are the records that a transaction has committed, or that are of none. The
// brokers tell a client which are not; kfake tells it wrong after it was killed, since
// it writes no marker behind what it aborts at its start, and so a client leaves out
// what the same producer has committed since. Here the markers alone count.
func committed(all []*kgo.Record) []*kgo.Record {
	type producer struct {
		partition int32
		id        int64
	}
	open := make(map[producer][]*kgo.Record)
	keep := make(map[*kgo.Record]bool)
	for _, r := range all {
		p := producer{r.Partition, r.ProducerID}
		switch before := open[p]; {
		case r.Attrs.IsControl():
			for _, b := range before {
				keep[b] = b.ProducerEpoch <= r.ProducerEpoch && r.Key[3] == 1 // a commit, which Kafka 4 marks with the next epoch
			}
			delete(open, p)
		case !r.Attrs.IsTransactional():
			keep[r] = true
		case len(before) > 0 && before[0].ProducerEpoch != r.ProducerEpoch:
			open[p] = []*kgo.Record{r}
		default:
			open[p] = append(before, r)
		}
	}
	return slices.DeleteFunc(all, func(r *kgo.Record) bool { return !keep[r] })
}

func (r reader) client(options ...kgo.Opt) (*kgo.Client, error) {
	return kgo.NewClient(append(append([]kgo.Opt{kgo.SeedBrokers(r.addr), kgo.MetadataMinAge(10 * time.Millisecond)}, r.options...), options...)...)
}

// newTopic makes a topic with that many partitions.
func (r reader) newTopic(ctx context.Context, partitions int32, config map[string]string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	k, err := r.client()
	if err != nil {
		return "", err
	}
	defer k.Close()
	req := kmsg.NewPtrCreateTopicsRequest()
	req.TimeoutMillis = 5000
	t := kmsg.NewCreateTopicsRequestTopic()
	t.Topic, t.NumPartitions, t.ReplicationFactor = "topic."+uuid.NewString(), partitions, 1
	for name, value := range config {
		c := kmsg.NewCreateTopicsRequestTopicConfig()
		c.Name, c.Value = name, new(value)
		t.Configs = append(t.Configs, c)
	}
	req.Topics = append(req.Topics, t)
	resp, err := req.RequestWith(ctx, k)
	if err != nil {
		return "", err
	}
	return t.Topic, kerr.ErrorForCode(resp.Topics[0].ErrorCode)
}

// ends are the offsets at which a topic's partitions end.
func ends(ctx context.Context, k *kgo.Client, topic string) (map[int32]int64, error) {
	meta := kmsg.NewPtrMetadataRequest()
	mt := kmsg.NewMetadataRequestTopic()
	mt.Topic = new(topic)
	meta.Topics = append(meta.Topics, mt)
	info, err := meta.RequestWith(ctx, k)
	if err != nil {
		return nil, err
	}
	if err := kerr.ErrorForCode(info.Topics[0].ErrorCode); err != nil {
		return nil, err
	}
	req := kmsg.NewPtrListOffsetsRequest()
	req.ReplicaID = -1
	rt := kmsg.NewListOffsetsRequestTopic()
	rt.Topic = topic
	for _, p := range info.Topics[0].Partitions {
		rp := kmsg.NewListOffsetsRequestTopicPartition()
		rp.Partition, rp.Timestamp = p.Partition, -1
		rt.Partitions = append(rt.Partitions, rp)
	}
	req.Topics = append(req.Topics, rt)
	resp, err := req.RequestWith(ctx, k)
	if err != nil {
		return nil, err
	}
	all := make(map[int32]int64)
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
				return nil, err
			}
			all[p.Partition] = p.Offset
		}
	}
	return all, nil
}

// records reads what is committed in a topic, from its beginning.
func (r reader) records(ctx context.Context, topic string) ([]*kgo.Record, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	k, err := r.client(kgo.FetchMaxWait(100*time.Millisecond), kgo.KeepControlRecords())
	if err != nil {
		return nil, err
	}
	defer k.Close()
	end, err := ends(ctx, k, topic)
	if err != nil {
		return nil, err
	}
	from := make(map[int32]kgo.Offset)
	for p, offset := range end {
		if offset > 0 {
			from[p] = kgo.NewOffset().At(0)
		}
	}
	left := len(from)
	if left == 0 {
		return nil, nil
	}
	k.AddConsumePartitions(map[string]map[int32]kgo.Offset{topic: from})
	var all []*kgo.Record
	for left > 0 {
		got := k.PollFetches(ctx)
		if err := ctx.Err(); err != nil {
			return nil, errors.Join(err, got.Err())
		}
		got.EachRecord(func(r *kgo.Record) {
			all = append(all, r)
			if r.Offset == end[r.Partition]-1 {
				left--
			}
		})
	}
	return committed(all), nil
}

func (r reader) consume(ctx context.Context, topic string) ([]publishtest.Received, error) {
	records, err := r.records(ctx, topic)
	if err != nil {
		return nil, err
	}
	var all []publishtest.Received
	for _, r := range records {
		m, err := kafka.Decode(r)
		if err != nil {
			return nil, err
		}
		if string(r.Key) != m.Key || (r.Key != nil) != m.HasKey() || (r.Value == nil) != (m.Payload == nil) {
			return nil, fmt.Errorf("the record's key is %q and its value %q: got %+v", r.Key, r.Value, m)
		}
		all = append(all, publishtest.Received{Message: m.Message, Replay: m.Replay})
	}
	return all, nil
}
