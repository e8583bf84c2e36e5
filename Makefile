# Needs Go, make and git; `make test` also a C compiler, for -race. `make` lists the targets.

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
FUZZTIME ?= 10s

# Tools are pinned and built from source, buf by proto/tools.mod, and run offline once built.
BUF := go tool -modfile=proto/tools.mod buf
GOLANGCI_VERSION := 2.15.0
GOLANGCI := bin/golangci-lint-$(GOLANGCI_VERSION)

# -buildvcs=false: the version comes from VERSION, also where git distrusts the folder's owner.
GOBUILD = CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags '-X main.version=$(VERSION)'

SHELL := /bin/sh
.SHELLFLAGS := -euc
.SUFFIXES:
.NOTPARALLEL:
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-14s %s\n", $$1, $$2 }' Makefile

.PHONY: run
run: build ## build and start the server on 127.0.0.1:50051, data in ./data
	@echo 'In another terminal, one question, or a conversation:'
	@echo '  bin/parley chat "hello"'
	@echo '  bin/parley chat'
	@exec bin/parleyd --grpc-address 127.0.0.1:50051 --store bolt --data-dir ./data

.PHONY: build
build: ## build bin/parleyd and bin/parley
	$(GOBUILD) -o bin/parleyd ./server
	$(GOBUILD) -o bin/parley ./client/cmd/parley

.PHONY: test
test: compiler lint checkgenerate ## check everything and run all tests with -race
	CGO_ENABLED=1 go test -race -timeout 15m ./...

.PHONY: long
long: compiler ## run the random tests of turns for longer, in about two minutes
	CGO_ENABLED=1 PARLEY_LONG=1 go test -race -count=1 -timeout 15m -run 'Proxy' ./server

.PHONY: lint
lint: bin/.buf $(GOLANGCI) ## check the protos and the Go code without running it
	$(BUF) lint
	$(BUF) format --diff --exit-code --exclude-path proto/buf
	$(BUF) breaking --against proto/release.binpb
	go vet ./...
	$(GOLANGCI) run

.PHONY: format
format: bin/.buf $(GOLANGCI) ## format the protos and the Go code
	$(BUF) format --write --exclude-path proto/buf
	$(GOLANGCI) fmt

.PHONY: generate
generate: bin/.buf ## make gen/ anew from proto/
	$(BUF) generate --clean

# In a folder of its own: neither git nor a clean work tree is needed, and none is touched.
.PHONY: checkgenerate
checkgenerate: bin/.buf ## fail when gen/ is not what proto/ gives
	@echo 'comparing gen/ with what buf generates'
	@fresh=$$(mktemp -d); trap 'rm -rf "$$fresh"' EXIT; trap 'exit 1' HUP INT TERM; \
	$(BUF) generate --output "$$fresh"; \
	diff -rq gen "$$fresh/gen" || { echo 'gen/ is stale: run make generate' >&2; exit 1; }

# PARLEY_BENCH_ROUNDS=3 is for a quick look; server/bench_test.go has the other variables.
.PHONY: bench
bench: ## measure the service beside what bounds it, in a few minutes
	go test -run '^$$' -bench . -benchtime 1x -timeout 30m -v ./server

.PHONY: fuzz
fuzz: ## run each fuzz test for a while (FUZZTIME=10s)
	@tests=$$(go test -list '^Fuzz' ./...); \
	echo "$$tests" | awk '/^Fuzz/ { names[++n] = $$1 } /^ok/ { while (n) print $$2, names[n--] }' | \
	while read -r package name; do \
		echo "$$name of $$package"; \
		go test -run '^$$' -fuzz "^$$name\$$" -fuzztime $(FUZZTIME) "$$package" </dev/null; \
	done

.PHONY: release-proto
release-proto: bin/.buf ## write proto/release.binpb, which later changes must not break
	$(BUF) build --exclude-source-info --output proto/release.binpb

.PHONY: clean
clean: ## remove bin/, never data/
	rm -rf bin

.PHONY: compiler
compiler:
	@set -- $$(go env CC); command -v "$$1" >/dev/null && exit 0; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "installing a C compiler, which go test -race needs"; \
		apt-get update -qq && apt-get install -qq -y --no-install-recommends gcc libc6-dev; \
	else \
		echo "go test -race needs a C compiler, and $$1 is not here; on Debian: apt-get install gcc libc6-dev" >&2; exit 1; \
	fi

bin/.buf: proto/tools.mod
	@echo 'building buf as pinned in proto/tools.mod: about two minutes the first time'
	$(BUF) --version
	@mkdir -p bin && touch $@

$(GOLANGCI):
	@echo 'building golangci-lint $(GOLANGCI_VERSION): about a minute the first time'
	@rm -f bin/golangci-lint*
	CGO_ENABLED=0 GOBIN='$(CURDIR)/bin' go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v$(GOLANGCI_VERSION)
	@mv bin/golangci-lint $@
