"""Read usable cores and memory from simulated ``/proc`` and ``/sys`` trees."""

from __future__ import annotations

import os

import interpreters
import pytest

from fastload._machine import (
    CpuBudget,
    MemoryBudget,
    cpu_budget,
    file_descriptor_limits,
    memory_budget,
    process_memory,
    shared_memory_bytes,
    usable_cpus,
    usable_memory_bytes,
)

GIB = 2**30
MEMINFO = "MemTotal: 67108864 kB\nMemAvailable: 33554432 kB\n"
V2_MOUNT = "30 23 0:26 / /sys/fs/cgroup rw,nosuid,nodev - cgroup2 cgroup2 rw,nsdelegate\n"


def run(code):
    done = interpreters.run(["-c", code])
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def machine(tmp_path):
    """Writes files below a made-up root folder and returns that folder."""

    def write(files: dict[str, str]):
        for name, text in ({"proc/meminfo": MEMINFO} | files).items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return write


def test_no_control_groups_leave_the_machine_itself(machine):
    root = machine({})
    assert cpu_budget(root) == CpuBudget(os.cpu_count(), len(os.sched_getaffinity(0)), None)
    assert memory_budget(root) == MemoryBudget(32 * GIB, None, None)
    assert memory_budget(root).usable_bytes == 32 * GIB


def test_v2_container_with_its_own_namespace(machine):
    root = machine(
        {
            "proc/self/cgroup": "0::/\n",
            "proc/self/mountinfo": V2_MOUNT,
            "sys/fs/cgroup/cpu.max": "250000 100000\n",
            "sys/fs/cgroup/memory.max": f"{8 * GIB}\n",
            "sys/fs/cgroup/memory.current": f"{5 * GIB}\n",
            "sys/fs/cgroup/memory.stat": f"anon {2 * GIB}\nfile {3 * GIB}\ninactive_file {GIB}\n",
        }
    )
    assert cpu_budget(root).quota == 2.5
    budget = memory_budget(root)
    assert budget.limit_bytes == 8 * GIB
    assert budget.left_bytes == 4 * GIB, "file caches that can be dropped are not in the way"
    assert budget.usable_bytes == 4 * GIB


def test_v2_the_tightest_of_the_enclosing_groups_binds(machine):
    root = machine(
        {
            "proc/self/cgroup": "0::/slurm/job7/task\n",
            "proc/self/mountinfo": V2_MOUNT,
            "sys/fs/cgroup/slurm/cpu.max": "1600000 100000\n",
            "sys/fs/cgroup/slurm/job7/cpu.max": "400000 100000\n",
            "sys/fs/cgroup/slurm/job7/task/cpu.max": "max 100000\n",
            "sys/fs/cgroup/slurm/memory.max": f"{16 * GIB}\n",
            "sys/fs/cgroup/slurm/memory.current": f"{15 * GIB}\n",
            "sys/fs/cgroup/slurm/job7/memory.max": f"{4 * GIB}\n",
            "sys/fs/cgroup/slurm/job7/memory.current": f"{GIB}\n",
            "sys/fs/cgroup/slurm/job7/task/memory.max": "max\n",
        }
    )
    assert cpu_budget(root).quota == 4
    assert memory_budget(root) == MemoryBudget(32 * GIB, 4 * GIB, GIB), "neighbours' use counts where it is shared"


def test_v1_with_its_controllers_in_separate_trees(machine):
    root = machine(
        {
            "proc/self/cgroup": "5:memory:/box\n4:cpu,cpuacct:/box\n1:name=systemd:/\n0::/\n",
            "proc/self/mountinfo": (
                "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n"
                "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
                "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
                "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
            ),
            "sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_quota_us": "150000\n",
            "sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{9 * GIB}\n",
            "sys/fs/cgroup/memory/box/memory.limit_in_bytes": f"{3 * GIB}\n",
            "sys/fs/cgroup/memory/box/memory.usage_in_bytes": f"{2 * GIB}\n",
            "sys/fs/cgroup/memory/box/memory.stat": f"inactive_file 5\ntotal_inactive_file {GIB}\n",
        }
    )
    assert cpu_budget(root).quota == 1.5
    assert memory_budget(root) == MemoryBudget(32 * GIB, 3 * GIB, 2 * GIB)


