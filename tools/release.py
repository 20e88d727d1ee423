"""Makes a release: judges the tree, builds and tries the files, writes an SBOM, and tags the commit.

Run it by make, which sets up its environment; docs/how-to/release.md has the steps.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pinned import InstallFailed, install_pins, make_environment, run_uv

ROOT = Path(__file__).resolve().parents[1]
REQUIREMENTS = ROOT / "requirements"
# The files that a user installs, each with an SBOM of its own.
INSTALLED = ("core", "worker", "run", "sql", "spark")
# These extend all others or stand alone.
AUDITED = ("docs.txt", "build.txt", "spark-build.txt", "release.txt")
SERVICES = ("pypi", "osv")
CHANGELOG = "CHANGELOG.md"
# What would lead the command of a wheel to the checkout, or to a server that is not its own.
ASTRAY = re.compile(r"PYTHON|CHASQUI_|REDIS_URL$|VIRTUAL_ENV$")
TRIAL_SECONDS_MAX = 180
# A zip archive knows no moment before 1980.
EARLIEST = "315532800"
EXIT_FOUND = 1
UNREACHED = "requests.exceptions."
# Nothing was learned: not the same as nothing found.
EXIT_NOT_AUDITED = 3


class ToolFailed(Exception):
    """One sentence with a remedy."""


def main(argv: Sequence[str]) -> int:
    options = _parser().parse_args(argv)
    steps = {
        "audit": audit,
        "build": lambda: _listed(build(options.output.absolute())),
        "check": lambda: _listed(check(options.output.absolute())),
        "files": lambda: _listed(check_tagged(options.output.absolute(), options.tag)),
        "release": lambda: release(options.output.absolute()),
        "sbom": lambda: _listed(write_sboms(options.output.absolute())),
    }
    try:
        return steps[options.command]()
    except (ToolFailed, InstallFailed) as failed:
        print(f"error: {failed}", file=sys.stderr)
        return EXIT_NOT_AUDITED if options.command == "audit" else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tools/release.py", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, words in (
        ("build", "wheel and sdist"),
        ("sbom", "CycloneDX, a file for each set"),
        ("check", "everything of a release but the tag"),
        ("files", "the files of a release for a commit that has its tag"),
        ("release", "the same as check, and then the tag"),
    ):
        command = commands.add_parser(name, help=words)
        command.add_argument("--output", type=Path, default=ROOT / "dist", metavar="DIRECTORY")
        if name == "files":
            command.add_argument("--tag", required=True, metavar="NAME")
    commands.add_parser("audit", help="known weaknesses of what is pinned")
    return parser


def _listed(made: Sequence[Path]) -> int:
    print(*made, sep="\n")
    return 0


def release(output: Path) -> int:
    """Check all that is released, then tag the commit; whoever pushes the tag publishes it."""
    made = check(output)
    _tag()
    tag = tag_name()
    _listed(made)
    print(f"tagged {tag}; publish it with: git push origin {tag}", file=sys.stderr)
    return 0


def check(output: Path) -> list[Path]:
    """Do everything of a release but the tag."""
    require_clean_tree()
    require_free_tag()
    return prepare(output)


def check_tagged(output: Path, tag: str) -> list[Path]:
    """Make the files of a release from the commit of its tag; a forge publishes what comes out."""
    if tag != tag_name():
        raise ToolFailed(
            f"the tag of this version must be {tag_name()}, got {tag or 'none'}; "
            f"correct the tag, or the version in {_version_file()}"
        )
    if tag not in _git("tag", "--points-at", "HEAD").split():
        raise ToolFailed(f"HEAD must be the commit of {tag}; check that tag out, then try again")
    require_clean_tree()
    return prepare(output)


def prepare(output: Path) -> list[Path]:
    """Build the files, judge them, try the wheel outside the checkout, and write SBOM and notes."""
    notes = changelog_section()
    packages = build(output)
    _say("checking what the files say about themselves …")
    _checked("twine", "check", "--strict", *map(str, packages))
    _try_wheel(next(path for path in packages if path.suffix == ".whl"))
    _say("writing the SBOM …")
    with tempfile.TemporaryDirectory() as draft:
        (Path(draft) / f"release-notes-{version()}.md").write_text(notes)
        return [*packages, *write_sboms(output), *_moved(Path(draft), output)]


def version() -> str:
    """Read the version from the one file that has it, as hatchling does."""
    text = (ROOT / _version_file()).read_text()
    found = re.search(r'^__version__ = "([^"]+)"$', text, re.MULTILINE)
    if not found:
        raise ToolFailed(f'{_version_file()} must have a line __version__ = "…", and has none')
    return found[1]


def tag_name() -> str:
    """Name the tag of this version."""
    return f"v{version()}"


def require_clean_tree() -> None:
    """Refuse to release what is not committed."""
    changed = _git("status", "--porcelain").splitlines()
    if changed:
        raise ToolFailed(
            f"the tree must be committed, and {len(changed)} files are not, such as "
            f"{changed[0][3:]}; commit or remove them, then try again"
        )


def require_free_tag() -> None:
    """Refuse to tag a version twice."""
    if _git("tag", "--list", tag_name()):
        raise ToolFailed(
            f"a version is tagged once, and the tag {tag_name()} is there already; "
            f"raise the version in {_version_file()}"
        )


def changelog_section() -> str:
    """Take what the changelog says about this version."""
    title = rf"^## {re.escape(version())}(?: [^\n]*)?\n(?P<text>.*?)(?=^## |\Z)"
    text = (ROOT / CHANGELOG).read_text(encoding="utf-8")
    found = re.search(title, text, re.MULTILINE | re.DOTALL)
    if not found or not found["text"].strip():
        raise ToolFailed(
            f"{CHANGELOG} must have a section ## {version()} that says what changed, and has none; "
            "rename the section Unreleased, or write one"
        )
    return found["text"].strip() + "\n"


def _tag() -> None:
    message = f"ChasquiMQ for Python {version()}\n\n{changelog_section()}"
    # Verbatim: headings of the changelog begin like comments of git.
    _git("tag", "--annotate", "--cleanup=verbatim", "--file=-", tag_name(), given=message)


def build(output: Path) -> list[Path]:
    """The wheel and the sdist; the same commit always makes the same bytes."""
    with tempfile.TemporaryDirectory() as draft:
        # The pinned hatchling of this environment, not one that is fetched for the build.
        _checked("build", "--no-isolation", "--outdir", draft, str(ROOT))
        return _moved(Path(draft), output)


def _try_wheel(wheel: Path) -> None:
    """Install the wheel as a user does, and run its demo where no checkout is."""
    _say("installing the wheel beside the pinned packages …")
    with tempfile.TemporaryDirectory(prefix="chasqui-") as folder:
        python = make_environment(Path(folder) / "env", sys.executable)
        install_pins(python, REQUIREMENTS / "run.txt")
        run_uv("install", "--python", str(python), "--no-deps", "--no-index", str(wheel))
        run_uv("check", "--python", str(python))
        empty = Path(folder) / "empty"
        empty.mkdir()
        said = _from_wheel(python, empty, "--version")
        if said != f"chasqui {version()}":
            raise ToolFailed(f"the wheel must say chasqui {version()}, and says {said}")
        _say("running the demo of the wheel …")
        _from_wheel(python, empty, "demo", "--quick")


def _from_wheel(python: Path, place: Path, *words: str) -> str:
    clean = {name: value for name, value in os.environ.items() if not ASTRAY.match(name)}
    command = [str(python.with_name("chasqui")), *words]
    try:
        done = subprocess.run(
            command, cwd=place, env=clean, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            check=False, timeout=TRIAL_SECONDS_MAX,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as failed:
        raise ToolFailed(f"chasqui {' '.join(words)} of the wheel failed ({failed})") from failed
    if done.returncode:
        said = _last_line(done.stderr or done.stdout)
        raise ToolFailed(f"chasqui {' '.join(words)} of the wheel failed ({said})")
    return done.stdout.strip()


def write_sboms(output: Path) -> list[Path]:
    """Write an SBOM for each set of packages; from the pins alone, without network."""
    with tempfile.TemporaryDirectory() as draft, tempfile.TemporaryDirectory() as described:
        project = _described(Path(described))
        for name in INSTALLED:
            path = Path(draft) / f"chasquimq-py-{version()}-{name}.cdx.json"
            _checked(
                "cyclonedx_py", "requirements", str(REQUIREMENTS / f"{name}.txt"),
                "--pyproject", str(project), "--mc-type", "library",
                "--output-reproducible", "--validate", "--output-file", str(path),
            )  # fmt: skip
            _name_components(path)
        return _moved(Path(draft), output)


def _described(folder: Path) -> Path:
    """Write pyproject.toml with its version, because cyclonedx_py does not know where it lives."""
    text = (ROOT / "pyproject.toml").read_text()
    described = folder / "pyproject.toml"
    described.write_text(text.replace('dynamic = ["version"]', f'version = "{version()}"', 1))
    return described


def _name_components(path: Path) -> None:
    """Refer to packages by name and version.

    The tool refers by line, and files that extend another have a line twice: it makes a name up for
    the second one, another each time, and leaves it out of the dependencies.
    """
    bom = json.loads(path.read_text())
    for one in bom["components"]:
        one["bom-ref"] = f"{one['name']}=={one['version']}"
    refs = [bom["metadata"]["component"]["bom-ref"], *(one["bom-ref"] for one in bom["components"])]
    bom["dependencies"] = [{"ref": ref} for ref in sorted(refs)]
    path.write_text(json.dumps(bom, indent=2, sort_keys=True) + "\n")


def audit() -> int:
    """Ask the first advisory service that knows the pinned packages."""
    refusals: list[str] = []
    for service in SERVICES:
        report, refusal = _ask(service)
        if not refusal:
            return _tell(report)
        refusals.append(f"{service}: {refusal}")
    raise ToolFailed(
        f"nothing was audited, no advisory service answered ({'; '.join(refusals)}); "
        "run it where one of them can be reached"
    )


def _ask(service: str) -> tuple[list[dict[str, Any]], str]:
    """What a service knows about every package, or why that is not known."""
    files = [word for name in AUDITED for word in ("-r", str(REQUIREMENTS / name))]
    done = _run(
        "pip_audit", "--vulnerability-service", service, "--disable-pip", "--require-hashes",
        "--progress-spinner", "off", "--format", "json", *files,
    )  # fmt: skip
    try:
        packages: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        said = _last_line(done.stderr)
        return [], "cannot be reached" if UNREACHED in said else said
    skipped = [one["name"] for one in packages if "skip_reason" in one]
    if skipped:
        return [], f"does not know {len(skipped)} of {len(packages)} packages, such as {skipped[0]}"
    return packages, ""


def _tell(packages: Sequence[dict[str, Any]]) -> int:
    found = [(one, weakness) for one in packages for weakness in one["vulns"]]
    for one, weakness in found:
        fixed = ", ".join(weakness["fix_versions"]) or "no version yet"
        print(f"{one['name']}=={one['version']}: {weakness['id']}, fixed in {fixed}")
    if found:
        print(f"{len(found)} known weaknesses; move a package with make lock UPGRADE=NAME")
        return EXIT_FOUND
    print(f"no known weakness in {len(packages)} packages")
    return 0


def _checked(module: str, *words: str) -> None:
    done = _run(module, *words)
    if done.returncode:
        said = _last_line(done.stderr or done.stdout)
        raise ToolFailed(f"{module} failed ({said}); correct what it names and run it again")


def _run(module: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", module, *words],
        env={"SOURCE_DATE_EPOCH": _commit_time(), **os.environ},
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )


def _version_file() -> str:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return settings["tool"]["hatch"]["version"]["path"]


def _git(*words: str, given: str | None = None) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(ROOT), *words],  # noqa: S607  whichever git is on PATH
            input=given,
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError as missing:
        raise ToolFailed(f"a release needs git, which cannot be run ({missing})") from missing
    if done.returncode:
        raise ToolFailed(f"git {words[0]} failed ({_last_line(done.stderr)})")
    return done.stdout


def _say(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)


def _commit_time() -> str:
    """When the commit was made, so that files of a release bear no clock of their own."""
    asked = ["git", "-C", str(ROOT), "log", "-1", "--format=%ct"]
    try:
        done = subprocess.run(asked, capture_output=True, text=True, check=False)
    except OSError:
        return EARLIEST
    return done.stdout.strip() or EARLIEST


def _moved(draft: Path, output: Path) -> list[Path]:
    """Put finished files where they belong, so that none is there by half."""
    try:
        output.mkdir(parents=True, exist_ok=True)
        for path in sorted(draft.iterdir()):
            # Written beside its place first: another file system may be in between.
            half = output / f".{path.name}.part"
            half.write_bytes(path.read_bytes())
            half.replace(output / path.name)
    except OSError as refused:
        raise ToolFailed(
            f"{output} cannot be written to ({refused.strerror}); name another with --output"
        ) from refused
    return sorted(output / path.name for path in draft.iterdir())


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (lines or ["no output"])[-1].rstrip(".")[:200]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
