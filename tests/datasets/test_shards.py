"""Truth in shards is the truth of the whole, byte for byte, however the base is cut."""

from __future__ import annotations

import numpy as np
import pytest

from anncestry import workflow
from anncestry.datasets import truth
from anncestry.datasets.truth import Neighbors
from anncestry.errors import DataError
from anncestry.provenance import explain
from tests.toy import Toy, counted, parse_jobs


def whole_and_merged(base, queries, metric, depth, passes, parts, folder):
    np.save(folder / "base.npy", base)

    def solve(rows):
        return truth.nearest(folder / "base.npy", queries, metric, depth, passes, chunk_bytes=2000, rows=rows)

    found = [solve(truth.rows_of(part, parts, len(base))) for part in range(1, parts + 1)]
    merged = found[0]
    for other in found[1:]:
        merged = truth.merge(merged, other)
    return solve(range(len(base))), merged


@pytest.mark.parametrize("metric", ["l2", "cosine"])
@pytest.mark.parametrize("parts", [2, 7, 400])
def test_shards_merge_into_the_same_lists(tmp_path, metric, parts):
    random = np.random.default_rng(parts)
    base = np.round(random.normal(size=(400, 4)), 1).astype(np.float32)  # coarse: ties abound
    if metric == "cosine":
        base /= np.linalg.norm(base, axis=1, keepdims=True) + np.float32(1e-30)
    queries, passes = base[::37].copy(), random.random(400) < 0.8
    whole, merged = whole_and_merged(base, queries, metric, 20, passes, parts, tmp_path)
    assert np.array_equal(whole.ids, merged.ids)
    assert np.array_equal(whole.distances, merged.distances)
    assert np.array_equal(whole.next_distances, merged.next_distances)


def test_fewer_matches_than_asked_for_are_padded_as_in_the_whole(tmp_path):
    base = np.arange(40, dtype=np.float32).reshape(20, 2)
    passes = np.zeros(20, dtype=bool)
    passes[[0, 7, 19]] = True
    whole, merged = whole_and_merged(base, base[:3], "l2", 5, passes, 4, tmp_path)
    assert whole.ids.tolist() == merged.ids.tolist()
    assert (merged.ids[:, 3:] == -1).all() and np.isinf(merged.distances[:, 3:]).all()


def test_every_row_is_in_exactly_one_shard():
    for rows, parts in [(10, 1), (10, 3), (7, 7), (5_000_001, 64)]:
        cut = [truth.rows_of(part, parts, rows) for part in range(1, parts + 1)]
        assert [r.start for r in cut[1:]] == [r.stop for r in cut[:-1]]
        assert (cut[0].start, cut[-1].stop) == (0, rows)
        assert max(map(len, cut)) - min(map(len, cut)) <= 1


@pytest.fixture(scope="module")
def sharded(tmp_path_factory):
    """A toy whose truth is cut into 6 parts, made by Snakemake."""
    toy = Toy.make(tmp_path_factory.mktemp("sharded") / "toy")
    toy.one_cell()
    toy.files["config"]["truth"] = {"shard_mib": 540 * 8 * 4 / 2**20 / 6}
    return toy, toy.snakemake("--until", "truth", "--keep-going")


def test_snakemake_scatters_the_shards_and_gathers_them(sharded, tmp_path, monkeypatch):
    toy, done = sharded
    assert parse_jobs(done.stdout + done.stderr) == {"download": 1, "normalize": 1, "truth_part": 6, "truth": 1}
    (record,) = (toy.folder / "data" / "truth").glob("*/record.json")
    assert not list((toy.folder / "scratch" / "truth").rglob("*.npz")), "shards go when they are merged"
    (vectors,) = (toy.folder / "data" / "vectors").iterdir()
    monkeypatch.chdir(tmp_path)
    truth.run({"metric": "l2", "filter": None, "depth": 100}, vectors, tmp_path / "whole", "0" * 12)
    for name in ("ids.npy", "distances.npy"):
        assert (tmp_path / "whole" / name).read_bytes() == (record.parent / name).read_bytes()


def test_plan_counts_shards_as_snakemake_does(sharded, tmp_path, monkeypatch):
    fresh = sharded[0].copy(tmp_path / "fresh")
    fresh.save()
    monkeypatch.chdir(fresh.folder)
    matrix, plan = workflow.resolve(workflow.Choice(fresh.folder / "config", "default"), fresh.folder)
    assert counted(explain.jobs(matrix, plan)) == fresh.jobs()


def test_a_damaged_or_foreign_shard_is_refused_by_name(tmp_path):
    found = Neighbors(np.zeros((2, 3), np.int64), np.zeros((2, 3)), np.ones(2), 0)
    path = tmp_path / "part-1-of-1.npz"
    about = '{"key": "k", "part": 1, "parts": 2, "scanned": 0}'
    np.savez(path, ids=found.ids, distances=found.distances, next_distances=found.next_distances,
             matching=np.zeros(2, np.int64), about=np.array(about))  # fmt: skip
    with pytest.raises(DataError, match="part 1 of 2 of truth k, not 1 of 1 of k"):
        truth.gather([path], "k", "v")
    whole = (tmp_path / "part-1-of-1.npz.damaged").read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"part-1-of-1\.npz: damaged"):
        truth.gather([path], "k", "v")
    np.savez_compressed(path, ids=np.zeros((1 << 20, 3), np.int64), about=np.array(about))
    with pytest.raises(DataError, match=r"damaged .it is compressed, which none of ours is"):
        truth.gather([path], "k", "v")
    about = '{"key": "k", "vectors": "others", "part": 1, "parts": 1, "scanned": 0}'
    np.savez(path, ids=found.ids, distances=found.distances, next_distances=found.next_distances,
             matching=np.zeros(2, np.int64), about=np.array(about))  # fmt: skip
    with pytest.raises(DataError, match="was found among other vectors"):
        truth.gather([path], "k", "v")
    assert not path.exists()  # so that the next call makes it again
    with pytest.raises(DataError, match="missing"):
        truth.gather([path], "k", "v")
