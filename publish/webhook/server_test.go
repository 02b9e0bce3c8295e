package webhook_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-suite/outbox/publish/publishtest"
	"github.com/outbox-suite/outbox/publish/webhook"
)

// An endpoint that keeps what it accepts, in a process of its own so that it can be
// killed: this test binary, told so by the environment.

const (
	serverEnv = "OUTBOX_TEST_WEBHOOK_SERVER"
	token     = "hunter2"
	secretOld = "whsec_b2xkZXIgc2VjcmV0IG9mIDI0IGJ5dGVzIQ=="
	secretNew = "whsec_bmV3ZXIgc2VjcmV0IG9mIDI0IGJ5dGVzIQ=="
	mostBody  = 1 << 20
	nowhere   = "nowhere"
)

type serverConfig struct{ Address, Store string }

func TestMain(m *testing.M) {
	_ = os.Setenv("NO_PROXY", "*") // the endpoints are here
	if text := os.Getenv(serverEnv); text != "" {
		if err := keep(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// keep serves until standard input ends, so that it does not outlive the test.
func keep(text string) error {
	var c serverConfig
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		return err
	}
	// What a kill left unfinished was never accepted.
	names, err := filepath.Glob(filepath.Join(c.Store, "*"))
	if err != nil {
		return err
	}
	for _, name := range names {
		whole, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		if err := os.Truncate(name, int64(bytes.LastIndexByte(whole, '\n')+1)); err != nil {
			return err
		}
	}
	l, err := new(net.ListenConfig).Listen(context.Background(), "tcp", c.Address)
	if err != nil {
		return err
	}
	s := &http.Server{Handler: &store{folder: c.Store}, ReadHeaderTimeout: time.Minute}
	fmt.Println("ready")
	go func() { _ = s.Serve(l) }()
	_, _ = io.Copy(io.Discard, os.Stdin)
	return nil
}

// store accepts events that are signed and appends them to a file a topic.
type store struct {
	folder string
	mu     sync.Mutex
}

// request is a line of a file.
type request struct {
	Header http.Header
	Body   []byte
}

func (s *store) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 64<<20))
	switch {
	case err != nil:
		w.WriteHeader(http.StatusBadRequest)
	case r.URL.Query().Get("token") != token, webhook.Verify(r.Header, body, 0, secretOld) != nil:
		w.WriteHeader(http.StatusUnauthorized)
	case len(body) > mostBody:
		w.WriteHeader(http.StatusRequestEntityTooLarge)
	default:
		w.WriteHeader(s.accept(r.Header, body))
		_, _ = w.Write(body) // as some do; it must not reach an error
	}
}

func (s *store) accept(header http.Header, body []byte) (status int) {
	m, err := webhook.Decode(header, body)
	if err != nil {
		return http.StatusUnprocessableEntity
	}
	if m.Topic == nowhere {
		return http.StatusNotFound
	}
	line, err := json.Marshal(request{header, body})
	if err != nil {
		return http.StatusInternalServerError
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	f, err := os.OpenFile(fileOf(s.folder, m.Topic), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return http.StatusInternalServerError
	}
	_, written := f.Write(append(line, '\n'))
	if errors.Join(written, f.Sync(), f.Close()) != nil {
		return http.StatusInternalServerError
	}
	return http.StatusAccepted
}

func fileOf(folder, topic string) string {
	sum := sha256.Sum256([]byte(topic))
	return filepath.Join(folder, hex.EncodeToString(sum[:]))
}

// endpoint is the process, which can be killed and started.
type endpoint struct {
	serverConfig
	cmd   *exec.Cmd
	stdin io.WriteCloser
}

func newEndpoint(tb testing.TB) *endpoint {
	tb.Helper()
	l, err := new(net.ListenConfig).Listen(tb.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	e := &endpoint{serverConfig: serverConfig{Address: l.Addr().String(), Store: tb.TempDir()}}
	_ = l.Close()
	if err := e.start(tb.Context()); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = e.kill(context.Background()) })
	return e
}

func (e *endpoint) start(context.Context) error {
	text, err := json.Marshal(e.serverConfig)
	if err != nil {
		return err
	}
	e.cmd = exec.CommandContext(context.Background(), os.Args[0]) // it outlives a scenario
	e.cmd.Env = append(os.Environ(), serverEnv+"="+string(text))
	e.cmd.Stderr = os.Stderr
	if e.stdin, err = e.cmd.StdinPipe(); err != nil {
		return err
	}
	out, err := e.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := e.cmd.Start(); err != nil {
		return err
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "ready\n" {
		return fmt.Errorf("the endpoint said %q: %w", line, err)
	}
	return nil
}

// kill is kill -9.
func (e *endpoint) kill(context.Context) error {
	if e.cmd == nil {
		return nil
	}
	_ = e.cmd.Process.Kill()
	_ = e.cmd.Wait() // it was killed
	e.cmd = nil
	return nil
}

func newTopic(context.Context) (string, error) { return "topic/" + uuid.NewString(), nil }

// consume reads the whole file of a topic.
func (e *endpoint) consume(_ context.Context, topic string) ([]publishtest.Received, error) {
	text, err := os.ReadFile(fileOf(e.Store, topic))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var all []publishtest.Received
	for line := range bytes.Lines(text) {
		if !bytes.HasSuffix(line, []byte("\n")) {
			break // it is being written
		}
		var r request
		if err := json.Unmarshal(line, &r); err != nil {
			return nil, err
		}
		if r.Body == nil {
			r.Body = []byte{}
		}
		m, err := webhook.Decode(r.Header, r.Body)
		if err != nil {
			return nil, err
		}
		all = append(all, publishtest.Received{Message: m.Message, Replay: m.Replay})
	}
	return all, nil
}
