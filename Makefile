# Running, building and `make test` need Go, make and git. `make check` also needs what `make tools`
# installs on Debian. `make` lists the targets.

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
COMMIT ?= $(shell git rev-parse HEAD 2>/dev/null)
DATE ?= $(shell TZ=UTC0 git log -1 --date=format-local:%Y-%m-%dT%H:%M:%SZ --format=%cd 2>/dev/null)
FUZZTIME ?= 10s

# Tools are pinned and built from source, buf by proto/tools.mod, and run offline once built.
BUF := go tool -modfile=proto/tools.mod buf
GOLANGCI_VERSION := 2.15.0
GOLANGCI := bin/golangci-lint-$(GOLANGCI_VERSION)
GOTESTSUM_VERSION := 1.13.0
GOTESTSUM := bin/gotestsum-$(GOTESTSUM_VERSION)

# -buildvcs=false: the version comes from VERSION, also where git distrusts the folder's owner.
# -s -w omits the tables for debuggers; stack traces and profiles keep their names.
# grpcnotrace omits the pages of golang.org/x/net/trace, which nothing here serves: 4 MB.
LDFLAGS = -s -w -X main.version=$(VERSION) -X main.commit=$(COMMIT) -X main.date=$(DATE)
TRIMPATH ?= -trimpath
BUILDFLAGS = $(TRIMPATH) -buildvcs=false -tags grpcnotrace -ldflags '$(LDFLAGS)'
GOBUILD = CGO_ENABLED=0 go build $(BUILDFLAGS)

PYTHON := client/python
TYPESCRIPT := client/typescript
JAVA := client/java
CONSOLE := server/internal/console/web

# The oldest versions that the clients support.
HAVE_PYTHON := python3 -c 'import ensurepip, sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null
HAVE_NODE := command -v npm >/dev/null && node -e 'const [a, b] = process.versions.node.split("."); process.exit(a > 18 || (a == 18 && b >= 20) ? 0 : 1)' 2>/dev/null
HAVE_JAVA := command -v mvn >/dev/null && javac -version 2>/dev/null | awk '{ split($$2, v, "."); old = v[1] < 17 } END { exit !NR || old }'
HAVE_BROWSER := [ -n "$${PARLEY_CHROMIUM:-}" ] || command -v chromium >/dev/null || command -v google-chrome >/dev/null
ON_LINUX := [ "$$(uname)" = Linux ]

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

# -short leaves out the longest tests. CI and REDIS_REQUIRED are empty so that tests whose programs are
# missing are skipped.
# Some tests build programs. Without the build before, several would compile the same packages at once.
# -s -w: without tables for debuggers, programs and tests are linked in two thirds of the time.
.PHONY: test
test: ## run the Go tests, in about three minutes: needs Go and git alone
	CGO_ENABLED=0 go build -ldflags='-s -w' ./...
	CI= REDIS_REQUIRED= CGO_ENABLED=0 go test -short -vet=off -ldflags='-s -w' ./...
	@echo 'left out, and part of make check: the race detector, lint, generated code, the tests of client/python,'
	@echo 'client/typescript, client/java, $(FAULTTEST), $(OIDCTEST), $(DEPLOYCHECK) and $(BENCHCOMPARE), and the'
	@echo 'longest Go tests. Go tests that need root, Python, Node, Chromium or Redis were skipped where these are missing.'

