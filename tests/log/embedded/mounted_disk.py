"""A file system of its own on a loop device: to cut its power, or to fill it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.needs import cannot_run

MAKE = {"ext4": ["mkfs.ext4", "-q", "-F", "-m", "0"], "xfs": ["mkfs.xfs", "-q", "-f"]}


class MountedDisk:
    """Mounted at `path`. Nobody may have files open on it when it is mounted anew."""

    def __init__(self, image: Path, path: Path) -> None:
        self.path = path
        self._image = image

    def mount(self) -> None:
        ran = subprocess.run(["mount", "-o", "loop", self._image, self.path], capture_output=True, text=True)
        if ran.returncode:
            cannot_run("loop mounts", ran.stderr.strip())

    def unmount(self) -> None:
        subprocess.run(["umount", self.path], check=True, capture_output=True)

    def cut_power(self) -> None:
        """Nothing reaches the disk any more; what was not synced is lost when it is mounted anew."""
        subprocess.run(["xfs_io", "-x", "-c", "shutdown", self.path], check=True, capture_output=True)


@contextmanager
def mounted_disk(folder: Path, kind: str, size: str) -> Iterator[MountedDisk]:
    """A new file system in a file below `folder`."""
    image, path = folder / f"{kind}.image", folder / kind
    path.mkdir(exist_ok=True)
    subprocess.run(["truncate", "-s", size, image], check=True)
    subprocess.run([*MAKE[kind], image], check=True, capture_output=True)
    disk = MountedDisk(image, path)
    disk.mount()
    try:
        yield disk
    finally:
        subprocess.run(["umount", "--lazy", path], capture_output=True)
        image.unlink()


@contextmanager
def small_memory_disk(folder: Path, size: str) -> Iterator[Path]:
    """A tmpfs of that size."""
    path = folder / "tmpfs"
    path.mkdir()
    with _memory_disk(path, f"size={size}"):
        yield path


@contextmanager
def read_only_memory_disk(folder: Path) -> Iterator[Path]:
    """An empty tmpfs over a folder, to which nobody can write."""
    with _memory_disk(folder, "ro,size=64k"):
        yield folder


@contextmanager
def _memory_disk(path: Path, options: str) -> Iterator[None]:
    ran = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", path], capture_output=True, text=True)
    if ran.returncode:
        cannot_run("tmpfs mounts", ran.stderr.strip())
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", path], capture_output=True)
