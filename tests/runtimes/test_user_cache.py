"""What lies in the cache is run, so it is used only where nobody else could have put it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from anncestry import user_cache
from anncestry.errors import UserError


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "above" / "cache"))
    return tmp_path / "above" / "cache" / "anncestry"


def test_a_cache_is_made_for_its_user_alone_whatever_the_umask(cache: Path) -> None:
    before = os.umask(0)
    try:
        made = user_cache.folder("driver", "one")
    finally:
        os.umask(before)
    assert made == cache / "driver" / "one"
    assert {place.stat().st_mode & 0o777 for place in (made, *made.parents[:4])} == {0o700}


@pytest.mark.parametrize("loose", ["driver", ".", "..", "../.."])
def test_a_cache_that_others_may_write_is_refused_by_name(cache: Path, loose: str) -> None:
    """Finding 6: a program that another user had planted there was run."""
    user_cache.folder("driver")
    place = (cache / loose).resolve()
    place.chmod(0o777)
    with pytest.raises(UserError, match=f"^{place}: other users own or may write this folder, so what lies in {cache}"):
        user_cache.folder("driver")


def test_a_folder_like_tmp_may_be_above_a_cache_but_not_be_one(cache: Path) -> None:
    user_cache.folder()
    cache.parent.chmod(0o1777)
    assert user_cache.folder() == cache
    cache.chmod(0o1777)
    with pytest.raises(UserError, match=f"^{cache}: other users"):
        user_cache.folder()


def test_a_link_leads_to_a_folder_that_is_looked_at_too(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "open" / "cache").mkdir(parents=True)
    cache.parent.parent.mkdir()
    cache.parent.symlink_to(tmp_path / "open" / "cache")
    assert user_cache.folder() == cache
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(UserError, match=f"^{tmp_path / 'open'}: other users"):
        user_cache.folder()


def test_a_cache_of_another_user_is_refused(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = user_cache.folder().stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    if owner == 0:  # root may do all of it anyway
        assert user_cache.folder() == cache
        for place in (cache, cache.parent):
            os.chown(place, 54321, -1)
    with pytest.raises(UserError, match=f"^{cache}: other users own"):
        user_cache.folder()


def test_a_command_says_in_one_sentence_that_it_does_not_use_such_a_cache(cache: Path) -> None:
    user_cache.folder().chmod(0o777)
    done = subprocess.run(
        [sys.executable, "-m", "anncestry", "engine", "true"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1 and f"{cache}: other users own or may write this folder" in done.stderr