# All Go tests run with the race detector, without -short. Tests of random calls make 20 rounds of 30 steps: the race
# detector makes them five times as slow. testlaws makes 50 rounds without it, for the stores.
# The last two groups mostly wait, one for its programs and engines, one for its disk: they run at the same time.
# With REDIS_REQUIRED=1, tests that need redis-server fail if it is missing. make tools installs it on Linux.
# Up to three tests that fail run again, alone: a busy machine may stop their programs for longer than a test waits. The
# first failure is printed in any case. It is a fault of the test or of the program: find it.
# Packages are compiled once without the race detector, for bin/ and testlaws, and once with it, for lint and the tests:
# all steps have the same build tags, those without it have no cgo, which nothing here uses, and bin/ keeps the paths of
# the sources.
.PHONY: check
check: export TRIMPATH =
check: export GOFLAGS := $(GOFLAGS) -tags=grpcnotrace
check: export REDIS_REQUIRED = $(if $(filter Linux,$(shell uname)),1)
check: programs languages $(GOTESTSUM) build lint checkgenerate ## check everything, in about 40 minutes: needs what make tools installs
	RAPID_CHECKS=20 RAPID_STEPS=30 CGO_ENABLED=1 $(GOTESTSUM) --format pkgname-and-test-fails --rerun-fails=1 \
		--rerun-fails-max-failures=3 --packages=./... -- -race -vet=off -ldflags='-s -w' -timeout 30m
	@log=$$(mktemp); trap 'rm -f "$$log"' EXIT; trap 'exit 1' HUP INT TERM; \
	export RAPID_CHECKS=50 RAPID_STEPS=30; \
	$(MAKE) --no-print-directory test-faults >"$$log" 2>&1 & faults=$$!; \
	code=0; $(MAKE) --no-print-directory testclients testlaws || code=$$?; \
	wait $$faults || code=$$?; cat "$$log"; exit $$code

.PHONY: testlaws
testlaws: ## test the laws of the stores, and stores with bugs, without the race detector
	CGO_ENABLED=0 go test -vet=off -count=1 -timeout 20m -run '^Test(Law|Bugs$$)' ./store/...

.PHONY: testclients
testclients: testpython testtypescript testjava testconsole testoidc testdeploy
	@if $(ON_LINUX); then $(MAKE) --no-print-directory testbenchcompare; fi

.PHONY: testpython
testpython: $(PYTHON)/.venv/.stamp build ## check client/python and run its tests
	$(PYTHON)/pythons.sh
	cd $(PYTHON) && .venv/bin/ruff format --diff
	cd $(PYTHON) && .venv/bin/ruff check
	cd $(PYTHON) && .venv/bin/mypy
	cd $(PYTHON) && PARLEYD='$(CURDIR)/bin/parleyd' .venv/bin/pytest

# The packages of each framework are installed in a folder of its own below client/python/.peers, those of all
# frameworks for TypeScript in client/typescript/peers.
.PHONY: peers
peers: export PARLEY_LONG = 1
peers: testpeers ## test the adapters with the test suites of their frameworks, in about 20 minutes

.PHONY: testpeers
testpeers: $(TYPESCRIPT)/node_modules/.stamp build testadk ## the same without its longest tests, in about ten minutes
	PARLEYD='$(CURDIR)/bin/parleyd' $(PYTHON)/peers/run.sh
	PARLEYD='$(CURDIR)/bin/parleyd' $(TYPESCRIPT)/peers/run.sh

.PHONY: packages
packages: $(TYPESCRIPT)/node_modules/.stamp build ## build the packages of the clients, and use them in new projects
	PARLEYD='$(CURDIR)/bin/parleyd' $(PYTHON)/package.sh
	PARLEYD='$(CURDIR)/bin/parleyd' $(TYPESCRIPT)/package.sh
	PARLEYD='$(CURDIR)/bin/parleyd' $(JAVA)/package.sh

.PHONY: testtypescript
testtypescript: $(TYPESCRIPT)/node_modules/.stamp build ## check client/typescript and run its tests
	cd $(TYPESCRIPT) && PARLEYD='$(CURDIR)/bin/parleyd' npm test

# Maven fetches its plugins and the dependencies into ~/.m2 the first time.
.PHONY: testjava
testjava: build ## build client/java and run its tests
	cd $(JAVA) && PARLEYD='$(CURDIR)/bin/parleyd' mvn --batch-mode --no-transfer-progress --quiet verify

