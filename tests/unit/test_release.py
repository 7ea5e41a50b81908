"""What a release declares of itself agrees: pyproject, changelog, citation, scripts, forms; and its tag."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from fastload.commands import bench, cli
from fastload.commands.doctor import checks
from scripts import tag

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(not (ROOT / "pyproject.toml").exists(), reason="tests of a checkout")
TEXT = (ROOT / "pyproject.toml").read_text()
PROJECT = tomllib.loads(TEXT)["project"]
NEEDED = {needed.name: needed for needed in map(Requirement, PROJECT["dependencies"])}
EXTRAS = {name: [Requirement(text) for text in texts] for name, texts in PROJECT["optional-dependencies"].items()}
FOR_DEVELOPERS = {"dev", "docs"}  # what no installed program of a user's asks for


def bounds(needed: Requirement) -> tuple[Version, Version]:
    """The first version that is taken, and the first that is not."""
    found = {one.operator: Version(one.version) for one in needed.specifier}
    return found[">="], found["<"]


# ---------------------------------------------------------------------------------------------------- dependencies


def imported(path: Path) -> set[str]:
    """Modules that a file imports, also inside functions and by ``import_module``."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add(str(node.module))
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "find_spec")):
            found |= {str(word.value) for word in node.args[:1] if isinstance(word, ast.Constant)}
    return {name.partition(".")[0] for name in found} - {"fastload", ""} - set(sys.stdlib_module_names)


# What a program has that gets there; typing_extensions comes with torch; sitecustomize is whatever module has the name.
ELSEWHERE = {"pyarrow", "webdataset", "typing_extensions", "sitecustomize"}
DISTRIBUTIONS = {"PIL": "pillow", "cuda": "cuda-core", "pynvml": "nvidia-ml-py", "skimage": "scikit-image"}


@pytest.mark.slow
def test_every_package_that_is_imported_is_declared() -> None:
    names = set().union(*(imported(path) for path in (ROOT / "fastload").rglob("*.py")))
    declared = NEEDED.keys() | {needed.name for name in EXTRAS.keys() - FOR_DEVELOPERS for needed in EXTRAS[name]}
    assert {"PIL", "numpy", "nvtx", "obstore", "torch", "torchvision", "tqdm"} <= names
    assert {name for name in names if DISTRIBUTIONS.get(name, name) not in declared} == ELSEWHERE


def test_dependencies_have_a_first_version_and_end_before_the_next_major_one() -> None:
    assert sorted(NEEDED) == ["numpy", "nvtx", "pillow", "torch", "torchvision"]
    for name, needed in NEEDED.items():
        first, end = bounds(needed)
        installed = Version(metadata.version(name))
        assert str(end) == str(end.major), f"{name}: the next major version"
        assert first < end
        assert needed.specifier.contains(installed), f"{name} {installed} is not what is declared"


