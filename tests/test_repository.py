"""The repository as ARCHITECTURE.md describes it, and the documents: their links, sizes, modules named."""

import copy
import re
import subprocess
import sys
import tomllib
from graphlib import CycleError, TopologicalSorter
from importlib import import_module
from pathlib import Path

import grimp
import pytest

from overlaptop import __version__
from overlaptop.findings.find import RULES

ROOT = Path(__file__).resolve().parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
TREES = {"overlaptop": "overlaptop", "overlaptop.agent": "agent", "overlaptop.workloads": "workloads"}
TREES = {name: ROOT / folder for name, folder in TREES.items()}
"""Where the three trees of the package lie, by the name they are imported under."""


def test_pyproject_lists_exactly_the_folders_with_modules():
    found = {
        ".".join((name, *module.parent.relative_to(tree).parts))
        for name, tree in TREES.items()
        for module in tree.rglob("*.py")
        if not any(parent.is_symlink() for parent in module.parents if parent.is_relative_to(ROOT))
    }
    listed = PYPROJECT["tool"]["setuptools"]["packages"]
    assert len(listed) == len(set(listed))
    assert set(listed) == found


@pytest.mark.parametrize("name", ["agent", "workloads"])
def test_each_outer_tree_is_shown_in_the_package_under_one_name(name):
    assert (ROOT / "overlaptop" / name).readlink() == Path("..") / name
    mapping = PYPROJECT["tool"]["setuptools"]["package-dir"]
    assert ROOT / mapping[f"overlaptop.{name}"] == TREES[f"overlaptop.{name}"]
    module = import_module(f"overlaptop.{name}")
    assert Path(module.__file__).resolve() == ROOT / name / "__init__.py"


def test_it_runs_beside_a_clone_named_like_the_package(tmp_path):
    (tmp_path / "overlaptop").symlink_to(ROOT)
    words = [sys.executable, "-m", "overlaptop", "--version"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"overlaptop {__version__}\n", "")


DOCUMENTS = [
    *ROOT.glob("*.md"),
    *(ROOT / "docs").rglob("*.md"),
    ROOT / "benchmarks" / "README.md",
    ROOT / "workloads" / "README.md",
]


def _anchors(document):
    """Those of its headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", document.read_text(), flags=re.S | re.M)
    headings = re.findall(r"^#+ (.+)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def _leads_nowhere(document, link):
    path, _, anchor = link.partition("#")
    target = document.parent / path if path else document
    return not target.exists() or bool(anchor and anchor not in _anchors(target))


def test_the_links_between_the_documents_lead_somewhere():
    nowhere = [
        (str(document), link)
        for document in DOCUMENTS
        for link in re.findall(r"\]\(([^)\s]+)", document.read_text())
        if "://" not in link and _leads_nowhere(document, link)
    ]
    assert nowhere == []


def test_each_document_can_be_reached_from_the_readme():
    reached, ahead = set(), [ROOT / "README.md"]
    while ahead:
        document = ahead.pop()
        reached.add(document)
        for link in re.findall(r"\]\(([^)#\s]+\.md)", document.read_text()):
            target = (document.parent / link).resolve()
            if target.is_relative_to(ROOT) and target not in reached:
                ahead.append(target)
    assert set(DOCUMENTS) - reached == set()


@pytest.mark.parametrize(("name", "size_bytes"), [("README.md", 10_240), ("ARCHITECTURE.md", 12_288)])
def test_a_document_to_begin_with_is_short(name, size_bytes):
    assert (ROOT / name).stat().st_size <= size_bytes


def test_the_modules_and_folders_that_the_documents_name_are_there():
    named = {
        (document.name, path)
        for document in DOCUMENTS
        if document.name != "CHANGELOG.md"
        for path in re.findall(r"`([\w./]+(?:\.py|/))`", document.read_text())
        if "/" in path
    }
    files = [path for path in ROOT.rglob("*") if ".venv" not in path.parts]
    there = [f"/{path.relative_to(ROOT).as_posix()}{'/' * path.is_dir()}" for path in files]
    missing = [each for each in named if not any(path.endswith(f"/{each[1]}") for path in there)]
    assert missing == []


def test_rules_and_their_remedies_are_in_the_table_of_findings():
    """Remedies by the code that they name: ``gc.collect()``."""
    table = (ROOT / "docs" / "findings.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \|.*\| (.+) \|$", table, re.M))
    assert RULES.keys() <= rows.keys()
    named = {code for remedy in rows.values() for code in re.findall(r"`([^`]+)`", remedy)}
    folders = (ROOT / "overlaptop" / "findings", ROOT / "overlaptop" / "report")
    advice = "\n".join(path.read_text() for folder in folders for path in folder.rglob("*.py"))
    assert [code for code in sorted(named) if code not in advice] == []


_USUAL = re.compile(r"stands? for|stand out|(?:make|makes|no) room|\.floor\(", re.IGNORECASE)
"""Phrases of listed words that the field uses itself."""


def test_source_and_documents_avoid_the_listed_words():
    guide = (ROOT / "CONTRIBUTING.md").read_text()
    words = guide.partition("\n## Words\n")[2].partition("\n## ")[0]
    listed = [word for row in re.findall(r"^\| ([^|-]+) \|", words, re.M)[1:] for word in row.split(", ")]
    assert len(listed) > 20
    names = "|".join(word.replace(" ", "[ _]") for word in listed)
    avoided = re.compile(rf"(?<![a-z])(?:{names})s?(?![a-z])", re.IGNORECASE)
    texts = {document: document.read_text() for document in DOCUMENTS}
    for tree in (*TREES.values(), ROOT / "benchmarks", ROOT / "screenshots"):
        texts |= {module: module.read_text() for module in tree.rglob("*.py")}
    texts[ROOT / "CONTRIBUTING.md"] = guide.replace(words, "")
    found = {
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path, text in texts.items()
        for number, line in enumerate(text.splitlines(), 1)
        if avoided.search(_USUAL.sub("", line))
    }
    assert found == set()


@pytest.fixture(scope="module")
def graph():
    """All imports within the package, those for type checkers included."""
    return grimp.build_graph("overlaptop", exclude_type_checking_imports=False)


def test_drawing_knows_nothing_of_jobs(graph):
    drawing = graph.find_descendants("overlaptop.tui.draw")
    imported = {each for module in drawing for each in graph.find_modules_directly_imported_by(module)}
    assert imported - drawing <= {"overlaptop.text"}


def test_no_modules_import_each_other_in_a_circle(graph):
    assert _circle(graph, graph.modules) == []


@pytest.mark.parametrize("package", ["overlaptop.agent", "overlaptop.tui"])
def test_no_folders_of_a_package_import_each_other(graph, package):
    """In the dashboard the modules beside the folders count as well."""
    graph = copy.deepcopy(graph)
    folders = {child for child in graph.find_children(package) if graph.find_children(child)}
    for folder in folders:
        graph.squash_module(folder)
    looked_at = graph.find_children(package) if package == "overlaptop.tui" else folders
    assert _circle(graph, looked_at) == []


def _circle(graph, modules):
    """The modules of one circle, if there is any."""
    imports = {name: graph.find_modules_directly_imported_by(name) & modules for name in modules}
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as circle:
        return list(circle.args[1])
    return []
