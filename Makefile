# Narad: every command that a developer, an operator who builds, or CI needs.
# Needs Go, make and git; the rest (linters too) comes as Go modules.

SHELL := /bin/bash
BIN := bin
# nats-server (the bus of deploy/compose) is built as it is pinned in tools/go.mod.
PROGRAMS := metastore-voter storage-node ingress-gateway purge-sweeper
MODULES := libs/client libs apps/metastore-voter apps/storage-node apps/ingress-gateway apps/purge-sweeper tools e2e
GO := go
# Static binaries: they run in an image with nothing else in it.
export CGO_ENABLED ?= 0
VERSION_FLAGS := -trimpath
# How many end-to-end scenarios that mostly wait run beside each other: two of them use
# a quarter of two cores, and what they wait for must not come late because of others.
BESIDE := 3

.PHONY: help build run test lint race e2e bench bench-replicated bench-catchup bench-sweep gobench simulate standalone clean

help: ## show this list
	@awk -F':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## build the programs into bin/
	@mkdir -p $(BIN)
	$(GO) build $(VERSION_FLAGS) -o $(BIN)/ $(addprefix ./apps/,$(PROGRAMS)) ./tools/narad ./tools/bench github.com/nats-io/nats-server/v2

run: build ## start a cluster on loopback and print the commands to try (Ctrl-C stops it)
	@exec $(BIN)/narad dev $(ARGS)

test: ## run all tests but the long end-to-end ones (under 5 minutes)
	$(GO) test $(TESTFLAGS) work

race: ## run the same tests under the race detector
	CGO_ENABLED=1 $(GO) test -race $(TESTFLAGS) work

e2e: build ## run the end-to-end tests on the built programs
	$(GO) test -tags e2e -count=1 -timeout 20m -parallel $(BESIDE) $(TESTFLAGS) ./e2e/scenarios/

bench: build ## measure a fresh cluster on loopback against a bare server with a group fsync
	$(BIN)/bench dev $(ARGS)

bench-replicated: build ## measure what three copies and ack=committed cost, on one fresh cluster
	$(BIN)/bench dev --replicated $(ARGS)

bench-catchup: build ## measure how fast a node that was down catches up 1 GiB, and commits meanwhile
	$(GO) test -tags e2e -run '^$$' -bench CatchUp -benchtime 1x -timeout 20m $(TESTFLAGS) ./e2e/scenarios/

bench-sweep: build ## measure a sweep over 10,000 topic directories, and what it costs a client meanwhile
	$(GO) test -tags e2e -run '^$$' -bench Sweep -benchtime 1x -timeout 20m $(TESTFLAGS) ./e2e/scenarios/

gobench: ## run the Go benchmarks of the hot paths
	$(GO) test -run '^$$' -bench . -benchtime 1s ./libs/record ./libs/wal ./libs/partlog ./libs/lease
	$(GO) test -run '^$$' -bench AtScale -benchtime 5x ./libs/raftnode
	$(GO) test -run '^$$' -bench CreateAtScale -benchtime 200x -timeout 10m ./apps/metastore-voter/voter

simulate: ## play SEEDS=.. seeds of a replicated partition's simulation (default 20000)
	SEEDS=$(or $(SEEDS),20000) $(GO) test -count=1 -timeout 0 -v -run '^TestSimulation$$' ./libs/quorum/sim

lint: standalone ## format, vet, static analysis, and each module alone
	@out=$$($(GO) tool gofumpt -l apps libs tools e2e); if [ -n "$$out" ]; then echo "gofumpt would change:"; echo "$$out"; exit 1; fi
	$(GO) vet work
	$(GO) vet -tags e2e ./e2e/...
	$(GO) tool staticcheck work

standalone: ## build every module without the workspace, so that no hidden import works
	@for m in $(MODULES); do echo "standalone $$m"; (cd $$m && GOWORK=off $(GO) build ./... && GOWORK=off $(GO) mod tidy -diff) || exit 1; done
	@cd libs && test "$$($(GO) list -m -f '{{.Version}}' github.com/hashicorp/raft github.com/hashicorp/raft-boltdb/v2 go.etcd.io/bbolt | tr '\n' ' ')" = "v1.8.0 v2.4.2 v1.5.0 " \
		|| { echo "the Raft stores are not at the pinned versions"; exit 1; }

clean: ## remove what was built
	rm -rf $(BIN)
