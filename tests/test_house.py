"""The house as ARCHITECTURE.md describes it: what is where, and what must not grow."""

import re
import tomllib
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).resolve().parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
# Where the three trees of the package lie, by the name they are imported under.
TREES = {
    "overlaptop": ROOT / "overlaptop",
    "overlaptop.agent": ROOT / "agent",
    "overlaptop.workloads": ROOT / "workloads",
}


def modules() -> list[Path]:
    return sorted(
        path for tree in TREES.values() for path in tree.rglob("*.py") if not _through_a_symlink(path)
    )


def _through_a_symlink(path: Path) -> bool:
    return any(parent.is_symlink() for parent in path.parents if parent.is_relative_to(ROOT))


def test_pyproject_lists_exactly_the_packages_that_are_there() -> None:
    found = {
        ".".join((name, *init.parent.relative_to(tree).parts))
        for name, tree in TREES.items()
        for init in tree.rglob("__init__.py")
        if not _through_a_symlink(init)
    }
    listed = PYPROJECT["tool"]["setuptools"]["packages"]
    assert len(listed) == len(set(listed))
    assert set(listed) == found


def test_every_folder_with_modules_is_a_package() -> None:
    bare = {path.parent for path in modules() if not (path.parent / "__init__.py").exists()}
    assert bare == set()


def test_package_dir_maps_the_trees_that_lie_at_the_top() -> None:
    mapping = PYPROJECT["tool"]["setuptools"]["package-dir"]
    assert {name: ROOT / folder for name, folder in mapping.items()} == TREES


@pytest.mark.parametrize("name", ["agent", "workloads"])
def test_a_relative_symlink_shows_each_outer_tree_inside_the_package(name: str) -> None:
    link = ROOT / "overlaptop" / name
    assert link.is_symlink()
    assert link.readlink() == Path("..") / name


def test_the_agent_is_one_module_under_one_name_however_it_is_found() -> None:
    import overlaptop.agent
    import overlaptop.workloads

    assert Path(overlaptop.agent.__file__).resolve() == ROOT / "agent" / "__init__.py"
    assert Path(overlaptop.workloads.__file__).resolve() == ROOT / "workloads" / "__init__.py"


def test_the_links_between_the_documents_lead_somewhere() -> None:
    links = [
        (name, target)
        for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/remote.md")
        for target in re.findall(r"\]\(([^)#\s]+)", (ROOT / name).read_text())
        if "://" not in target
    ]
    assert len({name for name, _ in links}) > 2
    assert [link for link in links if not (ROOT / Path(link[0]).parent / link[1]).exists()] == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph = grimp.build_graph("overlaptop", exclude_type_checking_imports=False)
    imported = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    # What is imported by none that is left, or imports none that is left, is in no circle.
    left = set(imported)
    while ends := {
        module
        for module in left
        if not imported[module] & left or not any(module in imported[other] for other in left)
    }:
        left -= ends
    assert sorted(left) == []
