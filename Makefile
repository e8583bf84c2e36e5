# Needs Go, make and git; `make test` also a C compiler, for -race, Python and Node, for the tests
# of their clients, and Chromium for one of a page. `make` lists the targets.

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
FUZZTIME ?= 10s

# Tools are pinned and built from source, buf by proto/tools.mod, and run offline once built.
BUF := go tool -modfile=proto/tools.mod buf
GOLANGCI_VERSION := 2.15.0
GOLANGCI := bin/golangci-lint-$(GOLANGCI_VERSION)

# -buildvcs=false: the version comes from VERSION, also where git distrusts the folder's owner.
GOBUILD = CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags '-X main.version=$(VERSION)'

PYTHON := client/python
TYPESCRIPT := client/typescript

# Whether Python and Node are here, as old as they may be; Debian 12 has 3.11 and 18.20.
HAVE_PYTHON := python3 -c 'import ensurepip, sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null
HAVE_BROWSER := [ -n "$${PARLEY_CHROMIUM:-}" ] || command -v chromium >/dev/null || command -v google-chrome >/dev/null
HAVE_NODE := command -v npm >/dev/null && node -e 'const [a, b] = process.versions.node.split("."); process.exit(a > 18 || (a == 18 && b >= 20) ? 0 : 1)' 2>/dev/null

SHELL := /bin/sh
.SHELLFLAGS := -euc
.SUFFIXES:
.NOTPARALLEL:
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-16s %s\n", $$1, $$2 }' Makefile

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
test: compiler languages build lint checkgenerate ## check everything and run all tests with -race
	CGO_ENABLED=1 go test -race -timeout 15m ./...
	@if $(HAVE_PYTHON); then $(MAKE) --no-print-directory testpython; fi
	@if $(HAVE_NODE); then $(MAKE) --no-print-directory testtypescript; fi
	@$(MAKE) --no-print-directory test-faults
	@if $(ON_LINUX); then $(MAKE) --no-print-directory testbenchcompare; fi

.PHONY: testpython
testpython: $(PYTHON)/.venv/.stamp build ## check client/python and run its tests
	$(PYTHON)/pythons.sh
	cd $(PYTHON) && .venv/bin/ruff format --diff
	cd $(PYTHON) && .venv/bin/ruff check
	cd $(PYTHON) && .venv/bin/mypy
	cd $(PYTHON) && PARLEYD='$(CURDIR)/bin/parleyd' .venv/bin/pytest

.PHONY: testtypescript
testtypescript: $(TYPESCRIPT)/node_modules/.stamp build ## check client/typescript and run its tests
	cd $(TYPESCRIPT) && PARLEYD='$(CURDIR)/bin/parleyd' npm test

.PHONY: long
long: compiler ## run the random tests of turns, crashes and calls for a few minutes
	CGO_ENABLED=1 PARLEY_LONG=1 go test -race -count=1 -timeout 15m -run 'Proxy|InteractionsKilled$$|Storm' ./server

# A module of its own. The long round is the one to quote: there everything must run.
FAULTTEST := store/faulttest
TEST_FAULTS := CGO_ENABLED=1 go test -race -count=1

.PHONY: test-faults
test-faults: compiler faultprograms ## break the store and what is below it, in under five minutes; most of it needs root
	cd $(FAULTTEST) && $(TEST_FAULTS) -timeout 10m ./...

.PHONY: test-faults-long
test-faults-long: compiler faultprograms ## the same far more often, and all of it
	cd $(FAULTTEST) && FAULTS=long FAULTS_REQUIRE=all $(TEST_FAULTS) -v -timeout 3h ./...

.PHONY: lint
lint: compiler bin/.buf $(GOLANGCI) ## check the protos and the Go code without running it
	$(BUF) lint
	$(BUF) format --diff --exit-code --exclude-path proto/buf
	$(BUF) breaking --against proto/release.binpb
	go vet ./...
	$(GOLANGCI) run
	cd $(FAULTTEST) && go vet ./... && ../../$(GOLANGCI) run
	@if $(ON_LINUX); then $(MAKE) --no-print-directory lintbenchcompare; fi

