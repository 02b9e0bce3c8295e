package endtoend

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"testing"
)

// Relays, the consumer and the brokers that are Go programs are processes of their
// own, so that they can be killed: this test binary, told so by the environment.

const envChild = "OUTBOX_ENDTOEND_CHILD"

// spec says what a child process is.
type spec struct {
	Role   string // relay, consumer or server
	Name   string
	Engine string
	Broker string
	DSN    string // of its database
	URL    string // of the broker
	Topic  string // where all messages go
	Port   int    // of a server
	Store  string // the folder of a server
	// Broken is what a test of the suite itself breaks on purpose.
	Broken string
}

// report is a line from a child to its parent.
type report struct {
	Kind string // ready, settled, applied, duplicate, or one that begins with fault
	ID   string
	Text string
}

// What a parent may tell its child, besides stop.
const (
	tellDie  = "die"  // at the next point where it hurts most
	tellFail = "fail" // once
)

// parent is the child's side of the pipes.
type parent struct {
	mu   sync.Mutex
	out  *json.Encoder
	told map[string]bool
}

func (p *parent) say(kind, id, text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_ = p.out.Encode(report{kind, id, text}) // without a parent the process ends anyway
}

// fault tells of an error that a message may have come twice of.
func (p *parent) fault(what string, err error) { p.say("fault "+what, "", fmt.Sprint(err)) }

// take tells whether the parent has said a word, and forgets it.
func (p *parent) take(word string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	told := p.told[word]
	delete(p.told, word)
	return told
}

// listen returns when the child is to stop; a child whose parent is gone ends at once.
func (p *parent) listen(in io.Reader) {
	words := bufio.NewScanner(in)
	for words.Scan() {
		if words.Text() == "stop" {
			return
		}
		p.mu.Lock()
		p.told[words.Text()] = true
		p.mu.Unlock()
	}
	os.Exit(1)
}

// die is kill -9 by the process's own hand.
func die() {
	self, err := os.FindProcess(os.Getpid())
	if err == nil {
		err = self.Kill()
	}
	if err != nil {
		panic(err)
	}
	select {} // until the signal comes
}

func childMain(text string) error {
	var s spec
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		return err
	}
	p := &parent{out: json.NewEncoder(os.Stdout), told: make(map[string]bool)}
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		p.listen(os.Stdin)
		stop()
	}()
	switch s.Role {
	case "relay":
		return runRelay(ctx, p, s)
	case "consumer":
		return runConsumer(ctx, p, s)
	case "server":
		return brokerNamed(s.Broker).serve(ctx, s, func() { p.say("ready", "", "") })
	}
	return fmt.Errorf("there is no role %q", s.Role)
}

// child is the parent's side of the pipes.
type child struct {
	spec
	cmd  *exec.Cmd
	in   io.WriteCloser
	gone chan struct{} // closed when it has ended and all it said was heard
	err  error         // how it ended, valid after gone

	mu   sync.Mutex
	said map[string]int // by kind
	why  chan struct{}  // closed before it is made to end
}

// spawn starts a child process and returns when it is ready. heard is called for each
// line it says.
func spawn(tb testing.TB, s spec, heard func(c *child, r report)) (*child, error) {
	tb.Helper()
	text, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	c := &child{spec: s, gone: make(chan struct{}), said: make(map[string]int), why: make(chan struct{})}
	c.cmd = exec.CommandContext(context.Background(), os.Args[0]) // it is ended by kill or stop
	c.cmd.Env = append(os.Environ(), envChild+"="+string(text))
	c.cmd.Stderr = os.Stderr
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := c.cmd.Start(); err != nil {
		return nil, err
	}
	ready := make(chan struct{})
	go func() {
		lines := json.NewDecoder(bufio.NewReader(out))
		for {
			var r report
			if err := lines.Decode(&r); err != nil {
				break // it ended, perhaps in the middle of a line
			}
			c.mu.Lock()
			c.said[r.Kind]++
			c.mu.Unlock()
			if r.Kind == "ready" {
				close(ready)
				continue
			}
			heard(c, r)
		}
		c.err = c.cmd.Wait()
		close(c.gone)
	}()
	select {
	case <-ready:
		return c, nil
	case <-c.gone:
		return nil, fmt.Errorf("%s %s ended at its start: %w", s.Role, s.Name, c.err)
	}
}

func (c *child) count(kind string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.said[kind]
}

func (c *child) tell(word string) { _, _ = fmt.Fprintln(c.in, word) }

// alive tells whether it runs. A child that has ended unasked is an error.
func (c *child) alive() (bool, error) {
	select {
	case <-c.gone:
	default:
		return true, nil
	}
	select {
	case <-c.why:
		return false, nil
	default:
		return false, fmt.Errorf("%s %s ended by itself: %w", c.Role, c.Name, c.err)
	}
}

// expectEnd says that the child is about to end.
func (c *child) expectEnd() {
	select {
	case <-c.why:
	default:
		close(c.why)
	}
}

// kill is kill -9. It returns when the process is gone.
func (c *child) kill() {
	c.expectEnd()
	_ = c.cmd.Process.Kill() // it may have ended
	<-c.gone
	_ = c.in.Close()
}

// stop lets it end in order.
func (c *child) stop() error {
	c.expectEnd()
	c.tell("stop")
	<-c.gone
	return c.err
}
