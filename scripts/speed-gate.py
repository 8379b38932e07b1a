#!/usr/bin/env python3
"""Compares the speed of two binaries of `conclave`, in turns, on one machine.

Every cell is measured with OLD, OLD again and NEW, interleaved. The second series of OLD shows how much the machine itself
varies. A cell passes if the median of NEW/OLD is at least 0.98, or at least the median of OLD/OLD minus 0.02. After three
undecided runs of this script, the processor time for each unit of work decides; it is in the last column.

  scripts/speed-gate.py OLD NEW                                   all cells, about ten minutes
  scripts/speed-gate.py OLD NEW --cells one-name,in-flight        some cells
  scripts/speed-gate.py BINARY BINARY --new-env CONCLAVE_X=1      one binary with two environments

Build both binaries with the profile `dist`, in two worktrees: cargo build --profile dist.
Exit codes: 0 every cell passes, 1 some cell is undecided, 2 bad usage.
"""

import argparse
import json
import os
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

SERVICE_CELLS = {
    # name: (number of nodes, arguments of `conclave bench`)
    "own-names": (1, ["--clients", "64"]),
    "one-name": (1, ["--clients", "16", "--workload", "contended"]),
    "in-flight": (1, ["--clients", "64", "--connections", "1", "--in-flight", "64"]),
    "three-nodes": (3, ["--clients", "64"]),
}
LAB_CELLS = {
    # name: (arguments, the field of the JSON with the amount of work)
    "sim-ring": (["sim", "mutex/token-ring", "--nodes", "1000", "--entries", "4000000", "--load", "high"], "events"),
    "sim-ra": (["sim", "mutex/ricart-agrawala", "--nodes", "100", "--entries", "60000", "--load", "high"], "events"),
    "check": (["check", "mutex/ricart-agrawala", "--nodes", "4", "--entries", "1", "--json"], "states"),
}
FIRST_PORT = 17400


class Variant:
    """One of the three series: a binary with its environment, and its servers."""

    def __init__(self, name, binary, env, port):
        self.name, self.binary, self.port = name, os.path.abspath(binary), port
        self.env = {**os.environ, **env}
        self.servers, self.folder = [], None

    def start(self, nodes):
        self.folder = tempfile.mkdtemp(prefix="speed-gate-")
        addresses = [f"127.0.0.1:{self.port + number}" for number in range(nodes)]
        for number, address in enumerate(addresses):
            join = ["--join", addresses[0]] if number else []
            command = [self.binary, "serve", "--data", f"{self.folder}/n{number}", "--listen", address, *join]
            log = open(f"{self.folder}/n{number}.log", "w")
            self.servers.append(subprocess.Popen(command, env=self.env, stdout=log, stderr=log))
            wait_until_ready(address)
        self.server = ",".join(f"tcp:{address}" for address in addresses)

    def stop(self):
        for server in self.servers:
            server.send_signal(signal.SIGTERM)
        for server in self.servers:
            server.wait()
        self.servers = []
        if self.folder:
            shutil.rmtree(self.folder, ignore_errors=True)

    def bench(self, arguments, seconds):
        """Returns pairs per second and processor seconds per pair."""
        before = sum(processor_seconds(server.pid) for server in self.servers)
        command = [self.binary, "bench", "--server", self.server, "--json", "--seconds", str(seconds), *arguments]
        text, client = run(command, self.env)
        servers = sum(processor_seconds(server.pid) for server in self.servers) - before
        result = json.loads(text)
        rate = result["pairs_per_s"]
        return rate, (client + servers) / (rate * seconds)

    def lab(self, arguments, field):
        """Returns units of work per processor second, twice: as a rate, and as its inverse."""
        text, seconds = run([self.binary, *arguments, *([] if "--json" in arguments else ["--json"])], self.env)
        work = json.loads(text)[field]
        return work / seconds, seconds / work


def wait_until_ready(address):
    for _ in range(200):
        try:
            with urllib.request.urlopen(f"http://{address}/readyz", timeout=1) as answer:
                if answer.status == 200:
                    return
        except OSError:
            pass
        time.sleep(0.05)
    sys.exit(f"speed-gate: no server became ready on {address}")


def processor_seconds(pid):
    fields = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def run(command, env):
    """Returns the output of a command and the processor seconds of its process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != 0:
        sys.exit(f"speed-gate: {' '.join(command)} ended with {done.returncode}:\n{done.stderr}")
    return done.stdout, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure(variants, rounds, one):
    """Calls `one` for each variant in each round, and returns the results by variant. The first variant changes each round."""
    results = [[] for _ in variants]
    for round_number in range(rounds):
        order = [(round_number + offset) % len(variants) for offset in range(len(variants))]
        for index in order:
            results[index].append(one(variants[index]))
    return results


def report(cell, results):
    """Prints the line of a cell, and returns whether it passes."""
    old, again, new = results
    ratio = lambda above, below: statistics.median(a[0] / b[0] for a, b in zip(above, below))
    old_old, new_old = ratio(again, old), ratio(new, old)
    base = [(first[0] + second[0]) / 2 for first, second in zip(old, again)]
    mean = statistics.median(new[index][0] / base[index] for index in range(len(new)))
    cost = statistics.median(n[1] for n in new) / statistics.median(o[1] for o in old + again)
    passes = new_old >= 0.98 or new_old >= old_old - 0.02
    rates = [statistics.median(rate for rate, _ in series) for series in results]
    print(
        f"{cell:12} {rates[0]:>12,.0f} {rates[1]:>12,.0f} {rates[2]:>12,.0f} {old_old:>8.3f} {new_old:>8.3f}"
        f" {mean:>9.3f} {cost:>9.3f}  {'passes' if passes else 'undecided'}",
        flush=True,
    )
    return passes


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("--cells", default=",".join([*SERVICE_CELLS, *LAB_CELLS]), help="the cells, with commas between")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seconds", type=int, default=2, help="the length of a round of the service")
    parser.add_argument("--new-env", action="append", default=[], metavar="NAME=VALUE", help="a variable for NEW only")
    arguments = parser.parse_args()
    cells = arguments.cells.split(",")
    unknown = [cell for cell in cells if cell not in SERVICE_CELLS and cell not in LAB_CELLS]
    if unknown:
        parser.error(f"unknown cell: {unknown[0]}; there are {', '.join([*SERVICE_CELLS, *LAB_CELLS])}")
    new_env = dict(variable.split("=", 1) for variable in arguments.new_env)
    variants = [
        Variant("old", arguments.old, {}, FIRST_PORT),
        Variant("again", arguments.old, {}, FIRST_PORT + 10),
        Variant("new", arguments.new, new_env, FIRST_PORT + 20),
    ]
    print(f"{'cell':12} {'old':>12} {'again':>12} {'new':>12} {'old/old':>8} {'new/old':>8} {'new/mean':>9} {'cpu/unit':>9}")
    passes = []
    for cell in cells:
        if cell in LAB_CELLS:
            one = lambda variant, cell=cell: variant.lab(*LAB_CELLS[cell])
            passes.append(report(cell, measure(variants, arguments.rounds, one)))
            continue
        nodes, bench = SERVICE_CELLS[cell]
        try:
            for variant in variants:
                variant.start(nodes)
                variant.bench(bench, 1)
            one = lambda variant, bench=bench: variant.bench(bench, arguments.seconds)
            passes.append(report(cell, measure(variants, arguments.rounds, one)))
        finally:
            for variant in variants:
                variant.stop()
    return 0 if all(passes) else 1


if __name__ == "__main__":
    sys.exit(main())
