"""The layers of the package and the core, and docs/architecture.svg; ``--check`` compares without writing.

``tests/unit/test_house.py`` checks the same table. The arrows are the transitive reduction of the imports:
an import that other arrows imply has none. The last layer may be imported by all of the others and has none either.
"""

from __future__ import annotations

import argparse
import ast
import itertools
import re
import sys
from pathlib import Path

from fastload.profiling.pages.palette import style

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "architecture.svg"
PAGE = ROOT / "docs" / "architecture.md"

# From top to bottom; a file imports only from lines below its own, or from its own folder. Imports for types count.
LAYERS = [
    ["__main__"],
    ["bench", "commands"],
    ["fastload"],  # the public names
    ["measurement", "verification"],
    ["elsewhere", "loader"],
    ["iterators"],
    ["workers"],
    ["native", "plan"],
    ["loader_state"],
    ["check"],
    ["deferred", "prefetch", "python_samples", "route", "sources", "state"],
    ["autoscale", "device", "lazy", "profiling", "randomness", "vision"],
    ["pipeline", "stats"],
    ["memory", "_tagged_files"],
    [
        "nvtx",
        "torch_workers",
        "options",
        "bad_samples",
        "_arguments",
        "_batch",
        "_compare",
        "_core",
        "_display",
        "_files",
        "_lazy",
        "_machine",
        "_result",
        "_version",
    ],
]
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}

WIDTH, ROW, HEIGHT, CHARACTER, GAP = 820, 74, 34, 8.2, 14  # pixels


