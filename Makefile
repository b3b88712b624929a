# The front door: each target is one or two commands of tools/setup.sh, CMake (CMakePresets.json), CTest or
# pytest. `make help` lists them. Nothing here needs more than the make that comes with macOS.

PREFIX ?= /usr/local
DESTDIR ?=
JOBS ?= $(shell getconf _NPROCESSORS_ONLN)
PROMPT ?= What is 17 plus 25?

# An empty MAKEFLAGS keeps this make's own -j and job server out of the one below.
CONFIGURE = cmake -DCMAKE_INSTALL_PREFIX="$(PREFIX)"
BUILD = MAKEFLAGS= cmake --build build --parallel $(JOBS)
PYTEST = .venv/bin/python -m pytest tests
SOURCES = git ls-files '*.c' '*.h'

.PHONY: all help setup demo test unit install uninstall format check-format fuzz clean

all:
	@tools/setup.sh --check build
	@$(CONFIGURE) --preset release >/dev/null
	@$(BUILD) --target calla

help:
	@echo 'make                build build/calla'
	@echo 'make demo           install what is missing, build, answer a prompt (PROMPT="...")'
	@echo 'make test           install what is missing, build, run every test'
	@echo 'make unit           build and run the C tests alone'
	@echo 'make install        into PREFIX (/usr/local), below DESTDIR'
	@echo 'make uninstall      the same files away'
	@echo 'make setup          install what building needs, with apt or Homebrew'
	@echo 'make format         clang-format every C file'
	@echo 'make check-format   say which C files clang-format would change'
	@echo 'make fuzz           run every fuzzer (SECONDS=60 each)'
	@echo 'make clean          remove everything that was built'

setup:
	@tools/setup.sh build

demo:
	@start=$$(date +%s); \
	$(MAKE) --no-print-directory setup && $(MAKE) --no-print-directory all && \
	echo "\$$ build/calla run \"$(PROMPT)\"" && build/calla run "$(PROMPT)" && \
	echo "demo: $$(( $$(date +%s) - start )) seconds in all"

test:
	@tools/setup.sh test
	@$(MAKE) --no-print-directory unit
	@$(PYTEST)

unit:
	@$(CONFIGURE) --preset default >/dev/null
	@$(BUILD)
	@ctest --preset default --parallel $(JOBS) --progress

install: all
	@$(CONFIGURE) --preset release >/dev/null
	@$(BUILD)
	@DESTDIR="$(DESTDIR)" cmake --install build

uninstall:
	@sed "s|^|$(DESTDIR)|" build/install_manifest.txt | tr '\n' '\0' | xargs -0 rm -f

.venv/requirements.txt: tests/requirements.txt
	@tools/setup.sh test

format: .venv/requirements.txt
	@$(SOURCES) | xargs .venv/bin/clang-format -i

check-format: .venv/requirements.txt
	@$(SOURCES) | xargs .venv/bin/clang-format --dry-run --Werror

fuzz:
	@tests/fuzz/run.sh

clean:
	rm -rf build build-* .venv
