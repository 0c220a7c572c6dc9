"""What verification finds: problems, each with the file and the numbers that hang on it, and how much was looked at."""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from pyarrow import ArrowException

from anncestry.errors import UserError

# What goes wrong here with any file: no fault of the one that is looked at.
_OF_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EMFILE, errno.ENFILE, errno.ENOMEM)


@dataclass(frozen=True)
class Problem:
    """What is no longer true, in a sentence that names the file.

    `record` is the record (or folder) whose numbers hang on it; `numbers` are their ids where they are known already.
    """

    sentence: str
    record: str
    numbers: tuple[str, ...] = ()


@dataclass
class Findings:
    """Problems, and how much was looked at; `remarks` are true and no problem, but should be known."""

    problems: list[Problem] = field(default_factory=list)
    records: int = 0
    files: int = 0
    absent: set[str] = field(default_factory=set)
    remarks: list[str] = field(default_factory=list)
    broken: Counter[str] = field(default_factory=Counter)

    def add(self, problem: Problem) -> None:
        """Note a problem, once."""
        if problem not in self.problems:
            self.problems.append(problem)
            self.broken[problem.record] += 1

    def check(self, record: str, test: Callable[[], None]) -> bool:
        """Run a test that raises UserError; whether it passed. Contents that break a test are a problem, too."""
        try:
            test()
        except UserError as error:
            self.add(Problem(str(error), record))
            return False
        except OSError as error:
            if error.errno in _OF_DISK:
                raise
            self.add(Problem(f"{record}: can't be read ({error})", record))
            return False
        except (ArithmeticError, ArrowException, AttributeError, LookupError, TypeError, ValueError) as error:
            self.add(
                Problem(f"{record}: can't be made again from what it says ({type(error).__name__}: {error})", record)
            )
            return False
        return True
