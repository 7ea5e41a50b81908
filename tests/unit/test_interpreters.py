"""Programs that are forked behave as in an interpreter of their own."""

from __future__ import annotations

import os
import subprocess

import interpreters
import pytest
from leaks import Holdings, survivors


def test_output_arguments_variables_and_folder_are_the_programs_own(tmp_path):
    code = (
        "import os, sys; print(sys.argv, os.environ['ONE'], os.getcwd()); print('wrong', file=sys.stderr); sys.exit(3)"
    )
    done = interpreters.run(["-c", code, "x"], env={**os.environ, "ONE": "1"}, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (3, f"['-c', 'x'] 1 {tmp_path}\n", "wrong\n")


def test_nothing_of_fastload_is_there_and_what_a_program_does_reaches_no_other():
    code = "import sys; print('fastload' in sys.modules, 'torch' in sys.modules); import fastload"
    for _ in range(2):
        assert interpreters.run(["-c", code]).stdout == "False True\n"


def test_a_script_is_the_main_module_of_processes_that_it_starts(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "def f(): pass\nimport pickle, __main__\nprint(pickle.loads(pickle.dumps(f)) is f, __main__.__file__)"
    )
    assert interpreters.run([script]).stdout == f"True {script}\n"


def test_an_error_is_a_traceback_and_a_signal_a_negative_code():
    failed = interpreters.run(["-c", "1 / 0"])
    assert (failed.returncode, failed.stderr.splitlines()[-1]) == (1, "ZeroDivisionError: division by zero")
    assert interpreters.run(["-c", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"]).returncode == -9


@pytest.mark.slow
def test_a_program_that_hangs_is_ended():
    before = Holdings.now()
    with pytest.raises(subprocess.TimeoutExpired):
        interpreters.run(["-c", "import threading; threading.Event().wait()"], timeout_s=0.5)
    assert survivors(before) == []
    assert interpreters.run(["-c", "print(1)"]).stdout == "1\n"


def test_a_process_that_a_program_leaves_behind_is_seen():
    before = Holdings.now()
    code = "import os, threading\nif (pid := os.fork()) == 0: threading.Event().wait()\nprint(pid); os._exit(0)"
    left = int(interpreters.run(["-c", code]).stdout)
    assert [what for what in survivors(before, grace_s=0.02) if what.startswith(f"process {left} ")]
    os.kill(left, 9)
    assert survivors(before) == []
