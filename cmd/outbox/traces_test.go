package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// collected is a collector of traces, and what it was sent.
func collected(t *testing.T) (url string, spans func() []*tracepb.Span) {
	t.Helper()
	var mu sync.Mutex
	var all []*tracepb.Span
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		var sent collector.ExportTraceServiceRequest
		if err == nil {
			err = proto.Unmarshal(body, &sent)
		}
		if err != nil || r.URL.Path != "/v1/traces" {
			t.Errorf("%s: %v", r.URL.Path, err)
		}
		mu.Lock()
		defer mu.Unlock()
		for _, rs := range sent.GetResourceSpans() {
			for _, attribute := range rs.GetResource().GetAttributes() {
				if attribute.GetKey() == "service.name" && attribute.GetValue().GetStringValue() != "shop-relay" {
					t.Errorf("the service is %s", attribute.GetValue())
				}
			}
			for _, scope := range rs.GetScopeSpans() {
				all = append(all, scope.GetSpans()...)
			}
		}
	}))
	t.Cleanup(s.Close)
	return s.URL, func() []*tracepb.Span {
		mu.Lock()
		defer mu.Unlock()
		return all
	}
}

// set puts a variable where the command reads it, and where OpenTelemetry does.
func (s *shell) set(name, value string) {
	s.env[name] = value
	s.t.Setenv(name, value)
}

// TestRelaySendsTraces has the relay's span in the producer's trace, with and without
// --http.
func TestRelaySendsTraces(t *testing.T) {
	for _, extra := range [][]string{nil, {"--http", "127.0.0.1:0"}} {
		t.Run(strings.Join(extra, " "), func(t *testing.T) {
			s := migrated(t)
			url, spans := collected(t)
			s.set("OTEL_EXPORTER_OTLP_ENDPOINT", url)
			s.set("OTEL_SERVICE_NAME", "shop-relay")
			s.ok(`{"topic":"orders","key":"a","type":"order.changed","headers":{"traceparent":"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}}`, "enqueue")
			s.deliver(extra...)
			var child bool
			for _, span := range spans() {
				if string(span.GetTraceId()) == "\x0a\xf7\x65\x19\x16\xcd\x43\xdd\x84\x48\xeb\x21\x1c\x80\x31\x9c" &&
					string(span.GetParentSpanId()) == "\xb7\xad\x6b\x71\x69\x20\x33\x31" {
					child = true
				}
			}
			if !child {
				t.Errorf("no span is in the producer's trace: %v", spans())
			}
		})
	}
}

func TestRelayTraceOptions(t *testing.T) {
	url, spans := collected(t)
	s := migrated(t)
	s.set("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", url)
	relay := []string{"relay", "--publish", "stdout:", "--until-empty"}
	for name, value := range map[string]string{"OTEL_TRACES_EXPORTER": "zipkin", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "grpc"} {
		s.env[name] = value
		s.fails(exitUsage, "", relay, name+" is \""+value+"\": use ")
		delete(s.env, name)
	}
	s.enqueueKeys("orders", 1, "a")
	for name, value := range map[string]string{"OTEL_TRACES_EXPORTER": "none", "OTEL_SDK_DISABLED": "true"} {
		s.env[name] = value
		s.ok("", relay...)
		delete(s.env, name)
	}
	if n := len(spans()); n > 0 {
		t.Errorf("%d spans were sent", n)
	}
}
