"""Where `oxiwarp.attention` is faster than what torch chooses by itself: written by benches/python/attention_table.py.

By compute capability, then by the columns of a head and whether keys are padded, then by the number of keys: numbers of
queries, and of the queries of all heads together. Ours was faster at every measured size with as much of both of a pair.
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
FASTER: dict[str, dict[tuple[int, bool], dict[int, tuple[tuple[int, int], ...]]]] = {
    "9.0": {
        (64, False): {
            128: ((512, 6144),),
            256: ((2688, 172032), (4608, 55296)),
            512: ((2688, 172032), (4608, 55296)),
            1024: ((2048, 49152),),
            2048: ((2048, 49152),),
            4608: ((2048, 49152),),
            8064: ((2048, 49152),),
        },
        (64, True): {
            128: ((512, 6144),),
            256: ((512, 6144),),
            512: ((512, 6144),),
            1024: ((2048, 24576),),
            2048: ((2048, 24576),),
            4608: ((2048, 24576),),
            8064: ((2048, 24576),),
        },
        (128, False): {
            128: (),
            256: (),
            512: ((512, 6144),),
            1024: ((512, 6144),),
            2048: ((512, 6144),),
            4608: ((512, 6144),),
            8064: ((512, 6144),),
        },
        (128, True): {
            128: ((512, 6144),),
            256: ((512, 6144),),
            512: ((512, 6144),),
            1024: ((512, 6144),),
            2048: ((512, 6144),),
            4608: ((512, 6144),),
            8064: ((512, 6144),),
        },
    },
}
