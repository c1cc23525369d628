# Short verbs; `make help` lists them. Everything that a target needs on the
# machine it installs itself where it may, and names where it may not.

BIN      := $(CURDIR)/bin
PLUGINS  := $(BIN)/cni
MODULE   := github.com/containernetworking/plugins/plugins
PLUGIN_PACKAGES := $(addprefix $(MODULE)/,main/bridge main/ptp main/loopback main/dummy ipam/host-local ipam/static \
                     meta/portmap meta/firewall meta/bandwidth meta/tuning meta/vrf)
# Programs are position-independent, so that their addresses are random. Those of Go
# then need the C library's loader at run time: BUILDMODE=default for hosts without it.
BUILDMODE := pie
# What a package sets in CPPFLAGS, CFLAGS and LDFLAGS comes last, and so counts more.
SHIM_CFLAGS  := -std=c11 -O2 -Wall -Wextra -Wno-parentheses -fPIE -fstack-protector-strong \
                -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=3 $(CPPFLAGS) $(CFLAGS)
SHIM_LDFLAGS := -Wl,-z,relro,-z,now,-z,noexecstack $(LDFLAGS)
# The shims without the C library, where they can do without: see nolibc.h.
NOLIBC        = -DNOLIBC -nostdlib -ffreestanding -fvisibility=hidden -fno-tree-loop-distribute-patterns -mstack-protector-guard=global
SHIMS        := allocnet-cni allocnet-plugins
SHIM          = $(SHIM_CFLAGS) -o $(BIN)/$$program-shim cmd/$$program/shim/shim.c $(SHIM_LDFLAGS)
FUZZTIME ?= 20s
# The packages of the library's module and of the programs'.
ALL := ./... ./cmd/...
# Modules with requirements of their own, which neither the library nor the programs have.
NESTED := examples/containerd integration/containerd integration/hosts integration/hosts/pod integration/ui

# Commands run with these; tests find the reference plugins through CNI_PATH.
export CNI_PATH := $(PLUGINS)
export PATH     := $(PATH):/usr/local/sbin:/usr/sbin:/sbin

# Without paths of the checkout in what is compiled, all checkouts share the build cache.
export GOFLAGS := $(shell go env GOFLAGS) -trimpath
# Everything is compiled once, for programs and tests; only the race detector needs cgo.
export CGO_ENABLED := 0
# git does not read another user's checkout; without this, go would not build there.
ifneq ($(shell git rev-parse --git-dir >/dev/null 2>&1 && echo readable),readable)
export GOFLAGS := $(GOFLAGS) -buildvcs=false
endif

# Where install puts things; DESTDIR goes before all of them.
PREFIX   := /usr
CNI_BIN  := /opt/cni/bin
UNITS    := $(PREFIX)/lib/systemd/system

.DEFAULT_GOAL := help
.PHONY: help build shim programs install uninstall plugins release package-test deps test quick unit race integration hosts pools runtimes kubernetes kernels ui-test crash stress lint fuzz bench demo clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  \1\t\2/' | expand -t 16

build: shim ## the commands, in bin
	go build -buildmode=$(BUILDMODE) -o $(BIN)/ ./cmd/...

# What runtimes start, if there is a C compiler: static if its library permits that.
shim:
	@mkdir -p $(BIN)
	@rm -f $(SHIMS:%=$(BIN)/%-shim)
	@cc='$(CC)'; arch=$$(go env GOARCH); \
	test $$arch = $$(go env GOHOSTARCH) || case $$arch in \
	  amd64) cc=x86_64-linux-gnu-gcc;; arm64) cc=aarch64-linux-gnu-gcc;; *) cc=gcc-for-$$arch;; esac; \
	command -v $$cc >/dev/null || { \
	  echo "no C compiler ($$cc) for $$arch: runtimes start allocnet-cni itself, which takes longer"; exit 0; }; \
	for program in $(SHIMS); do \
	  $$cc -static-pie $(NOLIBC) $(SHIM) 2>/dev/null || $$cc -static-pie $(SHIM) 2>/dev/null || $$cc -pie $(SHIM) || exit 1; done

