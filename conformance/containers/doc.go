// Package containers gives tests the database servers they run against: servers
// that exist already and are named by a DSN in the environment, and servers that
// it starts in containers and can stop, kill and pause.
//
//	func TestMain(m *testing.M) { os.Exit(containers.Main(m)) }
//
//	func TestConformance(t *testing.T) {
//		for _, server := range containers.Servers(t, "postgres") {
//			t.Run(server.Version, func(t *testing.T) { ... server.DSN ... })
//		}
//	}
//
// # Environment
//
// Names hold the engine in upper case, here POSTGRES:
//
//   - OUTBOX_TEST_POSTGRES_DSN: DSNs of existing servers, separated by spaces.
//   - OUTBOX_IMAGE_POSTGRES_18: the image to run instead of the official one.
//   - OUTBOX_TEST_CONTAINERS: "off" starts no container; "postgres:18,mysql" those of
//     these engines and versions alone. Without it one is started for each version.
//   - OUTBOX_REQUIRE: what must not be skipped, separated by commas: an engine, as
//     in "postgres", or an engine and a version, as in "postgres:15". A version
//     matches every server whose own version begins with it. Programs that tests
//     start, as in "pgbouncer" or "docker", can be named as well.
//
// # Clean-up
//
// [Main] removes the containers after the last test. A test process that dies
// before that leaves them to testcontainers' reaper, or, where that is disabled
// (TESTCONTAINERS_RYUK_DISABLED=true), to the next test process on the same host:
// each container is labelled with the process it belongs to, and those whose process
// is gone are removed before a new one is started.
package containers
