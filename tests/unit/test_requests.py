"""The processes that request objects belong to the process that started them."""

from __future__ import annotations

import gc
import itertools
import os
import pickle
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import optional
import pytest

from fastload.sources import ObjectStoreImageFolder, object_store, requests
from fastload.sources.fetcher import Fetcher, Setup, _store_of, _write_all

optional.needed("obstore")


def stored_in(tmp_path):
    (tmp_path / "class").mkdir()
    for number in range(9):
        (tmp_path / "class" / f"{number}.jpg").write_bytes(b"%d" % number)
    return ObjectStoreImageFolder(f"file://{tmp_path}")


def test_a_forked_child_does_not_end_them(tmp_path):
    stored = stored_in(tmp_path)
    requests = stored._asked()
    child = os.fork()
    if child == 0:
        requests.close()  # as when the child's copy is garbage
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert stored.encoded(4)[0] == b"4"


def test_a_forked_child_starts_its_own(tmp_path):
    stored = stored_in(tmp_path)
    before = stored._asked()._process.pid
    child = os.fork()
    if child == 0:
        made = stored._asked()._process.pid != before and stored.encoded(4)[0] == b"4"
        stored._requests[1][0].close()
        os._exit(0 if made else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_answers_of_no_objects_of_many_and_of_empty_ones(tmp_path):
    stored = stored_in(tmp_path)
    assert stored.encoded_many([]).result() == []
    (tmp_path / "class" / "5.jpg").write_bytes(b"")
    stored = ObjectStoreImageFolder(f"file://{tmp_path}")
    indices = [number % 9 for number in range(3000)]
    answers = [bytes(data) for data, _ in stored.encoded_many(indices).result()]
    assert answers == [b"" if index == 5 else b"%d" % index for index in indices]


def test_answers_are_whole_if_a_write_is_not(tmp_path, monkeypatch):
    writev = os.writev
    monkeypatch.setattr(os, "writev", lambda file, pieces: writev(file, [memoryview(b"".join(pieces))[:3]]))
    with open(tmp_path / "file", "wb", buffering=0) as file:
        _write_all(file.fileno(), [b"", b"ab", b"", b"cdef", memoryview(b"ghijk"), b""])
    assert (tmp_path / "file").read_bytes() == b"abcdefghijk"


def test_an_answer_that_cannot_be_sent_ends_the_process():
    """Else who asked would wait for it forever."""
    code = (
        "import errno, os, socket, threading; from fastload.sources.fetcher import _Answers\n"
        "def fails(name): raise OSError(errno.EMFILE, 'no descriptor is left')\n"
        "os.memfd_create = fails\n"
        "thread = threading.Thread(target=_Answers(socket.socketpair()[0].detach()).write, args=(b'', []))\n"
        "thread.start(); thread.join(); os._exit(7)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1
    assert "no descriptor is left" in ended.stderr


def test_the_process_may_open_as_many_files_as_the_system_allows(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard - 1, hard))
    try:
        stored = stored_in(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert resource.prlimit(stored._requests[1][0]._process.pid, resource.RLIMIT_NOFILE) == (hard, hard)


def test_threads_that_cannot_be_started_are_done_without():
    code = """if True:
        import os, threading
        from fastload.sources.fetcher import ENTRY, OBJECT, Fetcher, Setup
        start, left, tried, answers, done = threading.Thread.start, [2], set(), [], threading.Event()
        def limited(thread):
            if not left[0]:
                raise RuntimeError("can't start new thread")
            left[0] -= 1
            start(thread)
        def object_of(key, size, etag):  # fails at first
            if key not in tried:
                raise OSError(tried.add(key))
            return key.encode()
        def write(header, pieces):
            answers.append(pieces)
            done.set()
        threading.Thread.start = limited
        fetcher = Fetcher(Setup("", {}, 8, 1, None, 0), None, write)
        fetcher._object = object_of
        fetcher.take(1, [("a", None, None), ("b", None, None), ("c", None, None)])
        done.wait(30)
        os._exit(answers != [[ENTRY.pack(OBJECT, 1)] * 3 + [b"a", b"b", b"c"]])
    """
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_the_process_ends_without_a_word_when_its_input_does():
    """That may be within a message: who asks was killed while it wrote."""
    told = pickle.dumps(Setup("file:///", {}, None, 0, None, 1))
    for message in (b"", told[:9], told, told + told[:9]):
        command = [sys.executable, "-m", "fastload.sources.fetcher", "0"]
        with socket.socketpair()[0] as answers:
            command[-1] = str(answers.fileno())
            ended = subprocess.run(command, input=message, capture_output=True, pass_fds=[answers.fileno()], timeout=60)
        assert (ended.returncode, ended.stdout, ended.stderr) == (0, b"", b"")


def test_closing_does_not_wait_for_the_answers_end_that_a_child_holds(tmp_path, monkeypatch):
    held, start = [], subprocess.Popen

    def popen(*args, pass_fds, **options):
        held.extend(map(os.dup, pass_fds))  # as a process that is forked just then
        return start(*args, pass_fds=pass_fds, **options)

    monkeypatch.setattr(requests.subprocess, "Popen", popen)
    stored = stored_in(tmp_path)
    begun = time.monotonic()
    stored._requests[1][0].close()
    assert time.monotonic() - begun < requests._JOIN_S / 2
    for descriptor in held:
        os.close(descriptor)


def test_an_answer_may_be_cancelled_at_any_moment_while_another_is_asked_for(tmp_path, monkeypatch):
    """As a garbage collection does it, which may begin within any call."""
    stored = stored_in(tmp_path)
    process = stored._requests[1][0]._process
    os.kill(process.pid, signal.SIGSTOP)
    first, was_cancelled = stored.encoded_many([1]), []

    def collects(message):
        was_cancelled.append(first.cancel())
        os.kill(process.pid, signal.SIGCONT)
        return pickle.dumps(message)

    monkeypatch.setattr(requests, "pickle", SimpleNamespace(dumps=collects, loads=pickle.loads))
    found = []
    thread = threading.Thread(target=lambda: found.append(stored.encoded(2)), daemon=True)
    thread.start()
    thread.join(20)
    assert was_cancelled
    assert [bytes(data) for data, _ in found] == [b"2"]


@pytest.mark.slow
def test_asking_does_not_wait_for_the_process(tmp_path):
    stored = stored_in(tmp_path)
    process = stored._requests[1][0]._process
    os.kill(process.pid, signal.SIGSTOP)
    answers = []
    thread = threading.Thread(target=lambda: answers.extend(stored.encoded_many([3] * 100) for _ in range(300)))
    thread.start()
    thread.join(20)
    is_blocked = thread.is_alive()
    os.kill(process.pid, signal.SIGCONT)
    thread.join()
    assert not is_blocked
    assert {bytes(data) for answer in answers for data, _ in answer.result()} == {b"3"}


def test_an_answer_that_cannot_be_taken_is_an_error_and_no_later_one_is_waited_for(tmp_path):
    stored = stored_in(tmp_path)
    stored.encoded(0)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    os.close(free := os.dup(0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        answer = stored.encoded_many([1])
        with pytest.raises(RuntimeError, match="cannot be taken: OSError: no file descriptor is left"):
            answer.result(20)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    with pytest.raises(RuntimeError, match="the process that reads objects has ended"):
        stored.encoded_many([2]).result(20)


def test_what_is_asked_after_the_end_is_an_error(tmp_path):
    stored = stored_in(tmp_path)
    stored._requests[1][0].close()
    with pytest.raises(RuntimeError, match="the process that reads objects has ended"):
        stored.encoded_many([2]).result(20)


def test_ctrl_c_at_a_terminal_does_not_reach_it(tmp_path):
    """Else a program that handles it, and ends after the epoch, would fail."""
    assert os.getpgid(stored_in(tmp_path)._requests[1][0]._process.pid) != os.getpgrp()


def test_modules_of_python_are_not_taken_from_the_current_folder(tmp_path, monkeypatch):
    (tmp_path / "queue.py").write_text("raise SystemExit(7)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    assert stored_in(tmp_path).encoded(4)[0] == b"4"


def test_no_descriptor_or_memory_stays(tmp_path):
    stored = stored_in(tmp_path)
    stored.encoded(0)
    before = len(os.listdir("/proc/self/fd"))
    answers = [stored.encoded_many([0, 1]).result() for _ in range(20)]
    assert bytes(answers[7][1][0]) == b"1"
    del answers
    assert len(os.listdir("/proc/self/fd")) == before
    stored._requests[1][0].close()
    assert len(os.listdir("/proc/self/fd")) == before - 2  # the socket, and the pipe of requests


def test_objects_that_are_kept_have_no_descriptor(tmp_path):
    """Else a program that reads a thousand one by one would have none left."""
    stored = stored_in(tmp_path)
    before = len(os.listdir("/proc/self/fd"))
    kept = [stored.encoded(number % 9)[0] for number in range(30)]
    assert len(os.listdir("/proc/self/fd")) == before
    assert [bytes(data) for data in kept] == [b"%d" % (number % 9) for number in range(30)]


def test_several_take_turns_and_end_with_their_dataset(tmp_path, monkeypatch):
    monkeypatch.setattr(object_store, "processes_wanted", lambda: 3)
    dataset = stored_in(tmp_path)
    dataset._requests = None  # with which the folder was listed
    answers = [dataset.encoded_many([number, 8]) for number in range(6)]
    assert [[bytes(data) for data, _ in answer.result()] for answer in answers] == [
        [b"%d" % number, b"8"] for number in range(6)
    ]
    processes = [one._process for one in dataset._requests[1]]
    assert len({process.pid for process in processes}) == 3
    del dataset, answers
    gc.collect()
    assert all(process.poll() is not None for process in processes)


def test_what_obstore_refuses_is_an_error_that_says_so(tmp_path, capfd):
    (tmp_path / "class").mkdir()
    for url, options, text in (
        ("foo://bucket/images", {}, 'foo://bucket/images cannot be opened with these options: .*"foo://'),
        ("s3://bucket", {"config": {"buckett": "x"}}, "'buckett' is not valid for store 'S3'"),
        ("s3://bucket", {"retrys": 3}, "'retrys' is not valid"),
        (f"file://{tmp_path}/nothing", {}, f"{tmp_path}/nothing"),
    ):
        with pytest.raises(ValueError, match=text):
            ObjectStoreImageFolder(url, **options)
    late = ObjectStoreImageFolder("foo://bucket", keys=["class/0.jpg"])
    with pytest.raises(ValueError, match="foo://bucket cannot be opened"):
        late.encoded(0)
    assert capfd.readouterr().err == ""


def test_a_url_without_a_scheme_is_refused(tmp_path):
    for url in (tmp_path, str(tmp_path), "bucket/images"):
        with pytest.raises(ValueError, match=f"url must begin with s3://.*, got '{url}'"):
            ObjectStoreImageFolder(url)
    with pytest.raises(TypeError, match="keys must be several"):
        ObjectStoreImageFolder("https://host", keys="class/0.jpg")


def test_a_url_that_would_be_read_otherwise_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for url in ("file://photos/", "file:photos", "file://./photos"):
        with pytest.raises(
            ValueError, match=f"must have an absolute path, got '{url}'; write '{tmp_path.as_uri()}/photos'"
        ):
            ObjectStoreImageFolder(url)
    for url in ("s3:bucket", "s3:///images", "https://"):
        with pytest.raises(ValueError, match=f"must name a bucket or host behind .*, got '{url}'"):
            ObjectStoreImageFolder(url)
    for url in (f"file://{tmp_path}/a#b", "s3://bucket/a?b"):
        with pytest.raises(ValueError, match=r"must have no '\?' and no '#', got .*; write %3F and %23"):
            ObjectStoreImageFolder(url)


def test_an_object_is_as_large_as_announced_and_has_the_tag_that_was_listed(monkeypatch):
    fetcher = Fetcher(Setup("s3://bucket", {}, 1, 0, None, 1), None, lambda *_: None)

    def answer(*wanted, size=3, tag='"t"', data=b"abc"):
        meta = {"size": size, "e_tag": tag}
        monkeypatch.setattr("obstore.get", lambda *_: SimpleNamespace(meta=meta, bytes=lambda: data))
        return fetcher._object("key", *wanted)

    for listed, tag in (('"t"', '"t"'), ("t", '"t"'), ('"t"', 'W/"t"'), (None, '"t"'), ('"t"', None)):
        assert answer(3, listed, tag=tag) == answer(None, listed, tag=tag) == b"abc"
    with pytest.raises(OSError, match="got 2 bytes of the 3 listed"):
        answer(3, None, size=2, data=b"ab")
    with pytest.raises(OSError, match="got 2 bytes of the 3 announced"):
        answer(None, None, data=b"ab")
    with pytest.raises(OSError, match='its entity tag is "u", and "t" was listed'):
        answer(3, '"t"', tag='"u"')
    with pytest.raises(OSError, match=f"it has {10**15} bytes; leave out"):
        answer(10**15, None, size=10**15)


def test_a_list_has_each_object_once_and_ends(monkeypatch):
    fetcher = Fetcher(Setup("s3://bucket", {}, 1, 0, None, 1), None, lambda *_: None)
    page = [{"path": f"class/{number}.jpg", "size": number, "e_tag": None} for number in range(5)]
    monkeypatch.setattr("obstore.list", lambda _: iter([page[:3], page[2:]]))
    assert pickle.loads(fetcher._list()) == [(f"class/{number}.jpg", number, None) for number in range(5)]
    monkeypatch.setattr("obstore.list", lambda _: itertools.repeat(page))
    with pytest.raises(OSError, match="the store's list repeats itself: 5 different objects among"):
        fetcher._list()


def test_without_obstore_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    error = _store_of(Setup("s3://bucket", {}, None, 0, None, 1))
    assert type(error) is ImportError
    assert "pip install '.[stores]'" in str(error)


def test_a_worker_of_torch_has_one(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    assert object_store.processes_wanted() == 4
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3})
    assert object_store.processes_wanted() == 1
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    monkeypatch.setattr(object_store, "get_worker_info", object)
    assert object_store.processes_wanted() == 1
