# The verbs that people type. Everything else is CMake: see CMakePresets.json and CONTRIBUTING.md.
BUILD ?= build
JOBS ?= $(shell nproc)
CTEST := ctest --test-dir $(BUILD) --output-on-failure --no-tests=error -j $(JOBS) --test-output-size-passed 4194304

PREFIX ?= /usr/local

.PHONY: help deps configure build install demo test test-long bench format sim clean

help:
	@echo "make demo       install packages, build, word count and sort over 64 MiB of licence texts, Fashion-MNIST on 2 ranks"
	@echo "make test       install packages, build, run the tests"
	@echo "make test-long  the same with the long tests, then under ASan with UBSan, then under TSan"
	@echo "make install    the command, and the package for programs of your own, to PREFIX=/usr/local"
	@echo "make build      packages and build only          make sim     the simulation tests only"
	@echo "make bench      speed against hand-written floors and other tools (takes long; see docs/performance.md)"
	@echo "make format     clang-format-19 over all sources   make clean   removes the build folders"

deps:
	@deploy/install-deps.sh

configure: deps
	@cmake -S . -B $(BUILD) -G Ninja >$(BUILD).log 2>&1 || { cat $(BUILD).log; exit 1; }
	@grep -E '^-- (CUDA|Build type)' $(BUILD).log || true

build: configure
	cmake --build $(BUILD) -j $(JOBS)

install: configure
	cmake --build $(BUILD) -j $(JOBS) --target installable
	@cmake --install $(BUILD) --prefix $(PREFIX) >$(BUILD)-install.log || { cat $(BUILD)-install.log; exit 1; }
	@echo "installed to $(PREFIX): bin/ropewalk, and for find_package: -DCMAKE_PREFIX_PATH=$(PREFIX)"

demo: configure
	cmake --build $(BUILD) -j $(JOBS) --target ropewalk ropewalk-jobs ropewalk-train
	@deploy/demo.sh $(BUILD)

# The list of skipped tests is compared with tests/skipped.txt even when tests failed, but the tests' own verdict comes first.
test: build
	@$(CTEST) -LE '^long$$' --output-junit ctest.xml; rc=$$?; \
	tests/tools/check_skipped.py $(BUILD)/ctest.xml tests/skipped.txt || rc=$$(( rc ? rc : 1 )); exit $$rc

test-long: build
	$(CTEST) --output-junit ctest-long.xml
	tests/tools/check_skipped.py $(BUILD)/ctest-long.xml tests/skipped.txt
	for preset in asan tsan; do \
	  cmake --preset $$preset && cmake --build --preset $$preset -j $(JOBS) && \
	  ctest --preset $$preset -j $(JOBS) --test-output-size-passed 4194304 --output-junit ctest-$$preset.xml && \
	  tests/tools/check_skipped.py build-$$preset/ctest-$$preset.xml tests/skipped.txt || exit 1; \
	done

sim: build
	$(CTEST) -L '^simulation$$'

bench: build
	bench/run.py --build $(BUILD)

format:
	git ls-files '*.h' '*.cc' | xargs clang-format-19 -i

clean:
	rm -rf build build-* build.log build-install.log
