# All that is needed: Go, gcc, make, git and a POSIX shell. Every tool is built from the Go modules
# in hack/tools, pinned and checked by their go.sum; nothing prebuilt is downloaded.

SHELL := /bin/sh
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

# The toolchain that is installed, not another one downloaded behind the back.
export GOTOOLCHAIN := local

# What ships is built without cgo and without paths of the machine. So is everything else here: a package of the module cache
# that was compiled once, for a tool, is compiled for the manager and for the tests too.
export CGO_ENABLED ?= 0
export GOFLAGS     ?= -trimpath

BIN   := $(CURDIR)/bin
K8S   := $(BIN)/k8s
TOOLS := $(BIN)/tools

# The source of each tool's version is the go.mod that pins it: $(call pinned,module dir,module path)
pinned = $(shell sed -n 's|^.*[[:space:]]$(2) \(v[0-9][^ ]*\).*|\1|p' hack/tools/$(1)/go.mod | head -n 1)

K8S_VERSION     := $(call pinned,kubernetes,k8s.io/kubernetes)
ETCD_VERSION    := $(call pinned,etcd,go.etcd.io/etcd/server/v3)
METALLB_VERSION := $(call pinned,metallb,go.universe.tf/metallb)
CILIUM_VERSION  := $(call pinned,cilium,github.com/cilium/cilium)
CAPI_VERSION    := $(call pinned,clusterctl,sigs.k8s.io/cluster-api)

# Clients refuse an API server that does not say its version.
k8s_stamp   := k8s.io/component-base/version
k8s_parts   := $(subst ., ,$(patsubst v%,%,$(K8S_VERSION)))
K8S_LDFLAGS := -s -w \
	-X $(k8s_stamp).gitVersion=$(K8S_VERSION) \
	-X $(k8s_stamp).gitMajor=$(word 1,$(k8s_parts)) \
	-X $(k8s_stamp).gitMinor=$(word 2,$(k8s_parts)) \
	-X $(k8s_stamp).gitTreeState=clean

CONTROL_PLANE := etcd kube-apiserver kube-controller-manager kubectl

ifneq ($(KUBEBUILDER_ASSETS),)
override KUBEBUILDER_ASSETS := $(abspath $(KUBEBUILDER_ASSETS))
export KUBEBUILDER_ASSETS
endif

CAPI_STAMP   := sigs.k8s.io/cluster-api/version
CAPI_LDFLAGS := -s -w -X $(CAPI_STAMP).gitVersion=$(CAPI_VERSION) -X $(CAPI_STAMP).gitTreeState=clean

# What is released: its version, and where its image is. Without a tag of git it is of a series in metadata.yaml:
# clusterctl takes no other.
VERSION ?= $(shell git describe --tags --match 'v*' --dirty 2>/dev/null || echo v0.1.0-dev)
IMAGE   ?= ghcr.io/butlerdotdev/cluster-api-ipam-provider-butler:$(VERSION)

# What the image is built from and when, and for which architectures of Linux. One commit is one image,
# byte for byte, whoever builds it with the same Go.
IMAGE_DIR           ?= $(BIN)/image
IMAGE_ARCHITECTURES ?= amd64 arm64
REVISION            ?= $(shell git describe --always --abbrev=40 --exclude '*' --dirty 2>/dev/null || echo unknown)
SOURCE_DATE_EPOCH   ?= $(shell git log -1 --format=%ct 2>/dev/null || echo 0)

# What a program says of itself: its version, with the commit where that has no tag. It is written by the linker and not by
# Go (-buildvcs): a release is the same, byte for byte, also where there is no git.
COMMIT  ?= $(shell git describe --always --abbrev=12 --exclude '*' --dirty 2>/dev/null || echo unknown)
LINKED  = $(VERSION)$(if $(filter %-dev,$(VERSION)),+$(COMMIT))

BUILD_FLAGS = -buildvcs=false -trimpath -ldflags "-s -w -X github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/version.linked=$(LINKED)"

# The packages that mark, in Go, what each role may do.
RBAC_manager         := ./controllers/pool ./internal/webhooks
RBAC_load_balancers  := ./controllers/cluster ./controllers/providerconfig ./controllers/workloads
RBAC_leases          := ./internal/kinds/leases
RBAC_failure_domains := ./internal/failuredomain
RBAC_endpoints       := ./internal/extension
RBAC_fleet_cidrs     := ./controllers/fleetcidr ./controllers/workloads

