package containers

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"
	"github.com/testcontainers/testcontainers-go"
	"github.com/testcontainers/testcontainers-go/wait"
)

// These labels say which process a container belongs to, so that a later one on the
// same host can tell that nobody needs it any more.
const (
	labelHost = "outbox.containers.host"
	labelPID  = "outbox.containers.pid"
)

const (
	pullTimeout  = 5 * time.Minute
	startTimeout = 3 * time.Minute // PostgreSQL needs three seconds, on a busy machine more
	pollInterval = 50 * time.Millisecond
)

// dockerClient connects to the Docker engine that testcontainers would use. The error
// says that there is none.
func dockerClient(ctx context.Context) (_ *client.Client, err error) {
	// testcontainers panics when it finds no engine to ask.
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("no Docker engine answers: %v", r)
		}
	}()
	c, err := testcontainers.NewDockerClientWithOpts(ctx)
	if err != nil {
		return nil, fmt.Errorf("no Docker engine answers: %w", err)
	}
	if _, err := c.Ping(ctx, client.PingOptions{}); err != nil {
		return nil, fmt.Errorf("no Docker engine answers: %w", err)
	}
	return c.Client, nil
}

// obtain makes sure that the engine has the image, pulling it if need be.
func obtain(ctx context.Context, docker *client.Client, ref string) error {
	if _, err := docker.ImageInspect(ctx, ref); err == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, pullTimeout)
	defer cancel()
	pull, err := docker.ImagePull(ctx, ref, client.ImagePullOptions{})
	if err != nil {
		return err
	}
	return pull.Wait(ctx)
}

// startContainer starts a server from an image that the Docker engine has, and
// returns when it answers a query.
func startContainer(ctx context.Context, docker *client.Client, name, ref string) (*Server, error) {
	const attempts = 5
	for attempt := 1; ; attempt++ {
		s, err := startContainerOnce(ctx, docker, name, ref)
		// Whoever takes the port between our look and Docker's bind sends us to
		// another one.
		if err == nil || attempt == attempts || !portTaken(err) {
			return s, err
		}
	}
}

func portTaken(err error) bool {
	return strings.Contains(err.Error(), "port is already allocated") ||
		strings.Contains(err.Error(), "address already in use")
}

func startContainerOnce(ctx context.Context, docker *client.Client, name, ref string) (_ *Server, err error) {
	e := engines[name]
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()

	host, bind, err := addresses(ctx, docker)
	if err != nil {
		return nil, err
	}
	hostPort, err := freePort(ctx)
	if err != nil {
		return nil, err
	}
	port, err := network.ParsePort(e.port)
	if err != nil {
		return nil, err
	}
	self, err := os.Hostname()
	if err != nil {
		return nil, err
	}
	password := rand.Text() + "-aA1" // which satisfies every engine's password rules

	ctr, err := testcontainers.Run(
		ctx, ref,
		testcontainers.WithEnv(e.env(password)),
		testcontainers.WithCmd(e.cmd...),
		testcontainers.WithLabels(map[string]string{
			labelHost: self,
			labelPID:  strconv.Itoa(os.Getpid()),
		}),
		testcontainers.WithExposedPorts(e.port),
		testcontainers.WithHostConfigModifier(func(hc *container.HostConfig) {
			hc.PortBindings = network.PortMap{port: {{HostIP: bind, HostPort: strconv.Itoa(hostPort)}}}
		}),
		testcontainers.WithWaitStrategyAndDeadline(startTimeout,
			wait.ForLog(e.ready).WithOccurrence(e.readyAt).WithPollInterval(pollInterval)),
	)
	s := &Server{Engine: name, from: "container of " + ref, docker: docker, ctr: ctr}
	defer func() {
		if err != nil && ctr != nil {
			err = errors.Join(err, testcontainers.TerminateContainer(ctr, testcontainers.StopTimeout(0)))
		}
	}()
	if err != nil {
		return nil, err
	}

	s.DSN = e.dsn(password, net.JoinHostPort(host, strconv.Itoa(hostPort)))
	if err := awaitAnswer(ctx, e, s.DSN, s.exited); err != nil {
		return nil, err
	}
	if s.Version, err = serverVersion(ctx, e, s.DSN); err != nil {
		return nil, err
	}
	return s, nil
}

