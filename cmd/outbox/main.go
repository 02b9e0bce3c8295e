// Command outbox operates a transactional outbox: it makes the tables, runs
// relays, shows what waits and what is stuck, and lets an operator act on it.
// `outbox help` lists the commands, `outbox COMMAND --help` explains one.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/outbox-suite/outbox"
	"github.com/outbox-suite/outbox/conformance"
)

func main() {
	conformance.Child(reopen) // does not return in a child process of the suite
	ctx, stop := signals(context.Background())
	code := run(ctx, &process{
		stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr, getenv: os.Getenv,
	}, os.Args[1:])
	stop()
	os.Exit(code)
}

// The exit codes of all commands, as `outbox help` and docs/cli.md tell them.
const (
	exitOK      = 0
	exitFailed  = 1
	exitUsage   = 2
	exitFinding = 3   // a check ran and found what it looks for
	exitSignal  = 128 // and the number of the signal
)

// process is what a command has of the process it runs in.
type process struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	getenv         func(string) string
}

// tell writes to standard error; where that fails there is nobody to tell.
func (p *process) tell(format string, args ...any) {
	_, _ = fmt.Fprintf(p.stderr, format, args...)
}

// command is a subcommand.
type command struct {
	name    string
	summary string // one line
	args    string // behind the flags, for the usage line
	help    string // what it does, and an example
	// words are what the one argument behind the flags may be; nil: there is none.
	words []string
	// setup defines the flags and returns what runs with them.
	setup func(fs *flag.FlagSet) action
}

type action func(ctx context.Context, p *process) error

// commands are in the order in which help lists them.
func commands() []command {
	return []command{
		schemaCommand, migrateCommand,
		enqueueCommand, relayCommand,
		statusCommand, healthCommand, parkedCommand, findCommand,
		requeueCommand, discardCommand, replayCommand, purgeCommand, auditCommand, uiCommand,
		conformanceCommand, benchCommand, demoCommand,
		completionCommand(), manCommand(), versionCommand,
	}
}

// usageError is a mistake in how the command was called.
type usageError struct{ error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

func (e usageError) Unwrap() error { return e.error }

// findingError is a check that ran and found what it looks for. Its text was
// printed already if it is empty.
type findingError struct{ error }

func (e findingError) Unwrap() error { return e.error }

// interrupted is the cause of a context that a signal ended.
type interrupted struct{ signal syscall.Signal }

func (i interrupted) Error() string { return "interrupted by signal " + i.signal.String() }

// signals returns a context that the first SIGINT, SIGTERM or SIGHUP ends. The second
// ends the process.
func signals(parent context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(parent)
	caught := make(chan os.Signal, 2)
	signal.Notify(caught, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	go func() {
		s, ok := <-caught
		if !ok {
			return
		}
		number, _ := s.(syscall.Signal)
		cancel(interrupted{number})
		if _, ok := <-caught; ok {
			os.Exit(exitSignal + int(number))
		}
	}()
	return ctx, func() {
		signal.Stop(caught)
		close(caught)
		cancel(nil)
	}
}

// run runs a command line and returns the exit code.
func run(ctx context.Context, p *process, args []string) int {
	if len(args) == 0 {
		p.tell("%s", overview())
		return exitUsage
	}
	name, args := args[0], args[1:]
	switch name {
	case "help", "-h", "-help", "--help":
		return help(ctx, p, args)
	case "-v", "-version", "--version":
		name = "version"
	}
	c, ok := find(name)
	if !ok {
		hint := suggestion(name, commandNames())
		if strings.HasPrefix(name, "-") {
			hint = ": flags stand behind the command"
		}
		p.tell("outbox: unknown command %s%s\nRun `outbox help` for the list.\n", shown(name), hint)
		return exitUsage
	}
	err := c.run(ctx, p, args)
	return finish(ctx, p, c.name, err)
}

// finish says what went wrong and returns the exit code.
func finish(ctx context.Context, p *process, name string, err error) int {
	stopped := interrupted{}
	var usage usageError
	var finding findingError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &finding):
		if finding.error != nil {
			p.tell("outbox %s: %v\n", name, finding)
		}
		return exitFinding
	case errors.As(err, &usage), errors.Is(err, outbox.ErrInvalid) && !errors.As(err, new(lineError)):
		p.tell("outbox %s: %v\nRun `outbox %s --help` for its flags and an example.\n", name, err, name)
		return exitUsage
	case errors.As(context.Cause(ctx), &stopped):
		p.tell("outbox %s: %v: %v\n", name, stopped, err)
		return exitSignal + int(stopped.signal)
	default:
		p.tell("outbox %s: %v\n", name, err)
		return exitFailed
	}
}

