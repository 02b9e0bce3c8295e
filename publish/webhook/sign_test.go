package webhook_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/outbox-suite/outbox/publish/webhook"
)

// The example that the libraries of Standard Webhooks are tried with.
func TestVerifyStandardExample(t *testing.T) {
	h := http.Header{}
	h.Set("webhook-id", "msg_p5jXN8AQM9LWM0D4loKWxJek")
	h.Set("webhook-timestamp", "1614265330")
	h.Set("webhook-signature", "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=")
	const secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	body := []byte(`{"test": 2432232314}`)
	const century = 100 * 365 * 24 * time.Hour
	if err := webhook.Verify(h, body, century, secret); err != nil {
		t.Error(err)
	}
	if err := webhook.Verify(h, body, 0, secret); !errors.Is(err, webhook.ErrNotVerified) {
		t.Errorf("a request of years ago: %v", err)
	}
}

// sent is a request as it arrives.
func sent(t *testing.T, cfg webhook.Config) (http.Header, []byte) {
	t.Helper()
	var header http.Header
	var body []byte
	s := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		header = r.Header.Clone()
		body, _ = io.ReadAll(r.Body)
	})
	if err := first(open(t, s.URL, cfg).Publish(t.Context(), messages(1))); err != nil {
		t.Fatal(err)
	}
	return header, body
}

func TestSignature(t *testing.T) {
	for _, mode := range []webhook.Mode{webhook.Structured, webhook.Binary} {
		header, body := sent(t, webhook.Config{Mode: mode, Secrets: []string{secretNew, secretOld}})
		for _, secrets := range [][]string{{secretOld}, {secretNew}, {secretOld, secretNew}, {"whsec_" + strings.Repeat("A", 32), secretNew}} {
			if err := webhook.Verify(header, body, 0, secrets...); err != nil {
				t.Errorf("mode %d, secrets %v: %v", mode, secrets, err)
			}
		}
		refused := func(what string, change func(h http.Header), body []byte, tolerance time.Duration, secret string) {
			t.Helper()
			h := header.Clone()
			change(h)
			if err := webhook.Verify(h, body, tolerance, secret); !errors.Is(err, webhook.ErrNotVerified) {
				t.Errorf("mode %d: %s: %v, want it refused", mode, what, err)
			}
		}
		same := func(http.Header) {}
		refused("another body", same, append([]byte(" "), body...), 0, secretOld)
		refused("no body", same, nil, 0, secretOld)
		refused("another secret", same, body, 0, "whsec_"+strings.Repeat("A", 32))
		refused("another id", func(h http.Header) { h.Set("webhook-id", "x") }, body, 0, secretOld)
		refused("moved dot", func(h http.Header) {
			h.Set("webhook-id", h.Get("webhook-id")+"."+h.Get("webhook-timestamp"))
		}, body, 0, secretOld)
		for _, name := range []string{"webhook-id", "webhook-timestamp", "webhook-signature"} {
			refused("no "+name, func(h http.Header) { h.Del(name) }, body, 0, secretOld)
		}
		for _, stamp := range []string{"now", "", "1e9", "99999999999999999999", "-1", "9223372036854775807"} {
			refused("timestamp "+stamp, func(h http.Header) { h.Set("webhook-timestamp", stamp) }, body, 0, secretOld)
		}
		for _, signature := range []string{"v1", "v1,", "v1,%", strings.ReplaceAll(header.Get("webhook-signature"), "v1,", "v1a,"), strings.TrimPrefix(strings.Fields(header.Get("webhook-signature"))[1], "v1,")} {
			refused("signature "+signature, func(h http.Header) { h.Set("webhook-signature", signature) }, body, 0, secretOld)
		}
		refused("too strict", same, body, -time.Hour, secretOld)
	}
	header, body := sent(t, webhook.Config{})
	if header.Get("webhook-signature") != "" || header.Get("webhook-id") == "" || header.Get("webhook-timestamp") == "" {
		t.Errorf("without secrets the header is %v", header)
	}
	if err := webhook.Verify(header, body, 0, secretOld); !errors.Is(err, webhook.ErrNotVerified) {
		t.Errorf("without a signature: %v", err)
	}
}

// A timestamp is refused on either side of the tolerance.
func TestTolerance(t *testing.T) {
	for age, ok := range map[time.Duration]bool{
		-time.Hour: false, -6 * time.Minute: false, -4 * time.Minute: true, 0: true, 4 * time.Minute: true, 6 * time.Minute: false, time.Hour: false,
	} {
		h := http.Header{}
		h.Set("webhook-id", "id")
		h.Set("webhook-timestamp", strconv.FormatInt(time.Now().Add(-age).Unix(), 10))
		h.Set("webhook-signature", "v1,"+signed(t, secretOld, "id."+h.Get("webhook-timestamp")+".body"))
		if err := webhook.Verify(h, []byte("body"), 0, secretOld); (err == nil) != ok {
			t.Errorf("age %v: %v, want it taken: %v", age, err, ok)
		}
	}
}

func TestSecretsAreRefused(t *testing.T) {
	const part = "aHVudGVyMg" // what no error may show
	for _, secret := range []string{
		"", part, "whsec_", "whsec_" + part + "==", "whsec_%" + part, "WHSEC_" + strings.Repeat(part, 4),
		"whsec_" + strings.Repeat("A", 28), "whsec_" + strings.Repeat("A", 88),
		strings.TrimPrefix(secretOld, "whsec_"), secretOld + " ",
	} {
		_, err := webhook.New("http://host", webhook.Config{Secrets: []string{secretOld, secret}})
		if err == nil || !strings.Contains(err.Error(), "secret 2 cannot be used") || strings.Contains(err.Error(), part) {
			t.Errorf("%q: %v", secret, err)
		}
		if err := webhook.Verify(http.Header{}, nil, 0, secret); err == nil || errors.Is(err, webhook.ErrNotVerified) {
			t.Errorf("%q: %v, want an error of the secret", secret, err)
		}
	}
	if err := webhook.Verify(http.Header{}, nil, 0); err == nil || errors.Is(err, webhook.ErrNotVerified) {
		t.Errorf("no secret: %v, want an error of it", err)
	}
}

// A retry has the id of the attempt before, a replay has not.
func TestWebhookID(t *testing.T) {
	var ids []string
	s := serve(t, func(_ http.ResponseWriter, r *http.Request) { ids = append(ids, r.Header.Get("webhook-id")) })
	p := open(t, s.URL, webhook.Config{})
	ms := messages(1)
	for _, replay := range []int{0, 0, 1, 2} {
		ms[0].Replay = replay
		ms[0].Attempt++
		if err := first(p.Publish(t.Context(), ms)); err != nil {
			t.Fatal(err)
		}
	}
	id := ms[0].ID.String()
	if got, want := strings.Join(ids, " "), id+" "+id+" "+id+"-replay-1 "+id+"-replay-2"; got != want {
		t.Errorf("ids %s, want %s", got, want)
	}
}

// signed is a signature made without the package.
func signed(t *testing.T, secret, content string) string {
	t.Helper()
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, "whsec_"))
	if err != nil {
		t.Fatal(err)
	}
	h := hmac.New(sha256.New, key)
	h.Write([]byte(content))
	return base64.StdEncoding.EncodeToString(h.Sum(nil))
}
