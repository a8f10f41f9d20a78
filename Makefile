# Forebay: short names for what Meson, the tests and the scripts do. `make help` lists them.

BUILD    ?= build
PREFIX   ?= /usr/local
SANITIZE ?= build-asan

.PHONY: all demo test unit system lint format bench soak scale install fuzz clean help

all: $(BUILD)/build.ninja ## build build/forebay and the library
	@ninja -C $(BUILD)

# Meson lists the sources when it configures: a folder that got or lost a file is newer than that.
$(BUILD)/build.ninja: $(wildcard src/*/ test/unit/ test/unit/support/ test/fuzz/)
	@meson setup $(if $(wildcard $@),--reconfigure) $(BUILD) --prefix=$(PREFIX) --buildtype=release -Db_ndebug=false >/dev/null
	@touch $@

demo: ## the main job: two epochs of a data set out of a bucket through a mount
	@scripts/demo

test: ## unit tests under sanitizers, then system tests against real servers and clients
	@scripts/test

unit: ## the unit tests alone
	@scripts/test --unit

system: ## the system tests alone
	@scripts/test --system

lint: ## include rule, formatting, house rules, warnings as errors
	@test/lint/all

format: ## clang-format over the tree
	@git ls-files -co --exclude-standard '*.c' '*.h' | xargs clang-format -i

bench: ## measure, about an hour and a half; QUICK=1 for under five minutes, ALL=1 with the heaviest rows
	@bench/run $(if $(QUICK),--quick) $(if $(ALL),--all)

soak: ## the long forms of the tests, seeded
	@scripts/test --soak

scale: all ## 50 million synthetic index entries (ENTRIES=N for fewer)
	@bench/scale $(if $(ENTRIES),$(ENTRIES),50000000)

fuzz: ## run each fuzz target for a minute
	@scripts/fuzz

install: all ## install below PREFIX
	@meson install -C $(BUILD) --no-rebuild

clean: ## remove what was built, not what was installed for the build
	@rm -rf $(BUILD) $(SANITIZE) build-*

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "  make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
