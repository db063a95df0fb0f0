"""Draws a figure from its raw results, the paper's beside ours: `plot.py delos/figure_11_left`.

The papers' own data are not public. What stands beside ours is what their text says, and is labelled so.
The drawings of each paper are in a module of `plots`, which names them in `FIGURES` by the folders of their results.
"""

import sys

from plots import bizur, corfu, delos, in_place, logs, scalog, zookeeper
from plots.canvas import HERE

FIGURES = (
    delos.FIGURES | corfu.FIGURES | bizur.FIGURES | in_place.FIGURES | logs.FIGURES | scalog.FIGURES | zookeeper.FIGURES
)

if __name__ == "__main__":
    for wanted in sys.argv[1:] or [name for name in FIGURES if (HERE / name / "run.jsonl").is_file()]:
        FIGURES[wanted](wanted)