# The tests keep what they saw in $(CONSOLE)/screenshots.
.PHONY: testconsole
testconsole: $(CONSOLE)/node_modules/.stamp languages build ## check the console and test it in a browser
	cd $(CONSOLE) && npm run --silent lint
	cd $(CONSOLE) && PARLEYD='$(CURDIR)/bin/parleyd' npm test

.PHONY: long
long: ## run the random tests of turns, crashes, failovers and calls for some minutes
	CGO_ENABLED=1 PARLEY_LONG=1 go test -race -count=1 -timeout 15m -run 'Proxy|InteractionsKilled$$|Storm' ./server/e2e
	PARLEY_LONG=1 go test -count=1 -timeout 10m ./server/e2e/hostile
	PARLEY_LONG=1 go test -count=1 -timeout 30m -run 'Failovers$$' ./store/redisstore

# A module of its own. The long round is the one to quote: there everything must run.
FAULTTEST := server/faulttest
TEST_FAULTS := CGO_ENABLED=1 go test -race -count=1

.PHONY: test-faults
test-faults: ## inject faults into the store, its disk and its processes, in about seven minutes; most of it needs root
	cd $(FAULTTEST) && FAULTS_COUNTS=$(CURDIR)/bin/fault-counts $(TEST_FAULTS) -timeout 20m ./...; \
		code=$$?; cat $(CURDIR)/bin/fault-counts; exit $$code

.PHONY: test-faults-long
test-faults-long: ## the same far more often, and all of it
	cd $(FAULTTEST) && FAULTS=long FAULTS_REQUIRE=all $(TEST_FAULTS) -v -timeout 3h ./...

# A module of its own, because of the issuer's dependencies.
OIDCTEST := server/oidctest

.PHONY: testoidc
testoidc: ## sign in with the tokens of a real OpenID Connect issuer
	cd $(OIDCTEST) && CGO_ENABLED=1 go test -race -count=1 ./...

# A module of its own, because of the dependencies of the ADK.
ADK := client/adk

.PHONY: testadk
testadk: ## test the sessions of the ADK for Go with the tests of its own services
	cd $(ADK) && CGO_ENABLED=1 go test -race -count=1 $(if $(PARLEY_LONG),,-short) ./...

# A module of its own, because of Helm and BuildKit.
DEPLOYCHECK := server/deploy/check

.PHONY: testdeploy
testdeploy: ## check the image, the chart, the compose file and the systemd unit of server/deploy
	cd $(DEPLOYCHECK) && go test -count=1 ./...

# govet is one of the linters. They need compiled packages: those of the tests, with the race detector.
LINT = CGO_ENABLED=1 GOFLAGS="$${GOFLAGS:-} -race" $(CURDIR)/$(GOLANGCI) run

.PHONY: lint
lint: bin/.buf $(GOLANGCI) ## check the protos and the Go code without running it
	$(BUF) lint
	$(BUF) format --diff --exit-code --exclude-path proto/buf --exclude-path proto/google
	$(BUF) breaking --against proto/release.binpb
	$(LINT)
	cd $(FAULTTEST) && $(LINT)
	cd $(OIDCTEST) && $(LINT)
	cd $(ADK) && $(LINT)
	cd $(DEPLOYCHECK) && $(CURDIR)/$(GOLANGCI) run
	@if $(ON_LINUX); then $(MAKE) --no-print-directory lintbenchcompare; fi

.PHONY: lintbenchcompare
lintbenchcompare:
	cd $(BENCHCOMPARE) && $(LINT)

.PHONY: format
format: bin/.buf $(GOLANGCI) ## format the protos and the Go code
	$(BUF) format --write --exclude-path proto/buf --exclude-path proto/google
	$(GOLANGCI) fmt

.PHONY: generate
generate: bin/.buf $(PYTHON)/.venv/.stamp $(TYPESCRIPT)/node_modules/.stamp $(CONSOLE)/node_modules/.stamp ## write gen/, the stubs of all languages and the console
	$(BUF) generate --clean
	$(PYTHON)/generate.sh
	$(TYPESCRIPT)/generate.sh
	$(JAVA)/generate.sh
	cd $(CONSOLE) && node build.js

