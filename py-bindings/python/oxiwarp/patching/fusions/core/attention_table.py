"""Numbers of queries and keys for which `oxiwarp.attention` is faster than torch's default attention.

benches/python/attention_table.py writes the tables in this file. `FASTER` maps a compute capability to a
dict. The dict maps (head dimension, whether a mask hides padded keys) to two tables:

1. Ranges of sizes. This table maps a minimum number of attention keys per head to pairs. A pair has the
   minimum number of queries per head, and the minimum number of queries in all batches and heads. For a call,
   only the entry with the largest minimum that does not exceed the call's number of keys applies.
   `oxiwarp.attention` was faster at every measured size that reaches both numbers of a pair of this entry.
2. Single measured sizes, outside of these ranges, at which `oxiwarp.attention` was faster. The table maps a
   number of attention keys to a dict. The dict maps a number of queries per head to the numbers of queries in
   all batches and heads.
"""
# fmt: off

Region = tuple[tuple[int, int], ...]
Sizes = tuple[dict[int, Region], dict[int, dict[int, tuple[int, ...]]]]

MEASURED = {'9.0': {'date': '2026-11-23',
         'driver': '580.159.04',
         'gpu': 'NVIDIA H200',
         'results': 'benches/results/latest/nvidia-h200',
         'torch': '2.11.0'}}
FASTER: dict[str, dict[tuple[int, bool], Sizes]] = (
{'9.0': {(64, False): ({1: ((512, 6144),),
                        129: ((2688, 32256),),
                        257: ((2688, 64512), (4608, 55296)),
                        1025: ((2048, 131072), (2688, 64512), (4608, 55296))},
                       {256: {512: (6144, 12288, 20480), 1024: (12288, 24576, 40960), 2048: (24576, 49152)},
                        512: {512: (6144, 12288, 20480), 1024: (12288, 40960), 2048: (24576, 49152)},
                        1024: {512: (20480,), 1024: (40960, 65536), 2048: (24576, 49152, 131072)},
                        2048: {512: (20480,), 1024: (40960, 65536), 2048: (24576, 49152)},
                        4608: {512: (20480,), 1024: (40960, 65536), 2048: (24576, 49152)},
                        8064: {512: (20480,), 1024: (40960, 65536), 2048: (24576, 49152)}}),
         (64, True): ({1: ((512, 6144),),
                       257: ((1024, 12288),),
                       513: ((1024, 24576),),
                       1025: ((1024, 40960), (2048, 24576)),
                       4609: ((1024, 40960),)},
                      {512: {512: (6144, 12288, 20480)},
                       1024: {512: (6144, 20480)},
                       2048: {512: (20480,)},
                       4608: {512: (20480,)},
                       8064: {512: (20480,), 2048: (24576,)}}),
         (128, False): ({1: (), 257: ((8064, 193536),), 513: ((2048, 24576),), 1025: ((512, 6144),)},
                        {77: {512: (6144, 12288, 20480, 32768),
                              1024: (12288, 24576, 40960, 65536),
                              2048: (24576, 49152, 81920, 131072),
                              2688: (32256, 64512, 107520, 172032),
                              4608: (55296, 110592, 184320, 294912),
                              8064: (96768, 193536, 322560)},
                         128: {512: (6144, 12288, 20480, 32768),
                               1024: (12288, 24576, 40960, 65536),
                               2048: (24576, 49152, 81920, 131072),
                               2688: (32256, 64512, 107520, 172032),
                               4608: (55296, 110592, 184320),
                               8064: (96768, 193536)},
                         256: {512: (6144, 12288, 20480),
                               1024: (12288, 24576, 40960),
                               2048: (24576, 49152),
                               2688: (32256,),
                               4608: (55296,),
                               8064: (193536, 322560, 516096)},
                         512: {512: (6144, 12288, 20480, 32768),
                               1024: (12288, 24576, 40960),
                               2048: (24576, 49152, 81920, 131072),
                               2688: (32256, 64512, 107520, 172032),
                               4608: (55296, 110592, 184320, 294912),
                               8064: (96768,)},
                         1024: {512: (6144, 12288, 20480, 32768), 1024: (12288, 24576, 40960, 65536)}}),
         (128, True): ({1: ((512, 6144),)}, {})}}
)
