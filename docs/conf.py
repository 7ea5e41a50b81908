"""Sphinx's settings. ``make docs`` builds with warnings as errors; tests/unit/test_docs.py runs the examples."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from docutils import nodes

import fastload

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "fastload"
author = "the fastload authors"
project_copyright = "2026, the fastload authors"
version = release = fastload.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode", "sphinx_copybutton"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
myst_enable_extensions = ["colon_fence", "deflist", "fieldlist"]
myst_heading_anchors = 3

html_theme = "furo"
html_title = f"fastload {release}"
html_theme_options: dict[str, Any] = {"navigation_with_keys": True}
html_static_path = ["_static"]
html_css_files = ["pages.css"]
html_copy_source = False
copybutton_selector = "div:not(.highlight-text) > div.highlight > pre"  # what is printed is not to be copied

_project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
if repository := _project.get("urls", {}).get("Repository"):
    html_theme_options |= {"source_repository": repository, "source_branch": "main", "source_directory": "docs/"}

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_class_signature = "mixed"
python_use_unqualified_type_names = True
add_module_names = False
python_maximum_signature_line_length = 74
napoleon_use_rtype = False
napoleon_use_ivar = False
napoleon_attr_annotations = False  # types stand in the signature
toc_object_entries_show_parents = "hide"

# Types of other projects, whose documentation this one does not load (a build needs no network), and names that stand
# for types in the signatures here.
_ELSEWHERE = "torch numpy np tqdm collections multiprocessing argparse os io types typing typing_extensions enum"
_BARE = (
    "Any Literal Self Buffer Path PathLike NDArray ArrayLike ModuleType TracebackType Callable Iterable Iterator "
    "Sequence Mapping DataLoader Dataset Sampler BaseContext optional callable T T_co F _Out Device Engine Randomness "
    "Decode DeviceCacheBytes IndexPath OnError OwnArguments Paths ProcessGroup Source Window"
)
nitpick_ignore_regex = [
    (r"py:mod", r"fastload\..*"),  # modules are not part of the reference
    (r"py:.*", rf"({'|'.join(_ELSEWHERE.split())})\..*"),
    (r"py:.*", rf"(fastload\..*\.)?({'|'.join(_BARE.split())})"),
    (r"py:.*", r".*\[.*"),
]


_TORCH = "https://docs.pytorch.org/docs/stable/"
_TORCH_PAGES = {
    "torch.utils.data.": "data.html",
    "torch.Tensor": "tensors.html",
    "torch.device": "tensor_attributes.html",
    "torch.dtype": "tensor_attributes.html",
    "torch.memory_format": "tensor_attributes.html",
    "torch.nn.Module": "generated/torch.nn.Module.html",
}


def link_to_torch(app: Sphinx, env: Any, node: Any, contnode: Any) -> Any:
    """Link a name of torch's to its documentation; a build needs no network for that."""
    target = node.get("reftarget", "").replace("torch.utils.data.dataloader.", "torch.utils.data.")
    for prefix, page in _TORCH_PAGES.items():
        if target.startswith(prefix):
            return nodes.reference("", "", contnode, internal=False, refuri=f"{_TORCH}{page}#{target}")
    return None


def resolve_public_name(app: Sphinx, env: Any, node: Any, contnode: Any) -> Any:
    """Resolve a name in a docstring, qualified or bare, to its public name."""
    target = node.get("reftarget", "")
    if node.get("refdomain") != "py" or target.startswith("torch.") or target == "DataLoader":  # that is torch's
        return None
    objects = env.get_domain("py").objects
    name = target.rpartition(".")[2] if target.startswith("fastload.") else target
    found = [known for known in objects if f".{known}".endswith(f".{name}") and not objects[known].aliased]
    if len(found) != 1:
        return None
    return env.get_domain("py").resolve_xref(env, node["refdoc"], app.builder, "obj", found[0], node, contnode)


def keep_colons(app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Keep napoleon from parsing text before a colon as a type; signatures hold types."""
    if what in ("attribute", "property", "data") and lines:
        lines[:0] = ["..", ""]


_SYSTEMS_DARK = re.compile(r"@media \(prefers-color-scheme: dark\) \{ \.fl \{(.*?)\} \}")


def put_drawings_into_the_page(app: Sphinx, doctree: nodes.document, name: str) -> None:
    """Replace images of SVG files by their text, so that they follow the page's switch between light and dark."""
    if app.builder.format != "html":
        return
    for image in list(doctree.findall(nodes.image)):
        path = Path(app.srcdir, image["uri"])
        if path.suffix != ".svg":
            continue
        switched = r'@media (prefers-color-scheme: dark) { body:not([data-theme="light"]) .fl {\1} }'
        text = _SYSTEMS_DARK.sub(switched + r' body[data-theme="dark"] .fl {\1}', path.read_text())
        image.replace_self(nodes.raw("", f'<div class="drawing">{text}</div>', format="html"))


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("autodoc-process-docstring", keep_colons, priority=400)  # before napoleon
    app.connect("missing-reference", resolve_public_name)
    app.connect("missing-reference", link_to_torch)
    app.connect("doctree-resolved", put_drawings_into_the_page)
