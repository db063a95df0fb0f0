#!/usr/bin/env python3
"""Records docs/pictures/swap.svg: the Loglet under a log is swapped from native to local and back, under load.

Starts `atoll dev` in a temporary folder, and a load, `atoll bench log`. While it runs, `atoll chain extend` swaps the Loglet twice.
The picture shows each command and what it printed, at the moment when it printed it. One line of the load is drawn instead of
written: the acknowledgements per 100 ms. Nothing else is changed. Standard library only.

The program is that of ATOLL_BIN, or as cargo builds it. Run it again whenever one of these commands prints something else.
"""

import argparse
import datetime
import html
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "drills"))

from cluster import Cluster, file_system, find_binary, need, say  # noqa: E402 (found by the line above)

WARMUP_S, MEASURED_S = 2, 9
LOAD = ("bench", "log", "--payload", 1024, "--depth", 64, "--warmup", WARMUP_S, "--seconds", MEASURED_S)
LOAD += ("--count-after", "--longest-gap", "--timeline")
# When each swap begins, in seconds from the start of the load.
SWAPS = (
    (5.0, ("chain", "extend", "--loglet", "local")),
    (8.0, ("chain", "extend", "--loglet", "native")),
)
DRAWN = "acknowledgements per 100 ms: "

# Of a character and a line, and of the chart, in pixels.
CHAR, LINE, CHART = 7.25, 18, 150
MARGIN = 20


class Recording:
    """What was typed and printed, and when."""

    def __init__(self):
        self.began = time.monotonic()
        self.lines = []  # (seconds, kind, text)

    def now(self):
        return time.monotonic() - self.began

    def typed(self, args, behind=""):
        self.lines.append((self.now(), "typed", f"$ atoll {' '.join(map(str, args))}{behind}"))

    def printed(self, text):
        at = self.now()
        self.lines += [(at, "printed", line) for line in text.rstrip("\n").split("\n")]


