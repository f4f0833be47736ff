"""An empty environment with the wheel of this source tree and the packages that it asks for, without a network.

The wheel is installed as a user would install it. The packages are those of this environment that the wheel's metadata
requires, found from one to the next and linked: one that the wheel uses and does not require is not there.
"""

import os
import subprocess
import sys
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement

__all__ = ["build_wheel", "make_environment"]

REPOSITORY = Path(__file__).parent.parent.parent


def build_wheel(folder: Path) -> Path:
    """Only what the build takes from the source tree is in it."""
    _run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)], cwd=REPOSITORY)
    (wheel,) = folder.glob("*.whl")
    return wheel


def make_environment(folder: Path, wheel: Path, extras: set[str]) -> Path:
    """The directory of the environment's commands."""
    _run([sys.executable, "-m", "venv", "--without-pip", str(folder)])
    python = folder / "bin" / "python"
    _run([sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "--no-deps", "--no-index", str(wheel)])
    (packages,) = folder.glob("lib/python*/site-packages")
    (metadata,) = packages.glob("mainstem-*.dist-info")
    for required in _required(Distribution.at(metadata), extras).values():
        for top in {path.parts[0] for path in required.files or () if path.parts[0] not in ("..", "__pycache__")}:
            link = packages / top
            if not link.exists():
                link.symlink_to(Path(str(required.locate_file(top))))
    return folder / "bin"


def _required(installed: Distribution, extras: set[str]) -> dict[str, Distribution]:
    """All packages that one with these extras requires, by name."""
    found: dict[str, Distribution] = {}
    waiting = [(installed, extras)]
    while waiting:
        package, wanted = waiting.pop()
        for requirement in map(Requirement, package.requires or ()):
            marker = requirement.marker
            applies = marker is None or any(marker.evaluate({"extra": extra}) for extra in wanted or {""})
            if applies and requirement.name not in found:
                found[requirement.name] = distribution(requirement.name)
                waiting.append((found[requirement.name], set(requirement.extras)))
    return found


def _run(command: list[str], cwd: Path | None = None) -> None:
    # Nothing of this process's own path may reach the new environment.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
