"""The verdict on a recording: what limits the training loop in one window."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fastload.profiling.recording.trace import DECODING
from fastload.stats.verdict import DECODE_COST_MIN, LESS_ON_GPU, STALL_MIN, Bottleneck, Verdict, limit_outside_loader

if TYPE_CHECKING:
    from fastload.profiling.analysis.findings import DecodeUse, DeviceUse, Findings, ThreadUse

_LAYOUT_SHARE: Final = 0.02
_BLOCKED: Final = 0.5
_COLLATING: Final = 0.5
_CROSSING: Final = 0.6
_READ: Final = ("fetch", "record", "read")
_WORKING: Final = 0.3
_OF_THE_LOADER: Final = (
    Bottleneck.STORAGE,
    Bottleneck.DECODE,
    Bottleneck.PYTHON,
    Bottleneck.EPILOGUE,
    Bottleneck.COLLATE,
)


def diagnose_trace(findings: Findings, reported: Verdict | None = None) -> Verdict:
    """Decide what the loop is bound by.

    Args:
        findings: The window's numbers.
        reported: The loader's own verdict (``loader.report()``): it samples the workers' fetches, while a recording
            cannot always distinguish decoding from Python.
    """
    decode = findings.gpu_decode
    device = max(findings.devices, key=lambda use: use.window_s, default=None)
    waited = f"the training loop waited for batches {findings.wait_share:.0%} of the time"
    if device is None:
        if limit_outside_loader(findings.wait_share, None) is Bottleneck.STEP:
            return Verdict.of(Bottleneck.STEP, waited, "no kernel of a GPU was recorded")
    else:
        busy = f"the GPU ran kernels {device.busy_share:.0%} of it"
        limit = limit_outside_loader(device.starved_share, device.busy_share)
        if decode is not None and decode.awaited_share >= max(STALL_MIN, device.starved_share):
            ran = f"only the kernels that decode ran {decode.awaited_share:.0%} of it, {_decoding(findings, decode)}"
            return Verdict.of(Bottleneck.DECODE, waited, ran, remedy=f"{LESS_ON_GPU}; or store smaller images")
        if (found := _communication(findings, device)) is not None:
            return Verdict.of(Bottleneck.COMMUNICATION, *found, busy, waited, remedy=_for_straggler(findings))
        if limit is Bottleneck.LOOP and (launching := _launching(findings, device)):
            return Verdict.of(Bottleneck.LAUNCH, *launching, busy, waited, *_layout(findings))
        if limit is Bottleneck.GPU and decode is not None and decode.share >= DECODE_COST_MIN:
            return Verdict.of(limit, waited, busy, _decoding(findings, decode), *_layout(findings), remedy=LESS_ON_GPU)
        if limit is Bottleneck.GPU:
            return Verdict.of(limit, waited, busy, *_layout(findings))
        if limit is Bottleneck.LOOP:
            why = "it is the loop that leaves the GPU idle, not the loader"
            if device.starved_share >= STALL_MIN:
                why = (
                    f"the GPU idled {device.idle_share:.0%} of the time, {device.starved_share:.0%} for want of a batch"
                )
            return Verdict.of(limit, why, waited, busy, *_host(findings), *_layout(findings))
        waited += f", {busy}"
    bottleneck, *evidence = _loader(findings, reported)
    if bottleneck is None:
        return Verdict(None, (waited, *evidence), "print(loader.report()) after an epoch says what the loader saw")
    same = reported is not None and reported.bottleneck is bottleneck
    return Verdict.of(bottleneck, waited, *evidence, remedy=reported.remedy if reported and same else None)


def _communication(findings: Findings, device: DeviceUse) -> list[str] | None:
    """The evidence if collectives that nothing hides are the largest loss of time."""
    use = findings.communication
    if use is None or use.exposed_share < max(STALL_MIN, device.idle_share):
        return None
    kinds = ", ".join(kind.kind for kind in use.kinds[:2])
    on = f" (mean of {len(use.ranks)} ranks)" if len(use.ranks) > 1 else ""
    evidence = [
        f"collectives ({kinds}) ran {use.share:.0%} of the time{on}, {use.exposed_share:.0%} beside no other kernel"
    ]
    if use.straggler is not None:
        evidence.append(
            f"in them the other ranks waited {use.waited_share:.0%} of the time for one, {use.straggler.label}"
        )
    return evidence


def _for_straggler(findings: Findings) -> str | None:
    """The remedy if ranks wait for one; ``None`` for the usual one."""
    use = findings.communication
    if use is None or use.straggler is None or use.waited_share < use.exposed_share / 2:
        return None
    return (
        f"find what makes {use.straggler.label} late: profile that rank, and compare its data (longer samples, more of "
        "them), its GPU's clocks and its host's load with another's"
    )


def _launching(findings: Findings, device: DeviceUse) -> list[str]:
    """The evidence if most of the idle time ends with a launch."""
    use = findings.launching
    if use is None or use.late_share < (device.idle_share - device.starved_share) / 2:
        return []
    return [
        f"the GPU waited for the next launch {use.late_share:.0%} of the time, in {use.late:,} gaps",
        f"a kernel takes {use.kernel_s * 1e6:,.1f} µs and a launch comes every {use.every_s * 1e6:,.1f} µs, "
        f"{use.call_s * 1e6:,.1f} µs of it in CUDA's call",
        f"{use.ahead:.1f} kernels were queued on average",
    ]


def _decoding(findings: Findings, decode: DecodeUse) -> str:
    """What decoding on the GPU took, as a part of a sentence."""
    step = f" of each {1e3 * findings.step_s:,.1f} ms step" if findings.step_s else " a batch"
    each_s = decode.seconds / findings.steps if findings.steps else decode.mean_s
    return (
        f"decoding took {1e3 * each_s:,.2f} ms{step} ({decode.share:.1%}), {decode.beside_kernels_share:.0%} of that "
        "beside other kernels"
    )


def _layout(findings: Findings) -> list[str]:
    share = sum(kernel.share for kernel in findings.layout)
    if share < _LAYOUT_SHARE:
        return []
    return [
        f"{share:.0%} of the kernels' time only converts layouts ({findings.layout[0].name}): "
        "model.to(memory_format=torch.channels_last)"
    ]


def _host(findings: Findings) -> list[str]:
    if not findings.gaps or not findings.gaps[0].host:
        return []
    gap = findings.gaps[0]
    return [f"in its longest gap ({gap.length_s * 1e3:.1f} ms) the training thread was in {gap.host[0].what}"]


def _loader(findings: Findings, reported: Verdict | None) -> tuple[Bottleneck | None, *tuple[str, ...]]:
    pageable = [copy for copy in findings.copies if copy.direction == "host to device" and copy.memory == "pageable"]
    pageable_s = sum(copy.seconds for copy in pageable)
    if findings.link_share > _CROSSING or pageable_s > findings.seconds * _WORKING:
        crossing = f"copies to the device were under way {findings.link_share:.0%} of it"
        if pageable_s > findings.seconds * findings.link_share / 2:
            return Bottleneck.PIN, crossing, "most of them from pageable memory"
        return Bottleneck.LINK, crossing
    if reported is not None and reported.bottleneck is Bottleneck.EPILOGUE and (found := _trust(reported)):
        return found  # it has no range here
    readers = [thread for thread in findings.threads if thread.role in ("worker", "decode")]
    if not any(thread.stages for thread in readers):  # samples are read in the main process
        readers = [thread for thread in findings.threads if "fetch" in thread.stages]
    if not readers:
        return _trust(reported) or (None, "no thread was seen to read samples")
    fetching = sum(_mean(readers, stage) for stage in _READ)
    collating, decoding = _mean(readers, "collate"), sum(_mean(readers, stage) for stage in DECODING)
    working = fetching + collating + decoding
    where = f"{len(readers)} worker{'s' if len(readers) > 1 else ''}"
    if readers[0].role == "main":
        where = "the main process, which reads the samples itself (num_workers=0),"
    if working < _WORKING * min(1.0, findings.wait_share) and readers[0].role != "main":
        waits = "batches were on their way, or waited for the sampler or for a lock"
        return _trust(reported) or (None, f"{where} were busy only {working:.0%} of it", waits)
    if collating > working * _COLLATING:
        return Bottleneck.COLLATE, f"{where} collated {collating:.0%} of it"
    if decoding > working * _COLLATING:
        return Bottleneck.DECODE, f"{where} decoded {decoding:.0%} of it"
    fetched = f"{where} fetched samples {fetching:.0%} of it"
    blocked = _blocked(readers)
    if blocked is not None and blocked > _BLOCKED:
        return Bottleneck.STORAGE, fetched, f"blocked for {blocked:.0%} of that"
    if found := _trust(reported):
        return *found, fetched
    computed = "computing" if blocked is not None else "reading or computing"
    return Bottleneck.PYTHON, fetched, computed


def _trust(reported: Verdict | None) -> tuple[Bottleneck, *tuple[str, ...]] | None:
    if reported is None or reported.bottleneck is None or reported.bottleneck not in _OF_THE_LOADER:
        return None
    shares = [text for text in reported.evidence if "waited for batches" not in text]  # which the recording says, too
    return reported.bottleneck, *(f"the loader itself: {text}" for text in shares[:1])


def _mean(threads: list[ThreadUse], stage: str) -> float:
    return sum(thread.stages.get(stage, 0.0) for thread in threads) / len(threads)


def _blocked(readers: list[ThreadUse]) -> float | None:
    """Share of all readers' fetches in which they were blocked, without collating."""
    weights = [(sum(thread.stages.get(name, 0.0) for name in _READ), thread.blocked_share) for thread in readers]
    known = [(weight, share) for weight, share in weights if share is not None]
    total = sum(weight for weight, _ in known)
    return sum(weight * share for weight, share in known) / total if total else None
