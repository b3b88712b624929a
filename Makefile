# The front door: each target is a few commands of tools/setup.sh, CMake (CMakePresets.json), CTest or pytest.
# `make help` lists them. Nothing here needs more than the make that comes with macOS.

PREFIX ?= /usr/local
DESTDIR ?=
BUILD_DIR ?= build
JOBS ?= $(shell getconf _NPROCESSORS_ONLN)
PROMPT ?= What is 17 plus 25?
START := $(shell date +%s)

# More for CMake, such as -DCALLA_CUDA_ARCHITECTURES=OFF.
CMAKE_FLAGS ?=
CONFIGURE = cmake -B "$(BUILD_DIR)" -DCMAKE_INSTALL_PREFIX="$(PREFIX)" $(CMAKE_FLAGS)
BUILD = unset MAKEFLAGS MAKELEVEL MFLAGS; cmake --build "$(BUILD_DIR)" --parallel $(JOBS)
C_FILES = git ls-files -z '*.c' '*.h' '*.cu' '*.cuh'

# Targets run in the order in which they are named. JOBS is for the make below CMake, which BUILD keeps from taking
# itself for a part of this one.
.NOTPARALLEL:

.PHONY: all help setup setup-tests demo test unit metal-test install uninstall format check-format fuzz clean

all:
	@tools/setup.sh --check build
	@$(CONFIGURE) --preset release >/dev/null
	@$(BUILD) --target calla

help:
	@echo 'make                build build/calla'
	@echo 'make demo           install what is missing, build, answer a question (PROMPT="...")'
	@echo 'make test           install what is missing, build, run every test'
	@echo 'make unit           build and run the C tests alone'
	@echo 'make metal-test     test the Metal backend on a Mac: tools/metal_test.sh'
	@echo 'make install        build and install below PREFIX (/usr/local), all of it below DESTDIR'
	@echo 'make uninstall      remove what that installed'
	@echo 'make setup          install what building needs, with apt or Homebrew'
	@echo 'make format         lay out every C file with clang-format'
	@echo 'make check-format   say which C files clang-format would change'
	@echo 'make fuzz           run every fuzzer for a minute'
	@echo 'make clean          remove everything that was built'

setup:
	@tools/setup.sh build

setup-tests:
	@tools/setup.sh test

demo: setup all
	@echo; echo "$$ $(BUILD_DIR)/calla run \"$(PROMPT)\""
	@unset CALLA_MODEL; "$(BUILD_DIR)/calla" run "$(PROMPT)"
	@echo; echo "make demo took $$(( $$(date +%s) - $(START) )) seconds"

test: setup-tests unit
	@.venv/bin/python -m pytest tests --numprocesses 2 --dist loadfile --no-loadscope-reorder

unit:
	@tools/setup.sh --check test
	@$(CONFIGURE) --preset default >/dev/null
	@$(BUILD)
	@ctest --test-dir "$(BUILD_DIR)" --output-on-failure --parallel $(JOBS) --no-tests=error --progress

metal-test:
	@tools/metal_test.sh

install: all
	@$(BUILD) --target calla_library
	@DESTDIR="$(DESTDIR)" cmake --install "$(BUILD_DIR)"

uninstall:
	@sed "s|^|$(DESTDIR)|" "$(BUILD_DIR)/install_manifest.txt" | tr '\n' '\0' | xargs -0 rm -f

format: setup-tests
	@$(C_FILES) | xargs -0 .venv/bin/clang-format -i

check-format: setup-tests
	@$(C_FILES) | xargs -0 .venv/bin/clang-format --dry-run --Werror

fuzz:
	@tests/fuzz/run.sh

clean:
	rm -rf build build-*
