"""A table for LaTeX (pdfLaTeX, XeLaTeX or LuaLaTeX), to be read by \\input; what it needs stands at its top."""

from __future__ import annotations

import unicodedata
from itertools import groupby

from anncestry.report.model.cells import Column, Table, TableRow

PREAMBLE = (r"\usepackage[T1]{fontenc}", r"\usepackage{array,booktabs,graphicx,longtable}")
"""What the document must have before it begins."""

LONGEST = 40
"""A table of more rows goes over pages (longtable); a shorter one is a float, shrunk to the width of the text."""

SENTENCE = 80
"""A cell of more letters is set in lines."""

_NAMED = {
    **{"\\": "backslash", "~": "asciitilde", "^": "asciicircum", "<": "less", ">": "greater", "|": "bar"},
    **{"µ": "mu", "μ": "mu", "°": "degree", "‡": "daggerdbl", "†": "dagger", "—": "emdash", "–": "endash"},
    **{"’": "quoteright", "‘": "quoteleft", "”": "quotedblright", "“": "quotedblleft", "'": "quotesingle"},
    **{"`": "asciigrave", '"': "quotedbl"},
}
_MATH = {
    **{"±": r"\pm", "×": r"\times", "−": "-", "≤": r"\leq", "≥": r"\geq", "≠": r"\neq", "→": r"\rightarrow"},
    **{"·": r"\cdot", "Δ": r"\Delta", "²": "^2"},
}
_TEX = {
    **{sign: f"\\{sign}" for sign in "{}&%$#_"},
    **{sign: rf"\text{name}{{}}" for sign, name in _NAMED.items()},
    **{sign: f"${name}$" for sign, name in _MATH.items()},
    **{"…": r"\ldots{}", "\u00a0": "~", "\u202f": r"\,"},
    # A row that begins with one of these would be taken for an argument of the line break before it.
    **{sign: f"{{{sign}}}" for sign in "[]*"},
}


def tex(value: object) -> str:
    """Anything as text that LaTeX prints as it is, whatever it would mean to it; line breaks become spaces.

    A letter that pdfLaTeX's fonts don't have is printed as its number in Unicode.
    """
    words = " ".join(str(value).split("\n"))
    # Two hyphens would become a dash, two commas a quotation mark.
    return "".join(_TEX.get(sign) or _letter(sign) for sign in words).replace("--", "-{}-").replace(",,", ",{},")


def as_tex(table: Table, label: str) -> str:
    """The table, with `tab:` and `label` to refer to it by."""
    caption = rf"\caption{{{tex(table.title)}. {tex(table.caption)}}}\label{{tab:{label}}}"
    columns = "l" * len(table.labels) + "".join(_how_set(table, place) for place in range(len(table.columns)))
    rows = [_row(row) for row in table.rows]
    head = [r"\toprule", *_head(table), r"\midrule"]
    if len(rows) > LONGEST:
        lines = [
            r"\begingroup\scriptsize\setlength{\tabcolsep}{3pt}",
            rf"\begin{{longtable}}{{{columns}}}",
            caption + r"\\",
            *head,
            r"\endhead",
            r"\bottomrule",
            r"\endfoot",
            *rows,
            r"\end{longtable}",
            r"\endgroup",
        ]
    else:
        lines = [
            r"\begin{table}",
            r"\centering",
            caption,
            rf"\sbox0{{\begin{{tabular}}{{{columns}}}",
            *head,
            *rows,
            r"\bottomrule",
            r"\end{tabular}}",
            r"\ifdim\wd0>\linewidth\resizebox{\linewidth}{!}{\usebox0}\else\usebox0\fi",
            r"\end{table}",
        ]
    return "\n".join([*(f"% {line}" for line in PREAMBLE), *lines, ""])


def _how_set(table: Table, place: int) -> str:
    """A column of numbers or a few words to the right; one with sentences as paragraphs."""
    cells = [row.cells[place] for row in table.rows]
    long = any(cell.value is None and len(cell.text) > SENTENCE for cell in cells)
    return r">{\raggedright\arraybackslash}p{24em}" if long else "r"


def heading(column: Column) -> str:
    return f"{column.label} ({column.unit})" if column.unit else column.label


def _head(table: Table) -> list[str]:
    """The headings: two rows if columns form groups."""
    width = len(table.labels)
    groups = [(group, len(list(members))) for group, members in groupby(column.group for column in table.columns)]
    lines = []
    if any(group for group, _ in groups):
        spans = [rf"\multicolumn{{{count}}}{{c}}{{{tex(group)}}}" for group, count in groups]
        lines.append(" & ".join([*[""] * width, *spans]) + r" \\")
    lines.append(" & ".join([*map(tex, table.labels), *(tex(heading(column)) for column in table.columns)]) + r" \\")
    return lines


def _row(row: TableRow) -> str:
    cells = [rf"\textbf{{{tex(cell.text)}}}" if cell.best else tex(cell.text) for cell in row.cells]
    return " & ".join([*map(tex, row.labels), *cells]) + r" \\"


def _letter(sign: str) -> str:
    """A sign that is no command: itself if fonts of the encoding T1 have it, a space for what can't be seen."""
    if sign.isascii():
        return sign if sign.isprintable() else " "
    return sign if _in_t1(sign) else f"{{[}}U+{ord(sign):04X}{{]}}"


def _in_t1(sign: str) -> bool:
    """Whether it is a letter of Latin-1, or one of its neighbours that is a letter with an accent."""
    if sign in "æÆœŒøØßðÐþÞłŁđĐıŋŊ¡¿«»£§":
        return True
    return "\u00c0" <= sign <= "\u017e" and len(unicodedata.normalize("NFD", sign)) == 2
