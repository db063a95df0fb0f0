"""What all drawings share: raw results, colours, and how a figure is saved."""

import json
import pathlib
from statistics import median

import matplotlib

matplotlib.use("svg")
# The same input gives the same bytes.
matplotlib.rcParams["svg.hashsalt"] = "atoll"
matplotlib.rcParams["svg.fonttype"] = "none"

import matplotlib.pyplot as plt  # noqa: E402, F401 (the backend is chosen first; the drawings take it from here)

HERE = pathlib.Path(__file__).parent.parent
OURS, BASE, PAPER = "#1f6f8b", "#99a8b2", "#d98032"


def lines(name):
    """The raw results of a figure."""
    text = (HERE / name / "run.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines() if line.strip()]


def save(figure, name):
    figure.tight_layout()
    file = HERE / name / "figure.svg"
    figure.savefig(file, metadata={"Date": None})
    # Lines without white space at their end: the tree's rule, which the library does not know.
    file.write_text("\n".join(line.rstrip() for line in file.read_text().splitlines()) + "\n")
    print(f"{file.relative_to(HERE.parent)}")


def medians(runs, workload, setting, key):
    """The values of a setting, in order, and the median of a result over the rounds of each."""
    mine = [r for r in runs if r["workload"] == workload]
    values = sorted({r["settings"][setting] for r in mine})
    return values, [median([r[key] for r in mine if r["settings"][setting] == value]) for value in values]


def loads(runs):
    """The load of the machine over these runs, in words."""
    all_of_them = sorted(r["settings"]["load_1m"] for r in runs if "load_1m" in r.get("settings", {}))
    return f"load of the machine {all_of_them[0]:.1f} to {all_of_them[-1]:.1f}"


def keyspaces_foot(runs, words, durable="durable on disk"):
    """What else decides a figure of keyspaces, for its head."""
    loads = sorted(r["load_1m"] for r in runs if "load_1m" in r)
    return (f"{words}\nThree nodes and the load on one machine, {durable}; load of the machine {loads[0]:.1f} to {loads[-1]:.1f};"
            f" median of {max(r['round'] for r in runs)} rounds.")
