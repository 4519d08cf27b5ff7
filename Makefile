# Everything that is done with this repository. `make help` lists it.
GO ?= go
BIN := bin/fencepost
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
PROTOC_GEN_GO := google.golang.org/protobuf/cmd/protoc-gen-go@v1.36.12
VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)

.PHONY: help build run cluster test race lint fuzz bench chaos generate clean cuts sim planted

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## build bin/fencepost
	$(GO) build -trimpath -ldflags "-X main.version=$(VERSION)" -o $(BIN) ./cmd/fencepost

run: build ## run a three-node cluster in one process, on 127.0.0.1:7001 to 7003
	$(BIN) dev

cluster: build ## start three processes on the same ports (stop: scripts/cluster.sh stop)
	scripts/cluster.sh start 3

test: ## all tests, with the race detector (a few minutes)
	$(GO) test -race -timeout 20m ./...

race: test ## the same: tests always run with the race detector

lint: ## gofmt, go vet, staticcheck
	@out=$$(gofmt -l $$(git ls-files '*.go' | grep -v '\.pb\.go$$')); if [ -n "$$out" ]; then echo "gofmt would change:"; echo "$$out"; exit 1; fi
	$(GO) vet ./...
	$(GO) run $(STATICCHECK) ./...

fuzz: ## a minute of each fuzz target
	@for t in $$(grep -rhoE '^func Fuzz[A-Za-z0-9_]+' --include=*_test.go fsm httpapi | awk '{print $$2}' | sort -u); do \
	  pkg=./$$(dirname $$(grep -rlE "^func $$t\(" --include=*_test.go fsm httpapi | head -1)); \
	  echo "$$t in $$pkg"; $(GO) test -run '^$$' -fuzz "^$$t\$$" -fuzztime 60s $$pkg || exit 1; done

bench: build ## operations per second against three processes on loopback (about two minutes)
	scripts/bench.sh

chaos: build ## kill, stop, cut off and confuse three nodes under load, and check every answer (NEMESIS=N1,N6 HITS=20)
	scripts/chaos.sh

sim: ## simulated failovers with all checks (FAILOVERS=2000; a few minutes)
	scripts/sim.sh

planted: ## put known bugs into a copy of the sources: each must be found (a few minutes)
	scripts/planted.sh

cuts: ## 50 times: a host under 'fencepost lock' is cut off, and the next takes over
	FENCEPOST_TEST_CUTS=50 $(GO) test -count 1 -v -run 'P7_CutOff' ./cmd/fencepost

generate: ## make fsm/fsmpb anew; needs protoc (Debian: protobuf-compiler)
	$(GO) install $(PROTOC_GEN_GO)
	PATH="$$PATH:$$($(GO) env GOPATH)/bin" protoc --go_out=. --go_opt=module=fencepost fsm/fsmpb/fsm.proto

clean: ## remove what the targets above made
	@if [ -d .cluster ]; then scripts/cluster.sh stop; fi
	rm -rf bin .cluster
