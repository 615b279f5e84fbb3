"""Where `oxiwarp.attention` is faster than what torch chooses by itself: written by benches/python/attention_table.py.

By compute capability, then by the columns of a head and whether keys are padded: numbers of queries, of keys, and of
the queries of all heads together. Ours was faster at every measured size that has as much of all three of one line.
"""

MEASURED = {
    "9.0": {
        "gpu": "NVIDIA H200",
        "driver": "580.159.04",
        "torch": "2.11.0",
        "date": "2026-11-20",
        "results": "benches/results/nvidia-h200/2026-11-20/f8d6fbc",
    },
}
FASTER: dict[str, dict[tuple[int, bool], tuple[tuple[int, int, int], ...]]] = {
    "9.0": {
        (64, False): ((2048, 1024, 49152), (2688, 128, 172032), (4608, 128, 55296)),
        (64, True): ((2048, 128, 24576),),
        (128, False): ((512, 512, 6144),),
        (128, True): ((512, 128, 6144),),
    },
}
