"""What the comparisons share: a fresh cluster of Atoll, the rig that runs the others, the CPU time and flushes that something took.

The rig is not part of this repository. It is a folder with `run.sh SYSTEM WORKLOAD FLAGS`, which starts three processes of a system,
measures them and prints JSON lines, and `load.sh PROTOCOL FLAGS`, which points the same load generator at any server.
"""

import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
KEYS = ("ops_s", "p50_ms", "p99_ms", "server_us_op")


def program():
    """The program to measure: what packages hold, unless ATOLL_BIN names another."""
    return os.environ.get("ATOLL_BIN") or str(ROOT / "target" / "dist" / "atoll")


def cpu_s(pids):
    """CPU seconds of some processes so far."""
    total = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")


def voluntary_switches(pids):
    """How often the threads of some processes have gone to sleep so far."""
    total = 0
    for pid in pids:
        for status in Path(f"/proc/{pid}/task").glob("*/status"):
            with contextlib.suppress(FileNotFoundError):
                total += int(status.read_text().rpartition("\nvoluntary_ctxt_switches:")[2].split()[0])
    return total


def file_system(folder):
    """Type of the file system of a folder, and its device."""
    out = subprocess.run(["df", "--output=fstype,source", folder], capture_output=True, text=True, check=True)
    return " on ".join(out.stdout.splitlines()[1].split())


def flushes():
    """Flush requests that all disks have completed so far, or None where the kernel does not count them."""
    total = 0
    for line in Path("/proc/diskstats").read_text().splitlines():
        fields = line.split()
        if len(fields) < 20:
            return None
        if not fields[2].startswith(("loop", "ram", "dm")):
            total += int(fields[18])
    return total


@contextlib.contextmanager
def cluster(program, folder, *flags, nodes=3):
    """A fresh cluster under `atoll dev`: its rows of dev.json, and where its data is. It ends with the block."""
    data = tempfile.mkdtemp(prefix="atoll-compare-", dir=folder)
    dev = subprocess.Popen([program, "dev", "--nodes", str(nodes), "--data", f"{data}/dev", "--base-port", "0", *flags],
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        state = Path(data, "dev", "dev.json")
        for _ in range(600):
            if state.exists():
                break
            if dev.poll() is not None:
                sys.exit("the cluster did not start")
            time.sleep(0.1)
        yield json.loads(state.read_text())["nodes"], data
    finally:
        dev.terminate()
        dev.wait(30)
        shutil.rmtree(data, ignore_errors=True)


def json_lines(text):
    """The JSON lines of an output; what the generator tells of use is told with the rest."""
    rows = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    for row in rows:
        row.setdefault("server_us_op", row.get("use", {}).get("server_us_op"))
    return rows


def run(rig, system, workload, *flags):
    """One fresh cluster of a peer, measured by the rig."""
    out = subprocess.run([str(Path(rig, "run.sh")), system, workload, *flags], stdout=subprocess.PIPE, text=True,
                         stderr=subprocess.DEVNULL)
    rows = json_lines(out.stdout)
    if not rows or out.returncode:
        print(f"-- {system} {workload}: {len(rows)} results; exit status {out.returncode}", file=sys.stderr)
    return [{**row, "system": system} for row in rows]


def load(rig, protocol, system, addresses, *flags):
    """One run of the rig's generator against servers that are up."""
    command = [str(Path(rig, "load.sh")), protocol, "-addrs", addresses, "-system", system, *flags]
    out = subprocess.run(command, stdout=subprocess.PIPE, text=True, stderr=subprocess.DEVNULL)
    rows = json_lines(out.stdout)
    if len(rows) != 1:
        print(f"-- {system}: {len(rows)} results of one run; exit status {out.returncode}", file=sys.stderr)
    return rows


def median(rows, key, **which):
    """The median of a figure over the rows that are so; None if no row has it."""
    found = [r[key] for r in rows if all(r.get(k) == v for k, v in which.items()) and r.get(key) is not None]
    return statistics.median(found) if found else None


def cells(values, width=14):
    """Figures of a line of a table."""
    return "".join(f"{'-' if v is None else f'{v:,.2f}':>{width}}" for v in values)


def tell(rows, number, row):
    """Takes note of a result of a round, and prints it."""
    row["round"] = number + 1
    rows.append(row)
    print(json.dumps(row, sort_keys=True), flush=True)