# In a folder of its own: neither git nor a clean work tree is needed, and none is touched.
.PHONY: checkgenerate
checkgenerate: bin/.buf $(PYTHON)/.venv/.stamp $(TYPESCRIPT)/node_modules/.stamp $(CONSOLE)/node_modules/.stamp ## fail if gen/, the stubs or the console differ from what their sources generate
	@echo 'comparing gen/, the stubs of other languages and the console with what their sources generate'
	@fresh=$$(mktemp -d); trap 'rm -rf "$$fresh"' EXIT; trap 'exit 1' HUP INT TERM; \
	same() { diff -rq -x __pycache__ "$$1" "$$2" || { echo "$$1 is stale: run make generate" >&2; exit 1; }; }; \
	$(BUF) generate --output "$$fresh"; \
	same gen "$$fresh/gen"; \
	same server/internal/gateway/openapi/gen "$$fresh/server/internal/gateway/openapi/gen"; \
	same server/internal/rules/checks "$$fresh/server/internal/rules/checks"; \
	$(PYTHON)/generate.sh "$$fresh"; same $(PYTHON)/parley/v1 "$$fresh/parley/v1"; \
	$(TYPESCRIPT)/generate.sh "$$fresh"; same $(TYPESCRIPT)/src/gen "$$fresh/src/gen"; \
	$(JAVA)/generate.sh "$$fresh"; same $(JAVA)/parley-proto/parley.binpb "$$fresh/parley-proto/parley.binpb"; \
	node $(CONSOLE)/build.js "$$fresh/console"; same $(CONSOLE)/../dist "$$fresh/console"

# PARLEY_BENCH_ROUNDS=3 is for a quick run; server/bench/bench_test.go has the other variables.
.PHONY: bench
bench: ## compare the service with plain gRPC and bbolt, other protocols with gRPC, and the store in Redis with its commands
	go test -run '^$$' -bench . -benchtime 1x -timeout 60m -v ./server/bench
	go test -run '^$$' -bench . -benchtime 3000x ./server/internal/facade/...
	go test -run '^$$' -bench Store -benchtime 1x -timeout 30m -v ./store/redisstore
	go test -run '^$$' -bench 'Read|LongLines' -benchtime 1x -timeout 30m -v ./server/internal/interactionlog/search

# A module of its own, with SQLite in it, which is written in C.
BENCHCOMPARE := server/benchcompare

# Tests do not need a fast SQLite, and -O0 compiles it in a third of the processor time.
testbenchcompare lintbenchcompare: export CGO_CFLAGS = -O0

.PHONY: testbenchcompare
testbenchcompare:
	cd $(BENCHCOMPARE) && CGO_ENABLED=1 go test -race -timeout 10m ./...

# BENCHFLAGS='-rounds 2 -slice 300ms -conversations 5000 -large 20000' is for a quick run;
# BENCHFLAGS=-help lists all.
.PHONY: bench-compare
bench-compare: build ## compare the service with etcd, Redis, PostgreSQL and SQLite, in a quarter of an hour
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

RELEASE = go run ./server/deploy/release -version '$(VERSION)' -commit '$(COMMIT)' -date '$(DATE)'

.PHONY: release
release: bin/.buf ## write archives and packages for all systems to dist/, in a few minutes
	$(RELEASE) -dist dist -- $(BUILDFLAGS)

# PARLEY_RELEASE is the directory to check. The second build is in another directory.
.PHONY: checkrelease
checkrelease: release ## check dist/: a second build, the programs, and the packages if this is Debian and you are root
	PARLEY_RELEASE='$(CURDIR)/dist' go test -count=1 -timeout 30m -v -run '^TestRelease' ./server/deploy/release

DOCKER ?= docker

