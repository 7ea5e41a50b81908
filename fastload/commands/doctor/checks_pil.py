"""The doctor's checks of Pillow, which decodes and resizes images in the workers."""

from __future__ import annotations

import io
import statistics
import time
from typing import TYPE_CHECKING, Any, Final

from fastload._version import version_of
from fastload.commands.doctor.checks import Check

if TYPE_CHECKING:
    from collections.abc import Callable

# Pillow-SIMD 12.1.1.post0 (built with AVX2) against Pillow 13.0.0: random resized crops of 200 photographs of about
# 500 x 400 to 224 x 224 pixels, bilinear. Each such value differed by 1 of 255.
SIMD_DIFFERENT_VALUES: Final = 0.021


def check_pil(*, measure: bool = True) -> Check:
    """Check which Pillow decodes images; ``measure`` times it (half a second, one core)."""
    pillow, simd = version_of("pillow"), version_of("pillow-simd")
    try:
        import PIL
        from PIL import features
    except (ImportError, OSError) as error:
        return Check("PIL", f"does not import: {error}", "missing", "pip install --force-reinstall pillow")
    flavour = "Pillow-SIMD" if ".post" in PIL.__version__ or (simd and not pillow) else "Pillow"
    turbo = features.version("libjpeg_turbo") if features.check("libjpeg_turbo") else None
    libjpeg = f"libjpeg-turbo {turbo}" if turbo else f"libjpeg {features.version('jpg')}"
    data: dict[str, Any] = {"flavour": flavour, "version": PIL.__version__, "libjpeg": libjpeg}
    finding = f"{flavour} {PIL.__version__}, {libjpeg}"
    if not features.check("jpg"):
        remedy = "it was built without libjpeg: pip install --force-reinstall pillow"
        return Check("PIL", f"{flavour} {PIL.__version__}, reads no JPEG", "missing", remedy, data)
    if measure:
        data |= measure_pil()
        finding += f"; decode + crop + resize: {data['images_per_s']:.0f} images/s on one core"
    if pillow and simd:
        finding += f"; pillow {pillow} and pillow-simd {simd} are both installed"
        remedy = "both write to the same folder; choose one, in a clone of fastload: make simd, or make unsimd"
        return Check("PIL", finding, "warning", remedy, data)
    check = Check("PIL", finding, data=data)
    if turbo is None:
        remedy = "plain libjpeg lacks libjpeg-turbo's vector code and decodes slower"
        return check.but("warning", f"{remedy}: pip install --force-reinstall pillow")
    if flavour == "Pillow-SIMD":
        remedy = (
            f"it rounds its resize otherwise than Pillow ({SIMD_DIFFERENT_VALUES:.1%} of the values differed, each by "
            "1): for the same bits as elsewhere, pip install --force-reinstall pillow (in a clone, make unsimd)"
        )
        return check.but("note", remedy)
    return check


def measure_pil() -> dict[str, float]:
    """Measure decoding and resizing on the calling thread, in images/s and shares.

    Decodes a 500 x 400 JPEG, crops 400 x 300, and resizes to 224 x 224.
    """
    from PIL import Image

    encoded = _photograph_like_jpeg()

    def decode() -> Any:
        with Image.open(io.BytesIO(encoded)) as image:
            return image.convert("RGB")

    decoded = decode()

    def crop_and_resize() -> None:
        decoded.crop((50, 50, 450, 350)).resize((224, 224), Image.Resampling.BILINEAR)

    decode_s, resize_s = _median_s(decode), _median_s(crop_and_resize)
    return {
        "images_per_s": 1 / (decode_s + resize_s),
        "decode_per_s": 1 / decode_s,
        "resize_per_s": 1 / resize_s,
        "resize_share": resize_s / (decode_s + resize_s),
        "jpeg_bytes": len(encoded),
    }


def _median_s(work: Callable[[], object], repeats: int = 5, seconds: float = 0.05) -> float:
    """Median processor time of one call, which other processes on the core do not affect."""
    work()

    def once() -> float:
        calls, start = 0, time.thread_time()
        while (elapsed := time.thread_time() - start) < seconds or calls == 0:
            work()
            calls += 1
        return elapsed / calls

    return statistics.median(once() for _ in range(repeats))


def _photograph_like_jpeg() -> bytes:
    """A JPEG with a photograph's bytes per pixel, 53 KB for 500x400 at quality 90."""
    import numpy as np
    from PIL import Image

    random = np.random.default_rng(0)
    height, width = 400, 500
    y, x = np.mgrid[0:height, 0:width].astype(np.float32)
    picture = np.full((height, width, 3), 128, np.float32)
    for wavelength in (400, 170, 80, 40, 20, 10):
        angle, phases = random.uniform(0, 2 * np.pi), random.uniform(0, 2 * np.pi, 3)
        along = (x * np.cos(angle) + y * np.sin(angle)) * (2 * np.pi / wavelength)
        picture += np.sin(along[..., None] + phases) * (wavelength**0.5 * 2)
    picture += random.normal(0, 3.8, (height, width, 1))
    buffer = io.BytesIO()
    Image.fromarray(picture.clip(0, 255).astype(np.uint8)).save(buffer, "JPEG", quality=90)
    return buffer.getvalue()
