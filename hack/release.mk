##@ Release

# A release is what this directory holds, which is a local repository for clusterctl, too.
RELEASE := $(BIN)/release/ipam-butler/$(VERSION)

# What a manager does beside fulfilling claims: each is a manifest that turns it on.
COMPONENTS := $(notdir $(wildcard config/components/*))

# What can be installed: directories of config, and the name of the file where it is another.
RELEASE_MANIFESTS := default:ipam-components no-webhook:ipam-components-no-webhook nodes:ipam-components-nodes prometheus policy host-lb \
	$(foreach c,$(COMPONENTS),components/$(c):component-$(c))

# The steps of .github/workflows/release.yaml, in its order. `make release-dry-run` takes all of them.
RELEASE_BUILD   := release-notes release-manifests release-plugin release-images release-sboms release-checksums
RELEASE_PUBLISH := release-push release-sign release-verify

release-%: export VERSION := $(VERSION)
release-%: export RELEASE := $(RELEASE)
release-%: export RELEASE_NOTES := $(BIN)/release/notes.md
release-%: export PUSHED := $(BIN)/release/pushed.txt

.PHONY: release-steps
release-steps:
	@printf '%s\n' $(RELEASE_BUILD) $(RELEASE_PUBLISH)

.PHONY: release-notes
release-notes: ## Write what CHANGELOG.md says of VERSION: bin/release/notes.md.
	@hack/release.sh notes

# No variables: with one in place of the image, clusterctl can neither list the images nor describe the provider. Who has
# another registry says so in clusterctl's own configuration, under images.
.PHONY: release-manifests
release-manifests: manifests ## Write what is installed, by clusterctl or kubectl, of a VERSION with an IMAGE: bin/release.
	@v="$(VERSION)"; v=$${v#v}; minor=$${v#*.}; \
	grep -A 1 "major: $${v%%.*}$$" metadata.yaml | grep -q "minor: $${minor%%.*}$$" && test "v$$v" = "$(VERSION)" || { \
		echo "VERSION=$(VERSION) is not vMAJOR.MINOR.PATCH of a series in metadata.yaml: clusterctl would not take it" >&2; exit 1; }
	@mkdir -p $(RELEASE)
	@for m in $(RELEASE_MANIFESTS); do \
		out="$$($(TOOLS)/kustomize build config/$${m%:*})" || exit 1; \
		printf '%s\n' "$$out" | sed 's|image: controller:latest|image: $(IMAGE)|; s|image: host-lb:latest|image: $(HOST_LB_IMAGE)|' \
			>$(RELEASE)/$${m#*:}.yaml; \
	done
	@cp metadata.yaml $(wildcard templates/cluster-template*.yaml) $(RELEASE)
	@ls $(RELEASE)/*
	@echo "for clusterctl: url: $(RELEASE)/ipam-components.yaml"

PLUGIN_PLATFORMS := linux/amd64 linux/arm64 darwin/amd64 darwin/arm64 windows/amd64

# One commit is one archive, byte for byte, whoever builds it. tar is GNU's.
TAR_SAME := --format=ustar --sort=name --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX --mtime=@$(SOURCE_DATE_EPOCH)

.PHONY: plugin-archives
plugin-archives: ## Build the archives that .krew.yaml names: bin/plugin.
	@for p in $(PLUGIN_PLATFORMS); do \
		os=$${p%/*}; arch=$${p#*/}; dir=$(BIN)/plugin/$$os-$$arch; exe=; \
		if test $$os = windows; then exe=.exe; fi; \
		echo "building the plugin $(VERSION) for $$p"; \
		rm -rf $$dir && mkdir -p $$dir && \
		CGO_ENABLED=0 GOOS=$$os GOARCH=$$arch go build $(BUILD_FLAGS) -o $$dir/kubectl-butler_ipam$$exe ./cmd/kubectl-butler_ipam && \
		cp LICENSE cmd/kubectl-butler_ipam/kubectl_complete-butler_ipam $$dir && \
		tar $(TAR_SAME) -cf - -C $$dir . | gzip -9n >$(BIN)/plugin/kubectl-butler_ipam_$${os}_$$arch.tar.gz || exit 1; \
	done

.PHONY: release-plugin
release-plugin: plugin-archives ## Put the archives of the plugin into bin/release.
	@mkdir -p $(RELEASE) && cp $(BIN)/plugin/*.tar.gz $(RELEASE)

# The archives come first in a line of images.txt, what a registry calls the image second.
.PHONY: release-images
release-images: ## Build the container images, OCI archives, and list their digests: bin/release.
	@mkdir -p $(RELEASE)
	@rm -f $(IMAGE_DIR)/*.tar
	@out="$$($(MAKE) --no-print-directory image image-host-lb)" || { printf '%s\n' "$$out"; exit 1; }; \
	printf '%s\n' "$$out" | sed -n 's|^.*/\([^/]*\.tar\): \(.*@sha256:[0-9a-f]*\)$$|\1 \2|p' | tee $(RELEASE)/images.txt
	@cp $(IMAGE_DIR)/*.tar $(RELEASE)

# Of what was built, as it was built. The licenses of modules are read in the module cache, once all are there: nobody is
# asked for a release that is not there yet, and go.sum has vouched for the modules.
SBOMS := butler-ipam-manager:$(IMAGE_DIR)/manager-amd64 butler-host-lb:$(IMAGE_DIR)/host-lb-amd64 \
	kubectl-butler_ipam:$(BIN)/plugin/linux-amd64/kubectl-butler_ipam

.PHONY: release-sboms
release-sboms: $(TOOLS)/cyclonedx-gomod ## List which modules the programs are made of, in CycloneDX: bin/release.
	@go mod download
	@for s in $(SBOMS); do \
		GOPROXY=off GOSUMDB=off $(TOOLS)/cyclonedx-gomod bin -json -licenses -std -noserial -notimestamp -version $(VERSION) \
			-output $(RELEASE)/$${s%%:*}.cdx.json $${s#*:} || exit 1; \
	done

.PHONY: release-checksums
release-checksums: ## Write the SHA-256 of all that is released: checksums.txt in bin/release.
	@hack/release.sh checksums

.PHONY: release-login
release-login: $(TOOLS)/crane ## Log in to the registry of the images, with REGISTRY_USER and REGISTRY_TOKEN.
	@hack/release.sh login $(IMAGE)

.PHONY: release-push
release-push: $(TOOLS)/crane ## Push the images, to their registry or the one that PUSH_TO names.
	@hack/release.sh push

.PHONY: release-sign
release-sign: $(TOOLS)/cosign ## Sign images, checksums and SBOMs as the workflow that runs, or with the key that COSIGN_KEY names.
	@hack/release.sh sign

.PHONY: release-verify
release-verify: $(TOOLS)/cosign ## Verify checksums and signatures, as users do.
	@hack/release.sh verify

.PHONY: release-draft
release-draft: ## Draft the release on GitHub, with all that is in bin/release.
	@hack/release.sh draft

.PHONY: release-dry-run
release-dry-run: $(TOOLS)/crane $(TOOLS)/cosign $(TOOLS)/cyclonedx-gomod ## Make a release and publish nothing: pushed to a registry on this machine, signed with a key that is thrown away.
	@hack/release-dry-run.sh "$(RELEASE_BUILD)" "$(RELEASE_PUBLISH)"
