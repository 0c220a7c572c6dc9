"""What a wheel carries beside modules: workflow, config and profiles, and what `make wheel` built ahead."""

import os
import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

PARTS = ("workflow", "config", "envs", "profiles", "Snakefile", "requirements.lock")
"""As `anncestry.home.PARTS`, which can't be imported here."""


class BuildWithHome(build_py):
    """Copies them into the folder that `anncestry.home` reads in an installed package."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        home = Path(self.build_lib) / "anncestry" / "home"
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True)
        unwanted = shutil.ignore_patterns("__pycache__")
        for name in PARTS:
            if Path(name).is_dir():
                shutil.copytree(name, home / name, ignore=unwanted)
            else:
                shutil.copyfile(name, home / name)
        if ahead := os.environ.get("ANNCESTRY_AHEAD"):
            shutil.copytree(ahead, home, dirs_exist_ok=True)


setup(cmdclass={"build_py": BuildWithHome})