# Tests that need more than the manager does are modules of their own.
TEST_MODULES := $(patsubst %/go.mod,%,$(wildcard test/*/go.mod))

# Modules that `make verify` keeps tidy. A tidy module has what the tests of the packages need that it imports: for LB IPAM
# that is the rest of Cilium's operator, which nothing is built of here.
MODULES := . $(TEST_MODULES) $(filter-out hack/tools/cilium,$(patsubst %/go.mod,%,$(wildcard hack/tools/*/go.mod)))

# Tools that compile, with the manager, most of Kubernetes: in the same versions, or it is compiled twice. MetalLB's controller is not
# among them: it does not compile with the controller-runtime of the manager.
ALIGNED := etcd kubernetes clusterctl

# More flags for go test, for ginkgo, and for the programs behind quickstart and bench.
TESTFLAGS ?=
SPECFLAGS ?=
ARGS      ?=

# What tests with rapid draw: the same each time. With 0 each run draws anew, and prints the seed of what fails.
export RAPID_SEED ?= 1

##@ Use

.PHONY: help
help: ## Show this help.
	@awk 'BEGIN { FS = ":.*##" } \
		/^##@/ { printf "\n%s\n", substr($$0, 5) } \
		/^[a-z-]+:.*##/ { printf "  make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "  Where KUBEBUILDER_ASSETS is set, the control plane in that directory is used instead of a built one."

# kubectl is for the one who stays: the demonstration itself does without.
QUICKSTART := $(if $(findstring --exit,$(ARGS)),,$(if $(shell command -v kubectl),,kubectl))

.PHONY: quickstart
quickstart: control-plane-core $(QUICKSTART:%=$(K8S)/%) manager ## Pools and claims on a real API server, here and now (ARGS=--exit: do not stay).
	@go build -buildvcs=false -o $(BIN)/quickstart ./hack/quickstart
	@$(BIN)/quickstart --manager=$(BIN)/manager $(ARGS)

.PHONY: quickstart-elastic
quickstart-elastic: control-plane-core $(QUICKSTART:%=$(K8S)/%) metallb manager ## A workload cluster whose MetalLB pool follows its Services (ARGS=--exit: do not stay).
	@go build -buildvcs=false -o $(BIN)/quickstart ./hack/quickstart
	@$(BIN)/quickstart --elastic --manager=$(BIN)/manager $(ARGS)

.PHONY: quickstart-nodes
quickstart-nodes: control-plane-core $(QUICKSTART:%=$(K8S)/%) manager ## Nodes that get their pod CIDRs, and one that waits for a range (ARGS=--exit: do not stay).
	@go build -buildvcs=false -o $(BIN)/quickstart ./hack/quickstart
	@$(BIN)/quickstart --nodes --manager=$(BIN)/manager $(ARGS)

.PHONY: quickstart-leases
quickstart-leases: control-plane-core $(QUICKSTART:%=$(K8S)/%) metallb manager ## Tenants that lease addresses, and Services that share them by MetalLB (ARGS=--exit: do not stay).
	@go build -buildvcs=false -o $(BIN)/quickstart ./hack/quickstart
	@$(BIN)/quickstart --leases --manager=$(BIN)/manager $(ARGS)

.PHONY: quickstart-host
quickstart-host: control-plane-core $(QUICKSTART:%=$(K8S)/%) manager host-lb ## Two Services on one address, and a host that is killed, in network namespaces: as root (ARGS=--exit: do not stay).
	@go build -buildvcs=false -o $(BIN)/quickstart ./hack/quickstart
	@$(BIN)/quickstart --hosts --manager=$(BIN)/manager $(ARGS)

##@ Build

.PHONY: manager
manager: ## Build the manager: bin/manager.
	CGO_ENABLED=0 go build $(BUILD_FLAGS) -o $(BIN)/manager .

