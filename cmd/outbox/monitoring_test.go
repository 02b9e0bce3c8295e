package main

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"go.yaml.in/yaml/v3"

	"github.com/outbox-suite/outbox"
	"github.com/outbox-suite/outbox/inbox"
	"github.com/outbox-suite/outbox/outboxtest"
	"github.com/outbox-suite/outbox/relay"
	"github.com/outbox-suite/outbox/sqlite"
	"github.com/outbox-suite/outbox/telemetry"
)

var deploy = filepath.Join("..", "..", "deploy")

// alert is a rule of deploy/prometheus/rules.yml.
type alert struct {
	Alert, Expr string
	Annotations map[string]string
}

func alerts(t *testing.T) []alert {
	t.Helper()
	var file struct{ Groups []struct{ Rules []alert } }
	if err := yaml.Unmarshal([]byte(readFile(t, filepath.Join(deploy, "prometheus", "rules.yml"))), &file); err != nil {
		t.Fatal(err)
	}
	var all []alert
	for _, g := range file.Groups {
		all = append(all, g.Rules...)
	}
	if len(all) == 0 {
		t.Fatal("there are no alerts")
	}
	return all
}

// queries are the expressions of the dashboard.
func queries(t *testing.T) []string {
	t.Helper()
	var file struct {
		Panels []struct{ Targets []struct{ Expr string } }
	}
	if err := json.Unmarshal([]byte(readFile(t, filepath.Join(deploy, "grafana", "outbox.json"))), &file); err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, p := range file.Panels {
		for _, target := range p.Targets {
			all = append(all, target.Expr)
		}
	}
	if len(all) == 0 {
		t.Fatal("there are no queries")
	}
	return all
}

// TestAlertsHaveRunbook: who is woken finds the section that the alert links to.
func TestAlertsHaveRunbook(t *testing.T) {
	var sections []string
	for _, m := range regexp.MustCompile(`(?m)^## (\w+)$`).FindAllStringSubmatch(readFile(t, filepath.Join("..", "..", "docs", "runbook.md")), -1) {
		sections = append(sections, m[1])
	}
	var names []string
	for _, a := range alerts(t) {
		names = append(names, a.Alert)
		if !slices.Contains(sections, a.Alert) {
			t.Errorf("docs/runbook.md lacks the section %s", a.Alert)
		}
		if want := "https://github.com/outbox-suite/outbox/blob/main/docs/runbook.md#" + strings.ToLower(a.Alert); a.Annotations["runbook_url"] != want {
			t.Errorf("%s: its runbook is at %q, want %q", a.Alert, a.Annotations["runbook_url"], want)
		}
		if a.Annotations["summary"] == "" || a.Annotations["description"] == "" {
			t.Errorf("%s lacks a summary or a description", a.Alert)
		}
	}
	for _, s := range sections {
		if strings.HasPrefix(s, "Outbox") && !slices.Contains(names, s) {
			t.Errorf("docs/runbook.md has %s, which is no alert", s)
		}
	}
}

// TestRules has Prometheus' own tool check the alerts and run their tests.
func TestRules(t *testing.T) {
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		if slices.Contains(strings.Split(os.Getenv("OUTBOX_REQUIRE"), ","), "promtool") {
			t.Fatal("OUTBOX_REQUIRE asks for promtool, which is not installed")
		}
		t.Skip("promtool is not installed; it is in Debian's package prometheus")
	}
	for _, args := range [][]string{{"check", "rules", "rules.yml"}, {"test", "rules", "rules_test.yml"}} {
		cmd := exec.CommandContext(t.Context(), promtool, args...)
		cmd.Dir = filepath.Join(deploy, "prometheus")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}

var (
	metricName = regexp.MustCompile(`\b(?:outbox|messaging)_\w+`)
	selector   = regexp.MustCompile(`\b((?:outbox|messaging)_\w+)\{([^}]*)\}`)
	matcher    = regexp.MustCompile(`(\w+)\s*(?:=|!=|=~|!~)\s*"([^"]*)"`)
	grouping   = regexp.MustCompile(`\b(?:by|on|without)\s*\(([^)]*)\)`)
)

// TestMetricsOfRulesAndDashboard runs a relay under load, through everything that may
// happen to it, and looks whether what it exports is what the alerts and the dashboard
// ask for: every name, label and value of a label.
func TestMetricsOfRulesAndDashboard(t *testing.T) {
	exported := exportUnderLoad(t)
	// What Prometheus itself adds, or the dashboard fills in.
	added := []string{"job", "instance", "le"}

	expressions := queries(t)
	for _, a := range alerts(t) {
		expressions = append(expressions, a.Expr)
	}
	for _, expr := range expressions {
		grouped := grouping.FindAllStringSubmatch(expr, -1)
		bare := grouping.ReplaceAllString(expr, "")
		names := metricName.FindAllString(matcher.ReplaceAllString(bare, ""), -1)
		if len(names) == 0 {
			t.Errorf("%s: names no metric", expr)
		}
		of := map[string]bool{}
		for _, name := range names {
			series, ok := exported[name]
			if !ok {
				t.Errorf("%s: %s is not exported", expr, name)
				continue
			}
			for label := range series {
				of[label] = true
			}
		}
		for _, m := range selector.FindAllStringSubmatch(bare, -1) {
			for _, l := range matcher.FindAllStringSubmatch(m[2], -1) {
				values, ok := exported[m[1]][l[1]]
				if slices.Contains(added, l[1]) {
					continue
				}
				if !ok || l[2] != "" && !slices.Contains(values, l[2]) {
					t.Errorf("%s: %s has no %s=%q, only %q", expr, m[1], l[1], l[2], values)
				}
			}
		}
		for _, g := range grouped {
			for label := range strings.SplitSeq(g[1], ",") {
				if label = strings.TrimSpace(label); !of[label] && !slices.Contains(added, label) {
					t.Errorf("%s: none of its metrics has the label %s", expr, label)
				}
			}
		}
	}
}