def test_v1_container_that_is_mounted_as_the_root_of_its_tree(machine):
    root = machine(
        {
            "proc/self/cgroup": "4:cpu,cpuacct:/docker/0123abcd/inner\n",
            "proc/self/mountinfo": (
                "32 31 0:29 /docker/0123abcd /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct\n"
            ),
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "300000\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/cpu,cpuacct/inner/cpu.cfs_quota_us": "100000\n",
            "sys/fs/cgroup/cpu,cpuacct/inner/cpu.cfs_period_us": "50000\n",
        }
    )
    assert cpu_budget(root).quota == 2


def test_v1_writes_no_limit_as_a_huge_number(machine):
    root = machine(
        {
            "proc/self/cgroup": "5:memory:/\n",
            "proc/self/mountinfo": "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{9 * GIB}\n",
        }
    )
    assert memory_budget(root) == MemoryBudget(32 * GIB, None, None)


def test_a_group_outside_of_the_own_namespace_falls_back_to_the_mount(machine):
    root = machine(
        {
            "proc/self/cgroup": "0::/../other\n",
            "proc/self/mountinfo": V2_MOUNT,
            "sys/fs/cgroup/cpu.max": "200000 100000\n",
        }
    )
    assert cpu_budget(root).quota == 2


@pytest.mark.parametrize("text", ["max 100000\n", "", "nonsense\n", "100000 0\n"])
def test_a_quota_that_is_none_or_unreadable_is_no_limit(machine, text):
    root = machine({"proc/self/cgroup": "0::/\n", "proc/self/mountinfo": V2_MOUNT, "sys/fs/cgroup/cpu.max": text})
    assert cpu_budget(root).quota is None


@pytest.mark.parametrize(
    ("budget", "usable"),
    [
        (CpuBudget(64, 64, None), 64),
        (CpuBudget(64, 8, None), 8),
        (CpuBudget(64, 64, 6.9), 6),
        (CpuBudget(64, 4, 6.9), 4),
        (CpuBudget(64, 64, 0.5), 1),
    ],
)
def test_usable_cpus_is_the_smaller_of_affinity_and_whole_quota(budget, usable):
    assert budget.usable == usable


def test_affinity_is_seen():
    one = min(os.sched_getaffinity(0))
    code = f"import os; os.sched_setaffinity(0, [{one}]); from fastload import _machine; print(_machine.usable_cpus())"
    assert run(code) == "1\n"


def test_this_machine_has_something_to_use():
    assert 1 <= usable_cpus() <= (os.cpu_count() or 1)
    assert 0 < usable_memory_bytes() <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def test_shared_memory_is_the_file_system_s_own_figure(tmp_path):
    status = os.statvfs(tmp_path)
    assert shared_memory_bytes(str(tmp_path))[0] == status.f_frsize * status.f_blocks
    assert shared_memory_bytes(str(tmp_path / "missing")) is None


ROLLUP = """5580 r-xp 00000000 00:00 0 [rollup]
Rss:              400000 kB
Pss:              250000 kB
Pss_Anon:         200000 kB
Shared_Clean:     150000 kB
"""


@pytest.mark.parametrize("name", ["smaps_rollup", "smaps"])
def test_a_process_s_memory_is_all_pages_and_those_of_others_in_part(machine, name):
    text = ROLLUP if name == "smaps_rollup" else ROLLUP + ROLLUP  # one such block for each mapping
    times = 1 if name == "smaps_rollup" else 2
    root = machine({f"proc/77/{name}": text})
    assert process_memory(77, root) == (times * 400_000 << 10, times * 250_000 << 10)
    assert process_memory(78, root) is None


def test_this_process_s_memory_is_known():
    rss, pss = process_memory(os.getpid())
    assert 0 < pss <= rss <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def test_descriptor_limits_are_this_process_s():
    # Importing torch opens more files than the limit allows, so the limit is set after that.
    code = (
        "from fastload import _machine; import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (77, 99)); "
        "print(_machine.file_descriptor_limits())"
    )
    assert run(code) == "(77, 99)\n"
    assert len(file_descriptor_limits()) == 2
