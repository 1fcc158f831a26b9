# SPDX-License-Identifier: Apache-2.0
# af: training on a Slurm cluster's GPUs.
#
#   make          build everything into build/
#   make demo     install what is missing, build, start the sandbox cluster, train on it
#   make test     install what is missing, build, run all tests
#   make deps     install the Debian packages that are missing (without root: print the command)
#   make bench    measure; results in build/bench/results.json
#   make soak MINUTES=10 [SEED=…]  elastic runs under random faults, each one checked (docs/soak.md)
#   make lint     clang-format, clang-tidy, cppcheck, shellcheck
#   make install PREFIX=/opt/af [SLURM_PLUGIN_DIR=…]
#
# Each folder's module.mk says what it builds with three macros:
#   $(call archive,NAME,SOURCES)           build/obj/libNAME.a of the .cc files
#   $(call unit_test,FOLDER,LIBS,FLAGS)    build/tests/unit/FOLDER of tests/unit/FOLDER/*.cc
#   $(call benchmark,NAME,SOURCES,LIBS,FLAGS)  build/bench/NAME
# and appends to ALL (what plain `make` builds) and, for tests' own programs, TEST_PROGRAMS.
# Objects go to build/obj/<path>.o; give a folder its flags with a pattern-specific variable:
#   $(BUILD)/obj/train/%.o: CPPFLAGS += $(TORCH_CPPFLAGS)

BUILD ?= build
PREFIX ?= /opt/af
CXX := $(if $(filter default,$(origin CXX)),g++,$(CXX))
CC := $(if $(filter default,$(origin CC)),gcc,$(CC))
PYTHON ?= /usr/bin/python3
VERSION := $(shell cat VERSION)

OPTIMIZE ?= -O2 -g
HARDEN := -fstack-protector-strong -D_FORTIFY_SOURCE=2 -fcf-protection -D_GLIBCXX_ASSERTIONS
WARN := -Wall -Wextra -Werror -Wnon-virtual-dtor -Wshadow -Wno-missing-field-initializers
CPPFLAGS += -I. -Icollectives/include -Itrain/include -DAF_VERSION='"$(VERSION)"'
CXXFLAGS += -std=c++20 -fPIC -fvisibility=hidden -fvisibility-inlines-hidden $(OPTIMIZE) $(HARDEN) $(WARN)
CFLAGS += -std=gnu11 -fPIC -fvisibility=hidden $(OPTIMIZE) $(HARDEN) -Wall -Wextra -Werror
LDFLAGS += -Wl,-z,relro,-z,now,-z,noexecstack -Wl,--as-needed
LINK = @mkdir -p $(@D); echo "  LINK  $@"; $(CXX) $(CXXFLAGS) $(LDFLAGS) -o $@ $(filter %.o %.a,$^)

ALL :=
UNIT_TESTS :=
TEST_PROGRAMS :=
BENCHMARKS :=

.PHONY: all
all: everything

define archive
$(BUILD)/obj/lib$(1).a: $(patsubst %.cc,$(BUILD)/obj/%.o,$(2))
	@mkdir -p $$(@D); rm -f $$@; ar rcs $$@ $$^
endef

define unit_test
$(BUILD)/tests/unit/$(1): $(patsubst %.cc,$(BUILD)/obj/%.o,$(wildcard tests/unit/$(1)/*.cc)) $(2)
	$$(LINK) $(3) -lgtest -lgtest_main -lpthread
UNIT_TESTS += $(BUILD)/tests/unit/$(1)
endef

define benchmark
$(BUILD)/bench/$(1): $(patsubst %.cc,$(BUILD)/obj/%.o,$(2)) $(3)
	$$(LINK) $(4)
BENCHMARKS += $(BUILD)/bench/$(1)
endef

include $(wildcard */module.mk) $(wildcard examples/*/*/module.mk) $(wildcard tests/module.mk)

$(BUILD)/obj/%.o: %.cc
	@mkdir -p $(@D); echo "  CXX   $<"
	@$(CXX) $(CPPFLAGS) $(CXXFLAGS) -MMD -MP -c -o $@ $<
$(BUILD)/obj/%.o: %.c
	@mkdir -p $(@D); echo "  CC    $<"
	@$(CC) $(CPPFLAGS) $(CFLAGS) -MMD -MP -c -o $@ $<
-include $(shell find $(BUILD)/obj -name '*.d' 2>/dev/null)

.PHONY: everything deps test demo bench lint format install clean unit-tests test-programs
.DEFAULT_GOAL := all
everything: $(ALL)
unit-tests: $(UNIT_TESTS)
test-programs: $(TEST_PROGRAMS)

deps:
	@scripts/deps

# Set-up and work are separate makes: what `deps` installs (pkg-config files, headers) is looked
# at when a makefile is read, so it has to be there before the second one starts.
JOBS ?= $(shell nproc)
test: deps
	@$(MAKE) --no-print-directory -j$(JOBS) everything unit-tests test-programs test-venv
	@tests/run $(TESTS)
# Beside the compilers, since it mostly waits for the network. tests/run says why if it is not there.
.PHONY: test-venv
test-venv:
	@scripts/test-venv || true
demo: deps
	@$(MAKE) --no-print-directory -j$(JOBS) everything
	@scripts/demo
bench: deps
	@$(MAKE) --no-print-directory -j$(JOBS) everything benchmarks
	@scripts/bench
MINUTES ?= 10
.PHONY: soak
soak: deps
	@$(MAKE) --no-print-directory -j$(JOBS) everything
	@scripts/soak --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))
.PHONY: benchmarks
benchmarks: $(BENCHMARKS)
lint:
	@scripts/lint
format:
	@git ls-files '*.cc' '*.h' '*.c' | xargs clang-format -i
install: everything
	@scripts/install "$(DESTDIR)" "$(PREFIX)" "$(SLURM_PLUGIN_DIR)" "$(TORCH_DIR)"
clean:
	rm -rf $(BUILD)/obj $(BUILD)/bin $(BUILD)/lib $(BUILD)/tests $(BUILD)/bench
# The flags of every folder together, for clang-tidy.
.PHONY: print-flags
print-flags:
	@: $(info $(subst ',,-std=c++20 $(CPPFLAGS) $(COMMON_CPPFLAGS) $(TORCH_CPPFLAGS) $(HDF5_CPPFLAGS) $(MPI_CPPFLAGS) $(CUDA_CPPFLAGS) -DSPDLOG_FMT_EXTERNAL -DSPDLOG_COMPILED_LIB))