// run parses the flags and runs the command.
func (c command) run(ctx context.Context, p *process, args []string) error {
	fs, do := c.flags()
	switch err := fs.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		_, err := fmt.Fprint(p.stdout, c.text(fs))
		return err
	case err != nil:
		return usageError{flagError(err, fs)}
	case c.words == nil && fs.NArg() > 0:
		return usagef("unexpected argument %s: everything is given by flags", shown(fs.Arg(0)))
	case c.words != nil && (fs.NArg() != 1 || !slices.Contains(c.words, fs.Arg(0))):
		return usagef("takes one argument: %s", strings.Join(c.words, ", "))
	}
	return do(ctx, p)
}

// flags are the flags of the command, and what runs when they are parsed.
func (c command) flags() (*flag.FlagSet, action) {
	fs := flag.NewFlagSet(c.name, flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	return fs, c.setup(fs)
}

// flagError writes flags as the help does, and names the one that was probably meant.
func flagError(err error, fs *flag.FlagSet) error {
	meant := ""
	if name, unknown := strings.CutPrefix(err.Error(), "flag provided but not defined: -"); unknown {
		var names []string
		fs.VisitAll(func(f *flag.Flag) { names = append(names, "--"+f.Name) })
		meant = suggestion("--"+strings.TrimPrefix(name, "-"), names)
	}
	number := "give a number"
	if _, name, ok := strings.Cut(err.Error(), "for flag -"); ok {
		name, _, _ = strings.Cut(name, ":")
		if f := fs.Lookup(name); f != nil && isDuration(f.Value) {
			number = "give a duration, for example 500ms or 15s"
		}
	}
	return errors.New(strings.NewReplacer(
		"provided but not defined: -", "is not known: --",
		"for flag -", "for flag --",
		": parse error", ": "+number,
		": value out of range", ": the number is too large",
		"needs an argument: -", "needs an argument: --",
	).Replace(err.Error()) + meant)
}

func isDuration(v flag.Value) bool {
	getter, ok := v.(flag.Getter)
	if !ok {
		return false
	}
	_, ok = getter.Get().(time.Duration)
	return ok
}

// shown quotes an argument for an error text, unless it may hold a password.
func shown(arg string) string {
	if strings.ContainsAny(arg, "@=/") {
		return "(not shown, it may hold a password)"
	}
	if len(arg) > 64 {
		arg = arg[:64] + "…"
	}
	return fmt.Sprintf("%q", arg)
}

func find(name string) (command, bool) {
	for _, c := range commands() {
		if c.name == name {
			return c, true
		}
	}
	return command{}, false
}

// suggestion names the one that was probably meant.
func suggestion(name string, names []string) string {
	best, least := "", 3
	for _, n := range names {
		if d := distance(name, n); d < least || (len(strings.Trim(name, "-")) >= 3 && strings.HasPrefix(n, name)) {
			best, least = n, d
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf(", did you mean %q?", best)
}

// distance is how many characters must change to make one word the other.
func distance(a, b string) int {
	if len(a) > 32 {
		return len(a)
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
