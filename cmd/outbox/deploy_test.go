package main

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/outbox-suite/outbox/relay"
)

// The parts of Kubernetes' API that the manifests use, and no others: a field with a
// wrong name is an error.
type (
	manifest struct {
		APIVersion string `yaml:"apiVersion"`
		Kind       string
		Metadata   metadata
		Type       string
		StringData map[string]string `yaml:"stringData"`
		Spec       spec
	}
	metadata struct {
		Name   string
		Labels map[string]string
	}
	spec struct {
		// Of a Deployment.
		Replicas int
		Selector labelSelector
		Strategy struct {
			Type          string
			RollingUpdate struct {
				MaxUnavailable int `yaml:"maxUnavailable"`
				MaxSurge       int `yaml:"maxSurge"`
			} `yaml:"rollingUpdate"`
		}
		Template struct {
			Metadata metadata
			Spec     pod
		}
		// Of a Job.
		BackoffLimit            int `yaml:"backoffLimit"`
		ActiveDeadlineSeconds   int `yaml:"activeDeadlineSeconds"`
		TTLSecondsAfterFinished int `yaml:"ttlSecondsAfterFinished"`
		// Of a PodDisruptionBudget.
		MaxUnavailable int `yaml:"maxUnavailable"`
	}
	labelSelector struct {
		MatchLabels map[string]string `yaml:"matchLabels"`
	}
	pod struct {
		RestartPolicy                 string `yaml:"restartPolicy"`
		TerminationGracePeriodSeconds int    `yaml:"terminationGracePeriodSeconds"`
		AutomountServiceAccountToken  *bool  `yaml:"automountServiceAccountToken"`
		EnableServiceLinks            *bool  `yaml:"enableServiceLinks"`
		SecurityContext               struct {
			RunAsNonRoot   bool `yaml:"runAsNonRoot"`
			RunAsUser      int  `yaml:"runAsUser"`
			RunAsGroup     int  `yaml:"runAsGroup"`
			SeccompProfile struct {
				Type string
			} `yaml:"seccompProfile"`
		} `yaml:"securityContext"`
		TopologySpreadConstraints []struct {
			MaxSkew           int           `yaml:"maxSkew"`
			TopologyKey       string        `yaml:"topologyKey"`
			WhenUnsatisfiable string        `yaml:"whenUnsatisfiable"`
			LabelSelector     labelSelector `yaml:"labelSelector"`
		} `yaml:"topologySpreadConstraints"`
		Containers []container
	}
	container struct {
		Name, Image string
		Args        []string
		EnvFrom     []struct {
			SecretRef struct{ Name string } `yaml:"secretRef"`
		} `yaml:"envFrom"`
		Ports []struct {
			Name          string
			ContainerPort int `yaml:"containerPort"`
		}
		ReadinessProbe  probe `yaml:"readinessProbe"`
		LivenessProbe   probe `yaml:"livenessProbe"`
		Resources       struct{ Requests, Limits map[string]string }
		SecurityContext struct {
			AllowPrivilegeEscalation *bool `yaml:"allowPrivilegeEscalation"`
			ReadOnlyRootFilesystem   bool  `yaml:"readOnlyRootFilesystem"`
			Capabilities             struct{ Drop []string }
		} `yaml:"securityContext"`
	}
	probe struct {
		HTTPGet struct {
			Path, Port string
		} `yaml:"httpGet"`
		InitialDelaySeconds int `yaml:"initialDelaySeconds"`
		PeriodSeconds       int `yaml:"periodSeconds"`
		TimeoutSeconds      int `yaml:"timeoutSeconds"`
		FailureThreshold    int `yaml:"failureThreshold"`
	}
)

// decode reads YAML documents and refuses fields that are unknown or there twice.
func decode[T any](t *testing.T, text string) (all []T) {
	t.Helper()
	d := yaml.NewDecoder(strings.NewReader(text))
	d.KnownFields(true)
	for {
		var one T
		switch err := d.Decode(&one); {
		case errors.Is(err, io.EOF):
			return all
		case err != nil:
			t.Fatal(err)
		}
		all = append(all, one)
	}
}

func deployed(t *testing.T, path ...string) string {
	t.Helper()
	return readFile(t, filepath.Join(append([]string{"..", "..", "deploy"}, path...)...))
}

