# Strata. `make help` lists the targets. scripts/deps prepares everything this file needs.
#
# Each folder of src/ becomes one static library and may use only the libraries that stand before it in LIBS.
# A unit test tests/unit/<folder>/test_x.c links that folder's library and those before it.

B ?= build
PREFIX ?= /usr/local
DESTDIR ?=
# make presets CC to cc; only a choice of the user's overrides gcc.
ifeq ($(origin CC),default)
CC := gcc
endif
PYTHON ?= python3
FUZZ_SECONDS ?= 60
# Commands are shown short; V=1 shows them whole.
V ?=
Q := $(if $(V),,@)
say = $(if $(V),@:,@echo "  $(1) $(2)")

LIBS := base gguf package plan text model decode engine wire stage serve cli
VERSION := 0.1.0

-include .deps/config.mk

PKGS := libuv libssl libcrypto libmicrohttpd jansson libpcre2-8
PKG_CFLAGS := $(shell pkg-config --cflags $(PKGS) 2>/dev/null)
PKG_LIBS := $(shell pkg-config --libs $(PKGS) 2>/dev/null)

WARN := -Wall -Wextra -Wshadow -Wconversion -Wstrict-prototypes -Wmissing-prototypes -Wvla
OPT ?= -O2 -g
SAN ?=
CPPFLAGS += -D_GNU_SOURCE -Iinclude -Isrc -DSTRATA_VERSION='"$(VERSION)"' -DSTRATA_BACKEND_DIR='"$(GGML_BACKEND_DIR)"'
CFLAGS += -std=c17 $(OPT) $(WARN) $(EXTRA_WARN) $(SAN) -fno-strict-aliasing -pthread $(GGML_CFLAGS) $(PKG_CFLAGS)
LDFLAGS += $(SAN) -pthread $(GGML_LDFLAGS)
LDLIBS += $(GGML_LIBS) $(PKG_LIBS) -lm

# Files named main_*.c hold a program's main function and are in no library.
srcs = $(filter-out src/cli/main_%.c,$(wildcard src/$(1)/*.c) $(wildcard src/$(1)/*/*.c))
objs = $(patsubst %.c,$(B)/%.o,$(call srcs,$(1)))
lib = $(B)/lib$(1).a
# Libraries up to and including $(1), last first: the order in which the linker wants them.
upto = $(shell set -- $(LIBS); out=; for l; do out="$$l $$out"; [ "$$l" = "$(1)" ] && break; done; echo $$out)
libfiles = $(foreach l,$(call upto,$(1)),$(if $(call srcs,$(l)),$(call lib,$(l))))

.PHONY: all demo test unit e2e fuzz bench lint format asan install clean help deps-check
.DEFAULT_GOAL := all
.SECONDARY:

PROGRAMS := $(B)/strata $(B)/skippy-model-package
all: $(PROGRAMS) tools

help:
	@sed -n 's/^## //p' $(MAKEFILE_LIST)

## make            build build/strata
## make demo       cut a real model into a package, serve it over two stages, ask it something
## make test       unit tests, real processes, faults, sanitizers, fuzzers, lint: what CI runs
## make unit       unit tests alone          make e2e    tests on real processes alone
## make asan       unit and process tests under ASan and UBSan
## make fuzz       fuzz targets for FUZZ_SECONDS (60) each, on the committed corpora
## make faults     package operations with every allocation, write, flush and rename failing in turn
## make bench      speed beside llama.cpp, one table
## make bench-engine  the engine beside llama.cpp: decode, prefill, batches, stages, loading; half an hour (BENCH=--quick: 2 minutes)
## make bench-text   tokenizer speed beside llama.cpp, one table
## make bench-package  writing, checking and inspecting packages beside cp and sha256sum, one table (12 GB of disk)
## make lint       formatting, static analysis, -Werror builds with gcc and clang
## make docs       renew the tables of README.md that are made from the code
## make install    install under DESTDIR and PREFIX (/usr/local)
## make clean      remove build folders

