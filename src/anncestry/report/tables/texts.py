"""What stands above and below the tables of the paper."""

from __future__ import annotations

from dataclasses import dataclass

LIKE = 1.5
"""Datasets whose numbers of vectors differ by no more than this factor count as of one size."""


@dataclass(frozen=True)
class Text:
    """What stands above a table; `published_note` says how figures of others beside ours were obtained."""

    title: str
    caption: str
    published_note: str


_NOT_OURS = (
    " The paper's columns are those of what was run: it had no cluster of Milvus, and prints a second run of its"
    " standalone server in that place."
)
TEXTS = {
    "I": Text(
        "Datasets",
        "Vectors as counted on the server after loading, and their dimension. Distance l2 is the squared Euclidean one;"
        " for cosine, vectors are scaled to length 1 before they are loaded.",
        "The paper gives these counts and dimensions as the datasets' nominal ones.",
    ),
    "II": Text(
        "Load time",
        "Seconds of wall clock from the first insert until the server answers searches over all rows: insert, flush,"
        " index build and making ready together. A load is measured once, so no spread is known and none is better."
        " Read and written: what all processes of the server read from storage and wrote to it meanwhile.",
        "The paper's time for Milvus ends before the index is loaded for searching.",
    ),
    "III": Text(
        "Processor use while loading",
        "Share of processor time that all processes of the server used, from first insert to searchable;"
        " 100 % is one core, kept busy. Peak is the highest interval between two samples.",
        "The paper's percentages are those of the Python client that loaded, not of the server.",
    ),
    "IV": Text(
        "Latency, K = 10, no filter",
        "Milliseconds from handing an encoded request to the transport until its whole answer is there; one client, the"
        " next query after the answer to the last; encoding and decoding are left out. Each percentile is the mean over"
        " runs, ± the sample standard deviation of the runs, all over one index.",
        "The paper timed calls of each vendor's Python client, encoding and decoding included;"
        " its ± is the population standard deviation of three runs.",
    ),
    "V": Text(
        "Latency, K = 100, no filter",
        "As the table before, with the 100 nearest asked for.",
        "The paper timed calls of each vendor's Python client, encoding and decoding included;"
        " its ± is the population standard deviation of three runs.",
    ),
    "VI": Text(
        "Queries per second, one client",
        "Answers without error, divided by the time from the first request to the last answer; one client, closed"
        " loop, no filter. ± is the sample standard deviation over runs.",
        "The paper derived its figure as 1000 / mean latency in milliseconds.",
    ),
    "VII": Text(
        "What a filter costs",
        "Median latency without and with the filter, one client, at the same search effort. The cost is the change of"
        " the one against the other;"
        " (=) marks a change within the margin of equivalence, (?) one that is"
        " not determined. Selectivity is the measured share of rows that pass the filter."
        " Recall is against the exact neighbours among the rows that pass.",
        "In the paper's code most queries of the filtered runs carried no filter (the audit page says how many),"
        " and the others passed one row in ten.",
    ),
    "VIII": Text(
        "Recall",
        "Share of the exact K nearest neighbours among those returned, mean over queries. By id: the returned ids are"
        " the true ones. By distance: the returned ones are as near as the true K-th, so that ties count."
        " Repeats ask the same index the same queries: their spread is not noise, so none is marked better.",
        "The paper's recall is by id.",
    ),
    "IX": Text(
        "Storage",
        "MiB on disk after the server stopped, of one that held this dataset alone. Total is all it occupies; net is"
        " the vectors, metadata and index, without bookkeeping and logs; raw is rows × dimensions × 4 bytes.",
        "The paper prints MB. Its figure for Milvus is of a whole volume, with message logs and earlier runs.",
    ),
    "X": Text(
        "Queries per second by number of clients",
        "Answers without error per second, all clients together, each in a closed loop for a fixed time, K = 10, no"
        " filter. One run a cell unless ± is given.",
        "The paper ran threads of one Python process as clients.",
    ),
    "PC": Text(
        "p99 by number of clients",
        "Milliseconds within which all but one in a hundred of the queries had their answer, all clients together, each"
        " in a closed loop for a fixed time, K = 10, no filter. One run a cell unless ± is given.",
        "",
    ),
    "XI": Text(
        "Dimension",
        "Median latency and queries per second, one client, K = 10, no filter, by dimension. Only datasets of about"
        f" the same number of vectors (a factor of {LIKE:g} at most within a size) tell what the dimension does; others"
        " differ by their size, too. ± is the sample standard deviation over runs.",
        "The paper timed calls of each vendor's Python client.",
    ),
    "XII": Text(
        "One node and several: median latency",
        "Median latency of one client, K = 10, no filter, on every topology of one node and every one of several that"
        " one system was measured on. The overhead is the change from the one to the other; (=) marks one within"
        " the margin of equivalence, (?) one that is not determined.",
        "The paper timed calls of each vendor's Python client." + _NOT_OURS,
    ),
    "XIII": Text(
        "One node and several: queries per second, one client",
        "Answers without error per second of one client in a closed loop, K = 10, no filter, on the same topologies.",
        "The paper derived its figure as 1000 / mean latency in milliseconds." + _NOT_OURS,
    ),
    "XIV": Text(
        "One node and several: queries per second, many clients",
        "Answers without error per second of several clients, of each number that was measured on both sides, in a"
        " closed loop of a fixed time, K = 10, no filter.",
        "The paper ran threads of one Python process as clients." + _NOT_OURS,
    ),
    "XV": Text(
        "One node and several: recall",
        "Recall by id, K = 10, no filter, one client, on one node and on several. Repeats ask the same index the same"
        " queries: their spread is not noise, so no difference is called one.",
        "The paper's recall is by id." + _NOT_OURS,
    ),
}
