package main

import (
	"encoding/pem"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/outbox-suite/outbox/publish/webhook"
)

const (
	webhookSecret    = "whsec_aHVudGVyMiBhbmQgc29tZSBtb3JlIGJ5dGVz"
	webhookSecretOld = "whsec_aHVudGVyMiBhbmQgc29tZSBieXRlcyBtb3Jl"
)

func TestRelayToWebhook(t *testing.T) {
	write := func(text string) string {
		path := filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	var accepted atomic.Int64
	endpoint := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		m, err := webhook.Decode(r.Header, body)
		switch {
		case webhook.Verify(r.Header, body, time.Minute, webhookSecretOld) != nil,
			r.URL.Query().Get("token") != "t", r.URL.Fragment != "", r.Header.Get("Authorization") != "Bearer hunter2":
			w.WriteHeader(http.StatusUnauthorized)
		case err != nil || m.Topic != "orders" || (r.Header.Get("Ce-Source") == "/shop") != (r.URL.Path == "/binary"):
			w.WriteHeader(http.StatusBadRequest)
		default:
			accepted.Add(1)
		}
	}))
	defer endpoint.Close()
	ca := write(string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: endpoint.Certificate().Raw})))
	s := migrated(t)
	s.enqueueKeys("orders", 3, "a", "b")
	s.env["OUTBOX_WEBHOOK_SECRETS"], s.env["OUTBOX_WEBHOOK_AUTHORIZATION"] = webhookSecret+" "+webhookSecretOld, "Bearer hunter2"
	s.ok("", "relay", "--publish", endpoint.URL+"/binary?token=t#mode=binary&allow=10.0.0.0/8,127.0.0.1&ca="+ca, "--until-empty", "--source", "/shop")

	s.env["OUTBOX_WEBHOOK_SECRETS"], s.env["OUTBOX_WEBHOOK_AUTHORIZATION"] = webhookSecret, "wrong"
	s.enqueueKeys("orders", 1, "a")
	s.ok("", "relay", "--publish", endpoint.URL+"/structured?token=t#allow=127.0.0.0/8&ca="+ca+
		"&secrets_file="+write(webhookSecretOld+"\n")+"&authorization_file="+write("Bearer hunter2\n"), "--until-empty", "--source", "/shop")
	if n := accepted.Load(); n != 7 || s.status("dead") != 0 {
		t.Errorf("%d accepted and %d dead, want 7 and none", n, s.status("dead"))
	}

	// What refuses a request is said, without what it gets in by.
	s.enqueueKeys("orders", 1, "a")
	r := s.run(nil, "relay", "--publish", endpoint.URL+"/?token=t#allow=127.0.0.0/8&ca="+ca, "--until-empty")
	if r.code != exitOK || s.status("dead") != 1 || !strings.Contains(r.err, "401 Unauthorized: correct the authorization") || strings.Contains(r.err, "token") {
		t.Errorf("%d dead: %v", s.status("dead"), r)
	}
}

func TestWebhookOptionsAreRefused(t *testing.T) {
	s := migrated(t)
	s.env["OUTBOX_WEBHOOK_SECRETS"] = ""
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for url, want := range map[string]string{
		"https://":                            "write it as https://",
		"https://h/#hunter=2":                 `option "hunter" is unknown: use allow, authorization_file`,
		"https://h/#hunter2":                  "is unknown",
		"https://h/#mode=hunter2":             "use structured or binary",
		"https://h/#mode=":                    `option "mode" is empty`,
		"https://h/#mode=binary&mode=hunter2": `option "mode" is there twice`,
		"https://h/#%zz=hunter2":              "options cannot be read",
		"https://h/#allow=hunter2":            "give addresses such as",
		"https://h/#allow=10.0.0.0/8,":        "give addresses such as",
		"https://h/#ca=/no/ca":                "/no/ca",
		"https://h/#cert=a":                   "cert and key go together",
		"https://h/#ca=" + os.Args[0]:         "no certificates",
		"http://h/#ca=" + caFile(t):           "write https://",
		"https://h/#secrets_file=/no/f":       "option secrets_file: open /no/f",
		"https://h/#secrets_file=" + empty:    "the file is empty",
		"https://h/#authorization_file=/no/f": "option authorization_file: open /no/f",
		"http://127.0.0.1/hunter2":            "127.0.0.1 is not of the public internet",
		"http://169.254.169.254/hunter2":      "name the address in allow",
		"http://10.0.0.1/#allow=10.0.0.2":     "name the address in allow",
	} {
		if text := s.fails(exitUsage, "", []string{"relay", "--publish", url}, want); strings.Contains(text, "hunter2") && !strings.Contains(want, "unknown") {
			t.Errorf("%s: the error shows a value: %s", url, text)
		}
	}
	s.env["OUTBOX_WEBHOOK_SECRETS"] = "hunter2"
	if text := s.fails(exitUsage, "", []string{"relay", "--publish", "https://h/"}, "secret 1 cannot be used"); strings.Contains(text, "hunter2") {
		t.Errorf("the error shows a secret: %s", text)
	}
	s.env["OUTBOX_WEBHOOK_SECRETS"], s.env["OUTBOX_WEBHOOK_AUTHORIZATION"] = "", "hunter2\nX: y"
	if text := s.fails(exitUsage, "", []string{"relay", "--publish", "https://h/"}, "line break"); strings.Contains(text, "hunter2") {
		t.Errorf("the error shows a secret: %s", text)
	}
}