// kubernetes returns the manifests of a file by kind and name.
func kubernetes(t *testing.T, file string) map[string]manifest {
	t.Helper()
	all := map[string]manifest{}
	for _, m := range decode[manifest](t, deployed(t, "kubernetes", file)) {
		all[m.Kind+"/"+m.Metadata.Name] = m
	}
	return all
}

// parses tells whether a command takes arguments, without running it.
func parses(t *testing.T, args []string) {
	t.Helper()
	c, ok := find(args[0])
	if !ok {
		t.Fatalf("there is no command %s", args[0])
	}
	fs, _ := c.flags()
	if err := fs.Parse(args[1:]); err != nil || fs.NArg() > 0 {
		t.Errorf("outbox %s: %v, %q", strings.Join(args, " "), err, fs.Args())
	}
}

// after is the argument behind a flag.
func after(t *testing.T, args []string, name string) string {
	t.Helper()
	i := slices.Index(args, name)
	if i < 0 || i+1 == len(args) {
		t.Fatalf("%s is not in %q", name, args)
	}
	return args[i+1]
}

func TestKubernetes(t *testing.T) {
	secrets := kubernetes(t, "secrets.example.yaml")
	known := readFile(t, filepath.Join("..", "..", "docs", "cli.md"))
	for name, s := range secrets {
		if s.APIVersion != "v1" || s.Type != "Opaque" {
			t.Errorf("%s is %s of type %s", name, s.APIVersion, s.Type)
		}
		for variable := range s.StringData {
			if !strings.Contains(known, "`"+variable+"`") {
				t.Errorf("%s has %s, which docs/cli.md does not know", name, variable)
			}
		}
		if _, err := engineOf(s.StringData["OUTBOX_DSN"]); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	restricted := func(t *testing.T, secret string, p pod) container {
		t.Helper()
		if len(p.Containers) != 1 {
			t.Fatalf("%d containers", len(p.Containers))
		}
		c := p.Containers[0]
		no := func(b *bool) bool { return b != nil && !*b }
		if !p.SecurityContext.RunAsNonRoot || p.SecurityContext.RunAsUser == 0 || p.SecurityContext.RunAsGroup == 0 ||
			p.SecurityContext.SeccompProfile.Type != "RuntimeDefault" || !no(p.AutomountServiceAccountToken) || !no(p.EnableServiceLinks) ||
			!no(c.SecurityContext.AllowPrivilegeEscalation) || !c.SecurityContext.ReadOnlyRootFilesystem ||
			!slices.Equal(c.SecurityContext.Capabilities.Drop, []string{"ALL"}) {
			t.Errorf("not restricted: %+v", p)
		}
		if c.Resources.Requests["memory"] == "" || c.Resources.Limits["memory"] == "" {
			t.Errorf("resources are %v", c.Resources)
		}
		if len(c.EnvFrom) != 1 || c.EnvFrom[0].SecretRef.Name != secret || secrets["Secret/"+secret].StringData["OUTBOX_DSN"] == "" {
			t.Errorf("the environment is from %v", c.EnvFrom)
		}
		parses(t, c.Args)
		return c
	}
	t.Run("migrate", func(t *testing.T) {
		job := kubernetes(t, "migrate.yaml")["Job/outbox-migrate"]
		c := restricted(t, "outbox-migrate", job.Spec.Template.Spec)
		if job.APIVersion != "batch/v1" || job.Spec.Template.Spec.RestartPolicy != "Never" || !slices.Equal(c.Args, []string{"migrate"}) {
			t.Errorf("%+v", job)
		}
	})
	t.Run("relay", func(t *testing.T) {
		all := kubernetes(t, "relay.yaml")
		d, budget := all["Deployment/outbox-relay"], all["PodDisruptionBudget/outbox-relay"]
		c := restricted(t, "outbox-relay", d.Spec.Template.Spec)
		if d.APIVersion != "apps/v1" || budget.APIVersion != "policy/v1" || d.Spec.Replicas < 2 || budget.Spec.MaxUnavailable != 1 {
			t.Errorf("%+v\n%+v", d, budget)
		}
		labels := d.Spec.Template.Metadata.Labels
		for _, s := range []labelSelector{d.Spec.Selector, budget.Spec.Selector, d.Spec.Template.Spec.TopologySpreadConstraints[0].LabelSelector} {
			if len(s.MatchLabels) != 1 || labels["app.kubernetes.io/name"] != s.MatchLabels["app.kubernetes.io/name"] {
				t.Errorf("selects %v of %v", s.MatchLabels, labels)
			}
		}
		if got := after(t, c.Args, "--http"); got != ":9464" || len(c.Ports) != 1 || c.Ports[0].ContainerPort != 9464 {
			t.Errorf("listens on %s, and the port is %v", got, c.Ports)
		}
		for path, p := range map[string]probe{"/readyz": c.ReadinessProbe, "/healthz": c.LivenessProbe} {
			if p.HTTPGet.Path != path || p.HTTPGet.Port != c.Ports[0].Name || p.PeriodSeconds == 0 {
				t.Errorf("%s is asked by %+v", path, p)
			}
		}
		// Killed before it has stopped in order, it leaves lanes behind.
		if least := 2 * defaultGrace(t); time.Duration(d.Spec.Template.Spec.TerminationGracePeriodSeconds)*time.Second < least {
			t.Errorf("killed before %v", least)
		}
		if _, err := openPublisher(&process{getenv: func(string) string { return "" }}, secrets["Secret/outbox-relay"].StringData["OUTBOX_PUBLISH"], "/", &relay.Config{}); err != nil {
			t.Error(err)
		}
	})
	t.Run("kustomization", func(t *testing.T) {
		k := decode[struct {
			APIVersion string `yaml:"apiVersion"`
			Kind       string
			Resources  []string
			Images     []struct {
				Name   string
				NewTag string `yaml:"newTag"`
			}
		}](t, deployed(t, "kubernetes", "kustomization.yaml"))[0]
		for _, file := range k.Resources {
			for name, m := range kubernetes(t, file) {
				for _, c := range m.Spec.Template.Spec.Containers {
					if image, _, _ := strings.Cut(c.Image, ":"); image != k.Images[0].Name {
						t.Errorf("%s has the image %s", name, image)
					}
				}
			}
		}
		if len(k.Resources) != 2 {
			t.Errorf("resources %q", k.Resources)
		}
	})
}

// defaultGrace is what the help says of --grace.
func defaultGrace(t *testing.T) time.Duration {
	t.Helper()
	fs, _ := relayCommand.flags()
	m := regexp.MustCompile(`\(default (.+)\)`).FindStringSubmatch(fs.Lookup("grace").Usage)
	if m == nil {
		t.Fatal("the help of --grace names no default")
	}
	d, err := time.ParseDuration(m[1])
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestSystemd(t *testing.T) {
	unit := deployed(t, "systemd", "outbox-relay.service")
	value := func(name string) string {
		t.Helper()
		m := regexp.MustCompile(`(?m)^` + name + `=(.*)$`).FindStringSubmatch(unit)
		if m == nil {
			t.Fatalf("there is no %s", name)
		}
		return m[1]
	}
	command := strings.Fields(value("ExecStart"))
	parses(t, command[1:])
	if got := after(t, command, "--http"); !strings.HasPrefix(got, "127.0.0.1:") {
		t.Errorf("listens on %s", got)
	}
	if stop, err := time.ParseDuration(value("TimeoutStopSec")); err != nil || stop < 2*defaultGrace(t) {
		t.Errorf("killed after %v, %v", stop, err)
	}
	required(t, "systemd-analyze")
	path := filepath.Join(t.TempDir(), "outbox-relay.service")
	unit = strings.Replace(unit, command[0], os.Args[0], 1) // which is there
	if err := os.WriteFile(path, []byte(unit), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"verify", "--man=no", path},
		// 0 is perfect, 10 is open.
		{"security", "--offline=yes", "--threshold=20", "--no-pager", path},
	} {
		out, err := exec.CommandContext(t.Context(), "systemd-analyze", args...).CombinedOutput()
		if err != nil || args[0] == "verify" && len(out) > 0 {
			t.Errorf("systemd-analyze %s: %v\n%s", args[0], err, out)
		}
	}
}