.PHONY: image
image: $(TOOLS)/image ## Build the container image, an OCI archive: bin/image.
	@mkdir -p $(IMAGE_DIR)
	@for arch in $(IMAGE_ARCHITECTURES); do \
		echo "building the manager $(VERSION) for linux/$$arch"; \
		CGO_ENABLED=0 GOOS=linux GOARCH=$$arch go build $(BUILD_FLAGS) -o $(IMAGE_DIR)/manager-$$arch . || exit 1; \
	done
	@$(TOOLS)/image -image $(IMAGE) -version $(VERSION) -revision $(REVISION) -epoch $(SOURCE_DATE_EPOCH) \
		-out $(IMAGE_DIR)/butler-ipam-manager-$(VERSION).tar $(IMAGE_ARCHITECTURES:%=$(IMAGE_DIR)/manager-%)

.PHONY: host-lb
host-lb: ## Build the program that shows addresses on a host: bin/butler-host-lb.
	CGO_ENABLED=0 go build $(BUILD_FLAGS) -o $(BIN)/butler-host-lb ./cmd/butler-host-lb

# Its image is of its own: it runs as root, for what it does to interfaces.
HOST_LB_IMAGE ?= ghcr.io/butlerdotdev/butler-host-lb:$(VERSION)

.PHONY: image-host-lb
image-host-lb: $(TOOLS)/image ## Build the container image of butler-host-lb, an OCI archive: bin/image.
	@mkdir -p $(IMAGE_DIR)
	@for arch in $(IMAGE_ARCHITECTURES); do \
		echo "building butler-host-lb $(VERSION) for linux/$$arch"; \
		CGO_ENABLED=0 GOOS=linux GOARCH=$$arch go build $(BUILD_FLAGS) -o $(IMAGE_DIR)/host-lb-$$arch ./cmd/butler-host-lb || exit 1; \
	done
	@$(TOOLS)/image -program butler-host-lb -user 0:0 -image $(HOST_LB_IMAGE) -version $(VERSION) -revision $(REVISION) -epoch $(SOURCE_DATE_EPOCH) \
		-out $(IMAGE_DIR)/butler-host-lb-$(VERSION).tar $(IMAGE_ARCHITECTURES:%=$(IMAGE_DIR)/host-lb-%)

.PHONY: plugin
plugin: ## Build the kubectl plugin and its completion: bin/kubectl-butler_ipam.
	CGO_ENABLED=0 go build $(BUILD_FLAGS) -o $(BIN)/kubectl-butler_ipam ./cmd/kubectl-butler_ipam
	@install -m 755 cmd/kubectl-butler_ipam/kubectl_complete-butler_ipam $(BIN)/

.PHONY: control-plane control-plane-core
ifneq ($(filter-out $(K8S),$(KUBEBUILDER_ASSETS)),)
control-plane-core: control-plane

control-plane: ## Build etcd, kube-apiserver, kube-controller-manager and kubectl: bin/k8s.
	@for b in etcd kube-apiserver; do \
		test -x "$(KUBEBUILDER_ASSETS)/$$b" || { \
			echo "KUBEBUILDER_ASSETS=$(KUBEBUILDER_ASSETS) holds no $$b: unset it to build one" >&2; exit 1; }; \
	done
	@mkdir -p $(K8S)
	@for b in $(CONTROL_PLANE); do \
		if test -x "$(KUBEBUILDER_ASSETS)/$$b" && ! test -e "$(K8S)/$$b"; then \
			ln -sf "$(KUBEBUILDER_ASSETS)/$$b" "$(K8S)/$$b"; \
		fi; \
	done
	@echo "using the control plane of KUBEBUILDER_ASSETS=$(KUBEBUILDER_ASSETS)"
else
control-plane: $(addprefix $(K8S)/,$(CONTROL_PLANE))
control-plane-core: $(K8S)/etcd $(K8S)/kube-apiserver
endif

.PHONY: metallb
metallb: $(BIN)/metallb-controller ## Build the controller of MetalLB that tests run: bin/metallb-controller.

.PHONY: capi-core
capi-core: $(BIN)/capi-core ## Build the core manager of Cluster API that tests run: bin/capi-core.

.PHONY: cilium
cilium: $(BIN)/cilium-lbipam ## Build the LB IPAM of Cilium that tests run: bin/cilium-lbipam.

