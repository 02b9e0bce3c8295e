package bench_test

import (
	"os"
	"testing"

	"github.com/outbox-suite/outbox/conformance/containers"
)

func TestMain(m *testing.M) { os.Exit(containers.Main(m)) }