.PHONY: image
image: ## build the container image parleyd with docker, or with another engine: DOCKER=podman
	$(DOCKER) build -f server/deploy/Dockerfile -t parleyd --build-arg VERSION='$(VERSION)' \
		--build-arg COMMIT='$(COMMIT)' --build-arg DATE='$(DATE)' .

.PHONY: release-proto
release-proto: bin/.buf ## write proto/release.binpb, which later changes must not break
	$(BUF) build --exclude-source-info --output proto/release.binpb

.PHONY: clean
clean: ## remove what was built and installed, never data/
	rm -rf bin dist $(PYTHON)/.venv $(PYTHON)/.pythons $(PYTHON)/.peers $(PYTHON)/dist $(TYPESCRIPT)/node_modules \
		$(TYPESCRIPT)/dist $(TYPESCRIPT)/peers/node_modules $(TYPESCRIPT)/peers/dist $(JAVA)/*/target \
		$(CONSOLE)/node_modules $(CONSOLE)/screenshots

# Sets $packages to the Debian packages of the programs that `make check` needs and that are missing.
FIND_MISSING = packages=; need() { packages="$$packages $$*"; }; set -- $$(go env CC); \
	command -v "$$1" >/dev/null || need gcc libc6-dev; \
	$(HAVE_PYTHON) || need python3 python3-venv; \
	$(HAVE_NODE) || need nodejs npm; \
	$(HAVE_JAVA) || need default-jdk-headless maven; \
	$(HAVE_BROWSER) || need chromium; \
	command -v curl >/dev/null || need curl; \
	command -v jq >/dev/null || need jq; \
	if $(ON_LINUX); then \
		for program in strace=strace mkfs.ext4=e2fsprogs mount=mount \
			prometheus=prometheus systemd-analyze=systemd; do \
			command -v "$${program%=*}" >/dev/null || need "$${program\#*=}"; \
		done; \
		command -v redis-server >/dev/null || command -v valkey-server >/dev/null || need redis-server; \
	fi

# Tests start the programs themselves. The policy keeps the packages from starting services now, and
# systemctl keeps them from starting with the machine.
.PHONY: tools
tools: ## install the Debian packages that make check needs; needs root
	@$(FIND_MISSING); [ -n "$$packages" ] || { echo 'nothing is missing'; exit 0; }; \
	echo "installing$$packages"; policy=/usr/sbin/policy-rc.d; \
	if [ ! -e "$$policy" ]; then \
		trap 'rm -f "$$policy"' EXIT; trap 'exit 1' HUP INT TERM; \
		printf '#!/bin/sh\nexit 101\n' >"$$policy"; chmod 755 "$$policy"; \
	fi; \
	apt-get update -qq; apt-get install -qq -y --no-install-recommends $$packages; \
	for service in prometheus redis-server; do \
		case "$$packages " in *" $$service "*) systemctl --quiet disable "$$service" || true;; esac; \
	done

.PHONY: programs
programs:
	@$(FIND_MISSING); [ -z "$$packages" ] || { \
		echo "make check needs programs that are missing: run make tools, or install what these Debian packages contain:$$packages" >&2; \
		exit 1; }

# Installs the packages that the clients' tests need, in folders of the clients.
.PHONY: languages
languages: $(PYTHON)/.venv/.stamp $(TYPESCRIPT)/node_modules/.stamp
	cd $(TYPESCRIPT) && npm run --silent build

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

$(GOTESTSUM):
	@rm -f bin/gotestsum*
	CGO_ENABLED=0 GOBIN='$(CURDIR)/bin' go install gotest.tools/gotestsum@v$(GOTESTSUM_VERSION)
	@mv bin/gotestsum $@

$(CONSOLE)/node_modules/.stamp: $(CONSOLE)/package.json $(CONSOLE)/package-lock.json
	@echo 'installing the packages of $(CONSOLE) as pinned in its package-lock.json'
	cd $(CONSOLE) && npm ci
	@touch $@