// addresses returns the host by which a container's ports are reached, and the
// address to bind them to there: the loopback for an engine on this machine, by its
// number because the name may also mean ::1, where nothing listens.
//
// testcontainers would guess from files such as /.dockerenv that the tests run in a
// container themselves, beside the engine's others, and then use a gateway address.
// Where they really do, TESTCONTAINERS_HOST_OVERRIDE has to say so.
func addresses(ctx context.Context, docker *client.Client) (host string, bind netip.Addr, err error) {
	remote := strings.HasPrefix(docker.DaemonHost(), "tcp:") || os.Getenv("TESTCONTAINERS_HOST_OVERRIDE") != ""
	if !remote {
		loopback := netip.AddrFrom4([4]byte{127, 0, 0, 1})
		return loopback.String(), loopback, nil
	}
	provider, err := testcontainers.NewDockerProvider()
	if err != nil {
		return "", bind, err
	}
	defer func() { err = errors.Join(err, provider.Close()) }()
	host, err = provider.DaemonHost(ctx)
	return host, netip.IPv4Unspecified(), err
}

// freePort returns a port on which nothing listens now. A fixed port is what keeps a
// DSN valid while its server is down.
//
// It lies below the range from which systems take the ports of outgoing connections:
// a client that keeps dialling a stopped server on such a port would some time be
// given that very port, be connected to itself, and keep the server from coming back.
func freePort(ctx context.Context) (int, error) {
	const low, high = 20000, 32768
	var lastErr error
	for range 100 {
		n, err := rand.Int(rand.Reader, big.NewInt(high-low))
		if err != nil {
			return 0, err
		}
		port := low + int(n.Int64())
		var config net.ListenConfig
		l, err := config.Listen(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err != nil {
			lastErr = err
			continue
		}
		return port, l.Close()
	}
	return 0, fmt.Errorf("no free port: %w", lastErr)
}

// awaitAnswer returns when the server answers a query, with an error when ctx ends
// or exited reports one. Log lines and open ports are not enough: a server accepts
// connections before it can serve them.
func awaitAnswer(ctx context.Context, e engine, dsn string, exited func(context.Context) error) (err error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	db, err := e.open(dsn)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()

	answer := cmp.Or(e.answer, "SELECT 1")
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		var one int
		queryErr := db.QueryRowContext(ctx, answer).Scan(&one)
		if queryErr == nil {
			return nil
		}
		if err := exited(ctx); err != nil {
			return fmt.Errorf("no answer: %w: %w", err, queryErr)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("no answer: %w: %w", ctx.Err(), queryErr)
		case <-tick.C:
		}
	}
}

func serverVersion(ctx context.Context, e engine, dsn string) (_ string, err error) {
	db, err := e.open(dsn)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	return e.version(ctx, db)
}

// An owned container belongs to a test process of this host.
type owned struct {
	id  string
	pid int
}

// list returns the containers of this host's test processes, running or not.
func list(ctx context.Context, docker *client.Client) ([]owned, error) {
	self, err := os.Hostname()
	if err != nil {
		return nil, err
	}
	found, err := docker.ContainerList(ctx, client.ContainerListOptions{
		All:     true,
		Filters: make(client.Filters).Add("label", labelHost+"="+self),
	})
	if err != nil {
		return nil, err
	}
	var all []owned
	for _, c := range found.Items {
		pid, err := strconv.Atoi(c.Labels[labelPID])
		if err != nil {
			return nil, fmt.Errorf("container %s: label %s: %w", c.ID, labelPID, err)
		}
		all = append(all, owned{c.ID, pid})
	}
	return all, nil
}

// sweep removes the containers of processes that died without removing them. What it
// cannot remove stays for the next sweep: another process may be removing the same
// container at this moment.
func sweep(ctx context.Context, docker *client.Client) error {
	all, err := list(ctx, docker)
	if err != nil {
		return err
	}
	for _, c := range all {
		if gone(c.pid) {
			_, _ = docker.ContainerRemove(ctx, c.id, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
		}
	}
	return nil
}

// gone reports whether there surely is no process with that id.
func gone(pid int) bool {
	p, err := os.FindProcess(pid)
	if err != nil {
		return false
	}
	return errors.Is(p.Signal(syscall.Signal(0)), os.ErrProcessDone)
}
