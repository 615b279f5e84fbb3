"""Where `oxiwarp.attention` is faster than what torch chooses by itself: written by benches/python/attention_table.py.

By compute capability, then by the columns of a head and whether keys are padded: numbers of queries and keys, of which
a call must reach both of a pair. Ours was faster at every measured size that does, with few heads and with many.
"""

MEASURED = {
    "9.0": {
        "gpu": "NVIDIA H200",
        "driver": "580.159.04",
        "torch": "2.11.0+cu130",
        "date": "2026-11-20",
        "results": "benches/results/nvidia-h200/2026-11-20/a176ff4",
    },
}
FASTER: dict[str, dict[tuple[int, bool], tuple[tuple[int, int], ...]]] = {
    "9.0": {
        (64, False): ((2048, 2048),),
        (64, True): ((2048, 128),),
        (128, False): ((2048, 2048),),
    },
}
