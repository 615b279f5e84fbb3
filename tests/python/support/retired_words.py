"""Words that identifiers and file names must not contain, each with the term to use instead.

`test_retired_words.py` also finds a word in a longer identifier: `forget_lanes` contains `forget`.
"""

RETIRED = {
    "quad": "vec4",
    "quads": "vec4s",
    "octet": "vec8",
    "octets": "vec8s",
    "held": "in registers; block, warp or cluster in the name of a kernel",
    "forget": "opaque",
    "forgotten": "opaque",
    "passage": "L2 policy",
    "turn": "rotation, step, ping-pong",
    "turned": "rotated",
    "turns": "rotations, steps, ping-pong",
    "brief": "approx16",
    "fold": "reduce",
    "folds": "reduction",
    "folded": "reduced",
    "band": "window",
    "meeting": "reduction scratch",
    "beside": "multi-row, prefetched, grid y and z",
    "neighbours": "interleaved pairs",
    "alike": "the name of what is common",
    "wants": "the name of what is asked for",
    "bring": "prefetch",
}
# Exceptions: names that contain a retired word, but are names in Rust, Python or their libraries, or names of
# tests.
ALLOWED = {"mem::forget", ".fold", ".try_fold", "fold_left"}
