//go:build linux

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// TestImage builds the image as the Dockerfile says and runs it as it is meant to run:
// as a user who is a number, with a root that cannot be written.
func TestImage(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the program once more")
	}
	required(t, "docker")
	command := func(name string, args ...string) (string, error) {
		cmd := exec.CommandContext(context.WithoutCancel(t.Context()), name, args...)
		cmd.Dir = filepath.Join("..", "..")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=") // without -race, which needs cgo
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	must := func(name string, args ...string) string {
		t.Helper()
		out, err := command(name, args...)
		if err != nil {
			t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
		}
		return strings.TrimSpace(out)
	}
	if out, err := command("docker", "info"); err != nil {
		if strings.Contains(","+os.Getenv("OUTBOX_REQUIRE")+",", ",docker,") {
			t.Fatalf("docker does not answer:\n%s", out)
		}
		t.Skip("docker does not answer")
	}
	image, platform := t.TempDir(), "linux/"+runtime.GOARCH
	must("go", "build", "-tags", "timetzdata", "-o", filepath.Join(image, platform, "outbox"), "./cmd/outbox")
	must("cp", "LICENSE", image)
	tag := fmt.Sprintf("outbox-test-%d", os.Getpid())
	must("docker", "build", "--build-arg", "TARGETPLATFORM="+platform, "--file", "Dockerfile", "--tag", tag, image)
	t.Cleanup(func() { must("docker", "rmi", "--force", tag) })

	// The volume of an embedded database, which the user of the image may write.
	data := t.TempDir()
	if err := os.Chown(data, 65532, 65532); err != nil {
		t.Skipf("only root can give a folder away: %v", err)
	}
	given := []string{
		"run", "--rm", "--read-only", "--cap-drop=ALL", "--security-opt=no-new-privileges", "--network=none",
		"--volume", data + ":/data", "--env", "OUTBOX_DSN=sqlite:/data/o.db", "--label", fmt.Sprint("outbox.containers.pid=", os.Getpid()),
	}
	docker := func(args ...string) string {
		t.Helper()
		return must("docker", append(append(slices.Clip(given), tag), args...)...)
	}
	if out := docker(); !strings.Contains(out, "Exit codes:") {
		t.Errorf("without a command it says %s", out)
	}
	if out := docker("migrate"); !strings.Contains(out, "schema version") {
		t.Errorf("migrate says %s", out)
	}
	s := newShell(t)
	s.env["OUTBOX_DSN"] = "sqlite:" + filepath.Join(data, "o.db")
	s.ok(order, "enqueue")
	if out := docker("relay", "--publish", "stdout:", "--until-empty"); !strings.Contains(out, `"type":"order.placed"`) {
		t.Errorf("the relay published %s", out)
	}
	if user := must("docker", "inspect", "--format", "{{.Config.User}}", tag); user != "65532:65532" {
		t.Errorf("the user is %s", user)
	}

	// A signal reaches the process and stops the relay in order.
	name := tag + "-relay"
	relay := append([]string{"run", "--detach", "--name", name}, given[2:]...)
	must("docker", append(relay, tag, "relay", "--publish", "discard:")...)
	t.Cleanup(func() { _, _ = command("docker", "rm", "--force", name) })
	for !strings.Contains(must("docker", "logs", name), "relay started") {
		if must("docker", "inspect", "--format", "{{.State.Running}}", name) != "true" {
			t.Fatal(must("docker", "logs", name))
		}
	}
	must("docker", "stop", "--time", "30", name)
	if log := must("docker", "logs", name); !strings.Contains(log, "relay stopped") {
		t.Errorf("stopped without order:\n%s", log)
	}
	if code := must("docker", "inspect", "--format", "{{.State.ExitCode}}", name); code != "0" {
		t.Errorf("exit code %s", code)
	}
}
