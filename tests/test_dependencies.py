"""Every installed dependency, also of dependencies, has a licence that may be used with Apache-2.0.

python tests/test_dependencies.py    # lists names, versions and licences
"""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
PROJECTS = ("pyproject.toml", "packages/chameleon_client/pyproject.toml")
PERMISSIVE = re.compile(
    r"\b(MIT|MIT-CMU|0?BSD|BSD-\d-Clause|Apache|PSF|PSF-2\.0|Python Software Foundation|ISC|Zlib"
    r"|CC0-1\.0|BSL-1\.0|MPL|MPL-2\.0|Mozilla Public License)\b"
)
"""The Mozilla licence binds those who change the package itself, not those who import it."""
FORBIDDEN = re.compile(r"GPL|General Public|Affero|Proprietary|Commercial|SSPL", re.IGNORECASE)


def requirements() -> list[Requirement]:
    """Return what the packages of this repository ask for, with all extras."""
    found: list[str] = []
    for name in PROJECTS:
        project = tomllib.loads((ROOT / name).read_text())["project"]
        found += project["dependencies"]
        found += [
            each for extra in project.get("optional-dependencies", {}).values() for each in extra
        ]
    return [Requirement(each) for each in found]


def installed() -> dict[str, Distribution]:
    """Return the installed dependencies by name; extras that are not installed are left out."""
    found: dict[str, Distribution] = {}
    waiting = requirements()
    while waiting:
        requirement = waiting.pop()
        name = re.sub(r"[-_.]+", "-", requirement.name).lower()
        if name in found or name.startswith("chameleon-policy"):
            continue
        try:
            found[name] = distribution(name)
        except PackageNotFoundError:
            continue
        asked = map(Requirement, found[name].requires or [])
        extras = ["", *requirement.extras]
        waiting += [
            each
            for each in asked
            if not each.marker or any(each.marker.evaluate({"extra": extra}) for extra in extras)
        ]
    return found


def licence(package: Distribution) -> str:
    """Return what a package says of its licence: an expression, a name, or classifiers."""
    about = package.metadata
    classifiers = [each for each in about.get_all("Classifier") or [] if each.startswith("Lic")]
    names = [each.rpartition(" :: ")[2] for each in classifiers]
    line = (about.get("License") or "").partition("\n")[0]
    return about.get("License-Expression") or "; ".join(filter(None, [line, *names]))


def test_licences_are_known_and_permissive() -> None:
    packages = installed()
    assert {"torch", "numpy", "rich", "hypothesis"} <= packages.keys()
    wrong = {
        name: licence(package)
        for name, package in packages.items()
        if not PERMISSIVE.search(licence(package)) or FORBIDDEN.search(licence(package))
    }
    assert not wrong


def test_versions_are_those_that_are_asked_for() -> None:
    wrong = []
    for requirement in requirements():
        if requirement.marker is None or requirement.marker.evaluate():
            try:
                version = distribution(requirement.name).version
            except PackageNotFoundError:
                continue
            if requirement.specifier and not requirement.specifier.contains(version):
                wrong.append(f"{requirement}: {version}")
    assert not wrong


if __name__ == "__main__":
    for name, package in sorted(installed().items()):
        print(f"{name:28} {package.version:16} {licence(package)}")
