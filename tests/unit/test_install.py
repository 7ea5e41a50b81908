"""Remedies follow from how fastload was installed."""

from __future__ import annotations

import json

import pytest

from fastload import _version

CHECKOUT = {"url": "file:///clone", "dir_info": {}}
WHEEL = {"url": "file:///dist/fastload_torch-0.1.0-cp312-abi3-manylinux_2_28_x86_64.whl", "archive_info": {}}


@pytest.mark.parametrize(
    ("source", "extra", "core"),
    [
        (CHECKOUT, "in fastload's checkout: pip install '.[cuda]'", "get it, then rebuild, in fastload's checkout: "),
        ({**CHECKOUT, "dir_info": {"editable": True}}, "in fastload's checkout: pip install '.[cuda]'", "get it, then"),
        (WHEEL, "pip install 'fastload-torch[cuda]'", f"pip install --force-reinstall --no-deps {WHEEL['url']}"),
        (None, "pip install 'fastload-torch[cuda]'", "pip install --force-reinstall --no-deps fastload-torch"),
    ],
)
def test_remedies_name_what_was_installed(tmp_path, monkeypatch, source, extra, core):
    about = tmp_path / "fastload_torch-9.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: fastload-torch\nVersion: 9\n")
    if source is not None:  # of an index's there is no such file
        (about / "direct_url.json").write_text(json.dumps(source))
    monkeypatch.syspath_prepend(str(tmp_path))
    assert _version.with_extra("cuda") == extra
    assert _version.rebuild("get it").startswith(core)


def test_a_folder_on_the_path_is_a_checkout(monkeypatch):
    monkeypatch.setattr(_version, "DISTRIBUTION", "fastload-that-no-one-installed")
    assert "checkout" in _version.with_extra("cuda")
