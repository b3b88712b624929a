"""The house rules that a reader can rely on, read from the source: layers, what is public, size of files, libraries."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# A folder under src may include the folders named here, itself and include/calla.h.
LAYERS = {
    "base": [],
    "text": ["base"],
    "plan": ["base"],
    "model": ["base", "text", "plan"],
    "backend": ["base", "text", "plan", "model"],
    "engine": ["base", "text", "plan", "model", "backend"],
    "server": ["base", "text", "plan", "model", "backend", "engine"],
    "cli": ["base", "text", "plan", "model", "backend", "engine", "server"],
}

# A library's header and the folders that may know it.
LIBRARIES = {
    "jansson.h": {"base", "text", "model", "engine", "server", "cli"},
    "utf8proc.h": {"text", "cli"},
    "microhttpd.h": {"server"},
    "histedit.h": {"cli"},
    "editline/readline.h": {"cli"},
    "cuda_runtime_api.h": {"backend"},
    "cudaTypedefs.h": {"backend"},
}

# What kernels, which are no C, may include besides.
CUDA = re.compile(r"(cuda_runtime|cuda_bf16|cuda_fp16|cuda_pipeline|cooperative_groups|math_constants|mma)\.h")

# C17, POSIX, what Linux and macOS add, and the vector instructions of the two processors.
SYSTEM = re.compile(
    r"(assert|complex|ctype|dirent|errno|fcntl|fenv|float|getopt|glob|inttypes|langinfo|libgen|limits|locale|math|poll"
    r"|pthread|sched|setjmp|signal|spawn|stdalign|stdarg|stdatomic|stdbool|stddef|stdint|stdio|stdlib|stdnoreturn|string"
    r"|strings|termios|time|unistd|wchar|wctype|immintrin|cpuid|arm_neon|netdb)\.h|(sys|mach|mach-o|arpa|netinet)/\w+\.h"
)

TEXT = {".c", ".h", ".py", ".m", ".metal", ".cu", ".cuh", ".sh"}


def tracked():
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True).stdout
    return [path for name in listing.decode().split("\0") if name and (path := ROOT / name).exists()]


FILES = tracked()
SOURCES = [path for path in FILES if path.suffix in {".c", ".h", ".cu", ".cuh"}]
# Metal's headers are no C: they include each other by bare name, as the one text that a Mac compiles wants it.
METAL = ROOT / "src" / "backend" / "metal" / "kernels"
OURS = [
    path
    for path in SOURCES
    if (path.is_relative_to(ROOT / "src") and not path.is_relative_to(METAL)) or path.is_relative_to(ROOT / "include")
]


def includes(path):
    """(line, '"' or '<', name) of every include."""
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if match := re.match(r'\s*#\s*include\s*(["<])([^">]+)[">]', line):
            yield number, match[1], match[2]


def layer(path):
    return path.relative_to(ROOT / "src").parts[0]


def test_there_are_sources():
    assert {layer(path) for path in OURS if path.is_relative_to(ROOT / "src")} >= set(LAYERS) - {"server"}


def test_every_source_folder_is_a_layer():
    for path in OURS:
        if path.is_relative_to(ROOT / "src"):
            assert layer(path) in LAYERS, f"{path.relative_to(ROOT)}: add its folder to the layers or move it"


def test_a_layer_includes_only_itself_and_lower_ones():
    wrong = []
    for path in OURS:
        if not path.is_relative_to(ROOT / "src"):
            continue
        allowed = [layer(path), *LAYERS[layer(path)]]
        for number, quote, name in includes(path):
            if quote == '"' and name != "calla.h" and name.split("/")[0] not in allowed:
                wrong.append(f"{path.relative_to(ROOT)}:{number}: {name}")
    assert not wrong, "includes against the layers:\n" + "\n".join(wrong)


def test_quoted_includes_start_at_src_and_exist():
    """One spelling for a header: its path below src, so that a search finds every user."""
    wrong = []
    for path in OURS:
        for number, quote, name in includes(path):
            if quote == '"' and not (ROOT / "src" / name).exists() and name != "calla.h":
                wrong.append(f"{path.relative_to(ROOT)}:{number}: {name}")
    assert not wrong, "not a path below src:\n" + "\n".join(wrong)


def test_headers_do_not_include_in_a_circle():
    graph = {
        str(path.relative_to(ROOT / "src")): [name for _, quote, name in includes(path) if quote == '"']
        for path in OURS
        if path.suffix in {".h", ".cuh"} and path.is_relative_to(ROOT / "src")
    }
    done = set()

    def visit(name, trail):
        assert name not in trail, "circle: " + " -> ".join([*trail, name])
        if name not in done:
            for other in graph.get(name, []):
                visit(other, [*trail, name])
            done.add(name)

    for name in graph:
        visit(name, [])


def test_the_public_header_stands_alone():
    public = [path for path in FILES if path.is_relative_to(ROOT / "include")]
    assert public == [ROOT / "include" / "calla.h"]
    for number, quote, name in includes(public[0]):
        assert quote == "<" and SYSTEM.fullmatch(name), f"calla.h:{number} includes {name}"


def test_only_the_named_libraries_are_used():
    wrong = []
    for path in OURS:
        if not path.is_relative_to(ROOT / "src"):
            continue
        for number, quote, name in includes(path):
            if path.suffix in {".cu", ".cuh"} and CUDA.fullmatch(name):
                continue
            if quote == "<" and not SYSTEM.fullmatch(name) and layer(path) not in LIBRARIES.get(name, ()):
                wrong.append(f"{path.relative_to(ROOT)}:{number}: <{name}>")
    assert not wrong, "a header of no library that this layer may use:\n" + "\n".join(wrong)


def test_files_have_one_subject():
    long = {path: path.read_text().count("\n") for path in FILES if path.suffix in TEXT}
    long = [f"{path.relative_to(ROOT)}: {lines} lines" for path, lines in long.items() if lines >= 600]
    assert not long, "a file that outgrows 600 lines has two subjects:\n" + "\n".join(long)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_headers_are_guarded_and_code_has_no_licence_of_others(path):
    text = path.read_text()
    assert "copyright" not in text.lower(), "third-party code does not belong here"
    if path.suffix in {".h", ".cuh"}:
        assert re.search(r"#ifndef (\w+)\n#define \1\n", text), "no include guard"


def test_no_vendored_folders():
    names = {part.lower() for path in FILES for part in path.relative_to(ROOT).parts[:-1]}
    assert not names & {"third_party", "thirdparty", "third-party", "vendor", "external", "deps", "extern"}
