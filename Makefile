# What one does every day. CI runs .ci/run, which needs nothing but Go.
.DEFAULT_GOAL := help
.PHONY: help test engine conformance lint fuzz bench docs verify

TOOL := go tool -modfile=.ci/tools/go.mod

help: ## list the targets
	@sed -nE 's/^([a-z]+):.*## (.*)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 14

test: export OUTBOX_TEST_CONTAINERS = off
test: ## what runs without a database server, in under a minute
	OUTBOX_TEST_POSTGRES_DSN= go test ./...

engine: ## the tests of one engine, which must be there: make engine E=postgres
	@test -n "$(E)" || { echo 'usage: make engine E=postgres'; exit 2; }
	OUTBOX_REQUIRE=$(E) go test -race -count=1 ./$(E)/...

conformance: ## the conformance suite at full size on every engine that is there
	OUTBOX_FULL=1 go test -count=1 -timeout 60m -run Conformance -v ./...

lint: ## all linters
	$(TOOL) golangci-lint run --allow-serial-runners

FUZZTIME ?= 20s
fuzz: ## each fuzz target for FUZZTIME (20s)
	@go list ./... | while read -r pkg; do \
		go test -list '^Fuzz' "$$pkg" | grep '^Fuzz' | while read -r target; do \
			echo "$$pkg $$target"; \
			go test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) "$$pkg" </dev/null || exit 1; \
		done || exit 1; \
	done

# The other side is the main branch in a work tree of its own. `outbox bench` measures against
# SQL written by hand instead: docs/performance.md.
BENCH ?= .
BENCHCOUNT ?= 6
bench: ## benchmarks compared with the main branch
	@set -eu; tmp=$$(mktemp -d); \
	trap 'git worktree remove --force "$$tmp/main"; rm -rf "$$tmp"' EXIT; \
	git worktree add --quiet --detach "$$tmp/main" main; \
	(cd "$$tmp/main" && go test -run '^$$' -bench '$(BENCH)' -count $(BENCHCOUNT) ./...) >"$$tmp/old.txt"; \
	go test -run '^$$' -bench '$(BENCH)' -count $(BENCHCOUNT) ./... >"$$tmp/new.txt"; \
	$(TOOL) benchstat main="$$tmp/old.txt" here="$$tmp/new.txt"

docs: ## the documentation as the package site shows it, on http://localhost:8080
	go run golang.org/x/pkgsite/cmd/pkgsite@v0.6.0 -http localhost:8080 .

verify: ## that generated files, dependencies and formatting are as they should be
	go mod tidy -diff
	go mod verify
	cd examples/engine && go mod tidy -diff
	go generate ./...
	git diff --exit-code
	@test -z "$$($(TOOL) gofumpt -l . | tee /dev/stderr)"
	go test -count=1 ./internal/arrows
