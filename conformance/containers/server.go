package containers

import (
	"context"
	"errors"
	"fmt"
	"net/url"

	"github.com/moby/moby/client"
	"github.com/testcontainers/testcontainers-go"
)

// A Server is a database server that tests may use, shared by all tests of a process.
//
// A server in a container can be made to fail. Its DSN is the same before and after,
// and so is its data. A test that makes it fail must not run in parallel with another
// test on the same server, and must leave it running.
type Server struct {
	// Engine is the name by which the server was asked for, such as "postgres".
	Engine string
	// Version is what the server itself says, such as "18.6".
	Version string
	// DSN connects as a user who may do everything. It contains the password:
	// print the server instead, whose String leaves it out.
	DSN string

	from   string // where the server came from, for String
	docker *client.Client
	ctr    *testcontainers.DockerContainer // nil for a server given by its DSN
}

// String describes the server without its user and password.
func (s *Server) String() string {
	where := "an unreadable address"
	if u, err := url.Parse(s.DSN); err == nil {
		where = u.Host + u.Path
	}
	return fmt.Sprintf("%s %s at %s (%s)", s.Engine, s.Version, where, s.from)
}

// GoString is String, so that no format prints the password.
func (s *Server) GoString() string { return s.String() }

// CanRestart reports whether the server can be stopped, killed, paused and started.
// It is false for a server given by its DSN, whose methods all return an error that
// is [errors.ErrUnsupported].
func (s *Server) CanRestart() bool { return s.ctr != nil }

// Stop shuts the server down in good order and returns when it is down. Its
// sessions are cut and new connections are refused.
func (s *Server) Stop(ctx context.Context) error {
	if s.ctr == nil {
		return s.unsupported("stop")
	}
	// The stop signal of the image is the fast shutdown; Docker kills what has
	// not ended after ten seconds.
	return s.explain("stop", s.ctr.Stop(ctx, nil))
}

// Start starts a server that was stopped or killed and returns when it answers a
// query.
func (s *Server) Start(ctx context.Context) error {
	if s.ctr == nil {
		return s.unsupported("start")
	}
	if err := s.ctr.Start(ctx); err != nil {
		return s.explain("start", err)
	}
	// The log still has the lines of earlier starts, so only a query tells.
	return s.explain("start", awaitAnswer(ctx, engines[s.Engine], s.DSN, s.exited))
}

// Kill ends all of the server's processes with SIGKILL, as a crash would, and
// returns when they are gone.
func (s *Server) Kill(ctx context.Context) error {
	if s.ctr == nil {
		return s.unsupported("kill")
	}
	// Told to send SIGKILL, Docker waits until the container has ended.
	_, err := s.docker.ContainerKill(ctx, s.ctr.GetContainerID(), client.ContainerKillOptions{Signal: "SIGKILL"})
	return s.explain("kill", err)
}

// Pause freezes the server: connections stay open and new ones may be accepted, but
// nothing answers until [Server.Unpause].
func (s *Server) Pause(ctx context.Context) error {
	if s.ctr == nil {
		return s.unsupported("pause")
	}
	_, err := s.docker.ContainerPause(ctx, s.ctr.GetContainerID(), client.ContainerPauseOptions{})
	return s.explain("pause", err)
}

// Unpause lets a paused server go on where it was.
func (s *Server) Unpause(ctx context.Context) error {
	if s.ctr == nil {
		return s.unsupported("unpause")
	}
	_, err := s.docker.ContainerUnpause(ctx, s.ctr.GetContainerID(), client.ContainerUnpauseOptions{})
	return s.explain("unpause", err)
}

// Terminate removes the server and its data, in whatever state it is, for good.
// Doing it again does nothing. [Main] does it for every server, so tests need not.
func (s *Server) Terminate(ctx context.Context) error {
	if s.ctr == nil {
		return s.unsupported("terminate")
	}
	// Without a grace period: nobody reads the data any more.
	return s.explain("terminate", testcontainers.TerminateContainer(s.ctr,
		testcontainers.StopContext(ctx), testcontainers.StopTimeout(0)))
}

// exited returns an error if the container is not running.
func (s *Server) exited(ctx context.Context) error {
	state, err := s.ctr.State(ctx)
	if err != nil {
		return err
	}
	if !state.Running {
		return fmt.Errorf("exited with status %d", state.ExitCode)
	}
	return nil
}

func (s *Server) unsupported(verb string) error {
	return fmt.Errorf("%s %v: %w", verb, s, errors.ErrUnsupported)
}

func (s *Server) explain(verb string, err error) error {
	if err != nil {
		return fmt.Errorf("%s %v: %w", verb, s, err)
	}
	return nil
}