.PHONY: lintbenchcompare
lintbenchcompare:
	cd $(BENCHCOMPARE) && export CGO_ENABLED=1 && go vet ./... && ../../$(GOLANGCI) run

.PHONY: format
format: bin/.buf $(GOLANGCI) ## format the protos and the Go code
	$(BUF) format --write --exclude-path proto/buf
	$(GOLANGCI) fmt

.PHONY: generate
generate: bin/.buf $(PYTHON)/.venv/.stamp $(TYPESCRIPT)/node_modules/.stamp ## make gen/ and the stubs of all languages anew from proto/
	$(BUF) generate --clean
	$(PYTHON)/generate.sh
	$(TYPESCRIPT)/generate.sh

# In a folder of its own: neither git nor a clean work tree is needed, and none is touched.
.PHONY: checkgenerate
checkgenerate: bin/.buf ## fail when gen/ or the stubs are not what proto/ gives
	@echo 'comparing gen/ and the stubs of other languages with what proto/ gives'
	@fresh=$$(mktemp -d); trap 'rm -rf "$$fresh"' EXIT; trap 'exit 1' HUP INT TERM; \
	same() { diff -rq -x __pycache__ "$$1" "$$2" || { echo "$$1 is stale: run make generate" >&2; exit 1; }; }; \
	$(BUF) generate --output "$$fresh"; \
	same gen "$$fresh/gen"; \
	same server/internal/gateway/openapi/gen "$$fresh/server/internal/gateway/openapi/gen"; \
	if $(HAVE_PYTHON); then $(PYTHON)/generate.sh "$$fresh"; same $(PYTHON)/parley/v1 "$$fresh/parley/v1"; fi; \
	if $(HAVE_NODE); then $(TYPESCRIPT)/generate.sh "$$fresh"; same $(TYPESCRIPT)/src/gen "$$fresh/src/gen"; fi

# PARLEY_BENCH_ROUNDS=3 is for a quick look; server/bench_test.go has the other variables.
.PHONY: bench
bench: ## measure the service beside what bounds it, everything in turn
	go test -run '^$$' -bench . -benchtime 1x -timeout 30m -v ./server
	go test -run '^$$' -bench 'Read|LongLines' -benchtime 1x -timeout 30m -v ./server/internal/interactionlog

# A module of its own, with SQLite in it, which is written in C.
BENCHCOMPARE := store/benchcompare
ON_LINUX := [ "$$(uname)" = Linux ]

.PHONY: testbenchcompare
testbenchcompare: compiler
	cd $(BENCHCOMPARE) && CGO_ENABLED=1 go test -race -timeout 10m ./...

# BENCHFLAGS='-rounds 2 -slice 300ms -conversations 5000 -large 20000' is for a quick look;
# BENCHFLAGS=-help lists all.
.PHONY: bench-compare
bench-compare: compiler build ## measure the service beside etcd, Redis, PostgreSQL and SQLite, in a quarter of an hour
	@$(BENCHCOMPARE)/install.sh
	cd $(BENCHCOMPARE) && CGO_ENABLED=1 go build -buildvcs=false -o '$(CURDIR)/bin/benchcompare' .
	@exec bin/benchcompare -parleyd bin/parleyd $(BENCHFLAGS)

.PHONY: fuzz
fuzz: ## run each fuzz test for a while (FUZZTIME=10s)
	@tests=$$(go test -list '^Fuzz' ./...); \
	echo "$$tests" | awk '/^Fuzz/ { names[++n] = $$1 } /^ok/ { while (n) print $$2, names[n--] }' | \
	while read -r package name; do \
		echo "$$name of $$package"; \
		go test -run '^$$' -fuzz "^$$name\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 1s "$$package" </dev/null; \
	done

.PHONY: release-proto
release-proto: bin/.buf ## write proto/release.binpb, which later changes must not break
	$(BUF) build --exclude-source-info --output proto/release.binpb