# $(call build,module dir,package,what,how long,flags)
define build
	@echo "building $(3) from source: about $(4) on two cores, once"
	@mkdir -p $(@D) && rm -f $@
	@cd hack/tools/$(1) && CGO_ENABLED=0 go build -buildvcs=false -trimpath $(5) -o $@ $(2)
	@touch $@
endef

$(K8S)/etcd: hack/tools/etcd/go.mod hack/tools/etcd/go.sum
	$(call build,etcd,go.etcd.io/etcd/server/v3,etcd $(ETCD_VERSION),30 seconds,-ldflags "-s -w")

# The first of the three compiles what the others share.
$(K8S)/kube-apiserver: hack/tools/kubernetes/go.mod hack/tools/kubernetes/go.sum
	$(call build,kubernetes,k8s.io/kubernetes/cmd/kube-apiserver,kube-apiserver $(K8S_VERSION),5 minutes,-ldflags "$(K8S_LDFLAGS)")

$(K8S)/kube-controller-manager: hack/tools/kubernetes/go.mod hack/tools/kubernetes/go.sum | $(K8S)/kube-apiserver
	$(call build,kubernetes,k8s.io/kubernetes/cmd/kube-controller-manager,kube-controller-manager $(K8S_VERSION),2 minutes,-ldflags "$(K8S_LDFLAGS)")

$(K8S)/kubectl: hack/tools/kubernetes/go.mod hack/tools/kubernetes/go.sum | $(K8S)/kube-controller-manager
	$(call build,kubernetes,k8s.io/kubernetes/cmd/kubectl,kubectl $(K8S_VERSION),1 minute,-ldflags "$(K8S_LDFLAGS)")

# Not part of the tests: those of hosts with it are skipped where it was not built, or there is no nft.
.PHONY: kube-proxy
kube-proxy: $(K8S)/kube-proxy

$(K8S)/kube-proxy: hack/tools/kubernetes/go.mod hack/tools/kubernetes/go.sum | $(K8S)/kube-apiserver
	$(call build,kubernetes,k8s.io/kubernetes/cmd/kube-proxy,kube-proxy $(K8S_VERSION),1 minute,-ldflags "$(K8S_LDFLAGS)")

$(BIN)/nft/nft:
	@echo "unpacking Debian's nft into bin/nft: 2 MB, once"
	@hack/unpack.sh $(BIN)/nft nftables nft

$(BIN)/metallb-controller: hack/tools/metallb/go.mod hack/tools/metallb/go.sum
	$(call build,metallb,go.universe.tf/metallb/controller,the MetalLB controller $(METALLB_VERSION),2 minutes,-ldflags "-s -w")

$(BIN)/capi-core: hack/tools/clusterctl/go.mod hack/tools/clusterctl/go.sum
	$(call build,clusterctl,sigs.k8s.io/cluster-api/core,the core manager of Cluster API $(CAPI_VERSION),1 minute,-ldflags "$(CAPI_LDFLAGS)")

$(BIN)/cilium-lbipam: hack/tools/cilium/go.mod hack/tools/cilium/go.sum hack/tools/cilium/main.go
	$(call build,cilium,.,the LB IPAM of Cilium $(CILIUM_VERSION),2 minutes,-ldflags "-s -w")

$(TOOLS)/controller-gen: hack/tools/controller-gen/go.mod hack/tools/controller-gen/go.sum
	$(call build,controller-gen,sigs.k8s.io/controller-tools/cmd/controller-gen,controller-gen,30 seconds,-ldflags "-s -w")

$(TOOLS)/crd-ref-docs: hack/tools/crd-ref-docs/go.mod hack/tools/crd-ref-docs/go.sum
	$(call build,crd-ref-docs,github.com/elastic/crd-ref-docs,crd-ref-docs,20 seconds,-ldflags "-s -w")

$(TOOLS)/kustomize: hack/tools/kustomize/go.mod hack/tools/kustomize/go.sum
	$(call build,kustomize,sigs.k8s.io/kustomize/kustomize/v5,kustomize,20 seconds,-ldflags "-s -w")

$(TOOLS)/clusterctl: hack/tools/clusterctl/go.mod hack/tools/clusterctl/go.sum
	$(call build,clusterctl,sigs.k8s.io/cluster-api/cmd/clusterctl,clusterctl $(CAPI_VERSION),30 seconds,-ldflags "$(CAPI_LDFLAGS)")