deps-check:
	@[ -f .deps/config.mk ] || { echo "run scripts/deps first: it installs or unpacks what the build needs" >&2; exit 1; }

$(B)/%.o: %.c | deps-check
	@mkdir -p $(@D)
	$(call say,CC,$<)
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) -MMD -MP -c $< -o $@

define LIB_RULE
$$(call lib,$(1)): $$(call objs,$(1))
	@mkdir -p $$(@D)
	@rm -f $$@
	@$(AR) rcs $$@ $$^
endef
$(foreach l,$(LIBS),$(eval $(call LIB_RULE,$(l))))

$(B)/strata: $(B)/src/cli/main_strata.o $(call libfiles,cli)
	$(call say,LINK,$@)
	$(Q)$(CC) $(LDFLAGS) -o $@ $< $(call libfiles,cli) $(LDLIBS)

# The package commands alone: of the command line's library only their files are taken, and of the others none that
# computes, connects or serves. It links against the system's own libraries, even where ggml is a private one.
SMALL_PKGS := libcrypto jansson
SMALL_LIBS = $(call lib,cli) $(call libfiles,plan)
$(B)/skippy-model-package: $(B)/src/cli/main_skippy.o $(SMALL_LIBS)
	$(call say,LINK,$@)
	$(Q)$(CC) $(SAN) -pthread -o $@ $< $(SMALL_LIBS) $(shell pkg-config --libs $(SMALL_PKGS) 2>/dev/null)