# Runtimes may start the plugin at any time: the programs are replaced first, then the
# link, and programs of older versions are removed only after that.
install: ## what build built, the units and the settings: below DESTDIR, PREFIX and CNI_BIN
	tools/place 755 $(DESTDIR)$(PREFIX)/bin $(BIN)/allocnet $(BIN)/allocnetd $(BIN)/allocnet-plugins \
	  $$(ls $(BIN)/allocnet-plugins-shim 2>/dev/null)
	install -d $(DESTDIR)$(CNI_BIN)
	plugin=allocnet-cni; test ! -e $(BIN)/$$plugin-shim || plugin=$$plugin-shim; \
	tools/place 755 $(DESTDIR)$(PREFIX)/lib/allocnet $(BIN)/allocnet-cni $(BIN)/$$plugin && \
	ln -sfn $(PREFIX)/lib/allocnet/$$plugin $(DESTDIR)$(CNI_BIN)/.allocnet.new
	mv -fT $(DESTDIR)$(CNI_BIN)/.allocnet.new $(DESTDIR)$(CNI_BIN)/allocnet
	rm -f $(addprefix $(DESTDIR)$(PREFIX)/lib/allocnet/allocnet-cni-,front alone)
	staged=$$(mktemp -d) && trap 'rm -r "$$staged"' EXIT && \
	sed 's|/usr/bin/|$(PREFIX)/bin/|' packaging/systemd/allocnetd.service >"$$staged/allocnetd.service" && \
	tools/place 644 $(DESTDIR)$(UNITS) "$$staged/allocnetd.service" packaging/systemd/allocnetd.socket
	test -e $(DESTDIR)/etc/allocnet/allocnetd.hcl || tools/place 644 $(DESTDIR)/etc/allocnet packaging/allocnetd.hcl