def name_of(path: Path, package: Path) -> str:
    """``fastload.device.transfer`` of its file; the package itself is ``fastload``."""
    parts = path.relative_to(package.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def modules_of(package: Path) -> dict[str, Path]:
    """The package's modules by name, the compiled core aside."""
    return {name_of(path, package): path for path in sorted(package.rglob("*.py"))}


def place(module: str) -> str:
    """Its place in the layers: the file or folder right below the package."""
    return module.split(".")[1] if "." in module else "fastload"


def imports_of(path: Path, modules: set[str]) -> set[str]:
    """List the modules that a file imports, in functions and for types too."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names if alias.name in modules)
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively, line {node.lineno}"  # noqa: S101
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                found.update({name if name in modules else str(node.module)} & modules)
    return found


def arrows(package: Path) -> list[tuple[str, str]]:
    """Return the drawing's arrows: who imports whom, without what other arrows imply."""
    modules = modules_of(package)
    import networkx as nx

    graph = nx.DiGraph()
    for name, path in modules.items():
        for imported in imports_of(path, {*modules, "fastload._core"}):
            if place(name) != place(imported) and place(imported) not in LAYERS[-1]:
                graph.add_edge(place(name), place(imported))
    return sorted(nx.transitive_reduction(graph).edges)


def rows_and_segments(edges: list[tuple[str, str]]) -> tuple[list[list[str]], list[tuple[str, str]]]:
    """Divide each arrow into segments from row to row, by way of points named ``from>to@row``."""
    rows = [list(names) for names in LAYERS[:-1]]
    segments = []
    for above, below in edges:
        points = [f"{above}>{below}@{rank}" for rank in range(RANK[above] + 1, RANK[below])]
        for rank, point in enumerate(points, RANK[above] + 1):
            rows[rank].append(point)
        segments += itertools.pairwise([above, *points, below])
    return rows, segments


def untangle(rows: list[list[str]], segments: list[tuple[str, str]]) -> list[list[str]]:
    """Reorder rows by the mean places of neighbours, so that few segments cross."""

    def crossings(upper: list[str], lower: list[str]) -> int:
        spans = [(upper.index(a), lower.index(b)) for a, b in segments if a in upper]
        return sum((a - c) * (b - d) < 0 for (a, b), (c, d) in itertools.combinations(spans, 2))

    def ordered(row: list[str], beside: list[str]) -> list[str]:
        places = {name: place / len(beside) for place, name in enumerate(beside)}
        joined = {name: [places[x] for pair in segments if name in pair for x in pair if x in places] for name in row}
        own = {name: place / len(row) for place, name in enumerate(row)}
        return sorted(row, key=lambda name: sum(joined[name]) / len(joined[name]) if joined[name] else own[name])

    tried = [rows]
    for turn in range(24):
        rows, step = list(rows), 1 - 2 * (turn % 2)
        ranks = range(1, len(rows)) if step > 0 else range(len(rows) - 2, -1, -1)
        for rank in ranks:
            rows[rank] = ordered(rows[rank], rows[rank - step])
        tried.append(rows)
    return min(tried, key=lambda rows: sum(itertools.starmap(crossings, itertools.pairwise(rows))))


def width_of(name: str) -> float:
    """The width of a box, or of the room that an arrow takes between boxes."""
    return 12 if "@" in name else len(label(name)) * CHARACTER + 20


def label(name: str) -> str:
    """A folder ends in a slash, a file in its suffix."""
    package = ROOT / "fastload"
    if name == "fastload":
        return "__init__.py"
    return f"{name}/" if (package / name).is_dir() else f"{name}.py" if name != "_core" else "_core (C++)"


def place_across(rows: list[list[str]], segments: list[tuple[str, str]]) -> dict[str, float]:
    """Give each box the mean position of those it is joined to, without overlaps."""
    x = {}
    for row in rows:
        room = (WIDTH - sum(map(width_of, row))) / (len(row) + 1)
        assert room > 0, f"WIDTH is too small for {row}"  # noqa: S101
        left = room
        for name in row:
            x[name] = left + width_of(name) / 2
            left += width_of(name) + room
    for _ in range(200):
        for row in rows:
            for name in row:
                joined = [x[b if a == name else a] for a, b in segments if name in (a, b)]
                x[name] = (x[name] + sum(joined) / len(joined)) / 2 if joined else x[name]
            least = GAP / 2
            for name in row:
                x[name] = max(x[name], least + width_of(name) / 2)
                least = x[name] + width_of(name) / 2 + GAP
            most = WIDTH - GAP / 2
            for name in reversed(row):
                x[name] = min(x[name], most - width_of(name) / 2)
                most = x[name] - width_of(name) / 2 - GAP
    return x


def in_rows(names: list[str], width: float) -> list[list[str]]:
    """Fill rows with boxes, as many as have room beside each other."""
    rows: list[list[str]] = [[]]
    for name in names:
        if rows[-1] and sum(width_of(each) + GAP for each in rows[-1]) + width_of(name) > width:
            rows.append([])
        rows[-1].append(name)
    return rows


def draw(package: Path) -> str:
    """Draw the layers as an SVG picture."""
    edges = arrows(package)
    rows, segments = rows_and_segments(edges)
    x = place_across(untangle(rows, segments), segments)
    y = {name: 20 + HEIGHT / 2 + rank * ROW for rank, row in enumerate(rows) for name in row}
    lines = []
    boxes = [box(name, x[name], y[name]) for row in rows for name in row if "@" not in name]
    for above, below in edges:
        points = [above, *(f"{above}>{below}@{rank}" for rank in range(RANK[above] + 1, RANK[below])), below]
        path = f"M{x[above]:.0f} {y[above] + HEIGHT / 2:.0f}"
        for a, b in itertools.pairwise(points):
            top = y[a] + HEIGHT / 2
            bottom = y[b] - HEIGHT / 2 - (0 if "@" in b else 1)
            middle = (top + bottom) / 2
            path += f" C{x[a]:.0f} {middle:.0f} {x[b]:.0f} {middle:.0f} {x[b]:.0f} {bottom:.0f}"
            path += f" V{y[b] + HEIGHT / 2:.0f}" if "@" in b else ""
        lines.append(f'  <path class="a" d="{path}"><title>{label(above)} imports {label(below)}</title></path>')
    top = len(rows) * ROW + 6
    foundation = in_rows(LAYERS[-1], WIDTH - 40)
    tall = 34 + 44 * len(foundation)
    boxes.append(f'  <rect class="z" x="10" y="{top}" width="{WIDTH - 20}" height="{tall}" rx="8"/>')
    boxes.append(f'  <text class="t" x="{WIDTH / 2:.0f}" y="{top + 20}">imported by any of the others</text>')
    for number, names in enumerate(foundation):
        room = (WIDTH - 40 - sum(map(width_of, names))) / max(1, len(names) - 1)
        left = 20.0
        for name in names:
            boxes.append(box(name, left + width_of(name) / 2, top + 50 + number * 44))
            left += width_of(name) + room
    size = {"width": WIDTH, "height": top + tall + 10, "inner": WIDTH - 1, "tall": top + tall + 9}
    return TEMPLATE.format(**size, style=style(), body="\n".join([*lines, *boxes]))


def box(name: str, x: float, y: float) -> str:
    """Draw one folder or file."""
    wide = width_of(name)
    kind = "d" if label(name).endswith("/") else "f"
    return (
        f'  <rect class="{kind}" x="{x - wide / 2:.0f}" y="{y - HEIGHT / 2:.0f}" width="{wide:.0f}" height="{HEIGHT}"'
        ' rx="6"/>\n'
        f'  <text class="n" x="{x:.0f}" y="{y + 5:.0f}">{label(name)}</text>'
    )


TEMPLATE = """\
<svg xmlns="http://www.w3.org/2000/svg" class="fl" width="{width}" height="{height}"
     viewBox="0 0 {width} {height}" role="img" aria-label="Imports between fastload's folders: arrows only run down">
  <style>
    {style}
    .fl .card {{ fill: var(--card); stroke: var(--rule) }}
    .fl .d {{ fill: var(--blue-fill); stroke: var(--blue); stroke-width: 1.5 }}
    .fl .f {{ fill: var(--zone); stroke: var(--muted); stroke-width: 1.5 }}
    .fl .z {{ fill: var(--yellow-fill); stroke: var(--yellow); stroke-dasharray: 5 4 }}
    .fl .n {{ fill: var(--ink); font: 13.5px ui-monospace, 'DejaVu Sans Mono', Menlo, monospace; text-anchor: middle }}
    .fl .t {{ fill: var(--ink); font: 13px ui-sans-serif, system-ui, 'DejaVu Sans', sans-serif; text-anchor: middle }}
    .fl .a {{ fill: none; stroke: var(--muted); stroke-width: 1.5; marker-end: url(#tip) }}
    .fl .tip {{ fill: var(--muted) }}
  </style>
  <defs>
    <marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">
      <path class="tip" d="M0 0 L8 4 L0 8 z"/>
    </marker>
  </defs>
  <rect class="card" x="0.5" y="0.5" width="{inner}" height="{tall}" rx="10"/>
{body}
</svg>
"""


def purposes(package: Path) -> str:
    """Return a table of the layers with the first lines of their docstrings."""
    lines = ["| layer | folder or file | purpose |", "|--:|---|---|"]
    for rank, names in enumerate(LAYERS, 1):
        for name in names:
            if name == "_core":
                purpose = "The native core, compiled from `csrc/`."
            else:
                folder = package / ("" if name == "fastload" else name)
                path = folder / "__init__.py" if folder.is_dir() else package / f"{name}.py"
                first = (ast.get_docstring(ast.parse(path.read_text())) or "").partition("\n")[0]
                purpose = re.sub(r":\w+:`~?([^`]+)`|``([^`]+)``", r"`\1\2`", first)
            lines.append(f"| {rank} | `{label(name)}` | {purpose} |")
    return "\n".join(lines)


# The folders of csrc/ and what they are for, from top to bottom; a file includes only from lines below its folder's, or
# from its own folder.
CORE = [
    {
        "bindings": "The Python module `fastload._core`.",
        "fuzz": "Fuzz targets.",
        "tests": "C++ programs and libraries that tests run.",
    },
    {
        "deferred": "Fill the memory of tensors whose pixels were put off, or prepare that for a GPU.",
        "pool": "Decode threads, and their queue of batches.",
    },
    {"gpu": "Prepare files and steps in memory for the kernels of a GPU."},
    {
        "jpeg/progressive": "Decode the coefficients of a progressive JPEG.",
        "sample": "One image from its bytes to its place in the batch.",
    },
    {
        "codecs": "Read PNG files, and WebP files with libwebp.",
        "jpeg": "Read a JPEG file and its header; decode a region, with libjpeg-turbo or without.",
        "rng": "Draw torch's, Python's and NumPy's random numbers, and with them crops, flips and steps.",
    },
    {
        "jpeg/entropy": "Decode the coefficients of a baseline JPEG, from known points on.",
        "jpeg/pixels": "Make pixels of coefficients, one file per instruction set.",
        "image": "Steps on a decoded image, and values of its pixels by a table.",
        "index": "Remember where decoding can begin within JPEG files.",
    },
    {
        "image/color": "Change colours with Pillow's bits or torchvision's, one file per instruction set.",
        "image/filters": "Blur and convolve.",
    },
    {
        "image/transform": "Rotate, warp, flip and pad with Pillow's bits.",
        "resample": "Resize with Pillow's bits or torchvision's, one file per instruction set.",
    },
    {
        "resample/float": "Resize in float with torch's bits.",
    },
    {
        "base": "Bytes of files, headers, statuses, images, buffers, the instruction set in use.",
        "gpu/kernels": "CUDA, compiled when it is first used, and the layout of what it reads.",
    },
]
CORE_RANK = {folder: rank for rank, folders in enumerate(CORE) for folder in folders}


def includes_of_core(csrc: Path) -> list[tuple[Path, Path]]:
    """Return who includes whom; names in quotes are the core's, and only those."""
    found = []
    for path in sorted(path for path in csrc.rglob("*") if path.is_file()):
        for name in re.findall(r'^#include "(.*)"', path.read_text(), re.MULTILINE):
            included = csrc / name if "/" in name else path.with_name(name)  # kernels name those beside them
            assert included.exists(), f"{path} includes {name}, which csrc lacks"  # noqa: S101
            found.append((path.relative_to(csrc), included.relative_to(csrc)))
    return found


def purposes_of_core() -> str:
    """Return a table of the core's layers."""
    lines = ["| layer | folder of `csrc/` | purpose |", "|--:|---|---|"]
    for rank, folders in enumerate(CORE, 1):
        lines += [f"| {rank} | `{folder}/` | {purpose} |" for folder, purpose in folders.items()]
    return "\n".join(lines)


def page(package: Path) -> str:
    """Return docs/architecture.md with its tables made anew."""
    text = PAGE.read_text()
    for name, table in (("layers", purposes(package)), ("core", purposes_of_core())):
        new = f"<!-- {name} -->\n\n{table}\n\n<!-- end -->"
        text = re.sub(rf"<!-- {name} -->.*?<!-- end -->", lambda _, new=new: new, text, flags=re.DOTALL)
    return text


def main() -> int:
    """Write the picture and the table, or check that both are up to date."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a file is out of date")
    check = parser.parse_args().check
    package = ROOT / "fastload"
    old = []
    for path, text in {PICTURE: draw(package), PAGE: page(package)}.items():
        if not path.exists() or path.read_text() != text:
            old.append(path)
            if not check:
                path.write_text(text)
    for path in old:
        what = "is out of date: run scripts/architecture.py" if check else "written"
        print(f"{path.relative_to(ROOT)} {what}")  # noqa: T201
    return 1 if check and old else 0


if __name__ == "__main__":
    sys.exit(main())
