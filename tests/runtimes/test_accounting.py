"""Control groups of both versions are read alike; what they do not account is left out, not zero."""

from __future__ import annotations

from pathlib import Path

from anncestry.runtimes import control_groups

MIB = 1 << 20


def write(folder: Path, **files: str) -> Path:
    folder.mkdir(parents=True)
    (folder / "cgroup.procs").write_text("77\n")
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)
    return folder


def found(tmp_path: Path, lines: str) -> control_groups.Folders:
    (tmp_path / "proc" / "77").mkdir(parents=True)
    (tmp_path / "proc" / "77" / "cgroup").write_text(lines)
    return control_groups.of_process(77, tmp_path / "cgroup", tmp_path / "proc")


def test_version_2_is_one_folder(tmp_path: Path) -> None:
    write(
        tmp_path / "cgroup" / "docker" / "abc",
        memory__current=f"{300 * MIB}\n",
        memory__peak=f"{400 * MIB}\n",
        memory__stat=f"anon {200 * MIB}\nfile {90 * MIB}\nslab 5\n",
        memory__events="low 0\noom 1\noom_kill 2\n",
        cpu__stat="usage_usec 1500000\nnr_throttled 3\nthrottled_usec 250000\n",
        io__stat=f"254:0 rbytes={3 * MIB} wbytes={4 * MIB} rios=1\n8:0 rbytes={MIB} wbytes=0\n",
    )
    used = control_groups.usage(found(tmp_path, "0::/docker/abc\n"))
    assert (used["memory_mib"], used["memory_peak_mib"], used["oom_kills"]) == (300, 400, 2)
    assert (used["memory_anon_mib"], used["memory_cache_mib"]) == (200, 90)
    assert (used["cpu_s"], used["throttled_s"]) == (1.5, 0.25)
    assert (used["io_read_mib"], used["io_write_mib"]) == (4, 4)


def test_version_1_is_a_folder_for_each_controller(tmp_path: Path) -> None:
    root = tmp_path / "cgroup"
    write(
        root / "memory" / "docker" / "abc",
        memory__usage_in_bytes=f"{300 * MIB}\n",
        memory__max_usage_in_bytes=f"{400 * MIB}\n",
        memory__stat=f"rss 1\ntotal_rss {200 * MIB}\ntotal_cache {90 * MIB}\n",
        memory__oom_control="oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
    )
    write(root / "cpuacct" / "docker" / "abc", cpuacct__usage="1500000000\n")
    write(root / "cpu" / "docker" / "abc", cpu__stat="nr_throttled 3\nthrottled_time 250000000\n")
    write(root / "blkio" / "docker" / "abc", blkio__throttle__io_service_bytes_recursive="Total 0\n")
    lines = "".join(
        f"{number}:{name}:/docker/abc\n" for number, name in enumerate(("memory", "cpuacct", "cpu", "blkio"))
    )
    used = control_groups.usage(found(tmp_path, f"{lines}0::/docker/abc\n"))
    assert (used["memory_mib"], used["memory_peak_mib"], used["oom_kills"]) == (300, 400, 2)
    assert (used["memory_anon_mib"], used["memory_cache_mib"]) == (200, 90)
    assert (used["cpu_s"], used["throttled_s"]) == (1.5, 0.25)
    assert "io_read_mib" not in used, "nobody counts, which is not zero"


def test_a_process_whose_groups_are_not_to_be_seen_has_none(tmp_path: Path) -> None:
    assert control_groups.of_process(77, tmp_path, tmp_path) == {}