.PHONY: clean
clean: ## remove what was built and installed, never data/
	rm -rf bin $(PYTHON)/.venv $(PYTHON)/.pythons $(TYPESCRIPT)/node_modules $(TYPESCRIPT)/dist

.PHONY: compiler
compiler:
	@set -- $$(go env CC); command -v "$$1" >/dev/null && exit 0; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "installing a C compiler, which go test -race needs"; \
		apt-get update -qq && apt-get install -qq -y --no-install-recommends gcc libc6-dev; \
	else \
		echo "go test -race needs a C compiler, and $$1 is not here; on Debian: apt-get install gcc libc6-dev" >&2; exit 1; \
	fi

# What is missing the tests say themselves.
.PHONY: faultprograms
faultprograms:
	@missing=; for program in strace=strace mkfs.ext4=e2fsprogs mount=mount; do \
		command -v "$${program%=*}" >/dev/null || missing="$$missing $${program#*=}"; \
	done; \
	[ -z "$$missing" ] || [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null || { \
		echo "installing$$missing"; apt-get update -qq && apt-get install -qq -y --no-install-recommends $$missing; } || true

# Sets up Python, Node and a browser for the tests that need them. Where one is missing and cannot be
# installed it says which tests do not run; continuous integration must run all.
.PHONY: languages
languages:
	@missing() { echo "not run: $$1" >&2; [ "$${CI:-}" != true ]; }; \
	install() { [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null || { \
		echo "installing $$*"; apt-get update -qq && apt-get install -qq -y --no-install-recommends "$$@"; }; }; \
	$(HAVE_PYTHON) || install python3 python3-venv || true; \
	$(HAVE_NODE) || install nodejs npm || true; \
	$(HAVE_BROWSER) || install chromium || true; \
	$(HAVE_BROWSER) || missing 'the test of a page in a browser, which needs Chromium; on Debian: apt-get install chromium'; \
	if $(HAVE_PYTHON); then $(MAKE) --no-print-directory $(PYTHON)/.venv/.stamp; \
	else missing 'tests of $(PYTHON) and of its agent, which need Python 3.10 with venv; on Debian: apt-get install python3 python3-venv'; fi; \
	if $(HAVE_NODE); then $(MAKE) --no-print-directory $(TYPESCRIPT)/node_modules/.stamp; cd $(TYPESCRIPT); npm run --silent build; \
	else missing 'tests of $(TYPESCRIPT) and of its agent, which need Node 18.20 with npm; on Debian: apt-get install nodejs npm'; fi

$(PYTHON)/.venv/.stamp: $(PYTHON)/requirements.txt $(PYTHON)/requirements-package.txt $(PYTHON)/pyproject.toml
	@echo 'setting up $(PYTHON)/.venv as pinned in its requirements.txt'
	@rm -rf $(PYTHON)/.venv
	python3 -m venv $(PYTHON)/.venv
	$(PYTHON)/.venv/bin/pip install --quiet --disable-pip-version-check --requirement $(PYTHON)/requirements.txt
	$(PYTHON)/.venv/bin/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable $(PYTHON)
	@touch $@

$(TYPESCRIPT)/node_modules/.stamp: $(TYPESCRIPT)/package.json $(TYPESCRIPT)/package-lock.json
	@echo 'installing the packages of $(TYPESCRIPT) as pinned in its package-lock.json'
	cd $(TYPESCRIPT) && npm ci
	@touch $@

bin/.buf: proto/tools.mod
	@echo 'building buf as pinned in proto/tools.mod: about two minutes the first time'
	$(BUF) --version
	@mkdir -p bin && touch $@

$(GOLANGCI):
	@echo 'building golangci-lint $(GOLANGCI_VERSION): about a minute the first time'
	@rm -f bin/golangci-lint*
	CGO_ENABLED=0 GOBIN='$(CURDIR)/bin' go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v$(GOLANGCI_VERSION)
	@mv bin/golangci-lint $@
