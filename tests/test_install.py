"""What `make install` leaves behind, used as a packager and as another program would use it."""

import os
import re
import shlex
import shutil
import subprocess

import pytest

from conftest import environment


@pytest.fixture(scope="module")
def installed(root, tmp_path_factory):
    """The folder of an install with PREFIX=/opt/calla below a DESTDIR, from a build of its own."""
    work = tmp_path_factory.mktemp("install")
    make(root, work, "install")
    return work / "package" / "opt" / "calla"


def make(root, work, target):
    result = subprocess.run(
        ["make", target, "PREFIX=/opt/calla", f"DESTDIR={work / 'package'}", f"BUILD_DIR={work / 'build'}",
         "CMAKE_FLAGS=-DCALLA_CUDA_ARCHITECTURES=OFF"],  # kernels take minutes, and install like the rest
        cwd=root,
        env=environment(),
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_every_file_is_below_destdir_and_prefix(installed):
    assert [path.name for path in installed.parent.parent.iterdir()] == ["opt"]
    files = {str(path.relative_to(installed)) for path in installed.rglob("*") if path.is_file()}
    assert {"bin/calla", "include/calla.h", "share/calla/models/calla-tiny/config.json"} <= files
    assert os.access(installed / "share/calla/tools/bench_mlx_lm.py", os.X_OK)
    assert [name for name in files if name.startswith("include/")] == ["include/calla.h"]
    assert any(name.endswith("/libcalla.a") for name in files)


def test_the_program_finds_its_model_wherever_the_folder_is(installed, tmp_path):
    moved = tmp_path / "elsewhere"
    shutil.copytree(installed, moved)
    result = subprocess.run(
        [moved / "bin" / "calla", "info", "--json"], cwd=tmp_path, env=environment(), capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    assert "calla-tiny" in result.stdout


def test_another_program_builds_against_the_library(installed, tmp_path):
    (tmp_path / "main.c").write_text(
        "#include <calla.h>\n#include <stdio.h>\nint main(void) { puts(calla_version()); return 0; }\n"
    )
    folder = next(installed.rglob("calla.pc")).parent
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PKG_CONFIG_PATH")]))
    flags = subprocess.run(
        # The prefix that calla.pc holds is where the files will lie, not where they lie below DESTDIR.
        ["pkg-config", f"--define-variable=prefix={installed}", "--cflags", "--libs", "calla"],
        env=environment(PKG_CONFIG_PATH=path),
        capture_output=True,
        text=True,
    )
    assert flags.returncode == 0, flags.stderr
    subprocess.run(["cc", "main.c", "-o", "main", *shlex.split(flags.stdout)], cwd=tmp_path, check=True)
    version = subprocess.run([tmp_path / "main"], capture_output=True, text=True, check=True).stdout.strip()
    assert re.fullmatch(r"\d+\.\d+\.\d+", version)


def test_uninstall_removes_every_file(root, installed):
    package = installed.parent.parent
    make(root, package.parent, "uninstall")
    assert not [path for path in package.rglob("*") if path.is_file()]
