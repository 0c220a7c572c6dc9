"""CPU and memory of processes that come and go, against what the kernel or the processes themselves say."""

import os
import subprocess
import sys
import time

import psutil
import pyarrow as pa
import pytest

from anncestry.errors import ServerError
from anncestry.metrics import processes, resources

BURN = """
def burn(seconds):
    while time.process_time() < seconds:
        pass
    return time.process_time()
"""
FORKS = (
    """import os, sys, time"""
    + BURN
    + """
for line in sys.stdin:
    children, seconds, order = line.split()
    if order == "unwaited":
        import signal
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for _ in range(int(children)):
        if not os.fork():
            burn(float(seconds))
            if order == "stay":
                print("burnt", flush=True)
                time.sleep(600)
            os._exit(0)
        if order == "waited":
            os.wait()
    print("done", flush=True)
"""
)


@pytest.fixture
def server():
    """A process that forks, burns CPU in its children, and answers once it has."""
    process = subprocess.Popen(
        [sys.executable, "-c", FORKS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        yield process
    finally:
        os.killpg(process.pid, 9)
        process.communicate()


def ask(process, line, answers=1):
    print(line, file=process.stdin, flush=True)
    for _ in range(answers):
        process.stdout.readline()


def between_edges(process, during):
    """CPU seconds of the process and its children between two edges, as a session samples them."""
    with resources.Sampler({"server": lambda: [process.pid]}, every_s=60.0) as sampler:
        sampler.edge()
        start_s = time.monotonic()
        during()
        end_s = time.monotonic()
        sampler.edge()
    return resources.cpu_between_edges(sampler.table(), "server", (start_s, end_s))


def test_children_that_come_and_go_between_two_samples_are_counted(server):
    used_s = between_edges(server, lambda: ask(server, "20 0.05 waited"))
    assert 0.95 <= used_s < 10.0, "a hypervisor's stall counts as well"


def test_a_child_that_came_and_stays_is_counted_from_its_birth(server):
    """D5: a forked backend that burnt 1.0 s in a run of 1 s was given 0.00 s."""
    used_s = between_edges(server, lambda: ask(server, "1 1.0 stay", answers=2))
    assert 0.95 <= used_s < 10.0


def test_a_child_that_ends_is_counted_once(server):
    ask(server, "1 0.5 stay", answers=2)
    tree = processes.Tree()
    before_s = tree.read({server.pid: ""}, set(), seek=True)[""].cpu_s
    (child,) = psutil.Process(server.pid).children()
    child.kill()
    while child.is_running() and child.status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)
    assert tree.read({server.pid: ""}, set(), seek=False)[""].cpu_s == pytest.approx(before_s, abs=0.1)
    ask(server, "1 0.01 waited")  # waits for the one that was killed
    assert tree.read({server.pid: ""}, set(), seek=True)[""].cpu_s == pytest.approx(before_s, abs=0.1)


def test_what_was_seen_of_a_child_stays_where_its_parent_does_not_wait_for_it(server):
    tree = processes.Tree()
    ask(server, "0 0 unwaited")
    ask(server, "1 0.5 stay", answers=2)
    before_s = tree.read({server.pid: ""}, set(), seek=True)[""].cpu_s
    (child,) = psutil.Process(server.pid).children()
    child.kill()
    while psutil.pid_exists(child.pid):
        time.sleep(0.01)
    assert before_s >= 0.5
    assert tree.read({server.pid: ""}, set(), seek=True)[""].cpu_s == pytest.approx(before_s, abs=0.1)


def test_a_server_that_this_process_waited_for_is_not_its_own_cpu():
    tree, own_s = processes.Tree(), time.process_time()
    before_s = tree.read({os.getpid(): ""}, set(), seek=True)[""].cpu_s
    subprocess.run([sys.executable, "-c", f"import time{BURN}burn(1.0)"], check=True)
    after_s = tree.read({os.getpid(): ""}, set(), seek=True)[""].cpu_s
    assert after_s - before_s < time.process_time() - own_s + 0.1


SHARE = """
import mmap, os, sys, time
shared = mmap.mmap(-1, 64 << 20)
shared.write(bytes(64 << 20))
for _ in range(4):
    if not os.fork():
        sum(shared[::4096])
        print("mapped", flush=True)
        time.sleep(600)
time.sleep(600)
"""


def test_memory_that_processes_share_is_counted_once():
    process = subprocess.Popen([sys.executable, "-c", SHARE], stdout=subprocess.PIPE, start_new_session=True)
    try:
        for _ in range(4):
            process.stdout.readline()
        with resources.Sampler({"server": lambda: [process.pid]}, every_s=60.0) as sampler:
            start_s = time.monotonic()
            sampler.sample()
        used = resources.attribute(sampler.table(), "server", [(start_s, time.monotonic())])
    finally:
        os.killpg(process.pid, 9)
        process.communicate()
    assert used["rss_peak_mib"] > 5 * 64
    assert 64 < used["pss_mib"] < 2 * 64
    assert 0 < used["pss_anon_mib"] < used["pss_mib"]


def test_a_control_group_s_total_goes_on_when_its_member_is_started_again():
    charges = iter([5.0, 7.0, None, 1.0, 3.0])

    def charged():
        now = next(charges)
        return {} if now is None else {"cpu_s": now}

    with resources.Sampler({"server": lambda: [os.getpid()]}, 60.0, {"server": charged}) as sampler:
        for _ in range(3):
            sampler.sample()
    server = sampler.table().filter(pa.compute.equal(sampler.table()["group"], "server"))
    assert server["cpu_s"].to_pylist() == [5, 7, 7, 8, 10]


def test_nothing_that_a_server_did_outside_of_the_run_is_in_it():
    at_s = [0.0, 1.0, 1.1, 3.0, 3.2, 9.0]
    cpu_s = [0.0, 50.0, 50.5, 54.0, 54.5, 99.0]
    edge = [False, True, False, False, True, False]
    table = pa.table({"at_s": at_s, "cpu_s": cpu_s, "edge": edge, "group": ["server"] * 6})
    assert resources.cpu_between_edges(table, "server", (1.05, 3.1)) == 4.5
    unseen = resources.cpu_between_edges(table.drop_columns(["edge"]), "server", (1.05, 3.1))
    assert unseen != unseen  # of an earlier version: not a number


def test_samples_that_have_ended_are_no_silence(monkeypatch):
    asked = iter([[os.getpid()]])

    def pids():
        return next(asked)  # the second time there is nothing: StopIteration

    said = r"processes are no longer sampled \(StopIteration\(\)\)"
    with pytest.raises(ServerError, match=said), resources.Sampler({"server": pids}, every_s=0.01) as sampler:
        while sampler._problem is None:
            time.sleep(0.01)
        sampler.edge()


def test_kernel_threads_are_counted_from_the_first_read_on_and_those_that_end_stay_counted(monkeypatch):
    read = iter([{2: 5.0, 30: 1.0}, {2: 5.5, 30: 1.0, 31: 0.25}, {2: 6.0, 31: 0.25}, {2: 6.0, 31: 0.125}])
    monkeypatch.setattr(processes, "_kernel_threads", lambda: next(read).items())
    threads = processes.KernelThreads()
    assert [threads.used() for _ in range(4)] == [0.0, 0.75, 1.25, 1.25]


def test_this_process_is_no_kernel_thread():
    assert os.getpid() not in dict(processes._kernel_threads())