def record(cluster):
    """The recording, the acknowledgements per 100 ms, and when each swap began and ended, both from where the load began to measure."""
    cluster.atoll("log", "create", "--log", "main")
    recording = Recording()
    recording.typed(LOAD, " &")
    load = cluster.spawn(*LOAD, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    swaps = []
    for at, verb in SWAPS:
        time.sleep(max(0.0, at - recording.now()))
        recording.typed(verb)
        began = recording.now()
        out = cluster.atoll(*verb).stdout.decode()
        swaps.append((began, recording.now(), verb[-1]))
        recording.printed(out)
    out, _ = load.communicate(timeout=60)
    need(load.returncode == 0, f"the load failed: {out}")
    shown, drawn = [], []
    for line in out.rstrip("\n").split("\n"):
        if line.startswith(DRAWN):
            drawn = [int(n) for n in line.removeprefix(DRAWN).split()]
        else:
            shown.append(line)
    need(drawn, f"the load printed no timeline: {out}")
    ended = recording.now()
    recording.printed("\n".join(shown))
    # The load does not print when that was: so long before its end.
    shift = ended - MEASURED_S
    return recording, drawn, [(max(0.0, began - shift), end - shift, to) for began, end, to in swaps]


STYLE = """
    .card { fill: #ffffff; stroke: #d0d7de; }
    .bar { fill: #0969da; }
    .swap { fill: #cf222e; }
    .axis { stroke: #8c959f; stroke-width: 1; }
    text { fill: #1f2328; font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "Liberation Mono", monospace; font-size: 12px; }
    .typed { font-weight: 600; }
    .note { fill: #57606a; }
    .cut { fill: #cf222e; }
    @keyframes show { from { opacity: 0; } to { opacity: 1; } }
    .later { animation: show 0.05s linear backwards; }
    @media (prefers-reduced-motion: reduce) { .later { animation: none; } }
    @media (prefers-color-scheme: dark) {
      .card { fill: #0d1117; stroke: #30363d; }
      .bar { fill: #58a6ff; }
      .swap { fill: #f85149; }
      .axis { stroke: #6e7681; }
      text { fill: #e6edf3; }
      .note { fill: #9da7b3; }
      .cut { fill: #f85149; }
    }
"""


def chart(acks, swaps, width, top):
    """Bars of acknowledgements per 100 ms, and where the swaps were."""
    most, bottom, left = max(acks), top + CHART, MARGIN + 60
    step = (width - MARGIN - left) / max(len(acks), 1)
    yield f'<text class="note" x="{MARGIN}" y="{top - 10}">{DRAWN.rstrip(": ")}, as --timeline printed them</text>'
    for number, count in enumerate(acks):
        high = CHART * count / most
        later = f'class="bar later" style="animation-delay: {WARMUP_S + number / 10:.1f}s"'
        yield f'<rect {later} x="{left + number * step:.1f}" y="{bottom - high:.1f}" width="{step * 0.8:.1f}" height="{high:.1f}"/>'
    yield f'<path class="axis" d="M{left} {bottom + 0.5} H{width - MARGIN}"/>'
    for value in (most, 0):
        place = bottom - CHART * value / most + 4
        yield f'<text class="note" text-anchor="end" x="{left - 6}" y="{place:.1f}">{value:,}</text>'
    for began, ended, to in swaps:
        x, wide = left + began * 10 * step, max(1.5, (ended - began) * 10 * step)
        yield f'<rect class="swap" x="{x:.1f}" y="{top}" width="{wide:.1f}" height="{CHART + 6}"/>'
        yield f'<text class="cut" x="{x + 5:.1f}" y="{bottom + 18}">to {to}</text>'
    yield f'<text class="note" text-anchor="end" x="{width - MARGIN}" y="{bottom + 18}">{len(acks) / 10:.0f} s</text>'


def picture(recording, acks, swaps, words):
    """The SVG: the terminal, the chart, and what was recorded where."""
    longest = max(len(text) for _, _, text in recording.lines)
    width = round(2 * MARGIN + CHAR * max(longest, len(words), 100))
    top = MARGIN + LINE * (len(recording.lines) + 2)
    height = top + CHART + 2 * LINE + MARGIN + 10
    yield f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="img" aria-label="The Loglet under a log is swapped from native to local and back, under load">'
    yield f"<style>{STYLE}</style>"
    yield f'<rect class="card" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="8"/>'
    for number, (at, kind, text) in enumerate(recording.lines):
        place = MARGIN + LINE * (number + 0.75)
        later = f'class="{kind} later" style="animation-delay: {at:.2f}s"'
        yield f'<text {later} x="{MARGIN}" y="{place:.0f}" xml:space="preserve">{html.escape(text)}</text>'
    yield from chart(acks, swaps, width, top)
    yield f'<text class="note" x="{MARGIN}" y="{height - MARGIN + 6}">{html.escape(words)}</text>'
    yield "</svg>"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", help="the program [default: ATOLL_BIN, or as cargo builds it]")
    parser.add_argument("--commit", help="of which commit it is [default: the one that is checked out]")
    parser.add_argument("--output", default=pathlib.Path(__file__).with_name("swap.svg"), type=pathlib.Path)
    args = parser.parse_args()
    head = ["git", "rev-parse", "--short", "HEAD"]
    commit = args.commit or subprocess.run(head, cwd=ROOT, capture_output=True, text=True).stdout.strip()
    with tempfile.TemporaryDirectory(prefix="atoll-swap-") as folder:
        disk = file_system(folder).split()[0]
        load = os.getloadavg()[0]
        with Cluster(find_binary(args.bin), pathlib.Path(folder) / "dev", "--nodes", 3) as cluster:
            recording, acks, swaps = record(cluster)
    date = datetime.date.today().isoformat()
    words = f"{date}, program of {commit}; three nodes on one machine of {os.cpu_count()} cores, whose load was {load:.1f} before; {disk}"
    lines = [line.rstrip() for part in picture(recording, acks, swaps, words) for line in part.split("\n")]
    args.output.write_text("\n".join(lines) + "\n")
    for _, _, text in recording.lines:
        say(text)
    said = re.findall(r"longest time .*", "\n".join(text for _, _, text in recording.lines))
    say(f"{args.output.name}: {words}; {''.join(said)}")


if __name__ == "__main__":
    main()