# Networks whose plugins are allocnet's would lose them.
uninstall: ## what install installed, but for the settings; run it with the same variables
	@links=$$(find $(DESTDIR)$(CNI_BIN) -lname '*/allocnet-plugins' -o -lname '*/allocnet-plugins-shim' 2>/dev/null); test -z "$$links" || { \
	  echo "still in use as plugins:" $$links; echo "run first: allocnet plugins uninstall $(CNI_BIN)"; exit 1; }
	case $$(readlink $(DESTDIR)$(CNI_BIN)/allocnet) in \
	$(PREFIX)/lib/allocnet/*) rm -f $(DESTDIR)$(CNI_BIN)/allocnet;; esac
	rm -f $(addprefix $(DESTDIR)$(UNITS)/,allocnetd.service allocnetd.socket)
	rm -f $(addprefix $(DESTDIR)$(PREFIX)/bin/,allocnet allocnetd allocnet-plugins allocnet-plugins-shim)
	rm -rf $(DESTDIR)$(PREFIX)/lib/allocnet

plugins: ## the reference CNI plugins of the pinned modules, in bin/cni
	@mkdir -p $(PLUGINS)
	cd tools && GOWORK=off go build -o $(PLUGINS)/ $(PLUGIN_PACKAGES)
	cd tools/flannel && GOWORK=off go build -o $(PLUGINS)/ $(MODULE)/meta/flannel

# For both architectures, which takes the C cross compiler that deps installs.
release: ## deb, rpm, archives, image, bills of materials and checksums of this commit, in dist
	packaging/release

# In throwaway copies of this host: see the package comment of integration/packaging.
package-test: ## builds the release twice, and installs, upgrades and removes it under systemd
	ALLOCNET_PACKAGE_TEST=1 go test -v -count=1 -timeout 30m ./integration/packaging

deps: ## what the reference plugins and the tests need of the host (iptables, nft)
	@tools/deps

# What tests start: this module's programs and shims, the fake plugin and cnitool.
TEST_PROGRAMS := $(BIN)/test
programs: $(TEST_PROGRAMS)/shims
	@go build -ldflags="-s -w" -o $(TEST_PROGRAMS)/ ./cmd/... ./internal/testing/fakeplugin/plugin \
	  github.com/containernetworking/cni/cnitool

$(TEST_PROGRAMS)/shims: $(wildcard cmd/*/shim/*)
	@$(MAKE) --no-print-directory shim BIN=$(TEST_PROGRAMS)
	@touch $@

# By default, tests leave out parts of their combinations (go test -short), and the race detector.
ifdef FULL
GOTEST := CGO_ENABLED=1 go test -race
else
GOTEST := go test -short
endif
# Tests wait for the kernel again and again, so more packages run at once than there are cores. Those that take
# the longest begin first. lint has run go vet already. A hundred test binaries link in two thirds of the time
# without what debuggers need.
GOTEST  += -vet=off -ldflags='-s -w' -count=1 -timeout 40m -p 8
LONGEST := ./configurator ./integration ./integration/daemon ./cmd/allocnet-plugins ./integration/policy ./internal/plugins/builtin \
           ./cmd/allocnet ./internal/netlink/ruleset ./internal/plugins/firewall ./cleanup ./cmd/allocnetd ./integration/crash \
           ./internal/plugins/portmap ./internal/bench ./cmd/allocnet-cni ./internal/netlink/watch ./internal/netlink/rtnl \
           ./internal/plugins/bandwidth ./internal/engine/native ./cmd/internal/doctor ./cmd/internal/trace ./cmd/internal/server/api
# Packages whose tests need neither root nor a private host.
PLAIN    = $$(go list -f '{{.ImportPath}} {{.TestImports}} {{.XTestImports}}' $(ALL) | grep -v -e testing/privhost -e testing/testbed | cut -d' ' -f1)

# Less collection of garbage: a sixth of a link's time, a twelfth of a test's.
test quick: export GOGC := 400
test quick unit integration race: export TMPDIR := $(shell tools/tmpdir)
test unit integration race: export ALLOCNET_TEST_PROGRAMS := $(TEST_PROGRAMS)

test: deps ## lint and all tests; with FULL=1 in all combinations, and with the race detector
	@$(MAKE) --no-print-directory programs # first: at once, each would compile the standard library
	@$(MAKE) --no-print-directory -j2 -Otarget lint plugins
	$(GOTEST) $(LONGEST) $$(go list $(ALL) | grep -v integration/cost)
	go test -vet=off -count=1 ./integration/cost # alone: waits on a busy machine make calls
	cd tools && GOWORK=off go test ./...
	@tools/deps remind

quick: ## tests without root and without a kernel: while coding
	go test -short -vet=off $(PLAIN)

unit: plugins programs ## unit and contract tests, of all packages or of PACKAGES
	$(GOTEST) $(or $(PACKAGES),$$(go list $(ALL) | grep -v /integration))
	cd tools && GOWORK=off go test ./...

# Packages with goroutines of their own, and those whose operations run at the same time.
CONCURRENT := ./configurator ./client ./sandbox ./internal/state/... ./internal/netlink/... ./internal/engine/... ./internal/firewalld ./internal/iptables \
              ./internal/plugins/sdk ./cmd/internal/...
race: plugins programs ## what runs concurrently, with the race detector
	CGO_ENABLED=1 go test -race -short -vet=off -count=1 -timeout 30m -p 8 $(CONCURRENT)

integration: plugins programs ## the real kernel, in private namespaces, with the reference plugins; all of it or PACKAGES
	$(GOTEST) $(or $(PACKAGES),./integration/daemon ./integration ./integration/policy $$(go list ./integration/... | grep -v integration/cost))
	go test -vet=off -count=1 ./integration/cost # alone: waits on a busy machine make calls

# Some of these tests are part of test FULL=1.
# The tests build in namespaces without a way to the modules, so these are compiled before.
hosts: deps plugins ## networks over several hosts: etcd, flanneld, Nomad and containerd on three of them
	cd integration/hosts/flanneld && CGO_ENABLED=1 GOWORK=off go build -o /dev/null github.com/flannel-io/flannel
	cd integration/hosts/nomad && CGO_ENABLED=1 GOWORK=off go build -o /dev/null github.com/hashicorp/nomad
	cd integration/hosts/pod && CGO_ENABLED=1 GOWORK=off go build -o /dev/null .
	cd integration/hosts && ALLOCNET_ALL_HOSTS=1 GOWORK=off go test -v -count=1 -timeout 20m .

# Not part of test: Chromium takes time to start, and 1000 allocations to set up.
ui-test: deps ## the page in Chromium, with up to 1000 allocations
	cd integration/ui && GOWORK=off go test -count=1 -timeout 10m ./...

# Some of these tests are part of test, more of test FULL=1.
pools: plugins ## the integration tests with allocations from pools
	ALLOCNET_POOLS=1 go test -v -p 1 -count=1 -timeout 20m -run 'TestContract|TestPool|TestHealPool' ./integration ./integration/daemon ./integration/policy

# A few minutes: the tests start hundreds of containers.
runtimes: deps plugins ## containerd with the library in its client, and with allocnet in CRI
	cd integration/containerd && GOWORK=off go test -v -count=1 -timeout 20m .

# Outside of CI: the first run compiles for half an hour. The version is that of the image in deploy/daemonset.yaml.
KUBERNETES := $(BIN)/kubernetes
kubernetes: deps ## a node of Kubernetes with deploy/daemonset.yaml: etcd to kubelet, compiled from the module proxy
	mkdir -p $(KUBERNETES)
	cd integration/kubernetes/programs && GOWORK=off go build -ldflags='-s -w' -o $(KUBERNETES)/ \
	  $(addprefix k8s.io/kubernetes/cmd/,kube-apiserver kube-controller-manager kube-scheduler kubectl kubelet)
	cd integration/kubernetes/containerd && GOWORK=off go build -ldflags='-s -w' -o $(KUBERNETES)/ \
	  $(addprefix github.com/containerd/containerd/v2/cmd/,containerd containerd-shim-runc-v2 ctr)
	VERSION=1.2.3 ARCHES=$$(go env GOARCH) DIST=$(KUBERNETES)/release packaging/release
	ALLOCNET_KUBERNETES=$(KUBERNETES) go test -v -count=1 -timeout 1h ./integration/kubernetes

# Without KVM, a boot takes seconds and the tests a quarter of an hour for each kernel.
kernels: KERNELS ?= 6.1 6.12
kernels: build plugins programs ## demo, doctor and tests on other kernels, in qemu: KERNELS="6.1 6.12"
	tools/kernels/run $(KERNELS)

# The same tests as in test, at their full size; a run is repeated with its SEED. -v
# shows progress, of several packages with -p 1: without them go test prints nothing until
# the hours are over.
# make test takes every sixtieth of these points, with FULL=1 every twelfth.
crash: plugins ## kills and failing calls at every point of the operations
	ALLOCNET_EVERY_POINT=1 go test -count=1 -timeout 1h ./integration/crash

stress: SEED ?= $(shell date +%s)
stress: plugins ## kills and failing calls in all combinations, with SEED=
	@echo "SEED=$(SEED)"
	SEED=$(SEED) ALLOCNET_STRESS=1 go test -v -count=1 -timeout 4h ./integration/crash
	SEED=$(SEED) ALLOCNET_STRESS=1 go test -v -p 1 -count=1 -timeout 2h -run 'Killed|TestPolicyRandom' ./integration ./integration/daemon ./integration/policy
	SEED=$(SEED) ALLOCNET_CNI_TEST_RANDOM=15m go test -v -count=1 -timeout 2h -run 'TestShim$$' ./cmd/allocnet-cni

lint: ## gofmt, go vet, staticcheck, go mod tidy, each module by itself
	@unformatted=$$(gofmt -l .); test -z "$$unformatted" || { echo "gofmt would change: $$unformatted"; exit 1; }
	go vet $(ALL)
	for module in tools $(NESTED); do (cd $$module && GOWORK=off go vet ./...) || exit 1; done
	for program in $(SHIMS); do \
	  $(CC) -c -Werror $(SHIM_CFLAGS) -o /dev/null cmd/$$program/shim/shim.c || exit 1; \
	  test $$(go env GOARCH) != amd64 || $(CC) -c -Werror $(NOLIBC) $(SHIM_CFLAGS) -o /dev/null cmd/$$program/shim/shim.c || exit 1; \
	done
	cd tools && GOWORK=off go build -o $(BIN)/ honnef.co/go/tools/cmd/staticcheck
	$(BIN)/staticcheck $(ALL)
	for module in $(NESTED); do (cd $$module && GOWORK=off $(BIN)/staticcheck ./...) || exit 1; done
	for module in . cmd tools tools/flannel integration/hosts/flanneld $(NESTED); do (cd $$module && GOWORK=off go mod tidy -diff) || exit 1; done

fuzz: ## every fuzz target for FUZZTIME each
	@for pkg in $$(go list $(ALL)); do \
	  for target in $$(go test -list '^Fuzz' $$pkg | grep ^Fuzz); do \
	    echo "$$pkg $$target"; \
	    go test -run '^$$' -fuzz "^$$target$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 20x $$pkg || exit 1; \
	  done; \
	done

bench: deps plugins ## both engines beside the bare kernel calls: a table, bin/bench.json, bin/bench.svg
	go run ./integration/bench -json $(BIN)/bench.json -svg $(BIN)/bench.svg $(BENCHFLAGS)

# It runs the plugins inside the program: neither binaries nor iptables are needed.
demo: ## two allocations come up, answer, and leave nothing; needs no root
	go build -buildmode=$(BUILDMODE) -o $(BIN)/ ./cmd/allocnet
	@$(BIN)/allocnet demo

clean: ## what the other targets made
	rm -rf $(BIN) dist
