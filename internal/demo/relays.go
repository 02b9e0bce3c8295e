package demo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// lease is short, so that the lanes of the relay that is killed are soon taken
// over.
const lease = 2 * time.Second

// relays are the running relay processes.
type relays struct {
	*demo
	running []*process
	begun   int
	killed  int
}

// process is one relay.
type process struct {
	name string
	cmd  *exec.Cmd
	log  string        // path of its standard error
	done chan struct{} // closed when it has ended
	err  error         // how it ended, valid after done

	expected chan struct{} // closed before it is made to end
}

// start starts another relay; fail is called if it ends by itself.
func (r *relays) start(ctx context.Context, fail context.CancelCauseFunc) error {
	r.begun++
	name := fmt.Sprintf("relay-%d", r.begun)
	p := &process{
		name: name, log: filepath.Join(r.folder, name+".log"),
		done: make(chan struct{}), expected: make(chan struct{}),
	}
	log, err := os.Create(p.log)
	if err != nil {
		return err
	}
	defer log.Close() //nolint:errcheck // the child has its own
	//nolint:gosec // the program is this one
	p.cmd = exec.CommandContext(ctx, r.Program, "relay",
		"--owner", name, "--lease", lease.String(),
		"--workers", "2", "--poll-max", "100ms", "--log-level", "warn")
	if r.Broker == nil {
		p.cmd.Args = append(p.cmd.Args, "--publish", r.publish)
	}
	p.cmd.Stderr = log
	p.cmd.Stdout = log
	// The URLs may hold passwords, which are nobody's business in a process list.
	p.cmd.Env = append(foreign(os.Environ()), r.Environ...)
	p.cmd.Env = append(p.cmd.Env, "OUTBOX_DSN="+r.dsn, "OUTBOX_PREFIX="+r.prefix, "OUTBOX_PUBLISH="+r.publish)
	if err := p.cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", name, err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
		select {
		case <-p.expected:
		default:
			fail(fmt.Errorf("%s ended by itself: %w", name, p.failure()))
		}
	}()
	r.running = append(r.running, p)
	return nil
}

// foreign are the settings that are not the outbox's own.
func foreign(environ []string) []string {
	var rest []string
	for _, v := range environ {
		if !strings.HasPrefix(v, "OUTBOX_") {
			rest = append(rest, v)
		}
	}
	return rest
}

// failure tells how the process ended, and the last it said.
func (p *process) failure() error {
	err := p.err
	if err == nil {
		err = errors.New("exit status 0")
	}
	text, readErr := os.ReadFile(p.log)
	if readErr != nil || len(text) == 0 {
		return err
	}
	lines := bytes.Split(bytes.TrimSpace(text), []byte("\n"))
	return fmt.Errorf("%w: %s", err, bytes.Join(lines[max(0, len(lines)-3):], []byte(" | ")))
}

func (r *relays) names() []string {
	var names []string
	for _, p := range r.running {
		names = append(names, p.name)
	}
	return names
}

// killOne kills a relay without a warning and returns how many lanes it left
// behind.
func (r *relays) killOne(ctx context.Context, name string) (lanes int, err error) {
	for i, p := range r.running {
		if p.name != name {
			continue
		}
		r.running = append(r.running[:i:i], r.running[i+1:]...)
		close(p.expected)
		if err := p.cmd.Process.Kill(); err != nil {
			return 0, fmt.Errorf("kill %s: %w", name, err)
		}
		<-p.done
		if p.err == nil {
			return 0, fmt.Errorf("kill %s: it ended in order all the same", name)
		}
		r.killed++
		return r.lanesOf(ctx, name)
	}
	return 0, fmt.Errorf("kill %s: it does not run", name)
}

// stop ends the relays in order, as an operator would.
func (r *relays) stop() error {
	var errs []error
	for _, p := range r.running {
		close(p.expected)
		signal := os.Interrupt
		if runtime.GOOS == "windows" {
			signal = os.Kill // there is no other
		}
		if err := p.cmd.Process.Signal(signal); err != nil {
			errs = append(errs, fmt.Errorf("stop %s: %w", p.name, err))
		}
	}
	for _, p := range r.running {
		select {
		case <-p.done:
			if p.err != nil && runtime.GOOS != "windows" {
				errs = append(errs, fmt.Errorf("%s did not stop in order: %w", p.name, p.failure()))
			}
		case <-time.After(patience):
			errs = append(errs, fmt.Errorf("%s did not stop within %v", p.name, patience))
		}
	}
	if len(errs) == 0 {
		r.running = nil
	}
	return errors.Join(errs...)
}

// kill ends what still runs.
func (r *relays) kill() {
	for _, p := range r.running {
		select {
		case <-p.expected:
		default:
			close(p.expected)
		}
		_ = p.cmd.Process.Kill() // it may have ended
		<-p.done
	}
}