# Programs for tests and benches: one file each, which may use every library below the command line. mkmodel's parts
# are in a folder of its name.
TOOLS := $(patsubst tests/tools/%.c,$(B)/tools/%,$(wildcard tests/tools/*.c))
tools: $(TOOLS)
.PHONY: tools
$(B)/tools/%: $(B)/tests/tools/%.o $(call libfiles,serve)
	@mkdir -p $(@D)
	$(call say,LINK,$@)
	$(Q)$(CC) $(LDFLAGS) -o $@ $(filter %.o,$^) $(call libfiles,serve) $(LDLIBS)
$(B)/tools/mkmodel: $(patsubst %.c,$(B)/%.o,$(wildcard tests/tools/mkmodel/*.c))

UNIT_SRCS := $(wildcard tests/unit/*/test_*.c)
UNIT_BINS := $(patsubst tests/unit/%.c,$(B)/unit/%,$(UNIT_SRCS))
define UNIT_RULE
$(B)/unit/$(1)/%: $(B)/tests/unit/$(1)/%.o $$(call libfiles,$(1))
	@mkdir -p $$(@D)
	$$(call say,LINK,$$@)
	$$(Q)$$(CC) $$(LDFLAGS) -o $$@ $$< $$(call libfiles,$(1)) $$(LDLIBS) -lcmocka
endef
$(foreach l,$(LIBS),$(eval $(call UNIT_RULE,$(l))))

test-bins: $(UNIT_BINS) fault-bins tools
.PHONY: test-bins

# The runner prints one line a step, the whole output of a step that fails, and the sum at the end.
RUN_TESTS = $(PYTHON) tests/run.py --build $(B)

unit: test-bins
	@$(RUN_TESTS) unit

e2e: all
	@$(RUN_TESTS) e2e

test: all test-bins
	@$(RUN_TESTS) unit e2e faults asan fuzz lint

# The instrumented builds; the runner makes them too, so what they are is said here alone.
asan-build:
	@$(MAKE) --no-print-directory B=build-asan OPT="-O1 -g" \
	    SAN="-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer" all test-bins
fuzz-build:
	@$(MAKE) --no-print-directory B=build-fuzz CC=clang OPT="-O1 -g" \
	    SAN="-fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all" fuzz-bins
.PHONY: asan-build fuzz-build

asan:
	@$(RUN_TESTS) asan

# The fault sweep: package operations with their n-th allocation, write, flush or rename failing. Its linker flags put
# tests/faults/inject.c between our code and the C library.
FAULT_OBJS := $(patsubst %.c,$(B)/%.o,$(wildcard tests/faults/*.c))
$(B)/faults/sweep: $(FAULT_OBJS) $(call libfiles,plan)
	@mkdir -p $(@D)
	$(call say,LINK,$@)
	$(Q)$(CC) $(LDFLAGS) $(shell cat tests/faults/wrap.flags) -o $@ $(FAULT_OBJS) $(call libfiles,plan) $(LDLIBS) -lcmocka
fault-bins: $(B)/faults/sweep
.PHONY: fault-bins

faults: fault-bins
	@$(RUN_TESTS) faults
.PHONY: faults

# Fuzz targets: tests/fuzz/fuzz_x.c with the corpus tests/fuzz/corpus/x.
FUZZ_BINS := $(patsubst tests/fuzz/%.c,$(B)/fuzz/%,$(wildcard tests/fuzz/fuzz_*.c))
$(B)/fuzz/%: $(B)/tests/fuzz/%.o $(call libfiles,serve)
	@mkdir -p $(@D)
	$(call say,LINK,$@)
	$(Q)$(CC) -fsanitize=fuzzer $(LDFLAGS) -o $@ $< $(call libfiles,serve) $(LDLIBS)
fuzz-bins: $(FUZZ_BINS)
.PHONY: fuzz-bins

fuzz:
	@$(RUN_TESTS) --fuzz-seconds $(FUZZ_SECONDS) fuzz

bench: all
	@$(PYTHON) bench/bench.py --build $(B)

# BENCH: further options, such as --quick; see bench/bench_engine.py --help.
BENCH ?=
bench-engine: all tools
	@$(PYTHON) bench/bench_engine.py --build $(B) $(BENCH)
.PHONY: bench-engine

bench-text: all tools
	@$(PYTHON) bench/bench_text.py --build $(B)
.PHONY: bench-text

bench-package: all
	@$(PYTHON) bench/bench_package.py --build $(B)
.PHONY: bench-package

ALL_C = $(shell find include src tests bench -name '*.[ch]' | sort)
lint:
	@clang-format --dry-run -Werror $(ALL_C)
	@cppcheck --quiet --std=c11 --error-exitcode=1 --inline-suppr --suppressions-list=.cppcheck -D_GNU_SOURCE -DSTRATA_VERSION='""' -DSTRATA_BACKEND_DIR='""' \
	    --enable=warning,performance,portability -Iinclude -Isrc -j 2 src tests
	@$(MAKE) --no-print-directory B=build-lint-gcc CC=gcc OPT=-O1 EXTRA_WARN=-Werror all test-bins >/dev/null
	@$(MAKE) --no-print-directory B=build-lint-clang CC=clang OPT=-O1 EXTRA_WARN=-Werror all test-bins >/dev/null
	@echo "lint: clean"

format:
	clang-format -i $(ALL_C)

docs: $(B)/strata
	@$(PYTHON) scripts/docs --build $(B)
.PHONY: docs

demo:
	@scripts/demo

# An installed program must not point into the source tree: it is built anew with the run-time paths of its place.
install:
	@$(MAKE) --no-print-directory B=build/install GGML_RUNDIR=$(if $(GGML_PRIVATE),$(PREFIX)/lib/strata,$(GGML_RUNDIR)) build/install/strata build/install/skippy-model-package
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/share/doc/strata
	install -m 755 build/install/strata build/install/skippy-model-package $(DESTDIR)$(PREFIX)/bin
	install -m 644 README.md CHANGES.md LICENSE docs/*.md $(DESTDIR)$(PREFIX)/share/doc/strata
	$(if $(GGML_PRIVATE),install -d $(DESTDIR)$(PREFIX)/lib/strata && cp -a $(GGML_ROOT)/lib/. $(DESTDIR)$(PREFIX)/lib/strata/)

clean:
	rm -rf build build-*

-include $(shell find $(B) -name '*.d' 2>/dev/null)