// exportUnderLoad returns the values of every label of every metric that is exported
// while a relay delivers, fails, retries, gives up, and while a consumer sees a message
// twice.
func exportUnderLoad(t *testing.T) map[string]map[string][]string {
	t.Helper()
	ob := outboxtest.New(t, outbox.Config{})
	cfg := telemetry.Config{Topics: []string{"orders"}, System: "test", StatsEvery: time.Millisecond}
	s, err := newSite(ob, slog.New(slog.DiscardHandler), cfg, time.Minute, failsEvery, 4)
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	consume(t, ob, s)
	if err := new(tailGauges).export(s.provider); err != nil { // as relay --tail does
		t.Fatal(err)
	}

	var messages []outbox.Message
	for i := range 400 {
		key := string(rune('a' + i%20))
		topic := []string{"orders", "slow", "away", "poison"}[i%4]
		messages = append(messages, outbox.Message{Topic: topic, Key: topic + key, Type: "order.placed", Payload: []byte("{}")})
	}
	r, err := relay.New(ob, broker{}, relay.Config{
		Observer: s.observer, PublishTimeout: 50 * time.Millisecond, RetryMin: time.Millisecond, RetryMax: 2 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	enqueueMessages(t, ob, messages)
	// What a sound database does not do.
	s.observer.Observe(relay.Erred{Op: "poll", Err: errors.New("no")})
	want := []string{
		`outbox_relay_messages_total{outcome="published"} 100`,
		`destination="away"`, `topic="_OTHER"`, `error_type="unavailable"`, `error_type="timeout"`, `outcome="dead"`, `outcome="retry"`,
	}
	var text string
	for slices.ContainsFunc(want, func(w string) bool { return !strings.Contains(text, w) }) {
		if t.Context().Err() != nil {
			t.Fatalf("the relay does not export all of %q:\n%s", want, text)
		}
		code, body := ask(t, s, "/metrics")
		if code != http.StatusOK {
			t.Fatalf("/metrics is %d: %s", code, body)
		}
		text = body
		time.Sleep(10 * time.Millisecond)
	}
	stop()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader([]byte(text + "\n")))
	if err != nil {
		t.Fatal(err)
	}
	exported := map[string]map[string][]string{}
	for name, family := range families {
		labels := map[string][]string{}
		for _, m := range family.GetMetric() {
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = append(labels[l.GetName()], l.GetValue())
			}
		}
		exported[name] = labels
		if family.GetMetric()[0].GetHistogram() != nil {
			exported[name+"_bucket"] = labels
		}
	}
	return exported
}

// broker takes orders, and has something against every other topic.
type broker struct{}

func (broker) Destination(topic string) string { return topic }

func (broker) Publish(ctx context.Context, messages []relay.Message) []error {
	errs := make([]error, len(messages))
	for i, m := range messages {
		switch m.Topic {
		case "slow":
			<-ctx.Done()
			errs[i] = ctx.Err()
		case "away":
			errs[i] = relay.Unavailable(errors.New("no connection"))
		case "poison":
			errs[i] = relay.Permanent(errors.New("refused"))
		}
	}
	return errs
}

// consume has an inbox, with the site's metrics, see a message twice.
func consume(t *testing.T, ob *outbox.Outbox, s *site) {
	t.Helper()
	plain, err := inbox.New(sqlite.New(), inbox.Config{})
	if err != nil {
		t.Fatal(err)
	}
	in, err := telemetry.NewInbox(plain, telemetry.Config{MeterProvider: s.provider})
	if err != nil {
		t.Fatal(err)
	}
	err = ob.InTx(t.Context(), nil, func(ctx context.Context, tx *sql.Tx) error {
		_, err := in.Record(ctx, tx, "billing", "m1")
		_, again := in.Record(ctx, tx, "billing", "m1")
		return errors.Join(err, again)
	})
	if err != nil {
		t.Fatal(err)
	}
}

func enqueueMessages(t *testing.T, ob *outbox.Outbox, messages []outbox.Message) {
	t.Helper()
	err := ob.InTx(t.Context(), nil, func(ctx context.Context, tx *sql.Tx) error {
		_, err := ob.Enqueue(ctx, tx, messages...)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