$(TOOLS)/image: hack/tools/image/go.mod hack/tools/image/go.sum $(wildcard hack/tools/image/*.go)
	$(call build,image,.,the image packer,5 seconds,-ldflags "-s -w")

$(TOOLS)/golangci-lint: hack/tools/golangci-lint/go.mod hack/tools/golangci-lint/go.sum
	$(call build,golangci-lint,github.com/golangci/golangci-lint/v2/cmd/golangci-lint,golangci-lint,2 minutes,-ldflags "-s -w")

# golangci-lint with one linter more: one module pins both.
$(TOOLS)/kube-api-linter: hack/tools/golangci-lint/go.mod hack/tools/golangci-lint/go.sum
	$(call build,golangci-lint,sigs.k8s.io/kube-api-linter/cmd/golangci-lint-kube-api-linter,kube-api-linter,20 seconds,-ldflags "-s -w")

$(TOOLS)/actionlint: hack/tools/actionlint/go.mod hack/tools/actionlint/go.sum
	$(call build,actionlint,github.com/rhysd/actionlint/cmd/actionlint,actionlint,5 seconds,-ldflags "-s -w")

$(TOOLS)/crane: hack/tools/crane/go.mod hack/tools/crane/go.sum
	$(call build,crane,github.com/google/go-containerregistry/cmd/crane,crane,5 seconds,-ldflags "-s -w")

$(TOOLS)/cyclonedx-gomod: hack/tools/cyclonedx-gomod/go.mod hack/tools/cyclonedx-gomod/go.sum
	$(call build,cyclonedx-gomod,github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod,cyclonedx-gomod,20 seconds,-ldflags "-s -w")

$(TOOLS)/cosign: hack/tools/cosign/go.mod hack/tools/cosign/go.sum
	$(call build,cosign,github.com/sigstore/cosign/v3/cmd/cosign,cosign,3 minutes,-ldflags "-s -w")

$(TOOLS)/govulncheck: hack/tools/govulncheck/go.mod hack/tools/govulncheck/go.sum
	$(call build,govulncheck,golang.org/x/vuln/cmd/govulncheck,govulncheck,5 seconds,-ldflags "-s -w")

##@ Generate

# $(call role,name,file,packages)
role = $(TOOLS)/controller-gen rbac:roleName=$(1),fileName=$(2) $(addprefix paths=,$(3)) output:rbac:artifacts:config=config/rbac

.PHONY: generate
generate: crds docs/fields.md $(TOOLS)/controller-gen ## Regenerate everything: deep copies, CRDs, RBAC role, webhook manifests, docs/fields.md.
	$(TOOLS)/controller-gen object paths=./api/...
	$(TOOLS)/controller-gen webhook paths=./internal/webhooks output:webhook:artifacts:config=config/webhook
	$(call role,manager-role,role.yaml,$(RBAC_manager))
	$(call role,load-balancers-role,load_balancers_role.yaml,$(RBAC_load_balancers))
	$(call role,leases-role,leases_role.yaml,$(RBAC_leases))
	$(call role,failure-domains-role,failure_domains_role.yaml,$(RBAC_failure_domains))
	$(call role,fleet-node-cidrs-role,fleet_node_cidrs_role.yaml,$(RBAC_fleet_cidrs))
	$(call role,control-plane-endpoints-role,control_plane_endpoints_role.yaml,$(RBAC_endpoints))

.PHONY: crds
crds: $(TOOLS)/controller-gen ## Regenerate the CRDs: config/crd/bases.
	$(TOOLS)/controller-gen crd paths=./api/... output:crd:artifacts:config=config/crd/bases

.PHONY: docs/fields.md
docs/fields.md: $(TOOLS)/crd-ref-docs
	@$(TOOLS)/crd-ref-docs --log-level=ERROR --source-path=api/v1alpha1 --renderer=markdown --output-path=$@ \
		--config=hack/tools/crd-ref-docs/config.yaml --templates-dir=hack/tools/crd-ref-docs/templates

.PHONY: align
align: ## Raise the modules that the control plane and the manager both compile to one version.
	@hack/align.sh mend $(ALIGNED)

##@ Check

# What takes minutes to compile is compiled before, not beside tests that watch the clock. Two parts run at a time, the longest
# first, and all of them run, whichever fails.
# $(call gotest,SHORT)
define gotest
	@$(MAKE) --no-print-directory -k -j2 test-specs-integration test-packages $(patsubst %,test-specs-%,$(filter-out integration,$(call suites,$(1)))) SHORT=$(1)
endef
GOTEST = go test -count=1 $(if $(SHORT),-short -timeout=20m,-timeout=60m) $(TESTFLAGS)

.PHONY: test
test: control-plane manager ## Run the tests: about ten minutes on two cores. Whole systems are left out, loads are smaller (go test -short).
	$(call gotest,yes)

.PHONY: test-all
test-all: test-tools ## Run every test, at its full length.
	$(call gotest,)

# The tests of the image build the manager and the packer once more.
.PHONY: test-tools
test-tools: control-plane metallb cilium capi-core $(TOOLS)/clusterctl $(TOOLS)/kustomize manager $(TOOLS)/image ## Build the programs that the tests run.

# The parts of the tests: `make test-all` runs what all of them run on one machine, .github/workflows/test.yaml each in a job of its own.
# test/release compares the three. Those of SHARED_SUITES wait more than they compute: some processes share the specs of each, and have
# an API server each.
SHARED_SUITES := integration hostlb e2e
TEST_PARTS    := test-unit test-system test-modules $(SHARED_SUITES:%=test-specs-%)

unit_packages   = go list ./... | grep -v /test/
system_packages = go list ./test/... | grep -v $(foreach s,$(SHARED_SUITES),-e /test/$(s)$$)
test_modules    = for m in $(TEST_MODULES); do (cd $$m && $(GOTEST) ./...) || exit 1; done

# $(call suites,SHORT)
suites = $(if $(1),$(filter-out e2e,$(SHARED_SUITES)),$(SHARED_SUITES))

# $(call ginkgo,suites)
ginkgo = go run -buildvcs=false github.com/onsi/ginkgo/v2/ginkgo -procs=3 -keep-going -no-color -timeout=$(if $(SHORT),40m,90m) $(SPECFLAGS) \
	$(1:%=./test/%) -- $(if $(SHORT),-test.short)

.PHONY: test-specs
test-specs: control-plane
	$(call ginkgo,$(call suites,$(SHORT)))

.PHONY: test-packages
test-packages: control-plane
	$(GOTEST) $$($(unit_packages); $(system_packages))
	@$(test_modules)

.PHONY: $(TEST_PARTS)
$(TEST_PARTS): control-plane

test-unit:
	$(GOTEST) $$($(unit_packages))

test-system:
	$(GOTEST) $$($(system_packages))

test-modules:
	@$(test_modules)

$(filter test-specs-%,$(TEST_PARTS)): test-specs-%:
	$(call ginkgo,$*)

# Some tests run make themselves, which is not to take part in this one's jobs.
test-packages test-unit test-system test-modules: export MAKEFLAGS =

# Each schedule runs twice: one that does not ask the same both times is recorded as such.
.PHONY: requests
requests: ## Record what each schedule asks of the API server, as hashes: test/faults/requests. Where nothing is to change, git diff is empty (ARGS=-full).
	@mkdir -p test/faults/requests
	@for p in internal/allocator internal/nodeipam controllers/lease controllers/tenant; do \
		go test "./$$p" -count=2 -timeout=4h $(TESTFLAGS) -args -requests="$(CURDIR)/test/faults/requests/$$(basename $$p).txt" $(ARGS) || exit 1; \
	done

# What the page ships of npm, and what its tests use: the lock file has the versions and checksums.
NPM := $(BIN)/npm/node_modules
$(NPM): test/page/package.json test/page/package-lock.json
	@mkdir -p $(@D) && cp $^ $(@D) && cd $(@D) && npm ci --silent --ignore-scripts --no-audit --no-fund && touch $@

.PHONY: page-vendor
page-vendor: $(NPM) ## Copy uPlot from its npm package into the page.
	cp $(NPM)/uplot/dist/uPlot.iife.min.js $(NPM)/uplot/dist/uPlot.min.css $(NPM)/uplot/LICENSE internal/page/static/vendor/

# Without npm, what needs its packages is skipped: whether uPlot is that of npm, and axe-core.
.PHONY: page-test
page-test: $(if $(shell command -v npm 2>/dev/null),$(NPM)) ## Open the page of pools in a headless Chromium: Debian's, unpacked into bin, or CHROMIUM=path. Screenshots: bin/page.
	@test -n "$(CHROMIUM)" || test -x $(BIN)/chromium/chromium || { \
		echo "unpacking Debian's Chromium and what it needs into bin/chromium: 270 MB, once"; \
		hack/chromium.sh $(BIN)/chromium; }
	cd test/page && go test -count=1 -v $(TESTFLAGS) .

.PHONY: page-images
page-images: page-test ## Take the pictures of docs/page.md and README.md anew: docs/images.
	cp $(BIN)/page/docs/*.png docs/images/

.PHONY: host-lb-test
host-lb-test: control-plane $(K8S)/kube-proxy $(if $(shell command -v nft 2>/dev/null),,$(BIN)/nft/nft) ## Run the tests of hosts, with the real kube-proxy and nft too: the installed one, or Debian's, unpacked into bin. As root.
	KUBE_PROXY=$(K8S)/kube-proxy NFT=$(or $(shell command -v nft 2>/dev/null),$(BIN)/nft/nft) go test -count=1 -v -timeout=30m $(TESTFLAGS) ./test/hostlb

.PHONY: test-race
test-race: control-plane metallb cilium capi-core $(TOOLS)/clusterctl $(TOOLS)/kustomize ## Run the tests under the race detector, and the managers that they start.
	GOFLAGS=-race CGO_ENABLED=1 go test -count=1 -timeout=60m $(TESTFLAGS) $$(go list ./... | grep -v /test/image)

.PHONY: move-kills
move-kills: control-plane $(TOOLS)/clusterctl $(TOOLS)/kustomize ## Kill clusterctl move at 20 random moments and leave it, there and back, which takes an hour or two (ARGS="-move-kills 3 -move-seed N -move-pause 80s").
	go test -count=1 -v -timeout=4h $(TESTFLAGS) ./test/clusterctl -ginkgo.v -ginkgo.focus 'killed again and again' -args -move-kills 20 $(ARGS)

.PHONY: chaos
chaos: control-plane manager ## Kill, freeze and double managers under churn, and check the history (ARGS="-seed N -kills 1000 -claims 100000").
	go run -buildvcs=false ./test/chaos -manager $(BIN)/manager -out $(BIN)/chaos $(ARGS)

# What they find is written to testdata/fuzz of the package, and is a test from then on.
FUZZTIME ?= 1m

.PHONY: fuzz
fuzz: control-plane ## Fuzz whatever reads what others write, each target for FUZZTIME (1m); ARGS are more flags of go test.
	@grep -rEo '^func Fuzz[A-Za-z]+' --include='*_test.go' internal test | sed 's|/[^/]*_test.go:func | |' | sort | \
	while read -r package target; do \
		echo "$$target of $$package"; \
		go test "./$$package" -run='^$$' -fuzz="^$$target\$$" -fuzztime=$(FUZZTIME) -parallel=1 $(ARGS) || exit 1; \
	done

# Not part of the tests: it takes minutes, and spin is Debian's.
SPIN ?= $(or $(shell command -v spin 2>/dev/null),$(TOOLS)/spin)

.PHONY: model
model: $(filter $(TOOLS)/spin,$(SPIN)) ## Check the model of the protocol exhaustively with spin: the installed one, or Debian's unpacked into bin. ARGS="trace RULE".
	@SPIN=$(SPIN) docs/model/check.sh $(ARGS)

$(TOOLS)/spin:
	@echo "unpacking Debian's spin into $(TOOLS): 1 MB, once"
	@rm -rf $@.deb && mkdir -p $@.deb
	@{ cd $@.deb && apt-get --quiet --quiet download spin && dpkg --extract spin_*.deb . && mv usr/bin/spin $@; } || { \
		echo "no spin: install it (apt-get install spin), or make model SPIN=path" >&2; exit 1; }
	@rm -rf $@.deb

# That the patches apply and compile, and that the tests they name exist, is part of `make test`.
.PHONY: mutants
mutants: $(if $(findstring -all,$(ARGS)),control-plane metallb cilium capi-core) ## Put known bugs back, one at a time, and see that the tests find each (ARGS=-all: slow tests too).
	@go run -buildvcs=false ./test/mutants $(ARGS)

.PHONY: bench
bench: control-plane manager ## Measure the library, then the manager against a real API server.
	go test -run='^$$' -bench=. -benchmem ./internal/poolutil
	go run -buildvcs=false ./test/bench -manager $(BIN)/manager $(ARGS)

.PHONY: bench-host-lb
bench-host-lb: ## Measure how hosts forward ports, beside Debian's HAProxy and nginx, unpacked into bin (root; in namespaces of its own).
	@test -x $(BIN)/proxies/haproxy -a -x $(BIN)/proxies/nginx || { \
		echo "unpacking Debian's HAProxy and nginx into bin/proxies: 7 MB, once"; \
		hack/proxies.sh $(BIN)/proxies || echo "they cannot be unpacked here: ours is measured alone" >&2; }
	@go build -buildvcs=false -o $(BIN)/hostbench ./test/hostbench
	@$(BIN)/hostbench -proxies $(BIN)/proxies $(ARGS)

.PHONY: bench-hosts
bench-hosts: control-plane ## Measure hosts at rest, when one ends, and while the API server is away (root; OUTAGE=10m, ADDRESSES=1000).
	MEASURE=yes OUTAGE=$(OUTAGE) ADDRESSES=$(ADDRESSES) go test -count=1 -v -timeout=40m ./test/hostlb -ginkgo.v -ginkgo.focus='A measurement'

.PHONY: lint
lint: $(TOOLS)/golangci-lint $(TOOLS)/kube-api-linter $(TOOLS)/actionlint ## Lint.
	go test ./test/docs -run TestRetiredWords
	$(TOOLS)/actionlint
	$(TOOLS)/golangci-lint run
	$(TOOLS)/kube-api-linter run --config .golangci-kal.yml ./api/...
	@for m in $(TEST_MODULES); do echo "golangci-lint run: $$m"; (cd $$m && $(TOOLS)/golangci-lint run) || exit 1; done

# Not part of make verify: the database is a service, and what it says changes by itself.
.PHONY: vulncheck
vulncheck: $(TOOLS)/govulncheck ## Look up what we call in Go's vulnerability database: vuln.go.dev, or GOVULNDB=file:///dir of a copy.
	@for m in . $(TEST_MODULES); do echo "govulncheck: $$m"; (cd $$m && $(TOOLS)/govulncheck $(if $(GOVULNDB),-db $(GOVULNDB)) -test ./...) || exit 1; done

.PHONY: verify
verify: generate lint manifests ## Regenerate everything, lint, and fail on any diff or untracked file.
	@for m in $(MODULES); do \
		echo "go mod tidy -diff: $$m"; \
		(cd $$m && go mod tidy -diff) || { echo "$$m/go.mod is not tidy" >&2; exit 1; }; \
	done
	@hack/align.sh check $(ALIGNED)
	@echo "modules of $(ALIGNED): as the root has them"
	@changed="$$(git status --porcelain)" || exit 1; \
	if [ -n "$$changed" ]; then \
		git --no-pager diff; \
		printf 'the tree is not what was committed:\n%s\n' "$$changed" >&2; exit 1; \
	fi

# clusterctl takes $${...} for a variable of its own, wherever it stands.
.PHONY: manifests
manifests: $(TOOLS)/kustomize
	@out="$$($(TOOLS)/kustomize build config/default)" || exit 1; \
	if printf '%s\n' "$$out" | grep -n '[$$]{'; then \
		echo "config/default: a literal \$${ in the manifests" >&2; exit 1; \
	fi
	@echo "kustomize build config/default: ok"
	@for d in samples prometheus policy nodes host-lb $(COMPONENTS:%=components/%); do $(TOOLS)/kustomize build config/$$d >/dev/null && echo "kustomize build config/$$d: ok" || exit 1; done

.PHONY: clean
clean: ## Remove what was built, but for the tools and the control plane.
	rm -rf $(BIN)/manager $(BIN)/butler-host-lb $(BIN)/quickstart $(BIN)/image $(BIN)/plugin $(BIN)/release $(BIN)/kubectl-butler_ipam $(BIN)/kubectl_complete-butler_ipam

include hack/release.mk
