"""README and docs show exactly the figures of benchmarks/results."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import figures, tables
from benchmarks.__main__ import main as run_benchmark
from benchmarks.charts import chart
from benchmarks.programs import counts

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("page", figures.pages(), ids=lambda page: page.name)
def test_a_page_is_up_to_date(page):
    assert figures.render(page.read_text(), page) == page.read_text(), "run 'make figures'"


def test_the_charts_are_up_to_date_and_each_is_shown():
    shown = {path: path.read_text() for path in (figures.DOCS / "charts").glob("*.svg")}
    assert shown == figures.drawn(), "run 'make figures'"


@pytest.fixture
def results(tmp_path, monkeypatch):
    """The results, to be changed."""
    for path in (ROOT / "benchmarks" / "results").glob("*.json"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    for module in (figures, tables):
        monkeypatch.setattr(module, "RESULTS", tmp_path)
    return tmp_path


def test_a_changed_result_makes_the_readme_stale(results):
    record = json.loads((results / "ladder.json").read_text())
    record["rungs"][0]["workers"] = 77
    assert shown("ladder", record, "ladder") != (figures.DOCS / "ladder.md").read_text()


def test_check_names_what_is_out_of_date_and_writes_nothing(results, capsys):
    record = json.loads((results / "train-decode.json").read_text())
    point = next(point for point in record["points"] if point["model"] == "resnet50")  # the one that README shows
    point["contenders"]["fastload"]["share_of_ceiling"]["median"] = 0.5
    (results / "train-decode.json").write_text(json.dumps(record))
    before = figures.README.read_text()
    assert run_benchmark(["figures", "--check"]) == 1
    said = capsys.readouterr().err
    assert all(
        f"{name} is out of date" in said for name in ("README.md", "index.md", "benchmarks.md", "train-decode.svg")
    )
    assert "loaders-decode.svg" not in said
    assert figures.README.read_text() == before


def rendered(page="benchmarks"):
    path = figures.README if page == "README" else figures.DOCS / f"{page}.md"
    return figures.render(path.read_text(), path)


def shown(name, record, page=None):
    """Write a record; return its table, or a page."""
    (figures.RESULTS / f"{name}.json").write_text(json.dumps(record))
    return rendered(page) if page else tables.shown(record.get("benchmark") or record["bench"], record)


def spread(median):
    return {"median": median, "min": 0.9 * median, "max": 1.1 * median, "values": [0.9 * median, median, 1.1 * median]}


def peers(question, figure, medians, **point):
    """A record of a question that one point answers."""
    titles = {"torch": "DataLoader", "dali-gpu": "DALI, GPU decode", "fastload": "FastLoader, native"}
    contenders = {name: {"title": title, "versions": {"torch": "2.11"}} for name, title in titles.items()}
    contenders["ffcv"] = {"title": "FFCV", "missing": "ffcv is not installed"}
    return {
        "benchmark": question,
        "environment": {"gpu": "A GPU", "cpu": "A CPU", "usable_cpus": 16, "torch": "2.11", "date": "2026-11-21"},
        "dataset": {"images": 1000, "mean_kb": 53.0, "page_cache_share": 1.0},
        "parameters": {"repeats": 5, "batch_size": 256, "seconds": 0.5, "quick": False},
        "contenders": contenders,
        "points": [{**point, "contenders": {name: {figure: spread(value)} for name, value in medians.items()}}],
    }


def test_a_peer_that_is_ahead_is_marked_and_the_text_says_by_how_much(results):
    record = peers("loaders", "images_per_s", {"torch": 1400, "dali-gpu": 21000, "fastload": 5000}, threads=4)
    docs = shown("loaders", record)
    assert "| DALI, GPU decode | 21,000 ± 2,100 ▲ |" in docs
    assert "| DataLoader | 1,400 ± 140 |" in docs
    assert "▲ ahead of FastLoader, native. 4 threads: DALI, GPU decode by 4.2×." in docs
    assert "* FFCV: ffcv is not installed" in docs


def test_a_figure_of_one_repeat_has_no_spread(results):
    record = peers("loaders", "images_per_s", {"torch": 1400, "fastload": 5000}, threads=4)
    record["points"][0]["contenders"]["torch"]["images_per_s"]["values"] = [1400]
    docs = shown("loaders", record)
    assert "| DataLoader | 1,400 |" in docs
    assert "| **FastLoader, native** | 5,000 ± 500 |" in docs


def test_who_was_not_measured_at_a_point_has_a_dash_there(results):
    record = peers("loaders", "images_per_s", {"torch": 1400, "fastload": 5000}, threads=4)
    assert "–: not asked" not in shown("loaders", record)
    record["points"].append({"threads": 8, "contenders": {"fastload": record["points"][0]["contenders"]["fastload"]}})
    record["contenders"]["torch"]["failed"] = "it ended"
    assert "| DataLoader | 1,400 ± 140 | – |" in shown("loaders", record)
    assert "–: not asked, or not measured." in shown("loaders", record)
    docs = shown("loaders", record)
    assert "Not measured, or not everywhere:\n\n* DataLoader: it ended\n* FFCV: ffcv is not installed" in docs


def test_peers_ahead_of_the_workers_engine_are_named_too(results):
    medians = {"torch": 1400, "dali-gpu": 4000, "fastload": 5000, "fastload-workers": 1300}
    record = peers("loaders", "images_per_s", medians, threads=4)
    record["contenders"]["fastload-workers"] = {"title": "FastLoader, workers"}
    text = shown("loaders", record)
    assert "No peer that was measured is ahead of FastLoader, native." in text
    assert "Ahead of FastLoader, workers. 4 threads: DALI, GPU decode by 3.1×, DataLoader by 7.7%." in text
    assert "▲" not in text


@pytest.mark.parametrize(("held", "said"), [((0, 5, 0), "in 2 of 3 turns they had none"), ((5, 5, 5), "")])
def test_turns_that_ended_before_there_were_slots_are_counted(results, held, said):
    record = peers("memory", "host_bytes", {"torch": 9e9, "fastload": 4e8, "fastload-workers": 1e10}, threads=16)
    record["contenders"]["fastload-workers"] = {"title": "FastLoader, workers"}
    turns = [{"pinned": {"torch_bytes": 0, "arena_bytes": count}} for count in held]
    record["points"][0]["contenders"]["fastload-workers"]["turns"] = turns
    text = shown("memory", record)
    assert ("begin on torch's path" in text) == bool(said)
    assert said in text
    record["environment"]["gpu"] = None  # where there are no slots
    assert "torch's path" not in shown("memory", record)


def test_a_lower_bound_is_explained(results):
    record = peers("memory", "host_bytes", {"torch": 9e9, "fastload": 4e8}, threads=16)
    assert "≥" not in shown("memory", record)
    record["points"][0]["contenders"]["torch"]["lower_bound"] = True
    assert "| DataLoader | ≥ 9,000 ± 900 MB |" in shown("memory", record)
    assert "≥: what the library pins by itself cannot be seen." in shown("memory", record)


def test_turns_are_whole_bursts_of_the_workers(results):
    record = peers("train", "share_of_ceiling", {"fastload": 1.0}, model="resnet50", cores=6, threads=6)
    record["points"].append({**record["points"][0], "cores": 16, "threads": 16})
    record["parameters"]["steps"] = 8
    assert "turns of 12 or 16 steps;" in shown("train", record)


def test_less_is_better_for_time_and_memory(results):
    record = peers("firstbatch", "first_batch_s", {"torch": 2.0, "dali-gpu": 0.475, "fastload": 0.5}, threads=8)
    docs = shown("firstbatch", record)
    assert "▲ ahead of FastLoader, native. 8 threads: DALI, GPU decode by 5.3%." in docs
    assert "| DataLoader | 2.00 ± 0.20 s |" in docs


def test_where_nobody_is_ahead_the_text_says_so(results):
    record = peers("loaders", "images_per_s", {"torch": 1400, "fastload": 5000}, threads=4)
    assert "No peer that was measured is ahead of FastLoader, native." in shown("loaders", record)
    assert "▲" not in shown("loaders", record)


def test_points_stand_in_order_however_they_were_measured():
    record = peers("loaders", "images_per_s", {"fastload": 5000}, threads=4)
    record["points"] = [{**record["points"][0], "threads": threads} for threads in (4, 16, 1)]
    assert [one.title for one in tables.COLUMNS["loaders"](record)] == ["1 thread", "4 threads", "16 threads"]
    places = [(cores, model) for cores in (16, 6) for model in ("resnet50", "resnet18")]
    record["points"] = [{"model": m, "cores": cores, "threads": cores, "contenders": {}} for cores, m in places]
    shown = [f"{model}, {cores} cores" for model in ("ResNet-50", "ResNet-18") for cores in (6, 16)]
    assert [one.title for one in tables.COLUMNS["train"](record)] == shown


def test_a_table_of_more_columns_than_contenders_is_turned(results):
    record = peers("loaders", "images_per_s", {"torch": 1400, "dali-gpu": 21000, "fastload": 5000}, threads=1)
    record["points"] += [{**record["points"][0], "threads": threads} for threads in (2, 4, 8)]
    docs = shown("loaders", record)
    head = "|  | DataLoader | DALI, GPU decode | **FastLoader, native** |"
    assert f"{head}\n|---|--:|--:|--:|\n| 1 thread | 1,400 ± 140 |" in docs


def test_the_first_table_has_a_share_for_each_number_of_cores_and_says_who_is_ahead(results):
    medians = {"torch": 0.3, "dali-gpu": 0.9, "fastload": 0.8}
    record = peers("train", "share_of_ceiling", medians, model="resnet50", cores=16, threads=16)
    (point,) = record["points"]
    slower = {**point["contenders"], "dali-gpu": {"share_of_ceiling": spread(0.7)}}
    record["points"].append({**point, "cores": 2, "threads": 2, "recipe": "randaugment", "contenders": slower})
    record["points"].append({**point, "model": "resnet18", "cores": 4, "threads": 4})
    readme = shown("train-decode", record, "README")
    head = "| ResNet-50, share of full GPU speed in later epochs | 2 cores, RandAugment | 16 cores |\n|---|--:|--:|\n"
    dali = "| DALI, GPU decode | 70.0 ± 7.0% | 90.0 ± 9.0% ▲ |\n"
    assert f"{head}{dali}| **FastLoader, native** | 80.0 ± 8.0% | 80.0 ± 8.0% |\n\n" in readme
    said = "Later epochs are those from the second on. Median ± the farthest repeat. ▲ ahead of FastLoader, native."
    assert f"{said} 16 cores: DALI, GPU decode by 1.1×. In a first epoch" in readme


def test_the_first_table_has_the_share_of_a_first_epoch(results):
    slow = {**STEP, "new_over_resident": {**STEP["new_over_resident"], "median": 1.25}}
    record = gpudecode(step=slow)
    record["environment"] |= {"usable_cpus": 2, "cpus": 16}
    name = "gpudecode-resnet50-2-cores"
    readme = shown(name, record, "README")
    said = "In a first epoch, whose files are all new, FastLoader's share is 80.0% with 2 cores"
    assert f"{said} (A GPU, 2 of 16 cores, torch 2.11, 2026-11-21; `{name}.json`).\n" in readme
    assert said in rendered("index")
    (results / f"{name}.json").unlink()
    assert "FastLoader's share" not in rendered("README")


def test_what_fits_has_the_gains_of_the_programs_that_run_there(results):
    record = json.loads((results / "programs.json").read_text())
    places = {"threads": [6.0, 7.0, 9.0], "workers, lazy images": [1.5]}
    record["rows"] = [
        {"where": where, "reads": "PIL", "speedup": {"median": gain}}
        for where, gains in places.items()
        for gain in gains
    ]
    other = {"where": "workers, lazy images", "speedup": {"median": 0.8}}
    record["rows"] += [{**other, "reads": "cv2 patched"}, {**other, "reads": "text"}, {"skipped": "not installed"}]
    fit = shown("programs", record, "fit")
    assert "no worker processes | 3 | 6.0 to 9.0×, median 7.0× |" in fit
    assert "in them | 0 | not measured |" in fit
    assert "decoded, natively | 1 | 1.5× |" in fit
    assert "files that `torchvision.io` or OpenCV decodes | torch's workers, your code as it is | 1 | 0.8× |" in fit
    assert "other arrays, text, audio | torch's workers, into pinned slots | 1 |" in fit


def test_arrays_are_shown_beside_their_reference():
    rows = {"ceiling": (100, 1), "fastload": (90, 0.9)}
    contenders = {
        name: {"images_per_s": spread(rate), "of_ceiling": spread(share)} for name, (rate, share) in rows.items()
    }
    record = {"benchmark": "arrays-train", "points": [{"batch_size": 8, "contenders": contenders}], "complete": False}
    record["parameters"] = {"what": "train", "steps": 6, "workers": 2}
    lines = tables.shown("arrays", record).splitlines()
    assert lines[2:4] == ["| 8 | ceiling | 100 ± 10 | – |", "| 8 | fastload | 90 ± 9 | 0.90 ± 0.09× |"]
    assert lines[-1].startswith("Turns of 6 steps, 2 threads or workers. The run ended early")


def test_a_quick_run_is_no_result(results):
    record = peers("loaders", "images_per_s", {"torch": 1, "fastload": 2}, threads=4)
    record["parameters"]["quick"] = True
    with pytest.raises(ValueError, match="quick"):
        shown("train-decode", record, "README")


def test_a_run_that_was_cut_off_is_no_result(results):
    record = peers("loaders", "images_per_s", {"torch": 1, "fastload": 2}, threads=4) | {"complete": False}
    with pytest.raises(ValueError, match="cut off"):
        shown("train-decode", record, "README")


def test_each_size_of_image_says_what_was_read(results):
    record = peers("scaling", "images_per_s", {"torch": 100, "fastload": 500}, batch_size=256)
    data = {"images": 64, "mean_kb": 3625.2, "page_cache_share": None}
    record["points"].insert(0, {**record["points"][0], "edge_px": 4000, "batch_size": 16, "dataset": data})
    record["parameters"]["threads"] = 16
    docs = shown("scaling", record)
    assert "|  | 4000 px, 3,625 KB, batches of 16 | batches of 256 |" in docs
    assert "16 threads; turns of at least 0.5 s; 1000 images of 53 KB, 100%" in docs
    assert "; 64 images of 3,625 KB." in docs


def test_a_table_without_a_result_is_an_error(results):
    (results / "onecore.json").unlink()
    with pytest.raises(FileNotFoundError, match="onecore"):
        rendered()


def test_every_result_says_what_it_ran_on():
    files = sorted((ROOT / "benchmarks" / "results").glob("*.json"))
    assert files
    for file in files:
        ran = json.loads(file.read_text())["environment"]
        assert {"cpu", "gpu", "torch", "date", "commit", "driver", "usable_cpus"} <= set(ran), file.name


def test_programs_are_counted_as_their_record_says(results):
    record = json.loads((results / "programs.json").read_text())
    assert record["counts"] == counts(record["rows"])
    row = next(row for row in record["rows"] if "speedup" in row)
    looks = {"looks_at": "a.py:1 reads pixels (mul): a | b", "looks_per_image": 0.5}
    record["rows"] = [{**row, "program": "slow", "speedup": spread(0.93), **looks}]
    text = shown("programs", record)
    assert "| `slow` |" in text
    assert "| 0.93 ± 0.09× |" in text
    assert "| `slow` | `a.py:1 reads pixels (mul): a / b` | 0.50 |" in text
    record["rows"][0]["looks_per_image"] = 0.001
    assert "a.py" not in shown("programs", record)


def test_own_datasets_are_shown_beside_what_their_python_allows(results):
    row = {
        "recipe": "own dataset, classic",
        "what": "crop, flip",
        "where": "workers, lazy images",
        "images_per_s": {"torch": spread(3000), "deferred=False": spread(7000), "deferred=True": spread(30000)},
        "speedup": spread(10),
    }
    alone = {"own dataset, classic": {"images_per_s": spread(40000)}}
    trained = {
        "ms_per_step": {"resident": spread(50), "deferred=False": spread(100), "deferred=True": spread(51)},
        "share_of_ceiling": {"deferred=False": spread(0.5), "deferred=True": spread(0.98)},
    }
    record = {
        **gpudecode(),
        "benchmark": "own",
        "parameters": {"threads": 15, "parts": ["python", "loader", "step"]},
        "python": {"processes": {"2": {"own dataset, classic": {"images_per_s": spread(6000)}}, "15": alone}},
        "loader": {"rows": [row, {**row, "recipe": "SimCLR"}, {"recipe": "x", "what": "y", "skipped": "no x"}]},
        "step": {"model": "resnet50", "recipes": {"own dataset, classic": trained}},
    }
    text = shown("own", record)
    known = "crop, flip | lazy images | 3,000 | 7,000 | 30,000 | 10.0 ± 1.0× |"
    assert f"| own dataset, classic | {known} 40,000 | 75% |" in text
    assert f"| SimCLR | {known} – | – |" in text
    assert "| x | y | no x | – | – | – | – | – | – |" in text
    assert "alone allows, in images/s: 2 processes classic 6,000; 15 processes classic 40,000." in text
    assert "| own dataset, classic | 50.0 ± 5.0 ms | 100.0 ± 10.0 ms | 51.0 ± 5.1 ms | 50.0% | 98.0% |" in text
    assert text.endswith("\n\n15 workers; 1000 images of 53 KB.")
    without = shown("own", {**record, "python": {"skipped": "no guard pages"}, "step": {"failed": "no memory"}})
    assert f"| own dataset, classic | {known} – | – |" in without
    assert "Not measured: python, no guard pages.\n\nNot measured: step, no memory." in without


def gpudecode(**parts):
    """A record of decoding on the GPU."""
    return {
        "benchmark": "gpudecode",
        "environment": {"gpu": "A GPU", "cpu": "A CPU", "usable_cpus": 16, "torch": "2.11", "date": "2026-11-21"},
        "dataset": {"images": 1000, "mean_kb": 53.0},
        "parameters": {"quick": False, "threads": 16},
        **parts,
    }


KERNELS = {
    "ms": {"fastload_decode.huffman": spread(0.3), "fastload_decode.rows": spread(0.1), "?": spread(0.2)},
    "decode_ms": spread(0.4),
    "profiled_ms": {"huffman(unsigned char const*)": 0.29, "Memset (Device)": 0.02, "tiny": 0.001},
    "images": 900,
    "of_images": 1000,
    "batch_size": 256,
    "new": {
        "ms": {"fastload_decode.points": spread(0.2), "fastload_decode.huffman": spread(0.31), "?": spread(0.2)},
        "decode_ms": spread(0.9),
        "profiled_ms": {"huffman(unsigned char const*)": 0.31, "points": 0.2, "tiny": 0.001},
        "images": 800,
        "of_images": 1000,
        "batch_size": 256,
    },
}
EPOCHS = {
    "images": 49152,
    "images_per_s": {
        threads: {
            side: {
                "first": spread(first),
                "later": spread(later),
                "start_s": spread(start_s if side == "auto" else 9.0),
            }
            for side, (first, later) in by_side.items()
        }
        for threads, start_s, by_side in (
            ("1", 0.3, {"auto": (27e3, 30e3), "threads": (1600, 2100), "find": (25e3, 29e3), "scan": (3200, 31e3)}),
            ("16", 0.2, {"auto": (9e4, 12e4), "threads": (2e4, 28e3), "find": (88e3, 115e3), "scan": (4e4, 116e3)}),
        )
    },
}
STEP = {
    "model": "resnet50",
    "ms_per_step": {"fed": spread(54.8), "new": spread(55.2), "resident": spread(54.5)},
    "fed_over_resident": {"median": 1.0055, "min": 1.004, "max": 1.006, "values": [1.0055, 1.004, 1.006]},
    "new_over_resident": {"median": 1.013, "min": 1.012, "max": 1.0145, "values": [1.013, 1.012, 1.0145]},
}
VERIFY = {
    "on_gpu": True,
    "crops": 1_000_000,
    "gpu_staged": 900_000,
    "new_staged": 800_000,
    "differ": 0,
    "pillow_crops": 20_000,
    "files": {"colour": 1800, "grey": 100},
    "by_transform": {"centre": {}},
}


def test_decoding_on_the_gpu_is_shown(results):
    docs = shown("gpudecode", gpudecode(kernels=KERNELS, epochs=EPOCHS, step=STEP, verify=VERIFY))
    assert "| for 256 images that the GPU decodes | first visit | later visits |\n|---|--:|--:|\n| `points`" in docs
    assert "| `points` | 0.200 ± 0.020 ms |  |\n" in docs
    assert "| `huffman` | 0.310 ± 0.031 ms | 0.300 ± 0.030 ms |\n" in docs
    assert "| all that decode | **0.900 ± 0.090 ms** | **0.400 ± 0.040 ms** |\n" in docs
    profiled = ("`huffman` | 0.310 ms | 0.290 ms", "`points` | 0.200 ms | ", "`Memset` |  | 0.020 ms")
    assert "\n".join(f"| profiler: {one} |" for one in profiled) in docs
    assert "`?`" not in docs  # of a program that was compiled before
    assert "90.0% of the images were decoded on the GPU" in docs
    assert "1.0055 times as long (1.0040 to 1.0060); 1.0130 times (1.0120 to 1.0145) if all its files are new." in docs
    assert "0 of 1,000,000 random crops of varied files differ" in docs
    assert "Files: 1,800 colour, 100 grey; 1 transforms." in docs
    assert "tiny" not in docs
    assert "Not measured" not in docs
    docs = rendered("benchmarks")
    assert "The kernels take 0.40 ms for 256 images, 0.90 ms at a first visit. With 1 / 16 threads" in docs
    assert "and 2,100 / 28,000. A ResNet-50 step takes 54.50 ms with its data on the GPU already" in docs
    assert "too. A GPU, 16 cores, torch 2.11, 2026-11-21; `gpudecode.json`.\n" in docs


def test_first_epochs_are_shown_by_who_decodes(results):
    docs = shown("gpudecode", gpudecode(epochs=EPOCHS))
    head = "| threads | decoded by | first epoch, images/s | later epochs, images/s |\n|---|---|--:|--:|\n"
    assert f'{head}| 1 | `decode="auto"` | 27,000 ± 2,700 | 30,000 ± 3,000 |\n| 1 | decode threads | 1,600' in docs
    assert "| 1 | the GPU, which finds its way | 25,000 ± 2,500 | 29,000 ± 2,900 |\n" in docs
    assert "| 16 | the GPU, threads scan new files | 40,000 ± 4,000 | 116,000 ± 11,600 |\n\n" in docs
    assert "epochs of 49,152 files, each new to a first epoch's loader" in docs
    assert "queues fill (0.20 to 0.30 s)." in docs
    assert docs.endswith("16 threads; 1000 images of 53 KB.")
    assert (
        "\n\nWith 1 / 16 threads FastLoader makes 27,000 / 90,000 images/s in a first epoch, whose files are all new, "
        "and 30,000 / 120,000 in later ones; decode threads alone make 1,600 / 20,000 and 2,100 / 28,000. A GPU, 16"
    ) in rendered("benchmarks")


def test_crops_of_new_files_are_told_where_they_were_compared(results):
    told = "differ in a bit from the decode threads'. The GPU decoded 900,000 of them with an index"
    record = gpudecode(verify=VERIFY)
    new = f"0 of 1,000,000 random crops of varied files {told} and 800,000 without; 20,000 were compared"
    docs = shown("gpudecode-crops", record, "benchmarks")
    assert new in docs
    assert "too. A GPU, 16 cores, torch 2.11, 2026-11-21; `gpudecode-crops.json`.\n" in docs
    assert new in shown("gpudecode-crops", record)
    record["verify"] = {name: value for name, value in VERIFY.items() if name != "new_staged"}
    assert f"{told}; 20,000 were compared" in shown("gpudecode-crops", record)


def test_parts_that_were_not_measured_are_named(results):
    record = gpudecode(kernels={"failed": "RuntimeError: no\nmemory"}, verify={**VERIFY, "on_gpu": False})
    docs = shown("gpudecode", record)
    failed = "Not measured: kernels, RuntimeError: no memory."
    assert f"{failed}\n\nNot measured: epochs, not asked.\n\nNot measured: step, not asked." in docs
    assert "20,000 crops by decode threads beside Pillow's: 0 differ." in docs
    assert "The kernels" not in rendered("benchmarks")
    record["parameters"]["parts"] = ["kernels", "verify"]
    docs = shown("gpudecode", record)
    assert failed in docs
    assert "not asked" not in docs


def test_kernels_whose_launches_were_not_seen_have_no_time(results):
    unseen = {"decode_ms": None, "ms": {}}
    docs = shown("gpudecode", gpudecode(kernels={**KERNELS, **unseen, "new": {**KERNELS["new"], **unseen}}))
    assert "| profiler: `huffman` | 0.310 ms | 0.290 ms |" in docs
    assert "**" not in docs
    assert "The kernels" not in rendered("benchmarks")


def test_the_page_in_short_has_the_rates_of_few_the_fastest_first(results):
    record = peers("loaders", "images_per_s", {"torch": 1400, "dali-gpu": 9000, "fastload": 8000}, threads=1)
    more = {"torch": 5000, "dali-gpu": 21000, "fastload": 90000}
    sixteen = {"threads": 16, "contenders": {name: {"images_per_s": spread(value)} for name, value in more.items()}}
    record["points"].append(sixteen)
    docs = shown("loaders-decode", record, "benchmarks")
    assert (
        "with 1 / 16 threads, from the second epoch on: FastLoader, native 8,000 / 90,000; "
        "DALI, GPU decode 9,000 ▲ / 21,000. ▲ ahead"
    ) in docs
    assert "1 thread: DALI, GPU decode by 1.1×." in docs


def test_power_has_no_leader(results):
    figures = {"fastload": (2000.0, 300.0, 90000.0), "dali-gpu": (9000.0, 200.0, 30000.0)}
    record = peers(
        "energy", "joules_per_million", {name: joules for name, (joules, _, _) in figures.items()}, threads=16
    )
    for name, (_, watts, rate) in figures.items():
        record["points"][0]["contenders"][name] |= {"watts": spread(watts), "images_per_s": spread(rate)}
    docs = shown("energy", record)
    assert "| per million images, 16 threads | 9,000 ± 900 J | 2,000 ± 200 J |" in docs
    assert "| power | 200 ± 20 W | 300 ± 30 W |" in docs
    assert "No peer that was measured is ahead of FastLoader, native." in docs
    drawn = chart("Energy", "energy", "", record)
    assert "per million images" in drawn
    assert "power" not in drawn
    assert "images/s" not in drawn  # of which more is better, unlike the legend says


def test_turns_of_a_limited_row_are_told(results):
    record = peers("train", "images_per_s", {"torch": 1500, "fastload": 4700}, model="resnet18", cores=2, threads=2)
    record["points"][0] |= {"row_seconds": 30.0, "seconds": 2.0, "repeats": 3, "recipe": "randaugment"}
    for result, steps in zip(record["points"][0]["contenders"].values(), (4, 20), strict=True):
        result |= {"steps": steps, "share_of_ceiling": spread(0.5)}
    record["parameters"]["steps"] = None
    docs = shown("train-decode", record)
    assert "ResNet-18, 2 cores, RandAugment" in docs
    assert "3 repeats; 256 images a batch; turns of 4 to 20 steps; about 30 s for all turns of a column;" in docs