def test_the_matrix_finds_the_first_versions() -> None:
    """Where scripts/matrix.sh looks for them."""
    (command,) = re.findall(r"sed -n '.*' pyproject\.toml", (ROOT / "scripts" / "matrix.sh").read_text())
    done = subprocess.run(command, shell=True, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [f"{name}=={bounds(needed)[0]}.*" for name, needed in NEEDED.items()]


def test_every_major_pillow_that_is_declared_is_run() -> None:
    """The first by the matrix, the last by all tests, the others by name."""
    first, end = bounds(NEEDED["pillow"])
    others = re.findall(r"^part other_pillow ([\d.]+)$", (ROOT / "scripts" / "thorough.sh").read_text(), re.MULTILINE)
    run = {Version(version).major for version in others}
    assert run == set(range(first.major, end.major - 1))
    assert str(Version(others[0])) == f"{first}.0"
    for page in ("README.md", "docs/index.md", "docs/fit.md", "docs/faq.md"):
        assert f"{first.major} to {end.major - 1}" in (ROOT / page).read_text(), page


def test_torch_and_torchvision_begin_with_a_pair() -> None:
    torch, torchvision = (Version(metadata.version(name)) for name in ("torch", "torchvision"))
    firsts = [bounds(NEEDED[name])[0] for name in ("torch", "torchvision")]
    assert firsts[0].minor - firsts[1].minor == torch.minor - torchvision.minor


def test_the_oldest_torch_and_the_pythons_are_said_alike_everywhere() -> None:
    torch = bounds(NEEDED["torch"])[0]
    nvtx = bounds(NEEDED["nvtx"])[0]
    assert torch.release == checks.MINIMUM_TORCH
    assert nvtx.release == checks.MINIMUM_NVTX
    assert f">= [{torch.major}, {torch.minor}]" in (ROOT / "scripts" / "setup.sh").read_text()
    pythons = [int(found) for found in re.findall(r"Python :: 3\.(\d+)", "\n".join(PROJECT["classifiers"]))]
    assert pythons == list(range(pythons[0], pythons[-1] + 1))
    assert PROJECT["requires-python"] == f">=3.{pythons[0]}"
    for page in ("README.md", "docs/index.md", "docs/quickstart.md"):
        text = " ".join((ROOT / page).read_text().split())
        assert f"Python 3.{pythons[0]} to 3.{pythons[-1]}" in text, page
        assert f"torch {torch} or newer" in text, page


# ---------------------------------------------------------------------------------------------------------- extras


def test_every_extra_says_what_it_is_for() -> None:
    table = dict(re.findall(r"^\| `(\w+)` \| (.+) \|$", (ROOT / "docs" / "quickstart.md").read_text(), re.MULTILINE))
    assert table.keys() == EXTRAS.keys() - FOR_DEVELOPERS
    for name in EXTRAS.keys() - {"dev"}:
        assert re.search(rf"^{name} = \[.*\]  # \w", TEXT, re.MULTILINE), f"{name} has no comment"


def test_extras_that_messages_name_exist_and_the_others_are_used() -> None:
    text = "\n".join(path.read_text() for path in (ROOT / "fastload").rglob("*.py"))
    said = set(re.findall(r"with_extra\(['\"](\w+)['\"]\)", text))
    commands = [*cli.COMMANDS.values(), *bench.COMMANDS.values()]
    said |= {command.extra for command in commands if isinstance(command, cli.Command) and command.extra}
    assert said == EXTRAS.keys() - FOR_DEVELOPERS - {"cluster"}  # a program that runs on a cluster has its packages


@pytest.mark.slow
def test_every_package_of_a_users_extra_is_imported() -> None:
    files = [*(ROOT / "fastload").rglob("*.py"), *(ROOT / "examples").glob("*.py")]
    names = {DISTRIBUTIONS.get(name, name) for name in set().union(*map(imported, files))}
    for extra in EXTRAS.keys() - FOR_DEVELOPERS:
        assert {needed.name for needed in EXTRAS[extra]} <= names, extra


def test_what_developers_install_has_what_tests_import() -> None:
    (own,) = (needed for needed in EXTRAS["dev"] if needed.name == PROJECT["name"])
    left_out = EXTRAS.keys() - own.extras - {"dev"}
    brought = {needed.name for name in (*own.extras, "dev") for needed in EXTRAS[name]}
    assert left_out == {"cluster", "cuda", "insight"}
    assert {needed.name for needed in EXTRAS["insight"]} - brought == {"nvidia-ml-py"}  # for a GPU, as is cuda


# ------------------------------------------------------------------------------------------- changelog, tag, texts


def test_the_changelogs_newest_section_is_that_of_the_version() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    name, date, notes = tag.newest(text)
    assert name in (PROJECT["version"], "Unreleased")
    assert (date is None) == (name == "Unreleased")
    versions = [Version(found) for found in re.findall(r"^## \[([\d.]+)\] - ", text, re.MULTILINE)]
    assert versions == sorted(versions, reverse=True)
    groups = re.findall(r"^### (.+)$", notes, re.MULTILINE)
    order = ["Upgrade notes", "Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"]
    assert groups == [group for group in order if group in groups]
    assert len(text.splitlines()) < 150


def test_the_citation_is_of_the_newest_release() -> None:
    cited = dict(re.findall(r"^([\w-]+): (.+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE))
    (version, date), *_ = re.findall(r"^## \[([\d.]+)\] - (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert (cited["version"], cited["date-released"], cited["license"]) == (version, date, PROJECT["license"])
    assert (cited["cff-version"], cited["type"]) == ("1.2.0", "software")
    assert re.findall(r"^keywords: \[(.+)\]", (ROOT / "CITATION.cff").read_text(), re.MULTILINE) == [
        ", ".join(PROJECT["keywords"])
    ]


def git(root: Path, *arguments: str) -> str:
    command = ["git", "-C", str(root), "-c", "user.name=N", "-c", "user.email=n@example.org", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for who in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{who}_NAME", "N")
        monkeypatch.setenv(f"GIT_{who}_EMAIL", "n@example.org")
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "1.3.0"\n')
    sections = "## [1.3.0] - 2026-12-01\n\n### Added\n\n- It flies.\n\n## [1.2.0] - 2026-11-01\n\n- Old.\n"
    (tmp_path / "CHANGELOG.md").write_text(f"# Changelog\n\n{sections}")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-qm", "All")
    return tmp_path


def test_a_tag_is_annotated_with_the_section_of_its_version(repository: Path) -> None:
    assert tag.tag(repository) == "v1.3.0"
    assert git(repository, "cat-file", "-t", "v1.3.0") == "tag\n"
    message = git(repository, "for-each-ref", "--format=%(contents)", "refs/tags/v1.3.0")
    assert message.rstrip() == "fastload 1.3.0\n\n### Added\n\n- It flies."


@pytest.mark.parametrize(
    ("file", "old", "new", "why"),
    [
        ("pyproject.toml", "1.3.0", "1.4.0", r"'## \[1\.4\.0\] - date', got \[1\.3\.0\] of 2026-12-01"),
        ("CHANGELOG.md", " - 2026-12-01", "", r"got \[1\.3\.0\] of no date"),
        ("CHANGELOG.md", "# Changelog\n", "# Changelog\n\n## [Unreleased]\n", r"got \[Unreleased\]"),
        ("CHANGELOG.md", "## ", "", "must have a section"),
    ],
)
def test_a_version_without_a_dated_section_is_not_tagged(
    repository: Path, file: str, old: str, new: str, why: str
) -> None:
    path = repository / file
    path.write_text(path.read_text().replace(old, new))
    git(repository, "commit", "-qam", "Change")
    with pytest.raises(ValueError, match=why):
        tag.tag(repository)
    assert git(repository, "tag") == ""


@pytest.mark.parametrize("name", ["CHANGELOG.md", "new.txt"])
def test_nothing_is_tagged_while_a_change_is_not_committed(repository: Path, name: str) -> None:
    with (repository / name).open("a") as file:
        file.write("more\n")
    with pytest.raises(ValueError, match=name.replace(".", r"\.")):
        tag.tag(repository)
    assert git(repository, "tag") == ""


def test_a_version_is_tagged_once(repository: Path) -> None:
    tag.tag(repository)
    first = git(repository, "rev-parse", "v1.3.0")
    with pytest.raises(ValueError, match=r"v1\.3\.0 is tagged already"):
        tag.tag(repository)
    assert git(repository, "rev-parse", "v1.3.0") == first


ADDRESS = re.compile(
    r"\b(?:github|gitlab|bitbucket|codeberg)\.[a-z]+/[\w.-]+/fast[l]oad|fast[l]oad[\w-]*\.(?:readthedocs|github)\."
)
TEXTS = {".cff", ".cpp", ".h", ".md", ".py", ".sh", ".yml"}


def test_the_projects_address_stands_in_pyproject_alone() -> None:
    repository = PROJECT.get("urls", {}).get("Repository")
    assert "urls.Repository = " in TEXT
    listed = subprocess.run(["git", "-C", str(ROOT), "ls-files"], capture_output=True, text=True, check=False)
    paths = [ROOT / name for name in listed.stdout.splitlines()] or [*ROOT.glob("*.*"), *(ROOT / "docs").rglob("*.md")]
    texts = {path: path.read_text() for path in paths if path.suffix in TEXTS}
    assert len(texts) > 20
    assert [path for path, text in texts.items() if ADDRESS.search(text) or (repository and repository in text)] == []
    assert ADDRESS.search("https://github.com/owner/" + "fastload")
    assert 'get("urls", {}).get("Repository")' in (ROOT / "docs" / "conf.py").read_text()


@pytest.mark.parametrize("name", ["bug", "wrong-pixel", "slower-than-expected"])
def test_forms_ask_for_the_machine_and_the_plan(name: str) -> None:
    yaml = pytest.importorskip("yaml")
    form = yaml.safe_load((ROOT / ".github" / "ISSUE_TEMPLATE" / f"{name}.yml").read_text())
    assert {"name", "description", "body"} <= form.keys()
    fields = {field["id"]: field for field in form["body"] if field["type"] != "markdown"}
    assert all(field["validations"]["required"] is True for field in fields.values())
    assert "`fastload doctor --json" in fields["doctor"]["attributes"]["description"]
    assert "`print(loader.plan)`" in fields["plan"]["attributes"]["description"]
